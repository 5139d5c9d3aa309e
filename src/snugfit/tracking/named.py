"""Trackers that have a name and no address of ours: each follows a run beside MLflow, with a file of its own for its progress.

One of the user's own is a class that is made with the run's folder and the experiment, and has the methods of a `Backend`.
"""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from snugfit.errors import MissingExtra, SettingError, nearest
from snugfit.system.plugins import Importer, PluginKind
from snugfit.tracking import tensorboard, trackio, wandb
from snugfit.tracking.backend import Backend
from snugfit.tracking.client_process import Client, ClientProcess

MakeBackend = Callable[[str, str], Backend]  # (uri, experiment)


@dataclass(frozen=True)
class NamedTracker:
    """A tracker by its name, as recipes, commands and messages say it.

    Args:
        make: its backend, of the run's folder, the experiment, and whether the run goes on in this process now.
        package: that has to be installed for it, and Snugfit's extra that brings it; None: nothing.
        pictures: whether it shows pictures, so that the run draws the charts of its report for it.
    """

    name: str
    make: Callable[[Path, str, bool], Backend]
    package: str | None = None
    pictures: bool = False

    @property
    def files(self) -> str:
        """The name under which its progress is kept in the run's folder."""
        return self.name if self.package else f"tracker-{re.sub(r'[^A-Za-z0-9_.]+', '-', self.name)}"

    def require(self) -> None:
        """Refuse a run that asks for it where it is not installed; imports nothing.

        Raises:
            MissingExtra
        """
        if self.package is not None and importlib.util.find_spec(self.package) is None:
            raise MissingExtra(self.package, self.package)

    def backend(self, run_dir: Path, *, live: bool = False) -> MakeBackend:
        """Return what makes its backend for a run."""

        def make(_uri: str, experiment: str) -> Backend:
            self.require()
            return self.make(run_dir, experiment, live)

        return make


def _tensorboard(folder: Path, _experiment: str, _live: bool) -> Backend:
    return tensorboard.TensorBoardBackend(folder / tensorboard.NAME)


def _wandb(folder: Path, experiment: str, live: bool) -> Backend:
    arguments = {"folder": folder, "project": experiment, "watched": os.getpid() if live else None}
    return ClientProcess(Client("snugfit.tracking.wandb:WandbBackend", arguments))


def _trackio(folder: Path, experiment: str, live: bool) -> Backend:
    arguments = {"folder": folder, "project": experiment, "measure": live}
    return ClientProcess(Client("snugfit.tracking.trackio:TrackioBackend", arguments))


NAMED = {
    name: NamedTracker(name, make, package=name, pictures=True)
    for name, make in (
        (tensorboard.NAME, _tensorboard),
        (wandb.NAME, _wandb),
        (trackio.NAME, _trackio),
    )
}
"""Snugfit's own, by name."""

_METHODS = ("open", "send", "close")


def check_backend(value: Any, path: str, setting: str, _ours: Collection[str]) -> type[Backend]:
    """Return `value` if it is a class that can follow a run.

    Raises:
        SettingError: it is not: says what is missing.
    """
    if not isinstance(value, type):
        raise SettingError(
            setting,
            f"got '{path}', which is a {type(value).__name__}, expected the class of a tracker",
            f"Write a class with the methods {', '.join(_METHODS)}.",
        )
    lacking = [name for name in _METHODS if not callable(getattr(value, name, None))]
    if lacking:
        raise SettingError(
            setting,
            f"got '{path}', a class without {' and '.join(lacking)}",
            "Add what it lacks, as snugfit.tracking.backend.Backend has it.",
        )
    return value


TRACKERS: PluginKind[type[Backend]] = PluginKind("tracker", "snugfit.trackers", check_backend)
"""Trackers as plugins."""


def no_tracker(name: str, setting: str, others: Iterable[str] = ()) -> SettingError:
    """Return the error of a name that no tracker has, with the nearest one."""
    known = [*others, *NAMED, *TRACKERS.entry_points()]
    return SettingError(setting, f"there is no tracker '{name}'", nearest(name, known))


def trackers(
    names: Iterable[str], setting: str, importer: Importer, others: Iterable[str] = ()
) -> tuple[NamedTracker, ...]:
    """Return the trackers of names, each once: a path and its entry point are one.

    Args:
        others: names that were meant, perhaps, for a suggestion.
    Raises:
        CodeRefused: one is code, without consent.
        SettingError: there is none of that name, or it cannot be used.
    """
    every = (tracker(name, setting, importer, others) for name in names)
    return tuple({each.name: each for each in every}.values())


def tracker(name: str, setting: str, importer: Importer, others: Iterable[str] = ()) -> NamedTracker:
    """Return the tracker of a name: one of Snugfit's, or one of the user's own by its path or its entry point.

    Args:
        others: names that were meant, perhaps, for a suggestion.
    Raises:
        CodeRefused: it is code, without consent.
        SettingError: there is none, or it cannot be used.
    """
    if name in NAMED:
        return NAMED[name]
    own = importer.load(TRACKERS, name, setting, NAMED)
    if own is None:
        raise no_tracker(name, setting, others)
    path, make = own

    def backend(folder: Path, experiment: str, _live: bool) -> Backend:
        made: Backend = make(folder, experiment)  # type: ignore[call-arg]  # a class says so by its methods alone
        return made

    return NamedTracker(path, backend)
