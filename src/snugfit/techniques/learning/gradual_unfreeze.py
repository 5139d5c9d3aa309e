"""Gradual unfreezing: from the head down, one block after the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

from torch import nn

from snugfit.core.progress import number_of_updates
from snugfit.core.technique import Card, Context, Family, Moment, Seams, Technique
from snugfit.errors import SettingError
from snugfit.kit.freezing import Switches, blocks_of


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
