"""What is seen in how rows, signs and places of a model's inputs come out: each fault beside what looks like it and is none."""

from __future__ import annotations

import ast
from pathlib import Path
from textwrap import indent

import pytest
import torch

from snugfit.doctor.findings import Certainty, is_ill
from snugfit.doctor.observe.child import watch_script
from snugfit.doctor.observe.detect import diagnose
from snugfit.doctor.observe.graphs.row_influence import Call, line_of_mixing
from snugfit.doctor.observe.source.unread_flags import flags_left_out
from snugfit.doctor.observe.watchers.rows.joined_graphs import edges_within_the_first
from snugfit.doctor.observe.watchers.rows.made_columns import made_column
from tests.doctor.test_variants import BEGIN, looped

pytestmark = pytest.mark.slow

ROWS = """
x = torch.randn(240, 9, 6)
y = (x[:, :, 0].sum(1) > 0).long()
loader = DataLoader(TensorDataset(x, y), 24, shuffle=True)
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.e, self.q, self.k, self.v = (nn.Linear(6, 8) for _ in range(4))
        self.rnn = nn.GRU(8, 8, num_layers=2, batch_first=True)
        self.conv, self.norm = nn.Conv1d(6, 8, 3), nn.BatchNorm1d(8)
        self.head = nn.Linear(8, 2)
    def forward(self, x):
{body}
        return self.head(h)
net = Net()
optimizer = torch.optim.Adam(net.parameters(), 1e-2)
for epoch in range(2):
    for a, b in loader:
        loss = F.cross_entropy(net(a), b)
        optimizer.zero_grad(); loss.backward(); optimizer.step()
"""
ORDER = "x = self.e(x)\norder = x[:, 0, 0].argsort()\n"


def told(tmp_path: Path, text: str, pitfall: str) -> None:
    """See that what is certain or likely, but for weights that no case uses, is this, also at the marked line; nothing for ""."""
    script = tmp_path / "train.py"
    script.write_text(BEGIN + text)
    log = watch_script(script)
    assert log.complete and not log.failure, log.failure
    ill = [each for each in diagnose([log]) if is_ill([each]) and each.pitfall != "no_gradient"]
    assert {each.pitfall for each in ill} == ({pitfall} if pitfall else set()), ill
    marked = [number for number, line in enumerate(script.read_text().splitlines(), 1) if "# cause" in line]
    places = [int(each.where.rpartition(":")[2]) for each in ill]
    assert not pitfall or set(marked) & set(places), (marked, places)


@pytest.mark.parametrize(
    ("body", "pitfall"),
    [
        (ORDER + "_, s = self.rnn(x[order])  # cause\nh = s[-1]", "wrong_axis"),
        (ORDER + "_, s = self.rnn(x[order])\nh = s[-1][order.argsort()]", ""),
        ("h = self.e(x).mean(1)\nh = self.rnn(h.unsqueeze(0))[0]  # cause\nh = h.squeeze(0)", "wrong_axis"),
        ("q, k, v = self.q(x), self.k(x), self.v(x)\nq, k, v = (each.transpose(0, 1) for each in (q, k, v))  # cause\nh = ((q @ k.mT).softmax(-1) @ v).transpose(0, 1).mean(1)", "wrong_axis"),
        ("q, k, v = self.q(x), self.k(x), self.v(x)\nh = ((q @ k.mT).softmax(-1) @ v).mean(1)", ""),
        ("h = self.norm(self.conv(x.mT)).relu().mean(2)", ""),
        ("h = self.e(x).mean(1)\nh = (h - h.mean(0)) / (h.var(0) + 1e-5).sqrt()", ""),
        ("h = self.e(x).mean(1)\nh = 0.7 * h + 0.3 * h[torch.randperm(len(h))]", ""),
    ],
    ids=["not put back", "put back", "a batch as a text", "attention over rows", "attention", "batch norm", "by hand", "mixed"],
)  # fmt: skip
def test_a_row_whose_output_is_made_of_other_rows_is_found(tmp_path: Path, body: str, pitfall: str) -> None:
    told(tmp_path, ROWS.replace("{body}", indent(body, "        ")), pitfall)


