"""The micro-batches that fit on this device, and the fastest of them."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from snugfit.core.batch import Batch
from snugfit.core.tree import leaves
from snugfit.errors import OutOfMemory, SettingError
from snugfit.step.evaluate import Scored, evaluate
from snugfit.step.find_micro_batch import Forecast, Trial, moments, peak_bytes, probing
from snugfit.step.micro_batch_sizes import legal_sizes
from snugfit.step.out_of_memory import advice
from snugfit.step.step import Step, StepResult
from snugfit.system.allocation_counter import AllocatedBytes
from snugfit.system.memory import available_bytes, is_out_of_memory, release_memory
from snugfit.tools.find_batch.result import (
    FITS,
    OUT_OF_MEMORY,
    PREDICTED,
    TOO_LARGE,
    FoundBatch,
    Size,
    choose,
)
from snugfit.tools.preserved_step import preserved
from snugfit.units import format_bytes

_MOST_WARM_UP = 40
"""Updates before those that count: the first ones of fp16 are not applied until its scale is found."""

Tell = Callable[[str], None]


def find_batch(
    step: Step,
    window: Any,
    *,
    evaluation: Batch | None = None,
    longest: bool = True,
    memory_bytes: int | None = None,
    updates: int = 3,
    tell: Tell = lambda _: None,
) -> FoundBatch:
    """Try `window` in micro-batches of each size, for memory and for time; afterwards the step is what it was, bit for bit.

    All that a run has in memory is there: the optimizer's state, averages, and while `evaluation` is scored the weights for
    that. On a CPU, sizes that are predicted not to fit are not run. Updates are timed with the sizes in turns, so that what else
    the machine does falls on all of them, and as they are at the end of the run, where texts are longest.

    Args:
        window: what an update is made of, with the largest examples there are (`longest`).
        evaluation: what is scored at once, likewise.
        memory_bytes: that tensors may take of the device; what is free there by default.
        updates: that are timed of each size.
    Raises:
        SettingError: an impossible setting, or the size of the micro-batch is part of what is learned.
        OutOfMemory: nothing fits; says what was tried.
    """
    _check(step, updates)
    batch = (window if isinstance(window, Batch) else Batch.of(window)).to(step.device)
    with preserved(step):
        tell("an update of few examples, for the states")
        trial = _Trying(step, batch, tell)
        trial.prime()
        standing = standing_bytes(step)
        limit = None if memory_bytes is None else memory_bytes - standing
        if limit is not None and limit <= 0:
            raise OutOfMemory(
                f"memory: weights, buffers and states take {format_bytes(standing)}, and the budget is {format_bytes(memory_bytes or 0)}. "
                f"{advice(step.seams.names)}"
            )
        limit = trial.fit(limit)
        if evaluation is not None:
            trial.score(evaluation, limit)
        trial.warm_up(limit)
        trial.time(updates)
        if not trial.fitting:
            raise OutOfMemory(_none(trial.candidates, standing, batch.rows, limit, step.seams.names))
        if limit is None:
            limit = available_bytes(step.device)
    rows = tuple(each.size(standing, batch.rows) for each in trial.candidates)
    budget = None if limit is None else standing + limit
    return choose(step, rows, batch.rows, standing, budget, longest)


@dataclass
class _Candidate:
    """A size that is tried: what it allocates besides what stands, and the times of its updates."""

    micro_batch: int
    verdict: str
    peak: int | None
    seconds: list[float] = field(default_factory=list)

    @classmethod
    def of(cls, trial: Trial) -> _Candidate:
        verdict = FITS if trial.fits else PREDICTED if trial.predicted else TOO_LARGE
        return cls(
            trial.micro_batch, OUT_OF_MEMORY if trial.peak_bytes is None else verdict, trial.peak_bytes
        )

    def take(self, peak: int, limit: int | None, predicted: bool = False) -> None:
        """Take in what something allocates."""
        self.peak = max(peak, self.peak or 0)
        if limit is not None and peak > limit:
            self.verdict = PREDICTED if predicted else TOO_LARGE

    def size(self, standing: int, rows: int) -> Size:
        """Return the size with the bytes that stand there, and the speed."""
        peak = None if self.peak is None else standing + self.peak
        speed = rows / statistics.median(self.seconds) if self.seconds else None
        return Size(self.micro_batch, self.verdict, peak, speed, tuple(self.seconds))


class _Trying:
    """The window, tried in micro-batches; of use within `kept`."""

    def __init__(self, step: Step, batch: Batch, tell: Tell) -> None:
        self._step, self._batch, self._tell = step, batch, tell
        self._late = moments(step)[-1]
        self.candidates: list[_Candidate] = []

    @property
    def fitting(self) -> list[_Candidate]:
        """Return those that have fitted so far."""
        return [each for each in self.candidates if each.verdict == FITS]

    def prime(self) -> None:
        """Make an update of as few rows as can be, after which the optimizer's state and averages are there."""
        step = self._step
        group = step.seams.batch(self._batch, step.progress, step.seed).group
        smallest = legal_sizes(step, self._batch.rows, group)[-1]
        self._applied(self._batch.select(range(smallest)), smallest)

    def fit(self, limit: int | None) -> int | None:
        """Forward and backward of each size; returns what they may allocate."""
        with probing(self._step, self._batch, limit) as probe:
            for size in reversed(probe.sizes):
                self._tell(f"memory of micro-batches of {size}")
                self.candidates.append(_Candidate.of(probe.trial(size)))
            return probe.limit

    def score(self, evaluation: Batch, limit: int | None) -> None:
        """Score as many rows of `evaluation` as a run scores at a time, the longest there are."""
        step, lengths = self._step, evaluation.lengths
        longest = 0 if lengths is None else lengths.index(max(lengths))

        def scored(size: int) -> None:
            part = evaluation.select([longest] * min(size, evaluation.rows))
            evaluate(replace(Scored.of(step), micro_batch=size), [part], {})

        forecast = _forecast(step, [each.micro_batch for each in self.fitting], scored)
        for each in self.fitting:
            size = min(each.micro_batch, evaluation.rows)
            if forecast is not None and limit is not None and forecast.at(size) > limit:
                each.take(forecast.at(size), limit, predicted=True)
            else:
                self._attempt(each, limit, lambda size=size: scored(size))  # type: ignore[misc]

    def warm_up(self, limit: int | None) -> None:
        """Whole updates, which allocate what the optimizer needs on its way too."""
        for each in self.fitting:
            self._attempt(each, limit, lambda each=each: self._update(self._batch, each.micro_batch))  # type: ignore[misc]
            if each.verdict == FITS:
                with _refusable(each):
                    self._applied(self._batch, each.micro_batch)

    def time(self, updates: int) -> None:
        """Time the sizes in turns."""
        for number in range(updates):
            self._tell(f"update {number + 1} of {updates} with each size")
            for each in self.fitting:
                with _refusable(each):
                    start = time.perf_counter()
                    result = self._update(self._batch, each.micro_batch)
                    if result.applied:
                        each.seconds.append(time.perf_counter() - start)

    def _attempt(self, candidate: _Candidate, limit: int | None, run: Callable[[], object]) -> None:
        with _refusable(candidate):
            candidate.take(peak_bytes(self._step.device, run), limit)
        if candidate.verdict == OUT_OF_MEMORY or self._step.device.type != "cpu":
            release_memory(self._step.device)  # out here, where no error holds it any more

    def _applied(self, batch: Batch, size: int) -> None:
        for _ in range(_MOST_WARM_UP):
            if self._update(batch, size).applied:
                return

    def _update(self, batch: Batch, size: int) -> StepResult:
        """Return an update as at the end of the run, waited for."""
        step = self._step
        step.micro_batch, step.progress.updates = size, self._late
        result = step(batch)
        if step.device.type != "cpu":
            torch.accelerator.synchronize(step.device)
        if result.replans:
            raise OutOfMemory(result.replans[0].reason)
        return result


