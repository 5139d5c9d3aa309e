"""Watch the loss functions of torch: what they are given."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from snugfit.doctor.observe.events.run_events import Fault
from snugfit.doctor.observe.events.script_events import (
    FarTargets,
    Loss,
    MixedApart,
    OutsideDomain,
    TargetGradient,
    Unreachable,
)
from snugfit.doctor.observe.events.term_events import TransposedTargets
from snugfit.doctor.observe.graphs.graph_nodes import (
    has_constant_rows,
    is_bootstrapped,
    leaves_of,
    maker_of,
    mark_line,
    squashed_at,
    squashed_by,
)
from snugfit.doctor.observe.recording.attribute_patches import Patches
from snugfit.doctor.observe.recording.companions import LossCall
from snugfit.doctor.observe.recording.infinite_values import note_infinite
from snugfit.doctor.observe.recording.recorder import Recorder
from snugfit.doctor.observe.recording.script_frames import where
from snugfit.doctor.observe.watchers.dependence.watch_dependence import look_at_dependence
from snugfit.doctor.observe.watchers.losses.class_scores import (
    look_at_axes,
    look_at_multi_hot,
    look_at_one_class,
    look_at_padded_labels,
)
from snugfit.doctor.observe.watchers.losses.watch_copies import NoiseDrawn
from snugfit.doctor.observe.watchers.losses.watch_likenesses import look_at_likenesses
from snugfit.doctor.observe.watchers.modules.watch_modules import ModuleWatch
from snugfit.doctor.observe.watchers.optimizers.gradient_state import Gradients
from snugfit.doctor.observe.watchers.rows.mixed_rows import mix_of, wrong_targets
from snugfit.doctor.observe.watchers.scores.watch_loops import look_at_loop
from snugfit.doctor.observe.watchers.tensors.watch_shapes import look_at_shapes
from snugfit.doctor.observe.watchers.texts.stepped_tokens import look_at_steps
from snugfit.doctor.observe.watchers.texts.watch_texts import look_at_ends

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
_SIGNED = {
    "cosine_embedding_loss": 2,
    "margin_ranking_loss": 2,
    "hinge_embedding_loss": 1,
    "soft_margin_loss": 1,
}
"""Losses whose targets are 1 and -1, and the place of the targets among the arguments."""
_COUNTS = "poisson_nll_loss"
DIFFERENCE = "the difference"
_DISTANCES = (*_OTHERS[:4], DIFFERENCE)
_RANGES = {
    "Relu": (0.0, math.inf),
    "Sigmoid": (0.0, 1.0),
    "Softmax": (0.0, 1.0),
    "Tanh": (-1.0, 1.0),
    "Hardtanh": (-1.0, 1.0),
    "Hardsigmoid": (0.0, 1.0),
    "Softplus": (0.0, math.inf),
    "Exp": (0.0, math.inf),
    "Elu": (-1.0, math.inf),
    "Gelu": (-0.17, math.inf),
    "Silu": (-0.28, math.inf),
}
_SLACK = 1e-3
FAR = 50
"""Targets so many times as large as the predictions are on another scale,"""
LARGE = 100.0
"""if they are as large as that: an optimizer of Adam's kind would take tens of thousands of updates to get there."""
MOST_CLASSES = 100


def kind_of_scores(scores: Tensor, axis: int) -> str:
    """Return what scores are: "probabilities" and "log probabilities" sum to one over the classes, "rectified" and "bounded" those that a ReLU or a tanh made, "" is anything.

    Shown by the numbers of up to 64 rows, or by the function that made them, through views.
    """
    made = maker_of(scores)
    if squashed_by(scores.grad_fn):
        return "probabilities"
    if made == "LogSoftmax":
        return "log probabilities"
    if made in ("Relu", "Tanh"):
        return "rectified" if made == "Relu" else "bounded"
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


