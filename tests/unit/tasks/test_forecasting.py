"""The laws of every task, for series: split, resume in the middle of an epoch, predictions after reload, commands, recognition."""

from __future__ import annotations

import csv
import json
import math
import random
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from snugfit.cli import main
from snugfit.deliver.predict import evaluate_file, predict_file
from snugfit.errors import DataError, ModelError, SettingError
from snugfit.recipe import load_recipe
from snugfit.run.call_options import RunOptions
from snugfit.run.from_recipe import train_recipe
from snugfit.run.trained_model import load
from snugfit.tasks.recognition import Rows
from snugfit.tasks.tables.forecasting import CARD
from snugfit.tasks.tables.tabular_classification import CARD as TABLE
from snugfit.tools.cross_validation.fold_rows import fold_rows
from snugfit.tools.init.door import begin_here

RECIPE = """\
name: loads
task: forecasting
model: ./net.json
data:
  {train: loads.csv, validation: 0.2, series: plant, time: hour, label: load, known: price, past: wind, horizon: 6, history: 24, stride: 3}
train: {epochs: 2, global_batch: 16, seed: 3}
optimizer: {adamw: {learning_rate: 3.0e-3}}
schedule: null
techniques: []
evaluate: {every: 4}
plan: {micro_batch: null, device: cpu, numerics: fp32}
track: {mlflow: false}
"""
NET = '{"width": 16, "blocks": 1, "step_width": 4, "step_layers": 8, "covariates": 2, "dropout": %s}'
HOURS = 120


def write_loads(path: Path, *, hours: int = HOURS, ahead: int = 0) -> None:
    """Write loads of two plants that repeat each day and hang on the price, of very different sizes."""
    drawn = random.Random(0)
    lines: list[list[Any]] = [["plant", "hour", "price", "wind", "load"]]
    for plant, size in (("north", 1000.0), ("south", 3.0)):
        for number in range(hours + ahead):
            price, wind, noise = drawn.choice([1, 2]), drawn.gauss(5, 1), drawn.gauss(0, 0.02)
            load = size * (2 + math.sin(2 * math.pi * number / 24) + 0.3 * price + noise)
            future = number >= hours
            hour = datetime(2026, 1, 1) + timedelta(hours=number)
            lines.append([plant, hour, price, "" if future else wind, "" if future else load])
    with path.open("w", newline="") as file:
        csv.writer(file).writerows(lines)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_loads(tmp_path / "loads.csv")
    write_loads(tmp_path / "ahead.csv", ahead=6)
    (tmp_path / "net.json").write_text(NET % 0.1)
    (tmp_path / "loads.yaml").write_text(RECIPE)
    return tmp_path


def train(*overrides: str, options: RunOptions | None = None) -> Any:
    return train_recipe(load_recipe(Path("loads.yaml"), overrides), options or RunOptions())


def rows(name: str = "ahead.csv") -> list[dict[str, str]]:
    with Path(name).open() as file:
        return list(csv.DictReader(file))


@pytest.mark.slow
def test_the_next_steps_are_predicted_in_their_own_unit_alike_after_a_reload(project: Path) -> None:
    result = train("train.epochs=12", "data.stride=1")
    assert result.best["metrics"]["mase"] < 0.9
    here, again = result.predict(rows()), load(result.run_dir).predict(rows())
    assert here == again and len(here) == 2 * 6
    assert [(each["plant"], each["hour"]) for each in here[:2]] == [
        ("north", "2026-01-06 00:00:00"),
        ("north", "2026-01-06 01:00:00"),
    ]
    for each in here:
        size = 1000 if each["plant"] == "north" else 3
        assert 0.5 * size < each["quantile 0.1"] <= each["quantile 0.5"] <= each["quantile 0.9"] < 5 * size
    counts = predict_file(result.run_dir, "ahead.csv", Path("out.csv"))
    written = rows("out.csv")
    assert counts["rows"] == len(written) == 12 and [*written[0]] == [*here[0], "source_line"]
    assert [float(each["quantile 0.5"]) for each in written] == pytest.approx(
        [each["quantile 0.5"] for each in here], rel=1e-5
    )
    # the last row with a load
    assert {each["source_line"] for each in written} == {str(HOURS + 1), str(2 * HOURS + 7)}


