"""Watch what the scores of a loss depend on: other rows, tokens behind them, a column that holds the target."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from snugfit.doctor.observe.events.run_events import OtherOrder
from snugfit.doctor.observe.events.script_events import (
    OVER_ROWS,
    LabelColumn,
    OtherRows,
    SeesFuture,
    WrongAxis,
)
from snugfit.doctor.observe.events.term_events import PaddingRead
from snugfit.doctor.observe.graphs.dependence import attends_over, mixed_at, pooled_at, sensitivity
from snugfit.doctor.observe.recording.internals import rows_taken
from snugfit.doctor.observe.recording.padding_tokens import is_next_along_rows
from snugfit.doctor.observe.recording.recorder import Recorder
from snugfit.doctor.observe.recording.script_frames import line_in, own_frames, where
from snugfit.doctor.observe.source.row_orders import other_order
from snugfit.doctor.observe.watchers.attention.watch_squashes import softmax_over_rows
from snugfit.doctor.observe.watchers.modules.watch_modules import ModuleWatch, TimeFirst
from snugfit.doctor.observe.watchers.rows.target_leaks import column_of_target

MOST_FRAMES = 3
LEAST_TOKENS = 32
LEAST_ROWS = 3
SLACK = 1e-3
NEXT = 0.99
"""Share of the labels that are the next token, from which on they are next tokens."""


def look_at_dependence(recorder: Recorder, modules: ModuleWatch, scores: Tensor, target: Tensor) -> None:
    """Look at what a loss gets in the first updates."""
    batch = modules.batch
    looked = (
        recorder.detailed and torch.is_grad_enabled() and scores.requires_grad and not target.requires_grad
    )
    if looked:
        for companion in modules.companions:
            companion.scored(scores, target)
    if not looked or batch is None:
        return
    plain = all(each.layout is torch.strided and not each.is_nested for each in (batch, target))
    if not plain or not target.numel() or batch.is_complex():
        return
    inputs, targets = (
        modules.handed.get(StorageWeakRef(each.untyped_storage()), 0) for each in (batch, target)
    )
    if inputs and targets and inputs != targets:
        recorder.add(OtherRows(where(), recorder.log.updates, inputs, targets))
    _look_at_orders(recorder, batch, target)
    column = column_of_target(_rows_scored(batch, scores, target), target)
    if column is not None:
        place, columns, exact = column
        recorder.add(LabelColumn(where(), recorder.log.updates, place, columns, len(target), exact))
    one_each = target.dim() > 0 and target.shape[0] == target.numel() == batch.shape[0]
    shares = (
        target.dim() == 2
        and target.shape == scores.shape
        and target.shape[1] > 1
        and _are_shares_of_rows(target)
    )
    if (one_each or shares) and (line := softmax_over_rows(scores.grad_fn, batch.shape[0])):
        what = f"it runs over the {batch.shape[0]} rows of the batch, each of which has a target of its own"
        recorder.add(WrongAxis(line, recorder.log.updates, OVER_ROWS, what, "scores.softmax(dim=-1)"))
    if modules.time_first is not None and one_each:
        _look_at_rows(recorder, modules.time_first, batch.shape[0])
    elif modules.time_first is not None and modules.time_first.as_given and is_next_along_rows(target, batch):
        _note_time_first(recorder, modules.time_first, "the next tokens lie along the second")
    elif modules.time_first is not None and _lies_by_rows(modules, target):
        _look_at_rows(recorder, modules.time_first, modules.rows_drawn)
    elif one_each and recorder.tokens.last is not None and recorder.tokens.last.shape[:1] == target.shape[:1]:
        _look_at_padding(recorder, modules, scores)
    elif recorder.tokens.last is not None and not _look_at_future(recorder, modules, scores, target):
        _look_at_padded_places(recorder, modules, scores, target)


def _rows_scored(batch: Tensor, scores: Tensor, target: Tensor) -> Tensor:
    """Return the rows of a batch of which a loss gets the scores: all, or those that a mask has taken, as of a graph."""
    fewer = target.dim() > 0 and len(target) < len(batch)
    taken = rows_taken(scores.grad_fn) if fewer else None
    inside = taken is not None and 0 < len(taken) == len(target) and int(taken.max()) < len(batch)
    return batch[taken.to(batch.device)] if taken is not None and inside else batch


def _are_shares_of_rows(target: Tensor) -> bool:
    """Return whether each column of targets comes to 1 over the rows, and the rows do not."""
    if not target.is_floating_point() or bool((target < 0).any()):
        return False
    down, along = (target.detach().float().sum(axis) for axis in (0, 1))
    return bool(((down - 1).abs() < SLACK).all()) and not bool(((along - 1).abs() < SLACK).all())


def _look_at_orders(recorder: Recorder, batch: Tensor, target: Tensor) -> None:
    """Note inputs and targets that the script draws by permutations of their own, as its source says."""
    for frame in own_frames(MOST_FRAMES):
        inputs, targets = (_name_of(each, frame.f_locals) for each in (batch, target))
        if inputs and targets:
            line = other_order(frame.f_code.co_filename, frame.f_lineno, inputs, targets)
            if line:
                recorder.add(OtherOrder(line_in(frame, line), recorder.log.updates, inputs, targets))
            return


def _name_of(values: Tensor, names: Mapping[str, Any]) -> str:
    """Return the name that the script has for values, or for what they are a view of; "" without."""
    for name, each in list(names.items()):
        plain = (
            type(each) is Tensor and each.layout is torch.strided and not each.is_nested and each.dim() > 0
        )
        if plain and values.dim() > 0 and len(each) == len(values) and each.data_ptr() == values.data_ptr():
            return name
    return ""


def _lies_by_rows(modules: ModuleWatch, target: Tensor) -> bool:
    """Return whether targets of several numbers for each row have the rows of a loader's batch on their first axis, as a time-first layer has not."""
    layer, rows = modules.time_first, modules.rows_drawn
    if layer is None or not rows or layer.shape[0] != rows:
        return False
    by_rows = target.dim() > 1 and target.shape[0] == rows
    return by_rows or target.numel() == layer.shape[0] * layer.shape[1]


