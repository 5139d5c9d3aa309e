"""Tiny Shakespeare from scratch: what a character of the last tenth costs the model in nats, over the CPU time of the training.

How long it trains was found without that tenth: of 1,500 updates on seventeen twentieths of the text the eighteenth was told best after 750, and
as well after 1,000 (1.502 and 1.506 nats a character).
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from commands import events_of, has_finished, newest_run, snugfit, with_cpu_seconds, write_recipe

HERE = Path(__file__).parent
RECIPE = "shakespeare.yaml"
LEARNED = ("train", "optimizer", "schedule", "techniques", "plan")
END, TURN_START, TURN_END = "<|end|>", "<|im_start|>", "<|im_end|>"


@dataclass(frozen=True)
class Size:
    """A model of Llama's kind and its training."""

    vocabulary: int = 1024
    width: int = 192
    layers: int = 4
    length: int = 256
    global_batch: int = 8
    updates: int = 900
    learning_rate: float = 0.02
    adamw_learning_rate: float = 3e-3


FULL = Size()
TINY = Size(vocabulary=300, width=32, layers=2, length=32, global_batch=8, updates=12)


def prepare(text: Path, folder: Path, size: Size) -> Path:
    """Write the two parts of the text, a tokenizer learned from the first, the model's configuration and the recipe; return that.

    The tokenizer has the marks of ChatML for a later tuning, and an end of sequence that ends no turn, as Gemma's has.
    """
    from transformers import AutoTokenizer

    from snugfit.models.small import write_small_model

    folder.mkdir(parents=True, exist_ok=True)
    characters = text.read_text()
    cut = len(characters) * 9 // 10
    train, held_out = folder / "train.txt", folder / "held_out.txt"
    train.write_text(characters[:cut])
    held_out.write_text(characters[cut:])
    model = folder / "model"
    write_small_model(
        model,
        [characters[:cut]],
        kind="decoder",
        vocabulary=size.vocabulary,
        width=size.width,
        layers=size.layers,
        positions=max(size.length, 256),
        turn_marks=(TURN_START, TURN_END),
    )
    tokenizer = AutoTokenizer.from_pretrained(model)
    tokenizer.eos_token = END
    tokenizer.save_pretrained(model)
    settings = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**settings, "eos_token_id": tokenizer.eos_token_id}))
    return write_recipe(
        folder / RECIPE,
        {
            "name": "shakespeare",
            "task": "causal-lm",
            "model": str(model),
            "from_scratch": "true",
            "data": f"{{train: {train}, validation: {held_out}, max_length: {size.length}}}",
            "train": f"{{updates: {size.updates}, global_batch: {size.global_batch}}}",
            "optimizer": f"{{muon: {{learning_rate: {size.learning_rate}, adamw_learning_rate: {size.adamw_learning_rate}}}}}",
            "schedule": "{wsd: {warmup: 0.03, cooldown: 0.6, shape: linear}}",
            "techniques": "[{clip_norm: {max_norm: 1.0}}]",
            "evaluate": f"{{every: {max(1, size.updates // 6)}, metrics: [perplexity_per_byte]}}",
            "checkpoint": f"{{every: {max(1, size.updates // 20)}}}",
            "plan": f"{{device: cpu, numerics: fp32, micro_batch: {size.global_batch}}}",
            "track": "{mlflow: false}",
            "hooks": "{on_update: 'clock:cpu_seconds'}",
            "folder": str(HERE),
            "output": str(folder / "runs"),
        },
    )


def train(text: Path, folder: Path, size: Size, stop_after: str | None) -> Path:
    """Train, or go on with the run that is in the folder; return that."""
    run = newest_run(folder / "runs")
    more = ["--allow-code", *([] if stop_after is None else ["--stop-after", stop_after])]
    if run is None:
        snugfit("train", str(prepare(text, folder, size)), *more)
    elif not has_finished(run):
        snugfit("resume", str(run), *more)
    run = newest_run(folder / "runs")
    assert run is not None
    return run


def figures(run: Path, held_out: Path) -> dict[str, Any]:
    """Return the curve of a run: at each evaluation the updates, the CPU seconds, and the nats of a character of the held-out text.

    The text is ASCII, so that a character is a byte.
    """
    assert held_out.read_text().isascii()
    curve: dict[int, dict[str, float]] = {}
    for seconds, event in with_cpu_seconds(events_of(run)):
        if event["event"] == "evaluation":
            nats = math.log(event["metrics"]["perplexity_per_byte"])
            curve[event["update"]] = {"update": event["update"], "cpu_seconds": seconds, "nats": nats}
    last = max(curve)
    return {
        "curve": [curve[update] for update in sorted(curve)],
        "finished": has_finished(run),
        "nats": curve[last]["nats"],
        "cpu_seconds": curve[last]["cpu_seconds"],
        "parameters": parameters_of(run),
        "settings": learned_settings(run.parents[2] / RECIPE),
    }


def learned_settings(recipe: Path) -> dict[str, str]:
    """Return the sections of a recipe that decide what is learned, without the places of its files."""
    sections = (line.split(": ", 1) for line in recipe.read_text().splitlines())
    return {name: text for name, text in sections if name in LEARNED}


def parameters_of(run: Path) -> int:
    """Return how many parameters the model of a run has."""
    from safetensors import safe_open

    with safe_open(run / "best" / "model.safetensors", framework="pt") as file:
        return sum(math.prod(file.get_slice(name).get_shape()) for name in file.keys())  # noqa: SIM118 (no dict)
