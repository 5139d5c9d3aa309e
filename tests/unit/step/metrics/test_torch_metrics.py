"""Metrics of torchmetrics by name, beside scikit-learn: whatever the micro-batches and the ranks. In a group of the gate of their own, beside its libraries."""

from __future__ import annotations

import json
import math
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from sklearn.metrics import average_precision_score, cohen_kappa_score, f1_score, jaccard_score, roc_auc_score
from torch import nn

from snugfit.cli import main
from snugfit.core.batch import Batch
from snugfit.core.losses import cross_entropy, over_batches
from snugfit.errors import SettingError
from snugfit.step.evaluate import Scored, evaluate
from snugfit.step.metrics.metric import made_metrics, metric_name, monitored
from snugfit.step.metrics.torch_metrics import OfTorchmetrics, TorchMetric
from snugfit.strategies.base import Strategy

pytest.importorskip("torchmetrics", exc_type=ImportError)

GENERATOR = torch.Generator().manual_seed(0)
LOGITS = torch.randn(50, 3, generator=GENERATOR)
LABELS = torch.randint(0, 3, (50,), generator=GENERATOR)
NAMES = ("cat", "dog", "cow")


def value(metric: str, logits: torch.Tensor, labels: torch.Tensor, sizes: int = 7) -> Any:
    made = TorchMetric(OfTorchmetrics(metric, NAMES))
    for own, true in zip(logits.split(sizes), labels.split(sizes), strict=True):
        made.update(own, Batch.of({"labels": true}))
    return made.compute(Strategy())


def test_classes_rows_and_tokens_are_scored_as_by_scikit_learn() -> None:
    told = LOGITS.argmax(1)
    assert value("torchmetrics.CohenKappa", LOGITS, LABELS) == pytest.approx(cohen_kappa_score(LABELS, told))
    by_class = value("torchmetrics.F1Score(average='none')", LOGITS, LABELS)
    assert by_class == pytest.approx(dict(zip(NAMES, f1_score(LABELS, told, average=None), strict=True)))
    labels = LABELS.reshape(10, 5).clone()
    labels[:, 4] = -100
    kept = labels.flatten() != -100
    expected = f1_score(LABELS[kept], told[kept], average="macro")
    tokens = value("torchmetrics.F1Score(average='macro')", LOGITS.reshape(10, 5, 3), labels, 3)
    assert tokens == pytest.approx(expected)
    pixels = LOGITS.reshape(2, 5, 5, 3), LABELS.reshape(2, 5, 5)
    expected = jaccard_score(LABELS, told, average="macro")
    assert value("torchmetrics.JaccardIndex", *pixels, 1) == pytest.approx(expected)


def test_two_classes_labels_and_numbers_are_given_as_each_metric_takes_them() -> None:
    two, labels = LOGITS[:, :2], (LABELS > 0).long()
    area = roc_auc_score(labels, two.softmax(1)[:, 1])
    assert value("torchmetrics.AUROC(task='binary')", two, labels) == pytest.approx(area)
    assert value("torchmetrics.classification.BinaryAUROC", two, labels) == pytest.approx(area)
    assert value("torchmetrics.AUROC", two.diff(dim=1), labels) == pytest.approx(area)
    of_row = torch.nn.functional.one_hot(LABELS, 3).float()
    expected = average_precision_score(of_row, LOGITS, average="macro")
    assert value("torchmetrics.AveragePrecision", LOGITS, of_row) == pytest.approx(expected, rel=1e-5)
    true = LOGITS[:, 0] + 3
    error = ((LOGITS[:, 1] - true) / true).abs().mean().item()
    assert value("torchmetrics.MeanAbsolutePercentageError", LOGITS[:, 1:2], true) == pytest.approx(error)


class _TwoRanks(Strategy):
    """What one of two threads says, the other hears."""

    world_size = 2

    def __init__(self, rank: int, said: list[Any], barrier: threading.Barrier) -> None:
        self.rank, self._said, self._barrier = rank, said, barrier

    def tell(self, value: Any) -> list[Any]:
        self._said[self.rank] = value
        self._barrier.wait()
        heard = list(self._said)
        self._barrier.wait()
        return heard


