from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

from snugfit.core.batch import Batch
from snugfit.core.composition import Composition, compose
from snugfit.core.gradients import Gradients
from snugfit.core.losses import LossTerms
from snugfit.core.progress import Progress
from snugfit.core.technique import (
    BatchLoss,
    Card,
    Compute,
    Context,
    Family,
    GradientsOf,
    Seams,
    Stage,
    Technique,
)
from snugfit.errors import PlanConflict

CONTEXT = Context(nn.Linear(1, 1), torch.device("cpu"))
NOTHING = Gradients(torch.tensor(0.0), 1.0, torch.tensor(0.0))


@dataclass(frozen=True)
class Noting(Technique):
    """Writes down when its seams are called."""

    name: str
    notes: list[str]
    filled: tuple[str, ...]
    stage: Stage | None = None

    card: ClassVar[Card]

    def __post_init__(self) -> None:
        card = Card(self.name, "", Family.LEARNING, "", self.filled, self.stage)
        object.__setattr__(self, "card", card)

    def seams(self, context: Context) -> Seams:
        every: dict[str, Any] = {
            "batch": self.batch,
            "loss": self.loss,
            "forward": self.forward,
            "gradients": self.gradients,
            "adjust": self.adjust,
            "updated": lambda model, progress: self.notes.append(self.name),
            "weights": lambda model: self.forward(),
            "schedule": lambda updates: 0.5,
        }
        return Seams(**{seam: every[seam] for seam in self.filled})

    def batch(self, window: Batch, generator: torch.Generator) -> Batch:
        return window.with_extras(**{self.name: torch.rand(window.rows, generator=generator)})

    def loss(self, next: BatchLoss) -> BatchLoss:
        def wrapped(outputs: Any, batch: Batch) -> LossTerms:
            self.notes.append(self.name)
            return next(outputs, batch)

        return wrapped

    @contextmanager
    def forward(self) -> Iterator[None]:
        self.notes.append(f"enter {self.name}")
        try:
            yield
        finally:
            self.notes.append(f"leave {self.name}")

    def gradients(self, next: GradientsOf) -> GradientsOf:
        def wrapped(compute: Compute) -> Gradients:
            self.notes.append(self.name)
            return next(compute)

        return wrapped

    def adjust(self, parameters: Sequence[nn.Parameter]) -> Mapping[str, Tensor]:
        self.notes.append(self.name)
        return {self.name: torch.tensor(1.0)}


@dataclass
class Notes:
    written: list[str] = field(default_factory=list)

    def compose(self, *asked: tuple[str, str, Stage | None]) -> Composition:
        techniques = [Noting(name, self.written, (seam,), stage) for name, seam, stage in asked]
        return compose(techniques, CONTEXT, self.innermost_loss, self.innermost_gradients)

    def innermost_loss(self, outputs: Any, batch: Batch) -> LossTerms:
        self.written.append("loss")
        return LossTerms(outputs)

    def innermost_gradients(self, compute: Compute) -> Gradients:
        self.written.append("run")
        return NOTHING


def test_losses_nest_with_the_last_listed_outermost() -> None:
    notes = Notes()
    composed = notes.compose(("first", "loss", None), ("second", "loss", None))
    composed.loss(torch.zeros(1), Batch.of(torch.zeros(1)))
    assert notes.written == ["second", "first", "loss"]


def test_gradients_nest_by_stage_however_they_are_listed() -> None:
    notes = Notes()
    composed = notes.compose(
        ("select", "gradients", Stage.SELECT),
        ("perturb", "gradients", Stage.PERTURB),
        ("backend", "gradients", Stage.BACKEND),
        ("coupling", "gradients", Stage.COUPLING),
    )
    composed.gradients(None)  # type: ignore[arg-type]
    assert notes.written == ["perturb", "select", "coupling", "backend", "run"]
    assert composed.coupled
    assert not notes.compose(("select", "gradients", Stage.SELECT)).coupled


def test_each_stage_of_the_gradients_holds_one() -> None:
    with pytest.raises(PlanConflict, match="'one' and 'other' both stand at the stage 'select'"):
        Notes().compose(("one", "gradients", Stage.SELECT), ("other", "gradients", Stage.SELECT))


def test_adjustments_follow_the_list_and_their_metrics_are_collected() -> None:
    notes = Notes()
    composed = notes.compose(("a", "adjust", None), ("b", "adjust", None))
    assert set(composed.adjust([])) == {"a", "b"}
    composed = notes.compose(("c", "updated", None), ("d", "updated", None))
    composed.updated(CONTEXT.model, Progress())
    assert notes.written == ["a", "b", "c", "d"]


def test_contexts_around_forward_are_left_in_reverse_and_can_be_entered_again() -> None:
    notes = Notes()
    composed = notes.compose(("a", "forward", None), ("b", "forward", None))
    for _ in range(2):
        with composed.forward():
            notes.written.append("forward")
    assert notes.written == ["enter a", "enter b", "forward", "leave b", "leave a"] * 2


def test_weights_come_from_at_most_one_and_are_raw_without() -> None:
    notes = Notes()
    assert notes.compose().weights_name == "raw"
    composed = notes.compose(("average", "weights", None))
    assert composed.weights_name == "average"
    with composed.weights(CONTEXT.model):
        notes.written.append("evaluate")
    assert notes.written == ["enter average", "evaluate", "leave average"]
    with pytest.raises(PlanConflict, match="'one' and 'other' both give the weights"):
        notes.compose(("one", "weights", None), ("other", "weights", None))


def test_each_batch_technique_draws_from_a_generator_of_its_own() -> None:
    """So that adding one does not change what the others draw, and nothing has to be saved."""
    notes = Notes()
    window = Batch.of(torch.zeros(4))
    alone = notes.compose(("b", "batch", None)).batch(window, seed=1, windows=2).extras
    both = notes.compose(("a", "batch", None), ("b", "batch", None))
    found = both.batch(window, seed=1, windows=2).extras
    assert torch.equal(found["b"], alone["b"])
    assert not torch.equal(found["a"], found["b"])
    for other in ({"seed": 2, "windows": 2}, {"seed": 1, "windows": 3}):
        assert not torch.equal(both.batch(window, **other).extras["b"], found["b"])


def test_a_failing_context_does_not_leave_the_earlier_ones_entered() -> None:
    notes = Notes()
    composed = notes.compose(("a", "forward", None), ("b", "forward", None))
    forwards = composed._forwards

    def failing() -> Any:
        raise RuntimeError("no such precision")

    object.__setattr__(composed, "_forwards", (forwards[0], failing))
    with pytest.raises(RuntimeError, match="no such precision"):
        composed.forward().__enter__()
    assert notes.written == ["enter a", "leave a"]
