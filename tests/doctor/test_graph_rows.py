"""Graphs of which some nodes are scored: targets among the features of the nodes, and what is right of one graph of all nodes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.doctor.test_shapes import told

pytestmark = pytest.mark.slow

GRAPH = """
n = 120
near = torch.eye(n) + (torch.rand(n, n) < 0.03)
near = near / near.sum(1, keepdim=True)
X = torch.randn(n, 5)
y = (near @ X)[:, :1] + 0.1 * torch.randn(n, 1)
order = torch.randperm(n)
train, test = order[:80], order[80:]
seen = torch.zeros(n, dtype=torch.bool); seen[train] = True
{features}
class Net(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.a, self.b = nn.Linear(width, 16), nn.Linear(16, 1)
    def forward(self, x):
        return self.b(near[:len(x), :len(x)] @ self.a(x).relu())
net = Net(rows.shape[1])
optimizer = torch.optim.Adam(net.parameters(), 1e-2)
for epoch in range(12):
    loss = {loss}
    optimizer.zero_grad(); loss.backward(); optimizer.step()
    with torch.no_grad():
        error = F.mse_loss(net(rows)[test], y[test])
{after}
"""
JOINED = "rows = torch.cat([X, y], dim=1)  # cause"
OTHERS = "with torch.no_grad(): print(F.mse_loss(net(torch.randn(60, rows.shape[1])), torch.randn(60, 1)))"


@pytest.mark.parametrize(
    ("features", "loss", "after", "pitfall"),
    [
        (JOINED, "F.mse_loss(net(rows)[train], y[train])", "", "leakage"),
        ("rows = torch.hstack((X, y[:, :1]))  # cause", "F.mse_loss(net(rows)[seen], y[seen])", OTHERS, "leakage"),
        (JOINED, "F.l1_loss(net(rows).index_select(0, train), y[train])", "", "leakage"),
        ("rows = torch.cat([X, y], 1)  # cause", "F.smooth_l1_loss(net(rows)[seen].squeeze(1), y[seen].squeeze(1))", "", "leakage"),
        ("rows = X", "F.mse_loss(net(rows)[train], y[train])", OTHERS, ""),
        ("rows = torch.cat([X, y.roll(1, 0)], 1)", "F.mse_loss(net(rows)[train], y[train])", "", ""),
        ("known = y.clone(); known[order[40:]] = 0.0; rows = torch.cat([X, known], 1)\nlater = order[40:80]", "F.mse_loss(net(rows)[later], y[later])", OTHERS, ""),
        ("rows = X", "F.mse_loss(net(rows)[seen], y[seen])", "with torch.no_grad(): print(net(torch.randn(1, 5)))", ""),
    ],
)  # fmt: skip
def test_a_target_among_the_features_of_nodes_is_known_where_a_mask_takes_those_that_count(
    tmp_path: Path, features: str, loss: str, after: str, pitfall: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    told(tmp_path, GRAPH.format(features=features, loss=loss, after=after), pitfall, monkeypatch)
