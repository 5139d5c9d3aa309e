"""The laws of techniques: splits, partners in any order, resume, skipped windows, placement, an oracle.

Each takes a problem and gives a verdict; Snugfit's own techniques are held to the same functions by
tests/laws.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from snugfit.core.batch import Batch
from snugfit.core.composition import Composition
from snugfit.core.losses import find_loss
from snugfit.core.technique import SEAM_NAMES, STAGED_SEAMS, Context, Family, Seams, Technique, as_settings
from snugfit.errors import SettingError
from snugfit.results.verdicts import Law, Trial, Verdict
from snugfit.step.step import Step, StepResult
from snugfit.tools.certify import compare
from snugfit.tools.certify.technique_problem import (
    TOTAL_UPDATES,
    Problem,
    evaluated_weights,
    gradients,
    make_step,
    traces,
    weights,
)
from snugfit.tools.certify.technique_windows import Window, poisoned, unlabelled

Techniques = tuple[Technique, ...]
SIZES = (1, 2, 4, 6)
"""Micro-batches that a window of seven rows is split by."""
RESUME_ROWS = (5, 5, 5, 5, 3)
ORACLE_ROWS = (7, 6, 7, 5)
COUNTED = {"/progress/windows", "/progress/skipped", "/progress/examples", "/inputs/copied", "/padding/cut"}
"""What a window that makes no update may change: counters, and what was found out about inputs and padding."""
_LEARNED_FLOOR = 0.01
"""What was learned of a weight is measured by this part of all that was learned at least."""


@dataclass
class _Comparison:
    """The comparisons of a law: the largest error and whose it is, and what did not hold at all."""

    name: str
    bound: float
    floor: float = compare.FLOOR
    error: float = 0.0
    worst: str = ""
    reasons: list[str] = field(default_factory=list)
    trials: list[Trial] = field(default_factory=list)

    def near(self, what: str, actual: Mapping[str, Tensor], reference: Mapping[str, Tensor]) -> None:
        """Note how far tensors are apart."""
        error, worst = compare.worst_of(compare.relative_errors(actual, reference, self.floor))
        if error > self.error:
            self.error, self.worst = error, f"{worst} ({what})"

    def numbers(self, what: str, actual: Mapping[str, float], reference: Mapping[str, float]) -> None:
        """Note how far numbers are apart, each by its own size."""
        for name in actual.keys() | reference.keys():
            one, other = actual.get(name, math.nan), reference.get(name, math.nan)
            apart = 0.0 if one == other else abs(one - other) / max(abs(other), math.ulp(1.0))
            error = math.inf if math.isnan(apart) else apart
            if error > self.error:
                self.error, self.worst = error, f"{name} ({what})"

    def same(self, what: str, actual: Any, reference: Any) -> None:
        """Note where two states are not the same bit for bit."""
        apart = compare.differences(actual, reference)
        if apart:
            error, worst = compare.worst_weight(apart)
            self.require(
                False,
                f"{what}: {len(apart)} tensors and numbers differ, such as {worst or next(iter(apart))}",
            )
            self.error = max(self.error, error or math.inf)
            self.worst = self.worst or f"{worst} ({what})"

    def require(self, holds: bool, reason: str) -> None:
        """Note a sentence that does not hold, once."""
        if not holds and reason not in self.reasons:
            self.reasons.append(reason)

    def trial(self, what: str) -> None:
        """Note the largest error so far as that of one way to compute the same."""
        self.trials.append(Trial(what, self.error, self.worst))

    def law(self) -> Law:
        """Return the verdict."""
        broken = self.error > self.bound or self.reasons
        verdict = Verdict.BROKEN if broken else Verdict.HELD
        return Law(
            self.name,
            verdict,
            self.error,
            self.bound,
            self.worst,
            "",
            tuple(self.reasons),
            tuple(self.trials),
        )


def _exempt(name: str, reason: str, bound: float) -> Law:
    return Law(name, Verdict.EXEMPT, None, bound, reasons=(reason,))


def card_faults(technique: Technique, seams: Seams) -> list[str]:
    """Return what a card says that its technique does not do, and the other way round; empty where they agree.

    Args:
        seams: those that it fills on some model.
    """
    card, faults = technique.card, []
    asked = {"exchange": technique.exchange, "picture": technique.picture}  # without a model
    filled = {*seams.filled(), *(name for name, ask in asked.items() if ask() is not None)}
    if unknown := {*card.seams} - {*SEAM_NAMES, *asked}:
        faults.append(f"card.seams: there is no seam {', '.join(sorted(unknown))}")
    if {*card.seams} != filled:
        faults.append(
            f"card.seams: names {', '.join(sorted(card.seams)) or 'none'}, and seams() fills {', '.join(sorted(filled)) or 'none'}"
        )
    for seam in filled & {*STAGED_SEAMS}:
        if card.stage(seam) is None:
            faults.append(f"card.stages: has no place in the chain of {seam}, whose order is by stages")
    for stage in card.stages:
        if stage.seam not in {*filled, "prepare"}:
            faults.append(f"card.stages: {stage.name} is a place of {stage.seam}, which it does not fill")
    if seams.updated is not None and seams.state is None:
        faults.append("seams: what follows the updates has a state to resume, and `state` is not given")
    return faults


def card(problem: Problem, technique: Technique) -> Law:
    """Check that the card names the seams that are filled, with a place in each chain."""
    model = technique.prepare(problem.model())
    context = Context(model, torch.device("cpu"), TOTAL_UPDATES, loss=find_loss(problem.loss))
    seams = technique.seams(context)
    faults = card_faults(technique, seams)
    return Law("card", Verdict.BROKEN if faults else Verdict.HELD, None, 0.0, reasons=tuple(faults))


def split(problem: Problem, techniques: Techniques, sizes: Sequence[int] = SIZES) -> Law:
    """Check that any split of a window gives the gradient, the update, the metrics and the evaluated weights of the whole."""
    coupling = [each.card.name for each in techniques if each.card.couples_examples]
    if coupling:
        reason = f"'{coupling[0]}' couples the examples of a micro-batch, as its card says"
        return _exempt("accumulation", reason, problem.tolerance)
    windows = problem.windows()
    comparison = _Comparison("accumulation", problem.tolerance, problem.floor)
    reference = trajectory(problem, techniques, windows, None)
    group = rows_together(problem, techniques, windows[0])
    for size in sizes:
        if size < group:
            comparison.require(
                _is_refused(problem, techniques, windows, size),
                f"micro-batches of {size} are taken, and {group} rows stay together",
            )
            continue
        for number, (one, other) in enumerate(
            zip(trajectory(problem, techniques, windows, size), reference, strict=True)
        ):
            one.compare(other, comparison, f"window {number}, micro-batches of {size}")
        comparison.trial(f"micro-batches of {size}")
    return comparison.law()


class Trace:
    """The remains of one window."""

    def __init__(self, step: Step, window: Window) -> None:
        result = step(window)
        self.applied, self.refusal = result.applied, result.refusal
        self.loss, self.weight = result.loss, result.weight
        self.metrics = {name: float(value) for name, value in result.metrics.items()}
        self.gradients = traces(step)
        self.weights = weights(step)
        self.evaluated = evaluated_weights(step)

    def compare(self, reference: Trace, comparison: _Comparison, where: str) -> None:
        """Note how far it is from what another way to compute it left."""
        comparison.require(
            self.applied and reference.applied, f"{where}: the window makes no update ({self.refusal})"
        )
        comparison.near(f"gradient, {where}", self.gradients, reference.gradients)
        comparison.near(f"weight, {where}", self.weights, reference.weights)
        comparison.near(f"evaluated weight, {where}", self.evaluated, reference.evaluated)
        comparison.numbers(where, self._numbers(), reference._numbers())

    def _numbers(self) -> dict[str, float]:
        return {"loss": self.loss, "weight of the window": self.weight, **self.metrics}


def trajectory(
    problem: Problem, techniques: Techniques, windows: Iterable[Window], micro_batch: int | None
) -> list[Trace]:
    """Return what each window leaves behind in a run from the beginning."""
    step = make_step(problem, techniques, micro_batch=micro_batch)
    assert problem.changes_weights or next(step.model.parameters()).dtype == problem.dtype
    return [Trace(step, window) for window in windows]


def rows_together(problem: Problem, techniques: Techniques, window: Window) -> int:
    """Return how many rows in a row no split of the window may take apart."""
    step = make_step(problem, techniques)
    return step.seams.batch(Batch.of(window), step.progress, step.seed).group


def _is_refused(problem: Problem, techniques: Techniques, windows: list[Window], size: int) -> bool:
    try:
        trajectory(problem, techniques, windows, size)
    except SettingError as error:
        return "which stay together" in str(error)
    return False


def resume(problem: Problem, techniques: Techniques, stops: Sequence[int] = (1, 2, 3, 4)) -> Law:
    """Check that a run that stops after any window and goes on in a new process is the uninterrupted one, bit for bit."""
    windows = problem.windows(torch.float32, RESUME_ROWS)
    windows[1] = poisoned(windows[1], math.nan) if problem.floats else unlabelled(windows[1])
    comparison = _Comparison("resume", 0.0)
    unbroken = _resumable(problem, techniques, model_seed=1)
    states, results = [], []
    for window in windows:
        results.append(_comparable(unbroken(window)))
        states.append(compare.copied(unbroken.state_dict()))
    for state in states:
        _require_savable(state, comparison)
    applied = [result["applied"] for result in results]
    comparison.require(
        applied == [True, False, True, True, True],
        f"windows make updates {applied}, and the second alone is not finite",
    )
    for stop in stops:
        # another initialisation, so that what is not restored shows
        resumed = _resumable(problem, techniques, model_seed=2)
        torch.default_generator.manual_seed(stop)
        resumed.load_state_dict(compare.copied(states[stop - 1]))
        comparison.same(f"loaded after {stop}", resumed.state_dict(), states[stop - 1])
        for place in range(stop, len(windows)):
            where = f"window {place}, stopped after {stop}"
            comparison.require(
                _comparable(resumed(windows[place])) == results[place], f"{where}: another result"
            )
            comparison.same(where, resumed.state_dict(), states[place])
        comparison.trial(f"stopped after {stop}")
    return comparison.law()


def _resumable(problem: Problem, techniques: Techniques, model_seed: int) -> Step:
    return make_step(
        problem, techniques, micro_batch=3, dtype=torch.float32, dropout=0.2, model_seed=model_seed
    )


def _comparable(result: StepResult) -> dict[str, Any]:
    """Return what a step returned, in a form in which NaN equals NaN."""
    return {
        "loss": repr(result.loss),
        "weight": result.weight,
        "applied": result.applied,
        "learning_rate": result.learning_rate,
        "metrics": {name: float(value) for name, value in result.metrics.items()},
    }


def _require_savable(state: Any, comparison: _Comparison, path: str = "") -> None:
    """Note what a checkpoint of tensors and JSON cannot hold."""
    if isinstance(state, Mapping):
        for key, value in state.items():
            _require_savable(value, comparison, f"{path}/{key}")
    elif isinstance(state, (list, tuple)):
        for place, value in enumerate(state):
            _require_savable(value, comparison, f"{path}/{place}")
    elif not (state is None or isinstance(state, (Tensor, bool, int, float, str))):
        comparison.require(False, f"{path}: a checkpoint cannot hold a {type(state).__name__}")


BAD: Mapping[str, Callable[[Window], Window]] = {
    "nan": lambda window: poisoned(window, math.nan),
    "infinite": lambda window: poisoned(window, math.inf),
    "unlabelled": unlabelled,
}
"""Windows that can make no update."""


def skip(problem: Problem, techniques: Techniques, micro_batches: Sequence[int | None] = (None, 4)) -> Law:
    """Check that a window that is not finite, or has no label that counts, changes no weight, buffer, moment, average or schedule."""
    comparison = _Comparison("skip", 0.0)
    for micro_batch in micro_batches:
        _skip(problem, techniques, micro_batch, comparison)
        comparison.trial("the window whole" if micro_batch is None else f"micro-batches of {micro_batch}")
    return comparison.law()


def _skip(problem: Problem, techniques: Techniques, micro_batch: int | None, comparison: _Comparison) -> None:
    first, second, third = problem.windows()
    # token ids are always finite
    bad = [BAD[name](second) for name in (BAD if problem.floats else ["unlabelled"] * 3)]
    skipping = make_step(problem, techniques, micro_batch=micro_batch)
    never = make_step(problem, techniques, micro_batch=micro_batch)
    may_draw = any({"batch", "adjust"} & {*technique.card.seams} for technique in techniques)
    _skipped(skipping, bad[0], comparison)
    for window, bad_window in zip((first, third), bad[1:], strict=True):
        if may_draw:  # and draws are of the window's number
            never.progress.windows = skipping.progress.windows
        _share_scale(skipping, never)  # which a skipped window may lower, and another one rounds otherwise
        one, other = skipping(window), never(window)
        comparison.require(one.applied and other.applied, "a window after a skipped one makes no update")
        comparison.require(
            one.learning_rate == other.learning_rate, "the schedule has moved on with a skipped window"
        )
        _skipped(skipping, bad_window, comparison)
    moved = changed(never.state_dict()["optimizer"], skipping.state_dict()["optimizer"])
    comparison.require(
        not moved, f"the optimizer is another one after skipped windows: {', '.join(sorted(moved)[:3])}"
    )
    comparison.same("weights after skipped windows", weights(skipping), weights(never))
    comparison.same(
        "evaluated weights after skipped windows", evaluated_weights(skipping), evaluated_weights(never)
    )
    comparison.require(
        never.progress.updates == skipping.progress.updates == 2, "a skipped window counts as an update"
    )
    comparison.require(skipping.progress.skipped == 3, "a skipped window is not counted as one")


def _share_scale(step: Step, other: Step) -> None:
    """Have another step scale its loss as this one does, where that is done."""
    if step.seams.scale is not None and other.seams.scale is not None:
        other.seams.scale.load_state_dict(step.seams.scale.state_dict())


def _skipped(step: Step, window: Window, comparison: _Comparison) -> None:
    before = compare.copied(step.state_dict())
    result = step(window)
    comparison.require(not result.applied, "a window that is not finite, or without labels, makes an update")
    comparison.require(not result.metrics, "a skipped window has metrics of techniques")
    comparison.require(result.weight > 0 or result.loss == 0, "a window without labels has a loss")
    moved = changed(before, step.state_dict())
    # an empty window says nothing about the scale of the loss
    moved = (besides_scale(step.seams, moved) if result.weight > 0 else moved) - COUNTED
    comparison.require(not moved, f"a skipped window changes {', '.join(sorted(moved)[:3])}")
    comparison.require(not gradients(step), "a skipped window leaves gradients behind")


def changed(before: object, after: object) -> set[str]:
    """Paths at which two states differ; the rate and the momentum of the next update may already be set."""
    return {
        path
        for path in compare.differences(before, after)
        if not path.endswith(("/lr", "/momentum", "/betas/0"))
    }


def besides_scale(seams: Composition, paths: set[str]) -> set[str]:
    """Return the paths that are not of the loss scale, which alone may change when a window is not finite."""
    names = [name for name, state in seams.states.items() if state is seams.scale]
    return {path for path in paths if not any(path.startswith(f"/techniques/{name}/") for name in names)}


_BAD_PLACE = 1


def pair(problem: Problem, techniques: Techniques) -> Law:
    """Check that techniques keep the laws together.

    Windows whole are compared with split ones with the list turned round, a window in between that is not
    finite, and the split run stopped behind that window and gone on with.
    """
    comparison = _Comparison("order", problem.tolerance, problem.floor)
    first, second, third = problem.windows()
    windows = [first, poisoned(second, math.nan), second, third]
    whole = make_step(problem, techniques)
    split_step = make_step(problem, techniques[::-1], micro_batch=3)
    couples_examples = any(each.card.couples_examples for each in techniques)
    states: list[Any] = []
    for number, window in enumerate(windows):
        before = compare.copied(split_step.state_dict())
        one, other = whole(window), split_step(window)
        states.append(compare.copied(split_step.state_dict()))
        comparison.require(
            one.applied == other.applied == (number != _BAD_PLACE),
            f"window {number}: its update is not as its numbers say",
        )
        if number == _BAD_PLACE:
            moved = besides_scale(split_step.seams, changed(before, states[-1])) - COUNTED
            comparison.require(not moved, f"a skipped window changes {', '.join(sorted(moved)[:3])}")
        elif not couples_examples:
            where = f"window {number}"
            comparison.numbers(where, {"loss": other.loss}, {"loss": one.loss})
            comparison.near(f"gradient, {where}", traces(split_step), traces(whole))
            comparison.near(f"weight, {where}", weights(split_step), weights(whole))
            comparison.near(
                f"evaluated weight, {where}", evaluated_weights(split_step), evaluated_weights(whole)
            )
    resumed = make_step(problem, techniques, micro_batch=3, model_seed=2)
    resumed.load_state_dict(states[_BAD_PLACE])
    for number in range(_BAD_PLACE + 1, len(windows)):
        resumed(windows[number])
        comparison.same(f"window {number} after a stop", resumed.state_dict(), states[number])
    return comparison.law()


def placement(problem: Problem, technique: Technique) -> Law:
    """See that with a placement technique and without it, in micro-batches, the updates are the same."""
    if technique.card.family is not Family.PLACEMENT:
        reason = f"its family is {technique.card.family}, which may change the update"
        return _exempt("placement", reason, problem.tolerance)
    comparison = _Comparison("placement", problem.tolerance, problem.floor)
    windows = problem.windows()
    plain = make_step(problem, ())
    for micro_batch in (None, 3):
        plain, changing = make_step(problem, ()), make_step(problem, (technique,), micro_batch=micro_batch)
        for number, window in enumerate(windows):
            reference, result = plain(window), changing(window)
            where = f"window {number}"
            comparison.numbers(where, {"loss": result.loss}, {"loss": reference.loss})
            if not changing.seams.irrevocable:
                comparison.near(f"gradient, {where}", gradients(changing), gradients(plain))
            comparison.near(f"weight, {where}", weights(changing), weights(plain))
        comparison.trial("the window whole" if micro_batch is None else f"micro-batches of {micro_batch}")
    return comparison.law()


Oracle = Callable[[nn.Module, list[Window], dict[str, Any], int], Any]
"""A slow, obvious loop: from a model, windows, settings and the number of updates of the run to the loss of each window. It trains the model
in place; or returns an object with `losses`, `weights` and `evaluated`, the last two by the parameters' names."""


