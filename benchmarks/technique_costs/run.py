"""What does each technique cost an update in time and memory? Measured beside the plain step, all in one run.

    python benchmarks/technique_costs/run.py                 writes the table that `snugfit techniques NAME` shows

Tokens: a BERT of 4 layers and width 256 on windows of 16 × 64 tokens. Images: a residual net of 0.4 M weights on windows of
32 × 3 × 32 × 32, with batch norm in place of group norm for what changes that. Time is the process's CPU time, the median of the ratios of rounds in which the plain step and the
technique take turns, with its 95% interval. Memory is counted in tensors, not pages: the highest sum of storages alive
in three updates, less that of the plain step, in multiples of the weights. Every technique has its example settings, those
that the laws are tested with; an optimizer is compared with SGD with momentum, all others run with it. It is the beginning of a run of 1,000 updates: what changes during a
run, such as sizes, lengths and what is frozen, shows how it begins.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import weakref
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

sys.path.insert(0, str(Path(__file__).parents[1]))
from common import commit, machine, paired_ratio

from snugfit import Step, Technique
from snugfit.core.loss_terms import Loss, LossTerms
from snugfit.core.technique import Kind, Stage
from snugfit.errors import SettingError
from snugfit.techniques import discover, find

TABLE = Path(__file__).parents[2] / "src" / "snugfit" / "techniques" / "costs.json"
UPDATES = 1000
BATCH_NORM = "images, by batch norm"


class LiveTensors(TorchDispatchMode):
    """Counts the bytes of storages that are alive, from those made within; `peak` is the most at one time."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = self.peak = 0
        self._known: set[int] = set()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor):
                self._count(leaf.untyped_storage())
        return result

    def _count(self, storage: torch.UntypedStorage) -> None:
        key, size = storage._cdata, storage.nbytes()
        if key in self._known:
            return
        self._known.add(key)
        self.bytes += size
        self.peak = max(self.peak, self.bytes)
        weakref.finalize(storage, self._forget, key, size)

    def _forget(self, key: int, size: int) -> None:
        self._known.discard(key)
        self.bytes -= size


def text() -> tuple[nn.Module, Any]:
    from transformers import BertConfig, BertForSequenceClassification

    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=8000,
        hidden_size=256,
        num_hidden_layers=4,
        num_attention_heads=4,
        intermediate_size=1024,
        num_labels=4,
    )
    window = {
        "input_ids": torch.randint(1, 8000, (16, 64)),
        "attention_mask": torch.ones(16, 64, dtype=torch.int64),
        "labels": torch.randint(0, 4, (16,)),
    }
    return BertForSequenceClassification(config), window


class Block(nn.Module):
    """Two convolutions beside the identity."""

    def __init__(self, width: int, batch_norm: bool) -> None:
        super().__init__()
        norms = [nn.BatchNorm2d(width) if batch_norm else nn.GroupNorm(8, width) for _ in range(2)]
        self.body = nn.Sequential(
            norms[0],
            nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1),
            norms[1],
            nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1),
        )

    def forward(self, hidden: Tensor) -> Tensor:
        return hidden + self.body(hidden)


class Residual(nn.Module):
    """A small residual net on images of any size."""

    def __init__(self, width: int = 48, blocks: int = 9, batch_norm: bool = False) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, 2, padding=1)
        self.blocks = nn.ModuleList(Block(width, batch_norm) for _ in range(blocks))
        self.head = nn.Linear(width, 10)

    def forward(self, pixels: Tensor) -> Tensor:
        hidden = self.stem(pixels)
        for block in self.blocks:
            hidden = block(hidden)
        logits: Tensor = self.head(hidden.mean(dim=(2, 3)))
        return logits


def images(batch_norm: bool = False) -> tuple[nn.Module, Any]:
    torch.manual_seed(0)
    return Residual(batch_norm=batch_norm), {
        "pixels": torch.randn(32, 3, 32, 32),
        "labels": torch.randint(0, 10, (32,)),
    }


def make_step(technique: Technique | None, kind: str, coupled: bool) -> tuple[Step, Any]:
    model, window = text() if kind == "tokens" else images(batch_norm=kind == BATCH_NORM)
    loss: str | Loss = _contrastive if coupled else "cross_entropy"
    with_optimizer = technique is not None and "optimizer" in technique.card.seams
    given = [] if technique is None else [technique]
    if not with_optimizer:
        given.append(find("sgd")(learning_rate=1e-3, momentum=0.9))
    return Step(model, None, loss, given, total_updates=UPDATES), window


def _contrastive(outputs: Any, data: Any) -> LossTerms:
    """Return each row against all rows of what it is given."""
    logits = outputs["logits"]
    scores = logits @ logits.T
    return LossTerms(torch.nn.functional.cross_entropy(scores, torch.arange(len(scores)), reduction="none"))


def seconds(step: Step, window: Any, updates: int) -> float:
    start = time.process_time()
    for _ in range(updates):
        step(window)
    return time.process_time() - start


def kind_of(technique: Technique) -> str:
    """Return what a technique is measured on."""
    if technique.card.kind not in (Kind.IMAGES, Kind.NUMBERS):
        return "tokens"
    try:
        technique.prepare(images()[0])
    except SettingError:
        return BATCH_NORM
    return "images"


def peak_bytes(technique: Technique | None, kind: str, coupled: bool) -> int:
    """Measure from the making of the model on, over three updates."""
    with LiveTensors() as live:
        step, window = make_step(technique, kind, coupled)
        for _ in range(3):
            step(window)
    return live.peak


def measure(technique: Technique, kind: str, rounds: int, updates: int) -> dict[str, Any]:
    coupled = Stage.COUPLING in technique.card.stages
    plain, window = make_step(None, kind, coupled)
    changed, _ = make_step(technique, kind, coupled)
    weights = sum(parameter.numel() * parameter.element_size() for parameter in plain.parameters)
    memory = peak_bytes(technique, kind, coupled) - peak_bytes(None, kind, coupled)
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(rounds):
        times[0].append(seconds(changed, window, updates))
        times[1].append(seconds(plain, window, updates))
    ratio = paired_ratio(*times)
    return {
        "time": {name: round(value, 3) for name, value in ratio.items()},
        "memory_in_weights": round(memory / weights, 2),
        "on": kind,
        "settings": repr(technique),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--updates", type=int, default=2)
    parser.add_argument("--only", nargs="*", help="measure these and keep the others' figures")
    options = parser.parse_args()
    torch.set_num_threads(1)
    known = json.loads(TABLE.read_text())["techniques"] if options.only and TABLE.exists() else {}
    for name, technique_class in discover().items():
        if options.only and name not in options.only:
            continue
        technique = technique_class.example()
        known[name] = measure(technique, kind_of(technique), options.rounds, options.updates)
        print(name, known[name], flush=True)
    described = {
        "how": (__doc__ or "").split("\n\n")[2].replace("\n", " "),
        "date": time.strftime("%Y-%m-%d"),
        "commit": commit(),
        "machine": machine(),
        "techniques": dict(sorted(known.items())),
    }
    TABLE.write_text(json.dumps(described, indent=1) + "\n")


if __name__ == "__main__":
    main()
