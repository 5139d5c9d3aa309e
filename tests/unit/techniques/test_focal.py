from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from snugfit.core.batch import Batch
from snugfit.core.loss_terms import LossTerms
from snugfit.core.losses import causal_lm, cross_entropy, find_loss, mse, over_batches
from snugfit.core.technique import BatchLoss, Context
from snugfit.errors import SettingError
from snugfit.techniques.learning.focal import Focal, focused, label_factors
from tests.unit.techniques.settings import refuses

IGNORED = -100


@pytest.mark.parametrize("value", [-0.1, float("inf"), float("nan")])
def test_an_impossible_gamma_is_refused(value: float) -> None:
    refuses(Focal, gamma=value)


@pytest.mark.parametrize("value", [(1.0,), (1.0, -0.5), (1.0, float("nan"))])
def test_impossible_factors_are_refused(value: tuple[float, ...]) -> None:
    refuses(Focal, alpha=value)


def focal(loss: Any, **settings: Any) -> BatchLoss:
    found = find_loss(loss)
    context = Context(nn.Linear(1, 1), torch.device("cpu"), loss=found)
    seams = Focal(**settings).seams(context)
    assert seams.loss is not None
    return seams.loss(over_batches(found))


def logits_of(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def equation(logits: Tensor, label: int, gamma: float, alpha: float = 1.0) -> float:
    """Lin et al. 2017, equation 5."""
    p = float(logits.softmax(0)[label])
    return float(-alpha * (1 - p) ** gamma * torch.tensor(p, dtype=torch.float64).log())


@pytest.mark.parametrize("gamma", [0.0, 0.5, 2.0])
def test_it_is_the_papers_equation_with_a_factor_for_each_class(gamma: float) -> None:
    logits, labels, alpha = logits_of(4, 3), torch.tensor([0, 2, 1, 1]), (0.25, 1.0, 0.5)
    found = focal(cross_entropy, gamma=gamma, alpha=alpha)(logits, Batch.of((logits, labels)))
    expected = [equation(row, int(y), gamma, alpha[int(y)]) for row, y in zip(logits, labels, strict=True)]
    assert found.values.tolist() == pytest.approx(expected)
    assert found.weights is not None and found.weights.tolist() == [1.0] * 4


@pytest.mark.parametrize("ignored", [IGNORED, 255])
def test_pixels_are_focused_where_they_count_whatever_number_is_ignored(ignored: int) -> None:
    logits = logits_of(2, 3, 2, 2)
    labels = torch.tensor([[[0, 1], [ignored, 2]], [[ignored, ignored], [1, 1]]])
    loss = nn.CrossEntropyLoss(reduction="none", ignore_index=ignored)
    found = focal(loss, gamma=2.0, alpha=(1.0, 2.0, 3.0))(logits, Batch.of((logits, labels)))
    places = (labels != ignored).nonzero()
    expected = sum(
        equation(logits[n, :, y, x], int(labels[n, y, x]), 2.0, 1.0 + int(labels[n, y, x]))
        for n, y, x in places
    )
    assert float(found.weighted_sum()) == pytest.approx(expected)
    assert float(found.weight()) == len(places)


def test_binary_scores_have_two_factors_as_in_the_paper() -> None:
    from math import exp, log

    scores, labels = logits_of(3, 2), torch.tensor([[0.0, 1.0], [1.0, 1.0], [0.0, 0.0]], dtype=torch.float64)
    found = focal(nn.BCEWithLogitsLoss(reduction="none"), gamma=2.0, alpha=(0.75, 0.25))(
        scores, Batch.of((scores, labels))
    )
    for value, score, label in zip(found.values.flatten(), scores.flatten(), labels.flatten(), strict=True):
        p = 1 / (1 + exp(-float(score)))
        p = p if label else 1 - p
        assert float(value) == pytest.approx(-(0.25 if label else 0.75) * (1 - p) ** 2 * log(p))


def test_gamma_zero_is_the_loss_itself() -> None:
    losses = logits_of(5).abs()
    assert torch.equal(focused(losses, 0.0), losses)


@pytest.mark.parametrize("gamma", [0.01, 0.5, 1.0, 2.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_label_of_probability_one_has_a_finite_gradient(gamma: float, dtype: torch.dtype) -> None:
    losses = torch.tensor([0.0, 1e-30, 1e-3], dtype=dtype, requires_grad=True)
    focused(losses, gamma).sum().backward()
    assert losses.grad is not None and losses.grad.isfinite().all()


def test_small_losses_keep_their_digits() -> None:
    """1 - exp(-1e-6) in float32 would have one digit."""
    losses = torch.tensor([1e-6])
    torch.testing.assert_close(focused(losses, 1.0).double(), losses.double() ** 2, rtol=1e-5, atol=0)


def test_a_nan_at_an_ignored_label_reaches_no_gradient() -> None:
    logits = torch.tensor([[0.0, 1.0], [float("nan")] * 2], requires_grad=True)
    labels = torch.tensor([0, IGNORED])
    focal(cross_entropy, alpha=(1.0, 2.0))(logits, Batch.of((labels, labels))).weighted_sum().backward()
    assert logits.grad is not None and logits.grad.isfinite().all()
    own = lambda outputs, data: LossTerms(outputs[:, 0] + data[0], torch.tensor([1.0, 0.0]))  # noqa: E731
    scores = torch.ones(2, 2, requires_grad=True)
    spoiled = Batch.of((torch.tensor([1.0, float("nan")]), labels))
    focal(own)(scores, spoiled).weighted_sum().backward()
    assert scores.grad is not None and scores.grad.isfinite().all() and scores.grad[0, 0] != 0


@pytest.mark.parametrize("alpha", [(1.0, 2.0), (1.0,) * 4])
def test_a_wrong_number_of_factors_is_refused(alpha: tuple[float, ...]) -> None:
    logits, labels = logits_of(4, 3), torch.tensor([0, 2, 1, 1])
    with pytest.raises(
        SettingError, match=rf"focal.alpha: has {len(alpha)} factors for logits of shape \(4, 3\)"
    ):
        focal(cross_entropy, alpha=alpha)(logits, Batch.of((logits, labels)))


def test_losses_that_are_no_cross_entropy_of_the_label_at_their_place_are_refused_at_once() -> None:
    with pytest.raises(SettingError, match="focal: the loss is mse"):
        focal(mse)
    with pytest.raises(SettingError, match=r"focal.alpha: causal_lm .* Remove alpha"):
        focal(causal_lm, alpha=(1.0, 2.0))
    assert focal(causal_lm, gamma=1.0)


def test_ignored_labels_have_no_factor() -> None:
    assert label_factors(torch.tensor([IGNORED, 1]), torch.tensor([0.5, 0.25])).tolist() == [0.0, 0.25]


def test_it_focuses_the_cross_entropy_of_tokens() -> None:
    logits, labels = logits_of(2, 4, 5), torch.tensor([[1, 2, 3, 4], [4, 0, IGNORED, IGNORED]])
    found = focal(causal_lm, gamma=2.0)(logits, Batch.of({"labels": labels}))
    plain = F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), reduction="none")
    assert float(found.weighted_sum()) == pytest.approx(float(focused(plain, 2.0).sum()))


@pytest.mark.parametrize("loss", [cross_entropy, nn.CrossEntropyLoss(reduction="none")])
def test_soft_labels_which_have_no_one_probability_are_refused(loss: Any) -> None:
    """The loss would be focused by exp(-loss), which is no label's probability."""
    logits = logits_of(4, 3)
    with pytest.raises(SettingError, match="focal: the labels are soft, .* remove focal"):
        focal(loss)(logits, Batch.of((logits, logits.softmax(1))))
