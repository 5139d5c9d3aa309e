"""Quantisation-aware training: linear layers compute with rounded weights and inputs while they learn."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from snugfit.core.batch import Batch
from snugfit.core.layers import unchanged_layers_warning, unsuitable
from snugfit.core.technique import Card, Context, Family, Seams, Stage, Technique
from snugfit.errors import SettingError, SnugfitWarning
from snugfit.kit.adapters.adapters import ADAPTER, adapted
from snugfit.kit.module_patterns import find_modules, matched_by
from snugfit.kit.patched_forward import replaced_forward, without_fast_path

BITS = {"int4": 4, "int8": 8}


def rounded_weight(weight: Tensor, bits: int = 4, group_size: int | None = 32) -> Tensor:
    """`weight` rounded to `bits` bits around 0, so that the largest of each group is the end of its grid.

    The gradient passes as if nothing were rounded.

    Args:
        weight: of shape (outputs, inputs).
        group_size: inputs that share a scale; a whole row where it is None.

    >>> rounded_weight(torch.tensor([[0.15, 0.2, -1.6, 0.74]]), group_size=4)
    tensor([[ 0.2000,  0.2000, -1.6000,  0.8000]])
    """
    groups = weight.reshape(-1, group_size or weight.shape[-1])
    with torch.no_grad():
        low, high = _range(groups)
        lowest, highest = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
        scale = torch.maximum(low / lowest, high / highest)
        rounded = _on_grid(groups, scale, torch.zeros_like(scale), lowest, highest)
    passed: Tensor = _Through.apply(weight, rounded.view(weight.shape))  # type: ignore[no-untyped-call]
    return passed


def rounded_tokens(inputs: Tensor) -> Tensor:
    """Return `inputs` rounded to 8 bits between the smallest and the largest of each token, which is the last dimension.

    >>> rounded_tokens(torch.tensor([[0.0, 0.123, 2.55], [0.0, 1.23, 25.5]]))
    tensor([[ 0.0000,  0.1200,  2.5500],
            [ 0.0000,  1.2000, 25.5000]])
    """
    with torch.no_grad():
        low, high = _range(inputs)
        scale = (high - low) / 255
        scale = scale.clamp(min=torch.finfo(scale.dtype).smallest_normal)
        rounded = _on_grid(inputs, scale, (-128 - torch.round(low / scale)).clamp(-128, 127), -128, 127)
    passed: Tensor = _Through.apply(inputs, rounded)  # type: ignore[no-untyped-call]
    return passed


class _Through(torch.autograd.Function):
    """The second tensor, with its gradient for the first."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, rounded: Tensor) -> Tensor:
        return rounded.view_as(rounded)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None


def _range(values: Tensor) -> tuple[Tensor, Tensor]:
    """Smallest and largest of the last dimension, 0 counted, in float32 at least."""
    wide = values if values.dtype == torch.float64 else values.float()
    return wide.amin(-1, keepdim=True).clamp(max=0), wide.amax(-1, keepdim=True).clamp(min=0)


def _on_grid(values: Tensor, scale: Tensor, zero: Tensor, lowest: int, highest: int) -> Tensor:
    """Round as torchao does, by a product with the inverse."""
    scale = scale.clamp(min=torch.finfo(scale.dtype).smallest_normal)
    steps = (torch.round(values * (1.0 / scale)) + zero).clamp(lowest, highest)
    return ((steps - zero) * scale).to(values.dtype)


@contextmanager
def with_rounding(
    layer: nn.Linear, bits: int = 4, group_size: int | None = 32, activations: bool = True
) -> Iterator[None]:
    """Temporarily let `layer` compute with its weight rounded, and its inputs too; the weight that learns stays as it is.

    >>> layer = nn.Linear(4, 1, bias=False)
    >>> with with_rounding(layer, group_size=4, activations=False):
    ...     outputs = layer(torch.eye(4))
    >>> torch.equal(outputs.t(), rounded_weight(layer.weight, group_size=4))
    True
    """
    forward = layer.forward

    def rounding(inputs: Tensor) -> Tensor:
        rounded = rounded_weight(layer.weight, bits, group_size)
        vars(layer)["weight"] = rounded  # found before the parameter of that name
        try:
            outputs: Tensor = forward(rounded_tokens(inputs) if activations else inputs)
        finally:
            del vars(layer)["weight"]
        return outputs

    with replaced_forward(layer, rounding):
        yield


@contextmanager
def with_merged_rounding(
    layer: Any, bits: int = 4, group_size: int | None = 32, activations: bool = True
) -> Iterator[None]:
    """Do as `with_rounding`, for a linear layer with a low-rank adapter of peft: what is rounded is the sum of both, as it will be merged."""

    def rounding(inputs: Tensor, *_: Any, **__: Any) -> Tensor:
        base = layer.get_base_layer()
        weight = base.weight
        if not (layer.disable_adapters or layer.merged):
            weight = weight + layer.get_delta_weight(ADAPTER).to(weight.dtype)
        rounded = rounded_weight(weight, bits, group_size)
        return F.linear(rounded_tokens(inputs) if activations else inputs, rounded, base.bias)

    with replaced_forward(layer, rounding):
        yield


