from __future__ import annotations

import warnings
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

from snugfit.core.technique import Context
from snugfit.errors import SnugfitWarning
from snugfit.step.step import Step
from snugfit.techniques.placement.cudnn_benchmark import CudnnBenchmark, benchmarking
from tests.laws import problems

CUDA = torch.device("cuda")


@pytest.fixture(params=[False, True], autouse=True)
def before(request: pytest.FixtureRequest) -> Iterator[bool]:
    """The switch as somebody has set it."""
    original = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = request.param
    yield request.param
    torch.backends.cudnn.benchmark = original


class Looking(nn.Module):
    """Notes the switch in forward and in backward."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner
        self.seen: list[tuple[str, bool]] = []

    def forward(self, inputs: Tensor) -> Tensor:
        self.seen.append(("forward", torch.backends.cudnn.benchmark))
        outputs: Tensor = self.inner(inputs).mean(dim=(2, 3))
        if outputs.requires_grad:
            outputs.register_hook(
                lambda gradient: self.seen.append(("backward", torch.backends.cudnn.benchmark))
            )
        return outputs


@pytest.mark.filterwarnings("ignore:cudnn_benchmark. does nothing")
def test_the_switch_is_on_in_forward_and_backward_and_nowhere_else(before: bool) -> None:
    model = Looking(nn.Conv2d(1, 2, 3))
    step = Step(
        model, torch.optim.SGD(model.parameters(), lr=0.1), techniques=[CudnnBenchmark()], micro_batch=2
    )
    at_the_update = []
    step.optimizer.register_step_pre_hook(lambda *_: at_the_update.append(torch.backends.cudnn.benchmark))
    assert step((torch.ones(4, 1, 5, 5), torch.zeros(4, dtype=torch.long))).applied
    assert model.seen == [("forward", True), ("backward", True)] * 2
    assert at_the_update == [before] and torch.backends.cudnn.benchmark == before


def test_it_is_restored_after_an_error_as_it_was(before: bool) -> None:
    with pytest.raises(ZeroDivisionError), benchmarking():
        raise ZeroDivisionError
    assert torch.backends.cudnn.benchmark == before


def test_where_there_is_nothing_to_choose_it_is_told() -> None:
    with pytest.warns(SnugfitWarning, match="^cudnn_benchmark: does nothing, as the model is on cpu"):
        CudnnBenchmark().seams(Context(nn.Conv2d(1, 2, 3), torch.device("cpu")))
    with pytest.warns(SnugfitWarning, match="^cudnn_benchmark: does nothing, as the model has no conv"):
        CudnnBenchmark().seams(Context(nn.Linear(1, 2), CUDA))


@pytest.mark.parametrize("make", [problems.viewer, problems.vit])
def test_a_model_with_convolutions_on_a_gpu_gets_no_warning(make: problems.Maker) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        CudnnBenchmark().seams(Context(make(()).model(), CUDA))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu_it_trains_the_same_up_to_rounding() -> None:
    problem = problems.viewer(())
    steps = [
        Step(model, torch.optim.SGD(model.parameters(), lr=0.05), problem.loss, given, device="cuda")
        for given in ([], [CudnnBenchmark()])
        for model in [problem.model().cuda()]
    ]
    for window in problem.windows():
        for step in steps:
            step(window)
    assert problems.relative_error(*(problems.weights(step) for step in steps)) <= 1e-10
