"""Tasks: one file each, listed by its card, and named nowhere else."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import snugfit
from snugfit.tasks import discover

SOURCE = Path(snugfit.__file__).parent

TOY = """
from snugfit.tasks.task_card import Card
from snugfit.tasks.python import CARD as PYTHON

CARD = Card(
    name="toy", summary="Learn a toy.", loss="mse", metrics=("accuracy",), settings=("collate",), load=PYTHON.load, own_code=True
)
"""

USE = """
import sys
from pathlib import Path
import snugfit.tasks.tables
snugfit.tasks.tables.__path__.append(f"{sys.argv[1]}/tasks")

from snugfit.recipe import load_recipe
from snugfit.recipe.schema import json_schema
from snugfit.tasks.prepare import prepare

assert "toy" in snugfit.tasks.discover() and "toy" in json_schema()["properties"]["task"]["anyOf"][0]["enum"]
recipe = load_recipe(Path(sys.argv[1]) / "recipe.yaml", allow_code=True)
assert recipe.loss == "mse" and recipe.evaluate.metrics == ("accuracy",)
assert set(recipe.as_dict()["data"]) == {"train", "validation", "collate"}, recipe.as_dict()["data"]
task = prepare(recipe)
print(task.meta["task"], len(task.material.train))
"""


def test_a_file_in_a_folder_of_tasks_is_a_task_that_recipes_take(tmp_path: Path) -> None:
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks/toy.py").write_text(TOY)
    (tmp_path / "mine.py").write_text(
        "import torch\n"
        "def rows(): return [(torch.ones(2), torch.ones(1))] * 7\n"
        "def build(): return torch.nn.Linear(2, 1)\n"
    )
    (tmp_path / "recipe.yaml").write_text(
        "task: toy\nmodel: mine:build\ndata: {train: mine:rows, validation: null}\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", USE, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "toy 7\n"), done.stderr


def test_the_kinds_are_all_the_folders_of_tasks_that_there_are() -> None:
    of_tasks = {path.parent for path in (SOURCE / "tasks").glob("*/*.py") if "\nCARD = " in path.read_text()}
    assert {path.name for path in of_tasks} == {"texts", "pictures", "sounds", "tables"}
    assert len(discover()) == 1 + sum(len([*path.glob("[a-z]*.py")]) for path in of_tasks), (
        "python is beside them"
    )


def test_cards_are_read_without_heavy_libraries_or_recipes() -> None:
    read = (
        "import sys; from snugfit.tasks import discover; assert len(discover()) >= 4; "
        "print([name for name in ('torch', 'transformers', 'numpy', 'pandas', 'snugfit.recipe') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", read], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_no_other_file_names_a_task() -> None:
    texts = {path: path.read_text(encoding="utf-8") for path in SOURCE.rglob("*.py")}
    quoted = re.compile(rf"[\"']({'|'.join(discover())})[\"']")
    naming = {
        f"{path.relative_to(SOURCE)}:{line}"
        for path, text in texts.items()
        if not path.is_relative_to(SOURCE / "tasks") and quoted.search(text)
        for line in _lines_naming_a_task(ast.parse(text))
    }
    assert len(texts) > 400 and not naming


def test_names_of_tasks_are_found() -> None:
    text = 'a = "causal-lm"\nb = recipe.task != "python"\nc = {"task": "instruction"}\nd = {"python": 1}\n'
    assert sorted(_lines_naming_a_task(ast.parse(text))) == [1, 2, 3]


def _lines_naming_a_task(tree: ast.Module) -> Iterator[int]:
    """Yield the lines that name a task; one that is a word of English too counts where it is compared or given as the task."""
    names = set(discover())
    of_two_words = {name for name in names if "-" in name}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and node.value in of_two_words:
            yield node.lineno
        words: list[ast.expr | None] = []
        if isinstance(node, ast.Compare) and "task" in ast.unparse(node):
            words = [node.left, *node.comparators]
        elif isinstance(node, ast.Dict):
            pairs = zip(node.keys, node.values, strict=True)
            words = [value for key, value in pairs if isinstance(key, ast.Constant) and key.value == "task"]
        for word in words:
            if isinstance(word, ast.Constant) and word.value in names and "-" not in str(word.value):
                yield word.lineno
