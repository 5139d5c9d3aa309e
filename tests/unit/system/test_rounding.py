from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from snugfit.core.job import Job, Plan
from snugfit.core.technique import Technique
from snugfit.step.build import Material, make_step
from snugfit.step.step import Step
from snugfit.system import rounding
from snugfit.system.rounding import MKL_MODE, changes, fix_sums, shifted, sums_depend_on_addresses
from snugfit.techniques.learning.adamw import AdamW
from snugfit.techniques.placement.activation_offload import ActivationOffload
from snugfit.techniques.placement.optimizer_offload import OptimizerOffload
from snugfit.techniques.placement.recompute import Recompute
from tests.laws.compare import differences

SHIFTS = (4, 8, 16, 32, 48)
"""Bytes behind the start of a page: what torch allocates begins at multiples of 64, weights in a mapped file at any element."""


def test_a_mode_that_the_user_has_set_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(MKL_MODE, "COMPATIBLE")
    fix_sums()
    assert os.environ[MKL_MODE] == "COMPATIBLE"


@pytest.mark.parametrize("before", [None, ""])
def test_without_a_mode_a_run_on_a_cpu_asks_for_the_one_of_fixed_sums(
    monkeypatch: pytest.MonkeyPatch, before: str | None
) -> None:
    monkeypatch.delenv(MKL_MODE) if before is None else monkeypatch.setenv(MKL_MODE, before)
    fix_sums()
    assert os.environ[MKL_MODE] == "AUTO"


def test_a_copy_lies_where_it_was_asked_to() -> None:
    for shift in SHIFTS:
        copy = shifted(torch.arange(6.0).view(2, 3), shift)
        assert copy.data_ptr() % 4096 == shift and copy.tolist() == [[0, 1, 2], [3, 4, 5]]


@pytest.mark.parametrize("size", [7, 32, 33, 384])
@pytest.mark.parametrize("shift", SHIFTS)
def test_in_that_mode_products_and_their_gradients_do_not_depend_on_addresses(shift: int, size: int) -> None:
    generator = torch.Generator().manual_seed(0)
    inputs, weight = (torch.randn(6, size, generator=generator) for _ in range(2))

    def results(*lying: torch.Tensor) -> list[torch.Tensor]:
        leaves = [each.requires_grad_() for each in lying]
        product = F.linear(*leaves)
        return [product.detach(), *torch.autograd.grad(product.square().sum(), leaves)]

    expected = results(inputs.clone(), weight.clone())
    for lying in ((shifted(inputs, shift), weight.clone()), (inputs.clone(), shifted(weight, shift))):
        assert all(map(torch.equal, results(*lying), expected))


class Small(nn.Module):
    """Odd sizes, attention and a norm: products of every layout."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.out = nn.Linear(9, 12), nn.Linear(12, 3)
        self.attention = nn.MultiheadAttention(12, 2, dropout=0.2, batch_first=True)
        self.norm = nn.LayerNorm(12)

    def forward(self, numbers: torch.Tensor) -> torch.Tensor:
        hidden = self.into(numbers)
        return self.out(self.norm(hidden + self.attention(hidden, hidden, hidden)[0]).mean(1))


def step_of(seed: int, shift: int = 0, *techniques: Technique) -> Step:
    torch.manual_seed(seed)
    model = Small()
    if shift:
        for parameter in model.parameters():
            parameter.data = shifted(parameter.data, shift)
    return Step(model, AdamW(learning_rate=0.01), techniques=techniques, micro_batch=3)


def windows() -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(1)
    return [
        (torch.randn(6, 5, 9, generator=generator), torch.randint(0, 3, (6,), generator=generator))
        for _ in range(4)
    ]


@pytest.mark.parametrize("shift", SHIFTS)
def test_a_run_that_goes_on_with_its_weights_and_rows_elsewhere_in_memory_is_the_same_bit_for_bit(
    shift: int,
) -> None:
    whole, first, second = step_of(0), step_of(0), step_of(5, shift)
    for number, (rows, labels) in enumerate(windows()):
        whole((rows, labels))
        if number < 2:
            first((rows, labels))
            continue
        if number == 2:
            second.load_state_dict(first.state_dict())
        second((shifted(rows, shift), labels))
    assert second.model.into.weight.data_ptr() % 4096 == shift  # type: ignore[union-attr]
    assert not differences(dict(whole.model.named_parameters()), dict(second.model.named_parameters()))
    assert not differences(whole.optimizer.state_dict(), second.optimizer.state_dict())


@pytest.mark.parametrize("shift", [16, 32, 48])
@pytest.mark.parametrize("technique", [Recompute(), ActivationOffload(), OptimizerOffload()], ids=type)
def test_placement_with_weights_and_rows_elsewhere_in_memory_gives_the_same_bits(
    technique: Technique, shift: int
) -> None:
    plain, placed = step_of(0), step_of(0, shift, technique)
    for rows, labels in windows():
        plain((rows, labels))
        placed((shifted(rows, shift), labels))
    assert placed.model.into.weight.data_ptr() % 4096 == shift  # type: ignore[union-attr]
    assert not differences(dict(plain.model.named_parameters()), dict(placed.model.named_parameters()))


def test_the_step_of_a_run_asks_for_fixed_sums_before_its_first_product(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(MKL_MODE)
    rows = [(torch.ones(2), 0)] * 4
    make_step(
        Job.of(global_batch=2, epochs=1),
        Plan(device="cpu"),
        Material(nn.Linear(2, 2), rows, None, "cross_entropy"),
        AdamW(),
        (),
    )
    assert os.environ[MKL_MODE] == "AUTO"


@pytest.mark.slow
def test_the_mode_counts_though_torch_was_imported_before_it_was_set() -> None:
    """And without it a process finds out by itself whether its products depend on addresses, which processors differ in."""
    script = (
        "import torch; from snugfit.system.rounding import fix_sums, sums_depend_on_addresses; "
        "fix_sums(); print(sums_depend_on_addresses())"
    )
    environment = {name: value for name, value in os.environ.items() if name != MKL_MODE}
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "False"


def test_products_that_differ_with_the_address_are_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not sums_depend_on_addresses()
    monkeypatch.setattr(rounding, "shifted", lambda tensor, nbytes: tensor * (1 + 2**-20))
    assert sums_depend_on_addresses()


def test_what_a_run_goes_on_with_is_compared_with_what_it_began_with() -> None:
    machine = {"processor": "AVX512", "threads": 2, "mkl_mode": "AUTO"}
    assert changes(machine, machine) is None
    assert changes({}, machine) is None  # a run of an earlier version
    for name, words in (
        ("processor", "kind of processor"),
        ("threads", "number of threads"),
        ("mkl_mode", "mode"),
    ):
        message = changes({**machine, name: ""}, machine)
        assert message is not None and words in message and "none before" in message
