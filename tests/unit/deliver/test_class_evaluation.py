"""Classes of labelled rows in detail, beside scikit-learn and a plain loop."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from PIL import Image
from sklearn.metrics import confusion_matrix, precision_recall_fscore_support

from snugfit.cli import main
from snugfit.data.examples import FILE, Examples
from snugfit.data.files.file_rows import FileRows
from snugfit.data.pictures.labelled_pictures import Pictures
from snugfit.data.pictures.picture_format import PictureFormat
from snugfit.data.report import DataReport
from snugfit.deliver.class_evaluation import class_details
from snugfit.recipe import load_recipe
from snugfit.run.call_options import RunOptions
from snugfit.run.from_recipe import train_recipe

CLASSES = ("a", "b", "c", "never")


def labelled(labels: list[int]) -> FileRows:
    rows = [{"text": f"row {place}"} for place in range(len(labels))]
    report = DataReport(train=0, validation=len(labels), skipped={})
    examples = [{"labels": label} for label in labels]
    return FileRows(examples, rows, list(range(2, len(rows) + 2)), ("text",), list, report, {})


def test_each_class_is_scored_as_by_scikit_learn_and_probabilities_as_by_the_paper() -> None:
    generator = torch.Generator().manual_seed(0)
    probabilities = (3 * torch.randn(500, 4, generator=generator, dtype=torch.float64)).softmax(dim=1)
    probabilities[:, 3] = 0
    labels = torch.randint(0, 3, (500,), generator=generator).tolist()
    details = class_details(probabilities, labelled(labels), CLASSES, pictures=False)
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


def test_the_worst_rows_are_those_whose_class_was_given_least() -> None:
    probabilities = torch.tensor([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4], [0.01, 0.99]], dtype=torch.float64)
    details = class_details(probabilities, labelled([0, 0, 1, 0]), ("a", "b"), pictures=False)
    assert [(row.line, row.label, row.prediction) for row in details.wrong] == [
        (5, "a", "b"),
        (3, "a", "b"),
        (4, "b", "a"),
        (2, "a", "a"),
    ]
    assert details.wrong[1].given == pytest.approx(0.2)
    assert details.wrong[1].probability == pytest.approx(0.8)


def test_many_classes_take_no_table_of_all_pairs_and_what_is_no_number_is_the_worst() -> None:
    names = tuple(map(str, range(40_000)))  # of which a table of pairs would take 12 GB
    probabilities = torch.full((3, len(names)), 1 / len(names), dtype=torch.float64)
    probabilities[0, 7] = 0.5
    probabilities[1] = float("nan")
    details = class_details(probabilities, labelled([7, 8, 9]), names, pictures=False)
    assert sum(details.confusion.values()) == details.rows == 3
    assert details.by_class()["7"] == {"precision": 1.0, "recall": 1.0, "f1": 1.0, "rows": 1}
    assert [row.line for row in details.wrong] == [3, 4, 2]
    assert [each.rows for each in details.bins] == [1, 1]
    assert 0 <= details.calibration_error <= 1


def test_files_are_not_decoded_for_their_labels() -> None:
    rows = [{FILE: "none.png", "labels": place} for place in range(2)]
    pictures = Pictures(Examples(rows, "rows.csv", range(2), unit=FILE), PictureFormat(8, 8, None))
    labelled_files = FileRows(
        pictures, [{}, {}], [2, 3], (), list, DataReport(train=0, validation=2, skipped={}), {}
    )
    details = class_details(torch.eye(2, dtype=torch.float64), labelled_files, ("a", "b"), pictures=False)
    assert details.confusion == {(0, 0): 1, (1, 1): 1}


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
        "data: {train: rows.csv, validation: null}\ntrain: {epochs: 1, global_batch: 6}\n"
        "optimizer: {adamw: {}}\nplan: {micro_batch: null, device: cpu, numerics: fp32}\ntrack: {mlflow: false}\n"
    )
    run = str(train_recipe(load_recipe(Path("recipe.yaml")), RunOptions()).run_dir)
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
