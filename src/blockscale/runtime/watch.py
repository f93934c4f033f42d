"""`Watch`: the observers of a calibration run, by the tensor that each sees; and the run's progress bar."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from operator import length_hint
from typing import Generic, TypeVar

from blockscale.errors import CalibrationError
from blockscale.numerics.arrays import Array
from blockscale.numerics.calibration import Calibrated, Observer

# The name of a tensor, or a tuple that begins with it where several observers see one tensor.
Key = str | tuple[object, ...]
K = TypeVar("K", bound=Key)
T = TypeVar("T")

ADVICE = (
    "give some hundred typical inputs as calibration=, or take layouts that need none: MX formats, or "
    "dynamic ones"
)


class Watch(Generic[K]):
    """Observers by key; `see` shows one value of a tensor to all that look at it."""

    def __init__(self, observers: Mapping[K, Observer]) -> None:
        self.observers = dict(observers)
        self.by_tensor: dict[str, list[Observer]] = {}
        for key, observer in observers.items():
            tensor = key if isinstance(key, str) else str(key[0])
            self.by_tensor.setdefault(tensor, []).append(observer)

    @property
    def tensors(self) -> list[str]:
        return list(self.by_tensor)

    def see(self, tensor: str, values: Array) -> None:
        for observer in self.by_tensor[tensor]:
            observer.update(values)

    def check_source(self, source: object) -> None:
        if source is None:
            raise CalibrationError(f"{self._who()} static scales, which come from data: {ADVICE}")

    def finished(self, batches: int) -> dict[K, Calibrated]:
        if batches == 0:
            raise CalibrationError(
                f"{self._who()} static scales, and the calibration data holds no batch: {ADVICE}. "
                "(A generator can be read only once.)"
            )
        return {key: observer.finish() for key, observer in self.observers.items()}

    def _who(self) -> str:
        first, *more = self.tensors
        return f"{first!r} and {len(more)} more take" if more else f"{first!r} takes"


def shown(items: Iterable[T], text: str, source: object) -> Iterator[T]:
    """The items, with a bar that is gone at the end; nothing is shown where stderr is no terminal.

    `source` may know how many there will be.
    """
    if not sys.stderr.isatty():
        yield from items
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (BarColumn(24), MofNCompleteColumn(), TextColumn("{task.description}"), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(text, total=length_hint(source, 0) or None)
        for item in items:
            yield item
            progress.advance(task)
