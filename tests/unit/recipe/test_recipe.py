"""Recipes: what is read, what is refused and where it says so."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
from pathlib import Path

import jsonschema
import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from snugfit import techniques
from snugfit.core.entry import as_entry
from snugfit.errors import PlanConflict, SettingError
from snugfit.recipe import json_schema, load_recipe
from snugfit.recipe.entries import SEAMS_OF_THEIR_OWN, own_key, settings_of
from snugfit.recipe.strict_yaml import Places, read_yaml
from snugfit.recipe.technique_cards import cards, page
from snugfit.recipe.write import written_code
from snugfit.tasks.data_section import COLUMNS

RECIPE = """\
# a comment
task: text-classification
model: some/encoder
data:
  train: rows.csv
  text: [title, text]
  max_length: 64
train: {epochs: 2, global_batch: 16}
optimizer: {adamw: {learning_rate: 3e-5}}
techniques:
  - clip_norm: {max_norm: 1.0}
  - ema: {decay: 0.99}
evaluate: {every: 50, metrics: [accuracy], best: accuracy}
plan: {micro_batch: 8}
"""
BARE = "task: text-classification\nmodel: some/encoder\ndata: {train: rows.csv}\n"
CAUSAL = "task: causal-lm\nmodel: some/decoder\ndata: {train: rows.txt}\n"
PYTHON = "task: python\nmodel: mine:build\ndata: {train: 'mine:rows', collate: 'mine:join'}\nloss: mse\n"


@pytest.fixture
def write(tmp_path):
    def write(text: str, name: str = "my.yaml") -> Path:
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return path

    return write


def changed(old: str, new: str) -> str:
    assert RECIPE.count(old) == 1, old
    return RECIPE.replace(old, new)


def test_a_recipe_says_what_was_written_and_the_defaults_of_the_rest(write):
    recipe = load_recipe(write(RECIPE))
    assert (recipe.name, recipe.task, recipe.loss) == ("my", "text-classification", "cross_entropy")
    assert recipe.data.text == ("title", "text")
    assert (recipe.data.validation, recipe.data.bad_rows, recipe.train.seed) == (0.1, "fail", 0)
    assert (recipe.evaluate.every, recipe.evaluate.batch) == (50, 16)
    assert recipe.early_stopping is None
    assert [technique.card.name for technique in recipe.all_techniques()] == [
        "adamw",
        "linear",
        "clip_norm",
        "ema",
    ]
    assert recipe.optimizer == techniques.find("adamw")(learning_rate=3e-5)
    assert recipe.schedule == techniques.find("linear")(warmup=0.1)


@pytest.mark.parametrize(
    ("text", "loss", "metrics", "best"),
    [
        (BARE, "cross_entropy", ("accuracy", "macro_f1"), "accuracy"),
        (CAUSAL, "causal_lm", ("perplexity",), "perplexity"),
        (PYTHON, "mse", (), "loss"),
    ],
)
def test_defaults_depend_on_the_task(write, text, loss, metrics, best):
    recipe = load_recipe(write(text))
    assert (recipe.loss, recipe.evaluate.metrics, recipe.evaluate.best) == (loss, metrics, best)


@pytest.mark.parametrize("loss", ["info_nce", "info_nce_symmetric", "nt_xent"])
def test_a_loss_that_compares_rows_is_named_like_any_other(write, loss):
    assert load_recipe(write(PYTHON.replace("loss: mse", f"loss: {loss}"))).loss == loss


@pytest.mark.parametrize(
    ("old", "new", "place", "words"),
    [
        ("epochs: 2", "epoch: 2", ":8: train.epoch", "Did you mean 'epochs'"),
        ("task: text-classification", "tusk: text-classification", ":2: tusk", "Did you mean 'task'"),
        ("# a comment", "epochs: 3", ":1: epochs", "Did you mean train.epochs"),
        ("# a comment", "learning_rate: 3", ":1: learning_rate", "optimizer.adamw.learning_rate"),
        ("max_length: 64", "max_length: abc", ":7: data.max_length", "a positive whole number, found 'abc'"),
        ("max_length: 64", "max_length: 0", ":7: data.max_length", "found 0"),
        ("max_length: 64", "max_length: 64.5", ":7: data.max_length", "found 64.5"),
        ("max_length: 64", "max_length: true", ":7: data.max_length", "found true"),
        ("max_length: 64", "bad_rows: drop", ":7: data.bad_rows", "fail or skip, found 'drop'"),
        ("max_length: 64", "validation: 1.5", ":7: data.validation", "between 0 and 1"),
        (
            "max_length: 64",
            "collate: 'mine:join'",
            ":7: data.collate",
            "not used by task text-classification",
        ),
        ("text: [title, text]", "text: []", ":6: data.text", "a name or a list of names"),
        ("  train: rows.csv", "  label: name", ":4: data.train", "is missing"),
        (
            "text-classification",
            "text-clasification",
            ":2: task",
            "audio-classification, causal-lm, contrastive-pretraining, forecasting, image-classification, instruction, masked-lm, masked-pictures, multi-label-classification, multi-label-image-classification, preference, python, segmentation, sentence-embedding, seq2seq, tabular-classification, tabular-regression, text-classification, text-regression or token-classification",
        ),
        ("train: {epochs: 2, global_batch: 16}", "train:", ":8: train", "found null"),
        ("epochs: 2", "epochs: 2, updates: 5", ":8: train", "found both"),
        ("epochs: 2", "epochs: null", ":8: train", "found neither"),
        ("epochs: 2", "epochs: 2, epochs: 3", ":8: 'train.epochs'", "given twice, first on line 8"),
        ("adamw:", "adamww:", ":9: optimizer.adamww", "Did you mean 'adamw'"),
        ("adamw:", "ema:", ":9: optimizer.ema", "Put it under techniques"),
        ("learning_rate: 3e-5", "learning_rat: 3", ":9: optimizer.adamw.learning_rat", "'learning_rate'"),
        ("learning_rate: 3e-5", "learning_rate: -1", ":9: optimizer.adamw.learning_rate", "must be positive"),
        (
            "learning_rate: 3e-5",
            "learning_rate: fast",
            ":9: optimizer.adamw.learning_rate",
            "a number, found 'fast'",
        ),
        ("learning_rate: 3e-5", "learning_rate: .nan", ":9: optimizer.adamw.learning_rate", "found '.nan'"),
        ("learning_rate: 3e-5", "learning_rate: 1e999", ":9:", "'1e999' is no float"),
        (
            "learning_rate: 3e-5",
            "betas: [0.9]",
            ":9: optimizer.adamw.betas",
            "a list of 2 numbers, found [0.9]",
        ),
        ("{adamw: {learning_rate: 3e-5}}", "{adamw: {}, sgd: {}}", ":9: optimizer", "found adamw and sgd"),
        ("{adamw: {learning_rate: 3e-5}}", "null", ":9: optimizer", "must be one of adafactor, adamw"),
        ("- ema: {decay: 0.99}", "- emma", ":12: techniques.emma", "Did you mean 'ema'"),
        ("- ema: {decay: 0.99}", "- sgd", ":12: techniques.sgd", "optimizer: {sgd: {…}}"),
        ("- ema: {decay: 0.99}", "- bf16", ":12: techniques.bf16", "plan.numerics: bf16"),
        ("- ema: {decay: 0.99}", "- ema: {dekay: 1}", ":12: techniques.ema.dekay", "Did you mean 'decay'"),
        ("- ema: {decay: 0.99}", "- {ema: , sam: }", ":12: techniques.sam", "one technique"),
        ("every: 50", "every: 0", ":13: evaluate.every", "epoch or a positive number"),
        ("metrics: [accuracy]", "metrics: [acuracy]", ":13: evaluate.metrics", "Did you mean 'accuracy'"),
        ("best: accuracy", "best: macro_f1", ":13: evaluate.best", "not among the evaluated"),
        ("micro_batch: 8", "micro_batch: 32", ":14: plan.micro_batch", "32 is more than train.global_batch"),
        (
            "micro_batch: 8",
            "numerics: q",
            ":14: plan.numerics",
            "no such precision: 'q'. Known: bf16, fp16, ",
        ),
        ("micro_batch: 8", "numerics: bf61", ":14: plan.numerics", "Did you mean 'bf16'?"),
        ("micro_batch: 8", "numerics: ema", ":14: plan.numerics", "Put it under techniques"),
        ("micro_batch: 8", "numerics: fp32_logits", ":14: plan.numerics", "Put it under techniques"),
        ("micro_batch: 8", "numerics: sgd", ":14: plan.numerics", "Put it under optimizer"),
        ("micro_batch: 8", "numerics: 16", ":14: plan.numerics", "must be one of fp32, bf16, fp16, "),
        ("micro_batch: 8", "numerics: {fp32: {force: true}}", ":14: plan.numerics.fp32", "no settings"),
        ("micro_batch: 8", "numerics: {fp16: {forse: true}}", ":14: plan.numerics.fp16.forse", "'force'"),
        ("micro_batch: 8", "numerics: {fp16: , bf16: }", ":14: plan.numerics", "fp16 and bf16"),
        ("micro_batch: 8", "device: gpu", ":14: plan.device", "cuda"),
        ("# a comment", "name: a/b", ":1: name", "cannot be a folder's name"),
        ("# a comment", "loss: cross_entrpy", ":1: loss", "Did you mean 'cross_entropy'"),
        ("# a comment", "loss_weights: {a: 2}", ":1: loss_weights", "has no terms by name"),
        ("# a comment", "loss_weights: {a: big}", ":1: loss_weights", "names, each with a number"),
        ("# a comment", "early_stopping: {}", ":1: early_stopping.patience", "is missing"),
        (
            "# a comment",
            "early_stopping: {min_delta: 0.1, stop_when: a:b}",
            ":1: ",
            "min_delta says what it counts",
        ),
        (
            "# a comment",
            "early_stopping: {stop_when: later}",
            ":1: early_stopping.stop_when",
            "package.module:fun",
        ),
        (
            "# a comment",
            "early_stopping: {patience: 2, min_delta: -1}",
            ":1: early_stopping.min_delta",
            "at least 0",
        ),
        ("# a comment", "checkpoint: {keep: 1}", ":1: checkpoint.keep", "at least 2"),
        ("# a comment", "track: {mlflow: yes}", ":1: track.mlflow", "true or false, found 'yes'"),
        ("# a comment", "output: a: b", ":1:", "cannot be read"),
        ("# a comment", "\toutput: a", ":1:", "spaces, not tabs"),
        ("# a comment", "output: *a", ":1:", "no aliases"),
        ("# a comment", "output: !!python/object:os.system a", ":1:", "Write the plain value"),
        ("# a comment", "? [a]\n: b", ":1:", "must be text"),
        ("# a comment", "output: \x01", ":1:", "does not allow"),
    ],
)
def test_what_is_wrong_is_said_with_its_setting_and_line(write, old, new, place, words):
    path = write(changed(old, new))
    with pytest.raises(SettingError) as error:
        load_recipe(path)
    assert str(error.value).startswith(f"{path}{place}")
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_several_mistakes_are_said_at_once(write):
    path = write(changed("max_length: 64", "max_lenth: 64").replace("epochs: 2", "epochs: two"))
    with pytest.raises(SettingError) as error:
        load_recipe(path)
    assert [line.split(": ")[1] for line in str(error.value).splitlines()] == [
        "data.max_lenth",
        "train.epochs",
    ]


@pytest.mark.parametrize(
    "content", [b"", b"- a", b"5", b"\xff\xfe\x00", b"\x89PNG\r\n\x1a\n\x00\x00", b"a: " + b"[" * 2000]
)
def test_a_file_that_is_no_recipe_is_refused(tmp_path, content):
    path = tmp_path / "my.yaml"
    path.write_bytes(content)
    with pytest.raises(SettingError, match=r"my\.yaml"):
        load_recipe(path)


@pytest.mark.parametrize("name", ["names.jsonl", "rows.json", "latin.csv", "book.txt", "ROWS.PARQUET"])
def test_rows_in_place_of_a_recipe_are_told_apart_from_a_faulty_recipe(tmp_path, name):
    path = tmp_path / name
    content = b'[{"text": "good"}]' if name.endswith(".json") else b"text,label\ncaf\xe9,yes\n"
    path.write_bytes(content)
    with pytest.raises(SettingError, match=rf"is a file of rows.*snugfit init .*{name}\. Or .*--data"):
        load_recipe(path)


def test_a_missing_file_names_the_nearest(write, tmp_path):
    write(BARE, "news.yaml")
    with pytest.raises(SettingError, match=r"Did you mean 'news\.yaml'"):
        load_recipe(tmp_path / "newz.yaml")
    with pytest.raises(SettingError, match="is a folder"):
        load_recipe(tmp_path)


def test_a_recipe_that_cannot_be_opened_is_refused(write):
    path = write(BARE)
    path.chmod(0)
    if os.access(path, os.R_OK):
        pytest.skip("this user may read every file")
    with pytest.raises(SettingError, match="Permission denied"):
        load_recipe(path)


def test_techniques_that_exclude_each_other_are_refused_with_their_place(write):
    path = write(changed("- ema: {decay: 0.99}", "- clip_norm"))
    with pytest.raises(PlanConflict) as error:
        load_recipe(path)
    assert str(error.value).startswith(f"{path}:10: 'clip_norm' is given twice")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("5e-5", 5e-5),
        ("1E3", 1000.0),
        (".5", 0.5),
        ("010", 10),
        ("+.5", 0.5),
        ("5.", 5.0),
        ("-5e-5", -5e-5),
        ("12e03", 12000.0),
        ("1e", "1e"),
        ("e5", "e5"),
        ("0x10", "0x10"),
        ("0o17", "0o17"),
        (".inf", ".inf"),
        (".nan", ".nan"),
        ("1.2.3", "1.2.3"),
        ("9999999999999999999999", 9999999999999999999999),
        ("tRUE", "tRUE"),
        ("Yes", "Yes"),
        ("off", "off"),
        ("y", "y"),
        ("NULL", None),
        ("=", "="),
        ("<<", "<<"),
        ("a#b", "a#b"),
        ("mine:rows", "mine:rows"),
        ("http://x/y", "http://x/y"),
        ("2026-11-20T10:00:00Z", "2026-11-20T10:00:00Z"),
        ("{metrics:[a], b: }", {"metrics": ("a",), "b": None}),
        ("&anchor 5", 5),
        ("|\n  x\n  y", "x\ny"),
        (">-\n  x\n  y", "x y"),
        ("true", True),
        ("~", None),
        ("", None),
        ("no", "no"),
        ("on", "on"),
        ("1:30", "1:30"),
        ("2026-11-20", "2026-11-20"),
        ("1_000", "1_000"),
        ("'5'", "5"),
        ("!!str 5", "5"),
        ("[a, 1]", ("a", 1)),
    ],
)
def test_scalars_are_read_as_yaml_1_2_has_them(text, value):
    assert read_yaml(f"key: {text}", "my.yaml", Places()) == {"key": value}


@pytest.mark.parametrize(
    ("text", "place", "words"),
    [
        ("base: &b {k: 1}\nc:\n  <<: *b\n", ":3:", "no aliases"),
        ("a: &x 1\nb: &x 2\n", ":2:", "duplicate anchor 'x'"),
        ("a: 1\n---\nb: 2\n", ":2:", "another document"),
        ("a:\n  b: 1\n  b: 2\n", ":3:", "'a.b' is given twice, first on line 2"),
        ("a: 1\nb: !!int 5.5\n", ":2:", "'5.5' is no int"),
        ("a: 1\nb: !mine {c: 1}\n", ":2:", "Write the plain value"),
        ("a: 1\nb: !!binary aGk=\n", ":2:", "Write the plain value"),
        ("a: 'x\n", ":2:", "quoted scalar that begins on line 1"),
        ("a: {b: 1\n", ":2:", "flow mapping that begins on line 1"),
        ("a: [x\ty]\n", ":1:", "spaces, not tabs"),
    ],
)
def test_what_is_no_plain_yaml_is_refused_with_its_line(text, place, words):
    with pytest.raises(SettingError) as error:
        read_yaml(text, "my.yaml", Places())
    assert str(error.value).startswith(f"my.yaml{place}")
    assert words in str(error.value)


def test_settings_not_given_keep_the_recipes_default_beside_those_given(write):
    recipe = load_recipe(write(BARE + "optimizer: {adamw: {weight_decay: 0.2}}\nschedule: cosine\n"))
    assert recipe.optimizer == techniques.find("adamw")(learning_rate=5e-5, weight_decay=0.2)
    assert recipe.schedule == techniques.find("cosine")()


def test_no_schedule_and_no_techniques_may_be_asked_for(write):
    recipe = load_recipe(write(BARE + "schedule: null\ntechniques: []\n"))
    assert [technique.card.name for technique in recipe.all_techniques()] == ["adamw"]


@functools.cache
def schema() -> jsonschema.Draft202012Validator:
    """What holds recipes against the schema, which is itself one."""
    whole = json_schema()
    jsonschema.Draft202012Validator.check_schema(whole)
    return jsonschema.Draft202012Validator(whole)


def test_the_schema_lists_the_precisions_that_there_are(write):
    precisions = json_schema()["$defs"]["PlanSettings"]["properties"]["numerics"]["anyOf"][0]["enum"]
    found = [name for name, technique in techniques.discover().items() if technique.card.precision]
    assert precisions == ["fp32", *found]
    assert {"bf16", "fp16"} <= set(found)
    wrong = {**load_recipe(write(RECIPE)).as_dict(), "plan": {"numerics": "fp7"}}
    with pytest.raises(jsonschema.ValidationError):
        schema().validate(wrong)


def test_numerics_bring_their_technique(write):
    recipe = load_recipe(write(RECIPE), ["plan.numerics=bf16"])
    names = [technique.card.name for technique in recipe.all_techniques()]
    assert names == ["adamw", "linear", "bf16", "clip_norm", "ema"]
    assert recipe.as_dict()["plan"]["numerics"] == "bf16"


def test_numerics_take_settings_in_the_file_and_in_an_override(write):
    text = BARE + "plan: {numerics: {fp16: {force: true}}}\n"
    forced = load_recipe(write(text))
    (made,) = [each for each in forced.all_techniques() if each.card.name == "fp16"]
    assert made.force and made.initial_scale == 65536.0
    assert (
        load_recipe(write(BARE), ["plan.numerics={fp16: {force: true}}"]).all_techniques()[-1:]
        == (forced.all_techniques()[-1:])
    )
    milder = load_recipe(write(text), ["plan.numerics.fp16.initial_scale=1024.0"])
    assert milder.as_dict()["plan"]["numerics"]["fp16"]["initial_scale"] == 1024.0
    assert milder.hash() != forced.hash()
    assert "numerics" in forced.to_yaml(defaults=False)


def test_placement_is_no_part_of_what_is_learned_and_numerics_are(write):
    alone = load_recipe(write(BARE + "techniques: []\n")).hash()
    assert load_recipe(write(BARE + "techniques: [{recompute: {}}]\n")).hash() == alone
    assert load_recipe(write(BARE + "techniques: [{nf4: {}}]\n")).hash() != alone


def test_a_micro_batch_may_be_left_to_the_machine_and_is_no_part_of_what_is_learned(write):
    recipe = load_recipe(write(BARE + "plan: {micro_batch: auto}\n"))
    assert (
        recipe.plan.micro_batch
        == load_recipe(write(BARE), ["plan.micro_batch=auto"]).plan.micro_batch
        == "auto"
    )
    assert recipe.hash() == load_recipe(write(BARE), ["plan.micro_batch=2"]).hash()
    assert load_recipe(write(recipe.to_yaml())) == recipe
    assert "micro_batch: auto" in recipe.to_yaml(defaults=False)
    schema().validate(recipe.as_dict())
    with pytest.raises(jsonschema.ValidationError):
        schema().validate({**recipe.as_dict(), "plan": {"micro_batch": "most"}})


def has_to_be_given(technique) -> list[str]:
    return [name for name, (_, default) in settings_of(technique).items() if default is dataclasses.MISSING]


@pytest.mark.parametrize(
    "name", [name for name, t in techniques.discover().items() if not has_to_be_given(t)]
)
def test_every_technique_can_be_written_by_its_name_and_read_back(write, name):
    technique = techniques.discover()[name]
    key = own_key(technique)
    if key == "plan.numerics":
        text = f"plan: {{numerics: {name}}}\n"
    else:
        text = f"{key}: {name}\n" if key in SEAMS_OF_THEIR_OWN else f"techniques: [{name}]\n"
    recipe = load_recipe(write(BARE + text))
    found = [entry for entry in recipe.all_techniques() if isinstance(entry, technique)]
    assert len(found) == 1
    assert load_recipe(write(recipe.to_yaml())) == recipe
    schema().validate(recipe.as_dict())


@pytest.mark.parametrize("name", techniques.discover())
def test_settings_of_every_technique_come_back_as_they_were(write, name):
    example = techniques.discover()[name].example()
    key = own_key(type(example))
    if key == "plan.numerics":
        text = yaml.safe_dump({"plan": {"numerics": as_entry(example)}})
    else:
        entry = as_entry(example)
        text = yaml.safe_dump({key: entry} if key in SEAMS_OF_THEIR_OWN else {"techniques": [entry]})
    recipe = load_recipe(write(BARE + text))
    assert example in recipe.all_techniques()
    assert load_recipe(write(recipe.to_yaml())) == recipe
    assert load_recipe(write(recipe.to_yaml(defaults=False))) == recipe
    schema().validate(recipe.as_dict())


CHAIN = """\
schedule:
  chain:
    parts:
      - constant: {warmup: 3}
      - cosine:
          minimum: 0.1
      - linear
    at: [3, 0.5]
