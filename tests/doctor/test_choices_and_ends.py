"""What the training may not know: rows that are set aside, the score of the test, rewards of later episodes; each beside what looks alike and is right."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.doctor.test_rows_signs_places import told

pytestmark = pytest.mark.slow

LEARNS = """
net = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.Adam(net.parameters(), 1e-3)
def learn(x, y):
    net.train()
    loss = F.mse_loss(net(x).squeeze(1), y)
    optimizer.zero_grad(); loss.backward(); optimizer.step()
    return loss.item()
@torch.no_grad()
def score(x, y):
    net.eval()
    return F.mse_loss(net(x).squeeze(1), y).item()
"""

TABLE = (
    """
class Scale:
    def fit(self, rows):
        self.middle, self.width = rows.mean(0), rows.std(0)
        return self
    def transform(self, rows):
        return (rows - self.middle) / self.width
class Range:
    def fit(self, rows):
        self.low, self.high = rows.min(axis=0), rows.max(axis=0)
    def __call__(self, rows):
        return (rows - self.low) / (self.high - self.low)
def halves(rows, y, n=160):
    return rows[:n], y[:n], rows[n:], y[n:]
rng = np.random.default_rng(0)
rows = rng.normal(size=(240, 6)) * 3 + 1
y = rows.sum(1) / 6
order = rng.permutation(240)
"""
    + LEARNS
)
GOES = """
def floats(values): return torch.as_tensor(np.asarray(values), dtype=torch.float32)
for epoch in range(8):
    learn(floats(x_train), floats(y_train))
print(score(floats(x_test), floats(y_test)))
"""


@pytest.mark.parametrize(
    ("scaled", "pitfall"),
    [
        ("s = Scale().fit(rows)  # cause\nparts = order[:160], order[160:]\n(x_train, y_train), (x_test, y_test) = [(s.transform(rows[p]), y[p]) for p in parts]", "leakage"),
        ("s = Range()\ns.fit(rows)  # cause\nx = s(rows)\nx_train, y_train, x_test, y_test = halves(rows, y)", "leakage"),
        ("from sklearn.preprocessing import StandardScaler\ns = StandardScaler().fit(rows)  # cause\nfront, back = order[:160], order[160:]\nx_train, y_train, x_test, y_test = s.transform(rows[front]), y[front], s.transform(rows[back]), y[back]", "leakage"),
        ("s = Scale()\ns = s.fit(rows)  # cause\nx_train, x_test = s.transform(rows[order[:160]]), s.transform(rows[order[160:]])\ny_train, y_test = y[order[:160]], y[order[160:]]", "leakage"),
        ("front, back = order[:160], order[160:]\ns = Scale().fit(rows[front])\nx_train, y_train, x_test, y_test = s.transform(rows[front]), y[front], s.transform(rows[back]), y[back]", ""),
        ("x_train, y_train, x_test, y_test = halves(rows, y)\ns = Range()\ns.fit(x_train)\nx_train, x_test = s(x_train), s(x_test)", ""),
        # all of these rows are trained on; those that are scored were made by themselves
        ("s = Scale().fit(rows)\nx_train, y_train = s.transform(rows), y\nx_test = rng.normal(size=(80, 6)) * 3 + 1\nx_test, y_test = s.transform(x_test), x_test.sum(1) / 6", ""),
    ],
)  # fmt: skip
def test_a_scaler_of_ones_own_knows_the_training_alone(tmp_path: Path, scaled: str, pitfall: str) -> None:
    told(tmp_path, TABLE + scaled + GOES, pitfall)


GRAPH = """
def parted(links, n=60):
    order = torch.randperm(links.shape[1])
    return links[:, order[n:]], links[:, order[:n]]
def adjacency(links, nodes):
    whole = torch.eye(nodes)
    whole[links[0], links[1]] = whole[links[1], links[0]] = 1.0
    return whole / whole.sum(1, keepdim=True)
