"""Compressed gradients: what ranks come to is what torch's own DDP comes to with torch's own hook."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode

from snugfit.core.batch import Batch
from snugfit.core.random import derive_seed
from snugfit.core.technique import Technique
from snugfit.step.step import Step
from snugfit.techniques.learning.sgd import SGD
from snugfit.techniques.numerics.bf16_gradients import BF16Gradients
from snugfit.techniques.numerics.fp16 import FP16
from snugfit.techniques.numerics.fp16_gradients import FP16Gradients
from snugfit.techniques.numerics.powersgd import SMALLEST, PowerSGD
from tests.laws import problems
from tests.laws.problems import differences, relative_error, saved
from tests.ranks.law import STRATEGIES, part_of
from tests.ranks.pool import Ranks

THIN = PowerSGD(rank=1, start=2, min_compression_rate=0.5)
"""One column of the eight that the widest weight would need."""
ROUNDING = {BF16Gradients(): 2.0**-8, FP16Gradients(): 2.0**-11}
ALIKE = (8, 8, 8, 8, 8)

Window = tuple[Tensor, Tensor]


def net(dtype: torch.dtype = torch.float64) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return nn.Sequential(nn.Linear(6, 9), nn.ReLU(), nn.Linear(9, 8), nn.ReLU(), nn.Linear(8, 3)).to(
            dtype
        )


def windows(rows: Sequence[int], dtype: torch.dtype = torch.float64) -> list[Window]:
    generator = torch.Generator().manual_seed(2)
    return [
        (
            torch.randn(count, 6, generator=generator, dtype=dtype),
            torch.randint(3, (count,), generator=generator),
        )
        for count in rows
    ]


def begun(
    techniques: Sequence[Technique],
    strategy: str,
    learning_rate: float = 0.5,
    dtype: torch.dtype = torch.float64,
) -> Step:
    model, made = net(dtype), STRATEGIES[strategy]()
    optimizer = (
        SGD(learning_rate=learning_rate)
        if made.shards
        else torch.optim.SGD(model.parameters(), learning_rate)
    )
    # near the rows of a rank, as a run has it: in fp16 small gradients have fewer digits
    return Step(model, optimizer, "cross_entropy", techniques, strategy=made, nominal=4.0)


def trained(technique: Technique, strategy: str, rows: Sequence[int]) -> dict[str, Tensor]:
    """The weights after windows of so many rows."""
    step = begun((technique,), strategy)
    for window in windows(rows):
        step(part_of(step, window))
    return problems.weights(step)


def trained_by_torch(technique: Technique, rows: Sequence[int]) -> dict[str, Tensor]:
    """The same by torch's DDP, which averages over ranks the means over their rows, and its own hook."""
    model = net()
    wrapped = DistributedDataParallel(model, find_unused_parameters=True)
    wrapped.register_comm_hook(*hook_of(technique))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for inputs, labels in windows(rows):
        half = len(labels) // 2
        own = slice(0, half) if dist.get_rank() == 0 else slice(half, None)
        optimizer.zero_grad()
        nn.functional.cross_entropy(wrapped(inputs[own]), labels[own]).backward()
        optimizer.step()
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


def hook_of(technique: Technique) -> tuple[Any, Any]:
    if not isinstance(technique, PowerSGD):
        hooks = default_hooks.bf16_compress_hook, default_hooks.fp16_compress_hook
        hook = hooks[isinstance(technique, FP16Gradients)]
        return None, lambda state, bucket: hook(state, bucket)  # by its name DDP asks for nccl
    state = powerSGD_hook.PowerSGDState(
        None,
        technique.rank,
        int(technique.start),
        technique.min_compression_rate,
        orthogonalization_epsilon=SMALLEST,
        random_seed=derive_seed(0, "powersgd") % 2**32,
    )
    return state, in_turn


def in_turn(state, bucket):  # type: ignore[no-untyped-def]  # torch compares annotations as objects
    """Torch's hook, finished before the next exchange begins: gloo keeps no order of what callbacks begin."""
    done = powerSGD_hook.powerSGD_hook(state, bucket)
    done.wait()
    return done


@pytest.mark.parametrize("technique", [*ROUNDING, THIN], ids=lambda each: each.card.name)
def test_ranks_train_as_torchs_ddp_with_torchs_hook(two: Ranks, technique: Technique) -> None:
    found = two.run(trained, technique, "ddp", ALIKE)
    expected = two.run(trained_by_torch, technique, ALIKE)
    exact = trained_alone(ALIKE)
    assert relative_error(found[0], found[1]) == 0
    # the sum of rounded means is rounded as the mean is; the rest is float64
    assert relative_error(found[0], expected[0]) <= 1e-10
    assert relative_error(found[0], exact) > 1e-5


