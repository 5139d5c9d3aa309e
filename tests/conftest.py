"""What every test gets: a folder of its own, no network, none of the developer's trackers, one thread."""

from __future__ import annotations

import atexit
import gc
import itertools
import os
import re
import shutil
import signal
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

import tests.quiet_libraries  # noqa: F401 - before anything imports them

# the user's plans and calibrations are not seen, and none is left to them
os.environ["XDG_CACHE_HOME"] = tempfile.mkdtemp(prefix="snugfit-cache-")
atexit.register(shutil.rmtree, os.environ["XDG_CACHE_HOME"], ignore_errors=True)
for name in [name for name in os.environ if name.startswith("DATABRICKS_")]:
    del os.environ[name]
for name in ("MLFLOW_TRACKING_URI", "MLFLOW_REGISTRY_URI", "MLFLOW_RUN_ID", "MLFLOW_EXPERIMENT_NAME"):
    os.environ.pop(name, None)

# tests import transformers by themselves, and with it torchvision where that is installed beside a build of torch for the CPU
from snugfit.system.torchvision_operators import declare_torchvision_operators  # noqa: E402

declare_torchvision_operators()


class _Garbage:
    """Keeps what was imported out of each search for garbage, which takes half a second with all that the libraries hold; a dry run
    of the planner, which does the same for itself, lets it in again."""

    def __init__(self) -> None:
        self._kept_out = False
        self._unfreeze, gc.unfreeze = (
            gc.unfreeze,
            self.let_in,
        )  # to ask how much is kept out takes 50 ms, as all is counted

    def keep_out(self) -> None:
        if not self._kept_out:
            gc.freeze()
            self._kept_out = True

    def let_in(self) -> None:
        self._unfreeze()
        self._kept_out = False


_GARBAGE = _Garbage()


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Look for garbage when all is imported, and not a dozen times meanwhile."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_runtest_setup() -> None:
    _GARBAGE.keep_out()


_NUMBERS = itertools.count()


@pytest.fixture
def tmp_path(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    """Make a folder of the test's name and a number that no other test has.

    Pytest's own fixture looks through the folders of all tests before for a number that is free: of 7,500 tests, 3 ms each.
    """
    name = re.sub(r"\W", "_", request.node.name)[:30]
    path = tmp_path_factory.getbasetemp() / f"{name}_{next(_NUMBERS)}"
    path.mkdir(mode=0o700)
    return path


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Start every test in a folder of its own: runs and tracker databases with default places land there."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture(autouse=True)
def not_under_nohup() -> Iterator[None]:
    """Let SIGHUP do what it does by default, also where nohup has it ignored for the tests themselves."""
    if not hasattr(signal, "SIGHUP"):
        yield
        return
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)
