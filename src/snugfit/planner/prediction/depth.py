"""The repeated blocks of a model, and the same model with fewer of them."""

from __future__ import annotations

import copy
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from snugfit.core.layers import repeated_blocks
from snugfit.core.technique import Technique, as_settings
from snugfit.kit.module_patterns import matches
from snugfit.kit.skeleton import skeleton

_NUMBERS = frozenset("0123456789?[")
"""Letters of a pattern that can be of some blocks and not of others, whose names differ in their numbers alone."""

_LONGEST_PERIOD = 8
_FEWEST = 4
"""Periods of the shortest model that tells how a deeper one grows: two at its beginning, two at its end."""


@dataclass(frozen=True)
class Blocks:
    """A list of blocks in a model: its name, how many it has, and after how many the same kind of block comes again.

    `start` is the number of the first among all blocks of the model; the first `irregular` ones are of other kinds.
    """

    name: str
    count: int
    period: int
    irregular: int
    start: int

    @property
    def fewest(self) -> int:
        """The length of the shortest list that tells how longer ones grow, of the same rest."""
        least = self.irregular + _FEWEST * self.period
        return least + (self.count - least) % self.period

    @property
    def fewest_roughly(self) -> int:
        """The same with one period at its end, where nobody checks what that tells."""
        return self.fewest - self.period

    @property
    def long(self) -> bool:
        """Return whether there is anything to save: three runs of fewer blocks are less than one of all."""
        return self.count > 3 * (self.fewest + self.period)

    @property
    def long_roughly(self) -> bool:
        """The same where two runs tell, of which another process may make the deeper one."""
        return self.count >= 2 * (self.fewest_roughly + self.period)


def longest_blocks(model: nn.Module, deeper: bool = False) -> Blocks | None:
    """Return the longest list of blocks in which a pattern repeats; None where no model of fewer would tell anything.

    Args:
        deeper: whether a model of more of them is asked for, which any list tells that is long enough to show its pattern.
    """
    names = list(repeated_blocks(model))
    lists: dict[str, list[int]] = {}
    for number, name in enumerate(names):
        lists.setdefault(name.rpartition(".")[0], []).append(number)
    candidates: list[Blocks] = []
    for name, numbers in lists.items():
        if len(numbers) < 2 * _FEWEST or numbers != list(range(numbers[0], numbers[0] + len(numbers))):
            continue
        blocks = [model.get_submodule(names[number]) for number in numbers]
        own = _numbered(blocks)
        kinds = [_kind(block, own) for block in blocks]
        pattern = _pattern(kinds)
        if pattern is not None:
            candidates.append(Blocks(name, len(blocks), *pattern, numbers[0]))
    return max(
        (each for each in candidates if deeper or each.long_roughly),
        key=lambda each: each.count,
        default=None,
    )


def tells_blocks_apart(technique: Technique, model: nn.Module, blocks: Blocks) -> bool:
    """Return whether a pattern of a technique is of some blocks of a list and not of others.

    A model of fewer blocks has other numbers, so it does not show what comes of such a pattern.
    """
    patterns = [each for each in _words(as_settings(technique)) if not _NUMBERS.isdisjoint(each)]
    if not patterns:
        return False
    held: Any = model.get_submodule(blocks.name)
    inner = [[name for name, _ in (*each.named_modules(), *each.named_parameters())] for each in held]
    for pattern in patterns:
        matched = [
            {
                name
                for name in names
                if matches(".".join(filter(None, (blocks.name, str(number), name))), pattern)
            }
            for number, names in enumerate(inner)
        ]
        regular = matched[blocks.irregular :]
        if regular[blocks.period :] != regular[: -blocks.period]:
            return True
    return False


def _words(settings: Any) -> Iterator[str]:
    """Yield all texts among settings, those of techniques within them too."""
    if isinstance(settings, str):
        yield settings
    elif isinstance(settings, Technique):
        yield from _words(as_settings(settings))
    elif isinstance(settings, Mapping):
        yield from _words([*settings, *settings.values()])
    elif isinstance(settings, (list, tuple, set, frozenset)):
        for each in settings:
            yield from _words(each)


