"""Evaluations in detail, beside scikit-learn and plain loops."""

from __future__ import annotations

import itertools
import json
import pickle
from dataclasses import asdict, dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.metrics import confusion_matrix, precision_recall_fscore_support
from torch.nn.functional import one_hot

from snugfit.cli import main
from snugfit.core.batch import Batch
from snugfit.core.loss_terms import LossTerms
from snugfit.deliver.observed_evaluation import Observed
from snugfit.recipe import load_recipe
from snugfit.results.evaluation_details import EvaluationDetails
from snugfit.results.run_folder import RunFolder
from snugfit.run.call_options import RunOptions
from snugfit.run.from_recipe import resume_run, train_recipe
from snugfit.run.training.loop import Training
from snugfit.strategies.base import Strategy
from snugfit.tasks.inference import Inference

CLASSES = ("a", "b", "c", "never")


@dataclass
class Row:
    """Rows without anything to show."""

    def place(self, place: int) -> str:
        return f"row {place}"

    def cells(self, place: int) -> dict[str, str]:
        return {}

    def pictures(self, place: int, masks: object) -> tuple[str, ...]:
        return ()


def seen(
    use: Inference, meta: dict[str, Any], *parts: tuple[torch.Tensor, torch.Tensor]
) -> EvaluationDetails:
    """Return the details of logits and labels, micro-batch by micro-batch, and with each row's distance of both as its loss."""
    return observed_of(use, meta, *parts).details(Row())


def observed_of(
    use: Inference, meta: dict[str, Any], *parts: tuple[torch.Tensor, torch.Tensor], first: int = 0
) -> Observed:
    observed = Observed(use, meta, most=3)
    for logits, labels in parts:
        part = Batch.of({"labels": labels})
        flat = logits.flatten(1)[:, :1] if logits.ndim > 1 else (logits - labels)[:, None]
        observed.add(logits, part, LossTerms(flat.abs().double()), first)
        first += len(labels)
    return observed


def use_of(**told: Any) -> Inference:
    return Inference(encode=list, collate=list, decode=lambda *_: [], columns=("prediction",), **told)


def test_each_class_is_scored_as_by_scikit_learn_and_probabilities_as_by_the_paper() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(500, 4, generator=generator, dtype=torch.float64)
    logits[:, 3] = -1e9
    labels = torch.randint(0, 3, (500,), generator=generator)
    parts = zip(logits.split(64), labels.split(64), strict=True)
    details = seen(use_of(classes=CLASSES), {}, *parts)
    probabilities, labels = logits.softmax(1), labels.tolist()
    predicted = probabilities.argmax(dim=1).tolist()
    matrix = confusion_matrix(labels, predicted, labels=range(4)).tolist()
    assert [[details.confusion.get((true, told), 0) for told in range(4)] for true in range(4)] == matrix
    theirs = precision_recall_fscore_support(labels, predicted, labels=range(4), zero_division=0)
    for place, name in enumerate(CLASSES):
        own = details.by_class()[name]
        expected = [each[place] for each in theirs]
        assert [own[key] for key in ("precision", "recall", "f1", "rows")] == pytest.approx(expected)
    error = 0.0
    for number in range(15):
        own = [
            row for row in range(500) if number / 15 <= max(probabilities[row].tolist()) < (number + 1) / 15
        ]
        if own:
            right = sum(predicted[row] == labels[row] for row in own) / len(own)
            sure = sum(max(probabilities[row].tolist()) for row in own) / len(own)
            error += len(own) / 500 * abs(right - sure)
    assert details.calibration_error == pytest.approx(error)


def test_labels_of_a_row_are_scored_as_by_scikit_learn() -> None:
    generator = torch.Generator().manual_seed(0)
    logits, names = torch.randn(200, 3, generator=generator), ("a", "b", "c")
    labels = (torch.rand(200, 3, generator=generator) < 0.4).float()
    details = seen(use_of(classes=names, any_number=True), {"threshold": 0.3}, (logits, labels))
    told = (logits.sigmoid() >= 0.3).long()
    theirs = precision_recall_fscore_support(labels.long(), told, zero_division=0)
    for place, name in enumerate(names):
        own = details.by_class()[name]
        assert [own[key] for key in ("precision", "recall", "f1", "labels")] == pytest.approx(
            [each[place] for each in theirs]
        )
    assert not details.confusion and sum(each.rows for each in details.bins) == 600


