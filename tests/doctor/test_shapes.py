"""One fault in the shapes that it has in scripts of other kinds, beside what looks like it and is none; and the line that causes it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.doctor.test_variants import at_cause, looped

pytestmark = pytest.mark.slow


def told(tmp_path: Path, text: str, pitfall: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that a pitfall, or nothing, is certain or likely of a script, at a line that it marks as the cause."""
    monkeypatch.chdir(tmp_path)
    ill, _ = at_cause(tmp_path, text)
    lines = (tmp_path / "train.py").read_text().splitlines()
    causes = [f"train.py:{number}" for number, line in enumerate(lines, 1) if "# cause" in line]
    assert set(ill) == ({pitfall} if pitfall else set())
    assert not pitfall or any(ill[pitfall].where.endswith(cause) for cause in causes), ill[pitfall].where


ATTENDING = """
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.drop = nn.Linear(6, 8), nn.Linear(6, 8), nn.Linear(6, 8), nn.Dropout(0.1)
    def forward(self, x):
        q, k, v = self.q(x), self.k(x), self.v(x)
        {body}
block, head = Block(), nn.Linear(8, 3)
optimizer = torch.optim.Adam([*block.parameters(), *head.parameters()], 1e-3)
"""
SLOTS = "a = (q @ k.transpose(1, 2)).softmax(1) + 1e-6; return (a / a.sum(-1, keepdim=True)) @ v"