@contextmanager
def _refusable(candidate: _Candidate) -> Iterator[None]:
    """Temporarily allow the device to refuse what the candidate needs."""
    try:
        yield
    except Exception as error:
        if not isinstance(error, OutOfMemory) and not is_out_of_memory(error):
            raise
        candidate.verdict = OUT_OF_MEMORY


def _forecast(step: Step, sizes: list[int], scored: Callable[[int], None]) -> Forecast | None:
    """Return what scoring will allocate, from the two smallest sizes; None where the device may be asked itself."""
    if step.device.type != "cpu" or len(sizes) < 2:
        return None
    histories = []
    for size in sizes[:2]:
        with AllocatedBytes(step.device) as allocated:
            scored(size)
        histories.append(allocated.history)
    return Forecast((sizes[0], sizes[1]), (histories[0], histories[1]))


def standing_bytes(step: Step) -> int:
    """Return the bytes that are on the step's device at every moment.

    They are those of weights, buffers, and the states of optimizer and techniques; on CUDA all that is
    allocated there.
    """
    if step.device.type == "cuda":
        return torch.cuda.memory_allocated(step.device)
    tensors = [*leaves(step.state_dict()), *step.model.buffers()]
    storages = [each.untyped_storage() for each in tensors if each.device.type == step.device.type]
    return sum({each.data_ptr(): each.nbytes() for each in storages}.values())


def _none(
    candidates: list[_Candidate], standing: int, rows: int, limit: int | None, used: Sequence[str]
) -> str:
    attempts = []
    for each in candidates:
        peak = "" if each.peak is None else f"{format_bytes(standing + each.peak)}, "
        attempts.append(f"{each.micro_batch}: {peak}{each.verdict}")
    budget = "" if limit is None else f" (of {format_bytes(standing + limit)})"
    return f"memory: no micro-batch of a window of {rows} examples fits: {'; '.join(attempts)}{budget}. {advice(used)}"


def _check(step: Step, updates: int) -> None:
    if updates < 1:
        raise SettingError("updates", f"must be at least 1, found {updates}", "Give 1 or more.")
    if step.coupling:
        raise SettingError(
            "plan.micro_batch",
            f"'{step.coupling[0]}' makes each example's loss depend on the others of its micro-batch, so that its "
            "size is part of what is learned",
            "Choose it by what is learned, not by its speed.",
        )