def test_pixels_are_counted_as_by_scikit_learn_but_for_those_that_are_not_known() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(5, 8, 8, 3, generator=generator)
    labels = torch.randint(0, 3, (5, 8, 8), generator=generator)
    labels[0, :4] = -100
    details = seen(
        use_of(counted="pixels"),
        {"labels": ["x", "y", "z"]},
        (logits[:3], labels[:3]),
        (logits[3:], labels[3:]),
    )
    known = labels != -100
    matrix = confusion_matrix(labels[known], logits.argmax(-1)[known])
    assert [[details.confusion[true, told] for told in range(3)] for true in range(3)] == matrix.tolist()
    expected = matrix.diagonal() / (matrix.sum(0) + matrix.sum(1) - matrix.diagonal())
    assert [each["iou"] for each in details.by_class().values()] == pytest.approx(expected.tolist())


def test_spans_are_right_with_the_same_words_and_the_same_label() -> None:
    tags = ["O", "B-P", "I-P", "B-L", "I-L"]
    told = [[0, 1, 2, 0, 3], [1, 0, 3, 4, 0]]
    true = torch.tensor([[-100, 1, 2, 0, 1], [1, 2, 3, 4, -100]])
    details = seen(
        use_of(counted="spans"),
        {"labels": tags, "scheme": "bio"},
        (one_hot(torch.tensor(told), 5).float(), true),
    )
    assert details.by_class() == {
        "P": {"precision": 0.5, "recall": pytest.approx(1 / 3), "f1": pytest.approx(0.4), "spans": 3},
        "L": {"precision": 0.5, "recall": 1.0, "f1": pytest.approx(2 / 3), "spans": 1},
    }
    labels = {(each.label, each.prediction) for each in details.worst}
    assert ("P in words 1-2, P in word 4", "P in words 1-2, L in word 4") in labels


def test_the_worst_rows_are_those_of_the_highest_loss_whatever_the_micro_batches() -> None:
    told, true = torch.tensor([1.0, 5.0, float("nan"), 2.0, 9.0]), torch.tensor([1.5, 1.0, 1.0, 2.0, 1.0])
    whole = seen(use_of(counted="numbers"), {}, (told, true))
    parts = seen(use_of(counted="numbers"), {}, *zip(told.split(2), true.split(2), strict=True))
    assert [each.place for each in whole.worst] == ["row 2", "row 4", "row 1"]
    assert [(each.label, each.prediction) for each in whole.worst[1:]] == [("1", "9"), ("1", "5")]
    assert parts.worst == whole.worst and parts.rows == whole.rows == 5
    assert whole.numbers[1] == (1.0, 5.0)
    written = json.dumps(parts.as_dict())
    assert json.dumps(EvaluationDetails.of(json.loads(written)).as_dict()) == written


RANKS = {
    "classes": (use_of(classes=CLASSES), {}, (4,)),
    "labels": (use_of(classes=CLASSES, any_number=True), {"threshold": 0.5}, (4,)),
    "spans": (use_of(counted="spans"), {"labels": ["O", "B-P", "I-P", "B-L"], "scheme": "bio"}, (5, 4)),
    "pixels": (use_of(counted="pixels"), {"labels": [*CLASSES]}, (3, 3, 4)),
    "numbers": (use_of(counted="numbers"), {}, ()),
}


