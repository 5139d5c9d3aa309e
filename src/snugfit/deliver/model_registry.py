"""The best model in MLflow's registry: logged, loaded back, compared, and only then the champion."""

from __future__ import annotations

import atexit
import contextlib
import math
import os
import shlex
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from snugfit.deliver.mlflow_session import downloaded, session
from snugfit.errors import RunFolderError, TrackingError
from snugfit.system.digest import digest_of_file
from snugfit.system.disk_files import cache_folder
from snugfit.system.json_text import parse_json
from snugfit.tracking.uri import check_uri, database_path, resolve_uri

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

    from snugfit.models.adapter_bundle import Base

Rows = list[dict[str, Any]]

ALIAS = "champion"
BUNDLE_FILE = "snugfit.json"
TOLERANCE = 1e-6
EXAMPLE_ROWS = 5


@dataclass(frozen=True)
class Registered:
    """A version of a registered model that gave the predictions of `best/` when it was loaded back."""

    name: str
    version: str
    alias: str
    max_abs_difference: float
    rows: int
    uri: str

    @property
    def model_uri(self) -> str:
        """The address for `snugfit predict`."""
        return f"models:/{self.name}@{self.alias}"


def register_best(
    run_dir: str | os.PathLike[str],
    *,
    name: str,
    uri: str,
    run_id: str | None,
    example_rows: Rows,
    predict: Callable[[Path, Rows], Rows],
    together: bool = False,
    base: Base | None = None,
) -> Registered:
    """Register a run's best model and move the alias `champion` to it, if the stored copy predicts the same.

    The bundle is logged on the run as an MLflow pyfunc model from code (nothing is pickled), with the signature and the
    input example taken from real rows. It is then loaded back by its registry name and compared with `best/`.

    Args:
        run_id: the tracker's id of the run.
        example_rows: real input rows; all are compared, the first five are stored as the example.
        predict: predictions of a bundle for rows, in order.
        together: the rows are of one example, and stored together.
        base: the model that its adapter was trained on, where that adapter alone is stored; what is compared is merged into it.
    Raises:
        TrackingError: the registry cannot be used, or the predictions differ by more than 1e-6 or in a label. The alias
            stays where it was.
        RunFolderError: the run has no best model.
    """
    bundle = _bundle_of_run(Path(run_dir))
    check_uri(uri, model=name)
    if not example_rows:
        raise TrackingError(name, "no rows to compare predictions on", "Give at least one example row.")
    if run_id is None:
        raise TrackingError(
            run_dir,
            "has not been tracked yet, so its model cannot be registered",
            f"Send it first: snugfit track replay {shlex.quote(str(run_dir))}",
        )
    reference = predict(bundle, example_rows)
    with session(uri, f"register {name!r}") as client:
        shown = len(example_rows) if together else EXAMPLE_ROWS
        with _stored(bundle, base) as stored:
            model_id = _log(client, stored, run_id, example_rows, reference, shown)
        version = _create_version(client, name, model_id, run_id)
        with downloaded(f"models:/{name}/{version}", uri) as folder:
            loaded = _predict_stored(folder, example_rows)
        difference, mismatch = compare(reference, loaded)
        client.set_model_version_tag(name, version, "snugfit.compared_rows", str(len(example_rows)))
        client.set_model_version_tag(name, version, "snugfit.max_abs_difference", repr(difference))
        if mismatch is not None:
            raise TrackingError(
                f"models:/{name}/{version}",
                f"does not predict like {bundle}: {mismatch}",
                f"Look at the version, which is kept; the alias '{ALIAS}' was not moved.",
            )
        client.set_registered_model_alias(name, ALIAS, version)
    return Registered(name, version, ALIAS, difference, len(example_rows), uri)


