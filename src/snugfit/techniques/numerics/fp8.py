"""fp8 mixed precision: the products of large linear layers in 8-bit floating point, by torchao; the rest in bf16."""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, ClassVar, NamedTuple, Self

import torch
from torch import Tensor, nn
from torch.func import functional_call

from snugfit.core.batch import Batch
from snugfit.core.layers import base_of, is_conv1d, last_linear, layers, output_layer, stock_heads
from snugfit.core.technique import Card, Context, Family, Fidelity, Seams, Stage, Technique
from snugfit.errors import MissingExtra, SettingError, SnugfitWarning
from snugfit.kit.module_patterns import find_modules
from snugfit.kit.patched_forward import replaced_forward, without_fast_path
from snugfit.kit.precision.bf16_rounding import alternative, device_name, has_bf16
from snugfit.kit.precision.product_rounding import lacks_capability
from snugfit.system.messages import importing_torchao

CAPABILITY = (8, 9)
"""Of the first GPUs that multiply in fp8: Ada and Hopper."""
MULTIPLE = 16
"""Their units take inputs and outputs by so many."""
RECIPE = "rowwise_with_gw_hp"
"""Of torchao: one scale a token and an output, and the gradient of the weight in high precision."""


def fp8_linear(inputs: Tensor, weight: Tensor, bias: Tensor | None = None, emulate: bool = False) -> Tensor:
    """Return `inputs @ weight.T + bias`, multiplied in fp8, and so is the gradient of the inputs in backward.

    Each token, and each output's row of the weight, is scaled by a power of two of its own, so that its largest number fits
    into e4m3 (4 bits of exponent, 3 of fraction), and rounded; likewise each token of the gradient, then with one scale for the
    whole weight. The gradient of the weight is a product of what was not rounded. No scale depends on other tokens.

    Args:
        inputs: shape (..., inputs); under autocast taken in its type.
        weight: shape (outputs, inputs); on a device both must be multiples of 16.
        emulate: round likewise, and multiply in float32: on any device, slower.
    Returns:
        In the type of the inputs, or autocast's.
    Raises:
        MissingExtra: torchao is not installed.
    Source: Micikevicius et al. 2022, arXiv:2209.05433; torchao's recipe `rowwise_with_gw_hp`.

    >>> weight = torch.tensor([[0.1, 0.3], [1.0, 2.0]])
    >>> fp8_linear(torch.eye(2), weight, emulate=True)
    tensor([[0.1016, 1.0000],
            [0.3125, 2.0000]])
    """
    return _computed(_product(emulate), inputs, weight, bias)


