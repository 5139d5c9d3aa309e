"""How well does a small network tell sounds apart, beside a logistic regression on their mean spectrum?

    python benchmarks/tasks/audio/run.py

Sounds of eight classes are drawn by `examples/draw_sounds.py`, 60 of each to train on and 30 others of each to score. The network is the one that `snugfit init`
writes, trained by `examples/audio_classification.yaml` with 16 of 20 sounds, as the recipe keeps the rest to choose the best epoch by. The regression, and
gradient boosting, are scikit-learn's on the mean and the deviation over time of the same features, with all of the sounds.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "examples"))
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
import draw_sounds  # noqa: E402
from common import write_result  # noqa: E402

TRAINED, SCORED = 60, 30
SECONDS = 1.5


def network(folder: Path) -> Callable[[], float]:
    from snugfit.deliver.predict import evaluate_file
    from snugfit.models.small import write_small_sound_model
    from snugfit.recipe import load_recipe
    from snugfit.run.call_options import RunOptions
    from snugfit.run.from_recipe import train_recipe

    write_small_sound_model(folder / "small", SECONDS)
    settings = [
        f"model={folder}/small",
        f"data.train={folder}/trained",
        f"output={folder}/runs",
        "track={mlflow: false}",
        "plan={device: cpu, numerics: fp32, micro_batch: null}",
    ]
    run = train_recipe(
        load_recipe(ROOT / "examples" / "audio_classification.yaml", settings), RunOptions()
    ).run_dir
    return lambda: float(evaluate_file(run, str(folder / "scored"))["metrics"]["accuracy"])


def columns(folder: Path) -> tuple[NDArray[Any], NDArray[Any]]:
    from transformers import ASTFeatureExtractor

    from snugfit.data.sounds.labelled_sounds import waveform

    extractor = ASTFeatureExtractor(num_mel_bins=64, max_length=round(100 * SECONDS) - 2, do_normalize=False)
    rows, labels = [], []
    for path in sorted(folder.glob("*/*.wav")):
        wave = waveform(path, 16_000, round(16_000 * SECONDS))
        features = extractor(wave, sampling_rate=16_000, return_tensors="np")["input_values"][0]
        frames = features[: 1 + (len(wave) - 400) // 160]
        rows.append(np.concatenate([frames.mean(axis=0), frames.std(axis=0)]))
        labels.append(path.parent.name)
    return np.stack(rows), np.array(labels)


def baseline(folder: Path, model: Any) -> Callable[[], float]:
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    fitted = make_pipeline(StandardScaler(), model).fit(*columns(folder / "trained"))
    return lambda: float(fitted.score(*columns(folder / "scored")))


def main() -> None:
    from sklearn.ensemble import HistGradientBoostingClassifier
    from sklearn.linear_model import LogisticRegression

    result: dict[str, Any] = {}
    ways: dict[str, Callable[[Path], Callable[[], float]]] = {
        "logistic regression": lambda folder: baseline(folder, LogisticRegression(max_iter=2000)),
        "gradient boosting": lambda folder: baseline(folder, HistGradientBoostingClassifier(random_state=0)),
        "small network": network,
    }
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        draw_sounds.write(folder / "trained", TRAINED, seed=0)
        draw_sounds.write(folder / "scored", SCORED, seed=1)
        for way, make in ways.items():
            began = time.process_time()
            score = make(folder)
            seconds = time.process_time() - began
            result[way] = {"accuracy": round(score(), 4), "processor_seconds": round(seconds, 1)}
            print(way, result[way], flush=True)
    print(write_result(Path(__file__).parent, result).read_text())


if __name__ == "__main__":
    main()
