"""New tokens whose rows no adapter trains are told."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from snugfit.tasks.common.texts import _frozen_rows
from snugfit.techniques.learning.lora import LoRA


@pytest.mark.parametrize(
    ("tokens", "techniques", "told"),
    [
        (("<a>", "<b>"), [LoRA(tokens=("<a>",))], "the rows of <b> stay"),
        (("<a>", "<b>"), [LoRA()], "the rows of <a> <b> stay"),
        (("<a>", "<b>"), [LoRA(tokens=("<a>", "<b>"))], None),
        (("<a>",), [LoRA(tokens=(7,))], None),
        (("<a>",), [], None),
        (None, [LoRA()], None),
    ],
    ids=["one", "none", "all", "by number", "no adapter", "nothing new"],
)
def test_those_that_lora_does_not_name_are_told(tokens: Any, techniques: Any, told: str | None) -> None:
    recipe: Any = SimpleNamespace(data=SimpleNamespace(add_tokens=tokens), all_techniques=lambda: techniques)
    messages = _frozen_rows(recipe)
    assert bool(messages) is (told is not None) and (told or "") in "".join(messages)
