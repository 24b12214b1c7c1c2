"""The device ``npu`` is the CPU: tensors, modules, streams, generators, threads, compilers."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import torch


@pytest.mark.parametrize("device", ["npu", "npu:0", torch.device("cpu"), 0], ids=str)
def test_tensors_are_made_on_the_device(torch_npu: Any, device: Any) -> None:
    x = torch.empty(2, device=device)
    assert x.is_npu
    assert torch.zeros_like(x, device=device).to(device).npu().is_npu


def test_device_objects_and_contexts(torch_npu: Any) -> None:
    place = torch.device("npu:0")
    assert place.type == "npu"
    with place:
        assert torch.ones(2).is_npu
    assert torch.ones(2).to(place, torch.float16).dtype is torch.float16
    assert torch.ones(2).to(device="npu", non_blocking=True).pin_memory().is_npu
    assert not torch.ones(2, device="meta").is_npu


def test_the_default_device(torch_npu: Any) -> None:
    torch.set_default_device("npu")
    try:
        assert torch.ones(2).is_npu
    finally:
        torch.set_default_device("cpu")


def test_modules_move(torch_npu: Any) -> None:
    layer = torch.nn.Linear(2, 3, device="npu").to("npu:0").npu().to(torch.float16)
    assert layer.weight.is_npu
    assert layer(torch.ones(2, device="npu").half()).shape == (3,)


def test_generators_and_seeds(torch_npu: Any) -> None:
    torch.manual_seed(5)
    a = torch.rand(3, device="npu")
    torch.manual_seed(5)
    torch.npu.manual_seed_all(5)
    assert torch.equal(a, torch.rand(3, device="npu"))
    generator = torch.Generator(device="npu")
    assert isinstance(generator, torch.Generator)
    generator.manual_seed(1)
    assert torch.rand(2, generator=generator, device="npu").shape == (2,)


def test_streams_and_events_run_in_order(torch_npu: Any) -> None:
    stream, event = torch.npu.Stream(), torch.npu.Event(enable_timing=True)
    outer = torch.npu.current_stream()
    with torch.npu.stream(stream):
        assert torch.npu.current_stream() is stream
        x = torch.ones(2, device="npu")
        event.record(stream)
    assert torch.npu.current_stream() is outer
    outer.wait_event(event)
    outer.wait_stream(stream)
    x.record_stream(outer)
    later = outer.record_event(torch.npu.Event(enable_timing=True))
    torch.npu.synchronize()
    assert event.elapsed_time(later) >= 0
    assert torch.npu.is_available() and torch.npu.device_count() == 1 and torch.npu.current_device() == 0


def test_threads_see_the_device(torch_npu: Any) -> None:
    found: list[bool] = []

    class Worker(threading.Thread):
        def run(self) -> None:
            found.append(torch.ones(1, device="npu").is_npu)

    for thread in (Worker(), threading.Thread(target=Worker().run)):
        thread.start()
        thread.join()
    assert found == [True, True]


def test_autocast_and_files(torch_npu: Any, tmp_path: Path) -> None:
    x = torch.ones(2, 2, device="npu")
    with torch.autocast("npu", dtype=torch.bfloat16):
        assert (x @ x).dtype is torch.bfloat16
    with torch.npu.amp.autocast(dtype=torch.bfloat16):
        assert (x @ x).dtype is torch.bfloat16
    torch.save(x, tmp_path / "x.pt")
    assert torch.equal(torch.load(tmp_path / "x.pt", map_location="npu:0"), x)


def test_compilers_run_eagerly(torch_npu: Any) -> None:
    import torchair as tng
    from torchair.configs.compiler_config import CompilerConfig

    config = CompilerConfig()
    config.experimental_config.frozen_parameter = True
    backend = tng.get_npu_backend(compiler_config=config)
    seen: list[int] = []
    assert torch.compile(seen.append, backend=backend, dynamic=False) == seen.append
    assert tng.inference.cache_compile(seen.append, config=config) == seen.append
    x = torch.ones(2, 64)
    assert torch.equal(
        tng.ops.npu_rms_norm(x, torch.ones(64))[0], torch_npu.npu_rms_norm(x, torch.ones(64))[0]
    )
    with tng.scope.super_kernel("name", "options"):
        assert tng.scope.npu_wait_tensor(x, x) is x


def test_storage_formats_keep_the_values(torch_npu: Any) -> None:
    x = torch.randn(32, 16, device="npu")
    cast = torch_npu.npu_format_cast(x, torch_npu.Format.FRACTAL_NZ)
    assert torch.equal(cast, x)
    assert torch_npu.npu_format_cast(x.t(), 29).shape == (16, 32)


def test_swapped_memory_and_dtype_codes(torch_npu: Any) -> None:
    assert torch_npu.empty_with_swapped_memory(
        [2, 3], dtype=torch.int8, device=torch.device("npu")
    ).shape == (2, 3)
    values, scale = torch_npu.npu_dynamic_quant(torch.randn(2, 8).half(), dst_type=torch.int8)
    assert values.dtype is torch.int8 and scale.shape == (2,)
