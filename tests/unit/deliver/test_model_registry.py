"""The registry against the real MLflow. The bundle here is tiny and its predictor is a stand-in that reads it."""

from __future__ import annotations

import json
import os
import shutil
import sys
import types
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from snugfit.deliver.model_registry import Registered, compare, register_best, resolve_model
from snugfit.errors import RunFolderError, TrackingError
from snugfit.tracking.sender import replay
from snugfit.tracking.spool import Spool

pytestmark = pytest.mark.slow  # the model is trained, stored and loaded in processes of its own first

pytest.importorskip("mlflow")

ROWS = [
    {"title": "Rates", "text": "shares fell"},
    {"title": "Cup", "text": "they won"},
    {"title": "x", "text": ""},
]


class LengthPredictor:
    """Probability from the bundle's own number and the row's length; `drift` is what a wrong copy would do."""

    drift = 0.0
    label = ""

    def __init__(self, folder: str | Path) -> None:
        self.weight = json.loads((Path(folder) / "snugfit.json").read_text())["weight"]

    def predict(self, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [
            {
                "prediction": self.label or ("long" if len(row["text"]) > 8 else "short"),
                "probability": self.weight / (1 + len(row["title"] + row["text"])) + self.drift,
            }
            for row in rows
        ]

    predict_plain = predict


def predict(folder: Path, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return LengthPredictor(folder).predict(rows)


@pytest.fixture(autouse=True)
def _stand_in_for_the_predictor(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("snugfit.deliver.predictor")
    module.load_predictor = LengthPredictor  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "snugfit.deliver.predictor", module)


@pytest.fixture(scope="module")
def tracked(
    tmp_path_factory: pytest.TempPathFactory, created_store: tuple[Path, str]
) -> tuple[Path, str, str]:
    """A run with a best model that is in a tracker: its folder, the tracker's address and its id there."""
    output = tmp_path_factory.mktemp("registry") / "runs"
    run_dir = output / "demo" / "1"
    with Spool(run_dir / "events.jsonl") as spool:
        spool.append("run", name="demo", id="1", recipe={"train": {"epochs": 3}})
        spool.append("evaluation", update=7, metrics={"accuracy": 0.5}, best=True)
    best = run_dir / "best"
    best.mkdir()
    (best / "snugfit.json").write_text(json.dumps({"format": 1, "update": 7, "weight": 0.5}))
    (best / "model.safetensors").write_bytes(os.urandom(1000))
    uri = f"sqlite:///{shutil.copy(created_store[0], output)}"
    run_id = replay(run_dir, uri).run_id
    assert run_id is not None
    return run_dir, uri, run_id


@pytest.fixture
def champion(tracked: tuple[Path, str, str], request: pytest.FixtureRequest) -> Registered:
    run_dir, uri, run_id = tracked
    return register_best(
        run_dir, name=request.node.name, uri=uri, run_id=run_id, example_rows=ROWS, predict=predict
    )


def champion_version(uri: str, name: str) -> str:
    return str(client_of(uri).get_model_version_by_alias(name, "champion").version)


def client_of(uri: str) -> Any:
    from mlflow.tracking import MlflowClient

    return MlflowClient(uri)


@pytest.mark.slow
def test_the_best_model_comes_back_by_its_registry_name_with_signature_example_and_equal_files(
    tracked: tuple[Path, str, str], champion: Registered
) -> None:
    run_dir, uri, run_id = tracked
    assert (champion.version, champion.alias, champion.rows) == ("1", "champion", 3)
    assert champion.max_abs_difference == 0.0
    folder = resolve_model(champion.model_uri, uri=uri)
    assert folder != run_dir / "best"
    for file in sorted((run_dir / "best").iterdir()):
        assert (folder / file.name).read_bytes() == file.read_bytes()
    assert predict(folder, ROWS) == predict(run_dir / "best", ROWS)
    assert resolve_model(f"models:/{champion.name}/1", uri=uri) == folder
    assert resolve_model(champion.model_uri, output=run_dir.parent.parent) == folder

    assert champion_version(uri, champion.name) == "1"
    assert client_of(uri).get_model_version(champion.name, "1").run_id == run_id

    from mlflow.models import Model

    stored = Model.load(str(folder.parent.parent))
    assert stored.signature is not None
    assert stored.signature.inputs.input_names() == ["title", "text"]
    assert stored.signature.outputs.input_names() == ["prediction", "probability"]
    example = stored.load_input_example(str(folder.parent.parent))
    assert example.to_dict("records") == ROWS


def test_nothing_is_pickled(tracked: tuple[Path, str, str], champion: Registered) -> None:
    model = resolve_model(champion.model_uri, uri=tracked[1]).parent.parent
    files = {path.relative_to(model).as_posix() for path in model.rglob("*") if path.is_file()}
    assert "pyfunc_model.py" in files
    assert not [name for name in files if name.endswith((".pkl", ".pickle", ".pt", ".bin", ".joblib"))]
    for name in files:
        assert not (model / name).read_bytes().startswith((b"\x80\x04", b"\x80\x05")), name


def test_the_stored_model_names_this_version_and_no_path_of_this_machine(
    tracked: tuple[Path, str, str], champion: Registered
) -> None:
    model = resolve_model(champion.model_uri, uri=tracked[1]).parent.parent
    assert f"snugfit=={metadata.version('snugfit')}" in (model / "requirements.txt").read_text().split()
    described = (model / "MLmodel").read_text()
    assert str(tracked[0].parent) not in described and ": /" not in described


def test_anybody_can_load_it_with_mlflow_alone(tracked: tuple[Path, str, str], champion: Registered) -> None:
    import mlflow.pyfunc
    import pandas

    model = resolve_model(champion.model_uri, uri=tracked[1]).parent.parent
    predictions = mlflow.pyfunc.load_model(str(model)).predict(pandas.DataFrame(ROWS))
    assert list(predictions.to_dict("records")) == predict(tracked[0] / "best", ROWS)


@pytest.mark.parametrize(("drift", "label"), [(1e-5, ""), (float("nan"), ""), (0.0, "other")])
def test_the_alias_stays_where_it_was_when_the_stored_copy_predicts_something_else(
    tracked: tuple[Path, str, str],
    champion: Registered,
    monkeypatch: pytest.MonkeyPatch,
    drift: float,
    label: str,
) -> None:
    run_dir, uri, run_id = tracked
    expected = predict(run_dir / "best", ROWS)
    monkeypatch.setattr(LengthPredictor, "drift", drift)
    monkeypatch.setattr(LengthPredictor, "label", label)
    with pytest.raises(TrackingError, match="was not moved"):
        register_best(
            run_dir,
            name=champion.name,
            uri=uri,
            run_id=run_id,
            example_rows=ROWS,
            predict=lambda folder, rows: expected,
        )
    client = client_of(uri)
    assert champion_version(uri, champion.name) == champion.version
    assert len(client.search_model_versions(f"name='{champion.name}'")) == 2, (
        "the wrong version is kept for a look"
    )


def test_a_difference_of_rounding_is_allowed_and_reported(
    tracked: tuple[Path, str, str], champion: Registered, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir, uri, run_id = tracked
    expected = predict(run_dir / "best", ROWS)
    monkeypatch.setattr(LengthPredictor, "drift", 5e-7)
    second = register_best(
        run_dir,
        name=champion.name,
        uri=uri,
        run_id=run_id,
        example_rows=ROWS,
        predict=lambda folder, rows: expected,
    )
    assert second.version == "2"
    assert second.max_abs_difference == pytest.approx(5e-7)
    assert champion_version(uri, champion.name) == "2"


def test_the_process_is_left_as_it_was(
    tracked: tuple[Path, str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    import mlflow

    run_dir, uri, run_id = tracked
    settings: list[tuple[str | None, dict[str, str]]] = [
        (None, {}),
        (None, {"MLFLOW_TRACKING_URI": "http://environment", "MLFLOW_HTTP_REQUEST_TIMEOUT": "7"}),
        ("http://program", {}),
    ]
    mlflow.set_tracking_uri(None)
    try:
        for address, variables in settings:
            for name, value in variables.items():
                monkeypatch.setenv(name, value)
            if address:
                mlflow.set_tracking_uri(address)
            before = (dict(os.environ), mlflow.get_tracking_uri(), mlflow.get_registry_uri())
            capfd.readouterr()
            register_best(run_dir, name="quiet", uri=uri, run_id=run_id, example_rows=ROWS, predict=predict)
            resolve_model("models:/quiet@champion", uri=uri)
            assert capfd.readouterr() == ("", "")
            assert (dict(os.environ), mlflow.get_tracking_uri(), mlflow.get_registry_uri()) == before
            assert uri not in before
            assert mlflow.active_run() is None
        assert list(tmp_path.iterdir()) == []
    finally:
        mlflow.set_tracking_uri(None)
        mlflow.set_registry_uri(None)


def test_what_is_not_in_the_registry_is_said_with_what_is(
    tracked: tuple[Path, str, str], champion: Registered, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    uri = tracked[1]
    for model, says in {
        "models:/nobody@champion": champion.name,
        f"models:/{champion.name}@best": "it has @champion",
        f"models:/{champion.name}/99": "it has @champion",
        f"models:/{champion.name}": "names no version",
        "models:/": "names no model",
    }.items():
        with pytest.raises(TrackingError) as caught:
            resolve_model(model, uri=uri)
        assert says in str(caught.value), model
    with pytest.raises(TrackingError, match="--uri"):
        resolve_model(champion.model_uri, output=tmp_path)
    assert not list(tmp_path.iterdir()), "looking for a model creates no database"
    with pytest.raises(TrackingError, match="refused"):
        resolve_model(champion.model_uri, uri="http://127.0.0.1:9")


def test_a_model_of_somebody_else_is_not_taken_for_ours(
    tracked: tuple[Path, str, str], tmp_path: Path
) -> None:
    uri = tracked[1]
    (tmp_path / "MLmodel").write_text("flavors: {}\n")
    client = client_of(uri)
    client.create_registered_model("foreign")
    client.create_model_version("foreign", tmp_path.as_uri())
    with pytest.raises(TrackingError, match=r"was not registered by Snugfit"):
        resolve_model("models:/foreign/1", uri=uri)


def test_a_path_is_a_run_or_a_bundle(tracked: tuple[Path, str, str], tmp_path: Path) -> None:
    run_dir = tracked[0]
    assert resolve_model(run_dir) == run_dir / "best"
    assert resolve_model(str(run_dir / "best")) == run_dir / "best"
    with pytest.raises(RunFolderError, match="no such folder"):
        resolve_model(tmp_path / "none")
    with pytest.raises(RunFolderError, match="not a run's folder"):
        resolve_model(tmp_path)
    (tmp_path / "events.jsonl").write_text("")
    with pytest.raises(RunFolderError, match="no best model yet"):
        resolve_model(tmp_path)


def test_what_cannot_be_registered_is_refused_before_anything_is_stored(
    tracked: tuple[Path, str, str],
) -> None:
    run_dir, uri, run_id = tracked
    good: dict[str, Any] = {
        "name": "refused",
        "uri": uri,
        "run_id": run_id,
        "example_rows": ROWS,
        "predict": predict,
    }
    for change, says in [
        ({"name": "a/b"}, r"track\.register"),
        ({"uri": "databricks"}, "needs three"),
        ({"uri": "nonsense://x"}, "no MLflow store"),
        ({"run_id": None}, "snugfit track replay"),
        ({"example_rows": []}, "at least one"),
        ({"run_id": "0" * 32}, "cannot register"),
    ]:
        with pytest.raises(TrackingError, match=says):
            register_best(run_dir, **{**good, **change})
    assert not client_of(uri).search_registered_models("name='refused'")


def test_predictions_are_compared_row_by_row_and_key_by_key() -> None:
    rows = [{"prediction": "a", "probability": 0.5}, {"prediction": "b", "probability": 0.25}]
    assert compare(rows, [dict(row) for row in rows]) == (0.0, None)
    assert compare(rows, [rows[0], {"prediction": "b", "probability": 0.25 + 9e-7}])[1] is None
    assert compare(rows, [rows[0], {"prediction": "b", "probability": float("nan")}])[0] == float("inf")
    difference, mismatch = compare(rows, [rows[0], {"prediction": "b", "probability": 0.26}])
    assert difference == pytest.approx(0.01)
    assert mismatch is not None
    assert mismatch.startswith("row 2: probability")
    assert compare(rows, [{"prediction": "b", "probability": 0.5}, rows[1]])[1] is not None
    assert compare(rows, rows[:1])[1] is not None
    assert compare(rows, [rows[0], {"prediction": "b"}])[1] is not None
    assert compare(rows, [rows[0], {"prediction": "b", "probability": None}])[1] is not None
