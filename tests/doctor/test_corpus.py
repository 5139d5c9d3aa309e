"""Every planted fault is found at its line, and nothing certain or likely on clean scripts."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from operator import attrgetter
from pathlib import Path

import pytest

from snugfit.doctor.findings import PITFALLS
from snugfit.doctor.observe.detect import OBSERVED
from tests.doctor.corpus import (
    HANDS,
    MARK,
    NEWEST,
    OWN,
    Case,
    Hand,
    examine,
    missing_package,
    planted_in,
    result_of,
    rounds,
    scripts,
)
from tests.samples import some_of

pytestmark = pytest.mark.slow

FAULTY = [*scripts("faulty"), *scripts("fresh")]
CLEAN = scripts("clean")
FOUND = [*FAULTY, *(each for hand in HANDS.values() for each in hand.held("faulty"))]
SILENT = [*CLEAN, *(each for hand in HANDS.values() for each in hand.held("clean"))]

_UNKNOWN = ("critic_frozen", "lambda_factor", "never_unscaled", "returns", "same_order")
"""Names that hands expected and that no check has."""


def _of_each_check(cases: Sequence[Path]) -> list[Path]:
    """Return the first, the middle and the last script of each check."""
    by_check: dict[str, list[Path]] = {}
    for each in cases:
        by_check.setdefault(planted_in(each)[0], []).append(each)
    return [alike[place] for alike in by_check.values() for place in (0, len(alike) // 2, -1)]


def _examine(script: Path) -> Case:
    package = missing_package(script)
    if package:
        pytest.skip(f"{package} is not installed")
    return examine(script)


@pytest.mark.parametrize(
    "script",
    some_of(
        FOUND, [*_of_each_check(FOUND), *(script for hand in NEWEST for script in hand.changed("faulty"))]
    ),
    ids=attrgetter("stem"),
)
def test_the_planted_fault_is_found_at_the_marked_line(script: Path) -> None:
    case = _examine(script)
    assert case.failure == ""
    assert case.found, [finding.pitfall for finding in case.findings]
    at_the_mark = result_of(script).get("now") != "elsewhere"
    assert case.at_the_mark is at_the_mark, [finding.where for finding in case.found]
    assert all(finding.what and finding.fix for finding in case.found)


@pytest.mark.parametrize(
    "script",
    some_of(
        SILENT,
        {*SILENT} - {each for hand in NEWEST for each in {*hand.scripts("clean")} - {*hand.changed("clean")}},
    ),
    ids=attrgetter("stem"),
)
def test_nothing_certain_or_likely_is_found_on_a_clean_script_which_runs_to_its_end(script: Path) -> None:
    case = _examine(script)
    assert case.failure == ""
    assert case.complete
    assert not case.alarms, case.alarms


def test_every_pitfall_has_a_script_and_every_faulty_script_marks_one_line() -> None:
    planted = {script.stem.rpartition("_")[0] for script in FAULTY}
    assert planted == set(OBSERVED)
    assert planted <= set(PITFALLS)
    for script in FAULTY:
        assert script.read_text().count("# <- here") == 1, script.name


def test_the_corpus_is_as_large_as_was_promised() -> None:
    assert len(FAULTY) >= 40
    assert len(CLEAN) >= 20
    assert {script.stem for script in scripts("fresh")} == {*OWN["fresh"]}
    at_first = [row["at_first"] for row in OWN["fresh"].values()]
    assert [at_first.count(each) for each in ("found", "missed")] == [9, 6], (
        "what the frozen detectors missed stays published"
    )


@pytest.mark.parametrize("hand", HANDS.values(), ids=HANDS)
def test_the_scripts_of_another_hand_are_those_whose_hashes_were_written_down_before(hand: Hand) -> None:
    lines = (hand.folder / "SHA256SUMS").read_text().splitlines()
    before = {name: digest for digest, name in (line.split(maxsplit=1) for line in lines)}
    files = (each for each in hand.folder.rglob("*") if each.suffix in {".py", ".json", ".md"})
    names = [each.relative_to(hand.folder).as_posix() for each in files]
    assert before == {name: hashlib.sha256((hand.folder / name).read_bytes()).hexdigest() for name in names}


@pytest.mark.parametrize(
    ("name", "faults", "clean", "alarms"),
    [
        ("second", (18, 5, 17, 40), (28, 28), 2),
        ("third", (9, 6, 30, 44), (25, 25), 0),
        ("fourth", (5, 0, 20, 23), (8, 8), 1),
        ("fifth", (2, 1, 15, 17), (17, 17), 0),
        ("sixth", (22, 7, 10, 0), (39, 0), 1),
        ("seventh", (27, 10, 15, 0), (30, 0), 3),
        ("eighth", (34, 5, 22, 0), (30, 0), 3),
        ("ninth", (31, 6, 23, 29), (60, 7), 3),
        ("tenth", (28, 13, 19, 22), (60, 7), 3),
        ("eleventh", (43, 4, 15, 16), (30, 2), 2),
        ("twelfth", (27, 8, 25, 24), (30, 21), 7),
        ("thirteenth", (20, 4, 36, 28), (30, 30), 3),
        ("fourteenth", (12, 2, 15, 22), (29, 28), 2),
        ("fifteenth", (4, 5, 21, 21), (30, 30), 0),
        ("sixteenth", (9, 3, 13, 18), (25, 11), 1),
        ("seventeenth", (8, 4, 13, 20), (25, 8), 2),
    ],
)
def test_what_was_found_at_first_stays_published_and_what_is_found_since_is_held(
    name: str, faults: tuple[int, ...], clean: tuple[int, int], alarms: int
) -> None:
    hand = HANDS[name]
    found = [len(hand.at_first("faulty", each)) for each in ("found", "elsewhere", "missed")]
    assert (*found, len(hand.held("faulty"))) == faults
    assert len(hand.scripts("faulty")) == sum(found)
    assert (len(hand.scripts("clean")), len(hand.held("clean"))) == clean
    assert len(hand.at_first("clean", "alarm")) == alarms


def test_the_page_has_what_was_found_of_each_round() -> None:
    page = Path(__file__).parents[2] / "docs/tools/doctor_rounds.md"
    assert rounds() in page.read_text(encoding="utf-8")


@pytest.mark.parametrize("hand", HANDS.values(), ids=HANDS)
def test_each_hand_says_what_it_planted_and_where_from(hand: Hand) -> None:
    for kind in ("faulty", "clean"):
        names = {each.stem for each in hand.scripts(kind)}
        assert {*hand.expected[kind]} == names == {*hand.results[kind]}
    for script in hand.scripts("faulty"):
        row = hand.expected["faulty"][script.stem]
        assert {*row["pitfalls"]} <= {*PITFALLS, *_UNKNOWN}, script
        assert row.get("source") or hand is HANDS["second"], script
        assert row.get("twin", script.stem) in {*hand.expected["clean"], script.stem}, script
        places = hand.lines(script)
        assert places or MARK in script.read_text(), script
        for file, spans in places.items():
            lines = (hand.folder / "faulty" / file).read_text().splitlines()
            assert spans and all(1 <= first <= last <= len(lines) for first, last in spans), file
            marked = [number for number, line in enumerate(lines, 1) if line.endswith(MARK)]
            assert all(any(first <= each <= last for first, last in spans) for each in marked), file
    kinds = {row["kind"] for row in [*hand.expected["faulty"].values(), *hand.expected["clean"].values()]}
    assert len(kinds) >= 18
