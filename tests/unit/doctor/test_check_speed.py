"""Numbers that a model of one's own reads in every pass, and switches for debugging that it leaves on, are found before a run."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from snugfit.doctor.check_speed import speed_faults, speed_seen


class Reading(nn.Module):
    def __init__(self, reads: bool) -> None:
        super().__init__()
        self.layer, self.reads = nn.Linear(3, 3), reads

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x)
        return y * 2 if self.reads and y.abs().max().item() > 1e6 else y


def _found(model: nn.Module, *, anomaly: bool = False) -> list[tuple[str, str]]:
    with speed_seen(model) as seen, torch.autograd.set_detect_anomaly(anomaly):
        for _ in range(3):
            model(torch.ones(2, 3)).sum().backward()
    return [(each.pitfall, each.where) for each in speed_faults(seen, torch.device("cpu"))]


def test_a_read_in_each_pass_and_anomaly_mode_are_found_and_a_plain_model_has_neither() -> None:
    item = Tensor.item
    assert _found(Reading(reads=False)) == []
    ((pitfall, where),) = _found(Reading(reads=True))
    assert pitfall == "device_reads" and where.rpartition("/")[2].startswith("test_check_speed.py:")
    assert [name for name, _ in _found(Reading(reads=False), anomaly=True)] == ["debugging_left_on"]
    assert Tensor.item is item and "item" not in vars(Tensor), "what was put in place is taken away"
