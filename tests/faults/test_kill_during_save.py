"""A process that is killed at any point of a save leaves the old state or the new one, whole."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow


@pytest.fixture
def in_memory() -> Iterator[Path]:
    """A folder that needs no disk, if there is such a place: hundreds of fsyncs would be waited for."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        yield Path(folder)


@pytest.mark.parametrize("damaged", [False, True], ids=["new", "in place of a damaged one"])
def test_a_kill_at_any_write_point_leaves_the_old_or_the_new_state(
    damaged: bool, start: Callable[..., Any], in_memory: Path
) -> None:
    answer = in_memory / "answer.json"
    child = start("kill_at_every_write_point", folder=in_memory / "points", damaged=damaged, answer=answer)
    assert child.wait() == 0, child.log.read_text()
    points = json.loads(answer.read_text())
    # each kind of write was met: three parts of which two have tensors, the manifest, folders, the rename, the removals
    for name, least in {
        "save_file": 2,
        "write_text": 4,
        "fsync": 8,
        "replace": 1,
        "rmtree": 2,
        "mkdir": 2,
    }.items():
        assert points["calls"].count(name) >= least, name

    for point in points["found"]:
        assert point["killed"], point
        assert point["whole"], point
        assert point["loaded"] in (2, 3), point
        assert point["next"] == 4, point
        assert point["next whole"], point
        assert len(point["left"]) == 2, point
    replaced = points["calls"].index("replace")
    for point in points["found"]:
        number = int(point["point"].rpartition("(")[2].rstrip(")"))
        if number > replaced:  # once it has its name, it is the newest
            assert point["loaded"] == 3, point
        if number < replaced:
            assert point["loaded"] == 2, point
