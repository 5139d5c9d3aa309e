"""Warnings of Snugfit as events of the run that they are about."""

from __future__ import annotations

from contextlib import AbstractContextManager

from snugfit.run.training.result import Emit
from snugfit.system.own_warnings import own_warnings


def warnings_as_events(emit: Emit) -> AbstractContextManager[None]:
    """Temporarily make each `SnugfitWarning` an event, said once; other warnings go where they went."""
    return own_warnings(lambda message: emit("warning", message=message))
