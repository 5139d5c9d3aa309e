"""Keys and values are kept for generation only: a step trains without them, and leaves the model's config as it is."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from snugfit.step.step import Step
from snugfit.techniques.learning.sgd import SGD


def small_llama() -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"vocab_size": 16, "hidden_size": 8, "intermediate_size": 16}
    return LlamaForCausalLM(
        LlamaConfig(num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=2, **sizes)
    )


def test_a_model_trained_by_a_step_fills_no_cache_and_may_afterwards() -> None:
    caches = []

    def forward(model: nn.Module, data: dict[str, Any]) -> Any:
        outputs = model(**data)
        caches.append(outputs.past_key_values)
        return outputs

    model, tokens = small_llama(), torch.arange(12).view(2, 6)
    step = Step(model, SGD(learning_rate=0.1), "causal_lm", forward=forward)
    step({"input_ids": tokens, "labels": tokens})
    assert caches == [None]
    assert model(tokens).past_key_values is not None
