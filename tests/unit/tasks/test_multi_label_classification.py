"""The laws of every task, for texts with any number of labels: split, resume, predictions after reload, folds, recognition."""

from __future__ import annotations

import csv
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from snugfit.deliver.predict import evaluate_file, predict_file
from snugfit.errors import SettingError
from snugfit.recipe import load_recipe
from snugfit.run.call_options import RunOptions
from snugfit.run.from_recipe import train_recipe
from snugfit.run.trained_model import load
from snugfit.tasks import discover
from snugfit.tasks.prepare import prepare
from snugfit.tasks.recognition import Rows
from snugfit.tools.cross_validation.door import cross_validate
from snugfit.tools.cross_validation.fold_rows import fold_rows
from snugfit.tools.init.door import begin_here
from tests.unit.tasks.tiny_encoder import write_encoder

RECIPE = """\
name: rows
task: multi-label-classification
model: ./encoder
data: {train: rows.jsonl, validation: 0.25, label: labels, max_length: 16}
train: {epochs: 3, global_batch: 16, seed: 3}
optimizer: {adamw: {learning_rate: 1.0e-2}}
schedule: null
techniques: []
evaluate: {every: 2}
plan: {micro_batch: null, device: cpu, numerics: fp32}
track: {mlflow: false}
"""
ROWS = 96
LABELS = ("Oslo", "Rome", "blame", "praise")
WORDS = {"Oslo": "oslo", "Rome": "rome", "blame": "bad", "praise": "good"}


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Texts with a word for each of their labels, of which some have none."""
    monkeypatch.chdir(tmp_path)
    write_encoder(tmp_path / "encoder")
    drawn = random.Random(0)
    rows = []
    for _ in range(ROWS):
        labels = [label for label in LABELS if drawn.random() < 0.4]
        text = " ".join(["film", *(WORDS[label] for label in labels)])
        rows.append({"text": text, "labels": labels, **{label: int(label in labels) for label in LABELS}})
    assert any(not row["labels"] for row in rows)
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with (tmp_path / "rows.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, ["text", "labels", *LABELS])
        writer.writeheader()
        writer.writerows({**row, "labels": "|".join(row["labels"])} for row in rows)
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    return tmp_path


def train(*overrides: str, options: RunOptions | None = None) -> Any:
    return train_recipe(load_recipe(Path("recipe.yaml"), overrides), options or RunOptions())


def rows() -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path("rows.jsonl").read_text().splitlines()]


@pytest.mark.slow
def test_any_number_of_labels_is_learned_and_predicted_alike_after_a_reload(project: Path) -> None:
    rates = "optimizer={adamw: {learning_rate: 5.0e-3}}"
    result = train(
        "train.epochs=60", "train.global_batch=8", "evaluate.every=epoch", rates, "data.threshold=0.4"
    )
    here, again = result.predict(rows()), load(result.run_dir).predict(rows())
    assert here == again
    for each in here:
        assert each["prediction"] == [name for name in LABELS if each[f"probability of {name}"] >= 0.4]
    right = sum(each["prediction"] == row["labels"] for each, row in zip(here, rows(), strict=True))
    scored = evaluate_file(result.run_dir, "rows.jsonl")["metrics"]
    assert scored["exact_match"] == pytest.approx(right / ROWS)
    assert min(scored["micro_f1"], scored["macro_f1"], scored["mean_average_precision"]) > 0.75
    counts = predict_file(result.run_dir, "rows.jsonl", Path("out.csv"))["predictions"]
    assert counts == {name: sum(name in each["prediction"] for each in here) for name in LABELS}
    with Path("out.csv").open() as file:
        written = list(csv.DictReader(file))
    assert [json.loads(row["prediction"]) for row in written] == [each["prediction"] for each in here]
    config = json.loads(Path(result.run_dir, "best/config.json").read_text())
    assert config["problem_type"] == "multi_label_classification"
    assert list(config["id2label"].values()) == list(LABELS)
    with pytest.raises(SettingError, match="a row has any number of labels"):
        predict_file(result.run_dir, "rows.jsonl", Path("top.csv"), top=2)


@pytest.mark.slow
def test_a_model_of_labels_comes_back_from_the_registry(
    project: Path, new_store: Callable[[str], str]
) -> None:
    uri = new_store("mlflow.db")
    result = train(f"track={{mlflow: true, register: labels, uri: '{uri}'}}", "train.epochs=1")
    assert load("models:/labels@champion", uri=uri).predict(rows()) == result.predict(rows())


@pytest.mark.slow
def test_folds_know_the_labels_of_all_rows_and_predict_together(project: Path) -> None:
    rare = [*rows(), {"text": "food", "labels": ["rare"], **dict.fromkeys(LABELS, 0)}]
    Path("rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rare))
    result = cross_validate(load_recipe(Path("recipe.yaml"), ["train.epochs=1"]), folds=3)
    alone = [load(Path(score.run_dir) / "best").predict(rows()) for score in result.scores]
    predict_file(result.folder, "rows.jsonl", Path("out.csv"))
    with Path("out.csv").open() as file:
        written = list(csv.DictReader(file))
    for place in (0, ROWS):
        mean = sum(each[place]["probability of rare"] for each in alone) / 3
        assert float(written[place]["probability of rare"]) == pytest.approx(mean, abs=1e-5)
    scored = evaluate_file(result.folder, "rows.jsonl")["metrics"]
    assert set(scored) == {"loss", "micro_f1", "macro_f1", "exact_match", "mean_average_precision"}
    lines = Path(result.folder, "out_of_fold.csv").read_text().splitlines()
    assert len(lines) == ROWS + 2 and lines[0].startswith("source_line,fold,labels,prediction")


def test_lists_texts_and_columns_of_0_and_1_make_the_same_examples(project: Path) -> None:
    forms = (
        (),
        ("data.train=rows.csv", "data.separator='|'"),
        ("data.train=rows.csv", f"data.label_columns=[{', '.join(LABELS)}]"),
    )
    examples = [
        list(prepare(load_recipe(Path("recipe.yaml"), form), empty=True).material.train) for form in forms
    ]
    assert examples[0] == examples[1] == examples[2]


def test_folds_of_columns_have_these_columns(project: Path) -> None:
    columns = ["data.train=rows.csv", "data.label_columns=[Rome, praise]"]
    dealt = fold_rows(load_recipe(Path("recipe.yaml"), columns))
    assert dealt.records is not None and {"text", "Rome", "praise"} <= set(dealt.records[0])
    assert "Oslo" not in dealt.records[0] and dealt.classes is None and dealt.count == ROWS


@pytest.mark.parametrize(
    ("columns", "task", "data"),
    [
        (("text", "tags"), "multi-label-classification", {"label": "tags"}),
        (("text", "written"), "multi-label-classification", {"label": "written"}),
        (("text", "genres"), "multi-label-classification", {"label": "genres", "separator": "|"}),
        (("id", "text", "rude", "sad"), "multi-label-classification", {"label_columns": ("rude", "sad")}),
        (("text", "label"), "text-classification", {"label": "label"}),
        (("text", "rude"), "text-classification", {"label": "rude"}),
        (("text", "label", "rude", "sad"), "text-classification", {"label": "label"}),
        (("text", "label", "numbers"), "text-classification", {"label": "label"}),
    ],
)
def test_rows_with_any_number_of_labels_are_recognised(
    columns: tuple[str, ...], task: str, data: dict[str, Any]
) -> None:
    kinds: dict[str, Callable[[int], Any]] = {
        "id": lambda place: f"{place:04x}b",
        "tags": lambda place: [["a"], ["b", "a"], []][place % 3],
        "written": lambda place: ['["a"]', '["b", "a"]', "[]"][place % 3],
        "genres": lambda place: ["a", "b|a", "", "c|b", "c"][place % 5],
        "numbers": lambda place: [place % 3, 7],
        "rude": lambda place: str(place % 2),
        "sad": lambda place: str(int(place % 3 == 0)),
        "label": lambda place: "ab"[place % 2],
        "text": lambda place: f"some text of row {place} that is long enough to be read",
    }
    made = [{name: kinds[name](place) for name in columns} for place in range(60)]
    seen = Rows(Path("rows.csv"), columns, made)
    proposals = {name: card.recognize(seen, {}) for name, card in discover().items()}
    suitable = {name: each for name, each in proposals.items() if each is not None}
    best = max(suitable, key=lambda name: suitable[name].score)
    assert best == task and {name: suitable[best].data.get(name) for name in data} == data
    assert suitable[best].data["text"] in (("text",), "text")


def test_a_file_a_model_and_a_column_are_a_recipe(project: Path) -> None:
    asked = {"data.text": ("--text", "text"), "data.label": ("--label", "labels")}
    for options in (None, asked):
        recipe = load_recipe(begin_here("rows.csv", ["model=./encoder"], options=options).recipe)
        assert (recipe.task, recipe.data.label) == ("multi-label-classification", "labels")
        assert recipe.data.separator == "|"
