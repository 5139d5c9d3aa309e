"""Steps of the wrong optimizer and layers over one value, said at their line; scores of a part that are shown for all; modes and graphs of an evaluation."""

from __future__ import annotations

from pathlib import Path

import pytest

from snugfit.doctor.observe.child import watch_script
from snugfit.doctor.observe.detectors.updates.gradient_faults import graph_in_evaluation
from snugfit.doctor.observe.detectors.updates.parameter_faults import no_gradient
from snugfit.doctor.observe.detectors.updates.step_faults import never_stepped
from snugfit.doctor.observe.events.log import Log, OptimizerSeen, ParameterSeen
from snugfit.doctor.observe.events.script_events import Backward, Event, Step
from snugfit.doctor.observe.events.state_events import NarrowNorm
from tests.doctor.test_shapes import told
from tests.doctor.test_variants import BEGIN, looped

MADE, OWN_STEP, WRONG_STEP = "gan.py:3", "gan.py:10", "gan.py:14"


def _step(at: str, optimizer: int) -> Step:
    return Step(at, 0, optimizer, stale=False, cleared=False, scaled=False, without=False, rescaled=False)


def _gradients(*optimizers: int) -> Backward:
    return Backward("gan.py:9", 0, 1.0, "", [], [*optimizers])


@pytest.mark.parametrize(
    ("window", "line"),
    [
        ([_gradients(1), _step(OWN_STEP, 1), _gradients(2), _step(WRONG_STEP, 1)], WRONG_STEP),
        ([_gradients(2), _step(WRONG_STEP, 1), _gradients(1, 2), _step(OWN_STEP, 1)], WRONG_STEP),
        ([_gradients(1, 2), _step(OWN_STEP, 1)], MADE),
        ([_gradients(1), _gradients(2), _step(OWN_STEP, 1)], MADE),
        ([_gradients(2), _gradients(1), _step(OWN_STEP, 1)], MADE),
    ],
)
def test_an_optimizer_that_steps_in_place_of_another_is_named_where_it_steps(
    window: list[Event], line: str
) -> None:
    optimizers = [OptimizerSeen(1, "Adam", "gan.py:2", [7]), OptimizerSeen(2, "Adam", MADE, [8])]
    (finding,) = never_stepped(Log(events=window * 9, optimizers=optimizers, complete=True))
    assert finding.where == line


NORMED = """
class Net(nn.Module):
    def __init__(self, width):
        super().__init__()
        {norm}
net = Net({width})
"""


@pytest.mark.parametrize(
    ("norm", "width"),
    [
        ("self.norm = nn.LayerNorm(width)  # cause", 1),
        (
            "layers = [nn.Tanh(), nn.LayerNorm((width,))]  # cause\n        self.norm = nn.Sequential(*layers)",
            1,
        ),
        ("self.norm = nn.TransformerEncoderLayer(width, 1, 8, 0.0)  # cause", 1),
        ("self.norm = nn.LayerNorm(width)", 8),
        ("self.norm = nn.TransformerEncoderLayer(width, 1, 8, 0.0)", 8),
        ("self.norm, self.scale = nn.BatchNorm1d(width), nn.Parameter(torch.ones(width))", 1),
    ],
)
def test_gradients_of_zeros_in_front_of_a_norm_over_one_value_are_said_where_that_is_made(
    tmp_path: Path, norm: str, width: int
) -> None:
    script = tmp_path / "train.py"
    script.write_text(BEGIN + NORMED.format(norm=norm, width=width))
    lines = script.read_text().splitlines()
    made = [f"train.py:{number}" for number, line in enumerate(lines, 1) if "# cause" in line]
    narrow = list(watch_script(script).of(NarrowNorm))
    assert {Path(each.at).name for each in narrow} == {*made}
    zero = ParameterSeen(7, "first.weight", 6, 2, 5, library=False, updates=8, zero_gradient=8)
    log = Log(events=[*narrow], parameters=[zero], complete=True)
    log.optimizers = [OptimizerSeen(1, "Adam", MADE, [7])]
    (finding,) = no_gradient(log)
    assert Path(finding.where).name == (made or [MADE])[0]


