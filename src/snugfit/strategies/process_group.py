"""The group of processes that train together: how they find each other, their devices, what they agree on, and the way out."""

from __future__ import annotations

import itertools
import os
import socket
import subprocess
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.rendezvous import rendezvous

from snugfit.errors import RanksLost, SaidElsewhere, SettingError, SnugfitError
from snugfit.strategies import gradient_sums
from snugfit.system.processes import World, leave_when_uncaught

PORT = 29400
"""Where ranks that Slurm starts meet, unless MASTER_PORT says otherwise."""
_GROUPS = itertools.count()
"""Numbers of the groups of this process, which are the same on all ranks: they run the same code."""


def device_of(setting: str, world: World) -> str:
    """Return this process's device: of those that have a number, the one of its place on the host.

    >>> device_of("cuda", World(rank=3, size=4, local_rank=1)), device_of("cpu", World())
    ('cuda:1', 'cpu')
    """
    return f"{setting}:{world.device}" if world.size > 1 and setting in ("cuda", "xpu") else setting


def check_devices(device: str, count: int) -> None:
    """Refuse more processes on this host than it has devices of their own for.

    Raises:
        SettingError: says how many there are.
    """
    kind = torch.device(device).type
    there = torch.accelerator.device_count()
    if kind != "cpu" and count > there:
        raise SettingError(
            "plan.devices",
            f"{count} processes are to train on this host, which has {there} {kind} "
            f"{('device' if there == 1 else 'devices')}",
            f"Give plan.devices={there}, or start others on other hosts.",
        )


@contextmanager
def joined(world: World, device: str, timeout_seconds: float) -> Iterator[None]:
    """Temporarily let this process and the others of its world exchange tensors; a process by itself needs nothing for that.

    After an error the group on GPUs is left as it is: to end it, NCCL waits for exchanges that the others may never make. The process
    is to be left then, by `system.processes.leave`; where the error ends a script, it is.

    Args:
        timeout_seconds: how long it waits for the others at an exchange before it gives up. On GPUs NCCL's watchdog ends the process then.
    Raises:
        RanksLost: the others do not come.
        SettingError: Slurm's list of hosts cannot be read, or two ranks have one GPU.
    """
    if world.size == 1 or dist.is_initialized():
        yield
        return
    kind = torch.device(device).type
    there = None
    if kind == "cuda":
        check_devices(device, world.device + 1)
        there = torch.device("cuda", world.device)
        torch.cuda.set_device(there)
        # an exchange that failed, or was waited for too long, ends the process, and nothing is waited for in that
        os.environ.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "3")
    _meeting_point()
    wait = timedelta(seconds=timeout_seconds)
    try:
        dist.init_process_group(
            # what is on the host is exchanged there, and waits for no device
            "cpu:gloo,cuda:nccl" if kind == "cuda" else "gloo",
            rank=world.rank,
            world_size=world.size,
            store=_store(world, wait),
            timeout=wait,
            device_id=there,  # else NCCL guesses it from the rank, which is wrong where each process sees one GPU
        )
    except (RuntimeError, ValueError) as error:
        raise RanksLost(
            f"ranks: {socket.gethostname()} (rank {world.rank} of {world.size}) does not meet the others at "
            f"{os.environ.get('MASTER_ADDR')}:{os.environ.get('MASTER_PORT')}: {str(error).splitlines()[0]}. Check that the address "
            "can be reached from every host, and that as many were started."
        ) from error
    try:
        if there is not None:
            _check_apart(str(torch.cuda.get_device_properties(there).uuid))
        yield
    except BaseException:
        if there is None:
            dist.destroy_process_group()
        else:
            leave_when_uncaught()
        raise
    dist.destroy_process_group()


def _store(world: World, wait: timedelta) -> dist.Store | None:
    """Return the place in torchrun's store where the processes meet; None where another launcher started them, as torch then makes a store for each group.

    Torchrun's outlives a group: a second one of these processes would meet the addresses of the first.
    """
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return None
    store, _, _ = next(rendezvous("env://", world.rank, world.size, timeout=wait))
    return dist.PrefixStore(f"snugfit group {next(_GROUPS)}", store)


