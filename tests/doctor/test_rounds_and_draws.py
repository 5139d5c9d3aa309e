"""What is made or computed again and again: schedules, draws of a model, evaluations that learn, ranges of one series; each beside what looks alike and is right."""

from __future__ import annotations

import sys
from pathlib import Path
from textwrap import indent
from types import FrameType

import pytest

from snugfit.doctor.observe.recording.recorder import Recorder
from snugfit.doctor.observe.watchers.optimizers import evaluation_steps
from tests.doctor.test_rows_signs_places import told

pytestmark = pytest.mark.slow

LEARNS = """
def net_of(drop=0.2):
    return nn.Sequential(nn.Linear(6, 24), nn.ReLU(), nn.Dropout(drop), nn.Linear(24, 3))
x = torch.randn(240, 6)
y = (x[:, 0] > 0).long() + (x[:, 1] > 0).long()
net = net_of()
optimizer = torch.optim.Adam(net.parameters(), 1e-3)
def learn(epochs=3):
    net.train()
    for epoch in range(epochs):
        for part in torch.randperm(160).split(32):
            loss = F.cross_entropy(net(x[part]), y[part])
            optimizer.zero_grad(); loss.backward(); optimizer.step()
learn()
pool = x[160:]
"""
ENTROPY = "mean = draws.mean(0)\nprint(-(mean * mean.clamp_min(1e-9).log()).sum(1).topk(5).indices)\n"
DRAWN = "@torch.no_grad()\ndef draw(x, times=6):\n    return torch.stack([net(x).softmax(1) for _ in range(times)])  # cause\n"


@pytest.mark.parametrize(
    ("text", "pitfall"),
    [
        (DRAWN + "net.eval()\ndraws = draw(pool)\n", "train_mode"),
        ("net.eval()\nseen = []\nwith torch.no_grad():\n    for time in range(8):\n        p = F.softmax(net(pool), dim=1)  # cause\n        seen.append(p)\ndraws = torch.stack(seen, dim=0)\n", "train_mode"),
        ("net.eval()\nwith torch.inference_mode():\n    draws = torch.cat([net(x[160:]).softmax(-1)[None] for _ in range(5)])  # cause\n", "train_mode"),
        (DRAWN + "net.train()\ndraws = draw(pool)\n", ""),
        # dropout alone is switched on
        (DRAWN + "net.eval()\nfor each in net:\n    each.train(isinstance(each, nn.Dropout))\ndraws = draw(pool)\n", ""),
        # other inputs each time
        ("net.eval()\nwith torch.no_grad():\n    draws = torch.stack([net(pool + 0.1 * torch.randn_like(pool)).softmax(1) for _ in range(6)])\n", ""),
        # how long it takes
        ("import time\nnet.eval()\nwith torch.no_grad():\n    for _ in range(6):\n        p = net(pool)\ndraws = torch.stack([p, p])\n", ""),
        # how sure the classes are where the inputs differ a little, and how many are right
        ("net.eval()\nwith torch.no_grad():\n    draws = torch.stack([net(pool + 1e-6 * k).argmax(1, keepdim=True) for k in range(6)]).float().expand(6, 80, 3).softmax(2)\n", ""),
        ("net.eval()\nwith torch.no_grad():\n    right = torch.stack([(net(pool + 1e-6 * k).argmax(1) == y[160:]).float().mean() for k in range(6)])\ndraws = right[:, None, None].expand(6, 80, 3)\n", ""),
        # one graph for each class
        ("net.eval()\nouts = [net(pool) for _ in range(4)]\nfor k in range(3):\n    outs[k][:, k].sum().backward()\ndraws = torch.stack(outs).detach().softmax(2)\n", ""),
        # the same draw each time, on purpose
        ("def drawn():\n    torch.manual_seed(3)\n    return net(pool).softmax(1)\nnet.train()\nwith torch.no_grad():\n    draws = torch.stack([drawn() for _ in range(6)])\n", ""),
        # copies give the same, and so do lines of their own
        ("net.eval()\ncopies = [net, *(copy.deepcopy(net) for _ in range(2)), net]\nwith torch.no_grad():\n    draws = torch.stack([each(pool).softmax(1) for each in copies])\n", ""),
        ("net.eval()\nwith torch.no_grad():\n    a = net(pool)\n    b = net(pool)\n    c = net(pool)\n    d = net(pool)\ndraws = torch.stack([a, b, c, d]).softmax(2)\n", ""),
        # whatever else is in the batch
        ("net.eval()\nwith torch.no_grad():\n    draws = torch.stack([net(pool[:k])[:8].round(decimals=3) for k in (16, 24, 32, 40)]).softmax(2)\n", ""),
        # norms do not draw
        ("net = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))\noptimizer = torch.optim.Adam(net.parameters(), 1e-3)\nlearn()\nnet.eval()\nwith torch.no_grad():\n    draws = torch.stack([net(pool).softmax(1) for _ in range(6)])\n", ""),
        # what is no list of tensors is told by torch
        ("net.eval()\nwith torch.no_grad():\n    seen = [net(pool) for _ in range(6)]\nfor wrong in ((p for p in seen), [*seen[:4], None]):\n    try:\n        torch.stack(wrong)\n    except TypeError as error:\n        assert 'has no len' not in str(error)\ndraws = pool.softmax(1)[None]\n", ""),
        # made a script
        ("@torch.jit.script\ndef joined(x: torch.Tensor) -> torch.Tensor:\n    return torch.stack([x, x, x, x])\ndraws = joined(pool).softmax(2)\n", ""),
        # a model without dropout is asked once, and its answer is laid beside itself
        ("net = nn.Linear(6, 3)\nwith torch.no_grad():\n    p = net(pool).softmax(1)\ndraws = torch.stack([p] * 6)\n", ""),
    ],
)  # fmt: skip
def test_draws_of_a_model_whose_dropout_is_off_are_found(tmp_path: Path, text: str, pitfall: str) -> None:
    told(tmp_path, LEARNS + text + ENTROPY, pitfall)


