"""Quantising the linear layers and the experts of a model, as it is loaded or in place, and making them whole again."""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from snugfit.core.layers import (
    base_of,
    is_conv1d,
    last_linear,
    output_layer,
    replace_module,
    stock_heads,
    unchanged_layers_warning,
    unsuitable,
)
from snugfit.errors import MissingExtra, SettingError, SnugfitWarning
from snugfit.kit.mapped_tensors import set_aside_
from snugfit.kit.module_patterns import find_modules, matched_by
from snugfit.kit.placement import host_copy
from snugfit.kit.quantized.experts import QuantisedExperts, expert_weights
from snugfit.kit.quantized.frozen_linear import QuantisedLinear, WeightFormat, in_stock_form
from snugfit.system.messages import silence_bitsandbytes

_QUANTISED = (QuantisedLinear, QuantisedExperts)


def quantise_(model: nn.Module, format: WeightFormat, skip: Sequence[str], technique: str) -> nn.Module:
    """Quantise the linear layers and experts of `model` in place, one after the other; layers that were loaded so are taken over.

    Raises:
        SettingError: a pattern of `skip` matches nothing, no linear layer or expert is there, or the model has adapters.
    """
    if any(base_of(module) is not module for module in model.modules()):
        raise SettingError(
            technique,
            "the model has adapters already. Quantise it first",
            f"Give {technique} the model without them.",
        )
    dtype = next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)
    for name, module in list(model.named_modules()):
        tensors = format.loaded(module, name)
        if tensors is not None:
            assert isinstance(module, nn.Linear)
            shape = (module.out_features, module.in_features)
            of_conv1d = getattr(module, "source_cls", nn.Linear).__name__ == "Conv1D"
            layer = QuantisedLinear(format, tensors, shape, dtype, module.bias, of_conv1d=of_conv1d)
            if layer.bias is not None:
                layer.bias.requires_grad_(True)
            replace_module(model, name, layer.train(module.training))
    _leave_bitsandbytes(model)
    _warn_of_whole_layers(model, skip, technique)
    for name in quantisable(model, skip, technique):
        replace_module(model, name, _quantised(model.get_submodule(name), format))
    for module, name in _experts(model, skip, technique):
        _quantise_experts_(module, name, format)
    if not any(isinstance(module, _QUANTISED) for module in model.modules()):
        raise SettingError(
            technique,
            "the model has no linear layer to quantise beside its head, or skip names them all",
            f"Remove {technique}.",
        )
    return model


def quantisable(model: nn.Module, skip: Sequence[str], technique: str) -> list[str]:
    """Return names of the plain linear layers, and of transformers' Conv1D, whose weight is theirs alone.

    Left whole are what `skip` names, a language model's output, a stock classifier's head, and the last linear layer.

    Raises:
        SettingError: a pattern of `skip` matches nothing.
    """
    left = _left_whole(model, skip, technique)
    reasons = unsuitable(model)
    whole = (output_layer(model), last_linear(model))
    return [
        name
        for name in _linear(model)
        if name not in reasons and not matched_by(left, name)
        if model.get_submodule(name) not in whole
    ]


def _warn_of_whole_layers(model: nn.Module, skip: Sequence[str], technique: str) -> None:
    """Warn of linear layers that stay whole though nobody says so: those whose weight is more than theirs alone."""
    left = _left_whole(model, skip, technique)
    heads = (output_layer(model), last_linear(model))
    reasons = {
        name: reason
        for name, reason in unsuitable(model).items()
        if _is_linear(module := model.get_submodule(name)) and not matched_by(left, name)
        if module not in heads
    }
    if reasons:
        warnings.warn(unchanged_layers_warning(reasons, technique), SnugfitWarning, stacklevel=3)


def _is_linear(module: nn.Module) -> bool:
    return isinstance(module, nn.Linear) or is_conv1d(module)


def _left_whole(model: nn.Module, skip: Sequence[str], technique: str) -> list[str]:
    """Return names of the modules that stay whole with all that is in them."""
    return [*find_modules(model, skip, f"{technique}.skip"), *stock_heads(model)]


def _experts(model: nn.Module, skip: Sequence[str], technique: str) -> list[tuple[nn.Module, str]]:
    """Modules of experts, each with the name of a parameter that is theirs alone."""
    left = _left_whole(model, skip, technique)
    reasons = unsuitable(model)
    return [
        (module, parameter)
        for name, module in model.named_modules()
        if name not in reasons and not matched_by(left, name)
        for parameter in expert_weights(module)
    ]


def _linear(model: nn.Module) -> list[str]:
    return [
        name
        for name, module in model.named_modules()
        if name and (type(module) is nn.Linear or is_conv1d(module))
    ]


