"""Attention over padded rows, each over its own keys: that of a mask, taken where a next token is written and nowhere else."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from snugfit.kit.language_models import generation
from snugfit.kit.language_models.generation import Generation, generate, padded_left
from snugfit.kit.language_models.padded_attention import row_by_row

ROWS, HEADS, OF_KEYS, LENGTH, DIM = 3, 4, 2, 11, 8


class Layer(torch.nn.Module):
    num_key_value_groups = HEADS // OF_KEYS
    is_causal = True


def masked_queries(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, bool]]:
    """Of each call of torch's attention from now on: its rows, and whether it had a mask."""
    calls: list[tuple[int, bool]] = []
    attention = torch.nn.functional.scaled_dot_product_attention

    def noting(query: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        calls.append((query.shape[0], kwargs.get("attn_mask") is not None))
        return attention(query, *args, **kwargs)

    for module in ("torch.nn.functional", "snugfit.kit.language_models.padded_attention"):
        monkeypatch.setattr(f"{module}.scaled_dot_product_attention", noting)
    return calls


@pytest.mark.parametrize(
    ("mask", "alone"),
    [
        ([[0, 0, 0, 1], [1, 1, 1, 1], [0, 1, 1, 1]], True),
        ([[0, 0, 1, 0], [1, 1, 1, 0], [0, 1, 1, 0]], True),  # what is behind has not been written yet
        ([[1, 0, 1, 1], [1, 1, 1, 1], [0, 1, 1, 1]], False),  # no span
    ],
)
def test_outputs_are_those_of_a_mask_and_each_row_asks_for_none(
    mask: list[list[int]], alone: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    length = len(mask[0])
    query = torch.randn(ROWS, HEADS, 1, DIM).double()
    key, value = torch.randn(2, ROWS, OF_KEYS, length, DIM).double()
    seen = torch.tensor(mask).bool()[:, None, None]
    attend = ALL_ATTENTION_FUNCTIONS["sdpa"]
    expected, _ = attend(Layer(), query, key, value, seen, scaling=0.3)
    calls = masked_queries(monkeypatch)
    with row_by_row(4):
        outputs, _ = ALL_ATTENTION_FUNCTIONS["sdpa"](Layer(), query, key, value, seen, scaling=0.3)
    assert outputs.shape == expected.shape and torch.allclose(outputs, expected, rtol=0, atol=1e-14)
    assert calls == ([(1, False)] * ROWS if alone else [(ROWS, True)])
    assert ALL_ATTENTION_FUNCTIONS["sdpa"] is attend


def llama() -> Any:
    return LlamaForCausalLM(LlamaConfig(**_sizes()))


def mistral() -> Any:
    """Its layers see the last keys alone."""
    return MistralForCausalLM(MistralConfig(**_sizes(), sliding_window=5))


def _sizes() -> dict[str, Any]:
    return {
        "vocab_size": 40,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": HEADS,
        "num_key_value_heads": OF_KEYS,
        "max_position_embeddings": 64,
    }


@pytest.mark.parametrize("make", [llama, mistral])
@pytest.mark.parametrize("beams", [1, 2])
def test_answers_of_padded_rows_are_those_of_each_alone_and_long_caches_are_split(
    make: Any, beams: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(3)
    model = make().double().eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    model.generation_config.eos_token_id = None
    prompts, settings = [[1, 2, 3, 4, 5, 6], [7], [8, 9, 10]], Generation(9, num_beams=beams)
    alone = [generate(model, padded_left([prompt], 0), [0], (), settings)[0] for prompt in prompts]
    monkeypatch.setattr(generation, "is_there", lambda _: True)
    monkeypatch.setattr(generation, "LEAST_KEYS", 9)
    calls = masked_queries(monkeypatch)
    assert generate(model, padded_left(prompts, 0), range(3), (), settings) == alone
    by_row = [masked for rows, masked in calls if rows == 1]
    if make is llama:  # 9 keys or more, in two layers: from the fourth token on
        assert len(by_row) == 2 * 3 * beams * 6 and not any(by_row)
    calls.clear()
    monkeypatch.setattr(generation, "is_there", lambda _: False)
    assert generate(model, padded_left(prompts, 0), range(3), (), settings) == alone
    assert all(rows == 3 * beams for rows, _ in calls[2:])
