from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.device_mesh import DeviceMesh

from snugfit.core.layers import repeated_blocks
from snugfit.errors import SettingError
from snugfit.planner.trace.fake_ranks import DataParallelTwin, buckets_of, fake_ranks
from snugfit.planner.trace.fake_tensors import fake_
from snugfit.strategies import ddp
from snugfit.strategies.ddp import DataParallel
from snugfit.strategies.fsdp import FullyShard
from tests.unit.planner.shards import (
    ROWS,
    WAYS,
    blocks,
    bytes_of,
    real_ranks,
    sent,
    updates,
)
from tests.unit.strategies.ranks import group

WEIGHTS = bytes_of(blocks().parameters())
SCALARS = 2 * 4  # the loss and its weight, in float32
FINITE = 4  # whether a shard of the gradients is
ROWS_TOLD = 4  # the examples of the window on all ranks


@pytest.fixture
def eight() -> Iterator[DeviceMesh]:
    """Eight ranks and tensors that are fake."""
    with fake_ranks(8) as mesh, FakeTensorMode(allow_non_fake_inputs=True):
        yield mesh


@pytest.mark.parametrize("axes", [(), (0,), (2, 2, 2)])
def test_axes_that_are_no_mesh_are_refused(axes: tuple[int, ...]) -> None:
    with pytest.raises(SettingError, match="one or two positive numbers"), fake_ranks(*axes):
        pass


def test_a_process_that_is_one_of_several_does_not_plan_and_keeps_its_group(tmp_path: Path) -> None:
    with group(tmp_path):
        with pytest.raises(SettingError, match="one of 1 that train together"), fake_ranks(2):
            pass
        assert dist.get_backend() == "gloo"


def test_the_group_is_gone_after_an_error() -> None:
    with pytest.raises(ZeroDivisionError), fake_ranks(2):
        raise ZeroDivisionError
    assert not dist.is_initialized()


def test_a_mesh_is_made_within_a_fake_mode_too() -> None:
    with FakeTensorMode(), fake_ranks(2, 4) as mesh:
        assert (mesh.size(0), mesh.size(1)) == (2, 4)


@pytest.mark.parametrize("world", [2, 8, 64])
def test_each_rank_keeps_its_part_of_gradients_and_moments(world: int) -> None:
    with fake_ranks(world) as mesh, FakeTensorMode(allow_non_fake_inputs=True):
        after = updates(FullyShard(mesh), None)[-1][0]

    shard = WEIGHTS // world  # of weights, which were made within; gradients; two moments
    counters = 4 * len(list(blocks().parameters()))  # AdamW's step of each parameter
    assert after == 4 * shard + counters


