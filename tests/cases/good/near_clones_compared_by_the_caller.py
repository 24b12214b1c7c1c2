"""A caller clones the caches, has the clones written, and compares them."""

import torch
import torch_npu


def clones(caches):
    return [cache.clone() for cache in caches]


def put(key, value, keys, values, slots):
    torch_npu._npu_reshape_and_cache(
        key=key, value=value, key_cache=keys, value_cache=values, slot_indices=slots.to(torch.int32)
    )


def compare(key, value, keys, values, slots, expected):
    written = clones([keys, values])
    put(key, value, written[0], written[1], slots)
    again = keys.clone()
    put(key, value, again, values.clone(), slots)
    return torch.equal(written[0], expected) and torch.equal(again, expected)
