"""Gradual unfreezing: from the head down, one block after the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

from torch import nn

from snugfit.core.layers import parts_of
from snugfit.core.lengths import number_of_updates
from snugfit.core.technique import Card, Context, Family, Moment, Seams, Technique
from snugfit.errors import SettingError
from snugfit.kit.freezing import Switches


def blocks_of(model: nn.Module) -> list[list[str]]:
    """Return names of the parameters that train, by block, from the inputs to the head.

    Blocks are the entries of the outermost `ModuleList`s and `Sequential`s; what stands before, between or after them is
    a block of its own, the last one the head. A model without any is cut into its children. A shared weight belongs to
    the block nearest to the head, a parameter outside all modules to the first.

    >>> model = nn.ModuleDict({
    ...     "words": nn.Embedding(5, 2), "layers": nn.ModuleList([nn.Linear(2, 2, False), nn.Linear(2, 2, False)]),
    ...     "norm": nn.LayerNorm(2, bias=False), "head": nn.Linear(2, 5, False)})
    >>> for block in blocks_of(model):
    ...     print(block)
    ['words.weight']
    ['layers.0.weight']
    ['layers.1.weight']
    ['norm.weight', 'head.weight']
    """
    units = list(parts_of(model, lambda parameter: parameter.requires_grad))
    whole: list[list[str]] = []
    joins = any(numbered for _, numbered in units)
    for place, (name, numbered) in enumerate(units):
        if joins and place > 0 and not numbered and not units[place - 1][1]:
            whole[-1].append(name)
        else:
            whole.append([name])
    first: dict[int, str] = {}
    block_of: dict[str, int] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if parameter.requires_grad:
            own = first.setdefault(id(parameter), name)
            inside = [
                n for n, block in enumerate(whole) if any(name.startswith(f"{each}.") for each in block)
            ]
            block_of[own] = max(block_of.get(own, 0), *inside, 0)
    return [[name for name, block in block_of.items() if block == n] for n in range(len(whole) or 1)]


def frozen_at(blocks: Sequence[Sequence[str]], updates: int, every: int) -> set[str]:
    """Return names of the parameters that are still frozen after that many updates; the last block trains from the start.

    >>> [sorted(frozen_at([["a"], ["b"], ["c"]], updates, every=2)) for updates in (0, 1, 2, 4, 6)]
    [['a', 'b'], ['a', 'b'], ['a'], [], []]
    """
    return {name for block in blocks[: max(0, len(blocks) - 1 - updates // every)] for name in block}


@dataclass(frozen=True)
class GradualUnfreeze(Technique):
    """Train the head alone at first, then one block more every so often, down to the embeddings.

    The optimizer holds all parameters from the start; a frozen one has no gradient, so neither decay nor momentum moves
    it. The statistics of norm layers are frozen with their block. After a run the model is as its last update left it.
    """

    every: float = 0.05

    card: ClassVar[Card] = Card(
        name="gradual_unfreeze",
        summary="Trains the head alone at first, then unfreezes one block after the other towards the inputs.",
        aliases=("gradual unfreezing", "BackboneFinetuning"),
        family=Family.LEARNING,
        source="Howard & Ruder 2018, arXiv:1801.06146 (ULMFiT), section 3.3",
        seams=("begin",),
        cost="none: updates are cheaper while blocks are frozen",
        use_when="few examples, and a pretrained model that forgets when all of it trains at once",
        conflicts={
            "freeze": "both say which parameters train now, and one would undo the other. Remove one.",
            "ia3": "it freezes the blocks for good and trains factors beside them. Remove one.",
            "lora": "it freezes the blocks for good and trains adapters beside them. Remove one.",
        },
    )

    def __post_init__(self) -> None:
        possible = 0 < self.every < 1 or (self.every >= 1 and self.every % 1 == 0)
        self.require("every", possible, "a whole number of updates, or a fraction of the run below 1")

    @classmethod
    def example(cls) -> Self:
        return cls(every=1)

    def seams(self, context: Context) -> Seams:
        blocks = blocks_of(context.model)
        every = self._updates(context.total_updates)
        switches = Switches(context.model, {name for block in blocks for name in block})
        last = every * (len(blocks) - 1)
        self.warn_beyond("every", last, context.total_updates, "the deepest of the blocks are never unfrozen")

        def begin(_model: nn.Module, moment: Moment) -> None:
            switches.freeze(frozen_at(blocks, moment.updates, every))

        return Seams(begin=begin)

    def _updates(self, total: int | None) -> int:
        if self.every < 1 and total is None:
            raise SettingError(
                "gradual_unfreeze.every",
                "a fraction needs the number of updates of the run",
                "Give total_updates to the step, or a whole number of updates.",
            )
        return max(1, number_of_updates(self.every, total or 1))
