"""Watch views that are taken for a transpose."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from snugfit.doctor.observe.events.script_events import WrongAxis
from snugfit.doctor.observe.recording.attribute_patches import Patches
from snugfit.doctor.observe.recording.internals import script_as
from snugfit.doctor.observe.recording.own_calls import is_looked_at
from snugfit.doctor.observe.recording.recorder import Recorder
from snugfit.doctor.observe.recording.script_frames import where

_Call = Callable[..., Any]
MOST_LABELS = 1_000_000


def watch_views(recorder: Recorder, patches: Patches) -> None:
    """Record what the script itself views or reshapes such that axes seem to be exchanged."""

    def viewing(original: _Call) -> _Call:
        name = original.__name__

        def view(input: Any, *shape: Any, **kwargs: Any) -> Any:
            result = original(input, *shape, **kwargs)
            if is_looked_at(recorder):
                _look_at(recorder, name, input, result)
            return result

        return view

    for name in ("view", "reshape"):
        patches.wrap(Tensor, name, viewing)
    in_c = torch.reshape
    patches.wrap(torch, "reshape", viewing)
    script_as(torch.reshape, in_c)


def _look_at(recorder: Recorder, name: str, before: Tensor, after: Any) -> None:
    with recorder.guard():
        if not (isinstance(before, Tensor) and isinstance(after, Tensor) and recorder.active):
            return
        if not before.requires_grad:
            if moves_channels(before.shape, after.shape):
                what = f"pictures of {list(before.shape)} become {list(after.shape)}, and their values stay as they lie in memory"
                fix = "pictures = pictures.permute(0, 3, 1, 2)   # moves the channels"
                recorder.add(WrongAxis(where(), recorder.log.updates, name, what, fix))
            elif mixes_labels(before, after):
                what = f"a table of {list(before.shape)} with one 1 in each column becomes {list(after.shape)}, and the rows have several or none: its values stay as they lie in memory"
                fix = "targets = torch.stack(labels, dim=1)   # or targets.T; a data set that gives a tensor, not a list, needs neither"
                recorder.add(WrongAxis(where(), recorder.log.updates, name, what, fix))
        elif is_exchange(before.shape, after.shape) or is_exchange(after.shape, before.shape):
            what = f"{list(before.shape)} becomes {list(after.shape)}, which has the sizes of exchanged axes, and the values as they lie in memory"
            fix = "x = x.transpose(0, 1)   # or x.view(batch, length, heads, -1).transpose(1, 2)"
            recorder.add(WrongAxis(where(), recorder.log.updates, name, what, fix))


def is_exchange(before: Sequence[int], after: Sequence[int]) -> bool:
    """Return whether a view has the sizes of an exchange of two neighbouring axes, of which the second may be parted.

    A view keeps the order of the values, so that it can only part axes and join neighbours.

    >>> is_exchange((32, 9, 20), (9, 32, 20)), is_exchange((24, 12, 24), (24, 4, 12, 6))
    (True, True)
    >>> is_exchange((24, 12, 24), (24, 12, 4, 6)), is_exchange((8, 3, 4), (8, 12))
    (False, False)
    """
    old, new = ([size for size in sizes if size != 1] for sizes in (before, after))
    while old and new and old[0] == new[0]:
        old, new = old[1:], new[1:]
    while old and new and old[-1] == new[-1]:
        old, new = old[:-1], new[:-1]
    if len(old) != 2 or not 2 <= len(new) <= 3 or old[0] in _ends(new):
        return False
    places = [place for place in range(1, len(new)) if new[place] == old[0]]
    return any(math.prod(new) == new[place] * old[1] for place in places)


def moves_channels(before: Sequence[int], after: Sequence[int]) -> bool:
    """Return whether a view has the sizes of pictures whose channels, of which there are up to four, have gone from the last axis to the first, or back.

    >>> moves_channels((64, 32, 32, 3), (64, 3, 32, 32)), moves_channels((64, 3072), (64, 3, 32, 32))
    (True, False)
    """
    old, new = list(before[-3:]), list(after[-3:])
    if len(before) != len(after) or len(before) < 3 or before[:-3] != after[:-3] or old == new:
        return False
    to_first, to_last = new == [old[2], *old[:2]], new == [*old[1:], old[0]]
    channels = old[2] if to_first else old[0]
    return (to_first or to_last) and 1 < channels <= 4 < min(size for size in old if size != channels)


def mixes_labels(before: Tensor, after: Tensor) -> bool:
    """Return whether a table that has the label of each row in a column is viewed as one of the exchanged size, in which rows have several labels or none.

    >>> columns = torch.eye(3)[[0, 0, 1, 2]].T
    >>> mixes_labels(columns, columns.reshape(4, 3)), mixes_labels(columns, columns.T), mixes_labels(columns.T, columns.T.reshape(3, 4))
    (True, False, False)
    """
    sizes = tuple(before.shape)
    if len(sizes) != 2 or tuple(after.shape) != sizes[::-1] or sizes[0] == sizes[1] or before.is_complex():
        return False
    if not 0 < before.numel() <= MOST_LABELS or not bool(((before == 0) | (before == 1)).all()):
        return False
    return bool((before.sum(0) == 1).all()) and not bool((after.sum(1) == 1).all())


def _ends(sizes: Sequence[int]) -> set[int]:
    """Return the products of the first sizes: where a view may end an axis that was one before."""
    return {math.prod(sizes[:count]) for count in range(1, len(sizes))}
