"""Loss scale: the scales and the weights of a hand-written fp16 loop, with overflows, accumulation, clipping and SAM.

The loop is that of torch.amp.GradScaler where it can do the job. On this CPU autocast computes in fp16 as a GPU does: a
gradient beyond 65504 is infinite.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from snugfit.core.loss_scale import LossScale
from snugfit.core.technique import Technique
from snugfit.errors import TrainingFailed
from snugfit.step.step import Step
from snugfit.techniques.learning.clip_norm import ClipNorm
from snugfit.techniques.learning.sam import SAM
from snugfit.techniques.numerics.fp16 import FP16
from tests.laws.problems import differences, saved

ROWS, CLASSES, WINDOWS = 8, 3, 16
# float32: one sum in another order
TOLERANCE = 1e-6
# it overflows at once and each time it has grown again
SETTINGS = {"initial_scale": 2.0**22, "growth_factor": 2.0, "backoff_factor": 0.5, "growth_interval": 2}

Pair = tuple[Tensor, Tensor]


def windows() -> list[Pair]:
    """Rows to classify, with one window that is not a number and one without labels."""
    source = torch.Generator().manual_seed(3)
    made = [
        (
            torch.randn(ROWS, 5, generator=source),
            torch.randint(0, CLASSES, (ROWS,), generator=source),
        )
        for _ in range(WINDOWS)
    ]
    made[7][0][-1] = math.nan
    return made


def model() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return nn.Sequential(nn.Linear(5, 16), nn.Tanh(), nn.Linear(16, CLASSES))


def optimizer(of: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(of.parameters(), lr=0.1, momentum=0.9)


def backward(of: nn.Module, window: Pair, micro_batch: int, scaled: Callable[[Tensor], Tensor]) -> None:
    """Accumulate the gradient of the window's mean loss, as everybody writes it."""
    inputs, labels = window
    for part in torch.arange(ROWS).split(micro_batch):
        with torch.autocast("cpu", dtype=torch.float16):
            loss = F.cross_entropy(of(inputs[part]), labels[part], reduction="sum") / ROWS
        scaled(loss).backward()


def clip(of: nn.Module, bound: float | None) -> None:
    gradients = [p.grad for p in of.parameters() if p.grad is not None]
    norm = torch.stack([gradient.norm() for gradient in gradients]).norm()
    if bound is not None and norm > bound:
        for gradient in gradients:
            gradient.mul_(bound / norm)


Trained = tuple[list[float], list[bool], list[Tensor]]
"""The scale after each window, whether it made an update, and the weights at the end."""


def with_grad_scaler(micro_batch: int, bound: float | None) -> Trained:
    trained = model()
    optimizer_ = optimizer(trained)
    scaler = torch.amp.GradScaler(
        "cpu",
        init_scale=SETTINGS["initial_scale"],
        growth_factor=SETTINGS["growth_factor"],
        backoff_factor=SETTINGS["backoff_factor"],
        growth_interval=int(SETTINGS["growth_interval"]),
    )
    scales, applied = [], []
    for window in windows():
        before = trained[0].weight.detach().clone()  # type: ignore[index]
        optimizer_.zero_grad()
        backward(trained, window, micro_batch, scaler.scale)
        scaler.unscale_(optimizer_)
        clip(trained, bound)
        scaler.step(optimizer_)
        scaler.update()
        scales.append(scaler.get_scale())
        applied.append(not torch.equal(before, trained[0].weight))  # type: ignore[index]
    return scales, applied, list(trained.parameters())


def with_sam_by_hand(micro_batch: int, rho: float) -> Trained:
    """Both gradients unscaled by the same scale; an overflow in either makes no update, and halves the scale once."""
    trained = model()
    optimizer_ = optimizer(trained)
    scale, finite_in_a_row = SETTINGS["initial_scale"], 0
    scales, applied = [], []

    def gradient(window: Pair) -> list[Tensor]:
        optimizer_.zero_grad()
        backward(trained, window, micro_batch, lambda loss: loss * scale)
        return [p.grad / scale for p in trained.parameters() if p.grad is not None]

    for window in windows():
        start = [p.detach().clone() for p in trained.parameters()]
        first = gradient(window)
        finite = all(bool(g.isfinite().all()) for g in first)
        if finite:
            length = torch.stack([g.norm() for g in first]).norm()
            with torch.no_grad():
                for parameter, g in zip(trained.parameters(), first, strict=True):
                    parameter += rho * g / length
            second = gradient(window)
            with torch.no_grad():
                for parameter, weight in zip(trained.parameters(), start, strict=True):
                    parameter.copy_(weight)
            finite = all(bool(g.isfinite().all()) for g in second)
        if finite:
            for parameter, g in zip(trained.parameters(), second, strict=True):
                parameter.grad = g
            optimizer_.step()
            finite_in_a_row += 1
            if finite_in_a_row == SETTINGS["growth_interval"]:
                scale, finite_in_a_row = scale * SETTINGS["growth_factor"], 0
        else:
            scale, finite_in_a_row = scale * SETTINGS["backoff_factor"], 0
        scales.append(scale)
        applied.append(finite)
    return scales, applied, list(trained.parameters())


def with_step(micro_batch: int | None, *techniques: Technique) -> Trained:
    trained = model()
    step = Step(
        trained,
        optimizer(trained),
        techniques=[FP16(**SETTINGS), *techniques],  # type: ignore[arg-type]
        micro_batch=micro_batch,
        nominal=float(ROWS),
    )
    assert step.seams.scale is not None
    scales, applied = [], []
    for window in windows():
        before = step.seams.scale.factor
        result = step(window)
        assert result.scale == before
        scales.append(step.seams.scale.factor)
        applied.append(result.applied)
    return scales, applied, step.parameters  # type: ignore[return-value]


