"""Adaptive gradient clipping: each unit's gradient is bounded by the length of its weights."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from torch import Tensor, nn

from snugfit.core.layers import is_conv1d, last_linear
from snugfit.core.technique import Card, Context, Family, Moment, Seams, Stage, Technique
from snugfit.errors import SettingError
from snugfit.kit.module_patterns import find_parameters


def unit_norms(tensor: Tensor, dim: int = 0) -> Tensor:
    """L2 norm of each unit: of each row over all that comes in to it, or of a bias or gain as a whole.

    Args:
        tensor: weights of shape (units, ...), or a vector or scalar.
        dim: where the units are in weights that have them elsewhere.
    Returns:
        Shape (units, 1, ...), or a scalar; float32 at least.

    >>> unit_norms(torch.tensor([[3.0, 4.0], [0.0, 2.0]])), unit_norms(torch.tensor([3.0, 4.0]))
    (tensor([[5.],
            [2.]]), tensor(5.))
    """
    wide = tensor if tensor.dtype.itemsize >= 4 else tensor.float()
    if tensor.ndim <= 1:
        whole: Tensor = torch.linalg.vector_norm(wide)
        return whole
    others = tuple(place for place in range(tensor.ndim) if place != dim)
    units: Tensor = torch.linalg.vector_norm(wide, dim=others, keepdim=True)
    return units


def adaptive_clip_(
    parameters: Iterable[nn.Parameter], factor: float = 0.01, epsilon: float = 1e-3, dim: int = 0
) -> None:
    """Scale each unit's gradient in place to at most `factor * max(|weights|, epsilon)`.

    Args:
        dim: where the units are in weights of two dimensions or more.
    Source: Brock et al. 2021, arXiv:2102.06171, equation 3. A gradient within its bound is left bit for bit.

    >>> weight = nn.Parameter(torch.tensor([[3.0, 4.0], [0.0, 0.0]]))
    >>> weight.grad = torch.tensor([[0.0, 1.0], [0.0, 1.0]])
    >>> adaptive_clip_([weight], factor=0.1, epsilon=0.01)
    >>> [[round(value, 6) for value in row] for row in weight.grad.tolist()]
    [[0.0, 0.5], [0.0, 0.001]]
    """
    with torch.no_grad():
        for parameter in parameters:
            gradient = parameter.grad
            if gradient is None:
                continue
            bound = factor * unit_norms(parameter.detach(), dim).clamp(min=epsilon)
            gradient.mul_((bound / unit_norms(gradient, dim)).clamp(max=1.0).to(gradient.dtype))


@dataclass(frozen=True)
class AdaptiveClip(Technique):
    """Bound the gradient of each unit by `factor` of the length of its weights, all but the output head's.

    `exclude` are patterns of modules' or parameters' names, whole or their end; null stands for the last linear layer, which
    the paper leaves out. A weight that the head shares with another layer is left out too.
    """

    factor: float = 0.01
    epsilon: float = 1e-3
    exclude: tuple[str, ...] | None = None

    card: ClassVar[Card] = Card(
        name="adaptive_clip",
        summary="Bounds each unit's gradient by the length of its weights, so that large batches train without batch norm.",
        aliases=("AGC", "adaptive gradient clipping"),
        family=Family.LEARNING,
        source="Brock et al. 2021 (NFNets), arXiv:2102.06171",
        seams=("adjust",),
        stages=(Stage.UNIT,),
        cost="two passes over the weights and gradients",
        use_when="large batches or high learning rates, above all without batch norm; 0.01, or more for small batches",
    )

    def __post_init__(self) -> None:
        self.require("factor", self.factor > 0, "positive")
        self.require("epsilon", self.epsilon > 0, "positive")

    @classmethod
    def example(cls) -> Self:
        return cls(factor=0.02)

    def seams(self, context: Context) -> Seams:
        excluded = _excluded(context.model, self.exclude)
        columns = {id(module.weight) for module in context.model.modules() if is_conv1d(module)}

        def adjust(parameters: Sequence[nn.Parameter], _moment: Moment) -> Mapping[str, Tensor]:
            clipped = [parameter for parameter in parameters if id(parameter) not in excluded]
            for dim in (0, 1):
                units = [parameter for parameter in clipped if (id(parameter) in columns) == dim]
                adaptive_clip_(units, self.factor, self.epsilon, dim)
            return {}

        return Seams(adjust=adjust)


def _excluded(model: nn.Module, patterns: Sequence[str] | None) -> set[int]:
    """Return ids of the parameters that are left out; a shared one is found under each of its names."""
    if patterns is None:
        head = last_linear(model)
        if head is None:
            raise SettingError(
                "adaptive_clip.exclude",
                "the model has no linear layer to take for its head, which is not to be clipped",
                "Give patterns of its parameters' names, or [] to clip everything.",
            )
        return {id(parameter) for parameter in head.parameters()}
    return {
        id(model.get_parameter(name)) for name in find_parameters(model, patterns, "adaptive_clip.exclude")
    }
