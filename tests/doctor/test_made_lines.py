"""The lines that make what is found elsewhere: a reshape, gradients, targets and rows, behind the loss or the training that shows them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from textwrap import dedent

import pytest

from snugfit.doctor.observe.cause_trails import decided_lines
from snugfit.doctor.observe.idle_lines import reference_that_learns
from snugfit.doctor.observe.log import Log, OptimizerSeen
from snugfit.doctor.observe.made_lines import (
    line_of_equal_labels,
    line_of_gradients,
    line_of_raw_rows,
    line_of_raw_targets,
    line_of_reshape,
    line_that_gives_sides,
)
from snugfit.doctor.observe.trails import Trails
from tests.doctor.test_trails import lines

CAUSE, SEEN = "# cause", "# seen"
_Find = Callable[[Trails, tuple[str, int]], tuple[str, int] | None]


@pytest.mark.parametrize(
    ("find", "text"),
    [
        (
            line_of_reshape,
            """
            def loss_of(scores, target):
                scores = scores.reshape(-1, CLASSES)  # cause
                return F.cross_entropy(scores, target.reshape(-1))  # seen
            """,
        ),
        (line_of_reshape, "loss = F.cross_entropy(scores.reshape(-1, 4), target)  # seen"),
        (
            line_of_gradients,
            """
            def penalty(net, rows):
                grads = torch.autograd.grad(net(rows).sum(), rows)[0]  # cause
                return (grads.norm(dim=1) - 1).pow(2).mean()
            term = penalty(net, rows)
            loss = net(rows).mean() + term  # seen
            """,
        ),
        (
            line_of_gradients,
            """
            grads = torch.autograd.grad(net(rows).sum(), rows, create_graph=True)[0]
            term = grads.norm().detach()
            loss = net(rows).mean() + term  # seen
            """,
        ),
        (
            line_that_gives_sides,
            """
            class Siamese(nn.Module):
                def forward(self, one, other):
                    return p, q, z, w  # cause
            def D(p, z):
                return -F.cosine_similarity(p, z).mean()  # seen
            p1, p2, z1, z2 = model(one, other)
            loss = D(p1, z2) + D(p2, z1)
            """,
        ),
        (
            line_of_equal_labels,
            """
            def batch(data, at):
                x = torch.stack([data[i : i + 8] for i in at])
                y = torch.stack([data[i : i + 8] for i in at])  # cause
                return x, y
            loss = F.cross_entropy(scores, targets)  # seen
            """,
        ),
        (
            line_of_equal_labels,
            """
            def batch(data, at):
                x = torch.stack([data[i : i + 8] for i in at])
                y = torch.stack([data[i + 1 : i + 9] for i in at])
                return x, y
            loss = F.cross_entropy(scores, targets)  # seen
            """,
        ),
        (
            line_of_raw_rows,
            """
            class Pictures(Dataset):
                def __getitem__(self, i):
                    picture = self.data[i].float()  # cause
                    return (picture - 0.5) / 0.3, self.labels[i]
            def train(model, loader):
                for step, (data, target) in enumerate(loader):
                    loss = F.cross_entropy(model(data), target)  # seen
            loader = DataLoader(Pictures(9), 3)
            train(model, loader)
            """,
        ),
        (
            line_of_raw_targets,
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
    ],
)
def test_what_is_found_is_said_at_the_line_that_makes_it(find: _Find, text: str, tmp_path: Path) -> None:
    path = tmp_path / "script.py"
    path.write_text(dedent(text))
    (seen,) = lines(path, SEEN)
    cause = [None, *lines(path, CAUSE)][-1]
    assert find(Trails([str(path)]), seen) == cause


@pytest.mark.parametrize("in_function", [True, False])
def test_a_test_of_the_rate_is_the_cause_where_the_training_is_a_function_that_knows_nothing_of_it(
    tmp_path: Path, in_function: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    training = "def fit():\n    o = SGD()\n" if in_function else "model = 1\no = SGD()\n"
    (tmp_path / "s.py").write_text("def find():\n    o = Adam()\n" + training)
    made = [OptimizerSeen(each, "SGD", f"s.py:{2 * each}", [7]) for each in (1, 2)]
    decided = decided_lines(Log(optimizers=made), [str(tmp_path / "s.py")])
    assert decided == ({"range_test_kept s.py:4": "s.py:2"} if in_function else {})


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
