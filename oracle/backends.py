"""Where the operators under test come from: the simulator, torch SDPA, or torch_npu on a device.

A backend offers the attention operators and the cache writers under their own names (``backend.ops.<name>``).
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, Protocol

import torch
from torch import Tensor

from .calls import Call, normalise
from .cases import FUSION, IFA, PAGED_ATB, PFA, SPARSE, Case
from .errors import CaseSelectionError, OracleError
from .kernels import KERNELS
from .layouts import join_heads, split_heads
from .reference import key_sources, query_spans


class Backend(Protocol):
    """What the runner needs of a backend."""

    name: str
    device: torch.device
    #: whether the attention operators return a log-sum-exp
    gives_lse: bool

    @property
    def ops(self) -> Any:
        """Namespace of operators, by their real names."""

    def refuses(self, case: Case) -> str:
        """Why this backend cannot express the case; empty if it can."""

    def synchronise(self) -> None:
        """Wait until all submitted work is done."""


class Simulator:
    """The CPU kernels of :mod:`kvlint.oracle.kernels`; ``replace`` puts other functions behind some names,
    which is how a faulty operator is tried."""

    def __init__(self, replace: dict[str, Callable[..., Any]] | None = None, name: str = "sim") -> None:
        self.ops = SimpleNamespace(**(KERNELS | (replace or {})))
        self.name = name
        self.device = torch.device("cpu")
        self.gives_lse = True

    def refuses(self, case: Case) -> str:
        return ""

    def synchronise(self) -> None:
        return


class TorchSdpa:
    """``torch.nn.functional.scaled_dot_product_attention`` behind the FIA names.

    Masks and the sink are built here from the call's arguments; the cache writers are the simulator's. No
    LSE, no integer caches."""

    name = "sdpa"
    gives_lse = False

    def __init__(self, device: str = "cpu") -> None:
        self.device = torch.device(device)
        names = ("npu_fused_infer_attention_score", "npu_fused_infer_attention_score_v2", PFA, IFA, FUSION)
        replaced = {n: self._bind(n) for n in names}
        self.ops = SimpleNamespace(**(KERNELS | replaced))

    def refuses(self, case: Case) -> str:
        if case.cache == "kv-parallel-sequence":
            return "SDPA returns no log-sum-exp"
        if case.quant:
            return "SDPA has no integer cache"
        if case.op in (SPARSE, PAGED_ATB):
            return f"{case.op} has no SDPA form"
        if case.masking == "window" and case.one_token:
            return "pre_tokens as a decode window is an operator's habit"
        if 0 in case.kv_lens:
            return "SDPA gives NaN without keys"
        if case.sampled:
            return "a bottom-right causal mask of this size is not worth materialising"
        return ""

    def synchronise(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def _bind(self, name: str) -> Callable[..., Any]:
        single = name in (PFA, IFA)

        def operator(*args: Any, **kwargs: Any) -> Any:
            out = self._attention(normalise(name, args, kwargs))
            return out if single else (out, out.new_zeros(0, dtype=torch.float32))

        return operator

    def _attention(self, call: Call) -> Tensor:
        q = split_heads(call.query, call.layout.inputs, call.heads)
        if call.query_rope is not None:
            q = torch.cat([q, split_heads(call.query_rope, call.layout.inputs, call.heads)], -1)
        q = q.unsqueeze(0) if call.layout.packed else q
        spans = query_spans(call)
        sources = key_sources(call, len(spans))
        out = q.new_zeros(*q.shape[:3], sources[0][1].dim)
        for b, ((row, first, count), (k, v)) in enumerate(zip(spans, sources, strict=True)):
            if not count or not k.length:
                continue
            kk, vv = k.read(0, k.length, q.dtype), v.read(0, v.length, q.dtype)
            mask = self._mask(call, b, count, k.length, q.dtype)
            if call.sink is not None:
                # An extra key of zeros whose logit the mask supplies joins the denominator and adds nothing.
                kk = torch.nn.functional.pad(kk, (0, 0, 0, 1))
                vv = torch.nn.functional.pad(vv, (0, 0, 0, 1))
                base = torch.zeros(1, count, k.length, dtype=torch.float32) if mask is None else mask
                sink = call.sink.float().view(-1, 1, 1).expand(-1, count, 1)
                mask = torch.cat([base.expand(call.heads, -1, -1), sink], -1)
            work = torch.float32 if mask is not None and mask.dtype == torch.float32 else q.dtype
            group = call.heads // kk.shape[0]
            own_q = q[row : row + 1, :, first : first + count].to(self.device, work)
            own_k, own_v = (t.repeat_interleave(group, 0)[None].to(self.device, work) for t in (kk, vv))
            own_mask = None if mask is None else mask.to(self.device, work)
            got = torch.nn.functional.scaled_dot_product_attention(
                own_q, own_k, own_v, attn_mask=own_mask, scale=call.scale
            )
            out[row, :, first : first + count] = torch.nan_to_num(got[0]).to(out)
        return join_heads(out[0] if call.layout.packed else out, call.layout.output)

    def _mask(self, call: Call, b: int, rows: int, keys: int, dtype: torch.dtype) -> Tensor | None:
        """Additive float mask, None when nothing is hidden."""
        one = call.engine == "decode" and rows == 1 and call.query_rope is None
        i, j = torch.arange(rows)[:, None], torch.arange(keys)[None]
        hidden: Tensor | None = None
        if call.mask is not None:
            mode = call.sparse_mode
            if one or mode in (0, 1):
                own = call.mask if call.mask.dim() == 2 else call.mask.reshape(-1, *call.mask.shape[-2:])
                own = own if own.dim() == 2 else own[b if len(own) > 1 else 0]
                hidden = own[:rows, :keys] != 0
                if mode == 0 and not one and call.next_tokens < keys:
                    hidden = hidden | (j > i + call.next_tokens)
            elif mode == 2:
                hidden = j > i
            elif mode == 3:
                hidden = j - (keys - rows) > i
            elif mode == 4:
                at = j - (keys - rows)
                hidden = (at > i + call.next_tokens) | (at < i - call.pre_tokens)
            elif mode == 9:
                tree = call.mask.reshape(-1, *call.mask.shape[-2:])[b][:rows, :rows] != 0
                hidden = torch.cat([torch.zeros(rows, keys - rows, dtype=torch.bool), tree], 1)
        mask = None if hidden is None else torch.zeros(1, rows, keys).masked_fill(hidden[None], float("-inf"))
        if call.bias is not None:
            bias = call.bias[b if len(call.bias) > 1 else 0][:, :rows, :keys].float()
            bias = bias * call.scale if call.bias_is_scaled else bias
            mask = bias if mask is None else mask + bias
        return mask


class NpuOperators:
    """Attribute access to operators wherever torch_npu keeps them."""

    def __init__(self, torch_npu: Any) -> None:
        self._places = [torch_npu, torch.ops.npu, getattr(torch_npu, "atb", None), torch.ops.atb]

    def __getattr__(self, name: str) -> Any:
        for place in self._places:
            found = getattr(place, name, None) if place is not None else None
            if found is not None:
                return found
        raise OracleError(f"this torch_npu has no operator {name}")


class Npu:
    """torch_npu on a device."""

    name = "npu"
    gives_lse = True

    def __init__(self, device: str = "npu:0") -> None:
        reason = npu_unavailable()
        if reason:
            raise OracleError(f"backend npu: {reason}")
        import torch_npu  # type: ignore[import-not-found]

        self.device = torch.device(device)
        self.ops = NpuOperators(torch_npu)

    def refuses(self, case: Case) -> str:
        return ""

    def synchronise(self) -> None:
        torch.npu.synchronize()  # type: ignore[attr-defined]


def npu_unavailable() -> str:
    """Why torch_npu cannot run here; empty if it can."""
    if importlib.util.find_spec("torch_npu") is None:
        return "torch_npu is not installed"
    session = sys.modules.get("kvlint.sim.session")
    if session is not None and session.active() is not None:
        return "the simulator is on, so that what says npu is the CPU; use backend sim"
    try:
        import torch_npu  # noqa: F401
    except Exception as error:  # the loader raises ImportError, OSError or RuntimeError
        return f"torch_npu does not load ({str(error).splitlines()[0]})"
    npu = getattr(torch, "npu", None)
    if npu is None or not npu.is_available():
        return "no NPU is visible (CANN runtime missing, or no device)"
    return ""


def availability() -> dict[str, str]:
    """backend -> why it cannot run here (empty: it can)."""
    return {
        "sim": "",
        "sdpa": "",
        "sdpa:cuda": "" if torch.cuda.is_available() else "no CUDA device",
        "npu": npu_unavailable(),
    }


def backend(name: str) -> Backend:
    """The backend called ``name``: sim, sdpa, sdpa:cuda, npu or npu:N, or sim:FAULT for a known operator
    defect."""
    kind, _, rest = name.partition(":")
    if kind == "sim" and rest:
        from .defects import DEFECTS

        if rest not in DEFECTS:
            raise CaseSelectionError(f"no operator defect {rest!r}; known: {', '.join(DEFECTS)}")
        return Simulator(DEFECTS[rest].replacements(), name)
    if kind == "sim":
        return Simulator()
    if kind == "sdpa":
        if rest == "cuda" and not torch.cuda.is_available():
            raise OracleError("backend sdpa:cuda: no CUDA device")
        return TorchSdpa(rest or "cpu")
    if kind == "npu":
        return Npu(f"npu:{rest or 0}")
    raise CaseSelectionError(f"no backend {name!r}; backends: sim, sdpa, sdpa:cuda, npu")
