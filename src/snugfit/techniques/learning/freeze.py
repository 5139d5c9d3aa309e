"""Freezing parts of a model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

from torch import nn

from snugfit.core.technique import Card, Context, Family, Moment, Seams, Technique
from snugfit.errors import SettingError
from snugfit.kit.freezing import Switches
from snugfit.kit.module_patterns import find_head, find_parameters


def frozen_names(model: nn.Module, patterns: Sequence[str] = (), all_but: Sequence[str] = ()) -> list[str]:
    """Return names of the parameters to freeze: those in `patterns`, or all but those in `all_but`; with neither, all but the head.

    A pattern is of a parameter or a module, by its whole name or the end of it. A shared weight goes with each of its
    names.

    Raises:
        SettingError: a pattern matches nothing, there is no head, or nothing would train.

    >>> model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    >>> frozen_names(model, all_but=["1"])
    ['0.weight', '0.bias']
    """
    names = [name for name, _ in model.named_parameters()]
    if patterns:
        frozen = find_parameters(model, patterns, "freeze.patterns")
    else:
        trainable = find_parameters(model, all_but or find_head(model, "freeze.all_but"), "freeze.all_but")
        frozen = [name for name in names if name not in trainable]
    if not any(p.requires_grad for name, p in model.named_parameters() if name not in frozen):
        setting = "patterns" if patterns else "all_but"
        raise SettingError(f"freeze.{setting}", "leaves no parameter to train", "Freeze less.")
    return frozen


def freeze_(
    model: nn.Module, patterns: Sequence[str] = (), all_but: Sequence[str] = (), norms: bool = True
) -> list[str]:
    """Freeze in place; returns the names. Call it again after `model.train()`, which sets the norm layers going again.

    >>> model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.Linear(2, 2))
    >>> freeze_(model, ["1"])
    ['1.weight', '1.bias']
    >>> [module.training for module in model]
    [True, False, True]
    """
    names = frozen_names(model, patterns, all_but)
    Switches(model, names, norms).freeze(names)
    return names


@dataclass(frozen=True)
class Freeze(Technique):
    """Keep parameters as they are, for good or for the first `updates`.

    The optimizer holds them from the start and passes over them while they have no gradient: no decay, no momentum. After
    a run they are as its last update left them: frozen for good stays `requires_grad=False`.
    """

    patterns: tuple[str, ...] = ()
    all_but: tuple[str, ...] = ()
    updates: int | None = None
    norms: bool = True

    card: ClassVar[Card] = Card(
        name="freeze",
        summary="Keeps parts of the model as they are, for good or at first, with the statistics of their norm layers.",
        aliases=("layer freezing", "feature extraction", "linear probing"),
        family=Family.LEARNING,
        source="Kumar et al. 2022, arXiv:2202.10054 (head first, then all); statistics: torchvision's FrozenBatchNorm2d",
        seams=("begin",),
        cost="none: frozen parameters need no gradient and no moments",
        use_when="a new head on a pretrained model would disturb it; head only for few examples",
        conflicts={
            "gradual_unfreeze": "both say which parameters train now, and one would undo the other. Remove one.",
            "ia3": "it freezes the model for good, and its factors stand in the parts to be frozen. Remove one.",
            "lora": "it freezes the model for good, and its adapters stand in the parts to be frozen. Remove one.",
        },
    )

    def __post_init__(self) -> None:
        self.require("updates", self.updates is None or self.updates >= 1, "at least 1, or null for good")
        self.require("all_but", not (self.all_but and self.patterns), "left out where patterns are given")

    @classmethod
    def example(cls) -> Self:
        return cls(patterns=("*bias",), updates=2)

    def seams(self, context: Context) -> Seams:
        names = frozen_names(context.model, self.patterns, self.all_but)
        switches = Switches(context.model, names, self.norms)
        if self.updates is not None:
            self.warn_beyond("updates", self.updates, context.total_updates, "what is frozen stays so")

        def begin(_model: nn.Module, moment: Moment) -> None:
            thawed = self.updates is not None and moment.updates >= self.updates
            switches.freeze(() if thawed else names)

        return Seams(begin=begin)
