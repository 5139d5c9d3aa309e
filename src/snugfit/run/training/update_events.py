"""The events of updates: what the step did, what the process takes of its machine, and a plan's prediction beside what was measured."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import nullcontext, suppress
from statistics import median
from types import TracebackType
from typing import Any

import torch

from snugfit.core.scalar_reads import read_scalars_later
from snugfit.run.events import Emit
from snugfit.step.out_of_memory import Replan, describe
from snugfit.step.step import Step, StepResult
from snugfit.system.device_copies import COPIES_BESIDE
from snugfit.system.memory import available_bytes, memory_bytes, peak_memory_bytes

_MEMORY_EVERY_SECONDS = 1.0

_SYSTEM_EVERY_SECONDS = 10.0

_SECONDS_TO_WAIT = 1.0
"""An update of so many seconds is told at once: to wait for its metrics is a small part of it, and nobody is to wait for the next one."""


TAKEN = ("loss", "learning_rate", "loss_scale", "examples_per_second", "memory_bytes")
"""Names of what an update's event says by itself; each group's learning rate begins with the second one."""


WARM = 5
"""Updates that are left out: kernels are chosen in them, pages touched for the first time, the tracker's libraries loaded beside them."""

LOOKED_AT = 15
"""Updates after those, whose median is told while the run goes on."""

_MOST = 1000
"""Updates whose median is told at the end: the last ones."""

_CPU = torch.device("cpu")


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


class Usage:
    """The use that the process makes of its machine, since it was made or asked last."""

    def __init__(self, device: torch.device) -> None:
        self._device, self._has_utilization = device, device.type == "cuda"
        self._wall, self._processor = time.monotonic(), time.process_time()

    def figures(self) -> dict[str, float]:
        """Return `cpu_percent` of one core, the process's resident `memory_bytes`, the machine's `free_bytes`, and of a GPU the same.

        Of a GPU that are `device_bytes` that are allocated and, where NVML can be read, the `device_percent` of the time that it computes.
        """
        wall, processor = time.monotonic(), time.process_time()
        seconds = max(wall - self._wall, 1e-9)
        figures = {
            "cpu_percent": 100 * (processor - self._processor) / seconds,
            "memory_bytes": float(memory_bytes(_CPU)),
        }
        self._wall, self._processor = wall, processor
        if (free := available_bytes(_CPU)) is not None:
            figures["free_bytes"] = float(free)
        if self._device.type == "cuda":
            figures["device_bytes"] = float(memory_bytes(self._device))
        if self._has_utilization:
            try:
                figures["device_percent"] = float(torch.cuda.utilization(self._device))
            except Exception:  # noqa: BLE001 - NVML's errors have no other base, such as that of a part of a GPU, which has no figure
                self._has_utilization = False
        return figures


class PredictionCheck:
    """A prediction that is compared twice: its seconds once the run is warm, and all of it at the end of the run.

    Memory grows until then, by evaluations and checkpoints, which the prediction counts too.

    Args:
        predicted: `peak_bytes` and `seconds_per_update`; what is missing is not compared.
    """

    def __init__(self, predicted: Mapping[str, Any], device: torch.device) -> None:
        self.predicted = predicted
        self._device = device
        self._updates = 0
        self._first: list[float] = []
        self._warm: deque[float] = deque(maxlen=_MOST)

    def after_update(self, seconds: float) -> dict[str, Any] | None:
        """Count an update of so many seconds; return the median of the warm ones, once, as soon as there are enough."""
        self._updates += 1
        if self._updates <= WARM:
            self._first.append(seconds)
            return None
        self._warm.append(seconds)
        return {"seconds_per_update": median(self._warm)} if self._updates == WARM + LOOKED_AT else None

    def at_end(self) -> dict[str, Any]:
        """Return the peak of the memory, and the median of the warm updates, or of a run that was too short for any of its last."""
        measured: dict[str, Any] = {}
        if timed := self._warm or self._first[-1:]:
            measured["seconds_per_update"] = median(timed)
        if "peak_bytes" in self.predicted:
            measured["peak_bytes"] = peak_memory_bytes(self._device)
        return measured