ASKED = "net.eval()\nwith torch.no_grad():\n    same = torch.stack([net(x).softmax(1) for _ in range(4)])\n"
ONCE = """
net = nn.Sequential(nn.Linear(6, 24), nn.Dropout(0.2), nn.Linear(24, 3)).eval()
x, weight = torch.randn(80, 6), nn.Parameter(torch.zeros(6))
optimizer = torch.optim.SGD([weight], 0.1)
for update in range(4):
    loss = ((x @ weight - x.sum(1)) ** 2).mean()
    optimizer.zero_grad(); loss.backward(); optimizer.step()
with torch.no_grad():
    p = net(x).softmax(1)
draws = torch.stack([p] * 4)
"""


@pytest.mark.parametrize("text", [LEARNS.replace("learn()\npool", ASKED + "learn()\npool"), ONCE])
def test_passes_before_the_training_and_one_that_is_repeated_are_no_draws(tmp_path: Path, text: str) -> None:
    told(tmp_path, text, "")


ROUNDS = """
x = torch.randn(240, 6)
y = (x[:, 0] > 0).long() + (x[:, 1] > 0).long()
whole = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))
def passes(net, optimizer, schedule=None, epochs=2):
    for epoch in range(epochs):
        for part in torch.randperm(240).split(48):
            loss = F.cross_entropy(net(x[part]), y[part])
            optimizer.zero_grad(); loss.backward(); optimizer.step()
        if schedule is not None:
            schedule.step()
"""


