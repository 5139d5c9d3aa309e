"""Composition: what excludes each other is refused with both names; the rest composes, in any order."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch

from snugfit.core.composition import check
from snugfit.core.technique import Card, Context, Family, Seams, Technique
from snugfit.errors import PlanConflict, SettingError
from snugfit.techniques import discover
from tests.laws import problems
from tests.laws.problems import make_step, relative_error

ILLEGAL = [pair for pair in itertools.combinations(problems.examples(), 2) if not problems.is_legal(pair)]


@pytest.mark.parametrize("pair", ILLEGAL, ids=problems.name_of)
def test_a_refusal_names_both_and_says_what_to_do(pair: tuple[Technique, Technique]) -> None:
    for techniques in (pair, pair[::-1]):
        with pytest.raises(PlanConflict) as refusal:
            check(techniques)
        for technique in pair:
            assert f"'{technique.card.name}'" in str(refusal.value)
        assert "Remove one" in str(refusal.value)


@pytest.mark.parametrize("pair", ILLEGAL, ids=problems.name_of)
def test_a_refused_pair_has_left_no_trace_on_the_model(pair: tuple[Technique, Technique]) -> None:
    model = problems.reader(()).model()
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    with pytest.raises(PlanConflict):
        problems.Step(model, None, "cross_entropy", pair, total_updates=3)
    assert all(torch.equal(parameter, before[name]) for name, parameter in model.named_parameters())


def test_two_that_give_the_same_seam_are_the_pairs_that_are_refused() -> None:
    assert {problems.name_of(pair) for pair in ILLEGAL} == {
        f"{first}+{second}"
        for (first, one), (second, other) in itertools.combinations(discover().items(), 2)
        for seam in ("optimizer", "schedule", "weights")
        if seam in one.card.seams and seam in other.card.seams
    } | {
        f"{first}+{second}"
        for (first, one), (second, other) in itertools.combinations(discover().items(), 2)
        if (one.card.stage is not None and one.card.stage == other.card.stage)
        or second in one.card.conflicts
        or first in other.card.conflicts
    }


@pytest.mark.parametrize("technique", problems.examples(), ids=problems.name_of)
def test_a_technique_given_twice_is_refused(technique: Technique) -> None:
    with pytest.raises(PlanConflict, match=f"'{technique.card.name}' is given twice. Remove one."):
        check([technique, technique])


@pytest.mark.parametrize("techniques", problems.legal_pairs(), ids=problems.name_of)
def test_the_order_in_which_two_techniques_are_listed_does_not_matter(
    techniques: tuple[Technique, ...],
) -> None:
    """Each pair that exists today fills different seams, or stages; who adds one that does not has to say so here."""
    problem = problems.reader(techniques)
    one, other = (make_step(problem, given, micro_batch=3) for given in (techniques, techniques[::-1]))
    for window in problem.windows():
        one(window), other(window)
    assert relative_error(problems.weights(other), problems.weights(one)) <= 1e-12


@dataclass(frozen=True)
class Vetoing(Technique):
    """Conflicts by its card."""

    card: ClassVar[Card] = Card(
        name="vetoing",
        summary="",
        family=Family.LEARNING,
        source="",
        seams=(),
        conflicts={"clip_norm": "the gradient is never whole. Remove one, or use 'sgd'."},
    )

    def seams(self, context: Context) -> Seams:
        return Seams()


def test_a_conflict_on_either_card_is_refused_with_its_reason() -> None:
    clip = discover()["clip_norm"].example()
    for techniques in ([Vetoing(), clip], [clip, Vetoing()]):
        with pytest.raises(
            PlanConflict, match=r"'vetoing' and 'clip_norm' exclude each other: the gradient is never"
        ):
            check(techniques)


def test_an_optimizer_must_be_given_once() -> None:
    problem = problems.reader(())
    model = problem.model()
    with pytest.raises(SettingError, match="optimizer: none given"):
        problems.Step(model, None, problem.loss)
    for name, cls in discover().items():
        if "optimizer" in cls.card.seams:
            with pytest.raises(SettingError, match="optimizer: given twice"):
                problems.Step(model, torch.optim.SGD(model.parameters()), problem.loss, [cls.example()])
            by_argument = problems.Step(model, cls.example(), problem.loss)
            listed = problems.Step(model, None, problem.loss, [cls.example()])
            assert type(by_argument.optimizer) is type(listed.optimizer), name
