"""Watch layers whose units are all the same: drawn alike and taught alike, they stay so."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from snugfit.doctor.observe.events.run_events import EqualUnits
from snugfit.doctor.observe.recording.companions import Companion
from snugfit.doctor.observe.recording.recorder import Recorder
from snugfit.doctor.observe.recording.script_frames import where

LEAST_UPDATES, MOST_LOOKED = 3, 256
SLACK = 1e-5
"""Part of the largest weight, by which rows may differ: sums of the same products in another order differ by less."""


class EqualWatch(Companion):
    """A watcher of matrices whose rows are the same after updates that moved them, one for each unit of a layer."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    def steps(self, optimizer: Any) -> None:
        """Look at the matrices that an optimizer moves, once it has moved them a few times."""
        log = self._recorder.log
        if log.updates < LEAST_UPDATES:
            return
        owned = [each for group in optimizer.param_groups for each in group["params"]][:MOST_LOOKED]
        for parameter in owned:
            if isinstance(parameter, Tensor) and _stays_equal(parameter):
                seen = self._recorder.parameters.get(self._recorder.number(parameter))
                name = seen.name if seen is not None else ""
                self._recorder.add(EqualUnits(where(), log.updates, name, list(parameter.shape)))


def _stays_equal(parameter: Tensor) -> bool:
    """Return whether all rows of a matrix are the same, which has a gradient."""
    gradient = parameter.grad
    plain = parameter.layout is torch.strided and not parameter.is_nested and not parameter.is_complex()
    if not plain or parameter.dim() < 2 or parameter.shape[0] < 2 or gradient is None:
        return False
    if gradient.layout is not torch.strided or not parameter.is_floating_point():
        return False
    return _is_alike(parameter[:2]) and _is_alike(parameter) and bool(gradient.detach()[0].any())


def _is_alike(rows: Tensor) -> bool:
    values = rows.detach()
    return float((values - values[:1]).abs().max()) <= SLACK * float(values.abs().max())
