"""What the laws are tested on: windows of variable-length rows, models, and steps with any techniques."""

from __future__ import annotations

import functools
import heapq
import importlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from snugfit.core.losses import Loss, LossTerms
from snugfit.core.parameters import momentum_of, parameter_groups
from snugfit.core.schedule import Schedule
from snugfit.core.selection import check, in_order
from snugfit.core.technique import Context, Family, Kind, Stage, Technique
from snugfit.errors import PlanConflict, SettingError
from snugfit.step.step import Forward, Step
from snugfit.strategies.base import Strategy
from snugfit.techniques import discover, find
from tests.laws import material
from tests.laws.compare import besides_scale as besides_scale
from tests.laws.compare import differences as differences
from tests.laws.compare import gradients_taken as gradients_taken
from tests.laws.compare import relative_error as relative_error
from tests.laws.compare import saved as saved
from tests.laws.compare import tensors as tensors
from tests.laws.material import IGNORED as IGNORED
from tests.laws.material import Window as Window
from tests.laws.material import cast as cast
from tests.laws.material import poisoned as poisoned
from tests.laws.material import unlabelled as unlabelled
from tests.laws.models import (
    Normed,
    NormedViewer,
    Reader,
    Viewer,
    contrastive,
)

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
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            return self.make_model(dropout).to(dtype or self.dtype).train()

    def windows(self, dtype: torch.dtype | None = None, rows: Sequence[int] = WINDOW_ROWS) -> list[Window]:
        return [cast(window, dtype or self.dtype) for window in self.make_windows(rows)]


Maker = Callable[[Sequence[Technique]], Problem]


def oracle_of(technique: Technique) -> ModuleType:
    return importlib.import_module(f"tests.oracles.{technique.card.name}")


def suited(make: Maker) -> Maker:
    """The problem in what the techniques can be tried in."""

    @functools.wraps(make)
    def made(techniques: Sequence[Technique]) -> Problem:
        oracles = [oracle_of(technique) for technique in techniques]
        dtypes = [oracle.DTYPE for oracle in oracles if hasattr(oracle, "DTYPE")]
        if not dtypes:
            return make(techniques)
        assert set(dtypes) == {torch.float32}
        near = [oracle.SAME_WITHIN for oracle in oracles if hasattr(oracle, "DTYPE")]
        # autocast leaves float64 alone, and rounds here
        near += [
            getattr(o, "RELATIVE_TOLERANCE", 0.0)
            for o, t in zip(oracles, techniques, strict=True)
            if t.card.precision and not hasattr(o, "DTYPE")
        ]
        tolerance = max(near)
        return replace(
            make(techniques),
            dtype=torch.float32,
            tolerance=tolerance,
            floor=max(getattr(oracle, "SAME_FLOOR", 1e-3) for oracle in oracles),
            changes_weights=any(getattr(oracle, "CHANGES_WEIGHTS", False) for oracle in oracles),
        )

    return made


@suited
def reader(techniques: Sequence[Technique]) -> Problem:
    """The transformer: each token is scored, or, when a technique serves losses that couple rows, such a loss."""
    if couples(techniques):
        return Problem(
            "reader", lambda p: Reader(p, per_token=False), material.texts(per_token=False), _contrastive
        )
    return Problem("reader", lambda p: Reader(p), material.texts(per_token=True), "cross_entropy")


def wide_reader(techniques: Sequence[Technique]) -> Problem:
    """The transformer, so wide that each half of a weight that has states of few bits is whole blocks of them."""
    width = 2 * max(getattr(oracle_of(each), "BLOCK", 1) for each in techniques)
    per_token = not couples(techniques)
    return replace(reader(techniques), make_model=lambda p: Reader(p, per_token=per_token, width=width))


@suited
def viewer(techniques: Sequence[Technique]) -> Problem:
    """The convolutional net."""
    return Problem("viewer", Viewer, material.images("pixels"), _loss_of_rows(techniques))


@suited
def normed(techniques: Sequence[Technique]) -> Problem:
    """A net with batch norm: an MLP, or a convolutional one where images are asked for."""
    if takes_images(techniques):
        return Problem("normed", NormedViewer, material.images("pixels"), _loss_of_rows(techniques))
    return Problem("normed", Normed, material.numbers, _loss_of_rows(techniques))


@suited
def vit(techniques: Sequence[Technique]) -> Problem:
    """A stock vision transformer."""
    windows = material.images("pixel_values")
    return Problem("vit", material.vit, windows, _loss_of_rows(techniques), forward=material.of_any_size)


