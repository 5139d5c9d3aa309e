"""The memory that a CUDA device needs for a stream of allocations: torch's caching allocator, replayed without a device.

The rules are those of torch 2.11 to 2.13 with their defaults, on one stream:
<https://github.com/pytorch/pytorch/blob/v2.13.0/c10/cuda/CUDACachingAllocator.cpp>. A request is rounded to 512 bytes. Up to 1 MiB it
comes from the small pool, whose segments are of 2 MiB; above from the large pool, whose segments are of 20 MiB for less than 10 MiB,
else of the request rounded to 2 MiB. The smallest free block that fits is taken, of two alike the one at the lower address, and split
where enough remains. A block that is freed merges with its free neighbours. Segments go back to the device only for want
of memory, which is not replayed: what a plan reserves is compared with the device as a whole.

Where the driver puts a new segment is not known: here each lies above all before it, which decides only between free blocks of one size.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from snugfit.planner.cost.memory_blocks import Block, Pool, merged, split
from snugfit.planner.cost.records import Phase, Trace

ROUNDING = 512
SMALL_REQUEST = 1 << 20
SMALL_SEGMENT = 2 << 20
LARGE_SEGMENT = 20 << 20
LARGE_REQUEST = 10 << 20
LARGE_ROUNDING = 2 << 20
_ADDRESS_SPACE = 1 << 56
"""Of an expandable segment: more than is ever mapped."""

_VARIABLES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")


@dataclass(frozen=True)
class Reserved:
    """The memory of a stream of allocations, in bytes, under the names of `torch.cuda.memory_stats`.

    `peak_requested` is what was asked for, `peak_allocated` that with the rounding of blocks, `peak_reserved` what was taken of the
    device; `requested`, `allocated` and `reserved` are there at the end. `at_peak` counts tensors by their sizes when most was asked for.
    """

    peak_requested: int
    peak_allocated: int
    peak_reserved: int
    requested: int
    allocated: int
    reserved: int
    at_peak: Counter[int]

    @property
    def torn(self) -> int:
        """Return the bytes that are taken of the device beyond what is asked for."""
        return self.peak_reserved - self.peak_requested


class AllocatorSettings(NamedTuple):
    """The environment's settings of torch's allocator: whether segments grow, and the options that are not replayed."""

    expandable_segments: bool = False
    others: tuple[str, ...] = ()

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> AllocatorSettings:
        """Read the variable that torch reads, and where it is absent its older name.

        >>> AllocatorSettings.of({"PYTORCH_ALLOC_CONF": "expandable_segments:True,max_split_size_mb:64"})
        AllocatorSettings(expandable_segments=True, others=('max_split_size_mb',))
        """
        text = next((environment[name] for name in _VARIABLES if name in environment), "")
        # a value may be a list in brackets, which has commas too
        options = dict(re.findall(r"([a-z0-9_]+)\s*:\s*(\[[^\]]*\]|[^,]*)", text))
        expandable = options.pop("expandable_segments", "").strip() == "True"
        return cls(expandable, tuple(sorted(name for name in options if not name.startswith("pinned_"))))

    @property
    def notes(self) -> tuple[str, ...]:
        """Return what a plan says of settings that are not torch's defaults."""
        notes = []
        if self.expandable_segments:
            notes.append("Memory is reserved in expandable segments, as PYTORCH_ALLOC_CONF says.")
        if self.others:
            notes.append(
                f"PYTORCH_ALLOC_CONF sets {', '.join(self.others)}, which the planner does not replay: more or less memory may be reserved."
            )
        return tuple(notes)


def reserved_bytes(
    trace: Trace, device: str, *, expandable_segments: bool = False, arriving: bool = True
) -> Reserved:
    """Return what the storages of `trace` on `device`, such as "cuda:0", make the allocator take of it; see `replay`.

    Args:
        arriving: whether what is made until all weights have their format and place counts; not where they come so.
    """
    changes = ((number, size) for _, number, size in changes_of(trace, device, arriving))
    return replay(changes, expandable_segments=expandable_segments)


def changes_of(trace: Trace, device: str, arriving: bool) -> Iterator[tuple[int, int, int]]:
    """Yield what is allocated and freed on a device: storages, and beside the results of an operator what its kernel takes within.

    Each comes with its place among `trace.events`, in front of what `replay` takes.
    """
    begin, left_out = 0, frozenset[int]()
    if not arriving:
        begin = next((op.event for op in trace.ops if op.place.phase is not Phase.SETUP), len(trace.events))
        left_out = frozenset(-event - 1 for event in trace.events[:begin] if event < 0)
    taken: dict[int, int] = {}
    for op in trace.ops:
        if op.event >= begin:
            taken[op.event] = max(taken.get(op.event, 0), op.workspace if op.device == device else 0)
    workspace = 0
    for place, (number, storage, sign) in enumerate(trace.changes()):
        if workspace and place in taken:  # the next operator begins, which finds it free
            yield from ((place, -1, workspace), (place, -1, -workspace))
        workspace = taken.get(place, workspace)
        if workspace and sign < 0:
            yield from ((place, -1, workspace), (place, -1, -workspace))
            workspace = 0
        if storage.device == device and number not in left_out:
            yield place, number, sign * storage.bytes
    if workspace:
        yield from ((len(trace.events), -1, workspace), (len(trace.events), -1, -workspace))


