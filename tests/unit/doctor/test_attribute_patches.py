"""What the observer puts into a script's libraries stays out of the script's way."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import pickle
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from snugfit.doctor.observe.attribute_patches import Patches
from snugfit.doctor.observe.row_digests import Rows
from snugfit.doctor.observe.tracing import tracing


class Owner:
    def method(self, one: int, *, two: str = "2") -> str:
        """Say it."""
        return f"{one}{two}"


def test_a_wrapper_has_the_name_signature_and_documentation_of_what_it_wraps_and_is_pickled() -> None:
    patches, plain = Patches(), inspect.signature(Owner.method)
    patches.wrap(
        Owner, "method", lambda original: lambda self, *args, **kwargs: original(self, *args, **kwargs)
    )
    try:
        assert inspect.signature(Owner.method) == plain
        assert (Owner.method.__name__, Owner.method.__doc__) == ("method", "Say it.")
        assert not hasattr(Owner.method, "__wrapped__"), "torch.compile follows it"
        assert pickle.loads(pickle.dumps(Owner().method))(1, two="3") == "13"
    finally:
        patches.undo()


def test_a_data_loader_can_still_be_asked_what_it_takes() -> None:
    patches, plain = Patches(), inspect.signature(DataLoader.__init__)
    patches.wrap(
        DataLoader, "__init__", lambda original: lambda self, *args, **kwargs: original(self, *args, **kwargs)
    )
    try:
        assert list(inspect.signature(DataLoader.__init__).parameters) == list(plain.parameters)
    finally:
        patches.undo()


def test_who_only_asks_whether_a_module_is_there_leaves_the_hook_for_who_imports_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "late_module.py").write_text("value = 3\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    seen: list[int] = []
    patches = Patches()
    patches.after_import("late_module", lambda module: seen.append(module.value))
    try:
        for _ in range(2):  # as transformers, accelerate and peft ask for torch
            spec = importlib.util.find_spec("late_module")
            assert spec is not None and spec.origin == str(tmp_path / "late_module.py")
        assert seen == []
        module = importlib.import_module("late_module")
        assert seen == [3]
        assert inspect.getsource(module) == "value = 3\n"
        importlib.reload(module)
        assert seen == [3]
    finally:
        patches.undo()
        sys.modules.pop("late_module", None)
    assert not any(type(finder).__name__ == "_AfterImport" for finder in sys.meta_path)


def test_what_is_traced_is_known_by_its_way() -> None:
    ways: list[str] = []

    class Asking(nn.Module):
        def forward(self, values: Any) -> Any:
            ways.append(tracing())
            return values * 2

    module = Asking()
    module(torch.ones(2))
    torch.jit.trace(module, torch.ones(2), check_trace=False)
    torch.func.vmap(module)(torch.ones(2, 3))
    torch.func.grad(lambda values: module(values).sum())(torch.ones(2))
    torch.fx.symbolic_trace(module)
    with torch._subclasses.FakeTensorMode():
        module(torch.ones(2))
    assert ways[0] == ""
    assert list(dict.fromkeys(ways[1:])) == [
        "torch.jit.trace",
        "torch.func",
        "torch.fx",
        "fake tensors",
    ]
    assert tracing() == ""


def test_sparse_and_nested_tensors_have_no_rows_to_compare() -> None:
    rows = Rows()
    for batch in (torch.eye(4).to_sparse(), torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])):
        rows.forward(1, batch, "train.py:1", grad=False, place=0)
    assert rows.held_out() == [] and rows.overlaps() == []
