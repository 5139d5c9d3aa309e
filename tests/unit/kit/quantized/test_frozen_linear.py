"""Quantised linear layers, whatever their format: what they compute, keep, refuse and give back."""

from __future__ import annotations

import copy
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from snugfit.errors import ModelError, SettingError, SnugfitWarning
from snugfit.kit import mapped_tensors
from snugfit.kit.adapters.adapter_files import load_adapter, save_adapter
from snugfit.kit.adapters.adapters import merge_, merged
from snugfit.kit.quantized.frozen_linear import QuantisedLinear, weights_unread
from snugfit.kit.quantized.quantize import dequantised
from snugfit.step.build import describe_model
from snugfit.step.step import Step
from snugfit.techniques.learning.lora import LoRA, lora_
from snugfit.techniques.learning.sgd import SGD
from snugfit.techniques.numerics.int8 import Int8, int8_
from snugfit.techniques.numerics.nf4 import NF4, nf4_
from tests.laws.compare import differences
from tests.unit.techniques.live_memory import Live

QUANTISERS = [nf4_, int8_]
each_format = pytest.mark.parametrize("quantise_", QUANTISERS, ids=["nf4", "int8"])


class Reader(nn.Module):
    """Somebody's module: attention, a tied output, a layer that stands twice, a norm."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(11, 16)
        self.attention = nn.MultiheadAttention(16, 2, batch_first=True)
        self.up, self.down = nn.Linear(16, 48), nn.Linear(48, 16, bias=False)
        self.norm = nn.LayerNorm(16)
        self.twice = nn.ModuleList([nn.Linear(16, 16)] * 2)
        self.output = nn.Linear(16, 11)
        self.output.weight = self.tokens.weight

    def forward(self, ids: Tensor) -> Tensor:
        hidden = self.tokens(ids)
        hidden = hidden + self.attention(hidden, hidden, hidden, need_weights=False)[0]
        hidden = self.norm(hidden + self.down(self.up(hidden).relu()))
        for layer in self.twice:
            hidden = hidden + layer(hidden)
        logits: Tensor = self.output(hidden)
        return logits


IDS = torch.arange(22).reshape(2, 11) % 11


def reader() -> Reader:
    torch.manual_seed(0)
    return Reader()


def pair() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(24, 40), nn.Tanh(), nn.Linear(40, 3))


def gpt2() -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=11, n_positions=16, n_embd=32, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0
    )
    return GPT2LMHeadModel(config).eval()


def quantised_names(model: nn.Module) -> list[str]:
    return [name for name, module in model.named_modules() if isinstance(module, QuantisedLinear)]


@each_format
def test_only_layers_whose_weight_is_their_own_are_quantised(quantise_: Any) -> None:
    assert quantised_names(quantise_(reader())) == ["up", "down"]
    assert quantised_names(quantise_(reader(), skip=["up"])) == ["down"]
    blocks = [f"transformer.h.{block}" for block in (0, 1)]
    layers = ["attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj"]
    assert quantised_names(quantise_(gpt2())) == [f"{block}.{layer}" for block in blocks for layer in layers]


@each_format
def test_a_stock_classifiers_head_stays_whole(quantise_: Any) -> None:
    from transformers import RobertaConfig, RobertaForSequenceClassification

    sizes = {"vocab_size": 11, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    model = quantise_(RobertaForSequenceClassification(RobertaConfig(**sizes, intermediate_size=16)))
    assert len(quantised_names(model)) == 6
    assert not any(name.startswith("classifier") for name in quantised_names(model))


@each_format
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_forward_and_backward_are_those_of_a_plain_layer_with_the_whole_weight(
    quantise_: Any, dtype: torch.dtype
) -> None:
    layer = quantise_(pair().to(dtype))[0]
    plain = layer.whole()
    inputs = [torch.randn(5, 24, dtype=dtype).requires_grad_() for _ in range(2)]
    with torch.no_grad():
        inputs[1].copy_(inputs[0])
    outputs = [layer(inputs[0]), plain(inputs[1])]
    for output in outputs:
        output.square().sum().backward()
    tolerance = {"rtol": 0.02, "atol": 0.05} if dtype == torch.bfloat16 else {"rtol": 1e-5, "atol": 1e-6}
    torch.testing.assert_close(
        outputs[0], outputs[1], **tolerance
    )  # the bias is added after the product is rounded
    torch.testing.assert_close(inputs[0].grad, inputs[1].grad, **tolerance)
    assert plain.weight.dtype == layer.weight.dtype == outputs[0].dtype == dtype
    assert layer.bias.grad is not None


@each_format
def test_under_autocast_it_computes_in_16_bit(quantise_: Any) -> None:
    layer, inputs = quantise_(pair())[0], torch.randn(5, 24, requires_grad=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = layer(inputs)
        assert layer(inputs.double()).dtype == torch.float64
    output.float().sum().backward()
    assert (output.dtype, inputs.grad.dtype) == (torch.bfloat16, torch.float32)  # type: ignore[union-attr]
    torch.testing.assert_close(output.float(), layer(inputs), rtol=0.02, atol=0.05)


@each_format
def test_backward_keeps_what_is_quantised_and_no_whole_weight(quantise_: Any) -> None:
    model = quantise_(nn.Sequential(nn.Linear(64, 256, bias=False), nn.Linear(256, 1)))
    saved: list[Tensor] = []
    with saved_tensors_hooks(lambda tensor: saved.append(tensor) or tensor, lambda tensor: tensor):
        model[0](torch.randn(2, 64, requires_grad=True))
    assert {tensor.data_ptr() for tensor in saved} == {tensor.data_ptr() for tensor in model[0].parameters()}


@each_format
def test_a_weight_that_is_not_read_has_its_shape_and_type_and_takes_no_memory(quantise_: Any) -> None:
    layer = quantise_(nn.Sequential(nn.Linear(128, 64), nn.Linear(64, 2)))[0]
    whole = layer.weight
    with weights_unread():
        weight = layer.weight
        assert (weight.shape, weight.dtype, weight.device) == (whole.shape, whole.dtype, whole.device)
        held = {each.untyped_storage().data_ptr() for each in layer.parameters()}
        assert weight.untyped_storage().data_ptr() in held and layer.weight is weight
    assert torch.equal(layer.weight, whole)


@each_format
def test_a_weight_of_less_bytes_than_a_number_has_its_shape_and_type_too(quantise_: Any) -> None:
    layer = quantise_(nn.Sequential(nn.Linear(2, 1), nn.Linear(1, 64)))[0]
    assert isinstance(layer, QuantisedLinear)
    with weights_unread():
        assert (layer.weight.shape, layer.weight.dtype) == ((1, 2), torch.float32)


@each_format
def test_casts_and_copies_leave_every_bit_of_it(quantise_: Any) -> None:
    model = quantise_(reader())
    before, logits = copy.deepcopy(model.state_dict()), model(IDS)
    copied = copy.deepcopy(model)
    assert torch.equal(copied(IDS), logits)
    for dtype in (torch.float64, torch.bfloat16, torch.float16, torch.float32):
        copied.to(dtype)
    for name in quantised_names(model):
        for key, parameter in copied.get_submodule(name).named_parameters():
            if key != "bias":
                assert torch.equal(parameter, before[f"{name}.{key}"]) and not parameter.is_floating_point()
    assert copied.up.weight.dtype == torch.float32
    torch.testing.assert_close(model.double()(IDS), logits.double(), rtol=1e-5, atol=1e-5)
    fresh = quantise_(Reader())
    fresh.load_state_dict(before)
    assert torch.equal(fresh(IDS), logits)


@each_format
@pytest.mark.parametrize("make", [reader, gpt2])
def test_the_model_comes_back_as_its_library_made_it(quantise_: Any, make: Any) -> None:
    plain, model = make().eval(), quantise_(make()).eval()
    whole = dequantised(model)
    assert {n: (p.shape, p.dtype) for n, p in whole.named_parameters()} == {
        n: (p.shape, p.dtype) for n, p in plain.named_parameters()
    }
    assert [type(module) for module in whole.modules()] == [type(module) for module in plain.modules()]
    assert all(parameter.requires_grad for parameter in whole.parameters())
    plain.load_state_dict(whole.state_dict())
    outputs = [each(IDS) if make is reader else each(IDS).logits for each in (model, whole, plain)]
    torch.testing.assert_close(outputs[1], outputs[0], rtol=1e-5, atol=1e-5)
    assert torch.equal(outputs[1], outputs[2])
    assert quantised_names(model), "the model itself stays quantised"
    assert dequantised(whole) is whole


@each_format
@pytest.mark.parametrize("dora", [False, True])
@pytest.mark.parametrize("make", [reader, gpt2])
def test_adapters_on_it_are_merged_into_whole_weights(quantise_: Any, dora: bool, make: Any) -> None:
    model = lora_(quantise_(make()), rank=2, dora=dora).eval()
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            nn.init.normal_(parameter, std=0.1)
    plain = merged(model)
    assert [(n, p.shape) for n, p in plain.named_parameters()] == [
        (n, p.shape) for n, p in make().named_parameters()
    ]
    one, other = (each(IDS) if make is reader else each(IDS).logits for each in (model, plain))
    torch.testing.assert_close(other, one, rtol=1e-4, atol=1e-4)  # each product is rounded once more
    with pytest.raises(SettingError, match=r"weight of '.+' is quantised, .+ Take merged\(model\)"):
        merge_(model)


def _frozen_(model: nn.Module) -> nn.Module:
    return model.requires_grad_(False)


@pytest.mark.parametrize(
    ("quantise_", "adapted"),
    [(nf4_, False), (nf4_, True), (int8_, False), (int8_, True), (_frozen_, True)],
)
def test_what_is_delivered_is_made_in_files_one_weight_at_a_time(
    quantise_: Any, adapted: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twelve layers of 64 KiB in float32: in memory no more than what one of them takes to be made, and no second base."""
    monkeypatch.setattr(mapped_tensors, "_SMALL", 1024)
    torch.manual_seed(0)
    model = quantise_(nn.Sequential(*(nn.Linear(128, 128) for _ in range(12)), nn.Linear(128, 2)))
    if adapted:
        lora_(model, rank=2)
    make = merged if adapted else dequantised
    plain = make(model)
    parameter_bytes = sum(parameter.nbytes for parameter in model.parameters())
    with mapped_tensors.making_in_files(tmp_path):
        found = make(model)
    assert not differences(dict(plain.state_dict()), dict(found.state_dict()))
    assert not list(tmp_path.iterdir()), "the files have no name"
    peaks = []
    for write in (lambda tensor, _: tensor.new_empty(()).expand(tensor.shape), lambda tensor, _: tensor):
        monkeypatch.setattr(
            mapped_tensors, "in_file", write
        )  # as if it were in a file, and as if it stayed in memory
        with Live() as live, mapped_tensors.making_in_files(tmp_path):
            make(model)
        peaks.append(live.peak - parameter_bytes)
    layer = 4 * 128 * 128
    assert peaks[0] < 1.8 * layer
    assert peaks[1] > peaks[0] + 10 * layer


