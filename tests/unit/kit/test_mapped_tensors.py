"""Weights that are read from a file lie in it, and do not count as the process's own memory."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from snugfit.kit.mapped_tensors import bytes_in_files


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="/proc tells where files lie")
def test_what_is_read_from_safetensors_lies_in_its_file_and_what_is_made_does_not(tmp_path: Path) -> None:
    save_file({"weight": torch.ones(300, 100), "bias": torch.zeros(100)}, tmp_path / "model.safetensors")
    read = load_file(tmp_path / "model.safetensors")
    assert bytes_in_files(read.values()) >= 4 * 30_000
    made = {name: each.clone() for name, each in read.items()}
    assert bytes_in_files(made.values()) == 0
    assert bytes_in_files([*read.values(), *read.values()]) == bytes_in_files(read.values())
