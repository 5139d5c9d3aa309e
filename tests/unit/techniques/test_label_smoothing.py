from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from snugfit.core.batch import Batch
from snugfit.core.loss_terms import LossTerms
from snugfit.core.losses import InfoNCE, causal_lm, cross_entropy, find_loss, mse, over_batches
from snugfit.core.technique import BatchLoss, Context
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


# which dimension holds the classes


def of_torch(**settings: Any) -> Any:
    return find_loss(torch.nn.CrossEntropyLoss(reduction="none", **settings))


def smoothed_by(loss: Any, dim: int | None = None) -> BatchLoss:
    made = Context(torch.nn.Linear(1, 1), torch.device("cpu"), loss=loss)
    seams = LabelSmoothing(epsilon=0.2, dim=dim).seams(made)
    assert seams.loss is not None
    return seams.loss(over_batches(loss))


def labels_for(*shape: int) -> Tensor:
    labels = torch.randint(0, 3, shape, generator=torch.Generator().manual_seed(1))
    labels.flatten()[1] = IGNORED
    return labels


@pytest.mark.parametrize("shape", [(4, 3), (4, 3, 2, 5), (4, 3, 3), (3, 3, 3, 3)])
def test_the_second_dimension_of_a_torch_loss_holds_the_classes(shape: tuple[int, ...]) -> None:
    """Also where the last one is as wide: the loss says which it takes."""
    logits, labels = logits_of(*shape), labels_for(shape[0], *shape[2:])
    found = mean(smoothed_by(of_torch())(logits, Batch.of((logits, labels))))
    torch.testing.assert_close(found, F.cross_entropy(logits, labels, label_smoothing=0.2))


@pytest.mark.parametrize("shape", [(4, 3), (4, 5, 3), (3, 3, 3)])
def test_the_last_dimension_of_a_built_in_loss_holds_the_classes(shape: tuple[int, ...]) -> None:
    logits, labels = logits_of(*shape), labels_for(*shape[:-1])
    found = mean(smoothed_by(cross_entropy)(logits, Batch.of((logits, labels))))
    expected = F.cross_entropy(logits.flatten(0, -2), labels.flatten(), label_smoothing=0.2)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("shape", [(4, 3, 2, 5), (4, 5, 3)])
def test_the_dimension_of_somebodys_own_loss_is_found_from_the_shapes(shape: tuple[int, ...]) -> None:
    dim = shape.index(3)
    labels = labels_for(*shape[:dim], *shape[dim + 1 :]).clamp(min=0)

    def own(outputs: Any, data: Any) -> Tensor:
        return F.cross_entropy(outputs.movedim(dim, 1), data[1], reduction="none")

    logits = logits_of(*shape)
    found = mean(smoothed_by(own)(logits, Batch.of((logits, labels))))
    expected = F.cross_entropy(logits.movedim(dim, 1), labels, label_smoothing=0.2)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("dim", [1, -1])
def test_a_shape_that_fits_both_is_refused_until_the_dimension_is_said(dim: int) -> None:
    logits, labels = logits_of(4, 3, 3), labels_for(4, 3).clamp(min=0)

    def own(outputs: Any, data: Any) -> Tensor:
        return F.cross_entropy(outputs.movedim(dim, 1), data[1], reduction="none")

    batch = Batch.of((logits, labels))
    with pytest.raises(
        SettingError, match=r"label_smoothing\.dim: the classes of logits \(4, 3, 3\) may be dim"
    ):
        smoothed_by(own)(logits, batch)
    expected = F.cross_entropy(logits.movedim(dim, 1), labels, label_smoothing=0.2)
    torch.testing.assert_close(mean(smoothed_by(own, dim)(logits, batch)), expected)


def test_a_dimension_that_does_not_fit_is_refused() -> None:
    logits, labels = logits_of(4, 5, 3), labels_for(4, 5).clamp(min=0)
    with pytest.raises(SettingError, match="at least two classes in dimension 1"):
        smoothed_by(cross_entropy, dim=1)(logits, Batch.of((logits, labels)))
    refuses(LabelSmoothing, dim=0)


@pytest.mark.parametrize("loss", [cross_entropy, of_torch()])
def test_soft_labels_are_smoothed_as_by_torch(loss: Any) -> None:
    logits, labels = logits_of(5, 4), torch.rand(5, 4, generator=torch.Generator().manual_seed(1)).softmax(1)
    found = mean(smoothed_by(loss)(logits, Batch.of((logits, labels))))
    torch.testing.assert_close(found, F.cross_entropy(logits, labels, label_smoothing=0.2))


def test_a_torch_loss_that_smooths_already_is_refused() -> None:
    with pytest.raises(
        SettingError, match=r"CrossEntropyLoss\(label_smoothing=0.1\) smooths the labels already"
    ):
        smoothed_by(of_torch(label_smoothing=0.1))


# losses that compare rows


@pytest.mark.parametrize("loss", ["info_nce", "info_nce_symmetric", "nt_xent"])
def test_a_loss_of_embeddings_is_refused_by_name(loss: str) -> None:
    with pytest.raises(SettingError, match=f"label_smoothing: the loss {loss} compares embeddings"):
        smoothed_by(find_loss(loss))
    with pytest.raises(SettingError, match=f"label_smoothing: the loss {loss} compares embeddings"):
        smoothed_by(partial(find_loss(loss)))
    with pytest.raises(SettingError, match="label_smoothing: the loss InfoNCE compares embeddings"):
        smoothed_by(InfoNCE(temperature=0.2))


def test_under_somebodys_own_loss_that_compares_rows_the_logits_must_be_called_so() -> None:
    """A bare tensor of the right shape may as well be an embedding."""

    def own(outputs: Any, data: Any) -> Tensor:
        return F.cross_entropy(*data, reduction="none")

    own.couples_rows = True  # type: ignore[attr-defined]
    logits, labels = logits_of(4, 3), torch.tensor([0, 1, 2, 0])
    batch = Batch.of((logits, labels))
    found = mean(smoothed_by(own)({"logits": logits}, batch))
    torch.testing.assert_close(found, F.cross_entropy(logits, labels, label_smoothing=0.2))
    for outputs in (logits, (logits, logits), {"query": logits}):
        with pytest.raises(SettingError, match="label_smoothing: the loss compares rows, .* are the logits"):
            smoothed_by(own)(outputs, batch)
