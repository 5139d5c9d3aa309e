"""Recompute: a model that computes blocks again in backward gets the same gradient, under every technique."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch

from snugfit.core.technique import Kind, Technique
from snugfit.errors import PlanConflict
from snugfit.kit.batch_norm import has_batch_norm
from snugfit.techniques import find
from snugfit.tools.certify.technique_problem import further_layers
from tests.laws import problems
from tests.laws.models import Recomputing
from tests.laws.problems import make_step, relative_error

PRECISE = problems.find_examples("bf16")
OWN = [
    given
    for given in problems.singles()
    if all(each.card.kind is not Kind.TOKENS for each in given)
    and problems.is_accepted(problems.viewer, given)
]
STOCK = [
    (make, given)
    for make, given in problems.with_problems(problems.singles(), problems.suitable)
    if make in problems.STOCK
]


def recomputing_net(
    techniques: tuple[Technique, ...], use_reentrant: bool
) -> Callable[[float], torch.nn.Module]:
    return partial(Recomputing, use_reentrant=use_reentrant, layers=further_layers(techniques))


@pytest.mark.parametrize("use_reentrant", [False, True])
@pytest.mark.parametrize("techniques", OWN, ids=problems.name_of)
def test_blocks_of_ones_own_net_may_be_computed_again(
    techniques: tuple[Technique, ...], use_reentrant: bool
) -> None:
    given = problems.viewer(techniques)
    again = replace(given, make_model=recomputing_net(techniques, use_reentrant))
    window = given.windows()[0]
    plain, recomputing = (make_step(each, techniques, micro_batch=4, dropout=0.3) for each in (given, again))
    if use_reentrant and plain.seams.irrevocable:
        with pytest.raises(PlanConflict, match="comes more than once"):  # the block that stands there twice
            recomputing(window)
        return
    for _ in range(2):
        assert plain(window).applied and recomputing(window).applied
    if use_reentrant and not next(recomputing.model.stem.parameters()).requires_grad:
        pytest.skip("torch's reentrant form gives no gradient where no input of the block asks for one")
    assert (
        relative_error(problems.traces(recomputing), problems.traces(plain), floor=given.floor)
        <= given.tolerance
    )


@pytest.mark.slow
@pytest.mark.parametrize(("make", "techniques"), STOCK, ids=problems.name_of)
def test_stock_models_may_compute_their_layers_again(
    make: problems.Maker, techniques: tuple[Technique, ...]
) -> None:
    # settings that a technique needs around layers that compute themselves again, as stated beside its loop
    techniques = tuple(
        replace(each, **getattr(problems.oracle_of(each), "AROUND_RECOMPUTATION", {})) for each in techniques
    )
    given = make(techniques)
    window = given.windows()[0]
    plain, recomputing = (make_step(given, techniques, micro_batch=4, dropout=0.3) for _ in range(2))
    recomputing.model.activation_checkpointing_enable({"use_reentrant": False})
    for _ in range(2):
        assert plain(window).applied and recomputing(window).applied
    assert (
        relative_error(problems.traces(recomputing), problems.traces(plain), floor=given.floor)
        <= given.tolerance
    )


@pytest.mark.slow
@pytest.mark.parametrize("use_reentrant", [False, True])
@pytest.mark.parametrize("techniques", OWN, ids=problems.name_of)
def test_under_autocast_too(techniques: tuple[Technique, ...], use_reentrant: bool) -> None:
    combined = (*techniques, *PRECISE)
    if not problems.is_legal(combined):
        pytest.skip("not beside bf16")
    given = problems.viewer(combined)
    again = replace(given, make_model=recomputing_net(techniques, use_reentrant))
    window = given.windows(torch.float32)[0]
    plain, recomputing = (
        make_step(each, combined, micro_batch=4, dtype=torch.float32) for each in (given, again)
    )
    if use_reentrant and plain.seams.irrevocable:
        pytest.skip("refused, as above")
    assert plain(window).applied and recomputing(window).applied
    # the reentrant form casts the weights of a shared block anew, and so adds its gradients in float32 instead of bf16
    tolerance = 0.01 if use_reentrant else 1e-6
    assert (
        relative_error(problems.traces(recomputing), problems.traces(plain), floor=given.floor) <= tolerance
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings", [{"keep": ("matmul", "attention", "convolution")}, {"budget": "1MiB"}, {"rows": 1}], ids=str
)
@pytest.mark.parametrize("techniques", OWN, ids=problems.name_of)
def test_however_blocks_are_computed_again_the_gradient_is_the_same(
    techniques: tuple[Technique, ...], settings: dict[str, Any]
) -> None:
    combined = (*techniques, find("recompute")(**settings))
    if not problems.is_legal(combined):
        pytest.skip("not beside recompute")
    given = problems.viewer(techniques)
    if "rows" in settings and has_batch_norm(given.model()):
        pytest.skip("batch norm has no statistics of some rows")
    # dropout by rows draws other numbers, as with another micro-batch
    dropout = 0.0 if "rows" in settings else 0.3
    plain, again = (make_step(given, each, micro_batch=4, dropout=dropout) for each in (techniques, combined))
    window = given.windows()[0]
    for _ in range(2):  # with a budget the first one measures
        assert plain(window).applied and again(window).applied
    error = relative_error(problems.weights(again), problems.weights(plain))
    assert error <= given.tolerance
