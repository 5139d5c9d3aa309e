"""Texts to token ids, special tokens checked, and examples to padded tensors."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from snugfit.data.texts.token_rows import TokenRows, TokenWriter
from snugfit.errors import DataError, SettingError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

IGNORED_LABEL = -100
_BATCH = 1000
_PROBE = "a"


@dataclass(frozen=True)
class Frame:
    """The special tokens that a tokenizer puts before and after every text."""

    prefix: tuple[int, ...]
    suffix: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.prefix) + len(self.suffix)


@dataclass(frozen=True)
class Encoded:
    """Examples, and how many tokens each text has before it was cut."""

    examples: TokenRows
    lengths: list[int]


@dataclass(frozen=True)
class PadRight:
    """Collate examples into tensors, every list padded on the right to the longest of its key.

    Holds numbers only, so that it is cheap to send to loader workers.

    >>> PadRight({"input_ids": 0})([{"input_ids": [5, 6], "labels": 1}, {"input_ids": [7], "labels": 0}])
    {'input_ids': tensor([[5, 6],
            [7, 0]]), 'labels': tensor([1, 0])}
    """

    fill: Mapping[str, int]

    def __call__(self, examples: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
        batch = {}
        for key in examples[0]:
            values = [example[key] for example in examples]
            # through numpy: torch.tensor takes seven times as long for nested lists
            batch[key] = self._padded(values, self.fill.get(key, 0))
        return tensors_of(batch)

    @staticmethod
    def _padded(values: list[Any], fill: int) -> np.ndarray[Any, Any]:
        if isinstance(values[0], list):
            longest = max(map(len, values))
            values = [value + [fill] * (longest - len(value)) for value in values]
        return np.array(values)


def tensors_of(batch: Mapping[str, np.ndarray[Any, Any]]) -> dict[str, Tensor]:
    """Return a batch of arrays as tensors: fractions in float32."""
    arrays = {
        key: array.astype(np.float32) if array.dtype.kind == "f" else array for key, array in batch.items()
    }
    return {key: torch.from_numpy(array) for key, array in arrays.items()}


def longest_lists(rows: Sequence[Sequence[Sequence[int]]]) -> tuple[int, ...]:
    """Return the length of the longest list of each row."""
    return tuple(max(map(len, lists)) for lists in rows)


def padded_lists(rows: Sequence[Sequence[Sequence[int]]], length: int, fill: int) -> Tensor:
    """Return the lists of rows, equally many in each, as a tensor (rows, lists, length), padded on the right.

    >>> padded_lists([[[5, 6], [5]]], 3, fill=0).tolist()
    [[[5, 6, 0], [5, 0, 0]]]
    """
    padded = np.full((len(rows), len(rows[0]), length), fill, dtype=np.int64)
    for array, lists in zip(padded, rows, strict=True):
        for own, values in zip(array, lists, strict=True):
            own[: len(values)] = values
    return torch.from_numpy(padded)


def mask_of_lists(rows: Sequence[Sequence[Sequence[int]]], length: int) -> Tensor:
    """Return 1 for each number of the lists of rows and 0 for their padding, as `padded_lists` lays them out."""
    counts = torch.tensor([list(map(len, lists)) for lists in rows])
    return (torch.arange(length) < counts[..., None]).long()


def sequences_in(example: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the sequences of tokens in an example: itself, or each of several with its labels.

    >>> sequences_in({"input_ids": [[5], [6]], "labels": [[-100], [6]]})[1]
    {'input_ids': [6], 'labels': [6]}
    """
    if not any(isinstance(each, list) for each in example["input_ids"][:1]):
        return [example]
    if "labels" not in example:  # texts that are compared as a whole
        return [{"input_ids": ids} for ids in example["input_ids"]]
    both = zip(example["input_ids"], example["labels"], strict=True)
    return [{"input_ids": ids, "labels": labels} for ids, labels in both]


def padding_for(tokenizer: PreTrainedTokenizerBase) -> PadRight:
    """Return the collate function for a tokenizer's examples.

    Raises:
        DataError: the tokenizer has no padding token.
    """
    if tokenizer.pad_token_id is None:
        raise DataError(
            "model",
            "the tokenizer has no padding token",
            "Set one: tokenizer.pad_token = tokenizer.eos_token",
        )
    return PadRight(
        {
            "input_ids": int(tokenizer.pad_token_id),
            "attention_mask": 0,
            "token_type_ids": int(tokenizer.pad_token_type_id),
            "labels": IGNORED_LABEL,
        }
    )


def special_frame(tokenizer: PreTrainedTokenizerBase) -> Frame:
    """Find, by encoding a probe, which special tokens surround a text.

    Raises:
        DataError: the same one stands twice at the beginning or the end.
    """
    framed = list(tokenizer(_PROBE)["input_ids"])
    plain = list(tokenizer(_PROBE, add_special_tokens=False)["input_ids"])
    start = next(
        (at for at in range(len(framed) - len(plain) + 1) if framed[at : at + len(plain)] == plain), None
    )
    if not plain or start is None:
        raise DataError(
            "model",
            f"the tokenizer makes of the text '{_PROBE}' the tokens {framed}, in which its plain tokens {plain} do "
            "not stand",
            "Check that it is the tokenizer of this model.",
        )
    frame = Frame(tuple(framed[:start]), tuple(framed[start + len(plain) :]))
    for place, ids in (("before", frame.prefix), ("after", frame.suffix)):
        doubled = next((a for a, b in itertools.pairwise(ids) if a == b), None)
        if doubled is not None:
            raise DataError(
                "model",
                f"the tokenizer puts '{tokenizer.convert_ids_to_tokens(doubled)}' twice {place} every text "
                f"({tokenizer.convert_ids_to_tokens(framed)})",
                "Set add_bos_token or add_eos_token to false in its tokenizer_config.json, or mend the post-processor "
                "in its tokenizer.json.",
            )
    return frame


