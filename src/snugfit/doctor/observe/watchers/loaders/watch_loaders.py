"""Watch data loaders: what they hand out, how long that takes, and how they are split over ranks."""

from __future__ import annotations

import linecache
import math
import re
import time
import weakref
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, distributed
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils import data

from snugfit.doctor.observe.events.log import LoaderSeen
from snugfit.doctor.observe.events.run_events import (
    AugmentedApart,
    LengthDivides,
    SameOrder,
    ScaledTogether,
    WindowsShared,
)
from snugfit.doctor.observe.events.script_events import Batch, EpochEnd, LengthRead
from snugfit.doctor.observe.recording.attribute_patches import Patches
from snugfit.doctor.observe.recording.internals import private_part
from snugfit.doctor.observe.recording.own_source import line_that_splits
from snugfit.doctor.observe.recording.recorder import Recorder
from snugfit.doctor.observe.recording.script_frames import called_directly, innermost, is_own, shown, where
from snugfit.doctor.observe.watchers.libraries.watch_tables import look_at_orders, look_at_whole
from snugfit.doctor.observe.watchers.loaders.worker_draws import draws_alike
from snugfit.doctor.observe.watchers.modules.watch_modules import ModuleWatch
from snugfit.doctor.observe.watchers.rows.orientations import Orientations
from snugfit.doctor.observe.watchers.rows.row_digests import row_digests, tensors_in
from snugfit.doctor.observe.watchers.rows.shared_windows import SharedWindows
from snugfit.doctor.observe.watchers.rows.whole_scales import scaled_together

_Call = Callable[..., Any]
_EACH_ONCE = frozenset(
    (
        "RandomSampler",
        "SequentialSampler",
        "SubsetRandomSampler",
        "SeedableRandomSampler",
        "DistributedSampler",
    )
)
"""Samplers that hand each row out once in a pass."""
MOST_TIMES = 200
LEAST_BATCHES = 4
LEAST_ORDERS = 100_000
HALF, NEARLY_ALL = 0.5, 0.9
"""So many beginnings of a pass there must be: of a batch of one among few rows, the same comes in turn by chance."""
_DIVIDES = re.compile(r"/=?\s*(max\()?\s*len\(")
_BATCHES = re.compile(r"//?\s*[\w.\"'\[\]]*(batch|bs)", re.IGNORECASE)
_TRANSFORMS = re.compile(
    r"(transform|augment|flip|crop|rotate|rot90)\w*\(|(\b|_)(augs?|tfms?|trans|jitter)\("
)
_OF_MASKS = re.compile(r"mask|label|target|seg", re.IGNORECASE)


def watch_loaders(recorder: Recorder, modules: ModuleWatch, patches: Patches) -> None:
    """Record the loaders, their batches and their epochs."""
    owners: weakref.WeakKeyDictionary[Any, LoaderSeen] = weakref.WeakKeyDictionary()
    notes = _Notes(recorder, modules)
    iterators = private_part("batches of loaders")

    def initialising(original: _Call) -> _Call:
        def __init__(loader: Any, *args: Any, **kwargs: Any) -> None:
            original(loader, *args, **kwargs)
            with recorder.guard():
                notes.loader(loader)

        return __init__

    def iterating(original: _Call) -> _Call:
        def __iter__(loader: Any) -> Any:
            recorder.wake()
            iterator = original(loader)
            with recorder.guard():
                seen = recorder.loaders.get(recorder.number(loader))
                if seen is not None and iterators is not None and isinstance(iterator, iterators):
                    owners[iterator] = seen
            return iterator

        return __iter__

    def handing(original: _Call) -> _Call:
        def __next__(iterator: Any) -> Any:
            if recorder.rests:
                return notes.rest(original, iterator, owners.get(iterator))
            seen = owners.get(iterator) if recorder.active else None
            return original(iterator) if seen is None else notes.hand(original, iterator, seen)

        return __next__

    def counting(original: _Call) -> _Call:
        def __len__(loader: Any) -> int:
            batches = int(original(loader))
            seen = recorder.loaders.get(recorder.number(loader)) if recorder.active else None
            if seen is not None and called_directly():
                with recorder.guard():
                    notes.length(seen, batches)
            return batches

        return __len__

    patches.wrap(data.DataLoader, "__init__", initialising)
    patches.wrap(data.DataLoader, "__iter__", iterating)
    patches.wrap(data.DataLoader, "__len__", counting)
    if iterators is not None:
        patches.wrap(iterators, "__next__", handing)
    patches.wrap(data.DistributedSampler, "set_epoch", notes.setting)


