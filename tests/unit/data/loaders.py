"""Rows of one small set, as each task that holds rows out reads them: who and when they are of is in columns that no task learns from."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from snugfit.data.examples import Examples, whole_examples
from snugfit.data.pictures.labelled_pictures import PictureSettings, load_pictures
from snugfit.data.pictures.masks import MaskSource, load_masks
from snugfit.data.pictures.picture_format import PictureFormat
from snugfit.data.splits.leaks import LeakSettings
from snugfit.data.tables.table_rows import TableSettings, load_table
from snugfit.data.texts.causal import CausalSettings, load_causal
from snugfit.data.texts.instruct import InstructSettings, load_instruct
from snugfit.data.texts.labelled_texts import TextSettings, load_text
from snugfit.data.texts.masked import MaskedSettings, load_masked
from snugfit.data.texts.preferences import PreferenceSettings, load_preferences
from snugfit.data.texts.tagged_texts import TagSettings, load_tagged
from snugfit.data.texts.text_pairs import PairSettings, load_pairs
from snugfit.data.texts.text_to_text import TextToTextSettings, load_text_to_text_rows
from snugfit.models.tokenizer import load_tokenizer
from tests.unit.data.conftest import word_tokenizer
from tests.unit.data.texts.test_instruct import TEMPLATES, by_letters
from tests.unit.tasks.tiny_encoder import write_encoder
from tests.unit.tasks.tiny_writer import write_tokenizer

WORDS = ("ann", "bob", "rome", "oslo", "good", "bad", "film", "new", "york", "food")
FORMAT = PictureFormat(8, 8, None)
MASKS = PictureFormat(16, 16, None, (0.0,) * 3, (1.0,) * 3, "nearest")


class Loaded(NamedTuple):
    """Both sides as examples, and what was said of them."""

    train: Examples
    validation: Examples
    warnings: Sequence[str]


def row_of(number: int) -> dict[str, Any]:
    """Return a row whose input no other number below 1,000 has."""
    words = [WORDS[int(digit)] for digit in f"{number:03}"]
    text = " ".join(words)
    return {
        "text": text,
        "label": "yes" if number % 2 else "no",
        "positive": f"{text} and",
        "target": words[0],
        "prompt": text,
        "completion": f"it is {words[0]}",
        "chosen": f"it is {words[1]}",
        "rejected": "no",
        "a": number,
        "b": number % 7,
        "words": words,
        "tags": ["B-p", "O", "O"] if number % 2 else ["O", "B-p", "I-p"],
        "image": f"pictures/{number}.png",
        "mask": f"masks/{number}.png",
    }


def write_rows(folder: Path, rows: Sequence[dict[str, Any]], name: str = "rows.jsonl") -> str:
    """Write rows, and the pictures and masks that they name."""
    for place in ("pictures", "masks"):
        (folder / place).mkdir(exist_ok=True)
    for row in rows:
        draw = np.random.default_rng(row["a"])
        noise = Image.fromarray(draw.integers(0, 255, (4, 4, 3), np.uint8))
        noise.resize((16, 16), Image.Resampling.BICUBIC).save(folder / row["image"])
        Image.fromarray(draw.integers(0, 2, (16, 16), np.uint8)).save(folder / row["mask"])
    (folder / name).write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return str(folder / name)


def letters() -> Any:
    template, marks, *_ = TEMPLATES["chatml"]
    return by_letters(template, marks)


def _encoder(folder: Path) -> Any:
    if not (folder / "encoder").exists():
        write_encoder(folder / "encoder", mask=True)
    return load_tokenizer(str(folder / "encoder"))


def _writer(folder: Path) -> Any:
    if not (folder / "writer").exists():
        write_tokenizer(folder / "writer")
    return load_tokenizer(str(folder / "writer"))


def _loaded(data: Any) -> Loaded:
    held_out = None if data.validation is None else whole_examples(data.validation)
    train = whole_examples(data.train)
    assert train is not None
    return Loaded(train, train.at(()) if held_out is None else held_out, data.report.warnings)


Load = Callable[..., Any]
LOADERS: dict[str, Callable[[Path, dict[str, Any]], Any]] = {
    "text-classification": lambda _, own: load_text(TextSettings(max_length=16, **own), word_tokenizer()),
    "text-regression": lambda _, own: load_text(
        TextSettings(label="a", classes=False, max_length=16, **own), word_tokenizer()
    ),
    "sentence-embedding": lambda _, own: load_pairs(PairSettings(max_length=16, **own), word_tokenizer()),
    "seq2seq": lambda folder, own: load_text_to_text_rows(
        TextToTextSettings(max_length=8, target_length=4, **own), _writer(folder)
    ),
    "causal-lm": lambda _, own: load_causal(
        CausalSettings(max_length=4, **own), word_tokenizer("$A", eos_token="[SEP]")
    ),
    "masked-lm": lambda folder, own: load_masked(MaskedSettings(max_length=16, **own), _encoder(folder)),
    "instruction": lambda _, own: load_instruct(
        InstructSettings(max_length=96, format="prompt_completion", **own), letters()
    ),
    "preference": lambda _, own: load_preferences(PreferenceSettings(max_length=96, **own), letters()),
    "token-classification": lambda folder, own: load_tagged(
        TagSettings(text=("words",), label="tags", max_length=16, **own), _encoder(folder)
    ),
    "tabular-classification": lambda _, own: load_table(TableSettings(columns=("a", "b"), **own)),
    "image-classification": lambda _, own: load_pictures(PictureSettings(**own), FORMAT),
    "contrastive-pretraining": lambda _, own: load_pictures(PictureSettings(label=None, **own), FORMAT),
    "segmentation": lambda _, own: load_masks(MaskSource(label="mask", **own), MASKS),
}
"""The way of each task that holds rows out."""


def load(task: str, folder: Path, train: Any, validation: Any, leaks: LeakSettings | None = None) -> Loaded:
    """Return both sides of rows as a task has them."""
    own = {"train": train, "validation": validation, "seed": 3, "leaks": leaks or LeakSettings()}
    return _loaded(LOADERS[task](folder, own))


def numbers_of(examples: Examples) -> set[int]:
    """Return the places of the rows of examples, whose file has a row a line and whose pictures are called by their number."""
    places = set()
    for place in range(len(examples)):
        origin = examples.origin(place)
        places.add(int(Path(origin).stem) if origin.endswith(".png") else int(origin.rpartition(":")[2]) - 1)
    return places
