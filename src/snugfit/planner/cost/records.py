"""The records of a step: each operator, and each storage from its birth to its death."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import NamedTuple

import torch
from torch import nn

from snugfit.core.layers import repeated_blocks
from snugfit.kit.streaming.layout import aligned


class Role(enum.StrEnum):
    """The purpose of a storage's bytes."""

    WEIGHTS = "weights"
    GRADIENTS = "gradients"
    OPTIMIZER = "optimizer"
    AVERAGES = (
        "averages"  # what is kept besides, such as an average of the weights, or a copy that is being saved
    )
    ACTIVATIONS = "activations"
    TEMPORARIES = "temporaries"
    INPUTS = "inputs"
    WORKSPACE = "workspace"  # what a kernel takes and gives back within one operator


class Phase(enum.StrEnum):
    """The phase of the step."""

    SETUP = "setup"
    PRIME = "prime"  # the optimizer's state is made, as it is after many updates
    DATA = "data"
    PASS = "pass"
    FORWARD = "forward"
    LOSS = "loss"
    BACKWARD = "backward"
    UNSCALE = "unscale"
    ADJUST = "adjust"
    OPTIMIZER = "optimizer"
    TECHNIQUES = "techniques"
    EVALUATION = "evaluation"
    SAVE = "save"


class Place(NamedTuple):
    """The place of an event in the run.

    `update` counts from 0, `turn` the passes over the micro-batches within it, `micro_batch` those within a pass (-1 outside of any), `module` is a dotted name ("" for the model itself or none),
    `block` the number of the repeated block that the module is in, -1 for none.
    """

    update: int
    phase: Phase
    turn: int
    micro_batch: int
    module: str
    block: int


@dataclass(slots=True)
class Op:
    """An operator as it was dispatched.

    `flops` counts a multiply-add as two; `read` and `written` are bytes of the tensors that it took and gave, 0 for views;
    `dtype` is what it computes in; `event` is the number of allocations and frees before it; `page_bytes`
    are of the host's memory that an operator on a device writes to, which comes there in pages; `modes` of Python stand around it, and
    `packed` tensors were handed to hooks and `calls` of modules were made since the one before; a run has it so many `times` (`loops`).
    """

    name: str  # "aten.mm.default"
    place: Place
    device: str
    dtype: torch.dtype
    flops: int
    read: int
    written: int
    event: int
    workspace: int = 0
    modes: int = 0
    packed: int = 0
    times: int = 1
    page_bytes: int = 0
    calls: int = 0

    def at(self, event: int, place: Place | None = None) -> Op:
        """Return the same operator after so many events, in another place where one is given."""
        made = [
            self.flops,
            self.read,
            self.written,
            event,
            self.workspace,
            self.modes,
            self.packed,
            self.times,
            self.page_bytes,
            self.calls,
        ]
        return Op(self.name, place or self.place, self.device, self.dtype, *made)


@dataclass(slots=True)
class Storage:
    """A piece of memory: which operator made it (-1: it was there before), on which device, and what it is for."""

    bytes: int
    device: str
    op: int
    role: Role = Role.TEMPORARIES


@dataclass(frozen=True)
class Parts:
    """Bytes of a model's weights, wherever they lie: those of each repeated block and those outside of them, all and the trained ones.

    `packed_blocks` are those of each block's frozen weights where they lie in one piece of memory, as streamed ones do; `trained_first`
    those of trained weights that come before the first block, such as embeddings.
    """

    blocks: tuple[int, ...] = ()
    outside: int = 0
    trained_blocks: tuple[int, ...] = ()
    trained_outside: int = 0
    packed_blocks: tuple[int, ...] = ()
    trained_first: int = 0

    @classmethod
    def of(cls, model: nn.Module) -> Parts:
        """Return how much of a model lies in its blocks; a tensor that is spread over devices counts whole."""

        def sizes(parameters: Iterable[nn.Parameter]) -> tuple[int, int]:
            weights = [(each.nbytes, each.requires_grad) for each in parameters]
            return sum(size for size, _ in weights), sum(size for size, trained in weights if trained)

        inside = [list(block.parameters()) for block in repeated_blocks(model).values()]
        blocks = [sizes(block) for block in inside]
        whole, trained = sizes(model.parameters())
        own = {id(parameter) for block in inside for parameter in block}
        _, first = sizes(takewhile(lambda each: id(each) not in own, model.parameters()) if own else ())
        all_of_them, trained_ones = tuple(size for size, _ in blocks), tuple(size for _, size in blocks)
        packed = tuple(
            sum(aligned(each.nbytes) for each in block if not each.requires_grad) for block in inside
        )
        outside = whole - sum(all_of_them), trained - sum(trained_ones)
        return cls(all_of_them, outside[0], trained_ones, outside[1], packed, first)

    @property
    def frozen_block(self) -> tuple[int, int]:
        """Return the bytes of a block's frozen weights, and those of them in one piece; 0 where blocks differ, or nothing is frozen."""
        kinds = {*zip(self.blocks, self.trained_blocks, self.packed_blocks, strict=True)}
        if len(kinds) != 1:
            return 0, 0
        ((whole, trained, packed),) = kinds
        return whole - trained, packed

    def repeating(self, first: int, end: int, times: int) -> Parts:
        """Return the parts of a model that has the blocks from `first` to `end` so many times more.

        >>> Parts((5, 3), trained_blocks=(5, 3), packed_blocks=(0, 0)).repeating(1, 2, times=2).blocks
        (5, 3, 3, 3)
        """

        def longer(sizes: tuple[int, ...]) -> tuple[int, ...]:
            return sizes[:end] + sizes[first:end] * times + sizes[end:]

        blocks, trained, packed = map(longer, (self.blocks, self.trained_blocks, self.packed_blocks))
        return replace(self, blocks=blocks, trained_blocks=trained, packed_blocks=packed)

    def whole(self, depth: int) -> tuple[int, int, int]:
        """Return the blocks, bytes of all weights, and of those that are trained, of the model with `depth` blocks."""
        if not self.blocks:
            return 1, self.outside, self.trained_outside
        times = depth / len(self.blocks)
        return (
            depth,
            round(sum(self.blocks) * times) + self.outside,
            round(sum(self.trained_blocks) * times) + self.trained_outside,
        )


@dataclass
class Trace:
    """A recorded run of some updates.

    `events` says in order what was allocated, `+(n + 1)` for storage n, and what was freed, `-(n + 1)`. `bounded` names operators whose
    results depend on data, and were taken to be as large as they may be.
    """

    ops: list[Op] = field(default_factory=list)
    storages: list[Storage] = field(default_factory=list)
    events: list[int] = field(default_factory=list)
    bounded: tuple[str, ...] = ()
    parts: Parts = Parts()

    def changes(self) -> Iterator[tuple[int, Storage, int]]:
        """Yield each event as the number of the storage, the storage, and the sign: 1 for an allocation, -1 for a free."""
        for event in self.events:
            number = abs(event) - 1
            yield number, self.storages[number], 1 if event > 0 else -1
