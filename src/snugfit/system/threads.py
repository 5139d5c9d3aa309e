"""The threads that share an operator of torch: those of a run, and one alone while its plan is made.

A plan is made of operators on tensors that hold nothing, and of a few small ones on real numbers. For such a one threads wait for each
other longer than it takes, and far longer where another process has their processor.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch

_of_run: ContextVar[int | None] = ContextVar("_of_run", default=None)


def threads_of_run() -> int:
    """Return how many threads share an operator in the run that a plan is made of; those of this process outside of `one_thread`."""
    return _of_run.get() or torch.get_num_threads()


@contextmanager
def one_thread(of_run: int) -> Iterator[None]:
    """Temporarily compute with one thread, while `threads_of_run` gives `of_run`.

    >>> with one_thread(of_run=8):
    ...     torch.get_num_threads(), threads_of_run()
    (1, 8)
    """
    before, token = torch.get_num_threads(), _of_run.set(of_run)
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
        _of_run.reset(token)


@contextmanager
def threads_of_run_at_work() -> Iterator[None]:
    """Temporarily compute with as many threads as the run: within `one_thread`, where what a kernel takes is measured."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads_of_run())
    try:
        yield
    finally:
        torch.set_num_threads(before)
