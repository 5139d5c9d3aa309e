"""The cache of tokens: what is read from it is what would be made anew, and what keeps it from being used keeps nobody from training."""

from __future__ import annotations

import copy
import json
import os
import shutil
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import processors

from snugfit.data.loader import Loader, Order
from snugfit.data.texts import token_cache
from snugfit.data.texts.causal import CausalSettings, load_causal
from snugfit.data.texts.conversation_tokens import Coder
from snugfit.data.texts.instruct import InstructSettings, load_instruct, read_conversations
from snugfit.data.texts.labelled_texts import TextSettings, load_text, load_text_rows
from snugfit.data.texts.preferences import PreferenceSettings, load_preferences
from snugfit.data.texts.tagged_texts import Reader, TagSettings, load_tagged, load_tagged_rows
from snugfit.data.texts.token_cache import TokenEntry, cached, texts_digest, tokenizer_digest
from snugfit.data.texts.token_rows import ArrayExamples, TokenRows
from snugfit.errors import SnugfitWarning
from tests.unit.data.texts.test_instruct import TEMPLATES, by_letters

TEMPLATE, MARKS, *_ = TEMPLATES["chatml"]
WORDS = ("good", "bad", "film", "book", "a", "the", "and", "very")
TEXTS = [" ".join(WORDS[(place * each) % 8] for each in range(1, 2 + place % 7)) for place in range(40)]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of the test's own, which keeps the smallest entries."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(token_cache, "LEAST_TOKENS", 1)
    token_cache._warn_once.cache_clear()
    return tmp_path / "cache" / "snugfit" / "tokens"


