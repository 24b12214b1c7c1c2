"""Feature caches of diffusion transformers: TeaCache, FBCache and TaylorSeer.

They are approximate by design, so there is no verdict on their error: the same trajectory is run with and
without the cache, and the error per step and layer, the reuse ratio and the age of every reused feature are
reported. What is a fault is a feature of the wrong step, layer or request: a cache that was not reset
between two requests, or that returns something older than the last computed step.

A model is a sequence of blocks ``block(h, step) -> h`` and a sampler ``update(x, out, step) -> x``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

Block = Callable[[Tensor, int], Tensor]
Update = Callable[[Tensor, Tensor, int], Tensor]


@dataclass(frozen=True, slots=True)
class Reuse:
    """One use of a stored feature at (``step``, ``layer``). ``origin``: (trajectory, step, layer) it was
    computed at, or None when it is derived from several (an extrapolation) and not a stored tensor."""

    step: int
    layer: int
    origin: tuple[int, int, int] | None


@dataclass(slots=True)
class Trace:
    """What a cached trajectory computed and reused. Features are recognised by content, so that any cache
    can be observed, whatever it calls its entries."""

    trajectory: int = 0
    computed: dict[int, int] = field(default_factory=dict)
    reuses: list[Reuse] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    known: dict[bytes, tuple[int, int, int]] = field(default_factory=dict)
    evaluations: int = 0

    def begin(self) -> None:
        """A new request starts."""
        self.trajectory += 1
        self.computed = {}

    def compute(self, step: int, layer: int, feature: Tensor) -> None:
        """Block ``layer`` was evaluated at ``step``."""
        self.evaluations += 1
        self.computed[layer] = step
        self.known[_digest(feature)] = (self.trajectory, step, layer)

    def reuse(self, step: int, layer: int, feature: Tensor, *, derived: bool = False) -> None:
        """``feature`` stands in for block ``layer`` at ``step``; ``derived``: it is computed from stored
        ones."""
        origin = None if derived else self.known.get(_digest(feature))
        self.reuses.append(Reuse(step, layer, origin))
        where = f"step {step}, layer {layer}"
        if origin is None:
            if not derived:
                self.faults.append(f"{where}: reused a tensor that no block of this run computed")
            return
        trajectory, at, of = origin
        if trajectory != self.trajectory:
            self.faults.append(
                f"{where}: reused a feature of another request (step {at}): the cache was not reset"
            )
        elif of != layer:
            self.faults.append(f"{where}: reused the feature of layer {of}")
        elif at != self.computed.get(layer):
            self.faults.append(
                f"{where}: reused step {at}, though step {self.computed.get(layer)} was computed later"
            )


def _digest(x: Tensor) -> bytes:
    data = x.detach().cpu().contiguous()
    return hashlib.blake2b(data.view(torch.uint8).numpy().tobytes(), digest_size=16).digest()


class FeatureCache:
    """Base: no cache. ``run`` evaluates the blocks of one step; features are block residuals ``block(h) -
    h``."""

    name = "none"

    def reset(self) -> None:
        """Forget everything: a new request starts."""

    def run(self, blocks: Sequence[Block], h: Tensor, step: int, trace: Trace) -> list[Tensor]:
        """Hidden states after every block."""
        states = []
        for layer, block in enumerate(blocks):
            h = h + self.evaluate(block, h, step, layer, trace)
            states.append(h)
        return states

    def evaluate(self, block: Block, h: Tensor, step: int, layer: int, trace: Trace) -> Tensor:
        residual = block(h, step) - h
        trace.compute(step, layer, residual)
        return residual


def _relative(a: Tensor, b: Tensor) -> float:
    """Relative L1 distance, as these caches use it."""
    return float((a - b).abs().mean() / b.abs().mean().clamp_min(1e-12))


class TeaCache(FeatureCache):
    """Skips all blocks of a step while the accumulated, polynomially rescaled change of the input is below
    ``threshold``; the stored residuals are used instead."""

    name = "teacache"

    def __init__(self, threshold: float = 0.1, coefficients: Sequence[float] = (1.0, 0.0)) -> None:
        self.threshold, self.coefficients = threshold, tuple(coefficients)
        self.reset()

    def reset(self) -> None:
        self.before: Tensor | None = None
        self.distance = 0.0
        self.residuals: list[Tensor] = []

    def run(self, blocks: Sequence[Block], h: Tensor, step: int, trace: Trace) -> list[Tensor]:
        if self.before is not None:
            change = _relative(h, self.before)
            power = len(self.coefficients) - 1
            self.distance += sum(c * change ** (power - i) for i, c in enumerate(self.coefficients))
        self.before = h
        if self.residuals and self.distance < self.threshold:
            return self.replay(h, step, trace)
        self.distance, self.residuals = 0.0, []
        states = []
        for layer, block in enumerate(blocks):
            self.residuals.append(self.evaluate(block, h, step, layer, trace))
            h = h + self.residuals[-1]
            states.append(h)
        return states

    def replay(self, h: Tensor, step: int, trace: Trace) -> list[Tensor]:
        states = []
        for layer, residual in enumerate(self.residuals):
            trace.reuse(step, layer, residual)
            h = h + residual
            states.append(h)
        return states


class FirstBlockCache(FeatureCache):
    """FBCache: evaluates the first block; if its residual hardly changed, the others' stored residuals are
    used."""

    name = "fbcache"

    def __init__(self, threshold: float = 0.1) -> None:
        self.threshold = threshold
        self.reset()

    def reset(self) -> None:
        self.residuals: list[Tensor] = []

    def run(self, blocks: Sequence[Block], h: Tensor, step: int, trace: Trace) -> list[Tensor]:
        first = self.evaluate(blocks[0], h, step, 0, trace)
        fresh = not self.residuals or _relative(first, self.residuals[0]) >= self.threshold
        h = h + first
        states = [h]
        kept = [first] if fresh else self.residuals
        for layer, block in enumerate(blocks[1:], 1):
            if fresh:
                kept.append(self.evaluate(block, h, step, layer, trace))
            else:
                trace.reuse(step, layer, kept[layer])
            h = h + kept[layer]
            states.append(h)
        self.residuals = kept
        return states


class TaylorSeer(FeatureCache):
    """Evaluates every ``interval`` steps and extrapolates each residual in between by a Taylor series whose
    derivatives are finite differences of the evaluated steps."""

    name = "taylorseer"

    def __init__(self, interval: int = 3, order: int = 1) -> None:
        self.interval, self.order = interval, order
        self.reset()

    def reset(self) -> None:
        self.terms: list[list[Tensor]] = []
        self.last = -1
        self.gap = 1

    def run(self, blocks: Sequence[Block], h: Tensor, step: int, trace: Trace) -> list[Tensor]:
        evaluate = not self.terms or step - self.last >= self.interval
        if evaluate and self.terms:
            self.gap = step - self.last
        states, updated = [], []
        for layer, block in enumerate(blocks):
            if evaluate:
                terms = [self.evaluate(block, h, step, layer, trace)]
                old = self.terms[layer] if self.terms else []
                for earlier in old[: self.order]:
                    terms.append((terms[-1] - earlier) / self.gap)
                residual = terms[0]
                updated.append(terms)
            else:
                residual = self.extrapolate(layer, step - self.last)
                trace.reuse(step, layer, residual, derived=True)
            h = h + residual
            states.append(h)
        if evaluate:
            self.terms, self.last = updated, step
        return states

    def extrapolate(self, layer: int, ahead: int) -> Tensor:
        total, factor = torch.zeros_like(self.terms[layer][0]), 1.0
        for power, term in enumerate(self.terms[layer]):
            if power:
                factor *= ahead / power
            total = total + factor * term
        return total


FEATURE_CACHES: dict[str, type[FeatureCache]] = {
    c.name: c for c in (FeatureCache, TeaCache, FirstBlockCache, TaylorSeer)
}


@dataclass(frozen=True, slots=True)
class FeatureReport:
    """``errors[step][layer]``: relative L1 error of the hidden state against the uncached run; ``final``:
    that of the sample; ``reuse_ratio``: share of block evaluations saved; ``max_age``: oldest reuse in
    steps; ``faults``: wrong step, layer or request."""

    name: str
    errors: list[list[float]]
    final: float
    reuse_ratio: float
    max_age: int
    faults: list[str]

    @property
    def ok(self) -> bool:
        return not self.faults


def compare_trajectories(
    blocks: Sequence[Block],
    update: Update,
    starts: Sequence[Tensor],
    steps: int,
    cache: FeatureCache,
    *,
    embed: Callable[[Tensor, int], Tensor] | None = None,
    reset: bool = True,
) -> FeatureReport:
    """Run every start in ``starts`` with and without ``cache`` and compare step by step.

    ``embed(x, step)`` gives the first hidden state (default: x itself); ``reset``: call ``cache.reset()``
    between requests, as correct code does. Give at least two different starts, else a missing reset cannot
    show.
    """
    embed = embed or (lambda x, step: x)
    trace, exact = Trace(), FeatureCache()
    errors = [[0.0] * len(blocks) for _ in range(steps)]
    final = 0.0
    with torch.no_grad():
        for start in starts:
            trace.begin()
            if reset:
                cache.reset()
            x = y = start
            unseen = Trace()
            for step in range(steps):
                right = exact.run(blocks, embed(x, step), step, unseen)
                mine = cache.run(blocks, embed(y, step), step, trace)
                for layer, (a, b) in enumerate(zip(mine, right, strict=True)):
                    errors[step][layer] = max(errors[step][layer], _relative(a, b))
                x, y = update(x, right[-1], step), update(y, mine[-1], step)
            final = max(final, _relative(y, x))
    total = len(starts) * steps * len(blocks)
    ages = [r.step - r.origin[1] for r in trace.reuses if r.origin is not None]
    return FeatureReport(
        cache.name,
        errors,
        final,
        1 - trace.evaluations / total,
        max(ages, default=0),
        list(dict.fromkeys(trace.faults)),
    )


def small_transformer(
    layers: int = 4, width: int = 32, seed: int = 0
) -> tuple[list[Block], Update, Callable[[Tensor, int], Tensor]]:
    """A toy diffusion transformer (blocks, sampler, embedding) for demonstrations and tests; float32."""
    gen = torch.Generator().manual_seed(seed)
    weights = [
        tuple(torch.randn(width, width, generator=gen) / width**0.5 for _ in range(3)) for _ in range(layers)
    ]

    def block_of(qk: Tensor, value: Tensor, mlp: Tensor) -> Block:
        def block(h: Tensor, step: int) -> Tensor:
            x = h * (1 + 0.02 * step)
            scores = torch.softmax((x @ qk) @ x.transpose(-1, -2) / width, -1)
            return h + 0.1 * (scores @ (x @ value)) + 0.1 * torch.tanh(x @ mlp)

        return block

    def update(x: Tensor, out: Tensor, step: int) -> Tensor:
        return x - 0.05 * (x - torch.tanh(out))

    return [block_of(*w) for w in weights], update, lambda x, step: x * (1 + 0.01 * step)
