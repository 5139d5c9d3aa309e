"""What every test gets: a folder of its own, no network, none of the developer's trackers, one thread."""

from __future__ import annotations

import atexit
import functools
import gc
import itertools
import os
import re
import shutil
import signal
import sys
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from _pytest.doctest import DoctestModule
from _pytest.mark import MarkMatcher
from _pytest.mark.expression import Expression

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
    """Keeps what was imported out of each search for garbage, which takes half a second with all that the libraries hold.

    The planner does the same around a dry run, and would let all of it in again: what is kept out here stays so.
    """

    def __init__(self) -> None:
        self._freeze = gc.freeze
        gc.freeze = gc.unfreeze = lambda: None
        self._modules = 0

    def keep_out(self) -> None:
        if len(sys.modules) > self._modules + 100:
            gc.collect()
            self._freeze()
            self._modules = len(sys.modules)


_GARBAGE = _Garbage()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--every", type=int, default=1, metavar="N", help="run one in N of the tests")


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> Generator[None, object, object]:
    """Choose among the tests that the marks leave, and begin with those that take longest.

    Hypothesis would first parse the source of all that is imported, 900 files, to draw its constants too: what is drawn would then hang on
    which other tests the process has imported.
    """
    if "hypothesis" in sys.modules:
        from hypothesis.internal.conjecture import providers

        # fails where the name has moved
        pytest.MonkeyPatch().setattr(providers, "is_local_module_file", lambda path: False)
    done = yield
    items[:] = items[:: config.getoption("every")]
    items.sort(key=lambda item: item.get_closest_marker("longest") is None)
    return done


@pytest.hookimpl(wrapper=True)
def pytest_collect_file(
    file_path: Path, parent: pytest.Collector
) -> Generator[None, list[pytest.Collector], list[pytest.Collector]]:
    """Look for no examples in the docstrings of tests, where `--doctest-modules` asks for those of the package, nor in a file that has none.

    To look means to read the sources of all that a module holds.
    """
    collectors = yield
    modules = [each for each in collectors if isinstance(each, DoctestModule)]
    if modules and (
        file_path.is_relative_to(Path(__file__).parent) or ">>>" not in file_path.read_text(encoding="utf-8")
    ):
        return [each for each in collectors if each not in modules]
    return collectors


@pytest.hookimpl(wrapper=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> Generator[None, None, None]:
    """Make no test for values whose marks `-m` leaves out: of full products that is half of all tests that there would be.

    One stays, or the function would seem to have no values; pytest leaves it out by its marks.
    """
    yield
    expression, calls = metafunc.config.option.markexpr, metafunc._calls
    if expression and len(calls) > 1:
        chooses, own = _compiled(expression), list(metafunc.definition.iter_markers())
        chosen = [call for call in calls if chooses.evaluate(MarkMatcher.from_markers([*own, *call.marks]))]
        calls[:] = chosen or calls[:1]


_compiled = functools.cache(Expression.compile)


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


_UNUSED: list[Path] = []
"""A folder in which no test has left anything yet."""


@pytest.fixture(autouse=True)
def own_folder(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Start every test in a folder of its own: runs and tracker databases with default places land there.

    That is `tmp_path` where a test asks for it. Most of the others write nothing, so each gets the one that those before it left empty.
    """
    if "tmp_path" in request.fixturenames:
        monkeypatch.chdir(request.getfixturevalue("tmp_path"))
        return
    if not _UNUSED or not _UNUSED[0].is_dir() or any(_UNUSED[0].iterdir()):
        _UNUSED[:] = [tmp_path_factory.getbasetemp() / f"own_{next(_NUMBERS)}"]
        _UNUSED[0].mkdir(mode=0o700)
    monkeypatch.chdir(_UNUSED[0])


@pytest.fixture(autouse=True)
def not_under_nohup() -> Iterator[None]:
    """Let SIGHUP do what it does by default, also where nohup has it ignored for the tests themselves."""
    if not hasattr(signal, "SIGHUP"):
        yield
        return
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.fixture
def interruptible() -> Iterator[None]:
    """As in a process that somebody can interrupt: one that a script starts in the background cannot be."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
