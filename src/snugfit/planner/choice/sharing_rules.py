"""The ways to share a training among devices, compared by the numbers that decide.

The field's rules of thumb are: what fits on one device is copied to each (DDP); what does not is sharded (ZeRO, FSDP), as little
as suffices; between nodes with slow links only gradients go (hybrid); what still does not fit lies in host memory; and a layer that
alone is too large is computed in tiles or split among devices. Here they are not rules but outcomes: each way gets its bytes on a
device and its seconds an update, and the fastest that fits is taken, the simplest of those that are about as fast.

Sources: Rajbhandari et al. 2020 (ZeRO), arXiv:1910.02054; Rajbhandari et al. 2021 (ZeRO-Infinity, tiling), arXiv:2104.07857;
Zhao et al. 2023 (FSDP, hybrid sharding), arXiv:2304.11277; Hugging Face, "Efficient Training on Multiple GPUs"; torchtitan's
docs/fsdp.md. They differ from this in that they decide by the size of the model and the kind of link alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from snugfit.errors import SettingError
from snugfit.planner.answers.plan_figures import brief_seconds
from snugfit.planner.cost.communication import (
    NOTHING,
    Cluster,
    Exchange,
    Work,
    data_parallel,
    fully_sharded,
    hybrid_sharded,
)
from snugfit.planner.devices.device import Link
from snugfit.units import format_bytes

CLOSE = 1.05
"""What is at most this much slower than the fastest is as fast."""

IN_FLIGHT = 3
"""Blocks of which something is whole in backward: one computes while the next is gathered and the last one is scattered."""

TILES = 8
"""Of a layer whose weights stay in host memory; what `tiled_linear` takes when it is not told."""


@dataclass(frozen=True)
class Facts:
    """The facts of one update as it was traced on one device, and the devices there are. Bytes and seconds.

    Of `peak`, which one copy needs at its worst, `weights`, `gradients` and `optimizer` are there for the parameters, and the rest
    for activations and temporaries. `exchanged` is all gradients of an update. `largest_weights` and `largest_activations` are the
    largest block's, of which the model has `blocks`; `outside` are weights that belong to none, `first` gradients of those before them. `forward` and `backward` are those
    of the whole update, which one device computes in `micro_batches`, and `update` is the optimizer's on all weights.
    `device_memory` is what a device has to give, `host_memory` what the host of a node has, None where that is not said.
    """

    peak: int
    weights: int
    gradients: int
    optimizer: int
    exchanged: int
    largest_weights: int
    largest_activations: int
    blocks: int
    outside: int
    micro_batches: int
    forward: float
    backward: float
    cluster: Cluster
    device_memory: int
    host_memory: int | None
    host_link: Link
    update: float = 0.0
    first: int = 0

    def __post_init__(self) -> None:
        for name in ("weights", "blocks", "micro_batches"):
            if getattr(self, name) < 1:
                raise SettingError(
                    name, f"must be at least 1, found {getattr(self, name)}", "Give 1 or more."
                )
        if self.rest < 0:
            raise SettingError(
                "peak",
                f"{format_bytes(self.peak)} cannot hold weights, gradients and optimizer, which come to "
                f"{format_bytes(self.peak - self.rest)}",
                "Give a larger peak.",
            )

    @property
    def rest(self) -> int:
        """Return what sharding does not divide."""
        return self.peak - self.weights - self.gradients - self.optimizer

    def shard(self, devices: int) -> int:
        """Return what each of `devices` keeps of the weights, gradients and optimizer states."""
        return math.ceil((self.weights + self.exchanged + self.optimizer) / devices)

    @property
    def gathered(self) -> int:
        """Weights that are whole while a block is computed: its own, those that come and go beside it, and those outside."""
        return IN_FLIGHT * self.largest_weights + self.outside

    @property
    def scattered(self) -> int:
        """Gradients that are whole then."""
        return math.ceil(self.gathered * self.exchanged / self.weights)

    def work(self, devices: int) -> Work:
        """Return what each of `devices` does in an update; micro-batches are cut finer where there are fewer of them."""
        micro_batches = math.ceil(self.micro_batches / devices)
        passes = devices * micro_batches
        return Work(
            self.weights,
            self.exchanged,
            self.blocks,
            micro_batches,
            self.forward / passes,
            self.backward / passes,
            self.first,
        )


@dataclass(frozen=True)
class Way:
    """A way to share: what it takes on each device and of each node's host, and how long an update is."""

    strategy: str
    devices: int
    bytes: int
    host_bytes: int
    compute: float
    exchange: Exchange

    @property
    def seconds(self) -> float:
        return self.compute + self.exchange.exposed


