from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from snugfit.cli.plan import Asked, check
from snugfit.core.job import STRATEGY_NAMES, Checkpoint, Plan, StrategyName
from snugfit.core.technique import Fidelity, Technique
from snugfit.errors import SettingError
from snugfit.planner import sharing
from snugfit.planner.answers.answer import Answer
from snugfit.planner.choice.candidate import Budget, Candidate
from snugfit.planner.cost.communication import Cluster
from snugfit.planner.cost.records import Phase, Role, Trace
from snugfit.planner.devices.device import Device, Link, Machine
from snugfit.planner.devices.hardware import find_link
from snugfit.planner.plan import Request
from snugfit.planner.prediction.rank import Rank
from snugfit.planner.sharing import make_shared_plan
from snugfit.planner.trace.dry_run import Subject, dry_run
from snugfit.planner.trace.fake_ranks import DataParallelTwin, fake_ranks
from snugfit.strategies.fsdp import FullyShard
from snugfit.system.malloc import resident_bytes
from snugfit.techniques import find
from snugfit.techniques.learning.adamw import AdamW
from snugfit.techniques.learning.sam import SAM
from tests.unit.planner.dry import subject_of
from tests.unit.planner.shards import INPUTS, ROWS, WAYS, blocks, bytes_of, real_ranks

WEIGHTS = bytes_of(blocks().parameters())
COUNTERS = 4 * len(list(blocks().parameters()))  # AdamW's step of each parameter
FAST, SLOW = Link("fast", 1e15, 0.0), Link("slow", 1e6, 0.0)


@pytest.fixture(autouse=True)
def no_group_is_left() -> Any:
    yield
    assert not dist.is_initialized()


def machine(memory_bytes: int = 2**40) -> Machine:
    """A CPU that computes 1 TFLOP/s and is held up by matrix products alone; nothing of its memory is taken before a run."""
    device = Device(
        name="example",
        kind="cpu",
        memory_bytes=memory_bytes,
        flops={"float32": 1e12},
        bandwidth=1e18,
        efficiency={"matmul": 1.0, "convolution": 1.0, "attention": 1.0, "other": 1e6},
        reach=1.0,
        launch=0.0,
        host=0.0,
        view=0.0,
        mode=0.0,
        hook=0.0,
        update=0.0,
        reserved=0,
        host_link=FAST,
        peer_link=FAST,
    )
    return Machine(device, device, baseline=0)


def subject(model: nn.Module | None = None, *techniques: Technique) -> Subject:
    data = torch.randn(ROWS, INPUTS), torch.zeros(ROWS, dtype=torch.long)
    return subject_of(model or blocks(), data, (AdamW(learning_rate=1e-3), *techniques))


def traced(
    way: Callable[..., Any], *axes: int, micro_batch: int | None = None, of: Subject | None = None
) -> Trace:
    subject_ = of or subject()
    with fake_ranks(*axes) as mesh:
        return dry_run(subject_, Plan(micro_batch=micro_batch), subject_.techniques, strategy=way(mesh))


def live(trace: Trace, phase: Phase) -> dict[Role, int]:
    """Bytes by role when an operator of this phase ends the run of them."""
    last = max(place for place, op in enumerate(trace.ops) if op.place.phase is phase)
    found: dict[Role, int] = {}
    for _, storage, sign in list(trace.changes())[: trace.ops[last].event]:
        found[storage.role] = found.get(storage.role, 0) + sign * storage.bytes
    return found


def peak(trace: Trace) -> int:
    """The most bytes of an update, but for its inputs."""
    ops = [op for op in trace.ops if op.place.phase not in (Phase.SETUP, Phase.PRIME)]
    now, most = 0, 0
    for place, (_, storage, sign) in enumerate(trace.changes()):
        now += sign * storage.bytes if storage.role is not Role.INPUTS else 0
        most = max(most, now) if place >= ops[0].event else 0
    return most


def plan(
    memory_bytes: int,
    cluster: Cluster,
    search: bool = False,
    of: Subject | None = None,
    fewer: bool = True,
    asked: StrategyName | None = None,
) -> Answer:
    here = machine(memory_bytes)
    request = Request(Plan(micro_batch=2), Budget(memory_bytes, margin=0.0), search, fewer=fewer)
    return make_shared_plan(of or subject(), here, request, cluster, asked=asked)


