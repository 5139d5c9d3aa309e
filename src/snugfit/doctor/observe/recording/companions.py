"""Watchers of the calls of models, their losses and their backward passes together, in the first updates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from torch import Tensor, nn


class ModelCall(NamedTuple):
    """The outermost call of a model with a graph, and the tensors of one axis and more that it gets."""

    module: nn.Module
    inputs: list[Tensor]


class ModuleOutput(NamedTuple):
    """The output of a model, or of a part of one where it is not the outermost call."""

    module: nn.Module
    output: Any
    outermost: bool


class LossCall(NamedTuple):
    """The call of a loss function of torch: its name, what it got and gave, and its settings."""

    name: str
    scores: Tensor
    target: Tensor
    result: Tensor
    options: dict[str, Any]


class Companion:
    """A watcher that is told, in the first updates, of what models are given and give, what is scored and what is differentiated.

    Each method does nothing by itself. Graphs may be read in them: nothing of the script would notice.
    """

    def begins(self, call: ModelCall) -> None:
        """Look at the call of a model before it is made."""

    def ended(self, given: ModuleOutput) -> None:
        """Look at what a model, or a part of one, gave."""

    def drew(self, parts: Sequence[Tensor]) -> None:
        """Look at the tensors of a batch that a loader hands out, at any time."""

    def evaluated(self, model: int, output: Any) -> None:
        """Look at what a model gave without a graph, at any time."""

    def scored(self, scores: Tensor, target: Tensor) -> None:
        """Look at scores that have a graph, and at their targets, which have none."""

    def lost(self, loss: LossCall) -> None:
        """Look at the call of a loss function whose result has a graph."""

    def constant(self, loss: LossCall) -> None:
        """Look at the call of a loss function whose result has no graph, where one would be kept."""

    def differentiated(self, value: Tensor) -> None:
        """Look at a number that is about to be differentiated."""

    def steps(self, optimizer: Any) -> None:
        """Look at the optimizer that is about to step."""
