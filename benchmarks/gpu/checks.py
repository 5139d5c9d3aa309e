"""Checks: functions with a name, a budget in seconds and the modules that they need; what runs one and says how it ended."""

from __future__ import annotations

import gc
import importlib
import json
import os
import statistics
import time
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

COMMANDS = ("correct", "planner", "claims", "speed")

PASSED, FAILED, SKIPPED, ERROR, OVER_TIME, DIED, CUT_OFF, NOT_RUN = (
    "passed",
    "failed",
    "skipped",
    "error",
    "over time",
    "died",
    "cut off",
    "not run",
)
"""How checks end; one that has begun is "cut off" until it has ended, so that a call that is killed has left word of it."""
GREEN = (PASSED, SKIPPED)
DEVICE = "device"
"""The check that says whether the device computes at all; without it nothing else is begun."""


class Skip(Exception):
    """A check that has nothing to look at here; the message says why."""


class Wrong(AssertionError):
    """A check that looked and found a fault; `figures` go into the result."""

    def __init__(self, message: str, **figures: Any) -> None:
        super().__init__(message)
        self.figures = figures


def require(holds: bool, message: str, **figures: Any) -> None:
    """Raise `Wrong` unless `holds`."""
    if not holds:
        raise Wrong(message, **figures)


@dataclass(frozen=True)
class Settings:
    """The place and the size of a check: `device` is "cuda" or "cpu", `toy` takes tiny sizes, `folder` is the check's own.

    `plant` names a fault that is put into Snugfit on purpose, to see a check fail. `seconds` is the time that the check has.
    """

    device: str
    toy: bool
    folder: Path
    plant: str | None = None
    seconds: float = 60.0
    partial: Path | None = None

    @property
    def cuda(self) -> bool:
        return self.device == "cuda"

    @property
    def shared(self) -> Path:
        """The folder of all checks of the command."""
        return self.folder.parent

    def size(self, whole: Any, toy: Any) -> Any:
        """Return the size for a GPU, or the one for `--toy`."""
        return toy if self.toy else whole

    def note(self, figures: Mapping[str, Any]) -> None:
        """Write what is known so far, which is kept if the check is ended."""
        if self.partial is not None:
            write_json(self.partial, {"figures": dict(figures)})


Run = Callable[[Settings], Mapping[str, Any]]


@dataclass(frozen=True)
class Check:
    """A function that looks at one property, and what it needs.

    Args:
        seconds: that it may take on a GPU machine.
        modules: without which it is skipped.
        command: whose check it is.
        alone: nothing else runs meanwhile, as its times or its memory are measured.
        always: it runs in each call, also where an earlier one has passed it.
        leaves: the file in the folder of all checks that others need; where it is not there, the check runs once more.
        needs: the file that another check leaves, which is waited for.
        only_toy, only_whole: it is there with `--toy` alone, or without.
        environment: variables of its process.
        plants: faults that it must find, by their names.
    """

    name: str
    seconds: float
    run: Run
    modules: tuple[str, ...] = ()
    command: str = ""
    alone: bool = False
    always: bool = False
    leaves: str = ""
    needs: str = ""
    only_toy: bool = False
    only_whole: bool = False
    environment: Mapping[str, str] = field(default_factory=dict)
    plants: Mapping[str, Callable[[], AbstractContextManager[Any]]] = field(default_factory=dict)

    def is_done(self, passed: Collection[str], shared: Path) -> bool:
        """Return whether an earlier call has passed it, and what it left is still there."""
        here = not self.leaves or (shared / self.leaves).exists()
        return self.name in passed and here and not self.always


_REGISTERED: list[Check] = []


def check(
    name: str,
    seconds: float,
    *,
    modules: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    plants: Mapping[str, Callable[[], AbstractContextManager[Any]]] | None = None,
    leaves: str = "",
    needs: str = "",
    **flags: bool,
) -> Callable[[Run], Run]:
    """Register a function as a check, in the order of definition; `flags` are those of `Check`."""

    def registered(run: Run) -> Run:
        _REGISTERED.append(
            Check(
                name,
                seconds,
                run,
                tuple(modules),
                leaves=leaves,
                needs=needs,
                environment=dict(environment or {}),
                plants=dict(plants or {}),
                **flags,
            )
        )
        return run

    return registered


def checks_of(command: str) -> list[Check]:
    """Import the checks of a command, of which each has a name of its own."""
    if command not in COMMANDS:
        raise ValueError(f"command: got {command!r}, expected one of {', '.join(COMMANDS)}")
    from device import look_at_device

    _REGISTERED.clear()
    check(DEVICE, 60, always=True)(look_at_device)
    for name in importlib.import_module(command).MODULES:
        module = importlib.import_module(f"{command}.{name}")
        if not any(each.run.__module__ == module.__name__ for each in _REGISTERED):
            importlib.reload(module)  # imported before, in a test
    names = [each.name for each in _REGISTERED]
    assert len({*names}) == len(names), f"two checks of one name: {names}"
    return [replace(each, command=command) for each in _REGISTERED]


