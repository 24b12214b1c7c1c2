"""Capture folders: complete, small, resumable, and clear about damage."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("safetensors")

from kvlint.runtime.replay import replay
from kvlint.runtime.replay import run as replay_command
from kvlint.runtime.store import CapturedCall, CaptureError, Reader, Writer

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


def test_replay_finds_a_wrong_result(decode: Path, kvlint_run: Any) -> None:
    kvlint_run("--capture", "cap", "decode.py", "1")
    call = next(c for c in Reader(decode / "cap") if c.results and c.results[0].shape == (2, 1, 128))
    bad = CapturedCall(0, call.operator, call.given, [call.results[0] * 1.2, *call.results[1:]], {}, "m.py:3")
    Writer(decode / "bad", {}, 1 << 30).add(bad)
    report = replay(decode / "bad")
    assert [(o.subject, o.status) for o in report.outcomes] == [("captured", "fail"), ("sim", "pass")]
    assert "at m.py:3" in report.text()


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


@pytest.mark.parametrize("stop", range(1, 12))
def test_every_prefix_of_the_writes_is_readable(tmp_path: Path, monkeypatch: Any, stop: int) -> None:
    """The process dies at the n-th change of the disk: just before a rename, with the scrap file there."""
    import os

    done = 0
    rename = os.replace

    def dying(source: Any, target: Any) -> None:
        nonlocal done
        done += 1
        if done == stop:
            raise KeyboardInterrupt
        rename(source, target)

    monkeypatch.setattr("kvlint.runtime.store.os.replace", dying)
    complete = 0
    with pytest.raises(KeyboardInterrupt):
        writer = Writer(tmp_path, {}, 1 << 20)
        while True:
            writer.add(record(x=torch.full((2,), float(complete)), y=torch.ones(2)))
            complete += 1
    monkeypatch.undo()
    if stop > 1:
        assert len(list(Reader(tmp_path))) == complete
    writer = Writer(tmp_path, {}, 1 << 20)
    assert writer.next == complete
    writer.add(record(z=1))
    assert [c.number for c in Reader(tmp_path)] == list(range(complete + 1))


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
    writer = Writer(tmp_path, {}, 1 << 20)
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
        lambda d: (d / "calls" / "00000001.json").write_text(
            '{"operator": "", "given": {"x": {"tensor": "../../x"}}, '
            '"results": [], "mutated": {}, "place": ""}'
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


def test_the_replay_command(decode: Path, kvlint_run: Any, capsys: Any) -> None:
    kvlint_run("--capture", "cap", "decode.py", "1")
    folder = str(decode / "cap")
    assert replay_command([folder]) == 0
    assert "2 calls, 0 with wrong numbers" in capsys.readouterr().out
    assert replay_command([folder, "--format", "json", "--output", str(decode / "r.json")]) == 0
    assert json.loads((decode / "r.json").read_text())["failed"] == 0
    assert replay_command([folder, "--backend", "nothing"]) == 2
    assert replay_command([str(decode / "none")]) == 2
    errors = capsys.readouterr().err.splitlines()
    assert len(errors) == 2 and all(e.startswith("kvlint: error: ") for e in errors)
    first_tensor_of = next((decode / "cap" / "tensors").iterdir())
    first_tensor_of.unlink()
    assert replay_command([folder]) in (1, 2)
