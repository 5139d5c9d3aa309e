"""One fault in several ways of writing it, and what looks like it and is none: the checks rest on what is computed, not on names."""

from __future__ import annotations

import sys
from pathlib import Path
from textwrap import dedent, indent

import pytest

from snugfit.doctor.findings import Finding, is_ill
from snugfit.doctor.observe import observe
from snugfit.doctor.observe.child import watch_script
from snugfit.doctor.observe.detect import diagnose

pytestmark = pytest.mark.slow

BEGIN = """
import copy, io, pickle
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset
torch.manual_seed(0)
"""


def found(tmp_path: Path, text: str) -> dict[str, Finding]:
    """Return what is certain or likely of a script, by pitfall."""
    script = tmp_path / "train.py"
    script.write_text(BEGIN + dedent(text))
    log = watch_script(script)
    assert log.complete and not log.failure, log.failure
    return {each.pitfall: each for each in diagnose([log]) if is_ill([each])}


def looped(body: str, updates: int = 12) -> str:
    """Return a loop of updates around lines that compute `loss`."""
    return (
        f"for update in range({updates}):\n"
        + indent(dedent(body).strip(), "    ")
        + "\n    optimizer.zero_grad()\n    loss.backward()\n    optimizer.step()\n"
    )


CLASSES = """
net = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 4))
optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
x, y = torch.randn(40, 6), torch.arange(40) % 4
"""


@pytest.mark.parametrize(
    ("loss", "pitfall"),
    [
        ("loss = F.cross_entropy(net(x).softmax(1) / 0.5, y)", "softmax_twice"),
        ("loss = -F.log_softmax(F.softmax(net(x), dim=1), dim=1)[torch.arange(40), y].mean()", "softmax_twice"),
        ("loss = -(torch.log_softmax(net(x).sigmoid(), -1) * F.one_hot(y, 4)).sum(1).mean()", "softmax_twice"),
        ("loss = F.binary_cross_entropy_with_logits(net(x).sigmoid().clamp(1e-4, 0.999), F.one_hot(y, 4).float())", "softmax_twice"),
        ("loss = F.multilabel_soft_margin_loss(torch.sigmoid(net(x)), F.one_hot(y, 4).float())", "softmax_twice"),
        ("loss = F.nll_loss(net(x).log_softmax(-2), y)", "wrong_axis"),
        ("loss = F.nll_loss(torch.log(nn.Softmax(0)(net(x[torch.randperm(40)]))), y)", "wrong_axis"),
        ("loss = F.cross_entropy(net(x), y)", ""),
        ("loss = F.cross_entropy(net(x) / 0.5, y)", ""),
        ("loss = F.cross_entropy(10 * net(x).tanh(), y)", ""),
        ("loss = F.nll_loss(net(x).softmax(1).clamp_min(1e-6).log(), y)", ""),
        ("a = net(x); loss = F.cross_entropy(a @ a.t() - 99 * torch.eye(40), torch.arange(40).roll(1))", ""),
        ("a = F.normalize(net(x)); b = F.normalize(net(x + 0.1)); s = 9 * a @ b.t(); n = torch.arange(40); loss = F.cross_entropy(s, n) + F.cross_entropy(s.t(), n)", ""),
    ],
)  # fmt: skip
def test_probabilities_and_axes_are_known_however_the_loss_is_written(
    tmp_path: Path, loss: str, pitfall: str
) -> None:
    ill = found(tmp_path, CLASSES + looped(f"x = torch.randn(40, 6)\n{loss}"))
    assert set(ill) == ({pitfall} if pitfall else set())


TAGGED = """
net = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, {classes}))
optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
"""


@pytest.mark.parametrize(
    ("classes", "loss", "pitfall"),
    [
        (5, "loss = F.cross_entropy(net(x).view(8, 5, 7), y)", "wrong_axis"),
        (7, "loss = F.cross_entropy(net(x), y)", "wrong_axis"),
        (5, "loss = F.cross_entropy(net(x).transpose(1, 2), y)", ""),
        (5, "loss = F.cross_entropy(net(x).permute(0, 2, 1).contiguous(), y)", ""),
        (5, "loss = F.cross_entropy(net(x).reshape(-1, 5), y.reshape(-1))", ""),
        (5, "loss = F.cross_entropy(net(x)[:, :-1].reshape(-1, 5), y[:, 1:].reshape(-1))", ""),
    ],
)
def test_classes_are_followed_through_views_and_transpositions(
    tmp_path: Path, classes: int, loss: str, pitfall: str
) -> None:
    body = f"x, y = torch.randn(8, 7, 6), torch.randint(0, {min(classes, 5)}, (8, 7))\n{loss}"
    assert set(found(tmp_path, TAGGED.format(classes=classes) + looped(body))) == (
        {pitfall} if pitfall else set()
    )


