"""Losses that are computed epoch after epoch and never differentiated, beside passes that are to teach nothing, and models that learn otherwise."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.doctor.test_shapes import told

pytestmark = pytest.mark.slow

IDLE = """
class Net(nn.Module):
    def __init__(self, width=12):
        super().__init__()
        self.body, self.drop, self.head = nn.Linear(6, width), nn.Dropout(0.1), nn.Linear(width, 3)
    def forward(self, x):
        return self.head(self.drop(self.body(x).relu()))
x = torch.randn(96, 6)
y = (x[:, 0] > 0).long() + (x[:, 1] > 0).long()
loader = DataLoader(TensorDataset(x, y), batch_size=16, shuffle=True)
net, criterion = Net(), nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
{run}
"""
LOOP = """
for epoch in range({epochs}):
    net.{mode}()
    for a, b in loader:
        {each}
"""
SCORED = LOOP.format(epochs=3, mode="eval", each="loss = criterion(net(a), b)")


@pytest.mark.parametrize(
    ("run", "pitfall"),
    [
        (LOOP.format(epochs=3, mode="train", each="loss = criterion(net(a), b)  # cause"), "never_stepped"),
        (LOOP.format(epochs=4, mode="train", each="optimizer.zero_grad()\n        total = F.cross_entropy(net(a), b).item()  # cause") + "net.eval()\nwith torch.no_grad(): print((net(x).argmax(1) == y).sum())", "never_stepped"),
        ("def step(model, batch):\n    return F.mse_loss(model(batch[0]), F.one_hot(batch[1], 3).float())  # cause\nfor epoch in range(3):\n    losses = [step(net, batch).detach() for batch in loader]", "never_stepped"),
        (LOOP.format(epochs=3, mode="train", each="loss = criterion(net(a), b); optimizer.zero_grad(); loss.backward(); optimizer.step()"), ""),
        (SCORED, ""),
        ("net.load_state_dict(Net().state_dict())\n" + LOOP.format(epochs=3, mode="train", each="loss = criterion(net(a), b)"), ""),
        (LOOP.format(epochs=3, mode="train", each="with torch.no_grad(): loss = criterion(net(a), b)"), ""),
        (LOOP.format(epochs=1, mode="train", each="loss = criterion(net(a), b)"), ""),
        (LOOP.format(epochs=4, mode="train", each="loss = criterion(net(a), b)\n        parts = torch.autograd.grad(loss, [*net.parameters()])\n        with torch.no_grad(): [w.sub_(0.1 * g) for w, g in zip(net.parameters(), parts)]"), ""),
    ],
)  # fmt: skip
def test_a_loss_of_each_batch_is_there_to_be_differentiated(
    tmp_path: Path, run: str, pitfall: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    told(tmp_path, IDLE.format(run=run), pitfall, monkeypatch)
