"""Interleaved timing, for every benchmark. Nothing here asserts a time.

What is compared runs in turns within one process, so that a drift of the machine (clock, memory, other
tenants) hits all alike. The best time is compared; the median and the quartiles say how far to trust it.
"""

from __future__ import annotations

import gc
import math
import random
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

Run = Callable[[], Any]
SAMPLE = 20e-6  # a sample lasts at least this long: shorter calls are repeated within it
BURST = 3  # samples in a row of one thing: the first may find the caches cold


@dataclass(frozen=True)
class Times:
    """Seconds a call, of every sample."""

    samples: tuple[float, ...]

    @cached_property
    def best(self) -> float:
        return min(self.samples)

    @cached_property
    def median(self) -> float:
        return statistics.median(self.samples)

    @cached_property
    def quartiles(self) -> tuple[float, float]:
        if len(self.samples) < 2:
            return self.best, self.best
        first, _, third = statistics.quantiles(self.samples, n=4, method="inclusive")
        return first, third

    @property
    def spread(self) -> str:
        """Median (first – third quartile)."""
        first, third = self.quartiles
        return f"{duration(self.median)} ({duration(first)} – {duration(third)})"

    def rate(self, count: float) -> str:
        """10^9 of what there are `count` of, a second."""
        return f"{count / self.best / 1e9:.2f}"

    def facts(self) -> dict[str, float]:
        first, third = self.quartiles
        return {
            "best": self.best, "q1": first, "median": self.median, "q3": third, "n": len(self.samples),
        }  # fmt: skip


def duration(seconds: float) -> str:
    unit, value = next(
        ((unit, seconds * scale) for unit, scale in (("s", 1), ("ms", 1e3)) if seconds * scale >= 1),
        ("µs", seconds * 1e6),
    )
    return f"{value:.{max(0, 2 - int(math.log10(max(value, 1))))}f} {unit}"


def interleaved(
    cases: Mapping[str, Run], *, seconds: float, least: int = 5, most: int = 400
) -> dict[str, Times]:
    """Times of all cases, each about `seconds` long in all, spread evenly over the whole run.

    A case that is not slow runs once unmeasured whenever its turn comes, to bring its data into the cache.
    """
    rng = random.Random(0)
    plans = {name: _Plan.of(run, seconds, least, most) for name, run in cases.items()}
    rounds = max(plan.turns for plan in plans.values())
    samples: dict[str, list[float]] = {name: [] for name in cases}
    gc_was_on = gc.isenabled()
    gc.disable()
    try:
        for turn in range(rounds):
            order = list(cases)
            rng.shuffle(order)
            for name in order:
                plan = plans[name]
                if (turn + 1) * plan.turns // rounds > turn * plan.turns // rounds:
                    samples[name] += plan.take(cases[name])
            gc.collect(0)
    finally:
        if gc_was_on:
            gc.enable()
    return {name: Times(tuple(found)) for name, found in samples.items()}


@dataclass(frozen=True)
class _Plan:
    turns: int
    burst: int
    inner: int  # calls in one sample
    warm: bool

    @staticmethod
    def of(run: Run, seconds: float, least: int, most: int) -> _Plan:
        run()
        once = min(_timed(run, 1) for _ in range(2)) if seconds > 0 else _timed(run, 1)
        inner = max(1, math.ceil(SAMPLE / max(once, 1e-9)))
        slow = once > 5e-3
        burst = 1 if slow else BURST
        turn = once * inner * (burst + (not slow))
        return _Plan(max(least if once < 1 else 2, min(most, int(seconds / turn))), burst, inner, not slow)

    def take(self, run: Run) -> list[float]:
        if self.warm:
            run()
        return [_timed(run, self.inner) for _ in range(self.burst)]


def _timed(run: Run, calls: int) -> float:
    if calls == 1:
        start = time.perf_counter_ns()
        run()
        return (time.perf_counter_ns() - start) / 1e9
    turns = range(calls)
    start = time.perf_counter_ns()
    for _ in turns:
        run()
    return (time.perf_counter_ns() - start) / calls / 1e9
