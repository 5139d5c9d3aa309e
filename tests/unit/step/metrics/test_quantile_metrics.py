"""The loss and the metrics of quantiles, beside loops over numbers."""

from __future__ import annotations

import math

import pytest
import torch

from snugfit.core.batch import Batch
from snugfit.core.loss_terms import Loss
from snugfit.core.losses import pinball
from snugfit.errors import SettingError
from snugfit.kit.losses.auxiliary_loss import WithAuxiliary
from snugfit.kit.losses.rescaled import RescaledError
from snugfit.step.metrics.metric import check_fit, make_metric, monitored
from snugfit.strategies.base import Strategy

LEVELS = (0.1, 0.5, 0.8)


def drawn(rows: int = 5, steps: int = 4) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(0)
    quantiles = torch.randn(rows, steps, len(LEVELS), generator=generator).sort(dim=-1).values
    labels = torch.randn(rows, steps, generator=generator)
    labels[1, 2] = labels[4] = torch.nan
    unit = torch.rand(rows, generator=generator) + 0.5
    unit[3] = torch.nan
    levels = torch.tensor(LEVELS).expand(rows, -1)
    return {"logits": quantiles, "levels": levels}, {"labels": labels, "error_unit": unit}


def by_hand(outputs: dict[str, torch.Tensor], data: dict[str, torch.Tensor]) -> dict[str, float]:
    losses, scaled, inside = [], [], []
    for row, labels in enumerate(data["labels"].tolist()):
        for step, label in enumerate(labels):
            if math.isnan(label):
                continue
            quantiles = outputs["logits"][row, step].tolist()
            losses.append(
                2
                / len(LEVELS)
                * sum(
                    level * (label - each) if label > each else (1 - level) * (each - label)
                    for level, each in zip(LEVELS, quantiles, strict=True)
                )
            )
            inside.append(quantiles[0] <= label <= quantiles[-1])
            if not math.isnan(unit := data["error_unit"][row].item()):
                scaled.append(abs(quantiles[1] - label) / unit)
    return {
        name: sum(each) / len(each)
        for name, each in (("pinball", losses), ("mase", scaled), ("coverage", inside))
    }


@pytest.mark.parametrize("name", ["pinball", "mase", "coverage"])
@pytest.mark.parametrize("parts", [[5], [1, 3, 1]])
def test_a_metric_is_its_mean_over_the_steps_that_count(name: str, parts: list[int]) -> None:
    outputs, data = drawn()
    metric = make_metric(name)
    for rows in torch.arange(5).split(parts):
        metric.update(
            {key: values[rows] for key, values in outputs.items()},
            Batch.of({k: v[rows] for k, v in data.items()}),
        )
    assert metric.compute(Strategy()) == pytest.approx(by_hand(outputs, data)[name], rel=1e-5)


def test_a_step_without_a_label_has_no_weight_and_no_gradient() -> None:
    outputs, data = drawn()
    quantiles = outputs["logits"].requires_grad_()
    terms = pinball({**outputs, "logits": quantiles}, data)
    total = terms.weighted_sum().detach()
    assert float(total) / float(terms.weight()) == pytest.approx(by_hand(outputs, data)["pinball"], rel=1e-5)
    (gradient,) = torch.autograd.grad(terms.values, quantiles, terms.gradient(terms.weight()))
    assert gradient.isfinite().all() and (gradient[4] == 0).all() and (gradient[1, 2] == 0).all()
    assert (gradient[0] != 0).all()


def test_outputs_that_are_no_quantiles_are_refused() -> None:
    outputs, data = drawn()
    with pytest.raises(SettingError, match="loss: no quantiles in what the model returns, a Tensor"):
        pinball(outputs["logits"], data)
    with pytest.raises(
        SettingError, match=r"quantiles of shape \(5, 3, 3\) for labels of shape \(5, 4\) and 3 levels"
    ):
        pinball({**outputs, "logits": outputs["logits"][:, :3]}, data)
    with pytest.raises(SettingError, match="mase needs the error of the seasonal naive forecast"):
        make_metric("mase").update(outputs, Batch.of({"labels": data["labels"]}))


@pytest.mark.parametrize(
    ("loss", "words"),
    [
        ("mse", "mse. Use mae"),
        ("pinball", "pinball. Use mase"),
        (RescaledError(2.0), "a squared error. Use mae"),
        (WithAuxiliary(0.4), "a sum of two. Use main_loss"),
    ],
)
def test_a_perplexity_of_no_cross_entropy_is_refused(loss: str | Loss, words: str) -> None:
    with pytest.raises(SettingError, match=f"perplexity is of a cross-entropy, and the loss is {words}"):
        check_fit(["perplexity"], loss)
    check_fit(["perplexity"], "cross_entropy")


def test_errors_are_better_low_and_a_coverage_is_neither() -> None:
    assert monitored("mase", ["mase"]) == ("mase", False)
    with pytest.raises(SettingError, match="whether a high or a low 'coverage' is better is not known"):
        monitored("coverage", ["coverage"])
