"""Gathers that send in 16 bits the weights that autocast rounds to 16 bits anyway: half of the bytes, and the same numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from snugfit.core.scalar_reads import is_fake
from snugfit.kit.sharded_tensors import all_gather

ROUNDED = (torch.bfloat16, torch.float16)
"""The types that autocast rounds weights to."""
_OTHERWISE = len(ROUNDED)


class WeightUses(TorchDispatchMode):
    """A watch over what operators read of weights: a cast to 16 bits, or anything else.

    Views are followed. An operator that only writes a weight, as a gather does, does not use it.
    """

    def __init__(self, weights: Sequence[Tensor | None]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.uses = torch.zeros(len(weights), len(ROUNDED) + 1, dtype=torch.uint8)
        """A row for each weight: whether it is cast to each type, and whether it is used otherwise."""
        self._places = {
            each.untyped_storage()._cdata: place for place, each in enumerate(weights) if each is not None
        }

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Let torch compile as it does without a watch. The watch sees nothing of compiled code, whose weights stay as they are."""
        return True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        schema = func._schema
        if not _gives_views(schema):
            named = {each.name: each for each in schema.arguments}
            given = zip((each.name for each in schema.arguments), args, strict=False)
            for name, value in (*given, *kwargs.items()):
                alias = named[name].alias_info
                if alias is None or not alias.is_write:
                    for tensor in _plain_tensors(value):
                        place = self._places.get(tensor.untyped_storage()._cdata)
                        if place is not None:
                            self.uses[place, _use(func, kwargs)] = 1
        return func(*args, **kwargs)


def rounded_weights(uses: Tensor) -> list[torch.dtype | None]:
    """Return for each weight the one type that it is cast to and not used otherwise; None for all other weights.

    >>> rounded_weights(torch.tensor([[1, 0, 0], [1, 0, 1], [1, 1, 0], [0, 0, 0]]))
    [torch.bfloat16, None, None, None]
    """
    return [ROUNDED[row.index(1)] if sum(row) == 1 and not row[_OTHERWISE] else None for row in uses.tolist()]


class RoundedGather:
    """A gather of one unit of FSDP2, for its `set_custom_all_gather`.

    While `on`, weights that have a type in `dtypes` are sent in it and come back in theirs; the others are sent as they are.
    """

    def __init__(self, parts: Callable[[], Sequence[Tensor]], ranks: int) -> None:
        """Take what gives the unit's sharded weights, in the order in which FSDP2 joins them, and the number of ranks."""
        self.parts = parts
        self.numels = [padded_numel(each.shape, ranks) for each in parts()]
        self.dtypes: Sequence[torch.dtype | None] = [None] * len(self.numels)
        self.on = False
        self.checks = False
        self.in_order = True
        """True where what was gathered while `checks` was on had the weights in their places."""

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Allocate what is gathered into."""
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: dist.ProcessGroup, async_op: bool = False
    ) -> dist.Work | None:
        """Gather the parts of all ranks."""
        if self.checks:
            self.in_order &= self._has_order(input_tensor)
        if not (self.on and any(self.dtypes)):
            return all_gather(output_tensor, input_tensor, group=group, async_op=async_op)
        # bytes: one exchange for both kinds, by any backend
        sent = torch.cat(
            [
                (part if dtype is None else part.to(dtype)).view(torch.uint8)
                for part, dtype in zip(input_tensor.split(self.numels), self.dtypes, strict=True)
            ]
        )
        arrived = sent.new_empty(group.size() * sent.numel())
        all_gather(arrived, sent, group=group)
        sizes = [
            numel * (dtype or input_tensor.dtype).itemsize
            for numel, dtype in zip(self.numels, self.dtypes, strict=True)
        ]
        for whole, row in zip(output_tensor.chunk(group.size()), arrived.chunk(group.size()), strict=True):
            for place, piece, dtype in zip(
                whole.split(self.numels), row.split(sizes), self.dtypes, strict=True
            ):
                if dtype is None:  # a piece may begin where no number of four bytes may; its place does not
                    place.view(torch.uint8).copy_(piece)
                else:
                    place.copy_(piece.view(dtype))
        return None

    def _has_order(self, joined: Tensor) -> bool:
        """Return whether these are this rank's parts of the weights, each filled up, one after the other; of fake ones that is taken so."""
        if joined.dtype != torch.float32 or joined.numel() != sum(self.numels):
            return False
        if is_fake(joined):
            return True
        own = [each.to_local().flatten() for each in self.parts()]  # type: ignore[attr-defined]
        pieces = zip(joined.split(self.numels), own, strict=True)
        return all(torch.equal(piece[: part.numel()].to(part.device), part) for piece, part in pieces)