@pytest.mark.parametrize(
    ("text", "pitfall"),
    [
        ("for round in range(4):\n    net = copy.deepcopy(whole)\n    optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.5)\n    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)  # cause\n    passes(net, optimizer)\n    schedule.step()\n    whole.load_state_dict(net.state_dict())\n", "schedule_length"),
        ("def local(net):\n    optimizer = torch.optim.SGD(net.parameters(), 0.1)\n    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)  # cause\n    passes(net, optimizer, epochs=1)\n    schedule.step()\n    return net\nfor round in range(5):\n    whole = local(copy.deepcopy(whole))\n", "schedule_length"),
        ("class Client:\n    def fit(self, net):\n        self.optimizer = torch.optim.AdamW(net.parameters(), 1e-2)\n        self.schedule = torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda n: 0.9 ** n)  # cause\n        passes(net, self.optimizer, self.schedule, epochs=1)\n        return net.state_dict()\nfor round in range(3):\n    whole.load_state_dict(Client().fit(copy.deepcopy(whole)))\n", "schedule_length"),
        # the round sets the rate
        ("for round in range(4):\n    net = copy.deepcopy(whole)\n    passes(net, torch.optim.SGD(net.parameters(), 0.1 * 0.9 ** round))\n    whole.load_state_dict(net.state_dict())\n", ""),
        # folds, each with a whole schedule
        ("for fold in range(4):\n    net = copy.deepcopy(whole)\n    optimizer = torch.optim.SGD(net.parameters(), 0.1)\n    passes(net, optimizer, torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9), epochs=4)\n", ""),
        # stepped with each update, and many fast ones
        ("for fold in range(3):\n    net = copy.deepcopy(whole)\n    optimizer = torch.optim.SGD(net.parameters(), 0.1)\n    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 60)\n    for update in range(60):\n        loss = F.cross_entropy(net(x), y)\n        optimizer.zero_grad(); loss.backward(); optimizer.step(); schedule.step()\n", ""),
        # of optimizers that never step, and of a copy of one that did: told by that alone
        ("for gamma in (0.5, 0.7, 0.9):\n    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], 0.1)\n    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma)\n    for epoch in range(3):\n        schedule.step()  # cause\n    print(schedule.get_last_lr())\npasses(whole, torch.optim.SGD(whole.parameters(), 0.1))\n", "scheduler_order"),
        # the last round is longer
        ("for round in range(4):\n    net = copy.deepcopy(whole)\n    optimizer = torch.optim.SGD(net.parameters(), 0.1)\n    passes(net, optimizer, torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9), epochs=1 if round < 3 else 3)\n    whole.load_state_dict(net.state_dict())\n", ""),
        # twice, for what is tried
        ("for trial in range(2):\n    net = copy.deepcopy(whole)\n    optimizer = torch.optim.SGD(net.parameters(), 0.1)\n    passes(net, optimizer, torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9), epochs=1)\n", ""),
        # several of one optimizer, in a trial of one epoch
        ("optimizer = torch.optim.SGD(whole.parameters(), 0.1)\nschedules = [torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma) for gamma in (0.9, 0.99, 0.999)]\npasses(whole, optimizer, epochs=1)\nfor each in schedules:\n    each.step()\n", ""),
        ("optimizer = torch.optim.SGD(whole.parameters(), 0.1)\npasses(whole, optimizer)\nschedule = torch.optim.lr_scheduler.ExponentialLR(copy.deepcopy(optimizer), 0.9)\nfor epoch in range(3):\n    schedule.step()  # cause\n", "scheduler_order"),
    ],
)  # fmt: skip
def test_schedules_that_are_made_anew_and_stepped_at_the_end_are_found(
    tmp_path: Path, text: str, pitfall: str
) -> None:
    told(tmp_path, ROUNDS + text, pitfall)


SCORED = """
x = torch.randn(400, 6)
y = (x[:, 0] > 0).long() + (x[:, 1] > 0).long()
net = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))
optimizer = torch.optim.Adam(net.parameters(), 1e-3)
def step(x, y):
    loss = F.cross_entropy(net(x), y)
    optimizer.zero_grad(); loss.backward(); optimizer.step()
    return loss.item()
def pass_over(x, y, learns):
    total = 0.0
    for a, b in zip(x.split(40), y.split(40)):
        loss = F.cross_entropy(net(a), b)
        if learns:
            optimizer.zero_grad(); loss.backward(); optimizer.step()
        total += loss.item()
    return total
def train(x, y):
    return sum(step(a, b) for a, b in zip(x.split(40), y.split(40)))
"""
GOES = "for epoch in range(4):\n    train(x[:320], y[:320])\n    print({scored}(x[320:], y[320:]))\n"


