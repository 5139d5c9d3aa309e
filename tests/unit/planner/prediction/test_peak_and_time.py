"""The planner's page says of its accuracy what was measured."""

from __future__ import annotations

import copy
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from torch import nn

from snugfit.core.batch import Batch
from snugfit.core.job import Job, Plan
from snugfit.core.technique import Technique
from snugfit.planner.cost import roofline
from snugfit.planner.cost.allocator import LARGE_SEGMENT
from snugfit.planner.cost.records import Parts, Phase, Trace
from snugfit.planner.cost.roofline import combined
from snugfit.planner.devices.device import Device, Machine
from snugfit.planner.devices.hardware import find_device
from snugfit.planner.prediction import plan_needs
from snugfit.planner.prediction.allocations import Allocations
from snugfit.planner.prediction.depth import Fewer
from snugfit.planner.prediction.extrapolate import NotLinear
from snugfit.planner.prediction.peak_and_time import Run, _ahead_bytes, _before_and_after_waiting
from snugfit.planner.prediction.plan_needs import Depths, Planner
from snugfit.planner.target import Target, machine_of
from snugfit.planner.trace.dry_run import Subject
from snugfit.planner.trace.segments import ROLES, Key, Segment
from snugfit.planner.worker import Worker
from snugfit.techniques import find
from snugfit.techniques.learning.freeze import Freeze

ROOT = Path(__file__).resolve().parents[4]


def newest(benchmark: str) -> dict[str, Any]:
    path = max((ROOT / "benchmarks/planner/results").glob(f"{benchmark}-*.json"))
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def page() -> str:
    return " ".join((ROOT / "docs/planner.md").read_text().split())


def test_errors_by_kind_of_model_are_those_of_the_newest_runs() -> None:
    runs = newest("memory")["allocated"]
    worst = {
        kind: max(abs(run["error"]) for run in runs if run["kind"] == kind)
        for kind in ("transformer", "convolution", "other")
    }
    assert (
        f"of {len(runs)} runs on one CPU the peak of transformers was off by {worst['transformer']:.3%} at most, that of "
        f"convolutions by {worst['convolution']:.3%}, that of others, such as an LSTM, by {worst['other']:.3%}."
    ) in page()


def test_how_far_a_process_exceeds_its_prediction_is_that_of_the_newest_runs() -> None:
    runs = newest("memory")["resident"]
    above = [run["measured_bytes"] / run["predicted_bytes"] - 1 for run in runs]
    most = f"{max(above):.1%} more than predicted at most" if max(above) > 0 else "no more than predicted"
    assert (
        f"in {len(runs)} measured runs a process was resident with {most}, and with {-min(above):.1%} less."
    ) in page()


def test_the_host_has_the_window_that_is_fetched_while_a_device_computes() -> None:
    """It is held in pinned memory, which it is copied to; on a CPU nothing is fetched meanwhile (data/loader.py)."""
    window = Batch.of((torch.zeros(6, 1000), torch.zeros(6, dtype=torch.int64)))
    subject = Subject(
        lambda: nn.Linear(1000, 2), window, Job.of(global_batch=6, updates=2), 6, (), "cross_entropy"
    )
    gpu, cpu = (
        Machine(find_device(name), find_device("cpu"), kind)
        for name, kind in (("rtx4090", "cuda"), ("cpu", "cpu"))
    )
    assert _ahead_bytes(subject, gpu) == 2 * (6 * 1000 * 4 + 6 * 8)
    assert _ahead_bytes(subject, cpu) == 0


