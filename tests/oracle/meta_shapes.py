"""Prints, as JSON, where the simulator's shapes and dtypes differ from torch_npu's meta kernels.

Run by test_meta.py in an interpreter in which ``import torch_npu`` works.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import torch
import torch_npu  # noqa: F401
from kvlint.oracle.backends import Simulator
from kvlint.oracle.caches import make_cache
from kvlint.oracle.calling import attention_call, sparse_indices
from kvlint.oracle.cases import FUSION, PAGED_ATB, SPARSE, Case, matrix
from kvlint.oracle.kernels import KERNELS
from kvlint.oracle.scenario import build

Shape = tuple[tuple[int, ...], str]


def on_meta(x: Any) -> Any:
    return x.to("meta") if isinstance(x, torch.Tensor) else x


def described(found: Any) -> list[Shape]:
    parts = [found] if isinstance(found, torch.Tensor) else [t for t in found if isinstance(t, torch.Tensor)]
    return [(tuple(t.shape), str(t.dtype)) for t in parts]


def differences(case: Case) -> list[str]:
    """One line per attention call of the case whose results differ in shape or dtype."""
    found: list[str] = []
    correct = KERNELS[case.op]

    def watched(*args: Any, **kwargs: Any) -> Any:
        mine = correct(*args, **kwargs)
        theirs = getattr(torch.ops.npu, case.op)(
            *map(on_meta, args), **{k: on_meta(v) for k, v in kwargs.items()}
        )
        a, b = described(mine), described(theirs)
        wanted = 1 if case.op not in KERNELS or isinstance(mine, torch.Tensor) else 2
        if a[:wanted] != b[:wanted]:
            found.append(f"{case.name}: simulator {a[:wanted]}, meta kernel {b[:wanted]}")
        return mine

    scenario = build(case)
    backend = Simulator({case.op: watched})
    cache = make_cache(scenario, backend.ops)
    cache.fill()
    cache.step()
    call = attention_call(scenario, backend)
    if case.op == SPARSE:
        cache.attend(lambda keys: call(keys | {"sparse_indices": sparse_indices(scenario)}))
    else:
        cache.attend(call)
    return found


def main() -> None:
    full = "--full" in sys.argv
    checked, lines = 0, []
    for case in matrix(full):
        # ATB operators have no schema before their library is loaded, fusion attention's meta kernel asks the
        # device for its kind, and long cases have the shapes of short ones.
        if case.op in (PAGED_ATB, FUSION) or max(case.kv_lens) > 2500:
            continue
        checked += 1
        try:
            lines += differences(case)
        except Exception as error:
            lines.append(f"{case.name}: {type(error).__name__} {str(error).splitlines()[0]}")
    print(json.dumps({"checked": checked, "differences": lines}))


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