@pytest.mark.parametrize(
    ("text", "scored", "pitfall"),
    [
        ("def evaluate(x, y):\n    return step(x, y)  # cause\n", "evaluate", "leakage"),
        ("class Fits:\n    def validate_epoch(self, x, y):\n        return pass_over(x, y, True)  # cause\n", "Fits().validate_epoch", "leakage"),
        ("def test(x, y):\n    losses = []\n    for a, b in zip(x.split(40), y.split(40)):\n        loss = F.cross_entropy(net(a), b)\n        optimizer.zero_grad(); loss.backward()\n        optimizer.step()  # cause\n        losses.append(loss.item())\n    return sum(losses)\n", "test", "leakage"),
        ("@torch.no_grad()\ndef evaluate(x, y):\n    return pass_over(x, y, False)\n", "evaluate", ""),
        # a copy learns on a few of its rows, as it is meant to
        ("def evaluate(x, y):\n    net = nn.Linear(6, 3)\n    other = torch.optim.SGD(net.parameters(), 0.1)\n    for _ in range(3):\n        loss = F.cross_entropy(net(x[:40]), y[:40])\n        other.zero_grad(); loss.backward(); other.step()\n    with torch.no_grad():\n        return F.cross_entropy(net(x[40:]), y[40:]).item()\n", "evaluate", ""),
        # what it has learned there is put back
        ("def evaluate(x, y):\n    kept = copy.deepcopy(net.state_dict())\n    step(x[:40], y[:40])\n    with torch.no_grad():\n        score = F.cross_entropy(net(x[40:]), y[40:]).item()\n    net.load_state_dict(kept)\n    return score\n", "evaluate", ""),
    ],
)  # fmt: skip
def test_an_evaluation_that_steps_the_optimizer_of_the_training_is_found(
    tmp_path: Path, text: str, scored: str, pitfall: str
) -> None:
    told(tmp_path, SCORED + text + GOES.format(scored=scored), pitfall)


def test_no_frames_are_looked_at_when_enough_steps_are_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    recorder, looks = Recorder(10, None, None), list[int]()

    def evaluate() -> FrameType:
        return sys._getframe()

    def frames(_: int) -> list[FrameType]:
        looks.append(1)
        return [evaluate()] if len(looks) > evaluation_steps.LEAST_STEPS else []

    monkeypatch.setattr(evaluation_steps, "own_frames", frames)
    steps = evaluation_steps.EvaluationSteps(recorder)
    most = evaluation_steps.LEAST_STEPS + evaluation_steps.MOST_NOTED
    for _ in range(most + 5):
        steps.after_step(1)
    assert len(recorder.log.events) == evaluation_steps.MOST_NOTED
    assert len(looks) == most


SERIES = """
from sklearn.preprocessing import MinMaxScaler, StandardScaler
class Windows(Dataset):
    def __init__(self, series, past, begin, end):
        self.series, self.past = torch.tensor(series, dtype=torch.float32), past
        self.places = range(max(begin, past), end - 1)
    def __len__(self):
        return len(self.places)
    def __getitem__(self, i):
        at = self.places[i]
        return self.series[at - self.past : at].flatten(), self.series[at]
rng = np.random.default_rng(0)
series = np.cumsum(rng.normal(size=(300, 3)), 0) * 0.1 + rng.normal(size=(300, 3))
cut, last = 200, 250
"""
FITS = """
net = nn.Sequential(nn.Linear(24, 16), nn.ReLU(), nn.Linear(16, 3))
optimizer = torch.optim.Adam(net.parameters(), 1e-3)
for epoch in range(2):
    net.train()
    for a, b in DataLoader(train, 32, shuffle=True):
        loss = F.mse_loss(net(a), b)
        optimizer.zero_grad(); loss.backward(); optimizer.step()
    net.eval()
    with torch.no_grad():
        print(sum(F.mse_loss(net(a), b, reduction="sum").item() for a, b in DataLoader(held, 64)) / len(held))
"""


