"""A model that learns twenty answers in a published chat template gives them word for word, and stops by itself."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import snugfit as sf
from snugfit.recipe import load_recipe
from snugfit.run.call_options import RunOptions
from snugfit.run.from_recipe import train_recipe
from tests.unit.data.texts.published import tokenizer_of
from tests.unit.tasks.tiny_decoder import decoder_config
from tests.unit.tasks.trained_runs import AfterWindows, check_parts, check_resume

RECIPE = """\
name: chats
task: instruction
model: decoder
from_scratch: true
data: {train: chats.jsonl, validation: null, max_length: 256}
train: {updates: 150, global_batch: 20}
optimizer: {adamw: {learning_rate: 1.0e-2}}
schedule: constant
techniques: [{clip_norm: {max_norm: 1.0}}]
plan: {device: cpu, numerics: fp32}
track: {mlflow: false}
"""
_WORDS = (
    "amber",
    "birch",
    "cedar",
    "delta",
    "ember",
    "flint",
    "grove",
    "heron",
    "inlet",
    "jetty",
    "knoll",
    "larch",
    "maple",
    "north",
    "ocean",
    "petal",
    "quartz",
    "ridge",
    "slate",
    "thorn",
)


@pytest.mark.slow
def test_twenty_answers_are_given_word_for_word_and_end_by_themselves(tmp_path: Path) -> None:
    tokenizer = tokenizer_of("qwen3")
    tokenizer.save_pretrained(tmp_path / "decoder")
    decoder_config(tokenizer, 48, heads=4, positions=256).save_pretrained(tmp_path / "decoder")
    answers = {f"{number}?": f"the {word}" for number, word in enumerate(_WORDS)}
    rows = [
        {"messages": [{"role": "user", "content": asked}, {"role": "assistant", "content": answer}]}
        for asked, answer in answers.items()
    ]
    (tmp_path / "chats.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    (tmp_path / "chats.yaml").write_text(RECIPE)

    def recipe(*more: str) -> object:
        return load_recipe(tmp_path / "chats.yaml", [f"output={tmp_path / 'runs'}", *more])

    run = train_recipe(recipe(), RunOptions(plan=False))
    predictions = sf.load(run.run_dir).predict([{"messages": row["messages"][:1]} for row in rows])
    assert [each["answer"].rpartition("</think>")[2].strip() for each in predictions] == list(
        answers.values()
    )
    few = ("train.updates=4",)
    whole = train_recipe(recipe(*few), RunOptions(plan=False))
    check_parts(whole, train_recipe(recipe(*few, "plan.micro_batch=3"), RunOptions(plan=False)))
    check_resume(whole, train_recipe(recipe(*few), RunOptions(plan=False, stop=AfterWindows(2))), 2)
