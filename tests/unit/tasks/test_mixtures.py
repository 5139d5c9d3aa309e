"""Recipes on several sources: each in its own form, validated in proportion, faulty rows by their file, and a resume that knows them all."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from snugfit.data import usable_rows
from snugfit.data.loader import Loader
from snugfit.data.named_sources import RowSources, Sources, sources_of
from snugfit.data.order import Order
from snugfit.data.texts import token_cache
from snugfit.data.texts.causal import CausalSettings, load_causal
from snugfit.data.texts.instruct import InstructSettings, load_instruct
from snugfit.data.texts.labelled_texts import TextSettings, load_text
from snugfit.data.texts.masked import MaskedSettings, load_masked
from snugfit.data.texts.preferences import PreferenceSettings, load_preferences
from snugfit.data.texts.text_pairs import PairSettings, load_pairs
from snugfit.data.texts.text_to_text import TextToTextSettings, load_text_to_text_rows
from snugfit.data.texts.token_rows import JoinedArrays
from snugfit.errors import DataError, SettingError, UserError
from snugfit.models.tokenizer import load_tokenizer
from snugfit.recipe import load_recipe
from snugfit.run.call_options import RunOptions
from snugfit.run.from_recipe import resume_run, train_recipe
from snugfit.tools.cross_validation.fold_rows import fold_rows
from tests.unit.data.conftest import word_tokenizer
from tests.unit.data.texts.test_instruct import TEMPLATES, by_letters
from tests.unit.tasks.tiny_decoder import write_decoder
from tests.unit.tasks.tiny_encoder import write_encoder
from tests.unit.tasks.tiny_writer import write_tokenizer
from tests.unit.tasks.trained_runs import AfterWindows, check_resume, weights

RECIPE = """\
name: mixed
task: tabular-classification
model: mlp
data:
  train:
    old: {from: old.csv, weight: 3}
    new: {from: new.csv, weight: 1, rename: {kind: label}}
  validation: 0.2
train: {updates: 9, global_batch: 8, seed: 3}
evaluate: {every: 4}
plan: {device: cpu, numerics: fp32, micro_batch: null}
track: {mlflow: false}
"""


def lines(path: Path, *rows: Any) -> str:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path.name


def together(written: Any) -> Sources:
    sources = sources_of(written)
    assert isinstance(sources, Sources)
    return sources


def chat(asked: str, answer: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": asked}, {"role": "assistant", "content": answer}]}


@pytest.fixture
def chats(tmp_path: Path) -> Sources:
    """Chats, Alpaca's columns, and pairs whose columns have other names."""
    lines(tmp_path / "chats.jsonl", *(chat("red", f"warm {n}") for n in range(10)))
    lines(tmp_path / "alpaca.jsonl", *({"instruction": "blue", "output": f"cold {n}"} for n in range(5)))
    (tmp_path / "pairs.csv").write_text("q,a\n" + "".join(f"sun,day {n}\n" for n in range(5)))
    return together(
        {
            "chats": {"from": "chats.jsonl", "weight": 2},
            "alpaca": {"from": "alpaca.jsonl", "weight": 1},
            "pairs": {"from": "pairs.csv", "weight": 1, "rename": {"q": "text", "a": "completion"}},
        }
    )


def letters() -> Any:
    template, marks, *_ = TEMPLATES["chatml"]
    return by_letters(template, marks)


def test_each_source_is_read_in_its_own_form_and_validated_in_proportion(
    chats: Sources, tmp_path: Path
) -> None:
    tokenizer = letters()
    data = load_instruct(
        InstructSettings(chats, validation=0.2, max_length=96, completion="completion"),
        tokenizer,
        folder=tmp_path,
    )
    assert data.report.form == "messages (chats), alpaca (alpaca), prompt_completion (pairs)"
    assert data.form == "alpaca"
    lines(tmp_path / "more.jsonl", chat("green", "warm"))
    alike = InstructSettings(together(["chats.jsonl", "more.jsonl"]), validation=None, max_length=96)
    assert load_instruct(alike, tokenizer, folder=tmp_path).report.form == "messages"
    assert [len(own) for own in data.train.members()] == [8, 4, 4]
    assert [len(own) for own in data.validation.members()] == [2, 1, 1]
    texts = {
        data.train.origin(place): tokenizer.decode(data.train[place]["input_ids"]) for place in range(16)
    }
    assert {origin.partition(":")[0] for origin in texts} == {"chats.jsonl", "alpaca.jsonl", "pairs.csv"}
    for origin, text in texts.items():
        file, _, line = origin.partition(":")
        number = int(line) - (2 if file == "pairs.csv" else 1)
        answer = {"chats.jsonl": "warm", "alpaca.jsonl": "cold", "pairs.csv": "day"}[file]
        assert f"{answer} {number}<" in text
    assert set(data.fingerprints) == {"chats.jsonl", "alpaca.jsonl", "pairs.csv"}


