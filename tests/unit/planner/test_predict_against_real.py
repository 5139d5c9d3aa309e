"""The planner's memory beside that of a real run, by the profiler; all cases are in benchmarks/planner/memory.py."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from snugfit.core.batch import Batch
from snugfit.core.job import Job, Plan
from snugfit.kit.skeleton import skeleton
from snugfit.planner.devices.device import Machine
from snugfit.planner.devices.hardware import uncalibrated
from snugfit.planner.prediction.plan_needs import Planner
from snugfit.planner.trace.dry_run import Subject
from snugfit.step.build import Material, make_step
from snugfit.techniques import find
from snugfit.techniques.learning.distillation import Distillation
from tests.unit.planner.profiled import profiled_peak

ROWS, LENGTH = 8, 32


class Encoder(nn.Module):
    """Of one layer's shape each block; with a layer that is never called, and a mean over what a mask leaves."""

    def __init__(self, blocks: int = 2) -> None:
        super().__init__()
        self.words = nn.Embedding(500, 64)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True) for _ in range(blocks)
        )
        self.head = nn.Linear(64, 4)
        self.unused = nn.Linear(64, 512)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        states = self.words(input_ids)
        for block in self.blocks:
            states = block(states)
        kept = attention_mask.unsqueeze(-1)
        logits: Tensor = self.head((states * kept).sum(1) / kept.sum(1))
        return logits


class Stacks(Encoder):
    """With a second list of blocks behind the first one."""

    def __init__(self, blocks: int) -> None:
        super().__init__(blocks)
        self.more = nn.ModuleList(
            nn.TransformerEncoderLayer(64, 2, 64, dropout=0.0, batch_first=True) for _ in range(3)
        )

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        states = self.words(input_ids)
        for block in [*self.blocks, *self.more]:
            states = block(states)
        logits: Tensor = self.head(states.mean(1))
        return logits


class Tied(Encoder):
    """Whose head has the weights of its embeddings."""

    def __init__(self, blocks: int) -> None:
        super().__init__(blocks)
        self.head = nn.Linear(64, 500, bias=False)
        self.head.weight = self.words.weight


class Counted(Encoder):
    """Which takes its last block by number."""

    def __init__(self, blocks: int) -> None:
        super().__init__(blocks)
        self.last = blocks - 1

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        self.blocks[self.last]
        return super().forward(input_ids, attention_mask)


def convolutions() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(64, 4),
    )


def wide() -> nn.Module:
    return nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 4096), nn.Linear(4096, 4))


def small() -> nn.Module:
    return nn.Sequential(nn.ReLU(), nn.Tanh(), nn.AvgPool2d(8), nn.Flatten(), nn.Linear(48, 4))


class Steps(nn.Module):
    """Reads a tensor one step after the other, so that as many gradients of it are added up."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(16, 2048)

    def forward(self, given: Tensor) -> Tensor:
        steps = self.layer(given).view(len(given), 8, 64, 4)
        found = steps[:, 0].tanh()
        for step in range(1, 8):
            found = found * steps[:, step].tanh()
        return found.sum(1)


def rows() -> tuple[Tensor, Tensor]:
    return torch.randn(ROWS, 16), torch.randint(0, 4, (ROWS,))


def texts() -> dict[str, Tensor]:
    ids = torch.randint(0, 500, (ROWS, LENGTH))
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": torch.randint(0, 4, (ROWS,))}


def images() -> tuple[Tensor, Tensor]:
    return torch.randn(ROWS, 3, 32, 32), torch.randint(0, 4, (ROWS,))


def subject(model: nn.Module, window: Batch, names: tuple[str, ...]) -> Subject:
    bare = skeleton(model)
    job = Job.of(global_batch=window.rows, updates=3)
    techniques = tuple(find(name).example() for name in names)
    return Subject(lambda: copy.deepcopy(bare), window, job, 100, techniques)


def predicted(planned: Subject, plan: Plan, whole: bool = False) -> tuple[int, Mapping[str, int]]:
    cpu = uncalibrated("cpu")
    found = Planner(planned, Machine(cpu, cpu), whole).predict(plan, planned.techniques)
    return found.peak_bytes, found.peak_by_kind


def measured(planned: Subject, plan: Plan, model: nn.Module) -> int:
    """The profiler's peak over all updates, and what is saved; weights and windows are copied, so that they count."""

    def three_updates() -> None:
        material = Material(copy.deepcopy(model), range(planned.examples), None, planned.loss)
        step = make_step(planned.job, plan, material, None, planned.techniques)
        del material
        for _ in range(3):
            step(copy.deepcopy(planned.window))
        with torch.no_grad(), step.averaged():
            if step.seams.export is not None:
                step.seams.export(step.model)

    return profiled_peak(three_updates)


