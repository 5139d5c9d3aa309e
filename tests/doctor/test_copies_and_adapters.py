"""What stays as it was while something beside it learns, and what learns though it was to stay."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.doctor.test_rows_signs_places import told
from tests.doctor.test_variants import BEGIN, found

pytestmark = pytest.mark.slow


BELOW = """
class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.head = nn.Linear(12, 16), nn.Linear(16, 16), nn.Linear(16, 3)
    def forward(self, x):
        return self.head(torch.tanh(self.second(torch.tanh(self.first(x)))))
class Low(nn.Module):
    def __init__(self, base, r=2):
        super().__init__()
        self.base, self.scale = base, 2.0
        self.lora_A = nn.Parameter(torch.randn(r, base.in_features) / 4)
        self.lora_B = nn.Parameter(torch.zeros(base.out_features, r))
    def forward(self, x):
        return self.base(x) + self.scale * (x @ self.lora_A.T @ self.lora_B.T)
class Beside(nn.Module):
    def __init__(self, base, r=2):
        super().__init__()
        self.base, self.down, self.up = base, nn.Linear(base.in_features, r, bias=False), nn.Linear(r, base.out_features, bias=False)
        nn.init.zeros_(self.up.weight)
    def forward(self, x):
        return self.base(x) + self.up(self.down(x))
class Changed(nn.Module):
    def __init__(self, rows, columns, r=2):
        super().__init__()
        self.left, self.right = nn.Parameter(torch.zeros(rows, r)), nn.Parameter(torch.randn(r, columns) / 4)
    def forward(self, weight):
        return weight + self.left @ self.right
def learn(params, rate=1e-2):
    optimizer = torch.optim.AdamW(params, rate, weight_decay=0.0)
    for update in range(10):
        x = torch.randn(32, 12)
        loss = F.cross_entropy(net(x), (x[:, 0] > 0).long() + (x[:, 1] > 0).long())
        optimizer.zero_grad(); loss.backward(); optimizer.step()
net = Two()
"""
BEFORE = "learn(net.parameters())\n"
LOADED = "kept = io.BytesIO(); torch.save(Two().state_dict(), kept); kept.seek(0); net.load_state_dict(torch.load(kept))\n"
OTHER = """
other = nn.Linear(12, 3)
optimizer = torch.optim.SGD(other.parameters(), 0.1)
for update in range(4):
    x = torch.randn(32, 12)
    loss = F.cross_entropy(other(x), (x[:, 0] > 0).long() + (x[:, 1] > 0).long())
    optimizer.zero_grad(); loss.backward(); optimizer.step()
"""
CHOSEN = "chosen = [p for p in net.parameters() if p.requires_grad]  # cause\nlearn(chosen)\n"


@pytest.mark.parametrize(
    ("text", "pitfall"),
    [
        (BEFORE + "net.second = Low(net.second)\n" + CHOSEN, "not_frozen"),
        (LOADED + "net.first, net.second = Beside(net.first), Beside(net.second)\nlearn(filter(lambda p: p.requires_grad, net.parameters()))  # cause\n", "not_frozen"),
        (BEFORE + "torch.nn.utils.parametrize.register_parametrization(net.second, 'weight', Changed(16, 16))\n" + CHOSEN, "not_frozen"),
        (BEFORE + "net.requires_grad_(False)\nnet.second = Low(net.second)\n" + CHOSEN, ""),
        # the head is trained with the adapters, as one that is new must be
        (LOADED + "net.requires_grad_(False)\nnet.second = Beside(net.second)\nnet.head = nn.Linear(16, 3)\n" + CHOSEN, ""),
        # a way beside the first one, that begins at 0, and is there from the beginning
        ("net.second = Beside(net.second)\n" + CHOSEN, ""),
        # what was trained with its adapters goes on
        ("net.second = Low(net.second)\n" + BEFORE + "learn(net.parameters(), 1e-3)\n", ""),
        # a pass to see that it goes, before there is an optimizer
        (LOADED + "net.second = Low(net.second)\nshape = net(torch.randn(4, 12)).shape\n" + CHOSEN, "not_frozen"),
        # what was trained with its adapters comes from a file
        ("net.second = Low(net.second)\nnn.init.normal_(net.second.lora_B, std=0.02)\n" + LOADED.replace("Two()", "net") + CHOSEN, ""),
        # another model has learned before
        (OTHER + "net.second = Beside(net.second)\n" + CHOSEN, ""),
        # what is frozen may be given to the optimizer
        (BEFORE + "net.requires_grad_(False)\nnet.second = Low(net.second)\nlearn(net.parameters())\n", ""),
    ],
)  # fmt: skip
def test_weights_below_fresh_adapters_are_frozen(tmp_path: Path, text: str, pitfall: str) -> None:
    told(tmp_path, BELOW + text, pitfall)


AVERAGED = """
class Average:
    def __init__(self, model, decay):
        self.module, self.decay = copy.deepcopy(model).requires_grad_(False), decay
    @torch.no_grad()
    def follow(self, model, updates):
        decay = self.decay if isinstance(self.decay, float) else self.decay(updates)
        for mine, other in zip(self.module.parameters(), model.parameters()):
            mine.mul_(decay).add_(other, alpha=1 - decay)
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(8, 16), nn.Linear(16, 3)
    def forward(self, x):
        return self.head(torch.relu(self.body(x)))
