"""IA3: learned factors on the activations of frozen layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

from torch import nn

from snugfit.core.technique import Card, Context, Family, Fidelity, Seams, Stage, Technique
from snugfit.errors import SettingError
from snugfit.kit.adapters.adapters import inject, merged, regex_of, require_peft
from snugfit.kit.adapters.target_modules import head_of, targets_of
from snugfit.kit.module_patterns import find_modules


def ia3_(
    model: nn.Module,
    targets: Sequence[str] = (),
    feedforward: Sequence[str] = (),
    *,
    head: Sequence[str] | None = None,
) -> nn.Module:
    """Freeze `model` and multiply each target's outputs by a trainable vector that begins at one, in place.

    Args:
        targets: patterns of modules' names. Without any: keys, values and the second feed-forward layer of an architecture
            that peft knows, else every linear layer and convolution.
        feedforward: those of the targets whose inputs are multiplied instead.
        head: patterns of modules to train in full; None stands for the head of a stock classifier.
    Raises:
        SettingError: a pattern matches nothing, or something that cannot be adapted.
        MissingExtra: peft is not installed.
    Source: Liu et al. 2022, arXiv:2205.05638; by peft.

    >>> model = ia3_(nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2)), targets=["0"])
    >>> [(name, tuple(p.shape)) for name, p in model.named_parameters() if p.requires_grad]
    [('0.ia3_l.default', (3, 1))]
    """
    require_peft()
    from peft import IA3Config

    if feedforward and not targets:
        raise SettingError("ia3.feedforward", "says which of ia3.targets are meant", "Give ia3.targets too.")
    heads = head_of(model, head, "ia3")
    if not targets:
        targets, feedforward = _known(model)
    layers = targets_of(model, targets, heads, "ia3")
    inputs = find_modules(model, feedforward, "ia3.feedforward") if feedforward else []
    for name in inputs:
        if name not in layers:
            raise SettingError("ia3.feedforward", f"'{name}' is not one of ia3.targets", "Add it there too.")
    # an expression, as for the targets; the empty one would be taken for 'none given'
    return inject(model, IA3Config(feedforward_modules=regex_of(inputs) or []), layers, heads)


def _known(model: nn.Module) -> tuple[Sequence[str], Sequence[str]]:
    """Targets and feed-forward layers by peft's table; nothing where the architecture is not in it."""
    from peft.utils.constants import (
        TRANSFORMERS_MODELS_TO_IA3_FEEDFORWARD_MODULES_MAPPING as FEEDFORWARD,
    )
    from peft.utils.constants import TRANSFORMERS_MODELS_TO_IA3_TARGET_MODULES_MAPPING as TARGETS

    kind = getattr(getattr(model, "config", None), "model_type", "")
    return TARGETS.get(kind, ()), FEEDFORWARD.get(kind, ())


@dataclass(frozen=True)
class IA3(Technique):
    """Train one factor for each activation of some layers, and the head; what is saved has them merged."""

    targets: tuple[str, ...] = ()
    feedforward: tuple[str, ...] = ()
    head: tuple[str, ...] | None = None

    card: ClassVar[Card] = Card(
        name="ia3",
        summary="Trains one factor for each activation of frozen layers, and merges them into the model that is saved.",
        aliases=("(IA)³",),
        family=Family.LEARNING,
        source="Liu et al. 2022, arXiv:2205.05638; peft",
        seams=("export",),
        stages=(Stage.ADAPT,),
        fidelity=Fidelity.ADAPTERS,
        saves_memory=True,
        cost="one parameter for each output of a layer; no gradients or moments of the rest",
        use_when="there are few examples and lora has too many parameters; learning rates of 1e-3 to 1e-2",
    )

    @classmethod
    def example(cls) -> Self:
        return cls()

    @classmethod
    def rungs(cls) -> tuple[Self, ...]:
        return ()  # it needs hardly less than lora, and learns less

    def prepare(self, model: nn.Module) -> nn.Module:
        return ia3_(model, self.targets, self.feedforward, head=self.head)

    def seams(self, context: Context) -> Seams:
        return Seams(export=merged)