def trained_alone(rows: Sequence[int]) -> dict[str, Tensor]:
    step = begun((), "alone")
    for window in windows(rows):
        step(Batch.of(window))
    return problems.weights(step)


@pytest.mark.parametrize("technique", ROUNDING, ids=lambda each: each.card.name)
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_a_rounded_gradient_is_off_by_two_roundings(two: Ranks, technique: Technique, strategy: str) -> None:
    """Of what each rank has, and of their sum."""
    (window,) = windows((8,))
    first, second = two.run(gradient, technique, strategy)
    parts = [gradient_alone(window, rows) for rows in (slice(0, 4), slice(4, 8))]
    assert all(torch.equal(first[name], second[name]) for name in first)
    off = []
    for name, found in first.items():
        own, others = (part[name] / 8 for part in parts)
        bound = 2.1 * ROUNDING[technique] * (own.abs() + others.abs()) + 1e-7  # near 0 fp16 has fewer digits
        error = (found - (own + others)).abs()
        assert (error <= bound).all(), name
        off.append(error.max())
    assert max(off) > 1e-6


def gradient(technique: Technique, strategy: str) -> dict[str, Tensor]:
    step = begun((technique,), strategy)
    (window,) = windows((8,))
    step(part_of(step, window))
    return problems.gradients(step)


def gradient_alone(window: Window, rows: slice) -> dict[str, Tensor]:
    """Of the sum of the losses of some rows."""
    model = net()
    nn.functional.cross_entropy(model(window[0][rows]), window[1][rows], reduction="sum").backward()
    return {
        name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None
    }


@pytest.mark.parametrize("technique", [FP16Gradients(), THIN], ids=lambda each: each.card.name)
def test_a_window_that_does_not_fit_on_one_rank_changes_nothing_on_all(
    two: Ranks, technique: Technique
) -> None:
    for paths in two.run(left_by_a_bad_window, technique):
        assert paths - {"/inputs/copied"} == {"/progress/windows", "/progress/skipped", "/progress/examples"}


def left_by_a_bad_window(technique: Technique) -> set[str]:
    """What is not as it was after a window whose gradients are beyond fp16, or beyond all numbers, on the second rank."""
    step = begun((technique,), "ddp")
    *good, bad = windows((8, 8, 8, 8))
    for window in good:
        assert step(part_of(step, window)).applied
    before = saved(step)
    bad[0][4:] *= 1e7 if isinstance(technique, FP16Gradients) else torch.nan
    result = step(part_of(step, bad))
    assert not result.applied and (math.isfinite(result.loss) or technique == THIN)
    return set(differences(before, saved(step)))


def test_what_overflows_lowers_the_loss_scale_until_it_fits(two: Ranks) -> None:
    first, second = two.run(scales)
    assert first == second
    assert first[0][0] is False and first[-1][0] is True
    assert first[-1][1] < 2.0**24


def scales() -> list[tuple[bool, float | None]]:
    step = begun((FP16(initial_scale=2.0**24), FP16Gradients()), "ddp", dtype=torch.float32)
    found = []
    for window in windows((8,) * 16, torch.float32):
        result = step(part_of(step, window))
        found.append((result.applied, result.scale))
    return found


@pytest.mark.parametrize("strategy", ["ddp_buckets", "fsdp"])  # a single message has other numbers in it
def test_gradients_of_16_bits_are_a_quarter_of_those_of_64(two: Ranks, strategy: str) -> None:
    whole, *rounded = (
        two.run(bytes_of_gradients, each, strategy)[0] for each in ((), *[(t,) for t in ROUNDING])
    )
    assert rounded == [whole / 4, whole / 4]


def bytes_of_gradients(techniques: tuple[Technique, ...], strategy: str) -> float:
    """What this rank adds up over ranks in a window, besides single numbers."""
    step = begun(techniques, strategy)
    first, second = windows((8, 8))
    step(part_of(step, first))
    with AddedUp() as added_up:
        step(part_of(step, second))
    return added_up.bytes


class AddedUp(TorchDispatchMode):
    """Counts the bytes of floating tensors of more than two numbers that are given to collectives which add up."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "c10d" and "reduce" in func._schema.name:
            tensors = args[0] if "allreduce" in func._schema.name else [args[1]]
            self.bytes += sum(t.nbytes for t in tensors if t.is_floating_point() and t.numel() > 2)
        return func(*args, **(kwargs or {}))
