"""Where examples come from: the index, the file and the line of their source, whatever part of it is trained on."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from torch.utils.data import Subset

from snugfit.data.examples import ORIGIN, Examples, origin_of, source_index
from snugfit.data.loader import Loader
from snugfit.data.order import Order
from snugfit.data.texts.causal import CausalSettings, load_causal
from snugfit.data.texts.labelled_texts import TextSettings, load_text
from snugfit.errors import DataError
from snugfit.step.build import hold_out
from tests.unit.run.training.runs import events, finish, make_training, points


def _texts(path: Path) -> list[str]:
    """Rows of which the second cannot be used."""
    words = itertools.product(("a", "the", "and", "very", "NA"), ("film", "book"), ("good", "bad"))
    texts = [" ".join(each) for each in words]
    lines = [json.dumps({"text": text, "label": text.split()[2]}) for text in texts]
    lines[1] = json.dumps({"text": "", "label": "good"})
    path.write_text("\n".join(lines))
    return texts


def test_rows_that_are_no_longer_needed_are_dropped_with_their_places(tmp_path: Path, tokenizer: Any) -> None:
    _texts(tmp_path / "films.jsonl")
    settings = TextSettings(
        train="films.jsonl", text=("text",), validation=0.25, bad_rows="skip", max_length=16
    )
    rows = load_text(settings, tokenizer, folder=tmp_path).train
    before = [rows.origin(place) for place in range(len(rows))]
    assert rows.table is not None and len(rows.table_rows) == len(rows)
    rows.drop_table()
    part = rows.at(range(2, len(rows)))
    assert rows.table is None and not rows.table_rows and not part.table_rows
    assert [rows.origin(place) for place in range(len(rows))] == before
    assert [part.origin(place) for place in range(len(part))] == before[2:]


def test_examples_of_a_file_are_named_by_their_line_after_a_split_and_after_bad_rows(
    tmp_path: Path, tokenizer: Any
) -> None:
    texts = _texts(tmp_path / "films.jsonl")
    settings = TextSettings(
        train="films.jsonl", text=("text",), validation=0.25, bad_rows="skip", max_length=16
    )
    data = load_text(settings, tokenizer, folder=tmp_path)
    for part in (data.train, data.validation):
        for place, example in enumerate(part):
            line = int(part.origin(place).removeprefix("films.jsonl:"))
            assert part.rows[place] == line - 1
            whole = tokenizer(texts[line - 1], truncation=True, max_length=16)["input_ids"]
            assert example["input_ids"] == whole
    assert 1 not in [*data.train.rows, *data.validation.rows]


def test_blocks_are_named_by_the_line_of_the_text_in_which_they_begin(
    tmp_path: Path, make_tokenizer: Any
) -> None:
    texts = _texts(tmp_path / "films.jsonl")
    tokenizer = make_tokenizer("$A", eos_token="[SEP]")
    settings = CausalSettings(
        train="films.jsonl", text=("text",), validation=None, bad_rows="skip", max_length=4
    )
    blocks = load_causal(settings, tokenizer, folder=tmp_path).train
    start = 0
    ends, own = [], [row for row in range(len(texts)) if row != 1]
    for row in own:
        start += len(texts[row].split()) + 1  # the end of the text
        ends.append(start)
    for place in range(len(blocks)):
        row = own[next(number for number, end in enumerate(ends) if 4 * place < end)]
        assert blocks.origin(place) == f"films.jsonl:{row + 1}"


def test_rows_that_were_written_out_of_another_source_are_named_by_that_one() -> None:
    from snugfit.data.sources import Table

    rows = [{"text": "a", ORIGIN: ["films.csv", 57, 61]}, {"text": "b", ORIGIN: ["films.csv", 3, 5]}]
    examples = Examples.of(["a", "b"], Table("fold.jsonl", ("text", ORIGIN), rows, [1, 2], ""), [0, 1])
    assert [examples.origin(place) for place in range(2)] == ["films.csv:61", "films.csv:5"]
    assert list(examples.rows) == [57, 3]


def test_an_index_within_a_part_is_that_of_the_whole() -> None:
    train, held_out = hold_out(list(range(100)), 0.3, seed=1)
    for part in (train, held_out):
        assert [source_index(part, place) for place in range(len(part))] == [
            part[place] for place in range(len(part))
        ]
    assert origin_of(Subset(train, [5]), 0, "training") == f"row {train[5]} (training)"


def test_a_row_that_cannot_be_loaded_is_named_as_in_the_whole_data_set() -> None:
    class Rows:
        def __len__(self) -> int:
            return 10

        def __getitem__(self, index: int) -> Any:
            if index == 7:
                raise ValueError("torn")
            return torch.tensor([float(index)])

    part = Subset(Rows(), [2, 7])  # type: ignore[arg-type]
    loader = Loader(part, Order(2, 2, shuffle=False), split="validation")
    with pytest.raises(DataError, match=r"^data: row 7 \(validation\) cannot be loaded: ValueError: torn"):
        next(loader.windows(0, 1))


def test_a_batch_that_is_kept_and_its_reason_name_rows_of_the_whole_data_set(tmp_path: Path) -> None:
    whole = points(40, poison=[23])
    train, _ = hold_out(whole, 0.5, seed=3)
    if 23 not in train.indices:
        train, _ = _, train
    training = make_training(tmp_path, train=train, epochs=1.0)
    finish(training)
    (skipped,) = events(training, "skipped")
    assert "first in the batch itself, tensor 0, in row 23 (training)" in skipped["reason"]
    (path,) = (tmp_path / "culprits").iterdir()
    with safe_open(path, framework="pt") as file:
        metadata = file.metadata()
        inputs = file.get_tensor("tensor-0")
    ids = list(map(int, metadata["example_ids"].split(",")))
    assert metadata["examples"].split("\n") == [f"row {each} (training)" for each in ids]
    for row, each in enumerate(ids):
        assert torch.equal(inputs[row], whole[each][0]) or each == 23
