from __future__ import annotations

from pathlib import Path

import pytest

from snugfit.cli.common.output import write
from snugfit.errors import RunFolderError


def test_a_file_goes_into_a_folder_that_is_not_there_yet(tmp_path: Path) -> None:
    write(tmp_path / "exports" / "hf" / "training_args.json", "{}\n")
    assert (tmp_path / "exports/hf/training_args.json").read_text() == "{}\n"


def test_a_folder_that_cannot_be_made_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(RunFolderError, match="--output: .*training_args.json cannot be written"):
        write(tmp_path / "file" / "training_args.json", "{}\n")
    assert (tmp_path / "file").read_text() == "mine"
