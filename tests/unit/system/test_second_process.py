"""A fork that computes beside the process: its answers, and what becomes of those that it cannot give."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

import pytest
import torch
from torch import nn

import snugfit as sf
from snugfit.core.job import Plan
from snugfit.planner.cost.kernel_memory import measured_bytes
from snugfit.planner.prediction.plan_needs import Planner
from snugfit.planner.target import Target, machine_of
from snugfit.planner.worker import Worker
from snugfit.system import second_process
from snugfit.system.second_process import SecondProcess
from snugfit.system.threads import one_thread
from tests.unit.planner.dry import rows_of, subject_of

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="a fork is made on Linux alone")


def serve(what: str) -> Any:
    """Do in the fork what the test asks for."""
    if what == "error":
        raise ValueError(what)
    if what == "death":
        os._exit(1)
    if what == "forever":
        while True:
            pass
    if what.startswith("with threads: "):
        with one_thread(of_run=int(what[-1])):
            return measured_bytes(torch.ops.aten.mm.default, (torch.ones(2, 2), torch.ones(2, 2)), {})
    return what, os.getpid()


@pytest.fixture
def second() -> Iterator[SecondProcess]:
    made = SecondProcess()
    made.begin(serve)
    yield made
    made.close()


def answer(second: SecondProcess, what: str) -> Any:
    second.ask((what,))
    return second.answers()[0]


def test_a_call_is_answered_by_another_process_also_after_one_that_raised_an_error(
    second: SecondProcess,
) -> None:
    what, process = answer(second, "one")
    assert what == "one" and process != os.getpid()
    assert answer(second, "error") is None
    assert answer(second, "two") == ("two", process)


def test_calls_are_answered_in_the_order_in_which_they_were_asked_for(second: SecondProcess) -> None:
    second.ask(("one",), ("error",), ("two",))
    assert [answer and answer[0] for answer in second.answers()] == ["one", None, "two"]
    assert second.answers() == []


def test_calls_and_answers_larger_than_what_a_pipe_holds_arrive(second: SecondProcess) -> None:
    calls = [str(number) * 1_000_000 for number in range(2)]
    second.ask(*((what,) for what in calls))
    assert [what for what, _ in second.answers()] == calls


def test_what_a_kernel_takes_that_threads_share_is_not_measured_in_a_fork_which_has_one(
    second: SecondProcess,
) -> None:
    assert answer(second, "with threads: 1") == 0
    assert answer(second, "with threads: 2") is None


@pytest.mark.parametrize("what", ["death", "forever"])
def test_a_process_that_does_not_answer_is_given_up_and_asked_no_more(
    second: SecondProcess, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(second_process, "_PATIENCE", 0.5)
    assert answer(second, what) is None
    assert answer(second, "one") is None


def make_one_that_is_busy(tell: Connection) -> None:
    """In a process that is killed: a fork that never answers."""
    made = SecondProcess()
    made.begin(serve)
    made.ask(("forever",))
    tell.send(made._process.pid)
    signal.pause()


def test_a_fork_ends_with_its_process_in_the_midst_of_a_call() -> None:
    """Else who reads what both write would wait for it."""
    context = multiprocessing.get_context("fork")
    told, tell = context.Pipe(duplex=False)
    process = context.Process(target=make_one_that_is_busy, args=(tell,))
    process.start()
    tell.close()
    fork = told.recv()
    try:
        process.kill()
        process.join()
        assert told.poll(5)
        with pytest.raises(EOFError):
            told.recv()
    finally:
        with suppress(ProcessLookupError):
            os.kill(fork, signal.SIGKILL)


def test_only_a_process_that_was_allowed_one_has_a_fork_and_only_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with second_process.second_process(serve) as made:
        assert made is None
    monkeypatch.setattr(second_process, "_allowed", True)
    with second_process.second_process(serve) as made:
        assert made is not None and answer(made, "one") is not None
    with second_process.second_process(serve) as made:
        assert made is None


def predictions_alone_and_beside_a_fork(name: str) -> tuple[list[str], list[str], int]:
    """In a process of the planner's own: what a plan for a device needs in two sizes, roughly and in full, and how many runs the fork made.

    A run on this processor has so many threads that what each takes for itself is most of the memory.
    """
    machine = Target(device=name)
    torch.set_num_threads(64)
    model = nn.Sequential(*[nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8)) for _ in range(24)])
    subject = subject_of(model, rows_of(rows=16), (sf.AdamW(),))
    answered = 0
    with machine_of(machine) as device:
        planner = Planner(subject, device)
        sizes = [Plan(device=device.type, micro_batch=size) for size in (16, 2)]

        def predictions() -> list[str]:
            return [
                repr(planner.predict(plan, subject.techniques, rough=rough))
                for plan in sizes
                for rough in (True, False)
            ]

        with second_process.second_process(planner.run) as planner.second:
            assert planner.second is not None
            answers = planner.second.answers

            def count() -> list[Any]:
                nonlocal answered
                found = answers()
                answered += sum(each is not None for each in found)
                return found

            planner.second.answers = count  # type: ignore[method-assign]
            with_fork = predictions()
        planner.second = None
        alone = predictions()
    return alone, with_fork, answered


@pytest.mark.slow
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="a fork needs a processor of its own")
@pytest.mark.parametrize("device", ["rtx4090", "cpu"])
def test_predictions_are_the_same_alone_and_beside_a_fork_that_makes_about_half_of_the_runs(
    device: str,
) -> None:
    """Of one pass and of eight one of two roughly; in full one of three, and two of five, in few micro-batches."""
    alone, with_fork, answered = Worker().run(predictions_alone_and_beside_a_fork, device, timeout=120)
    assert with_fork == alone and answered == 1 + 1 + 1 + 2
