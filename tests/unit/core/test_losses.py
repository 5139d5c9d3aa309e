from __future__ import annotations

import functools
import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import snugfit as sf
from snugfit.core.batch import Batch
from snugfit.core.loss_terms import LossTerms, as_terms
from snugfit.core.losses import (
    InfoNCE,
    binary_cross_entropy,
    causal_lm,
    check_soft_labels,
    couples_rows,
    cross_entropy,
    find_loss,
    logits_of,
    mse,
    over_batches,
)
from snugfit.errors import DataError, SettingError

IGNORED = -100
NAN = math.nan


def mean(terms: LossTerms) -> Tensor:
    return terms.weighted_sum() / terms.weight()


# terms


def test_a_value_of_weight_zero_counts_as_zero_even_if_it_is_nan() -> None:
    terms = LossTerms(torch.tensor([1.0, NAN, 3.0]), torch.tensor([2.0, 0.0, 1.0]))
    assert float(terms.weighted_sum()) == 5.0
    assert float(terms.weight()) == 3.0


def test_without_weights_every_value_counts_once_and_the_host_knows_how_many() -> None:
    terms = LossTerms(torch.ones(2, 3))
    assert float(terms.weighted_sum()) == 6.0
    assert terms.weight() == 6.0 and isinstance(terms.weight(), float)


@pytest.mark.parametrize("weights", [None, torch.tensor([[1.0, 0.0], [2.0, 1.0]])])
def test_the_gradient_of_terms_is_what_autograd_finds_for_their_mean(weights: Tensor | None) -> None:
    values = torch.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
    terms = LossTerms(values, weights)
    (expected,) = torch.autograd.grad(mean(terms), values)
    torch.testing.assert_close(terms.gradient(terms.weight()), expected)


def test_a_row_is_the_weighted_mean_of_its_values() -> None:
    values = torch.tensor([[1.0, 3.0], [5.0, NAN], [NAN, NAN]])
    weights = torch.tensor([[1.0, 1.0], [2.0, 0.0], [0.0, 0.0]])
    rows = LossTerms(values, weights).by_row()
    assert rows.values.tolist() == [2.0, 5.0, 0.0]
    assert rows.weights is not None and rows.weights.tolist() == [2.0, 2.0, 0.0]


def test_rows_of_values_without_weights_weigh_what_they_hold() -> None:
    rows = LossTerms(torch.ones(2, 3, 4)).by_row()
    assert rows.values.tolist() == [1.0, 1.0]
    assert rows.weights is not None and rows.weights.tolist() == [12.0, 12.0]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("weighted", [True, False])
def test_16_bit_terms_are_summed_in_float32(dtype: torch.dtype, weighted: bool) -> None:
    """bf16 counts to 256, fp16 to 2048."""
    values = torch.ones(2, 4099, dtype=dtype)
    terms = LossTerms(values, torch.ones_like(values) if weighted else None)
    assert float(terms.weight()) == float(terms.weighted_sum()) == 2 * 4099
    rows = terms.by_row()
    assert rows.weights is not None and rows.weights.tolist() == [4099, 4099]
    assert rows.values.tolist() == [1.0, 1.0]
    assert terms.gradient(terms.weight()).dtype == dtype


@pytest.mark.parametrize("shape", [(4,), (4, 3), (4, 3, 2)])
def test_rows_add_up_to_the_whole(shape: tuple[int, ...]) -> None:
    generator = torch.Generator().manual_seed(0)
    terms = LossTerms(torch.rand(shape, generator=generator), torch.rand(shape, generator=generator))
    torch.testing.assert_close(terms.by_row().weighted_sum(), terms.weighted_sum())


# what a user's loss returns


def test_a_loss_that_is_already_reduced_is_refused() -> None:
    with pytest.raises(SettingError, match=r"loss: returned shape \(\) for 3 rows.*reduction='none'"):
        as_terms(torch.tensor(1.0), rows=3)


