"""Faults whose cause stands elsewhere than their effect: in a table, a vocabulary, a part of the model, a class beside the script."""

from __future__ import annotations

from pathlib import Path

import pytest

from snugfit.doctor.findings import Certainty
from snugfit.doctor.observe.detectors.updates.schedule_faults import schedule_length
from snugfit.doctor.observe.events.log import Log, SchedulerSeen
from snugfit.doctor.observe.events.script_events import Event, ScheduleStep, Step
from snugfit.doctor.observe.source.row_orders import shuffled_apart
from snugfit.doctor.observe.watchers.libraries.tables import Tables
from tests.doctor.test_shapes import told
from tests.doctor.test_variants import looped

TABLE = """
import numpy as np, pandas as pd
from sklearn.preprocessing import StandardScaler
rng = np.random.default_rng(3)
frame = pd.DataFrame(rng.normal(3, 2, (300, 5)), columns=list("abcde"))
frame["label"] = (frame.a > 3).astype(int)
other = pd.DataFrame(rng.normal(4, 2, (100, 5)), columns=list("abcde"))
train = frame.sample(frac=0.8, random_state=1)
scaler = StandardScaler()
x = scaler.fit_transform(train[list("abcde")]).astype("float32")
y = {targets}
test = torch.tensor({test}, dtype=torch.float32)
data = torch.utils.data.TensorDataset(torch.from_numpy(x), torch.tensor(y))
net = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 2))
optimizer = torch.optim.Adam(net.parameters(), 1e-2)
for epoch in range(3):
    for rows, labels in torch.utils.data.DataLoader(data, 40, shuffle=True):
        loss = F.cross_entropy(net(rows), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        best = torch.cat([net(part).argmax(1) for part in test.split(20)])
    print((best == 1).float().mean().item())
"""
RIGHT = 'train["label"].to_numpy()'
SORTED = 'frame["label"][frame.index.isin(train.index)].values  # cause'


