"""Requests to stop: signals and time."""

from __future__ import annotations

import errno
import io
import os
import signal
import sys
import threading
import time

import pytest

from snugfit.run.training.stop_requests import StopRequest, say_received


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_asks_for_a_stop_and_the_handlers_come_back(number: signal.Signals) -> None:
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    with StopRequest() as stop:
        assert (stop.reason, stop.asked) == (None, False)
        os.kill(os.getpid(), number)
        assert (stop.reason, stop.asked) == (f"received {number.name}", True)
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before


@pytest.mark.parametrize("first", [signal.SIGTERM, signal.SIGINT])
def test_an_interrupt_after_a_signal_ends_at_once(first: signal.Signals) -> None:
    before = signal.getsignal(signal.SIGINT)

    def interrupted() -> None:
        with StopRequest():
            os.kill(os.getpid(), first)
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert signal.getsignal(signal.SIGINT) == before


def test_a_second_sigterm_does_not_end_the_save_under_way() -> None:
    with StopRequest() as stop:
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.reason == "received SIGTERM"


def test_a_closed_terminal_asks_for_a_stop_unless_that_is_ignored_as_under_nohup() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with StopRequest() as stop:
            os.kill(os.getpid(), signal.SIGHUP)
            assert stop.reason is None
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_the_first_signal_is_answered_once_while_the_main_thread_is_in_an_operator(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said: list[str] = []
    answered = threading.Event()

    def say(name: str) -> None:
        said.append(name)
        answered.set()

    monkeypatch.setattr("snugfit.run.training.stop_requests.say_received", say)
    wakeup = signal.set_wakeup_fd(-1)
    signal.set_wakeup_fd(wakeup)
    with StopRequest() as stop:
        os.kill(os.getpid(), signal.SIGHUP)
        assert answered.wait(20)
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.reason == "received SIGTERM"
    assert said == ["SIGHUP"]
    assert signal.set_wakeup_fd(-1) == wakeup


def test_an_answer_to_a_terminal_that_is_gone_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    class Gone(io.StringIO):
        def write(self, text: str) -> int:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(sys, "stderr", Gone())
    say_received("SIGINT")


def test_time_asks_for_a_stop() -> None:
    now = time.monotonic()
    assert StopRequest(after_seconds=60, started=now - 59).reason is None
    assert StopRequest(after_seconds=60, started=now - 61).reason == "stopped after 1m 00s as asked"
    assert StopRequest(after_seconds=60).reason is None


def test_outside_the_main_thread_signals_are_left_alone() -> None:
    before = signal.getsignal(signal.SIGTERM)
    during = []

    def run() -> None:
        with StopRequest(after_seconds=0) as stop:
            during.extend([signal.getsignal(signal.SIGTERM), stop.asked])

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert during == [before, True]


def test_whoever_watches_a_run_may_ask_for_a_stop_and_a_signal_is_named_first() -> None:
    reasons: list[str] = []
    with StopRequest(asked_for=lambda: reasons[-1] if reasons else None) as stop:
        assert not stop.asked
        reasons.append("it is behind")
        assert stop.reason == "it is behind"
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.reason == "received SIGTERM"