def watch_scales(recorder: Recorder, patches: Patches) -> None:
    """Remember where the script takes the deviation of its data, before it trains."""

    def spreading(original: _Call) -> _Call:
        def std(values: Any, *args: Any, **kwargs: Any) -> Any:
            if not (recorder.log.updates or recorder.looking) and values.dim() > 1 and recorder.active:
                with recorder.guard():
                    if called_directly():
                        recorder.deviations[len(values)] = at = where()
                        recorder.deviations_taken[at] = recorder.deviations_taken.get(at, 0) + 1
            return original(values, *args, **kwargs)

        return std

    patches.wrap(Tensor, "std", spreading)


class _Notes:
    """Records of the wrappers of loaders: what they tell the recorder, and what they need of each other."""

    def __init__(self, recorder: Recorder, modules: ModuleWatch) -> None:
        self._recorder, self._modules, self._rows = recorder, modules, modules.rows
        self._batches = 0
        self._handed: dict[int, tuple[weakref.ref[Any], float]] = {}
        self._samplers: dict[int, LoaderSeen] = {}
        self._first: dict[tuple[str, int], tuple[LoaderSeen, list[int], list[bytes]]] = {}
        self._orientations: dict[int, Orientations] = {}
        self._made_in: dict[int, str] = {}
        self._sizes: dict[int, int] = {}
        self._sets: dict[int, weakref.ref[Any]] = {}
        self._windows = SharedWindows()
        self._orders: dict[tuple[str, int], tuple[list[int], int, int]] = {}
        self._classes: dict[int, list[list[int]]] = {}

    def loader(self, loader: Any) -> None:
        """Record a loader that was made."""
        recorder = self._recorder
        seen = _seen(recorder, loader)
        if seen.id not in recorder.loaders:
            recorder.loaders[seen.id] = seen
            recorder.log.loaders.append(seen)
            self._samplers[recorder.number(_sampler(loader))] = seen
            self._made_in[seen.id] = _line_of_transform(loader.dataset)
            self._sizes[seen.id] = loader.batch_size or 0
            if seen.sampler not in _EACH_ONCE or getattr(_sampler(loader), "replacement", False):
                self._rows.repeats.close(seen.id)
            with suppress(TypeError):  # a list cannot be referred to weakly
                self._sets[seen.id] = weakref.ref(loader.dataset)
            for other, shared, rows in self._windows.add(seen.id, loader.dataset):
                at = line_that_splits() or seen.at
                recorder.add(WindowsShared(at, recorder.log.updates, seen.id, other, shared, rows))
            look_at_orders(recorder, self._modules.tables, loader.dataset)
            look_at_whole(recorder, loader.dataset, seen.id)
            scaled = scaled_together(loader.dataset)
            if scaled is not None:
                storage, rows, shift = scaled
                at = recorder.deviations.get(rows, seen.at)
                recorder.add(ScaledTogether(at, recorder.log.updates, seen.id, storage, rows, shift))

    def hand(self, original: _Call, iterator: Any, seen: LoaderSeen) -> Any:
        """Hand a batch over, and record it."""
        asked = time.monotonic()
        try:
            batch = original(iterator)
        except StopIteration:
            self._end(seen)
            raise
        with self._recorder.guard():
            self.batch(iterator, seen, asked, batch)
        return batch

    def _end(self, seen: LoaderSeen) -> None:
        with self._recorder.guard():
            seen.classes_in_order = classes_in_order(self._classes.pop(seen.id, []))
            self._recorder.add(EpochEnd(where(), self._recorder.log.updates, seen.id))
            self._rows.ended = True
            self._rows.repeats.close(seen.id)

    def rest(self, original: _Call, iterator: Any, seen: LoaderSeen | None) -> Any:
        """Hand a batch over in an update that rests: it is counted. The end of an epoch ends the rest."""
        try:
            batch = original(iterator)
        except StopIteration:
            self._recorder.wake()
            if seen is not None and self._recorder.active:
                self._end(seen)
            raise
        if seen is not None:
            seen.batches += 1
            self._handed[seen.id] = weakref.ref(iterator), math.nan
        return batch

    def batch(self, iterator: Any, seen: LoaderSeen, asked: float, batch: Any) -> None:
        """Record a batch that was handed over, and how long it was waited for since it was `asked` for."""
        now = time.monotonic()
        last = self._handed.get(seen.id)
        self._look_at_orientations(seen, batch)
        starts = last is None or (seen.workers > 0 and last[0]() is not iterator)
        seen.batches += 1
        if last is not None and last[0]() is not iterator:
            self._rows.repeats.close(seen.id)
        if last is not None and not starts and len(seen.waits) < MOST_TIMES and not math.isnan(last[1]):
            seen.works.append(asked - last[1])
            seen.waits.append(now - asked)
        self._recorder.add(Batch(where(), self._recorder.log.updates, seen.id))
        self._rows.loader, self._rows.ended = seen.id, False
        self._batches += 1
        self._modules.states.batch = self._batches if seen.sampler == "RandomSampler" else 0
        parts = tensors_in(list(batch.values()) if isinstance(batch, Mapping) else [batch])
        for companion in self._modules.companions:
            companion.drew(parts)
        self._modules.drawn = (
            [each for each in parts if each.layout is torch.strided] if self._recorder.detailed else []
        )
        firsts = {len(each) for each in parts if each.dim()}
        self._modules.rows_drawn = self._sizes.get(seen.id, 0) if firsts == {self._sizes.get(seen.id)} else 0
        drawn = seen.sampler == "RandomSampler" and isinstance(batch, Tensor)
        if self._recorder.detailed and drawn and batch.layout is torch.strided:
            self._modules.handed[StorageWeakRef(batch.untyped_storage())] = seen.id
        if seen.sampler == "SequentialSampler" and not seen.classes_in_order:
            first = last is None or last[0]() is not iterator
            labels = [each for each in parts if each.dim() == 1 and not each.is_floating_point()]
            self._classes.setdefault(seen.id, [])[:] = [] if first else self._classes.get(seen.id, [])
            self._classes[seen.id].append(labels[-1].tolist() if labels else [])
        if last is None or last[0]() is not iterator:
            if seen.sampler == "SequentialSampler":
                self._compare_first(seen, batch)
            elif seen.sampler == "RandomSampler":
                self._compare_orders(seen, parts)
        self._handed[seen.id] = weakref.ref(iterator), time.monotonic()

    def _look_at_orientations(self, seen: LoaderSeen, batch: Any) -> None:
        """Note pictures that come again in another orientation than their masks, in updates that are looked at closely."""
        if not self._recorder.close or seen.sampler == "SequentialSampler":
            return
        parts = tensors_in(list(batch.values()) if isinstance(batch, Mapping) else [batch])
        if len(parts) < 2:
            return
        if self._orientations.setdefault(seen.id, Orientations()).apart(parts):
            at = self._made_in.get(seen.id) or where()
            self._recorder.add(AugmentedApart(at, self._recorder.log.updates))

    def _compare_first(self, seen: LoaderSeen, batch: Any) -> None:
        """Compare the first batch of a pass with that of the pass before: the same rows may come with other inputs."""
        tensors = tensors_in(list(batch.values()) if isinstance(batch, Mapping) else [batch])
        inputs = [each for each in tensors if each.is_floating_point() and each.dim() > 1]
        others = [each for each in tensors if each.dim() and each is not (inputs[0] if inputs else None)]
        # boxes and points move with their picture; whole numbers and truths say which row it is
        labels = [each for each in others if not each.is_floating_point()] or others
        if not inputs or not labels:
            return
        place = seen.at, seen.dataset_id
        rows, values = row_digests(inputs[0]), [_bytes(each) for each in labels]
        before, self._first[place] = self._first.get(place), (seen, rows, values)
        if before is None or not self._are_of_one_set(seen, before[0]):
            return
        earlier, rows_before, values_before = before
        if (
            earlier is not seen
        ):  # a loader of the same rows that is made for each pass goes on where the last one was
            seen.redrawn, seen.repeated = earlier.redrawn, earlier.repeated
            seen.other_masks = earlier.other_masks
        again = len(set(rows) & set(rows_before)) / len(rows)
        if values_before != values:
            seen.other_masks += again < HALF and any(_is_mask(each, inputs[0]) for each in labels)
        elif again < NEARLY_ALL:  # half of the rows that are flipped, or not, come again by chance
            seen.redrawn += 1
        else:
            seen.repeated += 1

    def _are_of_one_set(self, one: LoaderSeen, other: LoaderSeen) -> bool:
        """Return whether two loaders have the same data set, which is still there: the number of one that is gone may be another's."""
        if one is other:
            return True
        sets = [self._sets.get(each.id) for each in (one, other)]
        alive = [None if each is None else each() for each in sets]
        return alive[0] is not None and alive[0] is alive[1]

    def _compare_orders(self, seen: LoaderSeen, parts: list[Tensor]) -> None:
        """Note a loader that shuffles and begins with the same rows in pass after pass, each of which trains."""
        rows = next(
            (row_digests(each) for each in parts if each.dim() > 1 and each.layout is torch.strided), []
        )
        if math.perm(seen.whole, min(len(set(rows)), seen.whole)) < LEAST_ORDERS:
            return
        place, update = (seen.at, len(self._recorder.optimizers)), self._recorder.log.updates
        before, times, at_update = self._orders.get(place, ([], 0, -1))
        if rows and rows == before and update > at_update:
            self._orders[place] = rows, times + 1, update
            self._recorder.add(SameOrder(seen.at, update, times + 1))
        elif rows != before:
            self._orders[place] = rows, 1, update

    def length(self, seen: LoaderSeen, batches: int) -> None:
        """Record that the script asked for the number of batches, and whether it divides by it."""
        at, update = where(), self._recorder.log.updates
        self._recorder.add(LengthRead(at, update, seen.id))
        if _DIVIDES.search(_source_line()):
            self._recorder.add(LengthDivides(at, update, seen.id, batches))

    def setting(self, original: _Call) -> _Call:
        """Return what records that a sampler was told of its epoch."""

        def set_epoch(sampler: Any, epoch: int) -> None:
            with self._recorder.guard():
                seen = self._samplers.get(self._recorder.number(sampler))
                if seen is not None:
                    seen.epochs_set += 1
            original(sampler, epoch)

        return set_epoch


