"""Clean scripts that look like faulty ones, which the observer tells apart; and faults that show while fast updates rest."""

from __future__ import annotations

import random
import runpy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import Subset, TensorDataset, get_worker_info

from snugfit.doctor.findings import Certainty, Finding, in_order, is_ill
from snugfit.doctor.observe.child import watch_script
from snugfit.doctor.observe.detect import diagnose
from snugfit.doctor.observe.detectors.run_faults import _ADAPTER
from snugfit.doctor.observe.recording.recorder import Recorder
from snugfit.doctor.observe.source.best_scores import unnoted_best
from snugfit.doctor.observe.watchers.libraries.watch_transformers import _is_numbers
from snugfit.doctor.observe.watchers.loaders.worker_draws import draws_alike
from snugfit.doctor.observe.watchers.optimizers.watch_ranks import _is_among_all
from snugfit.doctor.observe.watchers.rows.whole_scales import scaled_together
from snugfit.doctor.observe.watchers.weights.frozen_norms import FrozenNorms

CLEAN = {
    "a teacher whose weights are used by torch.func.functional_call alone": """
def build(): return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))
torch.save(build().state_dict(), "teacher.pt")
state = torch.load("teacher.pt")
student = build()
optimizer = torch.optim.Adam(student.parameters())
for _ in range(10):
    rows = torch.randn(20, 6)
    with torch.no_grad():
        wanted = torch.func.functional_call(student, state, (rows,)).softmax(1)
    loss = nn.functional.kl_div(student(rows).log_softmax(1), wanted, reduction="batchmean")
    optimizer.zero_grad(); loss.backward(); optimizer.step()
""",
    "weights that are shrunk and disturbed before they are learned from again": """
def build(): return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))
torch.save(build().state_dict(), "t.pt")
state = torch.load("t.pt")
student = build()
with torch.no_grad():
    for n, p in student.named_parameters():
        p.copy_(0.6 * state[n] + 0.05 * p)
optimizer = torch.optim.Adam(student.parameters())
for _ in range(10):
    rows = torch.randn(20, 6)
    loss = nn.functional.cross_entropy(student(rows), (rows[:, 0] > 0).long())
    optimizer.zero_grad(); loss.backward(); optimizer.step()
""",
    "a text in each update, whose words are weighed by a softmax": """
class N(nn.Module):
    def __init__(s):
        super().__init__(); s.e = nn.Embedding(50, 8); s.a = nn.Linear(8, 1); s.o = nn.Linear(16, 3)
    def forward(s, t):
        h = s.e(t)
        w = torch.softmax(s.a(h), dim=0)
        c = (w * h).sum(0, keepdim=True).expand_as(h)
        return s.o(torch.cat([h, c], 1))
net = N()
optimizer = torch.optim.Adam(net.parameters())
for i in range(12):
    t = torch.randint(0, 50, (5 + i % 7,))
    loss = nn.functional.cross_entropy(net(t), t % 3)
    optimizer.zero_grad(); loss.backward(); optimizer.step()
""",
    "actions of an episode that wait for its end while a critic learns": """
actor = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 2))
critic = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 1))
oa = torch.optim.Adam(actor.parameters(), lr=1e-3); oc = torch.optim.Adam(critic.parameters(), lr=1e-3)
for episode in range(3):
    state = torch.randn(1, 4); logs, gains = [], []
    for _ in range(12):
        d = torch.distributions.Categorical(logits=actor(state))
        a = d.sample(); logs.append(d.log_prob(a))
        nxt = state + 0.1 * torch.randn(1, 4); r = nxt[:, :1]
        with torch.no_grad():
            target = r + 0.9 * critic(nxt)
        loss = nn.functional.mse_loss(critic(state), target)
        oc.zero_grad(); loss.backward(); oc.step()
        gains.append((target - critic(state)).detach().squeeze()); state = nxt
    loss = -(torch.cat(logs) * torch.stack(gains)).mean()
    oa.zero_grad(); loss.backward(); oa.step()
""",
    "places that are weighed by a softmax over gates": """
class N(nn.Module):
    def __init__(s):
        super().__init__(); s.a = nn.Linear(8, 1); s.o = nn.Linear(8, 3)
    def forward(s, h):
        w = torch.softmax(torch.sigmoid(s.a(h)), dim=1)
        return s.o((w * h).sum(1))
net = N()
opt = torch.optim.Adam(net.parameters())
for _ in range(8):
    x = torch.randn(16, 5, 8)
    loss = nn.functional.cross_entropy(net(x), (x[:, 0, 0] > 0).long())
    opt.zero_grad(); loss.backward(); opt.step()
""",
    "the inverse of a matrix as target": """
net = nn.Sequential(nn.Linear(6, 32), nn.Tanh(), nn.Linear(32, 6))
opt = torch.optim.Adam(net.parameters())
for _ in range(8):
    x = torch.randn(6, 6) + 6 * torch.eye(6)
    want = torch.linalg.inv(x)
    loss = (net(x) - want).pow(2).mean()
    opt.zero_grad(); loss.backward(); opt.step()
""",
    "where curves have their peaks": """
net = nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 3))
opt = torch.optim.Adam(net.parameters())
t = torch.linspace(0, 1, 40)[:, None]; want = torch.sin(7 * t + torch.arange(3))
for _ in range(8):
    loss = ((net(t) - want) ** 2).mean()
    opt.zero_grad(); loss.backward(); opt.step()
    with torch.no_grad():
        hit = (net(t).argmax(0) == want.argmax(0)).float().mean()
""",
    "the place of an event, a softmax over the places of a convolution": """
net = nn.Sequential(nn.Conv1d(4, 8, 3, padding=1), nn.ReLU(), nn.Conv1d(8, 1, 3, padding=1), nn.Flatten(1))
optimizer = torch.optim.Adam(net.parameters())
for _ in range(10):
    rows = torch.randn(16, 4, 12)
    loss = nn.functional.cross_entropy(net(rows), rows[:, 0].argmax(1))
    optimizer.zero_grad(); loss.backward(); optimizer.step()
""",
    "two maps that add to their inputs and are to agree": """
one, two = (nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 2)) for _ in range(2))
optimizer = torch.optim.Adam([*one.parameters(), *two.parameters()])
for _ in range(10):
    rows = torch.randn(16, 2)
    wanted = rows + 0.1 * rows.tanh()
    first, second = rows + 0.1 * one(rows), wanted + 0.1 * two(wanted)
    loss = ((first - wanted) ** 2).mean() + ((first - second) ** 2).mean()
    optimizer.zero_grad(); loss.backward(); optimizer.step()
""",
    "masks of weights in a file": """
import io
net = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 1))
file = io.BytesIO()
torch.save({name: (torch.rand_like(each) > 0.5).float() for name, each in net.named_parameters()}, file)
file.seek(0)
masks = torch.load(file)
optimizer = torch.optim.Adam(net.parameters())
for _ in range(6):
    rows = torch.randn(20, 6)
    optimizer.zero_grad(); nn.functional.mse_loss(net(rows), rows[:, :1]).backward()
    for name, each in net.named_parameters():
        each.grad *= masks[name]
    optimizer.step()
""",
    "a convolution before attention that leaves padding out": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.conv = nn.Embedding(60, 8, padding_idx=0), nn.Conv1d(8, 8, 3, padding=1)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.head = nn.Linear(8, 2)
    def forward(self, tokens):
        padding = tokens == 0
        hidden = self.conv(self.embedding(tokens).movedim(1, 2)).movedim(1, 2)
        hidden = self.layer(hidden, src_key_padding_mask=padding).masked_fill(padding[..., None], 0)
        return self.head(hidden.sum(1) / (~padding).sum(1, keepdim=True))
net = Net()
optimizer = torch.optim.Adam(net.parameters())
for _ in range(6):
    tokens = torch.randint(1, 60, (16, 12))
    tokens[1:][torch.arange(12)[None] >= torch.randint(3, 10, (15, 1))] = 0
    loss = nn.functional.cross_entropy(net(tokens), (tokens[:, 1] > 30).long())
    optimizer.zero_grad(); loss.backward(); optimizer.step()
""",
    "a term whose weight begins at 0": """
net = nn.Linear(8, 8)
optimizer = torch.optim.Adam(net.parameters())
for update in range(10):
    out = net(torch.randn(16, 8))
    first, second = out.square().sum(1).mean(), out.abs().sum(1).mean()
    loss = first + update // 8 * second
    optimizer.zero_grad(); loss.backward(); optimizer.step()
    (first + second).item()
""",
    "the sum of two losses, each learned by an optimizer of its own": """
one, two = nn.Linear(8, 2), nn.Linear(8, 1)
of_one, of_two = (torch.optim.Adam(each.parameters()) for each in (one, two))
for _ in range(10):
    rows = torch.randn(16, 8)
    first = nn.functional.cross_entropy(one(rows), (rows[:, 0] > 0).long())
    second = nn.functional.mse_loss(two(rows), rows[:, 1:2])
    (first + second).item()
    of_one.zero_grad(); first.backward(); of_one.step()
    of_two.zero_grad(); second.backward(); of_two.step()
""",
    "gradients that are copied into those of a second set of weights": """
net = nn.Linear(8, 2).bfloat16()
weights = [each.detach().float().requires_grad_() for each in net.parameters()]
optimizer = torch.optim.SGD(weights, lr=0.05)
for _ in range(10):
    rows = torch.randn(16, 8)
    net.zero_grad()
    nn.functional.cross_entropy(net(rows.bfloat16()).float(), (rows[:, 0] > 0).long()).backward()
    for each, low in zip(weights, net.parameters()):
        each.grad = torch.empty_like(each) if each.grad is None else each.grad
        each.grad.data.copy_(low.grad.data)
    optimizer.step()
    for each, low in zip(weights, net.parameters()):
        low.data.copy_(each.data)
""",
    "the mean of what is less a mean": """
net = nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 1, bias=False))
optimizer = torch.optim.RMSprop(net.parameters(), 1e-4)
for _ in range(10):
    loss = -torch.mean(net(torch.randn(16, 2) + 1) - torch.mean(net(torch.randn(16, 2))))
    optimizer.zero_grad(); loss.backward(); optimizer.step()
