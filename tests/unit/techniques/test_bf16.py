from __future__ import annotations

import pytest
import torch
from torch import nn

from snugfit.core.batch import Batch
from snugfit.core.losses import cross_entropy
from snugfit.core.technique import Context
from snugfit.errors import SettingError
from snugfit.kit.precision.bf16_rounding import has_bf16
from snugfit.techniques.numerics.bf16 import BF16
from tests.unit.techniques.settings import context


def test_products_are_in_bf16_and_the_loss_in_float32() -> None:
    model = nn.Linear(8, 4)
    forward = BF16().seams(context(model)).forward
    assert forward is not None
    with forward(Batch.of(torch.ones(1))):
        logits = model(torch.randn(3, 8))
        terms = cross_entropy(logits, (None, torch.tensor([0, 1, 2])))
    assert logits.dtype == torch.bfloat16
    assert terms.values.dtype == torch.float32
    assert not torch.is_autocast_enabled("cpu")


def test_weights_and_their_gradients_stay_in_float32() -> None:
    model = nn.Linear(8, 4)
    forward = BF16().seams(context(model)).forward
    assert forward is not None
    with forward(Batch.of(torch.ones(1))):
        loss = model(torch.randn(3, 8)).float().sum()
    loss.backward()
    assert model.weight.dtype == torch.float32
    assert model.weight.grad is not None and model.weight.grad.dtype == torch.float32


def test_a_device_that_only_emulates_it_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []

    def supported(including_emulation: bool = True) -> bool:
        asked.append(including_emulation)
        return including_emulation

    monkeypatch.setattr(torch.cuda, "is_bf16_supported", supported)
    assert not has_bf16(torch.device("cuda"))
    assert asked == [False]
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Tesla T4")
    for capability, instead in (((7, 5), "fp16"), ((6, 1), "fp32")):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device, found=capability: found)
        with pytest.raises(
            SettingError, match=rf"^plan\.numerics: Tesla T4 has no bf16.* Use plan\.numerics: {instead}\.$"
        ):
            BF16().seams(Context(nn.Linear(1, 1), torch.device("cuda")))


def test_elsewhere_the_alternative_is_fp32() -> None:
    with pytest.raises(SettingError, match=r"mps has no bf16.* Use plan\.numerics: fp32\.$"):
        BF16().seams(Context(nn.Linear(1, 1), torch.device("mps")))