def run_check(check: Check, settings: Settings) -> dict[str, Any]:
    """Run a check in this process, and say how it ended; nothing is raised."""
    began = time.perf_counter()
    figures: Mapping[str, Any] = {}
    status, reason = PASSED, ""
    try:
        for module in check.modules:
            importlib.import_module(module)
        with planted(check, settings.plant):
            figures = check.run(settings)
    except Wrong as error:
        status, reason, figures = FAILED, str(error), error.figures
    except AssertionError as error:
        status, reason = FAILED, f"{error}\n{traceback.format_exc(limit=-3)}"
    except Skip as error:
        status, reason = SKIPPED, str(error)
    except Exception as error:  # noqa: BLE001 (whatever it is, the other checks are to be seen)
        missing = missing_module(error)
        status, reason = (
            (SKIPPED, f"needs {missing}, which is not installed") if missing else (ERROR, last_lines(error))
        )
    return {
        "status": status,
        **({"reason": reason[:4000]} if reason else {}),
        "seconds": round(time.perf_counter() - began, 2),
        "figures": as_json(figures),
    }


def last_lines(error: BaseException) -> str:
    """Return the error with the frames nearest to it."""
    return "".join(traceback.format_exception(error, limit=-6))[-3500:]


OWN = ("snugfit", "tests", "benchmarks")


def missing_module(error: BaseException | None) -> str | None:
    """Return the library for whose absence an error was raised, None for any other error: what this tree lacks is a fault."""
    while error is not None:
        if isinstance(error, ModuleNotFoundError) or type(error) is ImportError:
            missing = error.name or str(error)
            return None if missing.partition(".")[0] in OWN else missing
        if type(error).__name__ == "MissingExtra":
            return str(error)
        error = error.__cause__ or error.__context__
    return None


@contextmanager
def planted(check: Check, plant: str | None) -> Iterator[None]:
    """Temporarily put the named fault into Snugfit, where the check is one that must find it."""
    if plant is None or plant not in check.plants:
        yield
        return
    with check.plants[plant]():
        yield


def as_json(value: Any) -> Any:
    """Return `value` as JSON can hold it: numbers that are not finite as words."""
    if isinstance(value, Mapping):
        return {str(key): as_json(each) for key, each in value.items()}
    if isinstance(value, (list, tuple, set)):
        return [as_json(each) for each in value]
    if isinstance(value, bool) or value is None or isinstance(value, (int, str)):
        return value
    if isinstance(value, float):
        return value if value == value and abs(value) != float("inf") else str(value)
    return str(value)


def write_json(path: Path, value: Any) -> None:
    """Write a file that is whole at any moment."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(json.dumps(as_json(value), indent=1) + "\n")
    os.replace(temporary, path)


def wait(device: str) -> None:
    """Wait until the device has done all that it was given."""
    if device == "cuda":
        import torch

        torch.cuda.synchronize()


def release(device: str) -> None:
    """Give back memory that nothing refers to."""
    gc.collect()
    if device == "cuda":
        import torch

        torch.cuda.empty_cache()


def interleaved(
    rivals: Mapping[str, Callable[[], Any]], device: str, *, warm: int = 2, repeats: int = 5
) -> dict[str, dict[str, Any]]:
    """Time functions in turns, so that a clock that drifts is the same for all: median and spread in seconds."""
    for _ in range(warm):
        for function in rivals.values():
            function()
    seconds: dict[str, list[float]] = {name: [] for name in rivals}
    for repeat in range(repeats):
        order = list(rivals.items())
        for name, function in order if repeat % 2 == 0 else reversed(order):
            wait(device)
            began = time.perf_counter()
            function()
            wait(device)
            seconds[name].append(time.perf_counter() - began)
    return {name: spread(values) for name, values in seconds.items()}


def spread(values: Sequence[float]) -> dict[str, Any]:
    """Return median, least and most of repeats, beside all of them."""
    return {
        "median": statistics.median(values),
        "least": min(values),
        "most": max(values),
        "repeats": [round(value, 6) for value in values],
    }


class Peaks:
    """The most that torch's allocator held since `begin`; nothing on a CPU."""

    def __init__(self, device: str) -> None:
        self._cuda = device == "cuda"

    def begin(self) -> None:
        if self._cuda:
            import torch

            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()

    def read(self) -> dict[str, int]:
        if not self._cuda:
            return {}
        import torch

        torch.cuda.synchronize()
        return {
            "peak_allocated_bytes": torch.cuda.max_memory_allocated(),
            "peak_reserved_bytes": torch.cuda.max_memory_reserved(),
        }