def classes_in_order(batches: list[list[int]]) -> int:
    """Return how many classes the rows of a pass have, where these come class after class; 0 where they do not, or may be numbers of rows.

    >>> classes_in_order([[0, 0, 0, 0], [0, 0, 1, 1], [1, 1, 1, 1], [2, 2, 2, 2]])
    3
    >>> classes_in_order([[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11], [12, 13]])
    0
    """
    labels = [each for batch in batches for each in batch]
    classes = len(set(labels))
    few = len(batches) >= LEAST_BATCHES and 2 <= classes <= len(labels) / LEAST_BATCHES
    return classes if few and labels == sorted(labels) else 0


def _is_mask(values: Tensor, pictures: Tensor) -> bool:
    """Return whether a tensor marks places of pictures by zeros and ones."""
    spatial = pictures.dim() > 2 and values.dim() > 2 and values.shape[-2:] == pictures.shape[-2:]
    return spatial and bool(((values == 0) | (values == 1)).all()) and bool((values == 1).any())


def _base_of(dataset: Any) -> Any:
    while isinstance(dataset, data.Subset):
        dataset = dataset.dataset
    return dataset


def _bytes(labels: Tensor) -> bytes:
    return bytes(labels.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())


def _source_line() -> str:
    frame = innermost()
    return "" if frame is None else linecache.getline(frame.f_code.co_filename, frame.f_lineno)


