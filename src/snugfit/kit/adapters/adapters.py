"""Adapters of peft in any module: put in, merged, taken out.

peft replaces a layer by one that holds it as `base_layer`, with the adapter beside it. Everything here works on a model
with one set of adapters, whoever has put it in. peft is imported when it is used.
"""

from __future__ import annotations

import importlib.util
import re
import sys
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from snugfit.core.layers import move_hooks, replace_module
from snugfit.core.scalar_reads import is_fake
from snugfit.errors import MissingExtra, SettingError, SnugfitWarning
from snugfit.kit.mapped_tensors import set_aside_
from snugfit.kit.placement import host_copy
from snugfit.kit.quantized.frozen_linear import QuantisedLinear, in_stock_form, weights_unread
from snugfit.kit.quantized.quantize import dequantise_, quantised_parameters
from snugfit.system.messages import silence_bitsandbytes

ADAPTER = "default"


def require_peft() -> None:
    """Check that peft is installed.

    Raises:
        MissingExtra: peft is not installed.
    """
    if importlib.util.find_spec("peft") is None:
        raise MissingExtra("peft", "adapters")


def warn_without_adapters(model: nn.Module, technique: str) -> None:
    """Warn where nothing is trained in place of the linear layers that `technique` froze."""
    if not adapted(model):
        trained = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
        warnings.warn(
            f"{technique}: what it quantised is frozen and has no adapters: {trained:,} parameters train, those of layers that "
            "stay whole (norms, embeddings, biases, the head). Add lora, or another technique with adapters.",
            SnugfitWarning,
            stacklevel=3,
        )


def inject(model: nn.Module, config: Any, targets: Sequence[str], head: Sequence[str]) -> nn.Module:
    """Put peft's adapters beside `targets` and freeze all the rest but `head`; the model stays what it is otherwise.

    Args:
        config: of peft, without `target_modules` and `modules_to_save`.
    Raises:
        SettingError: peft cannot do it.
    """
    # by the whole name: in a list each would stand for every name that ends with it
    config.target_modules = regex_of(targets)
    put_in(model, config)
    config.modules_to_save = list(head) or None
    for name in head:
        model.get_submodule(name).requires_grad_(True)
    return model


def regex_of(names: Sequence[str]) -> str:
    r"""Return an expression that these names match and no other.

    >>> regex_of(["a.b", "c"])
    'a\\.b|c'
    """
    return "|".join(re.escape(name) for name in names)


def adapted(model: nn.Module) -> dict[str, Any]:
    """Return the adapted layers of a model by name."""
    if "peft" not in sys.modules:  # whoever puts some in has loaded it, and it takes seconds
        return {}
    from peft.tuners.tuners_utils import BaseTunerLayer

    return {name: module for name, module in model.named_modules() if isinstance(module, BaseTunerLayer)}


@contextmanager
def adapters_off(model: nn.Module) -> Iterator[None]:
    """Temporarily compute as without adapters; which weights train stays, unlike with peft's own switch."""
    layers = list(adapted(model).values())
    before = [layer._disable_adapters for layer in layers]
    for layer in layers:
        layer._disable_adapters = True
    try:
        yield
    finally:
        for layer, off in zip(layers, before, strict=True):
            layer._disable_adapters = off


def adapter_parameters(model: nn.Module) -> set[nn.Parameter]:
    """Return the parameters of a model's adapters."""
    own = {
        parameter
        for layer in adapted(model).values()
        for name in (*layer.adapter_layer_names, *layer.other_param_names)
        for parameter in _parameters_in(getattr(layer, name, None))
    }
    return own


def merged(model: nn.Module) -> nn.Module:
    """Return a copy of the model with the adapters merged into its weights: its own class and parameter names, no adapters.

    Quantised weights are made whole before, in the type they had, and stay so; where they lie `kit.mapped_tensors` says.
    One layer after the other is copied and made whole, so that no second base is there meanwhile.

    Raises:
        SettingError: there are none.
    """
    later = {*_of_bases_alone(model), *quantised_parameters(model)}
    plain = host_copy(model, later)
    for name, layer in _layers(plain).items():  # one after the other, as each is copied and made whole
        base = layer.get_base_layer()
        if not later.isdisjoint(base.parameters()):
            base = host_copy(base)
            layer.base_layer = base.whole() if isinstance(base, QuantisedLinear) else base
        if not layer.merged:
            _merge({name: layer})
        if _is_token_rows(layer):  # of a weight that is there and may be shared, in a wrapper of peft
            replace_module(plain, name.rpartition(".")[0], layer.get_base_layer())
        else:
            replace_module(plain, name, set_aside_(in_stock_form(layer.get_base_layer())))
    dequantise_(plain)
    plain.__dict__.pop("peft_config", None)
    return plain.requires_grad_(True)


