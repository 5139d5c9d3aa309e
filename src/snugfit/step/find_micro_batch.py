"""The largest micro-batch that fits, found by trying: forward and backward of a window without an update."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from snugfit.core.batch import Batch
from snugfit.core.random import preserved_randomness
from snugfit.core.tree import leaves
from snugfit.errors import OutOfMemory, SettingError
from snugfit.step.micro_batch_sizes import BATCH_NORM, legal_sizes
from snugfit.step.optimizer import load_optimizer
from snugfit.step.out_of_memory import advice
from snugfit.strategies.base import Strategy
from snugfit.system.allocation_counter import AllocatedBytes
from snugfit.system.memory import available_bytes, is_out_of_memory, release_memory, reset_peak_memory
from snugfit.units import format_bytes

if TYPE_CHECKING:
    from snugfit.step.step import Step

HEADROOM = 0.05
"""Part of the free memory of a GPU that a trial leaves: later windows have other shapes, and the allocator's blocks do not suit all."""

RESIDENT = 1.3
"""What a process takes of the host for each byte that is allocated: the C library keeps up to 30 % of what is freed."""


@dataclass(frozen=True)
class Trial:
    """A micro-batch that was looked at, and the most it allocated besides weights and the optimizer's state.

    That is None where memory ran out before it could be said. It was run, or is `predicted` from two smaller
    ones.
    """

    micro_batch: int
    fits: bool
    peak_bytes: int | None
    predicted: bool = False


@dataclass(frozen=True)
class Fit:
    """The largest micro-batch that fits; `limit_bytes` is what may be allocated, None where only the device knows."""

    micro_batch: int
    rows: int
    limit_bytes: int | None
    trials: tuple[Trial, ...]
    batch_norm: bool = False

    def as_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return asdict(self)

    def message(self, longest: bool) -> str:
        """Return what was tried and chosen, in a sentence.

        Args:
            longest: whether the window was of the largest examples there are.
        """
        rows = f"the {self.rows} {'largest' if longest else 'first'} examples"
        text = f"micro-batches of {self.micro_batch}, tried on {rows}: {_trials_text(self.trials, self.limit_bytes)}"
        if self.micro_batch < self.trials[-1].micro_batch:
            text += "; another device has no room for more"
        if not longest:
            text += (
                "; the sizes of the others are not known, and a window that does not fit will be split finer"
            )
        return f"{text}; {BATCH_NORM}" if self.batch_norm else text


def find_micro_batch(step: Step, window: Any, limit_bytes: int | None = None, *, processes: int = 1) -> Fit:
    """Return the largest power of two or divisor of the window's rows in which an update of `window` fits.

    Each is tried, from the whole window down: forward and backward of all of it as training does them, with the optimizer's
    state in place. Where a device refuses what does not fit, that is the answer; a CPU is asked for its free memory instead, and
    what the two smallest sizes allocate predicts which larger ones are worth a trial. Weights, optimizer, buffers,
    progress and randomness are afterwards what they were, bit for bit.

    Args:
        step: between two updates.
        window: what an update is made of, with the largest examples there are.
        limit_bytes: what may be allocated besides weights and the optimizer's state; by default what the machine has left.
        processes: that look for theirs on this machine at the same time, each by itself.
    Raises:
        SettingError: the size of the micro-batch is part of what is learned, or weights are spread over devices.
        OutOfMemory: nothing fits; says what was tried.
    """
    trials: list[Trial] = []
    with probing(step, window, limit_bytes, processes=processes) as probe:
        for size in probe.sizes:
            trials.append(probe.trial(size))
            if trials[-1].fits:
                return Fit(size, probe.rows, probe.limit, tuple(trials), step.has_batch_norm)
    raise OutOfMemory(
        f"plan.micro_batch: auto found none that fits a window of {probe.rows} examples: {_trials_text(trials, probe.limit)}. "
        f"{advice(step.seams.names)}"
    )


