"""Recurrent layers that are told that the rows come first and get the time there, beside layers with their axes in order."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.doctor.test_shapes import told

pytestmark = pytest.mark.slow

RECURRENT = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn, self.head = {rnn}, nn.Linear(12, 3)
    def forward(self, x):
        {forward}
net = Net()
optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
series = torch.randn(120, {time}, 5)
classes = (series[:, -1, 0] > 0).long() + (series[:, -1, 1] > 0).long()
def turned(rows):
    return torch.stack([a for a, _ in rows], {stacked}), torch.stack([b for _, b in rows])
loader = DataLoader(TensorDataset(series, classes), batch_size={size}, shuffle=True, collate_fn=turned)
for epoch in range(2):
    for a, b in loader:
        loss = F.cross_entropy(net(a), b)
        optimizer.zero_grad(); loss.backward(); optimizer.step()
"""
FIRST = "batch_first=True"
LAST_STEP = "h = self.rnn(x.transpose(0, 1))[0]  # cause\n        return self.head(h[-1])"
IN_ORDER = "return self.head(self.rnn(x)[0][:, -1])"


@pytest.mark.parametrize(
    ("rnn", "forward", "time", "size", "stacked", "pitfall"),
    [
        (f"nn.LSTM(5, 12, {FIRST})", LAST_STEP, 9, 12, 0, "wrong_axis"),
        (f"nn.GRU(5, 12, 2, {FIRST})", "out, _ = self.rnn(x.permute(1, 0, 2))  # cause\n        return self.head(out.mean(0))", 20, 16, 0, "wrong_axis"),
        (f"nn.RNN(5, 6, bidirectional=True, {FIRST})", "y = x.movedim(1, 0) * 2.0\n        y, state = self.rnn(y)  # cause\n        return self.head(y)[-1]", 7, 24, 0, "wrong_axis"),
        (f"nn.LSTM(5, 12, {FIRST})", IN_ORDER, 9, 12, 0, ""),
        ("nn.LSTM(5, 12)", "return self.head(self.rnn(x.transpose(0, 1))[0][-1])", 9, 12, 0, ""),
        (f"nn.GRU(5, 12, {FIRST})", "return self.head(self.rnn(x.transpose(0, 1))[0][:, -1])", 9, 12, 1, ""),
        (f"nn.GRU(5, 12, {FIRST})", "parts = x.reshape(-1, 12, 5)\n        return self.head(self.rnn(parts)[0][:, -1].view(len(x), 2, 12).mean(1))", 24, 12, 0, ""),
        (f"nn.GRU(5, 12, {FIRST})", "return self.head(torch.stack([self.rnn(each.view(5, 8, 5))[0][:, -1].mean(0) for each in x]))", 40, 8, 0, ""),
    ],
)  # fmt: skip
def test_a_layer_whose_rows_come_first_has_the_rows_first(
    tmp_path: Path,
    rnn: str,
    forward: str,
    time: int,
    size: int,
    stacked: int,
    pitfall: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    parts = {"rnn": rnn, "forward": forward, "time": time, "size": size, "stacked": stacked}
    told(tmp_path, RECURRENT.format(**parts), pitfall, monkeypatch)
