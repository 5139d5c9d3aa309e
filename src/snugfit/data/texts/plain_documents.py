"""The documents of a plain text: all of it, or what stands between the lines that part them."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from snugfit.data.files.file_formats import TEXT_COLUMN
from snugfit.data.lazy.lazy_sequence import LazySequence

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

END_OF_TEXT = "<|endoftext|>"
"""The line that published texts have between documents, whatever tokenizer reads them."""


def parting_lines(separator: str | None, tokenizer: PreTrainedTokenizerBase) -> frozenset[str]:
    """Return the lines, without white space around them, that part the documents of a plain text.

    Args:
        separator: the one that a recipe names, an empty one for empty lines; None: the tokenizer's end of a sequence, and `END_OF_TEXT`.
    """
    if separator is not None:
        return frozenset({separator.strip()})
    return frozenset({END_OF_TEXT, *([tokenizer.eos_token] if tokenizer.eos_token else [])})


class PlainDocuments(LazySequence[str]):
    r"""The documents of a plain text, of which little is in memory at a time where its lines stay in a file.

    A document without a word is none, unless it is the only one.

    Args:
        rows: of the file, a line each.
        parting: lines that part documents, and are of none.

    >>> list(PlainDocuments([{"text": line} for line in ("a\n", "b\n", "---\n", "---\n", "c")], frozenset({"---"})))
    ['a\nb\n', 'c']
    """

    def __init__(self, rows: Sequence[Mapping[str, Any]], parting: frozenset[str]) -> None:
        self._rows = rows
        self.starts, self._ends = array("q"), array("q")
        start, words = 0, False
        for number, line in enumerate(self._texts(0, len(rows))):
            bare = line.strip()
            if bare not in parting:
                words = words or bool(bare)
                continue
            self._add(start, number, words)
            start, words = number + 1, False
        self._add(start, len(rows), words)
        if not self.starts:
            self._add(0, len(rows), words=True)

    def _add(self, start: int, end: int, words: bool) -> None:
        if words:
            self.starts.append(start)
            self._ends.append(end)

    def _texts(self, start: int, end: int) -> Iterator[str]:
        return (self._rows[number][TEXT_COLUMN] for number in range(start, end))

    def __len__(self) -> int:
        return len(self.starts)

    def value(self, place: int) -> str:
        return "".join(self._lines(place))

    def _lines(self, place: int) -> Iterator[str]:
        return self._texts(self.starts[place], self._ends[place])

    def pieces(self, place: int, size: int) -> Iterator[str]:
        """Yield a document in pieces of at least `size` characters, each of whole lines."""
        piece: list[str] = []
        characters = 0
        for line in self._lines(place):
            piece.append(line)
            characters += len(line)
            if characters >= size:
                yield "".join(piece)
                piece, characters = [], 0
        if piece:
            yield "".join(piece)

    def digest(self) -> str:
        """Return the sha256 of all documents in their order."""
        digest = hashlib.sha256()
        for place in range(len(self)):
            digest.update(b"document")
            for line in self._lines(place):
                content = line.encode("utf-8", "surrogatepass")
                digest.update(b"%d:" % len(content) + content)
        return digest.hexdigest()