@contextmanager
def probing(
    step: Step, window: Any, limit_bytes: int | None = None, *, processes: int = 1
) -> Iterator[Probe]:
    """Temporarily try `window` in micro-batches of several sizes; on exit the step stands where it stood.

    Args, raises:
        As `find_micro_batch`.
    """
    if step.coupling:
        raise SettingError(
            "plan.micro_batch",
            f"auto would let the machine decide what is learned: '{step.coupling[0]}' makes each example's loss "
            "depend on the others of its micro-batch",
            "Give a number.",
        )
    if step.strategy.shards:
        raise SettingError(
            "plan.micro_batch",
            "auto tries what fits on a device by itself, and here weights are gathered by all together",
            "Give a number.",
        )
    batch = (window if isinstance(window, Batch) else Batch.of(window)).to(step.device)
    with preserved_randomness(step.device), _restore_step_on_exit(step):
        group = step.seams.batch(batch, step.progress, step.seed).group
        yield Probe(step, batch, legal_sizes(step, batch.rows, group), limit_bytes, processes)


class Forecast(NamedTuple):
    """A prediction of what larger micro-batches allocate, from what two small ones did.

    At each operation it grows by as much for each row, and which operation has the peak depends on the size.
    """

    sizes: tuple[int, int]
    histories: tuple[list[int], list[int]]

    def at(self, size: int) -> int:
        (first, second), (low, high) = self.sizes, self.histories
        if len(low) != len(high):  # a kernel was chosen by the size
            low, high = [max(low)], [max(high)]
        grown = (size - first) / (second - first)
        # more rows never take less: where they seem to, another way was taken through the model
        return round(max(less + max(more - less, 0) * grown for less, more in zip(low, high, strict=True)))


class Probe:
    """Runs of a window in micro-batches of some `sizes`, the largest first, each measured; `limit` is what may be allocated."""

    def __init__(
        self, step: Step, batch: Batch, sizes: list[int], limit_bytes: int | None, processes: int
    ) -> None:
        self._step, self._batch = step, batch
        self.sizes, self.rows = sizes, batch.rows
        self._moments = moments(step)
        self.limit = limit_bytes
        self._alone: Forecast | None = None
        self._among_others: Forecast | None = None
        self._has_room_to_update = True
        smallest = sizes[-2:][::-1]
        try:
            if not _has_state(step):  # an update of a small window, whose weights are given back
                self._has_room_to_update = False
                self._run(self._rows(smallest[0]), smallest[0], self._moments[-1], update=True)
                self._has_room_to_update = True
            if limit_bytes is None:
                self.limit = limit_on(step.device, processes)
            if step.device.type == "cpu" and len(smallest) == 2:
                # the first micro-batch meets no gradients yet, and a window of one needs no place for a sum of them
                self._alone = self._forecast(smallest, micro_batches=1)
                self._among_others = self._forecast(smallest, micro_batches=2)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
        release_memory(step.device)  # what is tried next may tell more

    def trial(self, size: int) -> Trial:
        """Return whether the window fits in micro-batches of that size; none does where the optimizer has no room for its step."""
        if not self._has_room_to_update:
            return Trial(size, False, None)
        line = self._alone if size == self._batch.rows else self._among_others
        if line is not None and self.limit is not None and (predicted := line.at(size)) > self.limit:
            return Trial(size, False, predicted, predicted=True)
        try:
            peak = self._measure(self._batch, size)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            peak = None
        release_memory(self._step.device)
        return Trial(size, peak is not None and (self.limit is None or peak <= self.limit), peak)

    def _rows(self, count: int) -> Batch:
        """Return a window of that many rows, each the longest there is."""
        lengths = self._batch.lengths
        return self._batch.select([0 if lengths is None else lengths.index(max(lengths))] * count)

    def _forecast(self, sizes: list[int], micro_batches: int) -> Forecast:
        """Return a forecast from windows of that many micro-batches, at the moment that needs the most."""
        forecasts = []
        for updates in self._moments:
            histories = []
            for size in sizes:
                rows = self._rows(micro_batches * size)
                with AllocatedBytes(self._step.device) as allocated:
                    self._run(rows, size, updates)
                histories.append(allocated.history)
            forecasts.append(Forecast((sizes[0], sizes[1]), (histories[0], histories[1])))
        return max(forecasts, key=lambda forecast: forecast.at(self._batch.rows))

    def _measure(self, batch: Batch, size: int) -> int:
        """Return the most that is allocated at a time, at any moment of the run that matters."""
        return max(self._peak(batch, size, updates) for updates in self._moments)

    def _peak(self, batch: Batch, size: int, updates: int) -> int:
        return peak_bytes(self._step.device, lambda: self._run(batch, size, updates))

    def _run(self, batch: Batch, size: int, updates: int, update: bool = False) -> None:
        """Forward and backward as after that many updates, and the optimizer's step if `update`."""
        step = self._step
        step.micro_batch, step.progress.updates = size, updates
        step.seams.begin(step.model, step.progress, step.seed)
        moves = update or step.seams.irrevocable
        with _preserved_weights(step) if moves else nullcontext(), step.computed(batch):
            if update:
                step.optimizer.step()