@pytest.mark.parametrize("folder", [None, "never-made"])
def test_a_plan_that_streams_from_files_reads_the_disk(
    folder: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    window = Batch.of((torch.zeros(2, 8), torch.zeros(2, dtype=torch.int64)))
    techniques = (find("adamw")(learning_rate=0.1), find("weight_streaming")(folder=folder))
    subject = Subject(
        lambda: nn.Sequential(nn.Linear(8, 8).requires_grad_(False), nn.Linear(8, 2)),
        window,
        Job.of(global_batch=2, updates=2),
        2,
        techniques,
        "cross_entropy",
    )
    asked: list[bool] = []

    def pricing(device: Device, host: Device, tf32: bool, from_disk: bool) -> Any:
        asked.append(from_disk)
        return roofline.pricing(device, host, tf32, from_disk)

    monkeypatch.setattr(plan_needs, "pricing", pricing)
    cpu = find_device("cpu")
    Planner(subject, Machine(cpu, cpu)).predict(Plan(device="cpu"), techniques)
    assert asked == [folder is not None]


def test_published_runs_above_their_prediction_are_told() -> None:
    lines = (ROOT / "benchmarks/planner/results/published.jsonl").read_text().splitlines()
    runs = [run for line in lines for run in json.loads(line)["runs"] if run["measured_gib"] is not None]
    above = sorted(excess for run in runs if (excess := run["measured_gib"] / run["predicted_gib"] - 1) > 0)
    *few, _, most = above
    assert (
        f"{len(few)} of the runs below that others published lie above their prediction, by up to {max(few):.1%}, and 70B on two "
        f"cards of either kind by {most:.1%}"
    ) in page()


def test_nothing_that_came_before_runs_beside_what_the_host_does_after_it_has_waited() -> None:
    def piece(phase: Phase, device: float, host: float) -> Segment:
        costs = np.array([device, 0.0, 0.0, host, 0.0])
        return Segment(Key(0, phase, 0, 0, 0, -1), np.zeros(len(ROLES)), 0, "", "", costs, 0, 0, 2)

    pieces = [
        piece(Phase.FORWARD, 3.0, 1.0),
        piece(Phase.BACKWARD, 5.0, 2.0),
        piece(Phase.OPTIMIZER, 1.0, 4.0),
    ]
    passes, rest = _before_and_after_waiting(pieces)
    gpu = find_device("h100")
    assert (combined(passes, gpu), combined(rest, gpu)) == (16.0, 8.0)


class _Reader(nn.Module):
    """Blocks with activations of several sizes, which tear the memory of a device."""

    def __init__(self, depth: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(768), nn.Linear(768, 3000), nn.GELU(), nn.Linear(3000, 768))
            for _ in range(depth)
        )
        self.head = nn.Linear(768, 10)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            inputs = inputs + block(inputs)
        scores: torch.Tensor = self.head(inputs)
        return scores


SETS: tuple[Any, ...] = (
    (("adamw",), 1500),
    pytest.param(("adamw", "recompute"), 1500, marks=pytest.mark.release),
    pytest.param(("adamw", "bf16", "chunked_loss"), 1500, marks=pytest.mark.release),
    (("adamw", "master_weights", "optimizer_offload"), 600),
)


def _beside_what_is_asked(names: Sequence[str], micro_batch: int) -> list[tuple[int, int]]:
    """Return the peak of 40 blocks, and what the allocator takes beyond it, as few of them tell roughly and in full, and as all of them do."""
    window = Batch.of((torch.zeros(3000, 768), torch.zeros(3000, dtype=torch.int64)))
    techniques = tuple(find(name).example() for name in names)
    subject = Subject(lambda: _Reader(40), window, Job.of(global_batch=3000, updates=2), 3000, techniques)
    plan, figures = Plan(device="cuda", micro_batch=micro_batch), []
    with machine_of(Target(device="rtx4090")) as machine:
        for whole, rough in ((False, True), (False, False), (True, False)):
            made = Planner(subject, machine, whole=whole).predict(plan, techniques, rough=rough)
            figures.append((made.peak_bytes, made.reserved_bytes - made.peak_bytes - machine.device.reserved))
    return figures


@pytest.mark.slow
@pytest.mark.parametrize(("names", "micro_batch"), SETS)
def test_what_the_allocator_takes_beside_many_blocks_is_told_by_few_roughly(
    names: tuple[str, ...], micro_batch: int
) -> None:
    """Most of it are the rests of segments of 20 MiB, in each of which two weights of 9 MiB lie; in full they are those of all blocks.

    The inputs of micro-batches that are not run may lie in what is told to be torn.
    """
    rough, full, whole = Worker().run(_beside_what_is_asked, names, micro_batch, timeout=300)
    assert whole[1] > 0.08 * whole[0]
    assert rough[1] == pytest.approx(whole[1], abs=0.02 * whole[0])
    left_out = max(3000 - 3 * micro_batch, 0) * 768 * 4
    assert full[0] == whole[0]
    assert whole[1] <= full[1] <= whole[1] + 2 * left_out


def test_what_each_block_keeps_counts_for_all_blocks_and_what_comes_and_goes_once() -> None:
    cpu = find_device("cpu")
    subject = Subject(lambda: nn.Linear(1, 1), Batch.of((torch.zeros(1, 1),)), Job.of(updates=1), 1, ())
    planner = Planner(subject, Machine(cpu, cpu))
    mib = 2**20
    one, two = (
        Run([], torn, (), Parts(), 1.0, at_peak=Counter({9 * mib: count, 300 * mib: 1}))
        for torn, count in ((70 * mib, 8), (60 * mib, 10))
    )
    rest = 2 * mib  # of a segment of 20 MiB
    assert planner._torn_deep(one, two, 30) == 70 * mib + 30 * rest
    planner.machine = replace(planner.machine, expandable_segments=True)
    assert planner._torn_deep(one, two, 30) < 70 * mib + LARGE_SEGMENT