SIGNS = """
from torch.distributions import Categorical
net = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 4))
optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
"""
BODY = "x = torch.randn(40, 6); y = torch.randint(0, 4, (40,)); t = x.sum(1, keepdim=True); logp = F.log_softmax(net(x), 1)\n"
ACTED = "d = Categorical(logits=net(x)); a = d.sample(); gain = torch.randn(40)\n"
DICE = "p = net(x).sigmoid(); m = F.one_hot(y, 4).float()\n"
PARTS = "mean, s = net(x).chunk(2, 1)\n"
DIVERGING = "loss = F.mse_loss(z.sum(1, keepdim=True), t) - 0.5 * torch.mean(1 + s - mean ** 2 - s.exp())"


@pytest.mark.parametrize(
    ("loss", "pitfall"),
    [
        ("loss = logp[torch.arange(40), y].mean()  # cause", "wrong_sign"),
        ("loss = -logp.gather(1, y[:, None]).mean()", ""),
        ("loss = (F.one_hot(y, 4) * logp).sum(1).mean()  # cause", "wrong_sign"),
        ("loss = -(F.one_hot(y, 4) * logp).sum(1).mean()", ""),
        (ACTED + "loss = -(d.log_prob(a) * gain).mean() + 0.01 * d.entropy().mean()  # cause", "wrong_sign"),
        (ACTED + "loss = -(d.log_prob(a) * gain).mean() - 0.01 * d.entropy().mean()", ""),
        (ACTED + "loss = (d.log_prob(a) * gain.abs()).mean()  # cause", "wrong_sign"),
        ("loss = F.cross_entropy(net(x), y) - 1e-3 * sum(w.pow(2).sum() for w in net.parameters())  # cause", "wrong_sign"),
        ("loss = F.cross_entropy(net(x), y) + 1e-3 * sum(w.pow(2).sum() for w in net.parameters())", ""),
        (DICE + "loss = (2 * (p * m).sum() + 1) / (p.sum() + m.sum() + 1)  # cause", "wrong_sign"),
        (DICE + "loss = 1 - (2 * (p * m).sum() + 1) / (p.sum() + m.sum() + 1)", ""),
        (DICE + "tp, fp = (p * m).sum(), (p * (1 - m)).sum()\nloss = 1 - (tp + 1) / (tp + 0.3 * fp + ((1 - p) * m).sum() + 1)", ""),
        (PARTS + "z = mean + s.exp() * torch.randn_like(mean)  # cause\n" + DIVERGING, "read_two_ways"),
        (PARTS + "z = mean + (s / 2).exp() * torch.randn_like(mean)\n" + DIVERGING, ""),
    ],
)  # fmt: skip
def test_what_a_loss_pushes_the_wrong_way_is_found(tmp_path: Path, loss: str, pitfall: str) -> None:
    told(tmp_path, SIGNS + looped(BODY + loss), pitfall)


ADVERSARIES = """
maker = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))
critic = nn.Sequential(nn.Linear(2, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1))
of_maker, of_critic = (torch.optim.Adam(each.parameters(), 1e-3) for each in (maker, critic))
for update in range(20):
    real = torch.randn(32, 2) + 3
    with torch.no_grad():
        fake = maker(torch.randn(32, 4))
    loss = {critic}
    of_critic.zero_grad(); loss.backward(); of_critic.step()
    fake = maker(torch.randn(32, 4))
    loss = {maker}
    of_maker.zero_grad(); loss.backward(); of_maker.step()
"""
WASSERSTEIN = "critic(fake).mean() - critic(real).mean()"


@pytest.mark.parametrize(
    ("critic", "maker", "pitfall"),
    [
        (WASSERSTEIN, "critic(fake).mean()  # cause", "wrong_sign"),
        (WASSERSTEIN, "-critic(fake).mean()", ""),
        ("((critic(real) - 1) ** 2).mean() + (critic(fake) ** 2).mean()", "(critic(fake) ** 2).mean()  # cause", "wrong_sign"),
        ("F.relu(1 - critic(real)).mean() + F.relu(1 + critic(fake)).mean()", "-critic(fake).mean()", ""),
    ],
)  # fmt: skip
def test_adversaries_that_learn_the_same_are_found(
    tmp_path: Path, critic: str, maker: str, pitfall: str
) -> None:
    told(tmp_path, ADVERSARIES.format(critic=critic, maker=maker), pitfall)


