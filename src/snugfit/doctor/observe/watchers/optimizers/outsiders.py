"""Parameters that get gradients and belong to no optimizer of torch, or to none that steps any more."""

from __future__ import annotations

import ast
import sys
import weakref
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from snugfit.doctor.observe.events.log import ModelSeen
from snugfit.doctor.observe.events.run_events import LayerMadeAnew
from snugfit.doctor.observe.recording.recorder import Recorder
from snugfit.doctor.observe.recording.script_frames import is_own, shown, where
from snugfit.doctor.observe.source.script_syntax import syntax_of

COMPARED = 64
WITNESSES = 3
MOST_PASSES = 64


class Outsiders:
    """Counts the updates in which such parameters have gradients, and sees whether the script moves them by itself."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self._strays: list[weakref.ref[nn.Parameter]] = []
        self._start: dict[int, Tensor] = {}
        self._marks: dict[int, tuple[int, int]] = {}
        self._passes = 0
        self._last: dict[int, list[Tensor]] = {}
        self._moves: dict[int, tuple[str, str, int]] = {}
        self._made: dict[int, tuple[weakref.ref[nn.Module], str]] = {}
        self._in_optimizers: tuple[int, set[int]] = (0, set())
        self._stepping: set[int] = set()

    def optimized(self) -> set[int]:
        """Return the numbers of all parameters of optimizers."""
        count = self.recorder.optimized
        if count != self._in_optimizers[0]:
            optimizers = self.recorder.optimizers.values()
            self._in_optimizers = count, {number for each in optimizers for number in each.parameters}
        return self._in_optimizers[1]

    def optimizer_built(self, frozen: set[int]) -> None:
        """Note the numbers of the parameters that are frozen as an optimizer is made: the older ones may step no more."""
        self.recorder.frozen_at_build = frozen
        self._stepping.clear()

    def stepped(self, optimizer: Any) -> None:
        """Note that an optimizer has made a step since the last one was made."""
        self._stepping.add(self.recorder.number(optimizer))

    def _trained(self) -> set[int]:
        """Return the numbers of parameters of optimizers, but for those that were frozen when the last one was made, and that only optimizers have which have not stepped since."""
        optimizers = self.recorder.optimizers
        stepping = [optimizers[each] for each in self._stepping & optimizers.keys()]
        left_behind = self.recorder.frozen_at_build.difference(*(each.parameters for each in stepping))
        return self.optimized() - left_behind

    def after_backward(self, models: Iterable[tuple[nn.Module, ModelSeen]]) -> None:
        """Count how often the weights of a model without an optimizer have moved since the last backward pass.

        The script moves them by hand then, or by an optimizer of another library, into which nothing looks.
        """
        self._passes += 1
        if self._passes > MOST_PASSES:
            return
        used = self.optimized()
        for module, seen in models:
            parameters = list(module.parameters())
            if any(self.recorder.number(each) in used for each in parameters):
                continue
            trained = [each for each in parameters if each.grad is not None and each.numel()][:WITNESSES]
            now = [each.detach().reshape(-1)[:COMPARED].clone() for each in trained]
            last = self._last.get(seen.id, [])
            if len(last) == len(now) and not all(map(torch.equal, last, now)):
                count = self._moves.get(seen.id, ("", "", 0))[2]
                self._moves[seen.id] = (seen.name, where(), count + 1)
            self._last[seen.id] = now

    def restored(self, model: int) -> None:
        """Forget how the weights were: a checkpoint was loaded into them."""
        self._last.pop(model, None)

    def resumed(self) -> None:
        """Forget how all weights were: what moved them was not looked at."""
        self._last.clear()

    def finish(self) -> None:
        """Say which models were updated by other than torch's optimizers."""
        for name, at, count in self._moves.values():
            if count > 1:
                self.recorder.unwatched(
                    f"the updates of {name} ({at}): its weights were moved by hand, or by an optimizer that is not torch's"
                )

    def made(self, module: nn.Module, at: str) -> None:
        """Remember where a module was made while a model computed."""
        self._made[id(module)] = weakref.ref(module), at

    def note(self, root: int, module: nn.Module, top: nn.Module | None) -> None:
        """Note a module that was called inside of a model, `top`, if its parameters are not the model's own. In a plain list they are not."""
        known = self.recorder.parameters
        reference, at = self._made.pop(id(module), (None, ""))
        anew = reference is not None and reference() is module and torch.is_grad_enabled()
        if anew and any(each is not None and each.requires_grad for each in module._parameters.values()):
            self.recorder.add(LayerMadeAnew(at, self.recorder.log.updates, type(module).__name__))
        for name, parameter in module._parameters.items():
            if isinstance(parameter, nn.Parameter) and self.recorder.number(parameter) not in known:
                stray = self.recorder.parameter(parameter, f"{type(module).__name__}.{name}")
                stray.model, stray.listed_at = root, "" if top is None else line_that_lists(top, module)
                self._strays.append(weakref.ref(parameter))

    def count_strays(self) -> None:
        """Count, after a step, the parameters that belong to no model."""
        self.count([each for reference in self._strays if (each := reference()) is not None])

    def count(self, parameters: Iterable[nn.Parameter]) -> None:
        """Count, after a step, those of the parameters with a gradient that no optimizer moves."""
        used = self._trained()
        for parameter in parameters:
            number = self.recorder.number(parameter)
            if number in used or not parameter.requires_grad or parameter.grad is None:
                continue
            mark = id(parameter.grad), parameter.grad._version
            if self._marks.get(number) == mark:  # of a pass that lies before the last step
                continue
            self._marks[number] = mark
            seen = self.recorder.parameter(parameter)
            seen.outside += 1
            seen.frozen_at_build = number in self.recorder.frozen_at_build
            now = parameter.detach().reshape(-1)[:COMPARED]
            if number not in self._start:
                self._start[number] = now.clone()
            elif self.recorder.detailed:
                seen.moved_outside = seen.moved_outside or not torch.equal(self._start[number], now)


def line_that_lists(top: nn.Module, module: nn.Module) -> str:
    """Return the line of the script that sets the attribute of a model whose value is a list, or a dictionary, of Python's that holds a module; "" without."""
    for holder in top.modules():
        for name, value in list(vars(holder).items()):
            held = value.values() if isinstance(value, dict) else value
            inside = not name.startswith("_") and isinstance(value, list | tuple | dict)
            if inside and any(isinstance(each, nn.Module) and _has(each, module) for each in held):
                return _line_of_attribute(type(holder), name)
    return ""


def _has(whole: nn.Module, part: nn.Module) -> bool:
    return any(each is part for each in whole.modules())


def _line_of_attribute(kind: type, name: str) -> str:
    """Return the first line of a class, or of one that it inherits from, that sets an attribute of its object; "" where the script's source does not show it."""
    for each in kind.__mro__:
        file = getattr(sys.modules.get(each.__module__), "__file__", None)
        if not isinstance(file, str) or not is_own(file):
            continue
        own = [
            c for c in ast.walk(syntax_of(file)) if isinstance(c, ast.ClassDef) and c.name == each.__name__
        ]
        lines = [
            part.lineno
            for part in (part for whole in own for part in ast.walk(whole))
            if isinstance(part, ast.Attribute) and part.attr == name and isinstance(part.ctx, ast.Store)
        ]
        if lines:
            return f"{shown(file)}:{min(lines)}"
    return ""