net = Net()
optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)
rows = torch.randn(96, 8)
kinds = (rows[:, 0] > 0).long() + (rows[:, 1] > 0).long()
{average}
for update in range(100):
    part = torch.randint(0, 96, (32,))
    loss = F.cross_entropy(net(rows[part]), kinds[part])
    optimizer.zero_grad(); loss.backward(); optimizer.step()
    {follow}
    if update % 20 == 19:
        other = torch.randn(64, 8)
        wanted = (other[:, 0] > 0).long() + (other[:, 1] > 0).long()
        with torch.no_grad():
            print({scored}(other).argmax(1).eq(wanted).float().mean())
"""


@pytest.mark.parametrize(
    ("average", "follow", "scored", "pitfall"),
    [
        ("ema = Average(net, 0.9999)  # cause", "ema.follow(net, update)", "ema.module", "average_stands_still"),
        ("slow = copy.deepcopy(net)  # cause", "with torch.no_grad(): torch._foreach_lerp_(list(slow.parameters()), list(net.parameters()), 0.0002)", "slow", "average_stands_still"),
        ("from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn\nsmooth = AveragedModel(net, multi_avg_fn=get_ema_multi_avg_fn(0.9998))  # cause\nsmooth.update_parameters(net)", "smooth.update_parameters(net)", "smooth", "average_stands_still"),
        ("ema = Average(net, 0.95)", "ema.follow(net, update)", "ema.module", ""),
        ("ema = Average(net, lambda updates: min(0.9999, (1 + updates) / (10 + updates)))", "ema.follow(net, update)", "ema.module", ""),
        ("from torch.optim.swa_utils import AveragedModel\nmean = AveragedModel(net)", "mean.update_parameters(net)", "mean", ""),
        # another model, which stays as it is, to be compared with
        ("rival = Net()", "pass", "rival", ""),
    ],
)  # fmt: skip
def test_an_average_follows_within_its_run(
    tmp_path: Path, average: str, follow: str, scored: str, pitfall: str
) -> None:
    told(tmp_path, AVERAGED.format(average=average, follow=follow, scored=scored), pitfall)


KEYS = """
class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        self.query, self.m = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8)), 0.9
        self.key = copy.deepcopy(self.query).requires_grad_(False)
    def forward(self, a, b):
        q = F.normalize(self.query(a), dim=1)
        with torch.no_grad():
            {before}
            k = F.normalize(self.key(b), dim=1)
        return F.cross_entropy(q @ k.T / 0.2, torch.arange(len(a)))
    {method}
{function}
pair = Pair()
optimizer = torch.optim.Adam(pair.query.parameters(), 1e-3)
for update in range(10):
    x = torch.randn(32, 8)
    loss = pair(x + 0.1 * torch.randn(32, 8), x + 0.1 * torch.randn(32, 8))
    optimizer.zero_grad(); loss.backward(); optimizer.step()
    {after}
