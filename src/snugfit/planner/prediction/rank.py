"""A rank of several devices that share the work, run without the others being there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import takewhile

from snugfit.core.batch import Batch
from snugfit.core.job import Plan, StrategyName
from snugfit.core.technique import Sharing, Technique
from snugfit.planner.answers.answer import Prediction
from snugfit.planner.answers.plan_figures import brief_seconds
from snugfit.planner.cost.communication import (
    Cluster,
    Exchange,
    Work,
    communicator_bytes,
    data_parallel,
    fully_sharded,
    hybrid_sharded,
)
from snugfit.planner.cost.records import Phase
from snugfit.planner.cost.roofline import NO_COSTS, combined
from snugfit.planner.devices.device import Machine
from snugfit.planner.prediction.peak_and_time import Run, prediction_of
from snugfit.planner.prediction.plan_needs import Planner
from snugfit.planner.trace.fake_ranks import DataParallelTwin, fake_ranks
from snugfit.strategies.base import Strategy
from snugfit.strategies.registry import HYBRID, STRATEGIES
from snugfit.system.malloc import resident_bytes
from snugfit.units import format_bytes

PASSES = ((Phase.FORWARD, Phase.LOSS), (Phase.BACKWARD,))
"""The phases of a forward, and of a backward."""


@dataclass(kw_only=True)
class Rank(Planner):
    """Predictions for one of several devices that share the work in one way.

    Args:
        subject: with its share of the window.
        window: of all devices.
        way: to share.
    """

    cluster: Cluster
    way: StrategyName
    window: Batch

    @property
    def sharing(self) -> Sharing:
        """Return how the devices share the model."""
        return Sharing.COPIES if self.way == "ddp" else Sharing.SHARDS

    @contextmanager
    def strategy(self) -> Iterator[Strategy]:
        """Yield the strategy of rank 0, with ranks that are not there around it."""
        cluster = self.cluster
        axes = (cluster.nodes, cluster.devices) if self.way == HYBRID else (cluster.world,)
        with fake_ranks(*axes, device=self.machine.type) as mesh:
            yield DataParallelTwin(depth=self.depth) if self.way == "ddp" else STRATEGIES[self.way](mesh)

    def prediction_of_run(
        self, run: Run, plan: Plan, techniques: Sequence[Technique], exact: bool
    ) -> Prediction:
        """Return what a device needs, with the seconds that it waits for the others; examples and tokens a second are those of all.

        The host's memory is that of a node's processes together, each of which has the model whole at first, unless it reads its part alone.
        """
        in_parts = self.way != "ddp" and self.subject.from_files
        in_parts = in_parts and not any(each.reads_weights for each in techniques)
        arriving = not (in_parts or self.subject.loaded_so(techniques))
        prediction = prediction_of(
            run, self.subject, self.machine, exact, arriving, micro_batch=self.micro_batch(plan)
        )
        exchange = self._exchange(run, plan)
        seconds = prediction.seconds_per_update + exchange.exposed
        slower = prediction.seconds_per_update / seconds
        lengths = self.window.lengths
        waits = (
            f"{brief_seconds(exchange.seconds)} an update to exchange weights and gradients, by what links of that name reach, "
            f"{brief_seconds(exchange.exposed)} of them waited for"
        )
        return replace(
            prediction,
            reserved_bytes=prediction.reserved_bytes + self.exchange_bytes,
            host_peak_bytes=self._on_node(prediction, run),
            seconds_per_update=seconds,
            seconds_total=self.subject.seconds_of_run(seconds),
            tokens_per_second=None if lengths is None else sum(lengths) / seconds,
            examples_per_second=self.window.rows / seconds,
            share_of_peak=prediction.share_of_peak * slower,
            confidence={
                **prediction.confidence,
                "memory": f"{prediction.confidence['memory']}{self._exchange_note()}",
                "time": f"{prediction.confidence['time']}; {waits}",
            },
        )

    def exposed(self, plan: Plan, techniques: Sequence[Technique]) -> float:
        """Return seconds of an update for which a device waits for the others."""
        return self._exchange(self.run_of(plan, techniques, rough=True)[0], plan).exposed

    @property
    def exchange_bytes(self) -> int:
        """Bytes that NCCL takes of a device: for all of them, and where each node has a copy of the model for both parts of them."""
        if self.machine.device.kind != "cuda":
            return 0
        cluster = self.cluster
        if self.way != HYBRID:
            return communicator_bytes(cluster.world, cluster.peer)
        return communicator_bytes(cluster.devices, cluster.peer) + communicator_bytes(
            cluster.nodes, cluster.network
        )

    def _exchange_note(self) -> str:
        taken = self.exchange_bytes
        return f"; {format_bytes(taken)} for NCCL, predicted from what others measured" if taken else ""

    def _on_node(self, prediction: Prediction, run: Run) -> int:
        """Return bytes of the host of all processes of a node. Under ddp the first one alone copies what is saved beside the run."""
        own = prediction.host_peak_bytes
        if self.way != "ddp" or self.subject.job.checkpoint.save == "sync":
            return self.cluster.devices * own
        before = list(takewhile(lambda each: each.key.phase is not Phase.SAVE, run.segments))
        copied = run.segments[len(before)].host - before[-1].host
        highest = resident_bytes(max(each.host for each in before), self.machine.baseline)
        return own + (self.cluster.devices - 1) * min(own, max(own - copied, highest))

    def _exchange(self, run: Run, plan: Plan) -> Exchange:
        blocks, weights, gradients = run.parts.whole(self.depth)
        count = self.micro_batches(plan)
        forward, backward = (seconds_of(run, self.machine, phases) / count for phases in PASSES)
        work = Work(weights, gradients, blocks, count, forward, backward, run.parts.trained_first)
        if self.way == "ddp":
            return data_parallel(work, self.cluster)
        if self.way == HYBRID:
            return hybrid_sharded(work, self.cluster)
        # copies between device and host are operators of the run
        return fully_sharded(work, self.cluster, reshard=self.way != "fsdp-zero2")


def seconds_of(run: Run, machine: Machine, phases: Sequence[Phase]) -> float:
    """Return seconds of these phases of an update."""
    pieces = (each for each in run.segments if each.key.update == 0 and each.key.phase in phases)
    costs = sum((each.costs * each.times for each in pieces), NO_COSTS)
    return combined(costs, machine.device, overlap=machine.type != "cpu")
