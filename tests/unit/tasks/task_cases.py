"""A tiny model and a few rows for each task, in the forms that it reads, as a recipe names them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image

from snugfit.models.small import write_small_picture_model, write_small_sound_model
from snugfit.recipe import Recipe, load_recipe
from tests.unit.tasks.drawn_sounds import write_tones
from tests.unit.tasks.test_segmentation_models import SEGFORMER
from tests.unit.tasks.tiny_decoder import write_decoder
from tests.unit.tasks.tiny_encoder import write_encoder
from tests.unit.tasks.tiny_writer import write_t5

Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class Case:
    """A task with a model that `write_models` writes, or that the task makes, rows, and settings of `data`."""

    model: str
    rows: Rows
    data: str
    techniques: str = "[]"

    @property
    def scratch(self) -> bool:
        """Whether the model has no weights."""
        return self.model in _WITHOUT_WEIGHTS

    @property
    def made(self) -> bool:
        """Whether the task makes the model."""
        return self.model in _MADE


_WITHOUT_WEIGHTS = ("decoder", "pictures", "vit", "segformer", "sounds")
_MADE = {
    "mlp": {"network": "mlp", "width": 16, "dropout": 0},
    "unet": {"width": 8, "levels": 2, "blocks": 1, "dropout": 0},
    "tide": {"width": 16, "dropout": 0},
}
CHATS: Rows = [
    {"messages": [{"role": "user", "content": ask}, {"role": "assistant", "content": answer}]}
    for ask, answer in (("red?", "warm"), ("blue?", "cold"), ("sun?", "day"), ("moon?", "night"))
]
PAIRS: Rows = [{"text": each, "completion": f"{each} {each}"} for each in ("ann", "bob", "rome", "oslo")]
TEXTS: Rows = [
    {"text": each}
    for each in ("ann met bob in rome .", "bob lives in new york .", "good film .", "bad food .")
]
PREFERENCES: Rows = [{"prompt": each["text"], "chosen": "ann", "rejected": "bob"} for each in PAIRS]
WRITTEN: Rows = [{"source": "ann good", "target": "good ann"}, {"source": "bob bad", "target": "bad bob"}]
ALIKE: Rows = [
    {"anchor": "good film", "positive": "very good film"},
    {"anchor": "bad food", "positive": "not good food"},
]
NUMBERS: Rows = [{"size": str(each), "price": str(2.5 * each)} for each in range(12)]
SIZES: Rows = [{"size": str(each), "kind": "ab"[each > 5]} for each in range(12)]
NAMED: Rows = [
    {"tokens": ["ann", "met", "bob"], "tags": ["B-P", "O", "B-P"]},
    {"tokens": ["in", "rome"], "tags": ["O", "B-L"]},
]
JUDGED: Rows = [
    {"text": f"{word} film {other}", "label": word, "all": [word, other], "stars": str(at)}
    for at, (word, other) in enumerate((("good", "rome"), ("bad", "oslo"), ("good", "oslo"), ("bad", "rome")))
]
PICTURES: Rows = [
    {
        "image": f"pictures/{number}.png",
        "colour": ["red", "dark"][number % 2],
        "label": ["red", "red;dark"][number % 2],
        "mask": f"masks/{number}.png",
    }
    for number in range(6)
]
SOUNDS: Rows = [
    {"audio": f"tones/{name}/{at:02}.wav", "label": name} for at in range(3) for name in ("high", "low")
]
SOLD: Rows = [
    {"day": f"2026-01-{day:02}", "sold": str(10 + 3 * (day % 7)), "offer": str(day % 2)}
    for day in range(1, 29)
]

CASES: dict[str, Case] = {
    "instruction": Case("decoder", CHATS, "max_length: 96"),
    "instruction, pairs": Case("decoder", PAIRS, "max_length: 96"),
    "causal-lm": Case("decoder", TEXTS, "max_length: 32"),
    "preference": Case("decoder", PREFERENCES, "max_length: 96"),
    "masked-lm": Case("encoder", TEXTS, "max_length: 16"),
    "seq2seq": Case("writer", WRITTEN, "max_length: 16, text: source, target: target, target_length: 8"),
    "sentence-embedding": Case(
        "encoder", ALIKE, "max_length: 16, text: anchor, positive: positive", "[gradient_cache]"
    ),
    "token-classification": Case("encoder", NAMED, "max_length: 16, text: tokens, label: tags"),
    "text-classification": Case("encoder", JUDGED, "max_length: 16, text: text, label: label"),
    "multi-label-classification": Case("encoder", JUDGED, "max_length: 16, text: text, label: all"),
    "text-regression": Case("encoder", JUDGED, "max_length: 16, text: text, label: stars"),
    "tabular-regression": Case("mlp", NUMBERS, "label: price"),
    "tabular-classification": Case("mlp", SIZES, "label: kind"),
    "image-classification": Case("vit", PICTURES, "size: 16, label: colour"),
    "multi-label-image-classification": Case("vit", PICTURES, "size: 16, label: label, separator: ';'"),
    "contrastive-pretraining": Case("vit", PICTURES, "size: 16", "[gradient_cache]"),
    "masked-pictures": Case("vit", PICTURES, "size: 16"),
    "segmentation": Case("unet", PICTURES, "size: 16, label: mask"),
    "segmentation, segformer": Case("segformer", PICTURES, "size: 32, label: mask"),
    "audio-classification": Case("sounds", SOUNDS, "label: label"),
    "forecasting": Case("tide", SOLD, "time: day, label: sold, horizon: 2, history: 4"),
    "forecasting, ahead": Case("tide", SOLD, "time: day, label: sold, known: offer, horizon: 2, history: 4"),
}


def write_models(folder: Path) -> None:
    """Write the models of all cases, each to a folder of its name."""
    write_decoder(folder / "decoder", 32)
    write_encoder(folder / "encoder", mask=True)
    write_t5(folder / "writer")
    write_small_picture_model(folder / "pictures", 16)
    write_small_picture_model(folder / "vit", 16, patches=True)
    write_small_sound_model(folder / "sounds", 0.5)
    SEGFORMER.save_pretrained(folder / "segformer")


def write_files() -> None:
    """Write the settings of networks, and the pictures, masks and sounds that rows name."""
    for name, settings in _MADE.items():
        Path(f"{name}.json").write_text(json.dumps(settings))
    for name in ("pictures", "masks"):
        Path(name).mkdir()
    for number in range(6):
        Image.new("RGB", (20, 18), (40 * number, 0, 0)).save(f"pictures/{number}.png")
        Image.new("L", (20, 18), number % 2).save(f"masks/{number}.png")
    write_tones(Path("tones"), 3)


def recipe_of(name: str, models: Path, *overrides: str, added: str = "", **sections: str) -> Recipe:
    """Write the rows and the recipe of a case to this folder, and return it.

    Args:
        overrides: as of the command line.
        added: lines behind those of the rows.
        sections: of the recipe, in place of those of all cases or besides them.
    """
    case = CASES[name]
    Path("rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in case.rows) + added)
    lines = {
        "name": "kept",
        "task": name.partition(",")[0],
        "model": f"./{case.model}.json" if case.made else models / case.model,
        "from_scratch": json.dumps(case.scratch),
        "data": f"{{train: rows.jsonl, validation: null, {case.data}}}",
        "train": "{updates: 2, global_batch: 2}",
        "techniques": case.techniques,
        "plan": "{device: cpu, numerics: fp32}",
        "track": "{mlflow: false}",
        "output": "runs",
        **sections,
    }
    path = Path("recipe.yaml")
    path.write_text("".join(f"{key}: {value}\n" for key, value in lines.items()))
    return load_recipe(path, list(overrides), allow_code=True)
