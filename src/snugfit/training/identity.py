"""The identity of a run: what decides its updates, by name, so that a resume on something else is refused and says what differs.

How a run fits is no part of it. Each entry is of plain values, nested by name: settings as they are, content and code as a sha256,
`NO_DIGEST` for what cannot be compared.
"""

from __future__ import annotations

import json
import re
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.utils.data import DataLoader

from snugfit.core.batch_norm import has_batch_norm
from snugfit.core.digest import NO_DIGEST, digest, digest_of_settings
from snugfit.core.job import AUTO
from snugfit.core.losses import Loss
from snugfit.core.source_code import NAME, code_of, code_of_classes, module_lines, name_of
from snugfit.data.loader import Loader, next_of_workers, unchanged_child_handler
from snugfit.errors import RunFolderError, SaidElsewhere, SettingError, SnugfitError, nearest
from snugfit.strategies.base import Strategy

if TYPE_CHECKING:
    from snugfit.training.loop import Training

ROWS = 32
"""Rows of a data set that are compared: the first, the last, and those spread evenly between them."""
_SECONDS = 1.0
_SHOWN = 3

BATCH_NORM = "batch_norm"
_FILES = "file"
_SHA256 = re.compile("[0-9a-f]{64}")
_VOLATILE = ("_name_or_path", "transformers_version")
"""Entries of a configuration that say where a model came from."""
_SET_LATER = ("problem_type", "architectures", "dtype", "torch_dtype")
"""Entries that transformers sets where they are not set: in a first forward with labels, or when a model is saved."""


def code_identity(
    loss: str | Loss, functions: Mapping[str, Callable[..., Any] | str | None]
) -> dict[str, dict[str, Any]]:
    """Return the code that decides updates, by setting; the name alone of what Snugfit brings.

    Args:
        functions: by setting; None where the setting is not used.
    """
    given = {"loss": loss, **functions}
    return {
        name: {NAME: value} if isinstance(value, str) else code_of(value)
        for name, value in given.items()
        if value is not None
    }


def model_identity(model: nn.Module) -> dict[str, Any]:
    """Return a model's class, what its modules show of themselves, its configuration, and its code where it is the user's own.

    Weights are no part of it: they are in checkpoints.
    """
    inner = getattr(model, "_orig_mod", model)
    config: Any = getattr(inner, "config", None)
    values = config.to_dict() if hasattr(config, "to_dict") else {}
    return {
        "class": name_of(type(inner)),
        "config": {
            key: value
            for key, value in values.items()
            if key not in _VOLATILE and not (value is None and key in _SET_LATER)
        },
        "code": code_of_classes(inner),
        "modules": module_lines(inner),
    }


def data_identity(
    files: Mapping[str, str], train: Loader, validation: Loader | None, num_workers: int
) -> dict[str, Any]:
    """Return the fingerprints of files, and what some rows hold of what is made of them.

    Args:
        files: the sha256 of each source that is read whole, by its name.
        num_workers: where workers are to read the data, one of them reads here: what a data set opens must not be open before they
            are forked.
    """
    held_out = {} if validation is None else {"validation": _rows_identity(validation, num_workers)}
    return {_FILES: dict(files), "train": _rows_identity(train, num_workers), **held_out}


