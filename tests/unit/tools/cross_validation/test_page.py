"""The page of a cross-validation."""

from __future__ import annotations

import math

from snugfit.tools.cross_validation.page import render_cv_page
from snugfit.tools.cross_validation.result import CrossValidation, FoldScore


def score(number: int, accuracy: float) -> FoldScore:
    values = {"accuracy": accuracy}
    return FoldScore(
        f"fold-1-{number}", 800, 200, values, 30, values, 50, 2.0, f"/runs/fold-1-{number}/id{number}"
    )


def found(*scores: FoldScore, reason: str | None = None, notes: tuple[str, ...] = ()) -> CrossValidation:
    about = {"name": "films <b>", "planned": 3, "folder": "/runs/cv", "stop_reason": reason}
    return CrossValidation(scores, notes, **about)


def test_the_mean_its_spread_and_every_fold_are_shown():
    page = render_cv_page(found(score(1, 0.8), score(2, 0.9), score(3, 1.0)))
    assert "3 of 3 folds" in page and "films &lt;b&gt;" in page
    assert "<dd>0.9<small> ± 0.1</small></dd>" in page
    assert all(f"fold-1-{number}: " in page and f"id{number}" in page for number in (1, 2, 3))


def test_what_is_missing_and_what_is_doubtful_is_said():
    page = render_cv_page(found(score(1, 0.8), reason="the time is up", notes=("4 of 9 rows leak.",)))
    assert "1 of 3 folds" in page and "the time is up" in page and "4 of 9 rows leak." in page
    assert "No fold is finished yet" in render_cv_page(found())


def test_a_metric_that_is_not_finite_has_no_chart():
    assert "fold-1-2: " not in render_cv_page(found(score(1, 0.8), score(2, math.nan)))
