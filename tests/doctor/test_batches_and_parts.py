"""Means over the wrong axis, losses of the last batch, copies that stand still, and parts of one data set: said at their line, beside what looks alike."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.doctor.test_shapes import told
from tests.doctor.test_variants import looped

pytestmark = pytest.mark.slow

DUELING = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.value, self.advantage = nn.Linear(6, 16), nn.Linear(16, 1), nn.Linear(16, {wide})
    def forward(self, x):
        h = self.body(x).relu()
        v, a = self.value(h), self.advantage(h)
        {body}
net = Net()
optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
"""


@pytest.mark.parametrize(
    ("wide", "body", "pitfall"),
    [
        (4, "return v + a - a.mean()  # cause", "wrong_axis"),
        (4, "return v + (a - torch.mean(a))  # cause", "wrong_axis"),
        (4, "centred = a - a.mean(0, keepdim=True)  # cause\n        return v.expand_as(a) * 0 + (v + centred)", "wrong_axis"),
        (4, "return torch.Tensor.add(v, a).sub(a.mean(dim=0))  # cause", "wrong_axis"),
        (20, "a, v = a.view(-1, 4, 5), v.view(-1, 1, 1).expand(-1, 1, 5) + 0\n        return (v + a - a.mean()).mean(-1)  # cause", "wrong_axis"),
        (4, "return v + a - a.mean(1, keepdim=True)", ""),
        (4, "return v + (a - a.mean(dim=-1, keepdim=True))", ""),
        (4, "return v + a - a.max(dim=1, keepdim=True).values", ""),
        (4, "a = (a - a.mean(0)) / (a.std(0) + 1e-3)\n        return v + a", ""),
        (4, "return v.mean(0, keepdim=True) + a - a.mean()", ""),
        (20, "a, v = a.view(-1, 4, 5), v.view(-1, 1, 1).expand(-1, 1, 5) + 0\n        return (v + a - a.mean(1, keepdim=True)).mean(-1)", ""),
    ],
)  # fmt: skip
def test_advantages_are_centred_over_the_actions_of_a_row(
    tmp_path: Path, wide: int, body: str, pitfall: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    loss = "x = torch.randn(24, 6); loss = F.smooth_l1_loss(net(x).gather(1, torch.arange(24).view(-1, 1) % 4), x[:, :1])"
    told(tmp_path, DUELING.format(wide=wide, body=body) + looped(loss), pitfall, monkeypatch)
