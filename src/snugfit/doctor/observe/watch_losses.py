"""Watch the loss functions of torch: what they are given."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from snugfit.doctor.observe.attribute_patches import Patches
from snugfit.doctor.observe.gradient_state import Gradients
from snugfit.doctor.observe.internals import script_as
from snugfit.doctor.observe.script_events import Broadcast, Loss, Unreachable
from snugfit.doctor.observe.watch_log import Recorder, where

_Call = Callable[..., Any]
_CLASSES = ("cross_entropy", "nll_loss")
_OTHERS = (
    "mse_loss",
    "l1_loss",
    "smooth_l1_loss",
    "huber_loss",
    "binary_cross_entropy",
    "binary_cross_entropy_with_logits",
    "kl_div",
)
_DISTANCES = _OTHERS[:4]
_RANGES = {
    "Relu": (0.0, math.inf),
    "Sigmoid": (0.0, 1.0),
    "Softmax": (0.0, 1.0),
    "Tanh": (-1.0, 1.0),
}
_SLACK = 1e-3
MOST_CLASSES = 100
_VIEWS = (
    "View",
    "Reshape",
    "Unsafe",
    "Squeeze",
    "Unsqueeze",
    "Transpose",
    "Permute",
    "Select",
    "Slice",
    "ToCopy",
)


def maker_of(values: Tensor) -> str:
    """Return the name of the function that made values, through views of its result; "" without a graph."""
    node = values.grad_fn
    while node is not None and type(node).__name__.startswith(_VIEWS) and node.next_functions:
        node = node.next_functions[0][0]
    return "" if node is None else type(node).__name__.partition("Backward")[0]


def kind_of_scores(scores: Tensor, axis: int) -> str:
    """Return what scores are: "probabilities" and "log probabilities" sum to one over the classes, "" is anything.

    Shown by the numbers of up to 64 rows, or by the function that made them, through views.
    """
    made = maker_of(scores)
    if made in ("Softmax", "Sigmoid"):
        return "probabilities"
    if made == "LogSoftmax":
        return "log probabilities"
    if made == "Relu":
        return "rectified"
    rows = scores.detach().movedim(axis, -1).reshape(-1, scores.shape[axis])[:64].float()
    if rows.shape[0] < 2 or rows.shape[1] < 2:
        return ""
    ones = torch.ones(rows.shape[0], device=rows.device)
    if bool((rows >= 0).all()) and torch.allclose(rows.sum(1), ones, atol=1e-3):
        return "probabilities"
    if bool((rows <= 0).all()) and torch.allclose(rows.exp().sum(1), ones, atol=1e-3):
        return "log probabilities"
    return ""


def _are_raw(scores: Tensor, axis: int) -> bool:
    """Return whether the exponentials of the scores sum to more than one in nearly all rows, which those of log-probabilities never do."""
    rows = scores.detach().movedim(axis, -1).reshape(-1, scores.shape[axis])[:64].float()
    return rows.shape[0] > 1 and float((rows.exp().sum(1) > 1.05).float().mean()) > 0.9


def watch_losses(recorder: Recorder, gradients: Gradients, patches: Patches) -> None:
    """Record calls of the loss functions, and of argmax, which is how classes are scored."""

    def of_classes(name: str) -> Callable[[_Call], _Call]:
        def wrapped(original: _Call) -> _Call:
            def loss(input: Tensor, target: Tensor, *args: Any, **kwargs: Any) -> Any:
                given = isinstance(input, Tensor) and isinstance(target, Tensor)
                if torch.compiler.is_compiling() or not given or not recorder.active:
                    return original(input, target, *args, **kwargs)
                names = ("weight", "size_average", "ignore_index", "reduce", "reduction", "label_smoothing")
                options = {**dict(zip(names, args, strict=False)), **kwargs}
                with recorder.guard():
                    recorder.add(_seen(recorder, name, input, target, options))
                result = original(input, target, *args, **kwargs)
                with recorder.guard():
                    _remember(gradients, result, options)
                return result

            return loss

        return wrapped

    def of_numbers(name: str) -> Callable[[_Call], _Call]:
        def wrapped(original: _Call) -> _Call:
            def loss(input: Tensor, target: Tensor, *args: Any, **kwargs: Any) -> Any:
                result = original(input, target, *args, **kwargs)
                given = isinstance(input, Tensor) and isinstance(target, Tensor)
                if not torch.compiler.is_compiling() and given and recorder.active:
                    with recorder.guard():
                        look_at_shapes(recorder, name, input, target)
                        _look_at_range(recorder, name, input, target)
                        recorder.add(_binary(recorder, name, input, target, kwargs))
                        _remember(gradients, result, kwargs)
                return result

            return loss

        return wrapped

    def scoring(original: _Call) -> _Call:
        def argmax(input: Tensor, *args: Any, **kwargs: Any) -> Any:
            if not torch.compiler.is_compiling() and isinstance(input, Tensor) and recorder.active:
                with recorder.guard():
                    if input.dim() > 1:
                        recorder.add(_simple(recorder, "argmax", "", False))
            return original(input, *args, **kwargs)

        return argmax

    for name in _CLASSES:
        patches.wrap(functional, name, of_classes(name))
    for name in _OTHERS:
        patches.wrap(functional, name, of_numbers(name))
    in_c = torch.argmax
    patches.wrap(torch, "argmax", scoring)
    script_as(torch.argmax, in_c)
    patches.wrap(torch.Tensor, "argmax", scoring)


def _remember(gradients: Gradients, result: Any, options: dict[str, Any]) -> None:
    """Keep the means that are part of what will be differentiated."""
    mean = options.get("reduction", "mean") == "mean"
    if mean and isinstance(result, Tensor) and result.requires_grad and result.numel() == 1:
        gradients.losses.append(float(result.detach()))


def look_at_shapes(recorder: Recorder, name: str, predictions: Any, targets: Any) -> None:
    """Note predictions and targets that are as many, and are broadcast against each other to more."""
    both = isinstance(predictions, Tensor) and isinstance(targets, Tensor)
    if not both or predictions.shape == targets.shape or predictions.numel() != targets.numel():
        return
    if torch.broadcast_shapes(predictions.shape, targets.shape).numel() > predictions.numel():
        shapes = list(predictions.shape), list(targets.shape)
        recorder.add(Broadcast(where(), recorder.log.updates, name, *shapes))


def _look_at_range(recorder: Recorder, name: str, predictions: Tensor, targets: Tensor) -> None:
    """Note targets that the activation which made the predictions cannot give."""
    activation = maker_of(predictions) if recorder.detailed and name in _DISTANCES else ""
    if activation not in _RANGES or predictions.shape != targets.shape or not targets.numel():
        return
    low, high = _RANGES[activation]
    outside = (targets.detach() < low - _SLACK) | (targets.detach() > high + _SLACK)
    share = float(outside.float().mean())
    if share:
        recorder.add(Unreachable(where(), recorder.log.updates, name, activation, low, high, share))


def _simple(recorder: Recorder, name: str, given: str, mean: bool) -> Loss:
    grad = torch.is_grad_enabled()
    at, update = where(), recorder.log.updates
    return Loss(at, update, name, grad, given, mean, 0, 0, 0, None, False, {}, False, 0.0)


def _binary(recorder: Recorder, name: str, scores: Tensor, target: Tensor, options: dict[str, Any]) -> Loss:
    """Return a loss of numbers; where they are one yes or no for each row, they are counted as labels."""
    made = maker_of(scores) if name == "binary_cross_entropy_with_logits" else ""
    given = {"Sigmoid": "probabilities", "Softmax": "probabilities", "Relu": "rectified"}.get(made, "")
    seen = _simple(recorder, name, given, options.get("reduction", "mean") == "mean")
    rows = target.numel()
    if not name.startswith("binary") or not rows or rows != target.shape[0]:
        return seen
    positive, negative = int((target == 1).sum()), int((target == 0).sum())
    if positive + negative < rows:
        return seen
    weighted = any(options.get(weight) is not None for weight in ("weight", "pos_weight"))
    labels = {label: count for label, count in (("0", negative), ("1", positive)) if count}
    return replace(seen, counted=rows, labels=labels, weighted=weighted)


def _seen(
    recorder: Recorder,
    name: str,
    scores: Tensor,
    target: Tensor,
    options: dict[str, Any],
) -> Loss:
    axis = 1 if scores.dim() > 1 else 0
    mean = options.get("reduction", "mean") == "mean"
    if target.is_floating_point() or scores.dim() == 0 or not target.numel():
        return _simple(recorder, name, kind_of_scores(scores, axis) if scores.numel() else "", mean)
    classes = scores.shape[axis]
    flat = target.detach().reshape(-1)
    ignored = flat == options.get("ignore_index", -100)
    counted = flat[~ignored]
    outside = counted[(counted < 0) | (counted >= classes)]
    tokens = target.dim() > 1 or recorder.tokens_in_batch == target.numel()
    labels: dict[str, int] = {}
    if classes <= MOST_CLASSES and not tokens and not outside.numel() and torch.is_grad_enabled():
        counts = torch.bincount(counted.cpu(), minlength=classes).tolist()
        labels = {str(label): count for label, count in enumerate(counts) if count}
    given = kind_of_scores(scores, axis)
    if name == "nll_loss" and given in ("", "rectified") and _are_raw(scores, axis):
        given = "raw scores"
    return Loss(
        where(),
        recorder.log.updates,
        name,
        torch.is_grad_enabled(),
        given,
        mean,
        classes,
        counted.numel(),
        int(ignored.sum()),
        int(outside[0]) if outside.numel() else None,
        tokens,
        labels,
        options.get("weight") is not None,
        recorder.copies(flat, ~ignored, classes),
    )