def test_a_faulty_row_is_named_by_its_own_file(chats: Sources, tmp_path: Path) -> None:
    lines(tmp_path / "alpaca.jsonl", {"instruction": "a", "output": "b"}, {"instruction": "", "output": ""})
    with (tmp_path / "pairs.csv").open("a") as file:
        file.write(",night\n")
    with pytest.raises(DataError, match=r"2 rows cannot be used") as error:
        load_instruct(InstructSettings(chats, validation=None, max_length=96), letters(), folder=tmp_path)
    assert "alpaca.jsonl:2: " in str(error.value)
    assert "pairs.csv:7: " in str(error.value)


def test_ids_of_examples_are_of_one_row_each_and_lead_back_to_it(chats: Sources, tmp_path: Path) -> None:
    data = load_instruct(InstructSettings(chats, validation=0.2, max_length=96), letters(), folder=tmp_path)
    loader = Loader(data.train, Order(len(data.train), 16), data.collate)
    (window,) = loader.windows(0, 1)
    assert len(set(window.ids)) == 16
    assert sorted(loader.origins(window.ids)) == sorted(
        f"{data.train.origin(place)} (training)" for place in range(16)
    )


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Numbers of the texts that were tokenised, of a cache that keeps the smallest entries."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(token_cache, "LEAST_TOKENS", 1)
    made: list[int] = []
    encode = usable_rows.encode

    def counted(texts: list[str], *more: Any) -> Any:
        made.append(len(texts))
        return encode(texts, *more)

    monkeypatch.setattr(usable_rows, "encode", counted)
    return made


def test_tokens_are_kept_by_source(kept: list[int], tmp_path: Path) -> None:
    lines(tmp_path / "a.jsonl", *({"text": "good film", "label": "x"} for _ in range(6)))
    lines(tmp_path / "b.jsonl", *({"text": "bad", "label": "y"} for _ in range(4)))
    for weight, expected in ((1, [6, 4]), (2, [6, 4])):
        sources = together({name: {"from": f"{name}.jsonl", "weight": weight} for name in "ab"})
        data = load_text(
            TextSettings(sources, max_length=16, validation=None), word_tokenizer(), folder=tmp_path
        )
        assert kept == expected
    lines(tmp_path / "b.jsonl", *({"text": "a bad book", "label": "y"} for _ in range(5)))
    data = load_text(TextSettings(sources, max_length=16, validation=None), word_tokenizer(), folder=tmp_path)
    assert kept == [6, 4, 5]
    assert [each["input_ids"] for each in data.train][5:7] == [[2, 4, 6, 3], [2, 8, 5, 7, 3]]
    assert [each["labels"] for each in data.train] == [0] * 6 + [1] * 5


def test_tokens_of_pairs_are_kept_by_source_and_cut_into_rows(kept: list[int], tmp_path: Path) -> None:
    lines(tmp_path / "a.jsonl", *({"text": "good film", "positive": f"good {n}"} for n in range(6)))
    lines(tmp_path / "b.jsonl", *({"text": "bad", "positive": "a book"} for _ in range(4)))
    settings = PairSettings(together(("a.jsonl", "b.jsonl")), max_length=16, validation=0.5)
    for _ in range(2):
        data = load_pairs(settings, word_tokenizer(), folder=tmp_path)
        assert kept == [12, 8]
    assert [len(own) for own in data.train.members()] == [3, 2]
    film, book = data.train[0], data.train[3]
    assert film["input_ids"] == [[2, 4, 6, 3], [2, 4, 1, 3]] and book["input_ids"] == [
        [2, 5, 3],
        [2, 8, 7, 3],
    ]
    assert film["texts"][0] == data.train[1]["texts"][0] != film["texts"][1]
    held_out = [data.validation[place]["texts"] for place in range(5)]
    assert book["texts"] in held_out and film["texts"] not in held_out
    assert any(
        each.startswith("2 of 5 validation pairs are also trained on") for each in data.report.warnings
    )


