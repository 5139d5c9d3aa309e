"""Perplexity per byte of text, which compares language models whose tokenizers cut texts otherwise."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from snugfit.core.batch import IGNORE_INDEX, Batch, labels_of
from snugfit.core.scalar_reads import is_fake, read
from snugfit.kit.language_models.token_scores import Seen
from snugfit.strategies.base import Strategy


@dataclass(frozen=True)
class PerByte:
    """The metric, of tokens that are predicted one after the other.

    Args:
        decode: the text of tokens.
    """

    decode: Callable[[Sequence[int]], str]

    def __call__(self, _outputs: Any, data: Any) -> list[tuple[int, int]]:
        """Return the tokens of each row that are predicted, and the bytes of the text that they are."""
        labels = labels_of(data)
        if is_fake(labels):
            return [(1, 1)] * len(labels)
        rows = [[token for token in row[1:] if token != IGNORE_INDEX] for row in read(labels, assume=[])]
        return [(len(row), len(self.decode(row).encode())) for row in rows]


class BytePerplexity:
    """The tokens and bytes of an evaluation, by which its loss of tokens is one of bytes."""

    seen: ClassVar[Seen] = Seen.NOTHING

    def __init__(self, metric: PerByte) -> None:
        self._metric = metric
        self._tokens = self._bytes = 0

    def update(self, outputs: Any, part: Batch) -> None:
        for tokens, text in self._metric(outputs, part.data):
            self._tokens += tokens
            self._bytes += text

    def compute(self, strategy: Strategy) -> float:
        """Return the mean tokens of a byte, over the rows of all ranks; NaN where there is no text."""
        totals = strategy.tell((self._tokens, self._bytes))
        tokens, text = (sum(column) for column in zip(*totals, strict=True))
        return tokens / text if text else float("nan")