def as_oracle(problem: Problem, technique: Technique, train: Oracle, momentum: float = 0.0) -> Law:
    """Check that a step with the technique trains as its oracle does, whole and split, from the same weights on the same windows."""
    windows = problem.windows(rows=ORACLE_ROWS)
    start = {name: each.detach() for name, each in problem.model().named_parameters()}
    comparison = _Comparison("oracle", problem.tolerance, _LEARNED_FLOOR)
    for micro_batch in (None, 3):
        step = make_step(problem, (technique,), micro_batch=micro_batch, momentum=momentum)
        losses = [step(window).loss for window in windows]
        model = problem.model()
        returned = train(model, windows, as_settings(technique), TOTAL_UPDATES)
        trained = {name: each.detach() for name, each in model.named_parameters()}
        oracle_losses: list[Any] = list(returned.losses if hasattr(returned, "losses") else returned)
        learned_by = getattr(returned, "weights", trained)
        comparison.require(
            len(oracle_losses) == len(losses),
            f"the oracle gives {len(oracle_losses)} losses for {len(losses)} windows",
        )
        for place, (one, other) in enumerate(zip(losses, oracle_losses, strict=False)):
            comparison.numbers(f"window {place}", {"loss": one}, {"loss": float(other)})
        for what, own, its in (
            ("what was learned", delivered(step), learned_by),
            ("what is evaluated", delivered_evaluated(step), getattr(returned, "evaluated", learned_by)),
        ):
            comparison.near(what, *(_learned(named, start) for named in (own, its)))
        comparison.require(
            any(bool(each.norm() > 1e-3) for each in _learned(learned_by, start).values()),
            "nothing was learned",
        )
        comparison.trial("the window whole" if micro_batch is None else f"micro-batches of {micro_batch}")
    return comparison.law()


def delivered(step: Step) -> dict[str, Tensor]:
    """Return the weights of the model as it is exported, or as it stands."""
    if step.seams.export is None:
        return weights(step)
    return {name: each.detach() for name, each in step.seams.export(step.model).named_parameters()}


def delivered_evaluated(step: Step) -> dict[str, Tensor]:
    """Return the same of the weights that are evaluated."""
    with step.seams.weights(step.model):
        return delivered(step)


def _learned(named: Mapping[str, Tensor], start: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return how far weights are from their start; those that a technique added, or gave another shape, from 0."""
    return {
        name: tensor - start[name] if name in start and start[name].shape == tensor.shape else tensor
        for name, tensor in named.items()
    }
