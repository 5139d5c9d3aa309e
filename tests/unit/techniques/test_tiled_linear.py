from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from snugfit.core.batch import Batch
from snugfit.errors import SettingError
from snugfit.kit.adapters.adapters import merged
from snugfit.step.step import Step
from snugfit.techniques import find
from snugfit.techniques.placement.tiled_linear import TiledLinears, in_tiles, large_layers, tiled_linear
from tests.laws import problems
from tests.unit.techniques.settings import refuses

# float64 has 16 digits, and tiles only change the order of additions
EXACT = 1e-12


@pytest.mark.parametrize("tiles", [1, 2, 3, 7, 100])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(5,), (4, 5), (2, 3, 5), (0, 5)])
def test_tiles_give_the_outputs_and_the_gradients_of_the_layer(
    shape: tuple[int, ...], bias: bool, tiles: int
) -> None:
    layer = nn.Linear(5, 7, bias=bias).double()
    inputs = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    expected = layer(inputs)
    found = tiled_linear(inputs, layer.weight, layer.bias, tiles)
    torch.testing.assert_close(found, expected, rtol=EXACT, atol=EXACT)
    wanted = [inputs, *layer.parameters()]
    weights = torch.randn_like(expected)
    for one, other in zip(
        torch.autograd.grad(found, wanted, weights),
        torch.autograd.grad(expected, wanted, weights),
        strict=True,
    ):
        torch.testing.assert_close(one, other, rtol=EXACT, atol=EXACT)


def test_only_what_is_asked_for_gets_a_gradient() -> None:
    layer = nn.Linear(4, 6)
    layer.weight.requires_grad_(False)
    inputs = torch.randn(3, 4)
    tiled_linear(inputs, layer.weight, layer.bias, 2).sum().backward()
    assert layer.weight.grad is None and layer.bias.grad is not None


def test_under_autocast_it_computes_and_gives_gradients_as_the_layer_does() -> None:
    layer, inputs = nn.Linear(64, 32), torch.randn(16, 64, requires_grad=True)
    gradients, outputs = [], []
    for tiles in (None, 4):
        layer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            made = layer(inputs) if tiles is None else tiled_linear(inputs, layer.weight, layer.bias, tiles)
        outputs.append(made)
        wanted = [inputs, *layer.parameters()]
        gradients.append(torch.autograd.grad(made.float().square().sum(), wanted))
    assert outputs[0].dtype == outputs[1].dtype == torch.bfloat16
    torch.testing.assert_close(outputs[1], outputs[0], rtol=2**-8, atol=2**-8)  # one rounding to bf16
    for one, other in zip(*gradients, strict=True):
        assert one.dtype == other.dtype == torch.float32
        assert (one - other).norm() <= 2**-7 * one.norm()