@pytest.fixture(scope="module")
def copied() -> Answer:
    """The plan for two devices that have room for all of it."""
    return plan(2**40, Cluster(2, 1, FAST, FAST))


@pytest.mark.parametrize("world", [1, 2, 8])
def test_each_rank_keeps_its_part_of_weights_gradients_and_optimizer(world: int) -> None:
    found = live(traced(lambda mesh: FullyShard(mesh), world), Phase.OPTIMIZER)

    assert found[Role.WEIGHTS] == found[Role.GRADIENTS] == WEIGHTS // world
    assert found[Role.OPTIMIZER] == 2 * WEIGHTS // world + COUNTERS


def test_weights_are_whole_in_stage_2_until_the_last_backward_ends() -> None:
    trace = traced(lambda mesh: FullyShard(mesh, reshard_after_forward=False), 8)

    assert live(trace, Phase.LOSS)[Role.WEIGHTS] == WEIGHTS + WEIGHTS // 8
    assert live(trace, Phase.OPTIMIZER)[Role.WEIGHTS] == WEIGHTS // 8


def test_a_copy_of_the_model_has_its_gradients_a_second_time_in_buckets() -> None:
    found = live(traced(lambda mesh: DataParallelTwin(at_once_bytes=0), 8), Phase.OPTIMIZER)

    assert found[Role.WEIGHTS] == WEIGHTS
    assert found[Role.GRADIENTS] == 2 * WEIGHTS


def test_the_parts_of_a_sharded_model_are_told_whole() -> None:
    parts = traced(lambda mesh: FullyShard(mesh), 8).parts

    assert sum(parts.blocks) + parts.outside == WEIGHTS
    assert parts.trained_blocks == parts.blocks


def test_no_device_has_the_model_whole_while_it_is_sharded() -> None:
    trace = traced(lambda mesh: FullyShard(mesh), 8)
    now, most = 0, 0
    for _, storage, sign in list(trace.changes())[: trace.ops[-1].event]:
        if (
            storage.role is Role.WEIGHTS
            and storage.op >= 0
            and trace.ops[storage.op].place.phase is Phase.SETUP
        ):
            now += sign * storage.bytes
            most = max(most, now)

    assert most <= WEIGHTS // 8 + max(trace.parts.blocks)


def test_integers_of_a_quantised_weight_are_sharded_too() -> None:
    from snugfit.techniques.learning.lora import LoRA
    from snugfit.techniques.numerics.nf4 import NF4

    alone = live(traced(lambda mesh: None, 1, of=subject(blocks(), NF4(), LoRA())), Phase.OPTIMIZER)
    shared = live(
        traced(lambda mesh: FullyShard(mesh), 8, of=subject(blocks(), NF4(), LoRA())), Phase.OPTIMIZER
    )

    assert shared[Role.WEIGHTS] == pytest.approx(alone[Role.WEIGHTS] / 8, rel=0.02)


