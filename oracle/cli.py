"""``kvlint oracle``: run, replay, list, compare, backends.

Exit codes: 0 all cases pass, 1 some case fails (or regressed), 2 the command line or a report is wrong, or
captured calls could not be replayed.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from .cases import Case
    from .runner import CaseResult

app = typer.Typer(
    name="oracle",
    help="Numeric oracle: run attention and KV-cache operators against an exact reference.",
    no_args_is_help=True,
    add_completion=False,
)

OK, FAILED, USAGE = 0, 1, 2

Names = Annotated[list[str] | None, typer.Option("--case", help="Case name or glob; may be repeated.")]
Keyword = Annotated[str, typer.Option("-k", help="Words that must occur in the name; 'not WORD' excludes.")]
Modes = Annotated[str, typer.Option("--modes", help="Cache modes, comma separated (prefixes allowed).")]
Full = Annotated[
    bool, typer.Option("--full/--quick", help="Every valid combination, or the pairwise selection.")
]


def _usage(message: str) -> typer.Exit:
    typer.echo(f"kvlint oracle: {message}", err=True)
    return typer.Exit(USAGE)


def _chosen(names: list[str] | None, keyword: str, modes: str, full: bool) -> list[Case]:
    from .cases import select
    from .errors import OracleError

    try:
        wanted = [m.strip() for m in modes.split(",") if m.strip()]
        return select(full=full, names=names or [], keyword=keyword, modes=wanted)
    except OracleError as error:
        raise _usage(str(error)) from None


@app.command("list")
def list_cases(
    case: Names = None,
    keyword: Keyword = "",
    modes: Modes = "",
    full: Full = False,
    output_format: Annotated[str, typer.Option("--output-format", help="text or json.")] = "text",
) -> None:
    """Show the cases a run would take."""
    from dataclasses import asdict

    if output_format not in ("text", "json"):
        raise _usage(f"--output-format must be text or json, got {output_format!r}")
    chosen = _chosen(case, keyword, modes, full)
    if output_format == "json":
        typer.echo(json.dumps([asdict(c) for c in chosen], indent=1))
        return
    for c in chosen:
        remark = " | ".join(x for x in (c.mimics, c.covers) if x)
        typer.echo(f"{c.name}" + (f"  [{remark}]" if remark else ""))
    typer.echo(f"{len(chosen)} cases", err=True)


@app.command()
def run(
    backend: Annotated[
        str, typer.Option(help="sim, sdpa, sdpa:cuda, npu or npu:N; sim:DEFECT for a self-test.")
    ] = "sim",
    case: Names = None,
    keyword: Keyword = "",
    modes: Modes = "",
    full: Full = False,
    out: Annotated[
        Path | None, typer.Option(help="Folder for report.json, report.md and report.html.")
    ] = None,
    output_format: Annotated[
        str, typer.Option("--output-format", help="text or json (on standard output).")
    ] = "text",
    reference_device: Annotated[str, typer.Option(help="Device of the reference.")] = "cpu",
    explain: Annotated[bool, typer.Option(help="Name the misuse that explains a failure.")] = True,
    columns: Annotated[bool, typer.Option(help="Also evaluate the rules of other projects.")] = True,
    seed: Annotated[int, typer.Option(help="Other numbers in every case; 0 keeps each case's own.")] = 0,
    threads: Annotated[int, typer.Option(help="CPU threads of torch; 0 keeps torch's choice.")] = 1,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Only the summary and the failures.")] = False,
) -> None:
    """Run cases and compare every row with the reference."""
    if output_format not in ("text", "json"):
        raise _usage(f"--output-format must be text or json, got {output_format!r}")
    chosen = _chosen(case, keyword, modes, full)
    results, data = _execute(chosen, backend, reference_device, explain, columns, seed, threads, full, quiet)
    if out is not None:
        _write(out, data)
    if output_format == "json":
        typer.echo(json.dumps(data, indent=1))
    else:
        _summary(results, data, out)
    raise typer.Exit(FAILED if any(r.failed for r in results) else OK)


def _execute(
    chosen: list[Case], name: str, reference_device: str, explain: bool, columns: bool, seed: int,
    threads: int,
    full: bool, quiet: bool,
) -> tuple[list[CaseResult], dict[str, Any]]:  # fmt: skip
    try:
        import torch
    except ImportError:
        raise _usage("torch is not installed; install kvlint[oracle]") from None
    from .backends import backend as make_backend
    from .cases import with_seed
    from .errors import OracleError
    from .report import report_data
    from .runner import run as run_cases
    from .runner import shard

    if threads > 0:
        torch.set_num_threads(threads)
    rank, world = _worker()
    if seed:
        chosen = [with_seed(c, c.seed ^ seed) for c in chosen]
    chosen = shard(chosen, rank, world)
    try:
        torch.empty(0, device=reference_device)
        stack = make_backend(name)
    except OracleError as error:
        raise _usage(str(error)) from None
    except (RuntimeError, AssertionError) as error:
        raise _usage(f"--reference-device {reference_device}: {str(error).splitlines()[0]}") from None
    began = time.perf_counter()
    with _progress(len(chosen), quiet) as advance:
        results = run_cases(
            chosen,
            stack,
            reference_device=reference_device,
            explain=explain,
            columns=columns,
            progress=advance,
        )
    selection = f"{len(chosen)} cases, {'full' if full else 'quick'}" + (
        f", worker {rank} of {world}" if world > 1 else ""
    )
    data = report_data(
        results, backend=name, selection=selection, seconds=time.perf_counter() - began, device=stack.device
    )
    return results, data


def _worker() -> tuple[int, int]:
    """(rank, number of workers) as torchrun sets them."""
    try:
        rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    except ValueError:
        raise _usage("RANK and WORLD_SIZE must be integers") from None
    if not 0 <= rank < world:
        raise _usage(f"RANK {rank} does not lie in 0..{world - 1}")
    return rank, world


class _progress:
    """A progress bar on a terminal, nothing elsewhere."""

    def __init__(self, total: int, quiet: bool) -> None:
        self.total, self.show = total, not quiet and sys.stderr.isatty()
        self.bar: Any = None

    def __enter__(self) -> Any:
        if self.show:
            self.bar = typer.progressbar(length=self.total, label="cases", file=sys.stderr)
            self.bar.__enter__()
        return self.advance

    def advance(self, result: CaseResult) -> None:
        if self.bar is not None:
            self.bar.update(1)

    def __exit__(self, *error: object) -> None:
        if self.bar is not None:
            self.bar.__exit__(*error)


def _write(folder: Path, data: dict[str, Any]) -> None:
    from .report import render_html, render_markdown

    rank, world = _worker()
    stem = f"report-{rank}" if world > 1 else "report"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{stem}.json").write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
        (folder / f"{stem}.md").write_text(render_markdown(data), encoding="utf-8")
        (folder / f"{stem}.html").write_text(render_html(data), encoding="utf-8")
    except OSError as error:
        raise _usage(f"--out {folder}: {error.strerror or error}") from None


def _summary(results: list[CaseResult], data: dict[str, Any], out: Path | None) -> None:
    for r in results:
        if not r.failed:
            continue
        typer.echo(f"{r.outcome.upper()} {r.case.name}")
        for reason in r.reasons[:4]:
            typer.echo(f"    {reason}")
        if r.location is not None:
            b, h, t = r.location.first
            typer.echo(f"    where: request {b}, head {h}, token {t}; {r.location.pattern}")
        if r.attribution is not None:
            typer.echo(f"    why: {r.attribution.sentence()}")
    counts = ", ".join(f"{n} {name}" for name, n in data["summary"].items() if n)
    typer.echo(f"{counts} in {data['seconds']:.1f} s (backend {data['backend']}, {data['selection']})")
    if out is not None:
        typer.echo(f"reports in {out}")


@app.command()
def replay(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder that kvlint run --capture wrote.")],
    backend: Annotated[str, typer.Option(help="Where the calls run again: sim, sdpa, npu or npu:N.")] = "sim",
    out: Annotated[
        Path | None, typer.Option(help="Folder for report.json, report.md and report.html.")
    ] = None,
    output_format: Annotated[
        str, typer.Option("--output-format", help="text, json or markdown (on standard output).")
    ] = "text",
    explain: Annotated[bool, typer.Option(help="Name the misuse that explains a failure.")] = True,
    threads: Annotated[int, typer.Option(help="CPU threads of torch; 0 keeps torch's choice.")] = 1,
) -> None:
    """Judge the calls of a capture: the numbers in it, and those of a backend for the same calls.

    Exit code 1 if numbers are wrong or the capture is damaged further on; else 2 if the capture cannot be
    read, a call raised, or no call could be judged.
    """
    if output_format not in ("text", "json", "markdown"):
        raise _usage(f"--output-format must be text, json or markdown, got {output_format!r}")
    try:
        import torch

        from kvlint.runtime.replay import replay as replay_calls
        from kvlint.runtime.store import CaptureError
    except ImportError as error:
        raise _usage(f"replay needs torch and safetensors; install kvlint[sim] ({error})") from None
    from .errors import OracleError
    from .report import render_markdown

    if threads > 0:
        torch.set_num_threads(threads)
    try:
        found = replay_calls(folder, backend, explain=explain)
    except (CaptureError, OracleError) as error:
        raise _usage(str(error)) from None
    if out is not None:
        _write(out, found.data())
    if output_format == "json":
        typer.echo(found.json(), nl=False)
    elif output_format == "markdown":
        typer.echo(render_markdown(found.data()), nl=False)
    else:
        typer.echo(found.text(), nl=False)
        if out is not None:
            typer.echo(f"reports in {out}")
    if found.failed or found.ended_early:
        raise typer.Exit(FAILED)
    raise typer.Exit(USAGE if found.incomplete else OK)


@app.command()
def compare(
    before: Annotated[Path, typer.Argument(help="report.json of the old stack.")],
    after: Annotated[Path, typer.Argument(help="report.json of the new stack.")],
    output_format: Annotated[str, typer.Option("--output-format", help="text or json.")] = "text",
) -> None:
    """Show what got worse between two reports; exit code 1 if anything did."""
    from dataclasses import asdict

    from .compare import compare as differences
    from .errors import OracleError
    from .report import load

    if output_format not in ("text", "json"):
        raise _usage(f"--output-format must be text or json, got {output_format!r}")
    try:
        old, new = load(before), load(after)
    except OracleError as error:
        raise _usage(str(error)) from None
    found = differences(old, new)
    if output_format == "json":
        typer.echo(json.dumps([asdict(d) for d in found], indent=1))
    else:
        for key in sorted({*old["environment"], *new["environment"]}):
            a, b = old["environment"].get(key, "-"), new["environment"].get(key, "-")
            if a != b:
                typer.echo(f"{key}: {a} -> {b}")
        for d in found:
            arrow = f"{d.before or '-'} -> {d.after or '-'}"
            typer.echo(f"{d.kind:10s} {d.name}: {arrow}" + (f" ({d.detail})" if d.detail else ""))
        typer.echo(f"{len(found)} differences in {len(new['cases'])} cases")
    raise typer.Exit(FAILED if any(d.kind == "regression" for d in found) else OK)


@app.command()
def backends() -> None:
    """Say which backends can run here, and why others cannot."""
    from .backends import availability

    for name, reason in availability().items():
        typer.echo(f"{name:10s} {'available' if not reason else 'not here: ' + reason}")


@app.command("feature-caches")
def feature_caches(
    steps: Annotated[int, typer.Option(min=1, max=1000, help="Sampling steps.")] = 20,
    output_format: Annotated[str, typer.Option("--output-format", help="text or json.")] = "text",
) -> None:
    """Show TeaCache, FBCache and TaylorSeer on a toy diffusion transformer: error per step, reuse, faults."""
    from dataclasses import asdict

    import torch

    from .caches.feature import FEATURE_CACHES, compare_trajectories, small_transformer

    if output_format not in ("text", "json"):
        raise _usage(f"--output-format must be text or json, got {output_format!r}")
    blocks, update, embed = small_transformer()
    starts = [torch.randn(1, 16, 32, generator=torch.Generator().manual_seed(s)) for s in (1, 2)]
    reports = [
        compare_trajectories(blocks, update, starts, steps, kind(), embed=embed)
        for kind in FEATURE_CACHES.values()
    ]
    if output_format == "json":
        typer.echo(json.dumps([asdict(r) for r in reports], indent=1))
    else:
        typer.echo(f"{'cache':12s} {'reuse':>6s} {'age':>4s} {'final':>9s}  worst error per step")
        for r in reports:
            worst = " ".join(f"{max(e):.0e}" for e in r.errors)
            typer.echo(f"{r.name:12s} {r.reuse_ratio:6.0%} {r.max_age:4d} {r.final:9.2e}  {worst}")
            for fault in r.faults:
                typer.echo(f"    {fault}")
    raise typer.Exit(OK if all(r.ok for r in reports) else FAILED)


@app.command()
def hypotheses() -> None:
    """List the misuses that attribution knows, with the contract entry each breaks."""
    from .hypotheses import HYPOTHESES

    for h in HYPOTHESES:
        typer.echo(f"{h.name:34s} {h.rule:8s} {h.title}")


if __name__ == "__main__":
    app()