@pytest.mark.parametrize("kind", RANKS)
def test_what_ranks_have_seen_of_their_rows_is_what_one_sees_of_all(kind: str) -> None:
    use, meta, shape = RANKS[kind]
    generator = torch.Generator().manual_seed(0)
    rows = 5000 if kind == "numbers" else 60
    logits = torch.randn(rows, *shape, generator=generator)
    labels = torch.randint(0, 4, (rows, *shape[:-1]), generator=generator)
    if kind in ("labels", "numbers"):
        labels = torch.randint(0, 2, (rows, *shape), generator=generator).float()
    parts = [*zip(logits.split(rows // 6), labels.split(rows // 6), strict=True)]
    alone = seen(use, meta, *parts)
    ranks = [Observed(use, meta, most=3) for _ in range(3)]  # of which the last one has no rows
    for number, (own, true) in enumerate(parts):
        part, flat = Batch.of({"labels": true}), own.flatten(1)[:, :1] if shape else (own - true)[:, None]
        ranks[number // 4].add(own, part, LossTerms(flat.abs().double()), number * (rows // 6))
    said = pickle.dumps([(each._rows, each._worst, cast(Any, each._tally).counts()) for each in ranks])
    for rank, each in enumerate(ranks):
        each.join_ranks(cast(Strategy, SimpleNamespace(rank=rank, tell=lambda _: pickle.loads(said))))
        joined = each.details(Row()).as_dict()
        bins, expected = joined.pop("bins"), (whole := alone.as_dict()).pop("bins")
        assert joined == whole
        assert [[*each.values()] for each in bins] == [pytest.approx([*each.values()]) for each in expected]


def test_a_single_logit_is_that_of_the_second_class_and_classes_without_one_have_no_probability() -> None:
    one = torch.tensor([[2.0], [-1.0], [0.5]])
    labels = torch.tensor([1, 0, 0])
    single = seen(use_of(classes=("a", "b")), {}, (one, labels))
    two = seen(use_of(classes=("a", "b")), {}, (torch.cat([torch.zeros(3, 1), one], 1), labels))
    assert single.confusion == two.confusion == {(1, 1): 1, (0, 0): 1, (0, 1): 1}
    assert single.bins == two.bins
    fewer = seen(use_of(classes=CLASSES), {}, (torch.zeros(3, 2), torch.tensor([0, 1, 3])))
    (row,) = (each for each in fewer.worst if each.label == "never")
    assert row.given == 0 and row.probability == 0.5


def test_many_classes_take_no_table_of_all_pairs_and_what_is_no_number_is_the_worst() -> None:
    names = tuple(map(str, range(40_000)))  # of which a table of pairs would take 12 GB
    logits = torch.zeros(3, len(names))
    logits[0, 7] = 9
    logits[1] = float("nan")
    details = seen(use_of(classes=names), {}, (logits, torch.tensor([7, 8, 9])))
    assert sum(details.confusion.values()) == details.rows == 3
    assert details.by_class()["7"]["rows"] == 1
    assert details.worst[0].place == "row 1"
    assert sum(each.rows for each in details.bins) == 2
    assert 0 <= details.calibration_error <= 1


def test_what_an_evaluation_holds_does_not_grow_with_its_rows() -> None:
    rows = torch.arange(20_000.0)
    observed = Observed(use_of(counted="numbers"), {})
    for number, part in enumerate(rows.split(700)):
        observed.add(part, Batch.of({"labels": part}), LossTerms(part), 700 * number)
    assert len(observed._tally._pairs) <= 2000
    drawn = [label for label, _ in observed.details(Row()).numbers]
    assert 500 <= len(drawn) <= 1000 and drawn[0] == 0 and drawn[-1] > 19_900
    assert {after - before for before, after in itertools.pairwise(drawn)} == {drawn[1]}
    names = tuple(map(str, range(110)))
    pairs = torch.cartesian_prod(torch.arange(110), torch.arange(110))
    logits = torch.zeros(len(pairs) + 1, 110)
    logits[torch.arange(len(pairs)), pairs[:, 1]] = 1
    logits[-1, 7] = 1
    labels = torch.cat([pairs[:, 0], torch.tensor([7])])
    details = seen(use_of(classes=names), {}, (logits, labels))
    assert len(details.confusion) == 10_000 and details.confusion[7, 7] == 2
    assert details.by_class()["7"] == {"precision": 2 / 111, "recall": 2 / 111, "f1": 2 / 111, "rows": 111}


def test_masks_of_the_worst_pictures_are_kept_as_they_are_shown_and_not_with_their_micro_batch() -> None:
    labels = torch.randint(0, 3, (4, 500, 90), generator=torch.Generator().manual_seed(0))
    labels[2] = -100
    shown = []

    class Pictures(Row):
        def pictures(self, place: int, masks: object) -> tuple[str, ...]:
            shown.append((place, masks))
            return ()

    observed = Observed(use_of(counted="pixels"), {"labels": ["x", "y", "z"]}, most=4)
    logits = one_hot(labels.clamp(0), 3).float()
    observed.add(logits, Batch.of({"labels": labels}), LossTerms(torch.ones(4)), 0)
    details = observed.details(Pictures())
    assert [each.prediction for each in details.worst] == [
        f"{part} of the pixels are right" for part in ("100.0%", "100.0%", "0.0%", "100.0%")
    ]
    for place, (true, predicted) in shown:
        small = Image.fromarray(labels[place].int().numpy()).resize((90, 160), Image.Resampling.NEAREST)
        assert true.tolist() == np.asarray(small).tolist() and predicted.tolist() == true.clip(0).tolist()
        assert (
            max(each.nbytes if each.base is None else each.base.nbytes for each in (true, predicted))
            <= 4 * 160 * 160
        )


def test_a_page_shows_the_worst_pictures_and_escapes_what_rows_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from snugfit.models.small import write_small_picture_model

    monkeypatch.chdir(tmp_path)
    write_small_picture_model(tmp_path / "vit", 16, patches=True)
    lines = ["image,label"]
    for number in range(12):
        Image.new("RGB", (20, 20), (20 * number, 0, 0)).save(f"{number}.png")
        lines.append(f"{number}.png,{['<b>dark', 'é, light'][number > 5]!r}".replace("'", '"'))
    Path("rows.csv").write_text("\n".join(lines), encoding="utf-8")
    Path("recipe.yaml").write_text(
        "name: shades\ntask: image-classification\nmodel: vit\nfrom_scratch: true\n"
        "data: {train: rows.csv, validation: 0.5}\ntrain: {epochs: 1, global_batch: 6}\n"
        "optimizer: {adamw: {}}\nplan: {micro_batch: null, device: cpu, numerics: fp32}\ntrack: {mlflow: false}\n"
    )
    run = str(train_recipe(load_recipe(Path("recipe.yaml")), RunOptions()).run_dir)
    report = Path(run, "report.html").read_text(encoding="utf-8")
    assert report.count("src='data:image/jpeg;base64,") == 6 and "Which is taken for which" in report
    assert main(["evaluate", run, "rows.csv", "--page", "page.html", "--json"]) == 0
    said = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert set(said["classes"]) == {"<b>dark", "é, light"} and 0 <= said["calibration_error"] <= 1
    page = Path("page.html").read_text(encoding="utf-8")
    assert page.count("src='data:image/jpeg;base64,") == 12
    assert "&lt;b&gt;dark" in page and "<b>dark" not in page
    assert main(["evaluate", run, "rows.csv", "--page", "page.html"]) == 0
    plain = capsys.readouterr().out
    assert "calibration_error" in plain and "precision" not in plain
    Path("shown").mkdir()
    assert main(["evaluate", run, "rows.csv", "--page", "shown", "--json"]) == 2
    assert "shown is a folder" in capsys.readouterr().out


def test_the_report_of_a_run_has_the_worst_rows_of_its_best_evaluation_as_the_file_has_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    lines = [f"{number % 7},<{number}>,{number % 5}.5" for number in range(60)]
    Path("rows.csv").write_text("\n".join(["x,name,label", *lines]))
    Path("recipe.yaml").write_text(
        "name: numbers\ntask: tabular-regression\nmodel: mlp\ndata: {train: rows.csv, validation: 0.2, columns: [x]}\n"
        "train: {epochs: 3, global_batch: 16}\nplan: {micro_batch: null, device: cpu, numerics: fp32}\ntrack: {mlflow: false}\n"
    )
    result = train_recipe(load_recipe(Path("recipe.yaml")), RunOptions())
    folder = Path(str(result.run_dir))
    details = EvaluationDetails.of(json.loads((folder / "details.json").read_text()))
    assert details.rows == len(details.numbers) == len(details.worst) == 12
    for row in details.worst:
        source, _, line = row.place.removesuffix(" (validation)").rpartition(":")
        x, name, label = lines[int(line) - 2].split(",")
        assert source == "rows.csv" and row.cells == {"x": x, "name": name, "label": label}
        assert row.label == label
    best = result.best
    assert best is not None
    errors = [(predicted - label) ** 2 for label, predicted in details.numbers]
    assert (sum(errors) / len(errors)) ** 0.5 == pytest.approx(best["metrics"]["rmse"], rel=1e-5)
    report = (folder / "report.html").read_text(encoding="utf-8")
    assert (
        "Predictions beside labels" in report
        and f"&lt;{details.worst[0].cells['name'].strip('<>')}&gt;" in report
    )
    kept = folder / "details.json"
    kept.write_text(json.dumps({**details.as_dict(), "worst": [{**asdict(details.worst[0]), "row": 99}]}))
    resume_run(folder)  # with fewer rows, as it might be
    assert kept.exists()
    several: Any = SimpleNamespace(
        details=None, folder=RunFolder(folder), step=SimpleNamespace(strategy=Strategy())
    )
    Training._keep_details(several, None)  # a best evaluation that nobody has looked at in detail
    assert not kept.exists()
    smoke = train_recipe(load_recipe(Path("recipe.yaml")), RunOptions(fast_dev_run=True))
    assert not Path(str(smoke.run_dir), "details.json").exists()
