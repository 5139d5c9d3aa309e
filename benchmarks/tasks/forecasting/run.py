"""How well does a network for series forecast, beside the seasonal naive forecast and gradient boosting on lags?

    python benchmarks/tasks/forecasting/run.py [--seeds 3]

All forecast the last 14 days of each series by the hour, 24 steps ahead from 14 origins, each step once. Boosting is
scikit-learn's HistGradientBoostingRegressor with the quantile loss, one model for each quantile over all series and all steps ahead: its columns
are the steps ahead, the values of the last day, those one and two days and one week before the step that is predicted, and the covariates and hour and weekday of that
step, scaled by the same history of a week. What both are stopped early by are the 7 days before those that are scored.

The sets are drawn, as no real one of several seasons is on every machine:
- load: 10 series with a day and a week that hang on temperature, known ahead, with a slow drift and noise that stays a while;
- shops: 12 series of counts with a day, a week, promotions known ahead, visitors known up to now only, and sizes from 5 to 500;
- shifts: 10 series whose level jumps now and then, without covariates.
"""

from __future__ import annotations

import argparse
import csv
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from common import write_result

DAYS, HELD_OUT, STOPPED_BY = 60, 14, 7
HORIZON, WEEK = 24, 168
LEVELS = (0.1, 0.5, 0.9)
START = datetime(2026, 1, 1)
Values = NDArray[np.float64]


@dataclass(frozen=True)
class Drawn:
    """Series of one set, shape (series, hours), with covariates known ahead and known up to now, shape (series, hours, columns)."""

    values: Values
    known: Values
    past: Values


