from __future__ import annotations

import copy
import importlib.util

import pytest
import torch
from torch import Tensor, nn

from snugfit.core.batch import Batch
from snugfit.core.technique import Context
from snugfit.errors import MissingExtra, PlanConflict, SettingError, SnugfitWarning
from snugfit.kit.precision.product_rounding import lacks_capability
from snugfit.step.step import Step
from snugfit.techniques import find
from snugfit.techniques.numerics import fp8
from snugfit.techniques.numerics.fp8 import FP8, choose_layers, fp8_linear, in_fp8
from tests.laws import problems
from tests.unit.techniques.settings import context, refuses

CUDA = torch.device("cuda")


def source(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=source(seed))


def llama() -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=32,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        made: nn.Module = LlamaForCausalLM(config)
    return made


def texts(count: int) -> list[dict[str, Tensor]]:
    """Each token is the one before it plus 3, or now and then plus 5."""
    draws = source(1)
    made = []
    for _ in range(count):
        steps = torch.where(torch.rand(8, 12, generator=draws) < 0.2, 5, 3)
        ids = (torch.randint(0, 64, (8, 1), generator=draws) + steps.cumsum(dim=1)) % 64
        made.append({"input_ids": ids, "labels": ids.clone()})
    return made


def test_impossible_settings_are_refused() -> None:
    refuses(FP8, smallest=0)


def test_a_product_is_off_by_as_much_as_three_bits_of_fraction_say() -> None:
    inputs, weight = numbers(50, 256), numbers(64, 256, seed=1)
    exact = inputs.double() @ weight.double().T
    error = float((fp8_linear(inputs, weight, emulate=True) - exact).norm() / exact.norm())
    assert 0.01 < error < 2**-4, "at most 2^-4 of each operand, some 2^-5.3 on average"


def test_a_token_is_rounded_by_its_own_scale_whatever_stands_beside_it() -> None:
    """With one scale a tensor, a large row would round the others away, and the split would be part of the result."""
    weight = nn.Parameter(numbers(8, 16, seed=1))
    rows = numbers(6, 3, 16)
    rows[2] *= 1e4
    together = fp8_linear(rows, weight, emulate=True)
    alone = torch.cat([fp8_linear(row.unsqueeze(0), weight, emulate=True) for row in rows])
    torch.testing.assert_close(alone, together, rtol=1e-5, atol=1e-5)
    by_itself = fp8_linear(rows[:1], weight, emulate=True)
    assert torch.allclose(by_itself, nn.functional.linear(rows[:1], weight), atol=1.0)
    gradient = numbers(6, 3, 8, seed=2)
    gradient[2] *= 1e4
    found = [torch.zeros_like(rows) for _ in range(2)]
    for place, parts in enumerate(([slice(0, 6)], [slice(row, row + 1) for row in range(6)])):
        for part in parts:
            given = rows[part].clone().requires_grad_()
            fp8_linear(given, weight, emulate=True).backward(gradient[part])
            assert given.grad is not None
            found[place][part] = given.grad
    torch.testing.assert_close(found[0][[0, 1, 3, 4, 5]], found[1][[0, 1, 3, 4, 5]], rtol=1e-5, atol=1e-5)
    assert found[0][0].norm() > 1


def test_the_gradient_of_the_weight_is_a_product_of_what_was_not_rounded() -> None:
    inputs, gradient = numbers(20, 16), numbers(20, 8, seed=2)
    weight = nn.Parameter(numbers(8, 16, seed=1))
    given = inputs.clone().requires_grad_()
    fp8_linear(given, weight, emulate=True).backward(gradient)
    assert weight.grad is not None and given.grad is not None
    torch.testing.assert_close(weight.grad, gradient.T @ inputs)
    error = (given.grad - gradient @ weight).norm() / given.grad.norm()
    assert 0.005 < float(error) < 2**-4