NUMBERS = """
net = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 1))
value = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 1))
optimizer = torch.optim.Adam([*net.parameters(), *value.parameters()], lr=1e-3)
def critic(x): return value(x)
"""


@pytest.mark.parametrize(
    ("loss", "pitfall"),
    [
        ("loss = ((net(x) - 5000 - 300 * t) ** 2).mean()", ""),
        ("y = 5000 + 300 * t; loss = ((net(x) - y) ** 2).mean()", "unscaled_targets"),
        ("y = 5000 + 300 * t; loss = torch.abs(torch.sub(y, net(x))).sum() / 40", "unscaled_targets"),
        ("loss = (net(x).relu() - t).square().mean()", "unreachable_targets"),
        ("loss = torch.norm(t * 3 - torch.sigmoid(net(x)))", "unreachable_targets"),
        ("loss = torch.sub(net(x), t[:, 0]).pow(2).mean()", "broadcast_loss"),
        ("loss = net(x).sub(t[:, 0]).abs().mean()", "broadcast_loss"),
        ("delta = t + 0.9 * critic(x + 1) - critic(x); loss = delta.pow(2).mean() + net(x).pow(2).mean()", "target_gradients"),
        ("loss = F.mse_loss(critic(x), torch.add(t, critic(x + 1), alpha=0.9)) + net(x).pow(2).mean()", "target_gradients"),
        ("delta = t + 0.9 * critic(x + 1).detach() - critic(x); loss = delta.pow(2).mean() + net(x).pow(2).mean()", ""),
        ("loss = ((net(x) - t) ** 2).mean() + ((critic(x) - net(x + 1)) ** 2).mean()", ""),
        ("m, s = net(x), critic(x); loss = -0.5 * (1 + 2 * s - m.pow(2) - (2 * s).exp()).mean()", ""),
        ("loss = ((net(x) - t) ** 2).mean() + 0 * (critic(x) - 5000 * t).sum()", ""),
    ],
)  # fmt: skip
def test_an_error_is_known_however_it_is_measured(tmp_path: Path, loss: str, pitfall: str) -> None:
    ill = found(tmp_path, NUMBERS + looped(f"x = torch.randn(40, 6); t = x[:, :1] * 2\n{loss}"))
    assert set(ill) - {"no_gradient"} == ({pitfall} if pitfall else set())


PADDED = """
class Tagger(nn.Module):
    def __init__(self, reads):
        super().__init__()
        self.embedding, self.reads = nn.Embedding(60, 12), reads
        self.layer = nn.TransformerEncoderLayer(12, 2, 24, dropout=0.0, batch_first=True)
        self.head = nn.Linear(12, 60 if reads == "words" else 3)
    def forward(self, ids, mask=None):
        hidden = self.layer(self.embedding(ids), src_key_padding_mask=mask)
        return self.head(hidden if self.reads != "texts" else hidden[:, 0])
def batch(length=12):
    ids = torch.randint(1, 60, (8, length))
    for row, end in enumerate(torch.randint(4, length + 1, (8,)).tolist()):
        ids[row, end:] = 0
    ids[0] = torch.randint(1, 60, (length,))
    return ids
net = Tagger("{reads}")
optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
"""


@pytest.mark.parametrize(
    ("reads", "loss", "pitfall"),
    [
        ("tags", "loss = F.cross_entropy(net(ids, ids == 0).flatten(0, 1), (ids % 3).flatten())", "scored_padding"),
        ("tags", "loss = F.cross_entropy(net(ids, ids == 0).movedim(2, 1), ids % 3)", "scored_padding"),
        ("tags", "tags = (ids % 3).masked_fill(ids == 0, -100); loss = F.cross_entropy(net(ids, ids == 0).flatten(0, 1), tags.flatten())", ""),
        ("tags", "each = F.cross_entropy(net(ids, ids == 0).movedim(2, 1), ids % 3, reduction='none'); loss = (each * (ids != 0)).sum() / (ids != 0).sum()", ""),
        ("tags", "loss = F.cross_entropy(net(ids, ids == 0)[ids != 0], (ids % 3)[ids != 0])", ""),
        ("texts", "loss = F.cross_entropy(net(ids), ids[:, 0] % 3)", "unmasked_padding"),
        ("texts", "loss = F.cross_entropy(net(ids, ids == 0), ids[:, 0] % 3)", ""),
    ],
)  # fmt: skip
def test_padding_is_known_by_the_tokens_alone(tmp_path: Path, reads: str, loss: str, pitfall: str) -> None:
    ill = found(tmp_path, PADDED.format(reads=reads) + looped(f"ids = batch()\n{loss}"))
    assert set(ill) == ({pitfall} if pitfall else set())


