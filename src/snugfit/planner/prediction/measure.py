"""The needs of a plan, measured: the real step on the device itself with few examples, carried on to the micro-batch.

For models that cannot be run on fake tensors. Weights are made anew, at random: what a model does with the numbers of trained ones is
not seen.
"""

from __future__ import annotations

import gc
import math
import time
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from snugfit.core.batch import Batch
from snugfit.core.job import AUTO, Plan
from snugfit.core.losses import couples_rows, find_loss
from snugfit.core.random import preserved_randomness
from snugfit.core.technique import Technique
from snugfit.core.tree import leaves
from snugfit.errors import SettingError
from snugfit.kit.batch_norm import has_batch_norm
from snugfit.kit.phases import watched
from snugfit.planner.answers.answer import Prediction
from snugfit.planner.devices.device import Device, Machine
from snugfit.planner.trace.dry_run import Subject, longest_rows
from snugfit.planner.trace.fake_tensors import fake_
from snugfit.step.build import Material, make_step
from snugfit.step.find_micro_batch import Forecast
from snugfit.step.step import Step
from snugfit.system.allocation_counter import AllocatedBytes
from snugfit.system.malloc import resident_bytes
from snugfit.system.memory import has_statistics, release_memory

_REPEATS = 3
"""Updates that are timed; the quickest counts."""

_SPREAD = 0.02
"""Standard deviation of weights that no layer makes anew."""


def measure(subject: Subject, plan: Plan, techniques: Sequence[Technique], machine: Machine) -> Prediction:
    """Return the bytes and the seconds that a plan needs.

    They are of updates with one and two rows a micro-batch, carried on in a straight line for each operator,
    and for the time of all.

    Twice as many rows where they depend on each other. Evaluation and saving are not measured.

    Raises:
        SettingError: the machine's device is not here.
        OutOfMemory: two rows are too many.
    """
    device = torch.device(machine.type)
    if device.type != "cpu" and not torch.accelerator.is_available():
        raise SettingError(
            "probe",
            f"measures on the device itself, and this machine has no {machine.device.name}",
            "Run it where the device is.",
        )
    rows = subject.window.rows
    size = rows if plan.micro_batch in (None, AUTO) else min(int(plan.micro_batch), rows)
    count = math.ceil(rows / size)
    least = 2 if _coupled(subject, techniques) else 1
    with preserved_randomness(device):
        low, high = (
            _measured(subject, plan, techniques, device, each, min(count, 2)) for each in (least, 2 * least)
        )

    def carried(first: float, second: float) -> float:
        return first + max(second - first, 0.0) * (size - least) / least

    sizes = (least, 2 * least)
    # all rows of the window lie on the device, of which two micro-batches were measured
    further = (rows - min(count, 2) * size) * sum(each.nbytes for each in leaves(subject.window.data)) // rows
    peak = Forecast(sizes, (low.history, high.history)).at(size) + high.workspace + max(0, further)
    host = Forecast(sizes, (low.host, high.host)).at(size)
    seconds = count * carried(low.pass_seconds, high.pass_seconds) + high.other_seconds
    flops = round(count * carried(low.flops, high.flops))
    held = {"weights": high.weights, "optimizer": high.states}
    lengths = subject.window.lengths
    on_cpu = device.type == "cpu"
    return Prediction(
        peak_bytes=peak,
        peak_by_kind={**held, "activations": peak - sum(held.values())},
        peak_at={"segment": high.phase, "module": "", "operator": ""},
        reserved_bytes=resident_bytes(peak, machine.baseline)
        if on_cpu
        else round(peak * high.reserved) + machine.device.reserved,
        host_peak_bytes=resident_bytes(host, machine.baseline),
        seconds_per_update=seconds,
        seconds_total=subject.seconds_of_run(seconds),
        tokens_per_second=None if lengths is None else sum(lengths) / seconds,
        examples_per_second=rows / seconds,
        flops_per_update=flops,
        share_of_peak=flops / seconds / _peak_rate(machine.device, techniques),
        confidence=dict.fromkeys(
            ("memory", "time"), f"measured with {sizes[0]} and {sizes[1]} examples, carried on"
        ),
    )


def _peak_rate(device: Device, techniques: Sequence[Technique]) -> float:
    """FLOP/s of the device in the numbers that techniques compute in."""
    needed = [each.card.needs for each in techniques if each.card.needs in device.flops]
    return device.flops[needed[-1] if needed else "float32"]


@dataclass(frozen=True)
class _Measured:
    """The measurements of one window.

    They are bytes on the device and on the host after each operator, bytes that kernels take beside, what the
    allocator takes for each byte, bytes of weights and of the optimizer's states, seconds and FLOPs of one
    micro-batch's passes, other seconds of the update, and what the step did at the peak.
    """

    history: list[int]
    host: list[int]
    workspace: int
    reserved: float
    weights: int
    states: int
    pass_seconds: float
    other_seconds: float
    flops: float
    phase: str