def _of_bases_alone(model: nn.Module) -> set[nn.Parameter]:
    """Return the parameters of adapted layers that nothing else of the model has."""
    bases = [layer.get_base_layer() for layer in _layers(model).values()]
    owners = Counter(
        parameter for module in model.modules() for parameter in module.parameters(recurse=False)
    )
    return {parameter for base in bases for parameter in base.parameters() if owners[parameter] == 1}


def merge_(model: nn.Module) -> dict[str, Tensor]:
    """Merge the adapters into the weights in place, so that they cost nothing to run; returns the weights as they were.

    Raises:
        SettingError: there are no adapters, they are merged already, or a weight beside them is quantised.
    """
    layers = _layers(model)
    if any(layer.merged for layer in layers.values()):
        raise SettingError("model", "its adapters are merged already", "Call unmerge_ before.")
    for name, layer in layers.items():
        if isinstance(layer.get_base_layer(), QuantisedLinear):
            raise SettingError(
                "model",
                f"the weight of '{name}' is quantised, and merged in place it would be rounded again",
                "Take merged(model), a copy with whole weights.",
            )
    originals = {name: tensor.detach().clone() for name, tensor in _base_weights(layers)}
    _merge(layers)
    return originals


def unmerge_(model: nn.Module, originals: Mapping[str, Tensor]) -> None:
    """Undo `merge_`, bit for bit: the weights come from the copies that it returned.

    Raises:
        SettingError: there are no adapters, or they are not merged.
    """
    layers = _layers(model)
    if not all(layer.merged for layer in layers.values()):
        raise SettingError("model", "its adapters are not merged", "Call merge_ before.")
    with torch.no_grad():
        for name, tensor in _base_weights(layers):
            tensor.copy_(originals[name])
    for layer in layers.values():
        layer.merged_adapters.clear()


def put_in(model: nn.Module, config: Any) -> None:
    """Inject by a configuration of peft that is whole already; torch's short cuts around the layers are closed.

    Raises:
        SettingError: peft cannot do it.
    """
    from peft import inject_adapter_in_model
    from peft.tuners.tuners_utils import cast_adapter_dtype

    silence_bitsandbytes()  # which peft imports where it is installed
    # DoRA begins with the norms of the weights; all else needs their shapes
    reading = nullcontext() if getattr(config, "use_dora", False) else weights_unread()
    with warnings.catch_warnings(), _standing_still(model), reading:
        # it warns of ties, which are refused before, and of Conv1D, whose layout it finds
        warnings.simplefilter("ignore")
        try:
            inject_adapter_in_model(config, model, adapter_name=ADAPTER)
        except (NotImplementedError, ValueError) as error:
            raise SettingError(
                "model", f"peft cannot adapt it: {error}", "Change the adapter's settings, or the model."
            ) from error
    cast_adapter_dtype(model, ADAPTER)  # small updates would be lost in half precision
    for layer in adapted(
        model
    ).values():  # hooks see what the layer gives with its adapter, as they do once it is merged
        move_hooks(layer.get_base_layer(), layer)
    for module in model.modules():
        # in eval mode these read the weights of their layers instead of calling them, and would pass over the adapters
        if isinstance(module, nn.TransformerEncoderLayer):
            for layer in adapted(module).values():
                layer.register_forward_hook(_called)  # any hook makes torch call the layers
        elif isinstance(module, nn.TransformerEncoder):
            module.use_nested_tensor = False


@contextmanager
def _standing_still(model: nn.Module) -> Iterator[None]:
    """Temporarily let a model not be moved: torch 2.13 cannot move a module of fake tensors, not even to where it is, and peft always does.

    Adapters are made on the device, where those of blocks that are streamed from the host come to as well.
    """
    one = next(model.parameters())
    if not is_fake(one):
        yield
        return
    from unittest import mock

    device = next((each.device for each in model.parameters() if each.device.type != "cpu"), one.device)
    with torch.device(device), mock.patch.object(nn.Module, "to", lambda module, *_, **__: module):
        yield


def _called(module: nn.Module, arguments: Any, output: Any) -> None:
    """Change nothing."""


def _is_token_rows(layer: nn.Module) -> bool:
    """Return whether an adapted layer has rows of tokens that train in place of its own."""
    from peft.tuners.trainable_tokens import TrainableTokensLayer

    return isinstance(layer, TrainableTokensLayer)


def _layers(model: nn.Module) -> dict[str, Any]:
    layers = adapted(model)
    if not layers:
        raise SettingError("model", "has no adapters", "Add them, for example by lora.")
    return layers


def _merge(layers: Mapping[str, Any]) -> None:
    with torch.no_grad():
        for layer in layers.values():
            layer.merge()


def _base_weights(layers: Mapping[str, Any]) -> Iterator[tuple[str, Tensor]]:
    for name, layer in layers.items():
        for key, parameter in layer.get_base_layer().named_parameters():
            yield f"{name}.{key}", parameter


def _parameters_in(value: Any) -> Iterator[nn.Parameter]:
    if isinstance(value, nn.Parameter):
        yield value
    elif isinstance(value, (nn.ModuleDict, nn.ParameterDict)):
        yield from value.parameters()
