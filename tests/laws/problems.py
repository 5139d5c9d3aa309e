"""What the laws are tested on: windows of variable-length rows, models, and steps with any techniques."""

from __future__ import annotations

import functools
import heapq
import importlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn

from snugfit.core.parameters import momentum_of, parameter_groups
from snugfit.core.schedule import Schedule
from snugfit.core.selection import in_order
from snugfit.core.technique import Context, Family, Kind, Stage, Technique
from snugfit.errors import SettingError
from snugfit.step.step import Step
from snugfit.techniques import discover
from snugfit.tools.certify.technique_problem import TOLERANCE as TOLERANCE
from snugfit.tools.certify.technique_problem import TOTAL_UPDATES as TOTAL_UPDATES
from snugfit.tools.certify.technique_problem import WINDOW_ROWS as WINDOW_ROWS
from snugfit.tools.certify.technique_problem import Problem as Problem
from snugfit.tools.certify.technique_problem import couples as couples
from snugfit.tools.certify.technique_problem import evaluated_weights as evaluated_weights
from snugfit.tools.certify.technique_problem import gradients as gradients
from snugfit.tools.certify.technique_problem import images_of as images_of
from snugfit.tools.certify.technique_problem import is_legal as is_legal
from snugfit.tools.certify.technique_problem import loss_of_rows as loss_of_rows
from snugfit.tools.certify.technique_problem import make_step as make_step
from snugfit.tools.certify.technique_problem import plain_optimizer as plain_optimizer
from snugfit.tools.certify.technique_problem import rows_against_rows as rows_against_rows
from snugfit.tools.certify.technique_problem import takes_images as takes_images
from snugfit.tools.certify.technique_problem import texts_of as texts_of
from snugfit.tools.certify.technique_problem import traces as traces
from snugfit.tools.certify.technique_problem import weights as weights
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
)

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
    """The transformer."""
    return texts_of(techniques)


def wide_reader(techniques: Sequence[Technique]) -> Problem:
    """The transformer, so wide that each half of a weight that has states of few bits is whole blocks of them, also of one that is added."""
    oracles = [oracle_of(each) for each in techniques]
    block = max(getattr(oracle, "BLOCK", 1) for oracle in oracles)
    width = 2 * block * max(getattr(oracle, "ADDS_PARTS_OF_WIDTH", 1) for oracle in oracles)
    per_token = not couples(techniques)
    return replace(reader(techniques), make_model=lambda p: Reader(p, per_token=per_token, width=width))


@suited
def viewer(techniques: Sequence[Technique]) -> Problem:
    """The convolutional net."""
    return images_of(techniques)


@suited
def normed(techniques: Sequence[Technique]) -> Problem:
    """A net with batch norm: an MLP, or a convolutional one where images are asked for."""
    if takes_images(techniques):
        return Problem("normed", NormedViewer, material.images("pixels"), loss_of_rows(techniques))
    return Problem("normed", Normed, material.numbers, loss_of_rows(techniques))


@suited
def vit(techniques: Sequence[Technique]) -> Problem:
    """A stock vision transformer."""
    windows = material.images("pixel_values")
    return Problem("vit", material.vit, windows, loss_of_rows(techniques), forward=material.of_any_size)


@suited
def bert(techniques: Sequence[Technique]) -> Problem:
    """A stock encoder for text classification."""
    windows = material.classified(labels_per_token=False)
    return Problem("bert", material.bert, windows, loss_of_rows(techniques), floats=False)


@suited
def gpt2(techniques: Sequence[Technique]) -> Problem:
    """A stock causal language model; for losses that couple rows, its logits are averaged over the tokens."""
    if couples(techniques):
        windows = material.classified(labels_per_token=False)
        return Problem(
            "gpt2", material.gpt2, windows, rows_against_rows, forward=material.averaged, floats=False
        )
    # classes are weighed by a token's own label
    loss = "cross_entropy" if any(Stage.WEIGH in each.card.stages for each in techniques) else "causal_lm"
    return Problem("gpt2", material.gpt2, material.classified(labels_per_token=True), loss, floats=False)


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
    """The same for `parametrize`: those of stock models are slow tests, as the same is tried on somebody's own module.

    So are those of one technique on a net with batch norm, where others are tried too, and all techniques in one step, which takes some 20
    times as long as one of them.
    """

    def is_slow(make: Maker, techniques: Sequence[Technique]) -> bool:
        one_elsewhere = make is normed and len(kinds) > 1 and len(techniques) == 1
        return make in STOCK or one_elsewhere or len(techniques) > 2

    return [
        pytest.param(*case, marks=[pytest.mark.slow] if is_slow(*case) else [])
        for case in with_problems(given, *kinds)
    ]


def is_accepted(make: Maker, techniques: Sequence[Technique]) -> bool:
    """Whether the model has what the techniques change in it, such as residual blocks; the main problem's always has."""
    if all(type(technique).prepare is Technique.prepare for technique in techniques):
        return True
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


@functools.cache
def together() -> tuple[Technique, ...]:
    """As many as compose: each one, in order, that those before it allow."""
    techniques: tuple[Technique, ...] = ()
    for technique in examples():
        if is_legal((*techniques, technique)):
            techniques = (*techniques, technique)
    return fitted(techniques)


def singles_and_together() -> list[tuple[Technique, ...]]:
    """Each alone, and as many as compose; the pairs are in test_matrix.py."""
    return [*singles(), together()]


def singles_and_slowly_together() -> list[Any]:
    """The same for laws of which the quick tests take each technique alone: all of them in one step take some 20 times as long."""
    return [*singles(), pytest.param(together(), marks=pytest.mark.slow)]


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


def with_micro_batch(step: Step, micro_batch: int | None) -> Step:
    """The same step, cutting its windows otherwise from now on."""
    step.micro_batch = micro_batch
    return step
