"""Small subjects for the planner, and what to ask of their traces."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from snugfit.core.batch import Batch
from snugfit.core.job import Job, Plan
from snugfit.core.loss_terms import Loss
from snugfit.core.technique import Technique
from snugfit.core.tree import leaves
from snugfit.kit.skeleton import skeleton
from snugfit.planner.cost.records import Role, Trace
from snugfit.planner.trace.dry_run import Subject
from snugfit.planner.trace.fake_tensors import BareOptimizer
from snugfit.step.build import Material, make_step
from snugfit.system.allocation_counter import AllocatedBytes


def subject_of(
    model: nn.Module,
    data: Any,
    techniques: Sequence[Technique] = (),
    loss: str | Loss = "cross_entropy",
    optimizer: torch.optim.Optimizer | None = None,
    forward: Any = None,
) -> Subject:
    bare = skeleton(model)
    window = Batch.of(data)
    job = Job.of(global_batch=window.rows, updates=4)
    given = None if optimizer is None else BareOptimizer.of(optimizer, model)
    return Subject(lambda: skeleton(bare), window, job, window.rows, tuple(techniques), loss, given, forward)


class Middle(nn.Module):
    """A function between two layers, on rows of `width` numbers."""

    def __init__(self, function: Callable[[torch.Tensor], Any], width: int = 8) -> None:
        super().__init__()
        self.first, self.function, self.last = nn.Linear(width, width), function, nn.Linear(width, 4)

    def forward(self, rows: torch.Tensor) -> Any:
        return self.last(self.function(self.first(rows)))


def rows_of(width: int = 8, rows: int = 6) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(rows, width), torch.arange(rows) % 4


def live(trace: Trace, device: str = "cpu") -> list[int]:
    """Bytes after each event."""
    now, found = 0, []
    for _, storage, sign in trace.changes():
        now += sign * storage.bytes if storage.device == device else 0
        found.append(now)
    return found


def sizes(trace: Trace, role: Role) -> list[int]:
    """Bytes of each storage of a role, the smallest first."""
    return sorted(storage.bytes for storage in trace.storages if storage.role is role)


def real_peak(model: nn.Module, subject: Subject, plan: Plan) -> int:
    """What two updates of the real step allocate at most, with weights, batch, and the generator's state that is kept meanwhile."""
    held = [*model.parameters(), *model.buffers(), *leaves(subject.window.data)]
    with AllocatedBytes() as allocated:
        material = Material(model, range(subject.examples), None, subject.loss, None, subject.forward)
        step = make_step(subject.job, plan, material, None, subject.techniques)
        step(subject.window)
        step(subject.window)
    return allocated.peak + sum(tensor.nbytes for tensor in held) + torch.get_rng_state().nbytes


def real_update(model: nn.Module, subject: Subject, plan: Plan) -> int:
    """What the second of two updates of the real step allocates at most, with all that is there before it."""
    material = Material(model, range(subject.examples), None, subject.loss, None, subject.forward)
    step = make_step(subject.job, plan, material, None, subject.techniques)
    step(subject.window)
    held: list[Any] = [*step.model.parameters(), *step.model.buffers(), *leaves(subject.window.data)]
    held += leaves(step.optimizer.state_dict()["state"])
    held += [each.grad for each in step.parameters if each.grad is not None]
    with AllocatedBytes() as allocated:
        step(subject.window)
    return allocated.peak + sum(tensor.nbytes for tensor in held) + torch.get_rng_state().nbytes
