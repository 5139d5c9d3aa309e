"""The machine that a plan is for, as it was asked for and as it is found."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch

from snugfit.core.job import Plan, StrategyName
from snugfit.core.technique import Fidelity
from snugfit.errors import SettingError, nearest
from snugfit.planner.answers.plan_figures import brief_bytes
from snugfit.planner.choice.cheapest import counts
from snugfit.planner.choice.goals import check_numbers
from snugfit.planner.cost.allocator import AllocatorSettings
from snugfit.planner.cost.communication import Cluster
from snugfit.planner.devices.device import Device, Machine
from snugfit.planner.devices.hardware import find_device, find_link, usual_host, usual_host_bytes
from snugfit.planner.devices.precision import usual_level
from snugfit.planner.pretend_gpu.pretended_gpu import CannotPretend, pretending_gpu
from snugfit.system.memory import available_bytes
from snugfit.system.processes import threads_of_each


@dataclass(frozen=True)
class Target:
    """The machine that a plan is for, and what the run may take of it; None stands for what is here.

    Of a CPU, each of several devices is a process that has its share of the memory and of the cores.

    Args:
        device: a name of the catalogue; or `cpu`, `cuda`.
        memory, host_memory: in bytes, of each device and of a node's host.
        devices, nodes: how many of them on each node, and how many nodes.
        strategy: how they are to share each update; by default the way that is fastest of those that fit.
        link: between the devices of a node, by name, such as nvlink4.
        network: between nodes, by name, such as infiniband-ndr.
        host_link: between each and the host, such as pcie4.
        fidelity: the coarsest level of precision that may be chosen; by default the recipe's own where it names one, else `mixed` on a
            GPU with 16-bit units and `full` elsewhere.
        keeps_precision: whether the precision of forward and backward is named, which then stays.
        search: whether other plans than the recipe's are looked at.
        fewer: whether one of several devices may be the choice, which for a run that has started them it may not.
        goal: fastest, finest, smallest or cheapest; this and the next three by default as `Request` has them.
        worth: times as fast that a plan below mixed precision has to be to be chosen where something finer fits.
        slower: times the least time that the smallest plan may take.
        price: of one hour of one device, for the cheapest.
        frontier: whether the fastest and the smallest plan of every level are searched for, beside the choice.
        seconds: that the search may take; by default it is bounded by the predictions that it makes.
        probe: whether it is measured on the device at hand, with few examples, instead of run on fake tensors.
        margin: share of the memory to be left free; by default what `candidate.margin_on` says.
        here: the device as it was found on this machine, where it is not in the catalogue.
        export: the tool that the plan is to be written for: only what it has is weighed.
        largest: batch, sequence or model: the largest that fits is looked for, in place of a plan of what the recipe has.
    """

    device: str | None = None
    memory: int | None = None
    host_memory: int | None = None
    devices: int = 1
    nodes: int = 1
    strategy: StrategyName | None = None
    link: str | None = None
    network: str | None = None
    host_link: str | None = None
    fidelity: str | None = None
    keeps_precision: bool = False
    search: bool = True
    fewer: bool = True
    goal: str | None = None
    worth: float | None = None
    slower: float | None = None
    price: float | None = None
    seconds: float | None = None
    frontier: bool = False
    probe: bool = False
    margin: float | None = None
    here: Device | None = None
    export: str | None = None
    largest: str | None = None

    def __post_init__(self) -> None:
        check_numbers(self.worth, self.slower, self.price)
        for name in ("devices", "nodes"):
            if getattr(self, name) < 1:
                raise SettingError(
                    name, f"got {getattr(self, name)}, expected at least 1", "Give how many there are."
                )
        if self.seconds is not None and not self.seconds > 0:
            raise SettingError(
                "seconds", f"got {self.seconds:g}, expected more than 0", "Give how long the search may take."
            )

    def choice(self) -> dict[str, Any]:
        """Return what is said of how to choose, by the names that a `Request` has for it."""
        names = ("fewer", "goal", "worth", "slower", "price", "seconds", "frontier")
        return {name: value for name in names if (value := getattr(self, name)) is not None}

    def counts(self) -> list[tuple[int, int]]:
        """Return the numbers of devices to plan for, as nodes and the devices of each: several where the cheapest is looked for."""
        if self.goal != "cheapest" or not self.fewer or self.largest is not None:
            return [(self.nodes, self.devices)]
        return counts(self.devices, self.nodes, skip_one=self.strategy is not None)

    def level(self, device: Device) -> Fidelity:
        """Return the fidelity as a level.

        Raises:
            SettingError: there is none of that name.
        """
        if self.fidelity is None:
            return Fidelity.FULL if self.keeps_precision else usual_level(device)
        names = [each.label for each in Fidelity]
        if self.fidelity not in names:
            raise SettingError(
                "budget.fidelity", f"there is no level '{self.fidelity}'", nearest(self.fidelity, names)
            )
        return Fidelity[self.fidelity.upper()]


def on_this_machine(target: Target, plan: Plan) -> Target:
    """Return the target with the device of this machine, looked up where it can be seen: the planner's process sees no GPU."""
    kind = torch.device(plan.device).type
    if target.device in (None, "cuda") and kind != "cpu":
        return replace(target, here=find_device(kind))
    if target.device is None and target.memory is None and kind == "cpu":
        available = available_bytes(torch.device("cpu"))
        return replace(target, memory=None if available is None else available // target.devices)
    return target


@contextmanager
def machine_of(target: Target) -> Iterator[Machine]:
    """Yield the machine that is planned for; within, its device may be named."""
    if target.here is None and (target.device or "cpu") == "cpu":
        with _one_of(target.devices):
            device = find_device("cpu", target.memory, target.host_link, target.link)
        if target.memory is None:
            device = replace(device, memory_bytes=device.memory_bytes // target.devices)
    elif target.here is None:
        device = find_device(target.device or "cpu", target.memory, target.host_link, target.link)
    else:
        device = replace(target.here, memory_bytes=target.memory or target.here.memory_bytes)
        if target.host_link is not None:
            device = replace(device, host_link=find_link(target.host_link, "host_link"))
        if target.link is not None:
            device = replace(device, peer_link=find_link(target.link))
    if device.kind == "cpu":
        host = device
    else:
        host = usual_host(device.name) if target.here is None else find_device("cpu")
    if device.kind != "cuda" or target.probe:
        yield Machine(device, host, device.kind if target.probe else "cpu")
        return
    assert device.capability is not None
    with ExitStack() as stack:
        try:
            stack.enter_context(pretending_gpu(device.capability, device.memory_bytes, device.name))
        except CannotPretend as error:
            note = f"Run as on a CPU, whose kernels keep other things than a GPU's: {error}."
            machine = Machine(device, host, "cpu", (note,))
        else:
            settings = AllocatorSettings.of(os.environ)
            machine = Machine(
                device, host, "cuda", settings.notes, expandable_segments=settings.expandable_segments
            )
        yield machine


def host_memory(target: Target, machine: Machine) -> tuple[int | None, tuple[str, ...]]:
    """Return the bytes that a run may take of a node's host, and a note on them where nobody has named them.

    Where device and host are one memory, nothing but the device's bounds it: None.
    """
    if target.host_memory is not None or not machine.device.has_own_memory:
        return target.host_memory, ()
    if target.here is None:
        assert target.device is not None
        host_bytes = target.devices * usual_host_bytes(target.device)
        which = "this card" if target.devices == 1 else f"{target.devices} of these cards"
        return host_bytes, (
            f"Host memory {brief_bytes(host_bytes)}: usual beside {which}; --host-memory changes it.",
        )
    host_bytes = available_bytes(torch.device("cpu")) or machine.host.memory_bytes
    return host_bytes, (
        f"Host memory {brief_bytes(host_bytes)}: free on this machine; --host-memory changes it.",
    )


@contextmanager
def _one_of(processes: int) -> Iterator[None]:
    """Temporarily give this process as many threads as one of several on this host that a run starts."""
    threads = torch.get_num_threads()
    if processes > 1 and "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(threads_of_each(processes))
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def cluster_of(target: Target, machine: Machine) -> Cluster:
    """Return the devices that train together.

    Raises:
        SettingError: there are nodes, and no network between them.
    """
    peer = machine.device.peer_link
    if target.nodes == 1:
        return Cluster(target.devices, 1, peer, peer)
    if target.network is None:
        raise SettingError(
            "network",
            f"{target.nodes} nodes exchange weights or gradients over a network that decides how they share the "
            "work",
            "Name it, such as ethernet-25 or infiniband-ndr.",
        )
    return Cluster(target.devices, target.nodes, peer, find_link(target.network, "network"))
