"""Gradients of a window: the outcome of its passes, and their sums in host memory."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor, nn

from snugfit.core.scalar_reads import is_fake, read, read_scalars
from snugfit.system.device_copies import COPIES_BESIDE
from snugfit.system.update_value import update_value


@update_value(frozen=True, slots=True)
class Gradients:
    """The outcome of a pass; the gradients themselves are in `.grad`.

    `loss` is the weighted mean, `weight` the sum of weights over micro-batches and ranks, `nonfinite` is
    above 0 when the loss or a gradient is not finite. They are scalars on the device, from which nothing has
    been read; a weight that the host knows is a number. `rows` is the sum of the window's examples over ranks, where no rank knows how many
    the others have. Where `norm`, the global one of the gradients, was measured, `nonfinite` is of the norm and the loss alone; a norm may overflow
    though all that it is of is finite, so that `exact` counts then.
    """

    loss: Tensor
    weight: Tensor | float
    nonfinite: Tensor
    rows: Tensor | None = None
    norm: Tensor | None = None
    exact: Callable[[], Tensor] | None = None

    def usable(self) -> bool:
        """Return whether an update may be made of them: finite, and of something. Waits for the device."""
        numbers = self.read()
        return numbers.weight > 0 and numbers.nonfinite == 0

    def read(self) -> Numbers:
        """Return all of it as numbers, in one wait for the device; in another one where a norm is not finite."""
        scalars, assume = [self.loss, self.nonfinite], [0.0, 0.0]
        if isinstance(self.weight, Tensor):
            scalars.append(self.weight)
            assume.append(1.0)
        if self.rows is not None:
            scalars.append(self.rows)
            assume.append(1.0)
        if self.norm is not None:
            scalars.append(self.norm)
            assume.append(math.inf)  # it is longer than any bound
        loss, nonfinite, *others = read_scalars(scalars, assume)
        norm = None if self.norm is None else others.pop()
        rows = None if self.rows is None else others.pop()
        weight = others.pop() if isinstance(self.weight, Tensor) else self.weight
        if nonfinite > 0 and self.exact is not None:
            (nonfinite,) = read_scalars([self.exact()], assume=[0.0])
        return Numbers(loss, weight, nonfinite, rows, norm)


class Numbers(NamedTuple):
    """The numbers of `Gradients`."""

    loss: float
    weight: float
    nonfinite: float
    rows: float | None = None
    norm: float | None = None


HOST = torch.device("cpu")
AHEAD = 2
"""How many gradients may be on their way before the oldest of them is waited for."""


class HostGradients:
    """Sums of gradients in host memory, each in the `.grad` of what bears it in the place of its parameter.

    Bearers have a parameter's shape and the type that its gradients are added up in, and nothing else. Copies are asynchronous on CUDA and XPU, on a stream of their own and to
    pinned memory, a few at a time; sums are in ordinary memory, and kept from window to window.
    """

    def __init__(self) -> None:
        self.bearers: dict[nn.Parameter, nn.Parameter] = {}
        self._memory: dict[nn.Parameter, Tensor] = {}
        self._arriving: deque[_Leaving] = deque()
        self._streams: dict[torch.device, torch.Stream] = {}

    def bear(self, parameters: Iterable[nn.Parameter]) -> None:
        """Have gradients of these parameters from now on."""
        for parameter in parameters:
            dtype = parameter.grad_dtype or parameter.dtype
            nothing = torch.zeros((), dtype=dtype, device=HOST).expand(parameter.shape)
            self.bearers[parameter] = nn.Parameter(nothing, nothing.is_floating_point())

    def of(self, parameter: nn.Parameter) -> Tensor | None:
        """Return the sum of a parameter's gradients; None where none has arrived."""
        return self.bearers[parameter].grad

    def in_place_of(self, parameters: Sequence[nn.Parameter]) -> list[nn.Parameter]:
        """Return what bears the gradients of these parameters: themselves where they do."""
        return [self.bearers.get(parameter, parameter) for parameter in parameters]

    def clear(self) -> None:
        """Begin anew; the memory is kept."""
        self._arriving.clear()
        for parameter, bearer in self.bearers.items():
            if bearer.grad is not None:
                self._memory[parameter] = bearer.grad
                bearer.grad = None

    @contextmanager
    def taking(self) -> Iterator[None]:
        """Temporarily let a backward leave no gradient on the device; on exit all have arrived."""
        hooks = [
            parameter.register_post_accumulate_grad_hook(self._take)
            for parameter in self.bearers
            if parameter.requires_grad
        ]
        try:
            yield
            while self._arriving:
                self._add(self._arriving.popleft())
        finally:
            for hook in hooks:
                hook.remove()

    def factor(self, factor: Tensor | float) -> Tensor | float:
        """Return a factor of the sums, on the host: waits for the device where it is there."""
        if not isinstance(factor, Tensor) or factor.device == HOST:
            return factor
        return torch.tensor(read(factor, assume=1.0), dtype=factor.dtype)

    def _take(self, parameter: nn.Parameter) -> None:
        gradient = parameter.grad
        assert gradient is not None
        parameter.grad = None
        if parameter.device.type not in COPIES_BESIDE or is_fake(gradient):
            self._arriving.append(_Leaving(parameter, gradient.to(HOST), None))
        else:
            if gradient.device not in self._streams:
                self._streams[gradient.device] = torch.Stream(gradient.device)
            stream = self._streams[gradient.device]
            stream.wait_stream(torch.accelerator.current_stream(gradient.device))
            with stream:
                arriving = gradient.to(HOST, non_blocking=True)  # to pinned memory of torch's cache
            gradient.record_stream(stream)
            self._arriving.append(_Leaving(parameter, arriving, stream.record_event()))
        while len(self._arriving) > AHEAD:
            self._add(self._arriving.popleft())

    def _add(self, leaving: _Leaving) -> None:
        parameter, arrived, event = leaving
        if event is not None:
            event.synchronize()
        bearer = self.bearers[parameter]
        if bearer.grad is not None:
            bearer.grad.add_(arrived)
            return
        memory = self._memory.pop(parameter, None)
        memory = torch.empty_like(arrived, dtype=bearer.dtype) if memory is None else memory
        bearer.grad = memory.copy_(arrived)


class _Leaving(NamedTuple):
    """A parameter whose gradient is on its way."""

    parameter: nn.Parameter
    arriving: Tensor
    event: torch.Event | None
