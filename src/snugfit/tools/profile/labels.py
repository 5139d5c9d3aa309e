"""The watchers of a run's phases: a clock, and labels for torch's profiler."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from snugfit.kit.phases import Label

PHASE = "snugfit::"
"""Before the name of a phase, in traces."""

MODULE = "module::"
"""Before the dotted name of a module, in traces."""

BETWEEN = "between"
"""What passes in no phase: the loop itself."""

_WHOLE = ("evaluation", "save")
"""Phases within which others are a part of them."""


class Clock:
    """Seconds by phase; what passes in a phase within another one counts for the inner one.

    On CUDA the seconds are those of the device's stream, which has nothing to do while it waits for the host.

    >>> clock = Clock(torch.device("cpu"))
    >>> with clock("loss"), clock("forward"):
    ...     pass
    >>> sorted(clock.seconds())
    ['forward', 'loss']
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._open: list[str] = []
        self._marks: list[tuple[str, float | torch.cuda.Event]] = []

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        self._mark()
        self._open.append(name)
        try:
            yield
        finally:
            self._mark()
            self._open.pop()

    @contextmanager
    def running(self) -> Iterator[None]:
        """Temporarily count what is in no phase too."""
        with self(BETWEEN):
            yield

    def seconds(self) -> dict[str, float]:
        """Return what each phase took until now."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        seconds: dict[str, float] = {}
        for (_, start), (name, end) in zip(self._marks, self._marks[1:], strict=False):
            if name:
                seconds[name] = seconds.get(name, 0.0) + _passed(start, end)
        return seconds

    def _mark(self) -> None:
        """Note the moment, and the phase that ends or pauses here."""
        name = "" if not self._open else self._open[0] if self._open[0] in _WHOLE else self._open[-1]
        if self._device.type == "cuda":
            event = torch.cuda.Event(enable_timing=True)
            event.record()
            self._marks.append((name, event))
        else:
            self._marks.append((name, time.perf_counter()))


def _passed(start: float | torch.cuda.Event, end: float | torch.cuda.Event) -> float:
    if isinstance(start, float) and isinstance(end, float):
        return end - start
    assert isinstance(start, torch.cuda.Event) and isinstance(end, torch.cuda.Event)
    return float(start.elapsed_time(end)) / 1e3


def in_trace(name: str) -> AbstractContextManager[object]:
    """Return a phase as a label in the profiler's trace."""
    return torch.profiler.record_function(f"{PHASE}{name}")


def both(*labels: Label) -> Label:
    """Return a label that is several."""

    @contextmanager
    def label(name: str) -> Iterator[None]:
        with _nested([each(name) for each in labels]):
            yield

    return label


@contextmanager
def _nested(contexts: list[AbstractContextManager[object]]) -> Iterator[None]:
    if not contexts:
        yield
        return
    with contexts[0], _nested(contexts[1:]):
        yield


@contextmanager
def modules_in_trace(model: nn.Module) -> Iterator[None]:
    """Temporarily label each forward of a part of the model in the profiler's trace, by its dotted name."""
    names = {id(module): name for name, module in model.named_modules()}
    entered: list[torch.profiler.record_function] = []

    def enter(module: nn.Module, _args: object) -> None:
        entered.append(torch.profiler.record_function(f"{MODULE}{names.get(id(module), '')}"))
        entered[-1].__enter__()

    def leave(_module: nn.Module, _args: object, _outputs: object) -> None:
        entered.pop().__exit__(None, None, None)

    hooks = [
        register_module_forward_pre_hook(enter),
        register_module_forward_hook(leave, always_call=True),
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
