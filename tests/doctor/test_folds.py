"""Cross-validations whose folds go on with one model, and those in which each begins anew."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.doctor.test_shapes import told

pytestmark = pytest.mark.slow

FOLDS = """
from sklearn.model_selection import KFold, StratifiedKFold
from torch.utils.data import Subset
x = torch.randn(120, 6)
y = (x[:, 0] > 0).long()
rows = TensorDataset(x, y)
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 2))
    def forward(self, x):
        return self.layers(x)
def renew(layer):
    if isinstance(layer, nn.Linear):
        layer.reset_parameters()
{before}
for {folds}:
    {within}
    train = DataLoader(Subset(rows, kept), batch_size=16, shuffle=True)
    valid = DataLoader(Subset(rows, out), batch_size=24)
    for epoch in range(2):
        net.train()
        for a, b in train:
            optimizer.zero_grad()
            F.cross_entropy(net(a), b).backward()
            optimizer.step()
    net.eval()
    hits = 0
    with torch.no_grad():
        for a, b in valid:
            hits += (net(a).argmax(1) == b).sum().item()
    print(hits / len(out))
"""
MADE = "net = Net()"
STEPS = "optimizer = torch.optim.Adam(net.parameters(), 1e-3)"
K_FOLD = "number, (kept, out) in enumerate(KFold(5, shuffle=True, random_state=0).split(x))"
CUT = "out = list(range(24 * fold, 24 * fold + 24))\n    kept = [each for each in range(120) if each not in out]"


@pytest.mark.parametrize(
    ("before", "folds", "within", "pitfall"),
    [
        (f"{MADE}  # cause\n{STEPS}", K_FOLD, "pass", "leakage"),
        (f"{MADE}  # cause", "kept, out in StratifiedKFold(4).split(x, y)", STEPS, "leakage"),
        (f"{MADE}  # cause\n{STEPS}\nn_folds = 5", "fold in range(n_folds)", CUT, "leakage"),
        ("", K_FOLD, f"{MADE}\n    {STEPS}", ""),
        ("n_folds = 5", "fold in range(n_folds)", f"{CUT}\n    {MADE}\n    {STEPS}", ""),
        (f"{MADE}\nbegun = copy.deepcopy(net.state_dict())", K_FOLD, f"net.load_state_dict(begun)\n    {STEPS}", ""),
        (MADE, K_FOLD, f"net.apply(renew)\n    {STEPS}", ""),
    ],
)  # fmt: skip
def test_each_fold_begins_with_a_model_that_no_other_has_trained(
    tmp_path: Path, before: str, folds: str, within: str, pitfall: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    told(tmp_path, FOLDS.format(before=before, folds=folds, within=within), pitfall, monkeypatch)


HELPED = """
from sklearn.model_selection import KFold
x = torch.randn(120, 6)
y = (x[:, 0] > 0).long()
def loader(rows, shuffle):
    return DataLoader(TensorDataset(x[rows], y[rows]), batch_size=16, shuffle=shuffle)
def learn(network, batches, optimizer):
    network.train()
    for a, b in batches:
        loss = F.cross_entropy(network(a), b)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
def score(network, batches):
    network.eval()
    with torch.no_grad():
        return sum((network(a).argmax(1) == b).sum().item() for a, b in batches) / len(batches.dataset)
def build():
    return nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 2))
{before}
{run}
"""
SPLITS = "KFold(4, shuffle=True, random_state=0).split(x)"
WITHIN = """
    train, valid = loader(kept, True), loader(out, False)
    steps = torch.optim.Adam({name}.parameters(), 1e-3)
    learn({name}, train, steps)
    print(score({name}, valid))
"""


@pytest.mark.parametrize(
    ("before", "run", "pitfall"),
    [
        ("clf = build()  # cause", f"for kept, out in {SPLITS}:" + WITHIN.format(name="clf"), "leakage"),
        ("", f"def main():\n  clf = build()  # cause\n  for n, (kept, out) in enumerate({SPLITS}):" + WITHIN.format(name="clf") + "main()", "leakage"),
        ("network = build()  # cause\nfolds = list(KFold(3).split(x))", "for kept, out in folds:" + WITHIN.format(name="network"), "leakage"),
        ("", f"for kept, out in {SPLITS}:\n    clf = build()" + WITHIN.format(name="clf"), ""),
        ("network = build()\nbegun = copy.deepcopy(network.state_dict())", f"for kept, out in {SPLITS}:\n    network.load_state_dict(begun)" + WITHIN.format(name="network"), ""),
        ("def one(kept, out):\n    own = build()" + WITHIN.format(name="own"), f"for kept, out in {SPLITS}: one(kept, out)", ""),
    ],
)  # fmt: skip
def test_folds_whose_loaders_a_helper_makes_are_folds_too(
    tmp_path: Path, before: str, run: str, pitfall: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    told(tmp_path, HELPED.format(before=before, run=run), pitfall, monkeypatch)
