"""On MPS no tensor is in float64: steps, checks, evaluation and metrics do without, and add up on the host.

Only a Mac can show that every operator is there, and in which type its kernels add up.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import snugfit as sf
from snugfit.core.batch import Batch
from snugfit.core.job import Job, Plan
from snugfit.core.scalar_reads import read_scalars
from snugfit.core.selection import check_on
from snugfit.core.technique import Fidelity, Technique
from snugfit.errors import DataError, PlanConflict, SettingError
from snugfit.planner.choice.rungs import coarser, placements
from snugfit.planner.devices.device import Device
from snugfit.planner.devices.hardware import find_device
from snugfit.planner.devices.precision import usual_level, usual_precision
from snugfit.step.build import Material, make_step
from snugfit.step.evaluate import Scored, evaluate
from snugfit.step.metrics.label_metrics import OF_LABEL_SETS
from snugfit.step.metrics.metric import METRICS
from snugfit.step.metrics.quantile_metrics import OF_QUANTILES
from snugfit.step.metrics.retrieval_metrics import OF_EMBEDDINGS
from snugfit.step.model_checks.row_coupling import compare_rows
from snugfit.step.step import Step
from snugfit.strategies.base import Strategy
from snugfit.system import rounding
from snugfit.system.memory import release_memory
from snugfit.system.rounding import in_float64
from snugfit.techniques import find
from snugfit.techniques.placement.compile import Compile
from snugfit.techniques.placement.packing import Packing
from tests.laws import problems
from tests.unit.run.training.no_float64 import Float64Error, WithoutFloat64

MPS = torch.device("mps")
OFFLOADS = ("activation_offload", "gradient_offload", "optimizer_offload", "weight_streaming")


def logits_of_class_0(outputs: Tensor, data: Any) -> Tensor:
    return outputs[:, 0]


OF_CLASSES = ("accuracy", "macro_f1", "macro_precision", "macro_recall", "auroc", "perplexity")
OF_MASKS = ("mean_iou", "main_loss", "auxiliary_loss")
OF_REWARDS = tuple(name for name in METRICS if name.startswith("reward_"))
OF_TASKS = {
    **dict.fromkeys(OF_MASKS, "masks"),
    **dict.fromkeys(OF_REWARDS, "rewards"),
    **dict.fromkeys(OF_QUANTILES, "quantiles"),
    **dict.fromkeys(OF_LABEL_SETS, "labels"),
    **dict.fromkeys(OF_EMBEDDINGS, "embeddings"),
}
OF_NUMBERS = tuple(name for name in METRICS if name not in (*OF_CLASSES, *OF_TASKS))


@pytest.mark.slow
@pytest.mark.parametrize("technique", problems.examples(), ids=problems.name_of)
def test_updates_and_evaluation_with_a_technique_make_no_float64(technique: Technique) -> None:
    if getattr(problems.oracle_of(technique), "CHANGES_WEIGHTS", False):
        pytest.skip("weights change their type, so that the model of the laws does not fit them alone")
    if technique.refused_by("mps") is not None:
        pytest.skip("it is refused there")
    problem = problems.main((technique,))
    step = problems.make_step(problem, (technique,), dtype=torch.float32, micro_batch=3)
    window, *_ = problem.windows(torch.float32)
    with WithoutFloat64():
        result = step(window)
        read_scalars(list(result.metrics.values()), assume=[])
        compare_rows(step, step.shared(Batch.of(window)), 4)
        found = evaluate(Scored.of(step), [Batch.of(window)], {})
    assert found["loss"] > 0


@pytest.mark.parametrize("technique", [Packing(), Compile(backend="eager")], ids=lambda t: t.card.name)
def test_checks_of_the_first_micro_batch_make_no_float64_on_the_device(technique: Technique) -> None:
    problem = problems.bert((technique,))
    step = problems.make_step(problem, (technique,), dtype=torch.float32)
    with WithoutFloat64():
        assert step(problem.windows(torch.float32)[0]).applied


def test_a_whole_run_with_metrics_makes_no_float64(tmp_path: Path) -> None:
    source = torch.Generator().manual_seed(0)
    rows = [(torch.randn(4, generator=source), torch.tensor(place % 3)) for place in range(16)]
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
    with WithoutFloat64():
        result = sf.train(
            model,
            rows,
            validation=0.25,
            metrics={**{name: name for name in OF_CLASSES}, "first": logits_of_class_0},
            techniques=[sf.EMA(), sf.ClipNorm(1.0)],
            updates=2,
            global_batch=4,
            micro_batch=2,
            output=tmp_path,
            track=False,
        )
    assert result.updates == 2


@pytest.mark.parametrize("name", OF_NUMBERS)
def test_a_metric_of_numbers_makes_no_float64_on_the_device(name: str) -> None:
    source = torch.Generator().manual_seed(0)
    window = (torch.randn(8, 4, generator=source), torch.randn(8, 1, generator=source))
    step = Step(nn.Linear(4, 1), sf.SGD(learning_rate=0.1), "mse", [])
    with WithoutFloat64():
        scores = evaluate(Scored.of(step), [Batch.of(window)], {name: name})
    assert scores[name] == scores[name]


@pytest.mark.parametrize("name", OF_TASKS)
def test_a_metric_of_a_task_makes_no_float64_on_the_device(name: str) -> None:
    source = torch.Generator().manual_seed(0)

    def drawn(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=source)

    outputs, data = {
        "masks": (
            {"logits": drawn(4, 6, 3), "auxiliary": drawn(4, 6, 3)},
            {"labels": torch.randint(0, 3, (4, 6), generator=source)},
        ),
        "rewards": ({"rewards": drawn(4, 2)}, {}),
        "quantiles": (
            {"logits": drawn(4, 6, 3), "levels": torch.tensor([[0.1, 0.5, 0.9]]).expand(4, 3)},
            {"labels": drawn(4, 6), "error_unit": torch.ones(4)},
        ),
        "labels": (drawn(4, 3), {"labels": torch.eye(4)[:, :3]}),
        "embeddings": (drawn(4, 2, 5), {"labels": torch.arange(8).view(4, 2)}),
    }[OF_TASKS[name]]
    metric = METRICS[name]()
    with WithoutFloat64():
        metric.update(outputs, Batch(data, rows=4))
        score = metric.compute(Strategy())
    assert score == score


def test_the_lint_refuses_float64_and_what_mixes_it_with_tensors_of_the_device() -> None:
    with WithoutFloat64():
        with pytest.raises(Float64Error, match="makes float64"):
            torch.ones(1).double()
        with pytest.raises(Float64Error, match="beside torch.float32"):
            in_float64(torch.ones(1)) + torch.ones(1)


def test_on_a_device_without_float64_tensors_are_compared_on_the_host(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    moved: list[Tensor] = []
    monkeypatch.setattr(rounding, "NO_FLOAT64", frozenset({"cpu"}))
    monkeypatch.setattr(Tensor, "cpu", lambda tensor: moved.append(tensor) or tensor)
    assert in_float64(torch.ones(1)).dtype == torch.float64
    assert len(moved) == 1


def test_scalars_are_read_in_the_widest_type_there_is_among_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a device they come in one tensor: float64 there only where a loss is."""
    read: list[torch.dtype] = []
    stack = torch.stack

    def stacked(tensors: list[Tensor]) -> Tensor:
        read.append(tensors[0].dtype)
        return stack([torch.zeros((), dtype=each.dtype) for each in tensors])

    monkeypatch.setattr(torch, "stack", stacked)
    on_device = [torch.ones((), device="meta", dtype=kind) for kind in (torch.float32, torch.bfloat16)]
    read_scalars([*on_device, torch.tensor(2)], assume=[])
    read_scalars([*on_device, torch.ones((), device="meta", dtype=torch.float64)], assume=[])
    assert read == [torch.float32, torch.float64]


