from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import (
    BertConfig,
    BertForMaskedLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
)

from snugfit.errors import SettingError
from snugfit.techniques.learning.alibi import ALiBi, distance_bias, slopes
from tests.laws import problems


def test_slopes_are_those_of_the_paper() -> None:
    """Section 3: for 8 heads 1/2¹ … 1/2⁸; for other numbers as in the authors' code."""
    assert slopes(8).tolist() == [2.0**-power for power in range(1, 9)]
    torch.testing.assert_close(slopes(16), 2.0 ** -torch.arange(0.5, 8.5, 0.5))
    twelve = [*(2.0**-power for power in range(1, 9)), *(2.0 ** -(power / 2) for power in (1, 3, 5, 7))]
    torch.testing.assert_close(slopes(12), torch.tensor(twelve))
    assert slopes(1).tolist() == [2.0**-8]


def test_the_bias_falls_with_distance_in_both_directions() -> None:
    bias = distance_bias(8, torch.arange(2, 4), torch.arange(5))
    assert bias.shape == (8, 2, 5)
    assert bias[0].tolist() == [[-1.0, -0.5, 0.0, -0.5, -1.0], [-1.5, -1.0, -0.5, 0.0, -0.5]]


def gpt2(kernel: str = "sdpa", **options: Any) -> nn.Module:
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=50,
        n_positions=32,
        n_embd=16,
        n_layer=2,
        n_head=4,
        attn_implementation=kernel,
        initializer_range=0.3,
        **options,
    )
    return GPT2LMHeadModel(config).double().eval()


def bert(kernel: str = "sdpa") -> nn.Module:
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=50,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=32,
        max_position_embeddings=32,
        attn_implementation=kernel,
        initializer_range=0.3,
    )
    return BertForMaskedLM(config).double().eval()


