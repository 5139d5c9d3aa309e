"""Look at what a loss over classes is given: its axes, its classes, and padding among its labels."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from snugfit.doctor.observe.events.run_events import Fault
from snugfit.doctor.observe.events.script_events import WrongAxis
from snugfit.doctor.observe.events.text_events import MaskedTokens
from snugfit.doctor.observe.graphs.class_paths import mixed_classes, other_softmax
from snugfit.doctor.observe.graphs.graph_nodes import (
    channels_before_reshape,
    is_softmax_over_rows,
    line_that_says,
)
from snugfit.doctor.observe.recording.padding_tokens import labels_on_padding
from snugfit.doctor.observe.recording.recorder import Recorder
from snugfit.doctor.observe.recording.script_frames import where
from snugfit.doctor.observe.watchers.modules.class_axes import ClassAxes


def look_at_one_class(recorder: Recorder, name: str, scores: Tensor) -> None:
    """Note a loss over classes of which there is one alone, whose share of the whole is always 1."""
    looked = recorder.detailed and name in ("cross_entropy", "nll_loss") and torch.is_grad_enabled()
    if looked and scores.dim() == 2 and scores.shape[1] == 1 and scores.requires_grad:
        what = f"{name} gets one score for each row: the share of a single class is 1 whatever it is, and nothing is learned."
        fix = "loss = F.binary_cross_entropy_with_logits(scores.squeeze(1), labels.float())   # of two classes; F.mse_loss of numbers"
        recorder.add(Fault(where(), recorder.log.updates, "wrong_scores", what, fix, 2, certain=True))


def look_at_multi_hot(recorder: Recorder, name: str, scores: Tensor, target: Tensor) -> None:
    """Note targets of 0 and 1 of which rows have several, given to a loss that takes them for shares of one whole."""
    looked = recorder.detailed and name == "cross_entropy" and torch.is_grad_enabled()
    if not looked or target.dim() != 2 or target.shape != scores.shape or not target.is_floating_point():
        return
    wanted = target.detach()
    counts = wanted.sum(1)
    if not wanted.numel() or not bool(((wanted == 0) | (wanted == 1)).all()) or float(counts.max()) <= 1:
        return
    if float(counts.sum()) == len(wanted):
        if any(isinstance(each, WrongAxis) for each in recorder.log.events):  # which says it where it is done
            return
        what = (
            f"cross_entropy gets targets of 0 and 1 with one 1 for each of {len(wanted)} rows, but {int((counts == 0).sum())} of these have none and others up to "
            f"{int(counts.max())}: the labels of some rows lie in others."
        )
        fix = "targets = torch.stack(labels, dim=1)   # or labels.T, not labels.reshape(rows, classes)"
        recorder.add(Fault(where(), recorder.log.updates, "mismatched_rows", what, fix, 3))
    else:
        what = (
            f"cross_entropy gets targets of 0 and 1, of which a row has {float(counts.mean()):.1f} on average and {int(counts.max())} at most: "
            "its classes exclude each other, and those of these rows do not."
        )
        fix = "loss = F.binary_cross_entropy_with_logits(scores, targets)"
        recorder.add(Fault(where(), recorder.log.updates, "wrong_scores", what, fix, 3, certain=True))


def look_at_padded_labels(recorder: Recorder, target: Tensor, options: dict[str, Any]) -> None:
    """Note labels that count where the tokens that were read last are padding, unless the script weighs each of them itself."""
    tokens, whole = recorder.tokens.last, options.get("reduction", "mean") != "none"
    if not (recorder.detailed and whole and torch.is_grad_enabled()) or tokens is None:
        return
    if (
        tokens.dim() != 2 or tokens.numel() != target.numel()
    ):  # those of a decoder that is stepped are read one by one
        tokens = recorder.tokens.decoded if is_next_padding(recorder, target) else tokens
    if tokens is None or tokens.dim() != 2:
        return
    if tokens.device != target.device or target.numel() not in (tokens.numel(), tokens.numel() - len(tokens)):
        return
    padding = recorder.tokens.padding_of(tokens)
    if padding is None:
        return
    counted = labels_on_padding(padding, target, options.get("ignore_index", -100), options.get("weight"))
    if counted is not None:
        at, update = where(), recorder.log.updates
        recorder.add(MaskedTokens(at, update, *counted, 0, 0, 0, tokens.numel(), by_mask=False))


def is_next_padding(recorder: Recorder, target: Tensor) -> bool:
    """Return whether a model got tokens, one for each label, of which those that are padding have padding as their labels."""
    tokens = recorder.tokens.decoded
    if (
        tokens is None
        or tokens.numel() != target.numel()
        or tokens.device != target.device
        or target.is_floating_point()
    ):
        return False
    padding = recorder.tokens.padding_of(tokens)
    if padding is None or not bool(padding.any()):
        return False
    labels = target.detach().reshape(tokens.shape)[padding]
    return bool((labels == tokens[padding][0]).all())


def look_at_axes(recorder: Recorder, axes: ClassAxes, name: str, scores: Tensor, target: Tensor) -> None:
    """Note a softmax over the rows, and a reshape that mixes classes with places; remember where a model has its classes."""
    if not recorder.detailed or scores.dim() < 2 or target.is_floating_point():
        return
    update = recorder.log.updates
    if is_softmax_over_rows(scores):
        what = "the softmax runs over the rows, not over the classes: each class sums to 1 over all rows"
        at = line_that_says(scores.grad_fn, ("softmax(",)) or where()
        recorder.add(WrongAxis(at, update, name, what, "scores = F.log_softmax(scores, dim=1)"))
    size = channels_before_reshape(scores) if scores.dim() == 2 else ()
    mixed = mixed_classes(scores, 1)
    if len(size) > 2 and size[1] == scores.shape[1] and math.prod(size[2:]) > 1:
        what = f"scores of {list(size)} are reshaped to {list(scores.shape)} as they lie in memory: a row has values of one class at several places"
        fix = "loss = F.cross_entropy(scores, labels)   # classes on axis 1; or scores.movedim(1, -1).reshape(-1, classes)"
        recorder.add(WrongAxis(where(), update, name, what, fix))
    elif mixed is not None:
        before, now = map(list, mixed)
        what = (
            f"scores of {before} are viewed as {now} as they lie in memory, and their classes are on another axis than the loss takes them from"
            if before != now
            else f"the last layer gives scores of {before}, and the loss takes {list(scores.shape)}: its classes are another axis of the layer's"
        )
        fix = "loss = F.cross_entropy(scores.movedim(-1, 1), labels)   # axes are moved, not viewed"
        recorder.add(WrongAxis(where(), update, name, what, fix))
    other = other_softmax(scores, 1)
    if other is not None:
        made, over, classes, line = other
        what = f"the softmax runs over axis {over} of {list(made)}, and the classes are on axis {classes}"
        fix = f"scores.log_softmax(dim={classes})"
        recorder.add(WrongAxis(line or where(), update, f"the softmax before {name}", what, fix))
    axes.note(scores, 1)
