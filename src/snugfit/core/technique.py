"""What a technique is: settings, a card, and the seams of the step it fills.

A technique is one file: a frozen dataclass of settings deriving from `Technique`, with a `Card`. It may
change the model before anything else (`prepare`), and fills seams (`seams`). It holds no state itself; what
must survive a stop is the `state` of its seams.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol, Self

import torch
from torch import Tensor, nn

from snugfit.core.batch import Batch
from snugfit.core.gradients import Gradients
from snugfit.core.losses import LossTerms
from snugfit.core.parameters import ParameterGroup
from snugfit.core.progress import Progress
from snugfit.errors import SettingError


class Stage(enum.IntEnum):
    """Where a technique stands among those that wrap the gradients; a later stage wraps the earlier ones."""

    BACKEND = 0
    COUPLING = 1
    SELECT = 2
    PERTURB = 3


class Family(enum.StrEnum):
    """What a technique may change: what is learned, only how it fits, or the precision."""

    LEARNING = "learning"
    PLACEMENT = "placement"
    NUMERICS = "numerics"


@dataclass(frozen=True)
class Card:
    """What is said about a technique wherever it is listed, and what composition checks.

    `couples_examples`: one example's loss depends on others of its micro-batch, so that the micro-batch is
    part of the recipe. `conflicts` maps other techniques' names to the reason and the way out.
    """

    name: str
    summary: str
    family: Family
    source: str
    seams: tuple[str, ...]
    stage: Stage | None = None
    couples_examples: bool = False
    conflicts: Mapping[str, str] = field(default_factory=dict)
    cost: str = ""
    use_when: str = ""


class Stateful(Protocol):
    """State that a checkpoint keeps: nested dicts and lists of tensors and numbers."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class Compute(Protocol):
    """The computation of one window's gradients, as a value: asking for another makes another one."""

    @property
    def batch(self) -> Batch: ...

    def run(self) -> Gradients:
        """Forward and backward of every micro-batch; leaves the true gradient in `.grad`."""
        ...

    def outputs(self) -> Any:
        """The model's outputs of all rows, without gradient; tensors joined along the rows."""
        ...

    def loss_of(self, outputs: Any) -> LossTerms:
        """The loss of these outputs of all rows, with gradient."""
        ...

    def terms(self) -> LossTerms:
        """One loss and one weight a row, without gradient."""
        ...

    def select(self, rows: Sequence[int]) -> Self:
        """The same computation on some of the rows."""
        ...

    def replace(self, loss: BatchLoss, **extras: Any) -> Self:
        """The same rows under another loss, with further tensors travelling along."""
        ...


BatchLoss = Callable[[Any, Batch], LossTerms]
GradientsOf = Callable[[Compute], Gradients]


@dataclass(frozen=True)
class Context:
    """What techniques may look at when their seams are made."""

    model: nn.Module
    device: torch.device
    total_updates: int | None = None
    seed: int = 0


@dataclass(frozen=True)
class Seams:
    """The places of the step that a technique fills; None where it does not.

    - `optimizer`: parameter groups to an optimizer; at most one technique.
    - `schedule`: the learning rate's factor after that many applied updates; at most one.
    - `batch`: transforms the whole window before it is split; in sequence. The generator is the window's own.
    - `loss`: wraps the loss; nested, the last listed outermost.
    - `forward`: a context around forward and loss; nested.
    - `gradients`: wraps the computation of the gradients; nested by the card's stage, one for each stage.
    - `adjust`: changes the true gradients in place, returns metrics; in sequence.
    - `updated`: after an applied update, and only then.
    - `weights`: a context in which the model has the weights to evaluate, compare and export; at most one.
    """

    optimizer: Callable[[list[ParameterGroup]], torch.optim.Optimizer] | None = None
    schedule: Callable[[int], float] | None = None
    batch: Callable[[Batch, torch.Generator], Batch] | None = None
    loss: Callable[[BatchLoss], BatchLoss] | None = None
    forward: Callable[[], AbstractContextManager[Any]] | None = None
    gradients: Callable[[GradientsOf], GradientsOf] | None = None
    adjust: Callable[[Sequence[nn.Parameter]], Mapping[str, Tensor]] | None = None
    updated: Callable[[nn.Module, Progress], None] | None = None
    weights: Callable[[nn.Module], AbstractContextManager[Any]] | None = None
    state: Stateful | None = None

    def filled(self) -> tuple[str, ...]:
        """Names of the seams that are filled, without the state."""
        return tuple(name for name in SEAM_NAMES if getattr(self, name) is not None)


SEAM_NAMES = (
    "optimizer",
    "schedule",
    "batch",
    "loss",
    "forward",
    "gradients",
    "adjust",
    "updated",
    "weights",
)


class Technique:
    """Base of all techniques; subclasses are frozen dataclasses whose fields are their settings."""

    card: ClassVar[Card]

    def prepare(self, model: nn.Module) -> nn.Module:
        """Change the model before anything else looks at it."""
        return model

    def seams(self, context: Context) -> Seams:
        """The seams filled for one run."""
        raise NotImplementedError

    @classmethod
    def example(cls) -> Self:
        """Settings under which the laws are tested: strong enough to matter on a tiny model."""
        return cls()

    def require(self, setting: str, holds: bool, wanted: str) -> None:
        """Refuse an impossible setting.

        Raises:
            SettingError: `holds` is false.
        """
        if not holds:
            found = getattr(self, setting)
            raise SettingError(f"{self.card.name}.{setting}: must be {wanted}, found {found!r}.")
