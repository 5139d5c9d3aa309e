"""The identity of a run: what decides its updates, by name, so that a resume on something else is refused and says what differs.

How a run fits is no part of it. Each entry is of plain values, nested by name: settings as they are, content and code as a sha256,
`NO_DIGEST` for what cannot be compared.
"""

from __future__ import annotations

import json
import re
import socket
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from random import Random
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader

from snugfit.core.entry import is_ours
from snugfit.core.job import AUTO, MicroBatch, Train
from snugfit.core.loss_terms import Loss
from snugfit.core.losses import LOSSES
from snugfit.core.technique import Technique
from snugfit.data.loader import Loader, next_of_workers, unchanged_child_handler
from snugfit.data.sources import by_present_paths
from snugfit.errors import RunFolderError, SaidElsewhere, SettingError, SnugfitError, nearest
from snugfit.kit.batch_norm import has_batch_norm
from snugfit.run.identity.source_code import NAME, code_of, code_of_classes, module_lines, name_of
from snugfit.step.step import Step
from snugfit.strategies.base import Strategy
from snugfit.system.digest import NO_DIGEST, digest, digest_of_settings
from snugfit.system.user_objects import is_python_path
from snugfit.tasks import find

VERSION = 2
"""The way in which identities are made; a checkpoint that says none is of version 1, which noted code by its text, not its syntax."""
ROWS = 32
"""Rows of a data set that are compared: the first, the last, and those spread evenly between them."""
_SECONDS = 1.0
_RANKS_ROWS = 10_000
"""Rows of a data set that are at most compared over ranks."""
_SHOWN = 3

BATCH_NORM = "batch_norm"
DETERMINISTIC = "deterministic"
WINDOW = "window"
_FIRST: Mapping[str, Any] = {WINDOW: {}}
"""The entries of settings that once there were not, as all runs of before had them."""
_LOSS, _RECIPE = "loss", "recipe"
_FILES = "file"
_CODE = "code"
_UNSAVED = "unsaved buffer"
_NUMBERS = 8
"""Of a buffer that is in no checkpoint, that are compared."""
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
    given = {_LOSS: loss, **functions}
    return {
        name: {NAME: value} if isinstance(value, str) else code_of(value)
        for name, value in given.items()
        if value is not None
    }


def techniques_identity(techniques: Sequence[Technique]) -> dict[str, dict[str, Any]]:
    """Return the code of techniques that are not Snugfit's, by `techniques.NAME`; their settings are of the recipe's identity."""
    own = [type(each) for each in techniques if not is_ours(type(each))]
    return {
        f"techniques.{each.card.name}": code_of(each, package=each.__module__.partition(".")[0])
        for each in own
    }


def task_identity(name: str) -> dict[str, dict[str, Any]]:
    """Return the code by which a task that is not Snugfit's loads model and data, by `task`."""
    if not is_python_path(name):
        return {}
    return {"task": code_of(find(name).load, package=name.partition(":")[0].partition(".")[0])}


