"""The saver of a run that is to write nothing."""

from __future__ import annotations

from typing import Self

from snugfit.errors import RunFolderError


class Unsaved:
    """A stand-in for `Saving` where a run has no folder: there are no checkpoints, and nothing to go back to."""

    problem: str | None = None

    def save(self) -> None:
        """Leave it at that."""

    def poll(self) -> bool:
        """Return that nothing has failed."""
        return False

    def finish(self) -> None:
        """Nothing is under way."""

    def any(self) -> bool:
        """Return that there is no checkpoint."""
        return False

    def load(self, compare: bool = True) -> tuple[str, ...]:
        """Refuse to go on.

        Raises:
            RunFolderError
        """
        del compare
        raise RunFolderError("resume", "a run without a folder has no checkpoint", "Give output, a folder.")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        """Nothing is under way."""