class Rounding:
    """The decision which weights of a model are gathered in 16 bits.

    A window under autocast is watched. Weights that it only casts to 16 bits are sent so from then on, while a window is computed.
    Evaluation gathers all weights as they are.
    """

    def __init__(self) -> None:
        self._gathers: list[tuple[RoundedGather, Sequence[int]]] = []
        self._under_autocast = False
        self._uses: WeightUses | None = None
        self._watched = False
        self._decided = False

    def add(self, gather: RoundedGather, places: Sequence[int]) -> None:
        """Take the gather of a unit, and the places of its weights among all."""
        self._gathers.append((gather, places))

    def see(self, device: str) -> None:
        """Note, in a forward, whether autocast is on."""
        self._under_autocast = self._under_autocast or torch.is_autocast_enabled(device)

    @contextmanager
    def in_force(self, weights: Sequence[Tensor | None], last: bool) -> Iterator[None]:
        """Temporarily gather so, around forward and backward of a micro-batch: the last one of its window, or not."""
        if self._decided:
            with self._all("on"):
                yield
        elif self._under_autocast and not self._watched:
            self._uses = self._uses or WeightUses(weights)
            with self._all("checks"), self._uses:
                yield
            self._watched = last
        else:
            yield
            # a window without autocast decides too
            self._watched = self._watched or (last and not self._under_autocast)

    def agree(self, flags: Tensor, most: Callable[[Tensor], None]) -> Tensor:
        """Return the most of each flag over ranks, which agree by the same exchange on what the watch has seen.

        Args:
            flags: one of each weight of the model.
            most: what gives a tensor the most of each number over ranks, in place.
        """
        if self._decided:
            most(flags)
            return flags
        count = len(flags)
        uses = self._seen(count)
        joined = torch.cat([flags, uses.flatten(), flags.new_tensor([not self._watched])])
        most(joined)
        if not joined[-1]:
            self._decide(joined[count:-1].view_as(uses))
        return joined[:count]

    def _seen(self, count: int) -> Tensor:
        if self._uses is None:
            return torch.zeros(count, len(ROUNDED) + 1, dtype=torch.uint8)
        uses = self._uses.uses.clone()
        for gather, places in self._gathers:
            if not gather.in_order:
                uses[[*places], _OTHERWISE] = 1
        return uses

    def _decide(self, uses: Tensor) -> None:
        dtypes = rounded_weights(uses)
        for gather, places in self._gathers:
            gather.dtypes = [dtypes[place] for place in places]
        self._decided, self._uses = True, None

    @contextmanager
    def _all(self, switch: str) -> Iterator[None]:
        for gather, _ in self._gathers:
            setattr(gather, switch, True)
        try:
            yield
        finally:
            for gather, _ in self._gathers:
                setattr(gather, switch, False)


def padded_numel(size: torch.Size, ranks: int) -> int:
    """Return the numbers that each rank sends of a weight whose rows are spread over so many ranks.

    >>> padded_numel(torch.Size([5, 3]), 2)
    9
    """
    return math.ceil(size[0] / ranks) * math.prod(size[1:])


def _use(func: Any, kwargs: dict[str, Any]) -> int:
    if func is torch.ops.aten._to_copy.default and kwargs.get("dtype") in ROUNDED:
        return ROUNDED.index(kwargs["dtype"])
    return _OTHERWISE


def _gives_views(schema: Any) -> bool:
    return bool(schema.returns) and all(
        each.alias_info is not None and not each.alias_info.is_write for each in schema.returns
    )


def _plain_tensors(value: Any) -> Iterator[Tensor]:
    if type(value) in (Tensor, nn.Parameter):
        yield value
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from _plain_tensors(each)
