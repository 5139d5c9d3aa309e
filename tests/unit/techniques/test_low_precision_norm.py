from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from snugfit.core.batch import Batch
from snugfit.errors import SnugfitWarning
from snugfit.techniques.numerics.low_precision_norm import LowPrecisionNorm, normalised
from tests.laws import problems
from tests.unit.techniques.settings import context

BATCH = Batch.of(torch.zeros(1))
NORMS = [
    nn.LayerNorm(16),
    nn.LayerNorm(16, bias=False),
    nn.RMSNorm(16),
    nn.LayerNorm(16, elementwise_affine=False),
]


@pytest.mark.parametrize("norm", [*NORMS, nn.GroupNorm(4, 16)], ids=str)
def test_a_norm_of_bf16_is_the_norm_of_rounded_inputs_and_weights_up_to_one_rounding(norm: nn.Module) -> None:
    with torch.no_grad():
        for parameter in norm.parameters():
            parameter.uniform_(0.5, 1.5)
    inputs = torch.randn(8, 16) * 3 + 1
    found = normalised(norm, inputs, torch.bfloat16)
    assert found.dtype == torch.bfloat16
    rounded = {name: p.detach().bfloat16().double() for name, p in norm.named_parameters()}
    expected = torch.func.functional_call(norm, rounded, (inputs.bfloat16().double(),))
    # bf16 has 8 bits: half a unit in the last place is 2^-9, and the mean is rounded too in places
    torch.testing.assert_close(found.double(), expected, rtol=2**-7, atol=2**-7)


def test_under_autocast_float32_inputs_come_out_in_bf16_and_otherwise_would_not() -> None:
    norm = nn.LayerNorm(16)
    seams = LowPrecisionNorm().seams(context(nn.Sequential(norm)))
    assert seams.modules is not None
    with seams.modules(BATCH), torch.autocast("cpu", dtype=torch.bfloat16):
        assert norm(torch.randn(2, 16)).dtype == torch.bfloat16
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert norm(torch.randn(2, 16)).dtype == torch.float32
    assert "forward" not in vars(norm)


def test_float64_is_left_alone_as_autocast_leaves_it() -> None:
    norm = nn.LayerNorm(16).double()
    seams = LowPrecisionNorm().seams(context(norm))
    assert seams.modules is not None
    with seams.modules(BATCH), torch.autocast("cpu", dtype=torch.bfloat16):
        assert norm(torch.randn(2, 16, dtype=torch.float64)).dtype == torch.float64


def test_weights_stay_in_float32_and_so_do_their_gradients() -> None:
    norm = nn.LayerNorm(16)
    normalised(norm, torch.randn(4, 16), torch.bfloat16).float().square().sum().backward()
    assert norm.weight.dtype == torch.float32
    assert norm.weight.grad is not None and norm.weight.grad.dtype == torch.float32


def test_without_autocast_it_says_once_that_it_does_nothing() -> None:
    norm, inputs = nn.LayerNorm(16), torch.randn(2, 16)
    seams = LowPrecisionNorm().seams(context(norm))
    assert seams.modules is not None
    found = []

    def two_batches() -> None:
        for _ in range(2):
            with seams.modules(BATCH):
                found.append(norm(inputs))

    with pytest.warns(SnugfitWarning, match="^low_precision_norm: without autocast it does") as caught:
        two_batches()
    assert len(caught) == 1
    torch.testing.assert_close(found[1], F.layer_norm(inputs, (16,), norm.weight, norm.bias), rtol=0, atol=0)


def test_a_model_without_such_norms_is_told() -> None:
    with pytest.warns(SnugfitWarning, match="none of torch's norm layers is in the model"):
        LowPrecisionNorm().seams(context(nn.Linear(2, 2)))


@pytest.mark.parametrize("make", [problems.bert, problems.gpt2, problems.vit, problems.reader])
def test_every_norm_of_a_stock_model_gives_bf16(make: problems.Maker) -> None:
    problem = make(())
    bf16 = [technique for technique in problems.examples() if technique.card.name == "bf16"]
    given: dict[str, set[torch.dtype]] = {}
    for name, techniques in (("kept", bf16), ("lowered", [LowPrecisionNorm(), *bf16])):
        step = problems.make_step(problem, techniques, dtype=torch.float32)
        found = given.setdefault(name, set())
        for module in step.model.modules():
            if isinstance(module, nn.LayerNorm):
                module.register_forward_hook(lambda _m, _i, output, found=found: found.add(output.dtype))
        step(problem.windows(torch.float32)[0])
    assert given["lowered"] == {torch.bfloat16}
    assert torch.float32 in given["kept"] or make is problems.reader


class OverChannels(nn.LayerNorm):
    """As in torchvision and timm: images (rows, channels, height, width), normalised over their channels."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return super().forward(images.movedim(1, -1)).movedim(-1, 1)


@pytest.mark.parametrize("side", [8, 5])
def test_a_subclass_that_computes_something_else_is_left_as_it_is(side: int) -> None:
    """With as many columns as channels the wrong norm would not even fail."""
    model, images = nn.Sequential(OverChannels(8), nn.LayerNorm(side)), torch.randn(2, 8, side, side)
    seams = LowPrecisionNorm().seams(context(model))
    assert seams.modules is not None
    with seams.modules(BATCH), torch.autocast("cpu", dtype=torch.bfloat16):
        found = model[0](images)
        assert model[1](found).dtype == torch.bfloat16
    torch.testing.assert_close(found, F.layer_norm(images.movedim(1, -1), (8,)).movedim(-1, 1))
