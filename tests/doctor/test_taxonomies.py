"""Mistakes of the published taxonomies of faults in deep learning, in a loop and in a class of a trainer, each beside what looks alike and is right."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest

from tests.doctor.test_variants import found

pytestmark = pytest.mark.slow

TRAINER = """
import os, random, tempfile
class Pictures(Dataset):
    def __init__(self, rows, seed, train):
        generator = torch.Generator().manual_seed(seed)
        self.y = torch.randint(0, 3, (rows,), generator=generator)
        centres = 60 * torch.randn(3, 3, 6, 6, generator=torch.Generator().manual_seed(9))
        self.x = (128 + centres[self.y] + 40 * torch.randn(rows, 3, 6, 6, generator=generator)).clamp(0, 255).byte()
        self.train = train
    def __len__(self): return len(self.y)
    def __getitem__(self, row):
        x = self.x[row].float() / 255
        x = (x - 0.5) / 0.25
        if self.train and random.random() < 0.5:
            x = x.flip(-1)
        return {"pixels": x, "target": self.y[row]}
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm, self.head = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Linear(8, 3)
    def forward(self, pixels):
        return {"logits": self.head(F.relu(self.norm(self.conv(pixels))).mean((2, 3)))}
class Trainer:
    def __init__(self, model, train_loader, valid_loader, folder):
        self.model, self.path = model, os.path.join(folder, "best.pt")
        self.train_loader, self.valid_loader = train_loader, valid_loader
        self.criterion = nn.CrossEntropyLoss(label_smoothing=0.05)
        self.optim = torch.optim.AdamW(self.model.parameters(), lr=2e-3)
        self.best_score, self.best_state, self.history = -1.0, None, []
    def compute(self, batch):
        logits = self.model(batch["pixels"])["logits"]
        return self.criterion(logits, batch["target"]), logits
    def train_epoch(self):
        self.model.train()
        running = 0.0
        for batch in self.train_loader:
            loss, _ = self.compute(batch)
            self.optim.zero_grad()
            loss.backward()
            self.optim.step()
            running += loss.item() * len(batch["target"])
        return running / len(self.train_loader.dataset)
    @torch.no_grad()
    def validate(self):
        self.model.eval()
        hits = total = 0
        for batch in self.valid_loader:
            _, logits = self.compute(batch)
            hits += (logits.argmax(dim=-1) == batch["target"]).sum().item()
            total += batch["target"].numel()
        return hits / total
    def fit(self):
        for epoch in range(6):
            loss, score = self.train_epoch(), self.validate()
            if score > self.best_score:
                self.best_score = score
                self.best_state = copy.deepcopy(self.model.state_dict())
                torch.save(self.best_state, self.path)
            self.history.append((loss, score))
        if self.best_state is not None:
            self.model.load_state_dict(self.best_state)
def main():
    random.seed(0)
    train = DataLoader(Pictures(160, 1, True), 16, shuffle=True)
    valid = DataLoader(Pictures(50, 2, False), 25)
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(Net(), train, valid, folder)
        trainer.fit()
        print(trainer.history)
main()
"""

TABLE = """
import math, os, tempfile
rng = np.random.RandomState(0)
data = rng.randn(400, 6) * np.array([1.0, 5.0, 3.0, 2.0, 0.1, 7.0]) + np.array([5.0, 3.0, -2.0, 1.0, 0.0, 2.0])
price = 2 + data @ rng.randn(6) / 3 + 0.1 * rng.randn(400)
order = rng.permutation(400)
train_rows, test_rows = order[:320], order[320:]
X_train, X_test = data[train_rows], data[test_rows]
y_train, y_test = price[train_rows], price[test_rows]
mean, deviation = X_train.mean(0), X_train.std(0)
X_train = (X_train - mean) / deviation
X_test = (X_test - mean) / deviation
X_train = torch.tensor(X_train, dtype=torch.float32)
X_test = torch.tensor(X_test, dtype=torch.float32)
y_train = torch.tensor(y_train, dtype=torch.float32)[:, None]
y_test = torch.tensor(y_test, dtype=torch.float32)[:, None]
model = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 1))
loss_fn = nn.MSELoss()
opt = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
sched = torch.optim.lr_scheduler.ReduceLROnPlateau(opt, mode="min", patience=2)
best_rmse, path = math.inf, os.path.join(tempfile.mkdtemp(), "best_model.pt")
for epoch in range(8):
    perm, total = torch.randperm(len(X_train)), 0.0
    for start in range(0, len(X_train), 32):
        rows = perm[start:start + 32]
        xb, yb = X_train[rows], y_train[rows]
        loss = loss_fn(model(xb), yb)
        opt.zero_grad()
        loss.backward()
        opt.step()
        total += loss.item()
    with torch.no_grad():
        rmse = 1000 * torch.sqrt(((model(X_test) - y_test) ** 2).mean()).item()
    sched.step(rmse)
    if rmse < best_rmse:
        best_rmse = rmse
        torch.save(model.state_dict(), path)
