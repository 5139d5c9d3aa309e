"""Evaluation: every row (or token) counts once, and nothing of the model changes."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from snugfit.core.batch import Batch
from snugfit.core.loss_terms import LossTerms
from snugfit.core.losses import IGNORE_INDEX, over_batches
from snugfit.core.losses import causal_lm as causal_lm_loss
from snugfit.core.losses import cross_entropy as cross_entropy_loss
from snugfit.core.losses import mse as mse_loss
from snugfit.data.named_sources import RowSources
from snugfit.errors import OutOfMemory, SettingError
from snugfit.kit.language_models.token_scores import Seen
from snugfit.step.evaluate import Scored, evaluate
from snugfit.step.metrics.all_rows_metrics import over_all_rows
from snugfit.step.metrics.metric import check_fit, check_metrics
from snugfit.step.module_modes import eval_mode
from snugfit.step.step import Step
from snugfit.techniques.learning.ema import EMA
from snugfit.techniques.learning.gradient_cache import GradientCache
from snugfit.techniques.learning.label_smoothing import LabelSmoothing
from snugfit.techniques.learning.sgd import SGD

ROWS = 23
UNEVEN = (10, 1, 7, 5)


@pytest.fixture(scope="module")
def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 5))


@pytest.fixture(scope="module")
def data() -> tuple[Tensor, Tensor]:
    source = torch.Generator().manual_seed(1)
    labels = torch.randint(0, 4, (ROWS,), generator=source)  # class 4 is never a label
    labels[[3, 11]] = IGNORE_INDEX
    return torch.randn(ROWS, 4, generator=source), labels


def scored(model: nn.Module, loss: Any = cross_entropy_loss, micro_batch: int | None = None) -> Scored:
    def run(batch: Batch) -> Any:
        return model(batch.data["x"] if isinstance(batch.data, dict) else batch.data[0])

    return Scored(model, torch.device("cpu"), run, over_batches(loss), micro_batch=micro_batch)


def cut(data: tuple[Tensor, ...], sizes: tuple[int, ...]) -> Iterator[Batch]:
    for parts in zip(*(tensor.split(sizes) for tensor in data), strict=True):
        yield Batch.of(parts)


@pytest.mark.parametrize("micro_batch", [None, 1, 3, 100])
@pytest.mark.parametrize("sizes", [(ROWS,), UNEVEN, (1,) * ROWS])
def test_the_loss_of_uneven_batches_is_that_of_one_pass(
    model: nn.Module, data: tuple[Tensor, Tensor], sizes: tuple[int, ...], micro_batch: int | None
) -> None:
    found = evaluate(scored(model, micro_batch=micro_batch), cut(data, sizes), {})["loss"]
    with torch.no_grad(), eval_mode(model):
        expected = F.cross_entropy(model(data[0]), data[1], ignore_index=IGNORE_INDEX).item()
    assert found == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("micro_batch", [None, 2])
def test_accuracy_and_macro_f1_are_those_of_scikit_learn(
    model: nn.Module, data: tuple[Tensor, Tensor], micro_batch: int | None
) -> None:
    from sklearn.metrics import accuracy_score, f1_score

    metrics = {"accuracy": "accuracy", "macro_f1": "macro_f1"}
    found = evaluate(scored(model, micro_batch=micro_batch), cut(data, UNEVEN), metrics)
    with torch.no_grad(), eval_mode(model):
        predicted = model(data[0]).argmax(dim=1)
    counted = data[1] != IGNORE_INDEX
    truth, guess = data[1][counted].numpy(), predicted[counted].numpy()
    assert found["accuracy"] == pytest.approx(accuracy_score(truth, guess), rel=1e-6)
    assert found["macro_f1"] == pytest.approx(f1_score(truth, guess, average="macro"), rel=1e-6)


def test_metrics_of_all_predictions_are_those_of_scikit_learn(
    model: nn.Module, data: tuple[Tensor, Tensor]
) -> None:
    from sklearn.metrics import precision_score, recall_score, roc_auc_score

    names = {name: name for name in ("auroc", "macro_precision", "macro_recall")}
    metrics = evaluate(scored(model, micro_batch=3), cut(data, UNEVEN), names)
    with torch.no_grad(), eval_mode(model):
        logits = model(data[0])
    counted = data[1] != IGNORE_INDEX
    true, probabilities = data[1][counted].numpy(), logits[counted].double().softmax(dim=1).numpy()
    areas = [roc_auc_score(true == place, probabilities[:, place]) for place in range(4)]  # no label is 4
    assert metrics["auroc"] == pytest.approx(np.mean(areas), rel=1e-12)
    for name, score in (("macro_precision", precision_score), ("macro_recall", recall_score)):
        known = score(true, probabilities.argmax(axis=1), average="macro", zero_division=0)
        assert metrics[name] == pytest.approx(known, rel=1e-12)


@pytest.mark.parametrize("outputs", [1, 2])
def test_the_area_of_two_classes_is_that_of_scikit_learn_with_ties_and_sure_predictions(outputs: int) -> None:
    from sklearn.metrics import roc_auc_score

    score = torch.tensor(
        [60.0, 90.0, 0.5, 0.5, -40.0, 0.5, -70.0, 80.0]
    )  # probabilities of 1.0 in float64, which differ
    logits = torch.stack([torch.zeros(8), score], dim=1) if outputs == 2 else score[:, None]
    labels = torch.tensor([0, 1, 1, 0, 0, 1, 0, 1])
    batches = cut((logits, labels), (3, 4, 1))
    found = evaluate(scored(nn.Identity(), lambda logits, _: logits[:, 0]), batches, {"auroc": "auroc"})
    assert found["auroc"] == pytest.approx(roc_auc_score(labels, score), rel=1e-12)


def test_correlations_are_those_of_scipy() -> None:
    from scipy.stats import pearsonr, spearmanr

    source = torch.Generator().manual_seed(2)
    predicted, labels = torch.randn(2, ROWS, generator=source)
    labels[:5] = 0.25  # ties
    names = {name: name for name in ("pearson", "spearman")}
    found = evaluate(scored(nn.Identity(), mse_loss), cut((predicted[:, None], labels), UNEVEN), names)
    assert found["pearson"] == pytest.approx(pearsonr(predicted, labels).statistic, rel=1e-6)
    assert found["spearman"] == pytest.approx(spearmanr(predicted, labels).statistic, rel=1e-6)
    same = evaluate(scored(nn.Identity(), mse_loss), cut((torch.ones(ROWS, 1), labels), UNEVEN), names)
    assert math.isnan(same["pearson"]) and math.isnan(same["spearman"])


def test_a_metric_of_ones_own_over_all_rows_gets_each_of_them_once_filled_up_to_the_longest() -> None:
    source = torch.Generator().manual_seed(3)
    widths = (4, 2, 3)
    parts = [
        (torch.randn(rows, width, 5, generator=source), torch.randint(0, 5, (rows, width), generator=source))
        for rows, width in zip((3, 1, 2), widths, strict=True)
    ]
    seen: list[tuple[Tensor, Tensor]] = []

    @over_all_rows
    def count(logits: Tensor, labels: Tensor) -> Tensor:
        seen.append((logits, labels))
        return (labels != IGNORE_INDEX).sum()

    found = evaluate(scored(nn.Identity(), micro_batch=2), map(Batch.of, parts), {"count": count})
    assert found["count"] == 3 * 4 + 1 * 2 + 2 * 3
    ((logits, labels),) = seen
    assert (logits.shape, labels.shape) == ((6, 4, 5), (6, 4))
    assert labels[3].tolist() == [*parts[1][1][0].tolist(), IGNORE_INDEX, IGNORE_INDEX]
    assert torch.equal(logits[4:, :3], parts[2][0]) and not logits[4:, 3:].any()


@pytest.mark.parametrize("metric", ["mse", "r2", "pearson", "spearman"])
def test_numbers_that_are_not_one_for_each_label_are_refused(metric: str) -> None:
    batches = [Batch.of((torch.zeros(8, 3), torch.zeros(8)))]
    with pytest.raises(SettingError, match=r"found outputs of shape \(8, 3\) for labels of shape \(8,\)"):
        evaluate(scored(nn.Identity(), lambda logits, _: logits[:, 0]), batches, {metric: metric})


def test_a_metric_over_all_rows_that_fails_is_named_with_its_line(
    model: nn.Module, data: tuple[Tensor, Tensor]
) -> None:
    @over_all_rows
    def wrong(logits: Tensor, labels: Tensor) -> Tensor:
        raise ValueError("too few")

    with pytest.raises(SettingError, match=r"wrong failed: ValueError: too few.*test_evaluate.py"):
        evaluate(scored(model), cut(data, UNEVEN), {"wrong": wrong})


def test_a_metric_over_all_rows_that_gives_no_number_is_refused(
    model: nn.Module, data: tuple[Tensor, Tensor]
) -> None:
    @over_all_rows
    def wrong(logits: Tensor, labels: Tensor) -> Tensor:
        return logits

    with pytest.raises(SettingError, match="wrong returned Tensor for all rows"):
        evaluate(scored(model), cut(data, UNEVEN), {"wrong": wrong})


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (torch.rand(8), "auroc needs integer labels"),
        (torch.zeros(8, 2).long(), "needs a logit for each class"),
    ],
)
def test_labels_of_which_there_is_no_area_are_refused(labels: Tensor, message: str) -> None:
    batches = [Batch.of((torch.zeros(8, 3), labels))]
    with pytest.raises(SettingError, match=message):
        evaluate(scored(nn.Identity(), lambda logits, _: logits[:, 0]), batches, {"auroc": "auroc"})


def test_errors_of_a_regression_are_those_of_scikit_learn() -> None:
    from sklearn.metrics import mean_absolute_error, mean_squared_error, r2_score, root_mean_squared_error

    torch.manual_seed(2)
    inputs, labels, model = torch.randn(ROWS, 3), torch.randn(ROWS), nn.Linear(3, 1)
    names = {name: name for name in ("mse", "mae", "rmse", "r2")}
    found = evaluate(scored(model, mse_loss, 4), cut((inputs, labels), UNEVEN), names)
    predicted = model(inputs).detach().flatten()
    assert found["mse"] == pytest.approx(mean_squared_error(labels, predicted), rel=1e-6)
    assert found["loss"] == pytest.approx(found["mse"], rel=1e-6)
    assert found["mae"] == pytest.approx(mean_absolute_error(labels, predicted), rel=1e-6)
    assert found["rmse"] == pytest.approx(root_mean_squared_error(labels, predicted), rel=1e-6)
    assert found["r2"] == pytest.approx(r2_score(labels, predicted), rel=1e-6)


@pytest.mark.parametrize("micro_batch", [None, 2])
def test_a_language_model_is_weighted_by_tokens(micro_batch: int | None) -> None:
    torch.manual_seed(3)
    table = nn.Embedding(7, 7)
    ids = torch.randint(1, 7, (5, 6))
    mask = torch.arange(6) < torch.tensor([6, 2, 3, 6, 4]).unsqueeze(1)
    labels = ids.masked_fill(~mask, IGNORE_INDEX)

    def batches() -> Iterator[Batch]:
        for rows in (slice(0, 1), slice(1, 5)):
            yield Batch.of({"x": ids[rows], "attention_mask": mask[rows].long(), "labels": labels[rows]})

    found = evaluate(scored(table, causal_lm_loss, micro_batch), batches(), {"perplexity": "perplexity"})
    # Shannon 1948: the mean of -log p(token | tokens before) over all tokens but each row's first
    terms = [
        -table(ids[row, place]).log_softmax(0)[ids[row, place + 1]].item()
        for row in range(5)
        for place in range(int(mask[row].sum()) - 1)
    ]
    assert len(terms) == 16
    assert found["loss"] == pytest.approx(np.mean(terms), rel=1e-6)
    assert found["perplexity"] == pytest.approx(math.exp(np.mean(terms)), rel=1e-6)


@pytest.mark.parametrize("micro_batch", [None, 1, 2, 4])
def test_rows_that_are_compared_are_scored_against_all_of_their_batch(micro_batch: int | None) -> None:
    """A smaller micro-batch must not mean fewer negatives: the score would depend on the memory."""
    torch.manual_seed(4)
    towers, inputs = nn.Linear(3, 8).double(), torch.randn(5, 3).double()
    step = Step(
        towers,
        SGD(),
        "info_nce",
        [GradientCache()],
        micro_batch=micro_batch,
        forward=lambda model, data: model(data).view(-1, 2, 4),
    )
    found = evaluate(Scored.of(step), [Batch.of(inputs)], {})["loss"]
    query, key = (F.normalize(side, dim=1) for side in towers(inputs).view(-1, 2, 4).unbind(1))
    expected = F.cross_entropy(query @ key.T / 0.05, torch.arange(5))
    assert found == pytest.approx(expected.item(), rel=1e-12)


def margin(outputs: Tensor, data: Any) -> Tensor:
    top = outputs.topk(2, dim=1).values
    return top[:, 0] - top[:, 1]


def test_a_metric_of_ones_own_is_the_mean_over_rows(model: nn.Module, data: tuple[Tensor, Tensor]) -> None:
    found = evaluate(scored(model, micro_batch=3), cut(data, UNEVEN), {"margin": margin})
    with torch.no_grad(), eval_mode(model):
        expected = margin(model(data[0]), data).mean().item()
    assert found["margin"] == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(
    ("result", "found"),
    [(torch.tensor(1.0), r"shape \(\)"), (torch.ones(ROWS, 2), r"shape \(23, 2\)"), (0.5, "float")],
)
def test_a_metric_that_does_not_give_one_value_a_row_is_refused(
    model: nn.Module, data: tuple[Tensor, Tensor], result: Any, found: str
) -> None:
    def mine(outputs: Any, batch: Any) -> Any:
        return result

    with pytest.raises(SettingError, match=rf"^evaluate\.metrics: mine returned {found} for 23 rows"):
        evaluate(scored(model), cut(data, (ROWS,)), {"mine": mine})


def test_each_modules_mode_and_the_global_random_state_are_restored(
    model: nn.Module, data: tuple[Tensor, Tensor]
) -> None:
    model.train()
    model[2].eval()
    before = [part.training for part in model.modules()]
    state = torch.get_rng_state()
    during = []

    def look(outputs: Any, batch: Any) -> Tensor:
        during.append([part.training for part in model.modules()])
        return torch.rand(len(outputs))

    evaluate(scored(model), cut(data, UNEVEN), {"look": look})
    assert not any(mode for modes in during for mode in modes)
    assert [part.training for part in model.modules()] == before
    assert torch.equal(torch.get_rng_state(), state)


def test_modes_and_weights_are_restored_after_an_error(data: tuple[Tensor, Tensor]) -> None:
    model = nn.Sequential(nn.Linear(4, 5), nn.Dropout(0.5)).train()
    step = Step(model, SGD(learning_rate=0.5), techniques=[EMA(decay=0.9)])
    step((data[0], data[1]))
    raw = model[0].weight.detach().clone()

    def fail(outputs: Any, batch: Any) -> Tensor:
        assert not torch.equal(model[0].weight, raw)
        raise KeyError("mine")

    with pytest.raises(KeyError):
        evaluate(Scored.of(step), cut(data, UNEVEN), {"fail": fail})
    assert torch.equal(model[0].weight, raw)
    assert all(part.training for part in model.modules())


def test_the_score_has_the_users_loss_and_none_of_what_techniques_add(data: tuple[Tensor, Tensor]) -> None:
    torch.manual_seed(4)
    model = nn.Linear(4, 5)
    step = Step(model, SGD(learning_rate=0.1), techniques=[LabelSmoothing(epsilon=0.5)])
    found = evaluate(Scored.of(step), cut(data, UNEVEN), {})["loss"]
    assert found == pytest.approx(F.cross_entropy(model(data[0]), data[1]).item(), rel=1e-6)


def test_the_weights_to_score_are_the_techniques(data: tuple[Tensor, Tensor]) -> None:
    model = nn.Linear(4, 5)

    @contextmanager
    def zeros(scored_model: nn.Module) -> Iterator[None]:
        originals = [parameter.detach().clone() for parameter in scored_model.parameters()]
        for parameter in scored_model.parameters():
            parameter.data.zero_()
        yield
        for parameter, value in zip(scored_model.parameters(), originals, strict=True):
            parameter.data.copy_(value)

    averaged = Scored(
        model,
        torch.device("cpu"),
        lambda b: model(b.data[0]),
        over_batches(cross_entropy_loss),
        weights=zeros,
    )
    assert evaluate(averaged, cut(data, UNEVEN), {})["loss"] == pytest.approx(math.log(5), rel=1e-6)


def test_a_loss_that_counts_nothing_is_nan(model: nn.Module, data: tuple[Tensor, Tensor]) -> None:
    ignored = torch.full_like(data[1], IGNORE_INDEX)
    assert math.isnan(evaluate(scored(model), cut((data[0], ignored), UNEVEN), {})["loss"])


def test_no_rows_are_refused(model: nn.Module) -> None:
    with pytest.raises(SettingError, match="holds no rows"):
        evaluate(scored(model), [], {})


@pytest.mark.parametrize(
    ("labels", "outputs", "message"),
    [
        (torch.zeros(3), 4, "need integer labels"),
        (torch.zeros(3).long(), 1, r"two or more classes, found outputs of shape \(3, 1\)"),
        (torch.zeros(3, 2).long(), 4, r"labels of shape \(3, 2\)"),
    ],
)
def test_labels_that_accuracy_cannot_compare_are_refused(labels: Tensor, outputs: int, message: str) -> None:
    with pytest.raises(SettingError, match=rf"^evaluate\.metrics: .*{message}"):
        evaluate(
            scored(nn.Linear(2, outputs), lambda found, batch: found.sum(dim=1)),
            [Batch.of((torch.zeros(3, 2), labels))],
            {"accuracy": "accuracy"},
        )


class Seeing:
    """Looks at rows, and has no memory for more than so many at once."""

    seen = Seen.OUTPUTS

    def __init__(self, most: int) -> None:
        self.most, self.rows = most, list[int]()

    def add(self, outputs: Tensor, part: Batch, terms: LossTerms, first: int) -> None:
        if part.rows > self.most:
            raise torch.OutOfMemoryError("in looking on")
        assert outputs.shape == (part.rows, 5) and len(terms.values) == part.rows
        self.rows += range(first, first + part.rows)


@pytest.mark.slow
def test_rows_that_run_out_of_memory_where_they_are_looked_at_come_again_and_count_once(
    model: nn.Module, data: tuple[Tensor, Tensor]
) -> None:
    def narrow(outputs: Tensor, _data: Any) -> Tensor:
        if len(outputs) > 4:
            raise torch.OutOfMemoryError("in a metric")
        return outputs[:, 0]

    names = {"accuracy": "accuracy", "auroc": "auroc"}
    metrics = {**names, "narrow": narrow, "macro_f1": "macro_f1", "first": lambda out, _: out[:, 0]}
    whole = evaluate(scored(model), cut(data, UNEVEN), {**names, "macro_f1": "macro_f1"})
    replans, looking = list[Any](), Seeing(3)
    found = evaluate(scored(model), cut(data, UNEVEN), metrics, replans.append, observer=looking)
    assert looking.rows == [*range(ROWS)]
    assert found.pop("narrow") == found.pop("first")
    assert found == pytest.approx(whole, rel=1e-6)
    assert {each.reason for each in replans} == {"in a metric", "in looking on"}
    with pytest.raises(OutOfMemory, match="a single example"):
        evaluate(scored(model), cut(data, UNEVEN), {}, observer=Seeing(0))


def test_an_unknown_metric_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(
        SettingError, match=r"^evaluate\.metrics: no metric 'accurracy'\. Did you mean 'accuracy'\?"
    ):
        check_metrics(["loss_of_nothing", "accurracy"][1:])


def test_a_label_that_the_model_has_no_class_for_is_named() -> None:
    with pytest.raises(SettingError, match="found the label 4, and the model has 3 classes"):
        evaluate(
            scored(nn.Linear(2, 3), lambda outputs, _: outputs.sum(dim=1)),
            cut((torch.randn(4, 2), torch.tensor([0, 4, 1, 2])), (4,)),
            {"accuracy": "accuracy"},
        )


@pytest.mark.parametrize(
    ("metric", "loss", "message"),
    [
        ("accuracy", "causal_lm", "accuracy compares .* Use perplexity"),
        ("perplexity", "mse", "perplexity .* Use mae"),
    ],
)
def test_a_metric_without_a_meaning_for_the_loss_is_refused(metric: str, loss: str, message: str) -> None:
    check_fit([margin, metric], "cross_entropy")
    with pytest.raises(SettingError, match=rf"^evaluate\.metrics: {message}"):
        check_fit([margin, metric], loss)


@pytest.mark.parametrize("micro_batch", [None, 3])
@pytest.mark.parametrize("tokens", [False, True])
def test_each_source_has_the_loss_of_its_rows_alone(
    model: nn.Module, data: tuple[Tensor, Tensor], micro_batch: int | None, tokens: bool
) -> None:
    inputs, labels = data
    if tokens:  # of rows of two, which weigh as many as count
        inputs, labels = inputs.unsqueeze(1).expand(-1, 2, -1), torch.stack([labels, labels.roll(5)], dim=1)
    loss = _by_token if tokens else cross_entropy_loss
    sources = RowSources(("few", "none", "many"), (0, 6, 6))
    order = torch.randperm(ROWS, generator=torch.Generator().manual_seed(2)).tolist()
    ids = iter(torch.tensor(order).split(UNEVEN))
    batches = [
        replace(batch, ids=tuple(next(ids).tolist())) for batch in cut((inputs[order], labels[order]), UNEVEN)
    ]
    scores = evaluate(scored(model, loss, micro_batch), batches, {}, sources=sources)
    assert list(scores) == ["loss", "loss/few", "loss/many"]
    assert scores["loss"] == evaluate(scored(model, loss, micro_batch), batches, {})["loss"]
    for name, rows in (("few", slice(0, 6)), ("many", slice(6, None))):
        alone = evaluate(scored(model, loss), [Batch.of((inputs[rows], labels[rows]))], {})["loss"]
        assert scores[f"loss/{name}"] == pytest.approx(alone, rel=1e-6)


def _by_token(outputs: Tensor, data: Any) -> LossTerms:
    values = F.cross_entropy(outputs.transpose(1, 2), data[1], reduction="none", ignore_index=IGNORE_INDEX)
    return LossTerms(values, (data[1] != IGNORE_INDEX).float())


def test_no_loss_of_a_source_is_told_where_it_is_not_known_which_row_is_which(
    model: nn.Module, data: tuple[Tensor, Tensor]
) -> None:
    sources = RowSources(("a", "b"), (0, 6))
    assert list(evaluate(scored(model), cut(data, UNEVEN), {}, sources=sources)) == ["loss"]