def test_the_scores_of_a_file_are_those_of_its_windows_one_by_one(project: Path) -> None:
    result = train()
    scored = evaluate_file(result.run_dir, "loads.csv")
    model = load(result.run_dir)
    errors, inside = [], []
    for plant in ("north", "south"):
        own = [row for row in rows("loads.csv") if row["plant"] == plant]
        values = [float(row["load"]) for row in own]
        trained = values[:96]
        unit = sum(abs(b - a) for a, b in zip(trained, trained[24:], strict=False)) / len(trained[24:])
        for origin in range(24, HOURS, 6):
            past = own[:origin] + [{**row, "load": "", "wind": ""} for row in own[origin : origin + 6]]
            for step, truth in zip(model.predict(past), values[origin:], strict=False):
                errors.append(abs(step["quantile 0.5"] - truth) / unit)
                inside.append(step["quantile 0.1"] <= truth <= step["quantile 0.9"])
    assert scored["rows"] == 32
    assert scored["metrics"]["mase"] == pytest.approx(sum(errors) / len(errors), rel=1e-4)
    assert scored["metrics"]["coverage"] == pytest.approx(sum(inside) / len(inside))
    assert set(scored["baseline"]) == {"mase", "mae"}


def test_a_series_that_was_not_trained_on_is_predicted(project: Path) -> None:
    model = load(train("train.epochs=1").run_dir)
    renamed = [{**row, "plant": "new"} for row in rows() if row["plant"] == "north"]
    known = [each for each in model.predict(rows()) if each["plant"] == "north"]
    for here, there in zip(model.predict(renamed), known, strict=True):
        assert here["quantile 0.5"] == pytest.approx(there["quantile 0.5"], rel=1e-6)


def test_folds_several_models_and_classes_are_refused_by_name(project: Path) -> None:
    with pytest.raises(
        SettingError,
        match=r"task: forecasting is learned from the past.*Validate by time: data.validation: 0.2",
    ):
        fold_rows(load_recipe(Path("loads.yaml")))
    run = train("train.epochs=1").run_dir
    with pytest.raises(ModelError, match="of whose predictions there is no mean"):
        predict_file(run, "ahead.csv", Path("out.csv"), others=[run])
    with pytest.raises(ModelError, match="no named classes"):
        predict_file(run, "ahead.csv", Path("out.csv"), top=2)
    assert not Path("out.csv").exists()


def test_a_covariate_that_is_missing_ahead_is_one_message_by_its_line(project: Path) -> None:
    run = train("train.epochs=1").run_dir
    with pytest.raises(
        DataError, match=r"loads.csv:121: price of plant 'north' is not given for 2026-01-06 00:00:00"
    ):
        predict_file(run, "loads.csv", Path("out.csv"))
    text = Path("ahead.csv").read_text().splitlines()
    Path("one.csv").write_text("\n".join(text[:-1]))
    with pytest.raises(
        DataError, match=r"price of plant 'south' is not given for 2026-01-06 05:00:00, step 6 of 6"
    ):
        predict_file(run, "one.csv", Path("out.csv"))
    assert not Path("out.csv").exists()
    counts = predict_file(run, "one.csv", Path("out.csv"), bad_rows="skip")
    assert (counts["rows"], counts["skipped"]) == (6, {"missing covariate ahead": 1})


@pytest.mark.slow
def test_a_file_alone_is_enough(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["init", "loads.csv", "-o", "made.yaml"]) == 0
    made = load_recipe(Path("made.yaml"))
    assert (made.task, made.model, made.data.series, made.data.time) == (
        "forecasting",
        "tide",
        ("plant",),
        "hour",
    )
    assert (made.data.label, made.data.past, made.evaluate.best) == ("load", ("price", "wind"), "mase")
    capsys.readouterr()
    options = [
        "plan={micro_batch: null, device: cpu, numerics: fp32}",
        "track={mlflow: false}",
        "data.horizon=6",
    ]
    command = [
        "train",
        "--data",
        "loads.csv",
        "--model",
        "tide",
        *options,
        "--fast-dev-run",
        "--json",
        "--quiet",
    ]
    assert main(command) == 0
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    story = (Path(result["run_dir"]) / "report.html").read_text()
    assert "baseline" in story and "mase" in story