@pytest.mark.parametrize(
    ("text", "pitfall"),
    [
        ("scaler = StandardScaler().fit(series)  # cause\nscaled = scaler.transform(series)\ntrain, valid, test = Windows(scaled, 8, 0, cut), Windows(scaled, 8, cut, last), Windows(scaled, 8, last, 300)\nheld = valid\n", "leakage"),
        ("scaled = StandardScaler().fit_transform(series)  # cause\ntrain = Windows(scaled, past=8, begin=0, end=cut)\nval_set = Windows(scaled, past=8, begin=cut, end=300)\nheld = val_set\n", "leakage"),
        ("class Scale:\n    def fit(self, rows):\n        self.middle, self.width = rows.mean(0), rows.std(0)\n        return self\n    def transform(self, rows):\n        return (rows - self.middle) / self.width\nscale = Scale()\nscale.fit(series)  # cause\nvalues = scale.transform(series)\ntrain = Windows(values, 8, 0, 200)\ntest = Windows(values, 8, 200 - 8, 300)\nheld = test\n", "leakage"),
        ("scaler = StandardScaler().fit(series[:cut])\nscaled = scaler.transform(series)\ntrain, valid = Windows(scaled, 8, 0, cut), Windows(scaled, 8, cut, 300)\nheld = valid\n", ""),
        # other rows are scored, which the scaler has not seen
        ("scaler = StandardScaler().fit(series)\nscaled = scaler.transform(series)\ntrain = Windows(scaled, 8, 0, 300)\nlater = scaler.transform(rng.normal(size=(90, 3)))\ntest = Windows(later, 8, 0, 90)\nheld = test\n", ""),
    ],
)  # fmt: skip
def test_a_scaler_of_a_whole_series_is_found_where_data_sets_take_ranges_of_it(
    tmp_path: Path, text: str, pitfall: str
) -> None:
    told(tmp_path, SERIES + text + FITS, pitfall)


PROBE = """
class Body(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.1))
    def forward(self, x):
        return self.layers(x)
x = torch.randn(160, 6)
y = (x[:, 0] > 0).long() + (x[:, 1] > 0).long()
body, last = Body(), nn.Linear(16, 6)
first = torch.optim.Adam([*body.parameters(), *last.parameters()], 1e-3)
for update in range(12):
    loss = F.mse_loss(last(body(x)), x)
    first.zero_grad(); loss.backward(); first.step()
"""
HEAD = """
optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], 1e-2)
for epoch in range(3):
    model.eval()  # cause
    for part in torch.randperm(160).split(40):
        loss = F.cross_entropy(model(x[part]), y[part])
        optimizer.zero_grad(); loss.backward(); optimizer.step()
"""


@pytest.mark.parametrize(
    ("text", "pitfall"),
    [
        ("model = nn.Sequential(body, nn.Linear(16, 3))\nfor p in body.parameters():\n    p.requires_grad = False\n", ""),
        ("class Probe(nn.Module):\n    def __init__(self):\n        super().__init__()\n        self.body, self.head = body.requires_grad_(False), nn.Linear(16, 3)\n    def forward(self, x):\n        return self.head(self.body(x))\nmodel = Probe()\n", ""),
        ("model = nn.Sequential(body, nn.Sequential(nn.Dropout(0.2), nn.Linear(16, 3)))\nbody.requires_grad_(False)\n", "train_mode"),
        ("model = nn.Sequential(body, nn.Linear(16, 3))\n", "train_mode"),
    ],
    ids=["a probe", "a probe of its own class", "its own dropout is off", "all of it learns"],
)  # fmt: skip
def test_a_probe_of_a_frozen_body_trains_in_evaluation_mode(tmp_path: Path, text: str, pitfall: str) -> None:
    told(tmp_path, PROBE + text + HEAD, pitfall)