LOOPED = """
net = nn.Linear(6, 2)
optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
x = torch.randn(90, 6)
y = (x[:, 0] > 0).long()
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), {size}, shuffle=True)
for epoch in range(3):
    {begin}
    for part, wanted in loader:
        scores = net(part)
        loss = F.cross_entropy(scores, wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        {each}
    {after}
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("size", "begin", "each", "after", "pitfall"),
    [
        (
            30,
            "seen = 0",
            "seen += 1",
            "right = (scores.argmax(1) == wanted).float().sum()  # cause\n    print(right / len(x))",
            "last_batch_score",
        ),
        (
            30,
            "",
            "",
            "best = scores.max(1).indices\n    print(f'{torch.eq(best, wanted).sum().item()} {(best == wanted).sum().item() / len(loader.dataset):.3f}')  # cause",
            "last_batch_score",
        ),
        (
            30,
            "",
            "guess = scores.argmax(-1)",
            "hits = (wanted == guess).sum().item()  # cause\n    accuracy = 100 * hits\n    share = hits / x.shape[0]\n    print(accuracy, share)",
            "last_batch_score",
        ),
        (30, "", "", "print((scores.argmax(1) == wanted).sum() / len(wanted))", ""),
        (30, "hits = 0", "hits += (scores.argmax(1) == wanted).sum().item()", "print(hits / len(x))", ""),
        (
            30,
            "all_of, truth = [], []",
            "all_of.append(scores.argmax(1)); truth.append(wanted)",
            "all_of, truth = torch.cat(all_of), torch.cat(truth)\n    print((all_of == truth).sum() / len(x))",
            "",
        ),
        (
            30,
            "got = truth = torch.zeros(0)",
            "got, truth = torch.cat([got, scores.argmax(1)]), torch.cat([truth, wanted])",
            "print((got == truth).sum() / len(x))",
            "",
        ),
        (
            30,
            "",
            "",
            "scores, wanted = net(x), y\n    print((scores.argmax(1) == wanted).sum() / len(x))",
            "",
        ),
        (90, "", "", "print((scores.argmax(1) == wanted).sum() / len(x))", ""),
    ],
)
def test_hits_of_the_last_batch_are_not_divided_by_the_rows_of_all(
    tmp_path: Path,
    size: int,
    begin: str,
    each: str,
    after: str,
    pitfall: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    text = LOOPED.format(size=size, begin=begin or "pass", each=each or "pass", after=after)
    told(tmp_path, text, pitfall, monkeypatch)


FITTED = """
def batches(rows, size):
    return torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*rows), size)
