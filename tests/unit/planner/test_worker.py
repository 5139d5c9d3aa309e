"""The planner's own process: what it returns, what it raises, and how it ends."""

from __future__ import annotations

import gc
import os
import pickle
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from queue import Queue
from typing import Any

import pytest
import torch

from snugfit.errors import DataError, MissingExtra, PlannerFailed, SettingError
from snugfit.planner.choice import channel
from snugfit.planner.choice.channel import Progress
from snugfit.planner.target import Target
from snugfit.planner.worker import Worker, _listen, _read
from snugfit.run.plans.planning import _patience
from snugfit.system.pickling import dumps


def refuse() -> None:
    raise DataError.from_text("data.train: rows.csv is not there.")


def lack() -> None:
    raise MissingExtra("bitsandbytes", "quantization")


def die() -> None:
    print("the last words")
    os._exit(3)


def hang() -> None:
    time.sleep(60)


def search_until_interrupted() -> str:
    channel.tell(1, 90, 12.5, 2**30)
    while not channel.interrupted():
        time.sleep(0.01)
    return "the best so far"


def search_on_and_on() -> None:
    search_until_interrupted()
    channel.tell(2, 90)
    hang()


def interrupt(progress: Progress) -> None:
    """Ctrl-C while the search runs."""
    raise KeyboardInterrupt


@pytest.mark.slow
def test_what_a_search_tells_reaches_who_waits_before_the_answer() -> None:
    seen: list[Progress] = []

    def tell() -> int:
        channel.tell(1, 90)
        channel.tell(2, 90, 12.5, 2**30)
        return len(seen)

    assert Worker(watch=seen.append).run(tell, timeout=120) == 0
    assert seen == [Progress(1, 90), Progress(2, 90, 12.5, 2**30)]


@pytest.mark.slow
def test_an_interrupt_ends_a_search_with_the_best_so_far_where_that_is_wanted() -> None:
    worker = Worker(watch=interrupt, best_so_far=True)
    assert worker.run(search_until_interrupted, timeout=120) == "the best so far"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("function", "best_so_far"), [(search_until_interrupted, False), (search_on_and_on, True)]
)
def test_an_interrupt_ends_the_process_where_it_is_not_and_a_second_one_in_any_case(
    function: Callable[[], object], best_so_far: bool
) -> None:
    worker = Worker(watch=interrupt, best_so_far=best_so_far)
    with pytest.raises(KeyboardInterrupt):
        worker.run(function, timeout=120)
    assert worker._process.poll() is not None


@pytest.mark.slow
def test_a_search_whose_time_is_over_gives_the_best_so_far() -> None:
    worker = Worker()
    worker.load("torch")
    assert worker.run(search_until_interrupted, timeout=20) == "the best so far"


@pytest.mark.slow
def test_an_error_of_the_function_is_raised_as_it_is() -> None:
    with pytest.raises(DataError, match=r"^data\.train: rows\.csv is not there\.$"):
        Worker().run(refuse, timeout=120)


@pytest.mark.slow
def test_a_missing_package_is_told_with_the_line_that_installs_it() -> None:
    with pytest.raises(MissingExtra, match=r"bitsandbytes is not installed.*snugfit\[quantization\]'$"):
        Worker().run(lack, timeout=120)


@pytest.mark.slow
def test_a_process_that_dies_leaves_its_last_words() -> None:
    with pytest.raises(PlannerFailed, match="ended with code 3:\nthe last words"):
        Worker().run(die, timeout=120)


@pytest.mark.slow
def test_a_process_that_takes_too_long_is_ended() -> None:
    worker = Worker()
    with pytest.raises(PlannerFailed, match=r"no answer after 0.5 seconds\. Try another\."):
        worker.run(hang, timeout=0.5, way_out="Try another.")
    assert worker._process.poll() is not None


def test_who_waited_for_a_plan_without_a_search_is_not_told_to_leave_the_search_out() -> None:
    searched, asked = _patience(Target()), _patience(Target(search=False))
    assert "search=False" in searched["way_out"] and "seconds=N" in searched["way_out"]
    assert "search" not in asked["way_out"] and "seconds=N" not in asked["way_out"]
    assert asked["timeout"] > searched["timeout"]


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


def test_a_module_whose_weights_are_parametrized_is_sent_whole() -> None:
    layer = torch.nn.utils.parametrizations.weight_norm(torch.nn.Conv1d(2, 3, 3))
    model = torch.nn.Sequential(layer, torch.nn.ReLU())
    again = pickle.loads(dumps(model))
    inputs = torch.randn(1, 2, 5)
    assert torch.equal(again(inputs), model(inputs))
    assert {name for name, _ in again.named_parameters()} == {name for name, _ in model.named_parameters()}
    assert type(again[0]).__name__ == type(layer).__name__ and isinstance(again[0], torch.nn.Conv1d)


def test_threads_that_listen_to_a_process_say_nothing_of_its_being_closed_under_them() -> None:
    # a bad row ends the command while it plans: an exception in a thread would stand beside its message
    reading, writing = os.pipe()
    os.close(writing)
    stream = os.fdopen(reading, "rb")
    stream.close()
    messages: Queue[tuple[str, Any]] = Queue()
    _read(stream, messages)
    assert messages.get_nowait() == ("ended", None)
    _listen(stream, deque())
