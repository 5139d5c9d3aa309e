"""The rows of one source to evaluate on or to predict for, as examples of a model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from torch import Tensor

    from snugfit.data.report import DataReport

Collate = Callable[[Sequence[Mapping[str, Any]]], "dict[str, Tensor]"]


class MapStyle(Protocol):
    """Examples by their places: a list, or a data set that makes them when they are asked for."""

    def __len__(self) -> int: ...
    def __getitem__(self, place: int, /) -> Any: ...


@dataclass(frozen=True)
class FileRows:
    """Examples of one source in its order, each beside its input row; `labels` only if asked for."""

    examples: MapStyle
    rows: list[dict[str, Any]]
    lines: list[int]
    columns: tuple[str, ...]
    collate: Collate
    report: DataReport
    fingerprints: Mapping[str, str]