""",
    "a mean that is added to each row": """
body, head = nn.Linear(8, 4), nn.Linear(4, 2)
optimizer = torch.optim.Adam([*body.parameters(), *head.parameters()])
for _ in range(10):
    rows = torch.randn(16, 8)
    hidden = body(rows)
    of_rows = nn.functional.cross_entropy(head(hidden), (rows[:, 0] > 0).long(), reduction="none")
    loss = (of_rows + hidden.abs().mean()).mean()
    optimizer.zero_grad(); loss.backward(); optimizer.step()
""",
    "targets that lie by columns in memory": """
import numpy
rows, table = torch.randn(80, 8), torch.randn(8, 80)
net = nn.Linear(8, 8)
optimizer = torch.optim.Adam(net.parameters())
for targets in (table.T, torch.from_numpy(numpy.asfortranarray(table.T.numpy()))):
    for one, other in zip(rows.split(8), targets.split(8)):
        loss = nn.functional.mse_loss(net(one), other)
        optimizer.zero_grad(); loss.backward(); optimizer.step()
""",
    "a frozen network for exploration": """
class Agent(nn.Module):
    def __init__(self):
        super().__init__()
        self.policy, self.exploration = nn.Linear(8, 2), nn.Linear(8, 2).requires_grad_(False)
    def forward(self, rows):
        return self.policy(rows) + self.exploration(rows)
