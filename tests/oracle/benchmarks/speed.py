"""Speed and peak memory of the float32 reference as ratios against torch SDPA on the same input, in one run.

    python tests/oracle/benchmarks/speed.py [--long]

Times are CPU seconds of this process, one thread, best of several; memory is the growth of the peak
resident set, measured in a child process per line. Nothing here is a test: absolute times say nothing about
another machine.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from kvlint.oracle.attention import Request, attend
from kvlint.oracle.kv import Dense
from kvlint.oracle.sampling import sample_rows
from kvlint.oracle.visibility import Visibility, causal, everything
from torch import Tensor

HEADS, KV_HEADS, DIM = 32, 8, 128

SHAPES = {
    "decode B4 1k fp32": (4, 1, 1024, torch.float32),
    "decode B4 8k fp32": (4, 1, 8192, torch.float32),
    "decode B4 32k fp32": (4, 1, 32768, torch.float32),
    "decode B4 1k bf16": (4, 1, 1024, torch.bfloat16),
    "decode B4 8k bf16": (4, 1, 8192, torch.bfloat16),
    "prefill B1 1k fp32": (1, 1024, 1024, torch.float32),
    "prefill B1 4k fp32": (1, 4096, 4096, torch.float32),
}
LONG = {
    "decode B1 128k bf16": (1, 1, 131072, torch.bfloat16),
    "prefill B1 8k fp32": (1, 8192, 8192, torch.float32),
}
SAMPLED = "sampled prefill B1 32k fp32"


def inputs(batch: int, rows: int, keys: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    gen = torch.Generator().manual_seed(0)
    q = torch.randn(batch, HEADS, rows, DIM, generator=gen).to(dtype)
    k, v = (torch.randn(batch, KV_HEADS, keys, DIM, generator=gen).to(dtype) for _ in range(2))
    return q, k, v


def requests(q: Tensor, k: Tensor, v: Tensor, rows: Tensor | None = None) -> list[Request]:
    count, keys = q.shape[2], k.shape[2]
    visible: Visibility = everything(keys) if count == 1 else causal(count, keys)
    return [Request(q[b], Dense(k[b]), Dense(v[b]), visible, rows) for b in range(len(q))]


def best(function: Callable[[], object], repeat: int) -> float:
    found = []
    for _ in range(repeat):
        start = time.process_time()
        function()
        found.append(time.process_time() - start)
    return min(found)


def resident(field: str) -> float:
    """A line of /proc/self/status in MB."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) / 1024
    raise SystemExit(f"no {field} in /proc/self/status: memory is measured on Linux only")


def measure(name: str, side: str) -> dict[str, float]:
    """One side of one line, in this process."""
    torch.set_num_threads(1)
    shape = (1, 32768, 32768, torch.float32) if name == SAMPLED else (SHAPES | LONG)[name]
    q, k, v = inputs(*shape)
    rows = sample_rows(32768) if name == SAMPLED else None

    def run() -> object:
        if side == "sdpa":
            return torch.nn.functional.scaled_dot_product_attention(
                q, k, v, is_causal=q.shape[2] > 1, scale=0.1, enable_gqa=True
            )
        return attend(requests(q, k, v, rows), 0.1, dtype=torch.float32, spread=False)

    Path("/proc/self/clear_refs").write_text("5")  # the peak starts again from here
    before = resident("VmRSS")
    once = best(run, 1)
    memory = resident("VmHWM") - before
    seconds = min(once, best(run, 4)) if once < 2 else once
    return {"seconds": seconds, "memory": memory}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--long", action="store_true", help="also the lines that take minutes or gigabytes")
    parser.add_argument("--one", nargs=2, metavar=("NAME", "SIDE"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure(*options.one)))
        return
    print(f"{'shape':28s} {'SDPA ms':>9s} {'ref ms':>9s} {'ratio':>6s} {'SDPA MB':>8s} {'ref MB':>7s}")
    for name in [*SHAPES, SAMPLED, *(LONG if options.long else ())]:
        sides = {}
        for side in ("sdpa", "reference") if name != SAMPLED else ("reference",):
            done = subprocess.run(
                [sys.executable, __file__, "--one", name, side], capture_output=True, text=True, check=True
            )
            sides[side] = json.loads(done.stdout)
        mine = sides["reference"]
        other = sides.get("sdpa")
        left = f"{other['seconds'] * 1e3:9.1f}" if other else " " * 9
        ratio = f"{mine['seconds'] / other['seconds']:6.2f}" if other else " " * 6
        memory = f"{other['memory']:8.0f}" if other else " " * 8
        print(
            f"{name:28s} {left} {mine['seconds'] * 1e3:9.1f} {ratio} {memory} {mine['memory']:7.0f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
