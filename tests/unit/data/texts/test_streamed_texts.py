"""Texts and conversations of a stream: the examples of a plain loop over its rows, from any source, and nothing encoded twice on the way back."""

from __future__ import annotations

import csv
import json
import os
import pickle
import re
import subprocess
import sys
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import torch
from transformers import PreTrainedTokenizerFast

from snugfit.core.job import Job, Train
from snugfit.core.random import derive_seed
from snugfit.data import stream
from snugfit.data.examples import whole_examples
from snugfit.data.files.row_stream import RowStream
from snugfit.data.loader import Loader
from snugfit.data.named_sources import sources_of
from snugfit.data.order import training_order
from snugfit.data.splits.leaks import LeakSettings
from snugfit.data.stream import StreamedExamples
from snugfit.data.texts.causal import CausalSettings, load_causal
from snugfit.data.texts.instruct import InstructSettings, load_instruct
from snugfit.data.texts.masked import MaskedSettings, load_masked
from snugfit.data.texts.preferences import AnswerWriter, PreferenceSettings, load_preferences, read_pairs
from snugfit.data.texts.streamed_texts import (
    StreamSettings,
    stream_causal,
    stream_instruct,
    stream_masked,
    stream_preferences,
)
from snugfit.errors import DataError, SettingError, SnugfitError, SnugfitWarning
from tests.unit.data.local_hub import local_hub
from tests.unit.data.shard_files import write_shard
from tests.unit.tasks.tiny_decoder import letters

LENGTH, BUFFER, SEED = 16, 7, 3
TEXTS = [f"text {number}: " + "abc " * (number % 5) for number in range(30)]
CHATS = [
    [{"role": "user", "content": f"{number}?"}, {"role": "assistant", "content": "yes " * (number % 3 + 1)}]
    for number in range(20)
]


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return letters()


def lines(path: Path, rows: Sequence[Any]) -> Path:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def settings(source: object, **more: Any) -> CausalSettings:
    return CausalSettings(str(source), **{"validation": None, "max_length": LENGTH, "seed": SEED, **more})


def streamed(tokenizer: Any, source: object, updates: int = 60, **more: Any) -> StreamedExamples:
    data = stream_causal(settings(source, **more), StreamSettings(BUFFER, updates, 4), tokenizer)
    assert isinstance(data.train, StreamedExamples)
    return data.train


def by_hand(tokenizer: Any, texts: Sequence[str | None], count: int) -> list[list[int]]:
    """The blocks of a run: those of each buffer of texts, each text ended, in an order of (seed, pass, buffer); None has none."""
    blocks: list[list[int]] = []
    epoch = 0
    while len(blocks) < count:
        for place, start in enumerate(range(0, len(texts), BUFFER)):
            ids: list[int] = []
            for text in filter(None, texts[start : start + BUFFER]):
                ids += [*tokenizer(text, add_special_tokens=False)["input_ids"], tokenizer.eos_token_id]
            own = [ids[at : at + LENGTH] for at in range(0, len(ids), LENGTH) if len(ids) - at > 1]
            generator = torch.Generator().manual_seed(derive_seed(SEED, "stream order", epoch, place))
            blocks += [own[each] for each in torch.randperm(len(own), generator=generator).tolist()]
        epoch += 1
    return blocks[:count]


def test_blocks_are_those_of_a_plain_loop_in_whatever_order_they_are_asked_for(tokenizer, tmp_path):
    examples = streamed(tokenizer, lines(tmp_path / "a.jsonl", [{"text": text} for text in TEXTS]))
    expected = by_hand(tokenizer, TEXTS, len(examples))
    places = np.random.default_rng(0).permutation(len(examples))[:25].tolist()
    assert [examples[place]["input_ids"] for place in places] == [expected[place] for place in places]
    assert all(examples[place]["labels"] == expected[place] for place in places)
    sent = pickle.loads(pickle.dumps(examples))
    assert [sent[place]["input_ids"] for place in range(40)] == expected[:40]