net = Agent()
optimizer = torch.optim.Adam(net.parameters())
for _ in range(10):
    rows = torch.randn(16, 8)
    loss = nn.functional.cross_entropy(net(rows), (rows[:, 0] > 0).long())
    optimizer.zero_grad(); loss.backward(); optimizer.step()
""",
    "a router that weighs the best expert": """
router, experts = nn.Linear(8, 4), nn.ModuleList(nn.Linear(8, 8) for _ in range(4))
optimizer = torch.optim.Adam([*router.parameters(), *experts.parameters()])
for _ in range(10):
    rows = torch.randn(16, 8)
    weights = router(rows).softmax(1)
    chosen = nn.functional.one_hot(weights.argmax(1), 4).float()
    out = (weights * chosen).unsqueeze(1) @ torch.stack([each(rows) for each in experts], 1)
    loss = nn.functional.mse_loss(out.squeeze(1), rows.flip(1))
    optimizer.zero_grad(); loss.backward(); optimizer.step()
""",
    "two views of each picture": """
pictures = torch.rand(24, 3, 8, 8)
class Views(torch.utils.data.Dataset):
    def __len__(self):
        return 24
    def __getitem__(self, number):
        return [pictures[number].flip(-1) if torch.rand(()) < 0.5 else pictures[number] for _ in range(2)]
