"""Llamas with drawn weights in nf4, made layer by layer, so that no whole model ever stands in 16 bit: ours and bitsandbytes'."""

from __future__ import annotations

from typing import Any

import torch
from checks import Settings
from material import llama_config
from torch import Tensor, nn


def dtype_of(device: str) -> torch.dtype:
    return torch.bfloat16 if device == "cuda" else torch.float32


def nf4_llama(shape: str, tokens: int, device: str, layers_on: str) -> nn.Module:
    """Return the model, frozen: linear layers of the blocks in nf4 on `layers_on`, the rest in 16 bit on the device."""
    from transformers import LlamaForCausalLM

    from snugfit.core.layers import replace_module
    from snugfit.kit.quantized.frozen_linear import QuantisedLinear
    from snugfit.kit.quantized.quantize import quantisable
    from snugfit.techniques.numerics.nf4 import NF4Format

    dtype = dtype_of(device)
    with torch.device("meta"):
        model: nn.Module = LlamaForCausalLM(llama_config(shape, tokens)).to(dtype)
    torch.manual_seed(0)
    for name in quantisable(model, (), "nf4"):
        layer: Any = model.get_submodule(name)
        size = (layer.out_features, layer.in_features)
        packed = {each: tensor.to(layers_on) for each, tensor in drawn_nf4(*size, device).items()}
        replace_module(model, name, QuantisedLinear(NF4Format(), packed, size, dtype, None))
    draw_rest_(model, shape, tokens, device)
    return model.requires_grad_(False)


def draw_rest_(model: nn.Module, shape: str, tokens: int, device: str) -> None:
    """Draw what is on the meta device yet, and make its buffers."""
    dtype = dtype_of(device)
    for module in model.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            if parameter.device.type == "meta":
                drawn = torch.empty(parameter.shape, dtype=dtype, device=device)
                drawn = drawn.fill_(1.0) if parameter.ndim == 1 else drawn.normal_(std=0.02)
                setattr(module, name, nn.Parameter(drawn, requires_grad=False))
        for name, buffer in list(module.named_buffers(recurse=False)):
            if buffer.device.type == "meta":
                made: Any = type(module)
                rebuilt = made(config=llama_config(shape, tokens)).to(device)
                module.register_buffer(name, getattr(rebuilt, name), persistent=False)


def drawn_nf4(outputs: int, inputs: int, device: str) -> dict[str, Tensor]:
    """Return what the format keeps of a weight, drawn: scales around 0.05, so that weights are of the usual size."""
    size = outputs * inputs
    return {
        "packed": torch.randint(0, 256, (size // 2, 1), dtype=torch.uint8, device=device),
        "absmax": torch.randint(0, 256, (size // 64,), dtype=torch.uint8, device=device),
        "nested_absmax": torch.full((-(-size // 64 // 256),), 0.01, device=device),
        "mean": torch.tensor(0.05, device=device),
    }


def bitsandbytes_llama(shape: str, tokens: int, device: str) -> nn.Module:
    """Return the model as `from_pretrained` with `load_in_4bit` makes it, without the file."""
    import bitsandbytes as bnb
    from transformers import LlamaForCausalLM

    from snugfit.core.layers import replace_module
    from snugfit.kit.quantized.quantize import quantisable

    dtype = dtype_of(device)
    with torch.device("meta"):
        model: Any = LlamaForCausalLM(llama_config(shape, tokens)).to(dtype)
    for name in quantisable(model, (), "nf4"):
        old: Any = model.get_submodule(name)
        weight = torch.empty(old.out_features, old.in_features, dtype=dtype, device=device).normal_(std=0.02)
        made = bnb.nn.Linear4bit(
            old.in_features,
            old.out_features,
            bias=False,
            compute_dtype=dtype,
            quant_type="nf4",
            device="meta",
        )
        made.weight = bnb.nn.Params4bit(
            weight, requires_grad=False, compress_statistics=True, quant_type="nf4"
        )
        replace_module(model, name, made.to(device))
    draw_rest_(model, shape, tokens, device)
    model.is_loaded_in_4bit = True
    return model


def lora_step(
    settings: Settings, model: nn.Module, rows: int, tokens: int, micro_batch: int, *more: Any
) -> Any:
    """Return a step with adapters of rank 16 on all linear layers, recomputation and a chunked loss."""
    from snugfit import Step
    from snugfit.techniques import find

    return Step(
        model,
        find("adamw")(learning_rate=1e-4),
        "causal_lm",
        [
            find("lora")(rank=16, alpha=32.0),
            find("recompute")(),
            find("chunked_loss")(),
            find("clip_norm")(max_norm=0.3),
            *([find("bf16")()] if settings.cuda else []),
            *more,
        ],
        micro_batch=micro_batch,
        nominal=float(rows * tokens),
        device=settings.device,
    )
