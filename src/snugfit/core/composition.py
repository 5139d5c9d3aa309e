"""Techniques composed into the seams of one step, by each seam's own law."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from snugfit.core.batch import Batch
from snugfit.core.parameters import ParameterGroup
from snugfit.core.progress import Progress
from snugfit.core.random import derive_seed
from snugfit.core.technique import BatchLoss, Context, GradientsOf, Stage, Stateful, Technique
from snugfit.errors import PlanConflict

_AT_MOST_ONE = ("optimizer", "schedule", "weights")


def check(techniques: Sequence[Technique]) -> None:
    """Refuse combinations that exclude each other; nothing has been allocated yet.

    Raises:
        PlanConflict: names both, the reason and the way out.
    """
    cards = [technique.card for technique in techniques]
    for place, card in enumerate(cards):
        for other in cards[:place]:
            if card.name == other.name:
                raise PlanConflict(f"'{card.name}' is given twice. Remove one.")
            for first, second in ((card, other), (other, card)):
                if second.name in first.conflicts:
                    raise PlanConflict(
                        f"'{first.name}' and '{second.name}' exclude each other: {first.conflicts[second.name]}"
                    )
            for seam in _AT_MOST_ONE:
                if seam in card.seams and seam in other.seams:
                    raise PlanConflict(
                        f"'{other.name}' and '{card.name}' both give the {seam}, and a run has one. Remove one."
                    )
            if card.stage is not None and card.stage == other.stage:
                raise PlanConflict(
                    f"'{other.name}' and '{card.name}' both stand at the stage '{card.stage.name.lower()}' of the "
                    "gradients, which holds one. Remove one."
                )


@dataclass(frozen=True)
class Composition:
    """The seams of one step: each field is what the step calls."""

    loss: BatchLoss
    gradients: GradientsOf
    coupled: bool
    make_optimizer: Callable[[list[ParameterGroup]], torch.optim.Optimizer] | None
    schedule: Callable[[int], float] | None
    states: Mapping[str, Stateful]
    weights_name: str
    _batches: tuple[tuple[str, Callable[[Batch, torch.Generator], Batch]], ...]
    _forwards: tuple[Callable[[], AbstractContextManager[Any]], ...]
    _adjusts: tuple[Callable[[Sequence[nn.Parameter]], Mapping[str, Tensor]], ...]
    _updateds: tuple[Callable[[nn.Module, Progress], None], ...]
    _weights: Callable[[nn.Module], AbstractContextManager[Any]] | None

    def batch(self, window: Batch, seed: int, windows: int) -> Batch:
        """Transform the whole window; each technique draws from a generator of its own."""
        for name, transform in self._batches:
            generator = torch.Generator().manual_seed(derive_seed(seed, "batch", name, windows))
            window = transform(window, generator)
        return window

    def forward(self) -> AbstractContextManager[Any]:
        """The contexts around forward and loss."""
        if not self._forwards:
            return _NOTHING
        with ExitStack() as stack:  # leaves those entered if a later one fails
            for forward in self._forwards:
                stack.enter_context(forward())
            return stack.pop_all()

    def adjust(self, parameters: Sequence[nn.Parameter]) -> dict[str, Tensor]:
        """Change the true gradients in place; returns what was measured."""
        metrics: dict[str, Tensor] = {}
        for adjust in self._adjusts:
            metrics.update(adjust(parameters))
        return metrics

    def updated(self, model: nn.Module, progress: Progress) -> None:
        for updated in self._updateds:
            updated(model, progress)

    def weights(self, model: nn.Module) -> AbstractContextManager[Any]:
        """A context in which `model` has the weights to evaluate, compare and export."""
        return _NOTHING if self._weights is None else self._weights(model)


_NOTHING = nullcontext()
_T = TypeVar("_T")


def compose(
    techniques: Sequence[Technique], context: Context, loss: BatchLoss, run: GradientsOf
) -> Composition:
    """Compose the seams; `loss` is the innermost loss and `run` the innermost computation.

    Raises:
        PlanConflict: two of them exclude each other.
    """
    check(techniques)
    made = [(technique, technique.seams(context)) for technique in techniques]
    gradients = run
    staged = [(technique.card.stage, seams.gradients) for technique, seams in made if seams.gradients]
    for _, wrap in sorted(staged, key=lambda entry: entry[0] or Stage.BACKEND):
        gradients = wrap(gradients)
    for _, seams in made:
        if seams.loss is not None:
            loss = seams.loss(loss)

    def first(seam: str) -> Any:
        return next((getattr(seams, seam) for _, seams in made if getattr(seams, seam) is not None), None)

    return Composition(
        loss=loss,
        gradients=gradients,
        coupled=any(technique.card.stage is Stage.COUPLING for technique in techniques),
        make_optimizer=first("optimizer"),
        schedule=first("schedule"),
        states={technique.card.name: seams.state for technique, seams in made if seams.state is not None},
        weights_name=next((t.card.name for t, seams in made if seams.weights is not None), "raw"),
        _batches=tuple((t.card.name, seams.batch) for t, seams in made if seams.batch is not None),
        _forwards=_filled(seams.forward for _, seams in made),
        _adjusts=_filled(seams.adjust for _, seams in made),
        _updateds=_filled(seams.updated for _, seams in made),
        _weights=first("weights"),
    )


def _filled(entries: Iterable[_T | None]) -> tuple[_T, ...]:
    return tuple(entry for entry in entries if entry is not None)
