"""The material of the checks: language models from their configs with drawn weights, and windows of drawn tokens."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

GIB = 2**30
MIB = 2**20

LLAMAS: Mapping[str, Mapping[str, int]] = {
    "toy": {"layers": 4, "width": 64, "inner": 128, "heads": 4, "key_heads": 2, "vocabulary": 128},
    "small": {"layers": 8, "width": 512, "inner": 1408, "heads": 8, "key_heads": 4, "vocabulary": 4096},
    "1b": {"layers": 16, "width": 2048, "inner": 8192, "heads": 32, "key_heads": 8, "vocabulary": 128256},
    "8b": {"layers": 32, "width": 4096, "inner": 14336, "heads": 32, "key_heads": 8, "vocabulary": 128256},
    "70b": {"layers": 80, "width": 8192, "inner": 28672, "heads": 64, "key_heads": 8, "vocabulary": 128256},
}
"""Llama 3's shapes and two small ones."""


def technique(name: str, **settings: Any) -> Any:
    """Return a technique by its name; with its example's settings where none are given."""
    from snugfit.techniques import find

    return find(name)(**settings) if settings else find(name).example()


def llama_config(shape: str, tokens: int) -> Any:
    from transformers import LlamaConfig

    given = LLAMAS[shape]
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


def llama(
    shape: str, tokens: int, device: str, dtype: torch.dtype = torch.float32, seed: int = 0
) -> nn.Module:
    """Return a Llama with the same drawn weights on any device."""
    from transformers import LlamaForCausalLM

    torch.manual_seed(seed)
    model: nn.Module = LlamaForCausalLM(llama_config(shape, tokens))
    return model.to(device=device, dtype=dtype)


def gpt2(device: str, toy: bool, tokens: int = 1024, seed: int = 0) -> nn.Module:
    """Return GPT-2 of 124M parameters, without dropout; or a tiny one."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(seed)
    small = {"n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 128} if toy else {}
    config = GPT2Config(n_positions=tokens, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, **small)
    with torch.device(device if device == "cuda" else "cpu"):
        model: nn.Module = GPT2LMHeadModel(config)
    return model


def tokens_window(vocabulary: int, rows: int, tokens: int, seed: int = 0) -> dict[str, Tensor]:
    """Return a window of drawn tokens, each of which is to be predicted."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, vocabulary, (rows, tokens), generator=generator)
    return {"input_ids": ids, "labels": ids.clone()}


def on(device: str, tree: Any) -> Any:
    """Return the tree with its tensors on the device."""
    from snugfit.core.tree import map_tree

    return map_tree(lambda tensor: tensor.to(device), tree)


def deterministic() -> None:
    """Have torch take the same kernels at each call, and attention those that add in one order.

    Operators that have none of these warn. The backward of flash attention adds in any order where such operators only warn.
    """
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.benchmark = False
    for enable in (
        torch.backends.cuda.enable_flash_sdp,
        torch.backends.cuda.enable_mem_efficient_sdp,
        torch.backends.cuda.enable_cudnn_sdp,
    ):
        enable(False)


def weights(model: nn.Module) -> dict[str, Tensor]:
    """Return copies of all weights."""
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def differing(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> list[str]:
    """Return the names of tensors that are not the same bit for bit."""
    assert one.keys() == other.keys()
    return [name for name, tensor in one.items() if not torch.equal(tensor, other[name].to(tensor.device))]


def error_between(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> float:
    """Return the largest relative error of a tensor, as the laws measure it."""
    from tests.laws.problems import relative_error

    return relative_error(dict(one), dict(other), 0.05)


def take_workspaces() -> None:
    """Have cuBLAS take its workspaces, for forward and for the thread of backward."""
    layer = nn.Linear(64, 64, device="cuda")
    layer(torch.ones(64, 64, device="cuda")).sum().backward()
    torch.cuda.synchronize()


def memory_fraction(gib: float) -> float:
    """Let this process have so much of the device's memory and no more; returns the share."""
    whole = torch.cuda.get_device_properties(0).total_memory
    share = min(1.0, gib * GIB / whole)
    torch.cuda.set_per_process_memory_fraction(share)
    return share


Update = Callable[[], Any]
