"""transformers is imported without what it reads twice, or loads for few of its models, and is the same as ever."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

from snugfit.models import transformers_import
from snugfit.models.transformers_import import imported_later

ALL = """
import sys
from collections import Counter

opened = Counter()
sys.addaudithook(lambda event, args: opened.update([str(args[0])]) if event == "open" else None)

from snugfit.models.transformers_import import import_modeling

import_modeling()
assert not {"scipy.optimize", "torchao"}.intersection(sys.modules)
models = sys.modules["transformers.models"]
listed = next(name for name in opened if name.endswith("models/bert/tokenization_bert.py"))
assert opened[listed] == 1, opened[listed]

from transformers.utils.import_utils import _LazyModule, define_import_structure

usual = _LazyModule(models.__name__, models.__file__, define_import_structure(models.__file__))
assert opened[listed] == 2
assert models._import_structure == usual._import_structure
assert models._class_to_module == usual._class_to_module

from transformers.loss.loss_for_object_detection import linear_sum_assignment
from transformers.quantizers.quantizer_torchao import flatten_tensor_state_dict

assert [each.tolist() for each in linear_sum_assignment([[1, 0], [0, 1]])] == [[0, 1], [1, 0]]
assert flatten_tensor_state_dict({})[0] == {}
assert sys.modules["scipy.optimize"].minimize and "torchao.quantization" in sys.modules
"""


@pytest.mark.slow
def test_transformers_is_the_same_and_reads_its_models_once_without_scipy_or_torchao() -> None:
    done = subprocess.run([sys.executable, "-c", ALL], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.fixture
def _not_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("colorsys", "wsgiref", "wsgiref.util"):
        monkeypatch.delitem(sys.modules, name, raising=False)


@pytest.mark.usefixtures("_not_imported")
def test_a_function_is_there_and_its_module_is_imported_when_it_is_called() -> None:
    with imported_later({"colorsys": "rgb_to_hsv"}):
        from colorsys import rgb_to_hsv
    assert "colorsys" not in sys.modules
    assert rgb_to_hsv(1, 0, 0) == (0, 1, 1)
    assert "colorsys" in sys.modules


@pytest.mark.usefixtures("_not_imported")
def test_who_asks_for_anything_else_gets_the_module_itself() -> None:
    with imported_later({"colorsys": "rgb_to_hsv", "wsgiref": "nothing"}):
        import wsgiref.util
        from colorsys import ONE_THIRD

        assert sys.modules["colorsys"].__file__
    assert ONE_THIRD == 1 / 3
    assert wsgiref.util.guess_scheme({}) == "http"


@pytest.mark.usefixtures("_not_imported")
def test_a_module_that_is_there_stays() -> None:
    import colorsys

    with imported_later({"colorsys": "rgb_to_hsv"}):
        assert sys.modules["colorsys"] is colorsys
    assert sys.modules["colorsys"] is colorsys


@pytest.mark.usefixtures("_not_imported")
def test_a_module_that_another_thread_begins_to_import_meanwhile_stays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def made_late(name: str, function: str) -> transformers_import._StandIn:
        importlib.import_module(name)
        return stand_in(name, function)

    stand_in = transformers_import._StandIn
    monkeypatch.setattr(transformers_import, "_StandIn", made_late)
    with imported_later({"colorsys": "rgb_to_hsv"}):
        assert sys.modules["colorsys"].__file__
    assert sys.modules["colorsys"].__file__
