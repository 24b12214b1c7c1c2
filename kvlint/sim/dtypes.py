"""Type codes as torch_npu passes them: torch's scalar type numbers, and ACL numbers from 256 on."""

from __future__ import annotations

from typing import Any, Final

import torch

_SCALAR: Final = {
    0: torch.uint8, 1: torch.int8, 2: torch.int16, 3: torch.int32, 4: torch.int64, 5: torch.float16,
    6: torch.float32, 7: torch.float64, 11: torch.bool, 15: torch.bfloat16, 23: torch.float8_e5m2,
    24: torch.float8_e4m3fn,
}  # fmt: skip
#: Names and numbers of the constants in the torch_npu module.
CONSTANTS: Final = {
    "float32": 256, "float16": 257, "int8": 258, "int32": 259, "uint8": 260, "int16": 262, "uint16": 263,
    "uint32": 264, "int64": 265, "uint64": 266, "float64": 267, "bool": 268, "string": 269,
    "complex64": 272, "complex128": 273, "bfloat16": 283, "int4": 285, "uint1": 286, "complex32": 289,
    "hifloat8": 290, "float8_e5m2": 291, "float8_e4m3fn": 292, "float8_e8m0fnu": 293, "float6_e3m2": 294,
    "float6_e2m3": 295, "float4_e2m1fn_x2": 296, "float4_e1m2fn_x2": 297,
}  # fmt: skip
#: Storage formats of ``torch_npu.Format``.
FORMATS: Final = {
    "UNDEFINED": -1, "NCHW": 0, "NHWC": 1, "ND": 2, "NC1HWC0": 3, "FRACTAL_Z": 4, "NC1HWC0_C04": 12,
    "HWCN": 16, "NDHWC": 27, "FRACTAL_NZ": 29, "NCDHW": 30, "NDC1HWC0": 32, "FRACTAL_Z_3D": 33, "NC": 35,
    "NCL": 47, "FRACTAL_NZ_C0_16": 50, "FRACTAL_NZ_C0_32": 51, "FRACTAL_NZ_C0_2": 52,
    "FRACTAL_NZ_C0_4": 53, "FRACTAL_NZ_C0_8": 54,
}  # fmt: skip
_ACL: Final = {number: getattr(torch, name) for name, number in CONSTANTS.items() if hasattr(torch, name)}


def torch_dtype(code: Any) -> Any:
    """The torch dtype of a type code; the code itself where torch has no such type."""
    if isinstance(code, int) and not isinstance(code, bool):
        return _SCALAR.get(code) or _ACL.get(code) or code
    return code
