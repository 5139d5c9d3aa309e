from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from snugfit.core.job import Plan
from snugfit.errors import Untraceable, UserError
from snugfit.planner.devices.device import Machine
from snugfit.planner.devices.hardware import uncalibrated
from snugfit.planner.prediction.plan_needs import Planner
from snugfit.planner.trace.dry_run import dry_run
from snugfit.planner.trace.untraceable import explained, explaining
from snugfit.techniques import discover
from tests.unit.planner.dry import Middle, rows_of, subject_of

SGD = discover()["sgd"]


def plan_of(function: Callable[[Tensor], Any]) -> str:
    """What is said of a model with this function in its middle."""
    subject = subject_of(Middle(function), rows_of(), [SGD()])
    with pytest.raises(Untraceable) as told:
        dry_run(subject, Plan(), subject.techniques)
    return str(told.value)


def branches(x: Tensor) -> Tensor:
    if x.sum() > 0:
        return x
    return -x


class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        return gradient * float(gradient.max())


@pytest.mark.parametrize(
    ("function", "operator", "line"),
    [
        (branches, "aten._local_scalar_dense.default", "if x.sum() > 0:"),
        (lambda x: x * x.max().item(), "aten._local_scalar_dense.default", "x.max().item()"),
        (lambda x: x * x[0].tolist()[0], "aten._local_scalar_dense.default", "x[0].tolist()"),
        (lambda x: x + torch.bincount(x.argmax(1)).sum(), "aten.bincount.default", "torch.bincount"),
        (lambda x: x + float(x.detach().numpy().mean()), ".numpy()", "x.detach().numpy()"),
        (Scaled.apply, "aten._local_scalar_dense.default", "float(gradient.max())"),
    ],
)
def test_what_has_no_numbers_is_told_with_operator_file_line_and_what_to_do(
    function: Callable[[Tensor], Any], operator: str, line: str
) -> None:
    told = plan_of(function)
    assert f"'{operator}'" in told
    assert f"{__file__}:" in told and line in told.split(f"{__file__}:")[1]
    assert "probe=True" in told


def test_an_operator_of_the_users_own_is_named_with_what_it_lacks() -> None:
    library = torch.library.Library("snugfit_test", "DEF")
    library.define("double(Tensor x) -> Tensor")
    library.impl("double", lambda x: x * 2, "CPU")
    try:
        told = plan_of(lambda x: x + torch.ops.snugfit_test.double(x.detach()))
    finally:
        library._destroy()
    assert "'snugfit_test.double.default'" in told and "register_fake" in told


def test_an_error_of_the_model_itself_is_left_as_it_is() -> None:
    def wrong(x: Tensor) -> Tensor:
        return x @ x

    subject = subject_of(Middle(wrong), rows_of(), [SGD()])
    with pytest.raises(RuntimeError, match="reduction dim") as found:
        dry_run(subject, Plan(), subject.techniques)
    assert not isinstance(found.value, UserError)
    assert explained(ValueError("any")) is None


def test_what_a_library_made_of_the_error_is_looked_behind() -> None:
    from torch._subclasses.fake_tensor import DataDependentOutputException

    made = KeyError("layer")
    made.__cause__ = DataDependentOutputException(torch.ops.aten.item.default)
    assert "'aten.item.default'" in str(explained(made))


def test_the_cause_is_kept() -> None:
    from torch._subclasses.fake_tensor import DynamicOutputShapeException

    cause = DynamicOutputShapeException(torch.ops.aten.nonzero.default)
    with (
        pytest.raises(Untraceable, match="'aten.nonzero.default' gives a tensor whose shape") as told,
        explaining(),
    ):
        raise cause
    assert told.value.__cause__ is cause


def test_memory_that_a_recurrent_layer_reads_of_packed_sequences_is_told_with_what_to_do() -> None:
    error = RuntimeError("The tensor has a non-zero number of elements, but its data is not allocated yet.")
    told = str(explained(error))
    assert "an operator reads the memory of a tensor" in told and "probe=True" in told


class Decides(nn.Module):
    """A block that looks at a number."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, inputs: Tensor) -> Tensor:
        found: Tensor = self.inner(inputs)
        return found if found.sum() > 0 else -found


def test_a_model_that_cannot_be_run_without_numbers_is_not_run_again_with_more_of_its_blocks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = nn.Sequential(*(Decides() for _ in range(20)))
    subject = subject_of(model, (torch.zeros(2, 4), torch.zeros(2, dtype=torch.long)), (SGD(),))
    runs: list[int | None] = []
    run = Planner.run

    def counted(self: Planner, plan: Plan, techniques: Any, depth: int | None, few: int | None) -> Any:
        runs.append(depth)
        return run(self, plan, techniques, depth, few)

    monkeypatch.setattr(Planner, "run", counted)
    cpu = uncalibrated("cpu")
    with pytest.raises(Untraceable, match="gives a number that depends on them"):
        Planner(subject, Machine(cpu, cpu, baseline=0)).predict(Plan(), subject.techniques)
    assert len(runs) == 1 and runs != [None]