net = nn.Sequential(nn.Flatten(), nn.Linear(192, 16))
optimizer = torch.optim.Adam(net.parameters())
loader = torch.utils.data.DataLoader(Views(), batch_size=8, shuffle=True)
for _ in range(10):
    for one, other in loader:
        likeness = nn.functional.normalize(net(one)) @ nn.functional.normalize(net(other)).T
        loss = nn.functional.cross_entropy(likeness / 0.1, torch.arange(8))
        optimizer.zero_grad(); loss.backward(); optimizer.step()
""",
    "a teacher of the student's form whose weights are copied by hand": """
def build(): return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))
torch.save(build().state_dict(), "teacher.pt")
saved = torch.load("teacher.pt")
teacher, student = build(), build()
with torch.no_grad():
    for name, each in teacher.named_parameters():
        each.copy_(saved[name])
optimizer = torch.optim.Adam(student.parameters())
for _ in range(10):
    rows = torch.randn(20, 6)
    wanted = teacher(rows).softmax(1).detach()
    loss = nn.functional.kl_div(student(rows).log_softmax(1), wanted, reduction="batchmean")
    optimizer.zero_grad(); loss.backward(); optimizer.step()
""",
    "a gain that is maximized by steps as large as the weights": """
net = nn.Linear(6, 1)
nn.init.normal_(net.weight, std=1e-3)
optimizer = torch.optim.Adam(net.parameters(), lr=0.05, maximize=True)
for _ in range(24):
    rows = torch.randn(64, 6)
    gain = (net(rows).sigmoid() * (1 + rows[:, :1])).mean()
    optimizer.zero_grad(); gain.backward(); optimizer.step()
""",
    "a policy whose entropy is added to what its optimizer maximizes": """
net = nn.Linear(6, 3)
optimizer = torch.optim.Adam(net.parameters(), lr=1e-3, maximize=True)
for _ in range(12):
    policy = torch.distributions.Categorical(logits=net(torch.randn(32, 6)))
    action = policy.sample()
    objective = (policy.log_prob(action) * (action == 0)).mean() + 0.1 * policy.entropy().mean()
    optimizer.zero_grad(); objective.backward(); optimizer.step()
""",
    "gradients of micro-batches that are divided by hand before they are clipped": """
net = nn.Linear(6, 3)
optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
for _ in range(8):
    optimizer.zero_grad()
    for _ in range(4):
        rows = torch.randn(16, 6)
        nn.functional.cross_entropy(net(rows), rows[:, :3].argmax(1)).backward()
    for each in net.parameters():
        each.grad.div_(4)
    nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    optimizer.step()