def recognised(lines: list[str], **data: Any) -> Any:
    parsed = list(csv.DictReader(lines))
    return CARD.recognize(Rows(Path("a.csv"), tuple(parsed[0]), parsed), data)


def days(count: int = 30) -> list[str]:
    return [f"{datetime(2026, 1, 1) + timedelta(days=number):%Y-%m-%d}" for number in range(count)]


def test_a_long_table_is_recognised_by_its_times() -> None:
    one = recognised(["date,sales", *(f"{day},{number * 7 % 13}" for number, day in enumerate(days()))])
    assert one.data == {"time": "date", "label": "sales"} and "1 day a step" in one.reason
    lines = [f"{a},{b},{day},{number}.5" for a in "xy" for b in "uv" for number, day in enumerate(days())]
    assert recognised(["store,item,ds,y", *lines]).data["series"] == ("store", "item")
    counted = recognised(["id,t,y", *(f"{a},{number},{number % 5}" for a in "xy" for number in range(20))])
    assert counted.data == {"series": ("id",), "time": "t", "label": "y"}
    gap = recognised(
        ["date,sales", *(f"{day},{'' if number == 4 else number}" for number, day in enumerate(days()))]
    )
    assert gap.data["bad_rows"] == "skip"


def test_a_number_that_only_counts_the_rows_or_never_changes_is_neither_predicted_nor_read() -> None:
    lines = [f"{day},{number * 7 % 13}.5,1,{number},yes" for number, day in enumerate(days())]
    assert recognised(["date,heat,unit,id,open", *lines]).data == {"time": "date", "label": "heat"}
    assert recognised(["date,unit,id", *(f"{day},1,{number}" for number, day in enumerate(days()))]) is None


@pytest.mark.parametrize("classes", [("yes", "no"), ("1", "0")])
def test_classes_in_the_last_column_are_likelier_than_a_number_that_nothing_names(
    classes: tuple[str, str],
) -> None:
    def scores(head: str) -> dict[str, float]:
        lines = [f"{day},{n % 9}.5,{'ab'[n % 2]},{classes[n % 3 == 0]}" for n, day in enumerate(days(60))]
        parsed = list(csv.DictReader([head, *lines]))
        rows = Rows(Path("a.csv"), tuple(parsed[0]), parsed)
        return {card.name: card.recognize(rows, {}).score for card in (CARD, TABLE)}

    for_classes, for_series = scores("date,amount,shop,churned"), scores("date,sales,shop,open")
    assert max(for_classes, key=lambda task: for_classes[task]) == TABLE.name
    assert max(for_series, key=lambda task: for_series[task]) == CARD.name


def test_a_time_that_is_there_twice_is_a_mistake_in_a_series_and_no_other_task() -> None:
    lines = [f"{shop},{day},{number}.5" for shop in "xy" for number, day in enumerate(days())]
    twice = recognised(["shop,ds,y", *lines, lines[4]])
    assert twice.data == {"series": ("shop",), "time": "ds", "label": "y"}
    assert recognised(["shop,ds,y", *lines, *lines[4:14]]) is None


@pytest.mark.parametrize(
    "lines",
    [
        [
            "date,price",
            *(f"{day},{number}" for number, day in enumerate(random.Random(0).sample(days(400), 30))),
        ],
        ["date,name", *(f"{day},shop {number}" for number, day in enumerate(days()))],
        ["x,y", *(f"{number},{number % 3}" for number in range(30))],
        ["date,price", *(f"{day},{number}" for number, day in enumerate(days() * 2))],
        ["date,price", *(f"{number}/2026,{number}" for number in range(30))],
    ],
)
def test_rows_that_are_no_series_are_left_to_other_tasks(lines: list[str]) -> None:
    assert recognised(lines) is None


def test_a_table_without_times_says_what_to_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("plain.csv").write_text("a,b\n" + "\n".join(f"{number % 7},{number % 3}" for number in range(30)))
    with pytest.raises(DataError, match=r"can have the model 'tide' \(forecasting\)"):
        begin_here("plain.csv", ["model=tide"])
    with pytest.raises(DataError, match=r"data\.label: plain.csv has no column 'c'"):
        begin_here("plain.csv", ["model=tide", "data.label=c"])