def _check_apart(gpu: str) -> None:
    """Refuse two ranks on one GPU, of which NCCL would only say that something is invalid.

    Args:
        gpu: the number that its maker gave it.
    Raises:
        SettingError: names the ranks and their host.
        SaidElsewhere: the same, on other ranks than the first.
    """
    places: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(places, (socket.gethostname(), gpu))
    for rank, place in enumerate(places):
        if (first := places.index(place)) < rank:
            error = SettingError(
                "ranks",
                f"{first} and {rank} have the same GPU of {place[0]}",
                "Start one process for each GPU, as srun --gpus-per-task=1 or torchrun --nproc-per-node does.",
            )
            raise error if dist.get_rank() == 0 else SaidElsewhere.from_text(str(error))


def _meeting_point() -> None:
    """Return where Slurm started the ranks: on its first host."""
    os.environ.setdefault("MASTER_PORT", str(PORT))
    if "MASTER_ADDR" in os.environ:
        return
    hosts = os.environ.get("SLURM_STEP_NODELIST")
    if hosts is None:
        os.environ["MASTER_ADDR"] = "localhost"
        return
    command = ["scontrol", "show", "hostnames", hosts]
    try:
        shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        raise SettingError(
            "ranks",
            f"the hosts of SLURM_STEP_NODELIST={hosts} cannot be listed ({error})",
            "Set MASTER_ADDR to the first of them.",
        ) from error
    os.environ["MASTER_ADDR"] = shown.split()[0]


@contextmanager
def agreed() -> Iterator[None]:
    """Temporarily let ranks do what each does by itself: at its end they tell each other what was wrong, which is an error of all, said by the first.

    Raises:
        SnugfitError: the first rank's own error, or on it another one's under the name of that one.
        SaidElsewhere: on the other ranks.
    """
    if not dist.is_initialized():
        yield
        return
    mine: SnugfitError | None = None
    try:
        yield
    except SnugfitError as error:
        mine = error
    failures: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(failures, mine and (socket.gethostname(), str(mine)))
    wrong = [(rank, *failure) for rank, failure in enumerate(failures) if failure is not None]
    if not wrong:
        return
    rank, host, message = wrong[0]
    if dist.get_rank() > 0:
        raise SaidElsewhere.from_text(message) from mine
    raise mine or SettingError.from_text(f"ranks: {host} (rank {rank}): {message}")


@contextmanager
def answered(doing: Callable[[], str]) -> Iterator[None]:
    """Temporarily exchange with other ranks: where they end or do not answer, the error says so.

    Args:
        doing: what this rank is at, in words.
    Raises:
        RanksLost: they ended, or did not answer in time.
    """
    try:
        yield
    except RuntimeError as error:
        text = str(error)
        if not isinstance(error, dist.DistError) and not any(words in text for words in _GLOO):
            raise
        late = "timed out" in text.lower() or "timeout" in text.lower()
        what = (
            "did not hear of the other ranks within plan.timeout: one of them hangs, or is that much slower"
            if late
            else "lost the other ranks: one of them has ended"
        )
        raise RanksLost(
            f"rank {dist.get_rank()} ({socket.gethostname()}), {doing()}, waiting in {_exchange(error)}, {what}."
        ) from error


_GLOO = ("/gloo/", "Application timeout caused pair closure")
"""What gloo raises has no class of its own: the place in its code, or words where it gives none."""


def _exchange(error: BaseException) -> str:
    """Return the exchange that an error comes from, by the name of torch's function."""
    frames = traceback.extract_tb(error.__traceback__)
    names = [frame.name for frame in frames if frame.filename == dist.distributed_c10d.__file__]
    by_step = any(frame.filename == gradient_sums.__file__ for frame in frames)
    return names[-1] if names and not by_step else _OF_GRADIENTS


_OF_GRADIENTS = "the exchange of gradients"
"""What backward starts without Python, or the step in one message behind it."""


def check_same(identity: Mapping[str, Any]) -> None:
    """Refuse to train together on different things.

    Args:
        identity: what must be the same on all ranks, such as versions and the hash of the recipe.
    Raises:
        SettingError: names what differs, and the hosts.
        SaidElsewhere: the same, on other ranks than the first.
    """
    mine = (socket.gethostname(), dist.get_rank(), dict(identity))
    identities: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(identities, mine)
    host, _, first = identities[0]
    for other, rank, its in identities[1:]:
        for name in sorted({*first, *its}):
            if first.get(name) != its.get(name):
                error = SettingError(
                    "ranks",
                    f"'{name}' is {its.get(name)!r} on {other} (rank {rank}) and {first.get(name)!r} on {host} (rank 0)",
                    "Give all of them the same recipe, data and versions.",
                )
                raise error if dist.get_rank() == 0 else SaidElsewhere.from_text(str(error))