def test_stage_3_gathers_every_weight_twice_a_micro_batch(eight: DeviceMesh) -> None:
    found = sent(FullyShard(eight), ROWS // 2)

    assert found == {
        "c10d::_allgather_base_": 2 * 2 * WEIGHTS,
        "c10d::_reduce_scatter_base_": 2 * WEIGHTS,
        "c10d::allreduce_": SCALARS + FINITE,
    }


def test_gradients_that_are_kept_whole_are_sent_once_an_update(eight: DeviceMesh) -> None:
    found = sent(FullyShard(eight, reduce_each=False), ROWS // 2)

    assert found["c10d::_reduce_scatter_base_"] == WEIGHTS


def test_stage_2_gathers_every_weight_once_an_update(eight: DeviceMesh) -> None:
    found = sent(FullyShard(eight, reshard_after_forward=False), ROWS // 2)

    assert found["c10d::_allgather_base_"] == WEIGHTS
    assert found["c10d::_reduce_scatter_base_"] == 2 * WEIGHTS


def test_copies_of_a_sharded_model_add_up_their_shards_once_an_update() -> None:
    with fake_ranks(2, 4) as mesh, FakeTensorMode(allow_non_fake_inputs=True):
        found = sent(FullyShard(mesh), ROWS // 2)

    assert found["c10d::_reduce_scatter_base_"] == 2 * WEIGHTS
    assert found["c10d::allreduce_"] == WEIGHTS // 4 + SCALARS + FINITE


def test_a_rank_of_stage_3_needs_less_than_one_of_stage_2(eight: DeviceMesh) -> None:
    stage_3 = updates(FullyShard(eight), None)[-1][1]
    stage_2 = updates(FullyShard(eight, reshard_after_forward=False), None)[-1][1]

    assert stage_3 < stage_2


def test_what_dtensor_computes_for_shapes_is_not_counted(eight: DeviceMesh) -> None:
    """The first update asks for the shapes of AdamW's operators, each as large as the model; the optimizer adds its shard only."""
    _, first, second, _ = updates(FullyShard(eight), None)

    assert first[1] <= second[1]


@pytest.mark.slow
def test_two_real_ranks_allocate_what_rank_0_of_two_fake_ones_does(tmp_path: Path) -> None:
    for name, real in real_ranks(tmp_path).items():
        with fake_ranks(2) as mesh, FakeTensorMode(allow_non_fake_inputs=True):
            fake = updates(WAYS[name][1](mesh), ROWS // 2)
        (fake_kept, fake_peaks), (real_kept, real_peaks) = zip(*fake, strict=True), zip(*real, strict=True)
        # DDP's first backward makes a number that is not kept
        assert set(fake_kept[1:]) == {fake_kept[1]}, name
        assert list(real_kept) == pytest.approx(
            [fake_kept[0], *[fake_kept[1]] * (len(real_kept) - 1)], abs=8
        ), name
        # what a real exchange has sent is freed by another thread, a little later: on a busy machine not before the next one begins
        assert min(fake_peaks[1:]) == pytest.approx(min(real_peaks[1:]), rel=5e-3), name
        assert max(fake_peaks[1:]) <= max(real_peaks[1:]) * 1.005, name


def test_buckets_are_those_that_torch_makes() -> None:
    source = torch.Generator().manual_seed(0)
    sizes = torch.randint(1, 3_000_000, (60,), generator=source).tolist()
    kinds = [torch.float32, torch.bfloat16]
    weights = [nn.Parameter(torch.empty(size, dtype=kinds[size % 2])) for size in sizes]

    theirs, _ = dist._compute_bucket_assignment_by_size(weights, [2**20, 25 * 2**20])

    place = {weight: number for number, weight in enumerate(weights)}
    ours = [[place[weight] for weight in bucket] for bucket in buckets_of(weights)]
    assert sorted(ours) == sorted(theirs)


def large() -> nn.Sequential:
    """39 MB: more than a bucket holds."""
    return nn.Sequential(nn.Linear(16, 600), nn.Linear(600, 8000), nn.Linear(8000, 600), nn.Linear(600, 4))


@pytest.mark.parametrize("bucket_view", [False, True])
@pytest.mark.parametrize("micro_batch", [None, ROWS // 2])
def test_the_twin_allocates_what_ddp_does(bucket_view: bool, micro_batch: int | None, tmp_path: Path) -> None:
    with group(tmp_path):
        real = updates(DataParallel(bucket_view=bucket_view), micro_batch, large())
    with fake_ranks(2), FakeTensorMode(allow_non_fake_inputs=True):
        twin = updates(DataParallelTwin(bucket_view=bucket_view), micro_batch, large())

    # 4 bytes each: among several ranks the divisor is a tensor; the first real step of a process makes a 1 that is kept
    assert torch.tensor(twin).flatten().tolist() == pytest.approx(
        torch.tensor(real).flatten().tolist(), abs=8
    )


def test_buckets_stay_as_torch_made_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where weights may be left out, torch does not fill buckets anew after the first update."""
    real: list[list[int]] = []
    exchange = ddp._sum

    def noted(state, bucket):  # type: ignore[no-untyped-def]
        if bucket.index() == 0:
            real.append([])
        real[-1].append(bucket.buffer().nbytes)
        return exchange(state, bucket)

    monkeypatch.setattr(ddp, "_sum", noted)
    with group(tmp_path):
        updates(DataParallel(), None, large())
    with fake_ranks(2), FakeTensorMode(allow_non_fake_inputs=True):
        updates(twin := DataParallelTwin(), None, large())

    # torch takes the last bucket first
    assert real == 3 * [[bucket.nbytes for bucket in reversed(twin.buckets)]]


def test_the_twin_sends_every_gradient_once_an_update(eight: DeviceMesh) -> None:
    found = sent(DataParallelTwin(at_once_bytes=0), ROWS // 4)
    assert found == {"c10d::allreduce_": WEIGHTS + SCALARS + ROWS_TOLD}


def test_the_twin_sends_few_gradients_in_one_message_with_which_were_reached(eight: DeviceMesh) -> None:
    reached = 4 * len(list(blocks().parameters()))
    found = sent(DataParallelTwin(at_once_bytes=WEIGHTS), ROWS // 4)
    assert found == {"c10d::allreduce_": WEIGHTS + reached + SCALARS + ROWS_TOLD}


def test_gradients_of_blocks_that_are_left_out_of_a_dry_run_count(eight: DeviceMesh) -> None:
    """The model has three blocks here; with four its gradients are more than one message takes."""
    layers = len(repeated_blocks(blocks()))
    assert not sent_alone(DataParallelTwin(at_once_bytes=WEIGHTS, depth=layers + 1))
    assert sent_alone(DataParallelTwin(at_once_bytes=WEIGHTS, depth=layers))


def sent_alone(twin: DataParallelTwin) -> bool:
    twin.wrap(fake_(blocks(), FakeTensorMode(), "cpu"))
    return not twin.buckets


def test_a_frozen_weight_has_no_place_in_a_bucket(eight: DeviceMesh) -> None:
    model = blocks()
    model[0].requires_grad_(False)
    twin = DataParallelTwin(at_once_bytes=0)

    twin.wrap(model)

    assert bytes_of(twin.buckets) == WEIGHTS - bytes_of(model[0].parameters())