@dataclass(frozen=True)
class Decision:
    """The way that is taken, None where nothing fits, and each sentence of why; all ways, and those that fit."""

    strategy: str
    why: tuple[str, ...]
    way: Way | None
    ways: tuple[Way, ...]
    fitting: tuple[Way, ...] = ()


NOT_YET = "pipeline/tensor parallel: not in Snugfit yet"


def decide(facts: Facts) -> Decision:
    """Return the fastest way to share that fits, and the simplest of those that are about as fast.

    What it says are estimates from a step on one device: the way that is taken is to be traced in its turn.
    """
    ways = tuple(_ways(facts))
    fitting = [way for way in ways if _missing(way, facts) is None]
    if not fitting:
        strategy, advice = _last_resort(facts)
        return Decision(strategy, (*_rejections(ways, facts), advice), None, ways)
    fastest = min(way.seconds for way in fitting)
    choice = next(way for way in fitting if way.seconds <= CLOSE * fastest)
    others = [way for way in fitting if way is not choice]
    return Decision(
        choice.strategy,
        (
            *_rejections(ways, facts),
            _why_chosen(choice, facts),
            *(_slower(way, choice) for way in others),
        ),
        choice,
        ways,
        tuple(fitting),
    )


def _ways(facts: Facts) -> Iterator[Way]:
    """Yield each way there is on these devices, simple ones first."""
    cluster, world = facts.cluster, facts.cluster.world
    yield Way("single", 1, facts.peak, 0, facts.forward + facts.backward + facts.update, NOTHING)
    if world == 1:
        return
    work, shard = facts.work(world), facts.shard(world)
    block = facts.gathered + facts.scattered + facts.rest

    def way(strategy: str, needed: int, exchange: Exchange, host: int = 0, shards: int = world) -> Way:
        update = 0.0 if host else facts.update / shards
        return Way(strategy, world, needed, host, work.compute + update, exchange)

    # the buckets hold each gradient once more
    yield way("ddp", facts.peak + facts.exchanged, data_parallel(work, cluster), shards=1)
    whole = facts.weights + facts.largest_weights + facts.scattered + facts.rest
    yield way("fsdp-zero2", whole + shard, fully_sharded(work, cluster, reshard=False))
    if cluster.nodes > 1 and cluster.devices > 1:
        yield way(
            "fsdp-hybrid",
            facts.shard(cluster.devices) + block,
            hybrid_sharded(work, cluster),
            shards=cluster.devices,
        )
    yield way("fsdp", shard + block, fully_sharded(work, cluster, reshard=True))
    copied = fully_sharded(work, cluster, reshard=True, copy=1 / facts.host_link.bandwidth)
    yield way("fsdp-offload", block, copied, host=shard * cluster.devices)


def _missing(way: Way, facts: Facts) -> str | None:
    """Return what does not fit, if anything."""
    if way.bytes > facts.device_memory:
        return f"needs {format_bytes(way.bytes)} on a device, which has {format_bytes(facts.device_memory)}"
    if facts.host_memory is not None and way.host_bytes > facts.host_memory:
        return f"needs {format_bytes(way.host_bytes)} of a host's memory, which has {format_bytes(facts.host_memory)}"
    return None


def _rejections(ways: tuple[Way, ...], facts: Facts) -> Iterator[str]:
    of = {"single": f" ({_parts(facts)})", "ddp": f" (with {format_bytes(facts.exchanged)} of buckets)"}
    for way in ways:
        if (missing := _missing(way, facts)) is not None:
            yield f"{way.strategy}: {missing}{of.get(way.strategy, '')}."


