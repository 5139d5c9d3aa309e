"""What the observer puts into a script's libraries stays out of the script's way."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import pickle
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from snugfit.doctor.observe.recording.attribute_patches import Patches
from snugfit.doctor.observe.recording.internals import PARTS, missing_parts, private_part, tracing
from snugfit.doctor.observe.recording.recorder import Recorder
from snugfit.doctor.observe.watch import install
from snugfit.doctor.observe.watchers.rows.row_digests import Rows


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


def test_an_attribute_that_a_version_does_not_have_is_noted_and_harms_nobody() -> None:
    patches = Patches()
    patches.wrap(Owner, "no_method", lambda original: original)
    assert patches.missing == ["Owner.no_method, which this version does not have"]
    patches.after_import("json", lambda module: module.no_such_name)
    assert patches.missing[1].startswith("json: AttributeError")


@pytest.fixture(scope="module")
def installed() -> Iterator[Patches]:
    patches = Patches()
    install(Recorder(8, None, None), patches)
    yield patches
    patches.undo()


def test_each_wrapper_takes_what_it_wraps_takes_by_the_same_names(installed: Patches) -> None:
    assert len(installed.wrapped) > 40
    for owner, name, attribute in installed.wrapped:
        made, original = getattr(owner, name), getattr(attribute, "__func__", attribute)
        code = getattr(made, "__func__", made).__code__
        accepted = code.co_varnames[: code.co_argcount]
        variadic = bool(code.co_flags & inspect.CO_VARARGS), bool(code.co_flags & inspect.CO_VARKEYWORDS)
        try:
            taken = list(inspect.signature(original).parameters.values())
        except ValueError:  # a function in C
            continue
        names = [each.name for each in taken if each.kind is each.POSITIONAL_OR_KEYWORD]
        first = 1 if isinstance(owner, type) else 0  # a method's own object is never named
        for place, wanted in list(enumerate(names))[first:]:
            by_name = wanted in accepted or variadic[1]
            by_place = place < len(accepted) or variadic[0]
            assert by_name and by_place, (owner, name, wanted)
            assert wanted not in accepted or accepted.index(wanted) == place, (owner, name, wanted)


def test_each_wrapper_keeps_signature_and_documentation_and_is_pickled_by_its_place(
    installed: Patches,
) -> None:
    for owner, name, attribute in installed.wrapped:
        made, original = getattr(owner, name), getattr(attribute, "__func__", attribute)
        assert (made.__name__, made.__doc__) == (name, original.__doc__)
        assert pickle.loads(pickle.dumps(made)) == made
        try:
            signature = inspect.signature(original)
        except ValueError:
            continue
        assert inspect.signature(getattr(made, "__func__", made)) == signature, (owner, name)


def test_every_private_part_of_torch_is_where_the_observer_looks_for_it() -> None:
    assert missing_parts() == []


@pytest.mark.parametrize("purpose", list(PARTS))
def test_a_private_part_that_moved_is_said_and_the_training_is_observed_all_the_same(
    purpose: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(PARTS, purpose, "torch.moved.elsewhere")
    private_part.cache_clear()
    patches, recorder = Patches(), Recorder(8, None, None)
    try:
        finish = install(recorder, patches)
        model = nn.Linear(2, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for batch in DataLoader(torch.ones(4, 2), batch_size=2):
            nn.functional.mse_loss(model(batch), batch).backward()
            optimizer.step()
        finish()
    finally:
        patches.undo()
        private_part.cache_clear()
    (said,) = recorder.log.unwatched
    assert said == f"{purpose} (torch.moved.elsewhere is not in torch {torch.__version__})"
    assert (recorder.log.updates, recorder.log.failure) == (2, "")


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


def test_what_torch_jit_script_knows_of_a_wrapper_by_its_id_ends_with_it() -> None:
    """Another function may have the id afterwards, and would be compiled as that operator."""
    from torch.jit import _builtins

    _builtins._get_builtin_table()
    owner = SimpleNamespace(__name__="owner", argmax=lambda scores: scores)
    patches = Patches()
    patches.wrap(owner, "argmax", lambda original: lambda scores: original(scores))
    wrapper = owner.argmax
    _builtins._register_builtin(wrapper, "aten::argmax")
    patches.undo()
    assert _builtins._find_builtin(wrapper) is None
