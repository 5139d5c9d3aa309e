"""What does drawing hidden squares of pictures teach a transformer: classifiers that go on from it, beside the same untrained, and raw pixels?

    python benchmarks/tasks/masked_pictures/run.py

scikit-learn's 1,797 digits, 599 of them held out. A ViT of 4 blocks, 64 wide, with patches of 4 x 4 pixels, is pretrained on the other 1,198 without their classes, by
`examples/masked_pictures.yaml`. Classifiers are `task: image-classification` from its weights and from none, all weights trained, by the same settings and for as many updates, with the
labels of 5 or 20 digits of each class, drawn three times, or of all. Raw pixels, and the frozen encoder's features, have scikit-learn's logistic regression.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from common import write_result
from contrastive.run import SIDE, digits, embeddings, probe, trained

EPOCHS, UPDATES, DRAWS = 150, 300, 3
PRETRAIN, CLASSIFY = "masked_pictures.yaml", "image_classification.yaml"


def write_vit(folder: Path) -> None:
    from transformers import ViTConfig, ViTImageProcessorPil

    config = ViTConfig(
        hidden_size=64,
        num_hidden_layers=4,
        num_attention_heads=4,
        intermediate_size=256,
        image_size=SIDE,
        patch_size=4,
    )
    config.save_pretrained(folder)
    ViTImageProcessorPil(size={"height": SIDE, "width": SIDE}).save_pretrained(folder)


def classifier(folder: Path, paths: list[Path], rows: NDArray[Any], *model: str) -> float:
    """Return the accuracy on held-out digits of a classifier that learned from some of the others."""
    from snugfit.deliver.predict import evaluate_file

    given = folder / "given"
    shutil.rmtree(given, ignore_errors=True)
    for row in rows:
        copied = given / paths[row].parent.name / paths[row].name
        copied.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(paths[row], copied)
    run = trained(
        CLASSIFY,
        folder,
        *model,
        f"data.train={given}",
        "data.validation=null",
        "data.augment=[crop, rotate]",
        "techniques=[{clip_norm: {max_norm: 1.0}}]",
        "optimizer={adamw: {learning_rate: 1.0e-3, weight_decay: 0.05}}",
        "train={epochs: null, global_batch: 50}",
        f"train.updates={UPDATES}",
    )
    return float(evaluate_file(run, str(folder / "scored"))["metrics"]["accuracy"])


def main() -> None:
    result: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        paths, classes, pixels = digits(folder)
        write_vit(folder / "vit")
        own = (
            f"model={folder}/vit",
            "data.validation=null",
            "data.augment=[crop, rotate]",
            "train.global_batch=128",
        )
        began = time.process_time()
        run = trained(PRETRAIN, folder, *own, f"train.epochs={EPOCHS}")
        result["pretraining"] = {"epochs": EPOCHS, "processor_seconds": round(time.process_time() - began, 1)}
        print(result, flush=True)
        still = ("train.epochs=1", "optimizer={sgd: {learning_rate: 1.0e-12, momentum: 0.0}}")
        features = {
            "raw pixels": pixels,
            "untrained, frozen": embeddings(trained(PRETRAIN, folder, *own, *still), paths),
            "pretrained, frozen": embeddings(run, paths),
        }
        for way, values in features.items():
            result[way] = {str(labels or "all"): probe(values, classes, labels) for labels in (5, 20, None)}
            print(way, result[way], flush=True)
        given = np.flatnonzero(np.arange(len(classes)) % 3 != 0)
        ways = {
            "from none": (f"model={folder}/vit", "from_scratch=true"),
            "from the pretrained": (f"model={run}/best",),
        }
        for way, model in ways.items():
            result[way] = {}
            for labels in (5, 20, None):
                scores = []
                for draw in range(DRAWS if labels else 1):
                    drawn, rows = np.random.default_rng(draw), given
                    if labels:
                        rows = np.concatenate(
                            [
                                drawn.choice(given[classes[given] == one], labels, replace=False)
                                for one in range(10)
                            ]
                        )
                    scores.append(classifier(folder, paths, rows, *model))
                result[way][str(labels or "all")] = (
                    round(float(np.mean(scores)), 4),
                    round(float(np.std(scores)), 4),
                )
            print(way, result[way], flush=True)
    print(write_result(Path(__file__).parent, result).read_text())


if __name__ == "__main__":
    main()
