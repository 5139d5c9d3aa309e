from __future__ import annotations

import copy
import warnings
from contextlib import ExitStack

import pytest
import torch
from torch import Tensor, nn

from snugfit.core.batch import Batch
from snugfit.core.technique import Technique
from snugfit.errors import PlanConflict, SettingError, SnugfitWarning
from snugfit.kit.adapters.adapters import merged
from snugfit.step.step import Step
from snugfit.techniques import find
from snugfit.techniques.learning.lora import LoRA
from snugfit.techniques.learning.sgd import SGD
from snugfit.techniques.numerics.qat import QAT, rounded_tokens, rounded_weight, with_rounding
from tests.laws import problems
from tests.oracles import qat as oracle
from tests.unit.techniques.settings import context, refuses


def test_impossible_settings_are_refused() -> None:
    refuses(QAT, weights="int3")
    refuses(QAT, group_size=1)
    refuses(QAT, activations="int4")


@pytest.mark.parametrize(("bits", "steps"), [(4, 16), (8, 256)])
def test_each_group_has_at_most_as_many_values_as_its_bits_can_name(bits: int, steps: int) -> None:
    weight = torch.randn(4, 2048, generator=torch.Generator().manual_seed(0))
    rounded = rounded_weight(weight, bits, 1024)
    for part in rounded.view(8, 1024):
        assert len(part.unique()) <= steps
    error, parts = (rounded - weight).abs().view(8, -1).amax(dim=1), weight.view(8, -1)
    step = torch.maximum(-parts.amin(dim=1) / (steps / 2), parts.amax(dim=1) / (steps / 2 - 1))
    assert torch.all(error <= step / 2 * 1.001)


def test_the_gradient_passes_through_the_rounding() -> None:
    weight = nn.Parameter(torch.tensor([[0.11, -0.52, 1.0, -1.0]]))
    scales = torch.tensor([[1.0, 2.0, 3.0, 4.0]])
    (rounded_weight(weight, 4, 4) * scales).sum().backward()
    assert weight.grad is not None
    assert torch.equal(weight.grad, scales)


def test_each_token_is_rounded_by_its_own_range() -> None:
    tokens = torch.randn(2, 3, 64, generator=torch.Generator().manual_seed(0))
    tokens[0, 0] *= 1000
    rounded = rounded_tokens(tokens)
    step = (tokens.amax(-1).clamp(min=0) - tokens.amin(-1).clamp(max=0)) / 255
    assert torch.all((rounded - tokens).abs().amax(-1) <= step)
    assert torch.equal(rounded[1], rounded_tokens(tokens[1]))


@pytest.mark.parametrize("train", [True, False])
def test_torchs_own_encoder_layer_is_rounded_in_training_and_evaluation(train: bool) -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True).train(train)
    inputs = torch.randn(2, 3, 8, generator=torch.Generator().manual_seed(0))
    expected = copy.deepcopy(layer)
    with torch.no_grad():
        for linear in (expected.linear1, expected.linear2):
            linear.weight.copy_(rounded_weight(linear.weight, 4, 8))
    with pytest.warns(
        SnugfitWarning, match="qat: 'self_attn.out_proj' stays whole: .* is in nn.MultiheadAttention"
    ):
        modules = QAT(group_size=8, activations=None).seams(context(layer)).modules
    assert modules is not None
    with torch.no_grad(), modules(Batch.of(inputs)):
        found = layer(inputs)
    torch.testing.assert_close(found, expected(inputs))
    assert torch.backends.mha.get_fastpath_enabled()


def test_layers_that_stay_whole_are_named_with_the_reason_but_for_those_that_skip_names() -> None:
    model = nn.Sequential(nn.Linear(8, 6), nn.Linear(6, 10), nn.Linear(10, 8), nn.Linear(8, 2))
    named = "qat: '1' and 1 more stay whole: '1' has 6 inputs, which group_size 8 does not divide"
    with pytest.warns(SnugfitWarning, match=named):
        QAT(group_size=8, skip=("3",)).seams(context(model))
    with warnings.catch_warnings():
        warnings.simplefilter("error", SnugfitWarning)
        QAT(group_size=8, skip=("1", "2")).seams(context(model))


def test_what_skip_names_stays_whole_with_all_in_it() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Sequential(nn.Linear(8, 8), nn.ReLU()))
    assert list(QAT(group_size=8, skip=("1",))._layers(model)) == ["0"]


