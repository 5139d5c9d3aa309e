from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from snugfit.core.batch import Batch
from snugfit.core.loss_terms import LossTerms
from snugfit.core.losses import causal_lm, cross_entropy, find_loss, mse, over_batches
from snugfit.core.technique import BatchLoss, Context
from snugfit.errors import SettingError
from snugfit.techniques.learning.z_loss import ZLoss, squared_log_normaliser
from tests.unit.techniques.settings import context, refuses

IGNORED = -100


@pytest.mark.parametrize("value", [0, -0.1, float("nan"), float("inf")])
def test_an_impossible_coefficient_is_refused(value: float) -> None:
    refuses(ZLoss, coefficient=value)


def with_normaliser(loss: Any, coefficient: float = 0.5) -> BatchLoss:
    seams = ZLoss(coefficient=coefficient).seams(context())
    assert seams.loss is not None
    return seams.loss(over_batches(loss))


def mean(terms: LossTerms) -> Tensor:
    return terms.weighted_sum() / terms.weight()


def logits_of(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def test_it_is_averaged_over_the_tokens_that_count() -> None:
    logits, labels = logits_of(2, 4, 5), torch.tensor([[1, 2, 3, 4], [4, 0, IGNORED, IGNORED]])
    batch = Batch.of({"labels": labels})
    added = mean(with_normaliser(causal_lm)(logits, batch)) - mean(over_batches(causal_lm)(logits, batch))
    counting = torch.cat([logits[0, :3], logits[1, :1]])  # those with a next token that counts
    torch.testing.assert_close(added, 0.5 * (counting.exp().sum(dim=-1).log() ** 2).mean())


def test_it_pulls_the_normaliser_to_one() -> None:
    logits = torch.full((1, 4), 3.0, requires_grad=True)
    labels = torch.tensor([0])
    plain, pulled = (
        torch.autograd.grad(mean(loss(logits, Batch.of((labels, labels)))), logits)[0]
        for loss in (over_batches(cross_entropy), with_normaliser(cross_entropy))
    )
    assert (pulled > plain).all(), "a step against the gradient makes every logit smaller"


def test_a_nan_at_an_ignored_label_reaches_no_gradient() -> None:
    logits = torch.tensor([[0.0, 1.0], [float("nan")] * 2], requires_grad=True)
    labels = torch.tensor([0, IGNORED])
    with_normaliser(cross_entropy)(logits, Batch.of((labels, labels))).weighted_sum().backward()
    assert logits.grad is not None and logits.grad.isfinite().all()


def test_logits_in_bf16_are_normalised_in_float32() -> None:
    logits = (logits_of(3, 1000) * 5).bfloat16()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = squared_log_normaliser(logits)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double(), logits.double().logsumexp(dim=-1).square(), rtol=1e-5, atol=0)


@pytest.mark.parametrize("columns", [1, 3])
def test_a_loss_that_is_not_of_classes_is_refused(columns: int) -> None:
    labels = torch.zeros(4, columns)
    with pytest.raises(SettingError, match="z_loss: the loss has the shape .* at least two classes"):
        with_normaliser(mse)(torch.zeros(4, columns), Batch.of((labels, labels)))


def normalised_by(loss: Any, dim: int | None = None) -> BatchLoss:
    found = find_loss(loss)
    made = Context(torch.nn.Linear(1, 1), torch.device("cpu"), loss=found)
    seams = ZLoss(coefficient=0.5, dim=dim).seams(made)
    assert seams.loss is not None
    return seams.loss(over_batches(found))


@pytest.mark.parametrize("shape", [(4, 3), (4, 3, 2, 5), (4, 3, 3)])
def test_the_normaliser_of_a_torch_loss_is_over_its_second_dimension(shape: tuple[int, ...]) -> None:
    """Also where the last one is as wide: the loss says which it takes."""
    logits, labels = logits_of(*shape), torch.zeros(shape[0], *shape[2:], dtype=torch.long)
    loss = torch.nn.CrossEntropyLoss(reduction="none")
    found = normalised_by(loss)(logits, Batch.of((logits, labels))).values
    torch.testing.assert_close(found, loss(logits, labels) + 0.5 * logits.exp().sum(dim=1).log() ** 2)


@pytest.mark.parametrize("dim", [1, -1])
def test_a_shape_that_fits_both_dimensions_is_refused_until_one_is_said(dim: int) -> None:
    logits, labels = logits_of(4, 3, 3), torch.zeros(4, 3, dtype=torch.long)

    def own(outputs: Any, data: Any) -> Tensor:
        return torch.nn.functional.cross_entropy(outputs.movedim(dim, 1), data[1], reduction="none")

    batch = Batch.of((logits, labels))
    with pytest.raises(SettingError, match=r"z_loss\.dim: the classes of logits \(4, 3, 3\) may be dim"):
        normalised_by(own)(logits, batch)
    expected = own(logits, (logits, labels)) + 0.5 * logits.exp().sum(dim=dim).log() ** 2
    torch.testing.assert_close(normalised_by(own, dim)(logits, batch).values, expected)


def test_a_dimension_that_is_neither_is_refused() -> None:
    refuses(ZLoss, dim=0)


def test_a_loss_of_embeddings_is_refused_by_name() -> None:
    with pytest.raises(SettingError, match="z_loss: the loss info_nce compares embeddings, .* Remove z_loss"):
        normalised_by("info_nce")


def test_under_a_loss_that_compares_rows_the_logits_must_be_called_so() -> None:
    """A bare tensor of the right shape may as well be an embedding."""

    def own(outputs: Any, data: Any) -> Tensor:
        return data[0].sum(dim=1)

    own.couples_rows = True  # type: ignore[attr-defined]
    logits = logits_of(4, 3)
    batch = Batch.of((logits, torch.zeros(4)))
    found = normalised_by(own)({"logits": logits}, batch).values
    torch.testing.assert_close(found, logits.sum(dim=1) + 0.5 * logits.exp().sum(dim=1).log() ** 2)
    for outputs in (logits, (logits, logits), {"query": logits}):
        with pytest.raises(SettingError, match="z_loss: the loss compares rows, .* which are the logits"):
            normalised_by(own)(outputs, batch)
