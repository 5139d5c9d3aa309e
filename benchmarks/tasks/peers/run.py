"""Does a task learn what a hand-written loop and the Trainer of transformers learn on the same batches, and at what cost?

    python benchmarks/tasks/peers/run.py [TASK ...] [--updates 12] [--repeats 3]

Each task reads the same rows as a recipe would and makes windows of 16 examples of several lengths. All three train a copy of the same small model on them, by torch's SGD
without momentum, so that weights differ as gradients do. The peers call a model of transformers as it is meant: with its labels, for its own loss. Tables, series,
masks and pairs of texts, whose networks put out numbers alone, get their loss as a few lines of torch, the mean over what is scored, as everybody writes it.

- curve: the largest relative difference of an update's loss from that of the hand-written loop.
- in parts: how far the weights after all updates in micro-batches of 4 lie from those of whole windows, as a part of the way that these have gone. Dropout is 0. Not of a network
  with batch normalisation, which learns something else in parts whoever trains it; pairs of texts are held against all of the window, for which Snugfit
  encodes them in parts (gradient_cache).
- time: CPU seconds of an update by those of the hand-written loop, one thread, from the third batch that is asked for to the last, minima over repeats that alternate.

Each task is written to results/DATE.json and README.md as soon as it is measured: ended in the middle, the same command goes on with the tasks that lack.
Those that are named are measured in any case.
"""

from __future__ import annotations

import argparse
import ast
import copy
import json
import logging
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from common import Rows

HERE, EXAMPLES = Path(__file__).parent, Path(__file__).resolve().parents[3] / "examples"
PEERS = ("snugfit", "HF Trainer")
RATE, WINDOW, PART = 0.02, 16, 4
AUXILIARY, TEMPERATURE = 0.4, 0.05
"""The weight of the auxiliary head of the network for masks, and what similarities of texts are divided by."""
_ROWS = "train: rows.jsonl, max_length: 64"
TASKS = {
    "text-classification": ("encoder", f"{_ROWS}, text: text, label: label"),
    "token-classification": ("encoder", f"{_ROWS}, text: words, label: tags"),
    "masked-lm": ("encoder", f"{_ROWS}, text: text"),
    "causal-lm": ("decoder", f"{_ROWS}, text: text"),
    "seq2seq": ("encoder-decoder", f"{_ROWS}, text: text, target: target, target_length: 24"),
    "sentence-embedding": ("encoder", f"{_ROWS}, text: text, positive: other"),
    "image-classification": ("vit", "train: rows.jsonl, size: 32, label: label, augment: []"),
    "segmentation": ("unet", "train: discs, size: 32, augment: []"),
    "audio-classification": ("sound", "train: sounds, seconds: 1.5, augment_audio: []"),
    "tabular-classification": ("mlp", "train: digits.csv"),
    "tabular-regression": ("mlp", "train: diabetes.csv"),
    "forecasting": ("tide", "train: series.csv, series: shop, time: time, label: label, bad_rows: skip"),
}
"""The model and the data section of each."""
Data = dict[str, Any]
Contender = Callable[[nn.Module, "Batches", int], tuple[list[float], nn.Module]]


class Batches:
    """Windows as a loader gives them, which notes the CPU time when the third and the last are asked for."""

    batch_size = WINDOW

    def __init__(self, windows: Sequence[Any]) -> None:
        self.windows, self.dataset = list(windows), [None] * WINDOW * len(windows)
        self.marks: list[float] = []

    def __len__(self) -> int:
        return len(self.windows)

    def __iter__(self) -> Iterator[Any]:
        for number, window in enumerate(self.windows):
            if number in (2, len(self.windows) - 1):
                self.marks.append(time.process_time())
            yield dict(window) if isinstance(window, dict) else window

    @property
    def seconds_per_update(self) -> float:
        return (self.marks[1] - self.marks[0]) / (len(self.windows) - 3)

    def in_parts(self, parts: int) -> Batches:
        """Return the micro-batches of all windows."""
        return (
            self if parts == 1 else Batches([part for each in self.windows for part in _split(each, parts)])
        )


def plain_loop(model: nn.Module, windows: Batches, parts: int) -> tuple[list[float], nn.Module]:
    """Train on whole windows, as everybody would write it; parts are left to those that know how."""
    optimizer, losses = torch.optim.SGD(model.parameters(), lr=RATE), []
    model.train()
    for window in windows:
        loss = model(**window).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses, model


