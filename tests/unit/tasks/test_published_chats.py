"""Models that learn answers in published chat templates: they give them word for word and stop by themselves, and runs go on as they were."""

from __future__ import annotations

import json
from datetime import datetime, tzinfo
from pathlib import Path
from typing import Any

import pytest

import snugfit as sf
from snugfit.recipe import Recipe, load_recipe
from snugfit.run.call_options import RunOptions
from snugfit.run.from_recipe import train_recipe
from tests.unit.data.texts.published import PUBLISHED, tokenizer_of
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


def _write(folder: Path, template: str, rows: list[dict[str, Any]], positions: int) -> None:
    """Write a tiny decoder with the tokenizer of a published template, rows and the recipe."""
    tokenizer = tokenizer_of(template)
    tokenizer.save_pretrained(folder / "decoder")
    decoder_config(tokenizer, 48, heads=4, positions=positions).save_pretrained(folder / "decoder")
    (folder / "chats.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    (folder / "chats.yaml").write_text(RECIPE)


def _turns(*texts: str) -> dict[str, Any]:
    """Return a row in which the user and the assistant take turns."""
    return {
        "messages": [
            {"role": ("user", "assistant")[place % 2], "content": text} for place, text in enumerate(texts)
        ]
    }


@pytest.mark.slow
def test_twenty_answers_are_given_word_for_word_and_end_by_themselves(tmp_path: Path) -> None:
    answers = {f"{number}?": f"the {word}" for number, word in enumerate(_WORDS)}
    rows = [_turns(asked, answer) for asked, answer in answers.items()]
    _write(tmp_path, "qwen3", rows, positions=256)
    run = train_recipe(
        load_recipe(tmp_path / "chats.yaml", [f"output={tmp_path / 'runs'}"]), RunOptions(plan=False)
    )
    predictions = sf.load(run.run_dir).predict([{"messages": row["messages"][:1]} for row in rows])
    assert [each["answer"].rpartition("</think>")[2].strip() for each in predictions] == list(
        answers.values()
    )


class _Tomorrow(datetime):
    """A clock by which a day has passed."""

    @classmethod
    def now(cls, tz: tzinfo | None = None) -> _Tomorrow:
        return cls(2031, 1, 2, tzinfo=tz)


@pytest.mark.slow
@pytest.mark.parametrize("template", PUBLISHED)
def test_a_run_in_other_micro_batches_or_that_goes_on_the_next_day_learns_the_same(
    template: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [_turns(f"{number}?", f"the {word}", "again", word) for number, word in enumerate(_WORDS)]
    _write(tmp_path, template, rows, positions=1024)

    def recipe(*more: str) -> Recipe:
        # AdamW divides rounding by gradients that are almost 0
        few = (
            "train.updates=4",
            "train.global_batch=6",
            "data.max_length=1024",
            "optimizer={sgd: {learning_rate: 0.1}}",
        )
        return load_recipe(tmp_path / "chats.yaml", [f"output={tmp_path / 'runs'}", *few, *more])

    whole = train_recipe(recipe(), RunOptions(plan=False))
    check_parts(whole, train_recipe(recipe("plan.micro_batch=3"), RunOptions(plan=False)))
    stopped = train_recipe(recipe(), RunOptions(plan=False, stop=AfterWindows(2)))
    monkeypatch.setattr("transformers.utils.chat_template_utils.datetime", _Tomorrow)
    check_resume(whole, stopped, 2)
