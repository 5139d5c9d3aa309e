"""Blocks of memory as an allocator keeps them: neighbours that are split and joined, and the free ones by size."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator


class Block:
    """A piece of a segment between its neighbours there; one that is not mapped has addresses and no memory."""

    __slots__ = ("address", "free", "mapped", "next", "pool", "previous", "size")

    def __init__(self, pool: Pool, address: int, size: int, mapped: bool = True) -> None:
        self.pool = pool
        self.address = address
        self.size = size
        self.free = True
        self.mapped = mapped
        self.previous: Block | None = None
        self.next: Block | None = None


class Pool:
    """The free blocks of one kind, by size and then by address."""

    def __init__(self, small: bool) -> None:
        self.small = small
        self.order: list[tuple[int, int]] = []
        self.blocks: dict[int, Block] = {}

    def add(self, block: Block) -> None:
        insort(self.order, (block.size, block.address))
        self.blocks[block.address] = block

    def remove(self, block: Block) -> None:
        del self.order[bisect_left(self.order, (block.size, block.address))]
        del self.blocks[block.address]

    def fitting(self, size: int) -> Iterator[Block]:
        """Free blocks of at least `size`, the smallest first."""
        for place in range(bisect_left(self.order, (size, 0)), len(self.order)):
            yield self.blocks[self.order[place][1]]


def split(block: Block, size: int) -> Block:
    """Cut `block` down to its first `size` bytes; the rest, as a free block behind it."""
    rest = Block(block.pool, block.address + size, block.size - size)
    block.size = size
    rest.previous, rest.next = block, block.next
    if block.next is not None:
        block.next.previous = rest
    block.next = rest
    return rest


def merged(block: Block) -> Block:
    """Join a free block with its free neighbours, which leave the pool; the lowest of them is the one that is left."""
    if block.next is not None and _alike(block, block.next):
        _withdraw(block.next)
        _absorb(block, block.next)
    if block.previous is not None and _alike(block, block.previous):
        _withdraw(block.previous)
        block = _absorb(block.previous, block)
    return block


def _alike(block: Block, neighbour: Block) -> bool:
    return neighbour.free and neighbour.mapped == block.mapped


def _withdraw(block: Block) -> None:
    if block.mapped:
        block.pool.remove(block)


def _absorb(block: Block, following: Block) -> Block:
    block.size += following.size
    block.next = following.next
    if following.next is not None:
        following.next.previous = block
    return block