"""


def _ill(tmp_path: Path, text: str, changes: tuple[tuple[str, str], ...], line: str, pitfall: str) -> None:
    for old, new in changes:
        assert old in text
        text = text.replace(old, new, 1)
    ill = found(tmp_path, text)
    assert set(ill) == ({pitfall} if pitfall else set())
    if pitfall:
        lines = (tmp_path / "train.py").read_text().splitlines()
        named = ill[pitfall].where.rsplit(":", 1)[1]
        assert line in lines[int(named) - 1]


@pytest.mark.parametrize(
    ("changes", "line", "pitfall"),
    [
        ((), "", ""),
        ((("        x = (x - 0.5) / 0.25\n", ""), ("float() / 255", "float()")), "self.x[row].float()", "unscaled_inputs"),
        ((("(x - 0.5) / 0.25", "(x - 0.5) / 0.25 if self.train else x"),), "if self.train else x", "other_statistics"),
        ((("if self.train and random", "if random"),), "if random", "random_validation"),
        ((("Pictures(50, 2, False)", "Pictures(50, 2, True)"),), "valid = DataLoader", "random_validation"),
        ((("        self.model.eval()\n", ""),), "self.compute(batch)", "train_mode"),
        ((("running += loss.item() * len(batch[\"target\"])", "running = running + loss * len(batch[\"target\"])"),), "running = running + loss", "growing_graph"),
        ((("copy.deepcopy(self.model.state_dict())", "{k: v.detach() for k, v in self.model.state_dict().items()}"),), "v.detach()", "best_not_copied"),
        ((("if score > self", "if score < self"), ("self.best_state, self.history = -1.0", "self.best_state, self.history = 2.0")), "if score <", "plateau_metric"),
        ((("self.best_state, self.history = -1.0", "self.best_state, self.history = float('inf')"),), "float('inf')", "plateau_metric"),
        ((("if score > self", "if -loss > self"), ("self.best_score = score", "self.best_score = -loss"), ("history = -1.0", "history = -math.inf"), ("import os,", "import math, os,")), "", ""),
        ((("                torch.save(self.best_state, self.path)\n", ""), ("            self.history.append(", "            torch.save(self.model.state_dict(), self.path)\n            self.history.append(")), "torch.save(", "best_overwritten"),
        ((("loss.backward()", "(-loss).backward()"),), "(-loss)", "wrong_sign"),
        ((("lr=2e-3", "lr=2e-3, maximize=True"),), "maximize=True", "wrong_sign"),
        ((("lr=2e-3", "lr=1e-9"),), "lr=1e-9", "learning_rate"),
        ((("\"target\": self.y[row]", "\"target\": self.y[row] + 1"), ("nn.Linear(8, 3)", "nn.Linear(8, 4)")), "self.y[row] + 1", "unused_class"),
    ],
)  # fmt: skip
def test_a_trainer_whose_loaders_are_its_attributes_is_followed(
    tmp_path: Path, changes: tuple[tuple[str, str], ...], line: str, pitfall: str
) -> None:
    _ill(tmp_path, TRAINER, changes, line, pitfall)


@pytest.mark.parametrize(
    ("changes", "line", "pitfall"),
    [
        ((), "", ""),
        ((("X_train[rows], y_train[rows]", "X_train[rows], y_train[start:start + 32]"),), "", "mismatched_rows"),
        ((('mode="min"', 'mode="max"'),), 'mode="max"', "plateau_metric"),
        ((("if rmse < best", "if rmse > best"), ("best_rmse, path = math.inf", "best_rmse, path = 0.0")), "if rmse >", "plateau_metric"),
        ((("best_rmse, path = math.inf", "best_rmse, path = 0"),), "best_rmse, path = 0", "plateau_metric"),
        ((("if rmse < best_rmse", "name = 'rmse'\n    if ('rm' in name and rmse < best_rmse) or ('rm' not in name and rmse > best_rmse)"),), "", ""),
        ((("if rmse < best_rmse", "name = 'rmse'\n    if ('rm' in name and rmse < best_rmse) or rmse > best_rmse"),), "or rmse >", "plateau_metric"),
        ((("if rmse < best_rmse", "if epoch >= 0 and rmse > best_rmse"), ("best_rmse, path = math.inf", "best_rmse, path = 0.0")), "and rmse >", "plateau_metric"),
        ((("        torch.save(", "    torch.save("),), "torch.save(", "best_overwritten"),
        ((("lr=0.02", "lr=1e-9"),), "lr=1e-9", "learning_rate"),
        ((("loss = loss_fn(model(xb), yb)", "loss = -loss_fn(model(xb), yb)"), ("lr=0.02", "lr=1e-4")), "loss = -loss_fn", "wrong_sign"),
        ((("order[:320], order[320:]", "order[:320], order[240:]"),), "order[240:]", "leakage"),
        ((("data[train_rows], data[test_rows]", "data[train_rows], data[train_rows[:80]]"),), "train_rows", "leakage"),
        ((("total += loss.item()", "total = loss.item() + total"),), "", ""),
    ],
)  # fmt: skip
def test_a_loop_over_arrays_is_followed(
    tmp_path: Path, changes: tuple[tuple[str, str], ...], line: str, pitfall: str
) -> None:
    _ill(tmp_path, TABLE, changes, line, pitfall)


POLICY = """
policy, critic = nn.Linear(4, 3), nn.Linear(4, 1)
optimizer = torch.optim.Adam([*policy.parameters(), *critic.parameters()], 1e-3)
for update in range(12):
    states = torch.randn(64, 4)
    with torch.no_grad():
        actions = torch.distributions.Categorical(logits=policy(states)).sample()
    rewards = (actions == states[:, :3].argmax(1)).float()
    advantages = rewards - critic(states).squeeze(1).detach()
    logp = torch.distributions.Categorical(logits=policy(states)).log_prob(actions)
    {loss}
    value_loss = ((critic(states).squeeze(1) - rewards) ** 2).mean()
    optimizer.zero_grad()
    (policy_loss + 0.5 * value_loss).backward()
    optimizer.step()
