"""Muon: orthogonalised momentum for hidden matrices, AdamW for the rest."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from snugfit.core.layers import base_of, layers
from snugfit.core.parameters import ParameterGroup, divided, is_matrix
from snugfit.core.technique import Card, Context, Family, Seams, Technique
from snugfit.errors import SettingError
from snugfit.kit.module_patterns import find_parameters
from snugfit.kit.optimizers.combined import CombinedOptimizer
from snugfit.kit.optimizers.foreach import fastest_kernel
from snugfit.kit.optimizers.parameter_walk import loss_of
from snugfit.kit.sharded_tensors import is_sharded, own_part, sharded_like, whole


def hidden_matrices(model: nn.Module) -> list[nn.Parameter]:
    """Return the 2-D parameters that are neither embeddings nor the head: the last module with a matrix as its `weight`.

    Goes by kind and place, not by name; a head that is tied to an embedding is one. An adapter goes with what it adapts.

    >>> model = nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 5), nn.LayerNorm(5), nn.Linear(5, 9))
    >>> [tuple(matrix.shape) for matrix in hidden_matrices(model)]
    [(5, 4)]
    """
    outside: set[int] = set()
    head: nn.Module | None = None
    for layer in layers(model):
        if isinstance(base_of(layer), (nn.Embedding, nn.EmbeddingBag)):
            outside |= _weights(layer)
        elif (weight := base_of(layer)._parameters.get("weight")) is not None and weight.ndim == 2:
            head = layer
    outside |= set() if head is None else _weights(head)
    return [
        parameter
        for parameter in model.parameters()
        if parameter.ndim == 2 and is_matrix(parameter) and id(parameter) not in outside
    ]


def _weights(layer: nn.Module) -> set[int]:
    """Return ids of the layer's weight and of its adapter's."""
    own = {id(base_of(layer).weight)}
    return own if base_of(layer) is layer else own | {id(parameter) for parameter in layer.parameters()}


class GatheringMuon(torch.optim.Muon):
    """Torch's, which iterates in the type of the weights, and gathers a matrix that is spread over devices while it is stepped.

    Every rank orthogonalises every matrix, one at a time, and keeps its own rows: products of parts would be rounded otherwise.

    Args:
        in_bf16: whether to iterate in bfloat16 whatever the weights are in, as torch does.
    """

    def __init__(self, params: Any, *, in_bf16: bool = False, **settings: Any) -> None:
        super().__init__(params, **settings)
        self._in_bf16 = in_bf16

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        loss = loss_of(closure)
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._step(parameter, group)
        return loss

    def _step(self, parameter: Tensor, group: dict[str, Any]) -> None:
        state, gradient = self.state[parameter], parameter.grad
        assert gradient is not None
        if not state:
            state["momentum_buffer"] = torch.zeros_like(gradient)
        momentum = state["momentum_buffer"]
        if not is_sharded(parameter):
            self._move(parameter, gradient, momentum, group)
            return
        weight, moved = whole(parameter).clone(), whole(momentum).clone()
        self._move(weight, whole(gradient), moved, group)
        for own, made in ((parameter, weight), (momentum, moved)):
            own_part(own).copy_(own_part(sharded_like(own, made)))

    def _move(self, weight: Tensor, gradient: Tensor, momentum: Tensor, group: dict[str, Any]) -> None:
        """Step a whole matrix and its momentum, in place."""
        momentum.lerp_(gradient, 1 - group["momentum"])
        direction = gradient.lerp(momentum, group["momentum"]) if group["nesterov"] else momentum
        narrow = self._in_bf16 or weight.dtype.itemsize < 4
        direction = direction.to(torch.bfloat16 if narrow else weight.dtype)
        direction = orthogonalised(direction, group["ns_coefficients"], group["ns_steps"], group["eps"])
        rows, columns = weight.shape
        original = group["adjust_lr_fn"] == "original"
        factor = math.sqrt(max(1, rows / columns)) if original else 0.2 * math.sqrt(max(rows, columns))
        weight.mul_(1 - group["lr"] * group["weight_decay"])
        weight.add_(direction, alpha=-group["lr"] * factor)


def orthogonalised(
    matrix: Tensor,
    coefficients: tuple[float, float, float] = (3.4445, -4.7750, 2.0315),
    iterations: int = 5,
    epsilon: float = 1e-7,
) -> Tensor:
    """Return the matrix with singular values between about 0.5 and 1.3, by iterations of Newton and Schulz in its own type.

    >>> [round(each, 2) for each in orthogonalised(torch.diag(torch.tensor([3.0, 1.0]))).diagonal().tolist()]
    [0.75, 1.13]
    """
    a, b, c = coefficients
    tall = matrix.shape[0] > matrix.shape[1]
    iterate = matrix.T if tall else matrix
    iterate = iterate / iterate.norm().clamp(min=epsilon)
    for _ in range(iterations):
        gram = iterate @ iterate.T
        polynomial = torch.addmm(gram, gram, gram, beta=b, alpha=c)
        iterate = torch.addmm(iterate, polynomial, iterate, beta=a)
    return iterate.T if tall else iterate


@dataclass(frozen=True)
class Muon(Technique):
    """Muon for hidden matrices and AdamW for embeddings, head, vectors and kernels; vectors are not decayed."""

    learning_rate: float = 0.02
    momentum: float = 0.95
    nesterov: bool = True
    iterations: int = 5
    iterations_in: str = "weights"
    match_adamw: bool = False
    weight_decay: float = 0.01
    adamw_for: tuple[str, ...] = ()
    adamw_learning_rate: float = 3e-4
    adamw_betas: tuple[float, float] = (0.9, 0.95)
    adamw_epsilon: float = 1e-8

    card: ClassVar[Card] = Card(
        name="muon",
        summary="Orthogonalises the momentum of hidden matrices; AdamW takes all other parameters.",
        family=Family.LEARNING,
        source="Jordan et al. 2024; Liu et al. 2025, arXiv:2502.16982; torch.optim.Muon",
        seams=("optimizer",),
        cost="one state for an element of hidden matrices, two for others; 15 products of matrices an update, in the weights' type",
        use_when="transformers from scratch, with large windows",
    )

    def __post_init__(self) -> None:
        self.require_positive("learning_rate", "adamw_learning_rate", "adamw_epsilon")
        self.require("momentum", 0 <= self.momentum < 1, "in [0, 1)")
        self.require("iterations", 1 <= self.iterations < 100, "from 1 to 99")
        self.require("iterations_in", self.iterations_in in ("weights", "bf16"), "weights or bf16")
        self.require_not_negative("weight_decay")
        self.require_betas("adamw_betas")

    @classmethod
    def example(cls) -> Self:
        return cls(learning_rate=0.05, momentum=0.8, weight_decay=0.1, adamw_learning_rate=0.01)

    def seams(self, context: Context) -> Seams:
        def optimizer(groups: list[ParameterGroup]) -> torch.optim.Optimizer:
            return self._optimizer(groups, context)

        return Seams(optimizer=optimizer)

    def _optimizer(self, groups: list[ParameterGroup], context: Context) -> torch.optim.Optimizer:
        hidden = self._hidden(context.model)
        parts = divided(groups, lambda _, parameter: "muon" if id(parameter) in hidden else "adamw")
        muon = GatheringMuon(
            [group for part, group in parts if part == "muon"],
            lr=self.learning_rate,
            weight_decay=self.weight_decay,
            momentum=self.momentum,
            nesterov=self.nesterov,
            ns_steps=self.iterations,
            in_bf16=self.iterations_in == "bf16",
            adjust_lr_fn="match_rms_adamw" if self.match_adamw else "original",
        )
        rest = [group for part, group in parts if part == "adamw"]
        if not rest:
            return muon
        adamw = torch.optim.AdamW(
            rest,
            lr=self.adamw_learning_rate,
            betas=(self.adamw_betas[0], self.adamw_betas[1]),
            eps=self.adamw_epsilon,
            weight_decay=self.weight_decay,
            **fastest_kernel(context.device),
        )
        return CombinedOptimizer([muon, adamw])

    def _hidden(self, model: nn.Module) -> set[int]:
        """Return ids of the parameters for Muon.

        Raises:
            SettingError: there are none, or a pattern in `adamw_for` matches nothing.
        """
        names = find_parameters(model, self.adamw_for, "muon.adamw_for")
        excluded = {id(model.get_parameter(name)) for name in names}
        hidden = {id(parameter) for parameter in hidden_matrices(model)} - excluded
        if not hidden:
            raise SettingError(
                "muon",
                "the model has no matrix besides embeddings, its head and those in adamw_for",
                "Use adamw.",
            )
        return hidden
