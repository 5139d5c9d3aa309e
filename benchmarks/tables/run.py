"""How well do networks for tables learn, beside scikit-learn's gradient boosting, on the same folds?

    python benchmarks/tables/run.py [--splits 5] [--repeats 5]

Each of 25 folds is scored once, by the function of `snugfit evaluate`. What the networks stop early by is a tenth of their training
rows, and HistGradientBoosting does the same with its own. The sets are scikit-learn's, and the one with categories and gaps is made of real rows: half of
the columns of `breast cancer` in five levels by name, and one cell in ten of each column empty.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from common import write_result

RECIPES = {
    "class": "tabular_classification.yaml",
    "number": "tabular_regression.yaml",
}
LEVELS = ("lowest", "low", "middle", "high", "highest")


def sets() -> dict[str, tuple[str, list[dict[str, Any]]]]:
    """Return rows with a column `target`, and whether that is a class or a number."""
    from sklearn import datasets

    def rows(loaded: Any) -> list[dict[str, Any]]:
        names = [str(name) for name in getattr(loaded, "feature_names", range(loaded.data.shape[1]))]
        return [
            {**dict(zip(names, map(float, values), strict=True)), "target": target.item()}
            for values, target in zip(loaded.data, loaded.target, strict=True)
        ]

    cancer = rows(datasets.load_breast_cancer())
    return {
        "wine": ("class", rows(datasets.load_wine())),
        "breast cancer": ("class", cancer),
        "breast cancer in levels, with gaps": ("class", in_levels(cancer)),
        "diabetes": ("number", rows(datasets.load_diabetes(scaled=False))),
    }


def in_levels(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    drawn = random.Random(0)
    made = [dict(row) for row in rows]
    for place, name in enumerate(name for name in rows[0] if name != "target"):
        edges = statistics.quantiles([row[name] for row in rows], n=len(LEVELS))
        for row in made:
            if place % 2:
                row[name] = LEVELS[sum(row[name] > edge for edge in edges)]
            if drawn.random() < 0.1:
                row[name] = None
    return made


def network(
    kind: str, model: str, train: list[dict[str, Any]], test: list[dict[str, Any]], folder: Path
) -> dict[str, float]:
    from snugfit.deliver.predict import evaluate_file
    from snugfit.recipe import load_recipe
    from snugfit.run.call_options import RunOptions
    from snugfit.run.from_recipe import train_recipe

    for name, part in (("train", train), ("test", test)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in part))
    recipe = load_recipe(
        Path(__file__).resolve().parents[2] / "examples" / RECIPES[kind],
        [
            f"model={model}",
            f"data.train={folder}/train.jsonl",
            "data.columns=null",
            "data.categories=null",
            "data.label=target",
            "data.validation=0.1",
            f"output={folder}/runs",
            "track={mlflow: false}",
            "plan={device: cpu, numerics: fp32, micro_batch: null}",
        ],
    )
    began = time.perf_counter()
    result = train_recipe(recipe, RunOptions())
    seconds = time.perf_counter() - began
    scores: dict[str, float] = evaluate_file(str(result.run_dir), f"{folder}/test.jsonl")["metrics"]
    return {"score": scores["accuracy" if kind == "class" else "rmse"], "seconds": seconds}


def boosting(kind: str, train: list[dict[str, Any]], test: list[dict[str, Any]]) -> dict[str, float]:
    import pandas
    from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

    def columns(part: list[dict[str, Any]]) -> Any:
        frame = pandas.DataFrame(part).drop(columns="target")
        for name in frame.select_dtypes(exclude="number").columns:
            frame[name] = pandas.Categorical(frame[name], categories=LEVELS)
        return frame

    models = {"class": HistGradientBoostingClassifier, "number": HistGradientBoostingRegressor}
    model = models[kind](
        early_stopping=True, validation_fraction=0.1, categorical_features="from_dtype", random_state=0
    )
    began = time.perf_counter()
    model.fit(columns(train), [row["target"] for row in train])
    seconds = time.perf_counter() - began
    labels = np.array([row["target"] for row in test])
    predicted = model.predict(columns(test))
    score = np.mean(predicted == labels) if kind == "class" else np.sqrt(np.mean((predicted - labels) ** 2))
    return {"score": float(score), "seconds": seconds}


def main(splits: int, repeats: int) -> None:
    from sklearn.model_selection import RepeatedKFold, RepeatedStratifiedKFold

    result: dict[str, Any] = {"folds": f"{repeats} x {splits}"}
    for name, (kind, rows) in sets().items():
        folds = (RepeatedStratifiedKFold if kind == "class" else RepeatedKFold)(
            n_splits=splits, n_repeats=repeats, random_state=0
        )
        scores: dict[str, list[dict[str, float]]] = {"tabm": [], "mlp": [], "gradient boosting": []}
        for train, test in folds.split(rows, [row["target"] for row in rows] if kind == "class" else None):
            parts = [rows[place] for place in train], [rows[place] for place in test]
            for model in ("tabm", "mlp"):
                with tempfile.TemporaryDirectory() as folder:
                    scores[model].append(network(kind, model, *parts, Path(folder)))
            scores["gradient boosting"].append(boosting(kind, *parts))
        result[name] = {
            "rows": len(rows),
            "score": "accuracy" if kind == "class" else "rmse",
            **{
                model: {
                    "mean": round(statistics.mean(each["score"] for each in of), 4),
                    "spread": round(statistics.stdev(each["score"] for each in of), 4),
                    "seconds": round(statistics.mean(each["seconds"] for each in of), 2),
                }
                for model, of in scores.items()
            },
        }
        print(name, json.dumps(result[name]), flush=True)
    print(write_result(Path(__file__).parent, result).read_text())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--splits", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=5)
    asked = parser.parse_args()
    main(asked.splits, asked.repeats)
