"""Whole runs of tasks that are no language models, and what watches a run: trained on the device, and scored there and on the host."""

from __future__ import annotations

import csv
import math
import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from checks import Settings, check, require

CLOSE = 2e-3
"""How far a score of the device may be from the host's, of the same weights in float32."""


@contextmanager
def logits_turned() -> Iterator[None]:
    """Temporarily let predictions turn what the model puts out around, as where a device's results came in another order."""
    from snugfit.deliver.predictor import Predictor

    run: Any = Predictor._run

    def turned(self: Any, batch: Any) -> Any:
        outputs = run(self, batch)
        logits = outputs["logits"] if isinstance(outputs, Mapping) else outputs
        logits.copy_(logits.flip(0))
        return outputs

    with mock.patch.object(Predictor, "_run", turned):
        yield


def trained(recipe: Path, settings: Settings, *changes: str) -> Path:
    """Train a recipe on the device with these changes, and return the folder of the run."""
    from snugfit.recipe import load_recipe
    from snugfit.run.call_options import RunOptions
    from snugfit.run.from_recipe import train_recipe

    place = [f"plan.device={settings.device}", f"output={settings.folder / 'runs'}"]
    result = train_recipe(load_recipe(recipe, [*place, *changes]), RunOptions())
    assert result.run_dir is not None
    return Path(result.run_dir)


def scores(run: Path, rows: str, metrics: list[str], settings: Settings) -> dict[str, dict[str, float]]:
    """Return the scores of a run's best model on rows, by the device and by the host.

    Raises:
        Wrong: they differ, or the model has learned nothing.
    """
    from snugfit.data.loader import Loader
    from snugfit.data.order import Order
    from snugfit.deliver.predictor import BATCH_ROWS, load_predictor
    from snugfit.step.evaluate import evaluate

    by_place: dict[str, dict[str, float]] = {}
    for place, device in (("device", settings.device), ("host", "cpu")):
        predictor = load_predictor(run / "best", device)
        assert predictor.inference.read is not None
        file = predictor.inference.read(rows, labelled=True, bad_rows="fail")
        loader = Loader(file.examples, Order(len(file.examples), BATCH_ROWS, shuffle=False), file.collate)
        windows = loader.windows(0, loader.order.windows_per_pass)
        by_place[place] = evaluate(predictor.scored(), windows, {name: name for name in metrics})
    require(by_place["device"]["accuracy"] > 0.8, "nothing was learned", **by_place)
    for metric, value in by_place["host"].items():
        apart = abs(by_place["device"][metric] - value)
        require(
            math.isfinite(value) and apart <= CLOSE * max(1.0, abs(value)),
            f"{metric} is {by_place['device'][metric]:.4g} on the device and {value:.4g} on the host",
            **by_place,
        )
    return by_place