def test_a_loss_without_a_row_each_is_refused() -> None:
    with pytest.raises(SettingError, match=r"loss: returned shape \(2,\) for 3 rows"):
        over_batches(lambda outputs, data: outputs[:2])(torch.zeros(3), Batch.of(torch.zeros(3)))


def test_weights_of_another_shape_are_refused() -> None:
    """Weights of one row for each token would be broadcast, and their sum too small."""
    with pytest.raises(SettingError, match=r"values of shape \(3, 3\) with weights of shape \(3,\)"):
        as_terms(LossTerms(torch.zeros(3, 3), torch.ones(3)), rows=3)


def test_something_else_than_a_tensor_is_refused() -> None:
    with pytest.raises(SettingError, match="loss: returned float"):
        as_terms(1.0, rows=1)  # type: ignore[arg-type]


# built-in losses


def test_cross_entropy_is_the_mean_of_torch_over_labels_that_count() -> None:
    logits = torch.randn(5, 4, generator=torch.Generator().manual_seed(0))
    labels = torch.tensor([0, 3, IGNORED, 1, IGNORED])
    torch.testing.assert_close(mean(cross_entropy(logits, (None, labels))), F.cross_entropy(logits, labels))


def test_cross_entropy_of_tokens_keeps_one_value_a_token() -> None:
    logits = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(0))
    labels = torch.tensor([[0, IGNORED, 1], [2, 3, IGNORED]])
    terms = cross_entropy(logits, {"labels": labels})
    assert terms.values.shape == (2, 3)
    torch.testing.assert_close(mean(terms), F.cross_entropy(logits.flatten(0, 1), labels.flatten()))


def test_a_nan_at_an_ignored_label_reaches_no_gradient() -> None:
    logits = torch.zeros(3, 2, requires_grad=True)
    spoiled = logits * torch.tensor([[1.0], [NAN], [1.0]])
    terms = cross_entropy(spoiled, {"labels": torch.tensor([0, IGNORED, 1])})
    terms.values.backward(terms.gradient(terms.weight()))
    assert logits.grad is not None
    assert logits.grad[[0, 2]].isfinite().all()
    inner = torch.tensor([[0.0, 0.0], [NAN, NAN]], requires_grad=True)
    cross_entropy(inner, {"labels": torch.tensor([0, IGNORED])}).weighted_sum().backward()
    assert inner.grad is not None and inner.grad.isfinite().all()


def test_causal_lm_scores_each_position_on_the_next_token_as_transformers_does() -> None:
    logits = torch.randn(2, 4, 5, generator=torch.Generator().manual_seed(0))
    labels = torch.tensor([[1, 2, 3, 4], [4, 0, IGNORED, IGNORED]])
    terms = causal_lm(logits, {"labels": labels})
    assert terms.values.shape == labels.shape
    assert float(terms.weight()) == 4.0
    expected = F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
    torch.testing.assert_close(mean(terms), expected)


def test_mse_is_the_mean_of_torch() -> None:
    outputs, labels = torch.tensor([[1.0], [2.0]]), torch.tensor([3.0, 5.0])
    assert mse(outputs, (None, labels)).values.tolist() == [4.0, 9.0]


def test_mse_compares_bf16_outputs_with_the_labels_as_they_are() -> None:
    labels = torch.tensor([1000.25])
    terms = mse(torch.tensor([1000.0], dtype=torch.bfloat16), (None, labels))
    assert terms.values.tolist() == [0.0625]


@pytest.mark.parametrize("kind", [torch.float32, torch.int64])
def test_binary_cross_entropy_is_that_of_torch_for_each_label(kind: torch.dtype) -> None:
    logits = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
    labels = torch.tensor([[1, 0, 0, 1], [0, 0, 0, 0], [1, 1, 1, 1]], dtype=kind)
    terms = binary_cross_entropy(logits, (None, labels))
    assert terms.values.shape == (3, 4) and terms.weight() == 12.0
    torch.testing.assert_close(mean(terms), nn.BCEWithLogitsLoss()(logits, labels.float()))


