"""The repeated blocks of a model, and the same model with fewer of them."""

from __future__ import annotations

import copy
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
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
"""Blocks of half of the shortest list that is looked at: two runs of three and of four are as much as one of seven."""


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
    def regular(self) -> int:
        """The number of blocks that the pattern is made of."""
        return self.count - self.irregular


@dataclass(frozen=True)
class Fewer:
    """Fewer blocks than some lists have: how many each keeps, and how many more in each longer run, 0 of a list that stays whole."""

    depths: tuple[int, ...]
    steps: tuple[int, ...]

    def longer(self, by: int) -> tuple[int, ...]:
        """Return how many each list has in a run that is so many steps longer."""
        return tuple(depth + by * step for depth, step in zip(self.depths, self.steps, strict=True))


def fewer_blocks(lists: Sequence[Blocks], periods: int, whole: Collection[Blocks] = ()) -> Fewer | None:
    """Return the fewest blocks of several lists that tell how a run of all of them grows; None where no fewer do.

    All lists grow in step, so that two runs tell of an encoder and its decoder at once: from the shorter run to all blocks it is as many
    steps in each. Of a list that is twice as long as another one, a step is two of its periods.

    Args:
        periods: steps that each list has at least that is shortened.
        whole: lists that are not.
    """

    def in_steps(count: int) -> Fewer:
        steps = tuple(
            0 if each in whole else each.regular // ((count + periods) * each.period) * each.period
            for each in lists
        )
        return Fewer(tuple(each.count - count * step for each, step in zip(lists, steps, strict=True)), steps)

    most = max((each.regular // each.period for each in lists if each not in whole), default=0)
    shorter = (in_steps(count) for count in range(most - periods, 1, -1))
    return min(
        (each for each in shorter if any(each.steps)),
        key=lambda each: 2 * sum(each.depths) + sum(each.steps),
        default=None,
    )


def lists_of_blocks(model: nn.Module) -> tuple[Blocks, ...]:
    """Return the lists of blocks in which a pattern repeats, in the order of the model."""
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
    return tuple(candidates)


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


def shortened(model: nn.Module, lists: Sequence[Blocks], depths: Sequence[int]) -> nn.Module:
    """Return a copy of a model on the meta device, with blocks of the middle of lists left out, whole periods of them, so that each has its depth.

    Where the model's configuration says how many it has, that of the copy says so too.
    """
    left_out: dict[str, slice] = {}
    whole: dict[str, Any] = {}
    for blocks, depth in zip(lists, depths, strict=True):
        whole[blocks.name] = held = model.get_submodule(blocks.name)
        assert isinstance(held, (nn.ModuleList, nn.Sequential)), blocks.name
        assert (blocks.count - depth) % blocks.period == 0
        first = blocks.irregular + 2 * blocks.period
        left_out[blocks.name] = slice(first, first + blocks.count - depth)
    # to copy them takes longer than to run the others
    made = skeleton(model, without=[each for name in whole for each in list(whole[name])[left_out[name]]])
    for blocks, depth in zip(lists, depths, strict=True):
        numbered = _numbered(list(whole[blocks.name]))
        copied: Any = made.get_submodule(blocks.name)
        del copied[left_out[blocks.name]]
        for place, block in enumerate(copied):
            for name, key in numbered:
                setattr(block.get_submodule(name), key, place)
        _configure(made, blocks.name, blocks.count, depth)
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
