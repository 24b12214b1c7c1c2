"""Flattening a pool whose pages are apart makes a copy, and the rows go into that."""

import torch
import torch_npu


def pages_of(count, layers, size, width):
    whole = torch.empty(layers, count, size, width, dtype=torch.float16, device="npu")
    return whole.unbind(0)


class Writer:
    def __init__(self, count, layers, size, width):
        self.pages = pages_of(count, layers, size, width)

    def put(self, layer, slots, rows):
        torch_npu.npu_scatter_nd_update_(
            self.pages[layer].flatten(0, 1),
            slots[:, None],
            rows,
        )
