"""The planner's own process: what it returns, what it raises, and how it ends."""

from __future__ import annotations

import gc
import os
import sys
import threading
import time

import pytest

from snugfit.errors import DataError, MissingExtra, PlannerFailed, SettingError
from snugfit.planner.worker import Worker


def refuse() -> None:
    raise DataError("data.train: rows.csv is not there.")


def lack() -> None:
    raise MissingExtra("bitsandbytes", "quantization")


def die() -> None:
    print("the last words")
    os._exit(3)


def hang() -> None:
    time.sleep(60)


@pytest.mark.slow
def test_an_error_of_the_function_is_raised_as_it_is() -> None:
    with pytest.raises(DataError, match=r"^data\.train: rows\.csv is not there\.$"):
        Worker().run(refuse, timeout=120)


@pytest.mark.slow
def test_a_missing_package_is_told_with_the_line_that_installs_it() -> None:
    with pytest.raises(MissingExtra, match=r"^bitsandbytes is not installed.*snugfit\[quantization\]'$"):
        Worker().run(lack, timeout=120)


@pytest.mark.slow
def test_a_process_that_dies_leaves_its_last_words() -> None:
    with pytest.raises(PlannerFailed, match="ended with code 3:\nthe last words"):
        Worker().run(die, timeout=120)


@pytest.mark.slow
def test_a_process_that_takes_too_long_is_ended() -> None:
    worker = Worker()
    with pytest.raises(PlannerFailed, match="no answer after 0.5 seconds"):
        worker.run(hang, timeout=0.5)
    assert worker._process.poll() is not None


@pytest.mark.slow
def test_what_cannot_be_sent_is_refused_at_once() -> None:
    worker = Worker()
    with pytest.raises(SettingError, match="cannot be handed to a process of its own"):
        worker.run(print, threading.Lock(), timeout=120)
    assert worker._process.poll() is not None


@pytest.mark.slow
def test_what_it_is_told_to_load_is_there_when_it_is_asked_and_what_is_missing_is_no_error() -> None:
    worker = Worker()
    worker.load("colorsys")
    worker.load("there_is_no_such_module", "chunk")
    assert worker.run(lambda: {"colorsys", "chunk"} - set(sys.modules), timeout=120) == set()


@pytest.mark.slow
def test_garbage_is_looked_for_as_usual_while_the_function_runs_and_not_in_the_libraries() -> None:
    usual = gc.get_threshold()
    found, frozen = Worker().run(lambda: (gc.get_threshold(), gc.get_freeze_count()), timeout=120)
    assert found == usual and frozen > 100_000


@pytest.mark.slow
def test_a_process_that_has_died_is_told_when_it_is_asked_and_not_when_it_is_to_load() -> None:
    worker = Worker()
    worker._process.kill()
    worker._process.wait()
    worker.load("colorsys")
    with pytest.raises(PlannerFailed, match="ended with code -9"):
        worker.run(divmod, 7, 2, timeout=120)


@pytest.mark.slow
def test_a_function_of_a_script_is_sent_by_value() -> None:
    factor = 3
    assert Worker().run(lambda number: number * factor, 14, timeout=120) == 42
