"""Progressive freezing: from the inputs up, one block after the other, over the run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

from torch import nn

from snugfit.core.technique import Card, Context, Family, Moment, Seams, Technique
from snugfit.errors import SettingError
from snugfit.kit.freezing import Switches, blocks_of


def frozen_at(blocks: Sequence[Sequence[str]], part: float, start: float, most: float) -> set[str]:
    """Return names of the parameters that are frozen after this part of the run; the last block trains to its end.

    None until `start`, then a share of the blocks that grows linearly to `most` of those before the last one.

    >>> blocks = [["a"], ["b"], ["c"], ["d"], ["head"]]
    >>> [sorted(frozen_at(blocks, part, start=0.5, most=1.0)) for part in (0.5, 0.6, 0.75, 0.99)]
    [[], [], ['a', 'b'], ['a', 'b', 'c']]
    """
    share = most * max(0.0, (part - start) / (1 - start))
    # rounding errors of the product do not count
    return {name for block in blocks[: math.floor(share * (len(blocks) - 1) + 1e-6)] for name in block}


@dataclass(frozen=True)
class ProgressiveFreeze(Technique):
    """Freeze blocks from the inputs up over the run, so that backward ends earlier and earlier.

    A frozen parameter has no gradient, so that neither decay nor momentum moves it. The statistics of norm layers are frozen
    with their block. After a run the model is as its last update left it.
    """

    start: float = 0.5
    most: float = 1.0

    card: ClassVar[Card] = Card(
        name="progressive_freeze",
        summary="Freezes blocks from the inputs up over the run, so that updates become cheaper.",
        aliases=("FreezeOut", "freezing from the input up"),
        family=Family.LEARNING,
        source="Brock et al. 2017, arXiv:1706.04983; linear as composer's LayerFreezing",
        seams=("begin",),
        cost="saves up to half of the time that the frozen blocks take, and the memory of their gradients; some quality",
        use_when="deep nets whose first layers are learned early, where time matters more than the last of quality",
        conflicts={
            "freeze": "both say which parameters train now, and one would undo the other. Remove one.",
            "gradual_unfreeze": "it unfreezes what this freezes. Remove one.",
            "ia3": "it freezes the blocks for good and trains factors beside them. Remove one.",
            "lora": "it freezes the blocks for good and trains adapters beside them. Remove one.",
        },
    )

    def __post_init__(self) -> None:
        self.require("start", 0 <= self.start < 1, "in [0, 1)")
        self.require("most", 0 < self.most <= 1, "in (0, 1]")

    @classmethod
    def example(cls) -> Self:
        return cls(start=0.2)

    def seams(self, context: Context) -> Seams:
        total = context.total_updates
        if total is None:
            raise SettingError(
                "progressive_freeze", "needs the length of the run", "Give total_updates to the step."
            )
        # embeddings that are tied to the head leave an empty one
        blocks = [block for block in blocks_of(context.model) if block]
        if math.floor(self.most * (len(blocks) - 1) + 1e-6) < 1:
            raise SettingError(
                "progressive_freeze.most",
                f"{self.most:g} of the blocks before the last one is none: the model has {len(blocks)}",
                "Raise it, or remove the technique.",
            )
        switches = Switches(context.model, {name for block in blocks for name in block})

        def begin(_model: nn.Module, moment: Moment) -> None:
            switches.freeze(frozen_at(blocks, moment.updates / total, self.start, self.most))

        return Seams(begin=begin)