"""
MOVES = "def move(self):  # cause\n        for q, k in zip(self.query.parameters(), self.key.parameters()):\n            k.data.mul_(self.m).add_(q.data, alpha=1 - self.m)"
FOLLOWS = "@torch.no_grad()\ndef keep_up(one, other, m=0.9):  # cause\n    for mine, his in zip(one.state_dict().values(), other.state_dict().values()):\n        mine.lerp_(his, 1 - m)"
SYNCS = "def sync(pair):  # cause\n    pair.key.load_state_dict(pair.query.state_dict())"
TOLD = "calls = []\ndef each_update(function):\n    calls.append(function)\n    return function\n@each_update\ndef keep_up():\n    for one, other in zip(pair.query.parameters(), pair.key.parameters()):\n        other.data.lerp_(one.data, 0.1)"
IN_PLACE = "for one, other in zip(self.query.parameters(), self.key.parameters()):\n                other.data.mul_(self.m).add_(one.data, alpha=1 - self.m)"
CALLED = "class Mover{base}:\n    def {name}(self, one, other):\n        for mine, his in zip(one.parameters(), other.parameters()):\n            mine.data.lerp_(his.data, 0.1)\nmover = Mover()"
THREAD = "import threading\nclass Mover(threading.Thread):\n    def run(self):\n        for q, k in zip(pair.query.parameters(), pair.key.parameters()):\n            k.data.lerp_(q.data, 0.1)"
SMOOTH = "smooth = smooth or torch.optim.swa_utils.AveragedModel(pair.query)\n    smooth.update_parameters(pair.query)\n    pair.key = smooth.module"
DESCENDS = "def descend(net, grads, rate=0.1):\n    for one, grad in zip(net.parameters(), grads):\n        one.data.add_(grad, alpha=-rate)"


@pytest.mark.parametrize(
    ("before", "method", "function", "after", "pitfall"),
    [
        ("pass", MOVES, "", "pass", "average_stands_still"),
        ("pass", "", FOLLOWS, "pass", "average_stands_still"),
        ("pass", "", SYNCS, "pass", "average_stands_still"),
        ("self.move()", MOVES, "", "pass", ""),
        ("pass", "", FOLLOWS, "keep_up(pair.key, pair.query)", ""),
        # a class that nobody uses moves nothing that is there
        ("pass", "", "class Unused:\n    def after(self, one, other):\n        for mine, his in zip(one.parameters(), other.parameters()):\n            mine.data.copy_(his.data)", "pass", ""),
        # of two ways to move a copy one is not taken
        ("pass", MOVES, SYNCS, "sync(pair)", ""),
        # the model's own pass moves it, as does what is called without its name
        (IN_PLACE, "", "", "pass", ""),
        ("getattr(self, 'move')()", MOVES, "", "pass", ""),
        ("pass", "", CALLED.format(base="", name="__call__"), "mover(pair.key, pair.query)", ""),
        ("pass", "", CALLED.format(base="(nn.Module)", name="forward"), "mover(pair.key, pair.query)", ""),
        ("pass", "", THREAD, "mover = Mover(); mover.start(); mover.join()", ""),
        ("pass", "", TOLD, "for call in calls: call()", ""),
        # the library's average is what is followed
        ("pass", "", FOLLOWS + "\nsmooth = None", SMOOTH, ""),
        # it writes to the weights of one model, by gradients
        ("pass", "", DESCENDS, "pass", ""),
    ],
)  # fmt: skip
def test_what_moves_a_copy_is_called(
    tmp_path: Path, before: str, method: str, function: str, after: str, pitfall: str
) -> None:
    text = KEYS.format(before=before, method=method, function=function, after=after)
    told(tmp_path, text, pitfall)


@pytest.mark.parametrize(
    ("key", "pitfall"),
    [
        # it begins as the model does, and that is all
        ("nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8)).requires_grad_(False)\n        self.key.load_state_dict(self.query.state_dict())", "average_stands_still"),
        # no copy is there that could be moved
        ("self.query", ""),
    ],
)  # fmt: skip
def test_what_is_never_moved_is_a_copy(tmp_path: Path, key: str, pitfall: str) -> None:
    text = KEYS.format(before="pass", method=MOVES, function="", after="pass")
    told(tmp_path, text.replace("copy.deepcopy(self.query).requires_grad_(False)", key), pitfall)


NOTHING = """
class Low(nn.Module):
    def __init__(self, r=2):
        super().__init__()
        self.base = nn.Linear(12, 3).requires_grad_(False)
        {first}
        {second}
        {then}
    def forward(self, x):
        return self.base(x) + x @ self.a.T @ self.b.T