TAUGHT = """
pupil, teacher = nn.Linear(6, 4), nn.Linear(6, 4)
optimizer = torch.optim.Adam([*pupil.parameters(), *{moved}.parameters()][: 4 if {both} else 2], lr=1e-3)
"""
KL = "loss = F.kl_div(F.log_softmax({one}, 1), F.softmax({other}, 1), reduction='batchmean') + F.cross_entropy(pupil(x), y)"
INPUTS = "x = torch.randn(40, 6); y = torch.randint(0, 4, (40,))\n"


@pytest.mark.parametrize(
    ("both", "loss", "pitfall"),
    [
        (True, KL.format(one="pupil(x)", other="teacher(x)") + "  # cause", "target_gradients"),
        (True, KL.format(one="pupil(x)", other="teacher(x)") + " + F.cross_entropy(teacher(x), y)", ""),
        (False, KL.format(one="pupil(x)", other="teacher(x).detach()"), ""),
        (False, KL.format(one="teacher(x).detach()", other="pupil(x)") + "  # cause", "wrong_scores"),
    ],
    ids=["teacher moves", "both are taught", "detached", "exchanged"],
)
def test_a_teacher_that_learns_to_be_like_its_pupil_is_found(
    tmp_path: Path, both: bool, loss: str, pitfall: str
) -> None:
    told(tmp_path, TAUGHT.format(moved="teacher", both=both) + looped(INPUTS + loss), pitfall)


PLACES = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.e, self.p = nn.Embedding(20, 16), nn.Embedding(50, 16)
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True)
        self.drop, self.head = nn.Dropout(0.1), nn.Linear(16, 20)
    def forward(self, ids):
        x = self.e(ids)
{body}
        x = self.layer(self.drop(x), src_mask=nn.Transformer.generate_square_subsequent_mask(x.size(1)))
        return self.head(x)