@pytest.mark.parametrize("make", [problems.bert, problems.vit], ids=lambda make: make.__name__)
def test_a_stock_model_keeps_names_and_classes_and_can_be_copied_and_saved(make: problems.Maker) -> None:
    problem = make(())
    plain = problem.model()
    step = problems.make_step(problem, (QAT(group_size=4),), dtype=torch.float64)
    before = copy.deepcopy(plain.state_dict())
    assert step(problem.windows()[0]).applied
    model = step.model
    assert list(model.state_dict()) == list(before)
    assert [type(module) for module in model.modules()] == [type(module) for module in plain.modules()]
    copied = copy.deepcopy(model)
    assert all(map(torch.equal, copied.state_dict().values(), model.state_dict().values()))
    weight = model.state_dict()["bert.encoder.layer.0.output.dense.weight"] if make is problems.bert else None
    if weight is not None:
        assert len(weight[0, :4].unique()) == 4 and not torch.equal(weight, rounded_weight(weight, 4, 4))


def test_what_is_skipped_computes_as_it_did() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 2))
    modules = QAT(group_size=8, skip=("1",)).seams(context(model)).modules
    assert modules is not None
    inputs = torch.randn(3, 8)
    with modules(Batch.of(inputs)):
        assert torch.equal(model[1](inputs), nn.functional.linear(inputs, model[1].weight, model[1].bias))
        assert not torch.equal(model[0](inputs), nn.functional.linear(inputs, model[0].weight, model[0].bias))
    with pytest.raises(SettingError, match=r"^qat\.skip: 'head' matches no"):
        QAT(skip=("head",)).prepare(model)


def test_a_model_without_a_layer_that_fits_is_refused() -> None:
    with pytest.raises(SettingError, match=r"^qat\.group_size: 32 divides .* they have \[4\]"):
        QAT().prepare(nn.Linear(4, 2))
    with pytest.raises(SettingError, match="has no linear layer of its own"):
        QAT().prepare(nn.Conv2d(1, 1, 1))
    gpt2 = problems.gpt2(()).model()
    gpt2.lm_head = nn.Identity()
    with pytest.raises(SettingError, match="^qat: GPT2LMHeadModel .* GPT-2's Conv1D"):
        QAT().prepare(gpt2)