def test_binary_cross_entropy_of_bf16_logits_is_summed_in_float32() -> None:
    terms = binary_cross_entropy(torch.zeros(2, 1, dtype=torch.bfloat16), (None, torch.tensor([1.0, 0.0])))
    assert terms.values.dtype is torch.float32
    assert terms.values.tolist() == pytest.approx([math.log(2)] * 2)


def test_binary_cross_entropy_refuses_a_class_for_many_logits() -> None:
    with pytest.raises(SettingError, match=r"logits of shape \(2, 3\) and labels of shape \(2,\)"):
        binary_cross_entropy(torch.zeros(2, 3), (None, torch.zeros(2)))


def test_mse_refuses_outputs_of_other_rows() -> None:
    with pytest.raises(SettingError, match=r"mse of outputs of shape \(2, 2\) and labels of shape \(4,\)"):
        mse(torch.zeros(2, 2), (None, torch.zeros(4)))


@pytest.mark.parametrize("loss", [cross_entropy, causal_lm])
def test_labels_are_counted_exactly_in_bf16(loss: Callable[..., LossTerms]) -> None:
    """bf16 has 8 bits: 2,049 ones would add up to 2,048."""
    labels = torch.zeros(1, 2050, dtype=torch.int64)
    labels[0, 0] = IGNORED
    terms = loss(torch.zeros(1, 2050, 2, dtype=torch.bfloat16), {"labels": labels})
    assert float(terms.weight()) == 2049.0


# soft labels


@pytest.mark.parametrize("shape", [(5, 4), (2, 3, 4)])
def test_cross_entropy_of_soft_labels_is_that_of_torch(shape: tuple[int, ...]) -> None:
    generator = torch.Generator().manual_seed(0)
    logits, labels = (
        torch.randn(shape, generator=generator),
        torch.rand(shape, generator=generator).softmax(-1),
    )
    terms = cross_entropy(logits, {"labels": labels})
    assert terms.values.shape == shape[:-1]
    torch.testing.assert_close(mean(terms), F.cross_entropy(logits.flatten(0, -2), labels.flatten(0, -2)))


def test_soft_labels_of_one_class_are_hard_labels() -> None:
    logits = torch.randn(5, 4, generator=torch.Generator().manual_seed(0))
    labels = torch.tensor([0, 3, 2, 1, 2])
    soft = cross_entropy(logits, (None, F.one_hot(labels, 4).float()))
    torch.testing.assert_close(soft.values, cross_entropy(logits, (None, labels)).values)


def test_soft_labels_of_bf16_logits_keep_their_digits() -> None:
    logits = torch.randn(3, 1000, generator=torch.Generator().manual_seed(0)).bfloat16()
    labels = torch.rand(3, 1000, generator=torch.Generator().manual_seed(1)).softmax(-1)
    found = cross_entropy(logits, (None, labels)).values
    expected = F.cross_entropy(logits.double(), labels.double(), reduction="none")
    torch.testing.assert_close(found.double(), expected, rtol=1e-6, atol=0)


@pytest.mark.parametrize("shape", [(4,), (4, 1), (4, 2, 1)])
def test_soft_labels_of_another_shape_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(DataError, match=r"floating labels of shape .* do not fit logits of shape \(4, 2\)"):
        cross_entropy(torch.randn(4, 2), (None, torch.zeros(shape)))


@pytest.mark.parametrize(
    ("labels", "remedy"),
    [
        ([[1.0, 0.0, 1.0], [0.0, 1.0, 0.0]], "loss binary_cross_entropy"),
        ([[0.0, 1.0, 0.0], [0.0, 0.0, 0.0]], "row 1 .* 0 of 1"),
        ([[2.5, 0.0, -1.0], [0.0, 1.0, 0.0]], "loss mse"),
    ],
)
def test_floating_labels_that_are_no_probabilities_are_refused_by_cross_entropy_alone(
    labels: list[list[float]], remedy: str
) -> None:
    data = (None, torch.tensor(labels))
    with pytest.raises(DataError, match=remedy):
        check_soft_labels(cross_entropy, data)
    check_soft_labels(binary_cross_entropy, data)


