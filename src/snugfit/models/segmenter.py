"""Models of transformers that tell the class of each pixel, as their loss sees them: logits of the pictures' own size, and those of an auxiliary head."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from snugfit.kit.losses.auxiliary_loss import AUXILIARY


class Segmenter(nn.Module):
    """Pictures (rows, 3, height, width) to logits of each pixel: `logits` (rows, height, width, classes), and `auxiliary` alike where there is such a head.

    `network` is a model of transformers for semantic segmentation, which is delivered alone. Its own modules keep their names below that, so that
    rates can differ by them: `network.segformer.*` and `network.decode_head.*`.
    """

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network
        self.train(network.training)

    def forward(self, pixel_values: Tensor) -> dict[str, Tensor]:
        """Return logits, as the class says."""
        return pixel_logits(self.network, pixel_values)


def pixel_logits(network: nn.Module, pixel_values: Tensor) -> dict[str, Tensor]:
    """Return what a `Segmenter` of this network would."""
    with _auxiliary(network) as seen:
        outputs: dict[str, Tensor] = {"logits": network(pixel_values=pixel_values).logits}
    if seen:
        outputs[AUXILIARY] = seen[-1]
    size = pixel_values.shape[-2:]
    return {name: _of_size(logits, size).permute(0, 2, 3, 1) for name, logits in outputs.items()}


def auxiliary_weight(network: nn.Module) -> float:
    """Return the weight of the auxiliary head's loss that a network's configuration has; 0 where it has no such head."""
    config: Any = network.config
    return (
        0.0
        if _auxiliary_head(network) is None
        else float(getattr(config, "auxiliary_loss_weight", None) or 0)
    )


def class_weights(network: nn.Module) -> list[str]:
    """Return the names of the parameters whose shapes are of the number of classes: those of the last layers."""
    config: Any = network.config
    more = type(config).from_dict(config.to_dict())
    more.num_labels += 1
    with torch.device("meta"):
        kind: Any = type(network)
        other = dict(kind(more).named_parameters())
    return [name for name, each in network.named_parameters() if each.shape != other[name].shape]


def _of_size(logits: Tensor, size: torch.Size) -> Tensor:
    """Return logits (rows, classes, height, width) of that size, as transformers' own loss has them."""
    if logits.shape[-2:] == size:
        return logits
    return F.interpolate(logits, size=size, mode="bilinear", align_corners=False)


def _auxiliary_head(network: nn.Module) -> nn.Module | None:
    head = getattr(network, "auxiliary_head", None)
    return head if isinstance(head, nn.Module) else None


@contextmanager
def _auxiliary(network: nn.Module) -> Iterator[list[Tensor]]:
    """Temporarily collect what the auxiliary head puts out, of which transformers gives the loss alone."""
    seen: list[Tensor] = []
    head = _auxiliary_head(network)
    if head is None:
        yield seen
        return
    handle = head.register_forward_hook(lambda _module, _inputs, output: seen.append(output))
    try:
        yield seen
    finally:
        handle.remove()
