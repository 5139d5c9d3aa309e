"""What a run is at, for whoever asks what it was that failed."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from snugfit.core.batch import Batch


class Doing(StrEnum):
    """What is done with a batch: an update is made of it, it is scored, or a micro-batch is looked for with it."""

    UPDATE = "update"
    EVALUATION = "evaluation"
    FIT = "fit"


class Attempt(NamedTuple):
    """What a run is doing, and with which examples."""

    doing: Doing
    batch: Batch
