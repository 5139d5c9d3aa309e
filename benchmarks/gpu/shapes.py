"""Llamas with random weights in nf4, made layer by layer so that no whole model ever stands in 16 bit."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

SHAPES: dict[str, dict[str, int]] = {
    "7b": {"layers": 32, "width": 4096, "inner": 11008, "heads": 32, "key_heads": 32, "vocabulary": 32000},
    "8b": {"layers": 32, "width": 4096, "inner": 14336, "heads": 32, "key_heads": 8, "vocabulary": 128256},
    "70b": {"layers": 80, "width": 8192, "inner": 28672, "heads": 64, "key_heads": 8, "vocabulary": 128256},
    "toy": {"layers": 4, "width": 64, "inner": 128, "heads": 4, "key_heads": 2, "vocabulary": 128},
}
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
DTYPE = torch.bfloat16 if DEVICE.type == "cuda" else torch.float32
GIB = 2**30


def config_of(shape: str, tokens: int) -> Any:
    from transformers import LlamaConfig

    given = SHAPES[shape]
    return LlamaConfig(
        vocab_size=given["vocabulary"],
        hidden_size=given["width"],
        intermediate_size=given["inner"],
        num_hidden_layers=given["layers"],
        num_attention_heads=given["heads"],
        num_key_value_heads=given["key_heads"],
        max_position_embeddings=tokens,
        attn_implementation="sdpa",
    )


def llama(shape: str, tokens: int, layers_on: torch.device = DEVICE) -> nn.Module:
    """The model, frozen: linear layers of the blocks in nf4 on `layers_on`, the rest in 16 bit on the device."""
    from transformers import LlamaForCausalLM

    from snugfit.core.layers import replace_module
    from snugfit.core.quantised import QuantisedLinear
    from snugfit.core.quantising import quantisable
    from snugfit.techniques.numerics.nf4 import NF4Format

    with torch.device("meta"):
        model: nn.Module = LlamaForCausalLM(config_of(shape, tokens)).to(DTYPE)
    format = NF4Format()
    torch.manual_seed(0)
    for name in quantisable(model, (), "nf4"):
        layer = model.get_submodule(name)
        size = (layer.out_features, layer.in_features)
        made = QuantisedLinear(format, random_nf4(*size, layers_on), size, DTYPE, None)
        replace_module(model, name, made)
    for module in model.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            if parameter.device.type == "meta":
                drawn = torch.empty(parameter.shape, dtype=DTYPE, device=DEVICE)
                drawn = drawn.fill_(1.0) if parameter.ndim == 1 else drawn.normal_(std=0.02)
                setattr(module, name, nn.Parameter(drawn, requires_grad=False))
        for name, buffer in list(module.named_buffers(recurse=False)):
            if buffer.device.type == "meta":
                rebuilt = type(module)(config=config_of(shape, tokens)).to(DEVICE)
                module.register_buffer(name, getattr(rebuilt, name), persistent=False)
    return model.requires_grad_(False)


def random_nf4(outputs: int, inputs: int, device: torch.device) -> dict[str, Tensor]:
    """What the format keeps of a weight, drawn: scales around 0.05, so that weights are of the usual size."""
    size = outputs * inputs
    draw = {"dtype": torch.uint8, "device": DEVICE}
    kept = {
        "packed": torch.randint(0, 256, (size // 2, 1), **draw),  # type: ignore[call-overload]
        "absmax": torch.randint(0, 256, (size // 64,), **draw),  # type: ignore[call-overload]
        "nested_absmax": torch.full((-(-size // 64 // 256),), 0.01, device=DEVICE),
        "mean": torch.tensor(0.05, device=DEVICE),
    }
    return {name: tensor.to(device) for name, tensor in kept.items()}


def window(shape: str, rows: int, tokens: int, seed: int = 0) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, SHAPES[shape]["vocabulary"], (rows, tokens), generator=generator)
    return {"input_ids": ids, "labels": ids}


def cap(gib: float) -> None:
    """Let this process have so much of the device's memory and no more."""
    if DEVICE.type == "cuda":
        whole = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, gib * GIB / whole))


def measure(update: Callable[[], Any], tokens: int, warm: int = 1, repeats: int = 3) -> dict[str, Any]:
    """Tokens a second (the median), and the peak since now; `update` waits for the device itself."""
    if DEVICE.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    seconds, losses = [], []
    for number in range(warm + repeats):
        if DEVICE.type == "cuda":
            torch.cuda.synchronize()
        started = time.perf_counter()
        losses.append(float(update()))
        if DEVICE.type == "cuda":
            torch.cuda.synchronize()
        if number >= warm:
            seconds.append(time.perf_counter() - started)
    middle = sorted(seconds)[len(seconds) // 2]
    found: dict[str, Any] = {"tokens_per_second": tokens / middle, "seconds": seconds, "losses": losses}
    if DEVICE.type == "cuda":
        found["peak_allocated_bytes"] = torch.cuda.max_memory_allocated()
        found["peak_reserved_bytes"] = torch.cuda.max_memory_reserved()
    return found


class Result:
    """A part's figures, written whenever one is added, so that a part which dies leaves what it had."""

    def __init__(self) -> None:
        parser = argparse.ArgumentParser()
        parser.add_argument("out", type=Path)
        parser.add_argument("--toy", action="store_true")
        given = parser.parse_args(sys.argv[1:])
        self.toy: bool = given.toy
        self._out: Path = given.out
        self._found: dict[str, Any] = {}

    def __setitem__(self, name: str, value: Any) -> None:
        self._found[name] = value
        self._out.write_text(json.dumps(self._found))

    def __getitem__(self, name: str) -> Any:
        return self._found[name]
