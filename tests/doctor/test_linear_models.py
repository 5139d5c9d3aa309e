"""Hidden layers without an activation, in several ways of writing, and linear layers behind each other that are meant."""

from __future__ import annotations

from pathlib import Path

import pytest

from snugfit.doctor.observe.child import watch_script
from snugfit.doctor.observe.detect import diagnose
from tests.doctor.test_variants import BEGIN, looped

pytestmark = pytest.mark.slow

TRAINED = """
optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
x = torch.randn(32, 6)
"""
NUMBERS = "loss = net(x).square().mean()"
OWN = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two, self.drop = nn.Linear(6, {middle}), nn.Linear({middle}, 4), nn.Dropout(0.3)
    def forward(self, x):
        return {out}
net = Net()
"""


@pytest.mark.parametrize(
    ("model", "loss", "seen"),
    [
        ("net = nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 1), nn.Sigmoid())", NUMBERS, True),
        (OWN.format(middle=12, out="self.two(self.drop(self.one(x.flatten(1))))"), "loss = F.cross_entropy(net(x), torch.arange(32) % 4)", True),
        ("net = nn.Sequential(nn.Flatten(), nn.Linear(6, 9, bias=False), nn.Identity(), nn.Linear(9, 5), nn.Linear(5, 3), nn.LogSoftmax(1))", "loss = F.nll_loss(net(x), torch.arange(32) % 3)", True),
        (OWN.format(middle=8, out="F.linear(F.linear(x[:, None], self.one.weight), self.two.weight, self.two.bias)"), NUMBERS, True),
        ("net = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 1), nn.Sigmoid())", NUMBERS, False),
        # few numbers are to say what is in many: a factor of low rank, and an autoencoder
        ("net = nn.Sequential(nn.Linear(6, 2, bias=False), nn.Linear(2, 4))", NUMBERS, False),
        ("net = nn.Sequential(nn.Linear(6, 3), nn.Linear(3, 6))", "loss = F.mse_loss(net(x), x)", False),
        # a norm between them, a sum with what came in, two heads
        ("net = nn.Sequential(nn.Linear(6, 8, bias=False), nn.BatchNorm1d(8), nn.Linear(8, 1))", NUMBERS, False),
        (OWN.format(middle=6, out="self.two(x + self.one(x))"), NUMBERS, False),
        (OWN.format(middle=8, out="F.normalize(self.one(x), dim=1) @ F.normalize(self.two.weight, dim=0).T"), NUMBERS, False),
        # a linear model, and one of words, on purpose
        ("net = nn.Linear(6, 3)", NUMBERS, False),
        ("net = nn.Sequential(nn.Embedding(9, 5), nn.Linear(5, 9))", "loss = F.cross_entropy(net(torch.arange(9)), torch.arange(9).flip(0))", False),
        # queries and keys of what was embedded
        (OWN.format(middle=8, out="(self.one(x) @ self.one(x).T).softmax(1) @ self.two(self.one(x))"), NUMBERS, False),
        # a head over features that stay as they are
        ("net = nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 3))\nnet[0].requires_grad_(False)", NUMBERS, False),
    ],
)  # fmt: skip
def test_two_linear_layers_are_one(tmp_path: Path, model: str, loss: str, seen: bool) -> None:
    script = tmp_path / "train.py"
    script.write_text(BEGIN + model + TRAINED + looped(loss))
    log = watch_script(script)
    assert log.complete and not log.failure, log.failure
    assert [each.pitfall for each in diagnose([log]) if each.pitfall == "no_activation"] == [
        "no_activation"
    ] * seen