@pytest.mark.parametrize(
    ("body", "pitfall"),
    [
        ("w = F.softmax(torch.bmm(q, k.transpose(1, 2)), dim=1)  # cause\n        return torch.bmm(w, v)", "wrong_axis"),
        ("w = self.drop(torch.matmul(q, k.mT).softmax(-2))  # cause\n        return torch.matmul(w, v)", "wrong_axis"),
        ("w = torch.einsum('bqd,bkd->bqk', q, k).softmax(1)  # cause\n        return torch.einsum('bqk,bkd->bqd', w, v)", "wrong_axis"),
        ("w = self.drop(torch.matmul(q, k.mT).softmax(-1))\n        return torch.matmul(w, v)", ""),
        ("return q.softmax(-1) @ (k.softmax(dim=-2).mT @ v)", ""),
        (SLOTS, ""),
    ],
)  # fmt: skip
def test_weights_of_attention_come_to_one_where_they_are_summed_up(
    tmp_path: Path, body: str, pitfall: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    loss = "loss = F.cross_entropy(head(block(torch.randn(12, 7, 6)).mean(1)), torch.arange(12) % 3)"
    told(tmp_path, ATTENDING.format(body=body) + looped(loss), pitfall, monkeypatch)


TAGGING = """
emb, rnn, out = nn.Embedding(40, 12), nn.LSTM(12, 16{first}), nn.Linear(16, 5)
optimizer = torch.optim.Adam([*emb.parameters(), *rnn.parameters(), *out.parameters()], 1e-2)
class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb, self.rnn, self.out = emb, rnn, out
    def forward(self, ids):
        h = self.rnn(self.emb(ids))[0]  # cause
        return {scores}
net, ids = Tagger(), torch.randint(1, 40, (96, 9))
for x, y in DataLoader(TensorDataset(ids, ids % 5), 12, shuffle=True):
    loss = {loss}
    optimizer.zero_grad(); loss.backward(); optimizer.step()
"""


@pytest.mark.parametrize(
    ("first", "scores", "loss", "pitfall"),
    [
        (", batch_first=True", "F.log_softmax(self.out(h), dim=1)  # cause", "F.nll_loss(net(x).transpose(1, 2), y)", "wrong_axis"),
        (", batch_first=True", "self.out(h).log_softmax(1)  # cause", "F.nll_loss(net(x).reshape(-1, 5), y.reshape(-1))", "wrong_axis"),
        ("", "self.out(h)", "F.cross_entropy(net(x).transpose(1, 2), y)", "wrong_axis"),
        (", batch_first=True", "F.log_softmax(self.out(h), dim=-1)", "F.nll_loss(net(x).transpose(1, 2), y)", ""),
    ],
)  # fmt: skip
def test_the_axis_of_places_is_no_axis_of_classes_or_rows(
    tmp_path: Path, first: str, scores: str, loss: str, pitfall: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    told(tmp_path, TAGGING.format(first=first, scores=scores, loss=loss), pitfall, monkeypatch)


NUMBERS = """
net = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 1))
optimizer = torch.optim.Adam(net.parameters(), 1e-3)
x, y = torch.randn(40, 6), torch.randn(40)
"""


@pytest.mark.parametrize(
    ("loss", "after", "pitfall"),
    [
        ("loss = F.poisson_nll_loss(net(x), y.abs().round())  # cause", "", "broadcast_loss"),
        ("loss = -torch.distributions.Normal(net(x), 1.0).log_prob(y).mean()  # cause", "", "broadcast_loss"),
        ("with torch.no_grad(): wanted = y[:, None] + 0.9 * y  # cause\nloss = F.smooth_l1_loss(net(x), wanted)", "", "broadcast_loss"),
        ("loss = F.mse_loss(net(x)[:, 0], y)", "with torch.no_grad(): print(((net(x) - y) ** 2).mean())  # cause\n", "broadcast_loss"),
        ("loss = F.mse_loss(net(x)[:, 0], y)", "with torch.no_grad(): print((net(x)[:, 0] - y).abs().mean(), (y[:, None] == y).sum())\n", ""),
    ],
)  # fmt: skip
def test_a_column_and_a_row_of_numbers_meet_in_losses_tables_and_scores(
    tmp_path: Path, loss: str, after: str, pitfall: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    told(tmp_path, NUMBERS + looped(loss) + after, pitfall, monkeypatch)


FITTED = """
net = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 3))
optimizer, criterion = torch.optim.Adam(net.parameters(), 1e-2), nn.CrossEntropyLoss()
x, vx = torch.randn(90, 6), torch.randn(70, 6)
y, vy = (x[:, 0] > 0).long() + (x[:, 1] > 0).long(), (vx[:, 0] > 0).long() + (vx[:, 1] > 0).long()
train, valid = DataLoader(TensorDataset(x, y), 30, shuffle=True), DataLoader(TensorDataset(vx, vy), 32)
def accuracy(out, y): return (out.argmax(1) == y).float().mean()
def fit():
    net.train()
    for xb, yb in train:
        optimizer.zero_grad(); criterion(net(xb), yb).backward(); optimizer.step()
def evaluate():
    net.eval()
    losses, total, rows, number = [], 0.0, 0, 0
    with torch.no_grad():
        for xb, yb in valid:
            {score}
    return {result}
best_loss, best = float("inf"), None
schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, mode="max")
for epoch in range(4):
    fit()
    loss = evaluate()
    if loss < best_loss - 100 or not epoch:
        best_loss = loss
        {keep}
    {step}
{end}
"""
SUMMED = "total += criterion(net(xb), yb).item() * len(xb)"


@pytest.mark.parametrize(
    ("parts", "pitfall"),
    [
        ({"score": "losses.append(criterion(net(xb), yb).item())", "result": "np.mean(losses)  # cause"}, "batch_mean_scores"),
        ({"score": "total += accuracy(net(xb), yb).item(); number += 1", "result": "total / number  # cause"}, "batch_mean_scores"),
        ({"score": "total = accuracy(net(xb), yb)", "result": "total  # cause"}, "last_batch_score"),
        ({"step": "schedule.step(loss)  # cause"}, "plateau_metric"),
        ({"keep": "best = net.state_dict().copy()  # cause", "end": "net.load_state_dict(best)"}, "best_not_copied"),
        ({"keep": "best = {k: v for k, v in net.state_dict().items()}  # cause", "end": "torch.save(best, 'best.pt')"}, "best_not_copied"),
        ({"keep": "best = net  # cause"}, "best_not_copied"),
        ({"keep": "best = copy.deepcopy(net)", "end": "torch.save(best.state_dict(), 'best.pt')"}, ""),
        ({"keep": "torch.save({'net': net.state_dict()}, 'best.pt')"}, ""),
    ],
)  # fmt: skip
def test_what_is_scored_and_kept_in_an_evaluation(
    tmp_path: Path, parts: dict[str, str], pitfall: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = {"score": SUMMED, "result": "total / len(vx)", "keep": "pass", "step": "pass", "end": ""}
    text = FITTED.format(**{**plain, **parts})
    if "schedule.step" not in text:
        text = text.replace("schedule = ", "# ")
    told(tmp_path, text, pitfall, monkeypatch)


CODED = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Sequential(nn.Linear(6, 16), nn.ReLU()), nn.Linear(16, 3)
        self.scale = {scale}
    def forward(self, x):
        {forward}
net = Net()
{then}
optimizer = torch.optim.Adam(net.parameters(), 1e-3){mark}
"""


@pytest.mark.parametrize(
    ("parts", "pitfall"),
    [
        ({"forward": "h = self.body(x)\n        h = h.detach()  # cause\n        return self.head(h)"}, "no_gradient"),
        ({"forward": "with torch.no_grad():\n            h = self.body(x)  # cause\n        return self.head(h)"}, "no_gradient"),
        ({"then": "net.body.trainable = False  # cause"}, "not_frozen"),
        ({"forward": "last = nn.Linear(3, 3)  # cause\n        return last(self.head(self.body(x)))"}, "not_in_optimizer"),
        ({"scale": "torch.ones(6, requires_grad=True)", "mark": "  # cause", "forward": "return self.head(self.body(x * self.scale))"}, "not_in_optimizer"),
        ({"scale": "[nn.Parameter(torch.eye(6))]", "mark": "  # cause", "forward": "return self.head(self.body(x @ self.scale[0]))"}, "not_in_optimizer"),
        ({"then": "net.body.requires_grad_(False)"}, ""),
    ],
)  # fmt: skip
def test_what_is_cut_out_of_the_graph_or_known_to_no_optimizer(
    tmp_path: Path, parts: dict[str, str], pitfall: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = {"scale": "None", "forward": "return self.head(self.body(x))", "then": "", "mark": ""}
    loss = "loss = F.cross_entropy(net(torch.randn(30, 6)), torch.arange(30) % 3)"
    told(tmp_path, CODED.format(**{**plain, **parts}) + looped(loss), pitfall, monkeypatch)


ORDERED = """
X = torch.randn(120, 6); Y = X[:, 0] + 0.1
net = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 1)); optimizer = torch.optim.Adam(net.parameters(), 1e-3)
def fit(X, Y):
    for epoch in range(3):
        {seed}
        {order}
        for i in range(0, 120, 30):
            {rows}
            loss = F.mse_loss(net(xb).squeeze(1), yb)
            optimizer.zero_grad(); loss.backward(); optimizer.step()
fit(X, Y)
"""


@pytest.mark.parametrize(
    ("seed", "order", "rows", "pitfall"),
    [
        ("", "order = torch.randperm(120)", "xb, yb = X[order[i:i + 30]], Y[i:i + 30]  # cause", "mismatched_rows"),
        ("", "X = X[torch.randperm(len(X))]  # cause", "xb, yb = X[i:i + 30], Y[i:i + 30]", "mismatched_rows"),
        ("np.random.seed(7)  # cause", "order = np.random.permutation(120)", "xb, yb = X[order[i:i + 30]], Y[order[i:i + 30]]", "reseeded"),
        ("np.random.seed(7 + epoch)", "order = np.random.permutation(120)", "xb, yb = X[order[i:i + 30]], Y[order[i:i + 30]]", ""),
        ("", "order = torch.randperm(120); X, Y = X[order], Y[order]", "xb, yb = X[i:i + 30], Y[i:i + 30]", ""),
        ("", "order = torch.randperm(6)", "xb, yb = X[i:i + 30][:, order], Y[i:i + 30]", ""),
    ],
)  # fmt: skip
def test_the_order_of_inputs_and_of_targets_is_read_in_the_source(
    tmp_path: Path, seed: str, order: str, rows: str, pitfall: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    told(tmp_path, ORDERED.format(seed=seed, order=order, rows=rows), pitfall, monkeypatch)


TWO = """
net, first, second = nn.Linear(6, 16), nn.Linear(16, 3), nn.Linear(16, 1)
optimizer = torch.optim.{kind}([*net.parameters(), *first.parameters(), *second.parameters()], 1e-3)
"""
CLOSED = """
def closure():
    {clear}
    h = net(x)
    loss = F.mse_loss(second(h), x[:, :1]) + F.cross_entropy(first(h), torch.arange(30) % 3)
    loss.backward()  # cause
    return loss
x = torch.randn(30, 6)
for update in range(8): optimizer.step(closure)
"""
ATTACKED = """
x = torch.randn(30, 6).requires_grad_(True)
(second(net(x)).square().mean() + first(net(x)).square().mean()).backward()
optimizer.zero_grad()
h = net((x + x.grad.sign()).detach())
loss = second(h).square().mean() + first(h).square().mean()
"""


@pytest.mark.parametrize(
    ("kind", "text", "pitfall"),
    [
        ("LBFGS", CLOSED.format(clear="pass"), "zero_grad"),
        ("LBFGS", CLOSED.format(clear="optimizer.zero_grad()"), ""),
        ("SGD", looped(ATTACKED), ""),
    ],
)
def test_closures_clear_what_they_add_to_and_inputs_may_be_differentiated_alone(
    tmp_path: Path, kind: str, text: str, pitfall: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = (
        TWO.format(kind=kind)
        if kind != "LBFGS"
        else TWO.format(kind=kind).replace("1e-3)", "1e-3, max_iter=4)")
    )
    told(tmp_path, made + text, pitfall, monkeypatch)


TAUGHT = """
def net():
    return nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Dropout(0.2), nn.Linear(12, 3))
teacher, student = net(), net()
x, y = torch.randn(40, 6), torch.arange(40) % 3
first = torch.optim.Adam(teacher.parameters(), 1e-3)
for _ in range(4):
    loss = F.cross_entropy(teacher(x), y)
    first.zero_grad(); loss.backward(); first.step()
teacher.eval(){frozen}
optimizer = torch.optim.Adam(student.parameters(), 1e-3)
{mode}
"""


@pytest.mark.parametrize(
    ("frozen", "mode", "pitfall"),
    [(".requires_grad_(False)", "", ""), ("", "", ""), ("", "student.eval()  # cause", "train_mode")],
)
def test_a_teacher_in_evaluation_mode_is_none_of_the_update_of_its_student(
    tmp_path: Path, frozen: str, mode: str, pitfall: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = "given = student(x)\nloss = F.mse_loss(given, teacher(x).detach())"
    if not mode:  # no module with a mode is called
        body = "loss = F.mse_loss(student[3](student[0](x)), teacher(x).detach())"
    told(tmp_path, TAUGHT.format(frozen=frozen, mode=mode) + looped(body), pitfall, monkeypatch)


PIECES = """
class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb, self.out = nn.Embedding(60, 16), nn.Linear(16, 60)
    def forward(self, ids):
        return self.out(self.emb(ids).cumsum(1))
net, text = Reader(), torch.randint(0, 60, (700,))
optimizer = torch.optim.Adam(net.parameters(), 1e-3)
parts = {{"train": text[:600], "val": text[{first}:]}}
def piece(part):
    starts = torch.randint(len(parts[part]) - 9, (16,))
    rows = torch.stack([parts[part][s : s + 9] for s in starts.tolist()])
    return rows[:, :-1], rows[:, 1:]
def loss_of(part):
    x, y = piece(part)
    return F.cross_entropy(net(x).transpose(1, 2), y)  # cause
"""


@pytest.mark.parametrize(("first", "pitfall"), [(600, ""), (200, "leakage")])
def test_the_loss_of_both_parts_is_estimated_at_one_line(
    tmp_path: Path, first: int, pitfall: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    after = """    if update % 10 == 9:
        with torch.no_grad():
            print([loss_of(part).item() for part in ("train", "val") for _ in range(4)])
"""
    told(
        tmp_path,
        PIECES.format(first=first) + looped("loss = loss_of('train')", 30) + after,
        pitfall,
        monkeypatch,
    )


MEMORY = """
net = nn.Sequential(nn.Linear(3, 16), nn.Tanh(), nn.Linear(16, 1))
optimizer = torch.optim.Adam(net.parameters(), 1e-3)
states = torch.rand({rows}, 3)
{values}
"""


@pytest.mark.parametrize(
    ("rows", "values", "pitfall"),
    [
        (20, "values = states.sin().sum(1)", ""),
        (400, "values = (states[:, 1] * 3).round(); states[:, 1] = (values + 0.5) / 4", "leakage"),
    ],
)
def test_rows_that_were_drawn_twice_have_their_target_twice(
    tmp_path: Path, rows: int, values: str, pitfall: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = "drawn = torch.randint(len(states), (64,))\nloss = F.mse_loss(net(states[drawn])[:, 0], values[drawn])  # cause"
    told(tmp_path, MEMORY.format(rows=rows, values=values) + looped(body), pitfall, monkeypatch)


TEXTS = """
class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb, self.out = nn.Embedding(9, 16), nn.Linear(16, 9)
        self.block = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    def forward(self, ids, mask=None):
        return self.out(self.block(self.emb(ids), src_mask=mask))  # cause
net, text = Reader(), torch.randint(0, 9, (16, 13))
optimizer = torch.optim.Adam(net.parameters(), 1e-3)
ahead = nn.Transformer.generate_square_subsequent_mask(12)
"""


@pytest.mark.parametrize(("mask", "pitfall"), [("", "sees_the_future"), (", ahead", "")])
def test_letters_are_tokens_too(
    tmp_path: Path, mask: str, pitfall: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = f"scores = net(text[:, :-1]{mask})\nloss = F.cross_entropy(scores.transpose(1, 2), text[:, 1:])  # cause"
    told(tmp_path, TEXTS + looped(body), pitfall, monkeypatch)


DISTILLED = """
net, given = nn.Linear(6, 4), torch.randn(40, 4)
optimizer = torch.optim.Adam(net.parameters(), 1e-3)
"""


@pytest.mark.parametrize(
    ("shares", "target", "option", "pitfall"),
    [
        ("F.log_softmax(net(x), 1)", "given.log_softmax(1)", "", "wrong_scores"),
        ("F.log_softmax(net(x), 1)", "given.log_softmax(1)", ", log_target=True", ""),
        ("F.log_softmax(net(x), 0)", "given.softmax(0)", "", "wrong_axis"),
        ("F.log_softmax(net(x), 1)", "given.softmax(1)", "", ""),
    ],
)
def test_a_divergence_is_of_shares_of_each_row(
    tmp_path: Path, shares: str, target: str, option: str, pitfall: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    last = "  # cause" if pitfall == "wrong_scores" else ""
    body = f"x = torch.randn(40, 6)\nshares = {shares}  # cause\nloss = F.kl_div(shares, {target}, reduction='batchmean'{option}){last}"
    if pitfall == "wrong_scores":  # of which no number comes
        body += "\nloss = loss.nan_to_num() + shares.square().mean()"
    told(tmp_path, DISTILLED + looped(body), pitfall, monkeypatch)


SCORED = """
net = nn.Linear(6, 4)
optimizer = torch.optim.Adam(net.parameters(), 1e-3)
x, y = torch.randn(72, 6), torch.arange(72) % 4
loader = DataLoader(TensorDataset(torch.randn(67, 6), torch.arange(67) % 4), 32)
"""


@pytest.mark.parametrize(
    ("kept", "mean", "pitfall"),
    [
        ("hits.float().mean().item()", "right / len(loader)  # cause", "batch_mean_scores"),
        ("hits.sum().item()", "right / len(loader.dataset)", ""),
        ("hits.float().mean().item() * len(b)", "right / len(loader.dataset)", ""),
    ],
)
def test_a_mean_of_hits_may_be_taken_behind_the_comparison(
    tmp_path: Path, kept: str, mean: str, pitfall: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    after = f"right = 0\nwith torch.no_grad():\n    for a, b in loader:\n        hits = net(a).argmax(1).eq(b)\n        right += {kept}\nscore = {mean}\n"
    told(tmp_path, SCORED + looped("loss = F.cross_entropy(net(x), y)") + after, pitfall, monkeypatch)


FOLLOWED = """
import copy
net = nn.Linear(6, 4)
mine = copy.deepcopy(net)
optimizer = torch.optim.Adam(net.parameters(), 1e-3)
x, y = torch.randn(40, 6), torch.arange(40) % 4
def follow():
    with torch.no_grad():
        for old, new in zip(mine.parameters(), net.parameters()):
            {moved}
"""


@pytest.mark.parametrize(
    ("moved", "pitfall"),
    [
        ("old = old.data * 0.9 + new.data * 0.1  # cause", "average_stands_still"),
        ("old.data = old.data * 0.9 + new.data * 0.1", ""),
        ("old *= 0.9; old += 0.1 * new", ""),
    ],
)
def test_a_name_that_is_set_moves_no_weight(
    tmp_path: Path, moved: str, pitfall: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = "loss = F.cross_entropy(net(x), y)\nfollow()"
    told(tmp_path, FOLLOWED.format(moved=moved) + looped(body), pitfall, monkeypatch)


SHARED = """
net = nn.Linear(6, 4)
optimizer = torch.optim.Adam(net.parameters(), 1e-3)
rows = TensorDataset(torch.randn(256, 6), torch.arange(256) % 4)
held = TensorDataset(torch.randn(67, 6), torch.arange(67) % 4)
def epoch(loader, learn):
    total, right, count = 0.0, 0, 0
    for a, b in loader:
        scores = net(a)
        loss = F.cross_entropy(scores, b)
        if learn:
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        total += loss.item()
        right += {hits}
        count += len(b)
    return total / len(loader), right / {divisor}
train, valid = DataLoader(rows, 32, shuffle=True), DataLoader(held, 32)
for number in range(3):
    epoch(train, True)
    with torch.no_grad():
        epoch(valid, False)
"""


def test_a_loss_of_the_loop_that_trains_too_is_read_beside_that_of_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exact = SHARED.format(hits="(scores.argmax(1) == b).sum().item()", divisor="count")
    told(tmp_path, exact, "", monkeypatch)


PRETRAINED = """
def network(kinds):
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 5), nn.ReLU(), nn.Linear(5, kinds))
def fit(model, optimizer, kinds):
    for start in range(0, 96, 16):
        loss = F.cross_entropy(model(x[start:][:16]), y[start:][:16] % kinds)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
