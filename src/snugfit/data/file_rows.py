"""The rows of one source to evaluate on or to predict for, as examples of a model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

    from snugfit.data.report import DataReport

Collate = Callable[[Sequence[Mapping[str, Any]]], "dict[str, Tensor]"]


@dataclass(frozen=True)
class FileRows:
    """Examples of one source in its order, each beside its input row; `labels` only if asked for."""

    examples: Sequence[Any]
    rows: list[dict[str, Any]]
    lines: list[int]
    columns: tuple[str, ...]
    collate: Collate
    report: DataReport
    fingerprints: Mapping[str, str]