@pytest.mark.parametrize(
    ("make", "data", "names", "micro_batch", "bound"),
    [
        (Encoder, texts, ("adamw",), None, 0.001),
        (Encoder, texts, ("adamw", "recompute", "clip_norm"), None, 0.001),
        (Encoder, texts, ("adamw", "ema"), 2, 0.001),
        (Encoder, texts, ("adamw", "sam"), None, 0.001),
        (Encoder, texts, ("sgd", "hard_examples"), None, 0.005),
        (Encoder, texts, ("adamw", "bf16"), None, 0.005),
        (convolutions, images, ("adamw",), None, 0.015),
        (
            wide,
            rows,
            ("adamw_8bit",),
            None,
            0.001,
        ),  # whose update has the peak, in kernels that no dispatch sees
        (wide, rows, ("adamw_8bit", "pure_bf16"), None, 0.001),
        (wide, rows, ("adamw", "pure_bf16", "optimizer_in_backward"), None, 0.001),
        (Steps, rows, ("sgd",), None, 0.001),
        # whose inputs, which are copied in the first window, take more than the optimizer's states afterwards
        (small, images, ("adamw",), None, 0.001),
        (small, images, ("adamw",), 2, 0.001),
    ],
)
def test_the_predicted_peak_is_that_of_the_profiler(make, data, names, micro_batch, bound):
    torch.manual_seed(0)
    model, window, plan = make(), Batch.of(data()), Plan(micro_batch=micro_batch)
    planned = subject(model, window, names)
    peak, by_kind = predicted(planned, plan)
    assert sum(by_kind.values()) == peak
    assert peak == pytest.approx(measured(planned, plan, model), rel=bound)


def teacher() -> nn.Module:
    """Of more blocks than the student."""
    return Encoder(6)


def test_a_teacher_and_a_map_between_its_features_and_the_student_s_are_in_the_predicted_peak():
    torch.manual_seed(0)
    model, window, plan = Encoder(), Batch.of(texts()), Plan(micro_batch=4)
    taught = Distillation(
        teacher=f"{__name__}:teacher",
        features={"blocks.1.linear1": "blocks.5.linear2"},
        projections={"blocks.1.linear1": (128, 64)},
    )
    alone = subject(model, window, ("adamw",))
    planned = replace(alone, techniques=(*alone.techniques, taught))
    peak, _ = predicted(planned, plan)
    assert peak == pytest.approx(measured(planned, plan, model), rel=0.001)
    weights = sum(each.nbytes for each in teacher().parameters())
    assert peak > predicted(alone, plan)[0] + weights


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "names", "micro_batch"),
    [
        (lambda: Encoder(16), ("adamw",), None),
        (lambda: Encoder(1), ("adamw",), 1),
        # whose last micro-batch makes the step
        (lambda: Encoder(1), ("adamw", "optimizer_in_backward"), 1),
        # whose second micro-batch still has gradients of the first one on their way
        (lambda: Encoder(1), ("adamw", "optimizer_offload", "gradient_offload"), 1),
        (
            lambda: Tied(16),
            ("recompute", "master_weights", "adamw", "optimizer_offload", "gradient_offload"),
            1,
        ),
        # whose first micro-batch is computed in another order
        (lambda: Encoder(16), ("adamw", "recompute"), 1),
        (lambda: Stacks(16), ("adamw",), None),
    ],
    ids=[
        "blocks",
        "micro-batches",
        "a step in the last backward",
        "gradients on the host",
        "masters on the host under tied weights",
        "both",
        "another list behind",
    ],
)
def test_few_blocks_and_micro_batches_tell_what_all_of_them_need(make, names, micro_batch):
    planned = subject(make(), Batch.of(texts()), names)
    plan = Plan(micro_batch=micro_batch)
    cpu = uncalibrated("cpu")
    few, every = (
        Planner(planned, Machine(cpu, cpu), whole).predict(plan, planned.techniques)
        for whole in (False, True)
    )
    for name in ("peak_bytes", "peak_by_kind", "peak_by_phase", "host_peak_bytes", "flops_per_update"):
        assert getattr(few, name) == getattr(every, name), name
    curves = [each.timeline.bytes_by_kind for each in (few, every) if each.timeline is not None]
    one, other = ([sum(point) for point in zip(*each.values(), strict=True)] for each in curves)
    assert one == other
    assert few.seconds_per_update == pytest.approx(every.seconds_per_update, rel=1e-9)
    assert "carried on" in few.confidence["memory"] and "carried on" not in every.confidence["memory"]


@pytest.mark.slow
def test_a_model_that_cannot_do_without_some_of_its_blocks_is_run_with_all_of_them():
    planned = subject(Counted(16), Batch.of(texts()), ("adamw",))
    cpu = uncalibrated("cpu")
    found = Planner(planned, Machine(cpu, cpu)).predict(Plan(), planned.techniques)
    assert "carried on" not in found.confidence["memory"]
