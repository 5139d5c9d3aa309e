"""Labels of rows that a reshape mixes with those of other rows, and tables that are turned or viewed rightly."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.doctor.test_rows_signs_places import told
from tests.doctor.test_variants import looped

pytestmark = pytest.mark.slow

ROWS = """
net = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 4))
optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
class Rows(Dataset):
    def __len__(self): return 200
    def __getitem__(self, place):
        label = [0.0] * 4
        label[place * 7 % 4] = 1.0
        return torch.randn(6), label
batches = iter(DataLoader(Rows(), batch_size=20, shuffle=True, drop_last=True))
"""
DRAWN = "x, labels = next(batches)\n"


@pytest.mark.parametrize(
    ("loss", "pitfalls"),
    [
        ("y = torch.stack(labels).reshape(len(x), -1).float()  # cause\nloss = F.cross_entropy(net(x), y)", "wrong_axis"),
        ("y = torch.stack(list(labels), 0).view(20, 4)  # cause\nloss = F.mse_loss(net(x).softmax(1), y.float())", "wrong_axis"),
        ("y = torch.reshape(torch.cat([each[None] for each in labels]), (-1, 4))  # cause\nloss = -(net(x).log_softmax(1) * y).sum(1).mean()", "wrong_axis"),
        ("y = torch.from_numpy(np.stack([each.numpy() for each in labels]).reshape(20, 4)).float()\nloss = F.cross_entropy(net(x), y)  # cause", "mismatched_rows"),
        ("y = torch.stack(labels, dim=1).float()\nloss = F.cross_entropy(net(x), y)", ""),
        ("y = torch.stack(labels).T.float()\nloss = F.cross_entropy(net(x), y.reshape(20, 4))", ""),
        ("y = torch.stack(labels).argmax(0)\nloss = F.cross_entropy(net(x), y.reshape(20))", ""),
        ("y = torch.stack(labels, 1).reshape(-1, 2, 2).flatten(1).float()\nloss = F.cross_entropy(net(x), y)", ""),
        # a table of numbers, in which no row lies
        ("n = torch.randn(4, 20).reshape(20, 4)\nloss = F.mse_loss(net(x), n)", ""),
        # several labels of a row, for a loss that takes them
        ("y = (torch.rand(20, 4) < 0.25).float()\nloss = F.binary_cross_entropy_with_logits(net(x), y)", ""),
    ],
)  # fmt: skip
def test_labels_are_mixed_by_a_reshape(tmp_path: Path, loss: str, pitfalls: str) -> None:
    told(tmp_path, ROWS + looped(DRAWN + loss, 9), pitfalls)
