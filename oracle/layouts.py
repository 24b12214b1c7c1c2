"""Layouts of query, key, value and output (contract 1.4).

The left part of a layout name describes query and the unpaged key and value, the right part only the
output. Everything inside the oracle is ``[B, N, S, D]`` (batch, heads, tokens, head dimension) or, for the
packed layouts, ``[N, T, D]`` with ``T`` the tokens of all requests one after another.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from .errors import OracleError


@dataclass(frozen=True, slots=True)
class Layout:
    """One ``input_layout`` value.

    ``inputs`` and ``output`` are axis strings; ``packed`` layouts carry no batch axis and need lengths.
    """

    name: str
    inputs: str
    output: str

    @property
    def packed(self) -> bool:
        return "T" in self.inputs


_NAMES = (
    "BSH BSND BNSD BNSD_BSND BSH_BNSD BSND_BNSD BSH_NBSD BSND_NBSD BNSD_NBSD TND TND_NTD NTD NTD_TND NSD SBH"
)
LAYOUTS: dict[str, Layout] = {
    name: Layout(name, name.partition("_")[0], name.partition("_")[2] or name) for name in _NAMES.split()
}


def layout(name: str) -> Layout:
    """The layout called ``name``; raises :class:`OracleError` for a name no operator knows."""
    try:
        return LAYOUTS[name]
    except KeyError:
        raise OracleError(f"input_layout {name!r} is not one of {', '.join(LAYOUTS)}") from None


_PERMUTATIONS = {
    "BNSD": (0, 1, 2, 3),
    "BSND": (0, 2, 1, 3),
    "NBSD": (1, 0, 2, 3),
}


def split_heads(x: Tensor, axes: str, heads: int, what: str = "tensor") -> Tensor:
    """View ``x`` as ``[B, N, S, D]`` (``[N, T, D]`` for TND and NTD) without copying.

    ``heads`` must be the length of the head axis, or divide H where the axis is folded into it (BSH, SBH).
    """
    rank = 4 if axes in _PERMUTATIONS else 3
    if x.dim() != rank:
        raise OracleError(f"{what} must have {rank} axes for layout {axes}, got shape {tuple(x.shape)}")
    if "N" in axes and x.shape[axes.index("N")] != heads:
        raise OracleError(f"{what} of shape {tuple(x.shape)} does not have {heads} heads in layout {axes}")
    if axes in _PERMUTATIONS:
        return x.permute(_PERMUTATIONS[axes])
    if axes == "TND":
        return x.transpose(0, 1)
    if axes == "NTD":
        return x
    if axes == "NSD":
        return x.unsqueeze(0)
    if x.shape[-1] % heads:
        raise OracleError(f"{what} has H={x.shape[-1]}, which {heads} heads do not divide")
    folded = x if axes == "BSH" else x.transpose(0, 1)
    return folded.reshape(*folded.shape[:2], heads, x.shape[-1] // heads).transpose(1, 2)


def join_heads(x: Tensor, axes: str) -> Tensor:
    """Inverse of :func:`split_heads`; the result is contiguous."""
    if axes in _PERMUTATIONS:
        return x.permute(_PERMUTATIONS[axes]).contiguous()
    if axes == "TND":
        return x.transpose(0, 1).contiguous()
    if axes == "NTD":
        return x.contiguous()
    if axes == "NSD":
        return x.squeeze(0).contiguous()
    folded = x.transpose(1, 2).flatten(2)
    return (folded if axes == "BSH" else folded.transpose(0, 1)).contiguous()
