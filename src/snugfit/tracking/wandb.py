"""Weights & Biases as a tracker: a run's events as a run of W&B, in whatever mode the account and WANDB_MODE say."""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import Any

from snugfit.errors import TrackingError
from snugfit.tracking.backend import (
    Batch,
    RunGone,
    by_step,
    logged_value,
    project_name,
    shown_points,
    sources_of,
    typed,
)

NAME = "wandb"
"""Of the tracker, of W&B's folder in a run's, and of the file that says how far it has got."""

INIT_SECONDS = 20
FINISH_SECONDS = 20
"""The most that W&B waits for its server at the beginning and at the end; data that is not sent by then lies in the run's folder."""

_FLUSH_SECONDS = 1.0
"""Time after which rows are on the disk; W&B's own is 15 s, and those of a process that is killed before would be lost."""

_BEST = "best/"
"""Begins the names of numbers of an earlier update than the newest, which is in the summary alone."""

_OF_MLFLOW = "mlflow."


class WandbBackend:
    """W&B's client behind the follower: a metric is a point at its update, settings are the config, tags are in the summary.

    Steps of W&B only grow, and it leaves out a point behind the newest: of a batch that is sent twice, or of updates that a resume
    repeats, whose values are there already. Meant for a process of its own, whose service it takes down with it.

    Args:
        folder: of the run; W&B's files lie in its `wandb/`.
        project: of W&B, where WANDB_PROJECT names none.
        watched: process whose processor time and memory are measured beside the machine's; None measures nothing.
    """

    def __init__(self, folder: Path, project: str, watched: int | None = None) -> None:
        self.folder, self.watched = folder, watched
        self.project = os.environ.get("WANDB_PROJECT") or project_name(project)
        self._run: Any = None
        self._status: str | None = None

    def open(self, run_id: str | None, name: str, start_ms: int) -> str:
        """Create a run that started at this time, or continue the given one, and return its id.

        Raises:
            RunGone: it was deleted in W&B, which takes no other run of its id.
        """
        import wandb

        settings = wandb.Settings(
            console="off",
            silent=True,
            save_code=False,
            disable_code=True,
            disable_git=True,
            init_timeout=INIT_SECONDS,
            finish_timeout=FINISH_SECONDS,
            finish_timeout_raises=True,
            x_save_requirements=False,
            x_start_time=start_ms / 1000,
            x_disable_stats=self.watched is None,
            x_stats_pid=self.watched or os.getpid(),
            x_transaction_log_flush_interval=_FLUSH_SECONDS,
        )
        try:
            self._run = wandb.init(
                project=self.project,
                id=run_id or secrets.token_hex(4),
                name=name,
                group=name.partition("/")[0],
                resume="allow",
                dir=str(self.folder),
                settings=settings,
            )
        except wandb.errors.CommError as error:
            if "deleted" in str(error):
                raise RunGone(run_id) from error
            raise
        return str(self._run.id)

    def send(self, run_id: str, batch: Batch) -> None:  # noqa: ARG002  # it is open
        """Hand a batch to W&B's service, which writes it to disk and sends it when it can."""
        import wandb

        if batch.params:
            config = {key: typed(value) for key, value in batch.params.items()}
            self._run.config.update({**config, **sources_of(batch)}, allow_val_change=True)
        best = {each.name: each.value for each in batch.metrics if each.name.startswith(_BEST)}
        shown = shown_points(batch, self.folder)
        for step, points in by_step(each for each in shown if each.name not in best):
            values = {each.name: logged_value(each, self.folder, wandb) for each in points}
            self._run.log({**values, "_timestamp": points[0].time_ms / 1000}, step=step)
        self._run.summary.update(best)
        if tags := {key: text for key, text in batch.tags.items() if not key.startswith(_OF_MLFLOW)}:
            self._run.summary.update(tags)
        for key in batch.untagged & set(self._run.summary.keys()):
            del self._run.summary[key]
        self._status = batch.status or self._status

    def close(self) -> None:
        """End the run and W&B's service.

        Raises:
            TrackingError: the server has not taken all; says how it is sent.
        """
        if self._run is None:
            return
        import wandb

        run, self._run = self._run, None
        if self._status == "stopped":
            run.mark_preempting()
        late = False
        try:
            run.finish(exit_code=0 if self._status == "finished" else 1)
        except TimeoutError:
            late = True
        finally:
            wandb.teardown()
        if late:
            folder = run.settings.sync_dir
            raise TrackingError(
                NAME,
                f"its server has not taken all within {FINISH_SECONDS} s; the rest lies in {folder}",
                f"Send it with: wandb sync {folder}",
            )
