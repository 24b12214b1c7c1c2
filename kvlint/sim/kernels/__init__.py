"""Simulated operators around attention: norms, products, quantisation, storage, ATB forms.

Attention and cache operators proper are in :mod:`kvlint.oracle.kernels`. Names of variants with an overload
are ``name.overload``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kvlint.sim.kernels import atb, atb_masked, dense, latent, linear_attention, norm, prolog, quant, storage

KERNELS: dict[str, Callable[..., Any]] = {
    name: value
    for module in (atb, atb_masked, dense, latent, linear_attention, norm, prolog, quant, storage)
    for name, value in module.KERNELS.items()
}

__all__ = ["KERNELS"]
