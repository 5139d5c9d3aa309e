"""A batch: whatever the model and the loss take, with the rows known.

The first dimension of every tensor with at least one dimension is the row. A *window* is the batch of
one update; where several ranks share it, each has neighbouring rows of it. Micro-batches are selections of them.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from snugfit.core.tree import leaves, map_tree, parts, rows_of_packed, select_packed
from snugfit.errors import DataError, SettingError
from snugfit.system.device_copies import to_device, values_on
from snugfit.system.rounding import NO_FLOAT64
from snugfit.system.update_value import update_value
from snugfit.units import counted

LABELS = "labels"
IGNORE_INDEX = -100
"""The label that is not scored."""
_NARROW = {torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool}
"""Types of labels in which torch computes no loss, or takes an index for a mask."""

_TOKENS = frozenset(
    {
        "input_ids",
        "attention_mask",
        "token_type_ids",
        "position_ids",
        "special_tokens_mask",
        "inputs_embeds",
        LABELS,
    }
)


class Share(NamedTuple):
    """The share of a window on this rank: how many rows each rank has, which rank this is, and the tokens of the widest text on any.

    A rank without rows still computes as often as the others. It has some row of the window, which is counted nowhere.
    """

    counts: tuple[int, ...]
    rank: int
    tokens: int = 0

    @property
    def rows(self) -> int:
        """The rows on this rank."""
        return self.counts[self.rank]

    @property
    def first(self) -> int:
        """The place of this rank's first row in the window."""
        return sum(self.counts[: self.rank]) if self.rows else 0


