"""What a newcomer gets wrong in the first hour, and what is said of it."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from torch import nn

import snugfit as sf
from snugfit.data.sources import read_table
from snugfit.errors import DataError, RunFolderError, SettingError
from snugfit.recipe import located
from snugfit.results.run_folder import RECIPE, RunFolder
from snugfit.run.ending import finished_before


def test_a_compressed_file_is_said_to_be_one_with_what_decompresses_it(tmp_path: Path) -> None:
    path = tmp_path / "my rows.csv.gz"
    with gzip.open(path, "wt") as file:
        file.write("text,label\na,b\n")
    with pytest.raises(DataError, match=r"is compressed.* gunzip -k '.*my rows\.csv\.gz'"):
        read_table(str(path))


@pytest.mark.parametrize("rate", ["1e-3", None])
def test_a_rate_that_is_no_number_is_refused_by_its_setting(rate: object) -> None:
    with pytest.raises(SettingError, match=r"adamw\.learning_rate: must be positive, found"):
        sf.AdamW(learning_rate=rate)  # type: ignore[arg-type]


def test_a_schedule_as_a_keyword_is_answered_with_a_technique() -> None:
    with pytest.raises(TypeError, match=r"'schedule'\. Did you mean techniques=\[sf\.Linear\(\)\]"):
        sf.train(nn.Linear(2, 2), [], schedule="cosine")  # type: ignore[call-arg]


def test_a_command_with_a_path_that_has_spaces_can_be_pasted(tmp_path: Path) -> None:
    run = tmp_path / "my runs" / "a"
    run.mkdir(parents=True)
    (run / RECIPE).write_text("task: python\n")
    assert f"my runs/a/{RECIPE}' train.epochs=N" in finished_before(RunFolder(run))


def test_an_output_that_no_run_can_be_written_to_is_refused_and_one_that_can_is_left_as_it_was(
    tmp_path: Path,
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(
        RunFolderError, match=r"output: no run can be written to .*file/runs: .* Choose another"
    ):
        RunFolder.check_output(tmp_path / "file" / "runs")
    RunFolder.check_output(tmp_path / "new" / "runs")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_an_error_about_the_model_has_the_recipes_line(tmp_path: Path) -> None:
    recipe = tmp_path / "a.yaml"
    recipe.write_text("task: tabular-regression\nmodel: tabn\n")
    with pytest.raises(SettingError, match=r"a\.yaml:2: model: is none"), located(recipe, []):
        raise SettingError("model", "is none", "Name one.")
