from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from snugfit.core.technique import Context
from snugfit.errors import PlanConflict, SettingError, SnugfitWarning
from snugfit.step.step import Step
from snugfit.techniques import find
from snugfit.techniques.numerics.tf32 import TF32, in_tf32
from tests.laws import problems
from tests.unit.techniques.settings import context

CUDA = torch.device("cuda")


def precisions() -> list[str]:
    backends: Any = torch.backends
    return [place.fp32_precision for place in (backends.cuda.matmul, backends.cudnn.conv, backends.cudnn.rnn)]


class Looking(nn.Module):
    """Notes the switch in forward and in backward."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner
        self.seen: list[tuple[str, list[str]]] = []

    def forward(self, inputs: Tensor) -> Tensor:
        self.seen.append(("forward", precisions()))
        outputs: Tensor = self.inner(inputs)
        if outputs.requires_grad:
            outputs.register_hook(lambda gradient: self.seen.append(("backward", precisions())))
        return outputs


def test_the_switch_is_on_in_forward_and_backward_and_nowhere_else() -> None:
    before = precisions()
    model = Looking(nn.Linear(2, 2))
    step = Step(
        model, torch.optim.SGD(model.parameters(), lr=0.1), techniques=[TF32(required=False)], micro_batch=2
    )
    at_the_update = []
    step.optimizer.register_step_pre_hook(lambda *_: at_the_update.append(precisions()))
    assert step((torch.ones(4, 2), torch.zeros(4, dtype=torch.long))).applied
    assert model.seen == [("forward", ["tf32"] * 3), ("backward", ["tf32"] * 3)] * 2
    assert at_the_update == [before] and precisions() == before


def test_it_is_restored_after_an_error_as_it_was() -> None:
    backends: Any = torch.backends
    before = backends.cuda.matmul.fp32_precision
    backends.cuda.matmul.fp32_precision = "ieee"
    try:
        with pytest.raises(ZeroDivisionError), in_tf32():
            raise ZeroDivisionError
        assert precisions()[0] == "ieee"
    finally:
        backends.cuda.matmul.fp32_precision = before


def test_a_device_without_it_is_refused_unless_it_is_not_required(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        SettingError, match=r"^plan\.numerics: tf32 .* cpu is no CUDA device\. .*required: false"
    ):
        TF32().seams(context())
    with pytest.warns(SnugfitWarning, match="^tf32: does nothing, as cpu is no CUDA device: .* in fp32"):
        TF32(required=False).seams(context())
    for capability, has in (((7, 5), False), ((8, 0), True), ((9, 0), True)):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device, found=capability: found)
        if has:
            assert TF32().seams(Context(nn.Linear(1, 1), CUDA)).modules is not None
            continue
        with pytest.raises(SettingError, match=r"compute capability 7\.5, and tf32 begins at 8\.0"):
            TF32().seams(Context(nn.Linear(1, 1), CUDA))


def test_rocm_is_no_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "hip", "6.4")
    with pytest.raises(SettingError, match="is no CUDA device"):
        TF32().seams(Context(nn.Linear(1, 1), CUDA))


def test_a_run_has_one_precision() -> None:
    with pytest.raises(PlanConflict, match="a run has one precision"):
        Step(nn.Linear(2, 2), None, techniques=[TF32(required=False), find("bf16")()])


@pytest.mark.parametrize("make", problems.STOCK, ids=lambda make: make.__name__)
def test_a_stock_model_on_a_cpu_trains_as_without_it(make: problems.Maker) -> None:
    problem = make(())
    window = problem.windows()[0]
    plain, switched = (problems.make_step(problem, given) for given in ((), (TF32(required=False),)))
    plain(window), switched(window)
    assert not problems.differences(problems.weights(plain), problems.weights(switched))


@pytest.mark.skipif(
    not torch.cuda.is_available() or torch.cuda.get_device_capability() < (8, 0),
    reason="needs a GPU with tf32",
)
def test_on_a_gpu_products_have_ten_bits() -> None:
    generator = torch.Generator("cuda").manual_seed(0)
    one, other = (torch.randn(256, 256, device="cuda", generator=generator) for _ in range(2))
    exact = one.double() @ other.double()
    with in_tf32():
        error = ((one @ other) - exact).norm() / exact.norm()
    assert 1e-5 < float(error) < 2**-10
