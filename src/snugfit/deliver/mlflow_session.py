"""MLflow's client for models, bound to one address, quiet, and without a trace in the process afterwards."""

from __future__ import annotations

import contextlib
import logging
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from snugfit.errors import SnugfitError, TrackingError
from snugfit.system.messages import loggers_above
from snugfit.system.redaction import redact
from snugfit.tracking.backend import reason
from snugfit.tracking.mlflow import REGISTRY_ENVIRONMENT, environment, import_mlflow
from snugfit.tracking.uri import database_path, registry_uri

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient


@contextlib.contextmanager
def session(uri: str, task: str) -> Iterator[MlflowClient]:
    """Yield a client at this address, with short timeouts and MLflow's messages silenced; errors become TrackingError."""
    import_mlflow()
    from mlflow.tracking import MlflowClient

    quiet = loggers_above(logging.ERROR, "mlflow")
    with environment(REGISTRY_ENVIRONMENT), _current_address(uri), quiet:
        try:
            yield MlflowClient(tracking_uri=uri, registry_uri=registry_uri(uri))
        except SnugfitError:
            raise
        except Exception as error:  # MLflow, its stores, transports and plugins raise many kinds
            raise TrackingError(
                redact(uri), f"cannot {task}: {reason(error)}", "Check the address, the name and the server."
            ) from error


@contextlib.contextmanager
def _current_address(uri: str) -> Iterator[None]:
    """Make this MLflow's address in the process for a while: what looks up `models:/` addresses knows no other way."""
    import mlflow

    variables = {name: os.environ.get(name) for name in ("MLFLOW_TRACKING_URI", "MLFLOW_REGISTRY_URI")}
    tracking = mlflow.get_tracking_uri() if mlflow.is_tracking_uri_set() else None
    try:
        mlflow.set_tracking_uri(uri)
        mlflow.set_registry_uri(registry_uri(uri))
        yield
    finally:
        mlflow.set_tracking_uri(tracking)  # None: unset
        mlflow.set_registry_uri(variables["MLFLOW_REGISTRY_URI"])  # None: unset
        for name, value in variables.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextlib.contextmanager
def downloaded(model_uri: str, uri: str) -> Iterator[Path]:
    """Yield the folder of a registered model, inside a `session`: a local store's own one, or a temporary copy."""
    from mlflow.artifacts import download_artifacts

    with tempfile.TemporaryDirectory(prefix="snugfit-model-") as temporary:
        target = (
            None if database_path(uri) is not None else temporary
        )  # a local store's own folder is read in place
        yield Path(download_artifacts(artifact_uri=model_uri, dst_path=target))
