from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from snugfit.errors import SettingError
from snugfit.techniques.learning.qk_norm import QKNorm, rms_normalised
from tests.laws import problems
from tests.unit.techniques.settings import refuses


def test_an_impossible_width_is_refused() -> None:
    refuses(QKNorm, head_dim=0)


def test_a_head_has_the_root_mean_square_of_its_scale() -> None:
    heads = torch.randn(5, 7, 2, 16) * 40
    found = rms_normalised(heads, torch.full((16,), 3.0))
    torch.testing.assert_close(found.square().mean(dim=-1).sqrt(), torch.full((5, 7, 2), 3.0))
    assert rms_normalised(heads.bfloat16(), torch.ones(16)).dtype == torch.bfloat16


def attention(**options: Any) -> nn.MultiheadAttention:
    torch.manual_seed(0)
    made = nn.MultiheadAttention(8, 2, **options)
    with torch.no_grad():
        made.in_proj_weight *= 5
    return made


def normed(model: nn.Module, **settings: Any) -> nn.Module:
    return QKNorm(**settings).prepare(copy.deepcopy(model))


def test_scaled_up_queries_and_keys_change_nothing() -> None:
    """What it is for: logits of attention cannot grow with the weights."""
    plain, bounded = attention(batch_first=True), normed(attention(batch_first=True))
    hidden = torch.randn(2, 5, 8)
    changes = []
    for model in (plain, bounded):
        before = model(hidden, hidden, hidden)[0]
        with torch.no_grad():
            model.in_proj_weight[:16] *= 10
            model.in_proj_bias[:16] *= 10
        changes.append(float((model(hidden, hidden, hidden)[0] - before).detach().norm()))
    assert changes[1] < 1e-4 < 0.1 < changes[0]


MASKS = {
    "none": {},
    "padding": {"key_padding_mask": torch.tensor([[False] * 5, [False] * 3 + [True] * 2])},
    "causal": {"attn_mask": torch.ones(5, 5, dtype=torch.bool).triu(1)},
    "additive": {"attn_mask": torch.randn(5, 5)},
    "for each head": {"attn_mask": torch.randn(4, 5, 5)},
}


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("bias", [True, False])
def test_with_its_norms_taken_out_it_is_torchs_attention(
    mask: dict[str, Tensor], batch_first: bool, bias: bool
) -> None:
    plain = attention(batch_first=batch_first, bias=bias)
    changed = normed(plain)
    changed.query_norm = changed.key_norm = nn.Identity()
    hidden = torch.randn(2, 5, 8) if batch_first else torch.randn(5, 2, 8)
    for options in ({"need_weights": False}, {}, {"average_attn_weights": False}):
        expected = plain(hidden, hidden, hidden, **mask, **options)
        found = changed(hidden, hidden, hidden, **mask, **options)
        torch.testing.assert_close(found[0], expected[0])
        if options == {"need_weights": False}:
            assert found[1] is None
        else:
            torch.testing.assert_close(found[1], expected[1])


@pytest.mark.parametrize("nested", [False, True])
def test_evaluation_does_not_pass_the_norms_by(nested: bool) -> None:
    """Torch's layers have a fast path in evaluation that reads the weights themselves."""
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=nested)
    model = normed(model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3.0)
        padding = torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
        hidden = torch.randn(2, 5, 8)
        expected = model.train()(hidden, src_key_padding_mask=padding)
        found = model.eval()(hidden, src_key_padding_mask=padding)
    torch.testing.assert_close(found[~padding], expected[~padding])


@pytest.mark.parametrize("make", [problems.bert, problems.vit])
def test_queries_and_keys_of_stock_models_have_unit_size_and_values_do_not(make: problems.Maker) -> None:
    problem = make(())
    model = normed(problem.model())
    seen: dict[str, Tensor] = {}
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear) and module.out_features == 8:
            module.register_forward_hook(
                lambda _m, _i, output, name=name: seen.update({name: output.detach()})
            )
    window = {**problem.windows()[0]}
    del window["labels"]
    model(**window)
    sizes = {name: rms(output) for name, output in seen.items()}
    norms = [name for name, _ in model.named_parameters() if name.endswith("head_norm.weight")]
    assert len(norms) == 2
    for name in norms:
        torch.testing.assert_close(
            sizes[name.removesuffix(".head_norm.weight")],
            torch.tensor(1.0, dtype=torch.float64),
            rtol=1e-2,
            atol=0,
        )
    assert any(abs(float(size) - 1) > 0.1 for size in sizes.values())


