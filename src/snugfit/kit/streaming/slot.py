"""A slot: device memory that holds the weights of one block at a time."""

from __future__ import annotations

import time
import weakref
from collections.abc import Iterable
from concurrent.futures import Executor, Future

import torch
from torch import Tensor

from snugfit.core.scalar_reads import is_fake

_slots: weakref.WeakSet[Slot] = weakref.WeakSet()


class Slot:
    """Filled by copies from host memory; on CUDA on a stream of their own, beside what is computed meanwhile.

    `holds` is the number of the block whose weights are in it, or on their way.

    Args:
        reader: reads weights from a disk meanwhile, where they lie on one.
        timed: measure the seconds that copies take, for `seconds`.
    """

    def __init__(
        self, nbytes: int, device: torch.device, reader: Executor | None = None, timed: bool = False
    ) -> None:
        self.memory = torch.empty(nbytes, dtype=torch.uint8, device=device)
        self.holds: int | None = None
        _slots.add(self)
        self._device = device
        fake = is_fake(self.memory)  # which has no streams, and no files
        self._cuda = self.memory.is_cuda and not fake
        self._stream = torch.cuda.Stream(device) if self._cuda else None
        # a copy from memory that is not pinned would wait for the device
        self._staging = (
            torch.empty(nbytes, dtype=torch.uint8, pin_memory=self._cuda)
            if self.memory.is_cuda and reader
            else None
        )
        self._reader = None if fake else reader
        self._reading: Future[None] | None = None
        self._copied: torch.cuda.Event | None = None
        self._timed = timed
        self._spans: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []
        self._seconds = 0.0

    def load(self, number: int, source: Tensor) -> None:
        """Begin to copy the weights of that block; what has been enqueued by now may still read what is in the slot."""
        self.finish()
        self.holds = None  # if anything goes wrong
        busy = torch.cuda.current_stream(self._device).record_event() if self._cuda else None
        if self._reader is None:
            self._copy(source, busy)
        else:
            self._reading = self._reader.submit(self._copy, source, busy)
        self.holds = number

    def wait(self) -> None:
        """Let what is enqueued from now on find the weights in the slot."""
        self.finish()
        if self._copied is not None:
            torch.cuda.current_stream(self._device).wait_event(self._copied)

    def finish(self) -> None:
        """Wait until the disk has been read, and raise what went wrong there."""
        if self._reading is not None:
            reading, self._reading = self._reading, None
            try:
                reading.result()
            except BaseException:
                self.holds = None
                raise

    def drain(self) -> None:
        """Wait for the copy itself, so that the memory on either side may be given back."""
        self.finish()
        if self._copied is not None:
            self._copied.synchronize()

    def seconds(self) -> float:
        """Return seconds that the copies took, those on a device by its own clock; waits for it."""
        for begin, end in self._spans:
            end.synchronize()
            self._seconds += begin.elapsed_time(end) / 1e3
        self._spans.clear()
        return self._seconds

    def _copy(self, source: Tensor, busy: torch.cuda.Event | None) -> None:
        target = self.memory[: source.numel()]
        if self._stream is None:
            begun = time.perf_counter()
            target.copy_(source)
            self._seconds += time.perf_counter() - begun
            return
        if self._staging is not None:
            if self._copied is not None:
                self._copied.synchronize()
            source = self._staging[: source.numel()].copy_(source)
        assert busy is not None
        self._stream.wait_event(busy)
        with torch.cuda.stream(self._stream):
            begin = torch.cuda.Event(enable_timing=True) if self._timed else None
            if begin is not None:
                begin.record()
            target.copy_(source, non_blocking=True)
            end = torch.cuda.Event(enable_timing=self._timed)
            end.record()
        self._copied = end
        if begin is not None:
            self._spans.append((begin, end))


def drain(some: Iterable[Slot]) -> None:
    """Wait for the copies to all of these slots, so that the memory on either side may be given back."""
    for slot in some:
        slot.drain()


def slots() -> list[Tensor]:
    """Return the memory of all slots there are: what autograd keeps of a streamed weight lies in one, and is no activation."""
    return [slot.memory for slot in _slots]
