"""Models of the user's own code."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from snugfit.errors import ModelError
from snugfit.models.python_functions import load_python_model
from snugfit.system.user_objects import load_object

CODE = """
import torch
from torch import nn

size = 3

class Net(nn.Module):
    def __init__(self, width=2):
        super().__init__()
        self.layer = nn.Linear(width, size)

class Tools:
    @staticmethod
    def build():
        return Net()

def build(width=2):
    return Net(width)

def broken():
    return undefined_name

def forgot():
    Net()

def needs(width):
    return Net(width)

ready = Net()
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A recipe's folder with `my_nets.py`, forgotten again afterwards."""
    (tmp_path / "my_nets.py").write_text(CODE)
    (tmp_path / "needs_more.py").write_text("import no_such_package_at_all")
    (tmp_path / "slip.py").write_text("def build(:\n    pass\n")
    (tmp_path / "raises.py").write_text("\n\nraise ValueError('no data here')\n")
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if name in ("my_nets", "needs_more", "slip", "raises"):
            del sys.modules[name]


@pytest.mark.parametrize("spec", ["my_nets:build", "my_nets:Net", "my_nets:Tools.build"])
def test_a_function_or_class_of_the_folder_makes_the_model(folder, spec):
    model = load_python_model(spec, folder=folder)
    assert model.layer.out_features == 3


def test_the_weights_are_those_of_the_seed_and_the_caller_keeps_its_own(folder):
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    first, again = (load_python_model("my_nets:build", folder=folder, seed=1) for _ in range(2))
    other = load_python_model("my_nets:build", folder=folder, seed=2)
    assert torch.equal(first.layer.weight, again.layer.weight)
    assert not torch.equal(first.layer.weight, other.layer.weight)
    assert torch.equal(torch.rand(1), expected)


def test_a_ready_model_is_copied(folder):
    first, second = (load_python_model("my_nets:ready", folder=folder) for _ in range(2))
    assert first is not second
    assert torch.equal(first.layer.weight, second.layer.weight)


def test_the_python_path_is_as_before(folder):
    before = list(sys.path)
    load_python_model("my_nets:build", folder=folder)
    with pytest.raises(ModelError):
        load_python_model("my_nets:broken", folder=folder)
    assert sys.path == before


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("my_nets", "is not of the form package.module:function"),
        ("my_nts:build", r"no module 'my_nts' in .*Did you mean 'my_nets'\?"),
        ("my_nets:bild", r"'my_nets' has no 'bild'\. Did you mean 'build'\?"),
        ("my_nets.sub:build", "no module 'my_nets.sub'"),
        ("needs_more:build", "it needs 'no_such_package_at_all', which is not installed"),
        ("slip:build", "importing 'slip' failed: SyntaxError"),
        ("raises:build", r"ValueError: no data here \(.*raises\.py:3\)"),
        ("my_nets:broken", r"NameError: name 'undefined_name' is not defined \(.*my_nets\.py:\d+\)"),
        ("my_nets:forgot", "returned NoneType, not a torch.nn.Module"),
        ("my_nets:size", "is int, not a function"),
        ("my_nets:needs", "missing 1 required positional argument: 'width'"),
    ],
)
def test_what_makes_no_model_is_refused_with_the_reason(folder, spec, message):
    with pytest.raises(ModelError, match=message) as caught:
        load_python_model(spec, folder=folder)
    assert str(caught.value).startswith("model: ")


def test_a_module_name_that_is_taken_is_refused_rather_than_mistaken(folder):
    (folder / "json.py").write_text("def build(): return 1")
    with pytest.raises(ModelError, match=r"the module name 'json' is taken by .*Rename the file"):
        load_python_model("json:build", folder=folder)
    assert load_object("json:loads", setting="model")("1") == 1