class Both(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(8, 16), nn.Linear(16, 8)
    def forward(self, x, adj, pairs):
        h = adj @ self.two(F.relu(adj @ self.one(x)))
        return (h[pairs[0]] * h[pairs[1]]).sum(1)
x, links = torch.randn(50, 8), torch.randint(0, 50, (2, 300))
{graph}
model = Both()
optimizer = torch.optim.Adam(model.parameters(), 1e-2)
for epoch in range(12):
    others = torch.randint(0, 50, (2, 100))
    scores = torch.cat([model(x, adj, train_links), model(x, adj, others)])
    truth = torch.cat([torch.ones(train_links.shape[1]), torch.zeros(100)])
    loss = F.binary_cross_entropy_with_logits(scores, truth)
    optimizer.zero_grad(); loss.backward(); optimizer.step()
model.eval()
with torch.no_grad():
    print((model(x, {last}, test_links) > 0).float().mean())
"""


@pytest.mark.parametrize(
    ("graph", "last", "pitfall"),
    [
        ("train_links, test_links = parted(links)\nadj = adjacency(links, 50)  # cause", "adj", "leakage"),
        ("adj = adjacency(links, 50)  # cause\nheld = parted(links)\ntrain_links, test_links = held\nargs = links[:, :240], links[:, 240:]", "adj", "leakage"),
        ("graph = adj = adjacency(links, nodes=50)  # cause\ntrain_links, test_links = parted(links, n=80)", "graph", "leakage"),
        ("train_links, test_links = parted(links)\nadj = adjacency(train_links, 50)", "adj", ""),
        # the whole is read once the training is over, where nothing is predicted of it
        ("train_links, test_links = parted(links)\nadj = adjacency(train_links, 50)\nwhole_graph = adjacency(links, 50)\nprint(whole_graph.sum())", "adj", ""),
    ],
)  # fmt: skip
def test_messages_pass_over_the_edges_of_the_training(
    tmp_path: Path, graph: str, last: str, pitfall: str
) -> None:
    told(tmp_path, GRAPH.format(graph=graph, last=last), pitfall)


STOPPER = """
class Stopper:
    def __init__(self, patience): self.patience, self.least, self.bad = patience, 1e9, 0
    def step(self, score):
        self.bad = 0 if score < self.least else self.bad + 1
        self.least = min(self.least, score)
        return self.bad >= self.patience
stopper = Stopper(50)
"""

THREE = (
    LEARNS
    + """
x, y = torch.randn(240, 6), torch.randn(240)
train, valid, test = (x[:160], y[:160]), (x[160:200], y[160:200]), (x[200:], y[200:])
val_set, test_set = valid, test
"""
    + STOPPER
    + """best, best_test, kept = 1e9, 1e9, None
"""
)
PLATEAU = "plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=50)\n"


@pytest.mark.parametrize(
    ("epoch", "pitfall"),
    [
        ("test_loss = score(*test_set)\n    val_loss = score(*val_set)\n    if test_loss < best:  # cause\n        best, kept = test_loss, copy.deepcopy(net.state_dict())", "leakage"),
        ("v = score(*val_set)\n    t = score(*test_set)\n    if best > t:  # cause\n        best = t", "leakage"),
        ("val = score(*val_set)\n    test = score(*test_set)\n    plateau.step(test)  # cause\n    print(val)", "leakage"),
        ("val = score(*val_set)\n    test = score(*test_set)\n    print(val)\n    if stopper.step(test):  # cause\n        break", "leakage"),
        ("val_loss = score(*val_set)\n    test_loss = score(*test_set)\n    if val_loss < best:\n        best, best_test = val_loss, test_loss", ""),
        ("val_loss = score(*val_set)\n    test_loss = score(*test_set)\n    best_test = min(best_test, test_loss)\n    plateau.step(val_loss)", ""),
        # the best of the test is told beside that of the validation, by which the weights are kept
        ("val_loss = score(*val_set)\n    test_loss = score(*test_set)\n    if test_loss < best_test:\n        best_test = test_loss\n    if val_loss < best:\n        best, kept = val_loss, copy.deepcopy(net.state_dict())", ""),
        # there is no other set: the one that is called a test validates
        ("test_loss = score(*test_set)\n    if test_loss < best:\n        best = test_loss", ""),
    ],
)  # fmt: skip
def test_the_test_chooses_nothing_where_a_validation_is_scored(
    tmp_path: Path, epoch: str, pitfall: str
) -> None:
    text = THREE + (PLATEAU if "plateau" in epoch else "")
    told(tmp_path, text + "for epoch in range(12):\n    learn(*train)\n    " + epoch + "\n", pitfall)


THREE_LOADERS = (
    LEARNS
    + """
def rows(n):
    x = torch.randn(n, 6)
    return TensorDataset(x, x.sum(1))
def over(loader, model=None):
    total = 0.0
    with torch.no_grad():
        for x, y in loader:
            total += F.mse_loss((model or net)(x).squeeze(1), y).item() * len(y)
    return total / len(loader.dataset)
train_set, held, test_set = rows(96), rows(40), rows(48)
train_loader = DataLoader(train_set, 32, shuffle=True)
{loaders}
best, best_state = 1e9, None
for epoch in range(6):
    for batch in train_loader:
        learn(*batch)
    {epoch}
{end}
"""
)
DEV = "dev_loader, test_loader = DataLoader(held, 40), DataLoader(test_set, 48)"
VAL = "val_loader = DataLoader(held, 40)\ntest_loader = DataLoader(test_set, 48)"
ONE = "val_loader = DataLoader(test_set, 48){}\ntest_loader = DataLoader(test_set, 48)"
KEEPS = "\n    if {0} < best:{1}\n        best, best_state = {0}, copy.deepcopy(net.state_dict())"
END = "net.load_state_dict(best_state)\nprint('test', over(test_loader))"


@pytest.mark.parametrize(
    ("loaders", "epoch", "end", "pitfall"),
    [
        # what was set aside to choose by is never read
        (DEV, "score_now = over(test_loader)" + KEEPS.format("score_now", "  # cause"), END, "leakage"),
        (VAL, "t = over(loader=test_loader)\n    if stopper.step(t):  # cause\n        break", "print(over(test_loader))", "leakage"),
        (VAL, "if over(test_loader) < 0.9 * best:  # cause\n        net.train()", "final = over(test_loader)", "leakage"),
        # the training is called a validation
        (VAL, "val_loss = over(train_loader)  # cause" + KEEPS.format("val_loss", ""), END, "leakage"),
        (VAL, "valid_mse = over(model=net, loader=train_loader)  # cause\n    if stopper.step(valid_mse):\n        break", "print(over(test_loader))", "leakage"),
        # the same rows under two names
        (ONE.format("  # cause"), "loss = over(val_loader)" + KEEPS.format("loss", ""), END, "leakage"),
        ("loaders = {\n    'valid': DataLoader(rows_of(test_set), 12),  # cause\n    'test': DataLoader(test_set, 48),\n}", "v = over(loaders['valid'])" + KEEPS.format("v", ""), "print(over(loaders['test']))", "leakage"),
        ("held_out = test_set\nvalid_iter, test_iter = DataLoader(held_out, 40), DataLoader(test_set, 24)  # cause", "v = over(valid_iter)\n    plateau.step(v)", "best_net = copy.deepcopy(net)\nprint(over(test_iter, best_net))", "leakage"),
        (VAL, "val_loss = over(val_loader)" + KEEPS.format("val_loss", ""), END, ""),
        # a validation is scored once more and called so
        (VAL, "val_loss = over(val_loader)" + KEEPS.format("val_loss", ""), "net.load_state_dict(best_state)\nprint('valid', over(val_loader))", ""),
        ("val_loader = DataLoader(held, 40)\nvalid_again = DataLoader(held, 20)", "val_loss = over(val_loader)" + KEEPS.format("val_loss", ""), "print(over(valid_again))", ""),
        # the test is told in each epoch, and chooses nothing
        (VAL, "print(over(test_loader))", "print(over(test_loader))", ""),
        (ONE.format(""), "print(over(val_loader))", "print(over(test_loader))", ""),
        (VAL, "test_loss = over(test_loader)\n    if test_loss < 0.5:\n        print('good')", "print(over(test_loader))", ""),
        # the score of the training is told, or is called what it is
        (VAL, "train_loss, val_loss = over(train_loader), over(val_loader)" + KEEPS.format("val_loss", ""), "print(over(train_loader), over(test_loader))", ""),
        (VAL, "fit = over(train_loader)" + KEEPS.format("fit", ""), END, ""),
        # a part of its own of the same data set
        ("from torch.utils.data import Subset\nval_loader = DataLoader(Subset(test_set, range(24)), 24)\ntest_loader = DataLoader(Subset(test_set, range(24, 48)), 24)", "v = over(val_loader)" + KEEPS.format("v", ""), END, ""),
    ],
)  # fmt: skip
def test_rows_that_choose_are_neither_those_of_the_training_nor_those_of_the_test(
    tmp_path: Path, loaders: str, epoch: str, end: str, pitfall: str
) -> None:
    before = STOPPER + (
        "def rows_of(data): return TensorDataset(*(part.clone() for part in data.tensors))\n"
        if "rows_of" in loaders
        else ""
    )
    before += PLATEAU if "plateau" in epoch else ""
    text = THREE_LOADERS.format(loaders=before + loaders, epoch=epoch, end=end)
    told(tmp_path, text, pitfall)


EPISODES = """
GAMMA = 0.9
class Line:
    def reset(self):
        self.at = torch.randn(8, 4)
        return self.at
    def step(self, actions):
        done = (torch.rand(8) < 0.1).float()
        reward = (actions == (self.at[:, 0] > 0).long()).float()
        self.at = torch.where(done[:, None] > 0, torch.randn(8, 4), self.at + 0.1 * torch.randn(8, 4))
        return self.at, reward, done
line, policy = Line(), nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 2))
optimizer = torch.optim.Adam(policy.parameters(), 1e-3)
{function}
state = line.reset()
for update in range(10):
    logps, rewards, dones, masks = [], [], [], []
    for step in range(12):
        choice = torch.distributions.Categorical(logits=policy(state))
        action = choice.sample()
        state, reward, done = line.step(action)
        logps.append(choice.log_prob(action)); rewards.append(reward); dones.append(done); masks.append(1 - done)
    {returns}
    returns = torch.stack(returns)
    returns = (returns - returns.mean()) / (returns.std() + 1e-5)
    loss = -(torch.stack(logps) * returns).mean()
    optimizer.zero_grad(); loss.backward(); optimizer.step()
