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


AVERAGED = """
net, criterion = nn.Linear(6, 2), nn.CrossEntropyLoss()
optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
x = torch.randn(90, 6)
loader = DataLoader(TensorDataset(x, (x[:, 0] > 0).long()), {size}, shuffle=True)
def fit(loader):
    {begin}
    for number, (rows, wanted) in enumerate(loader):
        scores = net(rows)
        loss = criterion(scores, wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        {each}
    {after}
for epoch in range(3):
    print(fit(loader))
"""
LAST, EMPTY = "last_batch_score", "batch_mean_scores"


@pytest.mark.parametrize(
    ("size", "begin", "each", "after", "pitfall"),
    [
        (30, "total, seen = 0, 0", "total += loss.item() * len(rows); seen += len(rows)", "loss = (loss / seen).detach()  # cause\n    return loss", LAST),
        (30, "total = 0.0", "total += loss.item()", "return loss.item() / len(loader)  # cause", LAST),
        (30, "seen = 0", "err = F.cross_entropy(net(rows), wanted); seen += 1", "mean = float(err) / seen  # cause\n    return mean", LAST),
        (30, "running = 0.0", "if number % 2:\n            print(running / 2)  # cause\n            running = 0.0", "return 0", EMPTY),
        (30, "hits, seen = 0, 0", "seen += (scores.argmax(1) == wanted).sum().item()", "return hits / len(x)  # cause", EMPTY),
        (30, "total = 0\n    count = 0", "count += len(rows); other = loss.item()", "print(count)\n    return f'{total / count:.3f}'  # cause", EMPTY),
        (30, "total, seen = 0, 0", "total += loss.item() * len(rows); seen += len(rows)", "loss = total / seen\n    return loss", ""),
        (30, "losses = []", "losses.append(loss.item())", "loss = sum(losses)\n    return loss / len(loader)", ""),
        (30, "loss, running = None, torch.zeros(())", "running = running + loss.detach(); loss = running", "return loss / len(loader)", ""),
        (90, "total = 0", "total += loss.item()", "return loss.item() / len(loader)", ""),
        (30, "total = 0", "total = total + loss.item()", "return total / len(loader)", ""),
        (30, "total = 0\n    def add(value):\n        nonlocal total\n        total += value", "add(loss.item())", "return total / len(loader)", ""),
        (30, "a = b = 0", "a, b = a + loss.item(), b + 1", "return a / b", ""),
    ],
)  # fmt: skip
def test_what_is_divided_by_the_number_of_all_was_summed_up(
    tmp_path: Path,
    size: int,
    begin: str,
    each: str,
    after: str,
    pitfall: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told(tmp_path, AVERAGED.format(size=size, begin=begin, each=each, after=after), pitfall, monkeypatch)


AGENT = """
def make():
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
{begin}
optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
for step in range(70):
    state, after, action = torch.randn(16, 4), torch.randn(16, 4), torch.arange(16).view(-1, 1) % 3
    with torch.no_grad():
        wanted = state[:, :1] + 0.9 * {second}(after).max(1, keepdim=True).values
    loss = F.mse_loss(net(state).gather(1, action), wanted)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    {each}
"""
LOADS = "net, target_net = make(), make()\ntarget_net.load_state_dict(net.state_dict())"
HELPER = "def sync(source, copied):\n    for p, q in zip(copied.parameters(), source.parameters()):\n        p.data.copy_(q.data)\nnet, target_net = make(), make()\nsync(net, target_net)"
HELD = "class Agent:\n    def __init__(self):\n        self.net = make()\n        self.target = copy.deepcopy(self.net).eval()  # cause\n    def update(self):\n        self.target.load_state_dict(self.net.state_dict())\nagent = Agent()\nnet = agent.net"
STILL = "average_stands_still"


@pytest.mark.parametrize(
    ("begin", "second", "each", "pitfall"),
    [
        (LOADS + "  # cause", "target_net", "", STILL),
        (HELPER + "  # cause", "target_net", "", STILL),
        (HELD.partition("    def update")[0] + "agent = Agent()\nnet = agent.net", "agent.target", "", STILL),
        ("net = make()\ndef main():\n    global tgt\n    tgt = copy.deepcopy(net)  # cause\nmain()", "tgt", "", STILL),
        (LOADS, "target_net", "if step % 30 == 29:\n        target_net.load_state_dict(net.state_dict())", ""),
        (LOADS, "target_net", "if step % 500 == 499:\n        target_net.load_state_dict(net.state_dict())", ""),
        (HELPER, "target_net", "if step % 5 == 4:\n        sync(net, target_net)", ""),
        (HELD, "agent.target", "if step % 5 == 4:\n        agent.update()", ""),
        (LOADS, "target_net", "with torch.no_grad():\n        [p.lerp_(q, 0.05) for p, q in zip(target_net.parameters(), net.parameters())]", ""),
        ("net, target_net = make(), make()", "target_net", "", ""),
        ("net = make()\nreference = copy.deepcopy(net)", "reference", "", ""),
    ],
)  # fmt: skip
def test_a_target_network_that_is_copied_before_the_training_alone_is_said_where_it_is(
    tmp_path: Path, begin: str, second: str, each: str, pitfall: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = AGENT.format(begin=begin, second=second, each=each or "pass")
    told(tmp_path, text, pitfall, monkeypatch)


HOOKED = """
net = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 4))
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**14)
{hooks}
for update in range(8):
    x = torch.randn(40, 6)
    loss = {loss}
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    {between}
    scaler.step(optimizer)
    scaler.update()
"""
EACH = "for p in net.parameters():\n    p.register_hook({hook})"
CLASSED = "F.cross_entropy(net(x), (x[:, 0] > 0).long())"


@pytest.mark.parametrize(
    ("hooks", "loss", "between", "pitfall"),
    [
        (EACH.format(hook="lambda g: torch.clamp(g, -1.0, 1.0)") + "  # cause", CLASSED, "", "clip_before_unscale"),
        ("def limit(g):\n    return g.clip(-0.5, 0.5)\n" + EACH.format(hook="limit") + "  # cause", CLASSED, "scaler.unscale_(optimizer)", "clip_before_unscale"),
        ("def limit(p):\n    p.grad.clamp_(-2, 2)\nfor p in net.parameters():\n    p.register_post_accumulate_grad_hook(limit)  # cause", CLASSED, "", "clip_before_unscale"),
        (EACH.format(hook="lambda g: g.clamp(-0.05 * scaler.get_scale(), 0.05 * scaler.get_scale())"), CLASSED, "", ""),
        (EACH.format(hook="lambda g: torch.nan_to_num(g)"), CLASSED, "", ""),
        (EACH.format(hook="lambda g: g.clamp(-1e6, 1e6)"), CLASSED, "", ""),
        ("", CLASSED, "scaler.unscale_(optimizer)\n    torch.nn.utils.clip_grad_value_(net.parameters(), 0.01)", ""),
        ("", CLASSED + " + 1e-4 * sum(p.abs().sum() for p in net.parameters())", "", ""),
    ],
)  # fmt: skip
def test_gradients_that_hooks_limit_while_they_carry_the_loss_scale_are_said_at_the_hook(
    tmp_path: Path, hooks: str, loss: str, between: str, pitfall: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = HOOKED.format(hooks=hooks, loss=loss, between=between or "pass")
    told(tmp_path, text, pitfall, monkeypatch)


PLACED = """
class Places(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("pe", torch.randn(1, 30, 8))
        self.pos_emb, self.tokens = nn.Parameter(torch.randn(1, 30, 8)), nn.Embedding(40, 8)
        self.lengths = torch.randn(30, 8)
        self.layer = nn.Linear(8, 3)
    def forward(self, ids):
        x = self.tokens(ids)
        x = x + self.pos_emb[:, : x.size(1)]
        {body}
        return self.layer(x)
net = Places()
optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
"""


@pytest.mark.parametrize(
    ("body", "pitfall"),
    [
        ("x = x + self.pe[:, x.shape[1], :]  # cause", "wrong_axis"),
        ("b, n, _ = x.shape\n        x = self.pe[:, n] + x  # cause", "wrong_axis"),
        ("length = ids.size(1)\n        x = self.tokens(ids) * 2.8\n        x += self.pe[0, length] * 0 + self.pe[:, :length]\n        x = x + self.pos_emb[:, length]  # cause", "wrong_axis"),
        ("x = self.tokens(ids) + self.pos_emb[:, ids.size(-1)]  # cause", "wrong_axis"),
        ("x = x + self.pe[:, : x.shape[1]]", ""),
        ("x = x + self.lengths[x.size(1)]", ""),
        ("x = x + self.pe[:, 3]", ""),
        ("past = self.tokens(ids)[:, :4]\n        x = x + self.pe[:, past.size(1)]", ""),
        ("x = x + self.pe[:, torch.arange(x.size(1))]", ""),
        ("x = x + self.pe[:, x.size(1) - 1]", ""),
    ],
)  # fmt: skip
def test_an_encoding_of_places_is_cut_at_a_length_and_not_indexed_by_it(
    tmp_path: Path, body: str, pitfall: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    loss = "ids = torch.randint(0, 40, (16, 9)); loss = F.cross_entropy(net(ids).flatten(0, 1), ids.flatten() % 3)"
    told(tmp_path, PLACED.format(body=body) + looped(loss), pitfall, monkeypatch)


PARTED = """
def scaled(rows, known):
    return (rows - known.mean(0)) / known.std(0)
def by_layer(rows, known):
    return [(a - b.mean(0)) / b.std(0) for a, b in zip(rows, known)]
def noised(rows, other):
    return rows + 0.1 * other.std(0)
net = nn.Sequential(nn.Flatten(), nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.Adam(net.parameters(), 1e-3)
train_rows, test_rows = 3 * torch.randn(160, 3, 4) + 1, 3 * torch.randn(90, 3, 4) + 1
train_y, test_y = train_rows.mean((1, 2)), test_rows.mean((1, 2))
{scale}
for update in range(12):
    part = torch.randperm(160)[:40]
    loss = F.mse_loss(net(train_rows[part]).squeeze(1), train_y[part])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
net.eval()
with torch.no_grad():
    print(F.mse_loss(net(test_rows).squeeze(1), test_y).item())
"""


@pytest.mark.parametrize(
    ("scale", "pitfall"),
    [
        ("train_rows = scaled(train_rows, train_rows)\ntest_rows = scaled(test_rows, test_rows)  # cause", "other_statistics"),
        ("train_rows = (train_rows - train_rows.mean()) / train_rows.std()\ntest_rows = (test_rows - test_rows.mean()) / test_rows.std()  # cause", "other_statistics"),
        ("train_rows = torch.stack(by_layer(train_rows.unbind(1), train_rows.unbind(1)), 1)\nx_train, x_test = train_rows, test_rows.unbind(1)\nx_train = by_layer(x_train, x_train)\nx_test = by_layer(x_test, x_test)  # cause\ntest_rows = torch.stack(x_test, 1)", "other_statistics"),
        ("train_rows, test_rows = scaled(train_rows, train_rows), scaled(test_rows, train_rows)", ""),
        ("known = train_rows\ntrain_rows = scaled(train_rows, known)\ntest_rows = scaled(test_rows, known)", ""),
        ("train_rows = noised(train_rows, test_rows)\ntest_rows = noised(test_rows, test_rows)", ""),
        ("mean, std = train_rows.mean(), train_rows.std()\ntrain_rows = (train_rows - mean) / std\ntest_rows = (test_rows - mean) / std", ""),
        ("train_rows, test_rows = [(e - e.mean((1, 2), keepdim=True)) / e.std((1, 2), keepdim=True) for e in (train_rows, test_rows)]", ""),
        ("train_rows = (train_rows - train_rows.mean(-1, keepdim=True)) / train_rows.std(-1, keepdim=True)\ntest_rows = (test_rows - test_rows.mean(-1, keepdim=True)) / test_rows.std(-1, keepdim=True)", ""),
    ],
)  # fmt: skip
def test_rows_that_are_scored_are_not_scaled_by_their_own_statistics(
    tmp_path: Path, scale: str, pitfall: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    told(tmp_path, PARTED.format(scale=scale), pitfall, monkeypatch)


CHOSEN = """
net = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2))
optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
x = torch.randn(300, 6)
y = (x[:, 0] > 0).long()
def score(loader):
    net.eval()
    with torch.no_grad():
        return sum((net(a).argmax(1) == b).float().sum().item() for a, b in loader) / len(loader.dataset)
train, valid, held = TensorDataset(x[:200], y[:200]), (x[200:250], y[200:250]), (x[250:], y[250:])
{sets}
best = 0.0
for epoch in range(3):
    net.train()
    for a, b in DataLoader(train, 40, shuffle=True):
        loss = F.cross_entropy(net(a), b)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    value = score(valid_loader)
    if value > best:
        best, state = value, copy.deepcopy(net.state_dict())
print(score(test_loader))
"""
LOADERS = "\nvalid_loader = DataLoader(valid_set, 25)\ntest_loader = DataLoader(test_set, 25)"


@pytest.mark.parametrize(
    ("sets", "pitfall"),
    [
        ("valid_set = TensorDataset(*valid)\ntest_set = TensorDataset(*valid)  # cause" + LOADERS, "leakage"),
        ("valid_set = TensorDataset(*valid)\ntest_set = TensorDataset(valid[0], valid[1])  # cause" + LOADERS, "leakage"),
        ("rows = TensorDataset(*valid)\nvalid_loader = DataLoader(rows, 25)  # cause\ntest_loader = DataLoader(rows, 25)", "leakage"),
        ("valid_set = TensorDataset(*valid)\ntest_set = TensorDataset(*held)" + LOADERS, ""),
    ],
)  # fmt: skip
def test_a_test_that_is_made_of_the_validation_is_said_where_it_is_made(
    tmp_path: Path, sets: str, pitfall: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    told(tmp_path, CHOSEN.format(sets=sets), pitfall, monkeypatch)


LISTED = """
net = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 6))
optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
x = torch.randn(120, 6)
def errors(rows):
    return dict(size=(net(rows) - rows).abs().mean(1), square=(net(rows) - rows).pow(2).mean(1))
loader = DataLoader(x[70:], {size})
for epoch in range(3):
    for rows in DataLoader(x[:70], 35, shuffle=True):
        loss = (net(rows) - rows).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    kept = {kept}
    with torch.no_grad():
        for rows in loader:
            {each}
    {after}
"""
IN_LISTS = "for name, value in errors(rows).items():\n                kept.setdefault(name, []).append(value.mean().item())"
OF_LISTS = "print({name: float(np.mean(values)) for name, values in kept.items()})"


@pytest.mark.parametrize(
    ("size", "kept", "each", "after", "pitfall"),
    [
        (16, "{}", IN_LISTS, OF_LISTS + "  # cause", "batch_mean_scores"),
        (16, "[]", "kept.append(float(errors(rows)['size'].mean()))", "print(sum(kept) / len(kept))  # cause", "batch_mean_scores"),
        (16, "dict(a=[])", "kept['a'].append((net(rows) - rows).abs().mean())", "value = torch.stack(kept['a']).mean()  # cause", "batch_mean_scores"),
        (25, "{}", IN_LISTS, OF_LISTS, ""),
        (17, "{}", IN_LISTS, OF_LISTS, ""),
        (16, "[]", "kept.extend(errors(rows)['size'].tolist())", "print(np.mean(kept))", ""),
        (16, "[]", "kept.append(errors(rows)['size'])", "print(torch.cat(kept).mean())", ""),
        (16, "[]", "kept.append(errors(rows)['size'].mean().item())", "print(max(kept), kept)", ""),
        (16, "[]", "kept.append(errors(rows)['size'].mean().item() * len(rows))", "print(sum(kept) / 50)", ""),
    ],
)  # fmt: skip
def test_means_of_unequal_batches_in_lists_are_not_averaged(
    tmp_path: Path,
    size: int,
    kept: str,
    each: str,
    after: str,
    pitfall: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told(tmp_path, LISTED.format(size=size, kept=kept, each=each, after=after), pitfall, monkeypatch)
