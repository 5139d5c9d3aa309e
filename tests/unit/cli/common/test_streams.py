"""Output to a terminal or a pipe that is gone."""

from __future__ import annotations

import errno
import io
import os
import sys

import pytest

from snugfit.cli import main
from snugfit.cli.common.streams import LastingStream, lasting_streams


def test_what_is_written_to_a_pipe_that_nobody_reads_is_dropped() -> None:
    read, write = os.pipe()
    with os.fdopen(write, "w") as pipe:
        stream = LastingStream(pipe)
        os.close(read)
        for _ in range(2):
            assert stream.write("lost\n") == 5
            stream.flush()
        stream.writelines(["lost\n"])
        pipe.flush()  # as the interpreter does at its end: it goes nowhere


@pytest.mark.parametrize(("number", "raises"), [(errno.EIO, False), (errno.ENOSPC, True)])
def test_a_terminal_that_is_gone_is_no_error_and_a_full_disk_is_one(number: int, raises: bool) -> None:
    class Failing(io.StringIO):
        def write(self, text: str) -> int:
            raise OSError(number, os.strerror(number))

    stream = LastingStream(Failing())
    if raises:
        with pytest.raises(OSError, match="No space left"):
            stream.write("result")
    else:
        assert stream.write("result") == 6


def test_a_stream_that_lasts_is_otherwise_the_stream(capsys: pytest.CaptureFixture[str]) -> None:
    before = sys.stdout
    with lasting_streams():
        assert sys.stdout.isatty() == before.isatty()
        print("said")
    assert sys.stdout is before
    assert capsys.readouterr().out == "said\n"


def test_a_command_whose_reader_has_gone_ends_with_the_code_that_it_would_have(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as pipe:
        monkeypatch.setattr(sys, "stdout", pipe)
        assert main(["techniques"]) == 0
        assert main(["resume", "nowhere", "--json"]) == 2


def test_what_a_stream_has_no_character_for_is_shown_by_its_number() -> None:
    raw = io.BytesIO()
    stream = LastingStream(io.TextIOWrapper(raw, encoding="ascii"))
    stream.write("no way \udcff ü\n")
    stream.flush()
    assert raw.getvalue() == b"no way \\udcff \\xfc\n"
