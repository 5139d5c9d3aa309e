from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from snugfit.core.selection import check
from snugfit.errors import PlanConflict, SettingError
from snugfit.techniques import find
from snugfit.techniques.learning.glu import GLU, Gated
from tests.laws import problems
from tests.unit.techniques.model_changes import again_from_its_bundle, vit
from tests.unit.techniques.settings import refuses


def test_an_unknown_activation_is_refused() -> None:
    refuses(GLU, activation="swish")


@pytest.mark.parametrize(
    ("activation", "formula"),
    [
        (None, lambda values: values.clamp(min=0)),
        ("relu", lambda values: values.clamp(min=0)),
        ("silu", lambda values: values / (1 + (-values).exp())),
        ("sigmoid", lambda values: 1 / (1 + (-values).exp())),
        ("gelu", lambda values: values * (1 + torch.erf(values / 2**0.5)) / 2),
        ("none", lambda values: values),
    ],
)
def test_a_block_is_multiplied_by_its_gate(
    activation: str | None, formula: Callable[[Tensor], Tensor]
) -> None:
    layer = GLU(activation).prepare(nn.TransformerEncoderLayer(8, 2, 12, dropout=0.0, batch_first=True))
    hidden = torch.randn(3, 8)
    first = layer.linear1
    assert first.weight.shape == (24, 8) and first.out_features == 24
    values, gates = (
        hidden @ first.weight[:12].T + first.bias[:12],
        hidden @ first.weight[12:].T + first.bias[12:],
    )
    expected = (formula(values) * gates) @ layer.linear2.weight.T + layer.linear2.bias
    torch.testing.assert_close(layer._ff_block(hidden), expected)


@pytest.mark.parametrize("make", problems.STOCK, ids=problems.name_of)
def test_stock_models_keep_their_weights_above_the_gates(make: problems.Maker) -> None:
    plain = make(()).model()
    torch.manual_seed(0)
    model = GLU().prepare(copy.deepcopy(plain))
    gated = [module for module in model.modules() if isinstance(module, Gated)]
    assert len(gated) == 1, "the feed-forward block, and no pooler"
    before, after = plain.state_dict(), model.state_dict()
    assert before.keys() == after.keys()
    wider = [name for name in before if before[name].shape != after[name].shape]
    assert {name.rpartition(".")[2] for name in wider} == {"weight", "bias"} and len(wider) == 2
    for name in before:
        kept = after[name][tuple(slice(size) for size in before[name].shape)]
        assert torch.equal(kept, before[name])
        if name in wider and name.endswith("weight"):
            width = before[name].shape.index(min(before[name].shape))
            gates = after[name].chunk(2, dim=1 - width)[1]
            assert float(gates.std()) == pytest.approx(float(before[name].std()), rel=0.3)
    window = {**make(()).windows()[0]}
    del window["labels"]
    assert not torch.allclose(model(**window).logits, plain(**window).logits)


@pytest.mark.parametrize("nested", [False, True])
def test_evaluation_does_not_pass_the_gates_by(nested: bool) -> None:
    """Torch's layers have a fast path in evaluation that reads the weights themselves."""
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    model = GLU().prepare(nn.TransformerEncoder(layer, 2, enable_nested_tensor=nested))
    with torch.no_grad():
        padding = torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
        hidden = torch.randn(2, 5, 8)
        expected = model.train()(hidden, src_key_padding_mask=padding)
        result = model.eval()(hidden, src_key_padding_mask=padding)
    torch.testing.assert_close(result[~padding], expected[~padding])


def test_a_model_without_such_a_block_is_refused() -> None:
    with pytest.raises(SettingError, match="glu: has nothing to change: .* Remove it."):
        GLU().prepare(nn.Sequential(nn.Linear(2, 2), nn.ReLU()))


def test_a_layer_that_shares_its_weight_is_refused() -> None:
    model = nn.Sequential(*(nn.TransformerEncoderLayer(8, 2, 12) for _ in range(2)))
    model[1].linear1.weight = model[0].linear1.weight
    with pytest.raises(SettingError, match=r"glu: '0.linear1' shares its weight with another layer"):
        GLU().prepare(model)
    assert model[0].linear1.weight.shape == (12, 8), "nothing is changed"
    twice = nn.TransformerEncoderLayer(8, 2, 12)
    model = GLU().prepare(nn.Sequential(twice, twice))  # one layer, at two places
    assert model[0].linear1.weight.shape == (24, 8)


def test_a_layer_of_one_weight_has_a_gate_of_its_size() -> None:
    model = GLU().prepare(nn.TransformerEncoderLayer(1, 1, 1))
    assert model.linear1.weight.isfinite().all()


def test_a_bundle_makes_it_again(tmp_path: Path) -> None:
    again_from_its_bundle(tmp_path, GLU("silu"), vit)


@pytest.mark.parametrize("other", ["lora", "ia3", "nf4", "int8"])
def test_what_would_freeze_the_gates_is_refused(other: str) -> None:
    with pytest.raises(PlanConflict, match="the gates would be frozen"):
        check([GLU(), find(other)()])