def watch_losses(
    recorder: Recorder, gradients: Gradients, modules: ModuleWatch, noise: NoiseDrawn, patches: Patches
) -> None:
    """Record calls of the loss functions."""
    axes = modules.class_axes

    def of_classes(name: str) -> Callable[[_Call], _Call]:
        def wrapped(original: _Call) -> _Call:
            def loss(input: Tensor, target: Tensor, *args: Any, **kwargs: Any) -> Any:
                given = isinstance(input, Tensor) and isinstance(target, Tensor)
                if torch.compiler.is_dynamo_compiling() or not given or not recorder.active:
                    return original(input, target, *args, **kwargs)
                names = ("weight", "size_average", "ignore_index", "reduce", "reduction", "label_smoothing")
                options = {**dict(zip(names, args, strict=False)), **kwargs}
                with recorder.guard():
                    recorder.add(seen := _seen(recorder, name, input, target, options))
                    look_at_ends(recorder, seen, target)
                    look_at_padded_labels(recorder, target, options)
                    ignored, hooked = options.get("ignore_index", -100), modules.dependence.hooked
                    look_at_steps(recorder, input, target, ignored, seen.classes, hooked=hooked)
                    look_at_multi_hot(recorder, name, input, target)
                    look_at_one_class(recorder, name, input)
                    look_at_axes(recorder, axes, name, input, target)
                    look_at_likenesses(recorder, input, target)
                    look_at_dependence(recorder, modules, input, target)
                    _look_at_pairs(recorder, modules, name, target)
                    _look_at_mix(recorder, modules, target)
                    look_at_loop(recorder, modules, mean=options.get("reduction", "mean") == "mean")
                result = original(input, target, *args, **kwargs)
                with recorder.guard():
                    _remember(recorder, gradients, result, target, options)
                    _tell(recorder, modules, name, input, target, result, options)
                return result

            return loss

        return wrapped

    def of_numbers(name: str) -> Callable[[_Call], _Call]:
        def wrapped(original: _Call) -> _Call:
            def loss(input: Tensor, target: Tensor, *args: Any, **kwargs: Any) -> Any:
                result = original(input, target, *args, **kwargs)
                given = isinstance(input, Tensor) and isinstance(target, Tensor)
                if not torch.compiler.is_dynamo_compiling() and given and recorder.active:
                    with recorder.guard():
                        look_at_shapes(recorder, name, input, target)
                        _look_at_range(recorder, name, input, target)
                        _look_at_truths(recorder, name, target)
                        if recorder.detailed and input.requires_grad:
                            note_infinite(recorder, [target])
                            noise.look_at(modules.batch, target)
                        _look_at_targets(recorder, modules, name, input, target)
                        look_at_dependence(recorder, modules, input, target)
                        _look_at_pairs(recorder, modules, name, target)
                        _look_at_mix(recorder, modules, target)
                        look_at_loop(recorder, modules, mean=kwargs.get("reduction", "mean") == "mean")
                        recorder.add(_binary(recorder, name, input, target, kwargs))
                        _remember(recorder, gradients, result, target, kwargs)
                        _tell(recorder, modules, name, input, target, result, kwargs)
                return result

            return loss

        return wrapped

    for name in _CLASSES:
        patches.wrap(functional, name, of_classes(name))
    for name in _OTHERS:
        patches.wrap(functional, name, of_numbers(name))


def _tell(
    recorder: Recorder,
    modules: ModuleWatch,
    name: str,
    scores: Tensor,
    target: Tensor,
    result: Any,
    options: dict[str, Any],
) -> None:
    """Tell the companions of a loss that may be differentiated."""
    if recorder.detailed and isinstance(result, Tensor) and torch.is_grad_enabled():
        call = LossCall(name, scores, target, result, options)
        for companion in modules.companions:
            if result.requires_grad:
                companion.lost(call)
            else:
                companion.constant(call)


