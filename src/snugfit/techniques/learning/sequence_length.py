"""Sequence length warm-up: training begins on the beginnings of the texts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from snugfit.core.batch import LABELS, Batch
from snugfit.core.technique import Card, Context, Family, Kind, Moment, Seams, Stage, Technique
from snugfit.core.tree import leaves
from snugfit.errors import SettingError

TOKENS = ("input_ids", "attention_mask", "token_type_ids", "position_ids", "special_tokens_mask", LABELS)
"""Entries of a batch with one column a token; labels only if they are as wide as the tokens."""


def _two_texts(which: str) -> SettingError:
    return SettingError(
        "sequence_length",
        f"{which}, and a text cut short would stand beside the whole of the other, which depends on all of it",
        "Remove it.",
    )


def length_at(updates: int, duration: int, initial: int, width: int, increment: int = 1) -> int:
    """Return how many of `width` tokens are trained on after that many updates.

    Rises linearly from `initial` to `width` over `duration` updates, in steps of `increment`.

    >>> [length_at(updates, duration=10, initial=8, width=64, increment=8) for updates in (0, 3, 5, 10, 99)]
    [8, 24, 32, 64, 64]
    """
    if updates >= duration or initial >= width:
        return width
    risen = (width - initial) * updates // duration
    return initial + increment * (risen // increment)


def truncated(data: Mapping[str, Any], length: int) -> dict[str, Any]:
    """Return the batch with the first `length` tokens of each row, wherever its padding is; what is not of tokens stays.

    Where the tokens begin is read from `attention_mask`. A row that has fewer keeps some of its padding.

    Raises:
        SettingError: there are no tokens, or those of two texts.

    >>> import torch
    >>> batch = {"input_ids": torch.ones(2, 6, dtype=torch.int64), "labels": torch.tensor([0, 1])}
    >>> {name: value.shape for name, value in truncated(batch, 4).items()}
    {'input_ids': torch.Size([2, 4]), 'labels': torch.Size([2])}
    """
    width = _width(data)
    masked = _is_of_tokens("attention_mask", data.get("attention_mask"), width)
    mask = data["attention_mask"] if masked else torch.ones_like(data["input_ids"])
    # the first of the largest is where the tokens begin; nothing is read from the device
    first = (mask != 0).int().argmax(dim=1, keepdim=True).clamp(max=width - length)
    places = first + torch.arange(length, device=first.device)
    return {
        name: value.gather(1, places) if _is_of_tokens(name, value, width) else value
        for name, value in data.items()
    }


@dataclass(frozen=True)
class SequenceLength(Technique):
    """Train on the first tokens of each text, more of them with each update, until the texts are whole."""

    initial: int = 64
    fraction: float = 0.3
    increment: int = 8

    card: ClassVar[Card] = Card(
        name="sequence_length",
        summary="Trains on the beginnings of texts first and on whole texts later: steadier, and faster at first.",
        aliases=("sequence length warmup", "curriculum by length"),
        family=Family.LEARNING,
        source="Li et al. 2021, arXiv:2108.06084",
        seams=("batch",),
        stages=(Stage.CUT,),
        kind=Kind.TOKENS,
        cost="nothing; saves the tokens that are cut. They count as seen, so give the run a little more updates",
        use_when="language models trained from scratch, with large batches or learning rates above all",
    )

    def __post_init__(self) -> None:
        self.require("initial", self.initial >= 2, "at least 2, as one token has none to follow it")
        self.require("fraction", 0 < self.fraction <= 1, "in (0, 1]")
        self.require("increment", self.increment >= 1, "at least 1")

    @classmethod
    def example(cls) -> Self:
        return cls(initial=3, fraction=0.8, increment=2)

    def seams(self, context: Context) -> Seams:
        if context.total_updates is None:
            raise SettingError(
                "sequence_length", "needs the length of the run", "Give total_updates to the step."
            )
        config = getattr(context.model, "config", None)
        if getattr(config, "is_encoder_decoder", False):
            raise _two_texts("the model writes a text from another")
        duration = max(1, round(self.fraction * context.total_updates))

        def batch(window: Batch, moment: Moment) -> Batch:
            width = _width(window.data)
            length = length_at(moment.updates, duration, self.initial, window.tokens, self.increment)
            if length >= width:
                return window
            return replace(
                window,
                data=truncated(window.data, length),
                lengths=None if window.lengths is None else tuple(min(n, length) for n in window.lengths),
                padded=length if window.padded and _stands_out(window.data, width, length) else 0,
            )

        return Seams(batch=batch)


def _width(data: Any) -> int:
    ids = data.get("input_ids") if isinstance(data, Mapping) else None
    if not isinstance(ids, Tensor) or ids.ndim != 2:
        raise SettingError(
            "sequence_length", "the batch has no input_ids of shape (rows, tokens) to shorten", "Remove it."
        )
    other = next((name for name in data if str(name).startswith("decoder_")), None)
    if other is not None:
        raise _two_texts(f"the batch has '{other}'")
    width: int = ids.shape[1]
    return width


def _is_of_tokens(name: str, value: Any, width: int) -> bool:
    return (
        name in TOKENS
        and isinstance(value, Tensor)
        and value.shape[1:] == (width,)
        and not value.is_floating_point()
    )


def _stands_out(data: Mapping[str, Any], width: int, length: int) -> bool:
    """Return whether only tokens have the new width: what has it by chance would lose columns with the padding."""
    others = (value for name, value in data.items() if not _is_of_tokens(name, value, width))
    return all(tensor.ndim < 2 or tensor.shape[1] != length for value in others for tensor in leaves(value))