def trainer(model: nn.Module, windows: Batches, parts: int) -> tuple[list[float], nn.Module]:
    """Train by transformers' Trainer, which is given each window, or its parts to accumulate."""
    from transformers import Trainer, TrainingArguments

    losses: list[float] = []

    class Given(Trainer):
        def get_train_dataloader(self) -> Any:
            return windows.in_parts(parts)

        def compute_loss(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
            loss = super().compute_loss(model, inputs, *args, **kwargs)
            losses.append((loss[0] if isinstance(loss, tuple) else loss).item())
            return loss

    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder,
            max_steps=len(windows),
            gradient_accumulation_steps=parts,
            max_grad_norm=0,
            logging_strategy="no",
            report_to=[],
            use_cpu=True,
            disable_tqdm=True,
            save_strategy="no",
            remove_unused_columns=False,
        )
        optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, _constant)
        Given(model, arguments, train_dataset=windows.dataset, optimizers=(optimizer, schedule)).train()
    return losses, model


class WithLoss(nn.Module):
    """A network with the loss that somebody wrote for it, as transformers' Trainer takes it."""

    accepts_loss_kwargs = False  # or its Trainer would leave the division by micro-batches to the loss

    def __init__(self, network: nn.Module, loss: Callable[[nn.Module, Data], Tensor]) -> None:
        super().__init__()
        self.network, self._loss = network, loss

    def forward(self, **window: Any) -> Any:
        from transformers.utils import ModelOutput

        return ModelOutput(loss=self._loss(self.network, window))


def class_loss(network: nn.Module, window: Data) -> Tensor:
    given = {name: value for name, value in window.items() if name != "labels"}
    return F.cross_entropy(_numbers(network(**given)), window["labels"])


def number_loss(network: nn.Module, window: Data) -> Tensor:
    given = {name: value for name, value in window.items() if name != "labels"}
    errors = _numbers(network(**given)).flatten() - window["labels"]
    return (errors / network.spread).square().mean()  # type: ignore[operator]


def quantile_loss(network: nn.Module, window: Data) -> Tensor:
    given = {name: value for name, value in window.items() if name != "labels"}
    outputs, labels = network(**given), window["labels"]
    levels = outputs["levels"][:, None, :]
    known = ~labels.isnan()
    errors = labels.nan_to_num().unsqueeze(-1) - outputs["logits"]
    values = 2 * torch.maximum(levels * errors, (levels - 1) * errors).mean(dim=-1)
    return values[known].mean()


def mask_loss(network: nn.Module, window: Data) -> Tensor:
    given = {name: value for name, value in window.items() if name != "labels"}
    outputs, labels = network(**given), window["labels"]
    main, other = (
        F.cross_entropy(outputs[name].permute(0, 3, 1, 2), labels, ignore_index=-100)
        for name in ("logits", "auxiliary")
    )
    return main + AUXILIARY * other


def pair_loss(network: nn.Module, window: Data) -> Tensor:
    ids, mask = window["input_ids"], window["attention_mask"]
    hidden = network(input_ids=ids.flatten(0, 1), attention_mask=mask.flatten(0, 1)).last_hidden_state
    weights = mask.flatten(0, 1).unsqueeze(-1)
    pooled = F.normalize((hidden * weights).sum(1) / weights.sum(1), dim=-1).unflatten(0, ids.shape[:2])
    return F.cross_entropy(pooled[:, 0] @ pooled[:, 1].T / TEMPERATURE, torch.arange(len(ids)))


def _numbers(outputs: Any) -> Tensor:
    numbers: Tensor = outputs["logits"] if isinstance(outputs, dict) else getattr(outputs, "logits", outputs)
    return numbers


LOSSES: dict[str, Callable[[nn.Module, Data], Tensor]] = {
    "tabular-classification": class_loss,
    "tabular-regression": number_loss,
    "forecasting": quantile_loss,
    "segmentation": mask_loss,
    "sentence-embedding": pair_loss,
}


def _constant(_update: int) -> float:
    return 1.0


def _split(window: Data, parts: int) -> list[Data]:
    cut = {name: value.tensor_split(parts) for name, value in window.items()}
    return [{name: each[part] for name, each in cut.items()} for part in range(parts)]


def distance(one: Mapping[str, Tensor], other: Mapping[str, Tensor], start: Mapping[str, Tensor]) -> float:
    """Return how far two states lie apart, as a part of the way from the start to the second one."""
    apart = sum(float((one[name] - other[name]).double().square().sum()) for name in other)
    way = sum(float((other[name] - start[name]).double().square().sum()) for name in other)
    return float((apart / way) ** 0.5)


