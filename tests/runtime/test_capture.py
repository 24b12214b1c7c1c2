"""Capture folders: complete, small, resumable, and clear about damage."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("safetensors")

from typer.testing import CliRunner

from kvlint.oracle.cli import app
from kvlint.oracle.kernels import KERNELS
from kvlint.oracle.report import load, render_html, render_markdown
from kvlint.runtime import store
from kvlint.runtime.replay import replay
from kvlint.runtime.store import CapturedCall, CaptureError, Reader, Writer
from kvlint.sim.kernels import KERNELS as SIMULATED

DECODE = """\
import sys, torch, torch_npu
torch.set_num_threads(1)
torch.manual_seed(0)
steps = int(sys.argv[1])
cache = torch.zeros(2, 64, 128, dtype=torch.bfloat16, device="npu")
mask = torch.ones(2048, 2048, dtype=torch.bool, device="npu").triu(1)
for i in range(steps):
    new = torch.randn(2, 1, 128, device="npu").bfloat16()
    torch_npu.scatter_update_(cache, torch.tensor([i % 64] * 2, device="npu"), new, 1)
    out, _ = torch_npu.npu_fused_infer_attention_score(
        new, cache, cache, num_heads=2, scale=0.125, actual_seq_lengths_kv=[i % 64 + 1] * 2)
    if "--prefill" in sys.argv:
        torch_npu.npu_fused_infer_attention_score(
            cache, cache, cache, num_heads=2, scale=0.125, atten_mask=mask, sparse_mode=3)
    print(i, flush=True)
"""


@pytest.fixture
def decode(tmp_path: Path) -> Path:
    (tmp_path / "decode.py").write_text(DECODE)
    return tmp_path


def record(number: int = 0, **given: Any) -> CapturedCall:
    return CapturedCall(number, "npu::scatter_update_", given, [], {}, "x.py:1")


def test_a_capture_holds_the_calls_and_replays(decode: Path, kvlint_run: Any) -> None:
    done = kvlint_run("--capture", "cap", "decode.py", "3", "--prefill")
    assert done.returncode == 0, done.stderr
    assert done.stderr == "kvlint: cap: 9 calls recorded\n"
    calls = list(Reader(decode / "cap"))
    assert [c.operator for c in calls[:3]] == [
        "npu::scatter_update_",
        "npu::npu_fused_infer_attention_score",
        "npu::npu_fused_infer_attention_score",
    ]
    assert calls[0].place.endswith("decode.py:9")
    # What the writer was given is the cache before the write, what it left is the cache after.
    assert not calls[0].given["data" if "data" in calls[0].given else "input"].any()
    assert next(iter(calls[0].mutated.values())).any()
    assert calls[1].given["actual_seq_lengths_kv"] == [1, 1]
    report = replay(decode / "cap")
    assert report.failed == 0
    assert {o.status for o in report.outcomes} == {"pass", "equal"}
    assert json.loads(report.json())["failed"] == 0


def test_a_capture_names_the_program(decode: Path, kvlint_run: Any) -> None:
    kvlint_run("--capture", "a", "decode.py", "1", "--prefill")
    kvlint_run("--capture", "b", "-m", "decode", "1")
    argv = [json.loads((decode / name / "capture.json").read_text())["argv"] for name in "ab"]
    assert argv == [["decode.py", "1", "--prefill"], ["-m", "decode", "1"]]


def test_replay_finds_a_wrong_result(decode: Path, kvlint_run: Any) -> None:
    kvlint_run("--capture", "cap", "decode.py", "1")
    call = next(c for c in Reader(decode / "cap") if c.results and c.results[0].shape == (2, 1, 128))
    bad = CapturedCall(0, call.operator, call.given, [call.results[0] * 1.2, *call.results[1:]], {}, "m.py:3")
    Writer(decode / "bad", {}, 1 << 30).add(bad)
    report = replay(decode / "bad")
    assert [(o.subject, o.status) for o in report.outcomes] == [("captured", "fail"), ("sim", "pass")]
    assert "at m.py:3" in report.text()


FORMS = """\
import torch, torch_npu
torch.manual_seed(0)
q = torch.randn(1, 64, 512, device="npu").half()
mask = torch.ones(64, 64, dtype=torch.bool, device="npu").triu(1)
attend = torch_npu.npu_fusion_attention
attend(q, q, q, 8, "BSH", scale=0.125)
attend(q, q, q, 8, "BSH", keep_prob=1.0)
attend(q, q, q, 8, "BSH", atten_mask=mask, scale=0.125, sparse_mode=0)
attend(query=q, key=q, value=q, head_num=8, input_layout="BSH", scale=0.125)
attend(q, q, q, 8, "BSH", None, None, mask, 0.125)
attend(q, q, q, 8, input_layout="BSH", atten_mask=mask, scale=0.125)
torch_npu.npu_fusion_attention_v2(q, q, q, 8, "BSH", scale=0.125)
packed = q.view(64, 8, 64)
torch.ops.npu.npu_fusion_attention_v3(
    packed, packed, packed, 8, "TND", scale=0.125,
    actual_seq_qlen=torch.tensor([64]), actual_seq_kvlen=torch.tensor([64]))
