"""What is loaded when, and that every public name is there."""

from __future__ import annotations

import ast
import inspect
import os
import pkgutil
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import snugfit as sf
from snugfit import recipe, techniques

ROOT = Path(__file__).resolve().parents[2]
HEAVY = (
    "transformers",
    "mlflow",
    "datasets",
    "torchmetrics",
    "matplotlib",
    "deepspeed",
    "ray",
    "sklearn",
    "optuna",
    "pandas",
)
LIGHT_ONLY = (*HEAVY, "torch", "numpy", "pydantic", "yaml", "rich.progress")


def loaded_by(code: str) -> set[str]:
    """The modules that a fresh interpreter has loaded after `code`."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    program = f"{code}\nimport sys\nprint('\\n'.join(['', *sys.modules]), file=sys.stderr)"
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return set(done.stderr.split())


@pytest.mark.parametrize(
    ("code", "forbidden"),
    [
        ("import snugfit; hasattr(snugfit, '__wrapped__'); hasattr(snugfit, 'nothing')", LIGHT_ONLY),
        ("from snugfit.cli import main; assert main(['--help']) == 0", LIGHT_ONLY),
        ("from snugfit.cli import main; assert main(['train', 'none.yaml']) == 2", (*HEAVY, "torch")),
        ("import snugfit.recipe", (*HEAVY, "torch")),
        (
            "import snugfit; snugfit.Step, snugfit.AdamW, snugfit.LossTerms, snugfit.train; "
            "from snugfit.recipe.presets import completed; completed([snugfit.techniques.find('ema')()], 'fine_tune')",
            (
                *(*HEAVY, "pydantic", "typer", "torch.distributed.tensor", "snugfit.run.plans.planning"),
                *("snugfit.planner.target", "snugfit.report.page", "snugfit.techniques.learning.sam"),
            ),
        ),
        pytest.param(
            "import snugfit.run.from_recipe, snugfit.run.plans.planning",
            (*HEAVY, "torch.distributed.tensor", "sympy"),
            marks=pytest.mark.slow,
        ),
    ],
)
def test_nothing_is_loaded_that_is_not_needed(code, forbidden):
    assert sorted(loaded_by(code).intersection(forbidden)) == []


def test_every_public_name_is_there():
    assert sf.__all__ == sorted(sf.__all__)
    for name in sf.__all__:
        found = getattr(sf, name)
        assert inspect.ismodule(found) or found.__name__ == name


def test_every_technique_is_there_under_the_name_of_its_class():
    for technique in techniques.discover().values():
        assert getattr(sf, technique.__name__) is technique
        assert technique.__name__ in dir(sf)


def test_names_for_type_checkers_are_those_found_at_run_time():
    tree = ast.parse(inspect.getsource(sf))
    (block,) = [
        node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    ]
    module_of = {alias.asname: entry.module for entry in block.body for alias in entry.names}
    assert set(sf.__all__) <= set(module_of)
    for name, module in module_of.items():
        expected = techniques if module == "snugfit" else getattr(import_module(module), name)
        assert getattr(sf, name) is expected


def test_no_module_has_the_name_of_something_else_that_its_package_gives() -> None:
    """Whichever of the two was imported first would hide the other."""
    for package in (sf, recipe):
        modules = {found.name for found in pkgutil.iter_modules(package.__path__)}
        both = {
            name
            for name in package.__all__
            if name in modules and not inspect.ismodule(getattr(package, name))
        }
        assert not both, f"{package.__name__} gives {both}, and has modules of these names"


@pytest.mark.parametrize("name", ["Stp", "nothing", "__wrapped__"])
def test_a_name_that_is_not_there_is_an_attribute_error(name):
    with pytest.raises(AttributeError, match=name):
        getattr(sf, name)


def test_the_reference_has_every_public_name() -> None:
    page = (ROOT / "docs" / "api.md").read_text()
    documented = set(re.findall(r"^\.\. auto(?:function|class|exception):: (\w+)$", page, re.MULTILINE))
    assert documented == set(sf.__all__) - {"techniques"}, "docs/api.md and sf.__all__ differ"