def _line_of_transform(dataset: Any) -> str:
    """Return file:line where a script's own data set transforms a row, its mask rather than its picture; "" where none of it is seen."""
    dataset = _base_of(dataset)
    code = getattr(getattr(type(dataset), "__getitem__", None), "__code__", None)
    if code is None or not is_own(code.co_filename):
        return ""
    numbers = sorted({line for *_, line in code.co_lines() if line is not None})
    text = {each: linecache.getline(code.co_filename, each) for each in numbers}
    lines = [each for each in numbers if _TRANSFORMS.search(text[each])]
    lines = [each for each in lines if _OF_MASKS.search(text[each])] or lines
    return f"{shown(code.co_filename)}:{lines[0] if lines else numbers[0]}"


def _length(rows: Any) -> int:
    """Return how many there are; 0 where they do not tell, as a ChainDataset of streams does not, though it has a `__len__`."""
    try:
        return len(rows) if hasattr(rows, "__len__") else 0
    except Exception:  # noqa: BLE001  of the script's own class, which nobody may ever have asked
        return 0


def _counts_batches() -> bool:
    """Return whether the source of the script's function that makes a loader divides by the size of a batch."""
    frame = innermost()
    lines = [] if frame is None else linecache.getlines(frame.f_code.co_filename)
    return any(_BATCHES.search(line) for line in lines)


