from __future__ import annotations

import pytest
import torch
from torch import nn
from transformers import BertConfig, BertForSequenceClassification, GPT2Config, GPT2LMHeadModel

from snugfit.core.technique import Moment
from snugfit.errors import SettingError
from snugfit.kit.freezing import blocks_of
from snugfit.step.step import Step
from snugfit.techniques.learning.adamw import AdamW
from snugfit.techniques.learning.gradual_unfreeze import GradualUnfreeze
from tests.unit.techniques.settings import context, refuses

BATCH = (torch.linspace(-1, 1, 24).reshape(6, 4), torch.tensor([0, 1, 2, 0, 1, 2]))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.scale = nn.Parameter(torch.ones(4))
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)) for _ in range(2))
        self.dropout = nn.Dropout(0.0)
        self.head = nn.Linear(4, 3)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden = inputs * self.scale
        for layer in self.layers:
            hidden = layer(hidden).tanh()
        logits: torch.Tensor = self.head(self.dropout(hidden))
        return logits


@pytest.mark.parametrize("value", [0.0, -1.0, 1.5, float("nan")])
def test_an_impossible_pace_is_refused(value: float) -> None:
    refuses(GradualUnfreeze, every=value)


def heads(blocks: list[list[str]]) -> list[set[str]]:
    """The modules of each block."""
    return [{name.rpartition(".")[0] or name for name in block} for block in blocks]


def test_blocks_go_by_the_numbers_of_the_layers() -> None:
    assert heads(blocks_of(Net())) == [
        {"scale", "layers.0.0", "layers.0.1"},
        {"layers.1.0", "layers.1.1"},
        {"head"},
    ]


def test_stock_models_are_cut_into_embeddings_layers_and_the_head() -> None:
    config = BertConfig(
        vocab_size=9, hidden_size=8, num_hidden_layers=3, num_attention_heads=2, intermediate_size=16
    )
    embeddings, *layers, head = blocks_of(BertForSequenceClassification(config))
    assert all(name.startswith("bert.embeddings.") for name in embeddings)
    assert len(layers) == 3
    for number, layer in enumerate(layers):
        assert all(name.startswith(f"bert.encoder.layer.{number}.") for name in layer)
    assert head == [
        "bert.pooler.dense.weight",
        "bert.pooler.dense.bias",
        "classifier.weight",
        "classifier.bias",
    ]


def test_a_shared_weight_trains_with_the_head() -> None:
    config = GPT2Config(vocab_size=9, n_embd=8, n_layer=2, n_head=2, n_positions=8)
    assert heads(blocks_of(GPT2LMHeadModel(config)))[-1] == {"transformer.wte", "transformer.ln_f"}


def test_every_parameter_is_in_one_block() -> None:
    for model in (Net(), nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2))):
        found = [name for block in blocks_of(model) for name in block]
        assert sorted(found) == sorted(name for name, _ in model.named_parameters())


def test_blocks_train_from_the_head_down_with_their_statistics() -> None:
    step = Step(Net(), AdamW(learning_rate=0.1, weight_decay=0.5), techniques=[GradualUnfreeze(every=2)])
    blocks = []
    for _ in range(6):
        before = {name: value.clone() for name, value in step.model.state_dict().items()}
        step(BATCH)
        after = step.model.state_dict()
        moved = {name for name in before if not torch.equal(before[name], after[name])}
        blocks.append({name.partition(".")[0] if name[0] != "l" else name[:8] for name in moved})
        statistics = {name[:8] for name in moved if "running" in name}
        assert statistics == {name for name in blocks[-1] if name.startswith("layers")}
    assert (
        blocks
        == [{"head"}] * 2 + [{"head", "layers.1"}] * 2 + [{"head", "layers.1", "layers.0", "scale"}] * 2
    )


def test_a_fraction_is_of_the_run() -> None:
    net = Net()
    begin = GradualUnfreeze(every=0.25).seams(context(net, total_updates=40)).begin
    assert begin is not None
    trains = []
    for updates in (0, 9, 10, 19, 20, 39):
        begin(net, Moment(updates, updates, seed=0))
        trains.append((net.layers[1][0].weight.requires_grad, net.scale.requires_grad))
    assert trains == [(False, False)] * 2 + [(True, False)] * 2 + [(True, True)] * 2


def test_a_fraction_without_the_length_of_the_run_is_refused() -> None:
    with pytest.raises(SettingError, match=r"^gradual_unfreeze\.every: a fraction needs"):
        Step(Net(), AdamW(), techniques=[GradualUnfreeze(every=0.5)])
