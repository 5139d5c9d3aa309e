"""Ranger21: AdamW on centralised gradients with positive-negative momentum, norm loss, stable decay and a schedule of its own."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from snugfit.core.parameters import ParameterGroup
from snugfit.core.progress import LENGTH, is_length, number_of_updates
from snugfit.core.schedule import known_total
from snugfit.core.technique import Card, Context, Family, Rate, Seams, Sharing, Technique
from snugfit.kit.optimizers.parameter_walk import OwnOptimizer


def centralised(gradient: Tensor) -> Tensor:
    """Return the gradient of a matrix or kernel without the mean of each unit's incoming weights; of a vector as it is.

    Source: Yong et al. 2020, arXiv:2004.01461, equation 1.

    >>> centralised(torch.tensor([[1.0, 3.0], [0.0, 0.0]]))
    tensor([[-1.,  1.],
            [ 0.,  0.]])
    """
    if gradient.ndim < 2:
        return gradient
    return gradient - gradient.mean(dim=tuple(range(1, gradient.ndim)), keepdim=True)


def positive_negative(newest: Tensor, before: Tensor, strength: float) -> Tensor:
    """Return the momentum that adds the newest average of gradients and takes away the one before, at the noise of a plain one.

    Args:
        newest: average over every other gradient, the last one among them.
        before: average over the gradients between.
        strength: of what is taken away; 0 gives `newest`.
    Source: Xie et al. 2021, arXiv:2103.17182, equation 4.

    >>> positive_negative(torch.tensor([3.0]), torch.tensor([1.0]), strength=0.0)
    tensor([3.])
    """
    norm = math.sqrt((1 + strength) ** 2 + strength**2)
    return (newest * ((1 + strength) / norm)).sub_(before, alpha=strength / norm)


@dataclass(frozen=True)
class Ranger21(Technique):
    """AdamW whose parts were chosen to go together; vectors are neither decayed nor drawn to length 1.

    The rate rises over the first `warmup` of the run, or sooner where `betas` allow it, stays, and falls over the last `warmdown`: no
    schedule stands beside it.
    """

    learning_rate: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    negative_momentum: float = 0.9
    epsilon: float = 1e-8
    weight_decay: float = 1e-4
    norm_loss: float = 1e-4
    warmup: float = 0.22
    warmdown: float = 0.28

    card: ClassVar[Card] = Card(
        name="ranger21",
        summary="Centralised gradients, positive-negative momentum, norm loss and stable decay, warmed up and down by itself.",
        aliases=("Ranger", "AdaPNM", "gradient centralization", "norm loss", "stable weight decay"),
        family=Family.LEARNING,
        source="Wright & Demeure 2021, arXiv:2106.13731",
        seams=("optimizer", "schedule"),
        refuses={
            "stepping": "ranger21's decay goes by the squared gradients of all weights together, and this steps them one by one or on other "
            "tensors. Remove one, or take another optimizer, such as adamw.",
            Sharing.SHARDS: "its decay goes by the squared gradients of all weights together, of which each device would have a part. Use "
            "ddp, or another optimizer, such as adamw.",
        },
        cost="four states a parameter: 16 bytes in float32",
        use_when="training from scratch for a known number of updates, without tuning a schedule; with adaptive_clip and lookahead it is whole",
    )

    def __post_init__(self) -> None:
        self.require_positive("learning_rate", "epsilon")
        betas = len(self.betas) == 2 and all(0 <= beta < 1 for beta in self.betas)
        self.require("betas", betas, "two numbers in [0, 1)")
        self.require_not_negative("negative_momentum", "weight_decay", "norm_loss")
        for name in ("warmup", "warmdown"):
            self.require(name, is_length(getattr(self, name)), LENGTH)

    @classmethod
    def example(cls) -> Self:
        return cls(learning_rate=0.02, betas=(0.8, 0.9), weight_decay=0.01, norm_loss=0.01, epsilon=1e-6)

    def seams(self, context: Context) -> Seams:
        total = known_total(self.card.name, context, needed=True)

        def optimizer(groups: list[ParameterGroup]) -> torch.optim.Optimizer:
            return _Ranger21Optimizer(groups, self)

        def schedule(updates: int, _group: Mapping[str, Any]) -> Rate:
            return Rate(self.factor(updates, total))

        return Seams(optimizer=optimizer, schedule=schedule)

    def factor(self, updates: int, total: int) -> float:
        """Return the learning rate's factor for the update that follows `updates` applied ones.

        >>> Ranger21(betas=(0.9, 0.5), warmup=4).factor(0, total=100)  # Ma & Yarats 2019: (1 - beta2) / 2 an update suffices
        0.25
        """
        warmup = number_of_updates(self.warmup, total)
        warmdown = number_of_updates(self.warmdown, total)
        rising = max((1 - self.betas[1]) / 2, 1 / warmup if warmup else 1.0) * (updates + 1)
        falling = (total - updates) / warmdown if warmdown else 1.0
        return max(0.0, min(1.0, rising, falling))


class _Ranger21Optimizer(OwnOptimizer):
    def __init__(self, groups: list[ParameterGroup], settings: Ranger21) -> None:
        defaults = {
            "lr": settings.learning_rate,
            "betas": settings.betas,
            "negative_momentum": settings.negative_momentum,
            "eps": settings.epsilon,
            "weight_decay": settings.weight_decay,
            "norm_loss": settings.norm_loss,
        }
        super().__init__(groups, defaults)

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        squares, count = [], 0
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    squares.append(_remember(parameter.grad, self.state[parameter], group["betas"]))
                    count += parameter.numel()
        # before any weight moves: the decay of each goes by the mean over all
        self._spread = (torch.stack(squares).sum() / count).sqrt() if squares else None
        return super().step(closure)

    def update(self, group: ParameterGroup, parameters: list[nn.Parameter]) -> None:
        for parameter in parameters:
            assert self._spread is not None
            _shrink(parameter, group, self._spread)
            _move(parameter, self.state[parameter], group)


def _remember(gradient: Tensor, state: dict[str, Any], betas: tuple[float, float]) -> Tensor:
    """Add a gradient to the averages of a parameter; returns the sum of its mean squares, without their bias."""
    if not state:
        names = ("newest", "before", "square", "highest_square")
        state.update(updates=0, **{name: torch.zeros_like(gradient) for name in names})
    state["updates"] += 1
    gradient = centralised(gradient)
    momentum = betas[0] ** 2
    state["newest"], state["before"] = state["before"], state["newest"]
    state["newest"].mul_(momentum).add_(gradient, alpha=1 - momentum)
    state["square"].mul_(betas[1]).addcmul_(gradient, gradient, value=1 - betas[1])
    torch.maximum(state["highest_square"], state["square"], out=state["highest_square"])
    total: Tensor = state["square"].sum() / (1 - betas[1] ** state["updates"])
    return total


def _shrink(parameter: Tensor, group: ParameterGroup, spread: Tensor) -> None:
    """Decay a weight as fast as weights move, and draw each unit of a matrix to length 1."""
    if group["weight_decay"]:
        share = group["lr"] * group["weight_decay"] / spread.to(parameter.device)
        share = share.nan_to_num(posinf=0.0)  # without any gradient so far nothing moves
        parameter.mul_(1 - share.clamp(max=1.0))
    if group["norm_loss"] and parameter.ndim > 1:
        others = tuple(range(1, parameter.ndim))
        lengths = torch.linalg.vector_norm(parameter, dim=others, keepdim=True)
        parameter.mul_(1 - 2 * group["lr"] * group["norm_loss"] * (1 - 1 / (lengths + group["eps"])))


def _move(parameter: Tensor, state: dict[str, Any], group: ParameterGroup) -> None:
    beta1, beta2 = group["betas"]
    direction = positive_negative(state["newest"], state["before"], group["negative_momentum"])
    scale = (state["highest_square"] / (1 - beta2 ** state["updates"])).sqrt_().add_(group["eps"])
    parameter.addcdiv_(direction, scale, value=-group["lr"] / (1 - beta1 ** state["updates"]))