net = Net()
optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
"""
NEXT = "ids = torch.randint(0, 20, (16, 11)); loss = F.cross_entropy(net(ids[:, :-1]).reshape(-1, 20), ids[:, 1:].reshape(-1))"


@pytest.mark.parametrize(
    ("body", "pitfall"),
    [
        ("x = x + self.p(torch.arange(x.size(0))).unsqueeze(1)  # cause", "wrong_axis"),
        ("x = x + self.p(torch.arange(x.size(1))).unsqueeze(0)", ""),
        ("x = x + self.p(torch.arange(x.size(1)))\nx = x + self.p(torch.randint(0, 50, (x.size(0),))).unsqueeze(1)", ""),
    ],
    ids=["along the rows", "along the text", "a condition of each row too"],
)  # fmt: skip
def test_places_that_are_added_along_the_rows_are_found(tmp_path: Path, body: str, pitfall: str) -> None:
    told(tmp_path, PLACES.replace("{body}", indent(body, "        ")) + looped(NEXT), pitfall)


SERIES = """
import math
def waves(length):
    angle = torch.arange(length)[:, None] / 50 ** (torch.arange(8) / 8)
    return torch.stack([angle.sin(), angle.cos()], -1).flatten(1)
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.put, self.learned, self.of_rows = nn.Linear(2, 16), nn.Parameter(torch.randn(40, 16)), nn.Parameter(torch.randn(24, 16))
        self.register_buffer("table", waves(40)[:, None])
        self.register_buffer("fixed", torch.randn(24, 16))
        self.loose = torch.randn(24, 16)
        self.numbers, self.kind = nn.Embedding(40, 16), nn.Linear(1, 16)
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True)
        self.q, self.k, self.v, self.head = nn.Linear(16, 16), nn.Linear(16, 16), nn.Linear(16, 16), nn.Linear(16, 1)
    def attend(self, x):
        q, k, v = (each(x).unflatten(2, (2, 8)).transpose(1, 2) for each in (self.q, self.k, self.v))
        return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
    def forward(self, x):
        given, x = x, self.put(x)
{body}
net = Net()
optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
"""
AHEAD = "x = torch.randn(24, 13, 2)\nloss = F.mse_loss(net(x[:, :12]), x[:, 12, :1])"
LAYER, OWN = "\nreturn self.head(self.layer(x)[:, -1])", "\nreturn self.head(self.attend(x)[:, -1])"


@pytest.mark.parametrize(
    ("body", "pitfall"),
    [
        ("x = x + self.table[: x.size(0)]  # cause" + LAYER, "wrong_axis"),
        ("x = waves(len(x)).unsqueeze(1) + x  # cause" + LAYER, "wrong_axis"),
        ("x += self.learned[: x.shape[0], None]  # cause" + OWN, "wrong_axis"),
        ("x = x + self.numbers(torch.arange(x.size(0)))[:, None]  # cause" + OWN, "wrong_axis"),
        ("x = F.dropout(x * 4 + self.table[: x.size(0)], 0.1)  # cause" + OWN, "wrong_axis"),
        ("x = x + self.table[: x.size(1)].transpose(0, 1)" + LAYER, ""),
        ("x = x.transpose(0, 1)\nx = (x + self.table[: x.size(0)]).transpose(0, 1)" + LAYER, ""),
        # a condition of each row, drawn anew or given with it
        ("x = x + waves(40)[torch.randperm(40)[: len(x)]].unsqueeze(1)" + OWN, ""),
        ("x = x + self.kind(given[:, :1, :1])" + OWN, ""),
        ("x = x + self.numbers((given[:, 0, 0].abs() * 9).long())[:, None]" + LAYER, ""),
        # each row has an entry of its own in the whole table, as each of some series
        ("x = x + self.of_rows[:, None]" + LAYER, ""),
        ("x = x + self.fixed.unsqueeze(1)" + LAYER, ""),
        ("x = x + self.fixed[torch.arange(len(x))][:, None]" + LAYER, ""),
        ("x = x + self.loose.unsqueeze(1)" + OWN, ""),
        # two halves of a batch that are of two kinds
        ("x = x + self.table[torch.arange(len(x)) // 12]" + LAYER, ""),
    ],
)  # fmt: skip
def test_numbers_of_rows_are_no_places_of_a_series(tmp_path: Path, body: str, pitfall: str) -> None:
    told(tmp_path, SERIES.format(body=indent(body, "        ")) + looped(AHEAD), pitfall)


def test_numbers_that_are_given_with_series_begin_in_order_where_nothing_is_shuffled(tmp_path: Path) -> None:
    given = SERIES.format(body=indent("x = x + self.numbers(self.ids)[:, None]" + OWN, "        "))
    loop = "net.ids = torch.arange(10) + 10 * (update % 3)\nx = torch.randn(10, 13, 2)\n"
    told(tmp_path, given + looped(loop + AHEAD.partition("\n")[2]), "")


def test_rows_that_are_the_same_in_each_update_keep_what_is_computed_from_them(tmp_path: Path) -> None:
    computed = SERIES.format(body=indent("x = x + given[:, :1].repeat(1, 1, 8)" + LAYER, "        "))
    told(tmp_path, computed + "x = torch.randn(24, 13, 2)\n" + looped(AHEAD.partition("\n")[2]), "")


@pytest.mark.parametrize("added", ["self.table[: len(x)]", "self.loose[torch.arange(len(x))][:, None]"])
def test_numbers_of_rows_of_a_series_are_likely_at_most(tmp_path: Path, added: str) -> None:
    script = tmp_path / "train.py"
    network = SERIES.format(body=indent(f"x = x + {added}" + LAYER, "        "))
    script.write_text(BEGIN + network + "net.loose = torch.randn(40, 16)\n" + looped(AHEAD))
    found = [each for each in diagnose([watch_script(script)]) if each.pitfall == "wrong_axis"]
    assert [each.certainty for each in found] == [Certainty.LIKELY]


MASKED = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.e = nn.Embedding(20, 16, padding_idx=0)
        self.q, self.k, self.v, self.head = (nn.Linear(16, width) for width in (16, 16, 16, 2))
    def forward(self, ids):
        x, mask = self.e(ids), (ids != 0).float().unsqueeze(1)
        q, k, v = self.q(x), self.k(x), self.v(x)
        s = q @ k.mT / 4
{body}
        return self.head((w @ v)[:, 0])
net = Net()
optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
def batch():
    ids = torch.randint(1, 20, (16, 12))
    for row, end in enumerate(torch.randint(4, 12, (16,)).tolist()):
        ids[row, end:] = 0
    return ids
"""


