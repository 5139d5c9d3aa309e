"""Runs whose windows differ in size, in examples and in tokens, on texts of several lengths."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from snugfit.core.job import Plan
from snugfit.run.training.loop import Training
from snugfit.strategies.base import Strategy
from snugfit.techniques.learning.linear import Linear
from snugfit.techniques.learning.sgd import SGD
from tests.unit.run.training.runs import make_training

EXAMPLES, LONGEST, VOCABULARY, IGNORED = 19, 9, 11, -100
RATE = 0.5

SIZES: dict[str, dict[str, Any]] = {
    "warm-up": {"global_batch": 7, "start_batch": 2, "batch_warmup": 5},
    "warm-up over a part": {"global_batch": 8, "start_batch": 3, "batch_warmup": 0.5},
    "by epoch": {"global_batch": 7, "batch_by_epoch": (3,)},
    "tokens": {"batch_tokens": 30},
    "tokens that grow": {"batch_tokens": 40, "start_batch": 10, "batch_warmup": 4},
}


def texts() -> list[dict[str, list[int]]]:
    """Rows of two to nine tokens, of which some do not count."""
    source = torch.Generator().manual_seed(0)
    rows = []
    for _ in range(EXAMPLES):
        length = int(torch.randint(2, LONGEST + 1, (), generator=source))
        ids = torch.randint(1, VOCABULARY, (length,), generator=source).tolist()
        labels = [each if each % 3 else IGNORED for each in ids[1:] + ids[:1]]
        rows.append({"input_ids": ids, "labels": labels})
    return rows


def collate(rows: list[dict[str, list[int]]]) -> dict[str, Tensor]:
    def padded(name: str, fill: int) -> Tensor:
        each = [torch.tensor(row[name]) for row in rows]
        return nn.utils.rnn.pad_sequence(each, batch_first=True, padding_value=fill)

    ids = padded("input_ids", 0)
    return {"input_ids": ids, "attention_mask": (ids != 0).long(), "labels": padded("labels", IGNORED)}


class Words(nn.Module):
    """Logits of each token from that token alone."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.embedding, self.dropout = nn.Embedding(VOCABULARY, 6), nn.Dropout(dropout)
        self.head = nn.Linear(6, VOCABULARY)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        logits: Tensor = self.head(self.dropout(torch.tanh(self.embedding(input_ids))))
        return logits


def words(seed: int = 1, dropout: float = 0.0) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return Words(dropout).double()


def training(
    folder: Path,
    sizes: str,
    *,
    micro_batch: int | None = None,
    model: nn.Module | None = None,
    strategy: Strategy | None = None,
    **more: Any,
) -> Training:
    """Two and a half epochs, evaluated after each, by SGD with a rate that falls to 0."""
    settings = {
        "epochs": 2.5,
        "techniques": (SGD(learning_rate=RATE, momentum=0.0), Linear()),
        **SIZES[sizes],
        **more,
    }
    return make_training(
        folder,
        model=words() if model is None else model,
        train=texts(),
        validation=texts()[:5],
        collate=collate,
        plan=Plan(micro_batch=micro_batch),
        strategy=strategy,
        **settings,
    )


def by_hand(windows: list[tuple[int, ...]]) -> dict[str, Tensor]:
    """The weights after such windows by a plain loop: the mean over the tokens of a window that count, the rate by the number of updates."""
    rows, model = texts(), words()
    for update, window in enumerate(windows):
        losses = list(_losses(model, [rows[index] for index in window]))
        model.zero_grad()
        (torch.stack(losses).sum() / len(losses)).backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= RATE * (1 - update / len(windows)) * parameter.grad  # type: ignore[operator]
    return {name: each.detach() for name, each in model.named_parameters()}


def _losses(model: nn.Module, rows: list[dict[str, list[int]]]) -> Iterator[Tensor]:
    for row in rows:
        ids = torch.tensor([row["input_ids"]])
        logits = model(ids, torch.ones_like(ids))[0]
        for scores, label in zip(logits, row["labels"], strict=True):
            if label != IGNORED:
                yield -torch.log_softmax(scores, 0)[label]
