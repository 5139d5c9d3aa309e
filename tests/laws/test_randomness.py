"""Randomness: a pass over the same rows draws the same numbers, and nothing leaks in or out."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from snugfit.core.technique import Technique
from tests.laws import problems
from tests.laws.problems import differences, make_step, saved


@pytest.mark.parametrize("techniques", problems.singles_and_slowly_together(), ids=problems.name_of)
def test_every_pass_over_the_same_rows_of_a_window_draws_the_same_dropout(
    techniques: tuple[Technique, ...],
) -> None:
    problem = problems.main(techniques)
    step = make_step(problem, techniques, micro_batch=3, dropout=0.5)
    with dropped(step) as passes:
        for window in problem.windows():
            first_of_window = len(passes)
            assert step(window).applied
            same_in_every_pass(passes[first_of_window:])


@pytest.mark.parametrize("techniques", problems.singles(), ids=problems.name_of)
def test_the_same_rows_draw_other_dropout_in_another_window(techniques: tuple[Technique, ...]) -> None:
    problem = problems.main(techniques)
    step = make_step(problem, techniques, micro_batch=3, dropout=0.5)
    window = problem.windows()[0]
    with dropped(step) as passes:
        firsts = []
        for _ in range(3):
            firsts.append(len(passes))
            step(window)
    masks = [passes[first][0].mask for first in firsts]
    assert len({mask.numpy().tobytes() for mask in masks}) == 3


def same_in_every_pass(passes: list[list[Draw]]) -> None:
    """The micro-batch of the same place with the same rows; a selection of rows makes others."""
    seen: dict[tuple[int, tuple[str, ...]], Tensor] = {}
    for draws in passes:
        assert draws
        for place, draw in enumerate(draws):
            assert torch.equal(draw.mask, seen.setdefault((place, draw.rows), draw.mask)), draw.rows
            for earlier in draws[:place]:
                shared = [min(sizes) for sizes in zip(draw.mask.shape, earlier.mask.shape, strict=True)]
                one, other = (mask[: shared[0], : shared[1]] for mask in (draw.mask, earlier.mask))
                assert not torch.equal(one, other), "two micro-batches share their draws"


@pytest.mark.parametrize("techniques", problems.singles_and_slowly_together(), ids=problems.name_of)
def test_the_callers_random_state_neither_matters_nor_changes(techniques: tuple[Technique, ...]) -> None:
    problem = problems.main(techniques)
    states = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed)
        before = global_states()
        step = make_step(problem, techniques, micro_batch=3, dropout=0.5)
        for window in problem.windows():
            step(window)
        with step.seams.weights(step.model):
            pass
        assert global_states() == before
        states.append(saved(step))
    assert not differences(states[0], states[1])


def test_the_callers_random_state_is_given_back_when_the_model_raises() -> None:
    step = make_step(problems.reader(()), (), dropout=0.5)
    window = problems.reader(()).windows()[0]
    before = global_states()
    with pytest.raises(IndexError):
        step({**window, "input_ids": window["input_ids"] + 1000})
    assert global_states() == before


def test_another_seed_draws_other_dropout() -> None:
    problem = problems.reader(())
    one, other = (make_step(problem, (), dropout=0.5) for _ in range(2))
    other.seed = 1
    window = problem.windows()[0]
    assert one(window).loss != other(window).loss


def global_states() -> tuple[object, ...]:
    return (
        torch.get_rng_state().numpy().tobytes(),
        random.getstate(),
        np.random.get_state()[1].tobytes(),
        torch.is_grad_enabled(),
        torch.is_autocast_enabled("cpu"),
    )


@dataclass(frozen=True)
class Draw:
    """Which rows a forward was of, and which elements its first dropout has kept."""

    rows: tuple[str, ...]
    mask: Tensor


def names_of(inputs: dict[str, Any]) -> tuple[str, ...]:
    """Which rows these are: texts have names, images are known by what is in them."""
    if "context" in inputs:
        return tuple(inputs["context"]["names"])
    return tuple(row.numpy().tobytes().hex() for row in inputs["pixels"])


@contextmanager
def dropped(step: problems.Step) -> Iterator[list[list[Draw]]]:
    """Record the draws of each pass over the window."""
    model = step.model
    passes: list[list[Draw]] = []
    rows: list[tuple[str, ...]] = []
    noted: set[int] = set()
    one_pass = step.one_pass

    @contextmanager
    def noted_pass() -> Iterator[None]:
        passes.append([])
        with one_pass():
            yield

    @torch.compiler.disable  # it watches, and is no part of what is compiled
    def note(module: torch.nn.Module, _args: Any, output: Tensor) -> None:
        if not module.training:
            return  # nothing is drawn, as in a check that needs none
        draw = Draw(rows[-1], output.detach() != 0)
        # a forward that is checked computes more than once, and one that is not kept again in backward
        if len(rows) in noted or torch._C._current_graph_task_id() >= 0:
            assert torch.equal(draw.mask, passes[-1][-1].mask)
        else:
            noted.add(len(rows))
            passes[-1].append(draw)

    step.one_pass = noted_pass  # type: ignore[method-assign]
    hooks = [
        model.register_forward_pre_hook(
            lambda _module, _args, kwargs: rows.append(names_of(kwargs)), with_kwargs=True
        ),
        (model.block.dropout1 if hasattr(model, "block") else model.dropout).register_forward_hook(note),
    ]
    try:
        yield passes
    finally:
        for hook in hooks:
            hook.remove()
