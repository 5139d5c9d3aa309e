"""The workspace of a CPU kernel within one operator, measured on this processor where no rule holds on all of them."""

from __future__ import annotations

import gc
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_flatten, tree_map

from snugfit.system.messages import silence_profiler
from snugfit.system.second_process import is_second
from snugfit.system.threads import threads_of_run, threads_of_run_at_work

_measured: dict[tuple[Hashable, ...], int] = {}


def measured_bytes(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> int:
    """Return the most that `func` allocates at a time within itself, less what it leaves, in bytes; it is run once for each kind of arguments.

    Args:
        args: and `kwargs` may be fake; tensors like them are made for it.
    """
    leaves, structure = tree_flatten((tuple(args), dict(kwargs)))
    kind = (func, structure, threads_of_run(), *map(_kind, leaves))
    if kind not in _measured:
        if is_second() and threads_of_run() > 1:
            raise RuntimeError(
                "threads that share a kernel are not in a fork"
            )  # the process that asks measures it
        with _disable_current_modes(), torch.no_grad(), threads_of_run_at_work():
            made = tree_map(_like, (tuple(args), dict(kwargs)))
            _measured[kind] = _run(func, *made)
    return _measured[kind]


def _kind(leaf: Any) -> Hashable:
    if isinstance(leaf, Tensor):
        return leaf.shape, leaf.stride(), leaf.dtype
    return type(leaf), leaf


def _like(leaf: Any) -> Any:
    if not isinstance(leaf, Tensor):
        return leaf
    return torch.empty_strided(leaf.shape, leaf.stride(), dtype=leaf.dtype, device="cpu").zero_()


def _run(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    silence_profiler()
    with _uncollected(), profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        left = func(*args, **kwargs)  # held, so that its bytes are not given back
    results: Any = profiled.profiler
    now = most = 0
    for size in _changes(results.kineto_results.experimental_event_tree()):
        now += size
        most = max(most, now)
    del left
    return most - max(now, 0)


@contextmanager
def _uncollected() -> Iterator[None]:
    """Temporarily collect no garbage: a tensor that was let go of before would be taken for one that the kernel gives back."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _changes(roots: Any) -> Iterator[int]:
    """Yield bytes of each allocation, negative where they are given back, in the order of time."""
    changes: list[tuple[int, int]] = []
    waiting = list(roots)
    while waiting:
        event = waiting.pop()
        if event.tag == torch._C._profiler._EventType.Allocation:
            changes.append((event.start_time_ns, event.extra_fields.alloc_size))
        waiting.extend(event.children)
    return (size for _, size in sorted(changes, key=lambda each: each[0]))
