"""Watch losses that tell the right partner of a row from others: which place the label means, whether the row itself is scored, and along which axis lengths were made one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from snugfit.doctor.observe.events.run_events import Fault
from snugfit.doctor.observe.events.term_events import OwnRowScored
from snugfit.doctor.observe.graphs.graph_nodes import kind_of, line_of, mark_line
from snugfit.doctor.observe.recording.attribute_patches import Patches
from snugfit.doctor.observe.recording.companions import Companion, LossCall
from snugfit.doctor.observe.recording.internals import axes_of_norm, axis_of_join, size_of_result
from snugfit.doctor.observe.recording.own_calls import after_own_calls
from snugfit.doctor.observe.recording.recorder import Recorder
from snugfit.doctor.observe.recording.script_frames import where

LEAST_ROWS, LEAST_SEEN, MOST_NODES = 4, 3, 400
LEAST_LIKE, _SLACK = 8, 1e-3
_SCALED = ("Div", "Mul", "View", "Reshape", "Unsafe", "Squeeze", "Unsqueeze", "ToCopy", "Clone")
_LED = (
    *_SCALED,
    "Cat",
    "T",
    "Transpose",
    "Permute",
    "Mm",
    "Bmm",
    "Sum",
    "Expand",
    "Sub",
    "Add",
    "MaskedFill",
    "CopySlices",
    "Where",
    "Index",
)
"""What leads from scores to the vectors whose likeness they are."""
_AROUND_LENGTH = ("ClampMin", "Clamp", "Expand", "Add", *_SCALED)
"""What leads from a division to the length that it divides by: a floor under it, and other shapes of it."""


class LikenessWatch(Companion):
    """A watcher of cross entropies over likenesses, in the first updates."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    def install(self, patches: Patches) -> None:
        """Keep with what `normalize` gives the line that called it."""
        patches.wrap(functional, "normalize", after_own_calls(self._recorder, self._scaled))

    @staticmethod
    def _scaled(_name: str, _args: tuple[Any, ...], _kwargs: Mapping[str, Any], result: Tensor) -> None:
        mark_line(result, where())

    def lost(self, loss: LossCall) -> None:
        scores, target = loss.scores, loss.target
        plain = loss.name == "cross_entropy" and scores.dim() == 2 and target.dim() == 1
        if not plain or target.is_floating_point() or len(target) < LEAST_ROWS:
            return
        first = int(target[0])
        if bool((target == first).all()):
            self._look_at_place(scores, first)
        self._look_at_lengths(scores)

    def _look_at_place(self, scores: Tensor, label: int) -> None:
        """Note one label for all rows which means one of many columns that were joined, where one column stands by itself."""
        node = _through(scores.grad_fn, _SCALED)
        if kind_of(node) != "Cat" or axis_of_join(node) not in (1, -1):
            return
        widths = [size_of_result(each)[-1:] for each, _ in node.next_functions if each is not None]
        if sum(width[0] for width in widths if width) != scores.shape[1]:
            return  # a part without a graph has no size here
        starts = [sum(width[0] for width in widths[:place]) for place in range(len(widths))]
        alone = [start for start, width in zip(starts, widths, strict=True) if width[0] == 1]
        if len(alone) != 1 or label == alone[0] or len(widths) < 2:
            return
        what = (
            f"The label of all {len(scores)} rows is {label}, which is one of {scores.shape[1] - 1} columns that belong to no row: "
            f"the column that was joined to them by itself, that of the rows' own partners, is number {alone[0]}."
        )
        fix = f"labels = torch.{'zeros' if not alone[0] else 'full'}(len(scores), {'' if not alone[0] else f'{alone[0]}, '}dtype=torch.long)"
        self._note("mismatched_rows", what, fix, where())

    def _look_at_lengths(self, scores: Tensor) -> None:
        """Note vectors of which each column was scaled to the length 1 over the rows, and not each row, before their likenesses were taken."""
        rows, todo, seen = len(scores), [scores.grad_fn], set[Any]()
        while todo and len(seen) < MOST_NODES:
            node = todo.pop()
            if node is None or node in seen:
                continue
            seen.add(node)
            size = size_of_result(node)
            of_rows = kind_of(node) == "Div" and len(size) == 2 and size[0] == rows
            if of_rows and _is_over_rows(node, size):
                what = (
                    f"Each of the {size[1]} columns of {rows} rows is scaled to the length 1, and likenesses of the rows are taken of that: "
                    "no row has a length of 1, and each depends on all others of its batch."
                )
                self._note("wrong_axis", what, "F.normalize(embeddings, dim=-1)", line_of(node) or where())
                return
            if kind_of(node).startswith(_LED):
                todo += [each for each, _ in node.next_functions]

    def _note(self, pitfall: str, what: str, fix: str, at: str) -> None:
        self._recorder.add(
            Fault(at, self._recorder.log.updates, pitfall, what, fix, LEAST_SEEN, certain=True)
        )


def look_at_likenesses(recorder: Recorder, scores: Tensor, target: Tensor) -> None:
    """Note likenesses of all rows to each other, each of which is largest to the row itself, which is no row's label."""
    square = recorder.close and scores.dim() == 2 and scores.shape[0] == scores.shape[1] >= LEAST_LIKE
    rows = scores.shape[0] if square else 0
    if not square or target.shape != (rows,) or target.is_floating_point():
        return
    values, own = scores.detach().float(), scores.detach().float().diagonal()
    places = torch.arange(rows, device=target.device)
    largest = bool((own >= values.amax(1) - _SLACK).all()) and float(own.max() - own.min()) <= _SLACK * float(
        own.abs().max()
    )
    if largest and torch.allclose(values, values.T, atol=_SLACK) and not bool((target == places).any()):
        recorder.add(OwnRowScored(where(), recorder.log.updates, rows))


def _through(node: Any, kinds: tuple[str, ...]) -> Any:
    """Return the first node of none of these kinds, or of several parts that have a graph."""
    for _ in range(MOST_NODES):
        parts = [] if node is None else [each for each, _ in node.next_functions if each is not None]
        if len(parts) != 1 or not kind_of(node).startswith(kinds):
            break
        node = parts[0]
    return node


def _is_over_rows(division: Any, size: tuple[int, ...]) -> bool:
    """Return whether values are divided by the length of each of their columns, of the very values."""
    parts = [each for each, _ in division.next_functions]
    if len(parts) != 2 or None in parts:
        return False
    norm = _through(parts[1], _AROUND_LENGTH)
    if kind_of(norm) == "Sqrt":
        norm = _through(norm.next_functions[0][0], _AROUND_LENGTH)
    if axes_of_norm(norm) != (0,):
        return False
    below = norm.next_functions[0][0]
    squares = kind_of(norm) == "Sum"
    if squares and kind_of(below) not in ("Pow", "Mul"):
        return False
    values = below.next_functions[0][0] if squares else below
    # of weights, which have no batch, the columns may be what is compared
    return values is parts[0] and size_of_result(values) == size and kind_of(values) != "AccumulateGrad"
