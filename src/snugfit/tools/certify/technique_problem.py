"""The problem that a technique is tried on: a small model, its loss, windows that suit both, and steps with any techniques."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from snugfit.core.loss_terms import Loss, LossTerms
from snugfit.core.random import preserved_randomness, seed_device
from snugfit.core.selection import check
from snugfit.core.technique import Kind, Stage, Technique
from snugfit.errors import PlanConflict, SettingError
from snugfit.kit.sharded_tensors import whole
from snugfit.step.step import Forward, Step
from snugfit.strategies.base import Strategy
from snugfit.techniques import find
from snugfit.tools.certify import technique_windows as windows_of
from snugfit.tools.certify.technique_models import FURTHER_LAYERS, Reader, Viewer, contrastive
from snugfit.tools.certify.technique_windows import Window, cast

LEARNING_RATE = 0.05
TOTAL_UPDATES = 5
WINDOW_ROWS = (7, 7, 5)  # the last one of an epoch is partial
TOLERANCE = (
    1e-10  # float64 has 16 digits; what is left of them after a few hundred additions in another order
)


@dataclass(frozen=True)
class Problem:
    """A model, its loss, and windows that suit both; `windows` takes the number of rows of each window.

    `dtype` is what all of it is in, and `tolerance` how far two ways to compute the same may be apart in it: float64,
    unless the oracle of a technique states `DTYPE` and `SAME_WITHIN`. A tensor is measured by `floor` of the length of all at
    least. `changes_weights`: they are in another type than that.
    """

    name: str
    make_model: Callable[[float], nn.Module]
    make_windows: Callable[[Sequence[int]], list[Window]]
    loss: str | Loss
    forward: Forward | None = None
    floats: bool = True
    dtype: torch.dtype = torch.float64
    tolerance: float = TOLERANCE
    floor: float = 1e-3
    changes_weights: bool = False

    def model(self, dtype: torch.dtype | None = None, dropout: float = 0.0, seed: int = 1) -> nn.Module:
        host = torch.device("cpu")
        with preserved_randomness(host):
            seed_device(seed, host)
            return self.make_model(dropout).to(dtype or self.dtype).train()

    def windows(self, dtype: torch.dtype | None = None, rows: Sequence[int] = WINDOW_ROWS) -> list[Window]:
        return [cast(window, dtype or self.dtype) for window in self.make_windows(rows)]


def problem_of(
    techniques: Sequence[Technique], dtype: torch.dtype = torch.float64, tolerance: float = TOLERANCE
) -> Problem:
    """Return the problem that suits the techniques: texts for the transformer, or images for the convolutional net.

    Args:
        dtype: that all of it is in, but for weights to which a technique gives another one.
        tolerance: how far two ways to compute the same may be apart in it.
    """
    problem = images_of(techniques) if takes_images(techniques) else texts_of(techniques)
    return replace(problem, dtype=dtype, tolerance=tolerance, changes_weights=True)


def texts_of(techniques: Sequence[Technique]) -> Problem:
    """Return the transformer's problem: each token is scored, or, when a technique serves losses that couple rows, such a loss."""
    if couples(techniques):
        return Problem(
            "reader", lambda p: Reader(p, per_token=False), windows_of.texts(per_token=False), _contrastive
        )
    return Problem("reader", lambda p: Reader(p), windows_of.texts(per_token=True), "cross_entropy")


def images_of(techniques: Sequence[Technique]) -> Problem:
    """Return the convolutional net's problem; with further layers where a technique finds nothing to change in the net."""
    layers = further_layers(techniques)
    make = partial(Viewer, layers=layers) if layers else Viewer
    return Problem("viewer", make, windows_of.images("pixels"), loss_of_rows(techniques))


def further_layers(techniques: Sequence[Technique]) -> tuple[str, ...]:
    """Return names of the layers that the convolutional net lacks for these techniques."""
    missing = {layer for technique in techniques for layer in _missing_for(technique)}
    return tuple(name for name in FURTHER_LAYERS if name in missing)


def _missing_for(technique: Technique) -> tuple[str, ...]:
    if type(technique).prepare is Technique.prepare:
        return ()
    key = type(technique), repr(technique)
    if key not in _MISSING:
        tries = ((), *((name,) for name in FURTHER_LAYERS))
        _MISSING[key] = next((layers for layers in tries if _takes(technique, layers)), ())
    return _MISSING[key]