def model_identity(model: nn.Module) -> dict[str, Any]:
    """Return a model's class, what its modules show of themselves, its configuration, and its code where it is the user's own.

    Weights are no part of it: a checkpoint holds them all, frozen and quantised ones too, and a resume puts them in place of those that the
    model was made with. Of buffers that no checkpoint holds, such as random features made with `persistent=False`, some numbers are.
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
        _CODE: code_of_classes(inner),
        "modules": module_lines(inner),
        _UNSAVED: dict(_unsaved_buffers(inner)),
    }


def _unsaved_buffers(model: nn.Module) -> Iterator[tuple[str, str]]:
    """Yield the name and shape of each buffer that is in no checkpoint, and some of its numbers, as exact as all processors have them."""
    for prefix, module in model.named_modules():
        for name in sorted(module._non_persistent_buffers_set):
            buffer = module._buffers.get(name)
            if buffer is None or buffer.is_meta or not buffer.numel() or buffer.layout is not torch.strided:
                continue
            count = min(_NUMBERS, buffer.numel())
            places = [place * (buffer.numel() - 1) // max(count - 1, 1) for place in range(count)]
            numbers = buffer.detach().flatten()[places].tolist()
            shown = ", ".join(f"{each:.3g}" for each in numbers)
            yield f"{prefix}.{name}".strip(".") + f" {tuple(buffer.shape)}", shown


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


def data_of_rank(
    identity: Mapping[str, Any], train: Loader, validation: Loader | None, num_workers: int
) -> dict[str, Any]:
    """Return the identity of data with more rows in it, to be compared over ranks, which have them at hand.

    The rows are all that can be read in a second, drawn by a fixed seed so that a rank that reads faster
    reads the same first.
    """
    entries = dict(identity)
    for name, loader in (("train", train), ("validation", validation)):
        if loader is not None:
            count = loader.rows
            places = Random(0).sample(range(count), min(_RANKS_ROWS, count))
            if loader.stream is not None:  # all before the last one would have to be read
                places = list(range(min(ROWS, count)))
            entries[name] = {
                **entries[name],
                "row": entries[name]["row"] | _digests(loader, places, num_workers),
            }
    return entries


def _rows_identity(loader: Loader, num_workers: int) -> dict[str, Any]:
    """Return how many rows there are, and digests of some; each is read twice, as rows that differ then cannot be compared."""
    examples = loader.rows
    count = min(ROWS, examples)
    places = sorted({place * (examples - 1) // max(count - 1, 1) for place in range(count)})
    if loader.stream is not None:
        places = list(range(count))
    return {"rows": examples, "row": _digests(loader, places, num_workers)}


def _digests(loader: Loader, places: Sequence[int], num_workers: int) -> dict[str, str]:
    """Return the digests of rows by their index in the source: of as many as can be read in a second."""
    digests: dict[str, str] = {}
    start = time.monotonic()
    for place, value in zip(places, _read(_Rows(loader), places, num_workers), strict=False):
        digests[str(loader.source_index(place))] = value
        if time.monotonic() - start > _SECONDS:
            break
    return digests


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


def batch_norm_identity(
    step: Step, train: Train, loader: Loader, planned: MicroBatch, micro_batch: int | None
) -> dict[str, Any]:
    """Return in what parts batch norm sees a window, which decides updates then; nothing for a model without it.

    Args:
        planned: the micro-batch that was asked for.
        micro_batch: of the step; None for the window whole, or for what a plan of "auto" has yet to find.
    """
    if not has_batch_norm(step.model):
        return {}
    ranks = step.strategy.world_size
    shown: int | str | None = AUTO if planned == AUTO else "whole window"
    if micro_batch is not None:
        rows = train.most_examples or len(loader.order.largest_window())
        shown = micro_batch if micro_batch < -(-rows // ranks) else "whole window"
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
                "accept_changes", f"'{name}' is nothing that a resume compares", nearest(name, names)
            )


def check_identity(
    saved: Mapping[str, Any],
    own: Mapping[str, Any],
    accepted: Sequence[str] = (),
    version: int = VERSION,
    folder: str = "RUN",
) -> list[str]:
    """Refuse to go on with other settings, data or code than those a run began with.

    Args:
        saved: the identity in a checkpoint; what one of an older version does not have is not compared, but for sizes of windows, which were
            all of one size.
        accepted: names whose changes are known.
        version: of `saved`; of one below `VERSION` the digests of code are not compared.
        folder: the run's, as one types it.
    Returns:
        Sentences on what was accepted and on what could not be compared.
    Raises:
        RunFolderError: says what differs.
        SettingError: a name that is accepted is of nothing that is compared.
    """
    own = as_plain(own)
    saved = {**{name: value for name, value in _FIRST.items() if name in own}, **saved}
    check_accepted(accepted, sorted({*saved, *own, BATCH_NORM, DETERMINISTIC}))
    changes: dict[str, list[str]] = {}
    lacking = [name for name, now in own.items() if name not in saved and now not in ({}, None)]
    unread: list[str] = []
    for name, then in saved.items():
        then, now = _alike(then, own.get(name))
        if then is _NOT_COMPARED:
            lacking.append(name)
        elif differing := differences(then, now, version):
            changes[name] = differing
        unread += [f"{name}: {part}" for part, value in flat(now).items() if value == NO_DIGEST]
    refusals = {name: differing for name, differing in changes.items() if name not in accepted}
    if refusals:
        what = " ".join(f"{name}: {_first(differing)}." for name, differing in refusals.items())
        names = [*dict.fromkeys((*accepted, *refusals))]
        command = f"snugfit resume {folder} --accept-changes {','.join(names)}, in Python "
        raise RunFolderError(
            "resume",
            f"not what it was when this run began. {what}",
            f"Put it back{_put_back(saved, refusals)}, or start a new run. To go on with the change: "
            f"{command if _RECIPE in own else ''}accept_changes={names}.",
        )
    notes = [
        f"resume: the change is accepted. {name}: {_first(differing)}." for name, differing in changes.items()
    ]
    if lacking:
        notes.append(f"resume: the checkpoint does not say, so it is not compared: {', '.join(lacking)}.")
    if version < VERSION and (
        code := [name for name, now in own.items() if any(_is_code(now, part) for part in flat(now))]
    ):
        notes.append(
            "resume: the checkpoint is of an earlier version of Snugfit, which noted code in another way, so edits of code are not compared: "
            f"{', '.join(code)}."
        )
    if unread:
        notes.append(
            f"resume: cannot be compared, as it has no source or differs when it is read again: {_first(unread)}."
        )
    return notes


def _put_back(saved: Mapping[str, Any], changed: Collection[str]) -> str:
    """Return how a built-in loss is given again: one that was the default once need not be in the caller's text."""
    loss = saved.get(_LOSS)
    name = loss.get(NAME) if isinstance(loss, Mapping) and set(loss) == {NAME} else None
    return f" (loss: {name})" if _LOSS in changed and name in LOSSES else ""


