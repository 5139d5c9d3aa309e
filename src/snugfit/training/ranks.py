"""Several processes that train together: how they share the work, and what is the first one's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from snugfit.core.job import Plan
from snugfit.core.processes import World
from snugfit.errors import SettingError, nearest
from snugfit.strategies.base import Strategy
from snugfit.strategies.ddp import DataParallel
from snugfit.strategies.fsdp import FullyShard
from snugfit.training.folder import RunFolder

STRATEGIES: Mapping[str, Callable[[], Strategy]] = {"ddp": DataParallel, "fsdp": FullyShard}


def named_strategy(setting: str, devices: int) -> str:
    """The strategy that a setting stands for on so many devices.

    >>> named_strategy("auto", 1), named_strategy("auto", 2), named_strategy("fsdp", 2)
    ('single', 'ddp', 'fsdp')
    """
    if devices == 1:
        return "single"
    return "ddp" if setting == "auto" else setting


def shared_folder(strategy: Strategy, output: Path, name: str) -> RunFolder:
    """The folder of a new run, the same on all ranks, of which the first one makes it.

    Raises:
        RunFolderError: it cannot be written.
    """
    if strategy.rank > 0:
        return RunFolder(Path(strategy.tell(None)[0]))
    folder = RunFolder.create(output, name)
    strategy.tell(str(folder.path))
    return folder


def strategy_of(plan: Plan, world: World) -> Strategy:
    """How the processes of a world share each update; they are joined already.

    Raises:
        SettingError: there is no strategy of that name, or there are not as many processes as the plan has devices.
    """
    if plan.devices != world.size:
        raise SettingError(
            f"plan.devices: is {plan.devices}, and {world.size} {'process trains' if world.size == 1 else 'processes train'}. Start it by "
            f"snugfit train --devices {plan.devices}, or by torchrun --nproc-per-node {plan.devices}."
        )
    if world.size == 1:
        return Strategy()
    if plan.strategy not in STRATEGIES:
        raise SettingError(
            f"plan.strategy: there is no {plan.strategy!r} for several devices. {nearest(plan.strategy, STRATEGIES)}"
        )
    return STRATEGIES[plan.strategy]()
