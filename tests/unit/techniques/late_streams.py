"""A device whose side streams are as late as they may be: a copy on one happens when somebody waits for it, and not before.

Tensors are the host's. Where the computation reads what it has not waited for, it finds what was there before. What is on the stream that
computes happens at once, so that a side stream that begins too early is not seen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Self
from unittest import mock

import torch
from torch import Tensor

from snugfit.core import gradients
from snugfit.techniques.placement import activation_offload, optimizer_offload


class LateStream:
    """A stream that does nothing until it is waited for."""

    computing: LateStream

    def __init__(self, *_: Any) -> None:
        self.waiting: list[Callable[[], Any]] = []
        self.done = 0
        self._before: LateStream | None = None

    def __enter__(self) -> Self:
        self._before, Late.now = Late.now, self
        return self

    def __exit__(self, *_: object) -> None:
        Late.now = self._before

    def record_event(self, *_: Any) -> LateEvent:
        event = LateEvent()
        event.record(self)
        return event

    def wait_event(self, event: LateEvent) -> None:
        event.synchronize()

    def wait_stream(self, other: LateStream) -> None:
        other.run(len(other.waiting))

    def run(self, until: int) -> None:
        """Do what was asked for, up to that number."""
        while self.done < until:
            work, self.done = self.waiting[self.done], self.done + 1
            work()


class LateEvent:
    """A moment of a stream."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self._stream: LateStream | None = None
        self._number = 0

    def record(self, stream: LateStream | None = None) -> None:
        self._stream = stream or Late.now or Late.computing
        self._number = len(self._stream.waiting)

    def synchronize(self) -> None:
        if self._stream is not None:
            self._stream.run(self._number)


class Late:
    """What is known of the device: the stream that computes, the one that is written to now, and copies that were late."""

    now: LateStream | None = None
    computing: LateStream
    copies = 0


@contextmanager
def late_streams(monkeypatch: Any) -> Iterator[type[Late]]:
    """Temporarily have the host be such a device, for weight streaming and all offloads."""
    Late.now, Late.computing, Late.copies = None, LateStream(), 0
    copy_, empty, to = Tensor.copy_, torch.empty, Tensor.to

    def late_copy(self: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:
        stream = Late.now
        if stream is None:
            return copy_(self, source)
        assert non_blocking
        Late.copies += 1
        stream.waiting.append(lambda: _outside(copy_, self, source))
        return self

    def late_to(self: Tensor, *args: Any, non_blocking: bool = False, **more: Any) -> Tensor:
        if not non_blocking:
            return to(self, *args, **more)
        Late.copies += 1
        arriving = torch.full_like(self, torch.nan)
        (Late.now or Late.computing).waiting.append(lambda: _outside(copy_, arriving, self))
        return arriving

    def current(*_: Any) -> LateStream:
        return Late.now or Late.computing

    with monkeypatch.context() as patch:
        for owner, name, value in (
            (activation_offload, "ASYNCHRONOUS", ("cpu",)),
            (gradients, "COPIES_BESIDE", ("cpu",)),
            (optimizer_offload, "COPIES_BESIDE", ("cpu",)),
            (Tensor, "copy_", late_copy),
            (Tensor, "to", late_to),
            (Tensor, "record_stream", lambda *_: None),
            (Tensor, "is_cuda", True),
            (torch, "empty", lambda *args, pin_memory=False, **more: empty(*args, **more)),
            (torch, "Stream", LateStream),
            (torch.cuda, "Stream", LateStream),
            (torch.cuda, "Event", LateEvent),
            (torch.cuda, "stream", lambda stream: stream),
            (torch.cuda, "current_stream", current),
            (torch.accelerator, "current_stream", current),
        ):
            patch.setattr(owner, name, value)
        yield Late


def _outside(copy_: Callable[..., Tensor], target: Tensor, source: Tensor) -> None:
    with torch.no_grad(), mock.patch.object(Late, "now", None):
        copy_(target, source)