def _parts(facts: Facts) -> str:
    return (
        f"weights {format_bytes(facts.weights)}, gradients {format_bytes(facts.gradients)}, optimizer "
        f"{format_bytes(facts.optimizer)}, activations and temporaries {format_bytes(facts.rest)}"
    )


def _why_chosen(way: Way, facts: Facts) -> str:
    fits = f"{way.strategy}: {format_bytes(way.bytes)} of {format_bytes(facts.device_memory)} on a device"
    if way.host_bytes:
        there = "" if facts.host_memory is None else f"{format_bytes(facts.host_memory)} of "
        fits += f", {format_bytes(way.host_bytes)} of {there}a host's memory"
    if way.devices == 1:
        return f"{fits}, {brief_seconds(way.seconds)} an update."
    without = ", without the optimizer's on the host" if way.host_bytes else ""
    return (
        f"{fits}; an update takes {brief_seconds(way.seconds)} on {way.devices} devices: {brief_seconds(way.compute)} of compute"
        f"{without}, and {brief_seconds(way.exchange.seconds)} over {_links(way, facts)}, {brief_seconds(way.exchange.hidden)} of it "
        "behind compute."
    )


def _links(way: Way, facts: Facts) -> str:
    cluster = facts.cluster
    names = (
        [cluster.peer.name, cluster.network.name] if way.strategy == "fsdp-hybrid" else [cluster.ring.name]
    )
    if way.strategy == "fsdp-offload":
        names.append(facts.host_link.name)
    return " and ".join(dict.fromkeys(names))


def _slower(way: Way, choice: Way) -> str:
    times = f"{brief_seconds(way.seconds)} an update, against {brief_seconds(choice.seconds)}"
    without = ", and the optimizer's on the host besides" if way.host_bytes else ""
    if way.seconds <= CLOSE * choice.seconds:
        return f"{way.strategy} fits too and is no faster: {times}{without}. {choice.strategy} is simpler."
    return f"{way.strategy} fits too and takes {times}{without}."


def _last_resort(facts: Facts) -> tuple[str, str]:
    """Return what would do where no way of sharing does, and why."""
    block = facts.gathered + facts.scattered
    memory, whole = format_bytes(facts.device_memory), block + facts.largest_activations
    if facts.rest > facts.largest_activations:
        slim = decide(replace(facts, peak=facts.peak - facts.rest + facts.largest_activations))
        if slim.way is not None:
            return slim.strategy, (
                f"If activations and temporaries came to those of the largest block, {format_bytes(facts.largest_activations)} instead "
                f"of {format_bytes(facts.rest)}, {slim.strategy} would need {format_bytes(slim.way.bytes)} of {memory}: recompute, "
                "offload activations, or take a smaller micro-batch."
            )
    if facts.cluster.world == 1:
        return "single", (
            "There is one device, so nothing can be shared: what remains is to offload the optimizer, to stream frozen weights, a "
            "lower precision, or more devices."
        )
    if whole <= facts.device_memory and facts.host_memory is not None:
        return "fsdp-offload", (
            f"The largest block fits on a device ({format_bytes(whole)} of {memory}), but hosts do not hold the rest: more of their "
            f"memory or more nodes would do; there are {facts.cluster.nodes} with {format_bytes(facts.host_memory)} each."
        )
    tiled = math.ceil(block / TILES) + facts.largest_activations
    if tiled <= facts.device_memory:
        return "tiled_linear + fsdp", (
            f"The largest block needs {format_bytes(whole)} and a device has {memory}; with its weights in host memory and one of "
            f"{TILES} tiles of them on the device it needs {format_bytes(tiled)}."
        )
    return NOT_YET, (
        f"The largest block needs {format_bytes(whole)} and a device has {memory}; {format_bytes(facts.largest_activations)} of that are "
        "activations, which sharding does not divide: the block itself would have to be split among devices."
    )
