"""The laws of every task, for embeddings of texts: split by the gradient cache, resume, predictions after reload, folds, rows, recognition."""

from __future__ import annotations

import csv
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from snugfit.data.texts.text_pairs import PairData, PairSettings, load_pairs
from snugfit.deliver.predict import evaluate_file, predict_file
from snugfit.errors import DataError, ModelError, SettingError
from snugfit.models.tokenizer import load_tokenizer
from snugfit.recipe import load_recipe
from snugfit.run.call_options import RunOptions
from snugfit.run.from_recipe import train_recipe
from snugfit.run.trained_model import load
from snugfit.tasks import discover
from snugfit.tasks.recognition import Rows
from snugfit.tools.cross_validation.fold_rows import fold_rows
from snugfit.tools.cross_validation.result import Fold
from snugfit.tools.init.door import begin_here
from tests.unit.tasks.tiny_encoder import write_encoder
from tests.unit.tasks.trained_runs import check_parts

RECIPE = """\
name: rows
task: sentence-embedding
model: ./encoder
data: {train: rows.jsonl, validation: 0.25, text: anchor, max_length: 16}
train: {epochs: 3, global_batch: 16, seed: 3}
optimizer: {adamw: {learning_rate: 5.0e-3}}
schedule: null
techniques: [gradient_cache]
evaluate: {every: 2}
plan: {micro_batch: null, device: cpu, numerics: fp32}
track: {mlflow: false}
"""
ROWS = 96
WORDS = ["ann", "bob", "rome", "oslo", "good", "bad", "film"]
PARTNERS = ["lives", "met", "new", "york", "food", "not", "very"]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Texts of two to four words, and of the words that belong to these: no word stands on both sides."""
    monkeypatch.chdir(tmp_path)
    write_encoder(tmp_path / "encoder")
    drawn = random.Random(0)
    rows = []
    for _ in range(ROWS):
        places = drawn.sample(range(7), drawn.randint(2, 4))
        other = [(place + 1) % 7 for place in places]
        rows.append(
            {
                "anchor": " ".join(WORDS[place] for place in places),
                "positive": " ".join(PARTNERS[place] for place in places),
                "negative": " ".join(PARTNERS[place] for place in other),
            }
        )
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    return tmp_path


def train(*overrides: str, options: RunOptions | None = None) -> Any:
    return train_recipe(load_recipe(Path("recipe.yaml"), overrides), options or RunOptions())


def rows() -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path("rows.jsonl").read_text().splitlines()]


@pytest.mark.slow
def test_partners_are_learned_and_embedded_alike_after_a_reload_and_by_sentence_transformers(
    project: Path,
) -> None:
    result = train("train.epochs=25", "train.global_batch=32", "evaluate.every=epoch")
    first = train("train.epochs=1", "optimizer={adamw: {learning_rate: 1.0e-9}}")
    assert result.best["metrics"]["mrr"] > first.best["metrics"]["mrr"] + 0.3
    here, again = result.predict(rows()), load(result.run_dir).predict(rows())
    assert here == again
    own = np.array([each["embedding"] for each in here])
    np.testing.assert_allclose(np.linalg.norm(own, axis=1), 1, rtol=1e-5)
    predict_file(result.run_dir, "rows.jsonl", Path("out.csv"))
    with Path("out.csv").open() as file:
        written = [json.loads(row["embedding"]) for row in csv.DictReader(file)]
    np.testing.assert_allclose(written, own, atol=1e-6)
    assert set(evaluate_file(result.run_dir, "rows.jsonl")["metrics"]) == {
        "loss",
        "mrr",
        "recall_at_1",
        "recall_at_10",
    }
    library = pytest.importorskip("sentence_transformers")
    model = library.SentenceTransformer(str(Path(result.run_dir, "best")), device="cpu")
    long = {"anchor": "good film " * 20}
    texts = [row["anchor"] for row in (*rows()[:8], long)]
    theirs = model.encode(texts)
    np.testing.assert_allclose(
        theirs, [each["embedding"] for each in result.predict([*rows()[:8], long])], atol=1e-6
    )
    with pytest.raises(ModelError, match=r"Take its folder best/"):
        load(result.run_dir).export("hf", "exported")


@pytest.mark.slow
@pytest.mark.parametrize("negative", ["null", "negative"])
def test_a_window_in_parts_is_the_window(project: Path, negative: str) -> None:
    plain = ("optimizer={sgd: {learning_rate: 0.01}}", f"data.negative={negative}")
    check_parts(train(*plain, "techniques=[]"), train(*plain, "plan.micro_batch=5"))


@pytest.mark.slow
def test_parts_without_the_gradient_cache_are_refused(project: Path) -> None:
    with pytest.raises(SettingError, match="Add the technique 'gradient_cache'"):
        train("techniques=[]", "plan.micro_batch=5")


def test_folds_have_all_texts_of_each_row(project: Path) -> None:
    dealt = fold_rows(load_recipe(Path("recipe.yaml"), ["data.negative=negative"]))
    assert dealt.records is not None and {"anchor", "positive", "negative"} <= set(dealt.records[0])
    files = dealt.write(Fold(1, 1, tuple(range(48)), tuple(range(48, ROWS))), Path())
    overrides = [f"data.{side}={file}" for side, file in files.items()]
    assert train(*overrides, "train.epochs=1").status == "finished"


def loaded(lines: list[dict[str, Any]], **others: Any) -> PairData:
    Path("own.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    given: dict[str, Any] = {"train": "own.jsonl", "text": ("anchor",), "validation": None, "max_length": 16}
    settings = PairSettings(**{**given, **others})
    return load_pairs(settings, load_tokenizer("./encoder", folder=Path()))


GOOD = [{"anchor": "ann", "positive": "lives", "negative": "met"}, {"anchor": "bob", "positive": "met"}]


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"anchor": "", "positive": "met"}, "empty text"),
        ({"anchor": "ann", "positive": None}, "empty text"),
        ({"anchor": "ann"}, "missing column"),
        ({"anchor": "ann", "positive": 3}, "not text"),
    ],
)
def test_a_row_without_a_text_is_a_fault_with_its_line(
    project: Path, row: dict[str, Any], reason: str
) -> None:
    with pytest.raises(DataError, match=r"own.jsonl:3"):
        loaded([*GOOD, row])
    data = loaded([*GOOD, row], bad_rows="skip")
    assert data.report.skipped == {reason: 1} and len(data.train) == 2


def test_a_negative_that_is_right_is_a_fault(project: Path) -> None:
    row = {"anchor": "ann", "positive": "met", "negative": "met"}
    with pytest.raises(
        DataError, match=r"own.jsonl:2: negative is one of the two texts that belong together"
    ):
        loaded([GOOD[0], row], negative="negative")


def test_one_row_has_nothing_to_be_told_from(project: Path) -> None:
    with pytest.raises(DataError, match="the other rows are what a row is told from"):
        loaded(GOOD[:1])


def test_equal_texts_have_one_number_and_all_are_as_long_for_every_rank(project: Path) -> None:
    data = loaded([*GOOD, {"anchor": "met bob", "positive": "ann"}])
    texts = [example["texts"] for example in data.train]
    assert texts[0][0] == texts[2][1] and len({number for pair in texts for number in pair}) == 5
    batch = data.collate([data.train[0], data.train[2]])
    assert batch["input_ids"].shape == (2, 2, 16) and batch["lengths"] == (3, 4)
    assert batch["labels"].tolist() == [texts[0], texts[2]]


@pytest.mark.parametrize(
    ("columns", "task", "data"),
    [
        (("anchor", "positive"), "sentence-embedding", {"text": ("anchor",), "positive": "positive"}),
        (("query", "positive", "negative"), "sentence-embedding", {"negative": "negative"}),
        (("text", "label"), "text-classification", {"label": "label"}),
    ],
)
def test_pairs_that_belong_together_are_recognised(
    columns: tuple[str, ...], task: str, data: dict[str, Any]
) -> None:
    made = [
        {name: "ab"[place % 2] if name == "label" else f"some {name} of row {place}" for name in columns}
        for place in range(60)
    ]
    seen = Rows(Path("rows.jsonl"), columns, made)
    proposals = {name: card.recognize(seen, {}) for name, card in discover().items()}
    suitable = {name: each for name, each in proposals.items() if each is not None}
    best = max(suitable, key=lambda name: suitable[name].score)
    assert best == task and {name: suitable[best].data.get(name) for name in data} == data


def test_a_file_and_a_model_are_a_recipe(project: Path) -> None:
    recipe = load_recipe(begin_here("rows.jsonl", ["model=./encoder"]).recipe)
    assert (recipe.task, recipe.data.positive, recipe.data.negative) == (
        "sentence-embedding",
        "positive",
        "negative",
    )
