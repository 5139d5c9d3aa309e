"""A window that is not finite on one rank is skipped by all, and changes nothing."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
import torch

from snugfit.core.technique import RollBack, Technique
from snugfit.core.tree import map_tree
from snugfit.kit.sharded_tensors import own_part
from snugfit.step.step import Step
from tests.laws import problems
from tests.laws.models import VOCABULARY
from tests.laws.problems import besides_scale, differences, make_step, poisoned, saved
from tests.ranks.law import STRATEGIES, allowed, part_of
from tests.ranks.pool import Ranks

COUNTED = {"/progress/windows", "/progress/skipped", "/progress/examples", "/inputs/copied", "/padding/cut"}
TRIED = (
    "",
    "adamw",
    "ema",
    "fp16",
    "sam",
    "spike_guard",
    "gradient_cache",
    "hard_examples",
    "optimizer_in_backward",
    "clip_norm",
)
CASES = [
    (problems.find_examples(name) if name else (), strategy) for name in TRIED for strategy in ("ddp", "fsdp")
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("techniques", "strategy"), [case for case in CASES if allowed(*case)], ids=problems.name_of
)
@pytest.mark.parametrize("poison", ["loss", "gradient"])
def test_a_window_that_is_not_finite_on_the_second_rank_changes_nothing_on_any(
    two: Ranks, techniques: tuple[Technique, ...], strategy: str, poison: str
) -> None:
    for found in two.run(skipped, techniques, strategy, poison):
        assert not found["applied"]
        assert set(found["changed"]) <= COUNTED
        assert found["goes_on"]


def skipped(techniques: tuple[Technique, ...], strategy: str, poison: str) -> dict[str, Any]:
    """What a window leaves behind whose last row has a loss, or a gradient alone, that is not finite."""
    problem = problems.main(techniques)
    step = make_step(problem, techniques, micro_batch=2, strategy=STRATEGIES[strategy]())
    first, second, _ = problem.windows()
    assert step(part_of(step, first)).applied
    before = saved(step)
    if poison == "loss":
        result = step(part_of(step, poisoned(second, math.nan, rows=[-1])))
    else:
        with overflowing(step) if step.strategy.rank == 1 else nullcontext():
            result = step(part_of(step, second))
        assert math.isfinite(result.loss)
    if step.seams.irrevocable and poison == "gradient":  # other weights had been updated by then
        assert isinstance(result.refusal, RollBack)
        step.load_state_dict(before)
    return {
        "applied": result.applied,
        "changed": besides_scale(step, changed(before, saved(step))),
        "goes_on": step(part_of(step, second)).applied,
    }


@contextmanager
def overflowing(step: Step) -> Iterator[None]:
    """Within, the gradient of the head's bias has an infinite last element, which is in the shard of the last rank."""
    last = torch.zeros(VOCABULARY, dtype=torch.bool)
    last[-1] = True
    hooks: list[Any] = []

    def forward(head: torch.nn.Module, *_: Any) -> None:
        bias: Any = head.bias  # the whole one, while the head computes
        if torch.is_grad_enabled():
            hooks.append(bias.register_hook(lambda gradient: gradient.masked_fill(last, math.inf)))

    hooks.append(step.model.get_submodule("head").register_forward_pre_hook(forward))
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def changed(before: Any, after: Any) -> set[str]:
    """Where two states are not the same on this rank."""
    return set(differences(*(map_tree(own_part, each) for each in (before, after))))
