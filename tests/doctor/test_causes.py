"""Findings are said at the statement that causes them, with the way from there to where they were seen: back through models, data sets and settings, or on to what keeps a loss."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest

from snugfit.doctor.findings import Certainty, Finding
from snugfit.doctor.observe.causes.causes import Causes, way_of
from snugfit.doctor.observe.causes.evaluations import line_of_evaluation
from snugfit.doctor.observe.events.log import Log
from snugfit.doctor.observe.source.idle_lines import reference_that_learns
from snugfit.doctor.observe.source.trails import MOST_CALLS, MOST_STEPS, Trails
from tests.doctor.test_trails import lines

CAUSE, SEEN = "# cause", "# seen"


@pytest.mark.parametrize(
    ("pitfall", "text"),
    [
        (
            "wrong_axis",
            """
            def loss_of(scores, target):
                scores = scores.reshape(-1, CLASSES)  # cause
                return F.cross_entropy(scores, target.reshape(-1))  # seen
            """,
        ),
        ("wrong_axis", "loss = F.cross_entropy(scores.reshape(-1, 4), target)  # seen"),
        (
            "best_not_copied",
            """
            best, weights = 0.0, None
            for epoch in range(9):
                if score(net) > best:
                    best = score(net)
                    weights = net.state_dict()  # cause
            net.load_state_dict(weights)  # seen
            """,
        ),
        ("best_not_copied", "target.load_state_dict(net.state_dict())  # seen"),
        (
            "end_never_scored",
            """
            BOS, EOS = 1, 2
            PAD = EOS  # cause
            loss = net(**batch).loss  # seen
            """,
        ),
        (
            "constant_term",
            """
            def penalty(net, rows):
                grads = torch.autograd.grad(net(rows).sum(), rows)[0]  # cause
                return (grads.norm(dim=1) - 1).pow(2).mean()
            term = penalty(net, rows)
            loss = net(rows).mean() + term  # seen
            """,
        ),
        (
            "constant_term",
            """
            grads = torch.autograd.grad(net(rows).sum(), rows, create_graph=True)[0]
            term = grads.norm().detach()  # cause
            loss = net(rows).mean() + term  # seen
            """,
        ),
        (
            "target_gradients",
            """
            class Siamese(nn.Module):
                def forward(self, one, other):
                    return p, q, z, w  # cause
            def D(p, z):
                return -F.cosine_similarity(p, z).mean()  # seen
            model = Siamese()
            p1, p2, z1, z2 = model(one, other)
            loss = D(p1, z2) + D(p2, z1)
            """,
        ),
        (
            "shifted_labels",
            """
            def batch(data, at):
                x = torch.stack([data[i : i + 8] for i in at])
                y = torch.stack([data[i : i + 8] for i in at])  # cause
                return x, y
            inputs, targets = batch(data, at)
            loss = F.cross_entropy(net(inputs), targets)  # seen
            """,
        ),
        (
            "unscaled_inputs",
            """
            class Pictures(Dataset):
                def __getitem__(self, i):
                    picture = self.data[i].float()  # cause
                    return picture, self.labels[i]
            def train(model, loader):
                for step, (data, target) in enumerate(loader):
                    loss = F.cross_entropy(model(data), target)  # seen
            loader = DataLoader(Pictures(9), 3)
            train(model, loader)
            """,
        ),
        (
            "growing_graph",
            """
            class Record:
                def add(self, loss):
                    self.losses.append(loss)  # cause
            loss = criterion(net(x), y)
            loss.backward()  # seen
            record.add(loss)
            """,
        ),
        (
            "learning_rate",
            """
            args = TrainingArguments(
                output_dir="out",
                learning_rate=5e-2,  # cause
            )
            trainer = Trainer(model=net, args=args)
            trainer.train()  # seen
            """,
        ),
        (
            "unmasked_padding",
            """
            def collate(rows):
                ids = pad_sequence(rows)
                return {"input_ids": ids, "labels": ids}  # cause
            trainer = Trainer(net, data_collator=collate)
            trainer.train()  # seen
            """,
        ),
        (
            "unmasked_padding",
            """
            class Rows(Dataset):
                def __getitem__(self, i):
                    return {"input_ids": self.ids[i], "labels": self.tags[i]}
            def collate(rows):
                batch = {"input_ids": [], "labels": []}  # cause
                for row in rows:
                    gap = 32 - len(row["input_ids"])
                    batch["input_ids"].append(row["input_ids"] + [tokenizer.pad_token_id] * gap)
                    batch["labels"].append(row["labels"] + [-100] * gap)
                return {key: torch.tensor(value) for key, value in batch.items()}
            trainer = Trainer(net, train_dataset=Rows(), data_collator=collate)
            trainer.train()  # seen
            """,
        ),
        (
            "unmasked_padding",
            """
            def collate(rows):
                batch = {"input_ids": [], "attention_mask": [], "labels": []}
                for row in rows:
                    fill(batch, row)
                return batch
            for batch in DataLoader(rows, 8, collate_fn=collate):
                scores = net(batch["input_ids"]).mean(1)  # cause
                loss = criterion(scores, batch["labels"])  # seen
            """,
        ),
        (
            "softmax_twice",
            """
            class Net(nn.Module):
                def forward(self, x):
                    return self.head(x).softmax(-1)  # cause
            class Fitter:
                def __init__(self, model):
                    self.model = model
                def fit(self, x, y):
                    scores = self.model(x)
                    loss = F.cross_entropy(scores.view(-1, 4), y.softmax(-1))  # seen
            Fitter(Net()).fit(x, y)
            """,
        ),
        (
            "wrong_axis",
            """
            class Net(nn.Module):
                def forward(self, x):
                    x = x.flatten(1)
                    return self.lstm(x)  # seen
            """,
        ),
        (
            "unscaled_targets",
            """
            class Trainer:
                def __init__(self, loader):
                    self.loader = loader
                def fit(self):
                    for x, y in self.loader:
                        loss = F.mse_loss(self.model(x), y)  # seen
            x_train, y_train = windows((part - mean) / std)[0], windows(part)[1]  # cause
            Trainer(DataLoader(TensorDataset(x_train, y_train))).fit()
            """,
        ),
        (
            "sees_the_future",
            """
            class Tagger(nn.Module):
                def __init__(self):
                    self.rnn = nn.GRU(4, 8, batch_first=True, bidirectional=True)  # cause
                def forward(self, x):
                    h, _ = self.rnn(x)  # seen
                    return self.out(h)
            """,
        ),
        (
            "sees_the_future",
            """
            class Tagger(nn.Module):
                def __init__(self):
                    self.rnn = nn.GRU(4, 8, bidirectional=False)
                def forward(self, x):
                    return self.rnn(x.flip(1))[0]  # seen
            """,
        ),
    ],
)
def test_what_is_found_is_said_at_the_line_that_makes_it(pitfall: str, text: str, tmp_path: Path) -> None:
    path = tmp_path / "script.py"
    path.write_text(dedent(text))
    (seen,) = lines(path, SEEN)
    cause = [seen, *lines(path, CAUSE)][-1]
    way = way_of(Trails([str(path)]), pitfall, seen)
    assert (way[0], way[-1]) == (cause, seen)


def test_a_finding_keeps_the_way_from_its_cause(tmp_path: Path) -> None:
    path = tmp_path / "s.py"
    text = "def penalty():\n    slope = size(rate).item()\n    return slope\nloss = penalty() + score\nloss.backward()\n"
    path.write_text(text)
    seen = Finding("constant_term", Certainty.LIKELY, "no graph", "s.py:5", ("seen 9 times",))
    placed = Causes(Log(sources={"s.py": str(path)})).placed(seen)
    assert (placed.where, placed.way) == ("s.py:2", ("s.py:2", "s.py:3", "s.py:5"))
    assert placed.details == ("caused at s.py:2, by way of s.py:3, seen at s.py:5", "seen 9 times")
    assert placed.as_dict()["way"] == placed.way


IGNORED = "criterion = nn.CrossEntropyLoss(ignore_index=PAD)"


@pytest.mark.parametrize(
    ("fix", "text"),
    [
        (
            IGNORED,
            """
            def step(net, batch, loss_fn):
                return loss_fn(net(batch[:, :-1]), batch[:, 1:])  # seen
            criterion = nn.CrossEntropyLoss()  # cause
            step(net, batch, criterion).backward()
            """,
        ),
        (
            IGNORED,
            """
            class Trainer:
                def __init__(self, net):
                    self.net, self.criterion = net, nn.NLLLoss(reduction="mean")  # cause
                def step(self, x, y):
                    return self.criterion(self.net(x), y)  # seen
            """,
        ),
        (IGNORED, "loss = nn.CrossEntropyLoss()\nvalue = F.cross_entropy(net(x), y)  # seen"),
        (IGNORED, "criterion = nn.CrossEntropyLoss(ignore_index=3)\nvalue = criterion(net(x), y)  # seen"),
        (
            "labels[mask == 0] = -100",
            "criterion = nn.CrossEntropyLoss()\nvalue = criterion(net(x), y)  # seen",
        ),
    ],
)
def test_a_loss_that_leaves_no_label_out_is_named_where_it_is_made(
    fix: str, text: str, tmp_path: Path
) -> None:
    path = tmp_path / "s.py"
    path.write_text(dedent(text))
    (seen,) = lines(path, SEEN)
    cause = [seen, *lines(path, CAUSE)][-1]
    finding = Finding("scored_padding", Certainty.LIKELY, "padding", f"s.py:{seen[1]}", (), fix)
    assert Causes(Log(sources={"s.py": str(path)})).placed(finding).where == f"s.py:{cause[1]}"


@pytest.mark.parametrize(
    "text",
    [
        """
        def distil(scores, soft):
            return F.kl_div(scores.log_softmax(1), soft.softmax(1))  # seen
        kept = [teacher(x) for x, _ in loader]
        for step, (x, y) in enumerate(loader):
            soft = kept[step]  # cause
            loss = distil(net(x), soft)
        """,
        """
        class Distiller:
            def training_step(self, batch, batch_idx):
                soft = self.kept[batch_idx].softmax(1)  # cause
                loss = self.loss(self.net(batch), soft)  # seen
        """,
        """
        for i, x in enumerate(tqdm(loader)):
            wanted, weight = targets[i], 1.0  # cause
            loss = F.mse_loss(net(x), wanted)  # seen
        """,
        """
        picked = order[:32]
        rows, wanted = inputs[picked], targets[picked]
        loss = F.mse_loss(net(rows), wanted)  # seen
        """,
        """
        class Rows(Dataset):
            def __getitem__(self, i):
                return self.inputs[i], self.targets[i]
        for step, (rows, wanted) in enumerate(DataLoader(Rows(), 8)):
            loss = F.mse_loss(net(rows), wanted)  # seen
        """,
    ],
)
def test_what_is_taken_by_the_number_of_a_batch_is_named_where_rows_do_not_match(
    text: str, tmp_path: Path
) -> None:
    path = tmp_path / "s.py"
    path.write_text(dedent(text))
    (seen,) = lines(path, SEEN)
    cause = [seen, *lines(path, CAUSE)][-1]
    finding = Finding("mismatched_rows", Certainty.LIKELY, "other rows", f"s.py:{seen[1]}")
    assert Causes(Log(sources={"s.py": str(path)})).placed(finding).where == f"s.py:{cause[1]}"


@pytest.mark.parametrize(
    "text",
    [
        """
        def scores(net, x):
            return net(x)  # seen
        for step in range(9):
            scores(net, x).sum().backward()
        for part in held_out:
            right += scores(net, part) == part  # cause
        """,
        """
        class Episodes:
            def relate(self, x):
                return self.net(x)  # seen
            def run(self):
                for episode in range(9):
                    loss = self.relate(self.draw()).mean()
                    loss.backward()
                    for other in self.held_out:
                        print(self.relate(other))  # cause
        """,
        """
        def scores(net, x):
            return net(x)  # seen
        for step in range(9):
            loss = scores(net, x).sum()
            print(scores(net, held_out))
            loss.backward()
        """,
    ],
)
def test_a_test_of_a_function_that_trains_too_is_known_by_its_loop(text: str, tmp_path: Path) -> None:
    path = tmp_path / "s.py"
    path.write_text(dedent(text))
    (seen,) = lines(path, SEEN)
    cause = [seen, *lines(path, CAUSE)][-1]
    assert line_of_evaluation(Trails([str(path)]), seen) == cause


@pytest.mark.parametrize("callers", [{}, {"s.py:2": ["s.py:9"]}])
def test_calls_that_were_seen_are_followed_and_no_others(
    callers: dict[str, list[str]], tmp_path: Path
) -> None:
    path = tmp_path / "s.py"
    path.write_text(
        dedent(
            """\
            class Net(Module):
                def forward(self, idx, targets):
                    return cross_entropy(self.head(idx), targets)
            def pair(data):
                x, y = data[:9], data[0:9]
                return x, y
            def score(net, data):
                y = data[1:]
                return net(data[:9], y)
            net = Net()
            score(net, rows)
            loss = net(*pair(rows))
            """
        )
    )
    seen = Finding("shifted_labels", Certainty.LIKELY, "alike", "s.py:3")
    placed = Causes(Log(sources={"s.py": str(path)}, callers=callers)).placed(seen)
    assert placed.where == ("s.py:8" if callers else "s.py:5")


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("reference = policy\nopt = Adam(policy.parameters())\nscore(policy, reference)", 1),
        ("reference = copy.deepcopy(policy)\nopt = Adam(policy.parameters())\nscore(policy, reference)", 0),
        ("opt = Adam(model.parameters())\nteacher = model\nstudent = Net()\ndistil(student, teacher)", 0),
        (
            "reference = policy\npolicy = copy.deepcopy(policy)\nopt = Adam(policy.parameters())\nscore(policy, reference)",
            0,
        ),
    ],
)
def test_a_reference_is_the_model_itself_where_that_goes_on_learning(
    text: str, line: int, tmp_path: Path
) -> None:
    (tmp_path / "script.py").write_text(text)
    found = reference_that_learns(str(tmp_path / "script.py"))
    assert (found.line if found else 0) == line


def test_a_way_through_a_large_source_has_an_end(tmp_path: Path) -> None:
    path = tmp_path / "s.py"
    names = "\n".join(
        f"def f{k}(x, y=0):\n    return f{k + 1}(x + x, y) + f{k + 2}(y, x)" for k in range(300)
    )
    path.write_text(f"{names}\nloss = f0(f1(rows), f2(rows))\nloss.backward()\n")
    trails = Trails([str(path)])
    assert way_of(trails, "constant_term", (str(path), 602))[0] == (str(path), 601)
    assert len(trails.back(str(path), 602, wide=True)) <= MOST_STEPS + MOST_CALLS
