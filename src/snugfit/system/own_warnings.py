"""Warnings of Snugfit as sentences for whoever reads them, in place of a line of its source."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from snugfit.errors import SnugfitWarning


@contextmanager
def own_warnings(tell: Callable[[str], None]) -> Iterator[None]:
    """Temporarily tell each `SnugfitWarning`, once; other warnings go where they went.

    >>> with own_warnings(print):
    ...     for _ in range(2):
    ...         warnings.warn("ema: comes too late.", SnugfitWarning)
    ema: comes too late.
    """
    shown: set[str] = set()

    def show(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
        if not issubclass(category, SnugfitWarning):
            before(message, category, *where, **more)
        elif str(message) not in shown:
            shown.add(str(message))
            tell(str(message))

    with warnings.catch_warnings():
        warnings.simplefilter("always", SnugfitWarning)
        before = warnings.showwarning
        warnings.showwarning = show
        yield


@contextmanager
def held_warnings(messages: list[str]) -> Iterator[None]:
    """Temporarily keep each `SnugfitWarning`, once, to be said later; of a block that fails they are said at once, as one may be the reason."""
    try:
        with own_warnings(messages.append):
            yield
    except BaseException:
        for message in messages:
            warnings.warn(message, SnugfitWarning, stacklevel=3)
        raise