net = Low()
optimizer = torch.optim.Adam([p for p in net.parameters() if p.requires_grad], 1e-2)
for update in range(10):
    x = torch.randn(32, 12)
    loss = F.cross_entropy(net(x), (x[:, 0] > 0).long())
    optimizer.zero_grad(); loss.backward(); optimizer.step()
"""
EMPTY, ZEROS = "self.a = nn.Parameter(torch.empty(r, 12))", "self.b = nn.Parameter(torch.zeros(3, r))"


@pytest.mark.parametrize(
    ("first", "second", "then", "pitfall"),
    [
        (EMPTY, ZEROS, "nn.init.zeros_(self.a)  # cause", "no_gradient"),
        (EMPTY, ZEROS, "self.a.data.fill_(0.0)  # cause", "no_gradient"),
        (ZEROS, EMPTY, "nn.init.constant_(self.a, 0)  # cause", "no_gradient"),
        (EMPTY.replace("empty", "zeros") + "  # cause", ZEROS, "pass", "no_gradient"),
        (EMPTY, ZEROS, "nn.init.normal_(self.a, std=0.1)", ""),
        (EMPTY.replace("empty", "randn"), ZEROS.replace("zeros", "empty"), "nn.init.zeros_(self.b)", ""),
    ],
)  # fmt: skip
def test_of_two_factors_that_are_zeros_the_line_is_that_which_fills_one(
    tmp_path: Path, first: str, second: str, then: str, pitfall: str
) -> None:
    text = NOTHING.format(first=first, second=second, then=then)
    seen = found(tmp_path, text)
    assert set(seen) == ({pitfall} if pitfall else set())
    marked = [number for number, line in enumerate((BEGIN + text).splitlines(), 1) if "# cause" in line]
    assert not pitfall or seen[pitfall].where.endswith(f":{marked[0]}")


STATES = """
import os, tempfile
path = os.path.join(tempfile.mkdtemp(), "part.pt")
def fresh(): return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 1))
net = fresh()
optimizer = torch.optim.Adam(net.parameters(), 1e-3)
for _ in range(6):
    x = torch.randn(32, 6)
    loss = F.mse_loss(net(x).squeeze(1), x.sum(1))
    optimizer.zero_grad(); loss.backward(); optimizer.step()
{0}
rows = torch.randn(32, 6)
with torch.no_grad():
    print(F.mse_loss(other(rows).squeeze(1), rows.sum(1)))
"""


@pytest.mark.parametrize(
    ("text", "pitfall"),
    [
        ("torch.save({k: v for k, v in net.state_dict().items() if 'lora_' in k}, path)\nother = fresh()\nother.load_state_dict(torch.load(path), strict=False)  # cause", "nothing_restored"),
        ("torch.save({'model': net.state_dict()}, path)\nother = fresh()\nread = torch.load(path)['model']\nread = {k[8:]: v for k, v in read.items() if k.startswith('encoder.')}\nprint(other.load_state_dict(read, strict=False))  # cause", "nothing_restored"),
        ("from safetensors.torch import load_file, save_file\nsave_file(net.state_dict(), path)\ndef put(model, given):\n    own = {}\n    for name in given:\n        if name.replace('.', '_') in model.state_dict():\n            own[name] = given[name]\n    model.load_state_dict(own, strict=False)  # cause\n    return model\nother = put(fresh(), load_file(path))", "nothing_restored"),
        ("torch.save(net.state_dict(), path)\nother = fresh()\nother.load_state_dict(torch.load(path), strict=False)", ""),
        # nothing was saved yet
        ("other = net\nother.load_state_dict(torch.load(path) if os.path.exists(path) else {}, strict=False)", ""),
        # the checkpoint has no part for what was added later
        ("torch.save({'model': net.state_dict()}, path)\nread = torch.load(path)\nother, scale = fresh(), nn.Linear(1, 1)\nother.load_state_dict(read['model'])\nscale.load_state_dict(read.get('scale', {}), strict=False)", ""),
        ("torch.save({'model': net.state_dict(), 'loss': {}}, path)\nread = torch.load(path)\nother, own = fresh(), nn.MSELoss()\nown.load_state_dict(read['loss'], strict=False)\nother.load_state_dict(read['model'])", ""),
    ],
)  # fmt: skip
def test_an_empty_state_restores_nothing(tmp_path: Path, text: str, pitfall: str) -> None:
    told(tmp_path, STATES.format(text), pitfall)


RESUMED = """
import os, tempfile
path = os.path.join(tempfile.mkdtemp(), "last.pt")
x = torch.randn(160, 6)
data = TensorDataset(x, x.sum(1))
loader = DataLoader(data, 32, shuffle=True)
def fresh(): return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 1))
class Run:
    def __init__(self, net, make=torch.optim.Adam, rate=1e-3, loader=loader):
        self.net, self.loader = net, loader
        self.optimizer = make(net.parameters(), rate)
    def go(self, epochs):
        for epoch in epochs:
            for x, y in self.loader:
                loss = F.mse_loss(self.net(x).squeeze(1), y)
                self.optimizer.zero_grad(); loss.backward(); self.optimizer.step()
            print(epoch, loss.item())