def _takes(technique: Technique, layers: tuple[str, ...]) -> bool:
    with preserved_randomness(torch.device("cpu")):
        try:
            technique.prepare(Viewer(layers=layers))
        except SettingError:
            return False
    return True


_MISSING: dict[tuple[type[Technique], str], tuple[str, ...]] = {}


def takes_images(techniques: Sequence[Technique]) -> bool:
    """Return whether one of them needs rows of images or of numbers."""
    return any(technique.card.kind in (Kind.IMAGES, Kind.NUMBERS) for technique in techniques)


def couples(techniques: Sequence[Technique]) -> bool:
    """Return whether one of them serves losses that compare the rows of a window."""
    return any(Stage.COUPLING in technique.card.stages for technique in techniques)


def is_legal(techniques: Sequence[Technique]) -> bool:
    """Return whether these techniques compose."""
    try:
        check(techniques)
    except PlanConflict:
        return False
    return True


def make_step(
    problem: Problem,
    techniques: Sequence[Technique],
    *,
    micro_batch: int | None = None,
    dtype: torch.dtype | None = None,
    dropout: float = 0.0,
    momentum: float = 0.9,
    model_seed: int = 1,
    nominal: float = 1.0,
    seed: int = 0,
    strategy: Strategy | None = None,
) -> Step:
    """Return a step with the techniques; with plain SGD, which shows the scale of a gradient, unless one is an optimizer."""
    model = problem.model(dtype, dropout, model_seed)
    optimizer = plain_optimizer(model, techniques, momentum)
    if strategy is not None and strategy.shards and isinstance(optimizer, torch.optim.Optimizer):
        optimizer = _sgd(momentum)
    return Step(
        model,
        optimizer,
        problem.loss,
        techniques,
        micro_batch=micro_batch,
        total_updates=TOTAL_UPDATES,
        forward=problem.forward,
        nominal=nominal,
        seed=seed,
        strategy=strategy,
    )


def plain_optimizer(
    model: nn.Module, techniques: Sequence[Technique], momentum: float
) -> torch.optim.Optimizer | Technique | None:
    """SGD, made by the step itself where techniques add or group parameters; None where one is an optimizer."""
    cards = [technique.card for technique in techniques]
    if any("optimizer" in card.seams for card in cards):
        return None
    if any({"groups", "stepping"} & {*card.seams} or card.stage("prepare") is not None for card in cards):
        return _sgd(momentum)
    return torch.optim.SGD(model.parameters(), lr=LEARNING_RATE, momentum=momentum)


def _sgd(momentum: float) -> Technique:
    make: Any = find("sgd")
    made: Technique = make(learning_rate=LEARNING_RATE, momentum=momentum)
    return made


def gradients(step: Step) -> dict[str, Tensor]:
    """Return copies of what the last update was made from."""
    return {name: whole(gradient).clone() for name, gradient in step.gradients().items()}


def traces(step: Step) -> dict[str, Tensor]:
    """Return the gradients of the last update; where they have gone with it, the weights that it left."""
    return weights(step) if step.seams.irrevocable else gradients(step)


def weights(step: Step) -> dict[str, Tensor]:
    """Return copies of the trained weights."""
    return {name: whole(p).clone() for name, p in step.model.named_parameters()}


def evaluated_weights(step: Step) -> dict[str, Tensor]:
    """Return copies of the weights that are evaluated and exported."""
    with step.seams.weights(step.model):
        return weights(step)


def loss_of_rows(techniques: Sequence[Technique]) -> str | Loss:
    """Return the loss to train them with: one that compares rows where they serve such losses."""
    return rows_against_rows if couples(techniques) else "cross_entropy"


def _contrastive(outputs: Any, data: Any) -> LossTerms:
    return LossTerms(*contrastive(outputs, data))


def rows_against_rows(outputs: Any, data: Any) -> LossTerms:
    """Return the contrastive loss of each row's logits against all rows'."""
    logits = outputs if isinstance(outputs, Tensor) else outputs["logits"]
    pairs = {"logits": logits, "query": logits, "key": logits.roll(1, dims=-1)}
    return LossTerms(*contrastive(pairs, data))
