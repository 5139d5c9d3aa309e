from __future__ import annotations

from collections import namedtuple
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from snugfit.core.batch import Batch, labels_of
from snugfit.core.composition import compose
from snugfit.core.loss_terms import LossTerms
from snugfit.core.losses import causal_lm, cross_entropy, over_batches
from snugfit.core.technique import Technique
from snugfit.errors import DataError
from snugfit.kit.mixing import (
    between_labels,
    draw_shares,
    map_inputs,
    mix,
    partners,
    share_of,
    shared_terms,
    with_shares,
)
from snugfit.techniques.learning.focal import Focal
from snugfit.techniques.learning.label_smoothing import LabelSmoothing
from snugfit.techniques.learning.mixup import Mixup
from tests.unit.techniques.settings import context

IGNORED = -100
NAN = float("nan")


def source() -> np.random.Generator:
    return np.random.default_rng(0)


@pytest.mark.parametrize("rows", [1, 2, 5, 6])
def test_a_partners_partner_is_the_row_itself(rows: int) -> None:
    own = torch.arange(rows)
    other = partners(own)
    assert torch.equal(partners(other), own)
    assert [int(row) for row in own if other[row] == row] == ([rows - 1] if rows % 2 else [])


def test_pairs_do_not_depend_on_where_an_even_cut_is_made() -> None:
    rows = torch.arange(7)
    assert torch.equal(torch.cat([partners(rows[:4]), partners(rows[4:])]), partners(rows))


def test_the_last_row_of_an_odd_window_stays_itself_bit_for_bit() -> None:
    share = draw_shares(5, 0.7, source())
    assert share[4] == 1.0
    rows = torch.randn(5, 3, generator=torch.Generator().manual_seed(0))
    assert torch.equal(mix(rows, share)[4], rows[4])
    assert not torch.isclose(mix(rows, share)[:4], rows[:4]).any()


def test_both_rows_of_a_pair_have_the_same_share_and_pairs_have_their_own() -> None:
    share = draw_shares(6, 0.7, source())
    assert torch.equal(share[::2], share[1::2])
    assert len(share.unique()) == 3


@pytest.mark.parametrize("alpha", [1e-3, 0.2, 1.0, 50.0])
def test_shares_are_of_the_beta_distribution(alpha: float) -> None:
    """Mean 1/2 and variance 1 / (4 (2 alpha + 1)); none is lost to underflow where alpha is small."""
    share = draw_shares(200_000, alpha, source()).double()
    assert ((share >= 0) & (share <= 1)).all()
    assert float(share.mean()) == pytest.approx(0.5, abs=0.01)
    assert float(share.var()) == pytest.approx(1 / (4 * (2 * alpha + 1)), rel=0.03)


def test_the_shared_loss_is_linear_in_the_share_also_where_labels_are_ignored() -> None:
    """Weighted sum and weight, row by row: an ignored label drops out of both, even if its loss is NaN."""
    own = LossTerms(torch.tensor([1.0, NAN, 2.0, NAN]), torch.tensor([1.0, 0.0, 2.0, 0.0]))
    other = LossTerms(torch.tensor([5.0, 3.0, NAN, NAN]), torch.tensor([1.0, 1.0, 0.0, 0.0]))
    found = shared_terms(own, other, torch.tensor([0.75, 0.75, 0.25, 0.25]))
    assert found.weights is not None
    assert found.weights.tolist() == [1.0, 0.25, 0.5, 0.0]
    assert (found.values * found.weights).tolist() == [0.75 * 1 + 0.25 * 5, 0.25 * 3, 0.25 * 2 * 2, 0.0]


def test_a_loss_without_weights_is_shared_without_weights() -> None:
    found = shared_terms(
        LossTerms(torch.ones(2, 3)), LossTerms(torch.full((2, 3), 3.0)), torch.tensor([1.0, 0.5])
    )
    assert found.weights is None
    assert found.values.tolist() == [[1.0] * 3, [2.0] * 3]


def test_cross_entropy_between_two_labels_is_that_of_the_mixed_soft_label() -> None:
    logits = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
    labels, share = torch.tensor([0, 2, 1, 1]), torch.tensor([0.3, 0.3, 0.9, 0.9])
    batch = with_shares(Batch.of((logits, labels)), share)
    found = between_labels(over_batches(cross_entropy))(logits, batch)
    one_hot = F.one_hot(labels, 3).float()
    expected = F.cross_entropy(logits, mix(one_hot, share), reduction="none")
    torch.testing.assert_close(found.values, expected)


