"""The statements from which what a line reads comes: through functions, loops, data sets and other modules of a script's."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest

from snugfit.doctor.observe.causes.cause_trails import line_of_shared_rows, line_of_targets
from snugfit.doctor.observe.source.trails import Trails

CAUSE, SCORED, TRAINED = "# cause", "# scored", "# trained"


def lines(path: Path, mark: str) -> list[tuple[str, int]]:
    """Return the lines of a file that have a mark."""
    text = path.read_text().splitlines()
    return [(str(path), number) for number, line in enumerate(text, start=1) if mark in line]


@pytest.mark.parametrize(
    "text",
    [
        """
        rows = load()
        train, _ = random_split(rows, [400, 100])
        _, valid = random_split(rows, [400, 100])  # cause
        for x, y in DataLoader(train, 40, shuffle=True):
            loss = net(x)  # trained
        print(sum(net(x) for x, y in DataLoader(valid)))  # scored
        """,
        """
        frame = load()
        both = pd.concat([frame, frame[frame.y == 1].sample(300)])  # cause
        train, test = train_test_split(both)
        numbers = lambda part: (torch.tensor(part.values), part.y)
        x, y = numbers(train)
        xv, yv = numbers(test)
        for rows in torch.randperm(len(x)).split(50):
            loss = net(x[rows])  # trained
        print(net(xv).argmax(1) == yv)  # scored
        """,
        """
        X = load()
        for a, b in KFold(3).split(X):
            xt, xv = X, X[b]  # cause
            for rows in batches(len(xt)):
                loss = net(torch.tensor(xt[rows]))  # trained
            print(net(torch.tensor(xv)))  # scored
        """,
        """
        def loaders(train, test):
            return DataLoader(train, 32, shuffle=True), DataLoader(test, 32)
        class Trainer:
            def __init__(self, net, data):
                self.net = net
                self.train_loader, self.valid_loader = loaders(data, data)  # cause
            def fit(self):
                for x, y in self.train_loader:
                    loss = self.net(x)  # trained
            def score(self):
                for x, y in self.valid_loader:
                    print(self.net(x))  # scored
        table = load()
        Trainer(net, Rows(table)).fit()
        """,
    ],
)
def test_rows_that_are_scored_leave_those_of_the_training_at_the_line_that_takes_them(
    tmp_path: Path, text: str
) -> None:
    script = tmp_path / "train.py"
    script.write_text(dedent(text))
    shared = line_of_shared_rows(Trails([str(script)]), lines(script, SCORED)[0], lines(script, TRAINED)[0])
    assert [shared] == lines(script, CAUSE)


def test_the_target_of_a_row_is_followed_into_the_data_set_of_another_module(tmp_path: Path) -> None:
    script, module = tmp_path / "train.py", tmp_path / "windows.py"
    module.write_text(
        dedent(
            """
            class Windows(Dataset):
                def __init__(self, values):
                    self.values = values
                def __getitem__(self, i):
                    x = self.values[i : i + 24]
                    y = self.values[i + 23, 0]  # cause
                    return x, y
            """
        )
    )
    script.write_text(
        dedent(
            """
            from windows import Windows
            loader = DataLoader(Windows(table[:800]), 32)
            for x, y in loader:
                loss = mse(net(x), y)  # scored
            """
        )
    )
    trails = Trails([str(script), str(module)])
    assert [line_of_targets(trails, lines(script, SCORED)[0])] == lines(module, CAUSE)


def test_a_function_that_calls_itself_has_an_end(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("def rows():\n    return rows()\nloss = net(rows())\n")
    assert Trails([str(script)]).back(str(script), 3) == []
