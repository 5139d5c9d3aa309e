from __future__ import annotations

import dataclasses
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
from snugfit.core.loss_terms import LossTerms
from snugfit.core.progress import Progress
from snugfit.core.selection import check, exclusion, listed
from snugfit.core.technique import (
    BatchLoss,
    Card,
    Compute,
    Context,
    Family,
    GradientsOf,
    Kind,
    Moment,
    Seams,
    Stage,
    Technique,
)
from snugfit.errors import PlanConflict
from snugfit.techniques import find

CONTEXT = Context(nn.Linear(1, 1), torch.device("cpu"))
WINDOW = Batch.of(torch.zeros(1))
NOTHING = Gradients(torch.tensor(0.0), 1.0, torch.tensor(0.0))


@dataclass(frozen=True)
class Noting(Technique):
    """Writes down when its seams are called."""

    name: str
    notes: list[str]
    filled: tuple[str, ...]
    stage: Stage | None = None

    kind: ClassVar[Kind] = Kind.ANY
    card: ClassVar[Card]

    def __post_init__(self) -> None:
        stages = () if self.stage is None else (self.stage,)
        card = Card(self.name, "", Family.LEARNING, "", self.filled, stages=stages, kind=self.kind)
        object.__setattr__(self, "card", card)

    def seams(self, context: Context) -> Seams:
        every: dict[str, Any] = {
            "batch": self.batch,
            "loss": self.loss,
            "forward": self.forward,
            "gradients": self.gradients,
            "adjust": self.adjust,
            "accept": lambda loss: f"{self.name}: {loss}" if loss > 1 else None,
            "updated": lambda model, progress: self.notes.append(self.name),
            "weights": lambda model: self.forward(),
        }
        return Seams(**{seam: every[seam] for seam in self.filled})

    def batch(self, window: Batch, moment: Moment) -> Batch:
        self.notes.append(self.name)
        return window.with_extras(**{self.name: torch.rand(window.rows, generator=moment.generator())})

    def loss(self, next: BatchLoss) -> BatchLoss:
        def wrapped(outputs: Any, batch: Batch) -> LossTerms:
            self.notes.append(self.name)
            return next(outputs, batch)

        return wrapped

    @contextmanager
    def forward(self, batch: Batch | None = None) -> Iterator[None]:
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

    def adjust(self, parameters: Sequence[nn.Parameter], moment: Moment) -> Mapping[str, Tensor]:
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


def test_losses_nest_by_stage_however_they_are_listed() -> None:
    notes = Notes()
    composed = notes.compose(
        ("term", "loss", Stage.TERM),
        ("share", "loss", Stage.SHARE),
        ("focus", "loss", Stage.FOCUS),
        ("smooth", "loss", Stage.SMOOTH),
    )
    composed.loss(torch.zeros(1), Batch.of(torch.zeros(1)))
    assert notes.written == ["term", "share", "smooth", "focus", "loss"]


def test_terms_that_are_added_may_be_any_number() -> None:
    notes = Notes()
    composed = notes.compose(("one", "loss", Stage.TERM), ("other", "loss", Stage.TERM))
    composed.loss(torch.zeros(1), Batch.of(torch.zeros(1)))
    assert set(notes.written) == {"one", "other", "loss"}


def test_examples_cannot_be_tokens_and_images() -> None:
    class Reading(Noting):
        kind = Kind.TOKENS

    class Looking(Noting):
        kind = Kind.IMAGES

    given = [Reading("reads", [], ()), Looking("looks", [], ())]
    with pytest.raises(
        PlanConflict, match="'reads' and 'looks' work on tokens and on images: .* Remove one."
    ):
        check(given)
    check([Reading("one", [], ()), Reading("other", [], ())])


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


@pytest.mark.parametrize("stage", [stage for stage in Stage if not stage.shared])
def test_each_stage_holds_one(stage: Stage) -> None:
    with pytest.raises(
        PlanConflict, match=f"'one' and 'other' both stand at the stage '{stage.name.lower()}'"
    ):
        Notes().compose(("one", stage.seam, stage), ("other", stage.seam, stage))


def test_sequences_go_by_stage_and_the_metrics_of_adjustments_are_collected() -> None:
    notes = Notes()
    composed = notes.compose(("noise", "adjust", Stage.NOISE), ("norm", "adjust", Stage.NORM))
    assert set(composed.adjust([], Progress(), seed=0)) == {"noise", "norm"}
    composed = notes.compose(("average", "updated", Stage.AVERAGE), ("move", "updated", Stage.MOVE))
    composed.updated(CONTEXT.model, Progress())
    composed = notes.compose(("mix", "batch", Stage.MIX), ("cut", "batch", Stage.CUT))
    composed.batch(Batch.of(torch.zeros(1)), Progress(), seed=0)
    assert notes.written == ["norm", "noise", "move", "average", "cut", "mix"]


def test_the_first_reason_to_refuse_an_update_counts() -> None:
    composed = Notes().compose(("easy", "accept", None), ("strict", "accept", None))
    assert composed.accept(2.0) == "easy: 2.0"
    assert composed.accept(0.5) is None


def test_contexts_around_forward_are_left_in_reverse_and_can_be_entered_again() -> None:
    notes = Notes()
    composed = notes.compose(("a", "forward", None), ("b", "forward", None))
    for _ in range(2):
        with composed.forward(WINDOW):
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
    at = Progress(windows=2)
    alone = notes.compose(("b", "batch", None)).batch(window, at, seed=1).extras
    both = notes.compose(("a", "batch", None), ("b", "batch", None))
    found = both.batch(window, at, seed=1).extras
    assert torch.equal(found["b"], alone["b"])
    assert not torch.equal(found["a"], found["b"])
    for windows, seed in ((2, 2), (3, 1)):
        other = both.batch(window, Progress(windows=windows), seed).extras["b"]
        assert not torch.equal(other, found["b"])


def test_a_failing_context_does_not_leave_the_earlier_ones_entered() -> None:
    notes = Notes()
    composed = notes.compose(("a", "forward", None), ("b", "forward", None))
    forwards = composed._forwards

    def failing(batch: Batch) -> Any:
        raise RuntimeError("no such precision")

    object.__setattr__(composed, "_forwards", (forwards[0], ("b", failing)))
    with pytest.raises(RuntimeError, match="no such precision"):
        composed.forward(WINDOW).__enter__()
    assert notes.written == ["enter a", "leave a"]


@pytest.mark.parametrize("place", ["adjust", Stage.PERTURB])
def test_a_card_may_refuse_all_that_fill_a_seam_or_stand_at_a_stage(place: str | Stage) -> None:
    reason = "it would never see the whole gradient. Remove one."
    refusing = dataclasses.replace(find("ema").card, name="refusing", refuses={place: reason})
    other = find("clip_norm" if place == "adjust" else "sam").card
    assert exclusion(refusing, other) == exclusion(other, refusing) == f"exclude each other: {reason}"
    assert exclusion(refusing, find("mixup").card) is None


def test_a_list_that_was_given_for_a_tuple_is_one_so_that_a_plan_can_keep_the_technique() -> None:
    recompute = find("recompute")
    (made,) = listed(None, [recompute(keep=["matmul"])])
    assert made == recompute(keep=("matmul",)) and hash(made)
    own = Noting("a", [], ())
    distillation = find("distillation")
    (outer,) = listed(None, [distillation("teacher", teacher_techniques=[recompute(keep=["matmul"])])])
    assert outer == distillation("teacher", teacher_techniques=(recompute(keep=("matmul",)),)) and hash(outer)
    assert listed(None, [own])[0] is own  # which asks for a list, that it may go on writing in
