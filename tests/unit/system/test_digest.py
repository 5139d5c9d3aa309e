"""Digests of content: the same for equal content in any process, another for any other."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from snugfit.system.digest import digest, digest_of_file

_LARGE = torch.arange(2_000_000, dtype=torch.float32)


@dataclass
class _Row:
    text: str
    label: int


class _Plain:
    def __init__(self, value: int) -> None:
        self.value = value


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (torch.tensor([1.0, 2.0]), torch.tensor([1.0, 2.5])),
        (torch.tensor([1, 2]), torch.tensor([1.0, 2.0])),
        (torch.zeros(2, 3), torch.zeros(3, 2)),
        (torch.tensor([1.0], dtype=torch.bfloat16), torch.tensor([1.5], dtype=torch.bfloat16)),
        (np.array([1, 2]), np.array([1, 3])),
        ({"a": 1}, {"a": 2}),
        ([1, 2], [2, 1]),
        ([[1], [2]], [[1, 2]]),
        (("a", 1), ("a", True)),
        (_Row("a", 1), _Row("a", 2)),
        (_Plain(1), _Plain(2)),
        ({"x", "y"}, {"x", "z"}),
        (_LARGE, torch.cat([_LARGE[:-1], torch.tensor([0.0])])),
    ],
)
def test_values_that_differ_have_digests_that_differ(one: Any, other: Any) -> None:
    assert digest(one) != digest(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        (torch.arange(6).reshape(2, 3).T, torch.tensor([[0, 3], [1, 4], [2, 5]])),
        (torch.from_numpy(np.zeros((3, 0), np.int64))[1], torch.zeros(0, dtype=torch.int64)),
        (np.float64(1.5), 1.5),
        ("/home/one/data/cat.png", "/mnt/two/cat.png"),
        (Path("/home/one/cat.png"), Path("/mnt/two/cat.png")),
        (_Plain(1), _Plain(1)),
    ],
)
def test_equal_content_has_one_digest_wherever_it_lies(one: Any, other: Any) -> None:
    assert digest(one) == digest(other)


def test_a_value_that_holds_itself_has_a_digest() -> None:
    loop: list[Any] = []
    loop.append(loop)
    assert len(digest(loop)) == 64


@pytest.mark.slow
def test_digests_do_not_depend_on_the_seed_of_hashes() -> None:
    code = "from snugfit.system.digest import digest; print(digest([{'b', 'a', 'c'}, {'x': 1, 'y': 2}]))"
    printed = {
        subprocess.run(
            [sys.executable, "-c", code], env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
            capture_output=True, text=True, check=True,
        ).stdout
        for seed in ("1", "2")
    }  # fmt: skip
    assert len(printed) == 1


def test_a_file_is_known_by_its_size_its_beginning_and_its_end(tmp_path: Path) -> None:
    content = bytes(3 << 20)
    for name, changed in {"same": content, "begin": b"1" + content[1:], "end": content[:-1] + b"1"}.items():
        (tmp_path / name).write_bytes(changed)
    (tmp_path / "longer").write_bytes(content + b"\0")
    (tmp_path / "whole").write_bytes(content)
    found = {path.name: digest_of_file(path) for path in tmp_path.iterdir()}
    assert found["same"] == found["whole"]
    assert len(set(found.values())) == 4