def test_inputs_may_lie_in_memory_in_any_order_and_inference_mode_may_be_on() -> None:
    weight = nn.Parameter(numbers(8, 16, seed=1))
    across = numbers(4, 16, 5).transpose(1, 2)
    expected = fp8_linear(across.contiguous(), weight, emulate=True).detach()
    assert torch.equal(fp8_linear(across, weight, emulate=True), expected)
    with torch.inference_mode():
        assert torch.equal(fp8_linear(across.clone(), weight, emulate=True), expected)
    fp8_linear(across, weight, emulate=True).sum().backward()
    assert weight.grad is not None


def test_it_is_what_torchaos_own_converted_layer_computes() -> None:
    from dataclasses import replace

    from torchao.float8 import Float8LinearConfig, convert_to_float8_training

    config = replace(Float8LinearConfig.from_recipe_name("rowwise_with_gw_hp"), emulate=True)
    layer = nn.Linear(16, 32)
    theirs = convert_to_float8_training(copy.deepcopy(layer), config=config)
    inputs = numbers(3, 5, 16)
    with in_fp8(layer, emulate=True):
        found = layer(inputs)
    expected = theirs(inputs)
    assert torch.equal(found, expected)
    found.square().sum().backward()
    expected.square().sum().backward()
    for one, other in zip(layer.parameters(), theirs.parameters(), strict=True):
        assert one.grad is not None and other.grad is not None and torch.equal(one.grad, other.grad)


def test_under_autocast_outputs_are_in_bf16_and_gradients_in_float32() -> None:
    layer, inputs = nn.Linear(16, 16), numbers(3, 16)
    with in_fp8(layer, emulate=True), torch.autocast("cpu", dtype=torch.bfloat16):
        outputs = layer(inputs)
    assert outputs.dtype == torch.bfloat16
    outputs.float().sum().backward()
    assert layer.weight.grad is not None and layer.weight.grad.dtype == torch.float32


def test_the_head_small_layers_and_odd_sizes_stay_and_each_has_its_reason() -> None:
    model = nn.Sequential(
        nn.Linear(64, 64), nn.Linear(64, 40), nn.Linear(40, 64), nn.Linear(64, 16), nn.Linear(16, 64)
    )
    choice = choose_layers(nn.Sequential(model, nn.Linear(64, 64)), smallest=32, skip=["0.0"])
    assert dict(choice.left) == {
        "0.0": "is named by fp8.skip",
        "0.1": "has 40 outputs, no multiple of 16",
        "0.2": "has 40 inputs, no multiple of 16",
        "0.3": "has 16 outputs",
        "0.4": "has 16 inputs",
        "1": "makes the logits",
    }
    assert list(choose_layers(model, smallest=32).fp8) == ["0"]
    with pytest.raises(SettingError, match=r"^fp8\.skip: 'head' matches no"):
        FP8(skip=("head",), emulate=True).seams(context(model))


def test_of_a_stock_llama_all_layers_but_the_head_are_chosen_and_of_gpt2_its_conv1d() -> None:
    choice = choose_layers(llama(), smallest=16)
    assert len(choice.fp8) == 14 and dict(choice.left) == {"lm_head": "makes the logits"}
    choice = choose_layers(problems.gpt2(()).model(), smallest=2, multiple=1)
    assert sorted({type(layer).__name__ for layer in choice.fp8.values()}) == ["Conv1D"]
    assert len(choice.fp8) == 4 and list(choice.left) == ["lm_head"]
    choice = choose_layers(problems.bert(()).model(), smallest=2, multiple=1)
    assert list(choice.left) == ["classifier"]


def test_a_conv1d_multiplies_by_its_weight_as_it_lies() -> None:
    from transformers.pytorch_utils import Conv1D

    layer = Conv1D(8, 16)
    inputs = numbers(2, 3, 16)
    with in_fp8(layer, emulate=True):
        found = layer(inputs)
    # sums may be added up in another order where the weight lies otherwise; to round to fp8 is 1e5 times as much
    torch.testing.assert_close(
        found, fp8_linear(inputs, layer.weight.T.contiguous(), layer.bias, emulate=True), atol=1e-7, rtol=1e-5
    )
    assert not torch.allclose(found, layer(inputs), atol=1e-4)


