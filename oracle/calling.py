"""From a scenario and a cache to the operator call, spelled the way user code spells it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .backends import Backend
from .caches import KeyArguments
from .calls import ROLES
from .cases import FUSION, IFA, PAGED_ATB, PFA, SPARSE, Case
from .layouts import join_heads
from .scenario import Scenario

_POSITIONAL = {FUSION: ("heads", "layout"), SPARSE: ("sparse_indices", "scale")}
MASK_SIDE = 2048


@dataclass(slots=True)
class Recorded:
    """One operator call as made: for reports, and for the operator-level reference."""

    op: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


def compressed_mask() -> Tensor:
    """The canonical mask of sparse_mode 2, 3 and 4: True above the diagonal."""
    return torch.ones(MASK_SIDE, MASK_SIDE, dtype=torch.bool).triu(1)


def spell(op: str, roles: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """(args, kwargs) of ``op`` for role -> value; roles the operator has no keyword for are dropped."""
    keyword = {role: name for name, role in ROLES[op].items()}
    lead = [roles["query"], roles["key"], roles["value"]]
    first = _POSITIONAL.get(op, ())
    lead += [roles[r] for r in first]
    rest = {keyword[r]: v for r, v in roles.items() if r in keyword and r not in first and v is not None}
    return tuple(lead), rest


def attention_call(
    scenario: Scenario, backend: Backend, log: list[Recorded] | None = None
) -> Callable[[KeyArguments], tuple[Tensor, Tensor]]:
    """A function that makes the attention call for given key-side arguments."""
    case = scenario.case
    fixed = query_side(scenario)

    def call(keys: KeyArguments) -> tuple[Tensor, Tensor]:
        roles = fixed | keys
        heads = roles.pop("query_heads", None)
        if heads is not None:
            _take_heads(case, roles, heads)
        if case.op == PAGED_ATB:
            return _paged_atb(scenario, backend, roles)
        mask = mask_argument(scenario, roles)
        if mask is not None:
            roles["mask"] = mask
        if case.op in (PFA, IFA, FUSION, SPARSE):
            _adapt(case, roles)
        roles = {r: v.to(backend.device) if isinstance(v, Tensor) else v for r, v in roles.items()}
        args, kwargs = spell(case.op, roles)
        if log is not None:
            log.append(Recorded(case.op, args, kwargs))
        found = getattr(backend.ops, case.op)(*args, **kwargs)
        backend.synchronise()
        if isinstance(found, Tensor):
            return found.cpu(), torch.zeros(0)
        return found[0].cpu(), found[1].cpu()

    return call


def query_side(scenario: Scenario) -> dict[str, Any]:
    """Roles that do not depend on the cache."""
    case = scenario.case
    axes = case.layout.partition("_")[0]
    rows = [q.transpose(0, 1) for q in scenario.fed]
    if case.packed:
        q = torch.cat(rows, 1)
    else:
        longest = max(case.q_lens)
        gen = torch.Generator().manual_seed(case.seed ^ 0xFEED)
        q = torch.randn(len(rows), case.heads, longest, rows[0].shape[-1], generator=gen).to(scenario.dtype)
        for b, r in enumerate(rows):
            q[b, :, : r.shape[1]] = r
    roles: dict[str, Any] = {
        "query": join_heads(q[..., : case.dim], axes), "layout": case.layout, "heads": case.heads,
        "kv_heads": case.kv_heads, "scale": case.scale, "want_lse": case.lse or None,
        "inner_precise": case.inner_precise, "sink": scenario.sink, "bias": scenario.bias,
    }  # fmt: skip
    if case.rope_dim:
        roles["query_rope"] = join_heads(q[..., case.dim :], axes)
    if case.packed:
        roles["q_lens"] = torch.tensor(case.q_lens).cumsum(0).tolist()
    elif not case.one_token and not case.latent:
        roles["q_lens"] = list(case.q_lens)
    return roles | _mode(case)


def _mode(case: Case) -> dict[str, Any]:
    """sparse_mode and tokens, as user code picks them."""
    if case.one_token:
        # One-token decode sees everything that is cached; sparse modes would be misread (C13).
        return {"pre_tokens": case.window} if case.masking == "window" else {"sparse_mode": 0}
    if case.masking == "window":
        return {"sparse_mode": 4, "pre_tokens": case.window - 1, "next_tokens": 0}
    modes = {"causal": 3, "left-up": 2, "all": 1, "tree": 9, "sparse": 3}
    return {"sparse_mode": modes.get(case.masking, 0)}


def mask_argument(scenario: Scenario, roles: dict[str, Any]) -> Tensor | None:
    """The mask tensor that goes with the mode, in the shape the operator wants."""
    case = scenario.case
    if case.masking in ("full", "sparse") or (case.one_token and case.masking != "mask"):
        return None
    if case.masking in ("causal", "left-up", "window"):
        return compressed_mask()
    assert scenario.mask is not None
    if case.masking == "tree":
        return scenario.mask
    columns = _stored_columns(case, roles)
    hidden = torch.ones(*scenario.mask.shape[:2], columns, dtype=torch.bool)
    hidden[..., : scenario.mask.shape[2]] = scenario.mask
    return hidden.unsqueeze(1)


def _stored_columns(case: Case, roles: dict[str, Any]) -> int:
    """Keys the stored sequence axis can hold: masks and pse must cover them (C07, C15, PG24)."""
    table = roles.get("block_table")
    if table is not None:
        return int(table.shape[1]) * case.block_size
    key: Tensor = roles["key"]
    return key.shape[2 if case.layout.partition("_")[0] == "BNSD" else 1]


def _take_heads(case: Case, roles: dict[str, Any], heads: slice) -> None:
    axes = case.layout.partition("_")[0]
    q: Tensor = roles["query"]
    if axes == "BSH":
        width = q.shape[-1] // case.heads
        roles["query"] = q[..., heads.start * width : heads.stop * width].contiguous()
    else:
        at = axes.index("N")
        roles["query"] = q.narrow(at, heads.start, heads.stop - heads.start).contiguous()


def _adapt(case: Case, roles: dict[str, Any]) -> None:
    """Differences of the older operators: which lengths exist, and of what type they are."""
    if case.op == IFA or (case.op == FUSION and not case.packed):
        roles.pop("q_lens", None)
    if case.op == FUSION and not case.packed:
        roles.pop("kv_lens", None)
    if case.op == SPARSE:
        paged = roles.get("block_table") is not None
        roles["layout_kv"] = "PA_BSND" if paged else case.layout
        roles["attention_mode"] = 2
        for name in ("q_lens", "kv_lens"):
            if roles.get(name) is not None:
                roles[name] = torch.tensor(roles[name], dtype=torch.int32)


def sparse_indices(scenario: Scenario) -> Tensor:
    """Selected key tokens as the operator wants them: int32 ``[T, 1, K]`` or ``[B, S, 1, K]``."""
    assert scenario.chosen is not None
    if scenario.case.packed:
        return torch.cat(scenario.chosen).int().unsqueeze(1)
    longest = max(scenario.case.q_lens)
    table = torch.full((scenario.batch, longest, 1, scenario.case.sparse_count), -1, dtype=torch.int32)
    for b, chosen in enumerate(scenario.chosen):
        table[b, : len(chosen), 0] = chosen.int()
    return table


def _paged_atb(scenario: Scenario, backend: Backend, roles: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """The graph-replay form: the workspace was asked for other (longest) lengths and is used for these."""
    case = scenario.case
    query: Tensor = roles["query"].to(backend.device)
    table: Tensor = roles["block_table"]
    out = torch.full(
        (len(query), case.heads, case.value_dim), torch.nan, dtype=scenario.dtype, device=backend.device
    )
    capacity = torch.full((len(query),), table.shape[1] * case.block_size, dtype=torch.int32)
    lens = torch.tensor(case.kv_lens, dtype=torch.int32)
    common = (
        query, roles["key"], roles["value"], case.kv_heads, case.heads, case.scale, table,
    )  # fmt: skip
    workspace = backend.ops._npu_paged_attention_get_workspace(*common, capacity, out)
    backend.ops._npu_paged_attention(*common, lens, out, workspace=workspace)
    backend.synchronise()
    return out.cpu(), torch.zeros(0)
