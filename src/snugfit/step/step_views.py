"""A step as its parts see it: what each of them needs of the step that is made of them.

`Step` has all of it. The parts name no more than this, so none of them imports the step, and what a part can change of a step is said here.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch
from torch import nn

from snugfit.core.batch import Batch
from snugfit.core.composition import Composition
from snugfit.core.gradient_exchange import Exchange
from snugfit.core.loss_terms import Loss
from snugfit.core.progress import Progress
from snugfit.core.technique import BatchLoss, Stateful
from snugfit.kit.buffers import AtFirst
from snugfit.step.model_checks.changed_inputs import Inputs
from snugfit.step.model_checks.gradient_hooks import HooksBehind
from snugfit.step.reported_means import ReportedMeans
from snugfit.strategies.base import Strategy


class StepModel(Protocol):
    """A step's model, with its techniques and how ranks share it."""

    model: nn.Module
    device: torch.device
    strategy: Strategy
    seams: Composition
    inputs: Inputs


class ForwardStep(StepModel, Protocol):
    """A step, to a forward that trains nothing."""

    def forward(self, batch: Batch) -> Any:
        """Return the model's outputs of a batch."""
        ...

    def preserved_buffers(self) -> AbstractContextManager[None]:
        """Temporarily allow buffers to change."""
        ...


class PaddedStep(ForwardStep, Protocol):
    """A step, to the decision whether padding is cut."""

    micro_batch: int | None
    has_own_forward: bool


class ScoredStep(StepModel, Protocol):
    """A step, to an evaluation, which is under the user's own loss."""

    micro_batch: int | None
    couples_rows: bool
    loss: Loss
    user_loss: BatchLoss

    def scored_forward(self, batch: Batch) -> Any:
        """Return the model's outputs of a batch that is scored."""
        ...

    def splittable(self, window: Batch) -> Batch:
        """Return a batch as it may be split."""
        ...


class SplitStep(Protocol):
    """A step, to the sizes of micro-batches: memory that runs out makes `micro_batch` finer."""

    device: torch.device
    strategy: Strategy
    seams: Composition
    micro_batch: int | None
    has_batch_norm: bool
    coupling: tuple[str, ...]
    largest: int
    group: int
    handed: bool

    @property
    def whole_windows(self) -> bool:
        """Return whether the loss has to be shown a window whole."""
        ...


class WindowStep(ForwardStep, Protocol):
    """A step, to the computation of a window's gradients, which notes in it what the window has come to."""

    parameters: list[nn.Parameter]
    progress: Progress
    seed: int
    nominal: float
    micro_batch: int | None
    has_batch_norm: bool
    exchange: Exchange | None
    reported_means: ReportedMeans
    hooks_behind: HooksBehind
    plain: bool
    largest: int
    group: int
    handed: bool
    kernels: set[str] | None

    @property
    def bearers(self) -> list[nn.Parameter]:
        """Return what has the gradients, in the order of the parameters."""
        ...

    @property
    def at_first_pass(self) -> bool:
        """Return whether no pass over the rows has been made yet."""
        ...

    def begin_passes(self) -> None:
        """Begin passes anew."""
        ...

    def one_pass(self) -> AbstractContextManager[None]:
        """Begin a pass over the rows, and return the context around it."""
        ...

    def drop_gradients(self) -> None:
        """Have no gradients."""
        ...


class SavedStep(StepModel, Protocol):
    """A step, to the state that a resume needs."""

    optimizer: torch.optim.Optimizer
    progress: Progress
    at_first: AtFirst

    @property
    def padding(self) -> Stateful:
        """Return the decision whether padding is cut."""
        ...
