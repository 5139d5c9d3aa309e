"""Random numbers of a loader's workers, read off the code that seeds them and the data set that they copy."""

from __future__ import annotations

import dis
import random
import sys
from types import CellType, CodeType, FunctionType, ModuleType
from typing import Any

import torch

from snugfit.doctor.observe.recording.script_frames import is_own, shown

_SEEDS = frozenset({"seed", "manual_seed", "set_seed", "seed_everything"})
_OWN = frozenset({"initial_seed", "get_worker_info", "getpid", "urandom", "time", "time_ns", "SeedSequence"})
"""Names by which a worker tells itself from others."""
MOST_PARTS = 64
_DRAWS = frozenset({"randint", "randrange", "getrandbits", "randbits", "integers"})
"""What a worker draws is its own: torch seeds each worker's generators differently."""


def draws_alike(loader: Any) -> tuple[str, str]:
    """Return why all workers of a loader draw the same random numbers, and the line; "" for both where nothing says so."""
    if loader.num_workers < 2:
        return "", ""
    code = getattr(loader.worker_init_fn, "__code__", None)
    if isinstance(code, CodeType):
        line = _constant_seed(code)
        if line:
            return f"{code.co_name} gives each worker the same seed", f"{shown(code.co_filename)}:{line}"
        if "get_worker_info" in code.co_names:  # it reaches the worker's own data set
            return "", ""
    elif loader.worker_init_fn is not None:
        return "", ""
    name = _own_generator(loader.dataset, code)
    return (
        (f"the generator `{name}` is copied into each of {loader.num_workers} workers, with its state", "")
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


def _own_generator(dataset: Any, seeding: CodeType | None) -> str:
    """Return the name of a generator that a data set holds, what it is made of, or a function of it; "" if it has none, or each worker or row seeds it.

    Args:
        seeding: the code that each worker starts with.
    """
    numpy = sys.modules.get("numpy")
    kinds: tuple[type, ...] = (random.Random, torch.Generator)
    if numpy is not None:
        kinds += (numpy.random.Generator, numpy.random.RandomState)
    by_worker = set(() if seeding is None else (*seeding.co_names, *seeding.co_consts))
    todo, seen, generators = [dataset], set[int](), list[str]()
    while todo and len(seen) < MOST_PARTS:
        part = todo.pop(0)
        if id(part) in seen:
            continue
        seen.add(id(part))
        functions = _functions(part)
        if any(not (_OWN | _SEEDS).isdisjoint(each.__code__.co_names) for each in functions):
            return ""
        own = [each for each in functions if is_own(each.__code__.co_filename)]
        named = [*_held(part), *(pair for each in own for pair in _read(each))]
        generators += [name for name, each in named if isinstance(each, kinds) and name not in by_worker]
        todo += [each for _, each in named if not isinstance(each, kinds) and _may_hold(each)]
    return next(iter(generators), "")


def _held(part: Any) -> list[tuple[str, Any]]:
    """Return what an object has by name; the parts of a list have none."""
    if isinstance(part, list | tuple):
        return [("", each) for each in part[:MOST_PARTS]]
    return list(getattr(part, "__dict__", {}).items()) if not isinstance(part, FunctionType) else []


def _functions(part: Any) -> list[FunctionType]:
    """Return the functions in Python that an object has by its class, or that it is; a library's may seed by the worker, as the script's may."""
    classes = type(part).__mro__
    given = (
        [part] if isinstance(part, FunctionType) else [own for each in classes for own in vars(each).values()]
    )
    # what is made once, before the workers start, draws in none of them
    return [each for each in given if isinstance(each, FunctionType) and each.__name__ != "__init__"]


def _read(function: FunctionType) -> list[tuple[str, Any]]:
    """Return what a function reads of its module, and of the functions around it."""
    loaded = {each.argval for each in dis.get_instructions(function.__code__) if each.opname == "LOAD_GLOBAL"}
    names = [each for each in function.__code__.co_names if each in loaded and each in function.__globals__]
    around = zip(function.__code__.co_freevars, function.__closure__ or (), strict=False)
    cells = [(name, cell.cell_contents) for name, cell in around if cell != CellType()]
    return [*((name, function.__globals__[name]) for name in names), *cells]


def _may_hold(part: Any) -> bool:
    """Return whether an object may hold a generator: one of the script's classes or functions, a list, or a transform of a library."""
    if isinstance(part, type | ModuleType | torch.Tensor):
        return False
    return isinstance(part, list | tuple | FunctionType) or callable(part)
