"""Tokens that the model read last, and how labels, keys of attention and padding lie to them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from snugfit.doctor.observe.recording.padding_tokens import padding_behind

LEAST_TOKENS, NEXT = 32, 0.99
"""Share of at least so many labels that are later tokens, from which on all are."""
MOST_BATCHES = 4
MOST_STEPS = 512


class TokensRead:
    """Batches of tokens that embeddings of the model have read, the last ones.

    Attributes:
        last: the tokens of the last batch; `reader` is the embedding that has read them, `vocabulary` its size.
        decoded: the tokens that a model got last beside others, as a decoder does, in the first updates.
        steps: tokens of one place of each row, which an embedding has read one after the other; `vocabulary_of_steps` is its size,
            and `steps_at` the line that gave the first; `first_read` and `last_read` are what the embedding gave for the first and the last.
        scored: how many steps had been read at the last loss of one place.
    """

    def __init__(self) -> None:
        self.last: Tensor | None = None
        self.decoded: Tensor | None = None
        self.reader: Any = None
        self.vocabulary = 0
        self._padding: int | None = None
        self._read: list[Tensor] = []
        self.steps: list[Tensor] = []
        self.vocabulary_of_steps = 0
        self.steps_at = ""
        self.first_read: Tensor | None = None
        self.last_read: Tensor | None = None
        self.scored = 0
        self._steps_reader: Any = None
        self._reads = False

    def begin(self, inputs: Sequence[Tensor], *, keeps: bool) -> None:
        """Begin a call of a model with these inputs: whole texts among them are of other rows than tokens that were read by steps.

        Args:
            keeps: whether the text that a decoder gets beside another one is kept.
        """
        texts = [each for each in inputs if each.dim() == 2 and not each.dtype.is_floating_point]
        if any(each.shape[1] > 1 for each in texts):
            self.forget_steps()
        if keeps:
            two_texts = len(texts) > 1 and texts[-1].dtype is torch.long
            self.decoded = texts[-1].detach() if two_texts else None

    def note(self, reader: Any, tokens: Tensor) -> None:
        """Note tokens that went into the model, and the embedding that reads them."""
        self.reader, self._padding, self.vocabulary = reader, reader.padding_idx, reader.num_embeddings
        self.last = tokens.detach()
        self._read = [*self._read[1 - MOST_BATCHES :], self.last]

    def note_step(self, reader: Any, tokens: Tensor, line: Callable[[], str]) -> None:
        """Note the tokens of the next place of each row; those of other rows, or that another embedding reads, begin anew."""
        if reader is not self._steps_reader or (self.steps and len(self.steps[0]) != len(tokens)):
            self.forget_steps()
        if not self.steps:
            self.steps_at = line()
        self._steps_reader, self.vocabulary_of_steps = reader, reader.num_embeddings
        if len(self.steps) < MOST_STEPS:
            self.steps.append(tokens.detach().reshape(-1).clone())
        self._reads = True

    def note_read(self, reader: Any, output: Tensor) -> None:
        """Note what an embedding gave for the tokens of the step that it reads."""
        if self._reads and reader is self._steps_reader:
            self._reads, self.last_read = False, output
            self.first_read = output if len(self.steps) == 1 else self.first_read

    def forget_steps(self) -> None:
        """Begin anew: other rows follow."""
        self.steps, self._steps_reader, self._reads = [], None, False
        self.first_read, self.last_read, self.scored = None, None, 0

    @property
    def count(self) -> int:
        """Return how many tokens the last batch had; 0 where none was seen."""
        return 0 if self.last is None else self.last.numel()

    def of(self, key: Any) -> Tensor | None:
        """Return the last tokens that were read as what attention gets, by the shape; those of an encoder and a decoder may be two. None where either may be meant."""
        rows = sorted(getattr(key, "shape", ())[:2])
        fit = [each for each in self._read if sorted(each.shape) == rows]
        other = any(each.shape == fit[-1].shape and not each.equal(fit[-1]) for each in fit) if fit else True
        return None if other and not (fit and fit[-1] is self.last) else fit[-1]

    def padding_of(self, tokens: Tensor) -> Tensor | None:
        """Return which tokens are padding: the one that an embedding leaves out, or that no setting names, where rows end in it; None without any."""
        if self._padding is None:
            return padding_behind(tokens)
        padding = (tokens == self._padding).flip(1).long().cumprod(1).flip(1).bool()
        return padding if bool(padding.any()) and not bool(padding.all(1).any()) else None

    def copies(self, labels: Tensor, ignored: int, classes: int) -> float:
        """Return the share of the labels that equal the model's input at the same place; 0 where they cannot be compared."""
        if (
            self.last is None
            or classes != self.vocabulary
            or self.last.numel() != labels.numel()
            or self.last.device != labels.device
            or bool((labels == ignored).all())
        ):
            return 0.0
        return float((self.last.reshape(-1) == labels)[labels != ignored].float().mean())

    def places_ahead(self, labels: Tensor, ignored: int) -> int:
        """Return how many places behind the token that was read the labels lie, 1 or 2, -1 before it; 0 where they are other tokens, or too few to tell."""
        tokens = self.last
        if tokens is None or tokens.dim() != 2 or tokens.device != labels.device:
            return 0
        rows, length = tokens.shape
        width = labels.numel() // rows
        if width * rows != labels.numel() or not 0 <= length - width <= 2:
            return 0
        wanted = labels.detach().reshape(rows, width)
        if width == length and _are(wanted[:, 1:], tokens[:, :-1], ignored):
            return -1
        for places in (1, 2):
            many = min(width, length - places)
            if _are(wanted[:, :many], tokens[:, places : places + many], ignored):
                return places
        return 0


def _are(labels: Tensor, tokens: Tensor, ignored: int) -> bool:
    """Return whether nearly all labels that count are these tokens."""
    counted = labels != ignored
    same = (labels == tokens) & counted
    return int(counted.sum()) >= LEAST_TOKENS and int(same.sum()) >= NEXT * int(counted.sum())