def test_micro_batches_of_a_sharded_model_under_bf16_are_planned() -> None:
    """The order in which FSDP2 joins weights, which is looked at while they are watched, is taken as it should be."""
    from snugfit.techniques.numerics.bf16 import BF16

    found = traced(lambda mesh: FullyShard(mesh), 8, micro_batch=ROWS // 2, of=subject(blocks(), BF16()))
    assert live(found, Phase.OPTIMIZER)[Role.WEIGHTS] == WEIGHTS // 8


class Masked(nn.Module):
    """Asks for the values of its mask, as models of transformers do."""

    def __init__(self) -> None:
        super().__init__()
        self.body = blocks()

    def forward(self, numbers: torch.Tensor, attention_mask: torch.Tensor) -> Any:
        return self.body(numbers if attention_mask.all() else numbers * attention_mask)


@pytest.mark.parametrize("way", ["ddp", "zero_3"])
def test_groups_of_a_window_on_ranks_are_planned_with_all_of_their_passes(way: str) -> None:
    """Two groups of as many rows as a rank has, each twice; of what comes from other ranks the mask is known."""
    data = {
        "numbers": torch.randn(ROWS, INPUTS),
        "attention_mask": torch.ones(ROWS, INPUTS, dtype=torch.long),
        "labels": torch.zeros(ROWS, dtype=torch.long),
    }
    adamw = AdamW(learning_rate=1e-3)
    alone, groups = (
        traced(WAYS[way][1], 2, of=subject_of(Masked(), data, (adamw, *more)))
        for more in ((), (SAM(m=ROWS),))
    )
    products = [
        sum(op.place.phase is Phase.FORWARD and "mm" in op.name for op in trace.ops)
        for trace in (alone, groups)
    ]
    assert products[0] > 0 and products[1] == 4 * products[0]


@pytest.mark.slow
def test_rank_0_of_two_real_ones_needs_what_the_dry_run_says(tmp_path: Path) -> None:
    for name, real in real_ranks(tmp_path).items():
        found = peak(traced(WAYS[name][1], 2, micro_batch=ROWS // 2))
        # the state of random numbers is kept meanwhile, which the count of the real ones does not see
        assert found - torch.get_rng_state().nbytes == pytest.approx(real[-1][1], abs=8), name


@pytest.mark.slow
def test_a_model_that_fits_is_copied_to_each_device(copied: Answer) -> None:
    assert copied.fits
    assert (copied.choice.strategy, copied.choice.devices) == ("ddp", 2)
    assert copied.prediction.peak_by_kind["weights"] == WEIGHTS
    assert {each.choice.strategy for each in copied.alternatives} >= {"single", "fsdp"}


@pytest.mark.slow
def test_a_model_that_does_not_fit_is_sharded() -> None:
    """A copy has its weights, two moments, gradients and buckets: five times the weights."""
    memory = resident_bytes(4 * WEIGHTS, 0)
    found = plan(memory, Cluster(8, 1, FAST, FAST))

    assert found.fits
    assert found.choice.strategy.startswith("fsdp")
    assert found.prediction.reserved_bytes <= memory
    assert any(each.rung.startswith("ddp") for each in found.rejected)


@pytest.mark.slow
def test_one_device_is_enough_where_the_link_is_slower_than_computing() -> None:
    found = plan(2**40, Cluster(2, 1, SLOW, FAST))

    assert (found.choice.strategy, found.choice.devices) == ("single", 1)
    assert found.prediction.examples_per_second * found.prediction.seconds_per_update == pytest.approx(ROWS)


def test_a_run_that_has_its_devices_is_not_put_on_one_of_them() -> None:
    """Its links are slow, so that one device would be faster."""
    found = plan(2**40, Cluster(2, 1, SLOW, FAST), fewer=False)

    assert (found.choice.strategy, found.choice.devices) == ("ddp", 2)


@pytest.mark.slow
def test_where_the_optimizer_takes_the_time_its_states_are_spread() -> None:
    slow = replace(machine(), device=replace(machine().device, bandwidth=1e6))
    request = Request(Plan(), Budget(2**40, margin=0.0), False)
    found = make_shared_plan(subject(), slow, request, Cluster(2, 1, FAST, FAST))

    assert found.choice.strategy == "fsdp-zero2"


@pytest.mark.slow
def test_a_search_finds_the_way_that_is_fastest_of_those_that_fit() -> None:
    """A copy has five times the weights; over a slow link one device is faster than two, where it has room."""
    near, far, narrow = (
        plan(memory, Cluster(2, 1, link, link), search=True)
        for memory, link in ((2**40, FAST), (2**40, SLOW), (resident_bytes(4 * WEIGHTS, 0), FAST))
    )

    assert near.fits and near.choice.devices == 2
    assert (far.choice.strategy, far.choice.devices) == ("single", 1)
    assert narrow.fits and narrow.choice.strategy.startswith("fsdp")


def searched(
    monkeypatch: pytest.MonkeyPatch,
    plans: dict[str, tuple[float, str, int]],
    kind: str = "cuda",
    given: dict[str, float | None] | None = None,
    **wish: Any,
) -> tuple[str, list[str]]:
    """The way that is chosen where each comes to these seconds, with this technique, in so many bytes; and the ways that were looked at.

    Devices wait for each other for no time. `given` gets the seconds that the search of each way may take.
    """
    gpu = replace(machine(), device=replace(machine().device, kind=kind))
    request = Request(Plan(), Budget(2**40, fidelity=Fidelity.QUANTIZED, margin=0.0), **wish)
    shared = sharing._Shared(subject(), gpu, request, Cluster(2, 1, FAST, FAST), {}, None)
    looked: list[str] = []

    def run(self: Any, way: str, request: Request, rivals: Any = ()) -> Any:
        looked.append(way)
        if given is not None:
            given[way] = request.seconds
        if way not in plans:
            self.outcomes[way] = SimpleNamespace(choice=None)
            return None
        seconds, technique, size = plans[way]
        prediction: Any = SimpleNamespace(seconds_per_update=seconds, most_bytes=size)
        candidate = Candidate((find(technique)(),), 1, (technique,), prediction, True)
        self.outcomes[way] = SimpleNamespace(choice=candidate)
        return SimpleNamespace(fits=True, way=way)

    monkeypatch.setattr(sharing._Shared, "_run", run)
    monkeypatch.setattr(sharing._Shared, "_waits", lambda self, way: 0.0)
    answer: Any = shared._searched()
    return answer.way, looked


@pytest.mark.parametrize("way", ["single", "fsdp-offload"])
def test_a_finer_plan_is_found_that_one_device_or_the_host_alone_has_room_for(
    way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spread over the devices it fits beneath adapters alone, which are hardly faster."""
    chosen, looked = searched(monkeypatch, {"fsdp": (1.0, "lora", 5), way: (1.2, "bf16", 5)})

    assert chosen == way
    assert not {"ddp", "fsdp-zero2"} & {*looked}


def test_the_ways_share_the_seconds_that_the_search_may_take(monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, float | None] = {}
    searched(monkeypatch, {"ddp": (1.0, "bf16", 5)}, given=given, seconds=0.1)
    assert 0.049 <= (given["fsdp"] or 0) <= 0.05
    assert all(each is not None and 0 < each <= 0.05 for each in given.values())
    searched(monkeypatch, {"ddp": (1.0, "bf16", 5)}, given=given)
    assert {*given.values()} == {None}


def test_where_nothing_fits_in_parts_whole_weights_are_not_gathered_for_longer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A copy of its own may fit, as frozen weights that are streamed are in no parts."""
    chosen, looked = searched(monkeypatch, {"ddp": (1.0, "lora", 5), "fsdp-zero2": (0.5, "lora", 5)})

    assert chosen == "ddp" and "fsdp-zero2" not in looked


def test_the_host_is_looked_at_where_nothing_else_fits_that_is_as_fine_or_the_least_is_wanted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plans = {"fsdp": (1.0, "bf16", 5), "fsdp-offload": (1.6, "adamw", 2)}

    assert "fsdp-offload" not in searched(monkeypatch, plans)[1]
    assert searched(monkeypatch, plans, goal="finest")[0] == "fsdp-offload"
    assert searched(monkeypatch, plans, goal="smallest")[0] == "fsdp-offload"
    assert searched(monkeypatch, plans, goal="smallest", slower=1.1)[0] == "fsdp"
    assert "fsdp-offload" not in searched(monkeypatch, plans, kind="cpu", goal="finest")[1]


@pytest.mark.parametrize(("tool", "hybrid"), [(None, True), ("hf", False), ("deepspeed", False)])
def test_a_plan_to_be_exported_shares_in_no_way_that_the_tool_has_not(tool: str | None, hybrid: bool) -> None:
    request = Request(Plan(), Budget(2**40, margin=0.0), export=tool)
    shared = sharing._Shared(subject(), machine(), request, Cluster(2, 2, FAST, SLOW), {}, None)
    ways = {name for name in STRATEGY_NAMES if shared._may_be(name)}
    assert ways == {"ddp", "fsdp", "fsdp-zero2", *(["fsdp-hybrid"] if hybrid else [])}


@pytest.mark.slow
@pytest.mark.parametrize("search", [False, True])
def test_the_way_to_share_that_was_asked_for_is_the_only_one(search: bool) -> None:
    """A copy does not fit, and spreading the model would."""
    memory = resident_bytes(4 * WEIGHTS, 0)
    found = plan(memory, Cluster(8, 1, FAST, FAST), search, asked="ddp")

    assert not found.fits
    assert found.choice.strategy == "ddp"
    assert found.prediction.reserved_bytes > memory


@pytest.mark.slow
@pytest.mark.parametrize("search", [True, False])
def test_what_fits_no_way_is_said_with_the_least_that_was_found(search: bool) -> None:
    found = plan(WEIGHTS // 4, Cluster(2, 1, FAST, FAST), search)

    assert not found.fits
    assert found.prediction.reserved_bytes > WEIGHTS // 4
    assert "does not fit" in found.rules[-1]
    assert bool(found.would_fit) is search


def test_seconds_have_what_is_waited_for() -> None:
    """Two devices at 1 MB/s send 2 · 1/2 of the gradients, of which backward hides next to nothing."""
    one, other = (
        Rank(
            subject(),
            machine(),
            cluster=Cluster(2, 1, link, link),
            way="ddp",
            window=subject().window,
        ).predict(Plan(), subject().techniques)
        for link in (FAST, SLOW)
    )

    assert other.seconds_per_update - one.seconds_per_update == pytest.approx(WEIGHTS / 1e6, rel=0.01)


@pytest.mark.parametrize(("way", "mebibytes"), [("ddp", 688), ("fsdp", 688), ("fsdp-hybrid", 2 * 544)])
def test_what_nccl_takes_of_a_gpu_is_reserved_and_said(way: StrategyName, mebibytes: int) -> None:
    link = find_link("nvlink3")
    of_gpu = machine()
    kind = replace(of_gpu.device, kind="cuda")

    def reserved(device: Device) -> tuple[int, str]:
        rank = Rank(
            subject(),
            replace(of_gpu, device=device),
            cluster=Cluster(2, 2, link, link),
            way=way,
            window=subject().window,
        )
        found = rank.predict(Plan(), subject().techniques)
        return found.reserved_bytes, found.confidence["memory"]

    (without, silent), (with_it, said) = reserved(of_gpu.device), reserved(kind)
    assert with_it - without == mebibytes << 20
    assert "NCCL, predicted" in said and "NCCL" not in silent


@pytest.mark.parametrize(("way", "counters"), [("ddp", 1), ("fsdp", 2)])
def test_what_is_saved_beside_the_run_is_on_a_node_once_whoever_copies_it(
    way: StrategyName, counters: int
) -> None:
    """The first process has all of it, or each its share; of AdamW's counters each has its own."""
    waiting = subject()
    beside = replace(waiting, job=replace(waiting.job, checkpoint=Checkpoint(save="async")))
    one, other = (
        Rank(
            each,
            machine(),
            cluster=Cluster(2, 1, FAST, FAST),
            way=way,
            window=each.window,
        ).predict(Plan(), each.techniques)
        for each in (waiting, beside)
    )

    expected = 3 * WEIGHTS + counters * COUNTERS
    # what a process held before it copied is told by its peak, in which there is a generator's state
    assert other.host_peak_bytes - one.host_peak_bytes == pytest.approx(expected, abs=8192)


def test_examples_a_second_are_those_of_all_devices(copied: Answer) -> None:
    found = copied.prediction

    assert found.examples_per_second * found.seconds_per_update == pytest.approx(ROWS)


def test_a_window_of_fewer_examples_than_devices_is_refused() -> None:
    with pytest.raises(SettingError, match=rf"{2 * ROWS} devices cannot share a window of {ROWS} examples"):
        plan(2**40, Cluster(2 * ROWS, 1, FAST, FAST))


def test_a_torch_optimizer_is_refused_where_the_model_would_be_sharded() -> None:
    model = blocks()
    data = torch.randn(ROWS, INPUTS), torch.zeros(ROWS, dtype=torch.long)
    of = subject_of(model, data, optimizer=torch.optim.AdamW(model.parameters()))

    with pytest.raises(SettingError, match="holds the whole parameters"):
        plan(resident_bytes(4 * WEIGHTS, 0), Cluster(8, 1, FAST, FAST), of=of)


@pytest.mark.parametrize("given", [{"nodes": 2}, {"network": "ethernet-25"}, {"nodes": 0}])
def test_nodes_and_the_network_between_them_go_together(given: dict[str, Any]) -> None:
    with pytest.raises(SettingError, match="--n"):
        check(replace(Asked(devices=2), **given))
