"""The code of functions and classes: what changes is named, what does not decide anything is not."""

from __future__ import annotations

import functools
import importlib
import linecache
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn

from snugfit.run.identity.source_code import code_of, code_of_classes, module_lines
from snugfit.system.digest import NO_DIGEST

_SOURCE = """
import types
import torch

GAMMA = 2.0
calls = 0
smoothing = 0.1
weights = {"a": 1.0, "b": (2.0, 3.0)}
settings = types.SimpleNamespace(scale=1.0, unread=1.0)
place = "cuda:0"
records = []
rank = 0

def helper(x):
    return x * 2  # twice

def loss(outputs, batch):
    global calls
    calls += 1
    return helper(outputs) ** GAMMA

def make(weight):
    def inner(outputs, batch):
        return outputs * weight
    return inner

class Loss:
    def __init__(self, gamma=1.0):
        self.gamma = gamma
    def __call__(self, outputs, batch):
        return helper(outputs) * self.gamma

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(2, 2)
    def forward(self, x):
        return self.fc(x)

short = lambda outputs, batch: outputs

def reads(outputs, batch, power=GAMMA):
    "Reads what stands above."
    records.append(rank)
    return outputs.to(place) * smoothing * weights["a"] * settings.scale ** power

class Counts:
    def __init__(self, calls=0):
        self.calls = calls
    def __call__(self, outputs, batch):
        self.calls += 1
        return outputs
"""


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., ModuleType]]:
    """Writes the module with pieces replaced, and imports it anew."""
    monkeypatch.syspath_prepend(tmp_path)
    # a module of the same second and size would be taken for the one that was compiled before
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def write(*replaced: tuple[str, str]) -> ModuleType:
        source = _SOURCE
        for old, new in replaced:
            assert old in source
            source = source.replace(old, new)
        (tmp_path / "my_losses.py").write_text(source)
        sys.modules.pop("my_losses", None)
        importlib.invalidate_caches()
        return importlib.import_module("my_losses")

    yield write
    sys.modules.pop("my_losses", None)


def _changed(one: dict[str, Any], other: dict[str, Any]) -> set[str]:
    return {name for name in {*one, *other} if one.get(name) != other.get(name)}


@pytest.mark.parametrize(
    ("edit", "named"),
    [
        (("helper(outputs) **", "helper(outputs) *"), {"my_losses.loss"}),
        (("x * 2 ", "x * 3 "), {"my_losses.helper"}),
        (("GAMMA = 2.0", "GAMMA = 3.0"), {"my_losses.GAMMA"}),
        (("  # twice", "  # two times"), set()),
        (("calls = 0", "calls = 5"), set()),
        (("return self.fc(x)", "return self.fc(x) * 2"), set()),
    ],
)
def test_an_edit_names_the_part_it_is_in(written: Any, edit: tuple[str, str], named: set[str]) -> None:
    before = code_of(written().loss)
    assert _changed(before, code_of(written(edit).loss)) == named
    assert before["function"] == "my_losses.loss"


@pytest.mark.parametrize(
    ("edit", "named"),
    [
        (("smoothing = 0.1", "smoothing = 0.2"), {"my_losses.smoothing"}),
        (('"b": (2.0, 3.0)', '"b": (2.0, 4.0)'), {"my_losses.weights"}),
        (("scale=1.0", "scale=2.0"), {"my_losses.settings.scale"}),
        (("GAMMA = 2.0", "GAMMA = 3.0"), {"my_losses.reads argument power"}),
        (("unread=1.0", "unread=2.0"), set()),
        (('"cuda:0"', '"cpu"'), set()),
        (("records = []", "records = [1]"), set()),
        (("rank = 0", "rank = 1"), set()),
    ],
)
def test_a_plain_global_counts_where_it_is_read_and_no_function_changes_it(
    written: Any, edit: tuple[str, str], named: set[str]
) -> None:
    before = code_of(written().reads)
    assert _changed(before, code_of(written(edit).reads)) == named


@pytest.mark.parametrize(
    "edit",
    [
        ('"Reads what stands above."', '"""Reads."""  # a word more'),
        (
            "def reads(outputs, batch, power=GAMMA):",
            "\n\ndef reads(\n    outputs,\n    batch,\n    power=(GAMMA),\n):",
        ),
        ('weights["a"]', "weights['a']"),
    ],
)
def test_layout_comments_and_docstrings_are_no_change(written: Any, edit: tuple[str, str]) -> None:
    before = code_of(written().reads)
    assert code_of(written(edit).reads) == before
    assert code_of(written(("smoothing * weights", "smoothing + weights")).reads) != before


def test_what_an_object_counts_when_it_is_called_is_no_setting(written: Any) -> None:
    module = written()
    assert code_of(module.Counts(0)) == code_of(module.Counts(5))
    assert code_of(module.Loss(0.5)) != code_of(module.Loss(0.25))


def test_a_frozen_teacher_that_a_loss_reads_counts_with_its_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    def code(value: float) -> dict[str, Any]:
        teacher = nn.Linear(2, 2).requires_grad_(False)
        nn.init.constant_(teacher.weight, value)
        nn.init.zeros_(teacher.bias)
        monkeypatch.setitem(globals(), "criterion", teacher)
        return code_of(_uses_a_global)

    assert _changed(code(1.0), code(2.0)) == {f"{__name__}.criterion weights"}
    assert code(1.0) == code(1.0)


