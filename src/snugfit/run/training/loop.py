"""The loop: windows to updates, with evaluation, checkpoints and a way to stop at every boundary."""

from __future__ import annotations

import math
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from snugfit.core.batch import Batch
from snugfit.core.job import AUTO, Job, MicroBatch
from snugfit.data.loader import Loader, Windows, WindowsAhead
from snugfit.deliver.observed_evaluation import Observed
from snugfit.errors import RunFolderError, TrainingFailed
from snugfit.results.run_folder import DETAILS, RunFolder
from snugfit.run.checkpoint import checkpoint_files
from snugfit.run.checkpoint.save_and_restore import Saving, Unsaved
from snugfit.run.events import DOING, Emit
from snugfit.run.training.best import SaveBest, ValidationDetails, Watch, keep_models, owed_now, save_best
from snugfit.run.training.hooks import HookCalls
from snugfit.run.training.non_finite import Refusal, judge
from snugfit.run.training.result import RunResult
from snugfit.run.training.stop_requests import StopRequest
from snugfit.run.training.update_events import TAKEN, UpdateEvents
from snugfit.step.attempt import Attempt, Doing
from snugfit.step.evaluate import Scored, evaluate, scoring
from snugfit.step.find_micro_batch import find_micro_batch
from snugfit.step.metrics.metric import AnyMetric, monitored
from snugfit.step.micro_batch_sizes import is_in_micro_batches
from snugfit.step.model_checks.moving_buffers import MovingBuffers
from snugfit.step.model_checks.row_coupling import (
    FEW_ROWS,
    compare_rows,
    is_split,
    require_uncoupled,
    rows_to_compare,
)
from snugfit.step.out_of_memory import Replan
from snugfit.step.step import Step, StepResult
from snugfit.strategies.process_group import agreed, answered
from snugfit.system.memory import peak_memory_bytes, reset_peak_memory
from snugfit.system.rounding import deterministic
from snugfit.tasks.task import ModelObserver
from snugfit.units import counted


@dataclass
class MeanLoss:
    """The mean loss of the updates since the last evaluation; it is kept in checkpoints, so that it is of those before a resume too."""

    total: float = 0.0
    updates: int = 0

    def add(self, result: StepResult) -> None:
        """Count an update; one that was refused is no part of what was learned."""
        if result.applied and math.isfinite(result.loss):
            self.total += result.loss
            self.updates += 1

    def taken(self) -> float | None:
        """Return the mean and begin anew; None where there was no update."""
        mean = self.total / self.updates if self.updates else None
        self.total, self.updates = 0.0, 0
        return mean

    def state(self) -> list[float]:
        """Return what a checkpoint keeps of it."""
        return [self.total, self.updates]

    def load(self, state: Sequence[float]) -> None:
        """Go on from what a checkpoint has kept."""
        self.total, self.updates = float(state[0]), int(state[1])


