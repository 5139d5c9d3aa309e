"""Which planted faults does `snugfit doctor -- python train.py` find, and does it leave clean scripts alone?

    python benchmarks/doctor/run.py

Runs every script of tests/doctor under observation, writes the findings as JSON beside this file, and the table between
the markers of docs/tools/doctor.md.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]
os.environ["HF_HUB_OFFLINE"] = "1"

from common import write_result  # noqa: E402

from snugfit.doctor.findings import PITFALLS, is_ill  # noqa: E402
from tests.doctor.corpus import (  # noqa: E402
    ALARMS_AT_FIRST,
    ELSEWHERE_AT_FIRST,
    ELSEWHERE_BY_THIRD_HAND,
    FIFTH_HAND,
    FOUND_BY_THIRD_HAND,
    FOUND_OF_FIFTH_HAND,
    FOUND_OF_FOURTH_HAND,
    FOURTH_HAND,
    MISSED_AT_FIRST,
    MISSED_OF_SECOND_HAND,
    RANKS_OF_THIRD_HAND,
    THIRD_HAND,
    TRUE_AFTER_ALL,
    Case,
    examine,
    expected,
    missing_package,
    scripts,
)

PAGE = ROOT / "docs/tools/doctor.md"
FOLDERS = (
    "faulty",
    "fresh",
    "clean",
    *(
        f"{hand}/{folder}"
        for hand in ("second_hand", "third_hand", "fourth_hand", "fifth_hand")
        for folder in ("faulty", "clean")
    ),
)
BEGIN, END = "<!-- corpus -->", "<!-- /corpus -->"


def examine_all(folder: str) -> list[dict[str, Any]]:
    """Run the scripts of a folder, each in a folder of its own, and say what became of them."""
    rows = []
    for script in scripts(folder):
        if script.stem in RANKS_OF_THIRD_HAND:
            continue  # they start ranks of their own
        if missing_package(script):
            raise SystemExit(f"{script.name} needs {missing_package(script)}: pip install -e '.[bench]'")
        with tempfile.TemporaryDirectory() as own, contextlib.chdir(own):
            started = time.monotonic()
            with contextlib.redirect_stdout(io.StringIO()):
                case = examine(script)
            rows.append(_row(folder, case, time.monotonic() - started))
        print(f"{folder}/{script.stem}: {rows[-1]['outcome']}", file=sys.stderr)
    return rows


def _row(folder: str, case: Case, seconds: float) -> dict[str, Any]:
    clean = folder.endswith("clean")
    if clean:
        true = TRUE_AFTER_ALL.get(case.script.stem, "").partition(":")[0]
        ill = [finding for finding in case.findings if is_ill([finding])]
        alarm = "false alarm" if any(finding.pitfall != true for finding in ill) else "a true finding"
        outcome = alarm if ill else "nothing certain or likely"
    elif not case.found:
        outcome = "not found"
    else:
        outcome = "found" if case.at_the_mark else "found at another line"
    first = (case.script.read_text().split('"""')[1]).strip()
    return {
        "script": case.script.stem,
        "folder": folder,
        "pitfall": "" if clean else case.found[0].pitfall if case.found else case.pitfalls[0],
        "fault": first,
        "outcome": outcome,
        "certainty": str(case.found[0].certainty) if case.found and not clean else "",
        "findings": [finding.pitfall for finding in case.findings],
        "seconds": round(seconds, 2),
    }


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Return the corpus as Markdown: one line for each pitfall, then the faults that were written afterwards."""
    by_pitfall = defaultdict(list)
    for row in rows:
        if row["folder"] == "faulty":
            by_pitfall[row["pitfall"]].append(row)
    fresh = [row for row in rows if row["folder"] == "fresh"]
    clean = [row for row in rows if row["folder"] == "clean"]
    alarms = [row["script"] for row in clean if row["outcome"] == "false alarm"]
    first = sum(row["script"] not in MISSED_AT_FIRST for row in fresh)
    lines = [
        f"Written with the detectors: {_count(rows, 'faulty')}. Written after the detectors were frozen: {first} of "
        f"{len(fresh)} found by these, {_count(rows, 'fresh')} after mending. Clean scripts: {len(clean)}, with something certain or "
        f"likely on {len(alarms) or 'none'}{': ' + ', '.join(alarms) if alarms else ''}.",
        "",
        "| pitfall | scripts | found | certainty |",
        "|---|---|---|---|",
    ]
    for pitfall in PITFALLS:
        mine = by_pitfall.get(pitfall, [])
        if mine:
            hits = sum(row["outcome"].startswith("found") for row in mine)
            certainty = ", ".join(dict.fromkeys(row["certainty"] for row in mine if row["certainty"]))
            lines.append(f"| {PITFALLS[pitfall]} | {len(mine)} | {hits} | {certainty} |")
    lines += [
        "",
        "The faults that were written afterwards:",
        "",
        "| fault | pitfall | frozen detectors | after mending |",
        "|---|---|---|---|",
    ]
    for row in fresh:
        why = MISSED_AT_FIRST.get(row["script"])
        at_first = f"not found: {why}" if why else row["outcome"]
        lines.append(f"| {row['fault']} | `{row['pitfall']}` | {at_first} | {row['outcome']} |")
    return "\n".join(
        [
            *lines,
            *second_hand(rows),
            *third_hand(rows),
            *by_reports(rows, FOURTH_HAND, FOUND_OF_FOURTH_HAND),
            *by_reports(rows, FIFTH_HAND, FOUND_OF_FIFTH_HAND),
        ]
    )


def second_hand(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Return the scripts of the second hand as Markdown: as shipped, and after mending."""
    faulty = [row for row in rows if row["folder"] == "second_hand/faulty"]
    clean = [row for row in rows if row["folder"] == "second_hand/clean"]
    table = expected()
    at_mark = len(faulty) - len(MISSED_OF_SECOND_HAND) - len(ELSEWHERE_AT_FIRST)
    now = sum(row["outcome"] == "found" for row in faulty)
    other_line = sum(row["outcome"] == "found at another line" for row in faulty)
    alarms = [row["script"] for row in clean if row["outcome"] == "false alarm"]
    false = [name for name in ALARMS_AT_FIRST if name not in TRUE_AFTER_ALL]
    lines = [
        "",
        f"Written by a second hand that had read no detector: {len(faulty)} faults. As shipped: {at_mark} found at a marked line, "
        f"{len(ELSEWHERE_AT_FIRST)} at another line, {len(MISSED_OF_SECOND_HAND)} not found. After mending: {now} and {other_line} "
        f"at another line. Its {len(clean)} clean scripts: as shipped something certain or likely on {len(ALARMS_AT_FIRST)}, of which "
        f"{len(false)} was false; after mending {len(alarms) or 'none'} false.",
        "",
        "| script | kind | pitfall | as shipped | after mending |",
        "|---|---|---|---|---|",
    ]
    for row in faulty:
        name = row["script"]
        missed = MISSED_OF_SECOND_HAND.get(name)
        first = "found at another line" if name in ELSEWHERE_AT_FIRST else "found"
        kind = table["faulty"][name]["kind"]
        lines.append(
            f"| `{name}` | {kind} | `{row['pitfall']}` | {f'not found: {missed}' if missed else first} | {row['outcome']} |"
        )
    lines += [
        "",
        "| clean script | kind | looks like a fault | as shipped | after mending |",
        "|---|---|---|---|---|",
    ]
    for row in clean:
        name, about = row["script"], table["clean"][row["script"]]
        first = "nothing certain or likely"
        if name in ALARMS_AT_FIRST:
            first = "a true finding" if name in TRUE_AFTER_ALL else "false alarm"
        lines.append(f"| `{name}` | {about['kind']} | {about['looks_like']} | {first} | {row['outcome']} |")
    lines += [
        "",
        *(f"`{name}` is not clean. {why[0].upper()}{why[1:]}." for name, why in TRUE_AFTER_ALL.items()),
    ]
    return lines