@update_value(frozen=True, slots=True)
class Batch:
    """Rows of one window.

    `data` is the user's own structure. `ids` are the examples' indices in the source that they come from, `positions` the rows' places in their
    window, `lengths` the unpadded lengths (host integers, None when unknown), `gapless` whether each row's mask is known to be 1 up to
    its length, `padded` the width of the token tensors, 0 where cutting their padding is not known to be safe; `extras` are what
    techniques let travel with the rows: tensors with one entry a row; rows stay together in micro-batches by groups of `group`; `share` says which
    part of the window they are, None where they are all of it.
    """

    data: Any
    rows: int
    ids: tuple[int, ...] = ()
    lengths: tuple[int, ...] | None = None
    padded: int = 0
    extras: Mapping[str, Any] = field(default_factory=dict)
    group: int = 1
    share: Share | None = None
    gapless: bool = False

    @property
    def has_padding(self) -> bool | None:
        """Return whether the `attention_mask` has a 0 anywhere; None where the host does not know.

        >>> mask = torch.tensor([[1, 1, 1], [1, 1, 0]])
        >>> batch = Batch.of({"attention_mask": mask})
        >>> batch.has_padding, batch.select([0]).has_padding, Batch.of({"attention_mask": mask.flip(1)}).has_padding
        (True, False, None)
        """
        if not self.lengths:
            return None
        if min(self.lengths) < self.data["attention_mask"].shape[1]:
            return True
        return False if self.gapless else None

    @property
    def total(self) -> int:
        """Rows of the window on all ranks."""
        return self.rows if self.share is None else sum(self.share.counts)

    @property
    def tokens(self) -> int:
        """The width of `input_ids`, or 0 where there are none; of the widest on all ranks, where that was asked."""
        ids = self.data.get("input_ids") if isinstance(self.data, Mapping) else None
        width = ids.shape[1] if isinstance(ids, Tensor) and ids.ndim == 2 else 0
        return width if self.share is None else max(width, self.share.tokens)

    def own(self, values: Tensor) -> Tensor:
        """Return what belongs to these rows of `values`, which has an entry for each row of the window on all ranks."""
        if self.share is None:
            return values
        return values[self.share.first : self.share.first + self.rows]

    @classmethod
    def of(cls, data: Any, ids: Sequence[int] = ()) -> Batch:
        """Wrap `data`; lengths are read from an `attention_mask` that is on the host.

        Raises:
            DataError: `data` holds no tensor, or its tensors disagree on the number of rows, or one is nested in torch's old layout.
        """
        rows = -1
        for part in parts(data):
            if isinstance(part, PackedSequence):
                count = rows_of_packed(part)
            elif part.ndim == 0:
                continue
            elif part.is_nested and part.layout is torch.strided:  # it has no shape
                raise _no_rows_of_nested("is in the layout torch.strided, which has no rows")
            else:
                count = part.shape[0]
            if rows < 0:
                rows = count
            elif count != rows:
                form = (
                    "packed sequences" if isinstance(part, PackedSequence) else f"shape {tuple(part.shape)}"
                )
                raise DataError(
                    "batch",
                    f"one tensor has {rows} rows, another has {form} with {count}",
                    "Let the first dimension of every tensor in a batch be the row, and give shared tensors to the model "
                    "instead.",
                )
        if rows < 0:
            raise DataError(
                "batch", f"no tensor with rows in {type(data).__name__}", "Return tensors from collate."
            )
        mask = _mask_of(data)
        if mask is None:
            return cls(data, rows, tuple(ids))
        lengths, gapless = _lengths(mask)
        return cls(data, rows, tuple(ids), lengths, _trimmable(data, lengths), gapless=gapless)

    def select(self, rows: Sequence[int]) -> Batch:
        """Return the given rows, in the given order, with padding trimmed to the longest of them.

        Raises:
            DataError: a tensor is nested, of which torch gives no rows.
        """
        if rows == range(self.rows):
            return self
        count = len(rows)
        contiguous = count > 0 and all(row == rows[0] + place for place, row in enumerate(rows))
        lengths = None if self.lengths is None else tuple(self.lengths[row] for row in rows)
        padded = max(lengths) if self.padded and lengths else self.padded

        def take(tensor: Tensor) -> Tensor:
            if tensor.ndim == 0:
                return tensor
            if tensor.is_nested:
                raise _no_rows_of_nested(
                    f"cannot be split, and {counted(count, 'row')} of its {self.rows} are asked for"
                )
            if contiguous and tensor.layout is torch.strided:  # a sparse one has no part that is a view
                return tensor[rows[0] : rows[0] + count]
            return tensor.index_select(0, values_on(rows, tensor.device, torch.int64))

        tokens = self._tokens() if padded < self.padded else set()
        # what goes along other tokens, such as those of a translation, and is now as wide by chance must not be cut the next time
        safe = padded == self.padded or not _others_as_wide(self.data, tokens, padded)

        def take_trimmed(tensor: Tensor) -> Tensor:
            return take(tensor[:, :padded] if id(tensor) in tokens else tensor)

        def take_entries(leaf: Any) -> Any:
            if isinstance(leaf, (list, tuple)) and len(leaf) == self.rows:
                return type(leaf)(leaf[row] for row in rows)
            return leaf

        return Batch(
            data=map_tree(take_trimmed, self.data, take_entries, lambda packed: select_packed(packed, rows)),
            rows=count,
            ids=tuple(self.ids[row] for row in rows) if self.ids else (),
            lengths=lengths,
            padded=padded if safe else 0,
            extras={name: map_tree(take, value) for name, value in self.extras.items()},
            group=self.group,
            gapless=self.gapless,
        )

    def padded_to(self, width: int) -> Batch:
        """Return the same rows with their tokens padded to `width`, where they are known to be tokens: what `select` cuts off."""
        if not self.padded or self.padded == width:
            return self

        tokens = self._tokens()
        labels = self.data.get(LABELS)

        def wider(value: Tensor, filling: int) -> Tensor:
            beyond = value.new_full((self.rows, width - self.padded, *value.shape[2:]), filling)
            return torch.cat([value, beyond], dim=1)

        def are_labels(value: Any) -> bool:  # those of other examples, which are mixed into these
            is_alike = isinstance(value, Tensor) and isinstance(labels, Tensor) and id(labels) in tokens
            return is_alike and (value.shape, value.dtype) == (labels.shape, labels.dtype)

        data = {
            name: wider(value, IGNORE_INDEX if name == LABELS else 0) if id(value) in tokens else value
            for name, value in self.data.items()
        }
        extras = {
            name: wider(value, IGNORE_INDEX) if are_labels(value) else value
            for name, value in self.extras.items()
        }
        return replace(self, data=data, extras=extras, padded=width)

    def _tokens(self) -> set[int]:
        """Return ids of the tensors that are as wide as the tokens because they go along them.

        Where some padding has been cut, another may be as wide by chance.
        """
        if not self.padded:
            return set()
        return {id(tensor) for name, tensor in self.data.items() if _may_be_tokens(name, tensor, self.padded)}

    def with_extras(self, **extras: Any) -> Batch:
        """Return the same rows with further tensors (or trees of tensors) travelling along."""
        return replace(self, extras={**self.extras, **extras})

    def to(self, device: torch.device) -> Batch:
        """Move every tensor to `device`; from pinned memory CUDA copies it beside what it computes.

        Raises:
            DataError: a tensor is in a type that the device does not have.
        """
        for tensor in leaves(self.data):
            if tensor.device != device:
                break
        else:
            return self
        if device.type in NO_FLOAT64 and any(tensor.dtype == torch.float64 for tensor in leaves(self.data)):
            raise DataError(
                "batch",
                f"got a tensor in float64, and {device} has none",
                "Return float32 from the data set, as .float() makes it.",
            )
        return replace(self, data=map_tree(lambda tensor: to_device(tensor, device), self.data))

    def pin_memory(self) -> Batch:
        """Return the same batch in page-locked memory; what torch's `DataLoader` calls when it is asked to pin.

        Tensors that a data set has put on a device stay, and so do sparse ones, which cannot be pinned.
        """

        def pinned(tensor: Tensor) -> Tensor:
            can_be = tensor.device.type == "cpu" and tensor.layout is torch.strided
            return tensor.pin_memory() if can_be else tensor

        return replace(self, data=map_tree(pinned, self.data))