def _left_out(sampler: Any, dataset: Any) -> int:
    """Return how many rows a sampler by weights can never draw, since it has no weight for them."""
    if not isinstance(sampler, data.WeightedRandomSampler) or not hasattr(dataset, "__len__"):
        return 0
    return max(0, len(dataset) - len(sampler.weights))


def _part_of(sampler: Any) -> tuple[int, int, int]:
    """Return of how many parts of rows that it shuffles a sampler of torch's kind gives which, and its seed; 0 parts of others."""
    held = [getattr(sampler, name, None) for name in ("num_replicas", "rank", "seed")]
    numbers = [each for each in held if type(each) is int]
    if not getattr(sampler, "shuffle", False) or len(numbers) < len(held):
        return 0, 0, 0
    return numbers[0], numbers[1], numbers[2]


def _sampler(loader: Any) -> Any:
    """Return the sampler of rows, also where batches are drawn by a sampler of their own."""
    if isinstance(loader.dataset, data.IterableDataset):
        return None
    inner = getattr(loader.batch_sampler, "sampler", None)
    return loader.sampler if loader.batch_size is not None or inner is None else inner


def _seen(recorder: Recorder, loader: Any) -> LoaderSeen:
    sampler = _sampler(loader)
    batches = type(loader.batch_sampler).__name__
    world_size = (
        distributed.get_world_size() if distributed.is_available() and distributed.is_initialized() else 1
    )
    alike, alike_at = draws_alike(loader)
    parts, part, seed = _part_of(sampler)
    plain = type(sampler).__name__ in ("RandomSampler", "SequentialSampler") and batches == "BatchSampler"
    return LoaderSeen(
        id=recorder.number(loader),
        at=where(),
        sampler=type(sampler).__name__,
        shards=not plain or isinstance(loader.dataset, data.Subset),
        dataset=type(loader.dataset).__name__,
        dataset_id=id(loader.dataset),
        base_id=id(_base_of(loader.dataset)),
        workers=loader.num_workers,
        pinned=loader.pin_memory,
        cuda=torch.cuda.is_available(),
        world_size=world_size,
        alike=alike,
        alike_at=alike_at or where(),
        left_out=_left_out(sampler, loader.dataset),
        drawn=_length(sampler),
        whole=_length(loader.dataset),
        batch_size=loader.batch_size or 0,
        counts_batches=_counts_batches(),
        parts=parts,
        part=part,
        seed=seed,
    )
