"""The names that benchmarks, examples and scripts take from this tree: each is there, also where it is taken in a function that runs on a GPU alone."""

from __future__ import annotations

import ast
import functools
import importlib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
OUTSIDE = ("benchmarks", "demo", "examples", "scripts")
"""Folders of which mypy, which sees as much in the package, reads little or nothing, and which no gate runs whole, as it does the tests."""
PLACES = {"snugfit": ROOT / "src", "tests": ROOT, "benchmarks": ROOT, "scripts": ROOT, "examples": ROOT}
"""Where a module of the tree lies, by its first name."""


def file_of(module: str) -> Path | None:
    """Return a module's file or a package's folder, None where there is neither."""
    path = PLACES[module.partition(".")[0]].joinpath(*module.split("."))
    return next((each for each in (path.with_suffix(".py"), path) if each.exists()), None)


def bound_in(body: list[ast.stmt]) -> Iterator[str]:
    """Yield the names that statements bind outside functions and classes."""
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Import | ast.ImportFrom):
            yield from (alias.asname or alias.name.partition(".")[0] for alias in node.names)
        else:
            yield from (
                each.id
                for each in ast.walk(node)
                if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)
            )
            for inner in ("body", "orelse", "finalbody"):
                yield from bound_in(getattr(node, inner, []))
            for handler in getattr(node, "handlers", []):
                yield from bound_in(handler.body)


@functools.cache
def names_of(source: Path) -> frozenset[str]:
    return frozenset(bound_in(ast.parse(source.read_text()).body)) if source.exists() else frozenset()


def has(module: str, name: str) -> bool:
    """Return whether a module of the tree binds a name, or has a module of that name."""
    path = file_of(module)
    if path is None:
        return False
    if file_of(f"{module}.{name}") is not None:
        return True
    names = names_of(path / "__init__.py" if path.is_dir() else path)
    return name in names or ("__getattr__" in names and hasattr(importlib.import_module(module), name))


def missing_in(source: str) -> Iterator[tuple[int, str]]:
    """Yield the line and the name of each import from the tree that would fail."""
    for node in ast.walk(ast.parse(source)):
        if (
            isinstance(node, ast.ImportFrom)
            and not node.level
            and (node.module or "").partition(".")[0] in PLACES
        ):
            module = node.module or ""
            yield from (
                (node.lineno, f"{module}.{alias.name}") for alias in node.names if not has(module, alias.name)
            )
        elif isinstance(node, ast.Import):
            yield from (
                (node.lineno, alias.name)
                for alias in node.names
                if alias.name.partition(".")[0] in PLACES and file_of(alias.name) is None
            )


def test_a_name_that_is_not_there_is_seen():
    source = (
        "import snugfit.kit\nfrom snugfit import Step, Nothing\ndef later():\n"
        "    from snugfit.kit.sharded_tensors import whole, half\n    from tests.nowhere import whole\n"
    )
    assert [*missing_in(source)] == [
        (2, "snugfit.Nothing"),
        (4, "snugfit.kit.sharded_tensors.half"),
        (5, "tests.nowhere.whole"),
    ]


def test_every_name_that_is_taken_from_the_tree_is_there():
    files = [
        path
        for folder in OUTSIDE
        for path in sorted((ROOT / folder).rglob("*"))
        if path.suffix == ".py" or path == ROOT / "scripts" / "check"
    ]
    missing = [
        f"{path.relative_to(ROOT)}:{line} {name}"
        for path in files
        for line, name in missing_in(path.read_text())
    ]
    assert len(files) > 100 and missing == []