def test_a_run_that_goes_on_reads_the_same_and_tokenises_nothing_of_what_was_before(
    tokenizer, tmp_path, monkeypatch
):
    path = lines(tmp_path / "a.jsonl", [{"text": text} for text in TEXTS])
    whole = streamed(tokenizer, path)
    expected = [whole[place] for place in range(len(whole))]
    for stop in (1, 9, 100, 200):
        again = streamed(tokenizer, path)
        position = streamed_to(tokenizer, path, stop)
        tokenised: list[str] = []
        encode = again._encode

        def counted(rows: Any, encode: Any = encode, tokenised: Any = tokenised) -> Any:
            tokenised += [row.columns["text"] for row in rows]
            return encode(rows)

        monkeypatch.setattr(again, "_encode", counted)
        again.go_on(stop, json.loads(json.dumps(position)))
        assert [again[place] for place in range(stop, stop + 30)] == expected[stop : stop + 30]
        assert len(tokenised) <= 6 * BUFFER, "but for buffers that hold the next examples"
    lines(path, [{"text": text.replace("7", "8")} for text in TEXTS])
    with pytest.raises(DataError, match="gave other rows"):
        streamed(tokenizer, path).go_on(60, position)


def streamed_to(tokenizer: Any, path: Path, stop: int) -> Any:
    examples = streamed(tokenizer, path)
    for place in range(stop):
        examples[place]
    return examples.position(stop)


@pytest.mark.parametrize("ranks", [1, 2])
def test_ranks_share_the_windows_of_one_and_the_plan_is_of_the_longest_examples(ranks, tokenizer, tmp_path):
    path = lines(tmp_path / "a.jsonl", [{"text": text} for text in TEXTS])
    data = stream_causal(settings(path), StreamSettings(BUFFER, 10, 4), tokenizer)
    order = training_order(Job(Train(epochs=None, updates=10, global_batch=4, seed=SEED)), data.train)
    expected = by_hand(tokenizer, TEXTS, 40)
    read = []
    for rank in range(ranks):
        loader = Loader(data.train, order, data.collate, rank=rank, ranks=ranks)
        read += [id for window in loader.windows(0, 10) for id in window.ids]
        window, longest = loader.worst_window()
        assert longest and window.data["input_ids"].shape == (4 // ranks, LENGTH)
    assert sorted(read) == list(range(40))
    assert [data.train[place]["input_ids"] for place in range(40)] == expected


def sources(folder: Path) -> Iterator[tuple[str, object]]:
    rows = [{"text": text, "more": 1} for text in TEXTS]
    yield "json lines", lines(folder / "a.jsonl", rows)
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), folder / "a.parquet", row_group_size=4)
    yield "parquet", folder / "a.parquet"
    with (folder / "a.csv").open("w", newline="") as file:
        csv.DictWriter(file, ["text", "more"]).writeheader()
        csv.DictWriter(file, ["text", "more"]).writerows(rows)
    yield "table", folder / "a.csv"
    (folder / "a.json").write_text(json.dumps(rows))
    yield "list", folder / "a.json"
    for shard in range(2):
        members: dict[str, bytes | str] = {
            f"{number:02}.txt": TEXTS[number] for number in range(15 * shard, 15 * shard + 15)
        }
        write_shard(folder / "shards" / f"{shard}.tar", members)
    yield "shards", folder / "shards"
    datasets.Dataset.from_list(rows).save_to_disk(str(folder / "saved"))
    yield "saved", folder / "saved"
    yield "saved at home", "~/saved"
    (folder / "rows_of_mine.py").write_text(
        f"TEXTS = {TEXTS!r}\ndef rows():\n    for text in TEXTS:\n        yield {{'text': text}}\n"
    )
    yield "function", "rows_of_mine:rows"


