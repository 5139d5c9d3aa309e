"""Terms of a loss by name: each is logged as its mean over the window, however that is split."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from snugfit.core.batch import Batch
from snugfit.core.loss_terms import LossTerms, Weighted, as_terms
from snugfit.core.losses import over_batches
from snugfit.core.technique import Technique
from snugfit.errors import SettingError
from snugfit.step.evaluate import Scored, evaluate
from snugfit.step.step import Step
from snugfit.techniques.learning.clip_norm import ClipNorm
from snugfit.techniques.learning.gradient_cache import GradientCache
from snugfit.techniques.learning.hard_examples import HardExamples
from snugfit.techniques.learning.mixup import Mixup
from snugfit.techniques.learning.sam import SAM
from snugfit.techniques.learning.sgd import SGD

ROWS = 11
# float32, added up in another order
TOLERANCE = 1e-5

FACTORS = {"fit": 2.0, "size": 0.1}


def terms_of(outputs: Tensor, data: Any) -> dict[str, Tensor]:
    return {"fit": (outputs - data[1]).square().mean(1), "size": outputs.abs().sum(1)}


def weighted(outputs: Tensor, data: Any) -> LossTerms:
    """The first row counts for nothing, and its terms are not a number; the others count by their place."""
    weights = torch.tensor([0.0, *(1.0 + place for place in range(1, ROWS))])[data[2]]
    parts = {name: part.where(weights > 0, math.nan) for name, part in terms_of(outputs, data).items()}
    return LossTerms.of(parts, FACTORS, weights)


def window() -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(3)
    inputs, labels = (torch.randn(ROWS, 4, generator=generator) for _ in range(2))
    return inputs, labels, torch.arange(ROWS)


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(4, 4)


def step_of(
    loss: Any, *techniques: Technique, micro_batch: int | None = None, learning_rate: float = 0.1
) -> Step:
    return Step(
        model(),
        SGD(learning_rate=learning_rate),
        loss,
        techniques,
        micro_batch=micro_batch,
        forward=lambda network, data: network(data[0]),
    )


def plain() -> dict[str, float]:
    """A loop over rows: each term's weighted mean, and the loss."""
    outputs, data = model()(window()[0]), window()
    means, weight = dict.fromkeys(FACTORS, 0.0), 0.0
    for row in range(1, ROWS):
        for name, part in terms_of(outputs, data).items():
            means[name] += (1.0 + row) * float(part[row].detach())
        weight += 1.0 + row
    means = {name: total / weight for name, total in means.items()}
    return {**means, "loss": sum(FACTORS[name] * mean for name, mean in means.items())}


@pytest.mark.parametrize("micro_batch", [None, 1, 3, 4])
def test_each_term_is_logged_as_its_mean_over_the_window_whatever_the_split(micro_batch: int | None) -> None:
    result = step_of(weighted, micro_batch=micro_batch)(window())
    found = {name: float(value) for name, value in result.metrics.items()} | {"loss": result.loss}
    assert found == pytest.approx(plain(), rel=TOLERANCE)


def test_terms_by_name_train_as_their_sum_with_the_recipe_s_weights() -> None:
    steps = [
        step_of(Weighted(terms_of, FACTORS)),
        step_of(lambda outputs, data: sum(FACTORS[n] * p for n, p in terms_of(outputs, data).items())),
        step_of(Weighted(lambda outputs, data: LossTerms.of(terms_of(outputs, data), {"fit": 7.0}), FACTORS)),
    ]
    first, *others = [(step(window()).loss, step.model.weight.tolist()) for step in steps]
    for other in others:
        assert other[0] == pytest.approx(first[0], rel=TOLERANCE)
        torch.testing.assert_close(torch.tensor(other[1]), torch.tensor(first[1]))
    assert step_of(terms_of)(window()).loss != pytest.approx(first[0])


@pytest.mark.parametrize("micro_batch", [None, 3])
def test_terms_are_those_at_the_weights_and_not_at_the_worst_point(micro_batch: int | None) -> None:
    for technique in (SAM(rho=2.0), SAM(rho=2.0, m=3)):
        metrics = step_of(weighted, technique, micro_batch=micro_batch)(window()).metrics
        assert {name: float(value) for name, value in metrics.items()} == pytest.approx(
            {name: plain()[name] for name in FACTORS}, rel=TOLERANCE
        )