x, y = torch.randn(96, 6), torch.arange(96)
big = network(9)
fit(big, torch.optim.SGD(big.parameters(), 0.1), 9)
torch.save(big.state_dict(), "big.pt")
net = network(4)
state = {k: v for k, v in torch.load("big.pt", weights_only=True).items() if not k.startswith("4.")}
net.load_state_dict(state, strict=False)
for each in net[:4].parameters():
    each.requires_grad = False
optimizer = torch.optim.SGD(net[4].parameters(), 0.1)
loader = DataLoader(TensorDataset(x, y % 4), 32)
for epoch in range(3):
    net.train()
    fit(net, optimizer, 4)
    net.eval()
    with torch.no_grad():
        right = sum((net(a).argmax(1) == b).sum().item() for a, b in loader)
"""


def test_a_head_that_is_trained_on_a_loaded_network_is_no_average(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told(tmp_path, PRETRAINED, "", monkeypatch)


MATCHED = """
net = nn.Linear(6, 5)
optimizer = torch.optim.Adam(net.parameters(), 1e-3)
x, y = torch.randn(12, 6), torch.arange(12) % 5
"""


@pytest.mark.parametrize(
    ("best", "pitfall"),
    [("torch.argmax(scores)  # cause", "wrong_axis"), ("torch.argmax(scores, 1)", ""), ("scores.flatten().argmax()", "")],
)  # fmt: skip
def test_the_largest_of_all_scores_is_no_class_of_each_row(
    tmp_path: Path, best: str, pitfall: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = f"scores = net(x)\nloss = F.cross_entropy(scores, y)\nbest = {best}\nright = (best == y).sum()"
    told(tmp_path, MATCHED + looped(body), pitfall, monkeypatch)


@pytest.mark.parametrize(
    ("factor", "pitfall"),
    [
        ("min(1.0, (step + 1) / 100)", "schedule_length"),
        ("min(1.0, (step + 1) / 4)", ""),
        ("1.1 ** step", ""),  # a range test
    ],
)
def test_a_warm_up_ends_before_the_run_does(
    tmp_path: Path, factor: str, pitfall: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    schedule = f"schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: {factor})  # cause\n"
    text = MATCHED + schedule + looped("loss = F.cross_entropy(net(x), y)") + "    schedule.step()\n"
    told(tmp_path, text, pitfall, monkeypatch)


ENCODED = """
class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(6, 16), nn.Linear(16, 5)
    def encode(self, x):
        return self.two(F.dropout(self.one(x).relu(), {told}))  # cause
