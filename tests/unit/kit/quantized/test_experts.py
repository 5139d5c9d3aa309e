"""Experts in few bits: what they compute, keep and give back under every way in which transformers runs them."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from snugfit.core.technique import Technique
from snugfit.errors import SnugfitWarning
from snugfit.kit.adapters.adapters import merged
from snugfit.kit.quantized.experts import QuantisedExperts
from snugfit.kit.quantized.quantize import dequantised
from snugfit.step.build import describe_model
from snugfit.techniques.learning.lora import lora_
from snugfit.techniques.numerics.int8 import Int8, Int8Format, int8_
from snugfit.techniques.numerics.nf4 import NF4, NF4Format, nf4_
from snugfit.techniques.placement.recompute import Recompute
from snugfit.techniques.placement.weight_streaming import WeightStreaming
from tests.laws.compare import differences
from tests.oracles import nf4 as oracle
from tests.unit.techniques.quantised_runs import (
    IDS,
    adapted_step,
    bytes_of,
    folder_of,
    loaded_like_prepared,
    losses_of,
    mixtral,
    stopped_and_resumed,
)

EXPERTS, OUTER, INNER = 4, 64, 128
each_format = pytest.mark.parametrize("quantise_", [nf4_, int8_], ids=["nf4", "int8"])
each_technique = pytest.mark.parametrize("technique", [NF4(), Int8()], ids=["nf4", "int8"])


def gpt_oss(way: str = "grouped_mm") -> nn.Module:
    """Its matrices lie on their sides, and have biases."""
    from transformers import GptOssConfig, GptOssForCausalLM

    torch.manual_seed(0)
    sizes = {"vocab_size": 64, "hidden_size": OUTER, "intermediate_size": INNER, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32}
    config = GptOssConfig(**sizes, **heads, num_local_experts=EXPERTS, num_experts_per_tok=2)
    config._experts_implementation = way
    return GptOssForCausalLM(config)


def experts_of(model: nn.Module) -> dict[str, QuantisedExperts]:
    return {name: each for name, each in model.named_modules() if isinstance(each, QuantisedExperts)}


def outputs_and_gradient(model: nn.Module) -> tuple[Tensor, Tensor]:
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    words = model.get_input_embeddings().weight.requires_grad_(True)  # type: ignore[operator]
    logits = model(input_ids=IDS).logits
    logits.float().square().sum().backward()
    return logits.detach(), words.grad


@pytest.mark.parametrize("shape", [(3, 6, 64), (2, 5, 7)], ids=str)
@pytest.mark.parametrize("transposed", [False, True])
def test_each_expert_is_rounded_as_a_loop_over_the_papers_table_rounds_it(
    shape: tuple[int, ...], transposed: bool
) -> None:
    torch.manual_seed(0)
    weight = torch.randn(shape)
    found = QuantisedExperts.of(weight, NF4Format(), transposed=transposed).whole()
    for matrix, own in zip(weight, found, strict=True):
        expected = oracle.rounded(matrix.T, True).T if transposed else oracle.rounded(matrix, True)
        torch.testing.assert_close(own, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("form", [NF4Format(), NF4Format(double=False), Int8Format()], ids=repr)
@pytest.mark.parametrize("shape", [(3, 6, 64), (2, 5, 7), (2, 128, 128)], ids=str)
def test_one_expert_alone_is_as_among_all(form: Any, shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    experts = QuantisedExperts.of(torch.randn(shape), form, transposed=False)
    for place in range(shape[0]):
        assert torch.equal(experts[place].whole(), experts.whole()[place])
        assert torch.equal(experts[torch.tensor(place)].whole(), experts.whole()[place])


@each_format
@pytest.mark.parametrize("way", ["grouped_mm", "batched_mm", "eager"])
@pytest.mark.parametrize("make", [mixtral, gpt_oss])
def test_forward_and_backward_are_those_of_a_model_with_the_whole_weights(
    quantise_: Any, way: str, make: Callable[[str], nn.Module]
) -> None:
    model = quantise_(make(way))
    assert {name.rpartition(".")[2] for name in experts_of(model)} == {"gate_up_proj", "down_proj"}
    plain = dequantised(model)
    for one, other in zip(outputs_and_gradient(model), outputs_and_gradient(plain), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5 * other.abs().max().item())


@each_format
@pytest.mark.parametrize("way", ["grouped_mm", "eager"])
@pytest.mark.parametrize("make", [mixtral, gpt_oss])
def test_backward_keeps_no_matrix_of_an_expert(
    quantise_: Any, way: str, make: Callable[[str], nn.Module]
) -> None:
    model = quantise_(make(way))
    saved: list[Tensor] = []

    def keep(tensor: Tensor) -> Tensor:
        saved.append(tensor)
        return tensor

    with saved_tensors_hooks(keep, lambda tensor: tensor):
        model(input_ids=IDS)
    matrices = {(2 * INNER, OUTER), (OUTER, 2 * INNER), (OUTER, INNER), (INNER, OUTER)}
    assert not [each.shape for each in saved if each.is_floating_point() and each.shape[-2:] in matrices]


@each_format
def test_under_autocast_experts_compute_in_16_bit(quantise_: Any) -> None:
    model = quantise_(mixtral())
    plain = model(input_ids=IDS).logits
    types: set[torch.dtype] = set()
    layer = model.model.layers[0].mlp.experts
    apply = layer._apply_gate

    def note(made: Tensor) -> Any:
        types.add(made.dtype)
        return apply(made)

    layer._apply_gate = note
    with torch.autocast("cpu", dtype=torch.bfloat16):
        half = model(input_ids=IDS).logits
    assert types == {torch.bfloat16}
    torch.testing.assert_close(half.float(), plain, rtol=0.05, atol=0.05)


def test_any_other_function_finds_the_weight_whole() -> None:
    weight = torch.randn(3, 8, 16)
    experts = QuantisedExperts.of(weight, Int8Format(), transposed=False)
    rows = torch.randn(3, 5, 16)
    whole = experts.whole()
    assert torch.equal(torch.bmm(rows, experts.transpose(1, 2)), rows @ whole.mT)
    assert torch.equal(torch.einsum("ebi,eoi->ebo", rows, experts), torch.einsum("ebi,eoi->ebo", rows, whole))
    assert torch.equal(experts[torch.tensor([2, 0])], whole[[2, 0]])
    assert torch.equal(rows[0] @ experts[1].T, rows[0] @ whole[1].T)
    assert (experts.size(1), experts.dim(), experts.shape) == (8, 3, weight.shape)


@each_format
def test_the_model_comes_back_as_its_library_made_it(quantise_: Any) -> None:
    plain, model = mixtral(), quantise_(mixtral())
    whole = dequantised(model)
    assert {n: (p.shape, p.dtype) for n, p in whole.named_parameters()} == {
        n: (p.shape, p.dtype) for n, p in plain.named_parameters()
    }
    assert [type(module) for module in whole.modules()] == [type(module) for module in plain.modules()]
    assert experts_of(model), "the model itself stays quantised"
    described = describe_model(model)
    assert described["total"] == describe_model(plain)["total"] > described["trainable"]


@each_format
def test_casts_and_copies_leave_every_bit_of_experts(quantise_: Any) -> None:
    model = quantise_(mixtral())
    before = copy.deepcopy(model.state_dict())
    copied = copy.deepcopy(model).to(torch.bfloat16)
    for name, experts in experts_of(copied).items():
        assert experts.whole().dtype == torch.bfloat16
        for key, parameter in experts.named_parameters():
            assert torch.equal(parameter, before[f"{name}.{key}"]) and not parameter.requires_grad


@each_format
def test_experts_that_skip_names_stay_whole(quantise_: Any) -> None:
    model = quantise_(mixtral(), skip=["model.layers.0.mlp.experts"])
    assert {name.split(".")[2] for name in experts_of(model)} == {"1"}


@each_format
def test_adapters_are_merged_beside_experts_that_are_made_whole(quantise_: Any) -> None:
    with pytest.warns(SnugfitWarning, match=r"^lora: experts get no adapters.*layers\.0\.mlp\.experts"):
        model = lora_(quantise_(mixtral()), rank=2)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            nn.init.normal_(parameter, std=0.1)
    plain = merged(model)
    assert {n for n, _ in plain.named_parameters()} == {n for n, _ in mixtral().named_parameters()}
    torch.testing.assert_close(plain(input_ids=IDS).logits, model(input_ids=IDS).logits, rtol=1e-4, atol=1e-4)


@each_technique
def test_what_is_read_in_few_bits_is_what_is_quantised_after_loading(technique: Any, tmp_path: Path) -> None:
    folder = folder_of(mixtral, tmp_path)
    loaded_like_prepared(technique, folder)


def test_no_weight_of_experts_is_whole_when_a_model_is_loaded(tmp_path: Path) -> None:
    from snugfit.models.huggingface import load_causal_lm

    loaded = load_causal_lm(folder_of(mixtral, tmp_path), techniques=[NF4()]).model
    assert len(experts_of(loaded)) == 4 and bytes_of(loaded) < 0.4 * bytes_of(mixtral())


@pytest.mark.filterwarnings("ignore::snugfit.errors.SnugfitWarning")
@pytest.mark.parametrize(
    "others", [[WeightStreaming()], [Recompute()], [WeightStreaming(), Recompute()]], ids=str
)
def test_streamed_or_computed_again_they_train_the_same_bit_for_bit(
    others: list[Technique], tmp_path: Path
) -> None:
    folder = folder_of(mixtral, tmp_path)
    one, other = adapted_step([NF4()], folder), adapted_step([NF4(), *others], folder)
    assert losses_of(one, 3) == losses_of(other, 3)
    assert not differences(dict(one.model.state_dict()), dict(other.model.state_dict()))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::snugfit.errors.SnugfitWarning")
@each_technique
def test_a_run_stopped_and_resumed_is_the_run_that_was_not_stopped(technique: Any, tmp_path: Path) -> None:
    stopped_and_resumed(technique, tmp_path, mixtral)