def differences(then: Any, now: Any, version: int = VERSION) -> list[str]:
    """Return what differs between two values of an entry, a few words each.

    Args:
        version: in which `then` was made.

    >>> differences({"row": {"17": "a" * 64}}, {"row": {"17": "b" * 64}}), differences(8, 4)
    (['row 17 was changed'], ['8 then, 4 now'])
    """
    if isinstance(then, Mapping) and now is None:
        return ["is not given any more"]
    changes = _differing(then, now)
    if version < VERSION:
        changes = [each for each in changes if not _is_code(now, each[0]) or _is_noted_alike(*each[1:])]
    return [_difference(*each) for each in changes]


def _is_code(entry: Any, part: str) -> bool:
    """Return whether a part of an entry is of code: all of a function's but its name, and of a model's entry its classes."""
    if not isinstance(entry, Mapping):
        return False
    return part != NAME if NAME in entry else _CODE in entry and part.startswith(f"{_CODE} ")


def _is_noted_alike(then: Any, now: Any) -> bool:
    """Return whether versions of identities note a part of code alike: constants that both have."""
    return not any(each is _NOTHING or _is_digest(each) for each in (then, now))


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
            if not part.startswith(_UNSAVED)  # all ranks start with the buffers of the first
        ]
        if parts:
            error = SettingError(
                "ranks",
                f"{host} (rank {rank}) differs from rank 0 in {_first(parts)}",
                "Give all ranks the same model, code and rows, in the same order; Snugfit shares out the rows. A set of texts has "
                "another order in each process: sort it.",
            )
            raise error if strategy.rank == 0 else SaidElsewhere.from_text(str(error))


def _differing(one: Any, other: Any) -> list[tuple[str, Any, Any]]:
    """Return the parts of an entry that differ, with both of their values; what one side cannot compare is left out."""
    before, after = flat(one), flat(other)
    if before.get(NAME) != after.get(NAME):  # another function: its parts are others too
        before, after = ({NAME: each.get(NAME)} for each in (before, after))
    # how many rows were read in the time that there is differs, versions of a library know of more settings than others, and what forward
    # makes or lets grow is not there at first
    sampled = [
        part
        for part in {**before, **after}
        if part.startswith(("config ", "train row ", "validation row ", f"{_UNSAVED} "))
    ]
    both = [part for part in {**before, **after} if part not in sampled or (part in before and part in after)]
    changes = []
    for part in both:
        mine, its = before.get(part, _NOTHING), after.get(part, _NOTHING)
        if mine == its or (mine != mine and its != its) or NO_DIGEST in (mine, its):  # NaN is the same as NaN
            continue
        if mine is _NOTHING and its is None:  # a setting that there was not, and that is not given
            continue
        if {} in (mine, its) and any(each.startswith(f"{part} ") for each in both):  # its entries say it
            continue
        changes.append((part, mine, its))
    return changes


def flat(value: Any, name: str = "") -> dict[str, Any]:
    """Return nested values by their joined names.

    >>> flat({"row": {"0": 1}, "rows": 2})
    {'row 0': 1, 'rows': 2}
    >>> flat({"labels": {}})
    {'labels': {}}
    """
    if not isinstance(value, Mapping) or (name and not value):
        return {name: value}
    return {
        part: entry
        for key, each in value.items()
        for part, entry in flat(each, f"{name} {key}".strip()).items()
    }


def _is_digest(value: Any) -> bool:
    return isinstance(value, str) and _SHA256.fullmatch(value) is not None


def _difference(part: str, then: Any, now: Any) -> str:
    digests = [_is_digest(each) for each in (then, now)]
    if then is _NOTHING:
        return f"{part} is new"
    if now is _NOTHING:
        return f"{part} is gone"
    if all(digests):
        return f"{part} was changed".strip()
    return f"{part} {then!r} then, {now!r} now".strip()


def _alike(then: Any, now: Any) -> tuple[Any, Any]:
    """Return both values in the form that the older of them has: settings once were a digest, data the files alone."""
    if isinstance(then, str) and isinstance(now, Mapping):
        return then, digest_of_settings(now)
    if not (isinstance(then, Mapping) and isinstance(now, Mapping) and _FILES in now):
        return then, now
    if _FILES not in then:
        return (then or _NOT_COMPARED), now[_FILES]
    return {**then, _FILES: by_present_paths(then[_FILES], now[_FILES])}, now


def _first(parts: Sequence[str]) -> str:
    more = f" and {len(parts) - _SHOWN} more" if len(parts) > _SHOWN else ""
    return ", ".join(parts[:_SHOWN]) + more


class _Mark(str):
    """A word that no value equals but itself."""


_NOTHING = _Mark("none")
_NOT_COMPARED = _Mark("not compared")
