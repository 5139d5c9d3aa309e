"""Check docs/coverage.md: every capability is there once, under its own name, and what is claimed is proved.

The ids and names are kept in scripts/coverage_rows.txt, one row a line, in their order. A row's state is
`works`, `partial` or `not yet`; `works` names at least one test as `path::test_name`, which must exist and not
be skipped; `partial` says what is missing.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
STATES = ("works", "partial", "not yet")
TEST = re.compile(r"`([\w./-]+\.py)::([\w:]+)`")
RULE = re.compile(r":?-+:?")


@dataclass(frozen=True)
class Row:
    """A line of the table: id, name and what it means as written, then state and evidence."""

    line: int
    id: str
    name: str
    state: str
    evidence: str


def expected_rows() -> list[tuple[str, str]]:
    """Return the ids and names that the table must have, in order."""
    lines = (ROOT / "scripts/coverage_rows.txt").read_text(encoding="utf-8").splitlines()
    rows = [line.partition(" ") for line in lines if line.strip()]
    return [(id, name.strip()) for id, _, name in rows]


def table_rows(text: str) -> Iterator[Row | str]:
    """Yield the rows of all tables whose first column is `id`; for a line that cannot be read, what is wrong with it."""
    columns = 0
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.startswith("|"):
            columns = 0
            continue
        cells = [cell.strip() for cell in line.strip().removeprefix("|").removesuffix("|").split("|")]
        if cells[0] == "id":
            columns = len(cells)
        elif columns and not all(RULE.fullmatch(cell) for cell in cells):
            if len(cells) != columns:
                yield f"line {number}: {len(cells)} cells, where the table's head has {columns}"
            else:
                yield Row(number, cells[0], cells[1], cells[-2], cells[-1])


def problems(text: str, known_rows: list[tuple[str, str]], root: Path) -> list[str]:
    """Everything wrong with a coverage page, one sentence each; empty where it is right.

    Args:
        known_rows: ids and names, in order.
        root: the folder that the tests' paths are relative to.
    """
    read = list(table_rows(text))
    findings = [f for f in read if isinstance(f, str)]
    rows = [row for row in read if isinstance(row, Row)]
    names = dict(known_rows)
    for id, count in Counter(row.id for row in rows).items():
        if id not in names:
            findings.append(f"{id}: no such row in scripts/coverage_rows.txt")
        elif count > 1:
            findings.append(f"{id}: {count} rows")
    ids = [row.id for row in rows]
    findings += [f"{id}: the row '{name}' is missing" for id, name in known_rows if id not in ids]
    if not findings and ids != list(names):
        findings.append("the rows are not in the order of scripts/coverage_rows.txt")
    for row in rows:
        if row.id in names and row.name != names[row.id]:
            findings.append(f"{row.id} (line {row.line}): named '{row.name}', must be '{names[row.id]}'")
        findings += [f"{row.id} (line {row.line}): {problem}" for problem in _claim_problems(row, root)]
    return findings


def _claim_problems(row: Row, root: Path) -> Iterator[str]:
    if row.state not in STATES:
        yield f"state '{row.state}', must be one of: {', '.join(STATES)}"
    cited = TEST.findall(row.evidence)
    if row.state == "works" and not cited:
        yield "works, but no test is named; write `tests/unit/test_x.py::test_name`"
    if row.state == "partial" and not re.search(r"\w+ \w+", TEST.sub("", row.evidence)):
        yield "partial, but what is missing is not said"
    for path, name in cited:
        yield from _test_problems(root, path, name)


def _test_problems(root: Path, path: str, name: str) -> Iterator[str]:
    file = root / path
    if not path.startswith("tests/") or not file.is_file():
        yield f"{path} is not a file of the tests"
        return
    body: list[ast.stmt] = ast.parse(file.read_text(encoding="utf-8")).body
    *classes, function = name.split("::")
    for owner in classes:
        body = next((node.body for node in body if isinstance(node, ast.ClassDef) and node.name == owner), [])
    test = next((node for node in body if isinstance(node, ast.FunctionDef) and node.name == function), None)
    if test is None or not function.startswith("test_"):
        yield f"{path} has no test {name}"
    elif any(re.search(r"\bmark\.(skip|xfail)\b", ast.unparse(mark)) for mark in test.decorator_list):
        yield f"{path}::{name} is skipped or expected to fail"


def main() -> int:
    text = (ROOT / "docs/coverage.md").read_text(encoding="utf-8")
    findings = problems(text, expected_rows(), ROOT)
    for problem in findings:
        print(f"docs/coverage.md: {problem}")
    if not findings:
        states = Counter(row.state for row in table_rows(text) if isinstance(row, Row))
        print("coverage table: " + ", ".join(f"{states[state]} {state}" for state in STATES))
    return int(bool(findings))


if __name__ == "__main__":
    sys.exit(main())