@pytest.mark.parametrize("labels", [[[0.5, 0.4, 0.0]], [[0.0, 1.0, 0.0]], [[1.001, 0.0, 0.0]], [1.0, 3.0]])
def test_probabilities_without_the_least_likely_classes_are_soft_labels(labels: list[Any]) -> None:
    check_soft_labels(cross_entropy, (None, torch.tensor(labels)))


@pytest.mark.parametrize("kind", [torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool])
@pytest.mark.parametrize(
    "loss", [cross_entropy, find_loss(nn.CrossEntropyLoss(torch.tensor([1.0, 5.0, 2.0]), reduction="none"))]
)
def test_labels_in_few_bits_give_the_loss_of_those_in_64(kind: torch.dtype, loss: Any) -> None:
    logits, labels = torch.randn(3, 3), torch.tensor([1, 0, 1])
    wide, narrow = (loss(logits, (None, each)) for each in (labels, labels.to(kind)))
    torch.testing.assert_close(mean(narrow), mean(wide), rtol=0, atol=0)


def test_a_single_score_has_no_cross_entropy() -> None:
    logits = torch.randn(4, 1)
    for labels in (torch.zeros(4, dtype=torch.int64), torch.ones(4, 1)):
        with pytest.raises(SettingError, match="of a single class, is always 0"):
            cross_entropy(logits, (None, labels))


def test_labels_of_another_shape_are_told_what_loss_takes_them() -> None:
    with pytest.raises(DataError, match="take loss binary_cross_entropy"):
        cross_entropy(torch.randn(4, 3), (None, torch.ones(4, 3, dtype=torch.int64)))
    with pytest.raises(DataError, match=r"CrossEntropyLoss\(reduction='none'\)"):
        cross_entropy(torch.randn(2, 3, 4, 5), (None, torch.ones(2, 4, 5, dtype=torch.int64)))


def test_a_language_model_has_no_soft_labels() -> None:
    with pytest.raises(DataError, match="causal_lm needs integer labels"):
        causal_lm(torch.randn(4, 2, 3), (None, torch.zeros(4, 2)))


# rows against rows


def embeddings() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(5, 3, generator=generator).double(), torch.randn(5, 3, generator=generator).double()


def by_hand(query: Tensor, key: Tensor, temperature: float) -> list[float]:
    """Van den Oord et al. 2018, equation 4, of cosines."""
    found = []
    for row, one in enumerate(query):
        cosines = [float(one @ other / (one.norm() * other.norm())) for other in key]
        powers = [math.exp(cosine / temperature) for cosine in cosines]
        found.append(-math.log(powers[row] / sum(powers)))
    return found


@pytest.mark.parametrize(
    "form",
    [
        lambda query, key: {"query": query, "key": key},
        lambda query, key: SimpleNamespace(query=query, key=key),
        lambda query, key: (query, key),
        lambda query, key: [query, key, torch.zeros(5)],
        lambda query, key: torch.stack([query, key], dim=1),
    ],
)
def test_info_nce_is_the_papers_equation_in_every_form_of_outputs(form: Callable[..., Any]) -> None:
    query, key = embeddings()
    terms = InfoNCE(temperature=0.3)(form(query, key), None)
    assert isinstance(terms, LossTerms) and terms.weights is None
    assert terms.values.tolist() == pytest.approx(by_hand(query, key, 0.3))


def test_the_symmetric_one_is_the_mean_of_both_directions() -> None:
    query, key = embeddings()
    found = find_loss("info_nce_symmetric")((query, key), None)
    assert isinstance(found, LossTerms)
    pairs = zip(by_hand(query, key, 0.05), by_hand(key, query, 0.05), strict=True)
    assert found.values.tolist() == pytest.approx([(one + other) / 2 for one, other in pairs])


def test_cosines_are_not_rounded_under_autocast() -> None:
    query, key = (side.float() for side in embeddings())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = InfoNCE()((query, key), None)
    assert torch.equal(found.values, InfoNCE()((query, key), None).values)