@pytest.mark.slow
@pytest.mark.parametrize(
    ("targets", "test", "pitfall"),
    [
        (RIGHT, "scaler.transform(other)", ""),
        (SORTED, "scaler.transform(other)", "mismatched_rows"),
        ('frame["label"].loc[train.index].values', "scaler.transform(other)", ""),
    ],
)
def test_targets_of_a_table_are_in_the_order_of_its_inputs(
    tmp_path: Path, targets: str, test: str, pitfall: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    told(tmp_path, TABLE.format(targets=targets, test=test), pitfall, monkeypatch)


@pytest.mark.slow
def test_rows_that_are_scored_are_not_scaled_by_what_is_fitted_to_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = TABLE.format(targets=RIGHT, test="scaler.fit_transform(other)")
    text = text.replace("dtype=torch.float32)", "dtype=torch.float32)  # cause")
    told(tmp_path, text, "other_statistics", monkeypatch)


WORDS = """
WORDS = {{"<pad>": 0, "<sos>": 1, "<eos>": 2, **{{str(n): n + 3 for n in range(9)}}}}
def numbers(words): return torch.tensor([WORDS["<sos>"], *(WORDS[each] for each in words){end}])
rows = [numbers([str((3 * k + j) % 9) for j in range(2 + k % 5)]) for k in range(120)]
batch = nn.utils.rnn.pad_sequence(rows, batch_first=True)
net = nn.Sequential(nn.Embedding(12, 16), nn.Linear(16, 12))
optimizer = torch.optim.Adam(net.parameters(), 1e-2)
"""


@pytest.mark.slow
@pytest.mark.parametrize(("end", "pitfall"), [("", "end_never_scored"), (', WORDS["<eos>"]', "")])
def test_an_end_that_a_vocabulary_of_the_script_has_is_a_label(
    tmp_path: Path, end: str, pitfall: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    loss = "some = batch[torch.randperm(120)[:30]]\nloss = F.cross_entropy(net(some[:, :-1]).flatten(0, 1), some[:, 1:].flatten(), ignore_index=0)  # cause"
    told(tmp_path, WORDS.format(end=end) + looped(loss), pitfall, monkeypatch)


GRAPH = """
edges = (torch.rand(60, 60) < 0.05).float()
edges = edges.maximum(edges.T)
edges[3], edges[:, 3] = 0, 0
degree = edges.sum(1){limit}.pow(-0.5)  # cause
edges = degree[:, None] * edges * degree[None]
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(6, 8), nn.Linear(8, 3)
    def forward(self, x, edges): return self.last(torch.relu(edges @ self.first(x)))
net, x, y = Net(), torch.randn(60, 6), torch.arange(60) % 3
optimizer = torch.optim.Adam(net.parameters(), 1e-2)
"""


@pytest.mark.slow
@pytest.mark.parametrize(("limit", "pitfall"), [("", "non_finite_loss"), (".clamp_min(1)", "")])
def test_data_that_is_made_infinite_is_named_where_it_is_made(
    tmp_path: Path, limit: str, pitfall: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = GRAPH.format(limit=limit) + looped("loss = F.cross_entropy(net(x, edges), y)")
    told(tmp_path, text, pitfall, monkeypatch)


SCALED = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.last, self.scale = nn.Linear(6, 3), nn.Parameter(torch.zeros(8))
    def forward(self, x):
        return self.last(x) * self.scale.exp().mean(){number}  # cause
net = Net()
optimizer = torch.optim.Adam(net.parameters(), 1e-2)
"""


@pytest.mark.slow
@pytest.mark.parametrize(("number", "pitfall"), [(".item()", "no_gradient"), ("", "")])
def test_a_number_that_is_read_within_a_model_cuts_what_it_was_computed_from(
    tmp_path: Path, number: str, pitfall: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = SCALED.format(number=number) + looped(
        "loss = F.cross_entropy(net(torch.randn(12, 6)), torch.arange(12) % 3)"
    )
    told(tmp_path, text, pitfall, monkeypatch)


PENALTY = """
net, table = nn.Linear(6, 1, bias=False), nn.Embedding(32, 6)
optimizer = torch.optim.SGD([*net.parameters(), *table.parameters()], lr=0.05)
x, y = 0.2 * torch.randn(64, 6), torch.randn(64)
"""


@pytest.mark.slow
@pytest.mark.parametrize(("reduction", "pitfall"), [("sum", "summed_loss"), ("mean", "")])
def test_a_sum_is_one_beside_a_penalty_of_as_many_weights_too(
    tmp_path: Path, reduction: str, pitfall: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    loss = f"r = torch.randperm(64)[:32]\nloss = F.mse_loss(net(x[r]).squeeze(1) + table(r % 32)[:, 0], y[r], reduction='{reduction}') + 1e-3 * table.weight.abs().sum()  # cause"
    told(tmp_path, PENALTY + looped(loss), pitfall, monkeypatch)


SAMPLED = """
batch_size = 16
data = torch.utils.data.TensorDataset(torch.randn(400, 6), torch.arange(400) % 3)
sampler = torch.utils.data.SubsetRandomSampler(range({rows}))
loader = torch.utils.data.DataLoader(data, batch_size, sampler=sampler)  # cause
others = torch.utils.data.DataLoader(data, 16, sampler=range(320, 400))
net = nn.Linear(6, 3)
optimizer = torch.optim.Adam(net.parameters(), 1e-2)
for epoch in range(3):
    for x, y in loader:
        loss = F.cross_entropy(net(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rows", "pitfall"), [("320 // batch_size", "rows_left_out"), ("320", ""), ("64", "")]
)
def test_a_sampler_draws_rows_and_not_as_many_as_there_are_batches(
    tmp_path: Path, rows: str, pitfall: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    told(tmp_path, SAMPLED.format(rows=rows), pitfall, monkeypatch)


def test_a_schedule_of_all_updates_that_is_stepped_in_each_epoch_is_likely_a_fault() -> None:
    at = "train.py:7"
    step = Step(at, 0, 1, stale=False, cleared=False, scaled=False, without=False, rescaled=False)
    events: list[Event] = [step, ScheduleStep(at, 16, 5), ScheduleStep(at, 32, 5)]
    log = Log(
        updates=32, events=events, schedulers=[SchedulerSeen(5, "OneCycleLR", at, 1, 32)], complete=True
    )
    (finding,) = schedule_length(log)
    assert finding.certainty is Certainty.LIKELY
    assert "number of updates" in finding.evidence[-1]
    log.updates = 40
    assert schedule_length(log)[0].certainty is Certainty.WORTH_A_LOOK


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("rng.shuffle(x)\nrng.shuffle(y)\ndata = TensorDataset(x, y)\n", 2),
        ("rng.seed(1)\nrng.shuffle(x)\nrng.seed(1)\nrng.shuffle(y)\ndata = TensorDataset(x, y)\n", 0),
        ("shuffle(train_files)\nshuffle(test_files)\nrun(train_files, test_files)\n", 0),
        (
            "x_a, b = train_test_split(x, random_state=1)\ny_a, d = train_test_split(y, random_state=2)\nz = zip(x_a, y_a)\n",
            2,
        ),
        (
            "x_a, b = train_test_split(x, random_state=1)\ny_a, d = train_test_split(y, random_state=1)\nz = zip(x_a, y_a)\n",
            0,
        ),
        ("rng.shuffle(horses)\nrng.shuffle(zebras)\nz = zip(horses, zebras)\n", 0),
        ("x = x[torch.randperm(9)]\ny = y[torch.randperm(9)]\nloss = f(x[i], y[i])\n", 2),
        ("o = torch.randperm(9)\nx = x[o]\ny = y[o]\nloss = f(x[i], y[i])\n", 0),
    ],
)
def test_two_arrays_that_are_paired_are_not_put_into_orders_of_their_own(
    tmp_path: Path, text: str, line: int
) -> None:
    script = tmp_path / "train.py"
    script.write_text(text)
    apart = shuffled_apart(str(script))
    assert (0 if apart is None else apart[0]) == line


def test_an_index_that_was_counted_anew_says_nothing_of_the_order_of_rows() -> None:
    import numpy as np
    import pandas as pd

    frame = pd.DataFrame({"a": np.arange(40.0), "b": np.arange(40.0)[::-1]})
    mixed, tables = frame.sample(frac=1.0, random_state=0), Tables()
    targets = mixed["b"].reset_index(drop=True)
    tables.note(mixed["a"].to_numpy(), "train.py:1", table=mixed["a"])
    tables.note(targets.to_numpy(), "train.py:2", table=targets)
    assert tables.rows_apart([mixed["a"].to_numpy(), targets.to_numpy()]) is None
    tables.note(frame["b"].to_numpy(), "train.py:3", table=frame["b"].set_axis(pd.Index(np.arange(40))))
    assert tables.rows_apart([mixed["a"].to_numpy(), frame["b"].to_numpy()]) == ("train.py:1", "train.py:3")
    tables.note(frame["a"].to_numpy(), "train.py:4", table=frame["a"].set_axis(pd.Index(np.arange(40))))
    negatives = [mixed["a"].to_numpy(), frame["a"].to_numpy()]
    assert tables.rows_apart(negatives) is None  # a column beside itself is no target


OF_ONE = """
data = torch.utils.data.TensorDataset(torch.randn(4, 4), torch.tensor([0.0, 1, 0, 1]))
loader = torch.utils.data.DataLoader(data, batch_size=1, shuffle=True)
net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
optimizer = torch.optim.Adam(net.parameters(), 1e-2)
for epoch in range(40):
    for x, y in loader:
        loss = F.binary_cross_entropy_with_logits(net(x)[:, 0], y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""


@pytest.mark.slow
def test_batches_of_one_begin_alike_by_chance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told(tmp_path, OF_ONE, "", monkeypatch)


MASKED = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.last = nn.Embedding(16, 16), nn.Linear(16, 16)
        self.block = nn.TransformerEncoderLayer(16, 2, 32, 0.0, batch_first=True)
    def forward(self, x, mask): return self.last(self.block(self.table(x), src_mask=mask))
net = Net()
optimizer = torch.optim.SGD(net.parameters(), 1e-2)
x, mask = torch.randint(0, 16, (8, 9)), torch.full((8, 8), float("-inf")).triu(1)
"""


@pytest.mark.slow
def test_the_mask_of_attention_is_not_what_makes_a_loss_infinite(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loss = """
    chosen = net(x[:, :-1], mask).softmax(-1).gather(-1, x[:, 1:, None])
    loss = -torch.log(torch.relu(chosen - 0.05)).mean()  # cause
    """
    told(tmp_path, MASKED + looped(loss), "non_finite_loss", monkeypatch)


OWN_CLASSES = """
class Settings(dict): __getattr__ = dict.__getitem__
class Rows(torch.utils.data.IterableDataset):
    def __iter__(self):
        for k in range(20): yield torch.randint(0, 8, (9,))
settings = Settings(rate=1e-2)
loader = torch.utils.data.DataLoader(torch.utils.data.ChainDataset([Rows(), Rows()]), batch_size=4)
net = nn.Sequential(nn.Embedding(8, 8), nn.Linear(8, 8))
optimizer = torch.optim.Adam(net.parameters(), settings.rate)
for x in loader:
    scores = net(x[:, :-1])
    loss = F.cross_entropy(scores.flatten(0, 1), x[:, 1:].flatten()) + 0 * torch.floor(input=torch.sign(input=scores)).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


@pytest.mark.slow
def test_objects_that_fail_when_asked_and_arguments_by_name_end_neither_script_nor_observation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told(tmp_path, OWN_CLASSES, "", monkeypatch)


WEIGHTS = """
labels = (torch.arange(240) % 6 == 0).long()
of_class = 1.0 / torch.bincount(labels).float()
rows = torch.utils.data.TensorDataset(torch.randn(240, 6), labels)
{made}
net = nn.Linear(6, 2)
optimizer = torch.optim.Adam(net.parameters(), 1e-2)
for epoch in range(3):
    for x, y in loader:
        loss = F.cross_entropy(net(x), y, weight=torch.ones(2))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""
WEIGHED = "sampler = torch.utils.data.WeightedRandomSampler({weights}, 240)"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("made", "pitfall"),
    [
        (WEIGHED.format(weights="of_class") + "  # cause\nloader = DataLoader(rows, 20, sampler=sampler)", "rows_left_out"),
        ("def draws(weights):\n    return torch.utils.data.WeightedRandomSampler(weights, 240)  # cause\nloader = DataLoader(rows, 20, sampler=draws(of_class))", "rows_left_out"),
        ("loader = DataLoader(rows, 20, sampler=torch.utils.data.WeightedRandomSampler(of_class, 240))  # cause", "rows_left_out"),
        (WEIGHED.format(weights="of_class[labels]") + "\nloader = DataLoader(rows, 20, sampler=sampler)", ""),
    ],
)  # fmt: skip
def test_weights_of_classes_are_named_where_the_sampler_is_made(
    tmp_path: Path, made: str, pitfall: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    told(tmp_path, WEIGHTS.format(made=made), pitfall, monkeypatch)


TURNED = """
class Scenes(Dataset):
    def __init__(self, turned=None):
        self.pictures, self.masks = torch.rand(16, 1, 12, 12), (torch.rand(16, 1, 12, 12) > 0.5).float()
        self.aug = turned
    def __len__(self):
        return 16
    def __getitem__(self, number):
        picture, mask = self.pictures[number], self.masks[number]
        {row}
        return picture, mask
def turned(values):
    if torch.rand(()) < 0.5:
        values = values.flip(-1)
    return values.flip(-2) if torch.rand(()) < 0.5 else values
net = nn.Conv2d(1, 1, 3, padding=1)
optimizer = torch.optim.Adam(net.parameters(), 1e-3)
loader = DataLoader(Scenes(turned), 8, shuffle=True)
for epoch in range(8):
    for picture, mask in loader:
        loss = F.binary_cross_entropy_with_logits(net(picture), mask)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("row", "pitfall"),
    [
        ("picture = self.aug(picture)\n        mask = self.aug(mask)  # cause", "mismatched_rows"),
        ("picture, mask = self.aug(picture), self.aug(mask)  # cause", "mismatched_rows"),
        (
            "tfm = self.aug\n        picture = tfm(picture)\n        mask = tfm(mask)  # cause",
            "mismatched_rows",
        ),
        ("picture, mask = self.aug(torch.stack([picture, mask]))", ""),
    ],
)
def test_a_mask_that_is_turned_by_itself_is_named_where_it_is_turned(
    tmp_path: Path, row: str, pitfall: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    told(tmp_path, TURNED.format(row=row), pitfall, monkeypatch)
