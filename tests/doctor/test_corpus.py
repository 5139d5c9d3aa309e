"""Every planted fault is found at its line, and clean scripts get no warning."""

from __future__ import annotations

from pathlib import Path

import pytest

from snugfit.doctor.findings import PITFALLS, is_ill
from snugfit.doctor.observe.detect import OBSERVED
from tests.doctor.corpus import AT_ANOTHER_LINE, MISSED_AT_FIRST, Case, examine, missing_package, scripts

pytestmark = pytest.mark.slow

FAULTY = [*scripts("faulty"), *scripts("fresh")]
CLEAN = scripts("clean")


def _heavy(script: Path) -> bool:
    """Whether it imports a library that takes seconds to import."""
    return any(name in script.read_text() for name in ("transformers", "lightning", "accelerate"))


def _parameters(found: list[Path]) -> list[object]:
    return [
        pytest.param(
            script,
            id=script.stem,
            marks=[
                *([pytest.mark.slow] if _heavy(script) else []),
            ],
        )
        for script in found
    ]


def _examine(script: Path) -> Case:
    package = missing_package(script)
    if package:
        pytest.skip(f"{package} is not installed")
    return examine(script)


@pytest.mark.parametrize("script", _parameters(FAULTY))
def test_the_planted_fault_is_found_at_the_marked_line(script: Path) -> None:
    case = _examine(script)
    assert case.log.failure == ""
    assert case.found, [finding.pitfall for finding in case.findings]
    assert case.at_the_mark is (script.stem not in AT_ANOTHER_LINE), [finding.where for finding in case.found]
    assert all(finding.what and finding.fix for finding in case.found)


@pytest.mark.parametrize("script", _parameters(CLEAN))
def test_a_clean_script_runs_to_its_end_and_gets_no_error_and_no_warning(script: Path) -> None:
    case = _examine(script)
    assert case.log.failure == ""
    assert case.log.complete
    assert not is_ill(case.findings), [finding for finding in case.findings if is_ill([finding])]


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
