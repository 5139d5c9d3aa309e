"""Placement: with and without it, the same update. Numerics: the same up to a stated tolerance."""

from __future__ import annotations

import pytest
import torch

from snugfit.core.technique import Family, Stage, Technique
from snugfit.techniques import find
from tests.laws import problems
from tests.laws.problems import Problem, make_step, relative_error
from tests.samples import some_of

# placement computes the same in another order, in float64; bf16 has 8 bits: 2^-9 for each rounding, and dozens of them
TOLERANCE = {Family.PLACEMENT: (torch.float64, 1e-10), Family.NUMERICS: (torch.float32, 0.05)}
# a rounding may switch one of the few units of a tiny model: a layer is measured by a fifth of the whole at least
FLOOR = 0.2
CHANGING = [*problems.of_family(Family.PLACEMENT), *problems.of_family(Family.NUMERICS)]


def partners(technique: Technique) -> list[Technique]:
    """What it can be combined with."""
    return [other for other in problems.examples() if problems.is_legal((technique, other))]


PAIRS = [(technique, other) for technique in CHANGING for other in partners(technique)]

ALONE = problems.cases([(technique,) for technique in CHANGING], problems.suitable)


@pytest.mark.slow
@pytest.mark.parametrize(
    "pair", some_of(PAIRS, problems.covering(PAIRS), problems.name_of), ids=problems.name_of
)
def test_beside_another_technique_it_leaves_the_gradient_the_same(pair: tuple[Technique, ...]) -> None:
    """Of the pairs those are not for a release alone in which each technique meets each seam."""
    technique, *others = pair
    leaves_the_gradient(problems.main(pair), technique, tuple(others), micro_batch=3)


@pytest.mark.parametrize(("make", "alone"), ALONE, ids=problems.name_of)
@pytest.mark.parametrize("micro_batch", [None, 3])
def test_with_and_without_it_the_gradient_is_the_same(
    make: problems.Maker, alone: tuple[Technique, ...], micro_batch: int | None
) -> None:
    leaves_the_gradient(make(alone), alone[0], (), micro_batch)


def leaves_the_gradient(
    given: Problem, technique: Technique, others: tuple[Technique, ...], micro_batch: int | None
) -> None:
    oracle = problems.oracle_of(technique)
    if hasattr(oracle, "CHANGES_WEIGHTS") and any(Stage.NOISE in other.card.stages for other in others):
        pytest.skip(
            "noise is drawn for what has a gradient, and a frozen weight has none: it is another draw"
        )
    dtype, tolerance = TOLERANCE[technique.card.family]
    if technique.card.family is Family.PLACEMENT:
        dtype, tolerance = given.dtype, given.tolerance
    # a precision that rounds less than bf16, or more, says so beside its loop
    tolerance = min(tolerance, getattr(oracle, "RELATIVE_TOLERANCE", tolerance))
    tolerance = getattr(oracle, "NEAR_FULL_PRECISION", tolerance)
    if given.dtype == dtype:
        tolerance = max(tolerance, given.tolerance)
    floor = given.floor if technique.card.family is Family.PLACEMENT else FLOOR
    windows = given.windows(dtype)
    plain = make_step(given, others, dtype=dtype)
    changed = make_step(given, (technique, *others), dtype=dtype, micro_batch=micro_batch)
    with problems.gradients_taken(changed) as handed, problems.gradients_taken(plain) as handed_plain:
        reference, changed_result = plain(windows[0]), changed(windows[0])
    assert changed_result.loss == pytest.approx(reference.loss, rel=tolerance)
    assert changed_result.weight == pytest.approx(reference.weight, rel=1e-6)
    if not changed.seams.irrevocable:  # else gradients are gone, and what the optimizer got of them tells
        handed, handed_plain = problems.gradients(changed), problems.gradients(plain)
    trained = {name for name, parameter in changed.model.named_parameters() if parameter.requires_grad}
    lost = (handed_plain.keys() & trained) - handed.keys()
    assert not lost, "trained, and without a gradient"
    of_changed, of_plain = common(handed, handed_plain)
    assert of_plain and relative_error(of_changed, of_plain, floor) <= tolerance
    amplified = any("optimizer" in other.card.seams for other in others)  # Adam makes a step of any rounding
    if technique.card.family is Family.NUMERICS or (amplified and "stepping" not in technique.card.seams):
        return
    for number, window in enumerate(windows[1:]):
        plain(window), changed(window)
        error = relative_error(problems.weights(changed), problems.weights(plain), floor)
        assert error <= tolerance, f"the weights after {number + 2} updates"


def common(
    one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]
) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """What both have: a quantised weight takes no gradient."""
    names = one.keys() & other.keys()
    return {name: one[name] for name in names}, {name: other[name] for name in names}


COMPUTING = [t for t in problems.of_family(Family.NUMERICS) if "optimizer" not in t.card.seams]


@pytest.mark.parametrize("technique", COMPUTING, ids=lambda t: t.card.name)
def test_lower_precision_computes_differently_and_keeps_weights_and_gradients_in_float32(
    technique: Technique,
) -> None:
    if hasattr(problems.oracle_of(technique), "COMPUTES_ELSEWHERE"):
        pytest.skip("it is a switch of another device, as it says beside its loop")
    if problems.oracle_of(technique).__dict__.get("CHANGES_WEIGHTS"):
        pytest.skip("it is about the format of the weights, and says so beside its loop")
    problem = problems.reader(())
    window = problem.windows(torch.float32)[0]
    for others in ((), (find("bf16").example(),)):  # alone, or it refines what autocast does
        if not problems.is_legal((technique, *others)):
            continue
        plain = make_step(problem, others, dtype=torch.float32)
        changed = make_step(problem, (technique, *others), dtype=torch.float32)
        if plain(window).loss != changed(window).loss:
            break
    else:
        pytest.fail("it did nothing")
    changed(window)
    assert {tensor.dtype for tensor in problems.weights(changed).values()} == {torch.float32}
    assert {tensor.dtype for tensor in problems.gradients(changed).values()} == {torch.float32}