@pytest.mark.parametrize(
    "outputs",
    [
        torch.zeros(4, 3),
        torch.zeros(4, 3, 2),
        (torch.zeros(4, 3),),
        {"logits": torch.zeros(4, 3)},
        (torch.zeros(4, 3), torch.zeros(3, 3)),
        (torch.zeros(4), torch.zeros(4)),
        None,
    ],
)
def test_outputs_without_two_embeddings_a_row_are_refused(outputs: Any) -> None:
    with pytest.raises(SettingError, match="info_nce needs two embeddings a row, and found"):
        InfoNCE()(outputs, None)


def test_what_was_found_instead_of_two_embeddings_is_named() -> None:
    outputs = {"loss": None, "logits": torch.zeros(4, 3)}
    with pytest.raises(
        SettingError, match=r"found loss NoneType, logits \(4, 3\) in dict\. Return 'query' and 'key'"
    ):
        InfoNCE()(outputs, None)
    with pytest.raises(SettingError, match=r"found 0 \(4, 3\), 1 \(3, 3\) in tuple\."):
        InfoNCE()((torch.zeros(4, 3), torch.zeros(3, 3)), None)


@pytest.mark.parametrize("temperature", [0.0, -1.0, NAN])
def test_an_impossible_temperature_is_refused(temperature: float) -> None:
    with pytest.raises(SettingError, match="info_nce.temperature: must be positive"):
        InfoNCE(temperature)


def test_a_loss_says_by_an_attribute_that_it_couples_rows() -> None:
    def own(outputs: Any, data: Any) -> Tensor:
        return outputs  # type: ignore[no-any-return]

    assert couples_rows(InfoNCE()) and couples_rows(functools.partial(InfoNCE()))
    assert not couples_rows(own) and not couples_rows(cross_entropy)
    own.couples_rows = True  # type: ignore[attr-defined]
    assert couples_rows(own)


# finding a loss


def test_an_unknown_name_gets_the_nearest_one() -> None:
    with pytest.raises(SettingError, match="no built-in 'cross_entrop'. Did you mean 'cross_entropy'?"):
        find_loss("cross_entrop")


def test_a_torch_loss_that_reduces_is_refused() -> None:
    with pytest.raises(
        SettingError, match="CrossEntropyLoss has reduction='mean'. Make it with reduction='none'"
    ):
        find_loss(nn.CrossEntropyLoss())


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("weight", [None, torch.tensor([1.0, 2.0, 0.5])])
def test_torch_cross_entropy_without_reduction_has_the_mean_that_torch_gives(
    weight: Tensor | None, smoothing: float
) -> None:
    """Over the labels that count, weighted by their class: not over all rows."""
    logits = torch.randn(6, 3, generator=torch.Generator().manual_seed(0))
    labels = torch.tensor([0, 1, IGNORED, 2, 1, IGNORED])
    settings = {"weight": weight, "label_smoothing": smoothing}
    terms = find_loss(nn.CrossEntropyLoss(reduction="none", **settings))(logits, (None, labels))
    assert isinstance(terms, LossTerms)
    torch.testing.assert_close(mean(terms), nn.CrossEntropyLoss(**settings)(logits, labels))


@pytest.mark.parametrize("module", [nn.BCEWithLogitsLoss, nn.MSELoss, nn.SmoothL1Loss])
def test_other_torch_losses_have_the_mean_that_torch_gives(module: type[nn.Module]) -> None:
    outputs = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
    labels = torch.rand(4, 3, generator=torch.Generator().manual_seed(1))
    terms = find_loss(module(reduction="none"))(outputs, (None, labels))
    assert isinstance(terms, LossTerms)
    torch.testing.assert_close(mean(terms), module()(outputs, labels))


def test_logits_are_found_in_what_models_return() -> None:
    logits = torch.zeros(1)

    class Output:
        def __init__(self) -> None:
            self.logits = logits

    assert all(logits_of(found) is logits for found in (logits, Output(), {"logits": logits}, (logits, None)))
    with pytest.raises(SettingError, match="no logits in .* a tuple"):
        logits_of(("text",))