def test_a_model_in_which_nothing_is_large_enough_is_refused() -> None:
    with pytest.raises(
        SettingError, match=r"^plan\.numerics: fp8 .* with 1024 .*'0' has 64 inputs.*Use plan\.numerics: bf16"
    ):
        FP8(emulate=True).seams(context(nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 2))))
    with pytest.raises(SettingError, match="there is none"):
        FP8(emulate=True).seams(context(nn.Conv2d(1, 1, 1)))


def test_what_stays_beside_the_head_is_warned_of() -> None:
    model = nn.Sequential(nn.Linear(32, 32), nn.Linear(32, 8), nn.Linear(8, 2))
    with pytest.warns(
        SnugfitWarning, match=r"^fp8: 1 of 2 linear layers stay in bf16, such as '1', which has 8 outputs\.$"
    ):
        FP8(smallest=16, emulate=True).seams(context(model))


@pytest.mark.parametrize(
    ("capability", "instead"), [((8, 6), "bf16"), ((8, 0), "bf16"), ((7, 5), "fp16"), ((6, 1), "fp32")]
)
def test_a_gpu_without_it_is_refused_and_the_best_that_it_has_is_named(
    monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], instead: str
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: capability >= (8, 0))
    found = rf"compute capability {capability[0]}\.{capability[1]}, and fp8 begins at 8\.9\. Use plan\.numerics: {instead},"
    with pytest.raises(SettingError, match=found):
        FP8().seams(Context(nn.Linear(1, 1), CUDA))


def large() -> nn.Module:
    """Its first layer computes in fp8."""
    with torch.device("meta"):
        return nn.Sequential(nn.Linear(1024, 1024), nn.Linear(1024, 2))


def test_a_device_without_it_is_said_before_the_sizes_of_layers() -> None:
    with pytest.raises(SettingError, match="fp8 is not to be had, as cpu is no CUDA device"):
        Step(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2)), None, techniques=[FP8()])


def test_a_gpu_with_it_is_taken_and_a_cpu_only_to_emulate(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        SettingError, match=r"cpu is no CUDA device\. Use plan\.numerics: bf16, or .*emulate: true"
    ):
        FP8().seams(context())
    assert FP8(emulate=True).seams(context(large())).modules is not None
    with pytest.raises(SettingError, match=r"mps has not\. Use plan\.numerics: fp32\."):
        FP8(emulate=True).seams(Context(nn.Linear(1, 1), torch.device("mps")))
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: True)
    for capability in ((8, 9), (9, 0), (12, 0)):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device, found=capability: found)
        assert FP8().seams(Context(large(), CUDA)).modules is not None
    monkeypatch.setattr(torch.version, "hip", "6.4")
    with pytest.raises(SettingError, match="is no CUDA device"):
        FP8().seams(Context(nn.Linear(1, 1), CUDA))


def test_without_torchao_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    fp8._product.cache_clear()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match="quantization"):
        fp8_linear(torch.ones(1, 2), torch.ones(2, 2), emulate=True)


def test_a_stock_model_keeps_names_and_classes_and_is_copied_saved_and_loaded_as_it_was() -> None:
    plain = llama()
    step = Step(
        copy.deepcopy(plain), find("adamw")(), "causal_lm", [FP8(smallest=16, emulate=True)], micro_batch=3
    )
    assert step(texts(1)[0]).applied
    model = step.model
    assert list(model.state_dict()) == list(plain.state_dict())
    assert [type(module) for module in model.modules()] == [type(module) for module in plain.modules()]
    assert not any("forward" in vars(module) for module in model.modules())
    copied = copy.deepcopy(model)
    plain.load_state_dict(model.state_dict())
    assert step.seams.export is None
    for name, tensor in model.state_dict().items():
        assert torch.equal(copied.state_dict()[name], tensor) and torch.equal(
            plain.state_dict()[name], tensor
        )


