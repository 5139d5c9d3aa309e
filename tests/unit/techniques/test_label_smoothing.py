from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from snugfit.core.batch import Batch
from snugfit.core.losses import LossTerms, causal_lm, cross_entropy, mse, over_batches
from snugfit.core.technique import BatchLoss
from snugfit.errors import SettingError
from snugfit.techniques.learning.label_smoothing import LabelSmoothing, uniform_cross_entropy
from tests.unit.techniques.settings import context, refuses

IGNORED = -100


@pytest.mark.parametrize("value", [0, -0.1, 1.0, float("nan")])
def test_an_impossible_epsilon_is_refused(value: float) -> None:
    refuses(LabelSmoothing, epsilon=value)


def smoothed(loss: Any, epsilon: float = 0.2) -> BatchLoss:
    seams = LabelSmoothing(epsilon=epsilon).seams(context())
    assert seams.loss is not None
    return seams.loss(over_batches(loss))


def mean(terms: LossTerms) -> Tensor:
    return terms.weighted_sum() / terms.weight()


def logits_of(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def test_it_is_the_label_smoothing_of_torch() -> None:
    logits, labels = logits_of(5, 4), torch.tensor([0, 3, IGNORED, 1, 2])
    found = mean(smoothed(cross_entropy)(logits, Batch.of((labels, labels))))
    torch.testing.assert_close(found, F.cross_entropy(logits, labels, label_smoothing=0.2))


def test_tokens_are_smoothed_where_they_count() -> None:
    logits, labels = logits_of(2, 4, 5), torch.tensor([[1, 2, 3, 4], [4, 0, IGNORED, IGNORED]])
    found = mean(smoothed(causal_lm)(logits, Batch.of({"labels": labels})))
    expected = F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), label_smoothing=0.2)
    torch.testing.assert_close(found, expected)


def test_a_nan_at_an_ignored_label_reaches_no_gradient() -> None:
    logits = torch.tensor([[0.0, 1.0], [float("nan")] * 2], requires_grad=True)
    labels = torch.tensor([0, IGNORED])
    smoothed(cross_entropy)(logits, Batch.of((labels, labels))).weighted_sum().backward()
    assert logits.grad is not None and logits.grad.isfinite().all()


def test_logits_in_bf16_are_smoothed_in_float32() -> None:
    logits = (logits_of(3, 1000) * 5).bfloat16()
    found = uniform_cross_entropy(logits)
    assert found.dtype == torch.float32
    exact = -F.log_softmax(logits.double(), dim=-1).mean(dim=-1)
    torch.testing.assert_close(found.double(), exact, rtol=1e-6, atol=0)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        torch.testing.assert_close(uniform_cross_entropy(logits).double(), exact, rtol=1e-6, atol=0)


@pytest.mark.parametrize("columns", [1, 3])
def test_a_loss_that_is_not_of_classes_is_refused(columns: int) -> None:
    labels = torch.zeros(4, columns)
    with pytest.raises(SettingError, match="label_smoothing: the loss has the shape .* at least two classes"):
        smoothed(mse)(torch.zeros(4, columns), Batch.of((labels, labels)))
