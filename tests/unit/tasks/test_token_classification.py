"""The laws of every task, for tagged words: split, resume in the middle of an epoch, predictions after reload, folds, commands."""

from __future__ import annotations

import csv
import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch

from snugfit.data.texts.tags import spans_of
from snugfit.deliver.predict import evaluate_file, predict_file
from snugfit.errors import ModelError, SettingError
from snugfit.recipe import load_recipe
from snugfit.run.call_options import RunOptions
from snugfit.run.from_recipe import train_recipe
from snugfit.run.trained_model import load
from snugfit.tasks import find
from snugfit.tasks.common.entities import entity_metrics
from snugfit.tasks.recognition import Rows
from snugfit.tools.cross_validation.door import cross_validate
from snugfit.tools.cross_validation.fold_rows import fold_rows
from snugfit.tools.cross_validation.result import Fold
from snugfit.tools.init.door import begin_here
from tests.unit.tasks.tiny_encoder import write_encoder

RECIPE = """\
name: names
task: token-classification
model: ./encoder
data: {train: rows.jsonl, validation: 0.25, text: words, label: tags, max_length: 16}
train: {epochs: 3, global_batch: 8, seed: 3}
optimizer: {adamw: {learning_rate: 1.0e-2}}
schedule: null
techniques: []
evaluate: {every: 2}
plan: {micro_batch: null, device: cpu, numerics: fp32}
track: {mlflow: false}
"""
ROWS = 48


def sentences() -> list[dict[str, Any]]:
    """Short texts and some that need several windows: who is a person, where is a place."""
    drawn = random.Random(0)
    rows = []
    for _ in range(ROWS):
        words: list[str] = []
        tags: list[str] = []
        for _ in range(drawn.choice([1, 1, 6])):
            place = drawn.choice([["Rome"], ["Oslo"], ["New", "York"]])
            words += [drawn.choice(["Ann", "Bob", "Anns"]), drawn.choice(["lives", "met"]), "in", *place, "."]
            tags += ["B-person", "O", "O", "B-place", *["I-place"] * (len(place) - 1), "O"]
        rows.append({"id": len(rows), "words": words, "tags": tags})
    return rows


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_encoder(tmp_path / "encoder")
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in sentences()))
    (tmp_path / "names.yaml").write_text(RECIPE)
    return tmp_path


def train(*overrides: str, options: RunOptions | None = None) -> Any:
    return train_recipe(load_recipe(Path("names.yaml"), overrides), options or RunOptions())


def f1(predicted: list[list[str]], true: list[list[str]]) -> float:
    pairs = [
        (set(spans_of(own, "bio")), set(spans_of(wanted, "bio")))
        for own, wanted in zip(predicted, true, strict=True)
    ]
    right = sum(len(own & wanted) for own, wanted in pairs)
    return 2 * right / sum(len(own) + len(wanted) for own, wanted in pairs)


@pytest.mark.slow
def test_names_are_learned_and_predicted_alike_after_a_reload(project: Path) -> None:
    result = train("train.epochs=2")
    rows = sentences()
    here, again = result.predict(rows), load(result.run_dir).predict(rows)
    assert here == again
    scored = evaluate_file(result.run_dir, "rows.jsonl")
    tags = [each["predicted_tags"] for each in here]
    right = [
        own == true
        for each, row in zip(tags, rows, strict=True)
        for own, true in zip(each, row["tags"], strict=True)
    ]
    assert scored["rows"] == ROWS
    assert scored["metrics"]["accuracy"] == pytest.approx(sum(right) / len(right)) and sum(right) > 0.9 * len(
        right
    )
    assert scored["metrics"]["entity_f1"] == pytest.approx(f1(tags, [row["tags"] for row in rows]))
    first = here[0]["prediction"]
    assert [(each["start"], each["end"], each["label"]) for each in first] == [
        tuple(span) for span in spans_of(here[0]["predicted_tags"], "bio")
    ]
    assert all(0 < each["score"] <= 1 for each in first)