def write_table(folder: Path, rows: int) -> None:
    """Write rows whose class hangs on numbers, a category and a gap."""
    drawn = random.Random(0)
    with (folder / "rows.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["x", "y", "kind", "sold"])
        for _ in range(rows):
            x, kind = drawn.gauss(50, 10), drawn.choice(["flat", "house"])
            y = "" if drawn.random() < 0.2 else drawn.gauss(0, 1e-3)
            table.writerow([x, y, kind, "yes" if x + 20 * (kind == "house") > 60 else "no"])
    (folder / "table.yaml").write_text(
        f"""\
name: rows
task: tabular-classification
model: mlp
data: {{train: {folder / "rows.csv"}, validation: 0.25, label: sold, columns: [x, y, kind]}}
train: {{epochs: 5, global_batch: 32, seed: 3}}
optimizer: {{adamw: {{learning_rate: 1.0e-2}}}}
techniques: [{{ema: {{decay: 0.5}}}}]
evaluate: {{metrics: [accuracy, auroc]}}
plan: {{micro_batch: 8, numerics: fp32}}
track: {{mlflow: false}}
"""
    )


@check(
    "a table is learned, and scored as the host scores it",
    60,
    modules=("yaml",),
    plants={"turned": logits_turned},
)
def table(settings: Settings) -> Mapping[str, Any]:
    write_table(settings.folder, settings.size(2048, 160))
    run = trained(settings.folder / "table.yaml", settings)
    return scores(run, str(settings.folder / "rows.csv"), ["accuracy", "auroc"], settings)


@check("pictures are learned, and scored as the host scores them", 60, modules=("yaml", "PIL"))
def pictures(settings: Settings) -> Mapping[str, Any]:
    import torch
    from PIL import Image
    from transformers import ViTConfig, ViTImageProcessorPil

    folder, side = settings.folder, settings.size(32, 16)
    drawn = torch.Generator().manual_seed(0)
    for name, colour in (("red", 0), ("green", 1)):
        (folder / "pictures" / name).mkdir(parents=True)
        for number in range(settings.size(128, 16)):
            values = torch.randint(0, 120, (side, side, 3), generator=drawn, dtype=torch.uint8)
            values[..., colour] += 130
            Image.fromarray(values.numpy()).save(folder / f"pictures/{name}/{number:03}.png")
    ViTConfig(
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        image_size=side,
        patch_size=4,
    ).save_pretrained(folder / "vit")
    ViTImageProcessorPil(size={"height": side, "width": side}).save_pretrained(folder / "vit")
    (folder / "pictures.yaml").write_text(
        f"""\
name: colours
task: image-classification
model: {folder / "vit"}
from_scratch: true
data: {{train: {folder / "pictures"}, validation: 0.25, augment: [crop, flip, color]}}
train: {{epochs: 6, global_batch: 8, seed: 3}}
optimizer: {{adamw: {{learning_rate: 1.0e-2}}}}
plan: {{micro_batch: 4, numerics: fp32, num_workers: 2}}
track: {{mlflow: false}}
"""
    )
    run = trained(folder / "pictures.yaml", settings)
    return scores(run, str(folder / "pictures"), ["accuracy"], settings)


@check("hooks see a run and leave it as it is, and the best models are kept", 60)
def hooks(settings: Settings) -> Mapping[str, Any]:
    """Train the same twice, once watched; deterministic operators, so that the weights are the same bit for bit."""
    import torch

    import snugfit as sf
    from snugfit.models.bundle import load_bundle

    source = torch.Generator().manual_seed(0)
    rows = [(torch.randn(8, generator=source), torch.tensor(place % 3)) for place in range(48)]
    seen = {"updates": 0, "evaluations": 0, "checkpoints": 0}

    def counted(name: str) -> Any:
        def hook(_seen: Any) -> dict[str, float]:
            seen[name] += 1
            return {f"seen_{name}": float(seen[name])}

        return hook

    def run(name: str, **more: Any) -> tuple[Any, Any]:
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.ReLU(), torch.nn.Linear(32, 3))
        result = sf.train(
            model,
            rows,
            validation=0.25,
            optimizer=sf.AdamW(learning_rate=1e-2),
            techniques=[sf.EMA(decay=0.5)],
            updates=8,
            evaluate_every=2,
            global_batch=12,
            micro_batch=4,
            deterministic=True,
            device=settings.device,
            output=settings.folder / name,
            track=False,
            display=None,
            **more,
        )
        return model, result

    plain, _ = run("plain")
    watched, result = run(
        "watched",
        keep_models=2,
        on_update=counted("updates"),
        on_evaluation=counted("evaluations"),
        on_checkpoint=counted("checkpoints"),
    )
    models = sorted(Path(result.run_dir).glob("models/*"))
    figures = {**seen, "models": [each.name for each in models], "best": result.best}
    require(seen["updates"] == 8 and seen["evaluations"] == 4, "hooks were not called at each", **figures)
    apart = [
        name
        for (name, one), other in zip(plain.state_dict().items(), watched.state_dict().values(), strict=True)
        if not torch.equal(one, other)
    ]
    require(not apart, f"a watched run has other weights: {apart[:5]}", **figures)
    require(len(models) == 2, f"{len(models)} models were kept, expected 2", **figures)
    for each in models:
        load_bundle(
            each, model=torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.ReLU(), torch.nn.Linear(32, 3))
        )
    return figures