def shortened(model: nn.Module, blocks: Blocks, count: int) -> nn.Module:
    """Return a copy of a model on the meta device, with blocks of the middle of a list left out, whole periods of them, so that it has `count`.

    Where the model's configuration says how many it has, that of the copy says so too.
    """
    whole: Any = model.get_submodule(blocks.name)
    assert isinstance(whole, (nn.ModuleList, nn.Sequential)) and (blocks.count - count) % blocks.period == 0
    first = blocks.irregular + 2 * blocks.period
    left_out = slice(first, first + blocks.count - count)
    numbered = _numbered(list(whole))
    made = skeleton(model, without=list(whole)[left_out])  # to copy them takes longer than to run the others
    held: Any = made.get_submodule(blocks.name)
    del held[left_out]
    for place, block in enumerate(held):
        for name, key in numbered:
            setattr(block.get_submodule(name), key, place)
    _configure(made, blocks.name, blocks.count, count)
    return made


def deepened_(model: nn.Module) -> tuple[str, int]:
    """Copy the last block of a model's longest list, in place, until it is long enough to tell how a deeper one grows.

    Returns:
        The list's name, and how many blocks it had; "" and 0 where no list has two of one kind.
    """
    lists: dict[str, list[nn.Module]] = {}
    for name, block in repeated_blocks(model).items():
        lists.setdefault(name.rpartition(".")[0], []).append(block)
    name, blocks = max(lists.items(), key=lambda pair: len(pair[1]), default=("", []))
    held: Any = model.get_submodule(name)
    if len(blocks) < 2 or not isinstance(held, (nn.ModuleList, nn.Sequential)):
        return "", 0
    numbered, count = _numbered(blocks), len(blocks)
    for place in range(count, 2 * _FEWEST):
        block = copy.deepcopy(blocks[-1])
        for inner, key in numbered:
            setattr(block.get_submodule(inner), key, place)
        held.append(block)
    _configure(model, name, count, len(held))
    return name, count


def _configure(model: nn.Module, name: str, count: int, now: int) -> None:
    """Write the new number of blocks into the configuration of the module that holds them, where it has one.

    Another stack of the model, such as a decoder, keeps its own number.
    """
    parts = name.split(".")
    for depth in range(len(parts) + 1):
        config = getattr(model.get_submodule(".".join(parts[:depth])), "config", None)
        if getattr(config, "num_hidden_layers", None) == count:
            config.num_hidden_layers = now  # type: ignore[union-attr]


def _pattern(kinds: list[Hashable]) -> tuple[int, int] | None:
    """Return the period, and how many stand before it begins; None where too little repeats."""
    for period in range(1, _LONGEST_PERIOD + 1):
        irregular = next(
            (
                place + 1
                for place in reversed(range(len(kinds) - period))
                if kinds[place] != kinds[place + period]
            ),
            0,
        )
        if len(kinds) - irregular > (_FEWEST + 1) * period:
            return period, irregular
    return None


def _numbered(blocks: list[nn.Module]) -> set[tuple[str, str]]:
    """Attributes that hold a block's own number, each as the name of the module in the block, and its own."""
    attributes: set[tuple[str, str]] | None = None
    for place, block in enumerate(blocks):
        own = {
            (name, key)
            for name, module in block.named_modules()
            for key, value in vars(module).items()
            if type(value) is int and value == place
        }
        attributes = own if attributes is None else attributes & own
    return attributes or set()


def _kind(block: nn.Module, numbered: set[tuple[str, str]]) -> Hashable:
    """Return what a block is, apart from its weights and its own number."""
    parts: list[Hashable] = []
    for name, module in block.named_modules():
        plain = tuple(
            (key, value)
            for key, value in sorted(vars(module).items())
            if isinstance(value, (int, float, str)) and (name, key) not in numbered
        )
        held = [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]
        tensors = tuple((key, each.shape, each.dtype, each.requires_grad) for key, each in held)
        parts.append((name, type(module), plain, tensors))
    return tuple(parts)
