"""Faults that are known by what happens, whatever function, class or line the script uses for it, and what looks like them and is none."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest

from tests.doctor.test_variants import found

pytestmark = pytest.mark.slow

BLOBS = """
import math, os, random, tempfile
def blobs(rows, seed):
    generator = torch.Generator().manual_seed(seed)
    y = torch.randint(0, 3, (rows,), generator=generator)
    centres = torch.randn(3, 8, generator=torch.Generator().manual_seed(9))
    return centres[y] + 0.7 * torch.randn(rows, 8, generator=generator), y
X, Y = blobs(320, 1)
VX, VY = blobs(96, 2)
net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
"""

EMBEDDED = """
optimizer = torch.optim.Adam(net.parameters(), 1e-2)
for rows in torch.randperm(320).split(32):
    loss = F.triplet_margin_loss(*[net(X[rows].roll(k, 0)) for k in range(3)])
    optimizer.zero_grad(); loss.backward(); optimizer.step()
z = F.normalize(net(VX)).detach()
"""


@pytest.mark.parametrize(
    ("search", "pitfall"),
    [
        ("nearest = torch.cdist(z, z).argmin(1)", "own_row_scored"),
        ("_, nearest = torch.cdist(z, z).min(dim=1)", "own_row_scored"),
        ("nearest = torch.sort(torch.cdist(z, z), dim=1)[1][:, 0]", "own_row_scored"),
        ("nearest = (z @ z.T).topk(5, dim=1).indices[:, 2]; print((VY[(z @ z.T).topk(5).indices] == VY[:, None]).any(1).sum())", "own_row_scored"),
        ("nearest = torch.cdist(z, z).fill_diagonal_(float('inf')).argmin(1)", ""),
        ("nearest = (z @ z.T).topk(2, dim=1).indices[:, 1]", ""),
        ("nearest = (z @ F.normalize(VX @ torch.randn(8, 3)).T).argmax(1)", ""),
        ("other = z + 1e-4 * torch.arange(96)[:, None]; nearest = torch.cdist(z, other).argmin(1)", ""),
    ],
)  # fmt: skip
def test_a_row_is_its_own_nearest_by_any_function(tmp_path: Path, search: str, pitfall: str) -> None:
    ill = found(tmp_path, BLOBS + EMBEDDED + search + "\nprint((VY[nearest] == VY).float().mean())")
    assert set(ill) == ({pitfall} if pitfall else set())


RATES = """
EPOCHS = 4
optimizer = torch.optim.SGD(net.parameters(), 0.1)
class Poly:
    def __init__(self, total): self.total = total
    def __call__(self, step): return max(0, 1 - step / self.total) ** 2
{made}
step = 0
for epoch in range(EPOCHS):
    for rows in torch.randperm(320).split(32):
        {before}
        loss = F.cross_entropy(net(X[rows]), Y[rows])
        optimizer.zero_grad(); loss.backward(); optimizer.step()
        step += 1
        {after}
"""


@pytest.mark.parametrize(
    ("made", "before", "after", "pitfall"),
    [
        ("schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, Poly(EPOCHS * 320))", "", "schedule.step()", "schedule_length"),
        ("total = EPOCHS * len(X)", "for group in optimizer.param_groups: group['lr'] = 0.1 * (1 - step / total) ** 0.9", "", "schedule_length"),
        ("total = EPOCHS * len(X)", "optimizer.param_groups[0]['lr'] = 0.05 * (1 + math.cos(math.pi * step / total))", "", "schedule_length"),
        ("total = EPOCHS * 10", "optimizer.param_groups[0]['lr'] = 0.05 * (1 + math.cos(math.pi * step / total))", "", ""),
        ("total = EPOCHS * 10 * 3", "optimizer.param_groups[0]['lr'] = 0.1 * (1 - step / total)", "", ""),
        ("schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.999)", "", "schedule.step()", ""),
    ],
)  # fmt: skip
def test_the_end_of_a_rate_is_read_from_the_rates(
    tmp_path: Path, made: str, before: str, after: str, pitfall: str
) -> None:
    text = RATES.format(made=made, before=before or "pass", after=after or "pass")
    assert set(found(tmp_path, BLOBS + text)) == ({pitfall} if pitfall else set())


RESUMED = """
def build():
    model = nn.Linear(8, 3)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    return model, optimizer, {schedule}
