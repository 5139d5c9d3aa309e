"""Watch whether the rows of a batch influence each other within a model: what belongs to one row is then taken from another one."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import get_gradient_edge

from snugfit.doctor.observe.events.run_events import Fault
from snugfit.doctor.observe.graphs.dependence import is_noticed, is_plain
from snugfit.doctor.observe.graphs.row_influence import (
    Call,
    Influence,
    influence_on,
    line_of_mixing,
    mixes_rows_on_purpose,
)
from snugfit.doctor.observe.recording.companions import Companion, ModelCall, ModuleOutput
from snugfit.doctor.observe.recording.padding_tokens import is_next_along_rows
from snugfit.doctor.observe.recording.recorder import Recorder
from snugfit.doctor.observe.recording.script_frames import is_own, shown

LEAST_ROWS, MOST_CALLS, LOOKS, LEAST_SEEN = 6, 128, 4, 2
NEARLY_ALL = 0.9


class RowWatch(Companion):
    """A watcher of the dependence of one row's output on the other rows of the batch, a few times for each model.

    Args:
        hooked: whether the script has hooks that would notice one more pass through a graph.
        shuffled: whether a loader has drawn the rows of the batch at random.
        rows_drawn: how many rows a loader has handed out last; 0 where that is not known.
    """

    def __init__(
        self,
        recorder: Recorder,
        *,
        hooked: Callable[[], bool],
        shuffled: Callable[[], bool],
        rows_drawn: Callable[[], int],
    ) -> None:
        self._recorder = recorder
        self._hooked, self._shuffled, self._rows_drawn = hooked, shuffled, rows_drawn
        self._looked: dict[int, int] = {}
        self._firsts: dict[int, Tensor] = {}
        self._calls: list[Call] = []
        self._batch: Tensor | None = None
        self._output: Tensor | None = None
        self._model = 0

    def begins(self, call: ModelCall) -> None:
        inputs = call.inputs
        self._calls, self._output, self._batch = [], None, None
        number = self._recorder.number(call.module)
        if self._looked.get(number, 0) >= LOOKS or is_noticed(hooked=self._hooked()):
            return
        batch = next((each for each in inputs if each.dim() > 1), inputs[0] if inputs else None)
        if (
            batch is None
            or batch.layout is not torch.strided
            or len(batch) < LEAST_ROWS
            or batch.requires_grad
        ):
            return
        rows = len(batch)
        if rows in batch.shape[1:] or any(_joins(each, rows) for each in inputs):
            return
        first = batch.detach().reshape(rows, -1)[0, :64].clone()
        before = self._firsts.get(number)
        self._firsts[number] = first
        # a graph is the same batch in each update, and its rows are nodes that may influence each other
        if before is None or (before.shape == first.shape and torch.equal(before, first)):
            return
        self._batch, self._model = batch, number

    def ended(self, given: ModuleOutput) -> None:
        if self._batch is None:
            return
        rows = len(self._batch)
        tensors = [
            each
            for each in _tensors(given.output)
            # on the second axis of states alone: two axes may be as long as there are rows by chance
            if each.requires_grad and (len(each) == rows or (each.dim() > 2 and each.shape[1] == rows))
        ]
        if given.outermost:
            self._output = next((each for each in tensors if len(each) == rows), None)
            return
        frame = sys._getframe(1)
        while frame.f_back is not None and not is_own(frame.f_code.co_filename):
            frame = frame.f_back
        code = frame.f_code
        end = max((line for *_, line in code.co_lines() if line), default=frame.f_lineno)
        for each in tensors:
            axis = 0 if len(each) == rows else 1
            if len(self._calls) < MOST_CALLS and (self._calls or axis == 0):
                edge = get_gradient_edge(each)
                self._calls.append(Call(code.co_filename, frame.f_lineno, end, edge, axis, each.shape))

    def scored(self, _scores: Tensor, target: Tensor) -> None:
        output, batch, calls = self._output, self._batch, self._calls
        if output is None or batch is None or not calls or target.dim() == 0:
            return
        rows = len(batch)
        of_rows = len(target) == rows and (target.numel() == rows or target.dim() > 1)
        if not (of_rows or self._rows_drawn() == rows or is_next_along_rows(target, batch)):
            return
        if output.dim() > 1 and output.shape[1] == rows:  # likenesses of the rows to each other
            return
        self._batch, self._output, self._calls = None, None, []
        if not is_plain(output.grad_fn):
            return
        times = self._looked[self._model] = self._looked.get(self._model, 0) + 1
        # another row each time: one may stay where it was when rows are put into another order
        influence = influence_on(output, (rows // 2 + 3 * times) % rows, calls)
        if influence is not None and influence.others:
            self._judge(output, influence, calls, rows)

    def _judge(self, output: Tensor, influence: Influence, calls: list[Call], rows: int) -> None:
        """Note an output that is made of other rows than its own, or of all."""
        norm, statistic = mixes_rows_on_purpose(output.grad_fn, rows)
        all_of_them = influence.others >= NEARLY_ALL * ((rows - 1) if influence.later else influence.row)
        taken = influence.most if norm or statistic else not influence.own
        # what belongs together in time may be read from one row to the next, as an agent's steps are
        ordered = not influence.later and not self._shuffled()
        if not taken and (norm or statistic or ordered or not all_of_them):
            return
        file, line = line_of_mixing(calls, influence.between)
        source = (
            "does not depend on its own input, and" if not influence.own else "depends on its own input and"
        )
        what = (
            f"The output for row {influence.row} of a batch of {rows} {source} on {influence.others} other rows, each of which has a target of its own: "
            "an axis was taken for another one."
        )
        fix = "x = x.transpose(0, 1)   # moves an axis, where view() and reshape() keep the order of values; softmax(dim=-1)"
        at = f"{shown(file)}:{line}"
        self._recorder.add(Fault(at, self._recorder.log.updates, "wrong_axis", what, fix, LEAST_SEEN))


def _tensors(output: Any) -> list[Tensor]:
    """Return the dense tensors of one axis and more that a call gave, also those of a pair within it, as the states of an LSTM are."""
    parts = output if isinstance(output, tuple | list) else [output]
    inner = [part for each in parts for part in (each if isinstance(each, tuple | list) else [each])]
    return [
        each
        for each in inner
        if isinstance(each, Tensor) and each.dim() > 0 and each.layout is torch.strided and not each.is_nested
    ]


def _joins(given: Tensor, rows: int) -> bool:
    """Return whether an input says which rows belong together: edges, or a matrix of all rows with each other."""
    if given.layout is not torch.strided:
        return True
    edges = given.dim() == 2 and not given.is_floating_point() and 2 in given.shape and rows > 2
    return edges or (given.dim() == 2 and given.shape == (rows, rows))
