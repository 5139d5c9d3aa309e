"""Pure bf16: weights, gradients and optimizer states in bf16, without a copy in fp32."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from snugfit.core.batch import Batch
from snugfit.core.parameters import ParameterGroup
from snugfit.core.random import derive_seed
from snugfit.core.technique import Card, Context, Family, Fidelity, MakeOptimizer, Seams, Stage, Technique
from snugfit.errors import SettingError
from snugfit.kit.optimizers.one_by_one import ShadowOptimizer, standing_in
from snugfit.kit.patched_forward import taking_any_float
from snugfit.kit.precision.bf16_rounding import (
    device_name,
    has_bf16,
    rounded_stochastically,
    with_compensation,
)
from snugfit.kit.quantized.experts import QuantisedExperts
from snugfit.kit.quantized.frozen_linear import QuantisedLinear

Rounding = Literal["stochastic", "kahan"]
States = Literal["bf16", "fp32"]


def to_bf16_(model: nn.Module) -> nn.Module:
    """Turn floating parameters and buffers into bf16, in place.

    Norms that keep statistics of their batches stay in fp32, with their weights: the statistics are small steps towards what
    is seen. So do buffers that a checkpoint does not hold: they are computed, as the frequencies of rotary embeddings.

    >>> model = to_bf16_(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)))
    >>> [parameter.dtype for parameter in model.parameters()]
    [torch.bfloat16, torch.bfloat16, torch.float32, torch.float32]
    """
    saved = {id(tensor) for tensor in model.state_dict(keep_vars=True).values()}
    for module in model.modules():
        if isinstance(module, QuantisedLinear):
            module.dtype = torch.bfloat16  # of its weight, made whole
        if isinstance(module, QuantisedExperts):
            module.own_dtype = torch.bfloat16
        dtype = torch.float32 if isinstance(module, _NormBase) else torch.bfloat16
        for parameter in module.parameters(recurse=False):
            if parameter.is_floating_point():
                parameter.data = parameter.data.to(dtype)
        for name, buffer in module.named_buffers(recurse=False):
            if buffer.is_floating_point() and id(buffer) in saved:
                setattr(module, name, buffer.to(dtype))
    return model


class PureBF16Optimizer(ShadowOptimizer):
    """Steps an optimizer in fp32, one parameter of bf16 at a time, and rounds what comes of it back.

    Weights are rounded stochastically, or by Kahan's compensation, kept in bf16 beside the state. States of the parameter's own
    shape, such as moments, are rounded stochastically, or stay in fp32; smaller ones stay as the optimizer has them. So do
    parameters of other types.

    Args:
        optimizer: made of the parameters, without a state yet.
        seed: of the draws, which are a function of it, of the parameter's place and of how often it was stepped.

    >>> model = nn.Linear(4, 4).bfloat16()
    >>> optimizer = PureBF16Optimizer(torch.optim.AdamW(model.parameters()))
    >>> model(torch.ones(1, 4, dtype=torch.bfloat16)).sum().backward()
    >>> optimizer.step()
    >>> [value.dtype for value in optimizer.state_dict()["state"][0].values() if isinstance(value, Tensor)]
    [torch.float32, torch.bfloat16, torch.bfloat16]
    """

    own_names = ("rounded", "compensation")  # how often it was rounded, and what the weight is short of

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        rounding: Rounding = "stochastic",
        states: States = "bf16",
        seed: int = 0,
    ) -> None:
        super().__init__(optimizer, lambda own: torch.float32 if own == torch.bfloat16 else own)
        self.rounding, self.states, self.seed = rounding, states, seed

    def lend_wide(
        self, parameter: nn.Parameter, weight: Tensor, gradient: Tensor, own: dict[str, Any], parts: range
    ) -> Iterator[tuple[nn.Parameter, nn.Parameter]]:
        # the same draws whether pieces are stepped one by one or together
        named = self.seed, "pure_bf16", self._places[parameter], own.setdefault("rounded", 0)
        generators = [
            torch.Generator(weight.device).manual_seed(derive_seed(*named, piece)) for piece in parts
        ]
        own["rounded"] += 1
        shadow, wide = self.shadows[parameter], weight.float()
        if "compensation" in own:
            wide += own["compensation"]
        self.state[shadow] = _converted(self.state[shadow], weight, lambda value: value.float())
        stand_in = standing_in(shadow, wide, gradient.float())
        yield shadow, stand_in
        stand_in.grad = None  # which is not needed for the rounding
        if self.rounding == "kahan":
            rounded, own["compensation"] = with_compensation(stand_in.detach())
        else:
            rounded = rounded_stochastically(stand_in.detach(), *generators)
        weight.copy_(rounded)
        if self.states == "bf16":
            self.state[shadow] = _converted(
                self.state[shadow], weight, lambda value: rounded_stochastically(value.float(), *generators)
            )


def _converted(value: Any, like: Tensor, convert: Callable[[Tensor], Tensor]) -> Any:
    """Return the state, its plain floating tensors of the shape of `like` converted; a number, such as a count, has no shape."""
    if isinstance(value, dict):
        return {name: _converted(entry, like, convert) for name, entry in value.items()}
    plain = type(value) is type(like) and value.is_floating_point()
    return convert(value) if plain and value.ndim and value.shape == like.shape else value


@dataclass(frozen=True)
class PureBF16(Technique):
    """Hold weights, gradients and optimizer states in bf16, with no copy in fp32; each update is computed in fp32.

    Steps that are smaller than the distance of two bf16 numbers would be lost by rounding to the nearest one: weights are
    rounded by `rounding`, moments stochastically, or kept in fp32 by `states`.
    """

    rounding: Rounding = "stochastic"
    states: States = "bf16"

    card: ClassVar[Card] = Card(
        name="pure_bf16",
        summary="Weights, gradients and optimizer states in bf16, rounded so that steps below a bf16 digit add up.",
        aliases=("bf16-true", "full bf16 training"),
        family=Family.NUMERICS,
        source="Zamirai et al. 2020, arXiv:2010.06192; stochastic rounding: Gupta et al. 2015, arXiv:1502.02551",
        seams=("stepping", "modules"),
        stages=(Stage.NARROW, Stage.COMPUTE, Stage.SHADOW),
        fidelity=Fidelity.COMPACT,
        needs="bfloat16",
        precision=True,
        conflicts={
            "fp32_logits": "it computes the head in fp32 from weights in fp32, and here they are in bf16. Remove one.",
            "schedule_free": "it works out the weights to evaluate from its own state beside the weights it steps, which are in "
            "fp32 for the step alone. Remove one, or use adamw.",
        },
        saves_memory=True,
        cost="8 bytes a parameter with AdamW instead of 16, 10 with kahan; half of the activations; a slower step",
        use_when="full training of a large model where fp32 weights do not fit; stochastic, or kahan for small windows",
    )

    def __post_init__(self) -> None:
        self.require("rounding", self.rounding in ("stochastic", "kahan"), "stochastic or kahan")
        self.require("states", self.states in ("bf16", "fp32"), "bf16 or fp32")

    def loading(self, model: nn.Module) -> dict[str, Any]:
        return {"dtype": torch.bfloat16}

    @property
    def reads_weights(self) -> bool:
        return False  # they come in bf16

    def prepare(self, model: nn.Module) -> nn.Module:
        device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
        if not has_bf16(device):
            raise SettingError(
                "plan.numerics",
                f"bf16 is only emulated on {device_name(device)}, and pure_bf16 computes in it",
                "Use plan.numerics: fp32.",
            )
        return to_bf16_(model)

    def seams(self, context: Context) -> Seams:
        def stepping(make: MakeOptimizer) -> MakeOptimizer:
            def rounded(groups: list[ParameterGroup]) -> torch.optim.Optimizer:
                return PureBF16Optimizer(make(groups), self.rounding, self.states, context.seed)

            return rounded

        def modules(_batch: Batch) -> AbstractContextManager[None]:
            return taking_any_float(context.model, torch.bfloat16)

        return Seams(stepping=stepping, modules=modules)
