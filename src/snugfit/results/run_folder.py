"""A run's folder."""

from __future__ import annotations

import json
import re
import secrets
import shlex
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from snugfit.errors import RunFolderError, SettingError, short_path
from snugfit.system.disk_files import PARTIAL, whole_file
from snugfit.system.json_text import parse_json

_RESERVED = {
    "con",
    "prn",
    "aux",
    "nul",
    *(f"{device}{number}" for device in ("com", "lpt") for number in range(1, 10)),
}
"""Names of devices on Windows, with any extension."""


def check_name(name: str) -> None:
    """Refuse a run's name that cannot be one folder in the output folder, on any system.

    Raises:
        SettingError
    """
    if (
        not isinstance(name, str)
        or not name.strip()
        or name != name.strip()
        or name.startswith(".")
        or name.endswith(".")
        or any(character in '/\\:*?"<>|' or not character.isprintable() for character in name)
        or name.partition(".")[0].rstrip().lower() in _RESERVED
        or len(name.encode("utf-8", "surrogatepass")) > 200
    ):
        raise SettingError(
            "name", f"{name!r} cannot be a folder's name", "Write at most 200 letters, digits, - and _."
        )


RECIPE = "recipe.yaml"
"""The settings of a run, in its folder."""

START_SCORES = "reference.json"
"""The scores of all rows by the model before its first update, of a run whose loss compares with them."""

QUARANTINE = "quarantine.jsonl"
"""The rows that were left out, with reasons."""

DETAILS = "details.json"
"""The best evaluation in detail."""
PICTURES = "pictures"
"""The folder of what trackers are shown as pictures."""

_FILES = (
    START_SCORES,
    QUARANTINE,
    DETAILS,
    *(RECIPE, "plan.json", "timeline.json", "data.json", "events.jsonl", "report.html", "memory.html"),
    f".*{PARTIAL}",
    *(
        "tracking.json",
        "tracking.lock",
        *("tensorboard.json", "tensorboard.lock", "tensorboard"),
        *("wandb.json", "wandb.lock", "wandb"),
        *("trackio.json", "trackio.lock"),
        "cv.json",
        "cv.html",
        "tune.json",
        "tune.html",
    ),
    *("study.db", "best.yaml", "found.json", "out_of_fold.csv", "checkpoints", "fold-*", "trial-*"),
)
"""What Snugfit writes into the folder of a run in which nothing is learned yet, or of work of many runs, as patterns."""

_CHECKPOINT = re.compile(r"update-\d+(-window-\d+)?")


def checkpoints_in(root: Path) -> list[Path]:
    """Return the folders under `root` that are named as checkpoints are, the newest first: a copy under another name is the user's."""
    named = [path for path in root.glob("*") if path.is_dir() and _CHECKPOINT.fullmatch(path.name)]
    return sorted(named, key=lambda path: path.name, reverse=True)


_made_here: set[Path] = set()
"""Folders that this process has made, of which alone it may remove any whole."""


