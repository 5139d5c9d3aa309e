"""Differences that a script takes itself, as a loss of its own does: what they show counts where they are squared and differentiated."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor

from snugfit.doctor.observe.events.script_events import Event
from snugfit.doctor.observe.graphs.graph_nodes import kind_of

_SEEN = "snugfit difference"
_ON_THE_WAY = (
    "Mean",
    "Sum",
    "Mul",
    "Div",
    "Add",
    "Neg",
    "Sqrt",
    "Where",
    "View",
    "Reshape",
    "Squeeze",
    "Index",
    "Log",
)
_LENGTHS = ("Pow", "Abs", "LinalgVectorNorm", "Norm", "Mul", "Maximum", "Clamp", "Softplus", "Log1P", "Cosh")
"""What makes an error of a difference."""
MOST_NODES = 128


def keep_with(difference: Tensor, events: list[Event]) -> None:
    """Remember with a difference what it shows, for as long as its graph lives."""
    metadata = getattr(difference.grad_fn, "metadata", None)
    if events and metadata is not None:
        metadata[_SEEN] = events


def shown_by(value: Tensor) -> Iterable[Event]:
    """Yield what differences show that a value is made of, near its end: as errors, whatever measures their length."""
    todo: list[tuple[Any, bool]] = [(value.grad_fn, False)]
    seen = set[Any]()
    while todo and len(seen) < MOST_NODES:
        node, measured = todo.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        kind = kind_of(node)
        if measured and kind.startswith(("Sub", "Rsub")):
            yield from (getattr(node, "metadata", None) or {}).get(_SEEN, ())
        elif kind.startswith((*_ON_THE_WAY, *_LENGTHS)):
            parts = [each for each, _ in node.next_functions]
            squares = kind.startswith(_LENGTHS) and (kind != "Mul" or (len(parts) == 2 and None not in parts))
            todo += [(each, measured or squares) for each in parts]
