"""Several processes that train together: how they share the work, and what is the first one's."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import torch

from snugfit.core.job import STRATEGY_NAMES, Plan, StrategyName
from snugfit.errors import SettingError, nearest
from snugfit.strategies.base import SeveralRanks, Strategy
from snugfit.strategies.ddp import DataParallel
from snugfit.strategies.fsdp import FullyShard
from snugfit.system.processes import World

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

STRATEGIES: Mapping[StrategyName, Callable[[DeviceMesh], Strategy]] = {
    "ddp": lambda _: DataParallel(),
    "fsdp-zero2": partial(FullyShard, reshard_after_forward=False),
    "fsdp-hybrid": FullyShard,
    "fsdp": FullyShard,
    "fsdp-offload": partial(FullyShard, cpu_offload=True),
}
"""How each way to share is run by the devices of a mesh, which has two axes for `HYBRID`; the planner runs the same."""

HYBRID: StrategyName = "fsdp-hybrid"


def named_strategy(setting: str, devices: int) -> str:
    """Return the strategy that a setting stands for on so many devices.

    >>> named_strategy("auto", 1), named_strategy("auto", 2), named_strategy("fsdp", 2)
    ('single', 'ddp', 'fsdp')
    """
    if devices == 1:
        return "single"
    return "ddp" if setting == "auto" else setting


def strategy_of(plan: Plan, world: World) -> Strategy:
    """Return how the processes of a world share each update; they are joined already.

    Raises:
        SettingError: there is no strategy of that name, or there are not as many processes as the plan has devices.
    """
    check_processes(plan, world)
    if world.size == 1:
        return Strategy()
    name = known_strategy(plan.strategy)
    axes: tuple[int, ...] = (world.size,)
    if name == HYBRID:
        axes = nodes_and_devices(SeveralRanks().tell(world.local_rank))
    return STRATEGIES[name](mesh_of(torch.device(plan.device).type, axes))


def check_processes(plan: Plan, world: World) -> None:
    """Refuse a plan for another number of devices than there are processes.

    Raises:
        SettingError: says how to start as many.
    """
    if plan.devices != world.size:
        raise SettingError(
            "plan.devices",
            f"is {plan.devices}, and {world.size} {('process trains' if world.size == 1 else 'processes train')}",
            f"Start it by snugfit train --devices {plan.devices}, or by torchrun --nproc-per-node {plan.devices}.",
        )


def known_strategy(name: str) -> StrategyName:
    """Return the name of a way to share.

    Raises:
        SettingError: there is none of that name.
    """
    for known in STRATEGY_NAMES:
        if known == name:
            return known
    raise SettingError(
        "plan.strategy", f"there is no {name!r} for several devices", nearest(name, ("auto", *STRATEGY_NAMES))
    )


def mesh_of(device: str, axes: tuple[int, ...]) -> DeviceMesh:
    """Return the mesh of all ranks: those that share one model, or the copies of the model, and then the ranks that share each."""
    from torch.distributed.device_mesh import init_device_mesh

    return init_device_mesh(device, axes, mesh_dim_names=("copies", "shards")[-len(axes) :])


def nodes_and_devices(local_ranks: Sequence[int]) -> tuple[int, int]:
    """Return how many nodes there are, and devices on each, by the place of each rank on its node.

    Raises:
        SettingError: there is nothing to share within nodes, or they have not as many ranks each, one after the other.

    >>> nodes_and_devices([0, 1, 0, 1, 0, 1])
    (3, 2)
    """
    devices = max(local_ranks) + 1
    nodes = len(local_ranks) // devices
    if [*local_ranks] != [*range(devices)] * nodes:
        raise SettingError(
            "plan.strategy",
            f"{HYBRID} needs as many processes on each node, one after the other, and by their places on it the "
            f"processes are {', '.join(map(str, local_ranks))}",
            "Start as many on each node, or take fsdp.",
        )
    check_hybrid(nodes, devices)
    return nodes, devices


def check_hybrid(nodes: int, devices: int) -> None:
    """Refuse to keep a copy of the model on each node where that is another way to share.

    Raises:
        SettingError: says which one.
    """
    if nodes == 1 or devices == 1:
        what, other = ("node", "fsdp") if nodes == 1 else ("device on each node", "ddp")
        raise SettingError(
            "plan.strategy",
            f"{HYBRID} spreads a model over the devices of each node and has a copy on each, and there is one "
            f"{what}",
            f"Take {other}, which is the same there.",
        )