@dataclass(frozen=True)
class RunFolder:
    """Paths of one run: recipe, plan, events, checkpoints, the best model, the report."""

    path: Path

    @classmethod
    def create(cls, output: Path, name: str) -> RunFolder:
        """Return a new folder `output/name/<time>-<random>`.

        Raises:
            SettingError: `name` is no folder's name.
            RunFolderError: it cannot be written.
        """
        check_name(name)
        path = output / name / f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"
        missing = [folder for folder in (path.parent, path) if not folder.exists()]
        try:
            path.mkdir(parents=True)
            probe = path / ".writable"
            probe.touch()
            probe.unlink()
        except OSError as error:
            raise RunFolderError(
                "output",
                f"the run's folder {path} cannot be written: {error.strerror}",
                "Choose another `output`.",
            ) from error
        _made_here.update(folder.resolve() for folder in missing)
        return cls(path.resolve())

    @staticmethod
    def check_output(output: Path) -> None:
        """See that runs can be written to `output`, before what takes long; nothing is left there.

        Raises:
            RunFolderError: they cannot.
        """
        there = next(each for each in (output.absolute(), *output.absolute().parents) if each.exists())
        try:
            with tempfile.TemporaryDirectory(prefix=".snugfit-", dir=there):
                pass
        except OSError as error:
            raise RunFolderError(
                "output",
                f"no run can be written to {output}: {there}: {error.strerror}",
                "Choose another `output`.",
            ) from error

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        """Return an existing run's folder.

        Raises:
            RunFolderError: it is not one.
        """
        if not path.is_dir():
            raise RunFolderError(path, "no such run folder", "Name one: runs live in <output>/<name>/<id>.")
        if not any((path / name).exists() for name in ("events.jsonl", "plan.json")):
            raise RunFolderError(
                path, "not a run's folder: it has no events.jsonl", "Give <output>/<name>/<id>."
            )
        return cls(path.resolve())

    @property
    def described_by(self) -> list[str]:
        """Names of the files that describe the run as a whole."""
        return [name for name in (RECIPE, "plan.json", "report.html") if (self.path / name).is_file()]

    def check_there(self) -> None:
        """Refuse to write into a folder that has vanished: to make it anew might fill another disk.

        Raises:
            RunFolderError: it is not there.
        """
        if not self.path.is_dir():
            raise RunFolderError(
                self.path,
                "the run's folder is gone: somebody removed or renamed it, or its disk was unmounted",
                "Put it back.",
            )

    @contextmanager
    def claimed(self) -> Iterator[None]:
        """Temporarily make this the only process that trains the run.

        Raises:
            RunFolderError: another one is at it.
        """
        try:
            import fcntl
        except ImportError:  # Windows: no such lock; two at a time are the user's to avoid
            yield
            return
        with (self.path / ".lock").open("a") as file:
            try:
                # not flock: forked workers would hold it for some seconds after the run was killed
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except (BlockingIOError, PermissionError) as error:
                raise RunFolderError(
                    self.path, "another process is training this run", "Wait until it ends, or stop it."
                ) from error
            yield

    @property
    def busy(self) -> bool:
        """True while another process trains it."""
        try:
            with self.claimed():
                return False
        except RunFolderError:
            return True

    def discard(self) -> None:
        """Remove a folder in which no run has begun, and the one above it if that is empty then.

        A folder that this process has not made stays, and so does one with a file of somebody else in it.
        """
        if self.path not in _made_here or not self.path.exists():
            return
        names = [entry.name.removeprefix(".") for entry in self.path.iterdir()]
        if not all(any(fnmatch(name, pattern) for pattern in (*_FILES, "lock")) for name in names):
            return
        shutil.rmtree(self.path, ignore_errors=True)
        if self.path.parent in _made_here:
            with suppress(OSError):  # other runs of this name are in it
                self.path.parent.rmdir()

    @property
    def id(self) -> str:
        return self.path.name

    @property
    def in_commands(self) -> str:
        """The folder as one types it."""
        return shlex.quote(short_path(str(self.path)))

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def has_checkpoints(self) -> bool:
        """Return whether there is a checkpoint, whole or not."""
        return bool(checkpoints_in(self.checkpoints))

    @property
    def best(self) -> Path:
        return self.path / "best"

    @property
    def models(self) -> Path:
        return self.path / "models"

    def model_at(self, update: int) -> Path:
        """Return where the model of an evaluation is, besides `best`."""
        return self.models / f"update-{update:08}"

    @property
    def events(self) -> Path:
        return self.path / "events.jsonl"

    def write_json(self, name: str, value: Any) -> None:
        """Write `name` whole or not at all."""
        self.write_text(name, json.dumps(value, indent=1))

    def write_text(self, name: str, text: str) -> None:
        """Write `name` whole or not at all.

        Raises:
            RunFolderError: it cannot be written.
        """
        try:
            with whole_file(self.path / name) as draft:
                draft.write_text(text, encoding="utf-8")
        except OSError as error:
            raise RunFolderError(
                self.path / name,
                f"cannot be written: {error.strerror}",
                "Free space, or make the folder writable.",
            ) from error

    def read_json(self, name: str) -> Any:
        """Read `name`.

        Raises:
            RunFolderError: it is missing or torn.
        """
        try:
            return parse_json((self.path / name).read_text())
        except (OSError, ValueError) as error:
            raise RunFolderError(
                self.path / name, f"cannot be read: {error}", "Put a whole file back."
            ) from error