run = Run(fresh())
run.go(range(3))
{0}
"""
AGAIN = "torch.save(run.net.state_dict(), path)\nnet = fresh()\n"


@pytest.mark.parametrize(
    ("text", "pitfall"),
    [
        (AGAIN + "net.load_state_dict(torch.load(path))  # cause\nprint('resumed')\nRun(net).go(range(3, 6))", "partial_resume"),
        ("torch.save({'epoch': 2, 'model': run.net.state_dict()}, path)\nread = torch.load(path)\nstart_epoch = read['epoch'] + 1\nrun.net.load_state_dict(read['model'])  # cause\nRun(run.net).go(range(start_epoch, 6))", "partial_resume"),
        ("from safetensors.torch import load_file, save_file\nsave_file(run.net.state_dict(), path)\ndef resume(run):\n    run.net.load_state_dict(load_file(path))  # cause\n    return run\nrun = resume(Run(fresh()))\nrun.go(range(3, 6))", "partial_resume"),
        # as a library does that prepares an optimizer
        (AGAIN + "run = Run(net)\nrun.optimizer.load_state_dict(run.optimizer.state_dict())\nnet.load_state_dict(torch.load(path))  # cause\nprint('resumed')\nrun.go(range(3, 6))", "partial_resume"),
        # no word of a resume: a stage of its own
        (AGAIN + "net.load_state_dict(torch.load(path))\nRun(net).go(range(3))", ""),
        # at another rate, on other rows, or of other weights than the last
        (AGAIN + "net.load_state_dict(torch.load(path))\nprint('resumed for tuning')\nRun(net, rate=1e-4).go(range(3))", ""),
        (AGAIN + "net.load_state_dict(torch.load(path))\nprint('continue training on new rows')\nRun(net, loader=DataLoader(TensorDataset(x[:96] + 1, x[:96].sum(1)), 32)).go(range(3))", ""),
        ("torch.save(run.net.state_dict(), path)\nrun.go(range(3, 4))\nnet = fresh()\nnet.load_state_dict(torch.load(path))\nprint('resume from the best')\nRun(net).go(range(3))", ""),
        # all of it comes back
        ("torch.save([run.net.state_dict(), run.optimizer.state_dict()], path)\nsaved = torch.load(path)\nnext_run = Run(fresh())\nnext_run.net.load_state_dict(saved[0])\nnext_run.optimizer.load_state_dict(saved[1])\nprint('resumed')\nnext_run.go(range(3, 6))", ""),
        # the first one goes on beside it
        (AGAIN + "net.load_state_dict(torch.load(path))\nprint('resumed beside')\nbeside = Run(net)\nfor epoch in range(3, 6): beside.go([epoch]); run.go([epoch])", ""),
        # it is evaluated alone
        (AGAIN + "net.load_state_dict(torch.load(path))\nprint('resumed')\nrows = torch.randn(32, 6)\nwith torch.no_grad(): print(F.mse_loss(net(rows).squeeze(1), rows.sum(1)))", ""),
    ],
)  # fmt: skip
def test_moments_come_back_with_the_weights(tmp_path: Path, text: str, pitfall: str) -> None:
    told(tmp_path, RESUMED.format(text), pitfall)


def test_without_moments_and_with_one_rate_nothing_is_left_out(tmp_path: Path) -> None:
    text = AGAIN + "net.load_state_dict(torch.load(path))\nprint('resumed')\nRun(net).go(range(3, 6))"
    told(tmp_path, RESUMED.format(text).replace("torch.optim.Adam", "torch.optim.SGD"), "")