"""


@pytest.mark.parametrize(
    ("loss", "pitfall"),
    [
        ("policy_loss = (logp * advantages).mean()", "wrong_sign"),
        ("terms = [a * p for a, p in zip(advantages, logp)]; losses = torch.stack([a * logp[k] for k, a in enumerate(advantages)]); policy_loss = losses.sum() / 64", ""),
        ("ratio = (logp - logp.detach()).exp(); policy_loss = torch.min(advantages * ratio, advantages * ratio.clamp(0.8, 1.2)).mean()", "wrong_sign"),
        ("ratio = (logp - logp.detach()).exp(); policy_loss = torch.max(-advantages * ratio, -advantages * ratio.clamp(0.8, 1.2)).mean()", ""),
        ("ratio = (logp - logp.detach()).exp(); policy_loss = -torch.min(advantages * ratio, advantages * ratio.clamp(0.8, 1.2)).mean()", ""),
        ("policy_loss = -(logp * advantages).mean()", ""),
        ("policy_loss = (-logp * advantages).mean()", ""),
    ],
)  # fmt: skip
def test_a_policy_makes_what_turned_out_well_more_likely(tmp_path: Path, loss: str, pitfall: str) -> None:
    assert set(found(tmp_path, POLICY.format(loss=loss))) == ({pitfall} if pitfall else set())


SCALED = """
from sklearn.preprocessing import MinMaxScaler
series = (torch.sin(torch.arange(300) / 7) * torch.linspace(1, 3, 300)).numpy()[:, None]
split = 240
scaler = MinMaxScaler()
{scaled}
def windows(rows):
    rows = torch.tensor(rows, dtype=torch.float32).flatten()
    return rows.unfold(0, 9, 1)[:, :8], rows.unfold(0, 9, 1)[:, 8:]
x, y = windows(train_data)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.Adam(model.parameters(), 1e-2)
for epoch in range(4):
    for rows in torch.randperm(len(x)).split(32):
        loss = F.mse_loss(model(x[rows]), y[rows])
        optimizer.zero_grad(); loss.backward(); optimizer.step()
a, b = windows(test_data)
with torch.no_grad():
    print(F.mse_loss(model(a), b).item())
"""


@pytest.mark.parametrize(
    ("scaled", "pitfall"),
    [
        ("whole = scaler.fit_transform(series)\ntrain_data, test_data = whole[:split], whole[split - 8:]", "leakage"),
        ("train_data = scaler.fit_transform(series[:split])\ntest_data = scaler.fit_transform(series[split - 8:])", "other_statistics"),
        ("train_data = scaler.fit_transform(series[:split]); test_data = scaler.transform(series[split - 8:])", ""),
    ],
)  # fmt: skip
def test_a_scaler_knows_the_training_alone(tmp_path: Path, scaled: str, pitfall: str) -> None:
    ill = set(found(tmp_path, SCALED.format(scaled=scaled)))
    assert ill - ({"leakage"} if not pitfall else set()) == ({pitfall} if pitfall else set())


DROPPED = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(8, 32), nn.Linear(32, 3)
    def forward(self, x):
        return self.two(F.dropout(self.one(x).relu(), 0.3{mode}))
net = Net()
optimizer = torch.optim.Adam(net.parameters(), 1e-2)
x, y, seen = torch.randn(60, 8), torch.randint(0, 3, (60,)), torch.arange(60) < 40
for epoch in range(6):
    net.train()
    loss = F.cross_entropy(net(x)[seen], y[seen])
    optimizer.zero_grad(); loss.backward(); optimizer.step()
    net.eval()
    with torch.no_grad():
        scores = net(x)
    print((scores[~seen].argmax(1) == y[~seen]).double().mean())
"""


