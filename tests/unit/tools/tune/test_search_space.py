"""What people write to be searched: how it is read, and what a recipe refuses of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from snugfit.errors import SettingError
from snugfit.recipe import Recipe, load_recipe
from snugfit.tools.tune.result import Choices, Range
from snugfit.tools.tune.search_space import applied, check_space, read_file, read_options, read_space

RECIPE = """\
task: python
model: made:model
data: {train: made:rows, validation: 0.25}
train: {epochs: 2, global_batch: 8}
optimizer: {sgd: {learning_rate: 0.1}}
schedule: null
techniques: [{ema: {decay: 0.9}}]
evaluate: {metrics: [accuracy]}
"""


@pytest.fixture
def recipe(tmp_path: Path) -> Recipe:
    (tmp_path / "points.yaml").write_text(RECIPE)
    return load_recipe(tmp_path / "points.yaml")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("log:1e-5..1e-2", Range(1e-5, 1e-2, log=True)),
        ("0.1..0.5", Range(0.1, 0.5)),
        ("-1..1.5", Range(-1.0, 1.5)),
        (" 2 .. 8 ", Range(2, 8)),
        ("log:16..256", Range(16, 256, log=True)),
        ("0.9,0.99", Choices((0.9, 0.99))),
        (
            "null, true, [1, 2], {sgd: {momentum: 0.5}}",
            Choices((None, True, (1, 2), {"sgd": {"momentum": 0.5}})),
        ),
        ("../a.csv,../b.csv", Choices(("../a.csv", "../b.csv"))),
        ([16, 32], Choices((16, 32))),
    ],
)
def test_values_are_read_as_they_are_written(text, expected):
    (found,) = read_space({"name": text}).values()
    assert found == expected
    if isinstance(found, Range):
        assert type(found.low) is type(expected.low) is type(found.high)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("0.9", "0.9 leaves nothing to choose"),
        ("1e-5...1e-3", "leaves nothing to choose"),  # 1e-5 to .1e-3, a tenth of what is meant
        ("1,1", "are not all different"),
        ("5..2", "Write the lower end first"),
        ("log:0..1", "factors need a positive number"),
        ("[1", "cannot be read"),
        (3, "no values to choose from"),
        ([], "an empty list leaves nothing to choose"),
    ],
)
def test_what_leaves_nothing_to_search_is_refused_with_the_settings_name(given, message):
    with pytest.raises(SettingError, match=f"search train.epochs: .*{message}"):
        read_space({"train.epochs": given})


def test_a_search_of_nothing_or_of_a_setting_within_another_is_refused():
    with pytest.raises(SettingError, match="nothing to search"):
        read_space({})
    with pytest.raises(SettingError, match="'optimizer' is searched too"):
        read_space({"optimizer.sgd.momentum": "0.1..0.9", "optimizer": "sgd,adamw"})


def test_options_and_files_say_the_same(tmp_path: Path):
    (tmp_path / "space.yaml").write_text("search:\n  train.epochs: 1..3\n  train.global_batch: [4, 8]\n")
    read = read_space(read_file(tmp_path / "space.yaml"))
    assert read == read_space(read_options(["train.epochs=1..3", "train.global_batch=4,8"]))
    for wrong, message in (
        (["train.epochs"], "NAME=VALUES"),
        (["train.epochs=1,2", "train.epochs=2,3"], "given twice"),
    ):
        with pytest.raises(SettingError, match=message):
            read_options(wrong)
    (tmp_path / "other.yaml").write_text("train.epochs: 1..3\n")
    with pytest.raises(SettingError, match="under that one key"):
        read_file(tmp_path / "other.yaml")
    with pytest.raises(SettingError, match=r"none\.yaml cannot be read"):
        read_file(tmp_path / "none.yaml")


def test_settings_are_those_that_overrides_name(recipe: Recipe):
    changed = applied(
        recipe, {"techniques.ema.decay": 0.5, "optimizer.sgd.learning_rate": 1e-7, "train.epochs": 3}
    )
    told = changed.as_dict()
    assert told["techniques"][0]["ema"]["decay"] == 0.5 and told["train"]["epochs"] == 3
    assert told["optimizer"]["sgd"]["learning_rate"] == 1e-7
    assert applied(recipe, {}).as_dict() == recipe.as_dict()


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("optimizer.sgd.learning_rate", "-0.1..0.1", r"-0\.1 is refused"),
        ("techniques.ema.decay", "0.9..1.5", r"1\.5 is refused"),
        ("train.global_batch", "8,0", "0 is refused"),
        ("techniques.sgd.learning_rate", "0.1..0.2", r"Did you mean 'optimizer\.sgd\.learning_rate'\?"),
        ("optimizer.sgd.learning_rat", "0.1..0.2", "Did you mean 'learning_rate'"),
        ("train.epoch", "1,2", "Did you mean 'epochs'"),
        ("plan.micro_batch", "1..8", "there is nothing to find"),
        ("preset", "default,none", "search preset"),
        ("train.seed", "1..8", "the luckiest seed"),
        ("evaluate.best", "loss,accuracy", "is the same for all trials"),
        ("data.validation", "0.1..0.2", "is the same for all trials"),
    ],
)
def test_what_the_recipe_refuses_is_refused_before_the_first_trial(recipe: Recipe, name, values, message):
    with pytest.raises(SettingError, match=message):
        check_space(recipe, read_space({name: values}))


def test_both_ends_and_every_choice_hold(recipe: Recipe):
    check_space(
        recipe,
        read_space(
            {
                "optimizer.sgd.learning_rate": "log:1e-4..1",
                "techniques.ema.decay": [0.5, 0.9],
                "schedule": "null,cosine",
                "train.global_batch": "2..8",
            }
        ),
    )
