"""Warnings of Snugfit as events of the run that they are about."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from snugfit.errors import SnugfitWarning
from snugfit.run.training.result import Emit


@contextmanager
def warnings_as_events(emit: Emit) -> Iterator[None]:
    """Temporarily make each `SnugfitWarning` an event, said once; other warnings go where they went.

    >>> with warnings_as_events(lambda kind, **fields: print(kind, fields)):
    ...     for _ in range(2):
    ...         warnings.warn("ema: comes too late.", SnugfitWarning)
    warning {'message': 'ema: comes too late.'}
    """
    shown: set[str] = set()

    def show(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
        if not issubclass(category, SnugfitWarning):
            before(message, category, *where, **more)
        elif str(message) not in shown:
            shown.add(str(message))
            emit("warning", message=str(message))

    with warnings.catch_warnings():
        warnings.simplefilter("always", SnugfitWarning)
        before = warnings.showwarning
        warnings.showwarning = show
        yield