@pytest.mark.parametrize(("mode", "pitfall"), [("", "train_mode"), (", training=self.training", "")])
def test_a_function_that_drops_is_told_the_mode(tmp_path: Path, mode: str, pitfall: str) -> None:
    assert set(found(tmp_path, dedent(DROPPED).format(mode=mode))) == ({pitfall} if pitfall else set())


ONE_CLASS = """
net = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, {classes}))
optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
for update in range(12):
    x = torch.randn(40, 6)
    loss = F.cross_entropy(net(x), {target})
    optimizer.zero_grad(); loss.backward(); optimizer.step()
"""


@pytest.mark.parametrize(
    ("classes", "target", "pitfall"),
    [("1", "(x[:, :1] > 0).float()", "wrong_scores"), ("2", "(x[:, 0] > 0).long()", "")],
)
def test_one_score_is_no_choice_of_a_class(tmp_path: Path, classes: str, target: str, pitfall: str) -> None:
    ill = found(tmp_path, ONE_CLASS.format(classes=classes, target=target))
    assert set(ill) - {"no_gradient"} == ({pitfall} if pitfall else set())


VIEWS = """
net = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 16))
optimizer = torch.optim.Adam(net.parameters(), 1e-3)
x = torch.randn(160, 8)
class Pairs(nn.Module):
    def __init__(self, heat):
        super().__init__()
        self.heat, self.criterion = heat, nn.CrossEntropyLoss()
    def forward(self, a, b):
        z, n = F.normalize(torch.cat([a, b]), dim=-1), len(a)
        scores = torch.einsum("id,jd->ij", z, z) / self.heat
        {masked}
        return self.criterion(scores, {partner})
criterion = Pairs(0.5)
for rows in [part for _ in range(3) for part in torch.randperm(160).split(32)]:
    views = [net(x[rows] + 0.1 * torch.randn(32, 8)) for _ in range(2)]
    loss = criterion(*views)
    optimizer.zero_grad(); loss.backward(); optimizer.step()
"""


@pytest.mark.parametrize(
    ("masked", "partner", "pitfall"),
    [
        ("pass", "torch.arange(2 * n).roll(n)", "own_row_scored"),
        ("scores = scores - 1e9 * torch.eye(2 * n)", "torch.arange(2 * n).roll(n)", ""),
        ("scores = scores[:n, n:]", "torch.arange(n)", ""),
    ],
)
def test_the_likeness_of_a_row_to_itself_is_no_rival(
    tmp_path: Path, masked: str, partner: str, pitfall: str
) -> None:
    ill = found(tmp_path, VIEWS.format(masked=masked, partner=partner))
    assert set(ill) == ({pitfall} if pitfall else set())


ATOMS = """
def clusters(rows, seed):
    draw = torch.Generator().manual_seed(seed)
    kinds, places = torch.randint(0, 2, (rows, 6), generator=draw), torch.randn(rows, 6, 3, generator=draw)
    return torch.utils.data.TensorDataset(kinds, places, (kinds[..., None] * places).sum((1, 2)))
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.layers = nn.Embedding(2, 8), nn.Sequential(nn.Linear(11, 32), nn.ReLU(), nn.Linear(32, 1))
    def forward(self, kinds, places):
        return self.layers(torch.cat([self.embedding(kinds), places], 2)).sum((1, 2))
net = Net()
optimizer = torch.optim.Adam(net.parameters(), 1e-3)
train = DataLoader(clusters(96, 0), batch_size=16, shuffle=True)
held_out = DataLoader({held_out}, batch_size=16)
for epoch in range(2):
    net.train()
    for kinds, places, energies in train:
        optimizer.zero_grad()
        F.mse_loss(net(kinds, places), energies).backward()
        optimizer.step()
    net.eval()
    with torch.no_grad():
        print(sum(F.l1_loss(net(kinds, places), energies, reduction="sum").item() for kinds, places, energies in held_out) / 32)
"""


@pytest.mark.parametrize(
    ("held_out", "leaks"),
    [("clusters(32, 1)", False), ("torch.utils.data.Subset(train.dataset, range(32))", True)],
)
def test_rows_with_the_same_kinds_and_other_places_are_other_rows(
    tmp_path: Path, held_out: str, leaks: bool
) -> None:
    ill = found(tmp_path, ATOMS.replace("{held_out}", held_out))
    assert ("leakage" in ill) == leaks