def test_labels_of_two_kinds_are_found_across_sources_and_leaks_in_each(tmp_path: Path) -> None:
    lines(tmp_path / "a.jsonl", *({"text": word, "label": "1"} for word in ("good", "film", "book")))
    lines(tmp_path / "b.jsonl", {"text": "bad", "label": 1})
    sources = together(("a.jsonl", "b.jsonl"))
    with pytest.raises(DataError, match=r"b\.jsonl:1: the label 1 is a whole number, most labels are text"):
        load_text(TextSettings(sources, max_length=16, validation=None), word_tokenizer(), folder=tmp_path)
    lines(tmp_path / "b.jsonl", {"text": "bad", "label": "2"})
    lines(tmp_path / "held_out.jsonl", {"text": "bad", "label": "2"}, {"text": "film", "label": "1"})
    data = load_text(
        TextSettings(sources, max_length=16, validation="held_out.jsonl"), word_tokenizer(), folder=tmp_path
    )
    assert any(each.startswith("2 of 2 validation texts") for each in data.report.warnings)


def test_a_source_without_a_column_is_the_one_that_is_named(tmp_path: Path) -> None:
    lines(tmp_path / "a.jsonl", {"text": "good", "label": "1"})
    lines(tmp_path / "b.jsonl", {"text": "bad"})
    with pytest.raises(DataError, match=r"data\.label: b\.jsonl has no column 'label'"):
        load_text(
            TextSettings(together(("a.jsonl", "b.jsonl")), max_length=16), word_tokenizer(), folder=tmp_path
        )