def watch_other_losses(
    recorder: Recorder, gradients: Gradients, modules: ModuleWatch, patches: Patches
) -> None:
    """Record what losses of pairs get."""

    def of_pairs(name: str) -> Callable[[_Call], _Call]:
        def wrapped(original: _Call) -> _Call:
            def loss(*args: Any, **kwargs: Any) -> Any:
                result = original(*args, **kwargs)
                place = _SIGNED.get(name, 1)
                target = kwargs.get("target", args[place] if len(args) > place else None)
                if (
                    not torch.compiler.is_dynamo_compiling()
                    and recorder.active
                    and isinstance(target, Tensor)
                ):
                    with recorder.guard():
                        look_at_shapes(recorder, name, args[0] if args else None, target)
                        _look_at_signs(recorder, name, target)
                        look_at_loop(recorder, modules, mean=kwargs.get("reduction", "mean") == "mean")
                        _remember(recorder, gradients, result, target, kwargs)
                return result

            return loss

        return wrapped

    for name in (*_SIGNED, _COUNTS):
        patches.wrap(functional, name, of_pairs(name))


def _remember(
    recorder: Recorder, gradients: Gradients, result: Any, target: Tensor, options: dict[str, Any]
) -> None:
    """Keep the means that are part of what will be differentiated, with their line, and those of an evaluation where a schedule waits for them."""
    if not isinstance(result, Tensor) or result.numel() != 1:
        return
    mean = options.get("reduction", "mean") == "mean"
    if result.requires_grad and recorder.detailed:
        mark_line(result, where())
    if mean and result.requires_grad:
        gradients.losses.append(float(result.detach()))
    elif mean and recorder.waited_for and not torch.is_grad_enabled():
        recorder.scored_losses.append((float(result), len(target) if target.dim() else 1))


def _look_at_mix(recorder: Recorder, modules: ModuleWatch, target: Tensor) -> None:
    """Note rows of a loader that were mixed with each other in the first updates, and targets that were not mixed with those of the same rows."""
    batch, drawn = modules.batch, modules.drawn
    if not recorder.detailed or batch is None or not drawn or not torch.is_grad_enabled():
        return
    if not batch.is_floating_point() or batch.layout is not torch.strided or target.dim() == 0:
        return
    known = next((each for each in drawn if each.shape == batch.shape and each.is_floating_point()), None)
    if known is None or known.data_ptr() == batch.data_ptr():
        return
    mix = mix_of(known, batch)
    if mix is None:
        return
    others = [each for each in drawn if each is not known and each.dim() > 0]
    counts = [wrong_targets(mix, each, target) for each in others if len(each) == len(target) == len(batch)]
    wrong = [each for each in counts if each is not None]
    if wrong and all(wrong):  # of several targets in a batch it is one
        recorder.add(MixedApart(where(), recorder.log.updates, len(batch), min(wrong)))


def look_at_error(recorder: Recorder, modules: ModuleWatch, predictions: Tensor, targets: Tensor) -> None:
    """Look at a difference of predictions and targets as at what a loss of numbers gets."""
    real = not (predictions.is_complex() or targets.is_complex())
    if real and predictions.shape == targets.shape and targets.dim() and targets.layout is torch.strided:
        note_infinite(recorder, [targets])
        _look_at_range(recorder, DIFFERENCE, predictions, targets)
        _look_at_targets(recorder, modules, DIFFERENCE, predictions, targets)
        look_at_dependence(recorder, modules, predictions, targets)


def look_at_bootstrap(recorder: Recorder, one: Tensor, other: Tensor) -> None:
    """Note a difference of a model's output and of a target that is made of the same model's output and of rewards, with its graph.

    Where inputs are differentiated too it is the residual of an equation.
    """
    made = [is_bootstrapped(each) and has_constant_rows(each) for each in (one, other)]
    if made[0] == made[1]:  # both are, where two maps that add to their inputs are to agree
        return
    leaves = [leaves_of(each) for each in (one, other)]
    inputs = any(not isinstance(leaf, nn.Parameter) for each in leaves for leaf in each.values())
    if leaves[0].keys() & leaves[1].keys() and not inputs:
        recorder.add(TargetGradient(where(), recorder.log.updates, DIFFERENCE))