def _computed(product: nn.Module, inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    if torch.is_inference_mode_enabled():  # where torchao 0.18 cannot reshape what it has rounded
        with torch.inference_mode(False), torch.no_grad():
            return _computed(product, inputs, weight, bias)
    kind = inputs.device.type
    if torch.is_autocast_enabled(kind):  # torchao asks for that of CUDA, whatever the device
        inputs = inputs.to(torch.get_autocast_dtype(kind))
    # before they are rounded: torchao cannot copy what it has rounded, where it does not lie in order
    tokens = inputs.reshape(-1, inputs.shape[-1])
    outputs: Tensor = functional_call(product, {"weight": weight}, (tokens,))
    if bias is not None:
        outputs = outputs + bias.to(outputs.dtype)
    return outputs.view(*inputs.shape[:-1], weight.shape[0])


@cache
def _product(emulate: bool) -> nn.Module:
    """Return a layer of torchao without a weight; it computes with the one that it is lent."""
    if importlib.util.find_spec("torchao") is None:
        raise MissingExtra("torchao", "quantization")
    with importing_torchao():
        from torchao.float8 import Float8LinearConfig, convert_to_float8_training

        config = replace(Float8LinearConfig.from_recipe_name(RECIPE), emulate=emulate)
        layer = nn.Linear(MULTIPLE, MULTIPLE, bias=False, device="meta")
        made: nn.Module = convert_to_float8_training(layer, config=config)
    return made


@contextmanager
def in_fp8(layer: nn.Module, emulate: bool = False) -> Iterator[None]:
    """Temporarily let `layer`, an `nn.Linear` or transformers' Conv1D, compute by `fp8_linear`; it keeps its class and its weight.

    >>> layer, inputs = nn.Linear(2, 2), torch.ones(1, 2)
    >>> with in_fp8(layer, emulate=True):
    ...     outputs = layer(inputs)
    >>> torch.equal(outputs, fp8_linear(inputs, layer.weight, layer.bias, emulate=True))
    True
    """
    across = is_conv1d(layer)
    product = _product(emulate)  # here: what is compiled would not look through a cache

    def forward(inputs: Tensor) -> Tensor:
        weight: Any = layer.weight
        bias: Any = layer.bias
        return _computed(product, inputs, weight.T if across else weight, bias)

    with replaced_forward(layer, forward):
        yield


class LayerChoice(NamedTuple):
    """Linear layers by name: those that compute in fp8, and for others why they do not."""

    fp8: Mapping[str, nn.Module]
    left: Mapping[str, str]


def choose_layers(
    model: nn.Module, smallest: int = 1024, skip: Sequence[str] = (), multiple: int = MULTIPLE
) -> LayerChoice:
    """Choose the linear layers whose products gain by fp8; of an adapted layer it is the base, never the adapter.

    Args:
        smallest: a layer with fewer inputs or outputs is left.
        skip: patterns of modules' names that are left, with all that is in them.
        multiple: layers whose inputs or outputs are none of this are left.
    Raises:
        SettingError: a pattern matches nothing.

    >>> choice = choose_layers(nn.Sequential(nn.Linear(64, 32), nn.Linear(32, 32), nn.Linear(32, 10)), smallest=64)
    >>> dict(choice.fp8), choice.left
    ({}, {'0': 'has 32 outputs', '1': 'has 32 inputs', '2': 'makes the logits'})
    """
    named = {module: name for name, module in model.named_modules()}
    skipped = find_modules(model, skip, "fp8.skip")
    inside = tuple(f"{name}." for name in skipped)
    heads = tuple(f"{name}." for name in stock_heads(model))
    last = [base_of(layer) for layer in (output_layer(model), last_linear(model)) if layer is not None]
    fp8_layers: dict[str, nn.Module] = {}
    left: dict[str, str] = {}
    for layer in map(base_of, layers(model)):
        if not isinstance(layer, nn.Linear) and not is_conv1d(layer):
            continue
        name = named[layer]
        if name in skipped or name.startswith(inside):
            left[name] = "is named by fp8.skip"
        elif any(layer is each for each in last) or f"{name}.".startswith(heads):
            left[name] = "makes the logits"
        elif reason := _too_small_or_odd(layer, smallest, multiple):
            left[name] = reason
        else:
            fp8_layers[name] = layer
    return LayerChoice(fp8_layers, left)


def _too_small_or_odd(layer: nn.Module, smallest: int, multiple: int) -> str | None:
    weight = layer.weight
    assert isinstance(weight, Tensor)
    if type(layer) is not nn.Linear and not is_conv1d(layer):
        return f"is a {type(layer).__name__}, which torch or its library computes in its own way"
    outputs, inputs = weight.T.shape if is_conv1d(layer) else weight.shape
    for size, what in ((inputs, "inputs"), (outputs, "outputs")):
        if size < smallest:
            return f"has {size} {what}"
        if size % multiple:
            return f"has {size} {what}, no multiple of {multiple}"
    return None


@dataclass(frozen=True)
class FP8(Technique):
    """Multiply in fp8 in the large linear layers, and run the rest of forward and loss under bf16 autocast.

    Weights, their gradients and the optimizer stay in fp32.
    """

    smallest: int = 1024
    skip: tuple[str, ...] = ()
    emulate: bool = False

    card: ClassVar[Card] = Card(
        name="fp8",
        summary="Multiplies in 8-bit floating point in large linear layers, and in bf16 elsewhere; weights stay in fp32.",
        aliases=("float8 training", "Transformer Engine"),
        family=Family.NUMERICS,
        source="Micikevicius et al. 2022, arXiv:2209.05433; torchao.float8, recipe rowwise_with_gw_hp",
        seams=("forward", "modules"),
        stages=(Stage.COMPUTE,),
        fidelity=Fidelity.COMPACT,
        needs="float8",
        precision=True,
        refuses={
            Stage.QUANTISE: "fp8 multiplies by weights that are whole, and those that are quantised are made whole in bf16 for their "
            "own product. Remove one.",
        },
        conflicts={
            "qat": "both say how a linear layer computes: with the grid it will be run in, or in fp8. Remove one, or use bf16 with qat.",
            "tiled_linear": "a layer that computes in tiles does so in bf16, and the plan would change the result. Remove one.",
        },
        not_on={
            "mps": "torchao computes its scales in float64, which mps does not have. Use plan.numerics: fp32."
        },
        cost="3 bits of each fraction in two of the three products of a layer; scales are computed anew each time",
        use_when="full training of large layers on Ada, Hopper or newer, with compile",
    )

    def __post_init__(self) -> None:
        self.require_positive("smallest")

    @classmethod
    def example(cls) -> Self:
        return cls(smallest=2, emulate=True)

    def seams(self, context: Context) -> Seams:
        device = context.device
        best = "bf16" if has_bf16(device) else alternative(device)
        reason = lacks_capability(device, CAPABILITY, "fp8")
        if not self.emulate and reason is not None:
            raise SettingError(
                "plan.numerics",
                f"fp8 is not to be had, as {reason}",
                f"Use plan.numerics: {best}, or to see what fp8 does to a model, slowly: numerics: {{fp8: {{emulate: "
                "true}}.",
            )
        if best != "bf16":
            raise SettingError(
                "plan.numerics",
                f"fp8 computes the rest in bf16, which {device_name(device)} has not",
                f"Use plan.numerics: {best}.",
            )
        choice = choose_layers(context.model, self.smallest, self.skip, 1 if self.emulate else MULTIPLE)
        if not choice.fp8:
            reasons = "; ".join(f"'{name}' {why}" for name, why in list(choice.left.items())[:3])
            raise SettingError(
                "plan.numerics",
                f"fp8 finds no linear layer with {self.smallest} inputs and outputs or more "
                f"({reasons or 'there is none'})",
                "Use plan.numerics: bf16, or lower fp8.smallest.",
            )
        small = {name: why for name, why in choice.left.items() if why not in _INTENDED}
        if small:
            name, why = next(iter(small.items()))
            warnings.warn(
                f"fp8: {len(small)} of {len(small) + len(choice.fp8)} linear layers stay in bf16, such as '{name}', which {why}.",
                SnugfitWarning,
                stacklevel=2,
            )

        def forward(_batch: Batch) -> AbstractContextManager[Any]:
            return torch.autocast(device.type, dtype=torch.bfloat16)

        @contextmanager
        def modules(_batch: Batch) -> Iterator[None]:
            with ExitStack() as stack:
                stack.enter_context(without_fast_path())
                for layer in choice.fp8.values():
                    stack.enter_context(in_fp8(layer, self.emulate))
                yield

        return Seams(forward=forward, modules=modules)


_INTENDED = ("makes the logits", "is named by fp8.skip")
"""Reasons that are nobody's surprise."""