""",
    "the residual of an equation, of a solution that is forced at its start": """
net = nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 1))
optimizer = torch.optim.Adam(net.parameters())
for _ in range(10):
    time = torch.rand(32, 1, requires_grad=True)
    place = 1.0 + time * net(time)
    speed = torch.autograd.grad(place.sum(), time, create_graph=True)[0]
    residual = speed - (time.detach().sin() + -2.0 * place)
    optimizer.zero_grad(); residual.square().mean().backward(); optimizer.step()
""",
    "two networks that are to agree where one vanishes at the border": """
inside, free = (nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 1)) for _ in range(2))
optimizer = torch.optim.Adam([*inside.parameters(), *free.parameters()])
for _ in range(10):
    place = torch.rand(32, 1)
    forced = place.sin() + place * (1 - place) * inside(place)
    loss = ((free(place) - forced) ** 2).mean() + (forced - place).square().mean()
    optimizer.zero_grad(); loss.backward(); optimizer.step()
""",
    "adapters that a file has, below a head that is learned": """
class Adapted(nn.Module):
    def __init__(self):
        super().__init__()
        self.base, self.lora_a, self.lora_b = nn.Linear(6, 12), nn.Linear(6, 2), nn.Linear(2, 12)
    def forward(self, rows):
        return self.base(rows) + self.lora_b(self.lora_a(rows))
net = nn.Sequential(Adapted(), nn.Tanh(), nn.Linear(12, 3))
torch.save(nn.Sequential(Adapted(), nn.Tanh(), nn.Linear(12, 3)).state_dict(), "learned.pt")
net.load_state_dict(torch.load("learned.pt"))
net[0].requires_grad_(False)
optimizer = torch.optim.SGD(net[2].parameters(), lr=1e-2)
for _ in range(10):
    loss = nn.functional.cross_entropy(net(torch.randn(9, 6)), torch.arange(9) % 3)
    optimizer.zero_grad(); loss.backward(); optimizer.step()
""",
    "several steps on made rows, and then as many on real ones": """
made, judge = nn.Linear(4, 2), nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 2))
optimizers = [torch.optim.Adam(each.parameters()) for each in (made, judge)]
for _ in range(10):
    for _ in range(5):
        loss = nn.functional.cross_entropy(judge(made(torch.randn(16, 4)).detach()), torch.zeros(16).long())
        optimizers[1].zero_grad(); loss.backward(); optimizers[1].step()
    for _ in range(5):
        loss = nn.functional.cross_entropy(judge(torch.randn(16, 2)), torch.ones(16).long())
        optimizers[1].zero_grad(); loss.backward(); optimizers[1].step()
    optimizers[0].zero_grad(); (-judge(made(torch.randn(16, 4)))[:, 1]).mean().backward(); optimizers[0].step()
""",
    "rows that are moved on without a graph before they are learned from": """
net = nn.Sequential(nn.Linear(6, 32), nn.SiLU(), nn.Dropout(0.1), nn.Linear(32, 6))
optimizer = torch.optim.Adam(net.parameters())
data = torch.randn(64, 6)
for _ in range(3):
    for rows in data.split(16):
        with torch.no_grad():
            moved = rows - net(rows)
        loss = nn.functional.mse_loss(moved - net(moved), 0.5 * rows)
        optimizer.zero_grad(); loss.backward(); optimizer.step()
