"""What do pictures without labels teach: a linear probe on an encoder that was pretrained on them, beside the same untrained, and raw pixels?

    python benchmarks/tasks/contrastive/run.py

scikit-learn's 1,797 digits, 599 of them held out. The small residual network of `snugfit init` is pretrained on the other 1,198 without their classes, by
`examples/contrastive_pretraining.yaml` (crops, turns and brightness; no mirror images). Probes are scikit-learn's logistic regression on standardised features, with the
labels of 5 or 20 digits of each class, drawn five times, or of all. Snugfit's own probe is `task: image-classification` with the technique `freeze` on all.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from common import write_result

SIDE, EPOCHS, DRAWS = 32, 60, 5
EXAMPLES = Path(__file__).resolve().parents[3] / "examples"


def digits(folder: Path) -> tuple[list[Path], NDArray[Any], NDArray[Any]]:
    """Write all digits as pictures, each in the folder of its class; return their paths, classes and pixels."""
    from PIL import Image
    from sklearn.datasets import load_digits

    loaded = load_digits()
    paths = []
    for number, (values, name) in enumerate(zip(loaded.images, loaded.target, strict=True)):
        path = folder / ("scored" if number % 3 == 0 else "trained") / str(name) / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray((values * 255 / 16).astype(np.uint8)).resize(
            (SIDE, SIDE), Image.Resampling.BICUBIC
        ).save(path)
        paths.append(path)
    return paths, loaded.target, loaded.data


def trained(recipe: str, folder: Path, *overrides: str) -> Path:
    from snugfit.recipe import load_recipe
    from snugfit.run.call_options import RunOptions
    from snugfit.run.from_recipe import train_recipe

    settings = [
        f"data.train={folder}/trained",
        f"data.size={SIDE}",
        f"output={folder}/runs",
        "track={mlflow: false}",
        "plan={device: cpu, numerics: fp32, micro_batch: null}",
        *overrides,
    ]
    return Path(train_recipe(load_recipe(EXAMPLES / recipe, settings), RunOptions()).run_dir)


def embeddings(run: Path, paths: list[Path]) -> NDArray[Any]:
    from snugfit.run.trained_model import load

    return np.array(
        [each["embedding"] for each in load(run).predict([{"image": str(path)} for path in paths])]
    )


def probe(features: NDArray[Any], classes: NDArray[Any], labels: int | None) -> tuple[float, float]:
    """Return mean and deviation of the accuracy of a regression with so many labels of each class, over draws of them."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    scored = np.arange(len(classes)) % 3 == 0
    given = np.flatnonzero(~scored)
    scores = []
    for draw in range(DRAWS if labels else 1):
        drawn = np.random.default_rng(draw)
        rows = given
        if labels:
            rows = np.concatenate(
                [drawn.choice(given[classes[given] == name], labels, replace=False) for name in range(10)]
            )
        model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=2000))
        scores.append(model.fit(features[rows], classes[rows]).score(features[scored], classes[scored]))
    return round(float(np.mean(scores)), 4), round(float(np.std(scores)), 4)


def main() -> None:
    from snugfit.deliver.predict import evaluate_file
    from snugfit.models.small import write_small_picture_model

    result: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        paths, classes, pixels = digits(folder)
        write_small_picture_model(folder / "small", SIDE)
        encoder = (
            f"model={folder}/small",
            "data.validation=null",
            "data.augment=[crop, rotate, color]",
            "techniques=[]",
            "train.global_batch=128",
        )
        began = time.process_time()
        run = trained("contrastive_pretraining.yaml", folder, *encoder, f"train.epochs={EPOCHS}")
        result["pretraining"] = {"epochs": EPOCHS, "processor_seconds": round(time.process_time() - began, 1)}
        still = ("train.epochs=1", "optimizer={sgd: {learning_rate: 1.0e-12, momentum: 0.0}}")
        ways = {
            "raw pixels": pixels,
            "untrained network": embeddings(
                trained("contrastive_pretraining.yaml", folder, *encoder, *still), paths
            ),
            "pretrained network": embeddings(run, paths),
        }
        for way, features in ways.items():
            scores = {str(labels or "all"): probe(features, classes, labels) for labels in (5, 20, None)}
            result[way] = {"accuracy by labels of each class (mean, deviation)": scores}
            print(way, scores, flush=True)
        began = time.process_time()
        frozen = trained(
            "image_classification.yaml",
            folder,
            f"model={run}/best",
            "techniques=[freeze]",
            "data.augment=[]",
            "train.epochs=30",
            "optimizer={adamw: {learning_rate: 1.0e-2}}",
        )
        accuracy = evaluate_file(frozen, str(folder / "scored"))["metrics"]["accuracy"]
        result["freeze, all labels"] = {
            "accuracy": round(accuracy, 4),
            "processor_seconds": round(time.process_time() - began, 1),
        }
    print(write_result(Path(__file__).parent, result).read_text())


if __name__ == "__main__":
    main()
