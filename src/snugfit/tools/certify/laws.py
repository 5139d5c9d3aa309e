"""The laws on one device: accumulation, recompute and resume."""

from __future__ import annotations

import tempfile
from pathlib import Path

from torch import Tensor
from torch.utils.checkpoint import CheckpointError

from snugfit.core.batch import Batch
from snugfit.core.selection import check
from snugfit.core.technique import Stage, Technique
from snugfit.errors import PlanConflict, SettingError
from snugfit.results.verdicts import Law, Trial, Verdict
from snugfit.step.step import Step
from snugfit.techniques import discover
from snugfit.tools.certify import blame, compare
from snugfit.tools.certify.trial import Trials

Updated = tuple[dict[str, Tensor], dict[str, Tensor]]
"""Gradients and updated weights, by name."""
UNCUT = ", no padding cut"


def accumulation(tried: Trials) -> Law:
    """Several splits of a window give the gradient and the update of the whole."""
    whole = tried.step()
    group = whole.seams.batch(tried.windows[0].to(whole.device), whole.progress, whole.seed).group
    if whole.whole_windows:
        why = "the loss compares the rows of a window with each other, so that windows are not split"
        return Law("accumulation", Verdict.EXEMPT, None, tried.bound, reasons=(why,))
    try:
        reference = _updated(whole, tried.windows[0])
    except _NoUpdate as reason:
        return Law("accumulation", Verdict.EXEMPT, None, tried.bound, reasons=(str(reason),))
    trials: list[Trial] = []
    errors: dict[str, float] = {}
    least = max(group, 2 if whole.has_batch_norm else 1)
    for size in _sizes(tried.rows, least):
        own = _apart(_updated(tried.step(size), tried.windows[0]), reference, tried.noise)
        trials.append(Trial(f"micro-batches of {size}", *compare.worst_of(own)))
        errors = max(errors, own, key=lambda each: compare.worst_of(each)[0])
    if trials and (uncut := _uncut(tried, reference, _sizes(tried.rows, least)[0])) is not None:
        trials.append(uncut)
    error, worst = compare.worst_of(errors)
    if not trials:
        why = f"{tried.rows} rows in groups of {group} cannot be split"
        return Law("accumulation", Verdict.EXEMPT, None, tried.bound, reasons=(why,))
    if error <= tried.bound:
        return Law("accumulation", Verdict.HELD, error, tried.bound, worst, trials=tuple(trials))
    if trials[-1].what.endswith(UNCUT) and trials[-1].error <= tried.bound:
        why = "the model computes otherwise without padding. Set plan.cut_padding: false"
        return Law("accumulation", Verdict.BROKEN, error, tried.bound, worst, "", (why,), tuple(trials))
    reasons, module = blame.why_coupled(tried, whole)
    verdict = Verdict.EXEMPT if reasons else Verdict.BROKEN
    if not reasons:
        module, reasons = blame.where_split(tried, worst, group)
    return Law("accumulation", verdict, error, tried.bound, worst, module, reasons, tuple(trials))


def recompute(tried: Trials) -> Law:
    """Blocks that are computed again in backward give the gradient of those that are kept, dropout included."""
    own = tried.setup.techniques
    plain = tuple(each for each in own if Stage.RECOMPUTE not in each.card.stages)
    again = own if len(plain) < len(own) else (*own, _recomputing())
    try:
        check(again)
        recomputed = tried.step(tried.micro_batch, dropout=True, techniques=again)
    except (PlanConflict, SettingError) as refusal:
        return Law("recompute", Verdict.EXEMPT, None, tried.bound, reasons=(str(refusal),))
    try:
        reference = _updated(tried.step(tried.micro_batch, dropout=True, techniques=plain), tried.windows[0])
        errors = _apart(_updated(recomputed, tried.windows[0]), reference, tried.noise)
    except (SettingError, _NoUpdate) as refusal:  # the technique refuses what it cannot compute again
        return Law("recompute", Verdict.EXEMPT, None, tried.bound, reasons=(str(refusal),))
    except CheckpointError as mismatch:
        reason = f"torch found other tensors when it computed again: {str(mismatch).splitlines()[0]}"
        return Law("recompute", Verdict.BROKEN, None, tried.bound, reasons=(reason,))
    error, worst = compare.worst_of(errors)
    if error <= tried.bound:
        return Law("recompute", Verdict.HELD, error, tried.bound, worst)
    module = blame.where_recomputed(tried, plain, again) or blame.where_unseeded(tried) or blame.owner(worst)
    why = (
        "what is computed again in backward is not what was computed before: it depends on more than inputs, weights, buffers "
        "and torch's random numbers"
    )
    return Law(
        "recompute", Verdict.BROKEN, error, tried.bound, worst, module, blame.unseeded(tried) or (why,)
    )