""",
}


def findings_of(tmp_path: Path, script: str) -> list[str]:
    path = tmp_path / "train.py"
    path.write_text(f"import torch\nfrom torch import nn\ntorch.manual_seed(0)\n{script}")
    log = watch_script(path)
    assert log.complete and not log.failure, log.error
    return [each.pitfall for each in diagnose([log]) if is_ill([each])]


@pytest.mark.parametrize("name", CLEAN)
def test_a_clean_look_alike_is_not_reported(name: str, tmp_path: Path) -> None:
    assert not findings_of(tmp_path, CLEAN[name])


def test_a_softmax_of_a_number_that_is_too_large_has_no_row_without_a_place(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text("""
import torch
from torch import nn
torch.manual_seed(0)
net = nn.Linear(4, 3)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for _ in range(4):
    scores = (60 * net(torch.randn(16, 4))).exp().exp()
    loss = -scores.softmax(1)[:, 0].log().mean()
    optimizer.zero_grad(); loss.backward(); optimizer.step()
""")
    (finding,) = [each for each in diagnose([watch_script(path)]) if each.pitfall == "non_finite_loss"]
    assert "-inf" not in finding.what


def test_gradients_that_are_exchanged_in_a_group_are_no_exchange_among_all_ranks() -> None:
    part = object()
    assert _is_among_all() and _is_among_all(async_op=True)
    assert not _is_among_all(part) and not _is_among_all(group=part)


def test_gradients_are_known_as_used_by_the_step_that_ends_a_rest(tmp_path: Path) -> None:
    script = """
net = nn.Linear(8, 2)
optimizer = torch.optim.Adam(net.parameters())
for _ in range(160):
    rows = torch.randn(4, 8)
    optimizer.zero_grad()
    nn.functional.cross_entropy(net(rows), (rows[:, 0] > 0).long()).backward()
    optimizer.step()
    nn.utils.clip_grad_norm_(net.parameters(), 1.0)
"""
    assert findings_of(tmp_path, script) == ["clip_after_step"]


def test_a_model_that_ends_the_rest_within_its_forward_pass_is_still_one_model(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text("""
import torch
from torch import nn
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(8, 8), nn.Linear(8, 2)
    def forward(self, rows):
        self.body.state_dict()
        return self.head(self.body(rows))
net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
for _ in range(120):
    rows = torch.randn(4, 8)
    optimizer.zero_grad()
    nn.functional.cross_entropy(net(rows), (rows[:, 0] > 0).long()).backward()
    optimizer.step()
""")
    log = watch_script(path)
    assert log.complete and [each.name for each in log.models] == ["Net"]


def test_a_profiler_counts_nothing_of_the_observers_in_updates_that_rest(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text("""
import torch
from torch import nn
net = nn.Linear(8, 2)
optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
for number in range(100):
    if number == 80:
        profile = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]).__enter__()
    rows = torch.randn(4, 8)
    optimizer.zero_grad()
    net(rows).square().mean().backward()
    optimizer.step()
    if number == 81:
        profile.__exit__(None, None, None)
        assert not {"aten::clone", "aten::reshape"} & {each.key for each in profile.key_averages()}
