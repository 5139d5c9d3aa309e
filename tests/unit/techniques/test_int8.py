from __future__ import annotations

import pytest
import torch
from torch import nn

from snugfit.models.huggingface import load_causal_lm
from snugfit.techniques.numerics.int8 import Int8, Int8Format, int8_
from tests.oracles import int8 as oracle
from tests.unit.techniques.quantised_runs import (
    DECODERS,
    adapter_under_plain_peft,
    bytes_of,
    folder_of,
    loaded_like_prepared,
    stopped_and_resumed,
)


@pytest.mark.parametrize("shape", [(1, 1), (8, 16), (5, 7), (48, 64)])
def test_the_weight_is_that_of_a_loop_row_by_row(shape: tuple[int, int]) -> None:
    weight = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    packed = Int8Format().pack(weight)
    whole = Int8Format().unpack(packed, shape, torch.float32)
    assert torch.equal(whole, oracle.rounded(weight))
    assert torch.equal(Int8Format().unpack(packed, shape, torch.bfloat16), whole.bfloat16())
    assert (
        (whole - weight).abs().amax(dim=1) <= weight.abs().amax(dim=1) / 254 * 1.13
    ).all()  # 16 bit: half a step more


def test_a_row_of_zeros_stays_one() -> None:
    model = int8_(nn.Sequential(nn.Linear(4, 2, bias=False), nn.Linear(2, 2)))
    zeros = Int8Format().pack(torch.zeros(2, 4))
    assert not Int8Format().unpack(zeros, (2, 4), torch.float32).any()
    assert model[0](torch.ones(1, 4)).isfinite().all()


def test_a_weight_takes_a_byte() -> None:
    layer = int8_(nn.Sequential(nn.Linear(256, 256, bias=False), nn.Linear(256, 2)))[0]
    assert bytes_of(layer) == 256 * 256 + 4 * 256


@pytest.mark.parametrize("make", DECODERS)
def test_what_is_loaded_in_8_bits_is_what_is_quantised_after_loading(make, tmp_path) -> None:
    loaded_like_prepared(Int8(), folder_of(make, tmp_path))


@pytest.mark.parametrize("make", DECODERS)
def test_the_adapter_alone_gives_the_same_outputs_on_a_base_of_plain_transformers_and_peft(
    make, tmp_path
) -> None:
    ours, theirs = adapter_under_plain_peft(Int8(), folder_of(make, tmp_path), tmp_path, load_in_8bit=True)
    torch.testing.assert_close(theirs, ours, rtol=1e-4, atol=1e-5)


@pytest.mark.slow  # that it resumes is a law, tried on a smaller model
def test_a_run_stopped_and_resumed_is_the_run_that_was_not_stopped(tmp_path) -> None:
    stopped_and_resumed(Int8(), tmp_path)


def test_skipped_layers_are_loaded_whole(tmp_path) -> None:
    technique = Int8(skip=("mlp.*", "layers.1"))
    model = load_causal_lm(folder_of(DECODERS[0], tmp_path), techniques=[technique]).model
    found = {name for name, module in model.named_modules() if type(module).__name__ == "Linear8bitLt"}
    assert found == {f"model.layers.0.self_attn.{letter}_proj" for letter in "qkvo"}