cache = torch.zeros(2, 1, 16, 64, dtype=torch.int8, device="npu")
rows, scales = torch.randn(2, 1, 1, 64).bfloat16().npu(), torch.ones(1, 1, 1, 64).bfloat16().npu()
torch_npu.npu_quant_scatter_(cache, torch.zeros(2, dtype=torch.int32), rows, scales, axis=-2, quant_axis=-1)
"""


def test_every_form_of_a_call_replays(tmp_path: Path, kvlint_run: Any) -> None:
    (tmp_path / "forms.py").write_text(FORMS)
    done = kvlint_run("--capture", "cap", "forms.py")
    assert done.returncode == 0, done.stderr
    report = replay(tmp_path / "cap")
    found = [(o.number, o.subject, o.status) for o in report.outcomes]
    attention = [(n, who, "pass") for n in range(8) for who in ("captured", "sim")]
    assert found == [*attention, (8, "sim", "equal")], report.text()


def test_names_of_an_older_release_replay(tmp_path: Path) -> None:
    cache, rows = torch.zeros(2, 8, 4), torch.ones(2, 1, 4)
    given = {"self": cache, "indices": torch.tensor([1, 2]), "updates": rows, "axis": 1}
    after = cache.clone()
    KERNELS["scatter_update_"](after, given["indices"], rows, 1)
    writer = Writer(tmp_path / "cap", {}, 1 << 20)
    writer.add(CapturedCall(0, "npu::scatter_update_", given, [after], {}, ""))
    assert [o.status for o in replay(tmp_path / "cap").outcomes] == ["equal"]


def test_equal_tensors_are_stored_once(decode: Path, kvlint_run: Any) -> None:
    kvlint_run("--capture", "cap", "decode.py", "4", "--prefill")
    large = [p for p in (decode / "cap" / "tensors").iterdir() if p.stat().st_size > 1 << 22]
    assert len(large) == 1  # the mask, given four times


def test_a_killed_run_is_readable_and_can_go_on(decode: Path, kvlint_run: Any) -> None:
    words = [
        "-m",
        "kvlint.runtime.cli",
        "--sim",
        "--route",
        "catalogue",
        "--capture",
        "cap",
        "decode.py",
        "9999",
    ]
    running = subprocess.Popen([sys.executable, *words], cwd=decode, stdout=subprocess.PIPE, text=True)
    assert running.stdout is not None
    for line in running.stdout:
        if int(line) >= 5:
            break
    running.send_signal(signal.SIGKILL)
    running.wait()
    running.stdout.close()
    reader = Reader(decode / "cap")
    assert len(reader) >= 12
    assert len(list(reader)) == len(reader)
    kvlint_run("--capture", "cap", "decode.py", "2")
    assert len(Reader(decode / "cap")) == len(reader) + 4
    assert not list((decode / "cap").rglob("*.part"))


def dying_writer(folder: Path, stop: int, halfway: bool) -> int:
    """A process that writes calls and kills itself at its ``stop``-th step of writing; calls it completed.

    Steps are an open file with nothing, or half of the data, in it, one that is not on disk yet, and one that
    has not got, or has just got, its name.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child:
        os.close(writing)
        with os.fdopen(reading, "rb") as told:
            complete = len(told.read())
        _, status = os.waitpid(child, 0)
        assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
        return complete
    try:
        steps = 0

        def step() -> None:
            nonlocal steps
            steps += 1
            if steps == stop:
                os.kill(os.getpid(), signal.SIGKILL)

        class Part:
            def __init__(self, *args: Any) -> None:
                self.file = open(*args, buffering=0)  # noqa: SIM115

            def __enter__(self) -> Any:
                step()
                return self

            def __exit__(self, *error: Any) -> None:
                self.file.close()

            def write(self, data: bytes) -> None:
                self.file.write(data[: len(data) // 2] if halfway else b"")
                step()
                self.file.write(data[len(data) // 2 :] if halfway else data)
                step()

            def __getattr__(self, name: str) -> Any:
                return getattr(self.file, name)

        rename = os.replace

        def replace(source: Any, target: Any) -> None:
            step()
            rename(source, target)
            step()

        store.open = Part  # type: ignore[attr-defined]
        store.os.replace = replace
        writer = Writer(folder, {}, 1 << 20)
        for n in range(9):
            writer.add(record(x=torch.full((2,), float(n)), y=torch.ones(2)))
            os.write(writing, b".")
    finally:
        os._exit(1)


@pytest.mark.parametrize("halfway", [False, True])
@pytest.mark.parametrize("stop", range(1, 41))
def test_a_kill_at_any_step_of_writing_loses_no_complete_call(
    tmp_path: Path, stop: int, halfway: bool
) -> None:
    complete = dying_writer(tmp_path, stop, halfway)
    if not (tmp_path / "capture.json").exists():
        assert not complete
        with pytest.raises(CaptureError, match=r"there is no capture\.json"):
            Reader(tmp_path)
    else:
        calls = list(Reader(tmp_path))
        # The call may be complete although its writer did not live to say so.
        assert len(calls) in (complete, complete + 1)
        assert [c.given["x"].tolist() for c in calls] == [[float(n)] * 2 for n in range(len(calls))]
    writer = Writer(tmp_path, {}, 1 << 20)
    before = writer.next
    writer.add(record(z=1))
    assert [c.number for c in Reader(tmp_path)] == list(range(before + 1))
    assert not list(tmp_path.rglob("*.part"))


def test_the_size_limit_holds(tmp_path: Path) -> None:
    writer = Writer(tmp_path, {}, 40_000)
    kept = [writer.add(record(x=torch.randn(1000))) for _ in range(20)]
    assert 5 < sum(kept) < 12
    assert writer.skipped == 20 - sum(kept)
    assert sum(p.stat().st_size for p in tmp_path.rglob("*") if p.is_file()) <= 40_000
    assert len(list(Reader(tmp_path))) == sum(kept)


def test_sampling_takes_every_nth(decode: Path, kvlint_run: Any) -> None:
    done = kvlint_run("--capture", "cap", "--capture-every", "3", "decode.py", "7")
    assert done.stderr == "kvlint: cap: 6 calls recorded, 8 not sampled\n"


def test_all_kinds_of_arguments_come_back(tmp_path: Path) -> None:
    given = {
        "t": torch.arange(6).view(2, 3).t(), "empty": torch.zeros(0, 4),
        "half": torch.ones(2, dtype=torch.bfloat16),
        "scalar": torch.tensor(3), "flag": torch.tensor([True]), "list": [1, 2], "none": None, "text": "TND",
        "ratio": 0.1, "tensors": [torch.ones(1), torch.zeros(1)], "dtype": torch.float16, "yes": True,
    }  # fmt: skip
    Writer(tmp_path, {}, 1 << 20).add(record(**given))
    back = Reader(tmp_path).call(0).given
    assert list(back) == list(given)
    for name, value in given.items():
        if isinstance(value, torch.Tensor):
            assert back[name].dtype == value.dtype and torch.equal(back[name], value), name
        elif name != "tensors":
            assert back[name] == value and type(back[name]) is type(value)
    assert [t.item() for t in back["tensors"]] == [1.0, 0.0]


@pytest.fixture
def capture(tmp_path: Path) -> Path:
    writer = Writer(tmp_path, {"tool": "kvlint"}, 1 << 20)
    for n in range(3):
        writer.add(record(x=torch.full((4,), float(n))))
    return tmp_path


def first_tensor(folder: Path) -> Path:
    key = json.loads((folder / "calls" / "00000000.json").read_text())["given"]["x"]["tensor"]
    return folder / "tensors" / f"{key}.safetensors"


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 0x41
    path.write_bytes(data)


DAMAGE: dict[str, tuple[Any, str]] = {
    "head gone": (lambda d: (d / "capture.json").unlink(), "there is no capture.json"),
    "head cut": (lambda d: (d / "capture.json").write_text("{"), "capture.json is damaged"),
    "other version": (lambda d: (d / "capture.json").write_text('{"version": 9}'), "format version 9"),
    "head of another form": (lambda d: (d / "capture.json").write_text("[]"), "capture.json is damaged"),
    "head content": (
        lambda d: (d / "capture.json").write_text(
            (d / "capture.json").read_text().replace("kvlint", "kvlimt")
        ),
        "capture.json is damaged (its content has changed)",
    ),
    "call content": (
        lambda d: (d / "calls" / "00000001.json").write_text(
            (d / "calls" / "00000001.json").read_text().replace("x.py:1", "x.py:2")
        ),
        "call 00000001 is damaged (its content has changed)",
    ),
    "call nested deeply": (
        lambda d: (d / "calls" / "00000001.json").write_text("[" * 100_000),
        "call 00000001 is damaged",
    ),
    "foreign file": (lambda d: (d / "calls" / "notes.json").write_text("{}"), "calls cannot be listed"),
    "call gone": (lambda d: (d / "calls" / "00000001.json").unlink(), "call 00000001 is missing"),
    "call cut": (lambda d: (d / "calls" / "00000001.json").write_text('{"opera'), "call 00000001 is damaged"),
    "call of another form": (
        lambda d: (d / "calls" / "00000001.json").write_text("[]"),
        "call 00000001 is damaged",
    ),
    "tensor gone": (lambda d: first_tensor(d).unlink(), "of call 00000000 is missing"),
    "tensor cut": (lambda d: first_tensor(d).write_bytes(first_tensor(d).read_bytes()[:20]), "is damaged"),
    "tensor header": (lambda d: flip(first_tensor(d), 3), "is damaged"),
    "tensor content": (lambda d: flip(first_tensor(d), -2), "is damaged (its content has changed)"),
    "foreign path": (
        lambda d: (d / "calls" / "00000001.json").write_bytes(
            store._sealed(
                dict(operator="", given={"x": {"tensor": "../../x"}}, results=[], mutated={}, place="")
            )
        ),
        "has no valid name",
    ),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_damage_is_named_in_one_line(capture: Path, kind: str) -> None:
    hurt, said = DAMAGE[kind]
    hurt(capture)
    with pytest.raises(CaptureError) as found:
        list(Reader(capture))
    assert said in str(found.value)
    assert str(capture) in str(found.value) and "\n" not in str(found.value)


def contents(folder: Path) -> list[Any]:
    return [
        (c.operator, c.place, [(k, v.tolist() if k == "x" else v) for k, v in c.given.items()])
        for c in Reader(folder)
    ]


@pytest.mark.parametrize("seed", range(60))
def test_no_damage_goes_unnoticed(tmp_path: Path, seed: int) -> None:
    """A byte anywhere is changed, or a file anywhere is cut or grows: an error, or what was recorded."""
    source = random.Random(seed)
    writer = Writer(tmp_path, {"made": "by a test"}, 1 << 20)
    for n in range(3):
        writer.add(record(x=torch.full((4,), float(n)), scale=0.125, lens=[1, 20, 300], text="TND"))
    want = contents(tmp_path)
    path = source.choice(sorted(p for p in tmp_path.rglob("*") if p.is_file()))
    data, at = bytearray(path.read_bytes()), 0
    at = source.randrange(len(data))
    kind = source.choice(["flip", "flip", "cut", "grow"])
    if kind == "flip":
        data[at] ^= 1 << source.randrange(8)
    elif kind == "cut":
        del data[at:]
    else:
        data += bytes(source.randrange(256) for _ in range(source.randrange(1, 9)))
    path.write_bytes(data)
    try:
        assert contents(tmp_path) == want
    except CaptureError as error:
        assert str(tmp_path) in str(error) and "\n" not in str(error)


def test_replay_goes_as_far_as_it_can(decode: Path, kvlint_run: Any) -> None:
    kvlint_run("--capture", "cap", "decode.py", "2")
    (decode / "cap" / "calls" / "00000002.json").write_text("")
    report = replay(decode / "cap")
    assert {o.number for o in report.outcomes} == {0, 1}
    assert "call 00000002 is damaged" in report.text()


def test_a_folder_that_cannot_be_written(decode: Path, kvlint_run: Any) -> None:
    (decode / "file").write_text("")
    done = kvlint_run("--capture", "file", "decode.py", "1")
    assert done.returncode == 2
    assert done.stderr.startswith("kvlint: error: capture file: ")


def oracle(*words: str) -> Any:
    return CliRunner().invoke(app, ["replay", *words])


def test_the_replay_command(decode: Path, kvlint_run: Any) -> None:
    kvlint_run("--capture", "cap", "decode.py", "1")
    folder = str(decode / "cap")
    done = oracle(folder, "--out", str(decode / "report"))
    assert done.exit_code == 0, done.output
    assert "2 calls, 0 with wrong numbers" in done.output
    assert {p.name for p in (decode / "report").iterdir()} == {"report.json", "report.md", "report.html"}
    data = json.loads(oracle(folder, "--output-format", "json").output)
    assert data == load(decode / "report" / "report.json") | {
        "seconds": data["seconds"], "command": data["command"], "cases": data["cases"]
    }  # fmt: skip
    assert [c["outcome"] for c in data["cases"]] == ["pass"] * 3
    assert data["environment"]["capture torch"] == torch.__version__
    assert oracle(folder, "--output-format", "markdown").output.startswith("## kvlint oracle: backend `sim`")
    for words in (
        [folder, "--backend", "nothing"], [str(decode / "none")], [folder, "--output-format", "xml"],
        [folder, "--out", "/dev/null/x"],
    ):  # fmt: skip
        wrong = oracle(*words)
        assert wrong.exit_code == 2
        assert "Traceback" not in wrong.output and wrong.output.splitlines()[-1].startswith("kvlint oracle: ")
    next((decode / "cap" / "tensors").iterdir()).unlink()
    damaged = oracle(folder)
    assert damaged.exit_code == 1 and "stopped: capture" in damaged.output


MASK = torch.ones(2048, 2048, dtype=torch.bool).triu(1)
LENS = [10, 33, 64]


def attention(form: str) -> tuple[str, dict[str, Any]]:
    """An attention call (operator, arguments) that keeps misuses apart: lengths differ, keys have a mean."""
    source = torch.Generator().manual_seed(5)

    def rows(*shape: int, mean: float = 0.0) -> torch.Tensor:
        return (torch.randn(*shape, generator=source) * 1.2 + mean).bfloat16()

    heads = {"num_query_heads": 8, "num_key_value_heads": 2, "softmax_scale": 0.125}
    causal = {"sparse_mode": 3, "atten_mask": MASK, "input_layout": "TND"}
    if form == "decode":
        return "npu_fused_infer_attention_score", {
            "query": rows(3, 1, 512), "key": rows(3, 64, 128, mean=0.5), "value": rows(3, 64, 128, mean=0.3),
            "num_heads": 8, "num_key_value_heads": 2, "scale": 0.125, "input_layout": "BSH",
            "actual_seq_lengths_kv": LENS,
        }  # fmt: skip
    name = "npu_fused_infer_attention_score_v2"
    if form == "prefill":
        return name, {
            "query": rows(50, 8, 64), "key": rows(50, 2, 64, mean=0.5), "value": rows(50, 2, 64, mean=0.3),
            "actual_seq_qlen": [20, 50], "actual_seq_kvlen": [20, 50], **heads, **causal,
        }  # fmt: skip
    return name, {
        "query": rows(3, 8, 64), "key": rows(9, 16, 128, mean=0.5), "value": rows(9, 16, 128, mean=0.3),
        "actual_seq_qlen": [1, 3], "actual_seq_kvlen": [27, 61], "block_size": 16,
        "block_table": torch.tensor([[3, 1, 8, 8], [5, 2, 7, 6]], dtype=torch.int32), **heads, **causal,
    }  # fmt: skip


SINK = torch.full((8,), 4.0).bfloat16()
#: form of the call, what it says beside, what the operator computed instead, the name of that misuse.
MISUSES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "scale-default": ("decode", {}, {"scale": 1.0}),
    "kv-len-short": ("decode", {}, {"actual_seq_lengths_kv": [n - 1 for n in LENS]}),
    "kv-len-capacity": ("decode", {}, {"actual_seq_lengths_kv": None}),
    "kv-len-other-request": ("decode", {}, {"actual_seq_lengths_kv": [33, 64, 10]}),
    "mask-missing": ("prefill", {}, {"sparse_mode": 0, "atten_mask": None}),
    "window-ignored": ("prefill", {"sparse_mode": 4, "pre_tokens": 7, "next_tokens": 0}, {"sparse_mode": 3}),
    "window-plus-one": (
        "prefill", {"sparse_mode": 4, "pre_tokens": 7, "next_tokens": 0}, {"pre_tokens": 8}
    ),
    "sink-ignored": ("prefill", {"learnable_sink": SINK}, {"learnable_sink": None}),
    "causal-top-left": ("paged", {}, {"sparse_mode": 2}),
    "table-rows-rolled": ("paged", {}, {"block_table": torch.tensor([[5, 2, 7, 6], [3, 1, 8, 8]]).int()}),
    "pages-swapped": ("paged", {}, {"block_table": torch.tensor([[1, 3, 8, 8], [2, 5, 7, 6]]).int()}),
}  # fmt: skip


def captured(folder: Path, name: str, given: dict[str, Any], out: list[torch.Tensor]) -> Path:
    Writer(folder, {}, 1 << 30).add(CapturedCall(0, f"npu::{name}", given, out, {}, "model.py:7"))
    return folder


@pytest.mark.parametrize("misuse", MISUSES)
def test_a_wrong_capture_is_attributed_to_the_misuse(tmp_path: Path, misuse: str) -> None:
    form, told, did = MISUSES[misuse]
    name, given = attention(form)
    given |= told
    out = KERNELS[name](**given | did)
    report = replay(captured(tmp_path / "cap", name, given, list(out)))
    wrong, again = report.outcomes
    assert (wrong.status, again.status) == ("fail", "pass")
    assert again.explanation is None
    why = wrong.explanation.attribution
    assert misuse in why.names and why.outcome in ("exact", "tie"), why
    assert wrong.explanation.location is not None
    assert f"why: {why.sentence()}" in report.text()
    data = report.data()["cases"][0]
    assert data["why"]["names"] == why.names and data["place"] == "model.py:7" and data["where"]["map"]
    for text in (render_markdown(report.data()), render_html(report.data())):
        assert "model.py:7" in text and "oracle run --case" not in text


@pytest.mark.parametrize("form", ["decode", "prefill", "paged"])
def test_a_fault_that_is_no_misuse_stays_unknown(tmp_path: Path, form: str) -> None:
    name, given = attention(form)
    out = KERNELS[name](**given)[0]
    noise = torch.randn(out.shape, generator=torch.Generator().manual_seed(1)) * 0.2
    report = replay(captured(tmp_path / "cap", name, given, [(out.float() + noise).bfloat16()]))
    assert report.outcomes[0].explanation.attribution.outcome == "unknown"
    unexplained = replay(tmp_path / "cap", explain=False)
    assert unexplained.outcomes[0].status == "fail" and unexplained.outcomes[0].explanation is None


def test_quantised_calls_say_why_they_are_not_explained(tmp_path: Path) -> None:
    name, given = attention("decode")
    scale = torch.full((128,), 0.02).bfloat16()
    given |= {n: given[n].float().div(0.02).round().clamp(-127, 127).to(torch.int8) for n in ("key", "value")}
    given |= {"key_antiquant_scale": scale, "value_antiquant_scale": scale}
    out = KERNELS[name](**given)[0]
    report = replay(captured(tmp_path / "cap", name, given, [out * 1.3]))
    assert report.outcomes[0].status == "fail"
    assert "why: quantised calls are not explained" in report.text()
    assert "not explained: quantised calls" in render_markdown(report.data())


def test_operators_without_reference_are_compared_with_the_simulated_kernel(tmp_path: Path) -> None:
    q, k, v = torch.randn(6, 4, 32).half(), torch.randn(6, 2, 32).half(), torch.randn(6, 2, 32).half()
    given: dict[str, Any] = {
        "query": q, "key": k, "value": v, "seq_len": torch.tensor([2, 4], dtype=torch.int32),
        "scale_value": 0.2, "num_heads": 4, "num_kv_heads": 2, "out": torch.zeros_like(q),
    }  # fmt: skip
    right = torch.zeros_like(q)
    SIMULATED["_npu_flash_attention_unpad"](**given | {"out": right})
    for wrong, status in ((right, "close"), (right * 1.1, "differs")):
        folder = tmp_path / status
        call = CapturedCall(0, "atb::_npu_flash_attention_unpad", given, [], {"out": wrong}, "")
        Writer(folder, {}, 1 << 20).add(call)
        assert [(o.subject, o.status) for o in replay(folder).outcomes] == [("sim", status)]


def test_a_call_that_raises_does_not_end_the_replay(tmp_path: Path) -> None:
    name, given = attention("decode")
    right = KERNELS[name](**given)[0]
    writer = Writer(tmp_path / "cap", {}, 1 << 24)
    for number, words in enumerate((given | {"block_table": 0.5}, given)):
        writer.add(CapturedCall(number, f"npu::{name}", words, [right], {}, "infer.py:7"))
    report = replay(tmp_path / "cap")
    assert [(o.number, o.status) for o in report.outcomes] == [
        (0, "error"), (0, "error"), (1, "pass"), (1, "pass"),
    ]  # fmt: skip
    assert f"00000000 npu::{name} [sim] error at infer.py:7\n    AttributeError: " in report.text()
    assert len(report.outcomes[0].reasons) == 1
    assert report.summary() == "2 calls, 0 with wrong numbers, 1 raised an error, 1 not judged"
    assert report.data()["not_judged"] == 1
    done = oracle(str(tmp_path / "cap"), "--out", str(tmp_path))
    assert done.exit_code == 2
    assert [c["outcome"] for c in load(tmp_path / "report.json")["cases"]] == ["error"] * 2 + ["pass"] * 2
    # Wrong numbers weigh more.
    writer.add(CapturedCall(2, f"npu::{name}", given, [right * 1.3], {}, ""))
    done = oracle(str(tmp_path / "cap"))
    assert done.exit_code == 1
    assert "3 calls, 1 with wrong numbers, 1 raised an error, 1 not judged" in done.output


def test_a_capture_of_which_nothing_is_judged_is_no_pass(tmp_path: Path) -> None:
    writer = Writer(tmp_path / "cap", {}, 1 << 20)
    assert oracle(str(tmp_path / "cap")).exit_code == 2
    writer.add(CapturedCall(0, "npu::npu_of_tomorrow", {}, [torch.ones(1)], {}, ""))
    done = oracle(str(tmp_path / "cap"))
    assert done.exit_code == 2
    assert "1 call, 0 with wrong numbers, 1 not judged: nothing was judged" in done.output


def test_two_replays_can_be_compared(tmp_path: Path) -> None:
    name, given = attention("decode")
    out = KERNELS[name](**given)[0]
    for folder, result in (("old", out), ("new", out * 1.3)):
        captured(tmp_path / folder / "cap", name, given, [result])
        oracle(str(tmp_path / folder / "cap"), "--out", str(tmp_path / folder))
    words = [str(tmp_path / f / "report.json") for f in ("old", "new")]
    done = CliRunner().invoke(app, ["compare", *words])
    assert done.exit_code == 1 and "regression 00000000 npu::npu_fused" in done.output
