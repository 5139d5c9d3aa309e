"""The state of each optimizer's gradients: fresh, added to, used up, scaled."""

from __future__ import annotations

import math
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from snugfit.doctor.observe.recording.recorder import Recorder

SAMPLED = 4


NO_FLOAT64 = frozenset({"mps"})
"""Kinds of devices on which float64 raises."""


def summable(tensor: Tensor) -> Tensor:
    """Return the tensor without its graph, on the host where its device cannot add up in float64."""
    here = tensor.detach()
    return here.cpu() if here.device.type in NO_FLOAT64 else here


def nonzero(gradient: Tensor | None) -> bool:
    """Return whether there is a gradient with anything in it."""
    if gradient is None:
        return False
    values = gradient.coalesce().values() if gradient.is_sparse else gradient
    return bool(values.count_nonzero())


def magnitude(gradients: list[Tensor]) -> float:
    """Sum of absolute values: changes when the gradients are divided, unscaled or clipped."""
    dense = [each.coalesce().values() if each.is_sparse else each for each in gradients]
    return sum(float(summable(each).abs().sum(dtype=torch.float64)) for each in dense)


class Length(NamedTuple):
    """The length of gradients: their norm, and the largest absolute value."""

    norm: float
    largest: float

    @classmethod
    def of(cls, gradient: Tensor | None) -> Length:
        """Return the length of a dense gradient; zero where there is none."""
        if gradient is None or gradient.is_sparse or not gradient.numel():
            return cls(0.0, 0.0)
        sizes = summable(gradient).abs()
        return cls(float(torch.linalg.vector_norm(sizes, dtype=torch.float64)), float(sizes.max()))

    @classmethod
    def together(cls, lengths: Sequence[Length]) -> Length:
        """Return the length of several gradients as if they were one."""
        return cls(math.hypot(*(each.norm for each in lengths)), max(each.largest for each in lengths))


Mark = tuple[int, int] | None
Before = dict[int, tuple[list[Mark], bool]]
"""Per optimizer: what shows whether a backward pass touched its gradients, and whether it had any."""


@dataclass
class State:
    """The state of one optimizer's gradients, seen on a few parameters at both ends of it.

    Args:
        used: an optimizer step used what is there.
        stale: a backward pass added to used gradients.
        had: the last backward pass left something.
        scaled: the loss scale is still in them; `scale` how much.
        size: their magnitude after the last backward pass; no number where the update is not looked at closely.
        left: the gradients that the last step of the first updates has used, and their versions; `left_size` their magnitude,
            since what is written through `.data`, or by a graph of CUDA, has no version.
        lengths: while they are scaled, of each parameter's gradient after the last backward pass, in the first updates.
        clipped: their magnitude after torch's functions have clipped them, 0 before.
        weights: that of the parameters after the last backward pass, in the first updates.
    """

    optimizer: weakref.ref[Any]
    used: bool = False
    stale: bool = False
    had: bool = False
    scaled: bool = False
    scale: float = 1.0
    size: float = 0.0
    lengths: list[Length] = field(default_factory=list)
    clipped: float = 0.0
    weights: float = math.nan
    left: list[tuple[weakref.ref[Tensor], int]] = field(default_factory=list)
    left_size: float = 0.0

    def leave(self, *, looked: bool) -> None:
        """Remember the gradients that a step has used, where that is `looked` at, to know them again."""
        gradients = self.gradients() if looked else []
        self.left = [(weakref.ref(each), each._version) for each in gradients]
        self.left_size = magnitude(gradients)

    def left_behind(self) -> bool:
        """Return whether the gradients are those that the last step has used, and nothing has written to one since."""
        left, self.left = self.left, []
        now = self.gradients() if left else []
        return (
            bool(left)
            and len(left) == len(now)
            and all(
                reference() is each and version == each._version
                for (reference, version), each in zip(left, now, strict=True)
            )
            and magnitude(now) == self.left_size
        )

    def sample(self) -> list[Tensor]:
        """Trainable parameters at both ends of the optimizer."""
        trainable = [each for each in self.parameters() if each.requires_grad]
        return trainable[:SAMPLED] + trainable[SAMPLED:][-SAMPLED:]

    def parameters(self) -> list[Tensor]:
        optimizer = self.optimizer()
        return (
            []
            if optimizer is None
            else [each for group in optimizer.param_groups for each in group["params"]]
        )

    def of_weights(self) -> float:
        """Return the magnitude of the sample's values."""
        return magnitude([each.detach() for each in self.sample()])

    def gradients(self) -> list[Tensor]:
        """Return those of the sample."""
        return [each.grad for each in self.sample() if each.grad is not None]

    def change(self) -> float:
        """Return their magnitude over that after the last backward pass; 1 where that is not known or none was left."""
        return magnitude(self.gradients()) / self.size if self.size > 0 else 1.0

    def changed(self) -> tuple[Length, Length] | None:
        """Return the gradients that were changed since the last backward pass, together: then and now; None where none was."""
        now = [Length.of(each.grad) for each in self.parameters()]
        if len(now) != len(self.lengths):
            return None
        pairs = [
            (then, is_now)
            for then, is_now in zip(self.lengths, now, strict=True)
            if abs(then.norm - is_now.norm) > 1e-6 * then.norm
        ]
        if not pairs:
            return None
        before, after = zip(*pairs, strict=True)
        return Length.together(before), Length.together(after)


