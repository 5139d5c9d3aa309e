"""The lint of names and docstrings: a thing is called by what it is, never by a riddle.

    python -m scripts.names [FOLDER …]

`found` may be a path, a checkpoint or a number of bytes; `path` says which. A participle or an adverb alone tells a reader what
happened to a value and not what the value is, so none of `RIDDLES` is a name or a part of a module's, and none of `RIDDLES_IN_PARTS` a part of
any: a window is not `kept_window`, but one in memory, in a file or of the last update. Nor does a docstring begin with one of `OPENINGS`, such as a
preposition: a function's begins with an imperative, a context manager's with "Temporarily", a class's and a module's with a noun.

Tests are exempt: there `expected` is the usual name of what a result is compared with.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CHECKED = ("src", "scripts", "benchmarks")
# fmt: off
OPENINGS = frozenset({
    "After", "All", "Around", "As", "At", "Before", "By", "Every", "For", "From", "How", "In", "It", "Its", "Of", "On", "Once", "One", "So", "That",
    "Those", "To", "Under", "Until", "What", "When", "Where", "Whether", "Which", "With", "Within", "Without",
})
RIDDLES = frozenset({
    "told", "telling", "said", "found", "kept", "expected", "refused", "reached", "chosen", "remembered", "interposed", "placing",
    "everywhere", "elsewhere", "several", "beside",
})
RIDDLES_IN_PARTS = frozenset({
    "told", "telling", "said", "found", "kept", "remembered", "interposed", "placing", "several",
})
# fmt: on


def names(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield the line and the text of each name that a module gives to something."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id if isinstance(node, ast.Name) else node.attr
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.lineno, node.name
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.alias) and node.asname:
            yield node.lineno, node.asname
        elif isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar) and node.name:
            yield node.lineno, node.name
        elif isinstance(node, ast.MatchMapping) and node.rest:
            yield node.lineno, node.rest


def openings(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield the line and the first word of each docstring, but of questions, which benchmarks ask."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            docstring = ast.get_docstring(node)
            if docstring and "?" not in docstring.split("\n", 1)[0]:
                yield getattr(node, "lineno", 1), docstring.split(maxsplit=1)[0]


def is_riddle(name: str) -> bool:
    """Return whether a name says what happened to a thing, and not what it is.

    >>> is_riddle("found"), is_riddle("kept_buffers"), is_riddle("foundation"), is_riddle("expected_rows")
    (True, True, False, False)
    """
    plain = name.strip("_").lower()
    return plain in RIDDLES or not RIDDLES_IN_PARTS.isdisjoint(plain.split("_"))


def riddles(path: Path) -> Iterator[str]:
    """Yield a line with its place for each riddle in a file, its own name included."""
    if not RIDDLES.isdisjoint(path.stem.split("_")):
        yield f"{path}: module '{path.stem}'"
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for line, name in names(tree):
        if is_riddle(name):
            yield f"{path}:{line}: '{name}'"
    for line, opening in openings(tree):
        if opening.strip(",:") in OPENINGS:
            yield f"{path}:{line}: the docstring begins with '{opening}'"


def main(folders: list[str]) -> int:
    paths = sorted(path for folder in folders or CHECKED for path in Path(ROOT, folder).rglob("*.py"))
    lines = [line.replace(f"{ROOT}/", "") for path in paths for line in riddles(path)]
    for line in lines:
        print(line)
    if lines:
        print(f"{len(lines)} riddles: a name says what a thing is, and a docstring what it is or does.")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
