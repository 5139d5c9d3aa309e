"""Several models that predict together, beside the means of what each predicts alone; and the rows that folds have not seen."""

from __future__ import annotations

import csv
import math
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from snugfit.deliver import soup
from snugfit.deliver.predict import evaluate_file, predict_file
from snugfit.deliver.predictor import predictor_of
from snugfit.deliver.soup import check_alike, make_soup
from snugfit.errors import ModelError, RunFolderError, SettingError
from snugfit.recipe import load_recipe
from snugfit.run.call_options import RunOptions
from snugfit.run.from_recipe import train_recipe
from snugfit.run.trained_model import load
from snugfit.tools.cross_validation.door import cross_validate, resume
from tests.unit.run.training.no_float64 import WithoutFloat64

RECIPE = """\
name: rows
task: tabular-{kind}
model: ./net.json
data: {{train: rows.csv, validation: 0.25, label: {label}, columns: [x, kind]}}
train: {{epochs: 2, global_batch: 16}}
optimizer: {{adamw: {{learning_rate: 1.0e-2}}}}
schedule: null
techniques: []
plan: {{micro_batch: null, device: cpu, numerics: fp32}}
track: {{mlflow: false}}
"""
ROWS = 60


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    drawn = random.Random(0)
    with (tmp_path / "rows.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["x", "kind", "sold", "price"])
        for _ in range(ROWS):
            x, kind = drawn.gauss(0, 1), drawn.choice("ab")
            writer.writerow([x, kind, "yes" if x + (kind == "a") > 0.5 else "no", 10 * x + drawn.gauss(0, 1)])
    (tmp_path / "net.json").write_text('{"network": "mlp", "width": 8, "embedding": 4, "bins": 4}')
    for kind, label in (("classification", "sold"), ("regression", "price")):
        (tmp_path / f"{kind}.yaml").write_text(RECIPE.format(kind=kind, label=label))
    return tmp_path


def train(kind: str, seed: int, *overrides: str) -> Path:
    recipe = load_recipe(f"{kind}.yaml", [f"train.seed={seed}", *overrides])
    return Path(train_recipe(recipe, RunOptions()).run_dir)


def rows(file: str = "rows.csv") -> list[dict[str, str]]:
    with Path(file).open() as lines:
        return list(csv.DictReader(lines))


def test_probabilities_of_several_models_are_their_mean(project: Path) -> None:
    runs = [train("classification", seed) for seed in range(3)]
    alone = [load(run).predict(rows(), proba=True) for run in runs]
    means = [sum(each["probability of yes"] for each in of) / 3 for of in zip(*alone, strict=True)]
    counts = predict_file(runs[0], "rows.csv", Path("out.csv"), others=runs[1:], proba=True)
    assert counts["models"] == 3 and "update" not in counts
    for row, mean in zip(rows("out.csv"), means, strict=True):
        assert float(row["probability of yes"]) == pytest.approx(mean, abs=1e-6)
        assert row["prediction"] == ("yes" if mean > 0.5 else "no")
        assert float(row["probability"]) == pytest.approx(max(mean, 1 - mean), abs=1e-6)
    scored = evaluate_file(runs[0], "rows.csv", others=runs[1:])
    right = [(mean > 0.5) == (row["sold"] == "yes") for row, mean in zip(rows(), means, strict=True)]
    assert scored["metrics"]["accuracy"] == pytest.approx(sum(right) / ROWS)
    likely = [mean if row["sold"] == "yes" else 1 - mean for row, mean in zip(rows(), means, strict=True)]
    loss = -sum(map(math.log, likely)) / ROWS
    assert scored["models"] == 3 and scored["metrics"]["loss"] == pytest.approx(loss, rel=1e-5)
    same = evaluate_file(runs[0], "rows.csv", ["perplexity", "auroc"], others=runs[:1])["metrics"]
    one = evaluate_file(runs[0], "rows.csv", ["perplexity", "auroc"])["metrics"]
    assert same == pytest.approx(one, rel=1e-5)


def test_numbers_of_several_models_are_their_mean(project: Path) -> None:
    runs = [train("regression", seed) for seed in range(2)]
    alone = [[each["prediction"] for each in load(run).predict(rows())] for run in runs]
    means = [sum(of) / 2 for of in zip(*alone, strict=True)]
    predict_file(runs[0], "rows.csv", Path("out.csv"), others=runs[1:])
    assert [float(row["prediction"]) for row in rows("out.csv")] == pytest.approx(means, abs=1e-6)
    errors = [mean - float(row["price"]) for row, mean in zip(rows(), means, strict=True)]
    scored = evaluate_file(runs[0], "rows.csv", ["rmse"], others=runs[1:])
    assert scored["metrics"]["rmse"] == pytest.approx((sum(each**2 for each in errors) / ROWS) ** 0.5)
    same = evaluate_file(runs[0], "rows.csv", others=runs[:1])["metrics"]
    assert same == pytest.approx(evaluate_file(runs[0], "rows.csv")["metrics"], rel=1e-5)


def test_models_that_predict_something_else_are_refused(project: Path) -> None:
    one, other = train("classification", 0), train("regression", 0)
    with pytest.raises(ModelError, match="predicts something else than"):
        predict_file(one, "rows.csv", Path("out.csv"), others=[other])
    with pytest.raises(SettingError, match="no metric 'acuracy'"):
        evaluate_file(one, "rows.csv", ["acuracy"], others=[one])
    assert not Path("out.csv").exists()


@pytest.mark.parametrize(("kind", "label"), [("classification", "sold"), ("regression", "price")])
def test_folds_predict_together_and_each_the_rows_that_it_has_not_seen(
    project: Path, kind: str, label: str
) -> None:
    recipe = load_recipe(f"{kind}.yaml", ["data.columns=null"])  # all of the file, and no other
    result = cross_validate(recipe, folds=3, options=RunOptions(plan=False))
    folder = Path(result.folder)
    out: list[dict[str, Any]] = rows(str(folder / "out_of_fold.csv"))
    assert [int(row["source_line"]) for row in out] == list(range(2, ROWS + 2))
    assert [row[label] for row in out] == [row[label] for row in rows()]
    for score in result.scores:
        held_out = [row for row in out if row["fold"] == score.fold]
        assert len(held_out) == score.validation_rows
        if kind == "classification":
            right = sum(row["prediction"] == row[label] for row in held_out)
            assert score.best["accuracy"] == pytest.approx(right / len(held_out))
            assert all(0 <= float(row["probability of yes"]) <= 1 for row in held_out)
        else:
            squared = [(float(row["prediction"]) - float(row[label])) ** 2 for row in held_out]
            assert score.best["rmse"] == pytest.approx((sum(squared) / len(squared)) ** 0.5, rel=1e-5)
    moved = shutil.move(folder, project / "moved")
    assert predict_file(moved, "rows.csv", Path("out.csv"))["models"] == 3
    for file in Path(moved).glob("fold-*/result.json"):
        file.unlink()
    with pytest.raises(RunFolderError, match="a cross-validation of which no fold has ended"):
        predict_file(moved, "rows.csv", Path("out.csv"))


def test_seeds_of_a_fold_predict_together_and_count_once_beside_other_folds(project: Path) -> None:
    recipe = load_recipe("regression.yaml", ["data.columns=null"])
    result = cross_validate(recipe, folds=2, seeds=2, options=RunOptions(plan=False))
    names = ["fold-1-1", "fold-1-1-seed-2", "fold-1-2", "fold-1-2-seed-2"]
    assert [each.fold for each in result.scores] == names
    own = [load_recipe(Path(each.run_dir, "recipe.yaml")).train.seed for each in result.scores]
    assert own == [recipe.train.seed, recipe.train.seed + 1] * 2
    rmse = [each.best["rmse"] for each in result.scores]
    of_folds = [(rmse[0] + rmse[1]) / 2, (rmse[2] + rmse[3]) / 2]
    assert rmse[0] != rmse[1]
    assert result.summary.mean["rmse"] == pytest.approx(sum(of_folds) / 2)
    deviation = abs(of_folds[0] - of_folds[1]) / 2**0.5
    assert result.summary.spread["rmse"].deviation == pytest.approx(deviation)
    assert predict_file(result.folder, "rows.csv", Path("out.csv"))["models"] == 4
    assert len(rows(str(Path(result.folder, "out_of_fold.csv")))) == 2 * ROWS
    assert resume(result.folder).scores == result.scores


@pytest.fixture
def fine_tuned(project: Path) -> list[Path]:
    """Three runs from the same weights on the same rows: two that learn, and one whose rate is far too high."""
    rates = (1e-2, 2e-2, 30.0)
    return [train("classification", 0, f"optimizer={{adamw: {{learning_rate: {rate}}}}}") for rate in rates]


def test_a_soup_is_the_mean_of_the_weights_that_raise_its_score(fine_tuned: list[Path]) -> None:
    alone = [evaluate_file(run, "rows.csv")["metrics"]["accuracy"] for run in fine_tuned]
    made = make_soup(fine_tuned, "rows.csv", Path("soup"))
    assert list(made["alone"].values()) == pytest.approx(alone)
    assert made["score"] >= max(alone) and made["metric"] == "accuracy"
    chosen = [load(Path(each).parent).model.state_dict() for each in made["models"]]
    soup = load("soup")
    for name, value in soup.model.state_dict().items():
        torch.testing.assert_close(value, torch.stack([state[name] for state in chosen]).mean(dim=0))
    assert evaluate_file("soup", "rows.csv")["metrics"]["accuracy"] == pytest.approx(made["score"])
    assert soup.about["soup"] == made["models"] and soup.about["metrics"] == {"accuracy": made["score"]}
    assert len(soup.predict(rows())) == ROWS


def test_a_soup_of_all_of_them_is_the_mean_of_all(fine_tuned: list[Path]) -> None:
    made = make_soup(fine_tuned, "rows.csv", Path("soup"), metric="loss", all_of_them=True)
    assert len(made["models"]) == 3 and made["metric"] == "loss"
    states = [load(run).model.state_dict() for run in fine_tuned]
    for name, value in load("soup").model.state_dict().items():
        torch.testing.assert_close(value, torch.stack([state[name] for state in states]).mean(dim=0))
    best = make_soup(fine_tuned, "rows.csv", Path("best-soup"), metric="loss")
    assert best["score"] <= min(made["score"], *made["alone"].values())


def test_a_soup_of_what_has_no_mean_is_refused(project: Path) -> None:
    one, other = train("classification", 0), train("regression", 0)
    with pytest.raises(ModelError, match="of another kind than .*: they differ in label_column"):
        make_soup([one, other], "rows.csv", Path("soup"))
    with pytest.raises(SettingError, match="sources: got 1"):
        make_soup([one], "rows.csv", Path("soup"))
    with pytest.raises(SettingError, match="whether a high or a low 'acuracy' is better"):
        make_soup([one, one], "rows.csv", Path("soup"), metric="acuracy")
    normed = predictor_of(nn.Sequential(nn.BatchNorm1d(2)), {"task": "python"}, None, "cpu", "best")
    with pytest.raises(ModelError, match="has batch norm, whose statistics"):
        check_alike([normed, normed])
    assert not Path("soup").exists()


def test_a_mean_of_weights_makes_no_float64_on_a_device_that_has_none() -> None:
    states = [{"weight": torch.full((2,), value), "count": torch.tensor(3)} for value in (1.0, 2.0)]
    with WithoutFloat64():
        mean = soup._mean(states)
    assert mean["weight"].tolist() == [1.5, 1.5] and mean["count"] == 3