"""
PER_GROUP = """\
schedule:
  per_group:
    schedules:
      head*: linear
      "*.bias":
        chain: {parts: [constant, {cosine: {minimum: 0.2}}], at: [0.5]}
    default: {one_cycle: {momentum: null}}
"""


def test_schedules_within_a_schedule_are_read_with_their_settings(write):
    find = techniques.find
    parts = (find("constant")(warmup=3), find("cosine")(minimum=0.1), find("linear")())
    assert load_recipe(write(BARE + CHAIN)).schedule == find("chain")(parts=parts, at=(3, 0.5))
    inner = find("chain")(parts=(find("constant")(), find("cosine")(minimum=0.2)), at=(0.5,))
    expected = find("per_group")(
        schedules={"head*": find("linear")(), "*.bias": inner}, default=find("one_cycle")(momentum=None)
    )
    assert load_recipe(write(BARE + PER_GROUP)).schedule == expected


@pytest.mark.parametrize("text", [CHAIN, PER_GROUP])
def test_schedules_within_a_schedule_are_written_with_all_their_settings(write, text):
    recipe = load_recipe(write(BARE + text))
    assert load_recipe(write(recipe.to_yaml())) == recipe
    assert load_recipe(write(recipe.to_yaml(defaults=False))) == recipe
    schema().validate(yaml.safe_load(BARE + text))
    schema().validate(recipe.as_dict())


def test_two_chains_of_other_schedules_are_other_runs(write):
    with_cosine = load_recipe(write(BARE + CHAIN.replace("- linear", "- cosine")))
    assert with_cosine.hash() != load_recipe(write(BARE + CHAIN)).hash()


@pytest.mark.parametrize(
    ("text", "old", "new", "place", "words"),
    [
        (
            CHAIN,
            "minimum: 0.1",
            "minimum: 2",
            ":9: schedule.chain.parts.cosine.minimum",
            "must be in [0, 1], found 2",
        ),
        (
            CHAIN,
            "minimum: 0.1",
            "minimal: 0.1",
            ":9: schedule.chain.parts.cosine.minimal",
            "Did you mean 'minimum'",
        ),
        (
            CHAIN,
            "minimum: 0.1",
            "minimum: low",
            ":9: schedule.chain.parts.cosine.minimum",
            "a number, found 'low'",
        ),
        (
            CHAIN,
            "- cosine:",
            "- cosin:",
            ":8: schedule.chain.parts.cosin",
            "no such schedule. Did you mean 'cosine'",
        ),
        (
            CHAIN,
            "- linear",
            "- plateau",
            ":10: schedule.chain.parts.plateau",
            "cannot stand within another. These can",
        ),
        (CHAIN, "- linear", "- adamw", ":10: schedule.chain.parts.adamw", "cannot stand within another"),
        (
            CHAIN,
            "- linear",
            "- {linear: , cosine: }",
            ":6: schedule.chain.parts",
            "an entry holds one, found linear and",
        ),
        (CHAIN, "- linear", "- 7", ":6: schedule.chain.parts", "must be one of chain, constant, cosine"),
        (CHAIN, "at: [3, 0.5]", "at: [3]", ":11: schedule.chain.at", "must be 2 rising"),
        (CHAIN, "    at: [3, 0.5]\n", "", ":5: schedule.chain", "'at' is missing. Give it a list of numbers"),
        (
            PER_GROUP,
            "minimum: 0.2",
            "minimum: -1",
            ":9: schedule.per_group.schedules.*.bias.chain.parts.cosine",
            "in [0, 1]",
        ),
        (
            PER_GROUP,
            "head*: linear",
            "head*: linea",
            ":7: schedule.per_group.schedules.head*.linea",
            "Did you mean 'linear'",
        ),
        (
            PER_GROUP,
            "{one_cycle: {momentum: null}}",
            "7",
            ":10: schedule.per_group.default",
            "must be one of chain, constant",
        ),
        (
            PER_GROUP,
            "{one_cycle: {momentum: null}}",
            "{one_cycle: {rise: 2}}",
            ":10: schedule.per_group.default.one_cycle.rise",
            "",
        ),
    ],
)
def test_what_is_wrong_within_a_schedule_is_said_with_its_setting_and_line(
    write, text, old, new, place, words
):
    assert text.count(old) == 1
    with pytest.raises(SettingError) as error:
        load_recipe(write(BARE + text.replace(old, new)))
    assert f"my.yaml{place}" in str(error.value)
    assert words in str(error.value)


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        (
            "{chain: {parts: linear, at: []}}",
            "schedule.chain.parts: must be a list of schedules, found 'linear'",
        ),
        (
            "{per_group: {schedules: [linear], default: linear}}",
            "schedules: must be names, each with a schedule, found",
        ),
    ],
)
def test_one_schedule_where_many_are_wanted_is_refused(write, entry, words):
    with pytest.raises(SettingError) as error:
        load_recipe(write(f"{BARE}schedule: {entry}\n"))
    assert words in str(error.value)


def test_an_override_finds_a_part_of_a_chain_by_its_name(write):
    recipe = load_recipe(write(BARE + CHAIN), ["schedule.chain.parts.cosine.minimum=0.3"])
    assert recipe.schedule.parts[1] == techniques.find("cosine")(minimum=0.3)


def test_the_schema_refuses_within_a_schedule_what_the_recipe_refuses():
    recipe = yaml.safe_load(BARE)
    for parts in (["plateau"], "linear", [{"cosine": {"minimal": 1}}], [{"linear": {}, "cosine": {}}]):
        assert not schema().is_valid({**recipe, "schedule": {"chain": {"parts": parts, "at": [1]}}})


def test_a_technique_that_has_to_be_given_settings_says_which(write):
    with pytest.raises(
        SettingError, match=r"schedule\.chain: 'parts' is missing\. Give it a list of schedules"
    ):
        load_recipe(write(f"{BARE}schedule: chain\n"))
    with pytest.raises(
        SettingError, match=r"pattern_rates: 'rates' is missing\. Give it names, each with a number"
    ):
        load_recipe(write(f"{BARE}techniques: [pattern_rates]\n"))


@pytest.mark.parametrize("name", techniques.discover())
def test_the_example_of_the_catalogue_is_a_recipe(write, name):
    (card,) = cards(name)
    json.dumps(card)
    example = page(card).rpartition("In a recipe:\n")[2].strip()
    recipe = load_recipe(write(f"{BARE}{example}\n"))
    assert name in [technique.card.name for technique in recipe.all_techniques()]


def test_a_technique_that_looks_at_what_is_not_evaluated_is_refused_before_anything_is_loaded(write):
    text = BARE.replace("train: rows.csv", "train: rows.csv, validation: null")
    with pytest.raises(SettingError, match=r"my\.yaml.*plateau: looks at 'loss' .* Give data\.validation"):
        load_recipe(write(f"{text}evaluate: {{metrics: []}}\nschedule: plateau\n"))
    with pytest.raises(
        SettingError, match=r"my\.yaml:4: evaluate\.metrics: plateau: looks at 'mine', which is not"
    ):
        load_recipe(
            write(f"{BARE}evaluate: {{metrics: [accuracy]}}\nschedule: {{plateau: {{metric: 'max:mine'}}}}\n")
        )
    assert load_recipe(write(f"{BARE}schedule: {{plateau: {{metric: macro_f1}}}}\n")).schedule is not None


@pytest.mark.parametrize(
    ("override", "check"),
    [
        ("train.epochs=0.5", lambda recipe: recipe.train.epochs == 0.5),
        ("train.updates=7", lambda recipe: (recipe.train.updates, recipe.train.epochs) == (7, None)),
        ("data.text=[a, b]", lambda recipe: recipe.data.text == ("a", "b")),
        ("data.text=a", lambda recipe: recipe.data.text == ("a",)),
        ("data.validation=", lambda recipe: recipe.data.validation is None),
        ("data.validation=null # none", lambda recipe: recipe.data.validation is None),
        ("optimizer.adamw.learning_rate=1e-4", lambda recipe: recipe.optimizer.learning_rate == 1e-4),
        ("optimizer.adamw.weight_decay=0", lambda recipe: recipe.optimizer.learning_rate == 3e-5),
        ("optimizer=sgd", lambda recipe: recipe.optimizer == techniques.find("sgd")()),
        ("schedule.linear.warmup=0.3", lambda recipe: recipe.schedule.warmup == 0.3),
        ("techniques=[sam]", lambda recipe: recipe.techniques == (techniques.find("sam")(),)),
        ("techniques.ema.decay=0.5", lambda recipe: recipe.techniques[1].decay == 0.5),
        ("early_stopping.patience=3", lambda recipe: recipe.early_stopping.patience == 3),
        ("early_stopping.stop_when=my:rule", lambda recipe: recipe.early_stopping.stop_when == "my:rule"),
        ("name=other", lambda recipe: recipe.name == "other"),
    ],
)
def test_an_override_changes_its_setting(write, override, check):
    assert check(load_recipe(write(RECIPE), [override]))


def test_an_override_of_a_default_technique_finds_it(write):
    recipe = load_recipe(write(BARE), ["techniques.clip_norm.max_norm=0.5", "optimizer.adamw.epsilon=1e-6"])
    assert recipe.techniques[0].max_norm == 0.5
    assert (recipe.optimizer.learning_rate, recipe.optimizer.epsilon) == (5e-5, 1e-6)


def test_the_later_override_wins(write):
    assert load_recipe(write(RECIPE), ["train.seed=1", "train.seed=2"]).train.seed == 2
    assert load_recipe(write(RECIPE), ["train.updates=5", "train.epochs=2"]).train.updates is None


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("train.epochs=abc", "train.epochs: must be a positive number or null, found 'abc'"),
        ("train.epoch=1", "Did you mean 'epochs'"),
        ("train.batch=8", "Did you mean train.global_batch?"),
        ("evaluate.batch_size=1", "Did you mean evaluate.batch?"),
        ("trane.epochs=1", "trane: there is no such setting. Did you mean 'train'"),
        ("train.epochs.x=1", "'train.epochs' is 2 in this recipe"),
        ("optimizer.sgd.momentum=0", "optimizer={sgd: {…}}"),
        ("techniques.sam.rho=1", "techniques=[clip_norm, ema, sam]"),
        ("techniques.ema.decay=2", "techniques.ema.decay: must be in [0, 1)"),
        ("data.text=[a", "cannot be read"),
        ("plan.micro_batch=64", "plan.micro_batch: 64 is more than"),
        (
            "plan.micro_batch=most",
            "plan.micro_batch: must be a positive whole number, auto or null, found 'most'",
        ),
        ("plan.micro_batch=0", "plan.micro_batch: must be a positive whole number, auto or null, found 0"),
    ],
)
def test_a_wrong_override_is_named_in_the_message(write, override, words):
    with pytest.raises(SettingError) as error:
        load_recipe(write(RECIPE), [override])
    assert words in str(error.value)
    if "sgd" not in override:  # there the file's own line is as much to blame
        assert str(error.value).startswith(f"override '{override}'")


def test_something_that_is_no_override_is_refused(write):
    with pytest.raises(SettingError, match="key=value"):
        load_recipe(write(RECIPE), ["epochs"])


def test_paths_are_absolute_and_a_copy_elsewhere_means_the_same(tmp_path, write):
    (tmp_path / "encoder").mkdir()
    text = changed("some/encoder", "encoder").replace("max_length: 64", "validation: ../held_out.csv")
    recipe = load_recipe(write(text))
    assert recipe.model == str(tmp_path / "encoder")
    assert recipe.data.train == str(tmp_path / "rows.csv")
    assert recipe.data.validation == str(tmp_path.parent / "held_out.csv")
    assert recipe.output == str(tmp_path / "runs")
    assert recipe.folder == tmp_path
    (tmp_path / "deep" / "er").mkdir(parents=True)
    assert load_recipe(write(recipe.to_yaml(), "deep/er/recipe.yaml")) == recipe


def test_paths_of_overrides_are_looked_for_where_the_command_is_given(tmp_path, write, monkeypatch):
    (tmp_path / "here").mkdir()
    path = write(BARE)
    monkeypatch.chdir(tmp_path / "here")
    recipe = load_recipe(path, ["data.validation=held_out.csv"])
    assert recipe.data.train == str(tmp_path / "rows.csv")
    assert recipe.data.validation == str(tmp_path / "here" / "held_out.csv")
    assert recipe.output == str(tmp_path / "here" / "runs")


def test_a_name_on_the_hub_and_python_references_stay_as_they_are(write):
    assert load_recipe(write(BARE)).model == "some/encoder"
    recipe = load_recipe(write(PYTHON))
    assert (recipe.model, recipe.data.train, recipe.data.collate) == ("mine:build", "mine:rows", "mine:join")


@pytest.mark.parametrize("text", [RECIPE, BARE, CAUSAL, PYTHON])
def test_a_written_recipe_is_read_back_equal(write, text):
    recipe = load_recipe(write(text), ["train.seed=3"])
    assert load_recipe(write(recipe.to_yaml())) == recipe
    assert load_recipe(write(recipe.to_yaml(defaults=False))) == recipe
    assert load_recipe(write(recipe.to_yaml())).hash() == recipe.hash()


@pytest.mark.slow
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.text(st.characters(codec="utf-8", exclude_categories=("Cc", "Cs")), min_size=1, max_size=12))
def test_any_column_name_survives_writing(write, text):
    recipe = load_recipe(write(BARE))
    data = dataclasses.replace(recipe.data, label=text, text=(text, "b"))
    recipe = dataclasses.replace(recipe, data=data)
    assert load_recipe(write(recipe.to_yaml())) == recipe


@pytest.mark.parametrize("setting", COLUMNS)
def test_a_column_whose_name_looks_like_a_function_is_no_code(write, setting):
    recipe = load_recipe(write(BARE))
    one = setting in (
        "pair",
        "positive",
        "negative",
        "label",
        "completion",
        "target",
        "image",
        "audio",
        "time",
    )
    columns = {setting: "q:b" if one else ("q:b", "q:c")}
    recipe = dataclasses.replace(recipe, data=dataclasses.replace(recipe.data, **columns))
    assert written_code(recipe) == {}


@pytest.mark.parametrize(
    "text", ["5e-5", "1e5", "no", "yes", "null", "~", "true", "010", "2026-11-20", "a: b", "*a", "- a", ""]
)
def test_text_that_looks_like_something_else_survives_writing(write, text):
    recipe = load_recipe(write(BARE))
    recipe = dataclasses.replace(recipe, data=dataclasses.replace(recipe.data, label=text))
    assert load_recipe(write(recipe.to_yaml())) == recipe
    assert yaml.safe_load(recipe.to_yaml())["data"]["label"] == text


def test_a_short_recipe_holds_only_what_differs(write):
    short = yaml.safe_load(load_recipe(write(BARE), ["train.epochs=1"]).to_yaml(defaults=False))
    assert list(short) == ["name", "task", "model", "data", "train"]
    assert (list(short["data"]), short["train"]) == (["train"], {"epochs": 1.0})


def test_only_what_decides_the_updates_changes_the_hash(write):
    path = write(RECIPE)
    original = load_recipe(path).hash()
    for same in (
        "plan.micro_batch=4",
        "plan.device=cpu",
        "name=b",
        "output=/elsewhere",
        "checkpoint.every=3",
        "track.mlflow=false",
    ):
        assert load_recipe(path, [same]).hash() == original, same
    for other in (
        "train.seed=1",
        "plan.numerics=bf16",
        "techniques.ema.decay=0.5",
        "data.max_length=32",
        "optimizer=sgd",
    ):
        assert load_recipe(path, [other]).hash() != original, other


def test_the_hash_does_not_depend_on_where_the_project_lies(tmp_path):
    hashes = []
    for place in ("one", "two"):
        (tmp_path / place).mkdir()
        (tmp_path / place / "my.yaml").write_text(RECIPE)
        hashes.append(load_recipe(tmp_path / place / "my.yaml").hash())
    assert hashes[0] == hashes[1]


def test_a_password_of_the_tracker_is_written_nowhere(write):
    recipe = load_recipe(write(BARE), ["track.uri=https://me:secret@host/mlflow"])
    assert recipe.track.uri == "https://me:secret@host/mlflow"
    assert "secret" not in recipe.to_yaml()
    assert "secret" not in str(recipe.as_dict())


def test_a_recipe_cannot_be_changed(write):
    recipe = load_recipe(write(BARE))
    with pytest.raises(dataclasses.FrozenInstanceError):
        recipe.train.seed = 1


@pytest.mark.parametrize("text", [RECIPE, BARE, CAUSAL, PYTHON])
def test_the_schema_accepts_recipes_as_written_and_as_resolved(write, text):
    schema().validate(yaml.safe_load(text.replace("3e-5", "3.0e-5")))
    schema().validate(load_recipe(write(text)).as_dict())


@pytest.mark.parametrize(
    "change",
    [
        {"trane": {}},
        {"train": {"epoch": 1}},
        {"train": {"epochs": 0}},
        {"task": "text"},
        {"optimizer": "ema"},
        {"optimizer": {"adamw": {"lr": 1}}},
        {"optimizer": {"adamw": {}, "sgd": {}}},
        {"techniques": ["sgd"]},
        {"techniques": [{"ema": {"decay": "much"}}]},
        {"data": {}},
    ],
)
def test_the_schema_refuses_what_the_recipe_refuses(write, change):
    recipe = {**yaml.safe_load(BARE), **change}
    assert not schema().is_valid(recipe)
    with pytest.raises(SettingError):
        load_recipe(write(yaml.safe_dump(recipe)))


def test_the_schema_tells_what_every_setting_means():
    schema = json_schema()
    sections = [schema, *(s for name, s in schema["$defs"].items() if name not in techniques.discover())]
    for section in sections:
        for name, entry in section["properties"].items():
            assert "description" in entry or "$ref" in entry, name


def test_an_adapter_that_goes_on_is_looked_for_beside_the_recipe_and_is_part_of_what_is_learned(
    write, tmp_path
):
    plain = load_recipe(write(BARE + "techniques: [{lora: {}}]\n"))
    assert "start" not in plain.learned()["techniques"][0]["lora"], "runs of before do not know it"
    recipe = load_recipe(write(BARE + "techniques: [{lora: {start: runs/a}}]\n"))
    assert recipe.techniques[0].start == str(tmp_path / "runs" / "a")
    assert recipe.hash() != plain.hash()


def test_trackers_may_be_a_list_of_names(write):
    text = BARE + "track: [mlflow, tensorboard]\n"
    track = load_recipe(write(text)).track
    assert (track.mlflow, track.tensorboard, track.wandb, track.others) == (True, True, False, ())
    schema().validate(yaml.safe_load(text))
    changed = load_recipe(write(text), ["track.mlflow=false", "track.experiment=news"]).track
    assert (changed.mlflow, changed.tensorboard, changed.experiment) == (False, True, "news")
    assert load_recipe(write(BARE), ["track=[tensorboard]"]).track.mlflow is False
    with pytest.raises(SettingError, match=r"there is no tracker 'tensorbord'. Did you mean 'tensorboard'\?"):
        load_recipe(write(BARE + "track: [mlflow, tensorbord]\n"))