@pytest.mark.parametrize(
    ("body", "pitfall"),
    [
        ("w = s.masked_fill(mask == 0, -1e-9).softmax(-1)  # cause", "unmasked_padding"),
        ("w = s.masked_fill(mask == 0, -1e9).softmax(-1)", ""),
        ("w = torch.where(mask == 0, 0.0, s).softmax(-1)  # cause", "unmasked_padding"),
        ("s = s + mask\nw = F.softmax(s, dim=-1)  # cause", "unmasked_padding"),
        ("s = s + (1 - mask) * -1e9\nw = F.softmax(s, dim=-1)", ""),
        ("w = (s * mask).softmax(-1)  # cause", "unmasked_padding"),
    ],
)
def test_places_that_a_mask_does_not_hide_are_found(tmp_path: Path, body: str, pitfall: str) -> None:
    text = MASKED.replace("{body}", indent(body, "        "))
    told(tmp_path, text + looped("loss = F.cross_entropy(net(batch()), torch.randint(0, 2, (16,)))"), pitfall)


def test_edges_of_joined_graphs_that_count_from_0_are_known() -> None:
    owners = torch.arange(6).repeat_interleave(5)
    ring = torch.stack((torch.arange(5), torch.arange(5).roll(1)))
    apart = torch.cat([ring + 5 * graph for graph in range(6)], 1)
    alike = torch.cat([ring] * 6, 1)
    nodes = torch.randn(30, 3)
    assert edges_within_the_first([nodes, alike, owners]) == (30, 6, 30, 4)
    assert edges_within_the_first([nodes, apart, owners]) is None
    assert edges_within_the_first([nodes, alike]) is None
    kinds = torch.arange(30) % 4
    assert edges_within_the_first([kinds, alike.t(), owners]) == (30, 6, 30, 4)
    assert edges_within_the_first([kinds, apart, owners]) is None
    assert edges_within_the_first([alike, owners]) is None
    # pairs of words of few kinds, beside the sentence that each word is of, are no edges where no nodes are as many
    assert edges_within_the_first([torch.randn(6, 3), alike, owners]) is None


def test_a_column_that_is_made_of_the_target_is_known_by_the_source() -> None:
    text = "df['a'] = df['b'] * 2\ndf['log'] = np.log(df['price'])\ny = df['price'].values\n"
    assert made_column(ast.parse(text)) == 2
    assert made_column(ast.parse(text.replace("['price'])", "['b'])"))) == 0


def test_flags_of_ends_that_nothing_reads_are_known_by_the_source(tmp_path: Path) -> None:
    text = """
Step = namedtuple("Step", "state action reward next_state done")
def learn(batch):
    {set}
    target = batch.reward + gamma * net(batch.next_state).max(1).values{rest}
    loss = F.mse_loss(q, target)
"""
    cases = {
        ("done = torch.tensor(batch.done)", ""): True,
        ("pass", ""): True,
        ("done = torch.tensor(batch.done)", " * (1 - done)"): False,
        ("goes_on = [each for each, done in zip(batch.state, batch.done) if not done]", ""): False,
    }
    for number, ((sets, rest), left_out) in enumerate(cases.items()):
        file = tmp_path / f"agent{number}.py"
        file.write_text(text.format(set=sets, rest=rest))
        assert (flags_left_out(str(file)) is not None) is left_out, (sets, rest)


def test_the_line_of_mixing_is_between_two_calls(tmp_path: Path) -> None:
    file = tmp_path / "net.py"
    file.write_text("h = a(x)\nz = 3\nh = h.view(4, -1)\ny = b(h)\n")
    leaf = torch.ones(4, 2, requires_grad=True)
    edges = [torch.autograd.graph.get_gradient_edge(each) for each in (leaf * 2, leaf * 3)]
    calls = [Call(str(file), line, 4, edge, 0, (4, 2)) for line, edge in zip((1, 4), edges, strict=True)]
    assert line_of_mixing(calls, 0) == (str(file), 3)
    assert line_of_mixing(calls, 1) == (str(file), 4)


SETTINGS = """
net = nn.Sequential(nn.Linear(6, 16), {norm}nn.ReLU(),
    nn.Dropout({dropout}), nn.Linear(16, {classes}))
counts = torch.tensor([800.0, 150.0, 50.0])
{weights}
optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
"""
LABELS = "y = torch.multinomial(torch.tensor([0.8, 0.15, 0.05]), 60, replacement=True); loss = F.cross_entropy(net(torch.randn(60, 6)), y, weight=weight)"
MARKS = "y = (torch.rand(60, 1) < 0.1).float(); loss = F.binary_cross_entropy_with_logits(net(torch.randn(60, 6)), y, pos_weight=weight)"


