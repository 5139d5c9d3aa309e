"""Weights of rows beside a loss that is one number already, in several ways of writing, and weights that weigh; agents whose returns are below 0."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.doctor.test_shapes import told
from tests.doctor.test_variants import looped

pytestmark = pytest.mark.slow

WEIGHED = """
net, value = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3)), nn.Linear(6, 1)
optimizer = torch.optim.Adam([*net.parameters(), *value.parameters()], lr=1e-3)
criterion, each = nn.CrossEntropyLoss(), nn.CrossEntropyLoss(reduction="none")
y, shares = torch.arange(40) % 3, torch.tensor([0.5, 0.3, 0.2])
def step():
    x = torch.randn(40, 6)
    w, t = torch.rand(40), x[:, :1] * 2
    noise = torch.randn(40)
{loss}
    return loss
"""


@pytest.mark.parametrize(
    ("loss", "pitfall"),
    [
        ("loss = criterion(net(x), y)\nloss = torch.mean(w * loss)  # cause\nloss = loss + value(x).square().mean()", True),
        ("loss = (F.smooth_l1_loss(value(x), t) * w[:, None]).mean() + criterion(net(x), y)  # cause", True),
        ("errors = (value(x) - t).pow(2).mean()\nweighed = errors.mul(w)  # cause\nloss = weighed.sum() / 40 + criterion(net(x), y)", True),
        ("p = torch.distributions.Categorical(logits=net(x))\nlikely = p.log_prob(y).mean()\nloss = -torch.sum(likely * (w + 0.1)) + value(x).square().mean()  # cause", True),
        ("loss = (each(net(x), y) * w).mean() + value(x).square().mean()", False),
        ("loss = (each(net(x), y) * w).sum() / w.sum() + value(x).square().mean()", False),
        # as many ones as rows, shares of several losses, and weights that learn
        ("loss = (criterion(net(x), y) * torch.ones(40)).mean() + value(x).square().mean()", False),
        ("parts = torch.stack([criterion(net(x), y), value(x).square().mean(), net(x).square().mean()])\nloss = (parts * shares).sum()", False),
        ("loss = (criterion(net(x), y) * value(x).sigmoid()).mean() + value(x).square().mean()", False),
        # a deviation by which noise is scaled, and added to what is scored
        ("loss = criterion(net(x), y) + (value(x)[:, 0] + 0.1 * noise * value(x).std()).square().mean()", False),
    ],
)  # fmt: skip
def test_weights_of_rows_weigh_losses_of_rows(
    tmp_path: Path, loss: str, *, pitfall: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = "\n".join("    " + line for line in loss.splitlines())
    text = WEIGHED.format(loss=lines) + looped("loss = step()")
    told(tmp_path, text, "late_weights" if pitfall else "", monkeypatch)


AGENT = """
policy = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 2))
optimizer = torch.optim.Adam(policy.parameters(), lr=1e-3)
"""
ACTED = """
states = torch.randn(30, 4)
choice = torch.distributions.Categorical(logits=policy(states))
actions = choice.sample()
rewards = -(actions - (states[:, 0] > 0).float()).abs() - 0.1
returns = rewards.flip(0).cumsum(0).flip(0)
"""


@pytest.mark.parametrize(
    ("loss", "pitfall"),
    [
        ("loss = -(choice.log_prob(actions) * returns).sum()", False),
        ("loss = -choice.log_prob(actions).sum() * float(returns[0])", False),
        ("loss = sum(-one * gain for one, gain in zip(choice.log_prob(actions), returns.tolist()))", False),
        ("loss = (choice.log_prob(actions) * -returns).mean()  # cause", True),
        ("loss = choice.log_prob(actions).mul(returns.abs()).mean()  # cause", True),
        ("loss = -1 * -(choice.log_prob(actions) * (returns + 50)).mean()  # cause", True),
    ],
)
def test_a_policy_may_have_returns_below_nothing(
    tmp_path: Path, loss: str, *, pitfall: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    told(tmp_path, AGENT + looped(f"{ACTED}\n{loss}"), "wrong_sign" if pitfall else "", monkeypatch)