SHIFTED = """
net = nn.Sequential(nn.Embedding(50, 16), nn.Linear(16, 50))
optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
text = torch.randint(0, 50, (400,))
"""


@pytest.mark.parametrize(
    ("loss", "pitfall"),
    [
        ("loss = F.cross_entropy(net(x)[:, :-1].reshape(-1, 50), y[:, 1:].reshape(-1))", "shifted_labels"),
        ("loss = F.cross_entropy(net(x)[:, :-1].transpose(1, 2), y[:, 1:])", "shifted_labels"),
        ("loss = F.cross_entropy(net(x).reshape(-1, 50), y.reshape(-1))", ""),
        ("s = net(x); loss = F.cross_entropy(s.flatten(0, 1), y.flatten()) + F.cross_entropy(s[:, :-1].flatten(0, 1), y[:, 1:].flatten())", ""),
    ],
)  # fmt: skip
def test_labels_that_are_shifted_twice_by_hand_are_known_by_the_tokens(
    tmp_path: Path, loss: str, pitfall: str
) -> None:
    body = "i = torch.randint(0, 380, (8,)); x = torch.stack([text[k:k+12] for k in i]); y = torch.stack([text[k+1:k+13] for k in i])\n"
    assert set(found(tmp_path, SHIFTED + looped(body + loss))) == ({pitfall} if pitfall else set())


BY_MODE = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(6, 16), nn.Linear(16, 1)
    def forward(self, x):
        return self.last(F.dropout(self.first(x).tanh(), 0.3, self.training))
net = Net()
optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
valid, wanted = torch.randn(30, 6), torch.randn(30, 1)
for epoch in range(4):
    net.{train}()
    for _ in range(4):
        x = torch.randn(20, 6)
        optimizer.zero_grad()
        F.mse_loss(net(x), x[:, :1]).backward()
        optimizer.step()
    net.{evaluate}()
    with torch.no_grad():
        print({score})
"""


@pytest.mark.parametrize(
    ("train", "evaluate", "score", "pitfall"),
    [
        ("train", "train", "((net(valid) - wanted) ** 2).mean()", "train_mode"),
        ("train", "train", "(wanted.sub(net(valid))).abs().mean()", "train_mode"),
        ("train", "train", "np.abs(net(valid).numpy() - wanted.numpy()).mean()", "train_mode"),
        ("eval", "eval", "F.mse_loss(net(valid), wanted)", "train_mode"),
        ("train", "eval", "((net(valid) - wanted) ** 2).mean()", ""),
    ],
)
def test_dropout_by_a_function_has_a_mode_too_and_a_difference_is_a_score(
    tmp_path: Path, train: str, evaluate: str, score: str, pitfall: str
) -> None:
    ill = found(tmp_path, BY_MODE.format(train=train, evaluate=evaluate, score=score))
    assert set(ill) == ({pitfall} if pitfall else set())


SORTED = """
x, y = torch.randn(150, 6), torch.arange(150) // {each}
net = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, {outputs}))
optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
for epoch in range(2):
    for rows, labels in DataLoader(TensorDataset(x, y), {size}, shuffle={shuffle}):
        optimizer.zero_grad()
        ({loss}).backward()
        optimizer.step()