def _quantised(layer: nn.Module, format: WeightFormat) -> QuantisedLinear:
    weight, bias = layer.weight, layer.bias
    assert isinstance(weight, Tensor) and (bias is None or isinstance(bias, nn.Parameter))
    whole = weight.detach().T if is_conv1d(layer) else weight.detach()
    tensors = format.pack(whole)
    return QuantisedLinear(
        format, tensors, (whole.shape[0], whole.shape[1]), whole.dtype, bias, of_conv1d=is_conv1d(layer)
    ).train(layer.training)


def quantise_read_(
    model: nn.Module, name: str, format: WeightFormat, skip: Sequence[str], technique: str
) -> None:
    """Quantise the weight `name`, which was just read, where it holds experts: bitsandbytes leaves them whole."""
    parent, _, own = name.rpartition(".")
    module = model.get_submodule(parent)
    weight = expert_weights(module).get(own)
    if (
        weight is not None
        and not weight.is_meta
        and not matched_by(_left_whole(model, skip, technique), parent)
    ):
        _quantise_experts_(module, own, format)


def _quantise_experts_(module: nn.Module, name: str, format: WeightFormat) -> None:
    weight = module._parameters.pop(name)
    assert weight is not None
    module.add_module(name, QuantisedExperts.of(weight, format, transposed=bool(module.is_transposed)))


def _leave_bitsandbytes(model: nn.Module) -> None:
    """Have transformers take the model for what it is now: plain, but for some layers."""
    for name in (
        "hf_quantizer",
        "hf_device_map",
        "is_quantized",
        "quantization_method",
        "is_loaded_in_4bit",
        "is_loaded_in_8bit",
    ):
        model.__dict__.pop(name, None)
    config: Any = getattr(model, "config", None)
    if hasattr(config, "quantization_config"):
        del config.quantization_config


def loading(model: nn.Module, skip: Sequence[str], technique: str, **config: Any) -> dict[str, Any]:
    """Return arguments for `from_pretrained` by which bitsandbytes quantises the same layers one by one, on the host.

    Args:
        model: of the same architecture; may be on the meta device.
        config: of transformers' `BitsAndBytesConfig`.
    Raises:
        MissingExtra: bitsandbytes or accelerate is not installed.
    """
    bitsandbytes_ops()
    if importlib.util.find_spec("accelerate") is None:
        raise MissingExtra("accelerate", "quantization")
    from transformers import BitsAndBytesConfig

    wanted = quantisable(model, skip, technique)
    others = [name for name in _linear(model) if name not in wanted]
    # one expression: a name in the list would stand for each that ends with it; runs are compared by it when they are resumed
    left = [f"(?:{'|'.join(name.replace('.', '[.]') for name in others)})$"] if others else []
    return {
        "quantization_config": BitsAndBytesConfig(**config, llm_int8_skip_modules=left),
        "device_map": {"": "cpu"},
    }


def bitsandbytes_ops() -> Any:
    """Return the operators of bitsandbytes, which run on tensors without numbers too.

    Raises:
        MissingExtra: it is not installed.
    """
    if importlib.util.find_spec("bitsandbytes") is None:
        raise MissingExtra("bitsandbytes", "quantization")
    silence_bitsandbytes()
    import bitsandbytes  # noqa: F401 (registers them)

    return torch.ops.bitsandbytes


def weight_sizes(model: nn.Module) -> dict[nn.Parameter, int]:
    """Return how many numbers of a weight each parameter that a format keeps in its place stands for.

    The first of a layer stands for all of them, the others for none.
    """
    sizes: dict[nn.Parameter, int] = {}
    for module in model.modules():
        if isinstance(module, _QUANTISED):
            size = module.numbers
            parameters = [parameter for name, parameter in module.named_parameters() if name != "bias"]
            sizes.update((parameter, 0 if place else size) for place, parameter in enumerate(parameters))
    return sizes


def quantised_parameters(model: nn.Module) -> Iterator[nn.Parameter]:
    """Yield what is kept of a model's quantised weights, with their biases."""
    for module in model.modules():
        if isinstance(module, _QUANTISED):
            yield from module.parameters()


def dequantise_(model: nn.Module) -> nn.Module:
    """Make the quantised weights of `model` whole on the host and in place, one after the other, in the type they had."""
    for name, module in list(model.named_modules()):
        if not isinstance(module, _QUANTISED):
            continue
        copied = host_copy(module)
        if isinstance(copied, QuantisedLinear):
            replace_module(model, name, set_aside_(in_stock_form(copied.whole())))
        elif isinstance(copied, QuantisedExperts):
            whole = nn.ParameterDict({"weight": copied.whole(dtype=copied.own_dtype).contiguous()})
            parent, _, last = name.rpartition(".")
            delattr(model.get_submodule(parent), last)
            model.get_submodule(parent).register_parameter(last, set_aside_(whole)._parameters["weight"])
    return model


def dequantised(model: nn.Module) -> nn.Module:
    """Return a copy of the model with whole weights, as its own library would load it; the model itself where nothing is quantised."""
    if not any(isinstance(module, _QUANTISED) for module in model.modules()):
        return model
    return dequantise_(host_copy(model, quantised_parameters(model))).requires_grad_(True)