def _measured(
    subject: Subject,
    plan: Plan,
    techniques: Sequence[Technique],
    device: torch.device,
    size: int,
    count: int,
) -> _Measured:
    """Return updates of a window of `count` micro-batches of `size` rows: one to fill the optimizer's state, one for memory, one for time."""
    release_memory(device)
    accelerated = device.type != "cpu"
    counted = has_statistics(device)
    before = torch.accelerator.memory_allocated(device) if counted else 0
    batch = longest_rows(subject.window, size * count)
    on_host = _bytes(leaves(batch.data))
    with (
        AllocatedBytes(device) as allocated,
        AllocatedBytes("cpu") if accelerated else nullcontext(allocated) as host,
    ):
        step = _step(subject, replace(plan, micro_batch=size, device=str(device)), techniques)
        with FlopCounterMode(display=False) as flops:
            step(batch)
        gc.collect()
        if counted:
            torch.accelerator.reset_peak_memory_stats(device)
        begin, begin_host = len(allocated.history), len(host.history)
        watch = _Watch(allocated)
        with watched(watch.label):
            step(batch)
    history = [now + (0 if accelerated else on_host) for now in allocated.history[begin:]]
    clocks = [_timed(step, batch, device) for _ in range(_REPEATS)]
    most = torch.accelerator.max_memory_allocated(device) - before if counted else max(history)
    return _Measured(
        history=history,
        host=[now + on_host for now in host.history[begin_host:]],
        workspace=max(0, most - max(history)),
        reserved=torch.accelerator.max_memory_reserved(device) / (before + most) if counted else 1.0,
        weights=_bytes([*step.model.parameters(), *step.model.buffers()]),
        states=_bytes(leaves(step.optimizer.state_dict()["state"])),
        pass_seconds=min(passes for passes, _ in clocks) / count,
        other_seconds=min(other for _, other in clocks),
        flops=flops.get_total_flops() / count,
        phase=watch.at(begin + history.index(max(history))),
    )


def _step(subject: Subject, plan: Plan, techniques: Sequence[Technique]) -> Step:
    model = _made(subject, "cpu")
    optimizer = None if subject.optimizer is None else subject.optimizer.on(model, nullcontext())
    data = range(subject.examples)
    material = Material(model, data, None, subject.loss, None, subject.forward, subject.load, class_counts={})
    return make_step(subject.job, plan, material, optimizer, techniques)


def _timed(step: Step, batch: Batch, device: torch.device) -> tuple[float, float]:
    """Return seconds of an update: of its passes over the micro-batches, and others."""
    clock = _Clock(device)
    with watched(clock.label), clock.label("update"):
        step(batch)
    return clock.of["pass"], clock.of["update"] - clock.of["pass"]


def _coupled(subject: Subject, techniques: Sequence[Technique]) -> bool:
    """Return whether one row alone is no micro-batch."""
    return (
        has_batch_norm(subject.model())
        or any(each.card.couples_examples for each in techniques)
        or couples_rows(find_loss(subject.loss))
    )


def _made(subject: Subject, device: torch.device | str) -> nn.Module:
    """Return the model with random weights."""
    model = fake_(subject.model(), nullcontext(), device)
    with torch.no_grad():
        for tensor in [*model.parameters(), *model.buffers()]:
            if tensor.is_floating_point():
                tensor.normal_(0.0, _SPREAD)
            else:
                tensor.zero_()
        for module in model.modules():
            if callable(reset := getattr(module, "reset_parameters", None)):
                reset()
    return model


def _bytes(tensors: Any) -> int:
    """Return bytes of storages, each counted once."""
    storages = [tensor.untyped_storage() for tensor in tensors]
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


class _Watch:
    """A watcher of the step at each of its operators."""

    def __init__(self, allocated: AllocatedBytes) -> None:
        self._allocated = allocated
        self._open = ["techniques"]
        self._begun: list[tuple[int, str]] = [(0, "techniques")]

    @contextmanager
    def label(self, name: str) -> Iterator[None]:
        self._open.append(name)
        self._begun.append((len(self._allocated.history), name))
        try:
            yield
        finally:
            self._open.pop()
            self._begun.append((len(self._allocated.history), self._open[-1]))

    def at(self, operator: int) -> str:
        """Return what was open at an operator, by its number."""
        return self._begun[bisect_right(self._begun, operator, key=lambda entry: entry[0]) - 1][1]


class _Clock:
    """Seconds of the parts of an update, until the device is done with them."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.of = {"update": 0.0, "pass": 0.0}

    @contextmanager
    def label(self, name: str) -> Iterator[None]:
        if name not in self.of:
            yield
            return
        self._wait()
        begin = time.perf_counter()
        yield
        self._wait()
        self.of[name] += time.perf_counter() - begin

    def _wait(self) -> None:
        if self._device.type != "cpu":
            torch.accelerator.synchronize(self._device)
