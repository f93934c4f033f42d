"""Calibration of torch models: run them over inputs and show observers the values in between."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from blockscale.numerics.calibration import Calibrated, Observer
from blockscale.runtime.torch_values import Model, Watched
from blockscale.runtime.watch import K, Watch, shown


def calibrate(model: Model, inputs: Any, observers: Mapping[K, Observer]) -> dict[K, Calibrated]:
    """Static parameters for the values that observers look at, from one pass over `inputs`.

    observers   by the name of an fx node, or `node@reader` as `Watched` has it; in a body of control flow by
                `path of the body.node`. A key may also be a tuple that begins with the name, so that several
                observers see one value
    inputs      an iterable, or an object with get_next(): a tensor, a tuple of arguments, or a dict of
                arguments by name for each run. `random(…)` of calibration_data where shapes are known.
                None is enough where there are no observers

    Modules in training mode run in evaluation mode meanwhile; nothing takes gradients.
    """
    if not observers:
        return {}
    watch = Watch(observers)
    watch.check_source(inputs)
    watched = Watched(model, watch.tensors, watch.see)
    batches = sum(1 for _ in watched.run(inputs, lambda calls: shown(calls, "calibrating", inputs)))
    return watch.finished(batches)