def resolve_model(
    model: str | os.PathLike[str], *, uri: str | None = None, output: str | os.PathLike[str] = "runs"
) -> Path:
    """Return the folder of a bundle: of a run's folder, of a bundle itself, or of a registered model, which is downloaded.

    Args:
        model: a path, or `models:/name@alias`, `models:/name/version`.
        uri: the registry's tracker; default: MLFLOW_TRACKING_URI, else the database in `output`.
    Raises:
        TrackingError: the registry, the name, the alias or the version is not there, or the model is not Snugfit's.
        RunFolderError: the path has no model.
    """
    text = os.fspath(model)
    if not text.startswith("models:"):
        path = Path(text)
        return path if (path / BUNDLE_FILE).is_file() else _bundle_of_run(path)
    uri = resolve_uri(uri, output)
    check_uri(uri)
    database = database_path(uri)
    if database is not None and not database.exists():
        raise TrackingError(
            text, f"there is no registry at {uri}", "Give its address with --uri, or set MLFLOW_TRACKING_URI."
        )
    with session(uri, f"load {text}") as client:
        _check_exists(client, text)
        keep = contextlib.ExitStack()
        atexit.register(keep.close)  # a download is needed until the program ends
        folder = keep.enter_context(downloaded(text, uri))
    bundles = sorted(folder.rglob(BUNDLE_FILE))
    if not bundles:
        raise TrackingError(
            text,
            f"was not registered by Snugfit: it has no {BUNDLE_FILE}",
            "Name a version that Snugfit registered.",
        )
    return bundles[0].parent


def lasting_folder(model: str, *, uri: str | None = None, output: str | os.PathLike[str] = "runs") -> Path:
    """Return the folder of a registered model as it is now, which stays: that of a local store, or a copy in the user's cache.

    Raises:
        TrackingError: as of `resolve_model`.
    """
    folder = resolve_model(model, uri=uri, output=output).absolute()
    if database_path(resolve_uri(uri, output)) is not None:
        return folder
    # the digests of all weights are in the file, so one content has one place
    copied = cache_folder() / "registry" / digest_of_file(folder / BUNDLE_FILE)[:16]
    if not copied.is_dir():
        copied.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=copied.parent, prefix=".copy-") as draft:
            made = shutil.copytree(folder, Path(draft) / "bundle")
            with contextlib.suppress(FileExistsError):  # another process was first
                made.rename(copied)
    return copied


def compare(
    reference: Sequence[Mapping[str, Any]], actual: Sequence[Mapping[str, Any]]
) -> tuple[float, str | None]:
    """Return the largest difference between two lists of predictions, and the first thing that is not equal, if any.

    Numbers may differ by 1e-6, or by that part of a large one (another number of threads sums in another order), everything else must be equal.
    """
    largest = 0.0
    mismatch = None
    if len(reference) != len(actual):
        return math.inf, f"{len(reference)} predictions are expected, {len(actual)} were given"
    for number, (one, other) in enumerate(zip(reference, actual, strict=True), start=1):
        if one.keys() != other.keys():
            return math.inf, f"row {number} has {sorted(other)} instead of {sorted(one)}"
        for key, value in one.items():
            given = other[key]
            if isinstance(value, float):
                difference = abs(value - given) if isinstance(given, (int, float)) else math.inf
                difference = math.inf if math.isnan(difference) else difference
                largest = max(largest, difference)
                equal = difference <= TOLERANCE * max(1.0, abs(value))
            else:
                equal = bool(value == given)
            if not equal and mismatch is None:
                mismatch = f"row {number}: {key} is {given!r} instead of {value!r}"
    return largest, mismatch


def _bundle_of_run(run_dir: Path) -> Path:
    bundle = run_dir / "best"
    if (bundle / BUNDLE_FILE).is_file():
        return bundle
    if not run_dir.is_dir():
        raise RunFolderError(run_dir, "no such folder", f"Give a run's folder, or models:/name@{ALIAS}.")
    if (run_dir / "cv.json").is_file():
        raise RunFolderError(
            run_dir,
            "is a cross-validation, which has a model in each fold",
            f"Name the run of one fold; snugfit predict and evaluate take all of them together: snugfit predict {shlex.quote(str(run_dir))} NEW.csv",
        )
    if (run_dir / "events.jsonl").exists():
        raise RunFolderError(
            run_dir,
            "has no best model yet: it is written at the first evaluation",
            f"Wait for it, or go on with the run: snugfit resume {shlex.quote(str(run_dir))}",
        )
    raise RunFolderError(
        run_dir,
        f"is not a run's folder: it has no best/{BUNDLE_FILE}",
        "Name the folder of a run with a best model.",
    )


