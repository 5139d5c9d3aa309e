"""A setting is written back into a recipe's file, and nothing else of it changes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from snugfit.errors import SettingError
from snugfit.recipe import load_recipe
from snugfit.recipe.edit import check_write_back, write_back

HEAD = """\
# mine
task: text-classification   # what it does
model: m
data: {train: rows.csv}
"""
RATE = ("optimizer", "adamw", "learning_rate")
SIZE = ("plan", "micro_batch")


def written(tmp_path: Path, text: str, changes: dict[tuple[str, ...], Any], *overrides: str) -> str:
    path = tmp_path / "mine.yaml"
    path.write_bytes(text.encode())
    write_back(path, overrides, changes)
    return path.read_bytes().decode()


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (
            "optimizer: {adamw: {learning_rate: 1.0e-2}} # why",
            "optimizer: {adamw: {learning_rate: 3e-5}} # why",
        ),
        (
            "optimizer:\n  adamw:\n    # high\n    learning_rate: 0.01  # why\n    weight_decay: 0.1",
            "optimizer:\n  adamw:\n    # high\n    learning_rate: 3e-5  # why\n    weight_decay: 0.1",
        ),
        ("optimizer: adamw  # plain", "optimizer: {adamw: {learning_rate: 3e-5}}  # plain"),
        (
            "optimizer:\n  adamw:\ntrain: {epochs: 1}",
            "optimizer:\n  adamw: {learning_rate: 3e-5}\ntrain: {epochs: 1}",
        ),
        ("optimizer: {adamw: {}}", "optimizer: {adamw: {learning_rate: 3e-5}}"),
        (
            "optimizer: {adamw: {weight_decay: 0.1}}",
            "optimizer: {adamw: {learning_rate: 3e-5, weight_decay: 0.1}}",
        ),
        (
            "optimizer:\n  adamw:\n    weight_decay: 0.1 # w",
            "optimizer:\n  adamw:\n    learning_rate: 3e-5\n    weight_decay: 0.1 # w",
        ),
        ("preset: fine_tune", "preset: fine_tune\noptimizer: {adamw: {learning_rate: 3e-5}}"),
    ],
)
@pytest.mark.parametrize("line", ["\n", "\r\n"])
def test_the_rate_is_changed_where_it_is_written(tmp_path: Path, before: str, after: str, line: str) -> None:
    found = written(tmp_path, f"{HEAD}{before}\n".replace("\n", line), {RATE: 3e-5})
    assert found == f"{HEAD}{after}\n".replace("\n", line)
    assert load_recipe(tmp_path / "mine.yaml").optimizer.learning_rate == 3e-5  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("plan: {device: cpu, micro_batch: auto}", "plan: {device: cpu, micro_batch: 4}"),
        ("plan:\n  micro_batch: null\n", "plan:\n  micro_batch: 4\n"),
        ("plan:\n  micro_batch:\n", "plan:\n  micro_batch: 4\n"),
        ("plan:\n  device: cpu\n", "plan:\n  micro_batch: 4\n  device: cpu\n"),
        ("# end", "# end\nplan: {micro_batch: 4}\n"),
        ("", "plan: {micro_batch: 4}\n"),
    ],
)
def test_the_micro_batch_is_changed_or_added(tmp_path: Path, before: str, after: str) -> None:
    assert written(tmp_path, HEAD + before, {SIZE: 4}) == HEAD + after


def test_a_file_in_one_line_and_one_with_a_mark_of_its_bytes_are_kept_so(tmp_path: Path) -> None:
    flow = "{task: text-classification, model: m, data: {train: rows.csv}}\n"
    assert written(tmp_path, flow, {SIZE: 4}) == "{plan: {micro_batch: 4}, " + flow[1:]
    assert written(tmp_path, f"\ufeff{HEAD}plan: {{micro_batch: 2}}\n", {SIZE: 4}) == (
        f"\ufeff{HEAD}plan: {{micro_batch: 4}}\n"
    )


def test_several_settings_are_written_at_once_and_told_with_their_lines(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(f"{HEAD}optimizer:\n  muon:\n    learning_rate: 0.02\n")
    place = ("optimizer", "muon")
    lines = write_back(path, (), {(*place, "learning_rate"): 0.1, (*place, "adamw_learning_rate"): 0.0015})
    assert lines == (f"{path}:7: adamw_learning_rate: 0.0015", f"{path}:8: learning_rate: 0.1")
    assert load_recipe(path).as_dict()["optimizer"]["muon"]["adamw_learning_rate"] == 0.0015


def test_a_folder_in_which_nothing_can_be_written_is_said_before_values_are_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(HEAD)
    check_write_back(path, (), {SIZE: (1, 2)})
    monkeypatch.setattr(os, "access", lambda folder, mode: (folder, mode) != (tmp_path, os.W_OK))
    with pytest.raises(SettingError, match="its folder is read-only"):
        check_write_back(path, (), {SIZE: (1, 2)})
    assert path.read_text() == HEAD


def test_a_link_stays_a_link_and_the_mode_is_kept(tmp_path: Path) -> None:
    real, link = tmp_path / "real.yaml", tmp_path / "link.yaml"
    real.write_text(HEAD)
    real.chmod(0o640)
    link.symlink_to(real)
    write_back(link, (), {SIZE: 4})
    assert link.is_symlink() and "micro_batch: 4" in real.read_text() and real.stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize(
    ("text", "changes", "override"),
    [
        ("optimizer: {adamw: {learning_rate: 0.1}}\n", {RATE: 0.2}, "optimizer.adamw.learning_rate=0.3"),
        (
            "optimizer: {adamw: {learning_rate: 0.1}}\n",
            {("optimizer", "sgd", "learning_rate"): 0.2},
            "optimizer=sgd",
        ),
        ("plan: {micro_batch: 2}\n", {SIZE: 4}, "plan.micro_batch=8"),
    ],
)
def test_what_an_override_decides_is_not_written(
    tmp_path: Path, text: str, changes: dict[tuple[str, ...], Any], override: str
) -> None:
    with pytest.raises(SettingError, match="cannot be written there: an override sets it too"):
        written(tmp_path, HEAD + text, changes, override)
    assert (tmp_path / "mine.yaml").read_text() == HEAD + text


def test_another_override_is_no_hindrance_and_does_not_get_into_the_file(tmp_path: Path) -> None:
    found = written(
        tmp_path, f"{HEAD}plan: {{micro_batch: 2}}\n", {SIZE: 4}, "train.epochs=1", "plan.device=cpu"
    )
    assert found == f"{HEAD}plan: {{micro_batch: 4}}\n"