def replay(changes: Iterable[tuple[int, int]], *, expandable_segments: bool = False) -> Reserved:
    """Replay allocations and frees.

    Args:
        changes: `(number, bytes)` allocates a tensor of that number, `(number, -bytes)` frees it; none of 0 bytes is ever allocated.
        expandable_segments: as with `PYTORCH_ALLOC_CONF=expandable_segments:True`.

    >>> memory = replay([(0, 3 << 20), (1, 4 << 20), (0, -(3 << 20))])
    >>> memory.peak_allocated >> 20, memory.peak_reserved >> 20, memory.allocated >> 20
    (7, 20, 4)
    """
    allocator = _Expandable() if expandable_segments else _Segments()
    blocks: dict[int, Block] = {}
    known = list(changes)
    requested = peak_requested = peak_allocated = peak_reserved = most = 0
    for place, (number, size) in enumerate(known):
        if size > 0:
            blocks[number] = allocator.allocate(size)
            requested += size
            if requested > peak_requested:
                peak_requested, most = requested, place
            peak_allocated = max(peak_allocated, allocator.allocated)
            peak_reserved = max(peak_reserved, allocator.reserved)
        elif size < 0:
            allocator.free(blocks.pop(number))
            requested += size
    return Reserved(
        peak_requested,
        peak_allocated,
        peak_reserved,
        requested,
        allocator.allocated,
        allocator.reserved,
        Counter(_live(known[: most + 1]).values()),
    )


def _live(changes: Iterable[tuple[int, int]]) -> dict[int, int]:
    """Return the sizes of tensors that are there after these changes, by their numbers."""
    live: dict[int, int] = {}
    for number, size in changes:
        if size > 0:
            live[number] = size
        elif size < 0:
            del live[number]
    return live


def torn_beside(sizes: Mapping[int, int], times: int, *, expandable_segments: bool = False) -> int:
    """Return the bytes that are taken of the device beyond what is asked for, where so many tensors of each size come, and come again.

    >>> torn_beside({9 << 20: 2}, 10) >> 20  # in each segment of 20 MiB
    20
    """
    each = [size for size, count in sizes.items() for _ in range(count)]
    changes = enumerate(itertools.chain.from_iterable(itertools.repeat(each, times)))
    return replay(changes, expandable_segments=expandable_segments).torn


class _Segments:
    """The allocator by default."""

    smallest_rest_of_large = SMALL_REQUEST + 1

    def __init__(self) -> None:
        self.allocated = self.reserved = 0
        self.pools = (Pool(small=False), Pool(small=True))
        self._end = 0  # of all addresses so far

    def allocate(self, size: int) -> Block:
        """Return a block of at least `size`."""
        size = _up(size, ROUNDING)
        pool = self.pools[size <= SMALL_REQUEST]
        block = self._cached(pool, size) or self._taken(pool, size)
        pool.remove(block)
        block.free = False
        rest = block.size - size
        if rest >= (ROUNDING if pool.small else self.smallest_rest_of_large):
            pool.add(split(block, size))
        self.allocated += block.size
        return block

    def free(self, block: Block) -> None:
        self.allocated -= block.size
        block.free = True
        block.pool.add(merged(block))

    def _cached(self, pool: Pool, size: int) -> Block | None:
        return next(pool.fitting(size), None)

    def _taken(self, pool: Pool, size: int) -> Block:
        """Return a free block of a new segment."""
        if pool.small:
            segment = SMALL_SEGMENT
        else:
            segment = LARGE_SEGMENT if size < LARGE_REQUEST else _up(size, LARGE_ROUNDING)
        self.reserved += segment
        block = Block(pool, self._end, segment)
        self._end += segment
        pool.add(block)
        return block


class _Expandable(_Segments):
    """The allocator with `expandable_segments`: each pool is one segment, of which pages are mapped as they are needed.

    A page is as large as a segment of the pool would be: 2 MiB of the small one, 20 MiB of the large one.
    """

    smallest_rest_of_large = ROUNDING

    def __init__(self) -> None:
        super().__init__()
        self._first = {pool: Block(pool, 0, _ADDRESS_SPACE, mapped=False) for pool in self.pools}

    def _cached(self, pool: Pool, size: int) -> Block | None:
        """Return the best fit, where a block before unmapped addresses counts as large as it can become."""
        best, best_room = None, 0
        for block in pool.fitting(size):
            following = block.next
            room = block.size + (following.size if following is not None and not following.mapped else 0)
            if best is not None and room >= best_room:
                break
            best, best_room = block, room
        return best

    def _taken(self, pool: Pool, size: int) -> Block:
        """Return the lowest free addresses that suffice, with memory where they have none."""
        block = self._room(pool, size)
        if not block.mapped:
            self._map(block, min(block.size, size))
        while block.size < size:
            following = block.next
            assert following is not None and not following.mapped
            self._map(following, min(following.size, size - block.size))
        return block

    def _room(self, pool: Pool, size: int) -> Block:
        """Return the first of free or unmapped blocks in a row that have `size` addresses."""
        start: Block | None = None
        room, unmapped = 0, False
        block: Block | None = self._first[pool]
        while block is not None:
            if not block.free:
                start, room, unmapped = None, 0, False
            else:
                start = start or block
                room, unmapped = room + block.size, unmapped or not block.mapped
                if room >= size and unmapped:
                    return start
            block = block.next
        raise AssertionError("the address space of an expandable segment is used up")

    def _map(self, block: Block, size: int) -> None:
        """Give memory to the beginning of an unmapped block, which joins the free block before and after it."""
        size = _up(size, _page(block.pool))
        self.reserved += size
        if size < block.size:
            split(block, size).mapped = False
        block.mapped = True
        block.pool.add(merged(block))


def _up(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple


def _page(pool: Pool) -> int:
    return SMALL_SEGMENT if pool.small else LARGE_SEGMENT