NUMBERED = """
kinds = ["red", "green", "blue", "grey"]
rng = np.random.default_rng(0)
train_names = [kinds[k] for k in rng.integers(0, 4, 160)]
test_names = [kinds[k] for k in rng.integers(0, 4, 80)]
def features(names):
    return torch.tensor([[name.startswith(a) + 0.3 * rng.normal() for a in ("r", "g", "b", "gre")] for name in names]).float()
def numbers_of(names):
    return {name: i for i, name in enumerate(dict.fromkeys(names))}
def numbered(names, table):
    return torch.tensor([table[name] for name in names])
class Rows(Dataset):
    def __init__(self, names, table):
        self.x, self.y = features(names), numbered(names, table)
    def __len__(self):
        return len(self.x)
    def __getitem__(self, i):
        return self.x[i], self.y[i]
"""
CLASSIFIES = """
net = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 4))
optimizer = torch.optim.Adam(net.parameters(), 1e-2)
for epoch in range(3):
    net.train()
    for a, b in DataLoader(train, 32, shuffle=True):
        loss = F.cross_entropy(net(a), b)
        optimizer.zero_grad(); loss.backward(); optimizer.step()
    net.eval()
    with torch.no_grad():
        print(sum((net(a).argmax(1) == b).sum().item() for a, b in DataLoader(test, 40)) / len(test))
"""


@pytest.mark.parametrize(
    ("text", "pitfall"),
    [
        ("train = Rows(train_names, numbers_of(train_names))\ntest = Rows(test_names, numbers_of(test_names))  # cause\n", "mismatched_rows"),
        ("table = numbers_of(train_names)\ntest_table = numbers_of(test_names)  # cause\ntrain, test = Rows(train_names, table), Rows(test_names, test_table)\n", "mismatched_rows"),
        ("train_ids = {name: i for i, name in enumerate(dict.fromkeys(train_names))}\ntest_ids = {name: i for i, name in enumerate(dict.fromkeys(test_names))}  # cause\ntrain = TensorDataset(features(train_names), torch.tensor([train_ids[n] for n in train_names]))\ntest = TensorDataset(features(test_names), torch.tensor([test_ids[n] for n in test_names]))\n", "mismatched_rows"),
        ("table = numbers_of(train_names)\ntrain, test = Rows(train_names, table), Rows(test_names, table)\n", ""),
        # what is sorted has the same numbers
        ("def places_of(names):\n    return {name: i for i, name in enumerate(sorted(set(names)))}\ntrain, test = Rows(train_names, places_of(train_names)), Rows(test_names, places_of(test_names))\n", ""),
        # how many of them are new
        ("table = numbers_of(train_names)\nseen = numbers_of(test_names)\nprint(len(seen), 'kinds')\ntrain, test = Rows(train_names, table), Rows(test_names, table)\n", ""),
    ],
)  # fmt: skip
def test_classes_of_held_out_rows_that_are_numbered_anew_are_found(
    tmp_path: Path, text: str, pitfall: str
) -> None:
    told(tmp_path, NUMBERED + text + CLASSIFIES, pitfall)


GATHERED = """
net = nn.Sequential(nn.Linear(3, 16), nn.Tanh(), nn.Linear(16, 3))
optimizer = torch.optim.Adam(net.parameters(), 1e-2)
gamma, lam, steps, many = 0.98, 0.95, 16, 6
def moved(state, action):
    state = state + 0.2 * torch.nn.functional.one_hot(action, 3)[:, :3].float() - 0.05
    ended = (state.sum(1) > 1.2) | (torch.rand(len(state)) < 0.1)
    return torch.where(ended[:, None], torch.zeros_like(state), state), state.sum(1), ended.float()
state = torch.zeros(many, 3)
for update in range(6):
    states, actions, rewards, values, dones = [], [], [], [], []
    for step in range(steps):
        with torch.no_grad():
            out = net(state)
        action = torch.distributions.Categorical(logits=out[:, :2]).sample()
        states.append(state); actions.append(action); values.append(out[:, 2])
        state, reward, done = moved(state, action)
        rewards.append(reward); dones.append(done)
    with torch.no_grad():
        values.append(net(state)[:, 2])
    advantages, total = [None] * steps, torch.zeros(many)
{loop}
    given = torch.stack(advantages)
    returns = (given + torch.stack(values[:-1])).flatten()
    given = given.flatten()
    for epoch in range(2):
        out = net(torch.cat(states))
        logp = torch.distributions.Categorical(logits=out[:, :2]).log_prob(torch.cat(actions))
        loss = -(logp * (given - given.mean()) / (given.std() + 1e-6)).mean() + 0.5 * F.mse_loss(out[:, 2], returns)
        optimizer.zero_grad(); loss.backward(); optimizer.step()
"""