def _look_at_pairs(recorder: Recorder, modules: ModuleWatch, name: str, target: Tensor) -> None:
    """Note rows that come again with the targets of other rows."""
    model, passes, rows = modules.rows.in_graph
    if not rows or not torch.is_grad_enabled():
        return
    at = where()
    changed = modules.row_targets.changed(f"{at} {name}", model, passes, rows, target)
    if changed is not None:
        again, other = changed
        what = f"Of {again} rows that come again, {other} have the target that another row had before: inputs and targets are taken in orders of their own."
        fix = "inputs, targets = x[rows], y[rows]   # by the same rows; what is kept for later is kept by the row's number"
        recorder.add(Fault(at, recorder.log.updates, "mismatched_rows", what, fix, 2))


def _look_at_signs(recorder: Recorder, name: str, target: Tensor) -> None:
    """Note targets of pairs that are not 1 and -1."""
    looked = recorder.detailed and name in _SIGNED
    wrong = target.detach()[target.detach().abs() != 1] if looked else target[:0]
    if wrong.numel():
        fix = f"loss = F.{name}(..., 2 * same - 1)   # 1 and -1"
        recorder.add(
            OutsideDomain(where(), recorder.log.updates, name, float(wrong.reshape(-1)[0]), "1 and -1", fix)
        )


def _look_at_truths(recorder: Recorder, name: str, target: Tensor) -> None:
    """Note targets of a binary loss outside of 0 to 1, which torch does not refuse where it gets logits."""
    if not recorder.detailed or name != "binary_cross_entropy_with_logits" or not target.numel():
        return
    low, high = float(target.detach().min()), float(target.detach().max())
    if low < -_SLACK or high > 1 + _SLACK:
        value, fix = (
            low if low < -_SLACK else high,
            "loss = F.binary_cross_entropy_with_logits(scores, (labels > 0).float())",
        )
        recorder.add(OutsideDomain(where(), recorder.log.updates, name, value, "targets of 0 to 1", fix))


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


def _is_turned(values: Tensor) -> bool:
    """Return whether the first two axes, which are as long as each other, were exchanged."""
    if values.dim() < 2 or values.shape[0] != values.shape[1] or values.shape[0] < 2:
        return False
    return values.layout is torch.strided and values.stride(0) < values.stride(1)


def _lies_by_columns(values: Tensor) -> bool:
    """Return whether values are rows of a table whose columns lie one behind the other in memory, as those of pandas do."""
    whole = values._base
    if whole is None:  # it was made so, as an inverse of torch.linalg is; a transposition is a view
        return True
    if whole.dim() != 2:
        return False
    return whole.stride(0) < whole.stride(1) or whole.shape[1] > len(values)


def _look_at_targets(
    recorder: Recorder, modules: ModuleWatch, name: str, predictions: Tensor, targets: Tensor
) -> None:
    """Note targets of another scale than the predictions, and targets that carry the graph of a model's output."""
    looked = recorder.detailed and name in _DISTANCES and predictions.requires_grad
    if not looked or predictions.shape != targets.shape or not targets.numel():
        return
    update = recorder.log.updates
    if _is_turned(targets) and not _is_turned(predictions) and not _lies_by_columns(targets):
        batch = modules.batch
        if (
            modules.time_first is None
            and batch is not None
            and not batch.requires_grad
            and not _is_turned(batch)
        ):
            recorder.add(TransposedTargets(where(), update, list(targets.shape)))
    if targets.requires_grad:
        if is_bootstrapped(targets):
            recorder.add(TargetGradient(where(), update, name))
        return
    given, wanted = (float(each.detach().float().square().mean().sqrt()) for each in (predictions, targets))
    if math.isfinite(wanted) and wanted >= LARGE and wanted >= FAR * given:
        recorder.add(FarTargets(where(), update, name, given, wanted))


