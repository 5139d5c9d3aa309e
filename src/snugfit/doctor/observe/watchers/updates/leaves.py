"""Leaves of the graph of a loss that no optimizer has: parameters in a plain list, tensors that are attributes of a module, inputs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from snugfit.doctor.observe.graphs.graph_nodes import leaves_of
from snugfit.doctor.observe.recording.recorder import Recorder

if TYPE_CHECKING:
    from snugfit.doctor.observe.watchers.modules.watch_modules import ModuleWatch

COMPARED = 64


class Leaves:
    """Counts the updates in which a leaf that no module has registered is differentiated, and sees whether anything moves it."""

    def __init__(self, recorder: Recorder, modules: ModuleWatch) -> None:
        self._recorder, self._modules = recorder, modules
        self._start: dict[int, Tensor] = {}
        self._updates: dict[int, int] = {}

    def look_at(self, value: Tensor) -> bool:
        """Look at the leaves of a value that is about to be differentiated; return whether some are neither parameters nor of a module."""
        recorder, of_inputs = self._recorder, False
        used = {number for each in recorder.optimizers.values() for number in each.parameters}
        for leaf in leaves_of(value).values():
            number = recorder.number(leaf)
            if number in used or not leaf.requires_grad:
                continue
            known = number in recorder.parameters and number not in self._start
            if not known and (isinstance(leaf, nn.Parameter) or self._is_held(leaf)):
                self._count(leaf, number)
            elif not known:
                of_inputs = True
        return of_inputs

    def _count(self, leaf: Tensor, number: int) -> None:
        root = self._modules.last_trained
        seen = self._recorder.parameter(leaf, f"a tensor of {list(leaf.shape)}")
        seen.model = seen.model or root
        now, update = leaf.detach().reshape(-1)[:COMPARED], self._recorder.log.updates
        if number not in self._start:
            self._start[number] = now.clone()
        seen.moved_outside = seen.moved_outside or not torch.equal(self._start[number], now)
        if self._updates.get(number) != update:
            self._updates[number] = update
            seen.outside += 1

    def _is_held(self, leaf: Tensor) -> bool:
        """Return whether a tensor is an attribute of a module, or lies in a list or a dictionary that is one."""
        for module in self._modules.living:
            for value in vars(module).values():
                if value is leaf or any(each is leaf for each in _parts(value)):
                    return True
        return False


def _parts(value: Any) -> list[Any]:
    if isinstance(value, list | tuple):
        return list(value)
    return list(value.values()) if type(value) is dict else []
