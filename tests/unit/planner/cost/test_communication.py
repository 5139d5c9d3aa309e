"""All times are worked out by hand from the sizes beside them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from snugfit.planner.cost.communication import (
    Cluster,
    Exchange,
    Work,
    all_gather_seconds,
    all_reduce_seconds,
    communicator_bytes,
    data_parallel,
    fully_sharded,
    hybrid_sharded,
    reduce_scatter_seconds,
)
from snugfit.planner.devices.device import Link
from snugfit.planner.devices.hardware import find_link

FAST = Link("fast", bandwidth=100e9, latency=0.0)
SLOW = Link("slow", bandwidth=1e9, latency=0.0)
WORK = Work(weights=8 * 10**9, gradients=4 * 10**9, blocks=4, micro_batches=1, forward=1.0, backward=2.0)


def one_node(link: Link, devices: int = 4) -> Cluster:
    return Cluster(devices, 1, link, SLOW)


def test_a_ring_sends_what_others_lack_in_one_step_less_than_there_are_devices() -> None:
    link = Link("example", bandwidth=2e9, latency=0.5)

    assert all_gather_seconds(8e9, 4, link) == 3 * (1.0 + 0.5)
    assert reduce_scatter_seconds(8e9, 4, link) == 4.5
    assert all_reduce_seconds(8e9, 4, link) == 9.0


def test_one_device_exchanges_nothing() -> None:
    assert all_reduce_seconds(8e9, 1, SLOW) == 0.0


@pytest.mark.parametrize("world", [2, 8, 64])
def test_an_all_reduce_of_many_devices_takes_almost_twice_the_time_of_the_bytes(world: int) -> None:
    assert all_reduce_seconds(1e9, world, SLOW) == pytest.approx(2 * (1 - 1 / world))


def test_ddp_hides_all_but_the_last_bucket_behind_a_long_backward() -> None:
    work = replace(WORK, gradients=4 * 25 * 2**20, backward=10.0)

    found = data_parallel(work, one_node(SLOW))

    bucket = 2 * 0.75 * 25 * 2**20 / 1e9
    assert found.seconds == pytest.approx(4 * bucket)
    assert found.exposed == pytest.approx(bucket)


def test_ddp_over_a_slow_link_waits_for_what_backward_cannot_hide() -> None:
    """4 buckets of 0.039 s beside 0.04 s of backward, of which a quarter is left when the first bucket is full."""
    work = replace(WORK, gradients=4 * 25 * 2**20, backward=0.04)

    found = data_parallel(work, one_node(SLOW))

    bucket = 2 * 0.75 * 25 * 2**20 / 1e9
    assert found.hidden == pytest.approx(3 * 0.01)
    assert found.exposed == pytest.approx(4 * bucket - 0.03)


def test_ddp_sends_embeddings_whole_when_there_is_nothing_left_to_compute() -> None:
    """Of 4 buckets and 1 GB of embeddings, whose gradient comes last, a bucket and all of the embeddings are waited for."""
    work = replace(WORK, gradients=4 * 25 * 2**20 + 10**9, first=10**9, backward=10.0)

    found = data_parallel(work, one_node(SLOW))

    bucket = 2 * 0.75 * 25 * 2**20 / 1e9
    assert found.seconds == pytest.approx(4 * bucket + 1.5)
    assert found.exposed == pytest.approx(bucket + 1.5)
    assert data_parallel(replace(WORK, gradients=10**9, first=10**9), one_node(SLOW)) == Exchange(1.5, 1.5)


def test_ddp_on_several_nodes_adds_up_within_each_first() -> None:
    """1 GB in 38 buckets: 2·3/4 of it at 100 GB/s and 2·1/2 at 1 GB/s; a ring would send 2·7/8 at 1 GB/s."""
    found = data_parallel(replace(WORK, gradients=10**9), Cluster(4, 2, FAST, SLOW))

    assert found.seconds == pytest.approx(1.5 / 100 + 1.0)


def test_gradients_that_nobody_trains_are_not_sent() -> None:
    assert data_parallel(replace(WORK, gradients=0), one_node(SLOW)) == Exchange(0.0, 0.0)


def test_stage_3_gathers_for_forward_and_backward_in_every_micro_batch() -> None:
    """A block has 2 GB of weights and 1 GB of gradients: on 4 devices at 1 GB/s, 1.5 s to gather and 0.75 s to scatter."""
    work = replace(WORK, micro_batches=3)

    found = fully_sharded(work, one_node(SLOW), reshard=True)

    assert found.seconds == pytest.approx(3 * 4 * (1.5 + 1.5 + 0.75))
    # a block computes for 0.25 s forward and 0.5 s backward
    forward, backward = 1.5 + 3 * (1.5 - 0.25), 2.25 + 3 * (2.25 - 0.5)
    assert found.exposed == pytest.approx(3 * (forward + backward))


def test_stage_2_gathers_once_an_update() -> None:
    found = fully_sharded(replace(WORK, micro_batches=3), one_node(SLOW), reshard=False)

    assert found.seconds == pytest.approx(4 * 1.5 + 3 * 4 * 0.75)


def test_over_a_fast_link_only_the_first_gather_and_the_last_scatter_are_waited_for() -> None:
    found = fully_sharded(WORK, one_node(FAST), reshard=True)

    assert found.exposed == pytest.approx(0.015 + (0.015 + 0.0075))


def test_shards_in_host_memory_are_copied_as_well() -> None:
    """Of 2 GB and 1 GB a block, each of 4 devices copies its quarter at 0.5 s/GB."""
    plain = fully_sharded(WORK, one_node(SLOW), reshard=True)

    found = fully_sharded(WORK, one_node(SLOW), reshard=True, copy=0.5e-9)

    assert found.seconds - plain.seconds == pytest.approx(4 * (0.25 + 0.25 + 0.125))


def test_hybrid_sharding_sends_gradients_between_nodes_once_an_update() -> None:
    """Within a node 0.015 + 0.015 + 0.0075 s a block and pass; between 2 nodes 1 s a block, beside the last backward."""
    found = hybrid_sharded(replace(WORK, micro_batches=2), Cluster(4, 2, FAST, SLOW))

    assert found.seconds == pytest.approx(4 * (0.015 + 0.0225) + 4 * (0.015 + 1.0))


def test_a_ring_through_several_nodes_is_as_fast_as_the_network() -> None:
    assert Cluster(4, 2, FAST, SLOW).ring is SLOW
    assert Cluster(4, 1, FAST, SLOW).ring is FAST
    assert Cluster(1, 2, SLOW, FAST).ring is FAST


def test_nccl_takes_more_of_more_devices_and_less_over_a_slower_bus() -> None:
    nvlink, bus = find_link("nvlink3"), find_link("pcie4")
    assert [communicator_bytes(count, nvlink) >> 20 for count in (1, 2, 8, 64)] == [0, 544, 688, 688]
    assert 0 < communicator_bytes(2, bus) < communicator_bytes(8, bus) < communicator_bytes(2, nvlink)
