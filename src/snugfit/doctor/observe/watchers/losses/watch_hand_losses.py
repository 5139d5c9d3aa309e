"""Watch losses over classes that a script writes itself: likelihoods that it picks, sums of exponentials, overlaps with masks of classes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from snugfit.doctor.observe.events.script_events import ScoresAsLogits, WrongAxis
from snugfit.doctor.observe.graphs.graph_nodes import kind_of, line_of, made_by, squashed_by
from snugfit.doctor.observe.recording.attribute_patches import Patches
from snugfit.doctor.observe.recording.internals import axis_of_softmax, script_as, size_of_result
from snugfit.doctor.observe.recording.own_calls import after_own_calls
from snugfit.doctor.observe.recording.recorder import Recorder
from snugfit.doctor.observe.recording.script_frames import where
from snugfit.doctor.observe.watchers.losses.class_scores import look_at_padded_labels

MOST_NUMBERS = 4_000_000
_PICKED = "snugfit picked"
_THROUGH = ("Neg", "Squeeze", "View", "UnsafeView", "Reshape", "Div", "Clone")
_STEPS = 6


def watch_hand_losses(recorder: Recorder, patches: Patches) -> None:
    """Keep with likelihoods that a script picks the labels which it picked them by, in the first updates."""

    def look(_: str, args: Sequence[Any], kwargs: Mapping[str, Any], result: Tensor) -> None:
        scores, axis, index = (
            (*args, *kwargs.values())[:3] if len(args) + len(kwargs) > 2 else (None, None, None)
        )
        metadata = getattr(result.grad_fn, "metadata", None)
        if metadata is None or not isinstance(scores, Tensor) or not isinstance(index, Tensor):
            return
        if isinstance(axis, int) and index.shape[axis] == 1 and made_by(scores.grad_fn) == "LogSoftmax":
            metadata[_PICKED] = index.squeeze(axis)

    in_c = torch.gather
    for owner in (Tensor, torch):
        patches.wrap(owner, "gather", after_own_calls(recorder, look))
    script_as(torch.gather, in_c)


def look_at_mean(recorder: Recorder, values: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Look at the mean or the sum over likelihoods that were picked, those of padding among them, as at what a loss of torch's gets."""
    if not isinstance(values, Tensor) or len(args) > 1 or kwargs:
        return
    node: Any = values.grad_fn
    for _ in range(_STEPS):
        labels = (getattr(node, "metadata", None) or {}).get(_PICKED)
        if labels is not None:
            look_at_padded_labels(recorder, labels, {})
            return
        if node is None or kind_of(node) not in _THROUGH:
            return
        node = node.next_functions[0][0]


def look_at_exponentials(recorder: Recorder, values: Any) -> None:
    """Note a sum of the exponentials of probabilities, which is that of scores in a loss over classes."""
    if isinstance(values, Tensor) and values.dim() > 1 and squashed_by(values.grad_fn) == "Softmax":
        recorder.add(ScoresAsLogits(where(), recorder.log.updates, "logsumexp"))


def look_at_overlap(recorder: Recorder, one: Tensor, other: Tensor) -> None:
    """Note probabilities that come to 1 over another axis than that on which a mask of classes has one 1 each."""
    shares, mask = (one, other) if one.requires_grad else (other, one)
    if mask.requires_grad or shares.shape != mask.shape or shares.dim() < 2 or mask.numel() > MOST_NUMBERS:
        return
    axis = axis_of_softmax(shares.grad_fn)
    if axis is None or size_of_result(shares.grad_fn) != tuple(shares.shape) or mask.is_complex():
        return
    known = mask.detach()
    if not bool(((known == 0) | (known == 1)).all()):
        return
    classes = [
        each for each in range(known.dim()) if known.shape[each] > 1 and bool((known.sum(each) == 1).all())
    ]
    if len(classes) != 1 or classes[0] == axis:
        return
    what = f"probabilities of {list(shares.shape)} come to 1 over axis {axis}, and the classes that they are compared with are on axis {classes[0]}"
    at = line_of(shares.grad_fn) or where()
    fix = f"scores.softmax(dim={classes[0]})"
    recorder.add(WrongAxis(at, recorder.log.updates, "the softmax before an overlap", what, fix))
