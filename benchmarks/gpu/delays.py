"""Delays before copies, so that a missing wait between streams shows: late copies, and late computation."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Literal
from unittest import mock

import torch
from torch import Tensor

CYCLES = 3_000_000
"""At most so many before a copy: one and a half milliseconds, which is longer than any layer of these models computes."""

Late = Literal["copies", "computation"]


@dataclass
class Delayed:
    """Copies that were seen: all, and those on a stream of their own."""

    copies: int = 0
    on_own_stream: int = 0


@contextmanager
def delayed(late: Late) -> Iterator[Delayed]:
    """Temporarily sleep on the device before each copy: on the copy's own stream, or on the one that computes.

    On a CPU copies are counted, and nothing sleeps.
    """
    seen = Delayed()
    drawn = random.Random(0)

    def before() -> None:
        seen.copies += 1
        if not torch.cuda.is_available() or not torch.cuda.is_initialized():
            return
        own_stream = torch.cuda.current_stream() != torch.cuda.default_stream()
        seen.on_own_stream += own_stream
        cycles = drawn.randrange(CYCLES)
        if late == "copies":  # also those that only the host has to wait for
            torch.cuda._sleep(cycles)
        elif own_stream:
            with torch.cuda.stream(torch.cuda.default_stream()):
                torch.cuda._sleep(cycles)

    def with_delay(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            before()
            return function(*args, **kwargs)

        return call

    with ExitStack() as stack:
        for owner, name in ((Tensor, "copy_"), (Tensor, "to"), (torch, "_foreach_copy_")):
            stack.enter_context(mock.patch.object(owner, name, with_delay(getattr(owner, name))))
        yield seen
