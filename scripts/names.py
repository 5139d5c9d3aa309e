"""The lint of names: a variable, a function or a module is called by what it is, never by a riddle.

    python -m scripts.names [FOLDER …]

`found` may be a path, a checkpoint or a number of bytes; `path` says which. A participle or an adverb alone tells a
reader what happened to a value and not what the value is, so none of `RIDDLES` is a name.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CHECKED = ("src", "scripts", "benchmarks")
RIDDLES = frozenset(
    [
        "told",
        "telling",
        "said",
        "found",
        "kept",
        "expected",
        "refused",
        "reached",
        "chosen",
        "remembered",
        "interposed",
        "placing",
        "everywhere",
        "elsewhere",
        "several",
        "beside",
    ]
)
PUBLIC = {"src/snugfit/step/step.py": {"refused"}}
"""Names that users of the library read, by file: `StepResult.refused` is documented and stays."""


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


def riddles(path: Path) -> Iterator[str]:
    """Yield a finding, with its place, for each name in a file that is a riddle, the file's own included."""
    if path.stem.strip("_") in RIDDLES:
        yield f"{path}: module '{path.stem}'"
    public = PUBLIC.get(str(path.relative_to(ROOT)), set())
    for line, name in names(ast.parse(path.read_text(encoding="utf-8"))):
        if name.strip("_").lower() in RIDDLES - public:
            yield f"{path}:{line}: '{name}'"


def main(folders: list[str]) -> int:
    paths = sorted(path for folder in folders or CHECKED for path in Path(ROOT, folder).rglob("*.py"))
    lines = [line.replace(f"{ROOT}/", "") for path in paths for line in riddles(path)]
    for line in lines:
        print(line)
    if lines:
        print(f"{len(lines)} names say what happened to a value. Name each by what it is.")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
