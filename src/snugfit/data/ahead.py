"""Windows that can be fetched before they are asked for, by the same thread."""

from __future__ import annotations

from collections.abc import Generator, Iterator

from snugfit.core.batch import Batch


class WindowsAhead:
    """Windows in order, of which `fetch` loads the next one while a device computes.

    The thread that trains fetches, not one beside it: data sets and collate functions may draw from the global generators of torch, NumPy
    and Python, which a training draws from too, and may hold files that no second thread may read. An error is raised where the window is
    asked for, so that the update before it is whole.
    """

    def __init__(self, windows: Generator[Batch]) -> None:
        self._windows = windows
        self._fetched: list[Batch | Exception] = []

    def fetch(self) -> None:
        """Load the next window, if it has not been loaded yet; what goes wrong is raised when it is asked for."""
        if self._fetched:
            return
        try:
            self._fetched.append(next(self._windows))
        except Exception as error:  # noqa: BLE001 (also the end of all windows)
            self._fetched.append(error)

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        if not self._fetched:
            return next(self._windows)
        fetched = self._fetched.pop()
        if isinstance(fetched, Exception):
            raise fetched
        return fetched

    def close(self) -> None:
        """Forget what was fetched, and end the workers that load."""
        self._fetched.clear()
        self._windows.close()