def by_hand(model: nn.Module, ids: Tensor, causal: bool) -> Tensor:
    """Logits with the scores of each head less `m |i − j|`, by eager attention whose softmax is replaced."""
    places = torch.arange(ids.shape[1])
    fall = torch.tensor(
        [[[2.0 ** (-2 * head) * abs(i - j) for j in places] for i in places] for head in range(1, 5)]
    )
    hidden = (
        torch.ones(len(places), len(places), dtype=torch.bool).tril()
        if causal
        else torch.ones(1, 1, dtype=torch.bool)
    )
    scores = (-fall.double()).masked_fill(~hidden, -1e30)
    softmax = nn.functional.softmax

    def biased(given: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return softmax(given + scores, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nn.functional, "softmax", biased)
        logits: Tensor = model(ids).logits
    return logits


@pytest.mark.parametrize("kernel", ["eager", "sdpa"])
@pytest.mark.parametrize(("make", "causal"), [(gpt2, True), (bert, False)])
def test_stock_models_compute_the_papers_attention(make: Any, causal: bool, kernel: str) -> None:
    plain = make("eager")
    positions = plain.get_submodule("transformer.wpe" if causal else "bert.embeddings.position_embeddings")
    positions.weight.data.zero_()
    model = ALiBi().prepare(make(kernel))
    ids = torch.randint(0, 50, (3, 9))
    with torch.no_grad():
        expected = by_hand(plain, ids, causal)
        torch.testing.assert_close(model(ids).logits, expected)
        assert not torch.allclose(plain(ids).logits, expected, atol=1e-3)


@pytest.mark.parametrize("kernel", ["eager", "sdpa"])
@pytest.mark.parametrize("make", [gpt2, bert])
def test_padding_on_either_side_changes_nothing(make: Any, kernel: str) -> None:
    model = ALiBi().prepare(make(kernel))
    ids = torch.randint(0, 50, (1, 6))
    with torch.no_grad():
        expected = model(ids).logits
        for left, right in ((0, 3), (3, 0)):
            padded = nn.functional.pad(ids, (left, right))
            mask = nn.functional.pad(torch.ones_like(ids), (left, right))
            found = model(padded, attention_mask=mask).logits[:, left : left + 6]
            torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("kernel", ["eager", "sdpa"])
def test_what_is_generated_from_a_cache_is_that_of_the_whole_text(kernel: str) -> None:
    model = ALiBi().prepare(gpt2(kernel))
    ids = torch.randint(0, 50, (2, 7))
    with torch.no_grad():
        first = model(ids[:, :4], use_cache=True)
        rest = model(ids[:, 4:6], past_key_values=first.past_key_values, use_cache=True)
        last = model(ids[:, 6:], past_key_values=rest.past_key_values)
        parts = torch.cat([first.logits, rest.logits, last.logits], dim=1)
        torch.testing.assert_close(parts, model(ids).logits)


def test_the_order_of_tokens_is_seen_without_their_positions() -> None:
    ids = torch.tensor([[3, 7, 9, 11]])
    blind, model = bert(), ALiBi().prepare(bert())
    blind.bert.embeddings.position_embeddings.weight.data.zero_()
    with torch.no_grad():
        for each, sees in ((blind, False), (model, True)):
            one, other = each(ids).logits[0, 0], each(ids[:, [0, 3, 2, 1]]).logits[0, 0]
            assert torch.allclose(one, other) is not sees


MASKS = {
    "none": {},
    "padding": {"key_padding_mask": torch.tensor([[False] * 5, [False] * 3 + [True] * 2])},
    "causal": {"attn_mask": torch.ones(5, 5, dtype=torch.bool).triu(1), "is_causal": True},
    "additive for each head": {"attn_mask": torch.randn(4, 5, 5)},
}


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
@pytest.mark.parametrize("batch_first", [True, False])
def test_torchs_attention_gets_the_bias_beside_its_masks(mask: dict[str, Any], batch_first: bool) -> None:
    torch.manual_seed(0)
    plain = nn.MultiheadAttention(8, 2, batch_first=batch_first)
    model = ALiBi(positions="places").prepare(
        nn.ModuleDict({"places": nn.Embedding(5, 8), "mix": copy.deepcopy(plain)})
    )["mix"]
    hidden = torch.randn(2, 5, 8) if batch_first else torch.randn(5, 2, 8)
    bias = distance_bias(2, torch.arange(5), torch.arange(5)).repeat(2, 1, 1)
    given = mask.get("attn_mask")
    if given is not None:
        added = torch.zeros(given.shape).masked_fill(given, -math.inf) if given.dtype == torch.bool else given
        bias = bias + added
    padding = mask.get("key_padding_mask")
    if padding is not None:
        padding = torch.zeros(padding.shape).masked_fill(padding, -math.inf)
    expected = plain(hidden, hidden, hidden, key_padding_mask=padding, attn_mask=bias)
    found = model(hidden, hidden, hidden, **mask)
    torch.testing.assert_close(found[0], expected[0])
    torch.testing.assert_close(found[1], expected[1])


def test_attention_to_other_tokens_is_left_alone() -> None:
    model = nn.ModuleDict(
        {"places": nn.Embedding(5, 8), "mix": nn.MultiheadAttention(8, 2, batch_first=True)}
    )
    mix = ALiBi(positions="places").prepare(model)["mix"]
    plain = copy.deepcopy(mix)
    plain._forward_pre_hooks.clear()
    query, key = torch.randn(2, 3, 8), torch.randn(2, 5, 8)
    torch.testing.assert_close(mix(query, key, key)[0], plain(query, key, key)[0])
    with pytest.raises(
        SettingError, match="alibi: an nn.MultiheadAttention is called with is_causal=True and no mask"
    ):
        mix(key, key, key, is_causal=True)


def test_positions_are_zero_and_stay_so() -> None:
    step = problems.make_step(problems.reader(()), [ALiBi(positions="places")])
    for window in problems.reader(()).windows():
        assert step(window).applied
    assert not step.model.places.weight.any() and not step.model.places.weight.requires_grad


def test_models_that_it_does_not_suit_are_refused() -> None:
    config = LlamaConfig(
        vocab_size=9,
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=8,
        num_key_value_heads=2,
    )
    llama = LlamaForCausalLM(config)
    with pytest.raises(SettingError, match="alibi: has nothing to change: .* BertSelfAttention"):
        ALiBi().prepare(llama)
    with pytest.raises(
        SettingError,
        match=r"alibi.positions: the model has 0 embeddings of positions by name .* \(rotary\) have none",
    ):
        ALiBi().prepare(nn.Sequential(nn.MultiheadAttention(8, 2)))
    with pytest.raises(SettingError, match="alibi.positions: 'wpe' matches no Embedding"):
        ALiBi(positions="wpe").prepare(bert())


def test_a_kernel_that_takes_no_bias_is_refused() -> None:
    model = ALiBi().prepare(gpt2())
    model.config._attn_implementation = "flash_attention_2"
    with pytest.raises(
        SettingError, match="alibi: .* the kernel 'flash_attention_2' does not take. Add attention_kernel"
    ):
        model.transformer.h[0].attn(torch.zeros(1, 3, 16).double())