def train(model, optimizer, schedule, epochs):
    for epoch in range(epochs):
        for rows in torch.randperm(320).split(32):
            loss = F.cross_entropy(model(X[rows]), Y[rows])
            optimizer.zero_grad(); loss.backward(); optimizer.step()
        schedule.step()
path = os.path.join(tempfile.mkdtemp(), "last.pt")
model, optimizer, schedule = build()
train(model, optimizer, schedule, 3)
torch.save({{"model": model.state_dict(), "optimizer": optimizer.state_dict(), "schedule": schedule.state_dict()}}, path)
model, optimizer, schedule = build()
read = torch.load(path)
model.load_state_dict(read["model"]); optimizer.load_state_dict(read["optimizer"])
{restored}
train(model, optimizer, schedule, 3)
"""


@pytest.mark.parametrize(
    ("schedule", "restored", "pitfall"),
    [
        ("torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 0.5**epoch)", "", "partial_resume"),
        ("torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 6)", "schedule.load_state_dict(read['schedule'])", ""),
        ("torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 0.5**epoch)", "for _ in range(3): schedule.step()", ""),
    ],
)  # fmt: skip
def test_a_schedule_goes_on_with_the_optimizer_whose_rate_it_sets(
    tmp_path: Path, schedule: str, restored: str, pitfall: str
) -> None:
    text = RESUMED.format(schedule=schedule, restored=restored)
    assert set(found(tmp_path, BLOBS + text)) - {"learning_rate"} == ({pitfall} if pitfall else set())


TERMS = """
class Coder(nn.Module):
    def __init__(self):
        super().__init__()
        self.encode, self.decode = nn.Linear(8, 8), nn.Linear(4, 8)
    def forward(self, x):
        mean, spread = self.encode(x).chunk(2, -1)
        again = self.decode(mean + torch.randn_like(mean) * (spread / 2).exp())
        distance = F.mse_loss(again, x)
        kl = -0.5 * (1 + spread - mean**2 - spread.exp()).sum(1).mean()
        return {"distance": distance, "kl": 0.1 * kl, "size": F.l1_loss(again, x), "loss": %s}
model = Coder()
optimizer = torch.optim.Adam(model.parameters(), 1e-2)
for epoch in range(3):
    for rows in torch.randperm(320).split(32):
        parts = model(X[rows])
        optimizer.zero_grad(); parts["loss"].backward(); optimizer.step()
    print({name: round(part.item(), 3) for name, part in parts.items()})
"""

GENERATED = """
G = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8))
D = nn.Sequential(nn.Linear(8, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1))
of_g, of_d = torch.optim.Adam(G.parameters(), 1e-3), torch.optim.Adam(D.parameters(), 1e-3)
for epoch in range(3):
    for rows in torch.randperm(320).split(32):
        real = X[rows]
        fake = G(real.flip(1))
        on_real, on_fake = F.softplus(-D(real)).mean(), F.softplus(D(fake.detach())).mean()
        of_d.zero_grad(); on_real.backward(); on_fake.backward(); of_d.step()
        loss_d = (on_real + on_fake) / 2
        near = 10.0 * (fake - real).abs().mean()
        loss_g = F.softplus(-D(fake)).mean() + {near}
        of_g.zero_grad(); loss_g.backward(); of_g.step()
        {freezes}
    print(loss_d.item(), loss_g.item(), near.item())