def load(drawn: np.random.Generator) -> Drawn:
    count, hours = 10, np.arange(24 * DAYS)
    day, week = 2 * np.pi * hours / 24, (hours // 24 + START.weekday()) % 7 >= 5
    rows, known = [], []
    for _ in range(count):
        temperature = (
            10
            + 8 * np.sin(2 * np.pi * hours / (24 * 365))
            + 4 * np.sin(day - 2)
            + _lasting(drawn, len(hours), 0.98, 0.6)
        )
        shape = (
            1
            + drawn.uniform(0.2, 0.5) * np.sin(day + drawn.uniform(0, 0.8))
            + drawn.uniform(0.1, 0.3) * np.sin(2 * day)
        )
        heating = np.maximum(0, 15 - temperature) * drawn.uniform(0.02, 0.06)
        drift = 1 + 0.2 * np.sin(2 * np.pi * hours / (24 * 60) + drawn.uniform(0, 6))
        noise = _lasting(drawn, len(hours), 0.8, 0.03)
        rows.append(drawn.uniform(10, 1000) * (shape * drift * np.where(week, 0.75, 1.0) + heating + noise))
        known.append(temperature[:, None])
    return Drawn(np.array(rows), np.array(known), np.zeros((count, len(hours), 0)))


def shops(drawn: np.random.Generator) -> Drawn:
    count, hours = 12, np.arange(24 * DAYS)
    open_hours = ((hours % 24) >= 8) & ((hours % 24) < 20)
    weekday = (hours // 24 + START.weekday()) % 7
    rows, known, past = [], [], []
    for _ in range(count):
        promotion = np.repeat(drawn.random(DAYS) < 0.15, 24)
        busy = np.array([1, 0.9, 0.9, 1, 1.3, 1.6, 0.5])[weekday] * drawn.uniform(0.9, 1.1, 7)[weekday]
        shape = np.where(open_hours, 1 + 0.5 * np.sin(2 * np.pi * (hours % 24 - 8) / 12), 0.02)
        mean = np.exp(drawn.uniform(np.log(5), np.log(500))) * shape * busy * np.where(promotion, 1.6, 1)
        visitors = drawn.poisson(3 * mean * np.exp(_lasting(drawn, len(hours), 0.9, 0.1)))
        rows.append(drawn.binomial(visitors, 1 / 3).astype(float))
        known.append(promotion[:, None].astype(float))
        past.append(visitors[:, None].astype(float))
    return Drawn(np.array(rows), np.array(known), np.array(past))


def shifts(drawn: np.random.Generator) -> Drawn:
    count, hours = 10, np.arange(24 * DAYS)
    rows = []
    for _ in range(count):
        level = np.cumsum(np.where(drawn.random(len(hours)) < 1 / 400, drawn.normal(0, 2, len(hours)), 0))
        rows.append(
            50
            + drawn.uniform(1, 20)
            * (level + np.sin(2 * np.pi * hours / 24) + _lasting(drawn, len(hours), 0.6, 0.3))
        )
    empty = np.zeros((count, len(hours), 0))
    return Drawn(np.array(rows), empty, empty)


def _lasting(drawn: np.random.Generator, hours: int, stays: float, spread: float) -> Values:
    """Return noise of which a part stays from one hour to the next."""
    noise = drawn.normal(0, spread, hours)
    for hour in range(1, hours):
        noise[hour] += stays * noise[hour - 1]
    return noise


SETS: dict[str, Callable[[np.random.Generator], Drawn]] = {"load": load, "shops": shops, "shifts": shifts}


def scores(forecasts: Values, drawn: Drawn) -> dict[str, float]:
    """Return the metrics of forecasts, shape (series, days, steps, levels), by definition."""
    first = 24 * (DAYS - HELD_OUT)
    truth = drawn.values[:, first:].reshape(len(drawn.values), HELD_OUT, HORIZON)
    trained = drawn.values[:, : first - 24 * STOPPED_BY]
    unit = np.abs(trained[:, 24:] - trained[:, :-24]).mean(axis=1)[:, None, None]
    difference = truth[..., None] - forecasts
    levels = np.array(LEVELS)
    loss = 2 * np.maximum(levels * difference, (levels - 1) * difference).mean(axis=-1)
    return {
        "mase": float((np.abs(truth - forecasts[..., 1]) / unit).mean()),
        "scaled pinball": float((loss / unit).mean()),
        "coverage": float(((truth >= forecasts[..., 0]) & (truth <= forecasts[..., -1])).mean()),
    }


def naive(drawn: Drawn, season: int) -> Values:
    first = 24 * (DAYS - HELD_OUT)
    days = drawn.values.reshape(len(drawn.values), DAYS, 24)
    back = season // 24
    forecast = days[:, DAYS - HELD_OUT - back : DAYS - back]
    errors = (drawn.values[:, season:first] - drawn.values[:, : first - season]).reshape(len(days), -1)
    margins = np.quantile(errors, LEVELS, axis=1).T[:, None, None]
    margins[..., 1] = 0
    return forecast[..., None] + margins


def network(drawn: Drawn, seed: int, folder: Path) -> Values:
    from snugfit.recipe import load_recipe
    from snugfit.run.call_options import RunOptions
    from snugfit.run.from_recipe import train_recipe
    from snugfit.run.trained_model import load as load_model

    known = [f"known{place}" for place in range(drawn.known.shape[2])]
    past = [f"past{place}" for place in range(drawn.past.shape[2])]
    hours = [START + timedelta(hours=hour) for hour in range(24 * DAYS)]
    first = 24 * (DAYS - HELD_OUT)
    with (folder / "rows.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["series", "hour", *known, *past, "value"])
        for series in range(len(drawn.values)):
            for hour in range(first):
                columns = (*drawn.known[series, hour], *drawn.past[series, hour])
                writer.writerow([series, hours[hour], *columns, drawn.values[series, hour]])
    recipe = load_recipe(
        Path(__file__).resolve().parents[3] / "examples" / "forecasting.yaml",
        [
            f"data.train={folder}/rows.csv",
            f"data.validation={STOPPED_BY / (DAYS - HELD_OUT) + 1e-9}",
            "data.series=series",
            "data.time=hour",
            "data.label=value",
            f"data.known={json.dumps(known)}",
            f"data.past={json.dumps(past)}",
            f"data.history={WEEK}",
            "data.stride=4",
            "train.epochs=20",
            f"train.seed={seed}",
            f"output={folder}/runs",
            "track={mlflow: false}",
            "plan={device: cpu, numerics: fp32, micro_batch: null}",
        ],
    )
    model = load_model(train_recipe(recipe, RunOptions()).run_dir)
    forecasts = np.zeros((len(drawn.values), HELD_OUT, HORIZON, len(LEVELS)))
    names = [f"quantile {level:g}" for level in LEVELS]
    for day in range(HELD_OUT):
        origin = first + 24 * day
        rows = []
        for series in range(len(drawn.values)):
            for hour in range(origin - WEEK, origin + HORIZON):
                row = {
                    "series": str(series),
                    "hour": hours[hour],
                    **dict(zip(known, drawn.known[series, hour], strict=True)),
                }
                now = dict(zip(past, drawn.past[series, hour], strict=True)) | {
                    "value": drawn.values[series, hour]
                }
                rows.append(row | (now if hour < origin else {"value": None}))
        steps = model.predict(rows)
        values = np.array([[step[name] for name in names] for step in steps])
        forecasts[:, day] = values.reshape(len(drawn.values), HORIZON, len(LEVELS))
    return forecasts


def boosting(drawn: Drawn, seed: int) -> Values:
    from sklearn.ensemble import HistGradientBoostingRegressor

    first = 24 * (DAYS - HELD_OUT)
    stopped_by = first - 24 * STOPPED_BY
    columns, targets, _, _ = _lags(drawn, range(WEEK, stopped_by - HORIZON + 1, 6))
    held, held_targets, _, _ = _lags(drawn, range(stopped_by, first - HORIZON + 1, 24))
    ahead, _, means, spreads = _lags(drawn, range(first, 24 * DAYS - HORIZON + 1, 24))
    forecasts = []
    for level in LEVELS:
        model = HistGradientBoostingRegressor(
            loss="quantile",
            quantile=level,
            max_iter=400,
            learning_rate=0.1,
            early_stopping=True,
            random_state=seed,
        )
        model.fit(columns, targets, X_val=held, y_val=held_targets)
        forecasts.append(model.predict(ahead))
    values = np.sort(np.stack(forecasts, axis=-1), axis=-1) * spreads[:, None] + means[:, None]
    return values.reshape(len(drawn.values), HELD_OUT, HORIZON, len(LEVELS))


def _lags(drawn: Drawn, origins: range) -> tuple[Values, Values, Values, Values]:
    """Return columns and scaled targets of each step ahead from these origins, and the mean and spread of each row's history."""
    columns, targets, means, spreads = [], [], [], []
    steps = np.arange(HORIZON)
    for values, known, past in zip(drawn.values, drawn.known, drawn.past, strict=True):
        for origin in origins:
            history = values[origin - WEEK : origin]
            mean, spread = history.mean(), history.std()
            at = origin + steps
            scaled = (values[: origin + HORIZON] - mean) / spread
            lags = [scaled[at - 24], scaled[at - 48], scaled[at - WEEK]]
            recent = np.tile(scaled[origin - 24 : origin], (HORIZON, 1))
            calendar = [at % 24, (at // 24 + START.weekday()) % 7, steps]
            last = np.tile(past[origin - 24 : origin].mean(axis=0), (HORIZON, 1))
            columns.append(np.column_stack([*lags, *calendar, recent, known[at], last]))
            targets.append(scaled[at])
            means.append(np.full(HORIZON, mean))
            spreads.append(np.full(HORIZON, spread))
    return np.concatenate(columns), np.concatenate(targets), np.concatenate(means), np.concatenate(spreads)


def main(seeds: int) -> None:
    scored: dict[str, dict[str, list[dict[str, float]]]] = {name: {} for name in SETS}
    for seed in range(seeds):
        for name, draw in SETS.items():
            drawn = draw(np.random.default_rng(seed))
            for model in ("naive, a day", "naive, a week", "gradient boosting", "tide"):
                own = measured(model, drawn, seed)
                scored[name].setdefault(model, []).append(own)
                print(name, seed, model, {key: round(value, 4) for key, value in own.items()}, flush=True)
        means = {
            name: {model: {key: _mean(key, of) for key in of[0]} for model, of in by_model.items()}
            for name, by_model in scored.items()
        }
        result = {"seeds": seed + 1, "horizon": HORIZON, "origins": HELD_OUT, "sets": means}
        print(write_result(Path(__file__).parent, result), flush=True)


def measured(model: str, drawn: Drawn, seed: int) -> dict[str, float]:
    """Return the scores of a model's forecasts, and the seconds to train it and to forecast."""
    began = time.perf_counter()
    if model == "tide":
        with tempfile.TemporaryDirectory() as folder:
            forecasts = network(drawn, seed, Path(folder))
    elif model == "gradient boosting":
        forecasts = boosting(drawn, seed)
    else:
        forecasts = naive(drawn, 24 if model.endswith("day") else WEEK)
    return scores(forecasts, drawn) | {"seconds": time.perf_counter() - began}


def _mean(key: str, of: list[dict[str, float]]) -> dict[str, Any]:
    values = [round(each[key], 4) for each in of]
    return {"mean": round(statistics.mean(values), 4), "values": values}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=3)
    main(parser.parse_args().seeds)
