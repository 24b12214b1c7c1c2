"""Rows come flat and slots as pairs; the writer wants a head axis and one slot per row."""

import torch
import torch_npu


def put(rows, marks, pools, places, size):
    """``rows`` and ``marks`` are (tokens, width); ``places`` are block and offset of each token."""
    flat = [t.reshape(t.shape[0], 1, -1) for t in (rows, marks)]
    slots = places[0] * size + places[1]
    torch_npu.npu_scatter_pa_kv_cache(flat[0], flat[1], pools[0], pools[1], slots, cache_mode="Norm")