@dataclass
class Training:
    """A run, assembled.

    Args:
        folder: where it is written; None writes nothing.
        save_best: takes the model as it is delivered, with the weights that were scored.
        save_at: the same for another folder; None where there is no further model.
        description: recipe, plan and versions, for whoever finds a checkpoint alone; kept in each of them.
        identity: what a resume must find unchanged, as `training.identity` says; kept in each checkpoint.
        accept_changes: names of the identity that may differ from the checkpoint's.
        observers: what the model is and says, which is told at each evaluation; none where nothing is written.
        details: keeps the best evaluation in detail; None where none is kept.
        planned: the micro-batch that was asked for; what it came to is the step's.
        deterministic: whether it computes by deterministic operators.
    """

    job: Job
    step: Step
    loader: Loader
    validation: Loader | None
    metrics: Mapping[str, AnyMetric]
    folder: RunFolder | None
    emit: Emit
    save_best: SaveBest
    save_at: Callable[[Path], SaveBest] | None = None
    identity: Mapping[str, Any] = field(default_factory=dict)
    description: Mapping[str, Any] = field(default_factory=dict)
    watch: Watch = field(default_factory=Watch)
    planned: MicroBatch = None
    deterministic: bool = False
    accept_changes: Sequence[str] = ()
    observers: Sequence[ModelObserver] = ()
    details: ValidationDetails | None = None

    def __post_init__(self) -> None:
        self.monitor = monitored(self.job.evaluate.best_metric, self.metrics)
        self.total_windows = self.loader.order.windows
        self.last_metrics: dict[str, float] = {}
        self.train_loss = MeanLoss()
        self._evaluated_at_once: int | None = None
        self._update_events = UpdateEvents(self.emit, self.step)
        self.emit = self._update_events.emit
        self.hooks = HookCalls(self.job.hooks, self.step, self.emit)
        self.saving = Unsaved() if self.folder is None else Saving(self, self.folder)
        self._compared = False
        self._epoch: tuple[int, float] = (0, 0.0)
        self.attempt: Attempt | None = None  # for whoever asks what it was that failed

    def expect(self, predicted: Mapping[str, Any]) -> None:
        """Tell of `predicted`, the `peak_bytes` and `seconds_per_update` of the plan, and of what they turn out to be."""
        self._update_events.expect(predicted)

    @property
    def epoch(self) -> float:
        windows = self.step.progress.windows
        if self._epoch[0] != windows:  # each window asks twice
            self._epoch = windows, self.loader.order.cuts.epochs_after(windows)
        return self._epoch[1]

    @property
    def _at_once(self) -> int | None:
        """The rows that are scored at once, however large `evaluate.batch` is: no more than one pass of an update has, whose memory is there."""
        window = self.job.train.most_examples
        return self.step.micro_batch or (window and math.ceil(window / self.step.strategy.world_size))

    def fit(self) -> None:
        """Find the micro-batch before the first update, if that is asked for and no checkpoint knows it, and say what was tried.

        Raises:
            SettingError: its size is part of what is learned.
            OutOfMemory: nothing fits.
        """
        if self.planned != AUTO or self.step.micro_batch is not None:
            return
        strategy = self.step.strategy
        hosts = strategy.tell(socket.gethostname())
        with agreed(), deterministic(self.deterministic):
            window, longest = self.loader.worst_window()
            self.attempt = Attempt(Doing.FIT, window)
            fit = find_micro_batch(self.step, window, processes=hosts.count(hosts[strategy.rank]))
            self.attempt = None
        fit = replace(fit, micro_batch=min(strategy.counts(fit.micro_batch)))
        self.step.micro_batch = fit.micro_batch
        self.emit("fit", **fit.as_dict(), longest=longest, message=fit.message(longest))

    def restore(self, *, compare: bool = True) -> None:
        """Go on from the newest valid checkpoint, and say so.

        Args:
            compare: whether it may be of another run, whose settings, data and code are compared with this one's.
        Raises:
            As `Saving.load`.
        """
        for message in self.saving.load(compare):
            self.emit("warning", message=message)
        self.emit("resume", update=self.step.progress.updates, window=self.step.progress.windows)

    def hooked(self, name: str, seen: Any) -> None:
        """Call a hook of what is no update and no evaluation, and log the numbers that it gives.

        Raises:
            TrainingFailed: it has changed the model.
        """
        if logged := self.hooks.call(name, seen):
            self.emit("logged", update=self.step.progress.updates, hook=name, metrics=logged)

    def evaluate(self, stop: StopRequest) -> None:
        """Score the weights that would be saved, and save them if they are the best so far."""
        progress, seams, start = self.step.progress, self.step.seams, time.monotonic()
        self._settle(stop)
        if self.validation is None:  # nothing to compare by: the last weights are the ones to keep
            self.emit(DOING, text="saving the model")
            save_best(self, {})
            self._observe()
            return
        self.emit(DOING, text=f"evaluating {counted(self.validation.order.examples, 'row')}")
        with closing(_whole(self.validation, stop)) as windows:
            scored = replace(Scored.of(self.step), micro_batch=self._evaluated_at_once or self._at_once)
            sources = self.validation.sources
            observed = None if self.details is None else self.details.observed()
            windows_scored = self._scored(windows)
            metrics = evaluate(scored, windows_scored, self.metrics, self._evaluate_finer, sources, observed)
        self.step.evaluated(metrics)
        before, standing = self._best(), self.watch.standing
        rule = self.job.early_stopping
        best = self.watch.observe(
            progress.updates,
            metrics,
            self.monitor,
            epoch=self.epoch,
            weights=seams.weights_name,
            counts=not seams.awaits_average,
            min_delta=0.0 if rule is None else rule.min_delta,
        )
        self.last_metrics = metrics
        logged = self.hooks.call("on_evaluation", dict(metrics), taken=metrics)
        if best and not save_best(self, metrics):
            best = False
            self.watch.stand_by(standing)
        else:
            keep_models(self, metrics, best=best)
        if best:
            self._keep_details(observed)
        self.emit(
            "evaluation",
            update=progress.updates,
            window=progress.windows,
            epoch=self.epoch,
            metrics={**metrics, **logged},
            train_loss=self.train_loss.taken(),
            weights=seams.weights_name,
            best=best,
            seconds=time.monotonic() - start,
        )
        self._observe()
        if best and before is not None and before["weights"] != seams.weights_name:
            name, _ = self.monitor
            self.emit(
                "warning",
                message=f"from update {progress.updates} on the weights of '{seams.weights_name}' are evaluated, and the best of them is "
                f"kept. The best of the {before['weights']} weights is no longer: {name} {before['metrics'][name]:.4g} at update "
                f"{before['update']}.",
            )

    def _keep_details(self, observed: Observed | None) -> None:
        """Keep what was seen of the best evaluation, on all ranks; where nothing looked, what was kept of an earlier one goes."""
        strategy = self.step.strategy
        if observed is not None:
            observed.join_ranks(strategy)
        if strategy.rank > 0:
            return
        try:
            if self.details is not None and observed is not None:
                self.details.keep(observed)
            elif self.folder is not None:
                (self.folder.path / DETAILS).unlink(missing_ok=True)
        except (RunFolderError, OSError) as error:  # a run goes on without what its report would show
            self.emit("warning", message=f"the report has no details of this evaluation: {error}")

    def _observe(self) -> None:
        """Tell what the weights that are scored are, and what they say."""
        if not self.observers or self.folder is None:
            return
        scored, update = Scored.of(self.step), self.step.progress.updates
        with scoring(scored):
            observations = [observe(scored.model, update, self.folder.path) for observe in self.observers]
        for kind, fields in observations:
            self.emit(kind, update=update, **fields)

    def _settle(self, stop: StopRequest) -> None:
        self.step.settle(lambda: _whole(self.loader, stop))

    def run(self, stop: StopRequest) -> RunResult:
        """Train to the end, or to a reason to stop.

        What the disk does not take is tried again at the next occasion. Where the end of the run could not be saved, the run is stopped,
        and can go on from an older checkpoint.

        Raises:
            TrainingFailed: the non-finite policy says so, nothing was learned, or no checkpoint could be saved; what was saved stays
                resumable.
            RanksLost: other ranks have ended, or do not answer.
        """
        reset_peak_memory(self.step.device)
        start, examples = time.monotonic(), self.step.progress.examples
        status: str = "finished"
        with (
            deterministic(self.deterministic),
            self._update_events,
            self.saving,
            answered(lambda: f"at update {self.step.progress.updates + 1}"),
        ):
            self._write_owed(stop)
            reason = self._exhausted()
            while self.step.progress.windows < self.total_windows and reason is None:
                outcome = self._run_until_boundary(stop)
                if outcome is not None:
                    status, reason = outcome
            self.saving.finish()
            self._update_events.ended()
            if (problem := self.saving.problem or owed_now(self)) is not None:
                status, reason = "stopped", self._unsaved(problem, reason)
        if status == "finished" and self.step.progress.updates == 0:
            raise TrainingFailed(
                f"none of the {self.total_windows} windows made an update: their losses were not finite, none of their labels "
                "counts, or the loss scale was still too high. The events say which."
            )
        seconds = time.monotonic() - start
        return RunResult(
            run_dir=None if self.folder is None else str(self.folder.path),
            status=status,
            stop_reason=reason,
            resumable=status == "stopped" and self.folder is not None,
            updates=self.step.progress.updates,
            epochs=self.epoch,
            best=self._best(),
            last={"metrics": self.last_metrics},
            seconds=seconds,
            examples_per_second=(self.step.progress.examples - examples) / max(seconds, 1e-9),
            peak_memory_bytes=peak_memory_bytes(self.step.device),
            went_back=sorted(self.watch.banned),
        )

    def _write_owed(self, stop: StopRequest) -> None:
        """Write the best model, if the disk did not take it when the checkpoint was saved that this run goes on from."""
        if (owed := self.watch.owed) is not None and owed_now(self) is not None:
            self._settle(stop)
            if save_best(self, owed["metrics"]) and self.validation is not None:
                self.watch.stand_by((owed["update"], owed["metrics"], owed["weights"]))

    def _unsaved(self, problem: str, reason: str | None) -> str:
        """Return why the run is stopped whose end could not be saved, and can go on from an older checkpoint.

        Raises:
            TrainingFailed: there is none.
        """
        assert self.folder is not None
        stands = self.step.strategy.rank == 0 and checkpoint_files.any_whole(self.folder.checkpoints)
        message = f"the end of the run could not be saved: {problem}"
        if not self.step.strategy.tell(stands)[0]:
            raise TrainingFailed(f"{message} There is no checkpoint to go on from.")
        return message if reason is None else f"{reason}; {message}"

    def _run_until_boundary(self, stop: StopRequest) -> tuple[str, str | None] | None:
        """Return windows in order until the run ends (its status and reason) or rolls back (None)."""
        progress, job = self.step.progress, self.job
        before = time.perf_counter()
        windows = self.loader.windows(progress.windows, self.total_windows, rescue=lambda: stop.asked)
        ahead = WindowsAhead(windows)
        with closing(ahead), self._fetching(ahead):
            for window in ahead:
                refusal = self._train_on(window, before)
                if refusal and refusal.roll_back:
                    self._roll_back(refusal.reason)
                    return None
                last = progress.windows == self.total_windows
                evaluated = last or self._evaluation_due()
                if evaluated:
                    self.evaluate(stop)
                exhausted = self._exhausted() if evaluated else None
                asked = None if last else self._asked(stop)
                due = self._due(job.checkpoint.every) if job.checkpoint.every else evaluated
                if due or last or asked or exhausted or refusal:
                    self.saving.save()
                if refusal:
                    raise TrainingFailed(refusal.reason)
                if exhausted:
                    return "finished", exhausted
                if asked:
                    return "stopped", asked
                before = time.perf_counter()
        return "finished", None

    @contextmanager
    def _fetching(self, windows: WindowsAhead) -> Iterator[None]:
        """Temporarily have each update fetch the next window while the device computes."""
        if _computes_beside_host(self.step.device):
            self.step.meanwhile = windows.fetch
        try:
            yield
        finally:
            self.step.meanwhile = None

    def _exhausted(self) -> str | None:
        """Return why the run should stop early, or None. The first rank decides for all: `stop_when` is the user's code, and may look at a clock.

        Raises:
            As `Watch.exhausted`.
        """
        strategy = self.step.strategy
        if strategy.world_size == 1:
            return self.watch.exhausted(self.job)
        with agreed():
            reason = self.watch.exhausted(self.job) if strategy.rank == 0 else None
        decided: str | None = strategy.tell(reason)[0]
        return decided

    def _asked(self, stop: StopRequest) -> str | None:
        """Return why to stop, if one of the ranks was asked to; the same on all of them."""
        strategy, asked = self.step.strategy, stop.reason or self.hooks.stop_reason
        failed = self.saving.poll()
        if strategy.world_size == 1 and not failed and asked is None:
            return None
        if not any(strategy.counts(int(failed or asked is not None))):  # each window asks, so briefly
            return None
        self.saving.finish()
        reason: str | None = next(filter(None, strategy.tell(asked)), None)
        return reason

    def _train_on(self, window: Batch, before: float) -> Refusal | None:
        """Return one window; how the run is to end or go back because of it, or None to go on."""
        progress, watch = self.step.progress, self.watch
        if reason := watch.banned.get(progress.windows + 1):
            progress.consume(window.total, applied=False)
            self.emit("skipped", window=progress.windows, reason=f"the run went back because of it: {reason}")
            return None
        self.attempt = Attempt(Doing.UPDATE, window)
        moving: MovingBuffers | None = None
        if not self._compared:
            self._compared = True
            self._compare_rows(window)
            if progress.windows == 0 and is_in_micro_batches(self.step, window):
                moving = MovingBuffers(self.step.model)
        start = time.perf_counter()
        result = self.step(window)
        self.attempt = None
        if moving is not None and (message := moving.message()) is not None:
            self.emit("warning", message=message)
        self.train_loss.add(result)
        self._update_events.computed(result, time.perf_counter() - start)
        seconds = time.perf_counter() - before
        logged: Mapping[str, float] = {}
        if result.applied and self.hooks.sees_updates:
            logged = self.hooks.call("on_update", result, taken=(*TAKEN, *result.metrics))
        self._update_events.update(result, self.epoch, window.total / seconds, logged)
        if not result.applied:
            return judge(self, result, window, self.saving.any)
        if progress.windows > max(watch.banned, default=0):
            watch.refused_in_a_row = 0
        return None

    def _compare_rows(self, window: Batch) -> None:
        """See, before the first update, that a row's loss does not depend on the rows beside it, where these are not the whole window.

        Raises:
            SettingError: it does.
        """
        step, ranks = self.step, self.step.strategy.world_size
        split = is_split(step, window)
        if split and step.progress.windows > 0:  # a resumed run, which was compared at its beginning
            return
        most = rows_to_compare(self.loader.order.cuts.examples_after(self.total_windows), ranks)
        if not split:
            most = min(most, FEW_ROWS)
        elif self.planned == AUTO and step.micro_batch is not None:
            most = min(most, step.micro_batch)  # the most that is known to fit
        comparison = compare_rows(step, window, most)
        if comparison is None or not (split or comparison.coupled):
            return
        if split:
            require_uncoupled(comparison, ranks)
        else:
            step.couples_rows = True
        self.emit("rows", rows=comparison.rows, coupled=comparison.verdict, message=comparison.message)

    def _scored(self, windows: Windows) -> Windows:
        """Return the windows, each the attempt of the run while it is scored."""
        for window in windows:
            self.attempt = Attempt(Doing.EVALUATION, window)
            yield window
        self.attempt = None

    def _evaluate_finer(self, replan: Replan) -> None:
        self._evaluated_at_once = replan.after
        self._update_events.replanned("the evaluation", replan)

    def _evaluation_due(self) -> bool:
        every = self.job.evaluate.every
        return self.epoch.is_integer() if every == "epoch" else self._due(every)

    def _due(self, every: int) -> bool:
        return self.step.progress.windows % every == 0

    def _best(self) -> dict[str, Any] | None:
        if self.watch.best_update is None:
            return None
        watch = self.watch
        return {"update": watch.best_update, "metrics": watch.best_metrics, "weights": watch.best_weights}

    def _roll_back(self, reason: str) -> None:
        """Go back to the newest checkpoint, from where this window will be passed over."""
        in_a_row, banned = (
            self.watch.refused_in_a_row,
            {**self.watch.banned, self.step.progress.windows: reason},
        )
        self.restore(compare=False)
        self.watch.refused_in_a_row, self.watch.banned = in_a_row, banned


def _computes_beside_host(device: torch.device) -> bool:
    return device.type != "cpu"


def _whole(loader: Loader, stop: StopRequest) -> Windows:
    """Return one pass over all examples of a loader."""
    return loader.windows(0, loader.order.windows_per_pass, rescue=lambda: stop.asked)