class Largest(TorchDispatchMode):
    """Bytes of the largest tensors of a type that are made."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype, self.bytes = dtype, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        if isinstance(made, Tensor) and made.dtype == self.dtype and made._base is None:
            self.bytes = max(self.bytes, made.numel() * made.element_size())
        return made


def test_under_autocast_no_16_bit_tensor_is_larger_than_a_tile_or_the_outputs() -> None:
    tiles, layer, inputs = 8, nn.Linear(256, 512), torch.randn(2, 256, requires_grad=True)
    with Largest(torch.bfloat16) as plain:
        with torch.autocast("cpu", torch.bfloat16):
            made = layer(inputs)
        made.sum().backward()
    with Largest(torch.bfloat16) as tiled:
        with torch.autocast("cpu", torch.bfloat16):
            made = tiled_linear(inputs, layer.weight, layer.bias, tiles)
        made.sum().backward()
    assert plain.bytes == layer.weight.nbytes // 2
    assert tiled.bytes == layer.weight.nbytes // 2 // tiles


def stock_llama() -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"vocab_size": 64, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2}
    config = LlamaConfig(**sizes, num_attention_heads=2, num_key_value_heads=1, tie_word_embeddings=True)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return LlamaForCausalLM(config).double()


def windows() -> list[dict[str, Tensor]]:
    source = torch.Generator().manual_seed(0)
    made = [torch.randint(0, 64, (4, 6), generator=source) for _ in range(3)]
    return [{"input_ids": ids, "labels": ids} for ids in made]


@pytest.mark.parametrize("names", [[], ["lora"], ["chunked_loss"], ["muon"], ["adafactor"]])
def test_a_stock_model_trains_as_it_does_without_and_keeps_its_names(names: list[str]) -> None:
    steps = []
    for techniques in ([], [TiledLinears.example()]):
        others = [find(name).example() for name in names]
        optimizer = next(
            (each for each in others if "optimizer" in each.card.seams), find("sgd")(learning_rate=0.1)
        )
        rest = [each for each in others if each is not optimizer]
        steps.append(Step(stock_llama(), optimizer, "causal_lm", [*rest, *techniques], total_updates=5))
    plain, tiled = steps
    for window in windows():
        assert tiled(window).loss == pytest.approx(plain(window).loss, rel=1e-10)
    assert problems.weights(tiled).keys() == problems.weights(plain).keys()
    # Adafactor and Muon make steps of any rounding where a gradient is nearly zero
    assert problems.relative_error(problems.weights(tiled), problems.weights(plain)) <= 1e-9
    assert not any("forward" in vars(module) for module in tiled.model.modules()), "tiles have stayed behind"


def test_its_layers_compute_in_tiles_and_what_others_change_of_them_goes_around() -> None:
    """Qat hands its layer a rounded weight, which the tiles have to be of."""
    calls = []
    for techniques in ([TiledLinears.example()], [find("qat")(group_size=2), TiledLinears.example()]):
        model = nn.Sequential(nn.Linear(4, 6))
        step = Step(model, find("sgd")(), "cross_entropy", techniques)
        batch = torch.randn(2, 4)
        with step.seams.forward(Batch.of((batch, torch.zeros(2)))):
            outputs = model(batch)
        assert type(outputs.grad_fn).__name__ == "_TiledBackward"
        calls.append(not torch.allclose(outputs, model(batch)))
    assert calls == [False, True], "qat counts beside tiles"


@pytest.mark.parametrize("name", ["tiled_linear", "int8", "qat"])
def test_a_model_that_was_trained_in_tiles_is_what_it_was_to_others(name: str) -> None:
    """Its linear layers stay nn.Linear, which is what they are looked for by."""
    model = stock_llama()
    Step(model, find("sgd")(), "causal_lm", [TiledLinears.example()])(windows()[0])
    assert all(type(model.get_submodule(each)) is nn.Linear for each in large_layers(stock_llama()))
    others = [find(name).example(), *([find("lora").example()] if name == "int8" else [])]
    assert Step(model.float(), find("sgd")(), "causal_lm", others)(windows()[1]).applied


def test_its_state_loads_into_the_plain_model_and_into_another_plan_of_the_run() -> None:
    plain, tiled = (
        Step(stock_llama(), find("adamw")(), "causal_lm", techniques, total_updates=5)
        for techniques in ([], [TiledLinears.example()])
    )
    first, second, _ = windows()
    tiled(first)
    plain.load_state_dict(problems.saved(tiled))
    assert plain(second).loss == pytest.approx(tiled(second).loss, rel=1e-12)
    stock_llama().load_state_dict(tiled.model.state_dict(), strict=True)


def test_an_adapted_layer_is_tiled_inside_of_its_adapter_by_its_own_name_and_merged_under_it() -> None:
    model = problems.reader(()).model()
    lora = find("lora")(rank=2, targets=("mix",))
    adapted = lora.prepare(copy.deepcopy(model))
    layers = large_layers(adapted, targets=["mix"])
    assert layers == {"mix": adapted.mix.base_layer}
    features = torch.randn(2, 3, dtype=torch.float64)
    with in_tiles(layers["mix"], tiles=2):
        torch.testing.assert_close(adapted.mix(features), model.mix(features), rtol=EXACT, atol=EXACT)
    delivered = merged(adapted)
    assert delivered.state_dict().keys() == model.state_dict().keys()
    torch.testing.assert_close(delivered.mix(features), model.mix(features), rtol=EXACT, atol=EXACT)


def test_layers_are_chosen_by_size_or_by_name() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 100), nn.Linear(100, 2), nn.Conv1d(2, 2, 1))
    assert list(large_layers(model, above=800)) == ["1", "2"]
    assert list(large_layers(model, above=801)) == ["1"]
    assert list(large_layers(model, ["0"], above=801)) == ["0"]


def test_what_cannot_be_tiled_is_refused() -> None:
    class Own(nn.Linear):
        def forward(self, inputs: Tensor) -> Tensor:
            return F.relu(super().forward(inputs))

    model = nn.Sequential(nn.Linear(4, 4), Own(4, 4), nn.Conv1d(2, 2, 1))
    for name in ("1", "2", "9"):
        with pytest.raises(SettingError, match=f"^tiled_linear.targets: '{name}' matches no plain nn.Linear"):
            large_layers(model, [name])
    with pytest.raises(
        SettingError, match="^tiled_linear.above: the largest plain nn.Linear of the model has 64 bytes"
    ):
        Step(model, find("sgd")(), "cross_entropy", [TiledLinears()])
    refuses(TiledLinears, tiles=1)
    refuses(TiledLinears, above=-1)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an accelerator")
def test_a_weight_on_the_host_serves_inputs_on_the_device_and_gets_its_gradient_there() -> None:
    layer = nn.Linear(8, 12).double()
    inputs = torch.randn(3, 8, dtype=torch.float64)
    expected = torch.autograd.grad(layer(inputs).square().sum(), list(layer.parameters()))
    made = tiled_linear(inputs.cuda(), layer.weight, layer.bias, 4)
    found = torch.autograd.grad(made.square().sum(), list(layer.parameters()))
    for one, other in zip(found, expected, strict=True):
        assert one.device.type == "cpu"
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)
