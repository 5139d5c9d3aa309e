"""The time that devices exchange weights and gradients in an update, and how much of it is hidden behind compute.

Rings, as in Patarasuk and Yuan 2009: of W devices each sends (W − 1)/W of the bytes in W − 1 steps for a gather or a
reduce-scatter, and twice that for an all-reduce. What NCCL does better (trees, several rings) is left to calibration.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from snugfit.planner.devices.device import Link

BUCKET_BYTES = 25 * 2**20
"""DDP's, but for the first one."""

_OF_TWO, _OF_MORE = 544 * 2**20, 688 * 2**20
"""Bytes of a device that NCCL takes for a communicator of two devices, and of more. Measured on four A100 with NVLink by the author of
<https://github.com/NVIDIA/nccl/issues/964>; buffers of 4 MiB and their like for each channel (NCCL_BUFFSIZE), of which NVLink has 24."""

_SLOW_SHARE = 4 / 24
"""Of that over PCIe, which has at most four channels: memory grows with them (<https://github.com/NVIDIA/nccl/issues/864>)."""


@dataclass(frozen=True)
class Cluster:
    """Devices that train together: in each of `nodes`, `devices` joined by `peer`; `network` joins the nodes.

    `network` is what all devices of a node share.
    """

    devices: int
    nodes: int
    peer: Link
    network: Link

    @property
    def world(self) -> int:
        return self.devices * self.nodes

    @property
    def ring(self) -> Link:
        """The slowest link of a ring through all devices."""
        if self.nodes == 1:
            return self.peer
        return (
            self.network
            if self.devices == 1
            else min(self.network, self.peer, key=lambda link: link.bandwidth)
        )


def communicator_bytes(devices: int, link: Link) -> int:
    """Return bytes of a device that NCCL takes for a communicator of so many, which are joined by `link`."""
    if devices == 1:
        return 0
    size = _OF_TWO if devices == 2 else _OF_MORE
    return size if link.name.startswith("nvlink") else round(size * _SLOW_SHARE)


@dataclass(frozen=True)
class Work:
    """The compute and the exchange of an update on one device.

    `weights` and `gradients` are bytes of the whole model, of which it has `blocks` about equal ones; `forward` and `backward`
    are seconds of one micro-batch. `first` are gradients of what comes before the blocks, such as embeddings: backward makes them last.
    """

    weights: int
    gradients: int
    blocks: int
    micro_batches: int
    forward: float
    backward: float
    first: int = 0

    @property
    def compute(self) -> float:
        """Seconds of an update that exchanges nothing."""
        return self.micro_batches * (self.forward + self.backward)


@dataclass(frozen=True)
class Exchange:
    """Seconds of an update in which something is sent, and those of them that compute waits for."""

    seconds: float
    exposed: float

    @property
    def hidden(self) -> float:
        return self.seconds - self.exposed

    def __add__(self, other: Exchange) -> Exchange:
        return Exchange(self.seconds + other.seconds, self.exposed + other.exposed)


NOTHING = Exchange(0.0, 0.0)


def all_gather_seconds(whole: float, world: int, link: Link) -> float:
    """Return the seconds after which each of `world` devices has the `whole` bytes, of which it had its share.

    >>> all_gather_seconds(8e9, world=4, link=Link("example", 2e9, 0.0))
    3.0
    """
    return (world - 1) * (whole / world / link.bandwidth + link.latency)


def reduce_scatter_seconds(whole: float, world: int, link: Link) -> float:
    """Return the seconds after which each of `world` devices has its share of the sum of what all had, of `whole` bytes."""
    return all_gather_seconds(whole, world, link)


def all_reduce_seconds(whole: float, world: int, link: Link) -> float:
    """Return the seconds after which each of `world` devices has the sum of what all had, of `whole` bytes: a reduce-scatter and a gather.

    >>> all_reduce_seconds(8e9, world=4, link=Link("example", 2e9, 0.0))
    6.0
    """
    return reduce_scatter_seconds(whole, world, link) + all_gather_seconds(whole, world, link)


def data_parallel(work: Work, cluster: Cluster) -> Exchange:
    """DDP: gradients are added up once an update, bucket by bucket as the last backward makes them.

    The last bucket is full when there is nothing left to compute. A weight that is larger than a bucket is one by itself, so embeddings are
    sent whole after all else.
    """
    if not work.gradients:
        return NOTHING
    last = work.first if work.first > BUCKET_BYTES else 0
    others = work.gradients - last
    buckets = math.ceil(others / BUCKET_BYTES)
    each = _all_reduce_of(cluster, others / buckets) if buckets else 0.0
    alone = _all_reduce_of(cluster, last) if last else 0.0
    before = _hidden_behind(each, work.backward, buckets) if buckets else NOTHING
    return before + Exchange(alone, alone)


def fully_sharded(work: Work, cluster: Cluster, *, reshard: bool, copy: float = 0.0) -> Exchange:
    """FSDP over all devices: block by block, gradients are scattered in every micro-batch, and weights gathered.

    A block is gathered while the one before it computes, the first one while nothing does.

    Args:
        reshard: whether weights are gathered for each forward and again for each backward (ZeRO stage 3), or once an update
            (stage 2).
        copy: seconds that a byte takes between a device and its host, where each keeps its share there.
    """
    gather, scatter = _block_seconds(work, cluster.world, cluster.ring, copy)
    return _sharded(work, gather, scatter, reshard=reshard, last=0.0)


def hybrid_sharded(work: Work, cluster: Cluster) -> Exchange:
    """FSDP (ZeRO stage 3) within each node; nodes add up their gradients once an update, in its last backward."""
    gather, scatter = _block_seconds(work, cluster.devices, cluster.peer, copy=0.0)
    across = all_reduce_seconds(work.gradients / work.blocks, cluster.nodes, cluster.network)
    return _sharded(work, gather, scatter, reshard=True, last=across)


def _all_reduce_of(cluster: Cluster, whole: float) -> float:
    """Return seconds of an all-reduce among all devices: in one ring, or within nodes and then between them, whichever is faster."""
    ring = all_reduce_seconds(whole, cluster.world, cluster.ring)
    within = all_reduce_seconds(whole, cluster.devices, cluster.peer)
    return min(ring, within + all_reduce_seconds(whole, cluster.nodes, cluster.network))


def _block_seconds(work: Work, world: int, link: Link, copy: float) -> tuple[float, float]:
    """Return what it takes to gather the weights of a block, and to scatter its gradients."""
    weights, gradients = work.weights / work.blocks, work.gradients / work.blocks
    gather = all_gather_seconds(weights, world, link) + copy * weights / world
    scatter = reduce_scatter_seconds(gradients, world, link) + copy * gradients / world if gradients else 0.0
    return gather, scatter


def _sharded(work: Work, gather: float, scatter: float, *, reshard: bool, last: float) -> Exchange:
    """Return the exchange of all micro-batches; `last` seconds a block are spent on another link, in the last backward."""
    forward = _hidden_behind(gather, work.forward, work.blocks)
    within = scatter + gather if reshard else scatter
    total = NOTHING
    for number in range(work.micro_batches):
        if reshard or number == 0:
            total += forward
        across = last if number == work.micro_batches - 1 else 0.0
        total += _hidden_behind(max(within, across), work.backward, work.blocks)
    return total


def _hidden_behind(each: float, compute: float, pieces: int) -> Exchange:
    """Return an exchange in `pieces` of `each` seconds, one of which runs beside nothing, the others beside an equal part of `compute` each."""
    return Exchange(pieces * each, each + (pieces - 1) * max(0.0, each - compute / pieces))
