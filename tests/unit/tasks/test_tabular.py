"""The laws of every task, for tables: split, resume in the middle of an epoch, predictions after reload, folds, commands."""

from __future__ import annotations

import csv
import json
import math
import random
from pathlib import Path
from typing import Any

import pytest

from snugfit.deliver.predict import evaluate_file, evaluate_rows, predict_file
from snugfit.errors import DataError, SettingError
from snugfit.models.bundle import load_bundle
from snugfit.models.table_network import network_settings
from snugfit.recipe import load_recipe
from snugfit.run.call_options import RunOptions
from snugfit.run.from_recipe import train_recipe
from snugfit.run.trained_model import load
from snugfit.tools.cross_validation.fold_rows import fold_rows
from snugfit.tools.cross_validation.result import Fold
from tests.unit.tasks.devices import planned_for_a_gpu, without_float64

RECIPE = """\
name: rows
task: tabular-{kind}
model: ./net.json
data: {{train: rows.csv, validation: 0.25, label: {label}, columns: [x, y, kind]}}
train: {{epochs: 3, global_batch: 16, seed: 3}}
optimizer: {{adamw: {{learning_rate: 1.0e-2}}}}
schedule: null
techniques: []
evaluate: {{every: 2}}
plan: {{micro_batch: null, device: cpu, numerics: fp32}}
track: {{mlflow: false}}
"""
ROWS = 96


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Rows whose class and whose price hang on numbers, on a category, and on a gap in a column of numbers."""
    monkeypatch.chdir(tmp_path)
    drawn = random.Random(0)
    lines = [["id", "x", "y", "kind", "sold", "price"]]
    for number in range(ROWS):
        x, y, kind = drawn.gauss(50, 10), drawn.gauss(0, 1e-3), drawn.choice(["flat", "house"])
        gap = drawn.random() < 0.2
        price = 1000 * x + (40_000 if kind == "house" else 0) + (30_000 if gap else 0)
        lines.append([number, x, "" if gap else y, kind, "yes" if price > 75_000 else "no", price])
    with (tmp_path / "rows.csv").open("w", newline="") as file:
        csv.writer(file).writerows(lines)
    (tmp_path / "net.json").write_text(
        '{"width": 16, "members": 4, "embedding": 4, "bins": 4, "dropout": 0.1}'
    )
    for kind, label in (("classification", "sold"), ("regression", "price")):
        (tmp_path / f"{kind}.yaml").write_text(RECIPE.format(kind=kind, label=label))
    return tmp_path


def train(kind: str, *overrides: str, options: RunOptions | None = None) -> Any:
    return train_recipe(load_recipe(Path(f"{kind}.yaml"), overrides), options or RunOptions())


def rows() -> list[dict[str, str]]:
    with Path("rows.csv").open() as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("model", ["./net.json", pytest.param("mlp", marks=pytest.mark.slow)])
def test_classes_are_learned_and_predicted_alike_after_a_reload(project: Path, model: str) -> None:
    result = train("classification", f"model={model}", "train.epochs=20", "evaluate.every=25")
    assert result.best["metrics"]["accuracy"] > 0.9
    here, again = result.predict(rows()), load(result.run_dir).predict(rows())
    assert here == again and {each["prediction"] for each in here} == {"yes", "no"}
    scored = evaluate_file(result.run_dir, "rows.csv")["metrics"]
    assert scored["accuracy"] == pytest.approx(
        sum(each["prediction"] == row["sold"] for each, row in zip(here, rows(), strict=True)) / ROWS
    )
    trained = load(result.run_dir)
    assert scored == trained.evaluate("rows.csv").metrics == trained.evaluate(rows()).metrics
    with pytest.raises(DataError, match="the data has no column 'sold'. Its columns are 'x'"):
        trained.evaluate([{"x": "1"}])


@pytest.mark.parametrize("model", [pytest.param("./net.json", marks=pytest.mark.slow), "mlp"])
def test_a_number_is_learned_in_its_own_unit(project: Path, model: str) -> None:
    result = train("regression", f"model={model}", "train.epochs=60", "evaluate.every=100")
    assert result.best["metrics"]["r2"] > 0.9
    predicted = [each["prediction"] for each in load(result.run_dir).predict(rows())]
    errors = [each - float(row["price"]) for each, row in zip(predicted, rows(), strict=True)]
    scored = evaluate_file(result.run_dir, "rows.csv")["metrics"]
    assert scored["rmse"] == pytest.approx((sum(each**2 for each in errors) / ROWS) ** 0.5, rel=1e-5)
    assert scored["mae"] == pytest.approx(sum(map(abs, errors)) / ROWS, rel=1e-5)
    predict_file(result.run_dir, "rows.csv", Path("out.csv"))
    with Path("out.csv").open() as file:
        written = [float(row["prediction"]) for row in csv.DictReader(file)]
    assert written == pytest.approx(predicted, rel=1e-6)


def test_the_bundle_makes_its_network_again(project: Path) -> None:
    run = Path(train("regression").run_dir)
    model, meta, _ = load_bundle(run / "best")
    settings = network_settings("./net.json", project)
    assert meta["network"]["settings"]["members"] == settings.members == model.members
    assert [each["name"] for each in meta["table"]["numbers"]] == ["x", "y"]
    assert json.loads((run / "best/snugfit.json").read_text())["label_column"] == "price"


@pytest.mark.parametrize(("kind", "labels"), [("classification", ["no", "yes"]), ("regression", None)])
def test_folds_hold_the_rows_as_they_stand_in_the_file(
    project: Path, kind: str, labels: list[str] | None
) -> None:
    dealt = fold_rows(load_recipe(Path(f"{kind}.yaml")))
    assert dealt.count == ROWS and (dealt.labels is None) == (labels is None)
    files = dealt.write(Fold(1, 1, tuple(range(48)), tuple(range(48, ROWS))), project)
    overrides = [f"data.{side}={file}" for side, file in files.items()]
    result = train(kind, *overrides, "train.epochs=1")
    numbers = load_bundle(Path(result.run_dir) / "best")[1]["table"]["numbers"]
    own = sorted(float(row["x"]) for row in rows()[:48])
    assert numbers[0]["middle"] == pytest.approx((own[23] + own[24]) / 2)


@pytest.mark.parametrize("columns", ["[x, y]", "[kind]"])
def test_columns_of_one_kind_alone_are_enough(project: Path, columns: str) -> None:
    result = train("regression", f"data.columns={columns}")
    assert result.status == "finished" and len(load(result.run_dir).predict(rows())) == ROWS


def test_a_category_that_no_row_to_train_on_has_is_said(project: Path) -> None:
    run = train("classification").run_dir
    text = Path("rows.csv").read_text()
    Path("odd.csv").write_text(text.replace("house", "castle"))
    count = text.count("house")
    for result in (evaluate_file(run, "odd.csv"), predict_file(run, "odd.csv", Path("out.csv"))):
        assert result["warnings"] == [
            f"{count} of {ROWS} rows have a category in 'kind' that no row to train on has."
        ]
    assert "warnings" not in evaluate_file(run, "rows.csv")


def test_a_loss_of_the_users_own_is_for_one_network_alone(project: Path) -> None:
    (project / "mine.py").write_text(
        "def loss(outputs, data):\n    return (outputs - data['labels']).abs() / 1e4\n"
    )
    with pytest.raises(SettingError, match="loss: mine:loss is not of each member.*take model: mlp"):
        train("regression", "loss=mine:loss")
    result = train("regression", "loss=mine:loss", "model=mlp")
    assert result.status == "finished"
    said = evaluate_file(result.run_dir, "rows.csv")["warnings"]
    assert said == [
        "the run learned by mine:loss, and the loss here is its task's. By its own: --allow-code, which imports it, or sf.load(RUN, loss=…).evaluate(DATA)."
    ]
    own = load(result.run_dir, loss=lambda outputs, data: (outputs - data["labels"]).abs())
    assert "warnings" not in evaluate_rows(own.predictor, rows())
    consented = evaluate_file(result.run_dir, "rows.csv", allow_code=True)
    assert "warnings" not in consented
    unscaled = evaluate_rows(own.predictor, rows())["metrics"]["loss"]
    assert consented["metrics"]["loss"] == pytest.approx(unscaled / 1e4)


@pytest.mark.parametrize("kind", ["classification", "regression"])
def test_an_update_and_its_evaluation_make_no_float64_on_the_device(project: Path, kind: str) -> None:
    metrics = "auroc, macro_f1" if kind == "classification" else "rmse, r2, spearman"
    scores = without_float64(load_recipe(Path(f"{kind}.yaml"), [f"evaluate.metrics=[{metrics}]"]))
    assert all(map(math.isfinite, scores.values()))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["classification", "regression"])
def test_an_update_runs_on_a_gpu_that_is_pretended(project: Path, kind: str) -> None:
    answer = planned_for_a_gpu(load_recipe(Path(f"{kind}.yaml"), ["plan.device=auto"]))
    assert answer.fits and answer.prediction.peak_bytes > 0
