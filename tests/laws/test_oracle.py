"""Oracle: each technique against a slow obvious loop of its paper, row by row and without padding."""

from __future__ import annotations

import importlib
import inspect
import itertools
from collections.abc import Sequence
from dataclasses import asdict, replace

import pytest
import torch
from torch import nn

from snugfit.core.technique import Technique
from snugfit.step.step import Step
from snugfit.techniques import find
from snugfit.tools.certify.technique_laws import delivered, delivered_evaluated
from tests.laws import problems
from tests.laws.problems import Problem, Window, make_step, relative_error
from tests.oracles import everything, loop

ROWS = (7, 6, 7, 5)

# an oracle computes the same in another order, in float64, unless it states a tolerance of its own
TOLERANCE = 1e-10


def variants(technique: Technique) -> list[Technique]:
    """The example, and each switch of it turned; its oracle says which ones turn on what is not on every machine."""
    not_here = getattr(problems.oracle_of(technique), "NOT_HERE", ())
    switches = [
        name for name, value in asdict(technique).items() if isinstance(value, bool) and name not in not_here
    ]
    return [technique, *(replace(technique, **{name: not getattr(technique, name)}) for name in switches)]


CASES = [variant for technique in problems.examples() for variant in variants(technique)]


@pytest.mark.parametrize("technique", CASES, ids=str)
def test_a_technique_trains_as_the_loop_of_its_paper(technique: Technique) -> None:
    """Whole windows, and micro-batches of three rows: the loop takes row by row, so that it is the same for both.

    Where runs are averaged, every second one has micro-batches.
    """
    oracle = importlib.import_module(f"tests.oracles.{technique.card.name}")
    tolerance = getattr(oracle, "RELATIVE_TOLERANCE", TOLERANCE)
    momentum = getattr(oracle, "MOMENTUM", 0.0)
    dtype = torch.float64 if tolerance == TOLERANCE else torch.float32
    problem = problems.main((technique,))
    windows = problem.windows(dtype, ROWS)
    reference: loop.Trained | None = None
    runs = getattr(oracle, "AVERAGED_OVER", 1)
    for sizes in ((None,), (3,)) if runs == 1 else ((None, 3),):
        steps = [
            make_step(
                problem,
                (technique,),
                micro_batch=sizes[seed % len(sizes)],
                dtype=dtype,
                momentum=momentum,
                seed=seed,
            )
            for seed in range(runs)
        ]
        if reference is None:
            asks = "start" in inspect.signature(oracle.train).parameters
            start = added(steps[0], problem.model(dtype)) if asks else {}
            settings = asdict(technique)
            reference = oracle.train(problem.model(dtype), windows, settings, problems.TOTAL_UPDATES, **start)
        losses = [[step(window).loss for window in windows] for step in steps]
        agree(steps, problem, losses, reference, tolerance)


def test_without_techniques_it_trains_as_one_token_weighted_full_batch() -> None:
    problem = problems.reader(())
    windows = problem.windows(rows=ROWS)
    for micro_batch in (None, 1, 3, 7):
        step = make_step(problem, (), micro_batch=micro_batch, momentum=0.0)
        losses = [step(window).loss for window in windows]
        agree(
            [step], problem, [losses], loop.plain_sgd(problem.model(), windows, loop.gradient_of), TOLERANCE
        )


@pytest.mark.parametrize("micro_batch", [None, 1, 3])
def test_six_techniques_and_a_schedule_in_one_step_train_as_one_loop(micro_batch: int | None) -> None:
    names = ["sam", "hard_examples", "gradient_cache", "ema", "clip_norm", "label_smoothing"]
    by_name = {name: find(name).example() for name in names}
    schedule = find("cosine")(warmup=2)
    techniques = (*by_name.values(), schedule)
    problem = problems.reader(techniques)
    windows = problem.windows(rows=ROWS)
    step = make_step(problem, techniques, micro_batch=micro_batch)
    losses = [step(window).loss for window in windows]
    factors = [
        importlib.import_module("tests.oracles.cosine").factor(
            update, problems.TOTAL_UPDATES, asdict(schedule)
        )
        for update in range(len(windows))
    ]
    settings = {name: asdict(technique) for name, technique in by_name.items()}
    reference = everything.train(problem.model(), windows, settings, factors, momentum=0.9)
    agree([step], problem, [losses], reference, TOLERANCE)


def test_the_losses_of_a_window_are_far_enough_apart_to_be_ranked() -> None:
    """Rounding cannot change which rows are the hardest: the laws that rank them mean something."""
    for techniques in ((), tuple(t for t in problems.examples() if problems.couples((t,)))):
        problem = problems.reader(techniques)
        for window in problem.windows(rows=ROWS):
            losses = ranked_losses(problem, window)
            gaps = [float(one - other) for one, other in itertools.pairwise(losses)]
            assert min(gaps) > 1e-4


def first_of(name: str, tensor: torch.Tensor, started: dict[str, torch.Tensor]) -> torch.Tensor:
    """What the plain model has at first; zeros where it has none, or one of another shape."""
    first = started.get(name)
    return torch.zeros_like(tensor) if first is None or first.shape != tensor.shape else first


def ranked_losses(problem: Problem, window: Window) -> list[torch.Tensor]:
    per_row = loop.row_losses if window["labels"].ndim == 2 else loop.contrastive_losses
    losses, counts = per_row(problem.model(), window)
    means = [loss.detach() / count for loss, count in zip(losses, counts, strict=True) if count]
    return sorted(means, reverse=True)


def added(step: Step, plain: nn.Module) -> dict[str, dict[str, torch.Tensor]]:
    """The initial values of what trains and is not in the plain model, for oracles that ask for it."""
    own = {name for name, _ in plain.named_parameters()}
    named = step.model.named_parameters()
    return {"start": {n: p.detach().clone() for n, p in named if p.requires_grad and n not in own}}


def mean(of_steps: Sequence[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """Of runs whose oracle says what they come to on average."""
    if len(of_steps) == 1:
        return of_steps[0]
    return {name: torch.stack([each[name].double() for each in of_steps]).mean(0) for name in of_steps[0]}


def agree(
    steps: Sequence[Step],
    problem: Problem,
    losses: list[list[float]],
    reference: loop.Trained,
    tolerance: float,
) -> None:
    started = {name: p.detach() for name, p in problem.model(steps[0].parameters[0].dtype).named_parameters()}
    assert [sum(each) / len(steps) for each in zip(*losses, strict=True)] == pytest.approx(
        reference.losses, rel=tolerance
    )
    # what has been learned is compared, so that the common start hides nothing
    for weights, reference_weights in (
        (mean([*map(delivered, steps)]), reference.weights),
        (mean([*map(delivered_evaluated, steps)]), reference.evaluated),
    ):
        learned, moved = (
            {name: tensor - first_of(name, tensor, started) for name, tensor in named.items()}
            for named in (weights, reference_weights)
        )
        error = relative_error(learned, moved, floor=0.01)
        assert error <= tolerance
        assert any(tensor.norm() > 1e-3 for tensor in moved.values()), "nothing was learned"