"""
SUMMED = "returns, total = [], torch.zeros(8)\n    for step in reversed(range(12)):\n        total = {}\n        returns.insert(0, total)"
COLLECTED = """
def discounted(rewards, {names}, gamma=GAMMA):
    total, returns = torch.zeros(8), []
    for step in range(len(rewards) - 1, -1, -1):
        total = {sum}
        returns.append(total)
    return returns[::-1]
"""


@pytest.mark.parametrize(
    ("function", "returns", "pitfall"),
    [
        ("", SUMMED.format("rewards[step] + GAMMA * total  # cause"), "ends_left_out"),
        (COLLECTED.format(names="masks", sum="gamma * total + rewards[step]  # cause"), "returns = discounted(rewards, masks)", "ends_left_out"),
        ("", "returns, total = [], torch.zeros(8)\n    for reward, is_terminal in zip(reversed(rewards), reversed(dones)):\n        total = reward + GAMMA * total  # cause\n        returns.insert(0, total)", "ends_left_out"),
        ("", "kept = torch.zeros(12, 8)\n    dones = torch.zeros(12, 8)\n    dones[0] = done\n    " + SUMMED.format("rewards[step] + GAMMA * total  # cause"), "ends_left_out"),
        ("", SUMMED.format("rewards[step] + GAMMA * total * (1 - dones[step])"), ""),
        (COLLECTED.format(names="masks", sum="rewards[step] + gamma * total * masks[step]"), "returns = discounted(rewards, masks)", ""),
        ("", "returns, total = [], torch.zeros(8)\n    for reward, is_terminal in zip(reversed(rewards), reversed(dones)):\n        total = total.masked_fill(is_terminal > 0, 0.0)\n        total = reward + GAMMA * total\n        returns.insert(0, total)", ""),
    ],
)  # fmt: skip
def test_rewards_of_later_episodes_are_not_added(
    tmp_path: Path, function: str, returns: str, pitfall: str
) -> None:
    told(tmp_path, EPISODES.format(function=function, returns=returns), pitfall)


ONE_EPISODE = """
policy = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 2))
optimizer = torch.optim.Adam(policy.parameters(), 1e-3)
for update in range(16):
    state, logps, rewards, dones = torch.randn(4), [], [], []
    {loop}
        choice = torch.distributions.Categorical(logits=policy(state))
        action = choice.sample()
        rewards.append(float(action == (state[0] > 0)))
        state, done = torch.randn(4), len(rewards) > 6
        logps.append(choice.log_prob(action)); dones.append(done)
        {ends}
    total, returns = 0.0, []
    for reward in rewards[::-1]:
        total = reward + 0.9 * total
        returns.insert(0, total)
    returns = torch.tensor(returns)
    loss = -(torch.stack(logps) * (returns - returns.mean())).mean()
    optimizer.zero_grad(); loss.backward(); optimizer.step()