"""


@pytest.mark.parametrize(
    ("text", "pitfall"),
    [
        (TERMS % "distance", "term_left_out"),
        (TERMS % "distance + 0.1 * kl", ""),
        (GENERATED.format(near="0", freezes="pass"), "term_left_out"),
        (GENERATED.format(near="near", freezes="pass"), ""),
        (GENERATED.format(near="near", freezes="[each.requires_grad_(False) for each in D.parameters()]").replace("fake.detach()", "fake.detach().requires_grad_()").replace("D(real)", "D(real.clone().requires_grad_())"), "no_gradient"),
    ],
)  # fmt: skip
def test_a_loss_whose_graph_is_gone_was_left_out(tmp_path: Path, text: str, pitfall: str) -> None:
    assert set(found(tmp_path, BLOBS + text)) == ({pitfall} if pitfall else set())


ACTING = """
actor = nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 2))
critic = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 1))
of_actor, of_critic = torch.optim.Adam(actor.parameters(), 1e-3), torch.optim.Adam(critic.parameters(), 1e-3)
for update in range(20):
    state, action = torch.randn(32, 3), torch.randn(32, 1)
    value = F.mse_loss(critic(torch.cat([state, action], 1)), -(state[:, :1] - action) ** 2)
    of_critic.zero_grad(); value.backward(); of_critic.step()
    mean, spread = actor(state).chunk(2, -1)
    policy = torch.distributions.Normal(mean, spread.clamp(-5, 2).exp())
    action = policy.{draw}()
    loss = (0.1 * policy.log_prob(action) - critic(torch.cat([state, action], 1))).mean()
    of_actor.zero_grad(); loss.backward(); of_actor.step()
"""


@pytest.mark.parametrize(("draw", "pitfall"), [("sample", "constant_term"), ("rsample", "")])
def test_a_term_has_a_way_to_what_steps(tmp_path: Path, draw: str, pitfall: str) -> None:
    assert set(found(tmp_path, ACTING.format(draw=draw))) == ({pitfall} if pitfall else set())


DETECTED = """
class Rows(Dataset):
    def __init__(self, rows, seed, moves):
        generator = torch.Generator().manual_seed(seed)
        self.x, self.box = torch.randn(rows, 3, 8, 8, generator=generator), torch.rand(rows, 4, generator=generator)
        self.y, self.moves = torch.randint(0, 2, (rows,), generator=generator), moves
    def __len__(self): return len(self.y)
    def __getitem__(self, row):
        x, box = self.x[row], self.box[row]
        if self.moves and random.random() < 0.5:
            x, box = x.flip(-1), torch.stack([1 - box[2], box[1], 1 - box[0], box[3]])
        return {"image": x * (random.uniform(0.7, 1.3) if self.moves else 1), "box": box, "label": self.y[row]}
net = nn.Sequential(nn.Flatten(), nn.Linear(192, 6))
optimizer = torch.optim.Adam(net.parameters(), 1e-3)
train, valid = DataLoader(Rows(160, 1, True), 32, shuffle=True), DataLoader(Rows(64, 2, %s), 32)
for epoch in range(4):
    for batch in train:
        out = net(batch["image"])
        loss = F.cross_entropy(out[:, :2], batch["label"]) + F.l1_loss(out[:, 2:], batch["box"])
        optimizer.zero_grad(); loss.backward(); optimizer.step()
    with torch.no_grad():
        print(sum((net(batch["image"])[:, :2].argmax(1) == batch["label"]).sum().item() for batch in valid))
"""


@pytest.mark.parametrize(("moves", "pitfall"), [("True", "random_validation"), ("False", "")])
def test_boxes_move_with_their_pictures(tmp_path: Path, moves: str, pitfall: str) -> None:
    ill = found(tmp_path, BLOBS + dedent(DETECTED) % moves)
    assert set(ill) == ({pitfall} if pitfall else set())


PAIRED = """
teacher = nn.Linear(8, 3)
optimizer = torch.optim.Adam(net.parameters(), 1e-2)
loader = DataLoader(TensorDataset(X, Y), 32, shuffle=True)
with torch.no_grad():
    kept = [teacher(x).softmax(1) for x, _ in loader]
for epoch in range(3):
    for rows, others in zip(torch.randperm(320).split(32), torch.randperm(320).split(32)):
        {by_rows}
        optimizer.zero_grad(); loss.backward(); optimizer.step()
    for number, (x, y) in enumerate(loader):
        {by_loader}
        optimizer.zero_grad(); loss.backward(); optimizer.step()
