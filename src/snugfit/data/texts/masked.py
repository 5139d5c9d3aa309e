"""Masked language modelling: texts to tokens of which some are hidden, drawn anew in each epoch, and always the same where they are scored."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from snugfit.core.random import derive_seed, preserved_randomness, seed_device
from snugfit.data.bad_rows import Fault, check_policy, check_rows_left, settle
from snugfit.data.examples import DrawnArrays, Examples
from snugfit.data.files.file_formats import TEXT_COLUMN, is_plain_text
from snugfit.data.files.file_rows import FileRows
from snugfit.data.report import DataReport
from snugfit.data.row_settings import RowSettings
from snugfit.data.sources import RowSource, Table, fingerprints_of, read_table
from snugfit.data.splits.hold_out import share_of
from snugfit.data.splits.leaks import Inputs
from snugfit.data.splits.near_duplicates import near_texts
from snugfit.data.splits.sides import places_by_source
from snugfit.data.stream import Streamed
from snugfit.data.texts.causal import framed_blocks
from snugfit.data.texts.spooled_numbers import Numbers
from snugfit.data.texts.token_rows import ArrayExamples, TokenRows
from snugfit.data.texts.tokens import (
    IGNORED_LABEL,
    PadRight,
    check_max_length,
    padding_for,
    special_frame,
    token_warnings,
)
from snugfit.data.usable_rows import encode_part, part_of_table
from snugfit.errors import DataError, ModelError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

PROBABILITY = 0.15
"""Of a token to be hidden, in the paper."""

_MASKED, _CHANGED = 0.8, 0.1
"""Parts of the hidden tokens that become the mask, and another token; the rest stays as it is."""

_NONE = -1
"""In the place of a token where there is none."""

_CPU = torch.device("cpu")


@dataclass(frozen=True)
class Masks:
    """The way in which tokens are hidden.

    Of the tokens of an example that are not special so many are chosen as `probability` says, at least one. Each of them becomes the mask
    with a probability of 0.8, another token that is not special with 0.1, and stays as it is else.

    Args:
        mask: the token that hides others.
        special: tokens that are never hidden.
        others: tokens that stand in for hidden ones.

    Source: Devlin et al. 2018, arXiv:1810.04805, section 3.1, and their code, which chooses a number of tokens. Those of transformers'
    collator are chosen each by itself.
    """

    mask: int
    special: Numbers
    others: Numbers
    probability: float = PROBABILITY

    @classmethod
    def of(cls, tokenizer: PreTrainedTokenizerBase, probability: float = PROBABILITY) -> Masks:
        """Return those of a tokenizer.

        Raises:
            ModelError: it has no token that hides others.
        """
        if tokenizer.mask_token_id is None:
            raise ModelError(
                "model",
                "the tokenizer has no mask token, which hides others",
                "Take an encoder such as google-bert/bert-base-uncased, or set tokenizer.mask_token, and save it again.",
            )
        special = np.array(sorted(tokenizer.all_special_ids))
        others = np.setdiff1d(np.arange(len(tokenizer)), special)
        return cls(int(tokenizer.mask_token_id), special, others, probability)

    def drawn(self, example: Mapping[str, Any]) -> dict[str, Any]:
        """Return an example with tokens hidden, drawn from the global generator; `labels` has them, and -100 elsewhere."""
        ids = np.array(example["input_ids"], np.int64)[None]
        labels = self.hide(ids, lambda _: None)
        whole = {**example, "input_ids": ids[0], "labels": labels[0]}
        return {name: np.asarray(values).tolist() for name, values in whole.items()}

    def hide(self, ids: Numbers, seed: Callable[[int], None]) -> Numbers:
        """Hide tokens of rows, in place, and return their labels.

        Args:
            ids: whole numbers (rows, tokens); what is below 0 is none.
            seed: starts the global generator, from which is drawn, for the row of this number.
        """
        labels = np.full_like(ids, IGNORED_LABEL)
        usual = (ids >= 0) & ~np.isin(ids, self.special)
        numbers, kinds, others = [], [], []
        first = 0
        for row, count in enumerate(usual.sum(axis=1).tolist()):
            if count:
                hidden = max(1, round(self.probability * count))
                seed(row)
                numbers.append(first + _numbers(torch.randperm(count))[:hidden])
                kinds.append(_numbers(torch.rand(hidden)))
                others.append(_numbers(torch.randint(len(self.others), (hidden,))))
            first += count
        if numbers:
            places = np.flatnonzero(usual)[np.concatenate(numbers)]
            tokens, kind = ids.reshape(-1)[places], np.concatenate(kinds)
            labels.reshape(-1)[places] = tokens
            changed = np.where(kind < _MASKED + _CHANGED, self.others[np.concatenate(others)], tokens)
            ids.reshape(-1)[places] = np.where(kind < _MASKED, self.mask, changed)
        return labels


class MaskedTexts(DrawnArrays):
    """Examples of which some tokens are hidden, drawn when they are asked for.

    Args:
        rows: examples with `input_ids`, as arrays.
        seed: None where masks are drawn from the global generators, which the loader seeds by epoch and example; else they are always those
            of this seed and the example's place.
    """

    def __init__(self, rows: Examples, masks: Masks, seed: int | None = None) -> None:
        super().__init__(rows)
        self.masks, self.seed = masks, seed

    def __getitem__(self, place: int) -> dict[str, Any]:
        assert isinstance(self.rows.examples, ArrayExamples)
        example = self.rows.examples.arrays(place)
        if self.seed is None:
            return self.masks.drawn(example)
        with preserved_randomness(_CPU):
            seed_device(derive_seed(self.seed, "mask", place), _CPU)
            return self.masks.drawn(example)

    def padded(
        self, places: Sequence[int], fill: Mapping[str, int], seed: Callable[[int], None]
    ) -> dict[str, Numbers]:
        assert isinstance(self.rows.examples, ArrayExamples)
        batch = self.rows.examples.padded(places, {**fill, "input_ids": _NONE})
        ids = batch["input_ids"]
        beyond = ids == _NONE
        with preserved_randomness(_CPU):
            batch["labels"] = self.masks.hide(ids, seed if self.seed is None else self._seed_of(places))
        batch["labels"][beyond], ids[beyond] = fill.get("labels", 0), fill.get("input_ids", 0)
        return batch

    def _seed_of(self, places: Sequence[int]) -> Callable[[int], None]:
        return lambda row: seed_device(derive_seed(self.seed or 0, "mask", places[row]), _CPU)

    @property
    def lengths(self) -> list[int]:
        """The tokens of each example."""
        assert isinstance(self.rows.examples, ArrayExamples)
        return self.rows.examples.token_counts()


@dataclass(frozen=True)
class MaskedSettings(RowSettings):
    """The `data` part of a recipe for masked language modelling.

    A .txt file is one text, which is read in blocks and of which a fraction to validate on is the end. Of every other source each row is one
    text.

    Args:
        mask_probability: of a token to be hidden.
    """

    mask_probability: float = PROBABILITY


@dataclass(frozen=True)
class MaskedData:
    """Examples to train and validate on, and some to be shown, of which the same tokens are always hidden."""

    train: MaskedTexts | Streamed
    validation: MaskedTexts
    collate: PadRight
    report: DataReport
    fingerprints: Mapping[str, str]
    shown: MaskedTexts


def load_masked(
    settings: MaskedSettings, tokenizer: PreTrainedTokenizerBase, *, folder: Path | None = None
) -> MaskedData:
    """Read, validate, split and tokenise; what is hidden is drawn later, and for rows to validate on by their places and the seed.

    Raises:
        DataError: a source cannot be used, rows are faulty and the policy is 'fail', or too little is left.
        ModelError: the tokenizer has no mask token.
        SettingError: a length leaves no room for text, or the model cannot read so much.
    """
    masks = Masks.of(tokenizer, settings.mask_probability)
    check_max_length(settings.max_length, tokenizer, len(special_frame(tokenizer)))
    tables = [read_table(source, setting=setting, folder=folder) for setting, source in settings.sources]
    read = [
        [_texts(part, settings.text, settings.max_length, tokenizer) for part in table.each]
        for table in tables
    ]
    texts = [each for own in read for each in own]
    skipped = settle([fault for each in texts for fault in each.faults], settings.bad_rows)
    held = None if len(read) < 2 else _joined(tables[1], [each.examples for each in read[1]], read[1])
    places, warnings = places_by_source(
        tables[0],
        [each.examples for each in read[0]],
        held,
        settings.validation,
        settings.seed,
        lambda number: _apart(read[0][number], settings),
        inputs=_inputs(read),
        leaks=settings.leaks,
    )
    train, held_out = (
        _joined(
            tables[0],
            [each.examples.at(own[side]) for each, own in zip(read[0], places, strict=True)],
            read[0],
        )
        for side in range(2)
    )
    held_out = held_out if held is None else held
    if not train or (settings.validation is not None and not held_out):
        names = " and ".join(table.source for table in tables)
        raise DataError(
            "data",
            f"{names} leave {len(train)} texts to train on and {len(held_out)} to validate on",
            "Give more text, or correct these rows.",
        )
    report = _report(texts, settings.max_length, skipped, tokenizer)
    return MaskedData(
        train=MaskedTexts(train, masks),
        validation=MaskedTexts(held_out, masks, settings.seed),
        collate=padding_for(tokenizer),
        report=replace(
            report,
            train=len(train),
            validation=len(held_out),
            warnings=(*report.warnings, *warnings),
        ),
        fingerprints=fingerprints_of(tables),
        shown=MaskedTexts(train, masks, settings.seed),
    )


def load_masked_rows(
    source: RowSource,
    settings: MaskedSettings,
    tokenizer: PreTrainedTokenizerBase,
    *,
    scored: bool,
    folder: Path | None = None,
) -> FileRows:
    """Read one source to score, with tokens hidden as of rows to validate on, or to fill the masks in its texts; of a .txt file these are its lines.

    Args:
        settings: those of the training; `bad_rows` is of this source.
    Raises:
        DataError: as for `load_masked`.
    """
    check_policy(settings.bad_rows)
    masks = Masks.of(tokenizer, settings.mask_probability)
    table = read_table(source, setting="data", folder=folder)
    plain = is_plain_text(table.source)
    columns = (TEXT_COLUMN,) if plain else settings.text
    texts = _texts(table, columns, settings.max_length, tokenizer, in_rows=not scored)
    faults, examples = list(texts.faults), texts.examples
    if not scored:
        examples, unmasked = _with_masks(examples, tokenizer)
        faults = sorted([*faults, *unmasked], key=lambda fault: fault.line)
    skipped = settle(faults, settings.bad_rows)
    check_rows_left(examples, table.source)
    blocks = scored and texts.blocks
    return FileRows(
        examples=MaskedTexts(examples, masks, settings.seed) if scored else examples,
        rows=[{}] * len(examples) if blocks else [table.rows[row] for row in examples.rows],
        lines=[1] * len(examples) if examples.lines is None else list(examples.lines),
        columns=() if blocks else table.columns,
        collate=padding_for(tokenizer),
        report=replace(_report([texts], settings.max_length, skipped, tokenizer), validation=len(examples)),
        fingerprints=table.fingerprints,
    )


@dataclass(frozen=True)
class _Texts:
    """The texts of one source as examples without masks, and the faults of its rows."""

    examples: Examples
    lengths: list[int]
    faults: Sequence[Fault]
    blocks: bool
    texts: Sequence[str] = ()


def _apart(texts: _Texts, settings: MaskedSettings) -> tuple[Sequence[int], Sequence[int]]:
    """Return the places of one source to train on, and those that a share holds out."""
    count = len(texts.examples)
    if not texts.blocks or settings.share is None or count < 2:
        return settings.rows_apart(count)
    # the end of the text, so that no block is surrounded by what was trained on
    end = count - max(round(share_of(settings.share) * count), 1)
    return range(end), range(end, count)


def _inputs(read: Sequence[Sequence[_Texts]]) -> Inputs:
    """Return the texts of rows; blocks of a long text are not compared."""

    def same(part: int) -> list[Hashable]:
        keys: list[Hashable] = []
        for each in read[part]:
            keys += each.texts or [object() for _ in each.examples]
        return keys

    def alike(part: int) -> list[str]:
        return [text for each in read[part] for text in (each.texts or [""] * len(each.examples))]

    return Inputs("texts", same, alike, near_texts)


def _joined(table: Table, parts: Sequence[Examples], texts: Sequence[_Texts]) -> Examples:
    """Return the examples of the sources of a table: blocks are counted as they are, rows as they stand in their source."""
    sizes = [
        len(each.examples) if each.blocks else len(own.rows)
        for each, own in zip(texts, table.each, strict=True)
    ]
    return Examples.joined(table, parts, sizes)


def _texts(
    table: Table,
    columns: Sequence[str],
    max_length: int,
    tokenizer: PreTrainedTokenizerBase,
    *,
    in_rows: bool = False,
) -> _Texts:
    """Return the texts of a table; one that is a text as a whole in blocks, unless its rows are asked for."""
    if is_plain_text(table.source) and not in_rows:
        blocks, tokens = framed_blocks(table, tokenizer, max_length)
        return _Texts(blocks, [tokens], table.faults, blocks=True)
    special = len(special_frame(tokenizer))
    part = part_of_table(table, columns, None, None)
    encoded, part, faults = encode_part(part, tokenizer, max_length, special)
    examples = Examples.of(encoded.examples, part.table, part.row_indices)
    return _Texts(examples, encoded.lengths, [*part.faults, *faults], blocks=False, texts=part.texts)


def _with_masks(examples: Examples, tokenizer: PreTrainedTokenizerBase) -> tuple[Examples, list[Fault]]:
    """Return the examples in which there is something to fill, and the faults of the others."""
    filled = [tokenizer.mask_token_id in example["input_ids"] for example in examples]
    places = [place for place, one in enumerate(filled) if one]
    lines = [1] * len(examples) if examples.lines is None else examples.lines
    faults = [
        Fault(
            examples.source,
            lines[place],
            "no mask",
            f"has no mask: write {tokenizer.mask_token} in place of each word to predict",
        )
        for place, one in enumerate(filled)
        if not one
    ]
    return examples.at(places), faults


def _report(
    texts: Sequence[_Texts],
    max_length: int,
    skipped: Mapping[str, int],
    tokenizer: PreTrainedTokenizerBase,
) -> DataReport:
    lengths = [length for each in texts for length in each.lengths]
    blocks = all(each.blocks for each in texts)
    own = [each.examples.examples for each in texts]
    rows = [each for each in own if isinstance(each, TokenRows)]
    return DataReport(
        train=0,
        validation=0,
        skipped=dict(skipped),
        warnings=tuple(token_warnings(rows, tokenizer, special_frame(tokenizer))),
        unit="blocks" if blocks else "rows",
    ).with_tokens(lengths, max_length, cut=not blocks)


def _numbers(tensor: Tensor) -> Numbers:
    return tensor.numpy()
