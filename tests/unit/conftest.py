"""A store of MLflow, for the tests of the tracker and of the registry."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

# Variables that make MLflow quiet or switch its telemetry off by themselves; these tests are about what we do.
QUIETING = ("MLFLOW_DISABLE_TELEMETRY", "DO_NOT_TRACK", "MLFLOW_LOGGING_LEVEL", "CI", "PYTEST_")


@pytest.fixture(scope="session")
def created_store(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A database with MLflow's tables, which take seconds to create, and all that was printed meanwhile."""
    pytest.importorskip("mlflow")
    path = tmp_path_factory.mktemp("store") / "mlflow.db"
    code = (
        "import socket, sys\n"
        "def refuse(host, *arguments, **options):\n"
        "    print('network:', host, flush=True)\n"
        "    raise OSError('refused by the test')\n"
        "socket.getaddrinfo = refuse\n"
        "from snugfit.tracking.mlflow import MlflowBackend\n"
        "backend = MlflowBackend(sys.argv[1], 'first')\n"
        "backend.open(None, 'first', 0)\n"
        "backend.close()\n"
        "from mlflow.telemetry import get_telemetry_client\n"
        "print('telemetry:', get_telemetry_client())\n"
    )
    environment = {key: value for key, value in os.environ.items() if not key.startswith(QUIETING)}
    done = subprocess.run(
        [sys.executable, "-c", code, f"sqlite:///{path}"],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    return path, done.stdout + done.stderr


@pytest.fixture
def new_store(created_store: tuple[Path, str], tmp_path: Path) -> Callable[[str], str]:
    """Makes an empty MLflow store in this test's folder: `new_store(name)` is its address."""

    def make(name: str) -> str:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(created_store[0], path)
        return f"sqlite:///{path}"

    return make
