"""Which planted faults does `snugfit doctor -- python train.py` find, and does it leave clean scripts alone?

    python benchmarks/doctor/run.py

Runs the scripts of our own and of rounds two to five under observation, writes the findings as JSON beside this file, and two tables between
markers of docs/tools/doctor_rounds.md: what was found of these, and what was found of each round at first.
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

from common import put_on_page, write_result  # noqa: E402

from snugfit.doctor.findings import PITFALLS, is_ill  # noqa: E402
from tests.doctor.corpus import (  # noqa: E402
    HANDS,
    OWN,
    Case,
    Hand,
    examine,
    missing_package,
    rounds,
    scripts,
)

PAGE = ROOT / "docs/tools/doctor_rounds.md"
SECOND, THIRD, *BY_REPORTS = (HANDS[name] for name in ("second", "third", "fourth", "fifth"))
FOLDERS = (
    "faulty",
    "fresh",
    "clean",
    *(f"{hand.name}/{kind}" for hand in (SECOND, THIRD, *BY_REPORTS) for kind in ("faulty", "clean")),
)


def examine_all(folder: str) -> list[dict[str, Any]]:
    """Run the scripts of a folder, each in a folder of its own, and say what became of them."""
    rows = []
    for script in scripts(folder):
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
        alarm = "false alarm" if case.alarms else "a true finding"
        outcome = alarm if is_ill(case.findings) else "nothing certain or likely"
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
    first = sum(row["at_first"] == "found" for row in OWN["fresh"].values())
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
        why = OWN["fresh"][row["script"]].get("why")
        at_first = f"not found: {why}" if why else row["outcome"]
        lines.append(f"| {row['fault']} | `{row['pitfall']}` | {at_first} | {row['outcome']} |")
    return "\n".join(
        [
            *lines,
            *second_hand(rows),
            *third_hand(rows),
            *(line for hand in BY_REPORTS for line in by_reports(rows, hand)),
        ]
    )


def second_hand(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Return the scripts of the second hand as Markdown: as shipped, and after mending."""
    faulty = [row for row in rows if row["folder"] == "second_hand/faulty"]
    clean = [row for row in rows if row["folder"] == "second_hand/clean"]
    about, results = SECOND.expected, SECOND.results
    at_mark, at_others, missed = (
        len(SECOND.at_first("faulty", each)) for each in ("found", "elsewhere", "missed")
    )
    alarms_at_first = SECOND.at_first("clean", "alarm")
    now = sum(row["outcome"] == "found" for row in faulty)
    other_line = sum(row["outcome"] == "found at another line" for row in faulty)
    alarms = [row["script"] for row in clean if row["outcome"] == "false alarm"]
    true = {name: row["true"] for name, row in results["clean"].items() if "true" in row}
    false = [name for name in alarms_at_first if name not in true]
    lines = [
        "",
        f"Written by a second hand that had read no detector: {len(faulty)} faults. As shipped: {at_mark} found at a marked line, "
        f"{at_others} at another line, {missed} not found. After mending: {now} and {other_line} "
        f"at another line. Its {len(clean)} clean scripts: as shipped something certain or likely on {len(alarms_at_first)}, of which "
        f"{len(false)} was false; after mending {len(alarms) or 'none'} false.",
        "",
        "| script | kind | pitfall | as shipped | after mending |",
        "|---|---|---|---|---|",
    ]
    for row in faulty:
        name = row["script"]
        kind, first = about["faulty"][name]["kind"], _at_first(results["faulty"][name])
        lines.append(f"| `{name}` | {kind} | `{row['pitfall']}` | {first} | {row['outcome']} |")
    lines += [
        "",
        "| clean script | kind | looks like a fault | as shipped | after mending |",
        "|---|---|---|---|---|",
    ]
    for row in clean:
        name, mine = row["script"], about["clean"][row["script"]]
        first = "nothing certain or likely"
        if name in alarms_at_first:
            first = "a true finding" if name in true else "false alarm"
        lines.append(f"| `{name}` | {mine['kind']} | {mine['looks_like']} | {first} | {row['outcome']} |")
    lines += [
        "",
        *(f"`{name}` is not clean. {why[0].upper()}{why[1:]}." for name, why in true.items()),
    ]
    return lines