def test_classes_and_functions_of_a_notebooks_cells_are_compared_by_their_syntax(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As IPython runs a cell: in a `__main__` without a file, with its text in `linecache` under a name of its own."""
    monkeypatch.setitem(sys.modules, "__main__", ModuleType("__main__"))

    def ran(cell: str, number: int) -> dict[str, Any]:
        name = f"<ipython-input-{number}-0123456789ab>"
        monkeypatch.setitem(linecache.cache, name, (len(cell), None, cell.splitlines(keepends=True), name))
        names: dict[str, Any] = {"__name__": "__main__", "nn": nn}
        exec(compile(cell, name, "exec"), names)
        return code_of_classes(names["Net"]()) | code_of(names["loss"])

    cell = (
        "scale = 2.0\n"
        "class Net(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.fc = nn.Linear(2, 2)\n"
        "    def forward(self, rows):\n"
        "        return self.fc(rows)\n"
        "def loss(outputs, batch):\n"
        "    return outputs * scale\n"
    )
    first = ran(cell, 1)
    assert NO_DIGEST not in first.values()
    assert ran("# again\n" + cell, 2) == first
    other_class = ran(cell.replace("self.fc(rows)", "self.fc(rows) * 2"), 3)
    assert {name.rpartition(".")[2] for name in _changed(first, other_class)} == {"Net"}
    other_loss = ran(cell.replace("scale = 2.0", "scale = 3.0"), 4)
    assert {name.rpartition(".")[2] for name in _changed(first, other_loss)} == {"scale"}


def test_what_a_closure_a_partial_and_an_object_hold_counts(written: Any) -> None:
    module = written()
    assert _changed(code_of(module.make(1.0)), code_of(module.make(2.0))) == {
        "my_losses.make.<locals>.inner weight"
    }
    assert code_of(module.make(torch.ones(2))) != code_of(module.make(torch.zeros(2)))
    once, twice = (functools.partial(module.loss, batch=number) for number in (1, 2))
    assert _changed(code_of(once), code_of(twice)) == {"my_losses.loss argument batch"}
    assert _changed(code_of(module.Loss()), code_of(module.Loss(2.0))) == {"my_losses.Loss.gamma"}
    assert "my_losses.helper" in code_of(module.Loss())


def _cross_entropy(weight: float = 1.0, smoothing: float = 0.0) -> nn.Module:
    return nn.CrossEntropyLoss(torch.tensor([1.0, weight]), reduction="none", label_smoothing=smoothing)


@pytest.mark.parametrize("change", [{"weight": 2.0}, {"smoothing": 0.1}])
@pytest.mark.parametrize("place", ["given", "closure", "global"])
def test_what_a_loss_of_torch_was_made_with_counts_wherever_it_is(
    monkeypatch: pytest.MonkeyPatch, place: str, change: dict[str, float]
) -> None:
    def code(own: nn.Module) -> dict[str, Any]:
        if place == "given":
            return code_of(own)
        if place == "closure":
            return code_of(lambda outputs, batch: own(outputs, batch[1]))
        monkeypatch.setitem(globals(), "criterion", own)
        return code_of(_uses_a_global)

    (changed,) = _changed(code(_cross_entropy()), code(_cross_entropy(**change)))
    assert changed.endswith(("weight", "label_smoothing"))
    assert code(_cross_entropy()) == code(_cross_entropy())


def _uses_a_global(outputs: Any, batch: Any) -> Any:
    return criterion(outputs, batch[1])  # type: ignore[name-defined]  # noqa: F821


def test_a_model_that_a_loss_refers_to_counts_without_its_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "criterion", nn.Linear(2, 2))
    before = code_of(_uses_a_global)
    monkeypatch.setitem(globals(), "criterion", nn.Linear(2, 2))
    assert code_of(_uses_a_global) == before


def test_a_lambda_counts_by_itself_not_by_the_line_it_stands_in(written: Any) -> None:
    (before,) = (code_of(written().short)[name] for name in ("my_losses.<lambda>",))
    beside = code_of(
        written(
            ("short = lambda", "short = None or (lambda"), ("batch: outputs\n", "batch: outputs)\n")
        ).short
    )
    other = code_of(written(("batch: outputs\n", "batch: outputs * 2\n")).short)
    assert before == beside["my_losses.<lambda>"] != other["my_losses.<lambda>"]


def test_code_without_a_source_counts_by_its_name() -> None:
    names: dict[str, Any] = {"__name__": "typed"}
    exec("def loss(o, b): return o", names)
    assert code_of(names["loss"]) == {"function": "typed.loss", "typed.loss": NO_DIGEST}


def test_of_a_library_names_count_alone() -> None:
    assert code_of(torch.nn.functional.mse_loss) == {"function": "torch.nn.functional.mse_loss"}
    assert code_of_classes(nn.Sequential(nn.Linear(2, 2))) == {}


def test_a_models_classes_and_what_they_were_made_with_are_seen(written: Any) -> None:
    before = written().Net()
    code = code_of_classes(before)
    after = code_of_classes(written(("return self.fc(x)", "return self.fc(x) * 2")).Net())
    assert _changed(code, after) == {"my_losses.Net"}
    before.scale = 0.5
    assert module_lines(before)[""] == "Net(scale=0.5)"


def test_a_compiled_model_is_the_model() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5))
    assert module_lines(torch.compile(model)) == module_lines(model)  # type: ignore[arg-type]