def test_a_batch_in_float64_is_refused_by_name() -> None:
    batch = Batch.of((torch.ones(2, 3), torch.ones(2, dtype=torch.float64)))
    with pytest.raises(DataError, match=r"^batch: got a tensor in float64, and mps has none"):
        batch.to(MPS)


def test_a_model_in_float64_is_refused_by_name_before_it_is_moved() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    model[1].running_mean = model[1].running_mean.double()
    material = Material(model, [(torch.ones(2), torch.tensor(0))] * 4, None, "cross_entropy")
    with pytest.raises(SettingError, match=r"^model: '1.running_mean' is in float64, and mps has no float64"):
        make_step(Job.of(global_batch=2), Plan(device="mps"), material, sf.SGD(learning_rate=0.1), ())
    assert model[1].running_mean.dtype == torch.float64


@pytest.mark.parametrize("name", [*OFFLOADS, "nf4", "int8", "adamw_8bit", "fp8"])
def test_what_needs_memory_or_kernels_of_its_own_is_refused_there(name: str) -> None:
    technique = find(name)()
    with pytest.raises(PlanConflict, match=f"^techniques: '{name}' cannot be had on mps: "):
        check_on([technique], "mps")
    check_on([technique], "cuda")
    check_on([technique], "cpu")


@pytest.fixture
def mac(monkeypatch: pytest.MonkeyPatch) -> Device:
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    monkeypatch.setattr(torch.mps, "recommended_max_memory", lambda: 8 * 2**30)
    return find_device("mps")


def test_the_planner_weighs_nothing_that_is_refused_there_and_stays_at_full_precision(mac: Device) -> None:
    weighed = {
        each.card.name
        for each in [
            *placements(mac),
            *(each for level in Fidelity for each in coarser(level, mac)),
        ]
    }
    assert not weighed & {*OFFLOADS, "nf4", "int8", "adamw_8bit"}
    assert "recompute" in weighed
    on_cuda = replace(mac, kind="cuda")
    assert {*OFFLOADS} <= {each.card.name for each in placements(on_cuda)}
    assert usual_level(mac).label == "full"
    assert usual_precision(mac) is None


def test_memory_is_given_back_by_the_devices_own_function(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch's function for any accelerator raises on a Mac: "Allocator for mps is not a DeviceAllocator"."""
    emptied: list[str] = []
    monkeypatch.setattr(torch.mps, "empty_cache", lambda: emptied.append("mps"))
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: emptied.append("cuda"))
    monkeypatch.setattr(torch.accelerator, "empty_cache", lambda: emptied.append("any"))
    for device in ("mps", "cuda", "cpu"):
        release_memory(torch.device(device))
    assert emptied == ["mps", "cuda"]
