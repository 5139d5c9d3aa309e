"""One of several devices that share the work, run without the others being there."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from snugfit.core.batch import Batch
from snugfit.core.job import Plan
from snugfit.core.malloc import resident_bytes
from snugfit.core.technique import Technique
from snugfit.planner.answer import Prediction
from snugfit.planner.communication import (
    Cluster,
    Exchange,
    Work,
    data_parallel,
    fully_sharded,
    hybrid_sharded,
)
from snugfit.planner.device import Machine
from snugfit.planner.figures import Run
from snugfit.planner.predict import Planner
from snugfit.planner.records import Parts, Phase
from snugfit.planner.roofline import combined
from snugfit.planner.several import DataParallelTwin, fake_ranks
from snugfit.planner.words import brief_seconds
from snugfit.strategies.base import Strategy
from snugfit.strategies.fsdp import FullyShard

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

PASSES = ((Phase.FORWARD, Phase.LOSS), (Phase.BACKWARD,))
"""The phases of a forward, and of a backward."""


def _sharded(**settings: Any) -> Callable[[DeviceMesh], Strategy]:
    # reduced each time, so that gradients are never whole
    return lambda mesh: FullyShard(mesh, reduce_each=True, **settings)


STRATEGIES: Mapping[str, Callable[[DeviceMesh], Strategy]] = {
    "ddp": lambda mesh: DataParallelTwin(),
    "fsdp (zero-2)": _sharded(reshard_after_forward=False),
    "hybrid shard": _sharded(),
    "fsdp (zero-3)": _sharded(),
    "fsdp + cpu offload": _sharded(cpu_offload=True),
}
"""How each way of `rules` is run."""


@dataclass(kw_only=True)
class Rank(Planner):
    """Predictions for one of several devices that share the work in one way.

    Args:
        subject: with its share of the window.
        window: of all devices.
        way: a name of `rules`.
        depth: how many blocks the model has.
    """

    cluster: Cluster
    way: str
    window: Batch
    depth: int

    @contextmanager
    def strategy(self) -> Iterator[Strategy]:
        """The strategy of rank 0, with ranks that are not there around it."""
        cluster = self.cluster
        axes = (cluster.nodes, cluster.devices) if self.way == "hybrid shard" else (cluster.world,)
        with fake_ranks(*axes, device=self.machine.type) as mesh:
            yield STRATEGIES[self.way](mesh)

    def predicted(
        self, plan: Plan, techniques: Sequence[Technique], rough: bool = False
    ) -> tuple[Prediction, Run]:
        """What a device needs, with the seconds that it waits for the others; examples and tokens a second are those of all.

        The host's memory is that of a node's processes together.
        """
        found, run = super().predicted(plan, techniques, rough)
        exchange = self._exchange(run, plan)
        seconds = found.seconds_per_update + exchange.exposed
        slower = found.seconds_per_update / seconds
        running = max(each.host for each in run.segments if each.key.phase not in (Phase.SETUP, Phase.PRIME))
        on_node = self.cluster.devices * resident_bytes(running, self.machine.baseline)
        total, lengths = self.subject.total_updates, self.window.lengths
        waits = (
            f"{brief_seconds(exchange.seconds)} an update to exchange weights and gradients, by what links of that name reach, "
            f"{brief_seconds(exchange.exposed)} of them waited for"
        )
        return replace(
            found,
            host_peak_bytes=max(found.host_peak_bytes, on_node),
            seconds_per_update=seconds,
            seconds_total=None if total is None else seconds * total,
            tokens_per_second=None if lengths is None else sum(lengths) / seconds,
            examples_per_second=self.window.rows / seconds,
            share_of_peak=found.share_of_peak * slower,
            confidence={**found.confidence, "time": f"{found.confidence['time']}; {waits}"},
        ), run

    def _exchange(self, run: Run, plan: Plan) -> Exchange:
        blocks, weights, gradients = whole(run.parts, self.depth)
        count = self.micro_batches(plan)
        forward, backward = (seconds_of(run, self.machine, phases) / count for phases in PASSES)
        work = Work(weights, gradients, blocks, count, forward, backward)
        if self.way == "ddp":
            return data_parallel(work, self.cluster)
        if self.way == "hybrid shard":
            return hybrid_sharded(work, self.cluster)
        # copies between device and host are operators of the run
        return fully_sharded(work, self.cluster, reshard=self.way != "fsdp (zero-2)")


def whole(parts: Parts, depth: int) -> tuple[int, int, int]:
    """Blocks, bytes of all weights, and of those that are trained, of the model with all its blocks."""
    if not parts.blocks:
        return 1, parts.outside, parts.trained_outside
    times = depth / len(parts.blocks)
    return (
        depth,
        round(sum(parts.blocks) * times) + parts.outside,
        round(sum(parts.trained_blocks) * times) + parts.trained_outside,
    )


def seconds_of(run: Run, machine: Machine, phases: Sequence[Phase]) -> float:
    """Of these phases of an update."""
    pieces = (each for each in run.segments if each.key.update == 0 and each.key.phase in phases)
    costs = sum((each.costs * each.times for each in pieces), np.zeros(4))
    return combined(costs, machine.device, overlap=machine.type != "cpu")
