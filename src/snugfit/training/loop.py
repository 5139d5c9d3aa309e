"""The loop: windows to updates, with evaluation, checkpoints and a way to stop at every boundary."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

from snugfit.core.batch import Batch
from snugfit.core.job import Job
from snugfit.core.memory import memory_bytes, peak_memory_bytes
from snugfit.core.read import read_scalars
from snugfit.data.loader import Loader
from snugfit.errors import TrainingFailed
from snugfit.training import checkpoint
from snugfit.training.culprit import find_culprit, save_window
from snugfit.training.evaluate import RowMetric, Scored, evaluate
from snugfit.training.folder import RunFolder
from snugfit.training.step import Step, StepResult
from snugfit.training.stop import StopRequest
from snugfit.training.watch import Watch, monitored

_MEMORY_EVERY_SECONDS = 1.0


class Emit(Protocol):
    """Where a run's events go: the spool and the screen."""

    def __call__(self, kind: str, /, **fields: Any) -> None: ...


@dataclass
class RunResult:
    """How a run ended. `status` is finished, stopped (resumable) or failed."""

    run_dir: str
    status: str
    stop_reason: str | None
    resumable: bool
    updates: int
    epochs: float
    best: dict[str, Any] | None
    last: dict[str, Any]
    seconds: float
    examples_per_second: float
    peak_memory_bytes: int
    tracker_run_id: str | None = None

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass
class Training:
    """One run, assembled.

    Args:
        save_best: writes the model, with the weights that were scored, and this description into a folder.
        identity: what a resume must find unchanged, such as the data's sha256; kept in each checkpoint.
    """

    job: Job
    step: Step
    loader: Loader
    validation: Loader | None
    metrics: Mapping[str, str | RowMetric]
    folder: RunFolder
    emit: Emit
    save_best: Callable[[Path, Mapping[str, Any]], None]
    identity: Mapping[str, Any] = field(default_factory=dict)
    watch: Watch = field(default_factory=Watch)

    def __post_init__(self) -> None:
        self.monitor = monitored(self.job.best, self.metrics)
        self.total_windows = self.job.total_windows(self.loader.order.examples)
        self._last_metrics: dict[str, float] = {}
        self._unapplied_in_a_row = 0
        self._memory = (0.0, 0)

    @property
    def epoch(self) -> float:
        return self.step.progress.windows / self.loader.order.windows_per_epoch

    def restore(self) -> None:
        """Go on from the newest valid checkpoint.

        Raises:
            RunFolderError: there is none.
        """
        loaded = checkpoint.load_newest(self.folder.checkpoints)
        for reason in loaded.rejected:
            self.emit("warning", message=f"checkpoint passed over, it is damaged: {reason}")
        parts = loaded.parts
        techniques = {n.removeprefix("techniques/"): p for n, p in parts.items() if n.startswith("techniques/")}
        self.step.load_state_dict({**parts["model"], **parts["run"]["step"], "techniques": techniques})
        self.watch.load_state_dict(parts["run"]["watch"])
        self._last_metrics = parts["run"]["last_metrics"]
        self.emit("resume", update=self.step.progress.updates, window=self.step.progress.windows)

    def save(self) -> None:
        """Write a checkpoint of this moment."""
        start = time.monotonic()
        state = self.step.state_dict()
        parts = {
            "model": {"parameters": state["parameters"], "buffers": state["buffers"]},
            "run": {
                "step": {"optimizer": state["optimizer"], "progress": state["progress"]},
                "watch": self.watch.state_dict(),
                "last_metrics": self._last_metrics,
                "identity": dict(self.identity),
            },
            **{f"techniques/{name}": part for name, part in state["techniques"].items()},
        }
        progress = self.step.progress
        name = f"update-{progress.updates:08d}"
        if progress.windows != progress.updates:  # the same weights at another place of the data
            name += f"-window-{progress.windows:08d}"
        path = checkpoint.save(self.folder.checkpoints / name, parts, self.job.checkpoint_keep)
        self.emit(
            "checkpoint",
            update=progress.updates,
            window=progress.windows,
            path=path.relative_to(self.folder.path).as_posix(),
            seconds=time.monotonic() - start,
        )

    def evaluate(self) -> None:
        """Score the weights that would be saved, and save them if they are the best so far."""
        progress, start = self.step.progress, time.monotonic()
        if self.validation is None:
            metrics = {"loss": math.nan}
        else:
            windows = self.validation.windows(0, self.validation.order.windows_per_epoch)
            metrics = evaluate(Scored.of(self.step), windows, self.metrics)
        best = self.watch.observe(progress.updates, metrics, self.monitor) or self.validation is None
        self._last_metrics = metrics
        weights = self.step.seams.weights_name
        if best:
            with self.step.seams.weights(self.step.model):
                self.save_best(
                    self.folder.best, {"update": progress.updates, "metrics": metrics, "weights": weights}
                )
        if self.validation is not None:
            self.emit(
                "evaluation",
                update=progress.updates,
                window=progress.windows,
                epoch=self.epoch,
                metrics=metrics,
                weights=weights,
                best=best,
                seconds=time.monotonic() - start,
            )

    def run(self, stop: StopRequest) -> RunResult:
        """Train to the end, or to a reason to stop.

        Raises:
            TrainingFailed: the non-finite policy says so; what was saved stays resumable.
        """
        start, examples = time.monotonic(), self.step.progress.examples
        status, reason = "finished", None
        while self.step.progress.windows < self.total_windows:
            outcome = self._run_until_boundary(stop)
            if outcome is not None:
                status, reason = outcome
                break
        seconds = time.monotonic() - start
        return RunResult(
            run_dir=str(self.folder.path),
            status=status,
            stop_reason=reason,
            resumable=status == "stopped",
            updates=self.step.progress.updates,
            epochs=self.epoch,
            best=self._best(),
            last={"metrics": self._last_metrics},
            seconds=seconds,
            examples_per_second=(self.step.progress.examples - examples) / max(seconds, 1e-9),
            peak_memory_bytes=peak_memory_bytes(self.step.device),
        )

    def _run_until_boundary(self, stop: StopRequest) -> tuple[str, str | None] | None:
        """Windows in order until the run ends (its status and reason) or rolls back (None)."""
        progress, job = self.step.progress, self.job
        before = time.perf_counter()
        for window in self.loader.windows(progress.windows, self.total_windows):
            if progress.windows in self.watch.banned_windows:
                progress.consume(window.rows, applied=False)
            elif self._train_on(window, before):
                return None
            last = progress.windows == self.total_windows
            evaluated = last or self._due(job.evaluate_every or self.loader.order.windows_per_epoch)
            if evaluated:
                self.evaluate()
            exhausted = self.watch.exhausted(job) if evaluated else None
            asked = None if last else stop.reason
            if asked or exhausted or (self._due(job.checkpoint_every) if job.checkpoint_every else evaluated) or last:
                self.save()
            if exhausted:
                return "finished", exhausted
            if asked:
                return "stopped", asked
            before = time.perf_counter()
        return None

    def _train_on(self, window: Batch, before: float) -> bool:
        """One window; whether the run was rolled back because of it."""
        result = self.step(window)
        self._emit_update(result, window, time.perf_counter() - before)
        if result.applied:
            self._unapplied_in_a_row = 0
            return False
        return self._refused(result, window)

    def _due(self, every: int) -> bool:
        return self.step.progress.windows % every == 0

    def _best(self) -> dict[str, Any] | None:
        if self.watch.best_update is None or self.validation is None:
            return None
        return {"update": self.watch.best_update, "metrics": self.watch.best_metrics}

    def _emit_update(self, result: StepResult, window: Batch, seconds: float) -> None:
        progress = self.step.progress
        metrics = {"loss": result.loss, "learning_rate": result.learning_rate}
        if result.metrics:
            values = read_scalars(list(result.metrics.values()), assume=[0.0] * len(result.metrics))
            metrics.update(zip(result.metrics, values, strict=True))
        metrics["examples_per_second"] = window.rows / seconds
        now = time.monotonic()
        if now - self._memory[0] > _MEMORY_EVERY_SECONDS:
            self._memory = (now, memory_bytes(self.step.device))
            metrics["memory_bytes"] = self._memory[1]
        self.emit(
            "update",
            update=progress.updates,
            window=progress.windows,
            epoch=self.epoch,
            applied=result.applied,
            metrics=metrics,
        )

    def _refused(self, result: StepResult, window: Batch) -> bool:
        """Deal with a window that made no update, by the policy; whether the run was rolled back."""
        number = self.step.progress.windows - 1
        if result.weight <= 0:
            self.emit("skipped", window=number, reason="nothing in it counts: all labels are ignored")
            return False
        self._unapplied_in_a_row += 1
        culprit = find_culprit(self.step, window)
        kept = save_window(self.folder.path / "culprits", number, window)
        reason = f"loss {result.loss:.4g}: not finite, first in {culprit}; the batch is kept in {kept.name}"
        self.emit("skipped", window=number, reason=reason)
        if self.job.non_finite == "stop" or self._unapplied_in_a_row >= self.job.non_finite_limit:
            self.save()
            raise TrainingFailed(
                f"window {number}: {reason}. {self._unapplied_in_a_row} windows in a row made no update "
                f"(non_finite.policy: {self.job.non_finite}, non_finite.limit: {self.job.non_finite_limit}). Look at "
                f"{kept}; lower the learning rate, clip the gradient or mend the data."
            )
        if self.job.non_finite == "roll_back" and self.folder.checkpoints.exists():
            banned = [*self.watch.banned_windows, number]
            self.restore()
            self.watch.banned_windows = banned
            return True
        return False
