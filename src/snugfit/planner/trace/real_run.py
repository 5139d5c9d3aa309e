"""A real step, recorded as a dry run is: what it computes, and what is in memory when. Measured, where the dry run predicts.

What an operator takes and gives back while it runs is not seen.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from snugfit.core.batch import Batch
from snugfit.core.random import preserved_randomness
from snugfit.core.tree import leaves
from snugfit.planner.cost.records import Phase, Role, Trace
from snugfit.planner.trace.dry_run import gradients_followed, tell
from snugfit.planner.trace.known_values import KnownValues
from snugfit.planner.trace.recorder import Recorder
from snugfit.step.evaluate import Scored, score_singly
from snugfit.step.out_of_memory import first_line
from snugfit.step.step import Step
from snugfit.system.memory import is_out_of_memory

_MOST_SCORED = 16
"""Rows: recording takes longer than scoring."""


@dataclass(frozen=True)
class Recorded:
    """The record of a run.

    It has the trace, the module of each storage of weights and of the optimizer's state by its number, and
    what the allocator said where memory ran out, which is where the trace ends.
    """

    trace: Trace
    modules: Mapping[int, str]
    ran_out: str | None = None


def record_update(step: Step, window: Batch) -> Recorded:
    """Make an update of `window`, and record it. Between two updates; best after the first one, which makes the optimizer's state."""
    batch = window.to(step.device)
    return _recorded(step, batch, lambda: step(batch))


def record_gradients(step: Step, window: Batch) -> Recorded:
    """Record forward and backward of `window`, up to where memory runs out if it does; the step stays where it is.

    A step that updates weights in its backward is not run, nor one that would wait for other ranks: what is recorded then is what is
    there without a window.
    """

    def compute() -> None:
        with preserved_randomness(step.device), step.computed(batch):
            pass

    batch = window.to(step.device)
    still = step.seams.irrevocable or step.strategy.world_size > 1
    return _recorded(step, batch, (lambda: None) if still else compute)


def record_scoring(step: Step, batch: Batch) -> Recorded:
    """Record the scoring of `batch`, a row at a time with the longest first, up to where memory runs out if it does.

    The step stays where it is. Of several ranks, which would wait for each other, what is there without
    scoring is recorded.
    """
    lengths = batch.lengths
    rows = sorted(range(batch.rows), key=lambda row: 0 if lengths is None else -lengths[row])[:_MOST_SCORED]
    alone = step.strategy.world_size == 1
    return _recorded(step, batch, lambda: score_singly(Scored.of(step), rows if alone else (), batch))


class _RealValues(KnownValues):
    """Real tensors hold their values themselves."""

    def __init__(self) -> None:
        self.bounded: list[str] = []
        self.asked = 0

    def call(self, *_: Any) -> tuple[bool, Any]:
        return False, None

    def follow(self, *_: Any) -> None:
        pass


def _recorded(step: Step, batch: Batch, run: Callable[[], object]) -> Recorded:
    recorder = Recorder(_RealValues())
    recorder.knows(step.model)
    tell(step, recorder)
    recorder.holds(leaves(batch.data), Role.INPUTS)
    modules = _modules(step, recorder)
    ran_out = None
    try:
        with gradients_followed(step, recorder), recorder:
            run()
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        ran_out = first_line(error)
    tell(step, recorder)
    trace = recorder.finish()
    if ran_out is not None:
        _hold(trace)
    for op in trace.ops:
        op.workspace = 0  # which is predicted
    return Recorded(trace, modules, ran_out)


def _hold(trace: Trace) -> None:
    """Keep what a forward has made and not let go when memory runs out in it, for a backward that does not come."""
    if not trace.ops:
        return
    gone = {-event - 1 for event in trace.events[: trace.ops[-1].event] if event < 0}
    for number, storage in enumerate(trace.storages):
        if number in gone or storage.op < 0 or storage.role is not Role.TEMPORARIES:
            continue
        if trace.ops[storage.op].place.phase in (Phase.FORWARD, Phase.LOSS):
            storage.role = Role.ACTIVATIONS


def _modules(step: Step, recorder: Recorder) -> dict[int, str]:
    """Return the modules of weights, buffers and the optimizer's state."""
    modules: dict[int, str] = {}
    for name, tensor in (*step.model.named_buffers(), *step.model.named_parameters()):
        own = [tensor, *leaves(step.optimizer.state.get(tensor, {}))]
        modules |= dict.fromkeys(recorder.numbered(own), name.rpartition(".")[0])
    return modules