net, criterion = nn.Linear(6, 1), nn.MSELoss({reduction})
optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
x = torch.randn(120, 6)
y = x.sum(1, keepdim=True)
train_loader, test_loader = batches((x[:80], y[:80]), 20), batches((x[80:], y[80:]), {size})
def fit(loader):
    total = 0.0
    for rows, wanted in loader:
        loss = criterion(net(rows), wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item()
    return total{trained}
def validate(loader):
    total, seen = 0.0, 0
    with torch.no_grad():
        for rows, wanted in loader:
            loss = criterion(net(rows), wanted)
            {add}
            seen += len(rows)
    return {scored}
for epoch in range(2):
    {show}
"""
PLAIN = "total += loss.item()  # cause"
BESIDE = (
    "train_loss = fit(train_loader)\n    value, seen = validate(test_loader)\n    print(train_loss, value)"
)
AT_ONCE = "train_loss = fit(train_loader)\n    print(f'{train_loss:.3f} {validate(test_loader):.3f}')"
KEPT = "train_loss = fit(train_loader)\n    value = validate(test_loader)\n    history = dict(loss=train_loss)\n    history.update(train=train_loss, test=value)"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("trained", "add", "scored", "show", "size", "pitfall"),
    [
        (" / len(loader)", PLAIN, "total, seen", BESIDE, 10, "batch_mean_scores"),
        (
            " / len(loader)",
            "total += criterion(net(rows), wanted).item()  # cause",
            "total",
            AT_ONCE,
            10,
            "batch_mean_scores",
        ),
        (" / len(loader)", "total += float(loss)  # cause", "total", KEPT, 10, "batch_mean_scores"),
        ("", PLAIN, "total, seen", BESIDE, 10, ""),
        (" / len(loader)", PLAIN, "total / len(loader)", AT_ONCE, 10, ""),
        (" / len(loader)", "total += loss.item() * len(rows) / 40", "total", AT_ONCE, 10, ""),
        (" / len(loader)", PLAIN, "total", AT_ONCE, 40, ""),
        (
            " / len(loader)",
            PLAIN,
            "total",
            "train_loss = fit(train_loader)\n    value = validate(test_loader) / len(test_loader)\n    print(train_loss, value)",
            10,
            "",
        ),
        (
            " / len(loader)",
            PLAIN,
            "total",
            "train_loss = fit(train_loader)\n    value = validate(test_loader)\n    value /= len(test_loader)\n    print(train_loss, value)",
            10,
            "",
        ),
        (
            " / len(loader.dataset)",
            PLAIN,
            "total",
            "train_loss = fit(train_loader)\n    best = min(9.0, validate(test_loader))\n    print(train_loss)",
            10,
            "",
        ),
    ],
)
def test_a_sum_of_means_is_not_shown_beside_the_mean_of_the_training(
    tmp_path: Path,
    trained: str,
    add: str,
    scored: str,
    show: str,
    size: int,
    pitfall: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    summed = "'sum'" if "dataset" in trained else "'mean'"
    text = FITTED.format(
        reduction=f"reduction={summed}", trained=trained, add=add, scored=scored, show=show, size=size
    )
    if summed == "'sum'":
        text = text.replace("lr=1e-3", "lr=1e-5")
    told(tmp_path, text, pitfall, monkeypatch)


FEATURES = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Sequential(nn.Linear(6, 8), {norm}, nn.ReLU()), nn.Linear(8, 2)
    def forward(self, x):
        return self.head(self.body(x))
net, x = Net(), torch.randn(60, 6)
y = (x[:, 0] > 0).long()
def rows(size):
    return torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x), size)
"""
TRAINED = "optimizer = torch.optim.Adam(net.parameters(), 1e-3)\n" + looped(
    "loss = F.cross_entropy(net(x), y)"
)
OF_A_PART = """
with torch.no_grad():
    for size in (10, 20):
        print(np.concatenate([{call} for part, in rows(size)]).mean())  # cause
"""
OF_A_CLASS = """
class Features:
    def __init__(self, net): self.net = net
    @torch.inference_mode()
    def of(self, loader):
        kept = []
        for part, in loader:
            kept.append(self.net(part).cpu().numpy())  # cause
        return np.concatenate(kept)
features = Features(net)
print(features.of(rows(20)).mean() - features.of(rows(12)).mean())
"""
DRAWN = """
with torch.no_grad():
    pictures = [net.body(torch.randn(20, 6)).numpy() for _ in range(6)]
"""
AGAIN = """
loader, draws = rows(20), []
with torch.no_grad():
    for draw in range(5):
        draws.append([{call} for part, in loader])
"""
BATCH = "nn.BatchNorm1d(8)"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("norm", "text", "pitfall"),
    [
        (BATCH, TRAINED + OF_A_PART.format(call="net.body(part).numpy()"), "train_mode"),
        (BATCH, OF_A_PART.format(call="net(part).softmax(1).numpy()"), "train_mode"),
        (BATCH, OF_A_CLASS, "train_mode"),
        (BATCH, TRAINED + "net.eval()\n" + OF_A_PART.format(call="net.body(part).numpy()"), ""),
        ("nn.LayerNorm(8)", OF_A_CLASS, ""),
        ("nn.Dropout(0.2)", TRAINED + OF_A_PART.format(call="net.body(part).numpy()"), ""),
        (BATCH, TRAINED + DRAWN, ""),
        (
            "nn.Dropout(0.2)",
            "net.eval()\nfor each in net.modules():\n    each.train(isinstance(each, nn.Dropout))\n"
            + AGAIN.format(call="net(part).numpy()"),
            "",
        ),
    ],
)
def test_a_network_that_gives_features_is_in_evaluation_mode(
    tmp_path: Path, norm: str, text: str, pitfall: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    told(tmp_path, "import numpy as np\n" + FEATURES.format(norm=norm) + text, pitfall, monkeypatch)


SCORED = """
net = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 2))
head = nn.Linear(2, 2)
optimizer = torch.optim.Adam([*net.parameters(), *head.parameters()], lr=1e-3)
x, held_out = torch.randn(40, 6), torch.randn(160, 6)
y, wanted = (x[:, 0] > 0).long(), (held_out[:, 0] > 0).long()
def score(rows): {score}
for epoch in range(5):
    net.train()
    for _ in range(4):
        loss = F.cross_entropy(head(net(x)), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    net.eval()
    {evaluation}
"""
SALIENCY = """rows = held_out.clone().requires_grad_()
    net(rows)[:, 0].sum().backward()
    print(rows.grad.abs().mean(), optimizer.zero_grad())"""
ATTACK = """rows = held_out.clone().requires_grad_()
    slope, = torch.autograd.grad(F.cross_entropy(net(rows), wanted), rows)
    with torch.no_grad():
        print((net(rows + 0.1 * slope.sign()).argmax(1) == wanted).float().mean())"""
LATER = """kept = [net(part) for part in held_out.split(40)]
    optimizer.zero_grad()
    F.cross_entropy(torch.cat(kept), wanted).backward()
    optimizer.step()"""
FROZEN = """net.requires_grad_(False)
    print(net(held_out).argmax(1).float().mean())
    net.requires_grad_(True)"""
TEACHER = """teacher = nn.Linear(6, 2).eval()
    print(teacher(held_out).detach().mean())"""
TAUGHT = """if epoch == 4:
        student = nn.Linear(6, 2)
        teaching = torch.optim.Adam(student.parameters(), 1e-3)
        for _ in range(6):
            teaching.zero_grad()
            F.mse_loss(student(held_out), net(held_out).detach()).backward()
            teaching.step()"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("score", "evaluation", "pitfall"),
    [
        ("return net(rows)  # cause", "print((score(held_out).argmax(1) == wanted).float().mean())", True),
        (
            "pass",
            "losses = [F.cross_entropy(net(a), b).item() for a, b in zip(held_out.split(40), wanted.split(40))]  # cause",
            True,
        ),
        ("return net(rows).detach().softmax(1).numpy()  # cause", "print(score(held_out).mean())", True),
        ("return net(rows)", "with torch.no_grad():\n        print(score(held_out).mean())", False),
        ("return net(rows)", "with torch.inference_mode():\n        print(score(held_out).mean())", False),
        ("pass", SALIENCY, False),
        ("pass", ATTACK, False),
        ("pass", LATER, False),
        ("pass", FROZEN, False),
        ("pass", TEACHER, False),
        ("pass", TAUGHT, False),
        ("return net(rows)", "print(score(held_out[:1]).argmax(1))", False),
    ],
)
def test_an_evaluation_records_no_graph_that_nothing_is_differentiated_through(
    tmp_path: Path, score: str, evaluation: str, *, pitfall: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = SCORED.format(score=score, evaluation=evaluation)
    told(tmp_path, text, "graph_in_evaluation" if pitfall else "", monkeypatch)


def test_graphs_of_the_last_update_of_a_script_that_was_cut_short_might_have_been_used(
    tmp_path: Path,
) -> None:
    late = "kept = [net(part) for part in held_out.split(40) for _ in range(3)] if epoch == 4 else []"
    path = tmp_path / "train.py"
    path.write_text(BEGIN + SCORED.format(score="pass", evaluation=late))
    log = watch_script(path)
    assert [each.pitfall for each in graph_in_evaluation(log)] == ["graph_in_evaluation"]
    log.complete = False
    assert graph_in_evaluation(log) == []


WEIGHED = """
net, criterion = nn.Linear(6, 4), nn.CrossEntropyLoss()
optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
x, y = torch.randn(150, 6), torch.arange(150) % 4
loader = DataLoader(TensorDataset(x, y), batch_size={size}, shuffle=True)
loaders = {{"train": loader}}
def fit(data_loader, batch_size={size}):
    total, steps = 0.0, 0
    for number, (inputs, wanted) in enumerate(data_loader):
        optimizer.zero_grad()
        loss = criterion(net(inputs), wanted)
        loss.backward()
        optimizer.step()
        total += {added}
        steps += 1
    {after}
    return total
for epoch in range(3):
    fit(loaders["train"])
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("size", "added", "after", "pitfall"),
    [
        (20, "loss.item() * inputs.size(0)", "total = total / len(data_loader)  # cause", "batch_mean_scores"),
        (20, "len(wanted) * loss.item()", "total /= len(data_loader)  # cause", "batch_mean_scores"),
        (20, "loss.detach().item() * batch_size", "print(f'{total / len(data_loader):.3f}')  # cause", "batch_mean_scores"),
        (20, "loss.item() * inputs.shape[0]", "print(total / len(data_loader.dataset))", ""),
        (20, "loss.item() * inputs.size(0)", "print(total / len(data_loader) / batch_size)", ""),
        (20, "loss.item() * inputs.size(0)", "print(total / (len(data_loader) * batch_size))", ""),
        (20, "loss.item() * batch_size", "total /= len(data_loader)\n    total /= batch_size", ""),
        (20, "loss.item()", "print(total / len(data_loader))", ""),
        (20, "loss.item() * 1000", "print(total / len(data_loader))", ""),
        (1, "loss.item() * inputs.size(0)", "print(total / len(data_loader))", ""),
    ],
)  # fmt: skip
def test_a_sum_over_rows_is_divided_by_the_rows(
    tmp_path: Path, size: int, added: str, after: str, pitfall: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    told(tmp_path, WEIGHED.format(size=size, added=added, after=after), pitfall, monkeypatch)


JUDGED = """
net = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 1))
optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
x = torch.randn(160, 6)
y = (x[:, :1] + x[:, 1:2] > 0).float()
for step in range(12):
    optimizer.zero_grad()
    F.binary_cross_entropy_with_logits(4 * net(x[:80]), y[:80]).backward()
    optimizer.step()
net.eval()
with torch.no_grad():
    scores, truth = 4 * net(x[80:]), y[80:]
    {judged}
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("judged", "pitfall"),
    [
        ("guess = torch.round(scores)  # cause\n    print((guess == truth).float().mean())", "wrong_scores"),
        ("print(scores.round().eq(truth).sum() / len(truth))  # cause", "wrong_scores"),
        ("hits = truth == scores.detach().round()  # cause\n    print(hits.sum())", "wrong_scores"),
        ("print((torch.round(torch.sigmoid(scores)) == truth).sum())", ""),
        ("print(scores.sigmoid().round().eq(truth).sum())", ""),
        ("shown = torch.round(scores * 100) / 100\n    print(shown[:2], ((scores > 0) == truth.bool()).sum())", ""),
        ("print((scores.round() == (5 * x[80:, :1]).round()).sum())", ""),
        ("_, guess = torch.max(scores, 1)  # cause\n    print((guess == truth[:, 0]).sum())", "wrong_axis"),
        ("guess = scores.argmax(dim=1)  # cause\n    print((guess == truth.squeeze().long()).sum())", "wrong_axis"),
        ("guess = scores.data.max(1, keepdim=True)[1]  # cause\n    print(guess.eq(truth.view_as(guess)).sum())", "wrong_axis"),
        ("guess = torch.argmax(scores, -1).tolist()  # cause\n    from sklearn.metrics import accuracy_score\n    print(accuracy_score(truth[:, 0].tolist(), guess))", "wrong_axis"),
        ("best, place = scores.max(0)\n    print(best, (place == 3).sum())", ""),
        ("kind = scores.max(1).indices\n    print((kind == torch.zeros(80)).sum())", ""),
        ("two = torch.cat([-scores, scores], 1)\n    print((two.argmax(1) == truth[:, 0]).sum())", ""),
        ("value = scores.max(1).values\n    print(((value > 0) == truth[:, 0].bool()).sum())", ""),
    ],
)  # fmt: skip
def test_classes_are_not_taken_of_scores_that_hold_none(
    tmp_path: Path, judged: str, pitfall: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    told(tmp_path, JUDGED.format(judged=judged), pitfall, monkeypatch)


MEASURED = """
import sklearn.metrics
from sklearn.metrics import average_precision_score, classification_report, f1_score, precision_score, r2_score, recall_score, roc_auc_score
""" + JUDGED.replace("{judged}", "probs = torch.sigmoid(scores).flatten().numpy(); y_test = truth.flatten().numpy()\n    y_pred = (probs > 0.5).astype(int)\n    {judged}")  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    ("judged", "pitfall"),
    [
        ("print(roc_auc_score(y_test, y_pred))  # cause", "wrong_scores"),
        ("print(average_precision_score(y_test.tolist(), [int(p > 0.4) for p in probs]))  # cause", "wrong_scores"),
        ("print(sklearn.metrics.roc_auc_score(y_true=y_test, y_score=probs.round()))  # cause", "wrong_scores"),
        ("print(roc_auc_score(y_test, probs))", ""),
        ("print(average_precision_score(y_test, scores.numpy()), f1_score(y_test, y_pred))", ""),
        ("print(roc_auc_score(y_test[:8], [0, 1] * 4) if set(y_test[:8]) == {0, 1} else 0)", ""),
        ("shown = scores.flatten().numpy()\n    print(r2_score(shown, y_test))", ""),
        ("print(r2_score(probs, y_test))  # cause", "wrong_scores"),
        ("print(classification_report(y_pred, truth.flatten().int().tolist()))  # cause", "wrong_scores"),
        ("print(recall_score(y_pred.astype(int), y_test.astype(int)))  # cause", "wrong_scores"),
        ("print(r2_score(y_test, probs), recall_score(y_test, y_pred), classification_report(y_test, y_pred))", ""),
        ("print(precision_score(y_pred=y_pred, y_true=y_test), f1_score(y_pred, y_test))", ""),
        ("pred_labels, true_labels = y_pred, y_test\n    print(precision_score(true_labels, pred_labels))", ""),
    ],
)  # fmt: skip
def test_a_score_gets_what_is_true_and_what_is_predicted_as_it_takes_them(
    tmp_path: Path, judged: str, pitfall: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    told(tmp_path, MEASURED.format(judged=judged), pitfall, monkeypatch)


SHARES = """
net = nn.Linear(6, 2)
optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
x, held = torch.randn(90, 6), torch.randn(70, 6)
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, (x[:, 0] > 0).long()), 30, shuffle=True)
val_loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(held, (held[:, 0] > 0).long()), {size})
def score():
    net.eval()
    hits, n, part = 0, 0, 0.0
    with torch.no_grad():
        for rows, wanted in val_loader:
            {each}
    return {result}
