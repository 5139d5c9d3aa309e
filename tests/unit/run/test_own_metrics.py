"""Metrics of the user's own, by the name of their function: in a recipe, in Python and of a file."""

from __future__ import annotations

import csv
import itertools
import random
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import snugfit as sf
from snugfit.deliver.predict import evaluate_file
from snugfit.errors import RunFolderError, SettingError
from snugfit.recipe import load_recipe
from snugfit.run.call_options import RunOptions
from snugfit.run.from_recipe import resume_run, train_recipe

ROWS = 30
_NUMBER = itertools.count()

RECIPE = """\
name: own
task: tabular-classification
model: ./net.json
data: {{train: rows.csv, validation: 0.4, label: sold}}
optimizer: {{adamw: {{learning_rate: 1.0e-2}}}}
schedule: null
techniques: []
train: {{epochs: 2, global_batch: 9}}
evaluate: {{metrics: [accuracy, "{module}:agreement"], best: "max:agreement"}}
plan: {{micro_batch: 4, device: cpu, numerics: fp32}}
track: {{mlflow: false}}
"""
METRICS = """\
import snugfit as sf

@sf.over_all_rows
def agreement(logits, labels):
    predicted = logits.argmax(dim=1)
    by_chance = sum((predicted == each).double().mean() * (labels == each).double().mean() for each in range(2))
    return ((predicted == labels).double().mean() - by_chance) / (1 - by_chance)

@sf.over_all_rows
def rows(logits, labels):
    return len(labels)
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a module of metrics, beside a recipe, its rows and a network."""
    monkeypatch.chdir(tmp_path)
    drawn, name = random.Random(0), f"own_metrics_{next(_NUMBER)}"
    with Path("rows.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["x", "kind", "sold"])
        for _ in range(ROWS):
            x, kind = drawn.gauss(0, 1), drawn.choice("ab")
            writer.writerow([x, kind, "yes" if x + (kind == "a") > 0.5 else "no"])
    Path("net.json").write_text('{"network": "mlp", "width": 8, "embedding": 4, "bins": 4}')
    Path(f"{name}.py").write_text(METRICS)
    Path("own.yaml").write_text(RECIPE.format(module=name))
    return name


@pytest.mark.slow
def test_a_recipe_names_them_and_the_best_weights_are_chosen_by_one(module: str) -> None:
    from sklearn.metrics import cohen_kappa_score

    recipe = load_recipe("own.yaml")
    assert recipe.code == {"evaluate.metrics": f"{module}:agreement"}
    outcome = train_recipe(recipe, RunOptions())
    assert outcome.best is not None and set(outcome.best["metrics"]) == {"loss", "accuracy", "agreement"}
    names = ("accuracy", f"{module}:agreement", f"{module}:rows", "auroc")
    scores = evaluate_file(outcome.run_dir, "rows.csv", names)["metrics"]
    with Path("rows.csv").open() as lines:
        table = list(csv.DictReader(lines))
    predicted = [each["prediction"] for each in sf.load(outcome.run_dir).predict(table)]
    kappa = cohen_kappa_score([row["sold"] for row in table], predicted)
    assert scores["agreement"] == pytest.approx(kappa, abs=1e-12) and scores["rows"] == ROWS
    together = evaluate_file(outcome.run_dir, "rows.csv", names, others=[outcome.run_dir])["metrics"]
    assert together == pytest.approx(scores) and len(together) == 5  # with the loss


def test_a_run_does_not_go_on_with_another_one_of_that_name(
    module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcome = train_recipe(load_recipe("own.yaml"), RunOptions(stop_after_seconds=0.0))
    Path(f"{module}.py").write_text(METRICS.replace("1 - by_chance", "2 - by_chance"))
    monkeypatch.delitem(sys.modules, module)
    with pytest.raises(RunFolderError, match="metrics.agreement: .* was changed"):
        resume_run(outcome.run_dir)


def test_two_of_one_name_and_one_that_is_not_there_are_refused(module: str) -> None:
    with pytest.raises(SettingError, match="has two of the name 'accuracy'"):
        load_recipe("own.yaml", [f"evaluate.metrics=[accuracy, {module}:accuracy]", "evaluate.best=accuracy"])
    with pytest.raises(SettingError, match="Write 'max:agreement' or 'min:agreement'"):
        load_recipe("own.yaml", ["evaluate.best=agreement"])
    missing = load_recipe("own.yaml", [f"evaluate.metrics=[{module}:agreemen]", "evaluate.best=loss"])
    with pytest.raises(SettingError, match="agreement"):
        train_recipe(missing, RunOptions())
    missing = load_recipe("own.yaml", ["evaluate.metrics=[nowhere:agreement]", "evaluate.best=loss"])
    with pytest.raises(SettingError, match="no module 'nowhere'"):
        train_recipe(missing, RunOptions())


def test_python_takes_one_of_all_rows() -> None:
    torch.manual_seed(0)
    inputs = torch.randn(20, 3)
    rows = [(row, int(row.sum() > 0)) for row in inputs]
    counted: list[int] = []

    @sf.over_all_rows
    def high(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        counted.append(len(labels))
        return logits[labels == 1, 1].mean()

    result = sf.train(
        nn.Linear(3, 2),
        rows,
        validation=rows[:7],
        metrics={"high": high},
        best="max:high",
        epochs=2,
        global_batch=5,
        evaluate_batch=3,
        output=None,
        display=None,
    )
    assert counted == [7, 7] and result.best is not None and "high" in result.best["metrics"]