@pytest.mark.parametrize(
    ("norm", "dropout", "weights", "loss", "pitfall"),
    [
        ("", "0.1", "weight = counts / counts.sum()  # cause", LABELS, "imbalance"),
        ("", "0.1", "weight = counts.sum() / counts", LABELS, ""),
        ("", "0.1", "weight = torch.tensor([0.1])  # cause", MARKS, "imbalance"),
        ("", "0.1", "weight = torch.tensor([9.0])", MARKS, ""),
        ("nn.BatchNorm1d(16, momentum=0.99),  # cause\n    ", "0.5", "weight = None", LABELS, "unready_norm"),
        ("nn.BatchNorm1d(16, momentum=0.01),", "0.5", "weight = None", LABELS, ""),
    ],
    ids=["of frequent classes", "of rare ones", "few count less", "few count more", "as elsewhere", "momentum"],
)  # fmt: skip
def test_settings_the_other_way_round_are_found(
    tmp_path: Path, norm: str, dropout: str, weights: str, loss: str, pitfall: str
) -> None:
    classes = 1 if loss is MARKS else 3
    text = SETTINGS.format(norm=norm, dropout=dropout, weights=weights, classes=classes)
    told(tmp_path, text + looped(loss), pitfall)


SUMMED = """
net = nn.Linear(6, 3)
optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
criterion = nn.CrossEntropyLoss()
data = TensorDataset(torch.randn(60, 6), torch.randint(0, 3, (60,)))
loader, val_loader = DataLoader(data, 10, shuffle=True), DataLoader(TensorDataset(torch.randn(40, 6), torch.randint(0, 3, (40,))), 10)
def evaluate():
    net.eval()
    total = 0.0
    with torch.no_grad():
        for x, y in val_loader:
            total += {added}
            {inside}
    return total / len(val_loader.dataset){divided}
{before}
for epoch in range(3):
    {each}
    net.train()
    for x, y in loader:
        loss = criterion(net(x), y)
        optimizer.zero_grad(); loss.backward(); optimizer.step()
        running += loss.item()
    print(epoch, running / len(loader), evaluate())
"""
RIGHT_SUM = {"added": "criterion(net(x), y).item() * len(x)", "inside": "pass", "divided": "", "before": "pass", "each": "running = 0.0"}  # fmt: skip
LOSS_FIRST = "0.0; loss = criterion(net(x), y); total += loss.item()"


@pytest.mark.parametrize(
    ("other", "pitfall"),
    [
        ({}, ""),
        ({"before": "running = 0.0  # cause", "each": "pass"}, "batch_mean_scores"),
        ({"inside": "return total / len(x)  # cause"}, "last_batch_score"),
        ({"added": LOSS_FIRST, "divided": "  # cause"}, "batch_mean_scores"),
        ({"added": LOSS_FIRST.replace("total +=", "loss = loss * len(x); total +=")}, ""),
    ],
    ids=["right", "never set back", "the first batch", "means by rows", "weighed before"],
)
def test_scores_that_are_summed_up_wrongly_are_found(
    tmp_path: Path, other: dict[str, str], pitfall: str
) -> None:
    told(tmp_path, SUMMED.format(**(RIGHT_SUM | other)), pitfall)


COMPILED = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.head = nn.MultiheadAttention(6, 2, batch_first=True), nn.Linear(6, 6)
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.layer(x, x, x)[0]
        h = F.softmax(h, dim=-1) + h.softmax(-1) + torch.softmax(h, -1)
        return self.head(F.scaled_dot_product_attention(h, h, h))
net = torch.jit.script(Net())
optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
"""


def test_attention_that_a_script_compiles_with_torch_jit_script_is_compiled_as_it_is(tmp_path: Path) -> None:
    told(tmp_path, COMPILED + looped("loss = net(torch.randn(4, 5, 6)).pow(2).mean()"), "")


def test_an_entropy_that_is_taken_off_what_an_optimizer_maximizes_is_the_wrong_way_round(
    tmp_path: Path,
) -> None:
    told(
        tmp_path,
        """
net = nn.Linear(6, 3)
optimizer = torch.optim.Adam(net.parameters(), lr=1e-3, maximize=True)
for _ in range(12):
    policy = torch.distributions.Categorical(logits=net(torch.randn(32, 6)))
    action = policy.sample()
    objective = (policy.log_prob(action) * (action == 0)).mean() - 0.1 * policy.entropy().mean()  # cause
    optimizer.zero_grad(); objective.backward(); optimizer.step()
""",
        "wrong_sign",
    )