"""
_BINARY = "F.binary_cross_entropy_with_logits(net(rows)[:, 0], labels.float())"


@pytest.mark.parametrize(
    ("parts", "pitfall"),
    [
        ({"each": 50, "outputs": 3, "size": 16, "shuffle": False, "loss": "F.cross_entropy(net(rows), labels)"}, "sorted_classes"),
        ({"each": 75, "outputs": 2, "size": 16, "shuffle": False, "loss": "F.cross_entropy(net(rows), labels)"}, "sorted_classes"),
        ({"each": 75, "outputs": 1, "size": 15, "shuffle": False, "loss": _BINARY}, "sorted_classes"),
        ({"each": 75, "outputs": 1, "size": 15, "shuffle": True, "loss": _BINARY}, ""),
    ],
)  # fmt: skip
def test_rows_that_come_class_by_class_are_known_where_batches_have_two_classes(
    tmp_path: Path, parts: dict[str, object], pitfall: str
) -> None:
    assert set(found(tmp_path, SORTED.format(**parts))) == ({pitfall} if pitfall else set())


RESTORED = """
def build(): return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 1))
torch.save({{"{prefix}" + name: value for name, value in build().state_dict().items()}}, "pretrained.pt")
net, saved = build(), torch.load("pretrained.pt")
{restore}
optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
"""
FILTERED = "own = net.state_dict()\nown.update({k: v for k, v in saved.items() if k in own})\nnet.load_state_dict(own)"
COPIED = (
    "for name, value in net.named_parameters():\n    if name in saved:\n        value.data.copy_(saved[name])"
)


@pytest.mark.parametrize("restore", [FILTERED, COPIED], ids=["filtered", "copied"])
@pytest.mark.parametrize(("prefix", "pitfall"), [("module.", "nothing_restored"), ("", "")])
def test_a_checkpoint_of_which_nothing_arrives_is_known_by_the_values(
    tmp_path: Path, restore: str, prefix: str, pitfall: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    loop = looped("x = torch.randn(20, 6)\nloss = F.mse_loss(net(x), x[:, :1])", updates=4)
    ill = found(tmp_path, RESTORED.format(prefix=prefix, restore=restore) + loop)
    assert set(ill) == ({pitfall} if pitfall else set())


CARRIED = """
cell, head = nn.{kind}(4, 8), nn.Linear(8, 1)
optimizer = torch.optim.SGD([*cell.parameters(), *head.parameters()], lr=1e-4)
state = torch.zeros(10, 8) if "{kind}" == "GRUCell" else torch.zeros(1, 10, 8)
for update in range(12):
    x = torch.randn(10, 4)
    old = state{detached}
    state = cell(x, old) if "{kind}" == "GRUCell" else cell(x[None], old)[1]
    loss = F.mse_loss(head(state).reshape(-1, 1), x[:, :1])
    optimizer.zero_grad()
    loss.backward(retain_graph={retained})
    with torch.no_grad():
        pass
    {step}
"""


@pytest.mark.parametrize("kind", ["GRUCell", "GRU"])
@pytest.mark.parametrize(
    ("detached", "retained", "pitfall"),
    [("", True, "growing_graph"), (".detach()", False, ""), (".detach()", True, "")],
)
def test_a_state_that_is_carried_on_with_its_graph_is_known_by_what_is_held(
    tmp_path: Path, kind: str, detached: str, retained: bool, pitfall: str
) -> None:
    # weights are not moved in place, which torch itself refuses with a graph that is older
    step = (
        "for p in head.parameters(): p.grad = None\n    optimizer.step()"
        if detached == ""
        else "optimizer.step()"
    )
    step = (
        step
        if detached
        else "[setattr(p, 'grad', None) for p in cell.parameters()]; [setattr(p, 'grad', None) for p in head.parameters()]; optimizer.step()"
    )
    ill = found(tmp_path, CARRIED.format(kind=kind, detached=detached, retained=retained, step=step))
    assert ("growing_graph" in ill) == bool(pitfall)


WEIGHTS = """
net = nn.Linear(6, 2)
optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
class Holder:
    def __init__(self): self.model = net