def _deep_planner(depth: int, micro_batches: int) -> Planner:
    window = Batch.of((torch.zeros(micro_batches, 1),))
    layers = [nn.Sequential(nn.Linear(1, 1), nn.ReLU()) for _ in range(depth)]
    subject = Subject(lambda: nn.Sequential(*layers), window, Job.of(updates=1), 1, ())
    return Planner(subject, Machine(find_device("a100-80"), find_device("cpu"), "cuda:0"))


@pytest.mark.parametrize(
    ("depth", "rough", "runs"),
    [(12, True, [3, 4]), (12, False, [None]), (16, False, [4, 5, 6]), (7, True, [None])],
)
def test_two_runs_of_few_blocks_tell_roughly_of_a_list_too_short_for_the_three_of_an_answer_in_full(
    depth: int, rough: bool, runs: list[int | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    planner, asked = _deep_planner(depth, 1), []

    def run(plan: Plan, techniques: Sequence[Technique], depths: Depths | None, few: int | None) -> Run:
        asked.append(depths and depths[0])
        return Run([], 0, (), Parts(), 1.0)

    monkeypatch.setattr(planner, "run", run)
    monkeypatch.setattr(planner, "_torn_of_all", lambda *given: 0)
    planner._run_of(Plan(device="cuda", micro_batch=1), (), rough)
    assert asked == runs


@pytest.mark.parametrize(
    ("counts", "rough", "runs"),
    [
        ((24, 24), True, [(3, 3), (4, 4)]),
        ((24, 24), False, [(4, 4), (5, 5), (6, 6)]),
        ((12, 24), True, [(3, 6), (4, 8)]),
        ((12, 12), False, [None]),  # three runs of both are more than one of all
    ],
)
def test_few_blocks_of_an_encoder_and_of_its_decoder_are_run_at_once(
    counts: tuple[int, int], rough: bool, runs: list[Depths | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder, decoder = (nn.Sequential(*(nn.Linear(1, 1) for _ in range(count))) for count in counts)
    model = nn.ModuleDict({"encoder": encoder, "decoder": decoder})
    subject = Subject(lambda: model, Batch.of((torch.zeros(1, 1),)), Job.of(updates=1), 1, ())
    planner = Planner(subject, Machine(find_device("a100-80"), find_device("cpu"), "cuda:0"))
    asked: list[Depths | None] = []

    def run(plan: Plan, techniques: Sequence[Technique], depths: Depths | None, few: int | None) -> Run:
        asked.append(depths)
        return Run([], 0, (), Parts(), 1.0)

    monkeypatch.setattr(planner, "run", run)
    monkeypatch.setattr(planner, "_torn_of_all", lambda *given: 0)
    planner._run_of(Plan(device="cuda", micro_batch=1), (), rough)
    assert asked == runs


def test_a_list_whose_blocks_a_pattern_tells_apart_stays_whole_beside_another_one() -> None:
    encoder, decoder = (nn.Sequential(*(nn.Linear(4, 4) for _ in range(count))) for count in (20, 60))
    model = nn.ModuleDict({"encoder": encoder, "decoder": decoder})
    subject = Subject(lambda: model, Batch.of((torch.zeros(1, 4),)), Job.of(updates=1), 1, ())
    planner = Planner(subject, Machine(find_device("cpu"), find_device("cpu")))
    frozen = Freeze(patterns=("encoder.[0-9].*",))
    found = [base for _, base in planner._bases(False, frozenset(), (frozen,), rough=True)]
    assert found[0] == Fewer((20, 3), (0, 1))


def _encoder_and_decoder(
    encoder: int, decoder: int, names: Sequence[str], micro_batch: int
) -> list[tuple[float, ...]]:
    """Return what an encoder with its decoder needs, told by few blocks, and run with all of them."""
    own = {"vocab_size": 100, "d_model": 32, "d_kv": 16, "d_ff": 64, "num_heads": 2}
    config = transformers.T5Config(
        **own, num_layers=encoder, num_decoder_layers=decoder, decoder_start_token_id=0
    )
    with torch.device("meta"):
        network = transformers.T5ForConditionalGeneration(config)
    texts, labels = (torch.zeros(4, length, dtype=torch.int64) for length in (40, 16))
    window = Batch.of({"input_ids": texts, "attention_mask": torch.ones_like(texts), "labels": labels})
    techniques = tuple(find(name).example() for name in names)
    job = Job.of(global_batch=4, updates=2)
    subject = Subject(lambda: copy.deepcopy(network), window, job, 4, techniques)
    plan = Plan(device="cuda", micro_batch=micro_batch)
    figures: list[tuple[float, ...]] = []
    with machine_of(Target(device="rtx4090")) as machine:
        for whole in (False, True):
            planner = Planner(subject, machine, whole=whole)
            run, exact = planner.run_of(plan, techniques)
            assert exact is whole
            made = planner.prediction_of_run(run, plan, techniques, exact)
            seconds = round(made.seconds_per_update, 12)
            bytes = made.peak_bytes, made.reserved_bytes, made.host_peak_bytes
            figures.append((*bytes, made.flops_per_update, seconds, run.parts.whole(planner.depth)[1]))
    return figures


@pytest.mark.slow
@pytest.mark.parametrize(
    ("encoder", "decoder", "names", "micro_batch"),
    [
        (20, 20, ("adamw", "bf16", "clip_norm"), 4),
        (20, 20, ("adamw", "lora", "nf4", "recompute"), 1),
        (21, 41, ("adamw", "bf16"), 2),
    ],
)
def test_few_blocks_of_an_encoder_and_of_its_decoder_tell_what_all_of_both_need(
    encoder: int, decoder: int, names: tuple[str, ...], micro_batch: int
) -> None:
    told, whole = Worker().run(_encoder_and_decoder, encoder, decoder, names, micro_batch, timeout=300)
    assert told == whole


def test_where_few_blocks_of_a_short_list_tell_nothing_all_are_run_the_next_time_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    planner, asked = _deep_planner(12, 1), []

    def run(plan: Plan, techniques: Sequence[Technique], depths: Depths | None, few: int | None) -> Run:
        asked.append(depths and depths[0])
        if depths is not None:
            raise NotLinear("they differ")
        return Run([], 0, (), Parts(), 1.0)

    monkeypatch.setattr(planner, "run", run)
    for micro_batch in (1, 2):
        planner._run_of(Plan(device="cuda", micro_batch=micro_batch), (), rough=True)
    assert asked == [3, None, None]


def _whole_runs(planner: Planner, torn: int, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int | None, ...]]:
    """Have all runs take so many bytes beside what is asked for, from streams that tell nothing; those of all blocks are listed."""
    asked: list[tuple[int | None, ...]] = []
    alike = Key(0, Phase.SETUP, 0, 0, 0, -1)
    stream = replace(Allocations.of(Trace(), "cuda"), keys=(alike, alike))

    def run_once(plan: Plan, techniques: Sequence[Technique], depths: Depths | None, few: int | None) -> Run:
        asked.extend([(None, few)] if depths is None else [])
        return Run([], torn, (), Parts(), 1.0, allocations=stream)

    monkeypatch.setattr(planner, "_run_once", run_once)
    return asked


@pytest.mark.parametrize(
    ("depth", "micro_batches", "few"), [(32, 16, 3), (32, 2, None), (80, 1, None), (80, 16, 1), (200, 16, 1)]
)
def test_all_blocks_are_run_for_the_allocator_in_as_many_micro_batches_as_do_not_take_long(
    depth: int, micro_batches: int, few: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    planner = _deep_planner(depth, micro_batches)
    asked = _whole_runs(planner, 60, monkeypatch)
    planner._torn_of_all(
        Plan(device="cuda", micro_batch=1), (), Fewer((4,), (1,)), None, Run([], 70, (), Parts(), 1.0)
    )
    assert asked == [(None, few)]


def test_a_model_that_is_not_there_is_never_run(monkeypatch: pytest.MonkeyPatch) -> None:
    planner = _deep_planner(32, 5)
    asked = _whole_runs(planner, 60, monkeypatch)
    planner.wanted = 40
    monkeypatch.setattr(planner, "_deep", lambda *given, **more: Run([], 70, (), Parts(), 1.0))
    assert (
        planner._carried_on(Plan(device="cuda", micro_batch=1), (), Fewer((4,), (1,)), None, rough=False).torn
        == 70
    )
    assert asked == []


@pytest.mark.parametrize(
    ("depth", "few", "all_blocks", "torn"), [(32, 70, 60, 60), (80, 70, 60, 70), (80, 70, 90, 90)]
)
def test_few_blocks_count_where_all_were_run_in_too_few_micro_batches_to_find_gradients(
    depth: int, few: int, all_blocks: int, torn: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    planner = _deep_planner(depth, 5)
    _whole_runs(planner, all_blocks, monkeypatch)
    monkeypatch.setattr(planner, "_deep", lambda *given, **more: Run([], few, (), Parts(), 1.0))
    run = planner._carried_on(Plan(device="cuda", micro_batch=1), (), Fewer((4,), (1,)), None, rough=False)
    assert run.torn == torn