def measured(recipe: Any, updates: int, repeats: int) -> dict[str, Any]:
    """Train by all three, whole and in parts, and return the figures of a task."""
    from snugfit.tools.setup import recipe_setup

    setup, _ = recipe_setup(recipe)
    for module in setup.material.model.modules():
        for name in ("p", "dropout", "attention_dropout"):  # of a layer, or by which attention drops
            if isinstance(getattr(module, name, None), float):
                setattr(module, name, 0.0)
    windows = list(setup.loader().windows(0, updates))
    plain = [
        {name: each for name, each in window.data.items() if isinstance(each, Tensor)} for window in windows
    ]

    def snugfit(_model: nn.Module, given: Batches, parts: int) -> tuple[list[float], nn.Module]:
        step = setup.step(plan=replace(setup.plan, micro_batch=None if parts == 1 else PART))
        return [step(windows[number]).loss for number, _ in enumerate(given)], step.model

    contenders: dict[str, Contender] = {"hand-written": plain_loop, "snugfit": snugfit, "HF Trainer": trainer}
    own_loss = LOSSES.get(recipe.task)

    def model_of_peers() -> nn.Module:
        model = copy.deepcopy(setup.material.model)
        return model if own_loss is None else WithLoss(model, own_loss)

    def state_of(model: nn.Module) -> Mapping[str, Tensor]:
        network: nn.Module = getattr(model, "network", model) if isinstance(model, WithLoss) else model
        return network.state_dict()

    start = copy.deepcopy(setup.material.model.state_dict())
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    losses: dict[str, list[float]] = {}
    whole: dict[str, Mapping[str, Tensor]] = {}
    for _ in range(repeats):
        for name, train in contenders.items():
            given = Batches(plain)
            losses[name], trained = train(model_of_peers(), given, 1)
            seconds[name].append(given.seconds_per_update)
            whole[name] = state_of(trained)
    reference = whole["hand-written"]
    result: dict[str, Any] = {"windows": [list(_shape(window)) for window in plain[:3]]}
    for name in PEERS:
        _, parted = contenders[name](model_of_peers(), Batches(plain), WINDOW // PART)
        pairs = zip(losses[name], losses["hand-written"], strict=True)
        result[name] = {
            "curve": max(abs(one - other) / abs(other) for one, other in pairs),
            "weights": distance(whole[name], reference, start),
            "in parts": distance(state_of(parted), reference, start),
            "time": min(seconds[name]) / min(seconds["hand-written"]),
        }
    result["loss"] = [losses["hand-written"][0], losses["hand-written"][-1]]
    result["seconds"] = seconds
    return result


def _shape(window: Data) -> tuple[int, ...]:
    return tuple(next(iter(window.values())).shape)


def docstrings(count: int) -> list[str]:
    """Return first sentences of docstrings of the standard library, of several lengths."""
    sentences: list[str] = []
    for path in sorted(Path(os.__file__).parent.glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and (text := ast.get_docstring(node)):
                sentences.append(" ".join(text.split())[:300])
    random.Random(0).shuffle(sentences)
    return sentences[:count]


def write_numbers(folder: Path) -> None:
    """Write a table of scikit-learn's digits, series of which a tenth is missing, and pictures of discs with masks of which a part is unknown."""
    from PIL import Image, ImageDraw
    from sklearn.datasets import load_diabetes, load_digits

    digits = load_digits(as_frame=True).frame.head(400).rename(columns={"target": "label"})
    digits["label"] = "digit " + digits["label"].astype(str)
    digits.to_csv(folder / "digits.csv", index=False)
    numbers = load_diabetes(as_frame=True).frame.rename(columns={"target": "label"})
    numbers.to_csv(folder / "diabetes.csv", index=False)
    drawn = np.random.default_rng(0)
    lines = [
        f"{shop},{at},{'' if drawn.random() < 0.1 else f'{at % 7 + 10 * shop + drawn.normal():.3f}'}"
        for shop in range(6)
        for at in range(200)
    ]
    (folder / "series.csv").write_text("\n".join(["shop,time,label", *lines]))
    for name in ("images", "masks"):
        (folder / "discs" / name).mkdir(parents=True)
    for number in range(160):
        left, top, side = (int(each) for each in drawn.integers((0, 0, 8), (16, 16, 16)))
        box, mask = (left, top, left + side, top + side), Image.new("L", (32, 32))
        ImageDraw.Draw(mask).ellipse(box, fill=1)
        mask.paste(255, (0, 0, 32, int(drawn.integers(0, 30))))  # nobody knows
        picture = Image.fromarray(drawn.integers(0, 255, (32, 32, 3), dtype=np.uint8))
        ImageDraw.Draw(picture).ellipse(box, fill=(200, 40, 40))
        picture.save(folder / f"discs/images/{number}.png")
        mask.save(folder / f"discs/masks/{number}.png")


def write_material(folder: Path) -> None:
    """Write rows and models."""
    from PIL import Image
    from transformers import ViTConfig

    from snugfit.models.small import write_small_model, write_small_sound_model

    texts = docstrings(160)
    shape: dict[str, Any] = {"vocabulary": 1000, "width": 64, "layers": 2, "positions": 256}
    for kind in ("encoder", "decoder", "encoder-decoder"):
        write_small_model(folder / kind, texts, kind=kind, **shape)
    ViTConfig(
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=128,
        image_size=32,
        patch_size=8,
    ).save_pretrained(folder / "vit")
    drawn = np.random.default_rng(0)
    rows = []
    for number, text in enumerate(texts):
        words = text.split()
        Image.fromarray(drawn.integers(0, 255, (32, 32, 3), dtype=np.uint8)).save(folder / f"{number}.png")
        rows.append(
            {
                "text": text,
                "label": ["short", "long"][len(text) > 80],
                "words": words,
                "tags": ["B-NAME" if word[0].isupper() else "O" for word in words],
                "target": " ".join(words[:8]),
                "other": " ".join(words[len(words) // 2 :]) or text,
                "image": f"{number}.png",
            }
        )
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    write_numbers(folder)
    subprocess.run([sys.executable, EXAMPLES / "draw_sounds.py", folder / "sounds"], check=True)
    write_small_sound_model(folder / "sound", 1.5)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tasks", nargs="*", help="all without")
    parser.add_argument("--updates", type=int, default=12)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    from snugfit.recipe import load_recipe

    torch.set_num_threads(1)
    logging.getLogger("transformers").setLevel(logging.ERROR)
    settings = {
        "updates": options.updates,
        "repeats": options.repeats,
        "window": WINDOW,
        "part": PART,
    }
    rows = Rows(HERE, list(TASKS), settings)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_material(folder)
        for task in options.tasks or rows.missing or TASKS:
            figures = measured(
                load_recipe(write_recipe(folder, task, options.updates), []), options.updates, options.repeats
            )
            rows.add(task, figures)
            (HERE / "README.md").write_text(page(rows.runs))
            for peer in PEERS:
                print(f"{task:24}{peer:12} {'  '.join(map(' '.join, cells(figures[peer])))}", flush=True)


def write_recipe(folder: Path, task: str, updates: int) -> Path:
    """Write the recipe of a task beside its rows, and return its path."""
    model, data = TASKS[task]
    path = folder / f"{task}.yaml"
    own = (folder / model).is_dir()
    path.write_text(
        f"name: peers\ntask: {task}\nmodel: {folder / model if own else model}\n{'from_scratch: true' if own else ''}\n"
        f"data: {{validation: null, {data}}}\ntrain: {{updates: {updates}, global_batch: {WINDOW}, seed: 3}}\n"
        f"optimizer: {{sgd: {{learning_rate: {RATE}, momentum: 0.0, weight_decay: 0.0}}}}\nschedule: null\n"
        f"techniques: {'[gradient_cache]' if task == 'sentence-embedding' else '[]'}\n"
        "plan: {device: cpu, numerics: fp32, micro_batch: null}\ntrack: {mlflow: false}\n"
    )
    return path


def cells(own: dict[str, float]) -> list[tuple[str, str]]:
    """Return the names and the values of a row's figures."""
    apart = [(name, f"{own[name]:.1e}") for name in ("curve", "weights", "in parts")]
    return [*apart, ("time", f"{own['time']:.2f}")]


def page(runs: dict[str, Any]) -> str:
    """Return the figures as a page, with what is held against what in the words above."""
    lines = [
        "# Tasks beside a hand-written loop and the Trainer of transformers",
        "",
        f"`python benchmarks/tasks/peers/run.py`, {max(run['date'] for run in runs.values())}, one thread. Each is held against a hand-written loop on the same {WINDOW}-row batches:",
        "the largest relative difference of a loss (curve); how far the weights lie apart after training, as a part of the way that they went (weights), and when a",
        f"window is trained in micro-batches of {PART} (in parts); CPU seconds of an update (time, as a ratio).",
        "",
        "| task | | curve | weights | in parts | time |",
        "|---|---|---|---|---|---|",
    ]
    for task, run in runs.items():
        for peer in PEERS:
            values = " | ".join(value for _, value in cells(run[peer]))
            lines.append(f"| {task} | {peer} | {values} |")
    lines += [
        "",
        "The network for sounds has batch normalisation, which learns something else in parts whoever trains it. Pairs of texts in parts are encoded twice by Snugfit",
        "(gradient_cache), which is in its time; the Trainer compares those of a part alone. Masks: the first two updates give equal weights, and the last bit of the",
        "third grows.",
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