@pytest.mark.parametrize("rows", [20, 50])
@pytest.mark.parametrize("metric", ["CohenKappa", "AUROC", "F1Score(average='none')"])
def test_ranks_of_some_rows_and_of_none_give_the_score_of_one(metric: str, rows: int) -> None:
    said, barrier = [None, None], threading.Barrier(2, timeout=30)
    given: list[Any] = [None, None]

    def compute(rank: int) -> None:
        made = TorchMetric(OfTorchmetrics(f"torchmetrics.{metric}", NAMES))
        own = slice(0, rows) if rank == 0 else slice(rows, None)
        if len(LABELS[own]):
            made.update(LOGITS[own], Batch.of({"labels": LABELS[own]}))
        given[rank] = made.compute(_TwoRanks(rank, said, barrier))

    threads = [threading.Thread(target=compute, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    expected = pytest.approx(value(f"torchmetrics.{metric}", LOGITS, LABELS))
    assert given[0] == given[1] == expected


def test_one_for_each_class_is_told_by_names_beside_its_mean() -> None:
    scored = Scored(
        nn.Identity(), torch.device("cpu"), lambda batch: batch.data["logits"], over_batches(cross_entropy)
    )
    name = metric_name("torchmetrics.F1Score(average='none')")
    made = made_metrics({name: "torchmetrics.F1Score(average='none')"}, {}, NAMES)
    scores = evaluate(scored, [Batch.of({"logits": LOGITS, "labels": LABELS})], made)
    own = [scores[f"F1Score(average=none) of {each}"] for each in NAMES]
    assert scores[name] == pytest.approx(sum(own) / 3)
    assert monitored(f"max:{name}", ["torchmetrics.F1Score(average='none')"]) == (name, True)
    assert math.isnan(TorchMetric(OfTorchmetrics("torchmetrics.CohenKappa")).compute(Strategy()))


def test_memory_that_runs_out_is_no_mistake_of_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    made = TorchMetric(OfTorchmetrics("torchmetrics.CohenKappa"))
    made.update(LOGITS, Batch.of({"labels": LABELS}))

    def fail(*_: object) -> None:
        raise torch.OutOfMemoryError

    monkeypatch.setattr(made._metric, "update", fail)
    with pytest.raises(torch.OutOfMemoryError):
        made.update(LOGITS, Batch.of({"labels": LABELS}))


@pytest.mark.parametrize(
    ("metric", "words"),
    [
        ("torchmetrics.CohenKapa", "torchmetrics has no 'CohenKapa'.*Did you mean 'CohenKappa'"),
        ("torchmetrics.F1Score('macro')", "cannot be read.*settings have names.*Write it as Python"),
        ("torchmetrics.F1Score(", "cannot be read"),
        ("torchmetrics.F1Score(average='mean')", "failed: .*average"),
        ("torchmetrics.ConfusionMatrix", r"gives shape \(3, 3\), and a metric is one number"),
        ("torchmetrics.MeanSquaredError", "metrics of numbers need an output for each label"),
        ("torchmetrics.AUROC(task='binary')", "is of two classes, and there are 3"),
    ],
)
def test_what_is_none_or_does_not_fit_is_named(metric: str, words: str) -> None:
    with pytest.raises(SettingError, match=f"(?s)evaluate.metrics.*{words}"):
        value(metric, LOGITS, LABELS)


def test_a_run_keeps_the_best_by_one_and_a_file_is_scored_by_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    lines = [f"{number % 7},{number % 3},{'abc'[number % 3]}" for number in range(60)]
    Path("rows.csv").write_text("\n".join(["x,y,label", *lines]))
    Path("recipe.yaml").write_text(
        "name: t\ntask: tabular-classification\nmodel: mlp\ndata: {train: rows.csv, validation: 0.2}\n"
        "train: {epochs: 2, global_batch: 12}\nplan: {device: cpu, numerics: fp32, micro_batch: null}\ntrack: {mlflow: false}\n"
        "evaluate: {metrics: [accuracy, torchmetrics.CohenKappa, \"torchmetrics.F1Score(average='none')\"], best: 'max:CohenKappa'}\n"
    )
    assert main(["train", "recipe.yaml", "--json", "--quiet"]) == 0
    ended = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert {"CohenKappa", "F1Score(average=none) of a"} <= {*ended["best"]["metrics"]}
    metrics = "accuracy,torchmetrics.FBetaScore(beta=2.0,average='none')"
    assert main(["evaluate", ended["run_dir"], "rows.csv", "--metrics", metrics, "--json"]) == 0
    scores = json.loads(capsys.readouterr().out.splitlines()[-1])["metrics"]
    names = [f"FBetaScore(beta=2.0,average=none){each}" for each in ("", " of a", " of b", " of c")]
    assert list(scores) == ["loss", "accuracy", *names]
