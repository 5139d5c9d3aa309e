from __future__ import annotations

from dataclasses import asdict
from typing import Any

import pytest
import torch
from torch import nn

from snugfit.core.parameters import parameter_groups
from snugfit.core.selection import check, check_on
from snugfit.core.technique import Context, Technique
from snugfit.errors import MissingExtra, PlanConflict
from snugfit.kit.optimizers.low_bit import state_bytes
from snugfit.step.step import Step
from snugfit.techniques import find
from snugfit.techniques.numerics.adamw_4bit import AdamW4bit
from snugfit.techniques.numerics.adamw_8bit import AdamW8bit
from snugfit.techniques.placement.optimizer_offload import OptimizerOffload
from tests.laws import problems
from tests.unit.techniques.settings import context, refuses


def test_impossible_settings_are_refused() -> None:
    for kind in (AdamW8bit, AdamW4bit):
        refuses(kind, learning_rate=0.0)
        refuses(kind, epsilon=-1.0)
        refuses(kind, betas=(0.9, 1.0))
        refuses(kind, weight_decay=-0.1)
        refuses(kind, min_size=0)


def test_pages_are_for_cuda() -> None:
    with pytest.raises(PlanConflict, match=r"on cpu: pages are .* by CUDA\. Write paged: false"):
        check_on([AdamW8bit(paged=True)], "cpu")
    check_on([AdamW8bit(paged=True)], "cuda")
    seams = AdamW8bit(paged=True).seams(Context(nn.Linear(1, 1), torch.device("cuda")))
    assert seams.optimizer is not None


def test_states_on_the_host_have_no_pages() -> None:
    with pytest.raises(
        PlanConflict, match=r"'optimizer_offload' and 'adamw_8bit' exclude .* Write paged: false"
    ):
        check([OptimizerOffload(), AdamW8bit(paged=True)])
    check([OptimizerOffload(), AdamW8bit()])


def test_a_device_that_bitsandbytes_does_not_know_is_refused_and_told_the_alternative() -> None:
    with pytest.raises(PlanConflict, match=r"on mps: bitsandbytes has no kernels for it\. Use adamw_4bit"):
        check_on([AdamW8bit()], "mps")
    check_on([AdamW4bit()], "mps")


def test_a_missing_library_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    from snugfit.kit.optimizers import library_optimizer, low_bit_bitsandbytes

    monkeypatch.setattr(library_optimizer.importlib.util, "find_spec", lambda name: None)
    low_bit_bitsandbytes.bitsandbytes_class.cache_clear()
    make = AdamW8bit().seams(context()).optimizer
    assert make is not None
    with pytest.raises(MissingExtra, match=r"snugfit\[quantization\]"):
        make(parameter_groups(nn.Linear(1, 1)))


def test_it_updates_as_the_librarys_own_optimizer_in_a_plain_loop() -> None:
    from bitsandbytes.optim import AdamW8bit as Optimizer

    technique = AdamW8bit(learning_rate=0.01, betas=(0.8, 0.9), weight_decay=0.1)
    ours, plain = classifier(), classifier()
    step = Step(ours, technique)
    settings: dict[str, Any] = {"lr": 0.01, "betas": (0.8, 0.9)}
    matrices = [p for p in plain.parameters() if p.ndim > 1]
    vectors = [p for p in plain.parameters() if p.ndim == 1]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
    optimizer = Optimizer(groups, **settings)
    for window in windows(4):
        step(window)
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(plain(window[0]), window[1]).backward()
        optimizer.step()
    for one, other in zip(ours.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)
    assert state_bytes(step.optimizer) < 3 * sum(p.numel() for p in ours.parameters())


@pytest.mark.parametrize(
    ("technique", "within"),
    [(AdamW8bit(), 0.01), (AdamW4bit(), 0.5)],  # 4 bits lag behind
    ids=str,
)
def test_losses_follow_those_of_adamw_in_fp32(technique: Technique, within: float) -> None:
    ours, theirs = Step(classifier(), technique), Step(classifier(), find("adamw")())
    last = [(ours(window).loss, theirs(window).loss) for window in windows(40)][-5:]
    ours_mean, theirs_mean = (sum(losses) / 5 for losses in zip(*last, strict=True))
    assert theirs_mean < 0.25, "of 2.3 at the beginning"
    assert ours_mean == pytest.approx(theirs_mean, rel=within)
    assert state_bytes(ours.optimizer) < 0.4 * state_bytes(theirs.optimizer)


@pytest.mark.parametrize("technique", [AdamW8bit(), AdamW4bit()], ids=str)
def test_a_schedule_that_moves_momentum_and_rate_reaches_the_optimizer(technique: Technique) -> None:
    step = Step(classifier(), technique, techniques=[find("one_cycle")()], total_updates=4)
    rates, momenta = [], []
    for window in windows(4):
        rates.append(step(window).learning_rate)
        momenta.append(step.optimizer.param_groups[0]["betas"][0])
    assert all(isinstance(rate, float) for rate in rates)
    assert len(set(rates)) == 4 and len(set(momenta)) == 3


def close_to_the_loop(technique: Technique, within: float) -> None:
    """On a net two of whose weights are cut into several blocks, and one into a single one."""
    step, plain = Step(classifier(), technique), classifier()
    given = [{"input": inputs, "labels": labels} for inputs, labels in windows(4)]
    losses = [step((window["input"], window["labels"])).loss for window in given]
    expected = problems.oracle_of(technique).train(plain, given, asdict(technique), 4)
    assert losses == pytest.approx(expected.losses, rel=within)
    start = classifier().state_dict()
    learned = {name: weight - start[name] for name, weight in problems.weights(step).items()}
    moved = {name: weight - start[name] for name, weight in expected.weights.items()}
    assert problems.relative_error(learned, moved, floor=0.01) <= within


def classifier() -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(
            nn.Linear(32, 256), nn.ReLU(), nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, 10)
        )


def windows(count: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(1)
    centres = torch.randn(10, 32, generator=generator)
    labels = [torch.randint(0, 10, (32,), generator=generator) for _ in range(count)]
    return [(centres[each] + torch.randn(32, 32, generator=generator), each) for each in labels]