@contextmanager
def _stored(bundle: Path, base: Base | None) -> Iterator[Path]:
    """Yield the folder that goes into the registry: the bundle, or a copy that has its adapter alone."""
    if base is None:
        yield bundle
        return
    from snugfit.models.adapter_bundle import leave_base_out

    meta = parse_json((bundle / BUNDLE_FILE).read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory(prefix="snugfit-adapter-") as temporary:
        alone = Path(temporary) / bundle.name
        leave_base_out(bundle, meta, alone, base)
        yield alone


def _log(client: MlflowClient, bundle: Path, run_id: str, rows: Rows, predictions: Rows, shown: int) -> str:
    """Store the bundle as a logged model of the run; its id.

    Through the client alone: `mlflow.pyfunc.log_model` goes by the process-wide tracking address and active run.
    """
    import mlflow.pyfunc
    import pandas
    from mlflow.entities import LoggedModelOutput, LoggedModelStatus
    from mlflow.models import Model, infer_signature

    inputs = pandas.DataFrame(rows)
    update = int(parse_json((bundle / BUNDLE_FILE).read_text(encoding="utf-8")).get("update") or 0)
    run = client.get_run(run_id)
    logged = client.create_logged_model(
        run.info.experiment_id,
        name="best",
        source_run_id=run_id,
        params=run.data.params,
        model_type="snugfit",
    )
    with tempfile.TemporaryDirectory(prefix="snugfit-log-") as temporary:
        folder = os.path.join(temporary, "model")
        mlflow.pyfunc.save_model(
            path=folder,
            mlflow_model=Model(run_id=run_id, model_uuid=logged.model_id, model_id=logged.model_id),
            python_model=str(Path(__file__).with_name("pyfunc_model.py")),
            artifacts={"bundle": str(bundle)},
            signature=infer_signature(inputs, pandas.DataFrame(predictions)),
            input_example=inputs.head(shown),
            pip_requirements=[
                requirement()
            ],  # given, or MLflow runs the model in a process to see what it imports
        )
        without_paths(Path(folder))
        client.log_model_artifacts(logged.model_id, folder)
    client.finalize_logged_model(logged.model_id, LoggedModelStatus.READY)
    client.log_outputs(run_id, [LoggedModelOutput(logged.model_id, step=update)])
    return str(logged.model_id)


def requirement() -> str:
    """Return what serves the model again: this version of Snugfit, as another may read other formats."""
    return f"snugfit=={version('snugfit')}"


def without_paths(folder: Path) -> None:
    """Have the description of a stored model name its artifacts and its code by where they lie in it: MLflow notes where they came from."""
    from mlflow.models import Model

    stored = Model.load(str(folder))
    described = stored.flavors["python_function"]
    for artifact in described["artifacts"].values():
        artifact["uri"] = artifact["path"]
    described["model_code_path"] = Path(described["model_code_path"]).name
    stored.save(str(folder / "MLmodel"))


def _create_version(client: MlflowClient, name: str, model_id: str, run_id: str) -> str:
    from mlflow.exceptions import MlflowException

    try:
        client.create_registered_model(name)
    except MlflowException as error:
        if error.error_code not in ("RESOURCE_ALREADY_EXISTS", "ALREADY_EXISTS"):
            raise
    source = client.get_logged_model(model_id).artifact_location
    version = client.create_model_version(name, source, run_id=run_id, model_id=model_id)
    return str(version.version)


def _predict_stored(folder: Path, rows: Rows) -> Rows:
    import mlflow.pyfunc
    import pandas

    predictions = mlflow.pyfunc.load_model(str(folder)).predict(pandas.DataFrame(rows))
    return list(predictions.to_dict("records"))


def _check_exists(client: MlflowClient, model_uri: str) -> None:
    from mlflow.exceptions import MlflowException

    reference = model_uri.removeprefix("models:").strip("/")
    name, at, alias = reference.partition("@")
    if not at:
        name, _, version = reference.partition("/")
    if not name:
        raise TrackingError(model_uri, "names no model", f"Write models:/NAME@{ALIAS} or models:/NAME/1")
    try:
        registered = client.get_registered_model(name)
    except MlflowException as error:
        if error.error_code != "RESOURCE_DOES_NOT_EXIST":
            raise
        known = sorted(model.name for model in client.search_registered_models(max_results=20))
        remedy = f"Known: {', '.join(known)}." if known else "The registry is empty."
        raise TrackingError(model_uri, f"no model {name!r} is registered", remedy) from error
    try:
        if at:
            client.get_model_version_by_alias(name, alias)
        elif version:
            client.get_model_version(name, version)
        else:
            raise TrackingError(
                model_uri, "names no version", f"Write models:/{name}@{ALIAS} or models:/{name}/1"
            )
    except MlflowException as error:
        aliases = ", ".join(f"@{known}" for known in sorted(registered.aliases)) or "no aliases"
        raise TrackingError(
            model_uri, f"{name!r} has no such version or alias; it has {aliases}", "Name one of those."
        ) from error
