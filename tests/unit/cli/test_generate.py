"""What `snugfit generate` is asked that goes unheard is refused, before a model is loaded."""

from __future__ import annotations

import pytest

from snugfit.cli.app import main
from snugfit.errors import SettingError
from snugfit.kit.language_models.generation import Generation


@pytest.mark.parametrize(
    ("asked", "setting"),
    [
        (("--prompt", "hi", "-o", "answers.jsonl"), "--output"),
        (("-o", "answers.jsonl"), "--output"),
        (("rows.jsonl", "-o", "answers.jsonl", "--system", "Be brief."), "--system"),
        (("--prompt", " "), "--prompt"),
    ],
)
def test_an_option_that_goes_unheard_is_refused_by_name(
    asked: tuple[str, ...], setting: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["generate", "runs/chats/1", *asked]) == 2
    assert capsys.readouterr().err.startswith(f"error: {setting}: ")


def test_a_part_of_the_tokens_is_not_drawn_from_at_temperature_0() -> None:
    with pytest.raises(SettingError, match="^top_p: is 0.5, by which tokens are drawn"):
        Generation(top_p=0.5)
    assert Generation(top_p=0.5, temperature=1.0).top_p == 0.5