def agree(scaled: Trained, reference: Trained) -> None:
    assert scaled[0] == reference[0]
    assert scaled[1] == reference[1]
    assert sum(reference[1]) >= WINDOWS // 2, "too little was learned"
    assert reference[1].count(False) >= 4, "too little has overflowed"
    for one, other in zip(scaled[2], reference[2], strict=True):
        torch.testing.assert_close(one.detach(), other.detach(), rtol=TOLERANCE, atol=TOLERANCE)


@pytest.mark.parametrize("bound", [None, 0.1])
@pytest.mark.parametrize("micro_batch", [ROWS, 4, 2])
def test_accumulation_clipping_and_skipped_updates_are_those_of_grad_scaler(
    micro_batch: int, bound: float | None
) -> None:
    techniques = [] if bound is None else [ClipNorm(max_norm=bound)]
    agree(with_step(micro_batch, *techniques), with_grad_scaler(micro_batch, bound))


@pytest.mark.parametrize("micro_batch", [ROWS, 2])
def test_sam_under_a_scale_is_the_hand_loop_that_scales_itself(micro_batch: int) -> None:
    agree(with_step(micro_batch, SAM(rho=0.1)), with_sam_by_hand(micro_batch, rho=0.1))


def test_grad_scaler_cannot_do_sam() -> None:
    """It unscales the gradients of an optimizer once an update, and SAM needs those of both passes."""
    trained = model()
    optimizer_ = optimizer(trained)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    backward(trained, windows()[0], ROWS, scaler.scale)
    scaler.unscale_(optimizer_)
    optimizer_.zero_grad()
    backward(trained, windows()[0], ROWS, scaler.scale)
    with pytest.raises(RuntimeError, match="unscale_.. has already been called"):
        scaler.unscale_(optimizer_)


@pytest.mark.parametrize("initial", [65536.0, 1.1, 3e38, 1e-43])
@pytest.mark.parametrize("growth", [2.0, 1.3])
@pytest.mark.parametrize("backoff", [0.5, 0.7])
@pytest.mark.parametrize("interval", [1, 3])
def test_the_scales_are_those_of_grad_scaler_up_to_both_ends_of_float32(
    initial: float, growth: float, backoff: float, interval: int
) -> None:
    weight = nn.Parameter(torch.zeros(1))
    sgd = torch.optim.SGD([weight], lr=0.0)
    scaler = torch.amp.GradScaler("cpu", initial, growth, backoff, interval)
    scaler.scale(torch.zeros(1))
    scale = LossScale(initial, growth, backoff, interval)
    assert scale.factor == scaler.get_scale()
    draws = random.Random(0)
    grows, falls = [True] * 800 * interval, [False] * 1000
    seen = []
    for finite in (*[True] * 5, *(draws.random() < 0.6 for _ in range(200)), *grows, *falls, *[True] * 5):
        weight.grad = torch.tensor([0.0 if finite else math.inf])
        scaler.unscale_(sgd)
        scaler.update()
        scale.update(finite)
        assert scale.factor == scaler.get_scale()
        seen.append(scale.factor)
    assert min(seen) < 1e-44 and (max(seen) > 1e38 or initial < 1)


def test_growth_beyond_float32_is_refused_and_counts_anew() -> None:
    scale = LossScale(factor=2.0**127, growth_interval=2)
    for _ in range(5):
        scale.update(True)
    assert (scale.factor, scale.finite_in_a_row) == (2.0**127, 1)


def test_a_window_that_is_not_finite_moves_the_scale_and_an_empty_one_does_not() -> None:
    trained = model()
    step = Step(trained, optimizer(trained), techniques=[FP16(initial_scale=64.0, growth_interval=2)])
    good, bad = windows()[0], windows()[7]
    step(good)
    before = saved(step)
    assert not step((good[0], torch.full_like(good[1], -100))).applied
    assert (
        saved(step)["techniques"] == before["techniques"] == {"fp16": {"factor": 64.0, "finite_in_a_row": 1}}
    )
    assert not step(bad).applied
    assert saved(step)["techniques"] == {"fp16": {"factor": 32.0, "finite_in_a_row": 0}}
    assert not differences(before["parameters"], saved(step)["parameters"])


def test_a_scale_of_zero_is_said_and_not_divided_by() -> None:
    trained = model()
    step = Step(trained, optimizer(trained), techniques=[FP16(initial_scale=1e-45)])
    bad = windows()[7]
    assert not step(bad).applied
    with pytest.raises(TrainingFailed, match="the loss scale has fallen to 0"):
        step(bad)


@pytest.mark.parametrize("scale", [1.0, 65536.0])
def test_gradients_too_small_for_fp16_survive_by_the_scale_alone(scale: float) -> None:
    """A weight of 1e-9 makes gradients of the logits below 6e-8, the smallest fp16 number."""
    trained = model()

    def faint(outputs: Tensor, data: Sequence[Tensor]) -> Tensor:
        return F.cross_entropy(outputs, data[1], reduction="none") * 1e-7

    step = Step(trained, optimizer(trained), faint, [FP16(initial_scale=scale)])
    step(windows()[0])
    nonzero = trained[2].weight.grad.abs().max() > 0  # type: ignore[index]
    assert bool(nonzero) == (scale > 1)