net = Encoder()
optimizer = torch.optim.Adam(net.parameters(), 1e-3)
x, y = torch.randn(12, 6), torch.arange(12) % 5
def score():
    net.eval()
    with torch.no_grad():
        right = (net.encode(x).argmax(1) == y).float().mean()
    net.train()
"""


@pytest.mark.parametrize(
    ("told_mode", "pitfall"), [("0.3", "train_mode"), ("0.3, self.training", ""), ("0.3, training=True", "")]
)
def test_a_method_of_a_module_drops_by_its_mode(
    tmp_path: Path, told_mode: str, pitfall: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = "loss = F.cross_entropy(net.encode(x), y)\nscore()"
    told(tmp_path, ENCODED.format(told=told_mode) + looped(body), pitfall, monkeypatch)


LEARNED_FIRST = """
teacher = nn.Sequential(nn.Linear(6, 16), nn.Dropout(0.5), nn.Linear(16, 5))
optimizer = torch.optim.Adam(teacher.parameters(), 1e-3)
x, y = torch.randn(12, 6), torch.arange(12) % 5
{first}
net = nn.Linear(6, 5)
optimizer = torch.optim.Adam(net.parameters(), 1e-3)
{mode}
"""


@pytest.mark.parametrize(("mode", "pitfall"), [("teacher.train()", "train_mode"), ("teacher.eval()", "")])
def test_a_teacher_that_was_trained_here_teaches_in_evaluation_mode(
    tmp_path: Path, mode: str, pitfall: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = LEARNED_FIRST.format(first=looped("loss = F.cross_entropy(teacher(x), y)"), mode=mode)
    body = "with torch.no_grad():\n    wanted = teacher(x).softmax(1)  # cause\n"
    body += "loss = F.kl_div(net(x).log_softmax(1), wanted, reduction='batchmean')"
    told(tmp_path, text + looped(body), pitfall, monkeypatch)


RENAMED = """
def network():
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 5))
state = {{"{prefix}" + name: value for name, value in network().state_dict().items()}}
net = network()
net.load_state_dict(state, strict=False)  # cause
optimizer = torch.optim.Adam(net.parameters(), 1e-3)
x, y = torch.randn(12, 6), torch.arange(12) % 5
"""


@pytest.mark.parametrize(("prefix", "pitfall"), [("module.", "nothing_restored"), ("", "")])
def test_a_state_without_a_version_counts_no_batches_that_it_does_not_hold(
    tmp_path: Path, prefix: str, pitfall: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = RENAMED.format(prefix=prefix) + looped("loss = F.cross_entropy(net(x), y)")
    told(tmp_path, text, pitfall, monkeypatch)


@pytest.mark.parametrize(
    ("kept", "mean", "pitfall"),
    [
        ("hits.append((best == b).float().mean().item())", "sum(hits) / len(hits)  # cause", "batch_mean_scores"),
        ("hits.append((best == b).sum().item())", "sum(hits) / 67", ""),
    ],
)  # fmt: skip
def test_hits_may_be_counted_outside_of_no_grad(
    tmp_path: Path, kept: str, mean: str, pitfall: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    after = f"hits = []\nfor a, b in loader:\n    with torch.no_grad():\n        best = net(a).argmax(1)\n    {kept}\nscore = {mean}\n"
    told(tmp_path, SCORED + looped("loss = F.cross_entropy(net(x), y)") + after, pitfall, monkeypatch)
