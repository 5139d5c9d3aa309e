"""Gated linear units: the first layer of a feed-forward block is multiplied by a second one, its gate."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from snugfit.core.layers import is_conv1d
from snugfit.core.technique import Card, Context, Family, Seams, Stage, Technique
from snugfit.errors import SettingError

FEED_FORWARD = (
    ("linear1", "activation"),  # torch
    ("dense", "intermediate_act_fn"),  # BERT, ViT
    ("c_fc", "act"),  # GPT-2
    ("fc1", "activation_fn"),  # OPT, CLIP, Phi
    ("fc1", "act"),  # timm
    ("dense_h_to_4h", "act"),  # GPT-NeoX
    ("wi", "act"),  # T5
    ("lin1", "activation"),  # DistilBERT
)
"""Names of the first layer of feed-forward blocks, and of the activation behind it."""

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "relu": F.relu,
    "silu": F.silu,
    "sigmoid": torch.sigmoid,
    "none": lambda hidden: hidden,
}


class Gated(nn.Module):
    """The activation of one half of the last dimension, times the other half."""

    def __init__(self, activation: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.activation = activation

    def forward(self, hidden: Tensor) -> Tensor:
        """Return half as many features, (..., width) of (..., 2 * width)."""
        values, gates = hidden.chunk(2, dim=-1)
        return self.activation(values) * gates


@dataclass(frozen=True)
class GLU(Technique):
    """Give the first layer of each feed-forward block a gate: `act(x W) * (x V)` in place of `act(x W)`."""

    activation: str | None = None

    card: ClassVar[Card] = Card(
        name="glu",
        summary="Gates the feed-forward blocks of transformers, which learns more for the same number of blocks.",
        aliases=("gated linear units", "SwiGLU", "GEGLU"),
        family=Family.LEARNING,
        source="Shazeer 2020, arXiv:2002.05202, equation 6; Dauphin et al. 2016, arXiv:1612.08083",
        seams=(),
        stages=(Stage.LAYER,),
        conflicts=dict.fromkeys(
            ("lora", "ia3"),
            "the gates would be frozen with the layers that they are part of, untrained. Remove one.",
        ),
        refuses={
            Stage.QUANTISE: "the gates would be frozen in few bits before they have learned. Remove one."
        },
        cost="half of a feed-forward block's weights and time again",
        use_when="transformers from scratch; with two thirds of the feed-forward width it has the weights of before",
    )

    def __post_init__(self) -> None:
        known = ", ".join(ACTIVATIONS)
        self.require("activation", self.activation in (None, *ACTIVATIONS), f"{known} or null")

    def prepare(self, model: nn.Module) -> nn.Module:
        blocks = [
            (block, *names) for block in model.modules() for names in FEED_FORWARD if _has(block, *names)
        ]
        if not blocks:
            raise SettingError(
                "glu",
                "has nothing to change: the model has no feed-forward block that is known, a linear layer and an activation "
                "such as linear1 and activation, and none that has a gate already is changed",
                "Remove it.",
            )
        _refuse_shared(model, {getattr(block, linear) for block, linear, _ in blocks})
        for block, linear, activation in blocks:
            _widen(getattr(block, linear))
            own = getattr(block, activation)
            setattr(
                block, activation, Gated(own if self.activation is None else ACTIVATIONS[self.activation])
            )
            if hasattr(block, "activation_relu_or_gelu"):
                block.activation_relu_or_gelu = 0  # type: ignore[assignment]  # torch's fast path of evaluation would pass the gates by
        for module in model.modules():
            if isinstance(module, nn.TransformerEncoder) and any(
                isinstance(each, Gated) for each in module.modules()
            ):
                module.use_nested_tensor = False  # part of the fast path
        return model

    def seams(self, context: Context) -> Seams:
        return Seams()


def _has(block: nn.Module, linear: str, activation: str) -> bool:
    layer = getattr(block, linear, None)
    is_linear = type(layer) is nn.Linear or (isinstance(layer, nn.Module) and is_conv1d(layer))
    return is_linear and callable(getattr(block, activation, None))


def _refuse_shared(model: nn.Module, layers: Collection[nn.Module]) -> None:
    """Refuse layers whose weight or bias is that of another module too, which would keep the old one.

    Raises:
        SettingError: there is such a layer.
    """
    owners = Counter(id(each) for module in model.modules() for each in module.parameters(recurse=False))
    for name, module in model.named_modules():
        if module in layers and any(owners[id(each)] > 1 for each in module.parameters(recurse=False)):
            raise SettingError(
                "glu", f"'{name}' shares its weight with another layer, which gates would part", "Remove it."
            )


def _widen(linear: Any) -> None:
    """Give a layer as many outputs again, the gates, whose weights are drawn with the deviation of those it has."""
    dim = 1 if is_conv1d(linear) else 0
    with torch.no_grad():
        weight = linear.weight.detach()
        # one number has no deviation
        gates = torch.randn_like(weight) * (weight.std() if weight.numel() > 1 else weight.abs())
        linear.weight = nn.Parameter(torch.cat([weight, gates], dim=dim))
        if linear.bias is not None:
            linear.bias = nn.Parameter(torch.cat([linear.bias.detach(), torch.zeros_like(linear.bias)]))
    size = "nf" if is_conv1d(linear) else "out_features"
    setattr(linear, size, 2 * getattr(linear, size))
