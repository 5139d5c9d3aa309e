"""Write docs/techniques/matrix.md: which techniques compose, and what each was measured to cost.

python -m scripts.matrix        writes the page; building the documentation does too
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations
from pathlib import Path
from typing import Any

from snugfit.core.selection import exclusion
from snugfit.core.technique import STAGED_SEAMS, Stage, Technique
from snugfit.recipe.technique_cards import measured_costs
from snugfit.techniques import discover

PAGE = Path(__file__).resolve().parent.parent / "docs" / "techniques" / "matrix.md"

HEAD = """# What composes with what

<!-- Made by scripts/matrix.py whenever the documentation is built. -->

{count} techniques make {pairs} pairs. {legal} of them compose: each such pair is trained in the gate under the same laws
(`tests/laws/test_matrix.py`): any split of a window and any order of the list give the same update, a window that is not
finite changes nothing, and a stopped run goes on bit for bit. {refused} are refused before anything is allocated, for the
reasons below.
"""


def render() -> str:
    """Return the page as Markdown."""
    known = discover()
    pairs = list(combinations(known.values(), 2))
    reasons = {
        (one.card.name, other.card.name): reason
        for one, other in pairs
        if (reason := exclusion(one.card, other.card)) is not None
    }
    legal = len(pairs) - len(reasons)
    head = HEAD.format(count=len(known), pairs=len(pairs), legal=legal, refused=len(reasons))
    return "\n".join([head, _grid(list(known), reasons), _refusals(reasons), _chains(known), _costs(known)])


def _grid(names: list[str], reasons: Mapping[tuple[str, str], str]) -> str:
    """Return every pair: a dot where it composes, a cross where it is refused."""
    width = max(map(len, names))
    numbers = " ".join(f"{number:>2}" for number in range(1, len(names) + 1))
    lines = [
        "## Every pair",
        "",
        "A dot composes, a cross is refused; columns are numbered like the rows.",
        "",
    ]
    lines += ["```text", f"{'':{width + 3}} {numbers}"]
    for number, row in enumerate(names, start=1):
        conflicts = [bool(reasons.keys() & {(row, other), (other, row)}) for other in names[: number - 1]]
        cells = " ".join(f"{'×' if cross else '·':>2}" for cross in conflicts)
        lines.append(f"{number:>2} {row:<{width}} {cells}".rstrip())
    return "\n".join([*lines, "```", ""])


def _refusals(reasons: Mapping[tuple[str, str], str]) -> str:
    """Return one row for each reason and the techniques that share it."""
    lines = ["## What is refused", "", "| these | and these | because they |", "|---|---|---|"]
    for reason in dict.fromkeys(reasons.values()):
        excluded = [pair for pair, why in reasons.items() if why == reason]
        names = sorted({name for pair in excluded for name in pair})
        every = len(excluded) == len(names) * (len(names) - 1) // 2
        if every and len(names) > 2:
            lines.append(f"| {_links(names)} | each other | {reason} |")
            continue
        for first in dict.fromkeys(one for one, _ in excluded):
            others = [other for one, other in excluded if one == first]
            lines.append(f"| {_links([first])} | {_links(others)} | {reason} |")
    return "\n".join([*lines, ""])


def _chains(known: Mapping[str, type[Technique]]) -> str:
    """Return the order in which techniques that fill the same seam stand."""
    lines = [
        "## The order of a chain",
        "",
        "The order goes by the stages on the cards, never by the order of the list. The chains of `loss` and `gradients` "
        "nest: the last stands outermost.",
        "",
        "| seam | stages in their order |",
        "|---|---|",
    ]
    for seam in STAGED_SEAMS:
        places = []
        for stage in Stage:
            names = [name for name, technique in known.items() if stage in technique.card.stages]
            if stage.seam == seam and names:
                places.append(f"{stage.name.lower()}: {_links(names)}")
        lines.append(f"| `{seam}` | {' → '.join(places)} |")
    return "\n".join([*lines, ""])


def _costs(known: Mapping[str, type[Technique]]) -> str:
    """Return what benchmarks/technique_costs measured."""
    table = measured_costs()
    lines = [
        "## What each costs",
        "",
        f"{table['how']} Measured on {table['date']} with torch {table['machine']['torch']}, one thread.",
        "",
        "| | time of an update, × | memory, + × the weights | on |",
        "|---|---|---|---|",
    ]
    for name in known:
        cost: Mapping[str, Any] | None = table["techniques"].get(name)
        if cost is None:
            lines.append(f"| {_links([name])} | not measured | | |")
            continue
        time = cost["time"]
        lines.append(
            f"| {_links([name])} | {time['median']:.2f} [{time['low']:.2f}, {time['high']:.2f}] | "
            f"{cost['memory_in_weights']:+.1f} | {cost['on']} |"
        )
    return "\n".join([*lines, ""])


def _links(names: list[str]) -> str:
    return ", ".join(f"[{name}]({name}.md)" for name in names)


def write_page() -> None:
    """Write the page where it is not current; a page that is stays as it is, so that nothing is built anew for it."""
    page = render()
    if not PAGE.exists() or PAGE.read_text(encoding="utf-8") != page:
        PAGE.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    write_page()
