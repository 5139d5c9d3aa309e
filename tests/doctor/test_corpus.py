"""Every planted fault is found at its line, and nothing certain or likely on clean scripts."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest

from snugfit.doctor.findings import PITFALLS, is_ill
from snugfit.doctor.observe.detect import OBSERVED
from tests.doctor.corpus import (
    ALARM_OF_FOURTH_HAND,
    ALARMS_AT_FIRST,
    ALARMS_OF_EIGHTH_HAND,
    ALARMS_OF_ELEVENTH_HAND,
    ALARMS_OF_NINTH_HAND,
    ALARMS_OF_TENTH_HAND,
    ALARMS_OF_THIRTEENTH_HAND,
    ALARMS_OF_TWELFTH_HAND,
    AT_ANOTHER_LINE,
    AT_THE_LINE_OF_ELEVENTH_HAND,
    AT_THE_LINE_OF_NINTH_HAND,
    AT_THE_LINE_OF_TENTH_HAND,
    AT_THE_LINE_OF_TWELFTH_HAND,
    EIGHTH_HAND,
    ELEVENTH_HAND,
    ELSEWHERE_AT_FIRST,
    ELSEWHERE_BY_THIRD_HAND,
    ELSEWHERE_OF_EIGHTH_HAND,
    ELSEWHERE_OF_ELEVENTH_HAND,
    ELSEWHERE_OF_NINTH_HAND,
    ELSEWHERE_OF_SEVENTH_HAND,
    ELSEWHERE_OF_SIXTH_HAND,
    ELSEWHERE_OF_TENTH_HAND,
    ELSEWHERE_OF_THIRTEENTH_HAND,
    ELSEWHERE_OF_TWELFTH_HAND,
    FIFTH_HAND,
    FOUND_BY_THIRD_HAND,
    FOUND_OF_EIGHTH_HAND,
    FOUND_OF_ELEVENTH_HAND,
    FOUND_OF_FIFTH_HAND,
    FOUND_OF_FOURTH_HAND,
    FOUND_OF_NINTH_HAND,
    FOUND_OF_SEVENTH_HAND,
    FOUND_OF_SIXTH_HAND,
    FOUND_OF_TENTH_HAND,
    FOUND_OF_THIRTEENTH_HAND,
    FOUND_OF_TWELFTH_HAND,
    FOURTH_HAND,
    MARK,
    MEASURED_IN_SECONDS,
    MENDED_OF_ELEVENTH_HAND,
    MENDED_OF_FIFTH_HAND,
    MENDED_OF_FOURTH_HAND,
    MENDED_OF_NINTH_HAND,
    MENDED_OF_TENTH_HAND,
    MENDED_OF_THIRD_HAND,
    MENDED_OF_THIRTEENTH_HAND,
    MENDED_OF_TWELFTH_HAND,
    MISSED_AT_FIRST,
    MISSED_OF_EIGHTH_HAND,
    MISSED_OF_ELEVENTH_HAND,
    MISSED_OF_NINTH_HAND,
    MISSED_OF_SECOND_HAND,
    MISSED_OF_SEVENTH_HAND,
    MISSED_OF_SIXTH_HAND,
    MISSED_OF_TENTH_HAND,
    MISSED_OF_THIRTEENTH_HAND,
    MISSED_OF_TWELFTH_HAND,
    NEAR_FAULTS_OF_NINTH_HAND,
    NEAR_FAULTS_OF_TENTH_HAND,
    NEAR_FAULTS_OF_THIRTEENTH_HAND,
    NEAR_FAULTS_OF_TWELFTH_HAND,
    NINTH_HAND,
    NO_CHECK_OF_FOURTH_HAND,
    OTHERWISE_NAMED,
    RANKS_OF_THIRD_HAND,
    SECOND_HAND,
    SEVENTH_HAND,
    SIXTH_HAND,
    TENTH_HAND,
    THIRD_HAND,
    THIRTEENTH_HAND,
    TRUE_AFTER_ALL,
    TWELFTH_HAND,
    UNKNOWN_NAMES,
    WITHOUT_MARKS,
    Case,
    examine,
    expected,
    missing_package,
    scripts,
)
from tests.samples import some_of

pytestmark = pytest.mark.slow

FAULTY = [*scripts("faulty"), *scripts("fresh")]
CLEAN = scripts("clean")
FAULTY_OF_SECOND_HAND, CLEAN_OF_SECOND_HAND = scripts("second_hand/faulty"), scripts("second_hand/clean")
FAULTY_OF_THIRD_HAND, CLEAN_OF_THIRD_HAND = scripts("third_hand/faulty"), scripts("third_hand/clean")
FAULTY_OF_FOURTH_HAND, CLEAN_OF_FOURTH_HAND = scripts("fourth_hand/faulty"), scripts("fourth_hand/clean")
FAULTY_OF_FIFTH_HAND, CLEAN_OF_FIFTH_HAND = scripts("fifth_hand/faulty"), scripts("fifth_hand/clean")
FAULTY_OF_NINTH_HAND, CLEAN_OF_NINTH_HAND = scripts("ninth_hand/faulty"), scripts("ninth_hand/clean")
FAULTY_OF_TENTH_HAND, CLEAN_OF_TENTH_HAND = scripts("tenth_hand/faulty"), scripts("tenth_hand/clean")
FAULTY_OF_ELEVENTH_HAND, CLEAN_OF_ELEVENTH_HAND = (
    scripts("eleventh_hand/faulty"),
    scripts("eleventh_hand/clean"),
)
KNOWN_OF_FIFTH_HAND = {*FOUND_OF_FIFTH_HAND, *MENDED_OF_FIFTH_HAND}
KNOWN_OF_FOURTH_HAND = {*FOUND_OF_FOURTH_HAND, *MENDED_OF_FOURTH_HAND}
FOUND_OF_THIRD_HAND = {*FOUND_BY_THIRD_HAND, *ELSEWHERE_BY_THIRD_HAND, *MENDED_OF_THIRD_HAND}


_stem = attrgetter("stem")


def _of_thirteenth_hand(folder: str, names: Sequence[str], changed: Sequence[str]) -> list[Any]:
    """Return scripts of the thirteenth hand, of which those that stand for what was changed after them are not for a release alone."""
    given = [each for each in scripts(f"thirteenth_hand/{folder}") if each.stem in (*names, *changed)]
    return some_of(given, [each for each in given if each.stem in changed])


def _examine(script: Path) -> Case:
    package = missing_package(script)
    if package:
        pytest.skip(f"{package} is not installed")
    return examine(script)


FOUND = [
    *FAULTY,
    *FAULTY_OF_SECOND_HAND,
    *(each for each in FAULTY_OF_THIRD_HAND if each.stem in FOUND_OF_THIRD_HAND - set(RANKS_OF_THIRD_HAND)),
    *(each for each in FAULTY_OF_FOURTH_HAND if each.stem in KNOWN_OF_FOURTH_HAND),
    *(each for each in FAULTY_OF_FIFTH_HAND if each.stem in KNOWN_OF_FIFTH_HAND),
    *(
        each
        for each in FAULTY_OF_NINTH_HAND
        if each.stem in (*MENDED_OF_NINTH_HAND, *AT_THE_LINE_OF_NINTH_HAND)
    ),
    *(
        each
        for each in FAULTY_OF_TENTH_HAND
        if each.stem in (*MENDED_OF_TENTH_HAND, *AT_THE_LINE_OF_TENTH_HAND)
    ),
    *(
        each
        for each in FAULTY_OF_ELEVENTH_HAND
        if each.stem in (*MENDED_OF_ELEVENTH_HAND, *AT_THE_LINE_OF_ELEVENTH_HAND)
    ),
    *(
        each
        for each in scripts("twelfth_hand/faulty")
        if each.stem in (*MENDED_OF_TWELFTH_HAND, *AT_THE_LINE_OF_TWELFTH_HAND)
    ),
]
"""What is found at a marked line, of all hands up to the twelfth."""


def _of_each_check(cases: Sequence[Path]) -> list[Path]:
    """Return the first, the middle and the last script of each check."""
    by_check: dict[str, list[Path]] = {}
    for each in cases:
        by_check.setdefault(next(iter(Case(each, (), complete=True, failure="").pitfalls)), []).append(each)
    return [alike[place] for alike in by_check.values() for place in (0, len(alike) // 2, -1)]


@pytest.mark.parametrize(
    "script",
    [
        *some_of(FOUND, _of_each_check(FOUND)),
        *_of_thirteenth_hand("faulty", FOUND_OF_THIRTEENTH_HAND, MENDED_OF_THIRTEENTH_HAND),
    ],
    ids=_stem,
)
def test_the_planted_fault_is_found_at_the_marked_line(script: Path) -> None:
    case = _examine(script)
    assert case.failure == ""
    assert case.found, [finding.pitfall for finding in case.findings]
    assert case.at_the_mark is (script.stem not in AT_ANOTHER_LINE), [finding.where for finding in case.found]
    assert all(finding.what and finding.fix for finding in case.found)


@pytest.mark.parametrize(
    "script",
    [
        *CLEAN,
        *CLEAN_OF_SECOND_HAND,
        *(each for each in CLEAN_OF_THIRD_HAND if each.stem not in RANKS_OF_THIRD_HAND),
        *CLEAN_OF_FOURTH_HAND,
        *CLEAN_OF_FIFTH_HAND,
        *(
            each
            for each in CLEAN_OF_NINTH_HAND
            if each.stem in ALARMS_OF_NINTH_HAND + NEAR_FAULTS_OF_NINTH_HAND
        ),
        *(
            each
            for each in CLEAN_OF_TENTH_HAND
            if each.stem in ALARMS_OF_TENTH_HAND + NEAR_FAULTS_OF_TENTH_HAND
        ),
        *(each for each in CLEAN_OF_ELEVENTH_HAND if each.stem in ALARMS_OF_ELEVENTH_HAND),
        *(
            each
            for each in scripts("twelfth_hand/clean")
            if each.stem
            in set(ALARMS_OF_TWELFTH_HAND + NEAR_FAULTS_OF_TWELFTH_HAND) - set(MEASURED_IN_SECONDS)
        ),
        *_of_thirteenth_hand(
            "clean",
            [*expected(THIRTEENTH_HAND)["clean"]],
            ALARMS_OF_THIRTEENTH_HAND + NEAR_FAULTS_OF_THIRTEENTH_HAND,
        ),
    ],
    ids=_stem,
)
def test_nothing_certain_or_likely_is_found_on_a_clean_script_which_runs_to_its_end(script: Path) -> None:
    case = _examine(script)
    assert case.failure == ""
    assert case.complete
    true = TRUE_AFTER_ALL.get(script.stem, "").partition(":")[0]
    ill = [finding for finding in case.findings if is_ill([finding]) and finding.pitfall != true]
    assert not ill, ill


def test_every_pitfall_has_a_script_and_every_faulty_script_marks_one_line() -> None:
    planted = {script.stem.rpartition("_")[0] for script in FAULTY}
    assert planted == set(OBSERVED)
    assert planted <= set(PITFALLS)
    for script in FAULTY:
        assert script.read_text().count("# <- here") == 1, script.name


def test_the_corpus_is_as_large_as_was_promised() -> None:
    assert len(FAULTY) >= 40
    assert len(CLEAN) >= 20
    fresh = {script.stem for script in scripts("fresh")}
    assert len(fresh) == 15
    assert set(MISSED_AT_FIRST) < fresh, "what the frozen detectors missed stays published"


@pytest.mark.parametrize(
    "hand",
    [
        SECOND_HAND,
        THIRD_HAND,
        FOURTH_HAND,
        FIFTH_HAND,
        SIXTH_HAND,
        SEVENTH_HAND,
        EIGHTH_HAND,
        NINTH_HAND,
        TENTH_HAND,
        ELEVENTH_HAND,
        TWELFTH_HAND,
        THIRTEENTH_HAND,
    ],
    ids=attrgetter("name"),
)
def test_the_scripts_of_another_hand_are_those_whose_hashes_were_written_down_before(hand: Path) -> None:
    lines = (hand / "SHA256SUMS").read_text().splitlines()
    before = {name: digest for digest, name in (line.split(maxsplit=1) for line in lines)}
    files = (each for each in hand.rglob("*") if each.suffix in {".py", ".json", ".md"})
    names = [each.relative_to(hand).as_posix() for each in files]
    assert before == {name: hashlib.sha256((hand / name).read_bytes()).hexdigest() for name in names}


def test_the_third_hand_says_what_it_planted_where_from_and_what_was_missed_at_first() -> None:
    table = expected(THIRD_HAND)
    faulty, clean = ({each.stem for each in files} for files in (FAULTY_OF_THIRD_HAND, CLEAN_OF_THIRD_HAND))
    assert (set(table["faulty"]), set(table["clean"])) == (faulty, clean)
    assert (len(faulty), len(clean)) == (45, 25)
    assert all(row["source"] and row["pitfalls"] for row in table["faulty"].values())
    assert all(MARK in script.read_text() for script in FAULTY_OF_THIRD_HAND)
    parts = (FOUND_BY_THIRD_HAND, ELSEWHERE_BY_THIRD_HAND, MENDED_OF_THIRD_HAND)
    assert [len(part) for part in parts] == [9, 6, 29], "what was found at first stays published"
    assert len(FOUND_OF_THIRD_HAND) == 44 and faulty > FOUND_OF_THIRD_HAND


def test_the_fourth_hand_says_what_it_planted_where_from_and_what_was_missed_at_first() -> None:
    table = expected(FOURTH_HAND)
    faulty, clean = ({each.stem for each in files} for files in (FAULTY_OF_FOURTH_HAND, CLEAN_OF_FOURTH_HAND))
    assert (set(table["faulty"]), set(table["clean"])) == (faulty, clean)
    assert (len(faulty), len(clean)) == (25, 8)
    assert all(row["source"] and row["pitfalls"] for row in table["faulty"].values())
    assert all(MARK in script.read_text() for script in FAULTY_OF_FOURTH_HAND)
    assert [len(FOUND_OF_FOURTH_HAND), len(MENDED_OF_FOURTH_HAND)] == [5, 18], (
        "what was found at first stays published"
    )
    assert faulty == KNOWN_OF_FOURTH_HAND | set(NO_CHECK_OF_FOURTH_HAND) and ALARM_OF_FOURTH_HAND in clean


def test_the_fifth_hand_says_what_it_planted_where_from_and_what_was_missed_at_first() -> None:
    table = expected(FIFTH_HAND)
    faulty, clean = ({each.stem for each in files} for files in (FAULTY_OF_FIFTH_HAND, CLEAN_OF_FIFTH_HAND))
    assert (set(table["faulty"]), set(table["clean"])) == (faulty, clean)
    assert (len(faulty), len(clean)) == (18, 17)
    assert all(row["source"] and row["pitfalls"] for row in table["faulty"].values())
    assert all(MARK in script.read_text() for script in FAULTY_OF_FIFTH_HAND)
    assert [len(FOUND_OF_FIFTH_HAND), len(MENDED_OF_FIFTH_HAND)] == [3, 14], (
        "what was found at first stays published"
    )
    assert faulty == KNOWN_OF_FIFTH_HAND | set(OTHERWISE_NAMED)


def test_the_sixth_hand_says_what_it_planted_where_from_and_what_the_frozen_detectors_made_of_it() -> None:
    table = expected(SIXTH_HAND)
    faulty, clean = (
        {each.stem for each in scripts(f"sixth_hand/{folder}")} for folder in ("faulty", "clean")
    )
    assert (set(table["faulty"]), set(table["clean"])) == (faulty, clean)
    assert clean == {f"{name}_mended" for name in faulty} and len(faulty) == 39
    for name, row in table["faulty"].items():
        lines = (SIXTH_HAND / "faulty" / f"{name}.py").read_text().splitlines()
        marked = [number for number, line in enumerate(lines, 1) if line.endswith(MARK)]
        assert row["source"] and set(row["pitfalls"]) & set(PITFALLS), name
        assert marked and all(
            any(first <= each <= last for first, last in row["lines"]) for each in marked
        ), name
    at_first = [FOUND_OF_SIXTH_HAND, ELSEWHERE_OF_SIXTH_HAND, MISSED_OF_SIXTH_HAND]
    assert [len(names) for names in at_first] == [22, 7, 10], "what was found at first stays published"
    assert sorted(faulty) == sorted(name for names in at_first for name in names)


@pytest.mark.parametrize(
    ("hand", "counts", "at_first"),
    [
        (SEVENTH_HAND, (52, 30), (FOUND_OF_SEVENTH_HAND, ELSEWHERE_OF_SEVENTH_HAND, MISSED_OF_SEVENTH_HAND)),
        (EIGHTH_HAND, (61, 30), (FOUND_OF_EIGHTH_HAND, ELSEWHERE_OF_EIGHTH_HAND, MISSED_OF_EIGHTH_HAND)),
        (NINTH_HAND, (60, 60), (FOUND_OF_NINTH_HAND, ELSEWHERE_OF_NINTH_HAND, MISSED_OF_NINTH_HAND)),
        (TENTH_HAND, (60, 60), (FOUND_OF_TENTH_HAND, ELSEWHERE_OF_TENTH_HAND, MISSED_OF_TENTH_HAND)),
        (
            ELEVENTH_HAND,
            (62, 30),
            (FOUND_OF_ELEVENTH_HAND, ELSEWHERE_OF_ELEVENTH_HAND, MISSED_OF_ELEVENTH_HAND),
        ),
        (TWELFTH_HAND, (60, 30), (FOUND_OF_TWELFTH_HAND, ELSEWHERE_OF_TWELFTH_HAND, MISSED_OF_TWELFTH_HAND)),
        (
            THIRTEENTH_HAND,
            (60, 30),
            (FOUND_OF_THIRTEENTH_HAND, ELSEWHERE_OF_THIRTEENTH_HAND, MISSED_OF_THIRTEENTH_HAND),
        ),
    ],
    ids=("seventh", "eighth", "ninth", "tenth", "eleventh", "twelfth", "thirteenth"),
)
def test_hands_since_the_seventh_say_what_they_planted_where_from_and_what_the_detectors_made_of_it(
    hand: Path, counts: tuple[int, int], at_first: tuple[tuple[str, ...], ...]
) -> None:
    table = expected(hand)
    faulty, clean = (
        {each.stem for each in scripts(f"{hand.name}/{folder}")} for folder in ("faulty", "clean")
    )
    assert (set(table["faulty"]), set(table["clean"])) == (faulty, clean)
    assert (len(faulty), len(clean)) == counts
    for name, row in table["faulty"].items():
        known = set(PITFALLS) | set(UNKNOWN_NAMES)
        assert row["source"] and set(row["pitfalls"]) <= known and row["twin"] in clean, name
        for file, spans in row["lines"].items():
            lines = (hand / "faulty" / file).read_text().splitlines()
            assert spans and all(1 <= a <= b <= len(lines) for a, b in spans), file
            marked = [number for number, line in enumerate(lines, 1) if line.endswith(MARK)]
            assert marked or hand in WITHOUT_MARKS, "they wrote their lines down beside the scripts alone"
            assert all(any(a <= each <= b for a, b in spans) for each in marked), file
    assert sorted(faulty) == sorted(name for names in at_first for name in names)


def test_what_was_found_of_hands_since_the_seventh_at_first_stays_published() -> None:
    seventh = (FOUND_OF_SEVENTH_HAND, ELSEWHERE_OF_SEVENTH_HAND, MISSED_OF_SEVENTH_HAND)
    eighth = (FOUND_OF_EIGHTH_HAND, ELSEWHERE_OF_EIGHTH_HAND, MISSED_OF_EIGHTH_HAND)
    ninth = (FOUND_OF_NINTH_HAND, ELSEWHERE_OF_NINTH_HAND, MISSED_OF_NINTH_HAND)
    tenth = (FOUND_OF_TENTH_HAND, ELSEWHERE_OF_TENTH_HAND, MISSED_OF_TENTH_HAND)
    eleventh = (FOUND_OF_ELEVENTH_HAND, ELSEWHERE_OF_ELEVENTH_HAND, MISSED_OF_ELEVENTH_HAND)
    twelfth = (FOUND_OF_TWELFTH_HAND, ELSEWHERE_OF_TWELFTH_HAND, MISSED_OF_TWELFTH_HAND)
    thirteenth = (FOUND_OF_THIRTEENTH_HAND, ELSEWHERE_OF_THIRTEENTH_HAND, MISSED_OF_THIRTEENTH_HAND)
    assert [len(names) for names in seventh] == [27, 10, 15]
    assert [len(names) for names in eighth] == [34, 5, 22]
    assert [len(names) for names in ninth] == [31, 6, 23]
    assert [len(names) for names in tenth] == [28, 13, 19]
    assert [len(names) for names in eleventh] == [43, 4, 15]
    assert [len(names) for names in twelfth] == [27, 8, 25]
    assert [len(names) for names in thirteenth] == [20, 4, 36]
    assert set(MENDED_OF_NINTH_HAND) == set(MISSED_OF_NINTH_HAND)
    assert set(AT_THE_LINE_OF_NINTH_HAND) == set(ELSEWHERE_OF_NINTH_HAND)
    assert set(ALARMS_OF_NINTH_HAND) < set(expected(NINTH_HAND)["clean"])
    assert set(MENDED_OF_TENTH_HAND) < set(MISSED_OF_TENTH_HAND)
    assert set(AT_THE_LINE_OF_TENTH_HAND) == set(ELSEWHERE_OF_TENTH_HAND)
    assert set(ALARMS_OF_TENTH_HAND) < set(expected(TENTH_HAND)["clean"])
    assert set(MENDED_OF_ELEVENTH_HAND) < set(MISSED_OF_ELEVENTH_HAND)
    assert set(AT_THE_LINE_OF_ELEVENTH_HAND) <= set(ELSEWHERE_OF_ELEVENTH_HAND)
    assert set(ALARMS_OF_ELEVENTH_HAND) < set(expected(ELEVENTH_HAND)["clean"])
    assert set(MENDED_OF_TWELFTH_HAND) < set(MISSED_OF_TWELFTH_HAND)
    assert set(AT_THE_LINE_OF_TWELFTH_HAND) < set(ELSEWHERE_OF_TWELFTH_HAND)
    assert set(NEAR_FAULTS_OF_TWELFTH_HAND) < set(expected(TWELFTH_HAND)["clean"])
    assert set(ALARMS_OF_TWELFTH_HAND) < set(expected(TWELFTH_HAND)["clean"])
    assert set(MENDED_OF_THIRTEENTH_HAND) < set(MISSED_OF_THIRTEENTH_HAND)
    assert set(NEAR_FAULTS_OF_THIRTEENTH_HAND) < set(expected(THIRTEENTH_HAND)["clean"])
    assert set(ALARMS_OF_THIRTEENTH_HAND) < set(expected(THIRTEENTH_HAND)["clean"])
    assert set(ALARMS_OF_EIGHTH_HAND) < set(expected(EIGHTH_HAND)["clean"])


def test_the_second_hand_says_what_it_planted_and_what_was_missed_at_first() -> None:
    table = expected()
    faulty, clean = ({each.stem for each in found} for found in (FAULTY_OF_SECOND_HAND, CLEAN_OF_SECOND_HAND))
    assert (set(table["faulty"]), set(table["clean"])) == (faulty, clean)
    assert (len(faulty), len(clean)) == (40, 28)
    assert len({row["kind"] for row in [*table["faulty"].values(), *table["clean"].values()]}) >= 30
    assert len(MISSED_OF_SECOND_HAND) == 17 and set(MISSED_OF_SECOND_HAND) < faulty
    assert set(ELSEWHERE_AT_FIRST) < faulty - set(MISSED_OF_SECOND_HAND)
    assert set(ALARMS_AT_FIRST) < clean and set(TRUE_AFTER_ALL) < clean
    assert all(MARK in script.read_text() for script in FAULTY_OF_SECOND_HAND)
    for row in table["faulty"].values():
        assert set(row["pitfalls"]) & set(PITFALLS), row