def third_hand(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Return the faults of the third hand as Markdown: as shipped, and after mending."""
    faulty = [row for row in rows if row["folder"] == "third_hand/faulty"]
    clean = [row for row in rows if row["folder"] == "third_hand/clean"]
    about = THIRD.expected["faulty"]
    at_mark, at_others = (len(THIRD.at_first("faulty", each)) for each in ("found", "elsewhere"))
    now, other_line = (
        sum(row["outcome"] == outcome for row in faulty) for outcome in ("found", "found at another line")
    )
    alarms = [row["script"] for row in clean if row["outcome"] == "false alarm"]
    lines = [
        "",
        f"Written by a third hand: {len(faulty)} faults, three of them on ranks. As shipped {at_mark} were found at a marked line and "
        f"{at_others} at another one. After mending: {now} and {other_line}. Of its {len(clean)} clean scripts "
        f"{len(alarms) or 'none'} has something certain or likely.",
        "",
        "| script | kind | pitfall | as shipped | after mending |",
        "|---|---|---|---|---|",
    ]
    for row in faulty:
        name = row["script"]
        first = _at_first(THIRD.results["faulty"][name])
        lines.append(
            f"| `{name}` | {about[name]['kind']} | `{row['pitfall']}` | {first} | {row['outcome']} |"
        )
    return lines


def by_reports(rows: Sequence[dict[str, Any]], hand: Hand) -> list[str]:
    """Return the faults of a hand that wrote them from reports as Markdown: as shipped, and after mending."""
    faulty = [row for row in rows if row["folder"] == f"{hand.name}/faulty"]
    clean = [row for row in rows if row["folder"] == f"{hand.name}/clean"]
    about, results = hand.expected["faulty"], hand.results["faulty"]
    at_first = sum(row["at_first"] != "missed" for row in results.values())
    now = sum(row["outcome"].startswith("found") for row in faulty)
    alarms = [row["script"] for row in clean if row["outcome"] == "false alarm"]
    lines = [
        "",
        f"Written from reports, before a detector had seen them, by the writer of the detectors: {len(faulty)} faults. As shipped "
        f"{at_first} were found, after mending {now}. Of its {len(clean)} clean scripts something certain or likely was found on "
        f"{len(hand.at_first('clean', 'alarm')) or 'none'} as shipped, and on {len(alarms) or 'none'} after mending.",
        "",
        "| script | kind | report | as shipped | after mending |",
        "|---|---|---|---|---|",
    ]
    for row in faulty:
        name = row["script"]
        first = "not found" if results[name]["at_first"] == "missed" else "found"
        row_about = about[name]
        lines.append(
            f"| `{name}` | {row_about['kind']} | {row_about['source']} | {first} | {row['outcome']} |"
        )
    return lines


def _at_first(row: dict[str, Any]) -> str:
    outcomes = {"found": "found", "elsewhere": "found at another line", "missed": "not found"}
    return ": ".join(filter(None, [outcomes[row["at_first"]], row.get("why")]))


def _count(rows: Sequence[dict[str, Any]], folder: str) -> str:
    mine = [row for row in rows if row["folder"] == folder]
    return f"{sum(row['outcome'].startswith('found') for row in mine)} of {len(mine)} found"


def main() -> None:
    rows = [row for folder in FOLDERS for row in examine_all(folder)]
    path = write_result(Path(__file__).parent, {"scripts": rows})
    put_on_page(PAGE, "rounds", rounds())
    put_on_page(PAGE, "corpus", table(rows))
    print(path)


if __name__ == "__main__":
    main()
