"""The laws of every task, for numbers of texts and for pairs of texts: split, resume, predictions after reload, folds, rows, recognition."""

from __future__ import annotations

import csv
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from snugfit.data.texts.labelled_texts import TextSettings, load_text
from snugfit.deliver.predict import evaluate_file, predict_file
from snugfit.errors import DataError
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
from tests.unit.tasks.trained_runs import AfterWindows, check_parts, check_resume

RECIPE = """\
name: rows
task: text-{kind}
model: ./encoder
data: {{train: rows.csv, validation: 0.25, text: first, pair: second, label: {label}, max_length: 16}}
train: {{epochs: 3, global_batch: 16, seed: 3}}
optimizer: {{adamw: {{learning_rate: 1.0e-2}}}}
schedule: null
techniques: []
evaluate: {{every: 2}}
plan: {{micro_batch: null, device: cpu, numerics: fp32}}
track: {{mlflow: false}}
"""
ROWS = 96
KINDS = [("classification", "wanted"), ("regression", "price")]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Pairs of texts: whether a good film is in Rome, and a price that hangs on both texts."""
    monkeypatch.chdir(tmp_path)
    write_encoder(tmp_path / "encoder")
    drawn = random.Random(0)
    with (tmp_path / "rows.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["first", "second", "wanted", "price"])
        for _ in range(ROWS):
            film, place = drawn.choice(["good", "bad"]), drawn.choice(["Rome", "Oslo"])
            price = 50_000 + 10_000 * (film == "good") + 6_000 * (place == "Rome") + drawn.gauss(0, 200)
            wanted = "yes" if (film, place) == ("good", "Rome") else "no"
            writer.writerow([f"very {film} film", f"in {place}", wanted, round(price, 1)])
    for kind, label in KINDS:
        (tmp_path / f"{kind}.yaml").write_text(RECIPE.format(kind=kind, label=label))
    return tmp_path


def train(kind: str, *overrides: str, options: RunOptions | None = None) -> Any:
    return train_recipe(load_recipe(Path(f"{kind}.yaml"), overrides), options or RunOptions())


def rows() -> list[dict[str, str]]:
    with Path("rows.csv").open() as file:
        return list(csv.DictReader(file))


@pytest.mark.slow
def test_a_number_is_learned_in_its_own_unit_and_predicted_alike_after_a_reload(project: Path) -> None:
    result = train("regression", "train.epochs=12", "optimizer={adamw: {learning_rate: 2.0e-2}}")
    here, again = result.predict(rows()), load(result.run_dir).predict(rows())
    assert here == again
    errors = [each["prediction"] - float(row["price"]) for each, row in zip(here, rows(), strict=True)]
    scored = evaluate_file(result.run_dir, "rows.csv")["metrics"]
    assert scored["rmse"] == pytest.approx((sum(each**2 for each in errors) / ROWS) ** 0.5, rel=1e-4)
    assert scored["mae"] == pytest.approx(sum(map(abs, errors)) / ROWS, rel=1e-4)
    assert scored["r2"] > 0.9 and result.best["metrics"]["r2"] > 0.9
    assert scored["loss"] < 0.1  # in units of the spread, whatever that of the labels
    predict_file(result.run_dir, "rows.csv", Path("out.csv"))
    with Path("out.csv").open() as file:
        written = [float(row["prediction"]) for row in csv.DictReader(file)]
    assert written == pytest.approx([each["prediction"] for each in here], rel=1e-6)


@pytest.mark.slow
def test_a_model_of_numbers_comes_back_from_the_registry(
    project: Path, new_store: Callable[[str], str]
) -> None:
    uri = new_store("mlflow.db")
    result = train("regression", f"track={{mlflow: true, register: prices, uri: '{uri}'}}", "train.epochs=1")
    assert load("models:/prices@champion", uri=uri).predict(rows()) == result.predict(rows())


@pytest.mark.slow
def test_a_class_that_hangs_on_both_texts_is_learned(project: Path) -> None:
    result = train("classification", "train.epochs=15")
    assert result.best["metrics"]["accuracy"] > 0.95
    assert result.predict(rows()) == load(result.run_dir).predict(rows())
    assert evaluate_file(result.run_dir, "rows.csv")["metrics"]["accuracy"] > 0.95


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["classification", "regression"])
def test_a_window_in_parts_is_the_window(project: Path, kind: str) -> None:
    plain = "optimizer={sgd: {learning_rate: 0.1}}"
    check_parts(*(train(kind, plain, f"plan.micro_batch={size}") for size in (16, 5)))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["classification", "regression"])
def test_a_run_that_was_stopped_in_an_epoch_goes_on_to_the_same_weights(project: Path, kind: str) -> None:
    check_resume(train(kind), train(kind, options=RunOptions(stop=AfterWindows(4))), 4)


@pytest.mark.parametrize(("kind", "label"), KINDS)
def test_folds_have_both_texts_of_each_row(project: Path, kind: str, label: str) -> None:
    dealt = fold_rows(load_recipe(Path(f"{kind}.yaml")))
    assert dealt.count == ROWS and (dealt.labels is None) == (kind == "regression")
    assert dealt.contents is not None and dealt.contents[0] == (rows()[0]["first"], rows()[0]["second"])
    files = dealt.write(Fold(1, 1, tuple(range(48)), tuple(range(48, ROWS))), project)
    overrides = [f"data.{side}={file}" for side, file in files.items()]
    assert train(kind, *overrides, "train.epochs=1").status == "finished"


def settings(**others: Any) -> TextSettings:
    given = {"train": "rows.csv", "text": ("first",), "pair": "second", "label": "price", "classes": False}
    return TextSettings(**{**given, "max_length": 16, **others})


def test_a_pair_is_joined_as_the_tokenizer_joins_it_and_the_longer_text_is_cut(project: Path) -> None:
    Path("pairs.csv").write_text(f"first,second,price\nann met bob,{'food ' * 30},1\nbob,ann,2\n")
    tokenizer = load_tokenizer("./encoder", folder=project)
    data = load_text(settings(train="pairs.csv", validation=None), tokenizer)
    tokens = tokenizer.convert_ids_to_tokens(data.train[0]["input_ids"])
    assert tokens == ["[CLS]", "ann", "met", "bob", "[SEP]", *["food"] * 10, "[SEP]"]
    assert data.train[0]["token_type_ids"] == [0] * 5 + [1] * 11
    assert data.train[1]["labels"] == 2.0
    assert (data.report.truncated, data.report.tokens_max) == (1, 36)
    assert (data.middle, data.spread) == (1.5, 0.5)


def test_numbers_are_scaled_by_the_rows_to_train_on_alone(project: Path) -> None:
    Path("other.csv").write_text("first,second,price\nann,bob,1e9\n")
    data = load_text(settings(validation="other.csv"), load_tokenizer("./encoder", folder=project))
    assert data.middle == pytest.approx(sum(float(row["price"]) for row in rows()) / ROWS)
    assert data.validation[0]["labels"] == 1e9


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("ann,bob,", "missing label"),
        ("ann,bob,nan", "missing label"),
        ("ann,bob,inf", "unusable label"),
        ("ann,bob,cheap", "unusable label"),
        ("ann,,3", "empty text"),
        (",bob,3", "empty text"),
    ],
)
def test_a_row_without_a_number_or_a_text_is_a_fault_with_its_line(
    project: Path, line: str, reason: str
) -> None:
    Path("bad.csv").write_text(f"first,second,price\nann,bob,1\nbob,ann,2\n{line}\n")
    tokenizer = load_tokenizer("./encoder", folder=project)
    with pytest.raises(DataError, match=r"bad.csv:4"):
        load_text(settings(train="bad.csv", validation=None), tokenizer)
    data = load_text(settings(train="bad.csv", validation=None, bad_rows="skip"), tokenizer)
    assert data.report.skipped == {reason: 1} and len(data.train) == 2


def test_numbers_that_are_all_the_same_are_refused(project: Path) -> None:
    Path("same.csv").write_text("first,second,price\nann,bob,1\nbob,ann,1\n")
    with pytest.raises(DataError, match="'price' has one value alone"):
        load_text(settings(train="same.csv", validation=None), load_tokenizer("./encoder", folder=project))


@pytest.mark.parametrize(
    ("columns", "task", "data"),
    [
        (
            ("sentence1", "sentence2", "score"),
            "text-regression",
            {"text": ("sentence1",), "pair": "sentence2"},
        ),
        (
            ("premise", "hypothesis", "label"),
            "text-classification",
            {"text": ("premise",), "pair": "hypothesis"},
        ),
        (("text", "score"), "text-regression", {"text": ("text",)}),
        (("text", "y"), "text-classification", {"text": ("text",), "label": "y"}),
    ],
)
def test_pairs_and_numbers_are_recognised_by_their_columns(
    columns: tuple[str, ...], task: str, data: dict[str, Any]
) -> None:
    kinds = {
        "y": lambda place: place % 12,
        "score": lambda place: f"{place / 7:.2f}",
        "label": lambda place: "ab"[place % 2],
    }
    rows = [
        {name: kinds.get(name, lambda place: f"some text of row {place}")(place) for name in columns}
        for place in range(60)
    ]
    seen = Rows(Path("rows.csv"), columns, rows)
    proposals = {name: card.recognize(seen, {}) for name, card in discover().items()}
    suitable = {name: each for name, each in proposals.items() if each is not None}
    best = max(suitable, key=lambda name: suitable[name].score)
    assert best == task and {name: suitable[best].data.get(name) for name in data} == data


def test_a_file_and_a_model_are_a_recipe_for_fractions_and_for_numbered_classes(project: Path) -> None:
    priced = begin_here("rows.csv", ["model=./encoder", "data.text=[first]", "data.label=price"])
    assert load_recipe(priced.recipe).task == "text-regression"
    Path("numbered.csv").write_text(
        "text,label\n" + "".join(f"some film {at},{at % 12}\n" for at in range(60))
    )
    assert begin_here("numbered.csv", ["model=./encoder"]).task == "text-classification"