"""
RIGHT = ("loss = F.cross_entropy(net(X[rows]), Y[rows])", "loss = F.cross_entropy(net(x), y)")


@pytest.mark.parametrize(
    ("by_rows", "by_loader", "pitfall"),
    [
        ("loss = F.cross_entropy(net(X[rows]), Y[others])", RIGHT[1], "mismatched_rows"),
        (RIGHT[0], "loss = F.kl_div(net(x).log_softmax(1), kept[number], reduction='batchmean')", "mismatched_rows"),
        (RIGHT[0], "loss = F.kl_div(net(x).log_softmax(1), teacher(x).softmax(1).detach(), reduction='batchmean')", ""),
        (RIGHT[0], "a, b = F.normalize(net(x)), F.normalize(net(x + 0.1)); loss = F.cross_entropy(9 * a @ b.t(), torch.arange(32))", ""),
        (RIGHT[0], "loss = sum(F.cross_entropy(net(x)[:, :2], part) for part in (y % 2, (y > 0).long()))", ""),
        (RIGHT[0], "loss = F.mse_loss(net(x), F.one_hot(y, 3) + 0.1 * torch.randn(32, 3))", ""),
    ],
)  # fmt: skip
def test_a_row_that_comes_again_has_its_own_target(
    tmp_path: Path, by_rows: str, by_loader: str, pitfall: str
) -> None:
    ill = found(tmp_path, BLOBS + PAIRED.format(by_rows=by_rows, by_loader=by_loader))
    assert set(ill) == ({pitfall} if pitfall else set())


SORTED = """
order = Y.argsort()
optimizer = torch.optim.Adam(net.parameters(), 1e-2)
for epoch in range(3):
    for x, y in DataLoader(TensorDataset({rows}), 20{shuffle}):
        z = F.normalize(net(x))
        likeness, same = z @ z.T / 0.2, (y[:, None] == y).float() - torch.eye(len(y))
        scores = likeness - likeness.masked_fill(torch.eye(len(y)).bool(), -1e9).logsumexp(1, keepdim=True)
        loss = -(same * scores).sum(1).div(same.sum(1).clamp(min=1)).mean()
        optimizer.zero_grad(); loss.backward(); optimizer.step()
"""


@pytest.mark.parametrize(
    ("rows", "shuffle", "pitfall"),
    [
        ("X[order], Y[order]", "", "sorted_classes"),
        ("X[order], Y[order]", ", shuffle=True", ""),
        ("X, Y", "", ""),
    ],
)
def test_rows_of_a_pass_come_class_after_class(tmp_path: Path, rows: str, shuffle: str, pitfall: str) -> None:
    ill = found(tmp_path, BLOBS + SORTED.format(rows=rows, shuffle=shuffle))
    assert set(ill) == ({pitfall} if pitfall else set())


WARMED = """
optimizer = torch.optim.SGD(net.parameters(), 0.05)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, {steps})
for epoch in range(6):
    for x, y in DataLoader(TensorDataset(X, Y), 32, shuffle=True):
        loss = F.cross_entropy(net(x), y)
        optimizer.zero_grad(); loss.backward(); optimizer.step()
        if epoch >= 1: schedule.step()
"""


@pytest.mark.parametrize(("steps", "pitfall"), [("5", "schedule_length"), ("5 * 10", "")])
def test_epochs_behind_a_warm_up_are_epochs(tmp_path: Path, steps: str, pitfall: str) -> None:
    ill = found(tmp_path, BLOBS + WARMED.format(steps=steps))
    assert set(ill) == ({pitfall} if pitfall else set())


@pytest.mark.parametrize(
    ("nodes", "pitfall"), [("torch.randn(280, 4)", ""), ("torch.randn(2, 4, 140)", "batch_norm")]
)
def test_few_rows_are_those_that_a_norm_is_given_not_the_two_of_a_list_of_edges(
    tmp_path: Path, nodes: str, pitfall: str
) -> None:
    ill = found(
        tmp_path,
        f"""
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.norm = nn.BatchNorm1d(4)
            def forward(self, edges, nodes):
                return self.norm(nodes).relu()
        net = Net()
        optimizer = torch.optim.SGD(net.parameters(), 1e-2)
        for step in range(12):
            nodes = {nodes}
            loss = F.mse_loss(net(torch.randint(0, 280, (2, 600)), nodes), nodes.abs())
            optimizer.zero_grad(); loss.backward(); optimizer.step()
        """,
    )  # fmt: skip
    assert set(ill) == ({pitfall} if pitfall else set())