@pytest.mark.slow
def test_spans_are_predicted_in_characters_of_the_text(project: Path) -> None:
    rows = []
    for row in sentences():
        ends = [len(" ".join(row["words"][: place + 1])) for place in range(len(row["words"]))]
        spans = [
            {"start": ends[start] - len(row["words"][start]), "end": ends[end - 1], "label": label}
            for start, end, label in spans_of(row["tags"], "bio")
        ]
        rows.append({"text": " ".join(row["words"]), "spans": spans})
    (project / "spans.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    changed = ("data.train=spans.jsonl", "data.text=text", "data.label=spans", "data.scheme=bilou")
    result = train(*changed, "train.epochs=4")
    text = "  Anns met New York. Bob in Oslo"
    (prediction,) = load(result.run_dir).predict([{"text": text}])
    assert set(prediction) == {"prediction"}
    assert [(text[each["start"] : each["end"]], each["label"]) for each in prediction["prediction"]] == [
        ("Anns", "person"),
        ("New York", "place"),
        ("Bob", "person"),
        ("Oslo", "place"),
    ]
    assert evaluate_file(result.run_dir, "spans.jsonl")["metrics"]["entity_f1"] > 0.9


@pytest.mark.slow
def test_a_prediction_file_has_lists_as_json(project: Path) -> None:
    run = train("train.epochs=1").run_dir
    assert predict_file(run, "rows.jsonl", Path("out.csv"))["rows"] == ROWS
    with Path("out.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert json.loads(rows[3]["words"]) == sentences()[3]["words"]
    assert [json.loads(row["predicted_tags"]) for row in rows] == [
        each["predicted_tags"] for each in load(run).predict(sentences())
    ]
    with pytest.raises(ModelError, match="no named classes with probabilities"):
        predict_file(run, "rows.jsonl", Path("out.csv"), proba=True)


def test_folds_are_made_of_whole_texts(project: Path) -> None:
    dealt = fold_rows(load_recipe(Path("names.yaml")))
    assert dealt.count == ROWS and dealt.labels is None
    files = dealt.write(Fold(1, 1, tuple(range(24)), tuple(range(24, ROWS))), project)
    overrides = [f"data.{side}={file}" for side, file in files.items()]
    assert train(*overrides, "train.epochs=1").status == "finished"
    assert (
        json.loads(Path(files["validation"]).read_text().splitlines()[0])["words"] == sentences()[24]["words"]
    )


@pytest.mark.slow
def test_each_fold_knows_the_tags_of_all_rows(project: Path) -> None:
    rows = sentences()
    rows[5]["tags"][0] = "B-ghost"  # in one text alone
    (project / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    scored = cross_validate(load_recipe(Path("names.yaml"), ["train.epochs=1"]), folds=2)
    assert len(scored.scores) == 2
    for each in scored.scores:
        labels = json.loads((Path(each.run_dir) / "best" / "snugfit.json").read_text())["labels"]
        assert "B-ghost" in labels and "I-place" in labels


def test_labels_of_spans_are_tags_of_all_folds_too(project: Path) -> None:
    spans = [{"start": 0, "end": 3, "label": "person"}]
    rows = [{"text": "Ann met Bob.", "spans": spans}, {"text": "Nobody came.", "spans": []}]
    (project / "spans.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    of_spans = ["data.train=spans.jsonl", "data.text=text", "data.label=spans", "data.validation=null"]
    assert fold_rows(load_recipe(Path("names.yaml"), of_spans)).classes == ("B-person",)


def test_entities_count_only_where_words_and_label_are_right() -> None:
    names = ("O", "B-a", "I-a", "B-b", "I-b")
    labels = torch.tensor([[-100, 1, 2, 0, 3, -100], [-100, 1, 0, 0, -100, -100]])
    best = torch.tensor([[1, 1, 2, 0, 1, 3], [0, 1, 2, 0, 4, 0]])  # right, of another label; too long
    metrics = entity_metrics(names, "bio")
    assert metrics["entity_precision"](best.float(), labels) == pytest.approx(1 / 3)
    assert metrics["entity_recall"](best.float(), labels) == pytest.approx(1 / 3)
    assert metrics["entity_f1"](best.float(), labels) == pytest.approx(1 / 3)
    nothing = torch.full_like(labels, -100)
    assert metrics["entity_f1"](best.float(), nothing) == 0


def test_metrics_of_entities_are_refused_where_there_are_none(project: Path) -> None:
    (project / "rows.csv").write_text("text,label\n" + "ann met,a\nbob met,b\n" * 8)
    changed = (
        "task=text-classification", "data={train: rows.csv, validation: 0.25, max_length: 16}",
        "evaluate={metrics: [entity_f1], best: entity_f1}",
    )  # fmt: skip
    with pytest.raises(SettingError, match=r"evaluate\.metrics.*entity_f1 is of spans of tagged words"):
        train(*changed)


@pytest.mark.parametrize(
    ("row", "settings"),
    [
        ({"tokens": ["ann"], "ner_tags": ["B-p"]}, {"text": "tokens", "label": "ner_tags"}),
        ({"text": "ann", "entities": [[0, 3, "p"]]}, {"text": "text", "label": "entities"}),
        ({"sentence": "ann met", "tags": "B-p O"}, {"text": "sentence", "label": "tags"}),
        ({"text": "ann met", "label": "good film"}, None),
        ({"words": ["ann"], "tags": ["a", "b"]}, None),
    ],
)
def test_rows_are_recognised_by_what_their_cells_hold(
    row: dict[str, Any], settings: dict[str, str] | None
) -> None:
    proposal = find("token-classification").recognize(Rows(Path("rows.jsonl"), tuple(row), [row] * 9), {})
    assert (proposal and {name: proposal.data[name] for name in ("text", "label")}) == settings


@pytest.mark.parametrize(
    ("row", "bad"),
    [
        ({"words": ["ann", "met"], "tags": ["B-p", "O"]}, {"words": ["ann", "met"], "tags": ["B-p"]}),
        ({"words": ["ann", "met"], "tags": ["B-p", "O"]}, {"words": "ann met", "tags": ["B-p", "O"]}),
        ({"text": "ann met", "tags": "B-p O"}, {"text": "ann met", "tags": "B-p"}),
        ({"text": "ann", "spans": [[0, 3, "p"]]}, {"text": "ann", "spans": "p"}),
    ],
)
def test_one_faulty_row_of_many_hides_no_tags_and_one_of_two_does(
    row: dict[str, Any], bad: dict[str, Any]
) -> None:
    def recognized(rows: list[dict[str, Any]]) -> bool:
        seen = Rows(Path("rows.jsonl"), tuple(row), rows)
        return find("token-classification").recognize(seen, {}) is not None

    assert recognized([bad, *[row] * 40]) and not recognized([bad, row])


def test_a_file_and_a_model_are_a_recipe(project: Path) -> None:
    recipe = load_recipe(begin_here("rows.jsonl", ["model=./encoder"]).recipe)
    assert (recipe.task, recipe.data.text, recipe.data.label) == ("token-classification", ("words",), "tags")