"""


@pytest.mark.parametrize(
    ("save", "pitfall"),
    [
        ("torch.save([net, 3], io.BytesIO())", "pickle"),
        ("torch.save({'best': Holder()}, io.BytesIO())", "pickle"),
        ("pickle.dumps(net)", "pickle"),
        ("torch.save([net.state_dict(), 3], io.BytesIO())", ""),
    ],
)
def test_a_module_that_is_pickled_is_known_wherever_it_lies(tmp_path: Path, save: str, pitfall: str) -> None:
    loop = looped("loss = net(torch.randn(8, 6)).square().mean()", updates=3)
    assert set(found(tmp_path, WEIGHTS + loop + save + "\n")) == ({pitfall} if pitfall else set())


PIXELS = """
net = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 3))
optimizer = torch.optim.Adam(net.parameters(), lr=1e-4)
"""


@pytest.mark.parametrize(("scale", "pitfall"), [("", "unscaled_inputs"), (" / 255", "")])
def test_pictures_that_are_laid_out_flat_are_pictures(tmp_path: Path, scale: str, pitfall: str) -> None:
    body = f"x = torch.randint(0, 256, (32, 8, 8)).float(){scale}\nloss = F.cross_entropy(net(x), torch.arange(32) % 3)"
    ill = found(tmp_path, PIXELS + looped(body))
    assert ("unscaled_inputs" in ill) == bool(pitfall)


def test_clipping_by_the_name_of_its_own_module_is_seen(tmp_path: Path) -> None:
    late = "from torch.nn.utils.clip_grad import clip_grad_norm_ as limit\n" + WEIGHTS
    loop = looped("loss = net(torch.randn(8, 6)).square().mean()") + "    limit(net.parameters(), 1.0)\n"
    assert set(found(tmp_path, late + loop)) == {"clip_after_step"}


def test_a_term_that_item_made_a_number_is_a_constant(tmp_path: Path) -> None:
    loop = looped("out = net(torch.randn(8, 6))\nloss = out.square().mean() + 0.5 * out.abs().mean().item()")
    assert set(found(tmp_path, WEIGHTS + loop)) == {"constant_term"}
    clean = looped("out = net(torch.randn(8, 6))\nloss = out.square().mean() + 1e-8")
    assert set(found(tmp_path, WEIGHTS + clean)) == set()


ACCUMULATED = """
net = nn.Linear(6, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
for update in range(6):
    optimizer.zero_grad()
    for _ in range(3):
        x = torch.randn(10, 6)
        error, other = (net(x) - x[:, :1]) ** 2, net(x).abs()
        ({loss}).backward()
    optimizer.step()
"""


@pytest.mark.parametrize(
    ("loss", "pitfall"),
    [
        ("error.sum() / 10", "accumulation"),
        ("error.mean() + 0.1 * other.mean()", "accumulation"),
        ("error.sum() / 10 / 3", ""),
        ("(error.mean() + 0.1 * other.mean()) / 3", ""),
        ("error.sum() / 30", ""),
    ],
)
def test_a_mean_that_a_script_takes_itself_is_one_of_a_micro_batch(
    tmp_path: Path, loss: str, pitfall: str
) -> None:
    assert set(found(tmp_path, ACCUMULATED.format(loss=loss))) == ({pitfall} if pitfall else set())


HOT = """
net = nn.Sequential(nn.Linear(6, 32), nn.Tanh(), nn.Linear(32, 1))
optimizer = torch.optim.Adam(net.parameters(), lr={rate})
"""


@pytest.mark.parametrize(("rate", "pitfall"), [(1.0, "learning_rate"), (0.03, "")])
def test_steps_as_large_as_the_weights_are_out_of_proportion_whatever_the_loss_is(
    tmp_path: Path, rate: float, pitfall: str
) -> None:
    body = "x = torch.randn(20, 6)\nloss = ((net(x) - x[:, :1].sin()) ** 2).mean()"
    assert set(found(tmp_path, HOT.format(rate=rate) + looped(body, updates=40))) == (
        {pitfall} if pitfall else set()
    )


WORKERS = """
rng = np.random.default_rng(0)
class Jitter:
    def __init__(self, own): self.rng = np.random.default_rng(1) if own else None
    def __call__(self, x): return x + float((self.rng or np.random).random())
class Rows(Dataset):
    def __init__(self, transform): self.transform, self.x = transform, torch.randn(40, 6)
    def __len__(self): return 40
    def __getitem__(self, i): return {item}
def reseed(worker): np.random.seed(np.random.get_state()[1][0] + worker)
net = nn.Linear(6, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
for x in DataLoader(Rows(Jitter({own})), 10, num_workers=2, worker_init_fn={init}):
    loss = net(x.float()).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


@pytest.mark.parametrize(
    ("item", "own", "init", "pitfall"),
    [
        ("self.transform(self.x[i])", True, None, "worker_seeds"),
        ("self.x[i] + float(rng.random())", False, "reseed", "worker_seeds"),
        ("self.transform(self.x[i])", False, None, ""),
    ],
)
def test_generators_of_transforms_and_of_modules_are_copied_into_workers(
    tmp_path: Path, item: str, own: bool, init: str | None, pitfall: str
) -> None:
    script = tmp_path / "train.py"
    script.write_text(BEGIN + WORKERS.format(item=item, own=own, init=init))
    seen = observe([sys.executable, str(script)])  # no fork of this process, which has other threads
    assert (seen.exit_code, seen.failure) == (0, "")
    assert {each.pitfall for each in seen.findings if is_ill([each])} == ({pitfall} if pitfall else set())


def at_cause(tmp_path: Path, text: str) -> tuple[dict[str, Finding], int]:
    """Return what is certain or likely of a script, and the number of its line that is marked as the cause; 0 without."""
    ill = found(tmp_path, text)
    lines = (tmp_path / "train.py").read_text().splitlines()
    return ill, next((number for number, line in enumerate(lines, 1) if "# cause" in line), 0)


RATED = """
net = nn.Linear(6, 3)
optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
"""
HISTORY = """
class History:
    def __init__(self): self.losses = []
    def add(self, loss):
        self.losses.append({kept})  # cause
history = History()
"""


@pytest.mark.parametrize(
    ("text", "pitfall"),
    [
        (HISTORY.format(kept="loss") + RATED + looped("loss = net(torch.randn(8, 6)).square().mean()", 20) + "    history.add(loss)\n", "growing_graph"),
        (HISTORY.format(kept="loss.detach()") + RATED + looped("loss = net(torch.randn(8, 6)).square().mean()", 20) + "    history.add(loss)\n", ""),
        (SORTED.format(each=50, outputs=3, size=16, shuffle="False", loss="F.cross_entropy(net(rows), labels)").replace("False):", "False):  # cause"), "sorted_classes"),
    ],
)  # fmt: skip
def test_the_line_is_the_one_that_causes_it(tmp_path: Path, text: str, pitfall: str) -> None:
    ill, cause = at_cause(tmp_path, text)
    assert set(ill) == ({pitfall} if pitfall else set())
    assert not pitfall or ill[pitfall].where.endswith(f"train.py:{cause}")


ATTENDING = """
class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(9, 8, padding_idx=0), nn.Linear(8, 3)
    def forward(self, ids):
        x, seen = self.embed(ids), ids != 0
        scores = (x @ x.transpose(1, 2)).masked_fill(~seen[:, None], float("-inf"))
        {weights}
        return self.head((weights @ x).sum(1))
net = Reader()
optimizer = torch.optim.SGD(net.parameters(), lr=1e-2)
"""


@pytest.mark.parametrize(
    ("weights", "pitfall"),
    [
        ("weights = scores.softmax(-1)  # cause", "non_finite_loss"),
        ("weights = F.softmax(scores, dim=-1)  # cause", "non_finite_loss"),
        ("weights = scores.clamp_min(-1e4).softmax(-1)", ""),
    ],
)
def test_the_softmax_of_a_row_without_a_place_is_named(tmp_path: Path, weights: str, pitfall: str) -> None:
    ids = "ids = torch.randint(1, 9, (8, 5)); ids[2] = 0 if update == 3 else ids[2]\n"
    ill, cause = at_cause(
        tmp_path,
        ATTENDING.format(weights=weights)
        + looped(ids + "loss = F.cross_entropy(net(ids), torch.arange(8) % 3)"),
    )
    assert set(ill) == ({pitfall} if pitfall else set())
    assert not pitfall or ill[pitfall].where.endswith(f"train.py:{cause}")


SIAMESE = """
encoder = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16, affine=False), nn.ReLU(), nn.Linear(16, 8))
predictor = nn.Sequential(nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 8))
optimizer = torch.optim.SGD([*encoder.parameters(), *predictor.parameters()], lr=1e-2)
def likeness(p, z): return F.cosine_similarity(p, z, dim=-1).mean()  # cause
"""
TWO_VIEWS = "x = torch.randn(20, 6)\nz1, z2 = encoder(x + 0.1 * torch.randn(20, 6)), encoder(x)\np1, p2 = predictor(z1), predictor(z2)\n"


@pytest.mark.parametrize(
    ("loss", "pitfall"),
    [
        ("loss = -0.5 * (likeness(p1, z2) + likeness(p2, z1))", "target_gradients"),
        ("loss = -likeness(p1, z2) / 2 - likeness(p2, z1) / 2", "target_gradients"),
        ("loss = -0.5 * (likeness(p1, z2.detach()) + likeness(p2, z1.detach()))", ""),
        ("loss = -likeness(p1, z2) - likeness(p2, z1) + (1 - z1.std(0)).relu().mean() + (1 - z2.std(0)).relu().mean()", ""),
        ("loss = likeness(z1, z2.roll(1, 0)) - likeness(z1, z2)", ""),
    ],
)  # fmt: skip
def test_cosines_alone_whose_targets_have_a_graph_fall_to_a_constant(
    tmp_path: Path, loss: str, pitfall: str
) -> None:
    ill, cause = at_cause(tmp_path, SIAMESE + looped(TWO_VIEWS + loss))
    assert set(ill) - {"no_gradient", "not_in_optimizer"} == ({pitfall} if pitfall else set())
    assert not pitfall or ill[pitfall].where.endswith(f"train.py:{cause}")


STAGES = """
body, head = nn.Linear(6, 8), nn.Linear(8, 3)
optimizer = torch.optim.SGD([*body.parameters(), *head.parameters()], lr=1e-2, momentum={momentum})  # cause
for update in range(24):
    if update == 14: body.requires_grad_(False)
    optimizer.zero_grad(set_to_none={to_none})
    F.cross_entropy(head(body(torch.randn(9, 6)).tanh()), torch.arange(9) % 3).backward()
    optimizer.step()
"""


@pytest.mark.parametrize(
    ("momentum", "to_none", "pitfall"),
    [(0.9, False, "frozen_moves"), (0.0, False, ""), (0.9, True, "")],
)
def test_what_is_frozen_late_and_moves_on_is_known(
    tmp_path: Path, momentum: float, to_none: bool, pitfall: str
) -> None:
    ill, cause = at_cause(tmp_path, STAGES.format(momentum=momentum, to_none=to_none))
    assert set(ill) == ({pitfall} if pitfall else set())
    assert not pitfall or ill[pitfall].where.endswith(f"train.py:{cause}")


PLANNED = """
net = nn.Linear(6, 3)
optimizer = torch.optim.SGD(net.parameters(), lr=1e-2)
rows = TensorDataset(torch.randn(96, 6))
loader = DataLoader(rows, 8, shuffle=True)
schedule = torch.optim.lr_scheduler.PolynomialLR(optimizer, {total})  # cause
for epoch in range(2):
    for number, (x,) in enumerate(loader):
        optimizer.zero_grad()
        net(x).square().mean().backward()
        optimizer.step()
        schedule.step()
        {then}
"""


@pytest.mark.parametrize(
    ("total", "then", "pitfall"),
    [
        ("2 * len(rows)", "", "schedule_length"),
        ("5000", "", ""),
        ("5000", "if epoch and number == 9: break", ""),
        ("3 * len(loader)", "", ""),
        ("2 * len(loader)", "", ""),
    ],
)
def test_a_schedule_of_rows_is_known_and_one_of_a_longer_run_left_alone(
    tmp_path: Path, total: str, then: str, pitfall: str
) -> None:
    ill, cause = at_cause(tmp_path, PLANNED.format(total=total, then=then))
    assert set(ill) == ({pitfall} if pitfall else set())
    assert not pitfall or ill[pitfall].where.endswith(f"train.py:{cause}")


COPIED = """
import copy
class Stack(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(6, 8)
        {parts}
        self.last = nn.Linear(8, 3)
    def forward(self, x):
        h = self.first(x).tanh().unsqueeze(1)
        {called}
        return self.last(h.squeeze(1))
net = Stack()
optimizer = torch.optim.SGD(net.parameters(), lr=1e-2)
"""
LAYER = "nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True)"


@pytest.mark.parametrize(
    ("parts", "called", "pitfall"),
    [
        (
            f"self.layer = {LAYER}; self.body = nn.TransformerEncoder(self.layer, 2, enable_nested_tensor=False)",
            "h = self.body(h)",
            "",
        ),
        (
            "self.one = nn.Sequential(nn.Linear(8, 8), nn.Tanh()); self.many = nn.ModuleList([copy.deepcopy(self.one) for _ in range(2)])",
            "h = self.many[1](self.many[0](h))",
            "",
        ),
        (
            "self.many = nn.ModuleList([nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(3)])",
            "h = self.many[2](self.many[1](h))",
            "no_gradient",
        ),
        (
            "self.one = nn.Sequential(nn.Linear(8, 8), nn.Tanh()); self.many = nn.ModuleList([nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8), nn.Tanh())])",
            "h = self.many[0](h)",
            "no_gradient",
        ),
        (
            "self.one = nn.Sequential(nn.Linear(8, 8), nn.Tanh()); self.other = nn.Sequential(nn.Linear(8, 8), nn.Tanh())",
            "h = self.other(h)",
            "no_gradient",
        ),
    ],
    ids=["encoder", "deepcopy", "one-of-a-list", "of-another-shape", "no-list"],
)
def test_a_layer_of_which_copies_train_needs_no_gradient_and_one_that_is_forgotten_does(
    tmp_path: Path, parts: str, called: str, pitfall: str
) -> None:
    loss = "loss = F.cross_entropy(net(torch.randn(9, 6)), torch.arange(9) % 3)"
    ill, _ = at_cause(
        tmp_path, "cause = 0  # cause\n" + COPIED.format(parts=parts, called=called) + looped(loss)
    )
    assert set(ill) == ({pitfall} if pitfall else set())


THIN = """
class Added(nn.Module):
    def __init__(self, base):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.a = nn.Parameter({a})  # cause
        self.b = nn.Parameter(torch.zeros(12, 2))
    def forward(self, x):
        return self.base(x) + x @ self.a.T @ self.b.T
net = nn.Sequential(Added(nn.Linear(6, 12)), nn.Tanh(), nn.Linear(12, 3))
optimizer = torch.optim.SGD(net.parameters(), lr=1e-2)
"""


@pytest.mark.parametrize(
    ("a", "pitfall"),
    [("torch.zeros(2, 6)", "no_gradient"), ("torch.randn(2, 6)", "")],
    ids=["zeros", "drawn"],
)
def test_two_matrices_of_zeros_that_are_multiplied_never_move(tmp_path: Path, a: str, pitfall: str) -> None:
    loss = "loss = F.cross_entropy(net(torch.randn(9, 6)), torch.arange(9) % 3)"
    ill, cause = at_cause(tmp_path, THIN.format(a=a) + looped(loss))
    assert set(ill) == ({pitfall} if pitfall else set())
    assert not pitfall or ill[pitfall].where.endswith(f"train.py:{cause}")


COLUMNS = """
net = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))
optimizer = torch.optim.SGD(net.parameters(), lr=1e-2)
x, y = torch.randn(20, 6), torch.eye(3)[torch.arange(20) % 3]
for epoch in range(3):
    for update in range(2):
        optimizer.zero_grad()
        F.cross_entropy(net(x), y).backward()
        optimizer.step()
    net.eval()
    with torch.no_grad():
        outputs, targets = zip(*[(net(rows), labels) for rows, labels in DataLoader(TensorDataset(x, y), 10)])
        outputs, targets = torch.cat(outputs), torch.cat(targets)
        guess = {guess}  # cause
        print((guess == {truth}).float().mean())
    net.train()
"""


@pytest.mark.parametrize(
    ("guess", "truth", "pitfall"),
    [
        ("outputs.argmax(0)", "targets.argmax(dim=0)", "wrong_axis"),
        ("torch.argmax(outputs, dim=-2)", "torch.argmax(targets, 0)", "wrong_axis"),
        ("outputs.argmax(1)", "targets.argmax(dim=1)", ""),
        ("outputs.T.argmax(0)", "targets.T.argmax(dim=0)", ""),
    ],
)
def test_the_best_row_of_each_class_is_no_class_of_a_row(
    tmp_path: Path, guess: str, truth: str, pitfall: str
) -> None:
    ill, cause = at_cause(tmp_path, COLUMNS.format(guess=guess, truth=truth))
    assert set(ill) - {"train_mode", "leakage"} == ({pitfall} if pitfall else set())
    assert not pitfall or ill[pitfall].where.endswith(f"train.py:{cause}")


CUT = """
from torch.utils.data import Subset
class Cells(Dataset):
    def __init__(self, at_random): self.at_random, self.x = at_random, torch.randn(24, 1, 9, 9)
    def __len__(self): return 24
    def __getitem__(self, i):
        first = int(torch.randint(0, 5, ())) if self.at_random else 2
        return self.x[i, :, first:first + 4, first:first + 4], (self.x[i, :, first:first + 4, first:first + 4] > 0).float()
cells = Cells(True)
train, valid = Subset(cells, range(16)), Subset({valid}, range(16, 24))
net = nn.Conv2d(1, 1, 3, padding=1)
optimizer = torch.optim.SGD(net.parameters(), lr=1e-2)
loaders = DataLoader(train, 8, shuffle=True), DataLoader(valid, 8)
for epoch in range(4):
    for x, y in loaders[0]:
        optimizer.zero_grad()
        F.binary_cross_entropy_with_logits(net(x), y).backward()
        optimizer.step()
    with torch.no_grad():
        for x, y in loaders[1]:
            print(((net(x) > 0).float() * y).sum() / y.sum())
"""


@pytest.mark.parametrize(("valid", "pitfall"), [("cells", "random_validation"), ("Cells(False)", "")])
def test_masks_that_are_cut_at_random_in_the_validation_are_known(
    tmp_path: Path, valid: str, pitfall: str
) -> None:
    ill = found(tmp_path, CUT.format(valid=valid))
    assert ("random_validation" in ill) == bool(pitfall)
