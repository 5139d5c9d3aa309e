"""Settings that were added later and are as runs of before had it are no change of a recipe, so that these runs go on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from snugfit.recipe import load_recipe
from snugfit.recipe.write import learned_settings

RECIPE = """\
task: causal-lm
model: decoder
data: {train: a.jsonl, validation: null}
techniques: [{lora: {rank: 2}}]
"""


def learned(folder: Path, *overrides: str) -> dict[str, Any]:
    (folder / "a.jsonl").write_text('{"text": "a"}\n')
    (folder / "r.yaml").write_text(RECIPE)
    return learned_settings(load_recipe(folder / "r.yaml", overrides))


@pytest.mark.parametrize(
    ("part", "setting", "written"),
    [
        ("data", "add_tokens", "data.add_tokens=[<a>]"),
        ("data", "documents", "data.documents=apart"),
        ("data", "document_separator", "data.document_separator=---"),
        ("techniques", "tokens", "techniques=[{lora: {rank: 2, tokens: [<a>]}}]"),
    ],
    ids=["add_tokens", "documents", "document_separator", "lora.tokens"],
)
def test_what_was_added_counts_once_it_is_set(tmp_path: Path, part: str, setting: str, written: str) -> None:
    before, after = (
        settings[0]["lora"] if isinstance(settings, list) else settings
        for settings in (learned(tmp_path)[part], learned(tmp_path, written)[part])
    )
    assert setting not in before and {**before, setting: after[setting]} == after