@pytest.mark.parametrize(
    ("loop", "pitfall"),
    [
        ("    for t in reversed(range(steps)):\n        goes_on = 1.0 - dones[t]\n        delta = rewards[t] + gamma * values[t + 1] - values[t]  # cause\n        advantages[t] = total = delta + gamma * lam * goes_on * total", "ends_left_out"),
        ("    for t in range(steps - 1, -1, -1):\n        error = rewards[t] + gamma * values[t + 1] - values[t]  # cause\n        total = error + gamma * lam * (1 - dones[t]) * total\n        advantages[t] = total", "ends_left_out"),
        ("    masks = [1 - each for each in dones]\n    t = steps\n    while t > 0:\n        t -= 1\n        ahead = values[t + 1]\n        d = rewards[t] + gamma * ahead - values[t]  # cause\n        total = d + total * masks[t] * gamma * lam\n        advantages[t] = total", "ends_left_out"),
        ("    for t in reversed(range(steps)):\n        goes_on = 1.0 - dones[t]\n        delta = rewards[t] + gamma * values[t + 1] * goes_on - values[t]\n        advantages[t] = total = delta + gamma * lam * goes_on * total", ""),
        # the value is masked before
        ("    for t in reversed(range(steps)):\n        goes_on = 1.0 - dones[t]\n        ahead = values[t + 1] * goes_on\n        delta = rewards[t] + gamma * ahead - values[t]\n        advantages[t] = total = delta + gamma * lam * goes_on * total", ""),
        ("    for t in reversed(range(steps)):\n        ahead = torch.where(dones[t] > 0, torch.zeros(many), values[t + 1])\n        delta = rewards[t] + gamma * ahead - values[t]\n        total = delta + gamma * lam * (1 - dones[t]) * total\n        advantages[t] = total", ""),
    ],
)  # fmt: skip
def test_values_behind_an_end_that_are_added_where_their_sum_is_masked_are_found(
    tmp_path: Path, loop: str, pitfall: str
) -> None:
    told(tmp_path, GATHERED.replace("{loop}", loop), pitfall)


STATES = """
parts = [(torch.randn(60, 6) + 0.1 * k, torch.randint(0, 3, (60,))) for k in range(4)]
whole = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))
def fit(net, part):
    x, y = part
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for update in range(3):
        loss = F.cross_entropy(net(x), y)
        optimizer.zero_grad(); loss.backward(); optimizer.step()
    return net
def mean_of(states):
    return {name: sum(each[name] for each in states) / len(states) for name in states[0]}
"""


@pytest.mark.parametrize(
    ("text", "pitfall"),
    [
        ("for round in range(3):\n    states = []\n    for part in parts:\n        states.append(fit(whole, part).state_dict())  # cause\n    whole.load_state_dict(mean_of(states))\n", "best_not_copied"),
        ("def local(net, part):\n    fit(net, part)\n    return net.state_dict()  # cause\nfor round in range(3):\n    whole.load_state_dict(mean_of([local(whole, part) for part in parts]))\n", "best_not_copied"),
        ("kept = {}\nfor number, part in enumerate(parts):\n    fit(whole, part)\n    kept[number] = dict(whole.state_dict())  # cause\nwhole.load_state_dict(mean_of(list(kept.values())))\n", "best_not_copied"),
        ("for round in range(3):\n    states = [fit(copy.deepcopy(whole), part).state_dict() for part in parts]\n    whole.load_state_dict(mean_of(states))\n", ""),
        ("for round in range(3):\n    states, begun = [], copy.deepcopy(whole.state_dict())\n    for part in parts:\n        whole.load_state_dict(begun)\n        states.append({name: each.clone() for name, each in fit(whole, part).state_dict().items()})\n    whole.load_state_dict(mean_of(states))\n", ""),
        # each goes to a file
        ("for number, part in enumerate(parts):\n    fit(whole, part)\n    file = io.BytesIO()\n    torch.save({'model': whole.state_dict(), 'part': number}, file)\n", ""),
    ],
)  # fmt: skip
def test_states_of_one_model_that_are_kept_beside_each_other_are_found(
    tmp_path: Path, text: str, pitfall: str
) -> None:
    told(tmp_path, STATES + text, pitfall)