def rms(output: Tensor) -> Tensor:
    return output.unflatten(-1, (2, 4)).square().mean(dim=-1).sqrt().mean()


def test_a_copy_of_the_model_has_norms_of_its_own() -> None:
    model = normed(problems.bert(()).model())
    other = copy.deepcopy(model)
    with torch.no_grad():
        for name, parameter in other.named_parameters():
            if "head_norm" in name:
                parameter.zero_()
    window = {**problems.bert(()).windows()[0]}
    del window["labels"]
    assert not torch.equal(model(**window).logits, other(**window).logits)


def test_a_fused_projection_is_refused_by_name() -> None:
    with pytest.raises(
        SettingError, match=r"qk_norm.projections: 'transformer.h.0.attn.c_attn' gives queries, keys and"
    ):
        QKNorm().prepare(problems.gpt2(()).model())


def test_a_pattern_without_a_match_is_refused() -> None:
    with pytest.raises(
        SettingError, match=r"^qk_norm\.projections: 'q_proj' matches no Linear of .*: query, key, value"
    ):
        QKNorm(projections=("query", "q_proj")).prepare(problems.bert(()).model())
    with pytest.raises(
        SettingError, match=r"the model has no attention that is known\. .* linear layers: 0, 1\.$"
    ):
        QKNorm().prepare(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)))


def test_the_end_of_a_name_says_which_projections() -> None:
    model = QKNorm(projections=("attention.self.query",)).prepare(problems.bert(()).model())
    normed = [name for name, module in model.named_modules() if hasattr(module, "head_norm")]
    assert normed and all(name.startswith("bert.") and name.endswith(".query") for name in normed)


def test_a_width_of_heads_that_is_not_known_is_asked_for() -> None:
    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.q_proj, self.k_proj = nn.Linear(8, 8), nn.Linear(8, 4)

    with pytest.raises(SettingError, match=r"'q_proj' \(8 outputs\) is not known.* Give qk_norm.head_dim"):
        QKNorm().prepare(Attention())
    with pytest.raises(SettingError, match=r"'k_proj' \(4 outputs\) .* \(found 8\)"):
        QKNorm(head_dim=8).prepare(Attention())
    model = QKNorm(head_dim=4).prepare(Attention())
    keys = model.k_proj(torch.randn(3, 5, 8)).detach()
    torch.testing.assert_close(keys.square().mean(dim=-1), torch.ones(3, 5), rtol=1e-3, atol=0)


@pytest.mark.parametrize("options", [{"kdim": 4}, {"add_bias_kv": True}, {"add_zero_attn": True}], ids=str)
def test_an_attention_of_another_kind_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(SettingError, match="qk_norm: an nn.MultiheadAttention with kdim, vdim"):
        QKNorm().prepare(nn.MultiheadAttention(8, 2, **options))


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize(
    "mask",
    [{}, {"key_padding_mask": torch.tensor([False] * 4 + [True])}, {"attn_mask": torch.randn(2, 5, 5)}],
    ids=["none", "padding", "for each head"],
)
def test_one_row_without_a_dimension_for_rows_is_torchs_attention_too(
    mask: dict[str, Tensor], batch_first: bool
) -> None:
    plain = attention(batch_first=batch_first)
    changed = normed(plain)
    changed.query_norm = changed.key_norm = nn.Identity()
    queries, keys = torch.randn(5, 8), torch.randn(5, 8)
    for options in ({"need_weights": False}, {}, {"average_attn_weights": False}):
        expected = plain(queries, keys, keys, **mask, **options)
        found = changed(queries, keys, keys, **mask, **options)
        torch.testing.assert_close(found[0], expected[0])
        torch.testing.assert_close(found[1], expected[1])


def test_a_causal_hint_without_a_mask_is_refused_as_by_torch() -> None:
    """Taken as it stands, it would let every token see those behind it."""
    hidden = torch.randn(2, 5, 8)
    with pytest.raises(RuntimeError, match="Need attn_mask"):
        attention(batch_first=True)(hidden, hidden, hidden, is_causal=True)
    with pytest.raises(SettingError, match="qk_norm: .* is_causal=True and no mask.* Give attn_mask"):
        normed(attention(batch_first=True))(hidden, hidden, hidden, is_causal=True)
