"""A model's weights and shape in GGUF: names, permuted heads, shifted norms, and what of a configuration the format cannot say."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from snugfit.errors import ModelError

if TYPE_CHECKING:
    import numpy

F16, BF16, Q8_0 = "f16", "bf16", "q8_0"
NUMBERS = (F16, BF16, Q8_0)

_FULL, _SLIDING = "full_attention", "sliding_attention"


@dataclass(frozen=True)
class Architecture:
    """An architecture of llama.cpp.

    Args:
        name: llama.cpp's.
        activation: that it computes with.
        permuted: the rows of queries and keys lie in pairs, as its rotation takes them.
        shifted_norms: a norm multiplies by its weight, where transformers multiplies by one more.
        pattern: each of so many layers sees all, the others a window; 1 where all do.
        scaled_by_heads: number of layers of the model that scales queries by the width of a head as if heads had all of the width.
    """

    name: str
    activation: str
    permuted: bool = False
    shifted_norms: bool = False
    pattern: int = 1
    scaled_by_heads: int = 0


ARCHITECTURES = {
    "llama": Architecture("llama", "silu", permuted=True),
    "qwen2": Architecture("qwen2", "silu"),
    "qwen3": Architecture("qwen3", "silu"),
    "gemma2": Architecture("gemma2", "gelu_pytorch_tanh", shifted_norms=True, pattern=2, scaled_by_heads=46),
    "gemma3_text": Architecture(
        "gemma3", "gelu_pytorch_tanh", shifted_norms=True, pattern=6, scaled_by_heads=62
    ),
}
"""By the model types of transformers."""


def check_architecture(config: Any) -> Architecture:
    """Return the architecture of a configuration, and see that GGUF says all of it.

    Raises:
        ModelError: names what it does not say.
    """
    architecture = ARCHITECTURES.get(config.model_type)
    if architecture is None:
        raise ModelError(
            "--to",
            f"gguf is written for {', '.join(ARCHITECTURES)}, and this model is a {config.model_type}",
            "Take hf, and llama.cpp's convert_hf_to_gguf.py on that folder.",
        )
    for sentence in _unsayable(config, architecture):
        raise ModelError(
            "--to", f"gguf cannot say what this {config.model_type} does: {sentence}", "Take hf."
        )
    return architecture


def _unsayable(config: Any, architecture: Architecture) -> Iterator[str]:
    """Yield what a configuration asks for that llama.cpp does not read from a file."""
    activation = getattr(config, "hidden_act", None) or getattr(config, "hidden_activation", None)
    if activation != architecture.activation:
        yield f"its activation is {activation}, and llama.cpp computes {architecture.activation}"
    layers = getattr(config, "layer_types", None) or [_FULL] * config.num_hidden_layers
    wanted = [_FULL if (place + 1) % architecture.pattern == 0 else _SLIDING for place in range(len(layers))]
    if list(layers) != wanted:
        yield "layers that see a window stand elsewhere than llama.cpp has them"
    if architecture.name == "qwen3" and config.attention_bias:
        yield "its attention has biases"
    for rope in _ropes(config).values():
        if rope.get("rope_type", "default") not in ("default", "linear", "llama3"):
            yield f"its positions are scaled by {rope['rope_type']}"
    if not architecture.shifted_norms:
        return
    width = config.head_dim
    if config.num_hidden_layers == architecture.scaled_by_heads:
        width = config.hidden_size // config.num_attention_heads
    if config.query_pre_attn_scalar != width:
        yield f"query_pre_attn_scalar is {config.query_pre_attn_scalar}, and llama.cpp takes {width}"
    if getattr(config, "use_bidirectional_attention", None):
        yield "its attention sees the tokens after each"
    capped = (config.attn_logit_softcapping, config.final_logit_softcapping)
    if architecture.name == "gemma2" and None in capped:
        yield "logits are not capped, and llama.cpp caps those of gemma2"
    if architecture.name == "gemma3" and capped != (None, None):
        yield "logits are capped, and llama.cpp caps none of gemma3"


def _ropes(config: Any) -> dict[str, dict[str, Any]]:
    """Return the settings of rotary positions by the kind of a layer."""
    rope = dict(config.rope_parameters)
    if isinstance(rope.get(_FULL), dict):
        return {kind: dict(settings) for kind, settings in rope.items() if isinstance(settings, dict)}
    return {_FULL: rope}


def add_shape(writer: Any, config: Any, numbers: str) -> None:
    """Write the shape of a model among a file's metadata."""
    import gguf

    architecture = ARCHITECTURES[config.model_type]
    file_types = {
        F16: gguf.LlamaFileType.MOSTLY_F16,
        BF16: gguf.LlamaFileType.MOSTLY_BF16,
        Q8_0: gguf.LlamaFileType.MOSTLY_Q8_0,
    }
    writer.add_file_type(file_types[numbers])
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    writer.add_vocab_size(config.vocab_size)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_rope_dimension_count(head_dim)
    ropes = _ropes(config)
    writer.add_rope_freq_base(ropes[_FULL]["rope_theta"])
    if ropes[_FULL].get("rope_type") == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(ropes[_FULL]["factor"])
    if architecture.pattern > 1:
        writer.add_sliding_window(config.sliding_window)
    if _SLIDING in ropes:
        writer.add_rope_freq_base_swa(ropes[_SLIDING]["rope_theta"])
    if architecture.name == "gemma2":
        writer.add_attn_logit_softcapping(config.attn_logit_softcapping)
        writer.add_final_logit_softcapping(config.final_logit_softcapping)