def special_tokens_of_pairs(tokenizer: PreTrainedTokenizerBase) -> int:
    """Return how many special tokens a pair of texts has.

    Raises:
        DataError: the tokenizer puts nothing between them.
    """
    one = len(tokenizer(_PROBE, add_special_tokens=False)["input_ids"])
    special = len(tokenizer(_PROBE, _PROBE)["input_ids"]) - 2 * one
    if special <= 0:
        raise DataError(
            "data.pair",
            "the tokenizer puts nothing between the two texts of a pair",
            "Take an encoder, or join both columns with data.text.",
        )
    return special


def check_max_length(
    max_length: int, tokenizer: PreTrainedTokenizerBase, special: int, setting: str = "data.max_length"
) -> None:
    """See that a text of `max_length` tokens has room for text, and that the model can read it.

    Args:
        setting: the full name of the setting, for the error.
    Raises:
        SettingError: it has not, or cannot.
    """
    if max_length <= special:
        raise SettingError(
            setting,
            f"{max_length} leaves no room for text beside {special} special tokens",
            f"Write {special + 1} or more.",
        )
    # a tokenizer without a limit says so with a number as large as 1e30
    if max_length > tokenizer.model_max_length:
        raise SettingError(
            setting,
            f"{max_length} is more than the {tokenizer.model_max_length} tokens that this model can read",
            "Lower it.",
        )


def encode(
    texts: Sequence[str],
    tokenizer: PreTrainedTokenizerBase,
    max_length: int,
    pairs: Sequence[str] = (),
) -> Encoded:
    """Tokenise in batches, cutting each text to `max_length` tokens with its special tokens.

    Args:
        pairs: second texts, each read with its first one as the tokenizer joins them; the longer of both is cut.
    """
    examples = TokenWriter()
    lengths: list[int] = []
    for start in range(0, len(texts), _BATCH):
        chunk = list(texts[start : start + _BATCH])
        second = list(pairs[start : start + _BATCH]) or None
        batch = tokenizer(chunk, second, truncation=True, max_length=max_length, padding=False, verbose=False)
        keys = [key for key in ("input_ids", "token_type_ids", "attention_mask") if key in batch]
        examples.add_all({key: batch[key] for key in keys})
        for index, ids in enumerate(batch["input_ids"]):
            length = len(ids)
            if length >= max_length and second is not None:  # what was cut of a pair is of either text
                length = len(tokenizer(chunk[index], second[index], verbose=False)["input_ids"])
            elif length >= max_length:
                length = _full_length(tokenizer, batch, index, chunk[index])
            lengths.append(length)
    return Encoded(examples.rows(), lengths)


def _full_length(tokenizer: PreTrainedTokenizerBase, batch: Any, index: int, text: str) -> int:
    encodings = batch.encodings
    if encodings is None:  # a tokenizer written in Python keeps nothing of what it cut
        whole: list[int] = list(tokenizer(text, verbose=False)["input_ids"])
        return len(whole)
    encoding = encodings[index]
    special = sum(encoding.special_tokens_mask)
    cut = sum(len(rest.ids) - special for rest in encoding.overflowing)
    return len(encoding.ids) + int(cut)


def token_warnings(parts: Sequence[TokenRows], tokenizer: PreTrainedTokenizerBase, frame: Frame) -> list[str]:
    """Return what looks wrong in encoded texts: special tokens that the texts bring along, and unknown words."""
    warnings = []
    texts = sum(map(len, parts))
    doubled = sum(_with_own_special(part, frame) for part in parts)
    if doubled:
        names = tokenizer.convert_ids_to_tokens([*frame.prefix, *frame.suffix])
        warnings.append(
            f"{doubled:,} of {texts:,} texts begin or end with a special token of their own, beside "
            f"those the tokenizer adds ({' '.join(names)}): remove it from the data."
        )
    unknown_id = tokenizer.unk_token_id
    if unknown_id is not None and unknown_id not in (*frame.prefix, *frame.suffix):
        total = sum(int(part.lengths().sum()) for part in parts)
        unknown = sum(part.count(unknown_id) for part in parts)
        if unknown > total / 20:
            warnings.append(
                f"{unknown / total:.0%} of all tokens are unknown to the tokenizer ({tokenizer.unk_token}): "
                "is it made for this language and kind of text?"
            )
    return warnings


def _with_own_special(rows: TokenRows, frame: Frame) -> int:
    """Return how many texts begin or end with a special token beside the one that the tokenizer adds."""
    starts, ends = rows.spans()
    size, after = len(frame.prefix), len(frame.suffix)
    doubled = np.zeros(len(rows), dtype=bool)
    if len(rows) and frame.prefix:
        ids = rows.lists["input_ids"]
        behind = np.minimum(starts + size, len(ids) - 1)
        doubled |= (ends - starts > size) & (ids[behind] == frame.prefix[-1])
    if len(rows) and frame.suffix:
        doubled |= rows.lists["input_ids"][np.maximum(starts, ends - after - 1)] == frame.suffix[0]
    return int(np.count_nonzero(doubled))
