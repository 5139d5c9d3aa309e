"""The page of all errors about input, made from the code.

    python -m scripts.error_texts           writes docs/errors.md
    python -m scripts.error_texts --check   says where the page is not as the code has it, and where an error lacks a part

The gate checks.
"""

from __future__ import annotations

import ast
import functools
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "snugfit"
PAGE = ROOT / "docs" / "errors.md"
_MAKERS = (
    "SettingError",
    "DataError",
    "ModelError",
    "Untraceable",
    "LogitsInUse",
    "PlanConflict",
    "RunFolderError",
    "TrackingError",
    "CodeRefused",
    "places.error",
)
_HEAD = """# Errors

All errors about input, as `python -m scripts.error_texts` finds them in the code. Each says what it is about (a setting, an option, a file), what was
found, and what to do; `{…}` is filled in. From Python, `error.setting`, `error.problem` and `error.remedy` are these parts. In a terminal they end a command with exit
code 2. What a setting takes is in [the recipe](recipe_reference.md): an impossible value is refused as `SETTING: must be EXPECTED, found VALUE.`
"""


@dataclass(frozen=True)
class Text:
    """The parts of one error, as its code has them."""

    module: str
    line: int
    setting: str
    problem: str
    remedy: str


@functools.cache
def texts() -> tuple[Text, ...]:
    """Return the parts of each error that the package makes, by module and line."""
    paths = sorted(SOURCE.rglob("*.py"))
    return tuple(text for path in paths for text in _texts_in(path))


def page() -> str:
    """Return the page, a section for each package."""
    parts = [_HEAD]
    for package, of_package in groupby(
        texts(), key=lambda text: text.module.split("/")[0].removesuffix(".py")
    ):
        parts.append(f"\n## {package}\n\n")
        parts.extend(
            f"- `{text.setting}`: {_escaped(text.problem)} → {_escaped(text.remedy)}\n" for text in of_package
        )
    return "".join(parts)


def _texts_in(path: Path) -> Iterator[Text]:
    module = path.relative_to(SOURCE).as_posix()
    calls = [
        node for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, ast.Call)
    ]
    for call in sorted(calls, key=lambda call: (call.lineno, call.col_offset)):
        if len(call.args) != 3 or ast.unparse(call.func) not in _MAKERS:
            continue
        setting, problem, remedy = call.args
        if (ast.unparse(problem), ast.unparse(remedy)) == ("problem", "remedy"):
            continue  # the parts are those of its callers
        yield Text(module, call.lineno, _setting(setting), _text(problem), _text(remedy))


def _setting(node: ast.expr) -> str:
    """Return the name of a setting, whose keys a recipe's error has one by one."""
    if isinstance(node, ast.Tuple):
        return ".".join(map(_setting, node.elts))
    return _text(node.value if isinstance(node, ast.Starred) else node)


def _text(node: ast.expr) -> str:
    """Return a text as it will read, with expressions in braces."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(part) for part in node.values)
    if isinstance(node, ast.FormattedValue):
        return "{" + ast.unparse(node.value) + "}"
    return "{" + ast.unparse(node) + "}"


def _escaped(text: str) -> str:
    """Return a text in which Markdown sees no markup."""
    return "".join(
        f"\\{letter}" if letter in "\\`*_[]<>{}" else " " if letter == "\n" else letter for letter in text
    )


def faults(errors: Sequence[Text]) -> Iterator[str]:
    """Yield the place of each error that lacks a part, and the part."""
    for each in errors:
        place = f"{each.module}:{each.line}"
        if not (each.setting.strip() and each.problem.strip()):
            yield f"{place}: no setting or no problem"
        if not re.match(r"[A-Z{]", each.remedy.strip()):
            yield f"{place}: a remedy is a sentence of its own, found '{each.remedy}'"


def main(arguments: Sequence[str]) -> int:
    if not arguments:
        PAGE.write_text(page(), encoding="utf-8")
        return 0
    problems = list(faults(texts()))
    if PAGE.read_text(encoding="utf-8") != page():
        problems.append("docs/errors.md is not as the code has it: python -m scripts.error_texts")
    print("\n".join(problems) or f"error texts: {len(texts())}")
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
