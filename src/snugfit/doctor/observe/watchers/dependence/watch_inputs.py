"""Watch all that a model is given: columns that tell the target, edges of graphs that were joined, padding of the tokens that a decoder reads step by step."""

from __future__ import annotations

import linecache
import re
from collections.abc import Callable

import torch
from torch import Tensor

from snugfit.doctor.observe.events.run_events import Fault
from snugfit.doctor.observe.events.text_events import MaskedTokens
from snugfit.doctor.observe.recording.companions import Companion, LossCall, ModelCall
from snugfit.doctor.observe.recording.own_source import own_files
from snugfit.doctor.observe.recording.padding_tokens import labels_on_padding
from snugfit.doctor.observe.recording.recorder import Recorder
from snugfit.doctor.observe.recording.script_frames import where
from snugfit.doctor.observe.watchers.rows.joined_graphs import edges_within_the_first, line_that_joins
from snugfit.doctor.observe.watchers.rows.made_columns import line_of_made_column
from snugfit.doctor.observe.watchers.rows.target_leaks import ordered_column

_TABLES = re.compile(r"\b(import|from) (pandas|polars|csv)\b|genfromtxt|loadtxt")
LEAST_SEEN, LEAST_ORDERED = 2, 4


class InputWatch(Companion):
    """A watcher of all tensors that a model is given, not of the first one alone.

    Args:
        rows_drawn: how many rows a loader has handed out last; 0 where that is not known.
    """

    def __init__(self, recorder: Recorder, *, rows_drawn: Callable[[], int]) -> None:
        self._recorder, self._rows_drawn = recorder, rows_drawn
        self._inputs: list[Tensor] = []
        self._tables: bool | None = None

    def begins(self, call: ModelCall) -> None:
        self._inputs = [
            each
            for each in call.inputs
            if each.layout is torch.strided and not each.is_nested and not each.is_complex()
        ]
        within = edges_within_the_first(self._inputs)
        if within is not None:
            edges, graphs, nodes, last = within
            what = (
                f"{graphs} graphs of {nodes} nodes are joined, and all {edges} edges are between the nodes 0 to {last}: "
                "those of each graph count its nodes from 0, and belong to the first graphs."
            )
            fix = "edges.append(graph.edge_index + offset)   # offset: nodes of the graphs before it"
            at = line_that_joins() or where()
            self._recorder.add(
                Fault(at, self._recorder.log.updates, "mismatched_rows", what, fix, LEAST_SEEN, certain=True)
            )

    def scored(self, _scores: Tensor, target: Tensor) -> None:
        if not self._inputs or not self._reads_tables():
            return
        for each in self._inputs:
            column = ordered_column(each, target) if self._rows_drawn() == len(each) else None
            if column is not None:
                what = (
                    f"Column {column} of {each.shape[1]} (counted from 0) of the inputs puts the rows of each batch into the very order of their targets: "
                    "it is made of the target."
                )
                fix = 'features = table.drop(columns=["target", "made_of_target"])'
                self._recorder.add(
                    Fault(
                        line_of_made_column() or where(),
                        self._recorder.log.updates,
                        "leakage",
                        what,
                        fix,
                        LEAST_ORDERED,
                    )
                )
                return

    def _reads_tables(self) -> bool:
        """Return whether the script's source has tables with named columns: in others the target is often a function of one column on purpose."""
        if self._tables is None:
            self._tables = any(_TABLES.search("".join(linecache.getlines(file))) for file in own_files())
        return self._tables

    def lost(self, loss: LossCall) -> None:
        """Note labels of padding that count, where the tokens were read one place after the other."""
        tokens, target, options = self._recorder.tokens.last, loss.target, loss.options
        whole = options.get("reduction", "mean") != "none"
        read_at_once = tokens is None or tokens.numel() in (target.numel(), target.numel() + len(tokens))
        if (
            loss.name not in ("cross_entropy", "nll_loss")
            or not whole
            or read_at_once
            or target.is_floating_point()
        ):
            return
        for each in self._inputs:
            fits = each.dim() == 2 and not each.is_floating_point() and each.numel() == target.numel()
            padding = (
                self._recorder.tokens.padding_of(each) if fits and each.device == target.device else None
            )
            if padding is None:
                continue
            counted = labels_on_padding(
                padding, target, options.get("ignore_index", -100), options.get("weight")
            )
            if counted is not None:
                update = self._recorder.log.updates
                self._recorder.add(
                    MaskedTokens(where(), update, *counted, 0, 0, 0, each.numel(), by_mask=False)
                )
