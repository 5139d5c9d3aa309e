"""Files that appear whole: a reader sees the old one or the new one, and nothing is left of one that failed."""

from __future__ import annotations

from pathlib import Path

import pytest

from snugfit.system.disk_files import whole_file


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_what_fails_leaves_the_old_file_alone(error: BaseException, tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text("old")

    def write() -> None:
        with whole_file(path) as draft:
            draft.write_text("half")
            assert path.read_text() == "old"
            raise error

    with pytest.raises(type(error)):
        write()
    assert [(each.name, each.read_text()) for each in tmp_path.iterdir()] == [("a.json", "old")]


def test_two_writers_have_drafts_of_their_own_and_a_private_file_is_its_owners(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    with whole_file(path, private=True) as first, whole_file(path) as second:
        first.write_text("first")
        second.write_text("second")
        assert first.stat().st_mode & 0o077 == 0
    assert path.read_text() == "first" and list(tmp_path.iterdir()) == [path]
    assert path.stat().st_mode & 0o077 == 0