def _no_rows_of_nested(problem: str) -> DataError:
    return DataError(
        "batch",
        f"got a nested tensor, which {problem}",
        "Return a padded tensor with its mask, or a PackedSequence; one in the layout torch.jagged is taken in whole windows (micro_batch: null).",
    )


def shared_out(rows: int, ranks: int, together: int = 1) -> list[range]:
    """Neighbouring rows for each rank, as even as possible; `together` neighbours are not parted.

    >>> shared_out(7, 3)
    [range(0, 3), range(3, 5), range(5, 7)]
    >>> shared_out(7, 3, together=2)
    [range(0, 4), range(4, 6), range(6, 7)]
    >>> shared_out(1, 2)
    [range(0, 1), range(1, 1)]
    """
    units = -(-rows // together)
    size, larger = divmod(units, ranks)
    ends = [min(rows, together * (rank * size + min(rank, larger))) for rank in range(1, ranks + 1)]
    return [range(start, end) for start, end in itertools.pairwise([0, *ends])]


def split(rows: int, micro_batch: int | None, group: int = 1) -> list[range]:
    """Cut `rows` into as few parts of at most `micro_batch` as possible, as even as possible, between groups.

    >>> split(7, 3)
    [range(0, 3), range(3, 5), range(5, 7)]
    >>> split(7, 3, group=2)
    [range(0, 2), range(2, 4), range(4, 7)]

    Raises:
        SettingError: a group is larger than a micro-batch.
    """
    if micro_batch is None or rows <= micro_batch:
        return [range(rows)]
    if micro_batch < group:
        raise SettingError(
            "plan.micro_batch",
            f"is {micro_batch}, and examples are mixed in groups of {group}, which stay together",
            f"Give at least {group}.",
        )
    groups, rest = divmod(rows, group)
    parts = -(-groups // (micro_batch // group))
    # an incomplete group goes with the last part where it fits: batch norm refuses a single row
    parts += groups // parts * group + rest > micro_batch
    size, larger = divmod(groups, parts)
    ends = [*(group * (part * size + min(part, larger)) for part in range(parts)), rows]
    return [range(start, end) for start, end in itertools.pairwise(ends)]


def entries_of(data: Any) -> int:
    """Return how many entries a tuple or a list has, the labels among them; 0 of anything else."""
    return len(data) if isinstance(data, (tuple, list)) and not isinstance(data, PackedSequence) else 0


def inputs_of(data: Any, entries: int = 0) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return arguments of the model's forward: a mapping's entries but `labels`, or a tuple's entries but the last.

    Args:
        entries: of a tuple with labels, where that is known: one that has an entry less has no labels, and is taken whole.

    >>> inputs_of(("left", "right", "labels")), inputs_of(("left", "right"), entries=3)
    ((('left', 'right'), {}), (('left', 'right'), {}))
    """
    if entries and entries_of(data) == entries - 1:
        return tuple(data), {}
    if type(data) is tuple and len(data) > 1:
        return data[:-1], {}
    if isinstance(data, Mapping):
        return (), {key: value for key, value in data.items() if key != LABELS}
    if isinstance(data, PackedSequence) or not isinstance(data, (tuple, list)):
        return (data,), {}
    return tuple(data[:-1] if len(data) > 1 else data), {}


def labels_of(data: Any) -> Tensor:
    """Return the labels: entry `labels` of a mapping, or the last entry of a tuple; whole numbers and truths as int64.

    >>> labels_of((None, torch.tensor([1, 0], dtype=torch.uint8)))  # by which torch would select as by a mask
    tensor([1, 0])

    Raises:
        DataError: there are none.
    """
    if isinstance(data, Mapping) and LABELS in data:
        return _as_int64(data[LABELS])
    if isinstance(data, (tuple, list)) and len(data) > 1 and not isinstance(data, PackedSequence):
        return _as_int64(data[-1])
    raise DataError(
        "batch",
        f"no labels in a {type(data).__name__}",
        f"Give a mapping with '{LABELS}', a tuple (inputs, labels), or your own loss(outputs, data).",
    )


def _as_int64(labels: Tensor) -> Tensor:
    narrow = isinstance(labels, Tensor) and labels.dtype in _NARROW
    return labels.long() if narrow else labels


def _mask_of(data: Any) -> Tensor | None:
    """Return the `attention_mask` of rows and tokens that is on the host; None where there is none."""
    # as most are; to ask for a mapping costs more
    if type(data) is tuple or (type(data) is dict and "attention_mask" not in data):
        return None
    mask = data.get("attention_mask") if isinstance(data, Mapping) else None
    if not isinstance(mask, Tensor) or mask.ndim != 2 or mask.device.type != "cpu":
        return None
    return mask


def _lengths(mask: Tensor) -> tuple[tuple[int, ...], bool]:
    """Return where the last token of each row stands, and whether all before it are 1: a left-padded row is as long as the padded one."""
    # by numpy, to which a small array costs a third of what it costs torch
    marks = (mask.float() if mask.dtype is torch.bfloat16 else mask).detach().numpy()
    rows, width = marks.shape
    if width and (marks == 1).all():
        return (width,) * rows, True
    ends = ((marks != 0) * np.arange(1, width + 1)).max(axis=1, initial=1)
    return tuple(ends.tolist()), bool(((marks == 1).sum(axis=1) == ends).all())


def _trimmable(data: Mapping[str, Any], lengths: tuple[int, ...]) -> int:
    """Return the width of the token tensors, or 0 if a tensor that is as wide by chance would lose what it needs."""
    width = data["attention_mask"].shape[1]
    for name, value in data.items():
        for tensor in leaves(value):
            if tensor.ndim < 2 or tensor.shape[1] != width:
                continue
            if tensor is not value or name not in _TOKENS:
                return 0  # features, or tokens of another text
            if name == LABELS and not _ignored_beyond(tensor, lengths):
                return 0  # a translation's labels, or one score a class
    return int(width)


def _others_as_wide(data: Any, tokens: set[int], width: int) -> bool:
    """Return whether a tensor that may be one of tokens, and is not among `tokens`, is of this width."""
    return any(
        _may_be_tokens(name, tensor, width) and id(tensor) not in tokens
        for name, tensor in (data.items() if width else ())
    )


def _may_be_tokens(name: str, value: Any, width: int) -> bool:
    return (
        name in _TOKENS
        and isinstance(value, Tensor)
        and value.ndim > 1
        and value.shape[1] == width
        # labels of 0 and 1, one for each class: those of tokens are integers
        and not (name == LABELS and value.is_floating_point())
    )


def _ignored_beyond(labels: Tensor, lengths: tuple[int, ...]) -> bool:
    beyond = torch.arange(labels.shape[1]) >= torch.tensor(lengths).unsqueeze(1)
    if labels.ndim != 2 or labels.is_floating_point() or labels.device.type != "cpu":
        return False
    return bool((labels[beyond] == IGNORE_INDEX).all().item())
