"""The watch over a run: the best evaluation, no more improvement, and numbers that are not finite."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from snugfit.core.composition import RAW
from snugfit.core.job import Job, StopWhen
from snugfit.errors import SettingError
from snugfit.system.user_objects import describe

Standing = tuple[int | None, dict[str, float], str]


@dataclass
class Watch:
    """The evaluations so far, the best of them, and the windows that failed; part of every checkpoint.

    Evaluations of a technique's averaged weights and of raw ones are not compared: when the weights change their kind, best
    and patience begin anew. `reference` is the value that the next improvement is measured from, `without_improvement`
    counts evaluations since. `owed` is the best evaluation whose weights the disk did not take, and why. `banned` are the windows (counted from 1) because of which the run went back, and why; `refused_in_a_row` counts
    windows that were not finite since the last that was.
    """

    best_update: int | None = None
    best_metrics: dict[str, float] = field(default_factory=dict)
    best_weights: str = RAW
    reference: float = math.nan
    without_improvement: int = 0
    history: list[dict[str, Any]] = field(default_factory=list)
    banned: dict[int, str] = field(default_factory=dict)
    refused_in_a_row: int = 0
    owed: dict[str, Any] | None = None

    @property
    def standing(self) -> Standing:
        """The evaluation whose weights are in `best/`: its update, metrics and kind of weights."""
        return self.best_update, self.best_metrics, self.best_weights

    def stand_by(self, standing: Standing) -> None:
        """Hold that evaluation for the best, after the last one was or was not written to `best/`."""
        self.best_update, self.best_metrics, self.best_weights = standing
        self.history[-1]["best"] = self.history[-1]["update"] == self.best_update

    def observe(
        self,
        update: int,
        metrics: Mapping[str, float],
        monitor: tuple[str, bool],
        *,
        epoch: float = 0.0,
        weights: str = RAW,
        counts: bool = True,
        min_delta: float = 0.0,
    ) -> bool:
        """Take in an evaluation; whether it is the best so far: of equal ones, that with the lower loss. NaN is never better.

        Args:
            weights: the name of those that were scored.
            counts: whether patience is lost where it brings no improvement; not before the average that is waited for.
            min_delta: an improvement is more than this better than the one before.
        """
        name, higher = monitor
        value = metrics[name]
        if weights != self.best_weights:
            self.best_update, self.best_metrics, self.best_weights = None, {}, weights
            self.reference = math.nan
        first = self.best_update is None  # something must be saved, whatever it says
        best = first or self._is_better(metrics, name, higher)
        if best:
            self.best_update, self.best_metrics = update, dict(metrics)
        if first or _gain(value, self.reference, higher) > min_delta:
            self.reference, self.without_improvement = value, 0
        elif counts:
            self.without_improvement += 1
        self.history.append(
            {"update": update, "epoch": epoch, "metrics": dict(metrics), "weights": weights, "best": best}
        )
        return best

    def _is_better(self, metrics: Mapping[str, float], name: str, higher: bool) -> bool:
        """Return whether an evaluation is better than the best; equal scores are parted by their losses.

        Scores of few rows are often equal, and the loss then tells weights apart that the score cannot.
        """
        value, before = metrics[name], self.best_metrics[name]
        if value != before:
            return _gain(value, before, higher) > 0
        return _loss(metrics) < _loss(self.best_metrics)

    def leaders(self, monitor: tuple[str, bool], count: int) -> set[int]:
        """Return the updates of the `count` best evaluations of the kind of weights that the last one scored; of equal ones those with the lower loss, then the earlier."""
        name, higher = monitor
        sign = -1 if higher else 1
        ranked = sorted(
            (
                math.isnan(value),
                0.0 if math.isnan(value) else sign * value,
                _loss(each["metrics"]),
                each["update"],
            )
            for each in self.history
            if each["weights"] == self.best_weights
            for value in (each["metrics"][name],)
        )
        return {update for *_, update in ranked[:count]}

    def exhausted(self, job: Job) -> str | None:
        """Return why the run should stop early, or None.

        Raises:
            SettingError: `stop_when` failed, or returned no text.
        """
        reason = None
        rule = job.early_stopping
        if rule is None:
            return None
        if rule.patience is not None and self.without_improvement >= rule.patience:
            more = f" by more than {rule.min_delta:g}" if rule.min_delta else ""
            reason = (
                f"{job.evaluate.best_metric} has not improved{more} for {self.without_improvement} evaluations; best at update "
                f"{self.best_update}"
            )
        elif callable(rule.stop_when) and self.history:
            reason = self._asked(rule.stop_when)
        return None if reason is None else f"early stopping: {reason}"

    def _asked(self, stop_when: StopWhen) -> str | None:
        try:
            reason = stop_when(copy.deepcopy(self.history))
        except Exception as error:
            raise SettingError(
                "early_stopping.stop_when", f"failed: {describe(error)}", "Correct the function."
            ) from error
        if reason is not None and (not isinstance(reason, str) or not reason.strip()):
            raise SettingError(
                "early_stopping.stop_when",
                f"returned {reason!r}",
                "Return the reason to stop as text, or None to go on.",
            )
        return reason

    def state_dict(self) -> dict[str, Any]:
        return asdict(self)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        for name, value in state.items():
            setattr(self, name, value)


def _loss(metrics: Mapping[str, float]) -> float:
    """Return the loss of an evaluation, as one to compare: infinite where it is not a number or was not measured."""
    loss = metrics.get("loss", math.inf)
    return math.inf if math.isnan(loss) else loss


def _gain(value: float, before: float, higher: bool) -> float:
    """Return how much better the value is; infinitely, if only the one before is not a number."""
    if math.isnan(before) and not math.isnan(value):
        return math.inf
    return value - before if higher else before - value