@pytest.mark.parametrize("activations", ["int8", None])
def test_weight_and_adapter_are_rounded_as_they_will_be_merged(activations: str | None) -> None:
    """By hand: `rounded(W + alpha / rank B A)`, with the gradient of the sum for both factors."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3))
    weights = [layer.weight.detach().clone() for layer in (model[0], model[2])]
    biases = [layer.bias.detach().clone() for layer in (model[0], model[2])]
    inputs, labels = torch.randn(6, 8), torch.tensor([0, 1, 2, 0, 1, 2])
    techniques = [QAT(group_size=4, activations=activations), LoRA(rank=2, alpha=6.0, targets=("0", "2"))]
    step = Step(model, SGD(learning_rate=0.5, momentum=0.0), techniques=techniques)
    made = dict(step.model.named_parameters())
    own = [
        made[f"{name}.lora_{letter}.default.weight"].detach().clone().requires_grad_()
        for name in "02"
        for letter in "AB"
    ]

    def by_hand() -> torch.Tensor:
        hidden = inputs
        for place, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
            merged_weight = weight + 3.0 * own[2 * place + 1] @ own[2 * place]
            hidden = hidden if activations is None else rounded_tokens(hidden)
            hidden = nn.functional.linear(hidden, rounded_weight(merged_weight, 4, 4), bias)
            hidden = torch.tanh(hidden) if place == 0 else hidden
        return hidden

    for _ in range(4):
        step((inputs, labels))
        gradients = torch.autograd.grad(nn.functional.cross_entropy(by_hand(), labels), own)
        with torch.no_grad():
            for factor, gradient in zip(own, gradients, strict=True):
                factor -= 0.5 * gradient
    trained = [made[f"{name}.lora_{letter}.default.weight"] for name in "02" for letter in "AB"]
    for factor, expected in zip(trained, own, strict=True):
        torch.testing.assert_close(factor, expected)
    delivered = merged(step.model)
    with oracle.rounding(delivered, 4, 4, activations):  # as the quantised model computes
        torch.testing.assert_close(delivered(inputs), by_hand())


def test_adapters_that_no_rounded_weight_holds_are_refused() -> None:
    refused = {
        "which no rounded weight holds": find("ia3")(),
        r"lora\.dora: is true": LoRA(dora=True),
        r"lora\.dropout: drops inputs": LoRA(dropout=0.1),
    }
    for problem, adapter in refused.items():
        with pytest.raises((PlanConflict, SettingError), match=problem):
            Step(nn.Sequential(nn.Linear(32, 32)), find("adamw")(), techniques=[QAT(), adapter])


@pytest.mark.parametrize("activations", ["int8", None])
def test_torchaos_quantisation_of_the_trained_model_gives_what_was_trained(activations: str | None) -> None:
    from torchao.quantization import (
        Int8DynamicActivationIntxWeightConfig,
        IntxWeightOnlyConfig,
        MappingType,
        PerGroup,
        quantize_,
    )

    technique = QAT(group_size=16, activations=activations)  # type: ignore[arg-type]
    step = Step(classifier(), find("adamw")(learning_rate=3e-3), techniques=[technique])
    for inputs, labels in windows(20):
        step((inputs, labels))
    inputs = windows(1)[0][0]
    step.model.eval()
    with torch.no_grad(), step.seams.forward(Batch.of(inputs)):
        trained = step.model(inputs)
    config = (
        IntxWeightOnlyConfig(torch.int4, PerGroup(16), MappingType.SYMMETRIC_NO_CLIPPING_ERR)
        if activations is None
        else Int8DynamicActivationIntxWeightConfig(
            torch.int4, PerGroup(16), MappingType.SYMMETRIC_NO_CLIPPING_ERR
        )
    )
    quantised = copy.deepcopy(step.model)
    quantize_(quantised, config)
    with torch.no_grad():
        torch.testing.assert_close(quantised(inputs), trained, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_after_rounding_to_four_bits_it_is_better_than_training_without() -> None:
    """On the digits of scikit-learn: a small net that is trained already goes on for five epochs with rounding, or without."""
    correct = {"with": 0, "without": 0}
    for seed in range(2):
        base = digits_net(seed)
        fit(base, [], seed, learning_rate=5e-3, epochs=25)
        losses = {}
        for name, techniques in (("with", [QAT(group_size=None)]), ("without", [])):
            model = copy.deepcopy(base)
            fit(model, techniques, seed + 10, learning_rate=1e-3, epochs=5)
            losses[name], found = rounded_scores(model.eval())
            correct[name] += found
        assert losses["with"] < losses["without"]
    assert correct["with"] > correct["without"]


def fit(
    model: nn.Module, techniques: list[Technique], seed: int, *, learning_rate: float, epochs: int
) -> None:
    (inputs, labels), _ = digits()
    step = Step(model, find("adamw")(learning_rate=learning_rate), techniques=techniques)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(epochs):
        for rows in torch.randperm(len(inputs), generator=generator).split(50):
            step((inputs[rows], labels[rows]))


def rounded_scores(model: nn.Sequential) -> tuple[float, int]:
    """Loss and number of right answers on held-out digits, with one scale of 4 bits for each row of the weights."""
    _, (inputs, labels) = digits()
    with ExitStack() as stack, torch.no_grad():
        for layer in model:
            if isinstance(layer, nn.Linear):
                stack.enter_context(with_rounding(layer, 4, None))
        logits = model(inputs)
        return float(nn.functional.cross_entropy(logits, labels)), int((logits.argmax(1) == labels).sum())


def classifier() -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 16))


def windows(count: int) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(1)
    return [
        (
            torch.randn(16, 32, generator=generator),
            torch.randint(0, 16, (16,), generator=generator),
        )
        for _ in range(count)
    ]


def digits_net(seed: int) -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(64, 12), nn.ReLU(), nn.Linear(12, 12), nn.ReLU(), nn.Linear(12, 10))


def digits() -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    from sklearn.datasets import load_digits

    pixels, numbers = load_digits(return_X_y=True)
    inputs, labels = torch.tensor(pixels / 16, dtype=torch.float32), torch.tensor(numbers)
    order = torch.randperm(len(inputs), generator=torch.Generator().manual_seed(0))
    train, held = order[:1400], order[1400:]
    return (inputs[train], labels[train]), (inputs[held], labels[held])
