"""Losses of preferences, one row and one token at a time, as their papers write them; TRL's forms where they depart.

A row of a pair has prompt, chosen and rejected answer as lists of tokens, a single row prompt, answer and whether it is a good one. `Model`
gives the logits of the next token for a list of tokens.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

Logits = Callable[[list[int]], Tensor]
Row = dict[str, Any]


def log_probability(model: Logits, prompt: list[int], answer: list[int]) -> Tensor:
    """`log π(y|x) = Σ_t log π(y_t | x, y_<t)`."""
    total = torch.zeros((), dtype=torch.float64)
    for place, token in enumerate(answer):
        logits = model([*prompt, *answer[:place]]).double()
        total = total + logits[token] - logits.exp().sum().log()
    return total


def dpo(model: Logits, first: Logits, rows: Sequence[Row], beta: float) -> Tensor:
    """`-log σ(β log(π(y_w|x)/π_ref(y_w|x)) - β log(π(y_l|x)/π_ref(y_l|x)))`: Rafailov et al. 2023, equation 7."""
    losses = []
    for row in rows:
        better = log_ratio(model, first, row["prompt"], row["chosen"])
        worse = log_ratio(model, first, row["prompt"], row["rejected"])
        losses.append(-sigmoid(beta * better - beta * worse).log())
    return torch.stack(losses).mean()


def ipo(model: Logits, first: Logits, rows: Sequence[Row], tau: float, *, by_token: bool = False) -> Tensor:
    """`(h - τ⁻¹/2)²` with `h` the difference of the log-ratios: Azar et al. 2023, equation 17; TRL takes them by token."""
    losses = []
    for row in rows:
        better = log_ratio(model, first, row["prompt"], row["chosen"])
        worse = log_ratio(model, first, row["prompt"], row["rejected"])
        if by_token:
            better, worse = better / len(row["chosen"]), worse / len(row["rejected"])
        losses.append((better - worse - 1 / (2 * tau)) ** 2)
    return torch.stack(losses).mean()


def orpo(model: Logits, rows: Sequence[Row], weight: float, *, of_text: bool = False) -> Tensor:
    """`L_SFT + λ L_OR`: Hong et al. 2024, equations 3 to 7.

    TRL's likelihood is of prompt and answer, and its mean over all tokens of the batch.
    """
    likelihoods, ratios, texts, tokens = [], [], [], 0
    for row in rows:
        means = [
            log_probability(model, row["prompt"], row[name]) / len(row[name])
            for name in ("chosen", "rejected")
        ]
        odds = [mean.exp() / (1 - mean.exp()) for mean in means]
        ratios.append(-sigmoid((odds[0] / odds[1]).log()).log())
        likelihoods.append(-means[0])
        text = [*row["prompt"], *row["chosen"]]
        texts.append(-log_probability(model, text[:1], text[1:]))
        tokens += len(text) - 1
    learned = torch.stack(texts).sum() / tokens if of_text else torch.stack(likelihoods).mean()
    return learned + weight * torch.stack(ratios).mean()


def kto(
    model: Logits, first: Logits, rows: Sequence[Row], beta: float, desirable: float, undesirable: float
) -> Tensor:
    """`λ_y - v(x, y)` with the value `v` of equation 8 and the reference point of all mismatched pairs: Ethayarajh et al. 2024.

    Each prompt's mismatched answer is that of the row before it.
    """
    with torch.no_grad():
        apart = [
            log_ratio(model, first, row["prompt"], rows[place - 1]["answer"])
            for place, row in enumerate(rows)
        ]
        reference_point = max(0.0, float(sum(apart)) / len(rows))
    losses = []
    for row in rows:
        reward = log_ratio(model, first, row["prompt"], row["answer"])
        if row["good"]:
            losses.append(desirable - desirable * sigmoid(beta * (reward - reference_point)))
        else:
            losses.append(undesirable - undesirable * sigmoid(beta * (reference_point - reward)))
    return torch.stack(losses).mean()


def log_ratio(model: Logits, first: Logits, prompt: list[int], answer: list[int]) -> Tensor:
    with torch.no_grad():
        before = log_probability(first, prompt, answer)
    return log_probability(model, prompt, answer) - before


def sigmoid(value: Tensor) -> Tensor:
    return 1 / (1 + math.e**-value)
