"""Ctrl-C while a library is imported that drops it."""

from __future__ import annotations

import signal
import sys
import time
from importlib import import_module
from pathlib import Path

import pytest

from snugfit.cli.common import interrupts
from snugfit.cli.common.interrupts import whole_imports

DROPS = """\
import signal, time
try:
    signal.raise_signal(signal.SIGINT)
    time.sleep(0.2)
except KeyboardInterrupt:
    pass
there = True
"""


@pytest.mark.usefixtures("interruptible")
def test_a_library_that_drops_an_interrupt_is_imported_whole_and_the_interrupt_comes_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "drops_interrupts.py").write_text(DROPS)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(interrupts, "_WHOLE", ("drops_interrupts",))

    def command() -> None:
        import_module("drops_interrupts")
        time.sleep(10)

    with pytest.raises(KeyboardInterrupt), whole_imports():
        command()
    assert sys.modules["drops_interrupts"].there
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.usefixtures("interruptible")
def test_at_any_other_time_it_comes_at_once() -> None:
    with pytest.raises(KeyboardInterrupt), whole_imports():
        signal.raise_signal(signal.SIGINT)


def test_a_handler_that_is_there_already_stays() -> None:
    received: list[int] = []
    previous = signal.signal(signal.SIGINT, lambda number, _: received.append(number))
    try:
        with whole_imports():
            signal.raise_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, previous)
    assert received == [signal.SIGINT]
