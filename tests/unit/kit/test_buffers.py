from __future__ import annotations

import torch
from torch import nn

from snugfit.core.progress import Progress
from snugfit.kit.buffers import Buffers


def test_buffers_come_back_bit_for_bit_into_the_same_tensors() -> None:
    model = nn.Sequential(nn.BatchNorm1d(2), nn.Linear(2, 2))
    held = list(model.buffers())
    expected = [buffer.clone() for buffer in held]
    buffers = Buffers(model)
    copies = buffers.copy()
    model(torch.randn(4, 2))
    assert not torch.equal(held[0], expected[0])
    buffers.restore(copies)
    assert all(torch.equal(buffer, wanted) for buffer, wanted in zip(model.buffers(), expected, strict=True))
    assert all(one is other for one, other in zip(model.buffers(), held, strict=True))


def test_a_buffer_that_is_replaced_in_forward_is_restored_too() -> None:
    model = nn.Module()
    model.register_buffer("total", torch.zeros(2))
    buffers = Buffers(model)
    copies = buffers.copy()
    model.total = model.total + 1
    buffers.restore(copies)
    assert model.total.tolist() == [0.0, 0.0]


def test_progress_counts_windows_and_only_applied_updates_are_updates() -> None:
    progress = Progress()
    progress.updates += 1
    progress.consume(8, applied=True)
    progress.consume(3, applied=False)
    assert progress == Progress(updates=1, windows=2, skipped=1, examples=11)
    other = Progress()
    other.load_state_dict(progress.state_dict())
    assert other == progress


def test_a_flag_beside_a_buffer_that_forward_made_goes_with_it() -> None:
    class Making(nn.Module):
        def forward(self) -> None:
            if not hasattr(self, "ready"):
                self.ready = True
                self.register_buffer("total", torch.zeros(2))
            self.total += 1

    model = Making()
    buffers = Buffers(model)
    copies = buffers.copy()
    model()
    buffers.restore(copies)
    assert not hasattr(model, "ready") and not hasattr(model, "total")
    model()
    copies = buffers.copy()
    model()
    buffers.restore(copies)
    assert model.ready and model.total.tolist() == [1.0, 1.0]


def test_a_number_that_goes_with_no_buffer_stays_from_the_first_window_on() -> None:
    class Counting(nn.Module):
        calls = 0

        def forward(self) -> None:
            self.calls += 1

    model = nn.Sequential(Counting(), nn.BatchNorm1d(2))
    buffers = Buffers(model)
    for calls in (1, 2):
        copies = buffers.copy()
        model[0]()
        buffers.restore(copies)
        assert model[0].calls == calls


def test_buffers_of_a_module_that_the_first_forward_made_come_back_too() -> None:
    class Making(nn.Module):
        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            if not hasattr(self, "norm"):
                self.norm = nn.BatchNorm1d(2)
            return self.norm(inputs)

    model = Making()
    buffers = Buffers(model)
    buffers.copy()
    model(torch.randn(4, 2))
    expected = [buffer.clone() for buffer in model.buffers()]
    copies = buffers.copy()
    model(torch.randn(4, 2))
    buffers.restore(copies)
    assert len(expected) == 3
    assert all(torch.equal(buffer, wanted) for buffer, wanted in zip(model.buffers(), expected, strict=True))