def _rows_identity(loader: Loader, num_workers: int) -> dict[str, Any]:
    """How many rows there are, and digests of some; each is read twice, as rows that differ then cannot be compared."""
    examples = loader.order.examples
    count = min(ROWS, examples)
    places = sorted({place * (examples - 1) // max(count - 1, 1) for place in range(count)})
    rows = _Rows(loader)
    found: dict[str, str] = {}
    start = time.monotonic()
    for place, value in zip(places, _read(rows, places, num_workers), strict=False):
        found[str(loader.source_index(place))] = value
        if time.monotonic() - start > _SECONDS:
            break
    return {"rows": examples, "row": found}


class _Rows:
    """Digests of examples, by index; none for one that differs when it is read again, or that cannot be read."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def __getitem__(self, index: int) -> str:
        try:
            once, again = (digest(self._loader.example(index)) for _ in range(2))
        except SnugfitError:  # the training says so if it comes to it
            return NO_DIGEST
        return once if once == again else NO_DIGEST


def _read(rows: _Rows, places: Sequence[int], num_workers: int) -> Iterator[str]:
    if num_workers == 0:
        for place in places:
            yield rows[place]
        return
    loader: DataLoader[Any] = DataLoader(
        rows,  # type: ignore[arg-type]
        sampler=places,
        batch_size=None,
        num_workers=1,
        generator=torch.Generator(),
    )
    with unchanged_child_handler():
        read = iter(loader)
    try:
        # a worker that dies ends the reading: the training says so if it comes to it
        while isinstance(value := next_of_workers(read), str):
            yield value
    finally:
        del read


def batch_norm_identity(training: Training, micro_batch: int | None) -> dict[str, Any]:
    """Return in what parts batch norm sees a window, which decides updates then; nothing for a model without it.

    Args:
        micro_batch: of the step; None for the window whole, or for what a plan of "auto" has yet to find.
    """
    if not has_batch_norm(training.step.model):
        return {}
    ranks = training.step.strategy.world_size
    shown: int | str | None = AUTO if training.planned == AUTO else "whole window"
    if micro_batch is not None:
        shown = micro_batch if micro_batch < -(-training.job.global_batch // ranks) else "whole window"
    return {BATCH_NORM: {"micro_batch": shown, "ranks": ranks}}


def as_plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return an identity as it is read back from JSON."""
    plain: dict[str, Any] = json.loads(json.dumps(values, default=str))
    return plain


def check_accepted(accepted: Sequence[str], names: Sequence[str]) -> None:
    """Refuse a name that is of no part of an identity.

    Raises:
        SettingError: there is one.
    """
    for name in accepted:
        if name not in names:
            raise SettingError(
                f"accept_changes: '{name}' is nothing that a resume compares. {nearest(name, names)}"
            )


def check_identity(
    saved: Mapping[str, Any], own: Mapping[str, Any], accepted: Sequence[str] = ()
) -> list[str]:
    """Refuse to go on with other settings, data or code than those a run began with.

    Args:
        saved: the identity in a checkpoint; what one of an older version does not have is not compared.
        accepted: names whose changes are known.
    Returns:
        Sentences on what was accepted and on what could not be compared.
    Raises:
        RunFolderError: says what differs.
        SettingError: a name that is accepted is of nothing that is compared.
    """
    own = as_plain(own)
    check_accepted(accepted, sorted({*saved, *own, BATCH_NORM}))
    changes: dict[str, list[str]] = {}
    lacking = [name for name, now in own.items() if name not in saved and now not in ({}, None)]
    unread: list[str] = []
    for name, then in saved.items():
        then, now = _alike(then, own.get(name))
        if then is _NOT_COMPARED:
            lacking.append(name)
        elif differing := differences(then, now):
            changes[name] = differing
        unread += [f"{name}: {part}" for part, value in flat(now).items() if value == NO_DIGEST]
    refused = {name: told for name, told in changes.items() if name not in accepted}
    if refused:
        what = " ".join(f"{name}: {_first(told)}." for name, told in refused.items())
        names = list(refused)
        raise RunFolderError(
            f"resume: not what it was when this run began. {what} Put it back, or start a new run. To go on with the change: "
            f"snugfit resume RUN --accept-changes {','.join(names)}, in Python accept_changes={names}."
        )
    notes = [f"resume: the change is accepted. {name}: {_first(told)}." for name, told in changes.items()]
    if lacking:
        notes.append(f"resume: the checkpoint does not say, so it is not compared: {', '.join(lacking)}.")
    if unread:
        notes.append(
            f"resume: cannot be compared, as it has no source or differs when it is read again: {_first(unread)}."
        )
    return notes


def differences(then: Any, now: Any) -> list[str]:
    """Return what differs between two values of an entry, a few words each.

    >>> differences({"row": {"17": "a" * 64}}, {"row": {"17": "b" * 64}}), differences(8, 4)
    (['row 17 was changed'], ['8 then, 4 now'])
    """
    if isinstance(then, Mapping) and now is None:
        return ["is not given any more"]
    return [_difference(*each) for each in _differing(then, now)]


def check_ranks(identity: Mapping[str, Any], strategy: Strategy) -> None:
    """Refuse to train together on other data, code or models than the first rank has; all ranks call it.

    Args:
        identity: of this rank, of plain values.
    Raises:
        SettingError: names what differs, and the host.
        SaidElsewhere: the same, on other ranks than the first.
    """
    if strategy.world_size == 1:
        return
    (_, first), *others = strategy.tell((socket.gethostname(), dict(identity)))
    for rank, (host, its) in enumerate(others, 1):
        parts = [
            f"{name} {part}".strip()
            for name in {**first, **its}
            for part, *_ in _differing(first.get(name), its.get(name))
        ]
        if parts:
            error = SettingError if strategy.rank == 0 else SaidElsewhere
            raise error(
                f"ranks: {host} (rank {rank}) differs from rank 0 in {_first(parts)}. Give all ranks the same model, code and rows, in the "
                "same order; Snugfit shares out the rows. A set of texts has another order in each process: sort it."
            )


def _differing(one: Any, other: Any) -> list[tuple[str, Any, Any]]:
    """The parts of an entry that differ, with both of their values; what one side cannot compare is left out."""
    before, after = flat(one), flat(other)
    if before.get(NAME) != after.get(NAME):  # another function: its parts are others too
        before, after = ({NAME: each.get(NAME)} for each in (before, after))
    # how many rows were read in the time that there is differs, and versions of a library know of more settings than others
    sampled = [
        part for part in {**before, **after} if part.startswith(("config ", "train row ", "validation row "))
    ]
    both = [part for part in {**before, **after} if part not in sampled or (part in before and part in after)]
    found = []
    for part in both:
        mine, its = before.get(part, _NOTHING), after.get(part, _NOTHING)
        if mine == its or NO_DIGEST in (mine, its):
            continue
        found.append((part, mine, its))
    return found


def flat(value: Any, name: str = "") -> dict[str, Any]:
    """Return nested values by their joined names.

    >>> flat({"row": {"0": 1}, "rows": 2})
    {'row 0': 1, 'rows': 2}
    """
    if not isinstance(value, Mapping):
        return {name: value}
    return {
        part: entry
        for key, each in value.items()
        for part, entry in flat(each, f"{name} {key}".strip()).items()
    }


def _difference(part: str, then: Any, now: Any) -> str:
    digests = [isinstance(each, str) and _SHA256.fullmatch(each) is not None for each in (then, now)]
    if then is _NOTHING:
        return f"{part} is new"
    if now is _NOTHING:
        return f"{part} is gone"
    if all(digests):
        return f"{part} was changed".strip()
    return f"{part} {then!r} then, {now!r} now".strip()


def _alike(then: Any, now: Any) -> tuple[Any, Any]:
    """Both values in the form that the older of them has: settings once were a digest, data the files alone."""
    if isinstance(then, str) and isinstance(now, Mapping):
        return then, digest_of_settings(now)
    if isinstance(now, Mapping) and _FILES in now and isinstance(then, Mapping) and _FILES not in then:
        return (then or _NOT_COMPARED), now[_FILES]
    return then, now


def _first(told: Sequence[str]) -> str:
    more = f" and {len(told) - _SHOWN} more" if len(told) > _SHOWN else ""
    return ", ".join(told[:_SHOWN]) + more


class _Mark(str):
    """A word that no value equals but itself."""


_NOTHING = _Mark("none")
_NOT_COMPARED = _Mark("not compared")
