"""The attempt that a run is making, for the report of one that failed."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from snugfit.core.batch import Batch


class Doing(StrEnum):
    """The use of a batch: an update is made of it, it is scored, or a micro-batch is looked for with it."""

    UPDATE = "update"
    EVALUATION = "evaluation"
    FIT = "fit"


class Attempt(NamedTuple):
    """The act of a run, and its examples."""

    doing: Doing
    batch: Batch
