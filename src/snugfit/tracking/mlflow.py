"""MLflow as a tracker: imported late, quiet, with short timeouts, and without its telemetry."""

from __future__ import annotations

import contextlib
import getpass
import importlib.util
import json
import logging
import os
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from snugfit.errors import MissingExtra, TrackingError
from snugfit.system.disk_files import locked_folder
from snugfit.system.redaction import redact
from snugfit.tracking.backend import FAILURES, Batch, DataInput, RunGone, reason
from snugfit.tracking.uri import database_path

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

ARTIFACTS = "mlflow-artifacts"
DIGEST = 32
"""Characters of a data set's digest, of which MLflow's databases take 36."""
STATUS = {"finished": "FINISHED", "stopped": "KILLED", "failed": "FAILED", "running": "RUNNING"}

FOLLOWER_ENVIRONMENT = {
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",  # stdout belongs to the program
}
REGISTRY_ENVIRONMENT = {
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "60",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
}
_IMPORT_ENVIRONMENT = {"MLFLOW_DISABLE_TELEMETRY": "true", "DO_NOT_TRACK": "true"}


class MlflowBackend:
    """An MLflow store behind the follower. Batches are idempotent: MLflow recognises equal (name, value, time, step).

    Files and pictures are artifacts of the run. Where its store of artifacts takes none, the rest arrives all the same, and `close` says so.

    Args:
        folder: of the run.
    Raises:
        MissingExtra: MLflow is not installed.
    """

    def __init__(self, uri: str, experiment: str, folder: Path = Path()) -> None:
        import_mlflow()
        self._folder, self._not_stored = folder, ""
        self.uri = uri
        self.experiment = experiment
        self._environment = contextlib.ExitStack()
        self._environment.enter_context(environment(FOLLOWER_ENVIRONMENT))
        self._client: MlflowClient | None = None
        self._experiment_id: str | None = None

    def open(self, run_id: str | None, name: str, start_ms: int) -> str:
        """Create a run in the experiment, or find the given one; whether it is running, events say."""
        client = self._connect()
        if run_id is None:
            self._experiment_id = self._experiment_id or experiment_id(client, self.experiment, self.uri)
            tags = {"mlflow.source.name": "snugfit", "mlflow.user": user_name()}
            run = client.create_run(self._experiment_id, start_time=start_ms, tags=tags, run_name=name)
            return str(run.info.run_id)
        from mlflow.exceptions import MlflowException

        try:
            lifecycle = client.get_run(run_id).info.lifecycle_stage
        except MlflowException as error:
            if error.error_code == "RESOURCE_DOES_NOT_EXIST":
                raise RunGone(run_id) from error
            raise
        if lifecycle == "deleted":
            raise RunGone(run_id)
        return run_id

    def send(self, run_id: str, batch: Batch) -> None:
        """Store a batch, then the status; MLflow's client splits it where it is too large for a request."""
        from mlflow.entities import Metric as MlflowMetric
        from mlflow.entities import Param, RunTag

        client = self._connect()
        client.log_batch(
            run_id,
            [
                MlflowMetric(metric.name, metric.value, metric.time_ms, metric.step)
                for metric in batch.metrics
            ],
            [Param(key, value) for key, value in batch.params.items()],
            [RunTag(key, value) for key, value in batch.tags.items()],
        )
        if batch.inputs:
            _log_inputs(client, run_id, batch.inputs)
        for path in (*batch.files, *(picture.path for picture in batch.pictures)):
            self._store_file(client, run_id, path)
        if batch.untagged:
            there = client.get_run(run_id).data.tags
            for key in sorted(batch.untagged & set(there)):
                client.delete_tag(run_id, key)
        if batch.status == "running":
            client.update_run(run_id, status="RUNNING")
        elif batch.status is not None:
            client.set_terminated(run_id, STATUS.get(batch.status, "FAILED"), batch.status_time_ms)

    def _store_file(self, client: MlflowClient, run_id: str, path: str) -> None:
        file = self._folder / path
        if not file.is_file():  # its owner has removed it since: the rest is to arrive
            return
        place = Path(path).parent.as_posix()
        try:
            client.log_artifact(run_id, str(file), None if place == "." else place)
        except FAILURES as error:
            self._not_stored = self._not_stored or f"{path} cannot be stored: {reason(error)}"

    def close(self) -> None:
        """Give the environment variables back.

        Raises:
            TrackingError: files of the run are not stored.
        """
        self._environment.close()
        if self._not_stored:
            problem, self._not_stored = self._not_stored, ""
            raise TrackingError(redact(self.uri), problem, "Check the tracker's store of artifacts.")

    def _connect(self) -> MlflowClient:
        if self._client is None:
            from mlflow.tracking import MlflowClient

            path = database_path(self.uri)
            alone = (
                locked_folder(path.parent)
                if path is not None and path.parent.is_dir()
                else contextlib.nullcontext()
            )
            with (
                alone
            ):  # the client makes the tables of a new database in a file, and of two that do one fails
                client = MlflowClient(tracking_uri=self.uri)
                if path is not None:
                    client.search_experiments(max_results=1)  # the latest at which it does
            self._client = client
        return self._client


