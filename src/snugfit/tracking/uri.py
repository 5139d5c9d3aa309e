"""The address that a run is tracked at, resolved once when the run starts, and checked without network."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

from snugfit.errors import TrackingError, nearest
from snugfit.system.redaction import redact

DATABASES = ("sqlite", "postgresql", "mysql", "mssql")
DATABRICKS = ("databricks", "databricks-uc")
DEFAULT_DATABASE = "mlflow.db"


def resolve_uri(
    setting: str | None,
    output: str | os.PathLike[str],
    *,
    stored: str | None = None,
    environment: Mapping[str, str] = os.environ,
) -> str:
    """Return the tracker's address.

    It is the setting, else the one of the run that is resumed, else MLFLOW_TRACKING_URI, else a SQLite
    database beside the runs.

    Args:
        setting: `track.uri`.
        output: folder of the runs.
        stored: what `stored_uri(run_dir)` says, when a run is resumed.
    """
    environment_uri = _absolute(environment.get("MLFLOW_TRACKING_URI", ""))
    of_run = stored if stored and (not setting or setting == stored) else _absolute(setting or "")
    if of_run:  # an address is written without its secrets; the environment may have the whole
        return environment_uri if environment_uri and redact(environment_uri) == of_run else of_run
    return environment_uri or database_uri(Path(output) / DEFAULT_DATABASE)


def _absolute(uri: str) -> str:
    path = database_path(uri)
    return uri if path is None or path.is_absolute() else uri.replace(str(path), os.path.abspath(path), 1)


def database_uri(path: str | os.PathLike[str]) -> str:
    """Return the address of a SQLite file.

    >>> database_uri("/runs/mlflow.db")
    'sqlite:////runs/mlflow.db'
    """
    return f"sqlite:///{os.path.abspath(path)}"


def database_path(uri: str) -> Path | None:
    """Return the file of a SQLite address; None for any other address and for a database in memory."""
    match = re.match(r"sqlite(?:\+\w+)?:///([^?]*)", uri)
    return Path(match[1]) if match and match[1] not in ("", ":memory:") else None


def check_uri(uri: str, *, experiment: str | None = None, model: str | None = None) -> None:
    """Refuse, without network, an address that cannot work, and names that this kind of tracker does not take.

    Args:
        uri: `track.uri` or what it resolves to.
        experiment: `track.experiment`.
        model: `track.register`.
    Raises:
        TrackingError
    """
    setting = f"track.uri: {redact(uri)!r}"
    scheme = "databricks" if uri in DATABRICKS else uri.partition(":")[0].lower() if ":" in uri else ""
    base = scheme.partition("+")[0]
    if uri != uri.strip() or any(character.isspace() and character != " " for character in uri):
        raise TrackingError(setting, "has spaces around it or a line break in it", "Remove them.")
    if scheme in ("", "file") or (len(scheme) == 1 and scheme.isalpha()):
        path = uri.removeprefix("file:").removeprefix("//") or "runs"
        raise TrackingError(
            setting,
            "is a folder, which MLflow no longer writes to",
            f"Use a database: {'sqlite:///' + path.rstrip('/') + '/' + DEFAULT_DATABASE}",
        )
    if base in ("http", "https"):
        _check_server(uri, setting)
    elif base == "sqlite":
        _check_sqlite(uri, setting)
    elif base in DATABASES:
        _check_server(uri, setting)
    elif base in DATABRICKS:
        pass
    elif not _has_plugin(scheme):
        known = ["http", "https", *DATABASES, "databricks"]
        raise TrackingError(
            setting, f"begins with {scheme!r}, which no MLflow store is for", nearest(scheme, known)
        )
    if experiment is not None:
        _check_experiment(experiment, uri)
    if model is not None:
        check_model_name(model, uri)


def check_model_name(name: str, uri: str) -> None:
    """Refuse a name that the registry at this address does not take.

    Raises:
        TrackingError
    """
    setting = f"track.register: {name!r}"
    if not name.strip() or name in (".", "..") or re.search(r"[/:@]", name):
        raise TrackingError(
            setting,
            "cannot be a model's name: it must not be empty or contain / : or @",
            "Give another name.",
        )
    if is_databricks(uri):
        levels = name.split(".")
        if len(levels) != 3 or not all(levels):
            raise TrackingError(
                setting,
                f"has {len(levels)} levels, and Databricks (Unity Catalog) needs three",
                "Write catalog.schema.model.",
            )


def is_databricks(uri: str) -> bool:
    """Return whether the address is a Databricks workspace."""
    return uri in DATABRICKS or uri.partition(":")[0] in DATABRICKS


def registry_uri(uri: str) -> str:
    """Return the model registry that goes with a tracker.

    >>> registry_uri("databricks://team"), registry_uri("http://host")
    ('databricks-uc://team', 'http://host')
    """
    if is_databricks(uri):
        profile = uri.partition("://")[2]
        return f"databricks-uc://{profile}" if profile else "databricks-uc"
    return uri


def _check_server(uri: str, setting: str) -> None:
    try:
        parts = urlsplit(uri)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        # without the error's own words, which hold a part of a password
        raise TrackingError(
            setting,
            "cannot be parsed",
            "Write it like http://host:5000; @, /, ? and # in a password are written %40, %2F, %3F and %23.",
        ) from error
    if not host or "://" not in uri:
        raise TrackingError(setting, "names no host", f"Write it like {parts.scheme}://host:5000")
    if " " in parts.netloc or port == 0:
        raise TrackingError(
            setting, "has a host or port that cannot be", f"Write it like {parts.scheme}://host:5000"
        )


def _check_sqlite(uri: str, setting: str) -> None:
    path = database_path(uri)
    if path is None:
        raise TrackingError(setting, "names no file", "Write it like sqlite:///runs/mlflow.db")
    try:
        if path.is_dir():
            raise TrackingError(
                setting, "names a folder", f"Add the file's name: {uri.rstrip('/')}/{DEFAULT_DATABASE}"
            )
        if path.is_file():
            with path.open("rb") as file:
                head = file.read(16)
            if head and head != b"SQLite format 3\0":
                raise TrackingError(setting, "is a file, but not a SQLite database", "Choose another file.")
            if not os.access(path, os.W_OK):
                raise TrackingError(setting, "cannot be written (permission)", "Choose another file.")
        else:
            folder = next(parent for parent in path.absolute().parents if parent.exists())
            if not folder.is_dir() or not os.access(folder, os.W_OK):
                raise TrackingError(
                    setting,
                    f"cannot be created: {folder} is not a folder that can be written",
                    "Name another folder.",
                )
    except OSError as error:
        raise TrackingError(
            setting, f"cannot be opened: {error.strerror}", "Name a file that can be opened."
        ) from error


def _check_experiment(experiment: str, uri: str) -> None:
    if not experiment.strip():
        raise TrackingError("track.experiment", "is empty", "Give the experiment a name.")
    if is_databricks(uri) and not experiment.startswith("/"):
        raise TrackingError(
            "track.experiment",
            f"got {experiment!r}, which is no path in a Databricks workspace",
            "Write it like /Users/me@firm.com/name",
        )


def _has_plugin(scheme: str) -> bool:
    from importlib.metadata import entry_points

    return scheme in entry_points(group="mlflow.tracking_store").names
