"""A run's folder."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from snugfit.errors import RunFolderError


@dataclass(frozen=True)
class RunFolder:
    """Paths of one run: recipe, plan, events, checkpoints, the best model, the report."""

    path: Path

    @classmethod
    def create(cls, output: Path, name: str) -> RunFolder:
        """A new folder `output/name/<time>-<random>`.

        Raises:
            RunFolderError: it cannot be written.
        """
        path = output / name / f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"
        try:
            path.mkdir(parents=True)
            probe = path / ".writable"
            probe.touch()
            probe.unlink()
        except OSError as error:
            raise RunFolderError(
                f"output: the run's folder {path} cannot be written: {error.strerror}. Choose another `output`."
            ) from error
        return cls(path.resolve())

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        """An existing run's folder.

        Raises:
            RunFolderError: it is not one.
        """
        if not path.is_dir():
            raise RunFolderError(f"{path}: no such run folder. Runs live in <output>/<name>/<id>.")
        if not (path / "events.jsonl").exists():
            raise RunFolderError(
                f"{path}: not a run's folder: it has no events.jsonl. Give <output>/<name>/<id>."
            )
        return cls(path.resolve())

    @contextmanager
    def claimed(self) -> Iterator[None]:
        """Within, this is the only process that trains the run.

        Raises:
            RunFolderError: another one is at it.
        """
        try:
            import fcntl
        except ImportError:  # Windows: no such lock; two at a time are the user's to avoid
            yield
            return
        with (self.path / ".lock").open("w") as file:
            try:
                # not flock: forked workers would hold it for some seconds after the run was killed
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except (BlockingIOError, PermissionError) as error:
                raise RunFolderError(
                    f"{self.path}: another process is training this run. Wait until it ends, or stop it."
                ) from error
            yield

    def discard(self) -> None:
        """Remove a folder in which no run has begun, and the one above it if that is empty then."""
        shutil.rmtree(self.path, ignore_errors=True)
        with suppress(OSError):  # other runs of this name are in it
            self.path.parent.rmdir()

    @property
    def id(self) -> str:
        return self.path.name

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def best(self) -> Path:
        return self.path / "best"

    @property
    def events(self) -> Path:
        return self.path / "events.jsonl"

    def write_json(self, name: str, value: Any) -> None:
        """Write `name` whole or not at all."""
        temporary = self.path / f".{name}"
        temporary.write_text(json.dumps(value, indent=1))
        os.replace(temporary, self.path / name)

    def read_json(self, name: str) -> Any:
        """Read `name`.

        Raises:
            RunFolderError: it is missing or torn.
        """
        try:
            return json.loads((self.path / name).read_text())
        except (OSError, ValueError) as error:
            raise RunFolderError(f"{self.path / name}: cannot be read: {error}.") from error
