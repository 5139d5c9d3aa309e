"""Pitfalls of a model and its optimizer, seen in a few updates of a copy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from snugfit.core.batch import Batch
from snugfit.core.losses import logits_of
from snugfit.core.random import preserved_randomness
from snugfit.doctor.check_layers import biases_before_norms, layers_seen, unscaled_inputs
from snugfit.doctor.check_optimizer import late_holes, optimizer_groups
from snugfit.doctor.check_speed import speed_faults, speed_seen
from snugfit.doctor.findings import Certainty, Finding
from snugfit.doctor.subject import Subject, class_labels, listed
from snugfit.errors import UserError
from snugfit.step.step import Step
from snugfit.system.rounding import in_float64

SMALL_BATCH = 8
"""Rows under which batch norm's statistics are noise. Wu and He 2018, arXiv:1803.08494, figure 1."""


def examine_model(subject: Subject) -> list[Finding]:
    """Return all that this file knows. The subject's model and the global random state stay as they are.

    Raises:
        UserError: the model does not take the batches.
    """
    step = subject.make_step()
    with preserved_randomness(step.device):
        with layers_seen(step.model) as seen:
            outputs, calls = _forward(step, subject.windows[0])
        findings = [
            *reused_modules(step.model, calls),
            *mixed_modes(subject.model),
            *batch_norms(subject, step.model),
            *unscaled_inputs(seen),
            *biases_before_norms(seen),
            *normalised_outputs(subject, outputs),
            *strange_labels(subject, outputs),
            *optimizer_groups(step),
            *late_holes(step),
        ]
        if not any(each.pitfall == "unknown_label" for each in findings):
            with speed_seen(step.model) as speed:
                findings += gradients(subject, step)
            findings += speed_faults(speed, step.device)
    return findings


def _forward(step: Step, window: Batch) -> tuple[Any, Counter[nn.Module]]:
    """Return the outputs of a window, and how often each module was called for them."""
    calls: Counter[nn.Module] = Counter()

    def count(module: nn.Module, _args: Any, _output: Any) -> None:
        calls[module] += 1

    hooks = [module.register_forward_hook(count) for module in step.model.modules()]
    batch = window.to(step.device)
    try:
        with torch.no_grad(), step.seams.forward(batch):
            return step.forward(batch), calls
    finally:
        for hook in hooks:
            hook.remove()


def reused_modules(model: nn.Module, calls: Counter[nn.Module]) -> Iterator[Finding]:
    """Modules without weights that one forward calls several times, or that have several names."""
    names: dict[nn.Module, list[str]] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        names.setdefault(module, []).append(name)
    for module, count in calls.items():
        leaf = next(module.children(), None) is None and next(module.parameters(), None) is None
        if not leaf or count < 2 or isinstance(module, nn.Identity):
            continue
        kind = type(module).__name__
        yield Finding(
            "shared_module",
            Certainty.WORTH_A_LOOK,
            f"one {kind} is called {count} times in a forward: hooks, quantisation and in-place changes cannot tell its places apart",
            where=names[module][0],
            evidence=(f"{count} calls", f"names: {', '.join(names[module])}"),
            fix=f"self.first, self.second = nn.{kind}(), nn.{kind}()  # one for each place",
        )


def mixed_modes(model: nn.Module) -> Iterator[Finding]:
    """Parts in evaluation mode within a model in training mode: a step puts all of it in training mode."""
    asleep = [
        name
        for name, module in model.named_modules()
        if not module.training and isinstance(module, (_BatchNorm, _DropoutNd))
    ]
    if asleep and model.training:
        yield Finding(
            "train_mode",
            Certainty.LIKELY,
            f"{len(asleep)} modules came in evaluation mode within a model in training mode; they will train",
            where=asleep[0],
            evidence=(listed(asleep),),
            fix="step = sf.Step(model, …)\nstep.model.backbone.eval()  # after the step was made, and frozen",
        )


def last_softmax(model: nn.Module) -> Iterator[Finding]:
    """Detect a softmax as the last module, where there is no batch to see the outputs of."""
    parts = [(name, each) for name, each in model.named_modules() if next(each.children(), None) is None]
    if parts and isinstance(parts[-1][1], (nn.Softmax, nn.Softmax2d)):
        yield Finding(
            "softmax_twice",
            Certainty.WORTH_A_LOOK,
            "the last module is a softmax; cross-entropy takes one of its own",
            where=parts[-1][0],
            fix="return logits  # and take the softmax where you predict",
        )


def batch_norms(subject: Subject, model: nn.Module) -> Iterator[Finding]:
    """Batch norm in tiny micro-batches, or under accumulation."""
    norms = [name for name, each in model.named_modules() if isinstance(each, _BatchNorm) and each.training]
    size = subject.micro_batch
    if not norms or size is None:
        return
    evidence = (
        f"{len(norms)} modules: {listed(norms)}",
        f"{size} rows in a micro-batch, {subject.window_rows} in a window",
    )
    if size < SMALL_BATCH:
        yield Finding(
            "batch_norm",
            Certainty.LIKELY,
            f"batch norm takes its statistics from {size} rows; below {SMALL_BATCH} they are mostly noise",
            where=norms[0],
            evidence=evidence,
            fix=f"plan: {{micro_batch: {min(32, subject.window_rows)}}}   # or group norm in the model",
        )
    elif size < subject.window_rows:
        yield Finding(
            "batch_norm",
            Certainty.WORTH_A_LOOK,
            f"windows of {subject.window_rows} rows are accumulated from {size}, and batch norm sees the {size}: its size is part "
            "of what is learned",
            where=norms[0],
            evidence=evidence,
        )


