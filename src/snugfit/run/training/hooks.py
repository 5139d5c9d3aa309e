"""Calls of the user's hooks: functions that see what a run does, may give numbers to log, and may ask it to stop."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor

from snugfit.core.job import Hook, Hooks
from snugfit.core.random import preserved_elsewhere, preserved_randomness
from snugfit.errors import TrainingFailed
from snugfit.run.events import Emit
from snugfit.step.module_modes import preserved_modes
from snugfit.step.step import Step
from snugfit.system.user_objects import describe

Numbers = dict[str, float]


class HookCalls:
    """Calls hooks on the first rank, each with what it is to see, and keeps the run as it was without them.

    Random states and modes of the model are put back after each call. A hook that raises, or returns what it may not, asks for a stop by that,
    and a warning names it.

    Args:
        emit: of the run's events.
    Attributes:
        sees_updates: whether one is called with each update.
        stop_reason: why the run is to stop, once a hook has asked for it.
    """

    def __init__(self, hooks: Hooks, step: Step, emit: Emit) -> None:
        given = {name: getattr(hooks, name) for name in Hooks.settings()}
        leads = step.strategy.rank == 0
        self._hooks = {name: hook for name, hook in given.items() if hook is not None and leads}
        self._step, self._emit = step, emit
        self.stop_reason: str | None = None
        self.sees_updates = "on_update" in self._hooks

    def call(self, name: str, seen: Any, taken: Iterable[str] = ()) -> Numbers:
        """Call the hook of that name, if there is one, and return the numbers that it gives to log.

        Args:
            seen: what it is called with.
            taken: names that the run logs itself.
        Raises:
            TrainingFailed: it has changed the model's weights or buffers.
        """
        hook = self._hooks.get(name)
        if hook is None:
            return {}
        before = self._versions()
        try:
            with (
                preserved_randomness(self._step.device),
                preserved_elsewhere(),
                preserved_modes(self._step.model),
            ):
                answer = hook(seen)
        except Exception as error:  # noqa: BLE001 - code of the user's may fail in any way
            self._stop(f"hooks.{name} failed: {describe(error)}", is_fault=True)
            return {}
        self._check_unchanged(name, hook, before)
        if answer is None:
            return {}
        if isinstance(answer, str):
            self._stop(f"hooks.{name}: {answer}")
            return {}
        if (problem := _problem(answer, {*taken})) is not None:
            self._stop(f"hooks.{name} returned {problem}", is_fault=True)
            return {}
        return {each: float(value) for each, value in answer.items()}

    def _stop(self, reason: str, *, is_fault: bool = False) -> None:
        self.stop_reason = self.stop_reason or reason
        if is_fault:
            self._emit(
                "warning", message=f"{reason}. The run stops, and can go on once the function is corrected."
            )

    def _tensors(self) -> dict[str, Tensor]:
        return {**dict(self._step.model.named_parameters()), **dict(self._step.model.named_buffers())}

    def _versions(self) -> dict[str, int]:
        """Return autograd's counter of changes in place of each tensor; a change through `.data` does not count."""
        return {
            name: tensor._version for name, tensor in self._tensors().items() if not tensor.is_inference()
        }

    def _check_unchanged(self, name: str, hook: Hook, before: Mapping[str, int]) -> None:
        after = self._versions()
        changed = [each for each in after if after[each] != before.get(each)]
        if changed:
            function = getattr(hook, "__qualname__", type(hook).__name__)
            raise TrainingFailed(
                f"hooks.{name} ({function}) has changed {changed[0]} of the model: a hook sees a run and changes nothing. What changes "
                "weights is a technique (docs/write_a_technique.md). The newest checkpoint is from before the change."
            )


def _problem(answer: Any, taken: set[str]) -> str | None:
    """Return what is wrong with the answer of a hook that is neither None nor text."""
    if not isinstance(answer, Mapping):
        return f"{type(answer).__name__}; it may return None, numbers by their names, or the reason to stop as text"
    for name, value in answer.items():
        if not isinstance(name, str) or not name.strip():
            return f"{name!r} as a name; names are text"
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            return f"{type(value).__name__} for '{name}'; it may return numbers, such as tensor.item()"
        if name in taken:
            return f"'{name}', which the run logs itself; take another name"
    return None