def simple_loss(recorder: Recorder, name: str, given: str, mean: bool) -> Loss:
    """Return the event of a call of which nothing but its name and what it was given is known."""
    grad = torch.is_grad_enabled()
    at, update = where(), recorder.log.updates
    return Loss(at, update, name, grad, given, mean, 0, 0, 0, None, False, {}, False, 0.0)


def _binary(recorder: Recorder, name: str, scores: Tensor, target: Tensor, options: dict[str, Any]) -> Loss:
    """Return a loss of numbers; where they are one yes or no for each row, they are counted as labels."""
    takes_scores = name == "binary_cross_entropy_with_logits"
    if takes_scores and recorder.detailed and scores.requires_grad:
        recorder.raw_scores.add(scores.shape[1:])
    made = maker_of(scores) if takes_scores else ""
    given = {"Relu": "rectified", "Tanh": "bounded"}.get(made, "")
    if takes_scores and squashed_by(scores.grad_fn):
        given = "probabilities"
    seen = simple_loss(recorder, name, given, options.get("reduction", "mean") == "mean")
    if given == "probabilities":
        seen = replace(seen, squashed_at=squashed_at(scores.grad_fn))
    if name == "kl_div" and recorder.detailed and float(scores.detach().amax()) > _SLACK:
        return replace(seen, given="raw scores")
    if name == "kl_div" and recorder.detailed and not options.get("log_target") and _are_logarithms(target):
        return replace(seen, given="logarithms of targets")
    rows = target.numel()
    if not name.startswith("binary") or not rows or rows != target.shape[0]:
        return seen
    positive, negative = int((target == 1).sum()), int((target == 0).sum())
    if positive + negative < rows:
        return seen
    weighted = any(options.get(weight) is not None for weight in ("weight", "pos_weight"))
    labels = {label: count for label, count in (("0", negative), ("1", positive)) if count}
    return replace(seen, counted=rows, labels=labels, weighted=weighted)


def _are_logarithms(target: Tensor) -> bool:
    """Return whether targets are log-probabilities: none is above 0, and the exponentials of each row come to 1."""
    if target.dim() < 2 or not target.is_floating_point() or not target.numel():
        return False
    rows = target.detach().float()
    return bool((rows <= 0).all()) and bool(((rows.exp().sum(-1) - 1).abs() < _SLACK).all())


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
        return simple_loss(recorder, name, kind_of_scores(scores, axis) if scores.numel() else "", mean)
    classes = scores.shape[axis]
    flat = target.detach().reshape(-1)
    wanted = flat.cpu().numpy()  # whose calls take a third of the time of torch's
    ignored = wanted == options.get("ignore_index", -100)
    counted = wanted[~ignored]
    outside = counted[(counted < 0) | (counted >= classes)]
    tokens = target.dim() > 1 or recorder.tokens.count == target.numel()
    labels: dict[str, int] = {}
    if classes <= MOST_CLASSES and not tokens and not outside.size and torch.is_grad_enabled():
        counts = np.bincount(counted, minlength=classes).tolist()
        labels = {str(label): count for label, count in enumerate(counts) if count}
    given = kind_of_scores(scores, axis) if recorder.close else ""
    if recorder.close and name == "nll_loss" and given in ("", "rectified") and _are_raw(scores, axis):
        given = "raw scores"
    return Loss(
        where(),
        recorder.log.updates,
        name,
        torch.is_grad_enabled(),
        given,
        mean,
        classes,
        counted.size,
        int(ignored.sum()),
        int(outside[0]) if outside.size else None,
        tokens,
        labels,
        options.get("weight") is not None,
        recorder.tokens.copies(flat, options.get("ignore_index", -100), classes)
        if recorder.detailed
        else -1.0,
        options.get("ignore_index", -100) == 0,
        recorder.tokens.places_ahead(target, options.get("ignore_index", -100)) if recorder.detailed else 0,
        squashed_at(scores.grad_fn) if given == "probabilities" else "",
    )
