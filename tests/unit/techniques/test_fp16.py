from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch import nn

from snugfit.core.batch import Batch
from snugfit.core.loss_scale import LossScale
from snugfit.core.losses import cross_entropy
from snugfit.core.technique import Context
from snugfit.errors import PlanConflict, SettingError
from snugfit.models.huggingface import load_causal_lm
from snugfit.step.step import Step
from snugfit.techniques.numerics.bf16 import BF16
from snugfit.techniques.numerics.fp16 import FP16
from tests.unit.techniques.settings import context, refuses


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("initial_scale", 0),
        ("initial_scale", math.inf),
        ("initial_scale", 1e39),
        ("growth_factor", 1.0),
        ("growth_factor", math.nan),
        ("backoff_factor", 0),
        ("backoff_factor", 1.0),
        ("growth_interval", 0),
    ],
)
def test_impossible_settings_are_refused(setting: str, value: float) -> None:
    refuses(FP16, **{setting: value})


def test_the_settings_are_those_of_the_scale() -> None:
    made = FP16(initial_scale=8.0, growth_factor=4.0, backoff_factor=0.25, growth_interval=2)
    scale = made.seams(context(nn.Linear(2, 2))).scale
    assert scale is not None
    found = []
    for finite in (True, True, False, False):
        scale.update(finite)
        found.append(scale.factor)
    assert found == [8.0, 32.0, 8.0, 2.0]
    fresh = made.seams(context(nn.Linear(2, 2))).scale
    assert fresh is not None and fresh.factor == 8.0, "two runs share a scale"


def test_products_are_in_fp16_and_loss_weights_and_gradients_in_float32() -> None:
    model = nn.Linear(8, 4)
    forward = FP16().seams(context(model)).forward
    assert forward is not None
    with forward(Batch.of(torch.ones(1))):
        logits = model(torch.randn(3, 8))
        terms = cross_entropy(logits, (None, torch.tensor([0, 1, 2])))
    terms.values.sum().backward()
    assert logits.dtype == torch.float16
    assert terms.values.dtype == torch.float32
    assert model.weight.dtype == torch.float32
    assert model.weight.grad is not None and model.weight.grad.dtype == torch.float32
    assert not torch.is_autocast_enabled("cpu")


def test_beside_bf16_it_is_refused_in_either_order() -> None:
    for techniques in ([FP16(), BF16()], [BF16(), FP16()]):
        with pytest.raises(PlanConflict, match="a run has one precision"):
            Step(nn.Linear(2, 2), None, techniques=techniques)


def test_a_device_without_autocast_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.amp, "is_autocast_available", lambda device: device != "meta")
    with pytest.raises(SettingError, match=r"^plan\.numerics: fp16 needs autocast, which meta does not have"):
        FP16().seams(Context(nn.Linear(1, 1), torch.device("meta")))


def test_trained_weights_in_fp16_are_refused_and_frozen_ones_are_not() -> None:
    model = nn.Sequential(nn.Linear(2, 2).half(), nn.Linear(2, 2))
    with pytest.raises(SettingError, match=r"'0\.weight' is in fp16"):
        FP16().seams(context(model))
    model[0].requires_grad_(False)
    FP16().seams(context(model))


def test_the_defaults_are_those_of_torchs_grad_scaler() -> None:
    theirs = torch.amp.GradScaler("cpu")
    made = FP16().seams(context(nn.Linear(2, 2))).scale
    assert made is not None
    for scale in (LossScale(), made):
        assert scale.factor == theirs.get_scale()
        assert scale.growth_factor == theirs.get_growth_factor()
        assert scale.backoff_factor == theirs.get_backoff_factor()
        assert scale.growth_interval == theirs.get_growth_interval()


def checkpoint(tmp_path: Path, dtype: torch.dtype) -> Path:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        n_layer=1, n_embd=8, n_head=2, vocab_size=11, n_positions=9, bos_token_id=0, eos_token_id=0
    )
    folder = tmp_path / str(dtype)
    GPT2LMHeadModel(config).to(dtype).save_pretrained(folder)
    return folder


def test_weights_that_were_made_in_bf16_are_refused_though_loaded_in_float32(tmp_path: Path) -> None:
    loaded = load_causal_lm(checkpoint(tmp_path, torch.bfloat16)).model
    assert loaded.dtype == torch.float32
    with pytest.raises(SettingError, match=r"^plan\.numerics: the weights .* bf16, .* 65504, .*force: true"):
        FP16().seams(context(loaded))
    assert FP16(force=True).seams(context(loaded)).scale is not None
    loaded.save_pretrained(tmp_path / "again")  # as a run saves its best model, in float32
    again = load_causal_lm(tmp_path / "again").model
    with pytest.raises(SettingError, match="were made in bf16"):
        FP16().seams(context(again))


def test_other_weights_and_new_ones_are_not(tmp_path: Path) -> None:
    for dtype in (torch.float32, torch.float16):
        FP16().seams(context(load_causal_lm(checkpoint(tmp_path, dtype)).model))
    made = checkpoint(tmp_path, torch.bfloat16)
    FP16().seams(context(load_causal_lm(made, from_scratch=True).model))
    load_causal_lm(made).model.save_pretrained(tmp_path / "again")
    FP16().seams(context(load_causal_lm(tmp_path / "again", from_scratch=True).model))


def test_a_stock_model_that_was_converted_by_hand_is_refused_too(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    stock = AutoModelForCausalLM.from_pretrained(checkpoint(tmp_path, torch.bfloat16)).float()
    with pytest.raises(SettingError, match="were made in bf16"):
        FP16().seams(context(stock))