def add_weights(writer: Any, model: nn.Module, config: Any, numbers: str) -> None:
    """Write the weights of a model under llama.cpp's names.

    Raises:
        ModelError: one has no name there.
    """
    import gguf

    architecture = ARCHITECTURES[config.model_type]
    (place,) = (key for key, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture.name)
    names = gguf.get_tensor_name_map(place, config.num_hidden_layers)
    if (factors := _rope_factors(config)) is not None:
        writer.add_tensor("rope_freqs.weight", factors)
    tied = config.tie_word_embeddings
    for name, weight in model.state_dict().items():
        if tied and name == "lm_head.weight":  # llama.cpp takes the embeddings where there is none
            continue
        to = names.get_name(name, try_suffixes=(".weight", ".bias"))
        if to is None:
            raise ModelError("--to", f"gguf has no name for '{name}' of this {config.model_type}", "Take hf.")
        values = _as_llama_cpp_has_it(name, weight.detach().float(), config, architecture)
        data, kind = packed(values, numbers)
        writer.add_tensor(to, data, raw_dtype=kind)


def _as_llama_cpp_has_it(name: str, weight: Tensor, config: Any, architecture: Architecture) -> Tensor:
    layer = name.rsplit(".", 2)[-2]
    if architecture.permuted and layer in ("q_proj", "k_proj"):
        heads = config.num_attention_heads if layer == "q_proj" else config.num_key_value_heads
        half = weight.shape[0] // heads // 2
        return weight.reshape(heads, 2, half, *weight.shape[1:]).transpose(1, 2).reshape(weight.shape)
    return weight + 1 if architecture.shifted_norms and name.endswith("norm.weight") else weight


def packed(weight: Tensor, numbers: str) -> tuple[numpy.ndarray[Any, Any], Any]:
    """Return a weight as it lies in the file, and its format there: vectors stay whole, and so do rows that no blocks of 32 fill."""
    import gguf

    kinds = gguf.GGMLQuantizationType
    if weight.ndim < 2:
        return weight.numpy(), kinds.F32
    if numbers == Q8_0 and weight.shape[-1] % 32:
        numbers = F16
    kind = {F16: kinds.F16, BF16: kinds.BF16, Q8_0: kinds.Q8_0}[numbers]
    return gguf.quants.quantize(weight.contiguous().numpy(), kind), kind


def gguf_rounding(numbers: str) -> Callable[[Tensor], Tensor]:
    """Return what rounds a weight as a file in that format does."""
    import gguf

    def round_weight(weight: Tensor) -> Tensor:
        if weight.ndim < 2:
            return weight
        data, kind = packed(weight.float(), numbers)
        return torch.from_numpy(gguf.quants.dequantize(data, kind).copy()).reshape(weight.shape)

    return round_weight


def _rope_factors(config: Any) -> numpy.ndarray[Any, Any] | None:
    """Return by how much Llama 3.1's scaling slows each rotation; None without it."""
    import numpy

    rope = _ropes(config)[_FULL]
    if rope.get("rope_type") != "llama3":
        return None
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    factor, low, high = rope["factor"], rope["low_freq_factor"], rope["high_freq_factor"]
    positions = rope["original_max_position_embeddings"]
    factors = []
    for place in range(0, head_dim, 2):
        length = 2 * math.pi * rope["rope_theta"] ** (place / head_dim)
        if length < positions / high:
            factors.append(1.0)
        elif length > positions / low:
            factors.append(factor)
        else:
            smooth = (positions / length - low) / (high - low)
            factors.append(1 / ((1 - smooth) / factor + smooth))
    return numpy.array(factors, dtype=numpy.float32)