@pytest.mark.parametrize("module", [torch.nn.MSELoss, torch.nn.L1Loss, torch.nn.SmoothL1Loss])
def test_an_elementwise_torch_loss_does_not_spread_rows_over_rows(module: type[torch.nn.Module]) -> None:
    outputs, labels = torch.randn(4, 1), torch.randn(4)
    terms = find_loss(module(reduction="none"))(outputs, (None, labels))
    assert terms.values.shape == (4,)
    assert torch.equal(terms.values, module(reduction="none")(outputs[:, 0], labels))


def test_labels_that_do_not_fit_the_logits_are_refused_with_both_shapes() -> None:
    with pytest.raises(DataError, match=r"\(4, 1\) do not fit logits of shape \(4, 2\)"):
        cross_entropy(torch.randn(4, 2), (None, torch.zeros(4, 1, dtype=torch.long)))


def test_a_label_beyond_the_scores_is_named_with_the_range() -> None:
    with pytest.raises(
        DataError, match=r"Target 3 is out of bounds. Give labels from 0 to 2, as the model gives 3 scores"
    ):
        cross_entropy(torch.zeros(2, 3), (None, torch.tensor([0, 3])))


def test_a_function_of_torch_is_refused_with_the_way_out() -> None:
    with pytest.raises(SettingError, match=r"torch.nn.CrossEntropyLoss\(reduction='none'\)"):
        find_loss(torch.nn.functional.cross_entropy)


def test_scores_of_tokens_that_a_model_puts_before_each_text_are_named_with_how_to_leave_them_out() -> None:
    labels = torch.ones(2, 12, dtype=torch.long)
    with pytest.raises(
        DataError,
        match=r"scores of 16 tokens, and labels are of 12: it has 4 more of its own.*logits\[:, 4:\]",
    ):
        causal_lm(torch.zeros(2, 16, 5), (None, labels))
    with pytest.raises(DataError, match="do not fit logits"):
        causal_lm(torch.zeros(3, 16, 5), (None, labels))


def _column(outputs: Any, data: Any) -> Any:
    return (outputs - data[1]) ** 2


def _reduced(outputs: Any, data: Any) -> Any:
    return F.l1_loss(outputs, data[1], reduction="none").mean(1)


def _weighted(outputs: Any, data: Any) -> Any:
    return (outputs - data[1].unsqueeze(1)) ** 2 * data[1]


@pytest.mark.filterwarnings("ignore:Using a target size")
@pytest.mark.parametrize("loss", [_column, _reduced, _weighted])
def test_a_column_of_outputs_that_meets_a_row_of_labels_is_refused(loss: Any) -> None:
    batch = (torch.ones(4, 3), torch.arange(4.0))
    step = sf.Step(nn.Linear(3, 1), sf.AdamW(learning_rate=0.1), loss)
    with pytest.raises(
        SettingError, match=r"gets shapes \(4, 1\) and \(4,\), .* each row is compared with all"
    ):
        step(batch)
    single = sf.Step(nn.Linear(3, 1), sf.AdamW(learning_rate=0.1), loss, micro_batch=1)
    assert single(batch).applied  # each row meets itself alone


def test_losses_that_mean_all_pairs_or_give_both_one_shape_are_not_refused() -> None:
    def pairs(outputs: Any, data: Any) -> Any:
        return (outputs - data[1]) ** 2

    def ranking(outputs: Any, data: Any) -> Any:
        return (outputs - outputs[:, 0]).relu().mean(1) * (data[1] - data[1][:, None]).relu().mean(1)

    pairs.couples_rows = True  # type: ignore[attr-defined]
    batch = (torch.ones(4, 3), torch.arange(4.0))
    for loss in (pairs, ranking, lambda outputs, data: (outputs[:, 0] - data[1]) ** 2):
        assert sf.Step(nn.Linear(3, 1), sf.AdamW(learning_rate=0.1), loss)(batch).applied