"""


@pytest.mark.parametrize(
    ("loop", "ends"),
    [("for step in range(20):", "if done: break"), ("done = False\n    while not done:", "pass")],
)
def test_an_episode_of_its_own_has_no_end_within(tmp_path: Path, loop: str, ends: str) -> None:
    told(
        tmp_path,
        ONE_EPISODE.format(loop=loop, ends=ends)
        .replace("0.9", "gamma")
        .replace("for update", "gamma = 0.9\nfor update"),
        "",
    )


COUNTED = """
from sklearn.metrics import f1_score
net = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))
optimizer = torch.optim.Adam(net.parameters(), 1e-3)
def rows(count):
    x = torch.randn(count, 6)
    return TensorDataset(x, (x[:, 0] > 0).long() + (x[:, 1] > 0).long())
train_loader, valid_loader = DataLoader(rows(128), 32, shuffle=True), DataLoader(rows(96), 32)
def confusion(predicted, wanted):
    return torch.bincount(3 * wanted + predicted, minlength=9).view(3, 3)
def mean_iou(counts):
    hits = counts.diag()
    return (hits / (counts.sum(0) + counts.sum(1) - hits).clamp(min=1)).mean().item()
for epoch in range(3):
    for x, y in train_loader:
        loss = F.cross_entropy(net(x), y)
        optimizer.zero_grad(); loss.backward(); optimizer.step()
    scores, total, seen = [], 0.0, 0
    counts, guesses, truths = torch.zeros(3, 3), [], []
    for x, y in valid_loader:
        with torch.no_grad():
            guess = net(x).argmax(1)
        {batch}
    print({score})  # cause
