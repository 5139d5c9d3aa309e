"""Agreement of processes that train together: on what is wrong, on who answers, and on what they were given."""

from __future__ import annotations

import socket
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch.distributed as dist

from snugfit.errors import RanksLost, SaidElsewhere, SettingError, SnugfitError
from snugfit.strategies import gradient_sums


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