def _marks(parameters: list[Tensor]) -> list[Mark]:
    """Return, of each parameter, what changes when a backward pass touches its gradient."""
    marks: list[Mark] = []
    for parameter in parameters:  # a loop, which takes no frame
        gradient = parameter.grad
        marks.append(None if gradient is None else (id(gradient), gradient._version))
    return marks


class Gradients:
    """The gradients of all optimizers, and what is known of the loss that is differentiated next."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.states: dict[int, State] = {}
        self.losses: list[float] = []
        self._scaled: tuple[weakref.ref[Tensor], float, str] | None = None

    def track(self, optimizer: Any) -> None:
        self.states[self.recorder.number(optimizer)] = State(weakref.ref(optimizer))

    def are_moved(self, numbers: list[int]) -> bool:
        """Return whether weights of these optimizers have changed since their last backward pass, in the first updates."""
        states = [self.states[each] for each in numbers if each in self.states]
        return any(not math.isnan(each.weights) and each.weights != each.of_weights() for each in states)

    def scale(self, value: Tensor, scaled: Tensor, factor: float) -> None:
        """Note that a scaler made `scaled` of `value`."""
        self._scaled = (weakref.ref(scaled), factor, graph_of(value))

    def scale_of(self, value: Tensor) -> tuple[float, str]:
        """Return the loss scale in a value, and the name of the function that made it before it was scaled."""
        if self._scaled is not None and self._scaled[0]() is value:
            return self._scaled[1], self._scaled[2]
        return 1.0, graph_of(value)

    def before(self) -> Before:
        """Per optimizer: what shows whether the coming pass touches it, and whether it has gradients already."""
        marks = {}
        for number, state in self.states.items():
            sample = state.sample()
            gradients = [each.grad for each in sample if each.grad is not None]
            live = any(map(nonzero, gradients))
            if not live:
                state.used = state.stale = state.scaled = False
            marks[number] = (_marks(sample), live)
        return marks

    def after(self, before: Before, factor: float) -> tuple[list[int], list[int]]:
        """Return the optimizers whose gradients the pass touched, and those of them whose window it continued."""
        touched, adds_to = [], []
        for number, (marks, live) in before.items():
            state = self.states[number]
            sample = state.sample()
            if _marks(sample) == marks:
                continue
            touched.append(number)
            if live and not state.used:
                adds_to.append(number)
            state.stale = state.stale or (live and state.used)
            state.size, state.clipped = math.nan, 0.0
            state.weights = state.of_weights() if self.recorder.detailed else math.nan
            if self.recorder.close:
                state.size = magnitude(state.gradients())
                state.had = state.size > 0
            state.scaled, state.scale = factor != 1.0, factor
            looked = state.scaled and self.recorder.detailed
            state.lengths = [Length.of(each.grad) for each in state.parameters()] if looked else []
        return touched, adds_to


def graph_of(value: Tensor) -> str:
    """Name of the function that made a value."""
    return "" if value.grad_fn is None else type(value.grad_fn).__name__
