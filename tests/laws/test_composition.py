"""Composition: what excludes each other is refused with both names; the rest composes, in any order."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch

from snugfit.core.selection import check, in_order
from snugfit.core.technique import STAGED_SEAMS, Card, Context, Family, Kind, Seams, Technique
from snugfit.errors import PlanConflict, SettingError
from snugfit.techniques import discover
from tests.laws import problems

ILLEGAL = [pair for pair in itertools.combinations(problems.examples(), 2) if not problems.is_legal(pair)]


def test_a_refusal_names_both_and_says_what_to_do() -> None:
    for techniques in (pair[::way] for pair in ILLEGAL for way in (1, -1)):
        with pytest.raises(PlanConflict) as refusal:
            check(techniques)
        for technique in techniques:
            assert f"'{technique.card.name}'" in str(refusal.value)
        assert "Remove one" in str(refusal.value)


@pytest.mark.parametrize("pair", ILLEGAL, ids=problems.name_of)
def test_a_refused_pair_has_left_no_trace_on_the_model(pair: tuple[Technique, Technique]) -> None:
    problem = problems.main(pair)
    model = problem.model()
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    with pytest.raises(PlanConflict):
        problems.Step(model, None, problem.loss, pair, total_updates=3)
    assert all(torch.equal(parameter, before[name]) for name, parameter in model.named_parameters())


def test_two_that_give_the_same_seam_are_the_pairs_that_are_refused() -> None:
    assert {problems.name_of(pair) for pair in ILLEGAL} == {
        f"{first}+{second}"
        for (first, one), (second, other) in itertools.combinations(discover().items(), 2)
        for seam in ("optimizer", "schedule", "scale", "weights", "exchange", "picture")
        if seam in one.card.seams and seam in other.card.seams
    } | {
        f"{first}+{second}"
        for (first, one), (second, other) in itertools.combinations(discover().items(), 2)
        if {stage for stage in one.card.stages if not stage.shared} & {*other.card.stages}
        or any(
            name in by.card.conflicts or {*by.card.refuses} & {*of.card.seams, *of.card.stages}
            for by, of, name in ((one, other, second), (other, one, first))
        )
        or (one.card.precision and other.card.precision)
        or (
            Kind.TOKENS in (kinds := {one.card.kind, other.card.kind}) and kinds & {Kind.IMAGES, Kind.NUMBERS}
        )
    }


def test_a_technique_given_twice_is_refused() -> None:
    for technique in problems.examples():
        with pytest.raises(PlanConflict, match=f"'{technique.card.name}' is given twice. Remove one."):
            check([technique, technique])


def test_a_chain_goes_by_the_stages_on_the_cards() -> None:
    """However they are listed: the loss is bounded before noise is added, and an average follows what moves weights."""
    for seam in STAGED_SEAMS:
        filling = [technique for technique in problems.examples() if technique.card.stage(seam) is not None]
        stages = [technique.card.stage(seam) for technique in in_order(filling[::-1], seam)]
        assert stages == sorted(stages)


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
            PlanConflict, match=r"'(vetoing|clip_norm)' and .* exclude each other: the gradient is never"
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
                problems.Step(
                    model, torch.optim.SGD(model.parameters()), problem.loss, [cls.example()], total_updates=3
                )
            model = problems.reader((cls.example(),)).model()  # some compute in float32 alone
            by_argument = problems.Step(model, cls.example(), problem.loss, total_updates=3)
            listed = problems.Step(model, None, problem.loss, [cls.example()], total_updates=3)
            assert type(by_argument.optimizer) is type(listed.optimizer), name


@pytest.mark.parametrize(
    ("optimizer", "techniques", "words"),
    [
        (None, ["ema"], "'ema' is no technique. Give objects"),
        (None, [discover()["ema"]], r"holds the class EMA. Make it: EMA\(\)"),
        (None, discover()["ema"](), "must be a list, found EMA"),
        (None, "ema", "must be a list, found 'ema'"),
        (discover()["sgd"], [], r"optimizer: is the class SGD. Make it: SGD\("),
        (torch.optim.SGD, [], "optimizer: is the class SGD"),
        ("adamw", [], "optimizer: got 'adamw', expected a torch optimizer"),
    ],
)
def test_what_is_no_technique_is_refused_by_name(optimizer: object, techniques: object, words: str) -> None:
    model = torch.nn.Linear(2, 2)
    with pytest.raises(SettingError, match=words):
        problems.Step(model, optimizer, techniques=techniques)  # type: ignore[arg-type]
