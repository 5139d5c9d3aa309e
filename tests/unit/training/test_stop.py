"""Requests to stop: signals and time."""

from __future__ import annotations

import os
import signal
import threading
import time

import pytest

from snugfit.training.stop import StopRequest


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
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
