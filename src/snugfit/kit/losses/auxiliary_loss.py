"""The loss of a model with an auxiliary head: its own and that of the head, weighted, and each of the two by itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from snugfit.core.loss_terms import LossTerms
from snugfit.core.losses import cross_entropy
from snugfit.errors import SettingError

AUXILIARY = "auxiliary"
"""Entry of the outputs with the logits of the auxiliary head."""


@dataclass(frozen=True)
class WithAuxiliary:
    """Cross-entropy of `logits`, and `weight` times that of `auxiliary`, with the same labels; label -100 has weight 0.

    Source: Zhao et al. 2017, arXiv:1612.01105, section 3.3.
    """

    weight: float
    no_cross_entropy: ClassVar[tuple[str, str]] = ("a sum of two", "main_loss")

    def __call__(self, outputs: Any, data: Any) -> LossTerms:
        main = cross_entropy(outputs, data)
        if not self.weight:
            return main
        other = cross_entropy(_head(outputs), data)
        parts = {"main_loss": main.values, "auxiliary_loss": other.values}
        return LossTerms.of(parts, {"auxiliary_loss": self.weight}, main.weights)


def main_loss(outputs: Any, data: Any) -> tuple[Tensor, Tensor]:
    """Return the cross-entropy of `logits` at each label, and 1 where it counts."""
    return _values(cross_entropy(outputs, data))


def auxiliary_loss(outputs: Any, data: Any) -> tuple[Tensor, Tensor]:
    """Return the cross-entropy of `auxiliary` at each label, and 1 where it counts."""
    return _values(cross_entropy(_head(outputs), data))


def _head(outputs: Any) -> Tensor:
    logits = outputs.get(AUXILIARY) if isinstance(outputs, Mapping) else None
    if not isinstance(logits, Tensor):
        raise SettingError(
            "loss",
            f"no '{AUXILIARY}' in what the model returns, a {type(outputs).__name__}",
            "Return the logits of the auxiliary head under that name, or leave auxiliary_loss out.",
        )
    return logits


def _values(terms: LossTerms) -> tuple[Tensor, Tensor]:
    assert terms.weights is not None
    return terms.values, terms.weights
