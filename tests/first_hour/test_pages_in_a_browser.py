"""The pages as a browser draws them: no text is cut off, lies over another one or is out of the window, on a phone either."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from snugfit.report.evaluation_page import write_evaluation_page
from snugfit.report.page import write_report
from snugfit.report.plan_page import write_plan_page
from snugfit.results.evaluation_details import ClassCounts, EvaluationDetails, ProbabilityBin, WorstRow
from snugfit.tools.cross_validation.page import render_cv_page
from snugfit.tools.tune.page import render_tune_page
from tests.first_hour.browser import CHROMIUM, measured
from tests.unit.report.test_page import CASES
from tests.unit.report.test_plan_page import ANSWERS
from tests.unit.tools.cross_validation import test_page as of_folds
from tests.unit.tools.tune import test_page as of_trials

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed (Debian: apt install chromium)"),
]
WIDTHS = (1280, 390)
LONG = "out of memory: /a/long/path/of/a/file/that/never/ends/and/has/no/break/anywhere/model.safetensors"


def reports(folder: Path) -> list[Path]:
    pages = []
    for name, make in CASES.items():
        run = folder / name.replace(" ", "-")
        run.mkdir()
        pages.append(shutil.copy(write_report(make(run)), folder / f"{run.name}.html"))
    return [Path(page) for page in pages]


def plans(folder: Path) -> list[Path]:
    return [write_plan_page(make(), folder / f"{make.__name__}.html") for make in ANSWERS]


def searches(folder: Path) -> list[Path]:
    folds = [of_folds.score(number, 0.5 + number / 50) for number in range(1, 13)]
    cv = render_cv_page(of_folds.found(*folds, notes=(LONG,)))
    trials = [of_trials.trial(number, number / 20, rate=10 ** (-5 + number / 6)) for number in range(1, 16)]
    failed = of_trials.trial(16, None, "failed", reason=LONG)
    tune = render_tune_page(of_trials.found(*trials, failed, planned=16))
    for name, page in (("cv", cv), ("tune", tune)):
        (folder / f"{name}.html").write_text(page, encoding="utf-8")
    return sorted(folder.glob("*.html"))


def evaluations(folder: Path) -> list[Path]:
    def of_classes(count: int) -> EvaluationDetails:
        classes = tuple(
            f"{'news of the day' if number % 2 else 'Sports'} {number}" for number in range(count)
        )
        confusion = {
            (true, told): true + told for true in range(count) for told in (true, (true + 1) % count)
        }
        bins = [ProbabilityBin(10, each / 10, each / 11) for each in range(3, 10)]
        worst = [
            WorstRow(
                line,
                f"line {line}",
                2.3,
                classes[0],
                classes[1],
                0.1,
                0.8,
                {"title": "a short one", "text": "words and words " * 20},
            )
            for line in range(2, 8)
        ]
        counts = [ClassCounts(number, 2 * number + 1, 3 * number) for number in range(count)]
        rows = sum(confusion.values())
        return EvaluationDetails(rows, "row", classes, counts, confusion, bins, worst=worst)

    scores = {"loss": 0.5, "macro_precision": 0.25}
    return [
        write_evaluation_page("runs/news/1", "test.csv", scores, of_classes(count), folder / f"{count}.html")
        for count in (5, 60)
    ]


@pytest.mark.parametrize("write", [reports, plans, searches, evaluations])
def test_every_text_can_be_read(write: Callable[[Path], list[Path]], tmp_path: Path) -> None:
    pages = write(tmp_path)
    for width in WIDTHS:
        browser = tmp_path / str(width)
        browser.mkdir()
        found = {page.name: measured(page, width, browser) for page in pages}
        assert {name: faults for name, (_, faults) in found.items() if faults} == {}
        assert min(texts for texts, _ in found.values()) > 50


def test_what_cannot_be_read_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    page.write_text(
        "<div style='width:99px;overflow:hidden;white-space:nowrap'>too long for the box that it is in</div>"
        "<div style='width:900px'>a wide one</div>"
        "<span style='position:absolute;top:99px'>under</span><span style='position:absolute;top:99px'>above</span>"
    )
    browser = tmp_path / "browser"
    browser.mkdir()
    assert measured(page, 390, browser) == (
        4,
        [
            "the page is 908 wide in a window of 390",
            "cut off: too long for the box that it is in",
            "one over the other: under | above",
        ],
    )
