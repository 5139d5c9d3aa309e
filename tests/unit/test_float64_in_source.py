"""Wherever the package makes a tensor in float64, it is on the host, or on a device that has float64: MPS has none.

What a step or an evaluation computes is seen by tests/unit/run/training/test_no_float64.py; this looks at every line, also at those that
only tools, the doctor and ranks run.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import snugfit

PACKAGE = Path(snugfit.__file__).parent
HOST = "of what is on the host"
PLACES: dict[str, dict[str, str]] = {
    "system/rounding.py": {"in_float64": "the way to float64, which goes over the host where it has to"},
    "data/series/series_windows.py": {"__init__": HOST},
    "data/tables/table_rows.py": {"load_table": HOST},
    "deliver/ensemble.py": {"_values": HOST},
    "deliver/export/comparison.py": {"differences": HOST},
    "deliver/export/gguf.py": {"_of_llama_cpp": HOST},
    "deliver/export/label_unit.py": {"_folded": HOST},
    "deliver/export/read_back.py": {"divergence": HOST},
    "doctor/observe/watchers/optimizers/gradient_state.py": {"magnitude": HOST, "of": HOST},
    "doctor/observe/watchers/optimizers/hand_steps.py": {"_fingerprint": HOST},
    "doctor/observe/watchers/rows/mixed_rows.py": {"_columns": HOST},
    "doctor/observe/watchers/updates/watch_updates.py": {"_sums": HOST},
    "doctor/observe/watchers/weights/weights.py": {"_joined": HOST},
    "doctor/observe/watchers/rows/whole_scales.py": {"scaled_together": HOST},
    "step/metrics/label_metrics.py": {"exact_match": HOST, "_tallies": HOST, "_average_precision": HOST},
    "step/metrics/metric.py": {"compute": HOST},
    "step/metrics/all_rows_metrics.py": {"auroc": HOST, "_numbers": HOST, "_ranks": HOST},
    "step/metrics/retrieval_metrics.py": {"_mean_over_ranks": HOST},
    "strategies/fsdp.py": {"_take_first_weights_": "of several ranks, which only CUDA and the host have"},
    "tasks/tables/forecasting.py": {"decode": HOST},
    "tools/certify/trial.py": {"_made": "windows on the host", "_widened": "refused on MPS before"},
}
"""Functions that make float64, by file, each with why none of it is on a device without it."""


def makes_float64(node: ast.AST) -> bool:
    """Whether an expression makes a tensor, or turns one, into float64; comparisons with it do not."""
    if not isinstance(node, ast.Call):
        return False
    if isinstance(node.func, ast.Attribute) and node.func.attr == "double" and not node.args:
        return True
    given = [*node.args, *(each.value for each in node.keywords)]
    return any(
        isinstance(each, ast.Attribute)
        and each.attr in ("float64", "double", "complex128")
        and ast.unparse(each.value) == "torch"
        for each in given
    )


def places(source: str) -> Iterator[tuple[str, int]]:
    """The functions in which float64 is made, with the line."""

    def within(node: ast.AST, function: str) -> Iterator[tuple[str, int]]:
        for child in ast.iter_child_nodes(node):
            if makes_float64(child):
                yield function, child.lineno  # type: ignore[attr-defined]
            inner = child.name if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)) else function
            yield from within(child, inner)

    yield from within(ast.parse(source), "<module>")


def test_each_place_that_makes_float64_is_known_to_have_it() -> None:
    unknown, seen = [], set()
    for path in sorted(PACKAGE.rglob("*.py")):
        name, source = path.relative_to(PACKAGE).as_posix(), path.read_text(encoding="utf-8")
        if not re.search(r"\b(double|float64|complex128)\b", source):
            continue
        for function, line in places(source):
            seen.add((name, function))
            if function not in PLACES.get(name, {}):
                unknown.append(f"{name}:{line} in {function}")
    assert not unknown, f"use in_float64 (system/rounding.py), or say here why it is never on MPS: {unknown}"
    stale = {(name, function) for name, functions in PLACES.items() for function in functions} - seen
    assert not stale, f"no float64 is made there any more: {stale}"


@pytest.mark.parametrize(
    ("line", "makes"),
    [
        ("tensor.double()", True),
        ("tensor.to(torch.float64)", True),
        ("tensor.sum(dtype=torch.float64)", True),
        ("torch.zeros(2, dtype=torch.double)", True),
        ("tensor.float()", False),
        ("f(tensor.dtype == torch.float64)", False),
        ("numpy.zeros(2, dtype=numpy.float64)", False),
    ],
)
def test_the_lint_sees_what_makes_float64(line: str, makes: bool) -> None:
    assert bool([*places(f"def function():\n    {line}\n")]) is makes