@each_format
def test_in_eval_mode_torchs_fused_encoder_layer_sees_the_whole_weights(quantise_: Any) -> None:
    model = nn.Sequential(nn.TransformerEncoderLayer(16, 2, 32, 0.0, batch_first=True), nn.Linear(16, 2))
    inputs = torch.randn(2, 5, 16)
    quantise_(model)
    trained = model(inputs)
    with torch.no_grad():
        torch.testing.assert_close(model.eval()(inputs), trained, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("technique", [NF4, Int8])
def test_what_cannot_be_quantised_is_refused_with_the_way_out(technique: Any) -> None:
    name = technique.card.name
    with pytest.raises(SettingError, match=f"^{name}.skip: 'upp' matches no module .* Did you mean 'up'?"):
        technique(skip=("upp",)).prepare(reader())
    for model in (nn.Linear(4, 4), nn.Sequential(nn.Conv2d(1, 2, 3), nn.Linear(4, 4))):
        with pytest.raises(SettingError, match=f"^{name}: the model has no linear layer to quantise"):
            technique().prepare(model)
    with pytest.raises(SettingError, match=f"^{name}: the model has adapters already"):
        technique().prepare(lora_(reader(), targets=["up"]))
    bare = nn.Sequential(nn.Linear(8, 8, bias=False), nn.Linear(8, 8).requires_grad_(False))
    with pytest.raises(
        SettingError, match=f"nothing to train. {name} freezes what it quantises: add adapters"
    ):
        Step(bare, SGD(), techniques=[technique()])


@pytest.mark.parametrize("technique", [NF4, Int8])
def test_only_what_is_not_quantised_trains(technique: Any) -> None:
    step = Step(pair(), SGD(learning_rate=0.1), techniques=[technique()])
    before = {name: p.detach().clone() for name, p in step.model.named_parameters()}
    step((torch.randn(4, 24), torch.tensor([0, 1, 2, 0])))
    moved = {name for name, p in step.model.named_parameters() if not torch.equal(p, before[name])}
    assert moved == {"0.bias", "2.weight", "2.bias"}


@pytest.mark.parametrize("technique", [NF4(), Int8()], ids=["nf4", "int8"])
def test_without_adapters_it_is_said_how_little_trains(
    technique: Any, recwarn: pytest.WarningsRecorder
) -> None:
    def model() -> nn.Module:
        return nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 2))

    name = technique.card.name
    with pytest.warns(SnugfitWarning, match=rf"^{name}: .*no adapters: 194 parameters train.*Add lora"):
        Step(model(), SGD(), techniques=[technique])
    recwarn.clear()
    Step(model(), SGD(), techniques=[technique, LoRA()])
    assert not [each for each in recwarn if issubclass(each.category, SnugfitWarning)]


