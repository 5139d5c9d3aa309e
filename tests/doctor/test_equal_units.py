"""Layers whose units begin alike and are taught alike, in several ways of drawing them, and what looks alike and is right."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.doctor.test_shapes import told
from tests.doctor.test_variants import looped

pytestmark = pytest.mark.slow

DRAWN = """
class Net(nn.Module):
    def __init__(self, hidden=12):
        super().__init__()
        self.first, self.second, self.last = nn.Linear(6, hidden), nn.Linear(hidden, hidden), nn.Linear(hidden, 3)
        self.scale = nn.Parameter(torch.ones(hidden))
        {drawn}
    def forward(self, x):
        x = torch.tanh(self.first(x)) * self.scale
        return self.last(torch.tanh(self.second(x)))
{before}
net = Net()
optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
x, y = torch.randn(60, 6), torch.arange(60) % 3
"""
LEARNED = looped("loss = F.cross_entropy(net(x), y)")
OVER_ALL = "for layer in (self.first, self.second, self.last):\n            "


@pytest.mark.parametrize(
    ("drawn", "before", "pitfall"),
    [
        (OVER_ALL + "nn.init.constant_(layer.weight, 0.1)  # cause\n            nn.init.zeros_(layer.bias)", "", "equal_units"),
        ("for name, value in self.named_parameters():\n            value.data.fill_(0.05)  # cause", "", "equal_units"),
        ("self.first.weight = nn.Parameter(torch.full((hidden, 6), 0.2))  # cause\n        self.second.weight = nn.Parameter(torch.ones(hidden, hidden) / hidden)  # cause\n        nn.init.zeros_(self.first.bias)\n        nn.init.zeros_(self.second.bias)", "", "equal_units"),
        ("self.apply(ones)", "def ones(layer):\n    if isinstance(layer, nn.Linear):\n        layer.weight.data = torch.ones_like(layer.weight) * 0.1  # cause\n        layer.bias.data.zero_()", "equal_units"),
        # drawn apart, or told apart by what they learn of
        ("nn.init.zeros_(self.last.weight)", "", ""),
        ("nn.init.constant_(self.first.weight, 0.1)", "", ""),
        ("nn.init.zeros_(self.first.bias)\n        nn.init.ones_(self.scale)", "", ""),
        (OVER_ALL + "nn.init.normal_(layer.weight, std=0.2)\n            nn.init.constant_(layer.bias, 0.1)", "", ""),
        ("self.first.weight.data.fill_(0.5)\n        self.first.requires_grad_(False)", "", ""),
        ("self.first.weight.data.copy_(torch.eye(12, 6))", "", ""),
    ],
)  # fmt: skip
def test_units_that_begin_alike_stay_alike(
    tmp_path: Path, drawn: str, before: str, pitfall: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    told(tmp_path, DRAWN.format(drawn=drawn, before=before) + LEARNED, pitfall, monkeypatch)


def test_parts_that_begin_with_nothing_and_come_apart_are_no_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = """
    class Adapted(nn.Module):
        def __init__(self):
            super().__init__()
            self.base = nn.Linear(6, 8)
            self.base.requires_grad_(False)
            self.down, self.up = nn.Parameter(torch.randn(4, 6) * 0.1), nn.Parameter(torch.zeros(8, 4))
            self.places, self.head = nn.Parameter(torch.zeros(5, 8)), nn.Linear(8, 3)
        def forward(self, x):
            x = self.base(x) + x @ self.down.t() @ self.up.t() + self.places
            return self.head(torch.tanh(x).mean(1))
    net = Adapted()
    optimizer = torch.optim.SGD([each for each in net.parameters() if each.requires_grad], lr=0.1)
    x, y = torch.randn(60, 5, 6), torch.arange(60) % 3
    """
    told(tmp_path, script + "\n" + "\n".join(f"    {line}" for line in LEARNED.splitlines()), "", monkeypatch)