""")
    log = watch_script(path)
    assert log.complete and log.profiled and log.updates == 100, log.error


def test_a_best_score_that_a_function_sets_is_noted(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "best = 1.0\ndef note(loss):\n    global best\n    best = loss\n"
        "for loss in (0.5, 0.4):\n    if loss < best:\n        note(loss)\n        save()\n"
    )
    assert unnoted_best(str(script), 8) == ""
    other = tmp_path / "other.py"
    other.write_text(script.read_text().replace("    global best\n", ""))
    assert unnoted_best(str(other), 7) == "best"


def test_names_of_labels_are_nothing_to_learn_from() -> None:
    number, name = SimpleNamespace(dtype="float32"), SimpleNamespace(dtype="string")
    features = {
        "row_weight": number,
        "label_text": name,
        "answer_numbers": SimpleNamespace(feature=number),
        "answers": SimpleNamespace(feature=name),
    }
    dataset = SimpleNamespace(features=features)
    assert [_is_numbers(dataset, each) for each in features] == [True, False, True, False]
    assert _is_numbers(SimpleNamespace(), "row_weight"), "of a data set that does not say"


def test_a_norm_that_is_put_aside_again_and_again_is_kept_once() -> None:
    norms = FrozenNorms(Recorder(8, None, None))
    part = nn.BatchNorm1d(4).requires_grad_(False)
    for _ in range(5):
        norms.switched(part, training=False)
    assert len(norms._set_aside) == 1


def test_scales_of_a_subset_are_those_of_all_its_columns() -> None:
    rows = torch.randn(200, 40)
    scaled = (rows - rows.mean(0)) / rows.std(0)
    found = scaled_together(Subset(TensorDataset(scaled), range(150)))
    assert found is not None and found[1] == 200
    assert found[2] == pytest.approx(float(scaled[:150].mean(0).abs().max()))
    scaled[:, 39] += 1
    assert scaled_together(Subset(TensorDataset(scaled), range(150))) is None


def test_findings_that_are_put_in_order_twice_say_their_cause_once() -> None:
    cause = Finding("zero_grad", Certainty.LIKELY, "cleared", "train.py:7")
    late = Finding("no_gradient", Certainty.CERTAIN, "none")
    once = in_order([late, cause])
    assert once[1].evidence and in_order(once) == once


class _Seeded(TensorDataset):
    """Rows with a generator that each row seeds anew."""

    def __init__(self) -> None:
        super().__init__(torch.zeros(8, 2))
        self.generator = torch.Generator()

    def __getitem__(self, number: int) -> torch.Tensor:
        return torch.rand(2, generator=self.generator.manual_seed(number))


class _Inherited(_Seeded):
    """The same by its base."""


def test_a_generator_that_each_row_seeds_is_not_copied_with_its_state() -> None:
    for rows in (_Seeded(), _Inherited()):
        loader = SimpleNamespace(dataset=rows, num_workers=2, worker_init_fn=None)
        assert draws_alike(loader) == ("", "")


def test_a_generator_that_each_worker_replaces_by_a_function_is_its_own() -> None:
    rows = TensorDataset(torch.zeros(8, 2))
    rows.generator = torch.Generator()  # type: ignore[attr-defined]

    def begin(_: int) -> None:
        _seed(get_worker_info().dataset)

    def of_numpy(_: int) -> None:
        random.seed(torch.initial_seed())

    alike = [
        draws_alike(SimpleNamespace(dataset=rows, num_workers=2, worker_init_fn=each))[0] != ""
        for each in (begin, of_numpy, None)
    ]
    assert alike == [False, True, True]


def _seed(rows: Any) -> None:
    rows.generator.seed()


@pytest.mark.parametrize("by_worker", [True, False])
def test_a_generator_that_a_transform_of_a_library_draws_anew_in_each_worker_is_its_own(
    by_worker: bool, tmp_path: Path
) -> None:
    library = tmp_path / "site-packages" / "augments.py"
    library.parent.mkdir()
    seeds = "self.numbers = random.Random(torch.initial_seed())" if by_worker else "pass"
    library.write_text(
        "import random, torch\n"
        "class Augments:\n"
        "    def __init__(self): self.numbers = random.Random()\n"
        f"    def begin(self): {seeds}\n"
        "    def __call__(self, row): return row * self.numbers.random()\n"
    )
    rows = TensorDataset(torch.zeros(8, 2))
    rows.transform = runpy.run_path(str(library))["Augments"]()  # type: ignore[attr-defined]
    alike, _ = draws_alike(SimpleNamespace(dataset=rows, num_workers=2, worker_init_fn=None))
    assert (alike == "") == by_worker


def test_the_prompt_encoder_of_a_segmentation_model_is_no_adapter() -> None:
    assert not _ADAPTER.search("prompt_encoder.point_embeddings.0.weight")
    assert not _ADAPTER.search("sam.prompt_encoder.mask_embed.conv1.weight")
    assert _ADAPTER.search("prompt_encoder.default.embedding.weight")
    assert _ADAPTER.search("transformer.prefix_encoder.embedding.weight")
