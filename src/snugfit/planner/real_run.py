"""A real step, recorded as a dry run is: what it computes, and what is in memory when. Measured, where the dry run predicts.

What an operator takes and gives back while it runs is not seen.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from snugfit.core.batch import Batch
from snugfit.core.memory import is_out_of_memory
from snugfit.core.random import preserved_randomness
from snugfit.core.tree import leaves
from snugfit.planner.dryrun import gradients_told, tell
from snugfit.planner.recorder import Recorder
from snugfit.planner.records import Role, Trace
from snugfit.planner.values import KnownValues
from snugfit.training.fit import first_line
from snugfit.training.step import Step


@dataclass(frozen=True)
class Recorded:
    """What was recorded: the trace, the module of each storage of weights by its number, and what the allocator said where
    memory ran out, which is where the trace ends."""

    trace: Trace
    modules: Mapping[int, str]
    ran_out: str | None = None


def record_update(step: Step, window: Batch) -> Recorded:
    """Make an update of `window`, and record it. Between two updates; best after the first one, which makes the optimizer's state."""
    batch = window.to(step.device)
    return _recorded(step, batch, lambda: step(batch))


def record_gradients(step: Step, window: Batch) -> Recorded:
    """Record forward and backward of `window`, up to where memory runs out if it does; the step stays where it is.

    A step that updates weights in its backward is not run: what is recorded is what is there without a window.
    """

    def compute() -> None:
        with preserved_randomness(step.device), step.computed(batch):
            pass

    batch = window.to(step.device)
    return _recorded(step, batch, (lambda: None) if step.seams.irrevocable else compute)


class _RealValues(KnownValues):
    """Real tensors hold their values themselves."""

    def __init__(self) -> None:
        self.bounded: list[str] = []

    def call(self, *_: Any) -> tuple[bool, Any]:
        return False, None

    def follow(self, *_: Any) -> None:
        pass


def _recorded(step: Step, batch: Batch, run: Callable[[], object]) -> Recorded:
    recorder = Recorder(_RealValues())
    recorder.knows(step.model)
    tell(step, recorder)
    recorder.holds(leaves(batch.data), Role.INPUTS)
    modules = _weights(step, recorder)
    ran_out = None
    try:
        with gradients_told(step, recorder), recorder:
            run()
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        ran_out = first_line(error)
    tell(step, recorder)
    trace = recorder.finish()
    for op in trace.ops:
        op.workspace = 0  # which is predicted
    return Recorded(trace, modules, ran_out)


def _weights(step: Step, recorder: Recorder) -> dict[int, str]:
    def named(tensors: Any) -> dict[int, str]:
        found: dict[int, str] = {}
        for name, tensor in tensors:
            held: Tensor = tensor
            found |= dict.fromkeys(recorder.numbered([held]), name.rpartition(".")[0])
        return found

    return named(step.model.named_buffers()) | named(step.model.named_parameters())