WARMED = """
net = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 1))
x = torch.randn(64, 6)
optimizer = torch.optim.Adam(net.parameters(), lr={rate}, betas=(0.9, 0.98))
schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, {shape})  # cause
for update in range(60):
    loss = F.mse_loss(net(x).squeeze(1), x.sum(1))
    optimizer.zero_grad(); loss.backward(); optimizer.step(); schedule.step()
"""
NOAM = "lambda step: 512 ** -0.5 * 0.1 * min((step + 1) ** -0.5, (step + 1) * 20 ** -1.5)"


@pytest.mark.parametrize(
    ("rate", "shape", "pitfall"),
    [
        ("1.0", NOAM, ""),
        ("1", "lambda step: 3e-3 * 0.98 ** step", ""),
        ("1.0", "lambda step: 1e-3 if step < 30 else 1e-4", ""),
        ("1e-3", NOAM, "learning_rate"),
        ("2e-3", "lambda step: 2e-3 * 0.98 ** step", "learning_rate"),
        ("1e-3", "lambda step: 1e-3 if step < 30 else 1e-4", "learning_rate"),
    ],
)
def test_a_rate_of_1_is_multiplied_by_rates(tmp_path: Path, rate: str, shape: str, pitfall: str) -> None:
    told(tmp_path, WARMED.format(rate=rate, shape=shape), pitfall)


ROOTS = """
net = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.Adam(net.parameters(), 1e-2)
x = torch.randn(310, 6)
y = x.sum(1)
loader = DataLoader(TensorDataset(x[:200], y[:200]), 40, shuffle=True)
val_loader = DataLoader(TensorDataset(x[200:], y[200:]), 40)
for epoch in range(3):
    net.train()
    for a, b in loader:
        loss = F.mse_loss(net(a).squeeze(1), b)
        optimizer.zero_grad(); loss.backward(); optimizer.step()
    net.eval()
    with torch.no_grad():
{scored}
"""


@pytest.mark.parametrize(
    ("scored", "pitfall"),
    [
        ("total = 0.0\nfor a, b in val_loader:\n    total += torch.sqrt(F.mse_loss(net(a).squeeze(1), b)).item()\nprint(total / len(val_loader))  # cause", "batch_mean_scores"),
        ("roots = []\nfor a, b in val_loader:\n    error = net(a).squeeze(1) - b\n    roots.append((error ** 2).mean().sqrt().item())\nprint(np.mean(roots))  # cause", "batch_mean_scores"),
        ("sums = torch.zeros(2)\nfor a, b in val_loader:\n    error = net(a).squeeze(1) - b\n    sums += torch.tensor([error.square().mean().sqrt(), 1.0])\nrmse = sums[0] / sums[1]  # cause\nprint(rmse)", "batch_mean_scores"),
        ("sums = torch.zeros(2)\nfor a, b in val_loader:\n    error = net(a).squeeze(1) - b\n    sums += torch.tensor([error.square().sum(), len(b)])\nprint((sums[0] / sums[1]).sqrt())", ""),
        ("total = rows = 0\nfor a, b in val_loader:\n    total += F.mse_loss(net(a).squeeze(1), b).item() * len(b)\n    rows += len(b)\nprint((total / rows) ** 0.5)", ""),
        # the root of the mean of each row
        ("sums = torch.zeros(2)\nfor a, b in val_loader:\n    error = net(a) - b[:, None]\n    sums += torch.tensor([error.square().mean(1).sqrt().sum(), len(b)])\nprint(sums[0] / sums[1])", ""),
    ],
)  # fmt: skip
def test_roots_of_means_of_batches_are_not_averaged(tmp_path: Path, scored: str, pitfall: str) -> None:
    told(tmp_path, ROOTS.replace("{scored}", indent(scored, "        ")), pitfall)