@suited
def bert(techniques: Sequence[Technique]) -> Problem:
    """A stock encoder for text classification."""
    windows = material.classified(labels_per_token=False)
    return Problem("bert", material.bert, windows, _loss_of_rows(techniques), floats=False)


@suited
def gpt2(techniques: Sequence[Technique]) -> Problem:
    """A stock causal language model; for losses that couple rows, its logits are averaged over the tokens."""
    if couples(techniques):
        windows = material.classified(labels_per_token=False)
        return Problem(
            "gpt2", material.gpt2, windows, _rows_against_rows, forward=material.averaged, floats=False
        )
    return Problem(
        "gpt2", material.gpt2, material.classified(labels_per_token=True), "causal_lm", floats=False
    )


def main(techniques: Sequence[Technique]) -> Problem:
    """Somebody's own module that suits the techniques: the transformer, or the convolutional net for images."""
    return viewer(techniques) if takes_images(techniques) else reader(techniques)


def suitable(techniques: Sequence[Technique]) -> list[Maker]:
    """Somebody's own module and the stock models whose examples the techniques can work on, and which they do not refuse."""
    makers = [viewer, vit] if takes_images(techniques) else [reader, bert, gpt2]
    return [make for make in makers if is_accepted(make, techniques)]


STOCK: tuple[Maker, ...] = (bert, gpt2, vit)


def with_batch_norm(techniques: Sequence[Technique]) -> list[Maker]:
    """The nets with batch norm; none of them reads text."""
    if any(technique.card.kind is Kind.TOKENS for technique in techniques):
        return []
    return [normed] if is_accepted(normed, techniques) else []


def with_problems(
    given: Sequence[tuple[Technique, ...]], *kinds: Callable[[Sequence[Technique]], list[Maker]]
) -> list[tuple[Maker, tuple[Technique, ...]]]:
    """Each combination with each problem of these kinds."""
    return [(make, techniques) for techniques in given for kind in kinds for make in kind(techniques)]


def cases(
    given: Sequence[tuple[Technique, ...]], *kinds: Callable[[Sequence[Technique]], list[Maker]]
) -> list[Any]:
    """The same for `parametrize`: those of stock models are slow tests, as the same is tried on somebody's own module."""
    return [
        pytest.param(make, techniques, marks=[pytest.mark.slow] if make in STOCK else [])
        for make, techniques in with_problems(given, *kinds)
    ]


def is_accepted(make: Maker, techniques: Sequence[Technique]) -> bool:
    """Whether the model has what the techniques change in it, such as residual blocks; the main problem's always has."""
    key = make, repr(techniques)
    if key not in _ACCEPTED:  # to make hundreds of models takes longer than many a law
        model = make(techniques).model()
        try:
            for technique in in_order(techniques, "prepare"):
                model = technique.prepare(model)
        except SettingError:
            _ACCEPTED[key] = False
        else:
            _ACCEPTED[key] = True
    return _ACCEPTED[key]


_ACCEPTED: dict[tuple[Maker, str], bool] = {}


def takes_images(techniques: Sequence[Technique]) -> bool:
    return any(technique.card.kind in (Kind.IMAGES, Kind.NUMBERS) for technique in techniques)


def couples(techniques: Sequence[Technique]) -> bool:
    """Whether one of them serves losses that compare the rows of a window."""
    return any(Stage.COUPLING in technique.card.stages for technique in techniques)


def examples() -> list[Technique]:
    """Every technique there is, with its example settings."""
    return [technique.example() for technique in discover().values()]


def find_examples(*names: str) -> tuple[Technique, ...]:
    """Some of the examples by name."""
    return tuple(discover()[name].example() for name in names)


def singles() -> list[tuple[Technique, ...]]:
    """Each technique alone, and none."""
    return [(), *((technique,) for technique in examples())]


def fitted(techniques: tuple[Technique, ...]) -> tuple[Technique, ...]:
    """The examples with settings that suit each other: a schedule moves no momentum where the optimizer has none."""
    moving = [each for each in techniques if isinstance(each, Schedule) and each.moves_momentum()]
    if not moving or all(has_momentum(each) for each in techniques if "optimizer" in each.card.seams):
        return techniques
    return tuple(replace(each, momentum=None) if each in moving else each for each in techniques)


def has_momentum(optimizer: Technique) -> bool:
    """Whether the groups of an optimizer that is a technique have a momentum."""
    model = nn.Sequential(*(nn.Linear(2, 2) for _ in range(3)))
    make = optimizer.seams(Context(model, torch.device("cpu"), TOTAL_UPDATES)).optimizer
    assert make is not None
    return all(momentum_of(group) for group in make(parameter_groups(model)).param_groups)