"""


@pytest.mark.parametrize(
    ("batch", "score", "pitfall"),
    [
        ("scores.append(mean_iou(confusion(guess, y)))", "sum(scores) / len(scores)", "batch_mean_scores"),
        ("total += f1_score(y, guess, average='macro')", "total / len(valid_loader)", "batch_mean_scores"),
        ("f = f1_score(y.numpy(), guess.numpy(), average='micro')\n        scores.append(f)", "np.mean(scores)", "batch_mean_scores"),
        ("total += mean_iou(confusion(guess, y)); seen += 1", "total / seen", "batch_mean_scores"),
        ("counts += confusion(guess, y)", "mean_iou(counts)", ""),
        ("guesses.append(guess); truths.append(y)", "f1_score(torch.cat(truths), torch.cat(guesses), average='macro')", ""),
        ("scores.append(guess.eq(y).float().mean().item())", "np.mean(scores)", ""),
    ],
)  # fmt: skip
def test_a_quotient_over_all_rows_is_no_mean_of_batches(
    tmp_path: Path, batch: str, score: str, pitfall: str
) -> None:
    told(tmp_path, COUNTED.format(batch=batch, score=score), pitfall)


TOKENS = """
class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.state, self.out = nn.Embedding(6, 16), nn.GRU(16, 16, batch_first=True), nn.Linear(16, 6)
    def forward(self, tokens):
        return self.out(self.state(self.words(tokens))[0])
net = Reader()
optimizer = torch.optim.Adam(net.parameters(), 1e-3)
for update in range(10):
    text = torch.randint(1, 6, (16, 9))  # 0 is padding, which texts of one length do not need
    scores = net(text[:, :-1])
    loss = {loss}
    optimizer.zero_grad(); loss.backward(); optimizer.step()