@dataclass(frozen=True)
class QAT(Technique):
    """Round weights and inputs of linear layers in forward, as the quantised model will; what learns is not rounded.

    Evaluation computes likewise, so that what is scored is the quantised model. What is saved is what learned, for
    torchao to quantise.
    """

    weights: Literal["int4", "int8"] = "int4"
    group_size: int | None = 32
    activations: Literal["int8"] | None = "int8"
    skip: tuple[str, ...] = ()

    card: ClassVar[Card] = Card(
        name="qat",
        summary="Trains with weights and inputs of linear layers rounded, so that little is lost when they are quantised.",
        aliases=("quantization-aware training", "fake quantization"),
        family=Family.NUMERICS,
        source="Jacob et al. 2018, arXiv:1712.05877; Bengio et al. 2013, arXiv:1308.3432; the grids of torchao",
        seams=("modules",),
        stages=(Stage.COMPUTE,),
        cost="a rounded copy of each linear weight and of its inputs, and the time to make them; nothing is saved in training",
        use_when="the model will run in int4 or int8, and loses too much when it is rounded after training",
        refuses={
            Stage.QUANTISE: "qat rounds weights that learn, and these are quantised and learn nothing. Remove one.",
        },
        conflicts={
            "ia3": "it multiplies what a layer is given or gives, which no rounded weight holds. Remove one, or use lora, which is rounded with the weight."
        },
    )

    def __post_init__(self) -> None:
        self.require("weights", self.weights in BITS, "int4 or int8")
        self.require(
            "group_size", self.group_size is None or self.group_size >= 2, "at least 2, or null for rows"
        )
        self.require("activations", self.activations in ("int8", None), "int8 or null")

    @classmethod
    def example(cls) -> Self:
        return cls(group_size=2)

    def prepare(self, model: nn.Module) -> nn.Module:
        self._layers(model)
        return model

    def seams(self, context: Context) -> Seams:
        names, layers = zip(*self._layers(context.model).items(), strict=True)
        skipped, reasons = find_modules(context.model, self.skip, "qat.skip"), unsuitable(context.model)
        left = {
            name: reasons.get(
                name, f"has {layer.in_features} inputs, which group_size {self.group_size} does not divide"
            )
            for name, layer in _linear_layers(context.model).items()
            if name not in names and not matched_by(skipped, name)
        }
        if left:
            warnings.warn(unchanged_layers_warning(left, "qat"), SnugfitWarning, stacklevel=2)

        @contextmanager
        def modules(_batch: Batch) -> Iterator[None]:
            with ExitStack() as stack:
                stack.enter_context(without_fast_path())
                for layer in layers:
                    rounding = with_rounding if isinstance(layer, nn.Linear) else with_merged_rounding
                    stack.enter_context(
                        rounding(layer, BITS[self.weights], self.group_size, self.activations is not None)
                    )
                yield

        return Seams(modules=modules)

    def _layers(self, model: nn.Module) -> dict[str, Any]:
        """Return the layers to round, by name: linear ones, and those with a low-rank adapter beside.

        Raises:
            SettingError: there is none, or an adapter cannot be rounded with its weight.
        """
        skipped: Sequence[str] = find_modules(model, self.skip, "qat.skip")
        out = unsuitable(model)
        linear = {
            name: layer
            for name, layer in _linear_layers(model).items()
            if name not in out and not matched_by(skipped, name)
        }
        for layer in linear.values():
            _check_adapter(layer)
        layers = {
            name: layer for name, layer in linear.items() if layer.in_features % (self.group_size or 1) == 0
        }
        if not layers:
            if not linear:
                raise SettingError(
                    "qat",
                    f"{type(model).__name__} has no linear layer of its own to round: GPT-2's Conv1D, which nf4 and int8 take, is "
                    "none of torch's and stays as it is",
                    "Remove qat, or quantise by nf4 or int8 with adapters beside.",
                )
            inputs = sorted({layer.in_features for layer in linear.values()})
            raise SettingError(
                "qat.group_size",
                f"{self.group_size} divides the inputs of no linear layer; they have {inputs}",
                "Lower it, or write null for one group a row.",
            )
        return layers


def _linear_layers(model: nn.Module) -> dict[str, Any]:
    """Return the linear layers of a model by name, one with an adapter as a whole."""
    adapters = adapted(model)
    within = tuple(f"{name}." for name in adapters)
    plain = {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and not name.startswith(within)
    }
    with_adapter = {
        name: layer for name, layer in adapters.items() if isinstance(layer.get_base_layer(), nn.Linear)
    }
    return plain | with_adapter


def _check_adapter(layer: Any) -> None:
    """See that what an adapter adds is a part of the weight that it will be merged into.

    Raises:
        SettingError: it is not.
    """
    if isinstance(layer, nn.Linear):
        return
    if layer.use_dora.get(ADAPTER):
        raise SettingError(
            "lora.dora",
            "is true, and qat rounds the sum of weight and adapter, which DoRA divides by its length",
            "Set it to false, or remove qat.",
        )
    if not isinstance(layer.lora_dropout[ADAPTER], nn.Identity):
        raise SettingError(
            "lora.dropout",
            "drops inputs of the adapter alone, and qat rounds the sum of weight and adapter",
            "Set it to 0, or remove qat.",
        )
