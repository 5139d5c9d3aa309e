"""Predictions of a loader that shuffles beside labels that stand in the order of the data set, and labels that come as the predictions do."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.doctor.test_shapes import told

pytestmark = pytest.mark.slow

PREDICTED = """
from sklearn.metrics import accuracy_score, confusion_matrix, r2_score, roc_auc_score
x = torch.randn(240, 6)
y = {truth}
train_loader = DataLoader(TensorDataset(x[:160], y[:160]), batch_size=20, shuffle=True)
test_loader = DataLoader(TensorDataset(x[160:], y[160:]), batch_size=16, shuffle={shuffle}){cause}
net = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, {outputs}))
optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
for epoch in range(3):
    net.train()
    for inputs, labels in train_loader:
        optimizer.zero_grad()
        out = net(inputs)
        loss = {loss}
        loss.backward()
        optimizer.step()
net.eval()
predicted, wanted, places = [], [], []
with torch.no_grad():
    for inputs, labels in test_loader:
        out = net(inputs)
        {each}
    {after}
"""
CLASSES = {
    "truth": "(x[:, 0] > 0).long() + (x[:, 1] > 0).long()",
    "outputs": 3,
    "loss": "F.cross_entropy(out, labels)",
}
BINARY = {
    "truth": "(x[:, 0] > 0).float()",
    "outputs": 1,
    "loss": "F.binary_cross_entropy_with_logits(out[:, 0], labels)",
}
NUMBERS = {"truth": "x[:, 0] + x[:, 1] ** 2", "outputs": 1, "loss": "F.mse_loss(out[:, 0], labels)"}
GATHERED = "predicted += out.argmax(1).tolist(); wanted += labels.tolist()"


@pytest.mark.parametrize(
    ("task", "shuffle", "each", "after", "pitfall"),
    [
        (CLASSES, True, "predicted += out.argmax(1).tolist()", "print(accuracy_score(y[160:].numpy(), predicted))", "mismatched_rows"),
        (BINARY, True, "predicted.append((out[:, 0] > 0).int())", "print(confusion_matrix(y[160:].int().tolist(), torch.cat(predicted).numpy()))", "mismatched_rows"),
        (NUMBERS, True, "predicted.extend(out[:, 0].numpy())", "print(r2_score(y[160:].numpy(), np.array(predicted)))", "mismatched_rows"),
        (CLASSES, True, "predicted.append(out.argmax(1))", "print((torch.cat(predicted) == y[160:]).float().mean())", "mismatched_rows"),
        (CLASSES, False, "predicted += out.argmax(1).tolist()", "print(accuracy_score(y[160:].numpy(), predicted))", ""),
        (CLASSES, True, GATHERED, "print(accuracy_score(wanted, predicted), (torch.tensor(predicted) == torch.tensor(wanted)).sum())", ""),
        (CLASSES, True, GATHERED, "order = np.argsort(wanted)\n    print(accuracy_score(np.array(wanted)[order], np.array(predicted)[order]))", ""),
        (NUMBERS, True, "predicted.extend(out[:, 0].tolist()); wanted.extend(labels.tolist())", "print(r2_score(wanted, predicted), r2_score(y[160:].tolist(), net(x[160:])[:, 0].tolist()))", ""),
        (BINARY, True, "predicted.append(out[:, 0]); wanted.append(labels)", "print(roc_auc_score(torch.cat(wanted), torch.cat(predicted)))\n    print(((net(x[160:])[:, 0] > 0).float() == y[160:]).float().mean())", ""),
    ],
)  # fmt: skip
def test_labels_stand_in_the_order_in_which_rows_are_predicted(
    tmp_path: Path,
    task: dict[str, object],
    shuffle: bool,
    each: str,
    after: str,
    pitfall: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cause = "  # cause" if pitfall else ""
    script = PREDICTED.format(**task, shuffle=shuffle, cause=cause, each=each, after=after)
    told(tmp_path, script, pitfall, monkeypatch)