"""


@pytest.mark.parametrize(
    ("loss", "pitfall"),
    [
        ("F.cross_entropy(scores.reshape(-1, 6), text[:, 1:].reshape(-1))", ""),
        ("F.nll_loss(scores.flatten(0, 1).log_softmax(-1), text[:, 1:].flatten())", ""),
        ("F.cross_entropy(scores.mean(1), text[:, 1])  # cause", "unused_class"),
    ],
)
def test_the_first_of_many_labels_of_a_row_may_be_that_of_padding(
    tmp_path: Path, loss: str, pitfall: str
) -> None:
    told(tmp_path, TOKENS.format(loss=loss).replace("range(10)", "range(16)"), pitfall)


NODES = """
class Nodes(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(12, 16), nn.Linear(16, 3)
    def forward(self, x, adj):
        return adj @ self.two(torch.relu(adj @ self.one(x)))
kinds = torch.arange(90) % 3
x, adj = torch.randn(90, 12), (kinds[:, None] == kinds).float() * (torch.rand(90, 90) < 0.2)
adj = (adj + torch.eye(90)) / (adj.sum(1, keepdim=True) + 1)
order = torch.randperm(90)
idx_train, idx_test = order[:30], order[30:]
mask = torch.zeros(90).index_fill_(0, idx_train, 1.0)
def accuracy(scores, wanted):
    return scores.argmax(1).eq(wanted).float().mean().item()
net = Nodes()
optimizer = torch.optim.Adam(net.parameters(), 1e-2)
for epoch in range(10):
    out = net(x, adj)
    {loss}
    {score}
    optimizer.zero_grad(); loss.backward(); optimizer.step()
    with torch.no_grad():
        print(accuracy(net(x, adj)[idx_test], kinds[idx_test]))
"""
OF_TRAINING = "trained = accuracy(out[idx_train], kinds[idx_train])"


@pytest.mark.parametrize(
    ("loss", "score", "pitfall"),
    [
        ("loss = F.cross_entropy(out, kinds)  # cause", OF_TRAINING, "leakage"),
        ("loss = F.nll_loss(out.log_softmax(1), kinds)  # cause", "trained = (out.max(1).indices[idx_train] == kinds[idx_train]).float().mean()", "leakage"),
        ("loss = nn.CrossEntropyLoss()(out, kinds)  # cause", "trained = accuracy(out, kinds)", "leakage"),
        ("loss = F.cross_entropy(out[idx_train], kinds[idx_train])", "trained = accuracy(out, kinds)", ""),
        ("loss = (F.cross_entropy(out, kinds, reduction='none') * mask).sum() / mask.sum()", OF_TRAINING, ""),
        ("loss = F.cross_entropy(out, torch.where(mask > 0, kinds, -100))", OF_TRAINING, ""),
    ],
)  # fmt: skip
def test_nodes_that_are_scored_are_not_those_of_the_loss(
    tmp_path: Path, loss: str, score: str, pitfall: str
) -> None:
    told(tmp_path, NODES.format(loss=loss, score=score), pitfall)


WAITS = (
    LEARNS
    + """
import os, tempfile
path = os.path.join(tempfile.mkdtemp(), "net.pt")
given = iter([3.0, 1.0, 2.0, 2.5, 2.2, 2.4, 2.6, 2.7])
def judge():
    score(torch.randn(8, 6), torch.randn(8))
    return next(given)
def epoch():
    for _ in range(2):
        rows = torch.randn(16, 6)
        learn(rows, rows.sum(1))
"""
)
STOPS = """
best, bad, patience = 1e9, 0, {patience}
for _ in range(7):
    epoch()
    val = judge()
    if val < best:
        best, bad = val, 0{keeps}
    else:
        bad += 1
        if bad >= patience:
            break
"""
ATTRIBUTES = """
class Fit:
    def __init__(self): self.top, self.best_score, self.left = -1e9, -1e9, 4
    def run(self):
        while True:
            epoch()
            acc = -judge()
            if self.best_score < acc:
                print("better")
                self.best_score = acc
                self.left = 4
            else:
                self.left -= 1
            if self.left == 0:
                break
        {saves}
Fit().run()
"""
HELPER = """
def write(model): torch.save({{"model": model.state_dict()}}, path)
def train(tries=3):
    lowest, count = float("inf"), 0
    for step in range(7):
        epoch()
        loss = judge()
        if loss >= lowest:
            count += 1
        if loss < lowest:
            lowest = loss; count = 0
        if count >= tries:
            print("stopped at", step); break
    {saves}
train()
"""
SAVES = "torch.save(net.state_dict(), path){}"


@pytest.mark.parametrize(
    ("text", "pitfall"),
    [
        (STOPS.format(patience=3, keeps="") + SAVES.format("  # cause"), "best_not_copied"),
        (ATTRIBUTES.format(saves=SAVES.format("  # cause")), "best_not_copied"),
        (HELPER.format(saves="write(net)  # cause"), "best_not_copied"),
        (STOPS.format(patience=3, keeps="; kept = copy.deepcopy(net.state_dict())") + "net.load_state_dict(kept)\n" + SAVES.format(""), ""),
        (STOPS.format(patience=3, keeps="; torch.save(net.state_dict(), path)") + "torch.save(net.state_dict(), path + '.last')", ""),
        # it never stops early, or the best is told alone
        (STOPS.format(patience=50, keeps="") + SAVES.format(""), ""),
        (STOPS.format(patience=3, keeps="").replace("bad >= patience", "val < 0.5") + SAVES.format(""), ""),
        # each epoch is kept, and which is the best
        (STOPS.format(patience=3, keeps="; at = _").replace("    val = judge()", "    val = judge()\n    torch.save(net.state_dict(), f'{path}.{_}')") + SAVES.format(""), ""),
        # by a helper of its own
        ("def note(): torch.save(net.state_dict(), path)\n" + STOPS.format(patience=3, keeps="; note()") + "torch.save(net.state_dict(), path + '.last')", ""),
        # nothing is saved
        (STOPS.format(patience=3, keeps="") + "print(best)", ""),
    ],
)  # fmt: skip
def test_behind_an_early_stop_it_is_not_the_last_weights_that_are_saved(
    tmp_path: Path, text: str, pitfall: str
) -> None:
    told(tmp_path, WAITS + text, pitfall)


STEPPED = (
    LEARNS
    + """
class Recipe: num_epochs = 4
recipe, epochs = Recipe(), 4
x = torch.randn(64, 6)
loader = DataLoader(TensorDataset(x, x.sum(1)), 16, shuffle=True)
def fit(loader, epochs, steps_per_epoch=None):
    batches = iter(loader)
    for epoch in range(epochs):
        for _ in range(steps_per_epoch or len(loader)):
            try:
                batch = next(batches)
            except StopIteration:
                batches = iter(loader)
                batch = next(batches)
            learn(*batch)
"""
)


@pytest.mark.parametrize(
    ("text", "pitfall"),
    [
        ("steps = len(loader) * epochs\nfit(loader, epochs=epochs, steps_per_epoch=steps)  # cause", "schedule_length"),
        ("def train(recipe):\n    fit(loader, epochs=recipe.num_epochs, steps_per_epoch=int(recipe.num_epochs * len(loader)))  # cause\ntrain(recipe)", "schedule_length"),
        ("class Trainer:\n    def __init__(self, fit, n_epochs): self.fit, self.n_epochs = fit, n_epochs\n    def train(self):\n        total = 64 // 16 * self.n_epochs\n        print(total)\n        self.fit(loader, epochs=self.n_epochs, steps_per_epoch=total)  # cause\nTrainer(fit, 3).train()", "schedule_length"),
        ("fit(loader, epochs=epochs, steps_per_epoch=len(loader))", ""),
        ("total = 32\nsteps = total // epochs\nfit(loader, epochs=epochs, steps_per_epoch=steps)", ""),
        ("steps = len(loader) * epochs\nsteps = steps // epochs\nfit(loader, epochs=epochs, steps_per_epoch=steps)", ""),
        # all in one epoch; or of several passes each
        ("steps = len(loader) * epochs\nfit(loader, epochs=1, steps_per_epoch=steps)", ""),
        ("passes = 2\nfit(loader, epochs=epochs, steps_per_epoch=passes * len(loader))", ""),
    ],
)  # fmt: skip
def test_the_steps_of_an_epoch_are_not_those_of_all(tmp_path: Path, text: str, pitfall: str) -> None:
    told(tmp_path, STEPPED + text, pitfall)