def _look_at_rows(recorder: Recorder, layer: TimeFirst, rows: int) -> None:
    """Note a layer that takes the rows for the time: each of them has a target of its own, and they lie on its first axis."""
    if rows < LEAST_ROWS or layer.shape[0] != rows or layer.shape[1] == rows:
        return
    _note_time_first(recorder, layer, f"it is that of the {rows} rows, each of which has a target")


def _note_time_first(recorder: Recorder, layer: TimeFirst, why: str) -> None:
    what = f"{layer.kind} takes the first axis of {list(layer.shape)} for the time, and {why}"
    recorder.add(
        WrongAxis(layer.at, recorder.log.updates, layer.kind, what, f"nn.{layer.kind}(..., batch_first=True)")
    )


def _look_at_padding(recorder: Recorder, modules: ModuleWatch, scores: Tensor) -> None:
    """Note scores of padded rows that depend on their padding."""
    tokens = recorder.tokens.last
    padding = None if tokens is None or tokens.dim() != 2 else recorder.tokens.padding_of(tokens)
    if padding is None or scores.shape[:1] != padding.shape[:1]:
        return
    anchor = modules.dependence.take()
    if anchor is None or anchor.output.dim() != 3 or anchor.output.shape[:2] != padding.shape:
        return
    flat = scores.reshape(len(scores), -1).float()
    # no weights are alike, so that what cancels out in a sum of all does not
    weighed = flat @ torch.linspace(1, 2, flat.shape[1], device=flat.device)
    gradient = sensitivity(weighed.sum(), anchor.output)
    if gradient is not None:
        _note_padding(recorder, scores, gradient, padding, modules.recurs_at)


def _note_padding(
    recorder: Recorder, scores: Tensor, gradient: Tensor, padding: Tensor, recurs_at: str = ""
) -> None:
    """Note how much of a gradient lies where there is padding, and by which mean, attention or recurrent layer it came there."""
    sizes = gradient.detach().float().norm(dim=2)
    text = float(sizes[~padding].mean())
    if text:
        share = float(sizes[padding].mean()) / text
        # a convolution before masked attention reads the next places of padding, not all
        all_read = bool(sizes[padding].all())
        attends = all_read and attends_over(scores.grad_fn, padding.shape[1])
        pooled = pooled_at(scores.grad_fn, *padding.shape) if all_read else ""
        update, count = recorder.log.updates, int(padding.sum())
        recorder.add(PaddingRead(pooled or recurs_at or where(), update, share, count, attends, bool(pooled)))


def _look_at_padded_places(recorder: Recorder, modules: ModuleWatch, scores: Tensor, target: Tensor) -> None:
    """Note scores of the first token of padded rows that depend on the padding, where each token has a target."""
    tokens = recorder.tokens.last
    padding = None if tokens is None or tokens.dim() != 2 else recorder.tokens.padding_of(tokens)
    if (
        padding is None
        or target.numel() != padding.numel()
        or target.shape[:1] not in (padding.shape[:1], target.shape)
    ):
        return
    anchor = modules.dependence.take()
    if anchor is None or anchor.output.dim() != 3 or anchor.output.shape[:2] != padding.shape:
        return
    rows, length = padding.shape
    by_place = scores if scores.dim() == 2 else scores.movedim(1, -1).reshape(-1, scores.shape[1])
    if by_place.shape[0] != padding.numel():
        return
    firsts = by_place.reshape(rows, length, -1)[:, 0].float()
    weighed = firsts @ torch.linspace(1, 2, firsts.shape[1], device=firsts.device)
    gradient = sensitivity(weighed[padding.any(1)].sum(), anchor.output)
    if gradient is not None:
        padded = padding.any(1)
        _note_padding(recorder, scores, gradient[padded], padding[padded])


def _look_at_future(recorder: Recorder, modules: ModuleWatch, scores: Tensor, target: Tensor) -> bool:
    """Note scores of a token that depend on the next one, which is their label; return whether labels are next tokens."""
    tokens = recorder.tokens.last
    if tokens is None or tokens.dim() != 2 or tokens.numel() < LEAST_TOKENS or scores.dim() < 2:
        return False
    if tokens.device != target.device:  # the layers of one model lie on several devices
        return False
    rows, length = tokens.shape
    width = target.numel() // rows
    if (
        target.is_floating_point()
        or width * rows != target.numel()
        or width not in (length, length - 1)
        or length < 4
    ):
        return False
    labels = target.detach().reshape(rows, width)
    counted = labels[:, : length - 1] >= 0
    same = (labels[:, : length - 1] == tokens[:, 1:]) & counted
    if not bool(counted.any()) or int(same.sum()) < NEXT * int(counted.sum()):
        return False
    anchor = modules.dependence.take()
    if anchor is None or anchor.output.dim() != 3 or anchor.output.shape[:2] != tokens.shape:
        return True
    place = length // 2 - 1
    flat = scores if scores.dim() == 2 else scores.movedim(1, -1).reshape(-1, scores.shape[1])
    if flat.shape[0] != target.numel():
        return True
    gradient = sensitivity(flat[place].float().logsumexp(-1), anchor.output)
    if gradient is not None and bool(gradient[0, place + 1 :].any()):
        recorder.add(SeesFuture(mixed_at(scores.grad_fn, length) or where(), recorder.log.updates))
    return True
