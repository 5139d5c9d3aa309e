"""Files, folders and names of the package that pages name are there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import snugfit

SOURCE = Path(snugfit.__file__).parent
ROOT = SOURCE.parents[1]
PAGES = sorted(
    each for each in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")] if "_build" not in each.parts
)
_PARTS = "|".join(sorted(each.stem for each in SOURCE.iterdir() if not each.name.startswith("_")))
_OF_REPOSITORY = re.compile(r"(?<![\w./-])(?:src|tests|scripts|benchmarks)/[\w./*-]*[\w/]")
_OF_PACKAGE = re.compile(rf"`((?:{_PARTS})/[\w/]*(?:\w\.py|/))`")
_NAME = re.compile(r"\bsnugfit((?:\.\w+){2,})")
_MODULE = re.compile(r"`(\w+\.py)`")
_MADE = "benchmarks/gpu/wheels"
"""What a command of the page makes."""


def missing(text: str, *, of_architecture: bool = False) -> list[str]:
    """Return the paths in a page that lead nowhere.

    Args:
        of_architecture: modules are named without their folder.
    """
    patterns = [each for each in _OF_REPOSITORY.findall(text) if each != _MADE]
    patterns += [f"src/snugfit/{each}" for each in _OF_PACKAGE.findall(text)]
    if of_architecture:
        patterns += [f"src/snugfit/**/{each}" for each in _MODULE.findall(text)]
    return [each for each in patterns if not any(ROOT.glob(each.rstrip("/")))]


def names_of_nothing(text: str) -> list[str]:
    """Return the dotted names of a page that begin with a package of ours and lead to no module or name in it."""
    return [
        f"snugfit{dotted}"
        for dotted in _NAME.findall(text.replace("\\_", "_"))
        if not _leads_somewhere(dotted)
    ]


def _leads_somewhere(dotted: str) -> bool:
    place, parts = SOURCE, dotted[1:].split(".")
    if not (SOURCE / parts[0]).is_dir():
        return True  # an entry point, or a key
    while parts and (place / parts[0]).is_dir():
        place /= parts.pop(0)
    file = place / f"{parts[0]}.py" if parts else place / "__init__.py"
    if file.exists():
        parts = parts[1:]
    else:
        file = place / "__init__.py"
    if not parts:
        return True
    return re.search(rf"\b{parts[0]}\b", file.read_text(encoding="utf-8")) is not None


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_path_of_a_page_is_there(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert missing(text, of_architecture=page.parent.name == "architecture") == []
    assert names_of_nothing(text) == []


def test_a_path_that_leads_nowhere_is_found() -> None:
    text = "See `tests/unit/gone.py::test_x`, `core/gone/`, `core/job.py`, scripts/check, runs/tests/gone.py and `gone.py`."
    assert missing(text) == ["tests/unit/gone.py", "src/snugfit/core/gone/"]
    assert missing(text, of_architecture=True)[2:] == ["src/snugfit/**/gone.py"]


def test_a_name_that_leads_nowhere_is_found() -> None:
    text = "`snugfit.step.step.Step`, snugfit.step.gone, `snugfit.step.step.Gone`, snugfit.step.start\\_scores and `snugfit.trackers.x`."
    assert names_of_nothing(text) == ["snugfit.step.gone", "snugfit.step.step.Gone"]