def coupled(outputs: Tensor, data: Any) -> dict[str, Tensor]:
    return {"spread": (outputs - outputs.mean(0)).square().sum(1), "size": outputs.abs().sum(1)}


coupled.couples_rows = True  # type: ignore[attr-defined]


@pytest.mark.parametrize("around", [(), (SAM(rho=2.0),)])
def test_terms_of_a_loss_that_compares_rows_are_of_the_whole_window(around: tuple[Technique, ...]) -> None:
    expected = {name: float(part.mean()) for name, part in coupled(model()(window()[0]), None).items()}
    metrics = step_of(coupled, GradientCache(), *around, micro_batch=3)(window()).metrics
    assert {name: float(value) for name, value in metrics.items()} == pytest.approx(expected, rel=TOLERANCE)


def test_terms_are_of_the_rows_that_are_learned_from() -> None:
    own = terms_of(model()(window()[0]), window())
    hardest = (own["fit"] + own["size"]).argsort(descending=True)[: math.ceil(0.5 * ROWS)]
    metrics = step_of(terms_of, HardExamples(fraction=0.5), micro_batch=2)(window()).metrics
    assert float(metrics["fit"]) == pytest.approx(float(own["fit"][hardest].mean()), rel=TOLERANCE)


def test_terms_of_mixed_rows_add_up_to_their_loss() -> None:
    result = Step(
        model(), SGD(learning_rate=0.1), Weighted(terms_of, FACTORS), [Mixup(alpha=1.0)], micro_batch=4
    )(window()[:2])
    assert sum(FACTORS[name] * float(value) for name, value in result.metrics.items()) == pytest.approx(
        result.loss, rel=TOLERANCE
    )


def test_an_evaluation_gives_each_term_too() -> None:
    def run(batch: Batch) -> Any:
        return network(batch.data[0])

    network = model()
    scored = Scored(network, torch.device("cpu"), run, over_batches(weighted), micro_batch=2)
    batches = [Batch.of(window()).select(rows) for rows in (range(5), range(5, ROWS))]
    assert evaluate(scored, batches, {}) == pytest.approx(plain(), rel=TOLERANCE)


BAD: dict[str, Callable[[Tensor, Any], Any]] = {
    r"terms of different shapes \(a \(2,\), b \(2, 4\)\)": lambda out, _: {"a": out.sum(1), "b": out},
    "got no terms": lambda *_: {},
    "a term with the name 'loss', which is logged anyway": lambda out, _: {"loss": out.sum(1)},
    r"values of shape \(2,\) with a part 'a' of shape \(2, 4\)": lambda out, _: LossTerms(
        out.sum(1), parts={"a": out}
    ),
}


@pytest.mark.parametrize("message", BAD)
def test_terms_that_cannot_be_added_or_logged_are_refused(message: str) -> None:
    with pytest.raises(SettingError, match=message):
        as_terms(BAD[message](torch.zeros(2, 4), None), 2)


def test_other_terms_in_another_micro_batch_are_refused() -> None:
    def changing(outputs: Tensor, data: Any) -> dict[str, Tensor]:
        return {"first" if int(data[2][0]) == 0 else "second": outputs.sum(1)}

    with pytest.raises(SettingError, match="has the parts second in one micro-batch and first in another"):
        step_of(changing, micro_batch=6)(window())


def test_a_term_with_the_name_of_what_a_technique_logs_is_refused() -> None:
    def clashing(outputs: Tensor, data: Any) -> dict[str, Tensor]:
        return {"gradient_norm": outputs.sum(1)}

    with pytest.raises(SettingError, match="a term with the name 'gradient_norm', which a technique logs"):
        step_of(clashing, ClipNorm(max_norm=1.0))(window())


def test_weights_of_terms_that_are_not_there_are_refused() -> None:
    with pytest.raises(SettingError, match=r"loss_weights: 'sise' is no term.*Did you mean 'size'"):
        step_of(Weighted(terms_of, {"sise": 1.0}))(window())
    with pytest.raises(SettingError, match="loss_weights: gives weights to size, and the loss has no terms"):
        step_of(Weighted(lambda outputs, _: outputs.sum(1), {"size": 1.0}))(window())