def test_a_batch_without_shares_is_scored_as_it_is() -> None:
    logits, labels = torch.randn(3, 2), torch.tensor([0, 1, 0])
    batch = Batch.of((logits, labels))
    assert share_of(batch) is None
    torch.testing.assert_close(
        between_labels(over_batches(cross_entropy))(logits, batch).values,
        F.cross_entropy(logits, labels, reduction="none"),
    )


def test_the_partners_labels_travel_with_rows_that_are_selected() -> None:
    batch = with_shares(Batch.of((torch.zeros(5, 1), torch.arange(5))), torch.linspace(0.1, 0.5, 5))
    seen: list[list[int]] = []

    def loss(outputs: Any, part: Batch) -> LossTerms:
        seen.append(labels_of(part.data).tolist())
        return LossTerms(torch.zeros(part.rows))

    between_labels(loss)(None, batch.select([3, 4, 1]))
    assert seen == [[3, 4, 1], [2, 4, 0]]


def test_the_partners_labels_are_cut_with_the_padding_of_a_micro_batch() -> None:
    ids = torch.arange(1, 25).view(4, 6)
    mask = (torch.arange(6) < torch.tensor([3, 2, 6, 1]).unsqueeze(1)).long()
    window = Batch.of(
        {"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(mask == 0, IGNORED)}
    )
    part = with_shares(window, torch.full((4,), 0.25)).select(range(2))
    logits = torch.randn(2, 3, 30, generator=torch.Generator().manual_seed(0))
    found = between_labels(over_batches(causal_lm))(logits, part)
    own = causal_lm(logits, part.data)
    other = causal_lm(logits, {"labels": part.data["labels"].flip(0)})
    assert found.values.shape == (2, 3)
    torch.testing.assert_close(found.weighted_sum(), 0.25 * own.weighted_sum() + 0.75 * other.weighted_sum())


Pair = namedtuple("Pair", ["inputs", "labels"])


@pytest.mark.parametrize(
    "data",
    [
        {"x": torch.zeros(2), "names": ["a", "b"], "labels": torch.zeros(2)},
        (torch.zeros(2), torch.zeros(2)),
        [torch.zeros(2), torch.zeros(2)],
        Pair(torch.zeros(2), torch.zeros(2)),
        ({"x": [torch.zeros(2)]}, torch.zeros(2)),
    ],
)
def test_every_input_is_mapped_and_no_label_in_any_form_of_a_batch(data: Any) -> None:
    seen: list[Tensor] = []
    found = map_inputs(lambda tensor: seen.append(tensor) or tensor + 1, data)
    assert len(seen) == 1
    assert type(found) is type(data)
    assert labels_of(found).tolist() == [0.0, 0.0]
    if isinstance(data, dict):
        assert list(found) == list(data) and found["names"] == ["a", "b"]


def test_what_has_no_labels_cannot_be_mixed() -> None:
    with pytest.raises(DataError, match="no labels"):
        map_inputs(lambda tensor: tensor, torch.zeros(2))


def test_the_loss_is_focused_then_smoothed_then_shared_whatever_the_order_of_the_list() -> None:
    """Computed by hand: gamma 2, epsilon 0.1, share 0.75; probabilities (0.8, 0.2) and (0.4, 0.6), labels 0 and 1."""
    logits = torch.tensor([[0.8, 0.2], [0.4, 0.6]], dtype=torch.float64).log()
    batch = with_shares(
        Batch.of((logits, torch.tensor([0, 1]))), torch.tensor([0.75, 0.75], dtype=torch.float64)
    )
    techniques: list[Technique] = [Mixup(), LabelSmoothing(epsilon=0.1), Focal(gamma=2.0)]
    # row 0: 0.9 * 0.2^2 * 0.223144 + 0.1 * 0.916291 = 0.099662 for label 0
    #        0.9 * 0.8^2 * 1.609438 + 0.1 * 0.916291 = 1.018665 for label 1;   0.75 and 0.25 of them: 0.329413
    # row 1: 0.9 * 0.4^2 * 0.510826 + 0.1 * 0.713558 = 0.144915 for label 1
    #        0.9 * 0.6^2 * 0.916291 + 0.1 * 0.713558 = 0.368234 for label 0;   0.75 and 0.25 of them: 0.200744
    for order in (techniques, techniques[::-1]):
        loss = compose(order, context(), over_batches(cross_entropy), lambda compute: compute.run()).loss
        assert loss(logits, batch).values.tolist() == pytest.approx([0.32941301, 0.20074454], abs=5e-8)