def resume(tried: Trials) -> Law:
    """Check that a run that goes on from a checkpoint ends where the uninterrupted one ends."""
    middle = len(tried.windows) // 2
    with tempfile.TemporaryDirectory() as folder:
        unbroken = tried.training(Path(folder))
        for window in tried.windows[:middle]:
            unbroken.step(window)
        unbroken.saving.save()
        unbroken.saving.finish()
        resumed = tried.training(Path(folder))
        resumed.saving.load()
        apart = compare.differences(resumed.step.state_dict(), unbroken.step.state_dict())
        for window in tried.windows[middle:]:
            one, other = unbroken.step(window), resumed.step(window)
            apart = apart or compare.differences(other.loss, one.loss, "/loss")
        apart = {**compare.differences(resumed.step.state_dict(), unbroken.step.state_dict()), **apart}
        error, worst = compare.worst_weight(apart)
        if error <= tried.bit_bound:
            return Law("resume", Verdict.HELD, error, tried.bit_bound, worst)
        module = (
            blame.where_unseeded(tried)
            or blame.where_resumed(tried, middle, Path(folder))
            or blame.owner(worst)
        )
    why = f"{len(apart)} tensors and numbers of the state differ after {len(tried.windows) - middle} updates behind the checkpoint"
    return Law("resume", Verdict.BROKEN, error, tried.bit_bound, worst, module, (why, *blame.unseeded(tried)))


class _NoUpdate(Exception):
    """A window that was to be compared has changed nothing."""


def _uncut(tried: Trials, reference: Updated, size: int) -> Trial | None:
    """Return the same split without cutting padding; None where nothing is cut."""
    window = tried.windows[0]
    if not window.padded or not tried.setup.plan.cut_padding or min(window.lengths or ()) == window.padded:
        return None
    own = _apart(_updated(tried.step(size, cut_padding=False), window), reference, tried.noise)
    return Trial(f"micro-batches of {size}{UNCUT}", *compare.worst_of(own))


def _updated(step: Step, window: Batch) -> Updated:
    """Return gradients and weights after an update.

    Raises:
        _NoUpdate: the window made none, and two ways to do nothing would always agree.
    """
    result = step(window)
    if not result.applied:
        why = result.refusal or (
            "no label of it counts" if result.weight == 0 else "its loss or a gradient is not finite"
        )
        raise _NoUpdate(f"the first window makes no update: {why}")
    return compare.gradients(step), compare.weights(step)


def _apart(
    actual: Updated,
    reference: Updated,
    noise: float,
) -> dict[str, float]:
    """Return the errors of gradients and, where the gradient is more than rounding, of updated weights, by name."""
    moved = compare.without_noise(reference[1], reference[0], noise)
    weights = compare.relative_errors({name: actual[1][name] for name in moved}, moved)
    gradients = compare.relative_errors(actual[0], reference[0])
    return {name: max(weights.get(name, 0.0), gradients.get(name, 0.0)) for name in {**weights, **gradients}}


def _sizes(rows: int, least: int) -> list[int]:
    """Micro-batches to split by: the smallest, an uneven split, and halves."""
    wanted = {least, max(least, rows // 3), max(least, -(-rows // 2))}
    return sorted(size for size in wanted if size < rows)


def _recomputing() -> Technique:
    return next(each for each in discover().values() if Stage.RECOMPUTE in each.card.stages)()
