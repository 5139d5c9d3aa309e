"""An update reads one thing of the device, whether it is finite: each read waits until the device has done all that it was asked for.

Whether torch's own operators wait on CUDA is shown by `benchmarks/gpu/run.sh correct`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import nn

from snugfit.step.step import Step
from snugfit.techniques import find


@contextmanager
def reads(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Collect the functions that ask for a tensor's value, but for those of `core.read`, the door: who asked there."""
    found: list[str] = []

    def seeing(original: Any) -> Any:
        def call(tensor: Any, *args: Any) -> Any:
            frame = sys._getframe(1)
            while frame.f_globals["__name__"] == "snugfit.core.scalar_reads" and frame.f_back is not None:
                frame = frame.f_back
            found.append(f"{frame.f_globals['__name__']}.{frame.f_code.co_name}")
            return original(tensor, *args)

        return call

    with monkeypatch.context() as patch:
        for name in ("item", "tolist", "__bool__", "__float__", "__int__"):
            patch.setattr(torch.Tensor, name, seeing(getattr(torch.Tensor, name)))
        yield found


@pytest.mark.parametrize(
    "names",
    [(), ("clip_norm",), ("clip_norm", "ema", "cosine"), ("bf16", "clip_norm"), ("fp16", "clip_norm"), ("label_smoothing", "mixup")],
    ids=", ".join,
)  # fmt: skip
def test_an_update_reads_whether_it_is_finite_and_nothing_else(
    names: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
    techniques = [find(name).example() for name in names]
    step = Step(
        model, find("adamw")(), "cross_entropy", techniques, micro_batch=4, total_updates=8, nominal=8.0
    )
    window = (torch.randn(8, 4), torch.arange(8) % 3)
    while not step(window).applied:  # fp16 finds its scale
        pass
    with reads(monkeypatch) as found:
        result = step(window)
    assert result.applied
    assert {*found} == {"snugfit.core.gradients.read"}