@each_format
@pytest.mark.parametrize("make", [Reader, gpt2], ids=["own", "gpt2"])
def test_a_quantised_weight_counts_as_it_was(quantise_: Any, make: Any) -> None:
    model = make()
    whole = describe_model(model)["total"]
    quantised = describe_model(quantise_(model))
    assert quantised["total"] == whole > quantised["trainable"]


@pytest.mark.parametrize("technique", [NF4, Int8])
def test_adapters_are_exported_before_the_weights_below_them_and_both_are_gone(technique: Any) -> None:
    for order in ([technique(), LoRA()], [LoRA(), technique()]):
        step = Step(pair(), SGD(learning_rate=0.1), techniques=order)
        step((torch.randn(4, 24), torch.tensor([0, 1, 2, 0])))
        assert step.seams.export is not None
        exported = step.seams.export(step.model)
        assert [type(layer) for layer in exported] == [nn.Linear, nn.Tanh, nn.Linear]


@each_format
def test_an_adapter_for_another_base_is_refused_by_name_or_shape(quantise_: Any, tmp_path: Any) -> None:
    save_adapter(lora_(quantise_(pair()), rank=2, targets=["0"]), tmp_path)
    others = [
        nn.Sequential(nn.Linear(16, 40), nn.Linear(40, 3)),
        nn.Sequential(nn.Tanh(), nn.Linear(24, 40), nn.Linear(40, 3)),
    ]
    for other in others:
        with pytest.raises(ModelError, match="is of another model"):
            load_adapter(quantise_(other), tmp_path)
    again = load_adapter(quantise_(pair()), tmp_path)
    assert isinstance(again[0].get_base_layer(), QuantisedLinear)  # type: ignore[index]


@each_format
def test_a_base_without_the_target_modules_is_refused_with_the_nearest_name(quantise_: Any) -> None:
    with pytest.raises(SettingError, match="lora.targets: 'c_atn' matches no module .*Did you mean 'c_attn'"):
        lora_(quantise_(gpt2()), targets=["c_atn"])


def test_a_linear_layer_with_a_forward_of_its_own_is_left_alone() -> None:
    class Doubled(nn.Linear):
        def forward(self, input: Tensor) -> Tensor:
            return 2 * F.linear(input, self.weight, self.bias)

    assert quantised_names(nf4_(nn.Sequential(Doubled(4, 4), nn.Linear(4, 4), nn.Linear(4, 2)))) == ["1"]


def test_bitsandbytes_says_nothing_while_it_is_imported() -> None:
    assert logging.getLogger("bitsandbytes.backends.cpu.ops").disabled
