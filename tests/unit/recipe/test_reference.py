"""The reference of settings comes from their declarations, and says what is true of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from snugfit.cli import main
from snugfit.core.other_names import OTHER_NAMES
from snugfit.errors import SettingError
from snugfit.recipe import load_recipe
from snugfit.recipe.declarations import COMMANDS, REQUIRED, Recipe
from snugfit.recipe.entries import SEAMS_OF_THEIR_OWN
from snugfit.recipe.reference import Entry, entries, markdown, page
from snugfit.recipe.schema import json_schema
from snugfit.recipe.strict_yaml import Places, read_yaml
from snugfit.run.train_settings import DEFAULTS
from snugfit.techniques import discover

PAGE = Path(__file__).parents[3] / "docs" / "recipe_reference.md"
BARE = {
    "text-classification": {"model": "m", "data": {"train": "rows.csv"}},
    "text-regression": {"model": "m", "data": {"train": "rows.csv"}},
    "multi-label-classification": {"model": "m", "data": {"train": "rows.jsonl"}},
    "sentence-embedding": {"model": "m", "data": {"train": "rows.jsonl"}},
    "masked-lm": {"model": "m", "data": {"train": "rows.jsonl"}},
    "seq2seq": {"model": "m", "data": {"train": "rows.jsonl"}},
    "token-classification": {"model": "m", "data": {"train": "rows.jsonl"}},
    "causal-lm": {"model": "m", "data": {"train": "rows.txt"}},
    "instruction": {"model": "m", "data": {"train": "rows.jsonl"}},
    "preference": {"model": "m", "data": {"train": "rows.jsonl"}},
    "audio-classification": {"model": "m", "data": {"train": "sounds"}},
    "contrastive-pretraining": {"model": "m", "data": {"train": "photos"}},
    "masked-pictures": {"model": "m", "data": {"train": "photos"}},
    "image-classification": {"model": "m", "data": {"train": "photos"}},
    "multi-label-image-classification": {"model": "m", "data": {"train": "photos.csv"}},
    "tabular-classification": {"model": "tabm", "data": {"train": "rows.csv"}},
    "segmentation": {"model": "unet", "data": {"train": "shapes"}},
    "forecasting": {"model": "tide", "data": {"train": "rows.csv"}},
    "tabular-regression": {"model": "tabm", "data": {"train": "rows.csv"}},
    "python": {"model": "mine:build", "data": {"train": "mine:rows"}},
}


def test_the_page_of_the_docs_is_made_from_the_declarations() -> None:
    assert PAGE.read_text(encoding="utf-8") == markdown(), (
        "make it anew: python -c 'from snugfit.recipe.reference import markdown; print(markdown(), end=\"\")' "
        "> docs/recipe_reference.md"
    )


def test_it_has_every_setting_of_the_schema() -> None:
    schema = json_schema()
    sections = {
        "data",
        "preference",
        "train",
        "evaluate",
        "early_stopping",
        "non_finite",
        "plan",
        "budget",
        "checkpoint",
        "hooks",
        "track",
    }
    keys = {key for key in schema["properties"] if key not in sections}
    for section in sections:
        whole = schema["properties"][section]
        reference = whole.get("$ref") or whole["anyOf"][0]["$ref"]
        keys |= {f"{section}.{name}" for name in schema["$defs"][reference.rpartition("/")[2]]["properties"]}
    assert {each.key for each in entries()} == keys


@pytest.mark.parametrize("entry", entries(), ids=lambda each: each.key)
def test_an_example_can_be_written_as_it_stands(entry: Entry, tmp_path: Path) -> None:
    task = next(each for each in BARE if each not in entry.not_for)
    tree = {"task": task, **BARE[task]}
    first, _, name = entry.key.partition(".")
    given = read_yaml(entry.example, "example", Places())
    together: dict[str, Any] = {
        "data.stopping_strategy": {"data": {"train": {"a": {"from": "rows.csv", "weight": 1}}}},
        "train.updates": {"train": {"epochs": None}},
        "train.batch_tokens": {"train": {"global_batch": None}},
        "train.batch_warmup": {"train": {"start_batch": 8}},
        "early_stopping.min_delta": {"early_stopping": {"patience": 1}},
        "loss_weights": {"loss": "mine:loss"},
        "plan.goal": {"plan": {"price": 1.0}},
    }.get(entry.key, {})
    for more in (together, given):
        for key, value in more.items():
            tree[key] = {**tree.get(key, {}), **value} if isinstance(value, dict) and name else value
    if entry.key == "model":
        tree["model"] = given["model"]
    path = tmp_path / "example.yaml"
    path.write_text(json.dumps(tree), encoding="utf-8")  # JSON is YAML
    recipe = load_recipe(path, allow_code=True)
    assert recipe.task == tree["task"]
    assert first in given


def test_each_setting_says_all_that_a_reader_needs() -> None:
    for entry in entries():
        assert entry.meaning and "\n" not in entry.meaning and not entry.meaning.endswith(".")
        assert not entry.meaning.startswith(("of ", "what ", "how ", "where ", "when ", "that "))
        assert entry.takes and "Any" not in entry.takes
        assert entry.commands and set(entry.commands) <= set(COMMANDS)
        assert (entry.default is not ...) or entry.required or "default" in entry.meaning
        named = entry.commands == COMMANDS or f"read by    {', '.join(entry.commands)}" in page(entry)
        assert named and "read by" in page(entry)


def test_tasks_that_have_no_use_for_a_setting_are_named() -> None:
    (label,) = entries("data.label")
    assert set(label.not_for) == {
        "causal-lm",
        "contrastive-pretraining",
        "instruction",
        "masked-lm",
        "masked-pictures",
        "python",
        "sentence-embedding",
        "seq2seq",
    }


def test_a_section_is_all_its_settings_and_required_ones_say_so() -> None:
    assert [each.key for each in entries("track")] == [
        "track.mlflow",
        "track.tensorboard",
        "track.wandb",
        "track.trackio",
        "track.others",
        "track.uri",
        "track.experiment",
        "track.answers",
        "track.pictures",
        "track.histograms",
        "track.register",
        "track.register_adapter",
    ]
    assert {each.key for each in entries() if each.required} == set(REQUIRED)


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("patience", r"there is no setting 'patience'\. Did you mean early_stopping\.patience\?"),
        ("every", r"Did you mean evaluate\.every or checkpoint\.every\?"),
        ("train.epoch", r"Did you mean 'train\.epochs'\?"),
        ("optimizer.adamw.learning_rate", r"Settings of a technique: snugfit techniques adamw$"),
        ("zzz", "All of them: snugfit recipe"),
        ("train.batch", r"Did you mean train\.global_batch\?"),
        ("train.batch_size", r"Did you mean train\.global_batch\?"),
        ("evaluate.batch_size", r"Did you mean evaluate\.batch\?"),
    ],
)
def test_an_unknown_key_names_the_nearest(key: str, words: str) -> None:
    with pytest.raises(SettingError, match=words):
        entries(key)


def test_names_of_other_trainers_stand_for_settings_that_there_are() -> None:
    keys = {each.key for each in entries()}
    for name, ours in OTHER_NAMES.items():
        first, _, technique = ours.recipe.partition(".")
        if first in SEAMS_OF_THEIR_OWN or first == "techniques":
            assert not technique or technique.partition(".")[0] in discover()
        elif ours.recipe:
            assert ours.recipe in keys or ours.recipe in Recipe.settings(), name
        if ours.python:
            assert ours.python.partition("=")[0] in DEFAULTS, name
        assert name not in DEFAULTS


def test_the_command_lists_and_describes(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, words in (
        ([], "checkpoint.every"),
        (["early_stopping.patience"], "early_stopping: {patience: 3}"),
        (["track"], "track.experiment"),
    ):
        assert main(["recipe", *arguments]) == 0
        assert words in capsys.readouterr().out
    assert main(["recipe", "patience"]) == 2
    assert "Did you mean early_stopping.patience?" in capsys.readouterr().err
    assert main(["recipe", "--json"]) == 0
    assert {each["key"] for each in json.loads(capsys.readouterr().out)["settings"]} == {
        each.key for each in entries()
    }