def test_every_source_gives_the_same_examples(tokenizer, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    expected = by_hand(tokenizer, TEXTS, 100)
    for name, source in sources(tmp_path):
        data = stream_causal(settings(source), StreamSettings(BUFFER, 25, 4), tokenizer, folder=tmp_path)
        assert [each["input_ids"] for each in map(data.train.__getitem__, range(100))] == expected, name


def rows_read(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The rows that are read of a stream from now on."""
    rows: list[Any] = []
    read = stream.rows_of

    def counted(*args: Any, **kwargs: Any) -> Iterator[Any]:
        for row in read(*args, **kwargs):
            rows.append(row)
            yield row

    monkeypatch.setattr(stream, "rows_of", counted)
    return rows


def difficult_sources(folder: Path) -> Iterator[tuple[str, object]]:
    """Files in which a row is no line, begins behind a mark of the encoding, or is one that cannot be read."""
    lines_of_csv = [f'"{number}, a ""text""\nof {"lines " * (number % 3)}"' for number in range(40)]
    lines_of_csv[9], lines_of_csv[20] = '"never closed', "two,fields"
    (folder / "b.csv").write_text("\ufefftext\n\n" + "\r\n".join(lines_of_csv))
    yield "table", folder / "b.csv"
    entries = [{"text": f"{number} é\n{{[", "more": [1, {"2": ","}]} for number in range(40)]
    (folder / "b.json").write_text("\ufeff" + json.dumps([*entries[:7], 3, *entries[7:]], indent=1))
    yield "list", folder / "b.json"
    (folder / "b.jsonl").write_bytes(
        b"\xef\xbb\xbf"
        + b"\n\n".join(json.dumps(each, ensure_ascii=False).encode() for each in entries)
        + b"\n{\xff\n"
    )
    yield "json lines", folder / "b.jsonl"


@pytest.mark.slow
def test_whoever_goes_on_reads_rows_from_the_place_on_where_the_source_can(tokenizer, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delitem(sys.modules, "rows_of_mine", raising=False)
    known = {
        **dict(sources(tmp_path)),
        **{f"difficult {name}": path for name, path in difficult_sources(tmp_path)},
    }
    for name, source in known.items():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SnugfitWarning)

            def made(source: object = source) -> Any:
                own = settings(source, bad_rows="skip")
                return stream_causal(own, StreamSettings(BUFFER, 60, 4), tokenizer, folder=tmp_path).train

            whole = made()
            expected = [whole[place] for place in range(len(whole))]
            for stop in (30, 90, 170, 200):
                again, position = made(), json.loads(json.dumps(whole.position(stop)))
                with monkeypatch.context() as patched:
                    rows = rows_read(patched)
                    again.go_on(stop, position)
                seen = len(rows)
                assert [again[place] for place in range(stop, stop + 30)] == expected[stop : stop + 30], name
                assert [again[place] for place in (3, stop)] == [expected[3], expected[stop]], (
                    "also one before"
                )
                # a function has no place
                assert seen <= BUFFER if name != "function" else seen > stop // 3, (name, stop, seen)


def test_a_file_that_was_touched_is_read_again_and_one_that_holds_other_rows_is_refused(
    tokenizer, tmp_path, monkeypatch
):
    path = lines(tmp_path / "a.jsonl", [{"text": text} for text in TEXTS])
    expected = streamed(tokenizer, path)
    position = streamed_to(tokenizer, path, 60)
    os.utime(path, (1, 1))
    again, rows = streamed(tokenizer, path), rows_read(monkeypatch)
    again.go_on(60, position)
    assert len(rows) > 2 * BUFFER and again[61] == expected[61]
    lines(path, [{"text": text.replace("0", "9")} for text in TEXTS])
    with pytest.raises(DataError, match="gave other rows"):
        streamed(tokenizer, path).go_on(60, position)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_checkpoint_knows_how_far_workers_have_read(workers, tokenizer, tmp_path):
    """Also of sources that take turns, of which a worker reads what it is asked for."""
    files = {
        name: str(lines(tmp_path / f"{name}.jsonl", [{"text": text} for text in TEXTS])) for name in "ab"
    }
    written = {"a": {"from": files["a"], "weight": 5}, "b": {"from": files["b"], "weight": 1}}
    own = replace(settings(files["a"]), train=sources_of(written))

    def loader(num_workers: int) -> Loader:
        data = stream_causal(own, StreamSettings(BUFFER, 12, 4), tokenizer)
        order = training_order(Job(Train(epochs=None, updates=12, global_batch=4, seed=SEED)), data.train)
        return Loader(data.train, order, data.collate, num_workers=num_workers)

    apart, one = loader(workers), loader(0)
    known = []
    for each in (apart, one):
        positions = [each.stream_position(4 * number) for number, _ in enumerate(each.windows(0, 12), 1)]
        assert None not in positions
        known.append(json.loads(json.dumps(positions)))
    assert known[0] == known[1]


@pytest.mark.slow
def test_a_data_set_of_the_hub_is_streamed(tmp_path):
    """In a process of its own, as the library looks at the environment when it is imported."""
    content = "".join(f"{json.dumps({'text': text})}\n" for text in TEXTS).encode()
    code = (
        "import json; from snugfit.data.files.row_stream import RowStream\n"
        "rows = RowStream('hf://me/texts', setting='data.train')\n"
        "read, again = iter(rows), RowStream('hf://me/texts', setting='data.train')\n"
        "first = [next(read) for _ in range(11)]; again.load_state_dict(json.loads(json.dumps(rows.state_dict())))\n"
        "assert list(again) == list(read) == list(rows)[11:]\n"
        "print(json.dumps([row.columns for row in rows]))"
    )
    with local_hub("me/texts", {"train.jsonl": content}) as endpoint:
        environment = {**os.environ, "HF_ENDPOINT": endpoint, "HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "0"}
        done = subprocess.run(
            [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
        )
    assert json.loads(done.stdout) == [{"text": text} for text in TEXTS]


def test_a_plain_text_is_one_text_however_long(tokenizer, tmp_path):
    text = "".join(f"line {number} of many\n" for number in range(4000))
    (tmp_path / "a.txt").write_text(text)
    path = tmp_path / "a.txt"
    data = stream_causal(settings(path), StreamSettings(1, 400, 16), tokenizer)
    ids = [*tokenizer(text, add_special_tokens=False)["input_ids"], tokenizer.eos_token_id]
    count = -(-len(ids) // LENGTH)
    read = [token for place in range(count) for token in data.train[place]["input_ids"]]
    assert read == ids


def test_what_is_scored_has_the_form_of_what_is_learned_where_rows_have_both(tokenizer, tmp_path):
    rows = [{"messages": chat, "text": f"{place}?", "completion": "no"} for place, chat in enumerate(CHATS)]
    path = str(lines(tmp_path / "a.jsonl", rows))
    given = InstructSettings(path, validation=path, max_length=40, seed=SEED)
    streamed = stream_instruct(given, StreamSettings(BUFFER, 10, 2), tokenizer).validation
    assert list(map(str, streamed)) == list(map(str, load_instruct(given, tokenizer).validation))


def test_conversations_are_those_of_a_file_that_is_read_as_a_whole(tokenizer, tmp_path):
    path = lines(tmp_path / "a.jsonl", [{"messages": chat} for chat in CHATS])
    given = InstructSettings(str(path), validation=None, max_length=40, seed=SEED)
    whole = load_instruct(given, tokenizer)
    data = stream_instruct(given, StreamSettings(BUFFER, 10, 2), tokenizer)
    read = [data.train[place] for place in range(20)]
    assert sorted(map(str, read)) == sorted(map(str, whole.train))
    assert read != list(whole.train), "they are shuffled"
    assert (data.stops, data.report.form, data.example_rows) == (
        whole.stops,
        whole.report.form,
        whole.example_rows,
    )


@pytest.mark.parametrize(
    ("policy", "words"), [("drop", "is left out"), ("cut_prompt", "loses"), ("cut_end", "is cut at its end")]
)
def test_what_is_too_long_is_told_by_its_line_and_counted_where_it_is_scored(
    policy, words, tokenizer, tmp_path
):
    chats = [*CHATS[:3], [{"role": "user", "content": "why?"}, {"role": "assistant", "content": "yes " * 20}]]
    rows = [
        {"conversations": [{"from": speaker, "value": each["content"]} for speaker, each in both]}
        for both in (zip(("human", "gpt"), chat, strict=True) for chat in chats)
    ]
    path = lines(tmp_path / "a.jsonl", rows)
    given = InstructSettings(str(path), validation=str(path), max_length=40, seed=SEED, too_long=policy)
    said = rf"a\.jsonl:4 is longer than data\.max_length and {words}.*data\.too_long: {policy}"
    with pytest.warns(SnugfitWarning, match=said) as warned:
        data = stream_instruct(given, StreamSettings(BUFFER, 60, 2), tokenizer)
    read = [data.train[place] for place in range(20)]
    assert sum("data.max_length" in str(each.message) for each in warned) == 1, "once"
    whole = load_instruct(given, tokenizer)
    assert {str(each) for each in read} == {str(each) for each in whole.train}
    assert list(map(str, data.validation)) == list(map(str, whole.validation))
    left_out = {"longer than data.max_length": 1} if policy == "drop" else {}
    assert data.report.skipped == left_out


def hiding() -> PreTrainedTokenizerFast:
    """Return a tokenizer that hides tokens."""
    tokenizer = letters()
    tokenizer.add_special_tokens({"mask_token": "<mask>"})
    return tokenizer


PAIRS = [
    {"prompt": f"{number}?", "chosen": "yes " * (number % 3 + 1), "rejected": "no " * (number % 2 + 1)}
    for number in range(20)
]


def test_a_prompt_is_read_from_the_column_that_is_named_also_where_a_row_has_another_one(tmp_path):
    rows = [{"question": row["prompt"], **{key: row[key] for key in ("chosen", "rejected")}} for row in PAIRS]
    rows[1] = PAIRS[1]  # `prompt` is the default where no row has what is named
    path = lines(tmp_path / "pairs.jsonl", rows)
    settings = PreferenceSettings(str(path), max_length=28, validation=None, seed=SEED, text=("question",))
    said = "the row has no prompt (question)"
    with pytest.raises(DataError, match=re.escape(said)):
        load_preferences(settings, letters())
    with pytest.raises(DataError, match=re.escape(said)):
        stream_preferences(settings, StreamSettings(BUFFER, 60, 4), letters())


def test_pairs_of_answers_are_those_of_a_file_that_is_read_as_a_whole(tmp_path):
    tokenizer = letters()
    path = lines(tmp_path / "pairs.jsonl", PAIRS)
    given = {"max_length": 28, "validation": None, "seed": SEED, "text": ("prompt",), "too_long": "drop"}
    whole = load_preferences(PreferenceSettings(str(path), **given), tokenizer)
    data = stream_preferences(
        PreferenceSettings(str(path), **{**given, "validation": str(path)}),
        StreamSettings(BUFFER, 60, 4),
        tokenizer,
    )
    assert BUFFER < len(whole.train) < len(PAIRS), "some are too long"
    once = len(whole.train)
    own = [data.train[place] for place in range(2 * once)]

    def as_text(examples: Any) -> list[str]:
        return sorted(json.dumps([each["input_ids"], each["labels"]]) for each in examples)

    expected = as_text(whole.train)
    assert as_text(own[:once]) == as_text(own[once:]) == as_text(data.validation) == expected
    assert [each["input_ids"] for each in own[:once]] != [each["input_ids"] for each in whole.train], (
        "shuffled"
    )
    assert data.collate(own[:2])["input_ids"].shape[:2] == (2, 2)
    assert data.stops == whole.stops
    assert data.report.form == "pairs of answers"
    settings = PreferenceSettings(str(path), **given)
    read = read_pairs(str(path), settings, AnswerWriter.of(settings, tokenizer))
    assert len(read.rows) == len(read.lines) == once, "each row beside its example"
    assert [PAIRS[line - 1] for line in read.lines] == read.rows


@pytest.mark.parametrize("count", [30, 3000])
def test_a_plain_text_with_hidden_tokens_is_in_blocks_however_long(count, tmp_path):
    tokenizer, path = hiding(), tmp_path / "a.txt"
    path.write_text("".join(f"line {number} of many\n" for number in range(count)))
    given = MaskedSettings(str(path), validation=None, max_length=LENGTH, seed=SEED)
    shown = stream_masked(given, StreamSettings(32, 10, 2), tokenizer).shown
    whole = load_masked(given, tokenizer).shown
    assert [each["input_ids"] for each in shown.rows] == [each["input_ids"] for each in whole.rows]


def test_masked_texts_are_those_of_a_file_with_other_tokens_hidden_in_each_pass(tmp_path):
    tokenizer = hiding()
    path = lines(tmp_path / "a.jsonl", [{"text": text} for text in TEXTS])
    given = MaskedSettings(str(path), validation=str(path), max_length=LENGTH, seed=SEED)
    data = stream_masked(given, StreamSettings(BUFFER, 30, 2), tokenizer)
    whole = load_masked(given, tokenizer)
    order = training_order(Job(Train(epochs=None, updates=30, global_batch=2, seed=SEED)), data.train)

    def read() -> list[tuple[list[int], list[int]]]:
        windows = Loader(data.train, order, data.collate).windows(0, 30)
        both = (window.data for window in windows)
        return [
            (ids[mask > 0].tolist(), labels[mask > 0].tolist())
            for each in both
            for ids, labels, mask in zip(
                each["input_ids"], each["labels"], each["attention_mask"], strict=True
            )
        ]

    def uncovered(ids: list[int], labels: list[int]) -> tuple[int, ...]:
        return tuple(id if label == -100 else label for id, label in zip(ids, labels, strict=True))

    examples = read()
    assert read() == examples, "what is hidden is drawn by the example's number"
    expected = sorted(tuple(each["input_ids"]) for each in whole.shown.rows)
    passes = [examples[: len(TEXTS)], examples[len(TEXTS) :]]
    assert all(sorted(uncovered(*each) for each in own) == expected for own in passes)
    assert sorted(passes[0]) != sorted(passes[1])
    assert all(any(label != -100 for label in labels) for _, labels in examples)
    assert [data.validation[place] for place in range(5)] == [whole.validation[place] for place in range(5)]
    assert data.shown[0]["input_ids"] == whole.shown[0]["input_ids"]


def test_bad_rows_are_told_by_their_line_or_left_out(tokenizer, tmp_path):
    path = lines(tmp_path / "a.jsonl", [{"text": text} for text in TEXTS])
    content = path.read_text().splitlines()
    content[9], content[12] = "{broken", json.dumps({"text": ""})
    path.write_text("\n".join(content))
    with pytest.raises(DataError) as error:
        list(map(streamed(tokenizer, path).__getitem__, range(40)))
    assert "a.jsonl:10: broken JSON" in str(error.value) and "a.jsonl:13" in str(error.value)
    examples = streamed(tokenizer, path, bad_rows="skip")
    with pytest.warns(SnugfitWarning, match="a.jsonl:1[03] is left out") as told:
        read = [examples[place]["input_ids"] for place in range(60)]
    assert len(told) == 2, "one for each kind"
    usable = [None if number in (9, 12) else text for number, text in enumerate(TEXTS)]
    assert read == by_hand(tokenizer, usable, 60)


def test_a_later_row_with_a_column_of_the_new_name_is_named(tmp_path):
    lines(tmp_path / "a.jsonl", [{"q": "one"}, {"q": "two", "text": "other"}])
    stream = RowStream("a.jsonl", setting="data.train", folder=tmp_path, rename={"q": "text"})
    first, second = stream
    assert first.columns == {"text": "one"} and (second.columns, second.line) == (None, 2)
    assert second.detail == "two of its columns would be called 'text'"


def test_sources_with_weights_take_turns_each_in_its_own_form(tokenizer, tmp_path):
    tokenizer.model_max_length = 10**6
    lines(tmp_path / "chats.jsonl", [{"messages": each} for each in CHATS])
    asked = [{"q": f"{number}+1?", "a": str(number + 1)} for number in range(9)]
    lines(tmp_path / "asked.jsonl", asked)
    lines(tmp_path / "alone.jsonl", [{"text": row["q"], "completion": row["a"]} for row in asked])

    def read(source: Any, seed: int) -> Any:
        given = InstructSettings(source, validation=None, max_length=200, seed=seed)
        return stream_instruct(given, StreamSettings(BUFFER, 10, 6), tokenizer, folder=tmp_path)

    both = {
        "chats": {"from": "chats.jsonl", "weight": 3},
        "asked": {"from": "asked.jsonl", "weight": 1, "rename": {"q": "text", "a": "completion"}},
    }
    mixed = read(sources_of(both), SEED)
    own = [
        iter(read(file, derive_seed(SEED, "stream of", name)).train)
        for name, file in (("chats", "chats.jsonl"), ("asked", "alone.jsonl"))
    ]
    assert list(mixed.train) == [next(own[turn]) for turn in [0, 0, 1, 0] * 15]
    assert (
        mixed.report.form
        == "messages (chats, 75% of the examples), prompt_completion (asked, 25% of the examples)"
    )
    lines(tmp_path / "asked.jsonl", [{"q": "one?"}])
    with pytest.raises(DataError, match=r"data\.train\.asked\.rename: asked\.jsonl has no column 'a'"):
        read(sources_of(both), SEED)


@pytest.mark.parametrize(
    ("more", "stream", "problem"),
    [
        ({"validation": 0.1}, {}, "data.validation: 0.1 is a part of the rows"),
        ({"leaks": LeakSettings("drop")}, {}, "data.leaks: compares all rows"),
        ({}, {"updates": None}, "train.updates: is missing"),
        ({}, {"window": None}, "train.batch_tokens: needs the tokens of each example"),
        ({"train": "a.xml"}, {}, "a.xml cannot be read as a stream"),
        ({"train": "b.jsonl"}, {}, "there is no file b.jsonl"),
        ({"text": ("body",)}, {}, "no column 'body'"),
        (
            {"train": sources_of({"a": {"from": "a.jsonl", "weight": 1}}, "all_exhausted")},
            {},
            "data.stopping_strategy: is all_exhausted, and streams have no epochs",
        ),
        (
            {"train": sources_of({"a": {"from": "a.jsonl", "weight": 1, "rename": {"body": "text"}}})},
            {},
            "data.train.a.rename: a.jsonl has no column 'body'",
        ),
    ],
)
def test_what_a_stream_cannot_do_is_refused(more, stream, problem, tokenizer, tmp_path):
    lines(tmp_path / "a.jsonl", [{"text": "some"}])
    (tmp_path / "a.xml").write_text("<text>some</text>\n")
    given = CausalSettings(**{"train": "a.jsonl", "validation": None, "max_length": LENGTH, **more})
    of_run = {"updates": 5, "window": 2, **stream}
    with pytest.raises(SnugfitError) as error:
        stream_causal(given, StreamSettings(BUFFER, **of_run), tokenizer, folder=tmp_path)
    assert isinstance(error.value, (DataError, SettingError)) and problem in str(error.value)


def test_a_function_that_returns_a_stream_is_read_as_one_where_that_is_said(tokenizer, tmp_path):
    (tmp_path / "flows.py").write_text(
        f"import snugfit as sf\nTEXTS = {TEXTS!r}\n"
        "def rows():\n    return sf.Stream(lambda: ({'text': text} for text in TEXTS))\n"
    )
    data = stream_causal(settings("flows:rows"), StreamSettings(BUFFER, 10, 4), tokenizer, folder=tmp_path)
    read = [data.train[place]["input_ids"] for place in range(40)]
    assert read == by_hand(tokenizer, TEXTS, 40)
    with pytest.raises(DataError, match="flows:rows returned a stream, .* Give data.stream"):
        load_causal(settings("flows:rows"), tokenizer, folder=tmp_path)


@pytest.mark.parametrize(
    ("named", "problem"),
    [
        ("number", "data.train: odd_number:number is an int, which is no source of rows"),
        ("once", "data.train: odd_once:once is a generator, which can be read once"),
        ("none", "data.train: odd_none:none is a NoneType, which is no source of rows"),
        (
            "asks",
            "data.train: odd_asks:asks failed at row 1: TypeError: asks() missing 1 required positional",
        ),
        ("breaks", "data.train: odd_breaks:breaks failed at row 2: OSError: the disk is gone"),
    ],
)
def test_a_function_that_gives_no_rows_is_one_clear_error(named, problem, tokenizer, tmp_path):
    (tmp_path / f"odd_{named}.py").write_text(
        "number = 5\nonce = (row for row in [{'text': 'some'}])\nnone = lambda: None\n"
        "def asks(path):\n    yield {'text': path}\n"
        "def breaks():\n    yield {'text': 'some'}\n    raise OSError('the disk is gone')\n"
    )
    given = settings(f"odd_{named}:{named}")
    with pytest.raises(DataError) as error:
        stream_causal(given, StreamSettings(BUFFER, 5, 2), tokenizer, folder=tmp_path)
    assert str(error.value).startswith(problem)


def test_rows_to_validate_on_are_those_of_any_file(tokenizer, tmp_path):
    path = lines(tmp_path / "a.jsonl", [{"text": text} for text in TEXTS])
    held_out = lines(tmp_path / "b.jsonl", [{"text": text} for text in TEXTS[:3]])
    data = stream_causal(settings(path, validation=str(held_out)), StreamSettings(BUFFER, 5, 2), tokenizer)
    assert list(data.validation) == list(load_causal(settings(held_out), tokenizer).train)
    assert data.fingerprints.keys() == {str(held_out)}


@pytest.mark.parametrize("stream", [stream_causal, stream_masked])
def test_several_files_to_validate_on_are_each_scored_and_sources_without_weights_take_turns(
    stream, tokenizer, tmp_path
):
    first, second = TEXTS[:12], TEXTS[12:]
    lines(tmp_path / "a.jsonl", [{"text": text} for text in first])
    lines(tmp_path / "b.jsonl", [{"body": text} for text in second])
    written = {"a": "a.jsonl", "b": {"from": "b.jsonl", "rename": {"body": "text"}}}
    own = {"train": sources_of(written), "validation": sources_of(written, setting="data.validation")}
    if stream is stream_causal:
        given = CausalSettings(**own, max_length=LENGTH)
    else:
        tokenizer, given = hiding(), MaskedSettings(**own, max_length=16)
    data = stream(given, StreamSettings(BUFFER, 5, 4), tokenizer, folder=tmp_path)
    assert data.train.counts(20) == [10, 10] and not data.report.form
    assert "a, b have no weights" in data.report.warnings[0] and len(data.report.warnings) == 1
    held_out = whole_examples(data.validation)
    assert held_out.sources.names == ("a", "b") and set(held_out.numbers) == {0, 1}
    assert held_out.origin(0) == "a.jsonl:1" and held_out.origin(len(held_out) - 1).startswith("b.jsonl:")
    assert data.fingerprints.keys() == {"a.jsonl", "b.jsonl"}
    alone = replace(given, train="a.jsonl", validation="a.jsonl")
    single = stream(alone, StreamSettings(BUFFER, 5, 4), tokenizer, folder=tmp_path)
    place = held_out.numbers.index(1)
    assert place == len(single.validation)
    if stream is stream_causal:
        assert list(held_out)[:place] == list(single.validation)


def test_rows_to_validate_on_are_scored_as_of_their_own_file_also_where_others_are_left_out(tmp_path):
    tokenizer = hiding()
    lines(tmp_path / "a.jsonl", [{"text": ""}] * 3 + [{"text": text} for text in TEXTS[:4]])
    lines(tmp_path / "b.jsonl", [{"text": text} for text in TEXTS[4:7]])
    held_out = sources_of(["a.jsonl", "b.jsonl"], setting="data.validation")
    lines(tmp_path / "c.jsonl", [{"text": text} for text in TEXTS])
    given = MaskedSettings("c.jsonl", validation=held_out, max_length=LENGTH, bad_rows="skip")
    data = stream_masked(given, StreamSettings(BUFFER, 5, 4), tokenizer, folder=tmp_path)
    scored = whole_examples(data.validation)
    assert scored.numbers == [0] * 4 + [1] * 3 and list(scored.rows) == [3, 4, 5, 6, 7, 8, 9]
    assert [scored.origin(place) for place in (3, 4)] == ["a.jsonl:7", "b.jsonl:1"]
