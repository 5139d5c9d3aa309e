from __future__ import annotations

import pytest
import torch
from torch import nn
from transformers import BertConfig, BertForSequenceClassification

from snugfit.errors import SettingError
from snugfit.kit.adapters.adapters import adapted
from snugfit.step.step import Step
from snugfit.techniques.learning.adamw import AdamW
from snugfit.techniques.learning.ia3 import IA3, ia3_

INPUTS = torch.linspace(-1, 1, 24).reshape(6, 4)


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))


def test_at_the_start_the_model_is_what_it_was() -> None:
    assert torch.equal(ia3_(model())(INPUTS), model()(INPUTS))


def test_outputs_are_multiplied_and_inputs_of_feedforward_layers() -> None:
    made = ia3_(model(), targets=["0", "2"], feedforward=["2"])
    factors = {name: layer.ia3_l["default"] for name, layer in adapted(made).items()}
    assert {name: factor.numel() for name, factor in factors.items()} == {"0": 8, "2": 8}
    with torch.no_grad():
        for factor in factors.values():
            factor.fill_(2.0)
    first, _, last = model()
    torch.testing.assert_close(made(INPUTS), last(2 * torch.tanh(2 * first(INPUTS))))


def test_only_the_factors_and_the_head_move() -> None:
    step = Step(model(), AdamW(learning_rate=0.1), techniques=[IA3(targets=("0",), head=("2",))])
    before = {name: p.detach().clone() for name, p in step.model.named_parameters()}
    step((INPUTS, torch.tensor([0, 1, 2, 0, 1, 2])))
    moved = {name for name, p in step.model.named_parameters() if not torch.equal(p, before[name])}
    assert moved == {"0.ia3_l.default", "2.weight", "2.bias"}


def test_the_layers_of_a_known_architecture_are_those_of_pefts_table() -> None:
    config = BertConfig(
        vocab_size=9, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16
    )
    found = adapted(ia3_(BertForSequenceClassification(config)))
    assert {
        name.removeprefix("bert.encoder.layer.0."): layer.is_feedforward for name, layer in found.items()
    } == {
        "attention.self.key": False,
        "attention.self.value": False,
        "attention.output.dense": True,
        "output.dense": True,
    }


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (IA3(targets=("0",), feedforward=("2",)), r"^ia3\.feedforward: '2' is not one of ia3\.targets"),
        (IA3(feedforward=("2",)), r"^ia3\.feedforward: says which of ia3\.targets are meant"),
        (IA3(targets=("0",), feedforward=("3",)), r"^ia3\.feedforward: '3' matches no module"),
    ],
    ids=str,
)
def test_feedforward_layers_are_among_the_targets(settings: IA3, words: str) -> None:
    with pytest.raises(SettingError, match=words):
        settings.prepare(model())


def test_a_torch_optimizer_made_before_the_factors_would_not_train_them() -> None:
    given = model()
    words = r"optimizer: it was made before techniques added 2 parameters to the model, such as '0\.ia3_l\.default'"
    with pytest.raises(SettingError, match=words):
        Step(given, torch.optim.SGD(given.parameters(), lr=0.1), techniques=[IA3()])