def legal_pairs() -> list[tuple[Technique, ...]]:
    """Every two techniques that composition does not refuse."""
    return [fitted(pair) for pair in itertools.combinations(examples(), 2) if is_legal(pair)]


def covering(pairs: Sequence[tuple[Technique, ...]]) -> list[tuple[Technique, ...]]:
    """Return some of the pairs, in which every technique meets a technique of every seam that it meets in any of them."""
    meets = [frozenset(_meets(pair)) for pair in pairs]
    queue = [(-len(each), place) for place, each in enumerate(meets)]
    heapq.heapify(queue)
    met: set[tuple[str, str]] = set()
    sample = []
    while queue:  # those that bring most that is new go first; what a pair brings only becomes less
        before, place = heapq.heappop(queue)
        new = len(meets[place] - met)
        if new == -before:
            sample.append(pairs[place])
            met |= meets[place]
        elif new:
            heapq.heappush(queue, (-new, place))
    return sample


def _meets(pair: tuple[Technique, ...]) -> Iterator[tuple[str, str]]:
    """Names of techniques, each with the seams of the other."""
    for one, other in itertools.permutations(pair, 2):
        for seam in other.card.seams:
            yield one.card.name, seam


def together() -> tuple[Technique, ...]:
    """As many as compose: each one, in order, that those before it allow."""
    chosen: tuple[Technique, ...] = ()
    for technique in examples():
        if is_legal((*chosen, technique)):
            chosen = (*chosen, technique)
    return fitted(chosen)


def singles_and_together() -> list[tuple[Technique, ...]]:
    """Each alone, and as many as compose; the pairs are in test_matrix.py."""
    return [*singles(), together()]


def is_legal(techniques: Sequence[Technique]) -> bool:
    try:
        check(techniques)
    except PlanConflict:
        return False
    return True


def name_of(techniques: object) -> str | None:
    """Names joined, for the ids of tests."""
    if isinstance(techniques, Technique):
        return techniques.card.name
    if callable(techniques):
        return techniques.__name__
    if not isinstance(techniques, tuple):
        return None
    if len(techniques) > 2:
        return "together"
    return "+".join(technique.card.name for technique in techniques) or "plain"


def of_family(family: Family) -> list[Technique]:
    return [technique for technique in examples() if technique.card.family is family]


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
    """A step with the techniques; with plain SGD, which shows the scale of a gradient, unless one is an optimizer."""
    model = problem.model(dtype, dropout, model_seed)
    optimizer = plain_optimizer(model, techniques, momentum)
    if strategy is not None and strategy.shards and isinstance(optimizer, torch.optim.Optimizer):
        optimizer = find("sgd")(learning_rate=0.05, momentum=momentum)
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
        return find("sgd")(learning_rate=0.05, momentum=momentum)
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=momentum)


def gradients(step: Step) -> dict[str, Tensor]:
    """Copies of what the last update was made from."""
    return {name: whole(gradient).clone() for name, gradient in step.gradients().items()}


def traces(step: Step) -> dict[str, Tensor]:
    """The gradients of the last update; where they have gone with it, the weights that it left."""
    return weights(step) if step.seams.irrevocable else gradients(step)


def weights(step: Step) -> dict[str, Tensor]:
    """Copies of the trained weights."""
    return {name: whole(p).clone() for name, p in step.model.named_parameters()}


def whole(tensor: Tensor) -> Tensor:
    """The tensor itself, or what the shards of all ranks are together."""
    found: Tensor = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return found.detach()


def evaluated_weights(step: Step) -> dict[str, Tensor]:
    """Copies of the weights that are evaluated and exported."""
    with step.seams.weights(step.model):
        return weights(step)


def with_micro_batch(step: Step, micro_batch: int | None) -> Step:
    """The same step, cutting its windows otherwise from now on."""
    step.micro_batch = micro_batch
    return step


def _loss_of_rows(techniques: Sequence[Technique]) -> str | Loss:
    return _rows_against_rows if couples(techniques) else "cross_entropy"


def _contrastive(outputs: Any, data: Any) -> LossTerms:
    return LossTerms(*contrastive(outputs, data))


def _rows_against_rows(outputs: Any, data: Any) -> LossTerms:
    logits = outputs if isinstance(outputs, Tensor) else outputs["logits"]
    pairs = {"logits": logits, "query": logits, "key": logits.roll(1, dims=-1)}
    return LossTerms(*contrastive(pairs, data))
