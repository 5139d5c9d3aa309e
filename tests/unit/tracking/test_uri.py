from __future__ import annotations

from pathlib import Path

import pytest

from snugfit.errors import TrackingError
from snugfit.tracking.uri import check_model_name, check_uri, registry_uri, resolve_uri


@pytest.mark.parametrize(
    ("uri", "says"),
    [
        ("nonsense://host", "no MLflow store"),
        ("htp://host:5000", "Did you mean 'http'"),
        ("http://", "names no host"),
        ("http:host", "names no host"),
        ("http://:5000", "names no host"),
        ("http://host:port", "cannot be parsed"),
        ("http://host:99999", "cannot be parsed"),
        ("http://[::1", "cannot be parsed"),
        ("http://ho st", "host or port"),
        (" http://host", "spaces around"),
        ("http://host\n", "spaces around"),
        ("postgresql://", "names no host"),
        ("sqlite://", "names no file"),
        ("sqlite:///", "names no file"),
        ("sqlite:///:memory:", "names no file"),
        ("", "sqlite:///runs/mlflow.db"),
        ("./mlruns", "sqlite:///./mlruns/mlflow.db"),
        ("file:///data/mlruns", "sqlite:////data/mlruns/mlflow.db"),
        ("C:\\mlruns", "is a folder"),
    ],
)
def test_an_address_that_cannot_work_is_refused_with_what_to_write_instead(uri: str, says: str) -> None:
    with pytest.raises(TrackingError) as caught:
        check_uri(uri)
    assert says in str(caught.value)
    assert "track.uri" in str(caught.value)


@pytest.mark.parametrize(
    "uri",
    [
        "http://127.0.0.1:5000",
        "https://me:secret@host/path",
        "http://[::1]:5000",
        "postgresql+psycopg2://me:secret@host/db",
        "mysql://host/db",
        "databricks",
        "databricks://team",
    ],
)
def test_a_good_address_is_accepted_without_network(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object, **options: object) -> None:
        raise AssertionError("network")

    monkeypatch.setattr("socket.socket.connect", refuse)
    monkeypatch.setattr("socket.getaddrinfo", refuse)
    check_uri(uri)


def test_a_sqlite_address_is_checked_on_disk_and_nothing_is_created(tmp_path: Path) -> None:
    (tmp_path / "text.db").write_text("not a database, but long enough")
    (tmp_path / "new").write_bytes(b"")
    for name, says in {
        "text.db": "not a SQLite database",
        "": "names a folder",
        "text.db/x.db": "cannot be created",
    }.items():
        with pytest.raises(TrackingError, match=says):
            check_uri(f"sqlite:///{tmp_path}/{name}")
    for name in ("new", "folder/with space/mlflow.db"):
        check_uri(f"sqlite:///{tmp_path}/{name}")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new", "text.db"]


def test_no_password_is_in_a_message() -> None:
    with pytest.raises(TrackingError) as caught:
        check_uri("http://me:secret@host:port")
    assert "secret" not in str(caught.value)
    assert "me:***@host" in str(caught.value)


def test_the_setting_comes_before_the_stored_address_before_the_environment_before_the_default(
    tmp_path: Path,
) -> None:
    environment = {"MLFLOW_TRACKING_URI": "http://environment"}
    default = f"sqlite:///{tmp_path}/runs/mlflow.db"
    out = tmp_path / "runs"
    assert (
        resolve_uri("http://setting", out, stored="http://stored", environment=environment)
        == "http://setting"
    )
    assert resolve_uri(None, out, stored="http://stored", environment=environment) == "http://stored"
    assert resolve_uri(None, out, environment=environment) == "http://environment"
    assert resolve_uri(None, out, environment={}) == default
    assert resolve_uri(None, out, environment={"MLFLOW_TRACKING_URI": ""}) == default


def test_a_stored_address_gets_its_password_back_from_the_environment(tmp_path: Path) -> None:
    environment = {"MLFLOW_TRACKING_URI": "https://me:secret@host"}
    stored = "https://me:***@host"
    assert resolve_uri(None, tmp_path, stored=stored, environment=environment) == "https://me:secret@host"


def test_a_relative_database_is_resolved_when_the_run_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert resolve_uri("sqlite:///my.db", "runs", environment={}) == f"sqlite:///{tmp_path}/my.db"


def test_databricks_has_its_own_registry_and_names_of_three_levels() -> None:
    assert registry_uri("databricks") == "databricks-uc"
    assert registry_uri("databricks://team") == "databricks-uc://team"
    check_model_name("main.nlp.agnews", "databricks")
    for name in ("agnews", "main.agnews", "main..agnews", "a.b.c.d"):
        with pytest.raises(TrackingError, match=r"catalog\.schema\.model"):
            check_model_name(name, "databricks://team")
    with pytest.raises(TrackingError, match="no path in a Databricks workspace"):
        check_uri("databricks", experiment="snugfit")


@pytest.mark.parametrize("name", ["", " ", ".", "a/b", "a:b", "a@b"])
def test_a_model_name_the_registry_cannot_take_is_refused_before_training(name: str) -> None:
    with pytest.raises(TrackingError, match=r"track\.register"):
        check_uri("http://host", model=name)