def test_beside_adapters_the_frozen_base_is_in_fp8_and_the_adapters_are_not() -> None:
    techniques = [FP8(smallest=8, emulate=True), find("lora")(rank=16)]
    step = Step(llama(), find("adamw")(), "causal_lm", techniques)
    choice = choose_layers(step.model, smallest=8)
    assert len(choice.fp8) == 14 and all(name.endswith(".base_layer") for name in choice.fp8)
    before = {name: weight.clone() for name, weight in step.model.state_dict().items()}
    assert step(texts(1)[0]).applied
    changed = {
        name for name, weight in step.model.state_dict().items() if not torch.equal(weight, before[name])
    }
    assert changed and all("lora_" in name for name in changed)
    assert step.seams.export is not None
    exported = step.seams.export(step.model)
    assert list(exported.state_dict()) == list(llama().state_dict())


def test_torchs_own_encoder_layer_is_in_fp8_in_evaluation_too() -> None:
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True).eval()
    model = nn.Sequential(layer, nn.Linear(16, 2))
    technique = FP8(smallest=16, skip=("self_attn",), emulate=True)
    seams = technique.seams(context(model))
    assert seams.modules is not None
    inputs = numbers(2, 3, 16)
    with torch.no_grad(), seams.modules(Batch.of(inputs)):
        found = model(inputs)
    with torch.no_grad():
        assert float((found - model(inputs)).norm() / found.norm()) > 1e-3
    assert torch.backends.mha.get_fastpath_enabled()


@pytest.mark.parametrize("other", ["bf16", "qat", "nf4", "int8", "tiled_linear"])
def test_what_says_otherwise_how_a_layer_computes_is_refused(other: str) -> None:
    with pytest.raises(PlanConflict, match="'fp8'"):
        Step(llama(), find("adamw")(), techniques=[FP8(emulate=True), find(other).example()])


@pytest.mark.slow
def test_a_stock_llama_learns_in_fp8_as_in_bf16_and_fp32() -> None:
    losses = {}
    for name, techniques in (
        ("fp32", []),
        ("bf16", [find("bf16")()]),
        ("fp8", [FP8(smallest=16, emulate=True)]),
    ):
        step = Step(llama(), find("adamw")(learning_rate=1e-2), "causal_lm", techniques)
        losses[name] = [step(window).loss for window in texts(60)]
    assert losses["fp32"][0] > 4 and losses["fp32"][-1] < 1.5
    late = {name: sum(found[-10:]) / 10 for name, found in losses.items()}
    assert late["fp8"] == pytest.approx(late["fp32"], rel=0.05) and late["bf16"] == pytest.approx(
        late["fp32"], rel=0.05
    )
    assert losses["fp8"] != losses["bf16"]


@pytest.mark.skipif(
    not torch.cuda.is_available() or lacks_capability(CUDA, fp8.CAPABILITY, "fp8") is not None,
    reason="needs a GPU with fp8",
)
@pytest.mark.parametrize("tokens", [48, 37])
def test_a_gpu_computes_what_is_emulated(tokens: int) -> None:
    weight = nn.Parameter(numbers(128, 64, seed=1).cuda())
    results = []
    for emulate in (False, True):
        inputs = numbers(2, tokens, 64).cuda().requires_grad_()
        with torch.autocast("cuda", dtype=torch.bfloat16):
            outputs = fp8_linear(inputs, weight, emulate=emulate)
        outputs.backward(numbers(2, tokens, 128, seed=2).cuda().bfloat16())
        assert inputs.grad is not None
        results.append((outputs.float(), inputs.grad))
    for found, expected in zip(*results, strict=True):
        assert float((found - expected).norm() / expected.norm()) < 2**-7
