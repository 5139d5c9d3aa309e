"""What the hand-written loops share: one row at a time, without padding, and plain arithmetic.

Nothing in this folder imports the package. An oracle is slow on purpose: every row is forwarded alone at its
own length, so that neither padding nor batching can hide an error.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

IGNORED = -100
LEARNING_RATE = 0.05

Window = dict[str, Any]
Named = dict[str, Tensor]


@dataclass
class Trained:
    """What a loop ends with: weights by name, those to evaluate, and the loss of each window."""

    weights: Named
    evaluated: Named
    losses: list[float]


Direction = Callable[[nn.Module, Window], tuple[Named, float]]
"""From a model and a window to the vector that the optimizer gets, and the loss."""


def plain_sgd(
    model: nn.Module,
    windows: Sequence[Window],
    direction: Direction,
    factor: Callable[[int], float] = lambda updates: 1.0,
    after: Callable[[int], None] = lambda updates: None,
) -> Trained:
    """`w ← w − η·factor(updates)·g` for each window; `after` is called with the number of updates so far."""
    losses = []
    for updates, window in enumerate(windows):
        gradient, loss = direction(model, window)
        with torch.no_grad():
            for name, weight in model.named_parameters():
                if name in gradient:
                    weight -= LEARNING_RATE * factor(updates) * gradient[name]
        losses.append(loss)
        after(updates + 1)
    return Trained(weights(model), weights(model), losses)


def weights(model: nn.Module) -> Named:
    return {name: weight.detach().clone() for name, weight in model.named_parameters()}


def gradient_of(model: nn.Module, window: Window) -> tuple[Named, float]:
    """`∇ (Σ_rows Σ_tokens loss) / (number of labels)`: the token-weighted mean over the whole window."""
    losses, counts = row_losses(model, window)
    return differentiate(model, torch.stack(losses).sum() / sum(counts))


def differentiate(model: nn.Module, loss: Tensor) -> tuple[Named, float]:
    named = dict(model.named_parameters())
    found = torch.autograd.grad(loss, list(named.values()), allow_unused=True)
    return {name: g for name, g in zip(named, found, strict=True) if g is not None}, float(loss.detach())


def row_losses(model: nn.Module, window: Window) -> tuple[list[Tensor], list[int]]:
    """For each row the sum of the losses of its labels, and their number."""
    losses, counts = [], []
    for row in rows(window):
        outputs = forward(model, row)
        logits = (outputs if isinstance(outputs, Tensor) else outputs["logits"])[0]
        logits = logits.reshape(-1, logits.shape[-1])
        labels = row["labels"].reshape(-1)
        summed = torch.zeros((), dtype=logits.dtype)
        count = 0
        for place, label in enumerate(labels.tolist()):
            if label != IGNORED:
                summed = summed + cross_entropy(logits[place], label)
                count += 1
        losses.append(summed)
        counts.append(count)
    return losses, counts


def cross_entropy(logits: Tensor, label: int) -> Tensor:
    """`−log(e^{z_y} / Σ_j e^{z_j})`."""
    return -(logits[label].exp() / sum(logit.exp() for logit in logits)).log()


def contrastive_losses(
    model: nn.Module, window: Window, temperature: float = 0.5
) -> tuple[list[Tensor], list[int]]:
    """Cross-entropy of each row's label plus InfoNCE of its query among the keys of all rows, and its weight.

    `−log(e^{q_i·k_i/τ} / Σ_j e^{q_i·k_j/τ})`: van den Oord et al. 2018, arXiv:1807.03748, equation 4.
    """
    outputs = [forward(model, row) for row in rows(window)]
    losses, counts = [], []
    for place, (row, output) in enumerate(zip(rows(window), outputs, strict=True)):
        label = int(row["labels"][0])
        if label == IGNORED:
            losses.append(torch.zeros((), dtype=output["query"].dtype))
            counts.append(0)
            continue
        scores = [(output["query"][0] * other["key"][0]).sum() / temperature for other in outputs]
        contrast = -(scores[place].exp() / sum(score.exp() for score in scores)).log()
        losses.append(cross_entropy(output["logits"][0], label) + contrast)
        counts.append(1)
    return losses, counts


def contrastive_gradient(model: nn.Module, window: Window) -> tuple[Named, float]:
    """The gradient of the mean contrastive loss, with all rows in one graph."""
    losses, counts = contrastive_losses(model, window)
    return differentiate(model, torch.stack(losses).sum() / sum(counts))


def rows(window: Window) -> list[Window]:
    """The rows one by one, each at its own length."""
    count = len(window["labels"])
    if "input_ids" not in window:
        return [take(window, [row]) for row in range(count)]
    found = []
    for row in range(count):
        length = int(window["attention_mask"][row].sum())
        labels = window["labels"][row : row + 1]
        found.append(
            {
                "input_ids": window["input_ids"][row : row + 1, :length],
                "attention_mask": window["attention_mask"][row : row + 1, :length],
                "context": {
                    "names": window["context"]["names"][row : row + 1],
                    "numbers": {"features": window["context"]["numbers"]["features"][row : row + 1]},
                },
                "labels": labels[:, :length] if labels.ndim == 2 else labels,
            }
        )
    return found


def take(window: Window, rows: Sequence[int]) -> Window:
    """The chosen rows, padded as they were."""
    places = torch.tensor(list(rows))
    if "context" not in window:
        return {name: tensor[places] for name, tensor in window.items()}
    return {
        "input_ids": window["input_ids"][places],
        "attention_mask": window["attention_mask"][places],
        "context": {
            "names": [window["context"]["names"][place] for place in rows],
            "numbers": {"features": window["context"]["numbers"]["features"][places]},
        },
        "labels": window["labels"][places],
    }


def forward(model: nn.Module, row: Window) -> Any:
    return model(**{key: value for key, value in row.items() if key != "labels"})


def length_of(vectors: Named) -> float:
    """The Euclidean length of all of them as one vector."""
    return math.sqrt(sum(float(value) ** 2 for vector in vectors.values() for value in vector.flatten()))
