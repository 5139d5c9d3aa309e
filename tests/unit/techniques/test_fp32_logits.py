from __future__ import annotations

import pytest
import torch
from torch import nn

from snugfit.core.batch import Batch
from snugfit.core.losses import logits_of
from snugfit.errors import SettingError, SnugfitWarning
from snugfit.kit.language_models.lm_head import output_head
from snugfit.techniques.learning.lora import lora_
from snugfit.techniques.numerics.fp32_logits import FP32Logits, in_float32
from tests.laws import problems
from tests.unit.techniques.settings import context

BATCH = Batch.of(torch.zeros(1))


def test_under_autocast_the_logits_are_the_head_in_float32_of_inputs_in_bf16() -> None:
    body, head = nn.Linear(64, 64), nn.Linear(64, 8)
    model = nn.Sequential(body, head)
    inputs = torch.randn(16, 64)
    seams = FP32Logits().seams(context(model))
    assert seams.modules is not None
    with torch.autocast("cpu", dtype=torch.bfloat16), seams.modules(BATCH):
        hidden, logits = body(inputs), model(inputs)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rounded = model(inputs)
    assert hidden.dtype == torch.bfloat16 and logits.dtype == torch.float32
    exact = hidden.double() @ head.weight.double().T + head.bias.double()
    assert (logits - exact).abs().max() < 1e-5 < 1e-3 < (rounded - exact).abs().max()


def test_it_does_not_matter_which_context_is_entered_first() -> None:
    head = nn.Linear(8, 2)
    seams = FP32Logits().seams(context(head))
    assert seams.modules is not None
    with seams.modules(BATCH), torch.autocast("cpu", dtype=torch.bfloat16):
        assert head(torch.randn(3, 8).bfloat16()).dtype == torch.float32


def test_without_autocast_nothing_changes() -> None:
    head = nn.Linear(8, 2).double()
    inputs = torch.randn(3, 8, dtype=torch.float64)
    with in_float32(head):
        assert torch.equal(head(inputs), head(inputs)) and head(inputs).dtype == torch.float64


def test_without_autocast_it_says_once_that_it_does_nothing() -> None:
    head, inputs = nn.Linear(8, 2), torch.randn(3, 8)
    seams = FP32Logits().seams(context(head))
    assert seams.modules is not None

    def two_batches() -> None:
        for _ in range(2):
            with seams.modules(BATCH):
                head(inputs)

    with pytest.warns(SnugfitWarning, match="^fp32_logits: without autocast it does nothing") as caught:
        two_batches()
    assert len(caught) == 1


def test_where_the_model_computes_in_16_bit_itself_it_does_something_and_is_silent(
    recwarn: pytest.WarningsRecorder,
) -> None:
    model = nn.Sequential(nn.Linear(8, 8).bfloat16(), nn.Linear(8, 2))
    seams = FP32Logits().seams(context(model))
    assert seams.modules is not None
    with seams.modules(BATCH):
        assert model(torch.randn(3, 8).bfloat16()).dtype == torch.float32
    assert not recwarn.list


def test_the_head_is_left_as_it_was() -> None:
    head = nn.Linear(8, 2)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"), in_float32(head):
        head(torch.randn(1, 3))
    assert "forward" not in vars(head)


def test_the_gradient_of_the_head_is_in_float32() -> None:
    head = nn.Linear(8, 2)
    with torch.autocast("cpu", dtype=torch.bfloat16), in_float32(head):
        head(torch.randn(3, 8).bfloat16()).sum().backward()
    assert head.weight.grad is not None and head.weight.grad.dtype == torch.float32


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (problems.gpt2, "lm_head"),
        (problems.bert, "classifier"),
        (problems.vit, "classifier"),
        (problems.reader, "head"),
    ],
)
def test_the_head_of_a_known_model_is_found(make: problems.Maker, name: str) -> None:
    model = make(()).model()
    assert output_head(model, None, "fp32_logits.head") is model.get_submodule(name)


def test_the_output_embeddings_are_the_head_wherever_they_stand() -> None:
    class Model(nn.Sequential):
        def get_output_embeddings(self) -> nn.Module:
            return self[0]

    model = Model(nn.Linear(2, 2), nn.Linear(2, 2))
    assert output_head(model, None, "fp32_logits.head") is model[0]
    assert output_head(model, "1", "fp32_logits.head") is model[1]


@pytest.mark.parametrize("make", [problems.gpt2, problems.bert, problems.vit])
def test_stock_models_give_float32_logits_under_bf16(make: problems.Maker) -> None:
    problem = make(())
    techniques = [FP32Logits(), *(t for t in problems.examples() if t.card.name == "bf16")]
    for given, expected in ((techniques, torch.float32), (techniques[1:], torch.bfloat16)):
        step = problems.make_step(problem, given, dtype=torch.float32)
        batch = Batch.of(problem.windows(torch.float32)[0])
        with step.seams.forward(batch):
            assert logits_of(step.forward(batch)).dtype == expected


def test_a_head_that_is_not_there_is_refused_by_name() -> None:
    with pytest.raises(SettingError, match="fp32_logits.head: '10' matches no module .* Did you mean '1'?"):
        FP32Logits(head="10").seams(context(nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1))))
    with pytest.raises(SettingError, match="fp32_logits.head: the model has no linear layer"):
        FP32Logits().seams(context(nn.Conv2d(1, 1, 1)))


def test_an_adapted_head_is_computed_in_float32_with_its_adapter() -> None:
    model = lora_(nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 2)), rank=2)
    assert output_head(model, None, "fp32_logits.head") is model[1]
    nn.init.normal_(model[1].lora_B["default"].weight)
    hidden = torch.randn(3, 8).bfloat16()
    with torch.autocast("cpu", dtype=torch.bfloat16), in_float32(model[1]):
        found = model[1](hidden)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, model[1](hidden.float()), rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_head_whose_weights_are_rounded_already_is_refused(dtype: torch.dtype) -> None:
    with pytest.raises(
        SettingError, match=f"fp32_logits: the weights of the head are {dtype}, .* bf16, or remove"
    ):
        FP32Logits().seams(context(nn.Linear(4, 2).to(dtype)))