@pytest.fixture
def nothing_made(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Let whatever would be tokenised from now on fail."""

    def fail(*_: Any) -> None:
        raise AssertionError("it was made anew")

    return lambda: monkeypatch.setattr(token_cache, "_write", fail)


def entries(folder: Path) -> list[Path]:
    return sorted(folder.glob("*")) if folder.is_dir() else []


def write(rows: list[dict[str, Any]], name: str = "rows.jsonl") -> str:
    Path(name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    return name


def labelled() -> list[dict[str, Any]]:
    return [{"text": text, "more": "film", "label": text.split()[0]} for text in TEXTS]


def chats() -> list[dict[str, Any]]:
    rows = [{"prompt": text, "completion": f"it is {text}", "other": f"no {text}"} for text in TEXTS]
    return [*rows, {"prompt": "", "completion": "x", "other": "y"}]


def preferences() -> list[dict[str, Any]]:
    return [{"prompt": text, "chosen": f"{text}!", "rejected": "no", "label": True} for text in TEXTS]


def tags() -> list[dict[str, Any]]:
    words = [text.split() for text in TEXTS]
    return [{"text": each, "label": [f"B-{word[0]}" for word in each]} for each in words]


def joining(tokenizer: Any) -> Any:
    """Return a tokenizer that reads pairs, with token types."""
    joins = copy.deepcopy(tokenizer)
    joins.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    return joins


def texts_of(tokenizer: Any) -> Any:
    return load_text(
        TextSettings(write(labelled()), validation=0.2, max_length=6, bad_rows="skip"), tokenizer
    )


def pairs_of(tokenizer: Any) -> Any:
    rows = write(labelled())
    settings = TextSettings(rows, pair="more", max_length=16, validation=write(labelled()[:9], "v.jsonl"))
    return load_text(settings, joining(tokenizer))


def stream_of(tokenizer: Any) -> Any:
    return load_causal(CausalSettings(write(labelled()), validation=0.2, max_length=6), tokenizer)


def book_of(tokenizer: Any) -> Any:
    Path("book.txt").write_text("\n".join(TEXTS))
    return load_causal(CausalSettings("book.txt", validation=0.2, max_length=6), tokenizer)


def chats_of(_: Any) -> Any:
    settings = InstructSettings(write(chats()), text=("prompt",), max_length=60, bad_rows="skip")
    return load_instruct(settings, by_letters(TEMPLATE, MARKS))


def preferences_of(_: Any) -> Any:
    settings = PreferenceSettings(write(preferences()), text=("prompt",), max_length=250)
    return load_preferences(settings, by_letters(TEMPLATE, MARKS))


def answers_of(_: Any) -> Any:
    settings = PreferenceSettings(
        write(preferences()), text=("prompt",), completion="chosen", pairs=False, max_length=250
    )
    return load_preferences(settings, by_letters(TEMPLATE, MARKS))


def tags_of(tokenizer: Any) -> Any:
    return load_tagged(TagSettings(write(tags()), max_length=6), tokenizer)


WAYS = [texts_of, pairs_of, stream_of, book_of, chats_of, preferences_of, answers_of, tags_of]


@pytest.mark.parametrize("load", WAYS, ids=lambda way: way.__name__)
def test_tokens_from_the_cache_are_those_that_are_made_without_one(
    load: Callable[[Any], Any],
    tokenizer: Any,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    nothing_made: Callable[[], None],
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(token_cache, "LEAST_TOKENS", 1 << 60)
        without = load(tokenizer)
    assert not entries(folder)
    first = load(tokenizer)
    assert entries(folder)
    nothing_made()
    second = load(tokenizer)
    for made in (first, second):
        for own, plain in ((made.train, without.train), (made.validation, without.validation)):
            assert list(own) == list(plain) and len(plain) > 0
            assert [own.origin(at) for at in range(len(own))] == [
                plain.origin(at) for at in range(len(plain))
            ]
        assert made.report == without.report


def test_rows_to_evaluate_on_come_from_the_cache_too(
    tokenizer: Any, folder: Path, nothing_made: Callable[[], None]
) -> None:
    chat = InstructSettings("", text=("prompt",), max_length=60, validation=None)
    coder, reader = Coder(by_letters(TEMPLATE, MARKS), chat), Reader(tokenizer, 6)

    def read() -> list[Any]:
        classes = load_text_rows(
            write(labelled()), tokenizer, text=["text"], label="label", labels=WORDS, max_length=6
        )
        answers = read_conversations(
            write(chats(), "c.jsonl"), chat, coder, answered=True, bad_rows="skip", folder=None
        )
        words = load_tagged_rows(
            write(tags(), "t.jsonl"),
            reader,
            text="text",
            form="words",
            label="label",
            tags=("O", *(f"B-{word[0]}" for word in WORDS)),
        )
        return [[*each.examples, each.lines, each.report] for each in (classes, answers, words)]

    first = read()
    assert len(entries(folder)) == 3
    nothing_made()
    assert read() == first


CHANGES: list[tuple[Callable[[Any], Any], str, Any]] = [
    (load_text, "max_length", 5),
    (load_text, "text", ("text", "more")),
    (load_text, "pair", "more"),
    (load_causal, "text", ("more",)),
    (load_instruct, "max_length", 40),
    (load_instruct, "text", ("other",)),
    (load_instruct, "completion", "other"),
    (load_instruct, "scored", "last"),
    (load_instruct, "too_long", "cut_prompt"),
    (load_preferences, "max_length", 70),
    (load_preferences, "answers", ("rejected", "chosen")),
    (load_preferences, "too_long", "drop"),
    (load_preferences, "pairs", False),
]


@pytest.mark.parametrize(
    ("load", "name", "value"), CHANGES, ids=lambda each: getattr(each, "__name__", str(each))
)
def test_another_setting_that_changes_tokens_is_another_entry(
    load: Any, name: str, value: Any, tokenizer: Any, folder: Path
) -> None:
    kinds = {load_text: TextSettings, load_causal: CausalSettings, load_instruct: InstructSettings}
    kind = kinds.get(load, PreferenceSettings)
    chat = kind in (InstructSettings, PreferenceSettings)
    rows = {InstructSettings: chats()[:-1], PreferenceSettings: preferences()}.get(kind, labelled())
    given: dict[str, Any] = {"train": write(rows), "validation": None, "bad_rows": "skip"}
    given |= {"text": ("prompt",), "max_length": 250} if chat else {"max_length": 6}
    if kind is PreferenceSettings:
        given |= {"completion": "chosen"}

    def entries_after(**more: Any) -> list[Path]:
        load(kind(**{**given, **more}), by_letters(TEMPLATE, MARKS) if chat else joining(tokenizer))
        return entries(folder)

    first = entries_after()
    assert entries_after() == first and len(first) == 1
    assert len(entries_after(**{name: value})) == 2


def test_settings_that_change_no_tokens_share_an_entry(tokenizer: Any, folder: Path) -> None:
    rows = write(labelled())
    for more in ({}, {"seed": 7}, {"validation": 0.3}, {"bad_rows": "skip"}, {"label": "more2"}):
        both = [{**row, "more2": row["text"][-1]} for row in labelled()]
        load_text(TextSettings(write(both), max_length=6, **more), tokenizer)  # type: ignore[arg-type]
    for size in (4, 6):
        load_causal(CausalSettings(rows, max_length=size), tokenizer)
    assert len(entries(folder)) == 2


def test_another_tokenizer_is_another_entry_and_its_last_text_is_none(
    make_tokenizer: Any, folder: Path
) -> None:
    own = tokenizer_digest(make_tokenizer())
    used = make_tokenizer()
    used(["a film", "a"], truncation=True, max_length=3, padding=True)
    assert tokenizer_digest(used) == own is not None
    other, bare, ending = make_tokenizer(), make_tokenizer("$A"), make_tokenizer(eos_token="[SEP]")
    other.add_tokens(["book club"])
    chatting, left = make_tokenizer(), make_tokenizer()
    chatting.chat_template = "{{ messages }}"
    left.truncation_side = "left"
    splitting = make_tokenizer()
    splitting.split_special_tokens = True
    others = (other, bare, ending, chatting, left, splitting)
    assert len({own, *map(tokenizer_digest, others)}) == 7
    for each in (used, *others, make_tokenizer()):
        cached("test", {}, each, lambda: entry_of(400))
    assert len(entries(folder)) == 7


def test_texts_and_their_order_are_what_is_digested() -> None:
    orders = (["a", "b"], ["b", "a"], ["ab"], ["a"], ["a", "b", ""], ["é"], ["\udc80"])
    assert len({texts_digest(each) for each in orders}) == len(orders)
    assert texts_digest(["a"], ["b"]) != texts_digest(["a", "b"])


def flipped(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-70] ^= 1
    path.write_bytes(content)


DAMAGES: list[Callable[[Path], Any]] = [
    flipped,
    lambda path: path.write_bytes(path.read_bytes()[:-100]),
    lambda path: path.write_bytes(path.read_bytes()[:20]),
    lambda path: path.write_bytes(b""),
    lambda path: path.write_bytes(b"PK" + path.read_bytes()[2:]),
    lambda path: (path.unlink(), path.mkdir()),
]


@pytest.mark.filterwarnings("ignore:Tokens cannot be kept")  # where a folder lies in their place
@pytest.mark.parametrize(
    "damage", DAMAGES, ids=["flipped", "cut off", "cut short", "empty", "other", "folder"]
)
def test_a_broken_entry_is_found_and_made_anew(damage: Any, tokenizer: Any, folder: Path) -> None:
    first = list(stream_of(tokenizer).train)
    (path,) = entries(folder)
    whole = path.read_bytes()
    damage(path)
    with pytest.warns(SnugfitWarning, match=r"The tokens kept in .* cannot be used \(.*tokenised anew"):
        assert list(stream_of(tokenizer).train) == first
    if path.is_file():
        assert path.read_bytes() == whole
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert list(stream_of(tokenizer).train) == first


def test_without_a_folder_that_can_be_written_tokens_stay_in_memory_and_it_is_said_once(
    tokenizer: Any, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = list(stream_of(tokenizer).train)
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert list(stream_of(tokenizer).train) == list(stream_of(tokenizer).train) == kept
    (warning,) = caught
    assert "Tokens cannot be kept in" in str(warning.message) and "each run tokenises" in str(warning.message)


def test_a_full_disk_is_left_alone(tokenizer: Any, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(".")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1 << 29))
    with pytest.warns(SnugfitWarning, match="No space left on device"):
        assert len(stream_of(tokenizer).train) > 0
    assert not entries(folder)


def test_a_write_that_fails_leaves_nothing_behind(
    tokenizer: Any, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(os, "replace", fail)
    with pytest.warns(SnugfitWarning, match="No space left on device"):
        stream_of(tokenizer)
    assert not entries(folder)


def entry_of(size: int) -> TokenEntry:
    rows = TokenRows.of({"input_ids": list(range(each, each + 50))} for each in range(size))
    return TokenEntry(rows, {"lengths": np.arange(size)}, {"dropped": size})


def test_writers_and_readers_at_once_see_whole_entries_alone(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, barrier, seen = list(entry_of(400).rows), threading.Barrier(6), []
    digest = token_cache._digest_of_rest

    def slow(file: Any) -> bytes:
        time.sleep(0.002)  # between the content of an entry and its digest, where others have their turn
        return digest(file)

    monkeypatch.setattr(token_cache, "_digest_of_rest", slow)

    def use() -> None:
        barrier.wait()
        for _ in range(5):
            token_cache._write(folder / "one.tokens", entry_of(400))
            seen.append(list(token_cache._read(folder / "one.tokens").rows) == whole)

    threads = [threading.Thread(target=use) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == [True] * 30
    assert [path.name for path in entries(folder)] == ["one.tokens"]


def test_what_was_used_least_recently_is_removed_first(
    tokenizer: Any, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(3):
        cached("test", {"number": number}, tokenizer, lambda: entry_of(400))
        for path in entries(folder):
            os.utime(path, (path.stat().st_mtime - 100,) * 2)
    first, second, third = sorted(entries(folder), key=lambda path: path.stat().st_mtime)
    cached("test", {"number": 0}, tokenizer, lambda: pytest.fail("it was there"))
    old, new = folder / "x-1.partial", folder / "x-2.partial"
    old.write_bytes(b"")
    new.write_bytes(b"")
    os.utime(old, (time.time() - 90_000,) * 2)
    monkeypatch.setattr(token_cache, "MOST_BYTES", 3 * first.stat().st_size)
    cached("test", {"number": 3}, tokenizer, lambda: entry_of(400))
    assert first.exists() and third.exists() and not second.exists()
    assert new.exists() and not old.exists()
    monkeypatch.setattr(token_cache, "MOST_BYTES", 1)
    cached("test", {"number": 4}, tokenizer, lambda: entry_of(400))
    assert len(entries(folder)) == 2  # the newest, and what is being written


def test_few_tokens_and_tokenizers_that_do_not_show_themselves_are_not_kept(
    tokenizer: Any, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class InPython:
        backend_tokenizer = None

    cached("test", {}, InPython(), lambda: entry_of(400))  # type: ignore[arg-type]
    monkeypatch.setattr(token_cache, "LEAST_TOKENS", 401 * 50)
    cached("test", {}, tokenizer, lambda: entry_of(400))
    assert not entries(folder)


def test_an_entry_is_mapped_and_can_be_read_by_its_owner_alone(tokenizer: Any, folder: Path) -> None:
    entry = cached("test", {}, tokenizer, lambda: entry_of(400))
    assert isinstance(entry.rows.lists["input_ids"].base, np.memmap)
    assert not entry.rows.lists["input_ids"].flags.writeable
    assert entry.facts == {"dropped": 400} and entry.numbers["lengths"].tolist() == list(range(400))
    (path,) = entries(folder)
    assert path.stat().st_mode & 0o077 == 0


def windows_of(examples: Any, collate: Any, workers: int = 0) -> list[dict[str, Any]]:
    loader = Loader(examples, Order(len(examples), 8), collate, num_workers=workers)
    return [
        {name: (each.dtype, each.tolist()) for name, each in window.data.items()}
        for window in loader.windows(0, 9)
    ]


@pytest.mark.parametrize(
    "load", [texts_of, pairs_of, stream_of, book_of, chats_of, tags_of], ids=lambda way: way.__name__
)
def test_windows_from_arrays_are_those_from_lists(load: Any, tokenizer: Any) -> None:
    data = load(tokenizer)
    assert isinstance(data.train.examples, ArrayExamples)
    assert windows_of(data.train, data.collate) == windows_of(list(data.train), data.collate)


def test_workers_load_the_windows_of_one_process(tokenizer: Any) -> None:
    first, second = texts_of(tokenizer), texts_of(tokenizer)
    assert windows_of(first.train, first.collate) == windows_of(second.train, second.collate, workers=2)
