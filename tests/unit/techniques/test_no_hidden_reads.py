"""The step and the techniques read from tensors through `core.scalar_reads` only: anything else would wait for the device."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[3] / "src" / "snugfit"
FILES = [
    *sorted((SOURCE / "techniques").rglob("*.py")),
    SOURCE / "step" / "step.py",
    SOURCE / "step" / "window_gradients.py",
]
READING_METHODS = {"item", "tolist", "numpy", "cpu", "__bool__", "__float__", "__int__", "nonzero", "unique"}
READING_FUNCTIONS = {"bool", "float", "int"}


def reads(source: str) -> list[str]:
    """Calls that would read from a tensor; a conversion of something that is visibly a number is none."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call):
            continue
        if isinstance(node.func, ast.Attribute) and node.func.attr in READING_METHODS:
            found.append(f"line {node.lineno}: .{node.func.attr}()")
        elif isinstance(node.func, ast.Name) and node.func.id in READING_FUNCTIONS and not is_a_number(node):
            found.append(
                f"line {node.lineno}: {node.func.id}({ast.unparse(node.args[0]) if node.args else ''})"
            )
    return found


def is_a_number(call: ast.Call) -> bool:
    return all(isinstance(argument, ast.Constant) for argument in call.args)


def test_tensors_are_read_through_the_one_door() -> None:
    found = {str(file.relative_to(SOURCE)): reads(file.read_text()) for file in FILES}
    assert {file: lines for file, lines in found.items() if lines} == {}


@pytest.mark.parametrize(
    ("source", "count"),
    [
        ("loss.item()", 1),
        ("rows.tolist()", 1),
        ("if bool(loss > 1): pass", 1),
        ("float(norm)", 1),
        ("int(rows.sum()) + tensor.cpu()", 2),
        ("read(rows, assume=[0])", 0),
        ("float('inf')", 0),
        ('"""loss.item()"""', 0),
    ],
)
def test_the_lint_finds_what_it_looks_for(source: str, count: int) -> None:
    assert len(reads(source)) == count
