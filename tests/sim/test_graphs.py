"""Graph capture: eager at capture, again on the same storage at replay, with the host's values frozen."""

from __future__ import annotations

from typing import Any

import pytest
import torch


def attend(torch_npu: Any, q: Any, k: Any, lens: list[int]) -> Any:
    return torch_npu.npu_fused_infer_attention_score(
        q, k, k, num_heads=2, scale=0.125, input_layout="BSH", actual_seq_lengths_kv=lens
    )[0]


@pytest.fixture
def tensors(torch_npu: Any) -> Any:
    return torch.randn(1, 1, 128, device="npu").half(), torch.randn(1, 32, 128, device="npu").half()


def test_replay_reads_new_inputs(torch_npu: Any) -> None:
    graph, x = torch.npu.NPUGraph(), torch.ones(3, device="npu")
    with torch.npu.graph(graph):
        assert torch.npu.is_current_stream_capturing()
        y = (x * 2).view(3) + 1
    assert y.tolist() == [3.0] * 3
    x.fill_(5)
    graph.replay()
    assert y.tolist() == [11.0] * 3


def test_lengths_are_frozen_at_capture(torch_npu: Any, tensors: Any) -> None:
    q, k = tensors
    lens = [8]
    graph = torch.npu.NPUGraph()
    with torch.npu.graph(graph):
        out = attend(torch_npu, q, k, list(lens))
    lens[0] = 20
    graph.replay()
    assert torch.equal(out, attend(torch_npu, q, k, [8]))


def test_update_replaces_the_lengths(torch_npu: Any, tensors: Any) -> None:
    q, k = tensors
    graph = torch.npu.NPUGraph()
    with torch.npu.graph(graph, auto_dispatch_capture=True):
        out = attend(torch_npu, q, k, [8])
    graph.update(cpu_update_input=[{"actual_seq_lengths_kv": [20]}])
    graph.replay()
    assert torch.equal(out, attend(torch_npu, q, k, [20]))


def test_task_update_replaces_the_lengths(torch_npu: Any, tensors: Any) -> None:
    q, k = tensors
    stream, graph = torch.npu.current_stream(), torch.npu.NPUGraph()
    out = [torch.empty_like(q), torch.empty(1)]
    arguments: dict[str, Any] = {"num_heads": 2, "scale": 0.125, "out": out}
    call = torch_npu.npu_fused_infer_attention_score.out
    with torch.npu.graph(graph):
        torch.npu.graph_task_group_begin(stream)
        call(q, k, k, actual_seq_lengths_kv=[8], **arguments)
        handle = torch.npu.graph_task_group_end(stream)
    before = out[0].clone()
    torch.npu.graph_task_update_begin(stream, handle)
    call(q, k, k, actual_seq_lengths_kv=[20], **arguments)
    torch.npu.graph_task_update_end(stream)
    assert torch.equal(out[0], before)  # an update runs nothing
    graph.replay()
    assert torch.equal(out[0], attend(torch_npu, q, k, [20]))