for epoch in range(3):
    net.train()
    for rows, wanted in loader:
        loss = F.cross_entropy(net(rows), wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(score())
"""
HITS = "hits += (net(rows).argmax(1) == wanted).sum().item()"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("size", "each", "result", "pitfall"),
    [
        (20, f"n = wanted.size(0)  # cause\n            {HITS}", "100 * hits / n", "last_batch_score"),
        (20, "right = torch.eq(net(rows).max(1).indices, wanted)\n            n = len(rows)  # cause\n            hits += right.sum()", "hits.item() / n", "last_batch_score"),
        (20, "guess = net(rows).argmax(-1)\n            right = (guess == wanted).sum()\n            hits += right\n            n = rows.shape[0]  # cause", "float(hits) / n", "last_batch_score"),
        (20, "guess = net(rows).argmax(-1)\n            hits += int((wanted == guess).sum())\n            n = len(wanted)  # cause", "f'{hits / n:.3f}'", "last_batch_score"),
        (20, f"n += wanted.size(0)\n            {HITS}", "100 * hits / n", ""),
        (35, f"n = wanted.size(0)\n            {HITS}", "hits / n / len(val_loader)", ""),
        (70, f"n = wanted.size(0)\n            {HITS}", "hits / n", ""),
        (20, f"n = wanted.size(0)\n            {HITS}\n            part += n", "hits / part", ""),
        (20, "n = len(wanted)\n            hits = (net(rows).argmax(1) == wanted).sum().item()\n            part += hits / n * n", "part / len(held)", ""),
    ],
)  # fmt: skip
def test_hits_of_all_batches_are_a_share_of_the_rows_of_all(
    tmp_path: Path, size: int, each: str, result: str, pitfall: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    told(tmp_path, SHARES.format(size=size, each=each, result=result), pitfall, monkeypatch)


AFTERWARDS = """
net = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 1))
optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
x, y = torch.randn(160, 6), torch.randn(160, 1)
held, wanted = torch.randn(50, 6), torch.randn(50, 1)
for epoch in range(2):
    net.train()
    for rows in torch.randperm(160).split(32):
        loss = F.mse_loss(net(x[rows]), y[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
{after}
"""
PARTS = "    parts = torch.cat([net(each) for each in held.split(20)])  # cause\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("after", "pitfall"),
    [
        ("with torch.no_grad():\n    whole = net(held)  # cause\n" + PARTS + "print(F.mse_loss(whole, wanted), F.mse_loss(parts, wanted))", "train_mode"),
        ("with torch.no_grad():\n" + PARTS + "print(nn.L1Loss()(parts, wanted).item())", "train_mode"),
        ("@torch.inference_mode()\ndef predict(rows):\n    return net(rows)  # cause\ndone = [predict(each) for each in (held[:30], held[30:])]\nprint(F.smooth_l1_loss(torch.cat(done), wanted))", "train_mode"),
        ("net.eval()\nwith torch.no_grad():\n" + PARTS + "print(nn.L1Loss()(parts, wanted).item())", ""),
        ("with torch.no_grad():\n    draws = torch.stack([net(held) for _ in range(8)])\nprint(F.mse_loss(draws.mean(0), wanted))", ""),
        ("with torch.no_grad():\n    draws = [torch.cat([net(each) for each in held.split(20)]) for _ in range(4)]\nprint(F.mse_loss(sum(draws) / 4, wanted))", ""),
        ("with torch.no_grad():\n    for each in held.split(30): net(each)\n    net.eval()\n    print(F.mse_loss(net(held), wanted))", ""),
        ("with torch.no_grad():\n    again = torch.cat([net(each) for each in x.split(60)])\nprint(F.mse_loss(again, y))", ""),
    ],
)  # fmt: skip
def test_what_is_scored_at_the_end_was_computed_in_evaluation_mode(
    tmp_path: Path, after: str, pitfall: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    told(tmp_path, AFTERWARDS.format(after=after), pitfall, monkeypatch)


MOMENTS = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv1d(2, 8, 3, bias=False), {norm}, nn.ReLU(), nn.Flatten(), nn.Linear(48, 2))
    def forward(self, x):
        return self.body(x)
x = torch.randn(90, 2, 8)
y = (x[:, 0, 0] > 0).long()
net = Net()
{before}
optimizer = torch.optim.SGD([w for w in net.parameters() if w.requires_grad], lr=0.05, momentum=0)
for epoch in range(3):
    net.train()
    {each}
    for rows in torch.randperm(60).split(20):
        loss = F.cross_entropy(net(x[rows]), y[rows])
        optimizer.zero_grad()
        loss.backward()
        {second}
        optimizer.step()
{after}
net.eval()
with torch.no_grad():
    print((net(x[60:]).argmax(1) == y[60:]).float().mean())
"""
WITHOUT = "for m in net.modules():\n    if isinstance(m, nn.BatchNorm1d):\n        m.momentum = 0"
SHARPNESS = "net.body[1].momentum = 0; F.cross_entropy(net(x[rows] + 0.01), y[rows]).backward()\n        net.passes = getattr(net, 'passes', 0) + 1; net.body[1].momentum = 0.1 if net.passes % 3 else 0"
AGAIN = "for m in net.modules():\n    if hasattr(m, 'momentum'): m.reset_running_stats(); m.momentum = None\nwith torch.no_grad(): net(x[:60])"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("norm", "before", "each", "after", "pitfall"),
    [
        ("nn.BatchNorm1d(8)", WITHOUT + "  # cause", "", "", "unready_norm"),
        ("nn.BatchNorm1d(8, momentum=0.0)", "", "", "", "unready_norm"),
        ("nn.BatchNorm1d(8)", "", "setattr(net.body[1], 'momentum', 0)  # cause", "", "unready_norm"),
        ("nn.BatchNorm1d(8)", "", "", "", ""),
        ("nn.BatchNorm1d(8)", WITHOUT, "net.body[1].eval()", "", ""),
        ("nn.BatchNorm1d(8)", WITHOUT, "", "net.train()\n" + AGAIN, ""),
        ("nn.BatchNorm1d(8, momentum=0, track_running_stats=False)", "", "", "", ""),
        ("nn.BatchNorm1d(8, momentum=None)", "", "", "", ""),
        ("nn.BatchNorm1d(8)", "", "net.body[1].momentum = 0.1", "SHARP", ""),
    ],
)  # fmt: skip
def test_a_norm_without_momentum_is_frozen_in_evaluation_alone(
    tmp_path: Path,
    norm: str,
    before: str,
    each: str,
    after: str,
    pitfall: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    second = SHARPNESS if after == "SHARP" else ""
    text = MOMENTS.format(
        norm=norm, before=before, each=each, second=second, after=after.replace("SHARP", "")
    )
    text = text if "# cause" in text else text.replace("nn.Linear(48, 2))", "nn.Linear(48, 2))  # cause")
    told(tmp_path, text, pitfall, monkeypatch)