def third_hand(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Return the faults of the third hand as Markdown: as shipped, and after mending."""
    faulty = [row for row in rows if row["folder"] == "third_hand/faulty"]
    clean = [row for row in rows if row["folder"] == "third_hand/clean"]
    about = expected(THIRD_HAND)["faulty"]
    now, other_line = (
        sum(row["outcome"] == outcome for row in faulty) for outcome in ("found", "found at another line")
    )
    alarms = [row["script"] for row in clean if row["outcome"] == "false alarm"]
    lines = [
        "",
        f"Written by a third hand: {len(about)} faults, {len(about) - len(faulty)} of them on ranks, which are started as commands and are not in "
        f"this table. As shipped {len(FOUND_BY_THIRD_HAND)} of all were found at a marked line and {len(ELSEWHERE_BY_THIRD_HAND)} at another one. "
        f"After mending, of the others: {now} and {other_line}. Of its {len(clean)} clean scripts in one process {len(alarms) or 'none'} has something certain "
        "or likely.",
        "",
        "| script | kind | pitfall | as shipped | after mending |",
        "|---|---|---|---|---|",
    ]
    for row in faulty:
        name = row["script"]
        first = "found at another line" if name in ELSEWHERE_BY_THIRD_HAND else "not found"
        if name in FOUND_BY_THIRD_HAND:
            first = "found"
        lines.append(
            f"| `{name}` | {about[name]['kind']} | `{row['pitfall']}` | {first} | {row['outcome']} |"
        )
    return lines


def by_reports(rows: Sequence[dict[str, Any]], hand: Path, at_first: Sequence[str]) -> list[str]:
    """Return the faults of a hand that wrote them from reports as Markdown: as shipped, when those of `at_first` were found, and after mending."""
    faulty = [row for row in rows if row["folder"] == f"{hand.name}/faulty"]
    clean = [row for row in rows if row["folder"] == f"{hand.name}/clean"]
    about = expected(hand)["faulty"]
    now = sum(row["outcome"].startswith("found") for row in faulty)
    alarms = [row["script"] for row in clean if row["outcome"] == "false alarm"]
    lines = [
        "",
        f"Written from reports, before a detector had seen them, by the writer of the detectors: {len(faulty)} faults. As shipped "
        f"{len(at_first)} were found, after mending {now}. Of its {len(clean)} clean scripts {len(alarms) or 'none'} has something certain or likely "
        "after mending.",
        "",
        "| script | kind | report | as shipped | after mending |",
        "|---|---|---|---|---|",
    ]
    for row in faulty:
        name = row["script"]
        first = "found" if name in at_first else "not found"
        row_about = about[name]
        lines.append(
            f"| `{name}` | {row_about['kind']} | {row_about['source']} | {first} | {row['outcome']} |"
        )
    return lines


def _count(rows: Sequence[dict[str, Any]], folder: str) -> str:
    mine = [row for row in rows if row["folder"] == folder]
    return f"{sum(row['outcome'].startswith('found') for row in mine)} of {len(mine)} found"


def main() -> None:
    rows = [row for folder in FOLDERS for row in examine_all(folder)]
    path = write_result(Path(__file__).parent, {"scripts": rows})
    text = PAGE.read_text(encoding="utf-8")
    if BEGIN not in text or END not in text:
        raise SystemExit(f"{PAGE} has no markers {BEGIN} and {END}")
    head, _, rest = text.partition(BEGIN)
    PAGE.write_text(f"{head}{BEGIN}\n{table(rows)}\n{END}{rest.partition(END)[2]}", encoding="utf-8")
    print(path)


if __name__ == "__main__":
    main()
