"""The trials of a search in a SQLite file, drawn and pruned by Optuna; the one place that knows it.

Optuna keeps trials, but not the state of what draws them. Here each draw is a pure function of the seed, the trial's number and the
trials before it, so a search that goes on draws what it would have drawn. A trial is written whole, with all its values.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Sequence
from contextlib import AbstractContextManager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from snugfit.core.random import derive_seed
from snugfit.errors import MissingExtra, SettingError, nearest
from snugfit.system.messages import loggers_above
from snugfit.tools.tune.result import Choices, Space, State, Trial, combinations

FILE = "study.db"
PRUNERS = ("median", "hyperband", "none")
DRAWS = 20
"""Draws before one that was tried already is replaced by one that was not."""

_FIRST_TRIALS, _CANDIDATES = 10, 8
"""Trials before TPE begins to learn from them, and independent draws of which such a trial is one."""

_REASON, _RUN, _SECONDS = "reason", "run_dir", "seconds"


def check_installed() -> None:
    """Refuse a search before the work that it would be of.

    Raises:
        MissingExtra: Optuna is not installed.
    """
    if find_spec("optuna") is None:
        raise MissingExtra("optuna", "tune")


def check_pruner(name: str) -> None:
    """Check the name of a pruner.

    Raises:
        SettingError: there is no such pruner.
    """
    if name not in PRUNERS:
        raise SettingError("pruner", f"there is no '{name}'", nearest(name, PRUNERS))


class Study:
    """The trials of one search, in a folder.

    Args:
        seed: of the draws.
        higher: whether a higher value is better.
        pruner: what tells which trials are not worth their end: one of `PRUNERS`.
    Raises:
        MissingExtra: Optuna is not installed.
    """

    def __init__(self, folder: Path, space: Space, *, seed: int, higher: bool, pruner: str) -> None:
        check_installed()
        import optuna

        self._space, self._seed, self._higher, self._pruner = space, seed, higher, pruner
        with _quiet():
            self._storage = optuna.storages.RDBStorage(f"sqlite:///{folder / FILE}")
            self._study = optuna.create_study(
                storage=self._storage, study_name="tune", direction=_direction(higher), load_if_exists=True
            )

    def close(self) -> None:
        """Close the file."""
        self._storage.remove_session()
        self._storage.engine.dispose()

    def trials(self) -> tuple[Trial, ...]:
        """Return all trials that have ended, in order."""
        return tuple(self._trial(each) for each in self._study.trials if each.state.is_finished())

    def next(self) -> Trial:
        """Return the trial that was begun and has not ended, or a new one; what is reported from now on is of it."""
        import optuna

        known = self._study.trials
        # a new one for every trial: hyperband's would remember what only this process has seen
        self._study.pruner = _made(self._pruner)
        if not known or known[-1].state.is_finished():
            distributions = distributions_of(self._space)
            drawn = draw(self._space, known, seed=self._seed, higher=self._higher)
            begun = optuna.trial.create_trial(
                state=optuna.trial.TrialState.RUNNING, params=drawn, distributions=distributions
            )
            self._study.add_trial(begun)
            known = self._study.trials
        self._reported = set(known[-1].intermediate_values)
        # Optuna makes these itself, and has no door to one that another process began
        self._begun = optuna.trial.Trial(self._study, known[-1]._trial_id)
        return self._trial(known[-1])

    def report(self, evaluation: int, value: float) -> bool:
        """Keep a value of the trial; whether it is not worth its end.

        Args:
            evaluation: counts from 1; one that is reported again changes nothing.
        """
        if evaluation not in self._reported:
            self._begun.report(value, evaluation)
            self._reported.add(evaluation)
        return bool(self._begun.should_prune())

    def tell_to_stop(self, reason: str) -> None:
        """Keep that the trial is pruned, before its run has ended."""
        self._begun.set_user_attr(_REASON, reason)

    def end(
        self,
        *,
        value: float | None = None,
        reason: str | None = None,
        run_dir: str | None = None,
        seconds: float | None = None,
    ) -> None:
        """Say what became of the trial.

        Args:
            value: of one that was trained to its end; without it, it is pruned if it was told to stop, and failed otherwise.
            reason: why it failed.
        """
        from optuna.trial import TrialState

        pruned = _REASON in self._begun.user_attrs
        attributes = {_REASON: None if pruned else reason, _RUN: run_dir, _SECONDS: seconds}
        for key, each in attributes.items():
            if each is not None:
                self._begun.set_user_attr(key, each)
        state = TrialState.PRUNED if pruned else TrialState.FAIL if value is None else TrialState.COMPLETE
        with _quiet():
            self._study.tell(self._begun, value if state is TrialState.COMPLETE else None, state=state)

    def _trial(self, stored: Any) -> Trial:
        states: dict[str, State] = {"COMPLETE": "finished", "PRUNED": "pruned", "FAIL": "failed"}
        state = states.get(stored.state.name, "begun")
        evaluations = tuple(value for _, value in sorted(stored.intermediate_values.items()))
        numbers = [value for value in evaluations if math.isfinite(value)]
        best = (max if self._higher else min)(numbers, default=None)
        return Trial(
            stored.number + 1,
            state,
            {name: self._value(name, value) for name, value in stored.params.items()},
            stored.value if state == "finished" else best,
            evaluations,
            stored.user_attrs.get(_REASON),
            stored.user_attrs.get(_RUN),
            stored.user_attrs.get(_SECONDS),
        )

    def _value(self, name: str, drawn: Any) -> Any:
        return json.loads(drawn) if isinstance(self._space[name], Choices) else drawn


def draw(space: Space, before: Sequence[Any], *, seed: int, higher: bool) -> dict[str, Any]:
    """Return the values of the trial that follows those `before` it, by TPE: a pure function of its arguments and of Optuna's version.

    No combination is drawn twice as long as there are others. Of the first trials, of which nothing can be learned yet, each is the one of a
    few draws that is farthest from those before it: independent draws often come close to one another, and leave the rest of a range out.

    Args:
        before: all trials, as Optuna keeps them.
    Source: Bergstra et al. 2011, "Algorithms for Hyper-Parameter Optimization"; Mitchell 1991, "Spectrally optimal sampling for
    distribution ray tracing", for the first ones.
    """
    import optuna

    distributions = distributions_of(space)
    sampler = optuna.samplers.TPESampler(
        n_startup_trials=_FIRST_TRIALS, seed=derive_seed(seed, "trial", len(before)) % 2**32
    )
    with _quiet():
        draft = optuna.create_study(sampler=sampler, direction=_direction(higher))
        draft.add_trials(before)
        tried = {_key(each.params) for each in before}
        if 0 < len(before) < _FIRST_TRIALS:
            drawn = [draft.ask(distributions).params for _ in range(_CANDIDATES)]
            farthest: dict[str, Any] = max(
                drawn, key=lambda each: min(_distance(space, each, other.params) for other in before)
            )
            if _key(farthest) not in tried:
                return farthest
        for _ in range(DRAWS):
            params: dict[str, Any] = draft.ask(distributions).params
            if _key(params) not in tried:
                return params
    left = (_drawn(space, each) for each in combinations(space))
    return next(each for each in left if _key(each) not in tried)


def _distance(space: Space, first: dict[str, Any], second: dict[str, Any]) -> float:
    """Return how far two combinations are from each other, each setting in units of its range; two choices are as far as its ends."""
    parts = []
    for name, each in space.items():
        if isinstance(each, Choices):
            parts.append(float(first[name] != second[name]))
            continue
        scale = math.log if each.log else float
        low, high, *ends = map(scale, (each.low, each.high, first[name], second[name]))
        parts.append(abs(ends[0] - ends[1]) / ((high - low) or 1.0))
    return math.hypot(*parts)


def distributions_of(space: Space) -> dict[str, Any]:
    """Return a space in Optuna's terms; choices go by their text, since it takes no lists and takes 1 for true."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    distributions: dict[str, Any] = {}
    for name, each in space.items():
        if isinstance(each, Choices):
            distributions[name] = CategoricalDistribution(each.texts())
        elif each.whole:
            distributions[name] = IntDistribution(int(each.low), int(each.high), log=each.log)
        else:
            distributions[name] = FloatDistribution(each.low, each.high, log=each.log)
    return distributions


def _drawn(space: Space, values: dict[str, Any]) -> dict[str, Any]:
    """Return values as Optuna keeps them."""
    return {
        name: json.dumps(value, ensure_ascii=False) if isinstance(space[name], Choices) else value
        for name, value in values.items()
    }


def _key(drawn: dict[str, Any]) -> str:
    return json.dumps(drawn, sort_keys=True)


def _direction(higher: bool) -> str:
    return "maximize" if higher else "minimize"


def _made(pruner: str) -> Any:
    from optuna import pruners

    makers = {
        "median": pruners.MedianPruner,
        "hyperband": pruners.HyperbandPruner,
        "none": pruners.NopPruner,
    }
    return makers[pruner]()


def _quiet() -> AbstractContextManager[None]:
    """Temporarily let Optuna say nothing but warnings."""
    return loggers_above(logging.WARNING, "optuna")
