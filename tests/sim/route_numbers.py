"""Prints, as JSON, numbers of one program: ``python route_numbers.py ROUTE``."""

from __future__ import annotations

import json
import sys

from kvlint.sim import simulate


def main(route: str) -> None:
    with simulate(route):  # type: ignore[arg-type]
        import torch
        import torch_npu

        torch.set_num_threads(1)
        torch.manual_seed(3)
        q, k, v = (torch.randn(2, 9, 256, device="npu", dtype=torch.bfloat16) for _ in range(3))
        mask = torch.ones(2048, 2048, device="npu", dtype=torch.bool).triu(1)
        out, lse = torch_npu.npu_fused_infer_attention_score(
            q, k, v, num_heads=4, scale=0.125, atten_mask=mask, sparse_mode=3, softmax_lse_flag=True
        )
        normed, _ = torch_npu.npu_rms_norm(out, torch.ones(256, device="npu", dtype=torch.bfloat16))
        cache = torch.zeros(2, 16, 256, device="npu", dtype=torch.bfloat16)
        torch_npu.scatter_update_(cache, torch.tensor([3, 5]).npu(), normed, 1)
        paged = torch.empty(2, 4, 64, dtype=torch.bfloat16)
        torch_npu._npu_paged_attention(
            q[:, 0].reshape(2, 4, 64), k[:1, :8].reshape(1, 8, 4, 64), v[:1, :8].reshape(1, 8, 4, 64), 4, 4,
            0.125,
            torch.zeros(2, 1, dtype=torch.int32), torch.tensor([8, 3], dtype=torch.int32), paged,
        )  # fmt: skip
    sums = [t.double().sum().item() for t in (out, lse, normed, cache, paged)]
    json.dump([sums, cache.float().flatten()[::97].tolist()], sys.stdout)


if __name__ == "__main__":
    main(*sys.argv[1:])