def normalised_outputs(subject: Subject, outputs: Any) -> Iterator[Finding]:
    """Probabilities where cross-entropy expects scores."""
    scores = _scores(outputs)
    if not _is_cross_entropy(subject) or scores is None or scores.shape[-1] < 2 or len(scores) < 2:
        return
    sums = in_float64(scores).sum(-1)
    if bool((scores >= 0).all() and ((sums - 1).abs() < 1e-3).all()):
        yield Finding(
            "softmax_twice",
            Certainty.CERTAIN,
            "the model gives probabilities, and cross-entropy takes a softmax of its own: gradients vanish where it is sure",
            evidence=(
                f"all {sums.numel():,} rows of scores are positive and sum to 1 (largest distance {(sums - 1).abs().max():.1e})",
            ),
            fix="return logits  # without softmax; take the softmax where you predict",
        )


def strange_labels(subject: Subject, outputs: Any) -> Iterator[Finding]:
    """Detect labels for which the model has no score."""
    scores = _scores(outputs)
    labels = [each for each in map(class_labels, subject.windows) if each is not None and each.numel()]
    if not _is_cross_entropy(subject) or scores is None or not labels:
        return
    low, high = min(int(each.min()) for each in labels), max(int(each.max()) for each in labels)
    if low < 0 or high >= scores.shape[-1]:
        yield Finding(
            "unknown_label",
            Certainty.CERTAIN,
            f"labels go from {low} to {high}, and the model gives {scores.shape[-1]} scores, for 0 to {scores.shape[-1] - 1}",
            evidence=(f"labels of the first window: {sorted(set(labels[0].tolist()))[:10]}",),
            fix=f"a last layer of {high + 1} outputs, or labels counted from 0; -100 is ignored",
        )


def gradients(subject: Subject, step: Step) -> Iterator[Finding]:
    """Detect parameters that train and get no gradient or one of zeros, and frozen ones that move, over a few updates."""
    frozen = {
        name: each.detach().clone() for name, each in step.model.named_parameters() if not each.requires_grad
    }
    with_gradient: Counter[str] = Counter()
    alive: Counter[str] = Counter()
    trained: set[str] = set()
    for window in subject.windows:
        with step.computed(window.to(step.device)):
            for name, each in step.model.named_parameters():
                if each.requires_grad:
                    trained.add(name)
                    with_gradient[name] += each.grad is not None
                    alive[name] += each.grad is not None and bool(each.grad.any())
        step(window)
    if not step.seams.irrevocable:  # whose gradients are gone with the backward
        yield from _without_gradient(step.model, sorted(trained), with_gradient, alive, len(subject.windows))
    moved = [
        name
        for name, each in step.model.named_parameters()
        if name in frozen and not each.requires_grad and not torch.equal(each, frozen[name])
    ]
    if moved:
        yield Finding(
            "frozen_moves",
            Certainty.CERTAIN,
            f"{len(moved)} parameters do not require a gradient and have changed after {len(subject.windows)} updates",
            where=moved[0],
            evidence=(listed(moved),),
            fix="a forward that writes to a parameter: make it a buffer, or leave it alone",
        )


def _without_gradient(
    model: nn.Module, trained: Sequence[str], with_gradient: Counter[str], alive: Counter[str], windows: int
) -> Iterator[Finding]:
    never = [name for name in trained if not with_gradient[name]]
    # rows of a table that no example asks for have zeros by right
    tables = {f"{name}.weight" for name, each in model.named_modules() if isinstance(each, nn.Embedding)}
    zeros = [name for name in trained if with_gradient[name] and not alive[name] and name not in tables]
    for names, what in ((never, "get no gradient"), (zeros, "get a gradient of zeros alone")):
        if names:
            yield Finding(
                "no_gradient",
                Certainty.LIKELY,
                f"{len(names)} of {len(trained)} parameters that train {what} in {windows} windows: they never move",
                where=names[0],
                evidence=(listed(names),),
                fix="use them in the forward (no detach(), no no_grad()), or freeze them: requires_grad_(False)",
            )


def _is_cross_entropy(subject: Subject) -> bool:
    return subject.loss in ("cross_entropy", "causal_lm") or isinstance(subject.loss, nn.CrossEntropyLoss)


def _scores(outputs: Any) -> Tensor | None:
    """Return the logits; None where there are none, or where a technique never has them whole."""
    try:
        scores = logits_of(outputs)
        return scores if scores.is_floating_point() and scores.ndim >= 2 else None
    except UserError:
        return None