def limit_on(device: torch.device, processes: int) -> int | None:
    """Return how much a trial may allocate beside what is there; None where the system does not tell.

    On a GPU that is what is free now, whoever has the rest, less what the allocator's blocks may leave unused in later windows.

    Args:
        processes: that share the memory of a CPU.
    """
    left = available_bytes(device)
    if left is None:
        return None
    return round(left / RESIDENT / processes) if device.type == "cpu" else round(left * (1 - HEADROOM))


def peak_bytes(device: torch.device, run: Callable[[], object]) -> int:
    """Return the most that `run` allocates at a time, besides what is there already."""
    peak: int
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        run()
        peak = torch.cuda.max_memory_allocated(device) - before
    else:
        with AllocatedBytes(device) as allocated:
            run()
        peak = allocated.peak
    return peak


def moments(step: Step) -> list[int]:
    """Return numbers of updates at which a window may need the most.

    They are now, and the end where something changes on the way, such as the length of texts, or which blocks
    are frozen.
    """
    now = step.progress.updates
    if step.total_updates is None or not step.seams.changes:
        return [now]
    return [now, max(now, step.total_updates - 1)]


def _has_state(step: Step) -> bool:
    return any(True for _ in leaves(step.optimizer.state_dict()["state"]))


@contextmanager
def _restore_step_on_exit(step: Step) -> Iterator[None]:
    """Temporarily let the step compute, by itself where it is one of several; on exit it stands where it stood."""
    progress, micro_batch, strategy = copy.copy(step.progress), step.micro_batch, step.strategy
    padding, inputs = step.padding.state_dict(), step.inputs.state_dict()
    gradients = [parameter.grad for parameter in step.parameters]
    steps = step.seams.irrevocable or not _has_state(step)
    optimizer = copy.deepcopy(step.optimizer.state_dict()) if steps else None
    step.strategy = Strategy()
    try:
        yield
    finally:
        step.strategy = strategy
        if optimizer is not None:
            load_optimizer(step.optimizer, optimizer)
        step.progress.load_state_dict(progress.state_dict())
        step.padding.load_state_dict(padding)
        step.inputs.load_state_dict(inputs)
        step.micro_batch = micro_batch
        step.seams.begin(step.model, step.progress, step.seed)
        for parameter, gradient in zip(step.parameters, gradients, strict=True):
            parameter.grad = gradient
        release_memory(step.device)
        reset_peak_memory(step.device)  # what was tried is no part of the run's peak


@contextmanager
def _preserved_weights(step: Step) -> Iterator[None]:
    """Temporarily allow the weights to change; their copies lie on the host."""
    trained = [parameter for parameter in step.parameters if parameter.requires_grad]
    copies = [parameter.detach().to("cpu", copy=True) for parameter in trained]
    try:
        yield
    finally:
        with torch.no_grad():
            for parameter, host_copy in zip(trained, copies, strict=True):
                parameter.copy_(host_copy)


def _trials_text(trials: list[Trial] | tuple[Trial, ...], limit: int | None) -> str:
    phrases = []
    for trial in trials:
        peak = "ran out of memory" if trial.peak_bytes is None else format_bytes(trial.peak_bytes)
        phrases.append(f"{trial.micro_batch}: {peak}{' predicted' if trial.predicted else ''}")
    return "; ".join(phrases) + ("" if limit is None else f" (of {format_bytes(limit)})")
