"""int32 table, positions of the default integer type: the slots are int64."""

import torch
import torch_npu


class Writer:
    size: int = 128

    def __init__(self, rows, columns):
        self.table = torch.zeros(rows, columns, dtype=torch.int32, device="npu")

    def slots(self, row: int, count: int) -> torch.Tensor:
        places = torch.arange(count, dtype=torch.int32, device=self.table.device)
        block = self.table[row].index_select(0, places // self.size)
        return torch.add(block * self.size, places % self.size)

    def write(self, key, value, pools, row):
        torch_npu._npu_reshape_and_cache(
            key, value, pools[0], pools[1], self.slots(row, key.shape[0])
        )
