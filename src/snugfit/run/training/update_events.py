"""The events of updates."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext, suppress
from types import TracebackType
from typing import Any

from snugfit.core.scalar_reads import read_scalars_later
from snugfit.run.training.prediction_check import PredictionCheck
from snugfit.run.training.result import Emit
from snugfit.step.micro_batching import Replan, describe
from snugfit.step.step import Step, StepResult
from snugfit.system.device_copies import COPIES_BESIDE
from snugfit.system.memory import memory_bytes
from snugfit.system.usage import Usage

_MEMORY_EVERY_SECONDS = 1.0

_SYSTEM_EVERY_SECONDS = 10.0

_SECONDS_TO_WAIT = 1.0
"""An update of so many seconds is told at once: to wait for its metrics is a small part of it, and nobody is to wait for the next one."""


TAKEN = ("loss", "learning_rate", "loss_scale", "examples_per_second", "memory_bytes")
"""Names of what an update's event says by itself; each group's learning rate begins with the second one."""


class UpdateEvents:
    """Turns what the step did into events; the memory is asked for once a second, all else of the machine each ten.

    What techniques measured, such as the norm of the gradient, is known on a GPU when the optimizer has begun. To read it then would
    wait for the optimizer, so that the event of a quick update is held until the next one or any other event, which it comes before.
    """

    def __init__(self, emit: Emit, step: Step) -> None:
        self._emit, self._step = emit, step
        self._asked = 0.0
        self._usage, self._used = Usage(step.device), time.monotonic()
        self._prediction: PredictionCheck | None = None
        self._kernels_reported = step.kernels is not None
        self._padding_reported = self._copies_reported = False
        self._seconds = 0.0
        self._held: Callable[[], None] | None = None

    def __enter__(self) -> UpdateEvents:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # the first error is the one to see: a device that has failed cannot be read either
        with nullcontext() if error is None else suppress(RuntimeError):
            self.release()

    def emit(self, kind: str, /, **fields: Any) -> None:
        """Emit an event behind the one that is held."""
        self.release()
        self._emit(kind, **fields)

    def release(self) -> None:
        """Emit the event that is held, if there is one."""
        if self._held is not None:
            held, self._held = self._held, None
            held()

    def expect(self, predicted: Mapping[str, Any]) -> None:
        """Tell of `predicted`, the `peak_bytes` and `seconds_per_update` of the plan, and of what they turn out to be."""
        self._prediction = PredictionCheck(predicted, self._step.device)
        self.emit("plan", predicted=dict(predicted))

    def ended(self) -> None:
        """Say, at the end of the run and on all ranks, what was measured in all of it."""
        if self._prediction is not None:
            self._measured(self._prediction.at_end())
            self._prediction = None

    def _measured(self, figures: Mapping[str, Any]) -> None:
        self.emit("measured", update=self._step.progress.updates, **self._most(figures))

    def computed(self, result: StepResult, seconds: float) -> None:
        """Note, after the step, which took so many seconds, what was measured, the kernels, and each time that it ran out of memory."""
        progress, self._seconds = self._step.progress, seconds
        if self._prediction is not None and (measured := self._prediction.after_update(seconds)) is not None:
            self._measured(measured)
        if self._step.kernels and not self._kernels_reported:
            self._kernels_reported = True
            self.emit("attention", update=progress.updates, kernels=sorted(self._step.kernels))
        padding = self._step.padding
        if padding.message and not self._padding_reported:
            self._padding_reported = True
            self.emit("padding", update=progress.updates, cut=padding.cut, message=padding.message)
        if self._step.inputs.copied and not self._copies_reported:
            self._copies_reported = True
            self.emit(
                "warning",
                message="the model's forward or the loss changes its inputs in place. It gets copies of them, so that windows stay as they "
                "are and can be run again.",
            )
        for replan in result.replans:
            self.replanned(f"window {progress.windows}", replan, self._step.has_batch_norm)

    def _most(self, figures: Mapping[str, Any]) -> dict[str, Any]:
        """Return what all ranks have measured by now: the most of each, and the memory of every one where there are several."""
        by_rank = self._step.strategy.tell(figures)
        most = {name: max(each[name] for each in by_rank) for name in figures}
        if len(by_rank) == 1 or "peak_bytes" not in figures:
            return most
        return {**most, "peak_bytes_by_rank": [each["peak_bytes"] for each in by_rank]}

    def update(
        self,
        result: StepResult,
        epoch: float,
        examples_per_second: float,
        logged: Mapping[str, float] | None = None,
    ) -> None:
        """Write an update, with what was measured in it and what the user's hook has `logged`."""
        progress, names = self._step.progress, list(result.metrics)
        measured = (
            read_scalars_later(list(result.metrics.values()), assume=[0.0] * len(names)) if names else list
        )
        known = {"loss": result.loss, "learning_rate": result.learning_rate}
        if result.learning_rates:
            known.update((f"learning_rate/{group}", rate) for group, rate in result.learning_rates.items())
        metrics: dict[str, float] = {}
        if result.scale is not None:
            metrics["loss_scale"] = result.scale
        metrics["examples_per_second"] = examples_per_second
        now = time.monotonic()
        if now - self._asked > _MEMORY_EVERY_SECONDS:  # the clock is looked at, not the machine
            self._asked = now
            metrics["memory_bytes"] = memory_bytes(self._step.device)
        if now - self._used > _SYSTEM_EVERY_SECONDS:
            self._used = now
            self.emit("system", update=progress.updates, metrics=self._usage.figures())
        fields: dict[str, Any] = {
            "update": progress.updates,
            "window": progress.windows,
            "epoch": epoch,
            "applied": result.applied,
        }
        if logged:
            fields["logged"] = list(logged)

        if not names:  # there is nothing to wait for
            self.release()
            self._emit("update", **fields, metrics={**known, **metrics, **(logged or {})})
            return

        def write() -> None:
            of_techniques = dict(zip(names, measured(), strict=True))
            self._emit("update", **fields, metrics={**known, **of_techniques, **metrics, **(logged or {})})

        self.release()
        self._held = write
        if self._step.device.type not in COPIES_BESIDE or self._seconds >= _SECONDS_TO_WAIT:
            self.release()

    def replanned(self, what: str, replan: Replan, batch_norm: bool = False) -> None:
        """Write that `what` did not fit, and how it was split."""
        self.emit(
            "replan",
            update=self._step.progress.updates,
            window=self._step.progress.windows,
            **replan._asdict(),
            message=f"{what} {describe(replan, batch_norm)}.",
        )
