"""How well does the network for masks tell discs from squares, beside gradient boosting on the colours around each pixel?

    python benchmarks/tasks/segmentation/run.py

160 pictures of 64 × 64 are drawn: discs (1) and squares (2) of one range of colours on a noisy ground (0), so that a class is told by its shape. 40
of them are scored by the mean IoU. Boosting is scikit-learn's, on each pixel's colour and the mean colours of squares of 5, 11 and 21 around it.
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

SIDE, TRAINED, SCORED = 64, 120, 40


def draw(drawn: np.random.Generator) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    picture, mask = drawn.normal(110, 25, (SIDE, SIDE, 3)), np.zeros((SIDE, SIDE), np.uint8)
    down, right = np.mgrid[:SIDE, :SIDE]
    for _ in range(int(drawn.integers(1, 4))):
        kind, size = int(drawn.integers(1, 3)), drawn.uniform(5, 14)
        x, y = np.abs(right - drawn.uniform(8, SIDE - 8)), np.abs(down - drawn.uniform(8, SIDE - 8))
        inside = x**2 + y**2 < size**2 if kind == 1 else (x < size) & (y < size)
        picture[inside] = drawn.uniform(120, 220, 3) + drawn.normal(0, 20, (int(inside.sum()), 3))
        mask[inside] = kind
    return picture.clip(0, 255).astype(np.uint8), mask


def mean_iou(predicted: NDArray[Any], true: NDArray[Any]) -> float:
    each = [
        ((predicted == kind) & (true == kind)).sum() / ((predicted == kind) | (true == kind)).sum()
        for kind in range(3)
    ]
    return float(np.mean(each))


def network(pairs: list[tuple[NDArray[np.uint8], NDArray[np.uint8]]], folder: Path) -> NDArray[Any]:
    from PIL import Image

    from snugfit.recipe import load_recipe
    from snugfit.run.call_options import RunOptions
    from snugfit.run.from_recipe import train_recipe
    from snugfit.run.trained_model import load

    for name in ("images", "masks"):
        (folder / "shapes" / name).mkdir(parents=True)
    for number, (picture, mask) in enumerate(pairs[:TRAINED]):
        Image.fromarray(picture).save(folder / f"shapes/images/{number}.png")
        Image.fromarray(mask).save(folder / f"shapes/masks/{number}.png")
    (folder / "net.json").write_text('{"width": 16, "levels": 3, "blocks": 1}')
    recipe = load_recipe(
        Path(__file__).resolve().parents[3] / "examples" / "segmentation.yaml",
        [
            f"model={folder}/net.json",
            f"data.train={folder}/shapes",
            f"data.size={SIDE}",
            "train.global_batch=8",
            "train.epochs=40",
            f"output={folder}/runs",
            "track={mlflow: false}",
            "plan={device: cpu, numerics: fp32, micro_batch: null}",
        ],
    )
    model = load(train_recipe(recipe, RunOptions()).run_dir)
    predictions = model.predict([{"image": picture} for picture, _ in pairs[TRAINED:]])
    return np.stack([each["predicted_mask"] for each in predictions])


def boosting(pairs: list[tuple[NDArray[np.uint8], NDArray[np.uint8]]]) -> NDArray[Any]:
    from scipy.ndimage import uniform_filter
    from sklearn.ensemble import HistGradientBoostingClassifier

    def columns(picture: NDArray[np.uint8]) -> NDArray[Any]:
        means = [uniform_filter(picture.astype(np.float32), (size, size, 1)) for size in (5, 11, 21)]
        return np.concatenate([picture, *means], axis=-1).reshape(-1, 12)

    model = HistGradientBoostingClassifier(random_state=0)
    model.fit(
        np.concatenate([columns(picture) for picture, _ in pairs[:TRAINED]]),
        np.concatenate([mask.ravel() for _, mask in pairs[:TRAINED]]),
    )
    predicted = [model.predict(columns(picture)).reshape(SIDE, SIDE) for picture, _ in pairs[TRAINED:]]
    return np.stack(predicted)


def main() -> None:
    drawn = np.random.default_rng(0)
    pairs = [draw(drawn) for _ in range(TRAINED + SCORED)]
    true = np.stack([mask for _, mask in pairs[TRAINED:]])
    result: dict[str, Any] = {}
    for name in ("gradient boosting", "unet"):
        began = time.perf_counter()
        with tempfile.TemporaryDirectory() as folder:
            predicted = boosting(pairs) if name == "gradient boosting" else network(pairs, Path(folder))
        result[name] = {
            "mean_iou": round(mean_iou(predicted, true), 4),
            "seconds": round(time.perf_counter() - began, 1),
        }
        print(name, result[name], flush=True)
    print(write_result(Path(__file__).parent, result).read_text())


if __name__ == "__main__":
    main()