def _log_inputs(client: MlflowClient, run_id: str, inputs: Sequence[DataInput]) -> None:
    """Store the run's data sets; servers older than data sets (MLflow 2.4) have no place for them and keep all else.

    Names and tags of MLflow's own data sets, so that its pages and searches know them. Storing the same data set twice stores it once.
    """
    from mlflow.entities import Dataset, DatasetInput, InputTag
    from mlflow.exceptions import MlflowException

    datasets = [
        DatasetInput(
            Dataset(
                name=each.name,
                digest=each.digest[:DIGEST],
                source_type="code" if each.is_code else "local",
                source=json.dumps({"tags": {"function": each.name}} if each.is_code else {"uri": each.name}),
                profile=_profile(each),
            ),
            [InputTag("mlflow.data.context", each.context)],
        )
        for each in inputs
    ]
    try:
        client.log_inputs(run_id, datasets)
    except MlflowException as error:
        if error.error_code != "ENDPOINT_NOT_FOUND":
            raise


def _profile(data: DataInput) -> str | None:
    """Return what MLflow's page shows of a data set beside its name, where it is known."""
    known = {"num_rows": data.rows, "columns": list(data.columns) or None}
    shown = {name: value for name, value in known.items() if value is not None}
    return json.dumps(shown) if shown else None


def user_name() -> str:
    """Return who runs this, as MLflow's own functions say it; "unknown" where the system has no name for the account."""
    try:
        return getpass.getuser()
    except (ImportError, KeyError, OSError):  # a number without an account, as in some containers
        return "unknown"


def missing_mlflow() -> str | None:
    """Return what to say when MLflow is not installed; None when it is. Does not import it."""
    if "mlflow" in sys.modules or importlib.util.find_spec("mlflow") is not None:
        return None
    return str(MissingExtra("mlflow", "mlflow"))


def import_mlflow() -> None:
    """Import MLflow (a second or three) without telemetry and without its messages about database tables.

    Telemetry is decided by MLflow when it is imported: a program that has imported it before has decided for itself.

    Raises:
        MissingExtra
    """
    missing = missing_mlflow()
    if missing is not None:
        raise MissingExtra("mlflow", "mlflow")
    logging.getLogger("mlflow.store.db.utils").setLevel(logging.WARNING)
    with environment(_IMPORT_ENVIRONMENT):
        import mlflow  # noqa: F401
        from mlflow.tracking import MlflowClient  # noqa: F401


def experiment_id(client: MlflowClient, name: str, uri: str) -> str:
    """Return the experiment's id; it is created if need be, with its artifacts beside the database if it is a local one."""
    from mlflow.exceptions import MlflowException

    experiment = client.get_experiment_by_name(name)
    if experiment is None:
        path = database_path(uri)
        location = None if path is None else (path.absolute().parent / ARTIFACTS).as_uri()
        try:
            return str(client.create_experiment(name, artifact_location=location))
        except MlflowException:
            experiment = client.get_experiment_by_name(name)  # another run has created it in between
            if experiment is None:
                raise
    if experiment.lifecycle_stage == "deleted":
        raise TrackingError(
            "track.experiment",
            f"{name!r} has been deleted in the tracker",
            "Restore it there, or choose another name.",
        )
    return str(experiment.experiment_id)


_environment_lock = threading.RLock()
_environment_users: dict[str, int] = {}


@contextlib.contextmanager
def environment(values: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables for a while. What the user has set stays; nested and parallel uses are counted."""
    taken = []
    with _environment_lock:
        for key, value in values.items():
            if key not in os.environ or _environment_users.get(key):
                os.environ.setdefault(key, value)
                _environment_users[key] = _environment_users.get(key, 0) + 1
                taken.append(key)
    try:
        yield
    finally:
        with _environment_lock:
            for key in taken:
                _environment_users[key] -= 1
                if not _environment_users[key]:
                    del _environment_users[key]
                    os.environ.pop(key, None)
