"""How well do recipes for pictures learn, from scratch and from another model, on pictures that every machine has?

    python benchmarks/pictures/run.py [FOLDER]

The pictures are scikit-learn's 1,797 digits, written as PNG of 32 by 32. A third of them is held out, the same for all; what is learned is scored on it
once, by `snugfit evaluate`'s function. Beside it stand scikit-learn's logistic regression and support vectors on the same 64 numbers of each digit.

- from scratch: the small residual network that `snugfit init` writes, and a small ViT.
- transfer: the residual network, pretrained on the digits 0 to 4, learns 5 to 9 from a few pictures of each, with its head first (gradual_unfreeze);
  beside it the same network from scratch on the same few.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from common import write_result

SIDE = 32
FEW = 8


def write_pictures(folder: Path, images: Any, labels: Any) -> Path:
    from PIL import Image

    for number, (image, label) in enumerate(zip(images, labels, strict=True)):
        (folder / str(label)).mkdir(parents=True, exist_ok=True)
        picture = Image.fromarray((image * 15.9).astype("uint8"))
        picture.resize((SIDE, SIDE), Image.Resampling.BICUBIC).save(folder / str(label) / f"{number:04}.png")
    return folder


def trained(model: Path, train: Path, test: Path, out: Path, epochs: int, *more: str) -> dict[str, Any]:
    """Train by the recipe that ships, without mirror images; return scores on held-out pictures, updates and seconds."""
    from snugfit.deliver.predict import evaluate_file
    from snugfit.recipe import load_recipe
    from snugfit.run.call_options import RunOptions
    from snugfit.run.from_recipe import train_recipe

    recipe = load_recipe(
        Path(__file__).resolve().parents[2] / "examples/image_classification.yaml",
        [
            f"model={model}",
            f"data.train={train}",
            "data.validation=null",
            "data.augment=[crop]",
            f"train.epochs={epochs}",
            "evaluate.best=loss",
            f"output={out}",
            "track={mlflow: false}",
            *more,
        ],
    )
    result = train_recipe(recipe, RunOptions())
    scores = evaluate_file(str(result.run_dir), str(test))["metrics"]
    return {**scores, "updates": result.updates, "seconds": round(result.seconds, 1)}


def baselines(train: tuple[Any, Any], test: tuple[Any, Any]) -> dict[str, float]:
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler
    from sklearn.svm import SVC

    def score(model: Any) -> float:
        fitted = make_pipeline(StandardScaler(), model).fit(train[0].reshape(len(train[0]), -1), train[1])
        return float(fitted.score(test[0].reshape(len(test[0]), -1), test[1]))

    return {"logistic regression": score(LogisticRegression(max_iter=1000)), "support vectors": score(SVC())}


def few_of_each(labels: Any, classes: Sequence[int]) -> list[int]:
    return [int(place) for each in classes for place in np.flatnonzero(labels == each)[:FEW]]


def main(folder: Path) -> None:
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split
    from transformers import ViTConfig, ViTImageProcessorPil

    from snugfit.models.small import write_small_picture_model

    digits = load_digits()
    images, held_out, labels, held_labels = train_test_split(
        digits.images, digits.target, test_size=1 / 3, random_state=0, stratify=digits.target
    )
    train, test = (
        write_pictures(folder / "train", images, labels),
        write_pictures(folder / "test", held_out, held_labels),
    )
    write_small_picture_model(folder / "resnet", SIDE)
    ViTConfig(
        hidden_size=96,
        num_hidden_layers=4,
        num_attention_heads=4,
        intermediate_size=192,
        image_size=SIDE,
        patch_size=4,
    ).save_pretrained(folder / "vit")
    ViTImageProcessorPil(size={"height": SIDE, "width": SIDE}).save_pretrained(folder / "vit")
    scratch, runs = ("from_scratch=true", "techniques=[clip_norm]"), folder / "runs"
    result: dict[str, Any] = {
        "held_out": len(held_out),
        "all digits": {
            "baselines": baselines((images, labels), (held_out, held_labels)),
            "ResNet from scratch": trained(folder / "resnet", train, test, runs, 12, *scratch),
            "ViT from scratch": trained(folder / "vit", train, test, runs, 40, *scratch),
        },
    }
    low, high = labels < 5, held_labels >= 5
    first = write_pictures(folder / "low", images[low], labels[low])
    few = few_of_each(labels, range(5, 10))
    second = write_pictures(folder / "few", images[few], labels[few])
    others = write_pictures(folder / "high", held_out[high], held_labels[high])
    trained(folder / "resnet", first, first, folder / "pretrained", 12, *scratch)
    (pretrained,) = (folder / "pretrained").glob("*/*/best")
    small_windows = "train.global_batch=8"
    result[f"{FEW} pictures of each of five digits"] = {
        "baselines": baselines((images[few], labels[few]), (held_out[high], held_labels[high])),
        "ResNet pretrained on the other five": trained(pretrained, second, others, runs, 30, small_windows),
        "ResNet from scratch": trained(folder / "resnet", second, others, runs, 30, small_windows, *scratch),
    }
    print(write_result(Path(__file__).parent, result).read_text())


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as temporary:
            main(Path(temporary))
