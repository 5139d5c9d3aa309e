"""Runs over streams, as Python and recipes ask for them: their length, what is held out, and what cannot be used."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import snugfit as sf
from snugfit.errors import SnugfitWarning, UserError
from snugfit.recipe import Recipe, load_recipe
from snugfit.run.call_options import RunOptions
from snugfit.run.from_recipe import train_recipe
from snugfit.tasks.prepare import prepare
from snugfit.tracking.spool import read_events
from tests.unit.run.training.runs import points


def rows() -> Iterator[tuple[Tensor, Tensor]]:
    yield from points(30)


def train(data: Any, **settings: Any) -> Any:
    given = {"updates": 6, "global_batch": 4, "display": None, "output": None, "track": False, **settings}
    return sf.train(nn.Linear(2, 3), data, loss="cross_entropy", **given)


def test_the_first_rows_are_held_out_and_never_trained_on() -> None:
    read: list[Tensor] = []

    def collate(examples: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, ...]:
        inputs, labels = (torch.stack(each) for each in zip(*examples, strict=True))
        read.append(inputs)
        return inputs, labels

    result = train(
        sf.Stream(rows, buffer=4),
        validation=7,
        updates=23,
        metrics="accuracy",
        evaluate_every=23,
        evaluate_batch=7,
        collate=collate,
    )
    assert result.updates == 23 and "accuracy" in result.last["metrics"]
    assert "epoch" not in repr(result), "a stream has none"
    first = [inputs for inputs, _ in points(30)][:7]
    windows = [inputs for batch in read if len(batch) == 4 for inputs in batch]
    held_out = [inputs for batch in read if len(batch) == 7 for inputs in batch]
    assert held_out and not any(torch.equal(one, other) for one in first for other in windows)
    assert all(any(torch.equal(one, other) for other in first) for one in held_out)


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"updates": None}, "updates: is missing, and data (rows) is a stream"),
        ({"validation": 0.1}, "got 0.1, and data (rows) is a stream"),
        ({"validation": 0}, "got 0, and data (rows) is a stream"),
        ({"validation": 30}, "takes the first 30 rows, and rows has 30"),
        ({"batch_tokens": 64}, "batch_tokens: needs the tokens of each example"),
    ],
)
def test_what_a_stream_has_not_is_asked_for(settings: dict[str, Any], problem: str) -> None:
    with pytest.raises(UserError) as error:
        train(rows, **settings)
    assert problem in str(error.value)


@pytest.mark.parametrize(
    ("make", "problem"),
    [(rows, "can be read once"), (lambda: lambda: iter(()), "has no rows"), (lambda: 3, "is a int")],
    ids=["a generator", "an empty one", "a number"],
)
def test_what_is_no_stream_is_told(make: Callable[[], Any], problem: str) -> None:
    with pytest.raises(UserError) as error:
        train(make())
    assert problem in str(error.value)


CODE = """
import torch
from torch import nn

def build():
    return nn.Linear(2, 3)

def rows():
    yield from ((torch.ones(2) * number, torch.tensor(number % 3)) for number in range(9))

class Again:
    def __iter__(self):
        return rows()

def again():
    return Again()
"""
RECIPE = """
name: own
task: python
model: own:build
data: {train: own:ROWS, validation: null}
train: {updates: 5, global_batch: 4}
optimizer: {sgd: {learning_rate: 0.1}}
"""


@pytest.mark.parametrize("name", ["rows", "again"])
def test_a_recipe_streams_what_a_function_gives(name: str, tmp_path: Path) -> None:
    module = f"streams_of_{name}"
    (tmp_path / f"{module}.py").write_text(CODE)
    (tmp_path / "own.yaml").write_text(RECIPE.replace("ROWS", name).replace("own:", f"{module}:"))
    task = prepare(load_recipe(tmp_path / "own.yaml"))
    examples = task.material.train
    labels = [int(examples[number][0][0]) for number in range(len(examples))]
    assert len(labels) == 20 and sorted(labels[:9]) == sorted(labels[9:18]) == list(range(9))
    assert task.data["unit"] == "streamed examples"
    with pytest.raises(UserError) as error:
        prepare(load_recipe(tmp_path / "own.yaml", ["data.validation=0.1"]))
    assert "it has no length" in str(error.value)


def recipe_that_warns(tmp_path: Path, function: str, behind: str = "") -> Recipe:
    """A recipe of which a function warns as it begins, and then does what is given."""
    module = f"functions_that_warn_in_{function}"
    imports = "import warnings\nfrom snugfit.errors import SnugfitWarning\n"
    warn = f"    warnings.warn('row 4 is left out.', SnugfitWarning)\n{behind}"
    code = CODE.replace(f"def {function}():\n", f"def {function}():\n{warn}")
    (tmp_path / f"{module}.py").write_text(imports + code)
    text = RECIPE.replace("ROWS", "rows").replace("own:", f"{module}:")
    (tmp_path / "own.yaml").write_text(text + "plan: {device: cpu}\ntrack: {mlflow: false}\n")
    return load_recipe(tmp_path / "own.yaml", [f"output={tmp_path / 'runs'}", "train.updates=1"])


def test_a_warning_about_the_first_rows_is_an_event_of_the_run(
    tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    result = train_recipe(recipe_that_warns(tmp_path, "rows"), RunOptions(plan=False))
    assert result.run_dir is not None
    events = read_events(Path(result.run_dir) / "events.jsonl")
    said = [event["message"] for event in events if event["event"] == "warning"]
    assert "row 4 is left out." in said
    assert not [each for each in recwarn if issubclass(each.category, SnugfitWarning)]


def test_a_warning_is_said_where_the_run_ends_before_there_are_events(tmp_path: Path) -> None:
    recipe = recipe_that_warns(tmp_path, "build", "    raise ValueError('no file')\n")
    with pytest.warns(SnugfitWarning, match="row 4 is left out"), pytest.raises(UserError, match="no file"):
        train_recipe(recipe, RunOptions(plan=False))
