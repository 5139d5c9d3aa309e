"""Weights of 16 bits in the model, and their masters in float32 beside the optimizer's state."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from snugfit.core.parameters import ParameterGroup, is_matrix
from snugfit.core.scalar_reads import read
from snugfit.core.technique import MakeOptimizer
from snugfit.kit.optimizers.one_by_one import ShadowOptimizer, standing_in
from snugfit.kit.quantized.frozen_linear import QuantisedLinear
from snugfit.kit.sharded_tensors import own_part

NARROW = (torch.bfloat16, torch.float16)

NARROW_HEAD = "it computes the head in fp32 from weights in fp32, and here they are in 16 bits. Remove one."
"""Why what needs the head's weights in float32 does not go with weights of 16 bits."""

MASTERS_STEPPED = "it works out the weights to evaluate from its own state beside the weights it steps, which are masters here. Remove one, or use adamw."
"""Why an optimizer whose state gives other weights to evaluate does not go with masters."""


def narrow_(model: nn.Module, dtype: torch.dtype) -> nn.Module:
    """Turn a model's matrices into `dtype` in place; norms, biases, other vectors and buffers are in float32 afterwards.

    Under autocast that computes what weights in float32 do: it would round the matrices for each product, and keeps the rest.

    >>> model = narrow_(nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2)), torch.bfloat16)
    >>> [parameter.dtype for parameter in model.parameters()]
    [torch.bfloat16, torch.float32, torch.float32, torch.float32]
    """
    saved = {id(tensor) for tensor in model.state_dict(keep_vars=True).values()}
    for module in model.modules():
        if isinstance(module, QuantisedLinear):
            module.dtype = dtype  # of its weight, made whole
        for parameter in module.parameters(recurse=False):
            if parameter.is_floating_point():
                parameter.data = parameter.data.to(dtype if is_matrix(parameter) else torch.float32)
        for name, buffer in module.named_buffers(recurse=False):
            if buffer.is_floating_point() and id(buffer) in saved:
                setattr(module, name, buffer.float())
    return model


class MasterOptimizer(ShadowOptimizer):
    """Steps an optimizer on masters in float32 of the parameters of 16 bits, and rounds each to its parameter.

    A master begins at its parameter, and is the number that training goes on from. Where a parameter is no longer what its master
    rounds to, something else has moved it, and the master begins there anew. Parameters of other types are stepped as they are.

    Args:
        optimizer: made of the parameters, without a state yet.

    >>> model = nn.Linear(4, 4).bfloat16()
    >>> optimizer = MasterOptimizer(torch.optim.AdamW(model.parameters()))
    >>> model(torch.ones(1, 4, dtype=torch.bfloat16)).sum().backward()
    >>> optimizer.step()
    >>> state = optimizer.state_dict()["state"][0]
    >>> state["master"].dtype, torch.equal(state["master"].bfloat16(), model.weight)
    (torch.float32, True)

    Source: Micikevicius et al. 2018, arXiv:1710.03740.
    """

    own_names = ("master",)

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        super().__init__(optimizer, lambda own: torch.float32 if own in NARROW else own)

    def lend_wide(
        self, parameter: nn.Parameter, weight: Tensor, gradient: Tensor, own: dict[str, Any], _parts: range
    ) -> Iterator[tuple[nn.Parameter, nn.Parameter]]:
        if "master" in own:
            follow_(own["master"], weight)
        else:
            own["master"] = weight.float()
        shadow = self.shadows[parameter]
        yield shadow, standing_in(shadow, own["master"], gradient.float())
        weight.copy_(own["master"])


def follow_(master: Tensor, weight: Tensor) -> None:
    """Let a master be its weight where the weight is no longer what it rounds to, in place.

    >>> master, weight = torch.tensor([1.001, 2.0]), torch.tensor([1.0, 3.0], dtype=torch.bfloat16)
    >>> follow_(master, weight)
    >>> master
    tensor([1.0010, 3.0000])
    """
    own, low = own_part(master), own_part(weight)
    moved = own.to(low.dtype) != low
    if own.device.type == "cpu" and not read(moved.any(), assume=False):
        return  # a device would be waited for, and a host spares two passes over its memory
    torch.where(moved, low.to(own.dtype), own, out=own)


def on_masters(make: MakeOptimizer, gradients: torch.dtype | None = None) -> MakeOptimizer:
    """Return the optimizer that `make` makes, stepping on masters.

    Args:
        gradients: the type that gradients of several micro-batches are added up in; None for that of the weights.
    """

    def made(groups: list[ParameterGroup]) -> torch.optim.Optimizer:
        optimizer = MasterOptimizer(make(groups))
        if gradients is not None:
            for parameter in optimizer.shadows:
                if parameter.dtype in NARROW:
                    parameter.grad_dtype = gradients
        return optimizer

    return made