def test_blocks_of_texts_are_of_one_source_each(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("good film " * 40)
    lines(tmp_path / "b.jsonl", *({"text": "bad book " * 5} for _ in range(10)))
    sources = together({"a": {"from": "a.txt", "weight": 1}, "b": {"from": "b.jsonl", "weight": 1}})
    tokenizer = word_tokenizer("$A", eos_token="[SEP]")
    data = load_causal(CausalSettings(sources, validation=0.2, max_length=8), tokenizer, folder=tmp_path)
    assert isinstance(data.train.examples, JoinedArrays)
    words = {"a.txt": {4, 6, 3}, "b.jsonl": {5, 7, 3}}
    for side in (data.train, data.validation):
        files = Counter()
        for place, block in enumerate(side):
            (file,) = [name for name in words if name in side.origin(place)]
            assert set(block["input_ids"]) <= words[file]
            files[file] += 1
        assert set(files) == set(words)


def test_files_to_validate_on_may_be_several(chats: Sources, tmp_path: Path) -> None:
    lines(tmp_path / "held_out.jsonl", chat("red", "hot"), chat("red", "cold"))
    lines(tmp_path / "others.jsonl", {"instruction": "blue", "output": "warm"})
    files = sources_of({"chats": "held_out.jsonl", "others": "others.jsonl"}, setting="data.validation")
    data = load_instruct(InstructSettings(chats, validation=files, max_length=96), letters(), folder=tmp_path)
    assert [data.validation.origin(place) for place in range(3)] == [
        "held_out.jsonl:1",
        "held_out.jsonl:2",
        "others.jsonl:1",
    ]
    assert Loader(data.validation, Order(3, 3)).sources == RowSources(("chats", "others"), (0, 2))
    (tmp_path / "a.txt").write_text("good film " * 40)
    (tmp_path / "b.txt").write_text("bad book " * 20)
    causal = load_causal(
        CausalSettings("a.txt", validation=together({"a": "a.txt", "b": "b.txt"}), max_length=8),
        word_tokenizer("$A", eos_token="[SEP]"),
        folder=tmp_path,
    )
    assert [len(own) for own in causal.validation.members()] == [10, 5]  # of 81 and 41 tokens, the last alone


def test_preferences_keep_the_rows_that_scores_are_written_into(tmp_path: Path) -> None:
    for name in "ab":
        lines(
            tmp_path / f"{name}.jsonl",
            *({"prompt": f"red {n}", "chosen": f"{name} yes", "rejected": "no"} for n in range(6)),
        )
    sources = together({name: {"from": f"{name}.jsonl", "weight": 1} for name in "ab"})
    data = load_preferences(
        PreferenceSettings(sources, validation=0.5, max_length=96), letters(), folder=tmp_path
    )
    assert [len(own) for own in data.train.members()] == [3, 3]
    data.train[4]["score"] = 1.0
    assert data.train[4]["score"] == 1.0


def test_a_plain_text_beside_rows_is_read_in_blocks_and_the_rows_one_by_one(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(write_encoder(tmp_path / "encoder", mask=True))
    lines(tmp_path / "rows.jsonl", *({"body": "good film"} for _ in range(10)))
    (tmp_path / "long.txt").write_text("ann lives in rome\n" * 24)
    sources = together({"rows": "rows.jsonl", "long": "long.txt"})
    settings = MaskedSettings(sources, text=("body",), validation=0.2, max_length=14)
    data = load_masked(settings, tokenizer, folder=tmp_path)
    # of the text its end is held out, of the rows some are drawn
    assert [len(own) for own in data.train.rows.members()] == [8, 6]
    assert [len(own) for own in data.validation.rows.members()] == [2, 2]
    origins = [data.validation.rows.origin(place) for place in range(4)]
    assert [origin.partition(":")[0] for origin in origins] == ["rows.jsonl"] * 2 + [
        "block 6 of long.txt",
        "block 7 of long.txt",
    ]
    assert [len(data.train[place]["input_ids"]) for place in (0, 8)] == [4, 14]
    assert set(data.fingerprints) == {"rows.jsonl", "long.txt"} and data.report.unit == "rows"
    lines(tmp_path / "rows.jsonl", {"body": ""}, {"body": "good"})
    with pytest.raises(DataError, match=r"\n  rows\.jsonl:1: body is empty"):
        load_masked(settings, tokenizer, folder=tmp_path)


def test_texts_to_write_are_of_one_source_each(tmp_path: Path) -> None:
    write_tokenizer(tmp_path / "t5")
    tokenizer = load_tokenizer(tmp_path / "t5")
    for name, word in (("a", "rome"), ("b", "oslo")):
        lines(tmp_path / f"{name}.jsonl", *({"text": f"{word} ann", "target": word} for _ in range(10)))
    settings = TextToTextSettings(
        together(("a.jsonl", "b.jsonl")), validation=0.2, max_length=8, target_length=4
    )
    data = load_text_to_text_rows(settings, tokenizer, folder=tmp_path)
    assert [len(own) for own in data.train.members()] == [8, 8]
    assert [len(own) for own in data.validation.members()] == [2, 2]
    assert {
        data.validation.origin(place).partition(":")[0]: data.validation[place]["labels"]
        for place in range(4)
    } == {"a.jsonl": tokenizer("rome")["input_ids"], "b.jsonl": tokenizer("oslo")["input_ids"]}
    assert set(data.fingerprints) == {"a.jsonl", "b.jsonl"}
    lines(tmp_path / "b.jsonl", {"text": "ann", "target": ""})
    lines(tmp_path / "a.jsonl", {"text": "ann", "target": "bob"}, {"text": "ann", "target": ""})
    with pytest.raises(DataError, match=r"\n  a\.jsonl:2: target is empty\n  b\.jsonl:1: target is empty"):
        load_text_to_text_rows(settings, tokenizer, folder=tmp_path)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Tables of 30 and of 20 rows, of which the second calls its label otherwise."""
    monkeypatch.chdir(tmp_path)
    rows = [f"{n},{n * 7 % 5},{'yes' if n % 3 else 'no'}\n" for n in range(50)]
    (tmp_path / "old.csv").write_text("a,b,label\n" + "".join(rows[:30]))
    (tmp_path / "new.csv").write_text("a,b,kind\n" + "".join(rows[30:]))
    (tmp_path / "mixed.yaml").write_text(RECIPE)
    return tmp_path


@pytest.mark.slow
def test_a_recipe_that_stops_on_its_way_ends_with_the_weights_of_one_that_does_not(project: Path) -> None:
    told: list[dict[str, Any]] = []
    recipe = load_recipe("mixed.yaml")
    whole = train_recipe(recipe, RunOptions(plan=False), told.append)
    (run,) = [event for event in told if event["event"] == "run"]
    assert run["data"]["sources"] == [
        {"name": "old", "rows": 24, "share": 0.75, "epochs": 54 / 24},
        {"name": "new", "rows": 16, "share": 0.25, "epochs": 18 / 16},
    ]
    assert [each["source"] for each in run["inputs"]] == [
        str(project / name) for name in ("old.csv", "new.csv")
    ]
    page = (Path(whole.run_dir) / "report.html").read_text()
    assert "source old" in page
    assert "75% of the examples, 2.25 epochs of 24 rows" in page
    stopped = train_recipe(recipe, RunOptions(plan=False, stop=AfterWindows(2)))
    again = resume_run(stopped.run_dir, RunOptions(stop=AfterWindows(3)))
    ended = resume_run(again.run_dir)
    assert (stopped.status, again.status, ended.status) == ("stopped", "stopped", "finished")
    one, other = weights(Path(whole.run_dir)), weights(Path(ended.run_dir))
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_each_file_to_validate_on_has_a_loss_of_its_own(project: Path) -> None:
    (project / "other.csv").write_text((project / "new.csv").read_text().replace("kind", "label"))
    changes = ["data.train=old.csv", "data.validation={same: old.csv, other: other.csv}"]
    told: list[dict[str, Any]] = []
    result = train_recipe(load_recipe("mixed.yaml", changes), RunOptions(plan=False), told.append)
    metrics = [event["metrics"] for event in told if event["event"] == "evaluation"]
    assert len(metrics) > 1
    for each in metrics:
        expected = (30 * each["loss/same"] + 20 * each["loss/other"]) / 50
        assert each["loss"] == pytest.approx(expected, rel=1e-6)
        assert each["loss/same"] != each["loss/other"]
    (run,) = [event for event in told if event["event"] == "run"]
    assert [(each["context"], Path(each["source"]).name) for each in run["inputs"]] == [
        ("train", "old.csv"),
        ("validation", "old.csv"),
        ("validation", "other.csv"),
    ]
    assert result.status == "finished"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (("data.train.old.weight=2",), r"recipe: data train old weight 3 then, 2 now"),
        (("data.stopping_strategy=all_exhausted",), r"stopping_strategy 'first_exhausted' then"),
        (("data.train.more=more.csv",), r"data\.train\.more\.weight: is missing"),
        (("data.train.more={from: more.csv, weight: 1}",), r"recipe: data train more"),
        (("data.train=old.csv",), r"new\.csv is not used any more since this run began"),
        ((), r"new\.csv has changed since this run began"),
    ],
)
def test_a_resume_is_refused_where_the_sources_are_others(
    project: Path, changes: tuple[str, ...], message: str
) -> None:
    stopped = train_recipe(load_recipe("mixed.yaml"), RunOptions(plan=False, stop=AfterWindows(2)))
    (project / "more.csv").write_text("a,b,label\n1,2,yes\n3,4,no\n")
    if not changes:
        (project / "new.csv").write_text((project / "new.csv").read_text() + "7,7,yes\n")
    with pytest.raises(UserError, match=message):
        resume_run(stopped.run_dir, changes=changes)


STREAMS = """\
name: streams
task: causal-lm
model: decoder
from_scratch: true
data:
  train:
    old: {from: old.jsonl, weight: 3}
    new: {from: new.jsonl, weight: 1, rename: {words: text}}
  validation: null
  max_length: 8
  stream: 4
train: {updates: 9, global_batch: 4, seed: 3}
plan: {device: cpu, numerics: fp32}
track: {mlflow: false}
"""


@pytest.mark.slow
def test_streams_that_stop_on_their_way_end_with_the_weights_of_those_that_do_not(project: Path) -> None:
    write_decoder(project / "decoder", 16)
    lines(project / "old.jsonl", *({"text": f"old {n} " * (n % 3 + 1)} for n in range(11)))
    lines(project / "new.jsonl", *({"words": f"new {n}"} for n in range(5)))
    (project / "streams.yaml").write_text(STREAMS)
    recipe = load_recipe("streams.yaml")
    whole = train_recipe(recipe, RunOptions(plan=False))
    stopped = train_recipe(recipe, RunOptions(plan=False, stop=AfterWindows(2)))
    with pytest.raises(UserError, match="recipe: data train old weight 3 then, 2 now"):
        resume_run(stopped.run_dir, changes=("data.train.old.weight=2",))
    text = (project / "new.jsonl").read_text()
    (project / "new.jsonl").write_text(text.replace("new 0", "new 7"))
    with pytest.raises(UserError, match="train row 10 was changed"):
        resume_run(stopped.run_dir)
    (project / "new.jsonl").write_text(text)
    check_resume(whole, stopped, 2)


def test_folds_are_refused_of_several_sources(project: Path) -> None:
    with pytest.raises(
        SettingError, match=r"data\.train: names several sources, and folds are dealt out of one"
    ):
        fold_rows(load_recipe("mixed.yaml"))


def test_nothing_is_written_where_a_source_has_no_row_left(project: Path) -> None:
    (project / "new.csv").write_text("a,b,kind\n1,2,\n")
    with pytest.raises(DataError, match=r"data\.train\.new: no usable row of .*new\.csv is left"):
        train_recipe(load_recipe("mixed.yaml", ["data.bad_rows=skip"]), RunOptions(plan=False))
    assert not (project / "runs").exists()
