"""Random numbers of a loader's workers, read off the code that seeds them and the data set that they copy."""

from __future__ import annotations

import dis
import random
import sys
from types import CodeType
from typing import Any

import torch

from snugfit.doctor.observe.watchers.watch_log import shown

_SEEDS = frozenset({"seed", "manual_seed", "set_seed", "seed_everything"})
_OWN = frozenset({"initial_seed", "get_worker_info", "getpid", "urandom", "time", "time_ns", "SeedSequence"})
"""Names by which a worker tells itself from others."""
_DRAWS = frozenset({"randint", "randrange", "getrandbits", "randbits", "integers"})
"""What a worker draws is its own: torch seeds each worker's generators differently."""


def draws_alike(loader: Any) -> tuple[str, str]:
    """Return why all workers of a loader draw the same random numbers, and the line; "" for both where nothing says so."""
    if loader.num_workers < 2:
        return "", ""
    code = getattr(loader.worker_init_fn, "__code__", None)
    if isinstance(code, CodeType):
        line = _constant_seed(code)
        return (
            (f"{code.co_name} gives each worker the same seed", f"{shown(code.co_filename)}:{line}")
            if line
            else ("", "")
        )
    name = _own_generator(loader.dataset) if loader.worker_init_fn is None else ""
    return (
        (f"the data set's `{name}` is copied into each of {loader.num_workers} workers, with its state", "")
        if name
        else ("", "")
    )


def _constant_seed(code: CodeType) -> int:
    """Return the line at which a function of a worker's number seeds without it; 0 where it does not."""
    if code.co_argcount != 1 or not (_OWN | _DRAWS).isdisjoint(code.co_names):
        return 0
    at, number = 0, code.co_varnames[0]
    line = code.co_firstlineno
    for each in dis.get_instructions(code):
        if each.opname == "CALL" and each.argval == 0:  # seed() takes the system's entropy
            return 0
        line = each.positions.lineno or line if each.positions else line
        used = each.argval if isinstance(each.argval, tuple) else (each.argval,)
        if each.opname.startswith("LOAD") and number in used and "FAST" in each.opname:
            return 0
        if each.argval in _SEEDS and not at:
            at = line
    return at


def _own_generator(dataset: Any) -> str:
    """Return the name of a generator that a data set holds; "" if it has none."""
    numpy = sys.modules.get("numpy")
    kinds: tuple[type, ...] = (random.Random, torch.Generator)
    if numpy is not None:
        kinds += (numpy.random.Generator, numpy.random.RandomState)
    return next(
        (name for name, each in getattr(dataset, "__dict__", {}).items() if isinstance(each, kinds)), ""
    )
