"""Advice from curves that real runs left: small nets on the 8 × 8 digits of scikit-learn, validated on 597 of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from snugfit.report.advice import FARTHEST, FEWEST, Advice, advise, read_curve
from snugfit.report.page import render
from snugfit.report.story import read_story
from snugfit.tracking.spool import Spool

Curve = list[tuple[float, float]]


def curve(values: Sequence[float], every: float = 1.0) -> Curve:
    return [((place + 1) * every, value) for place, value in enumerate(values)]


# SGD at a constant 0.02, 1,200 examples
SHORT = curve([1.9199, 0.944, 0.4999, 0.3463, 0.2957, 0.262, 0.2335, 0.2171])
# AdamW with a cosine to 0
CONVERGED = curve(
    [1.6865, 0.9516, 0.6098, 0.4519, 0.3756, 0.332, 0.3055, 0.2889, 0.2801, 0.2752, 0.2735, 0.2733], every=2
)
# an exponential average of SGD at 0.5 on 300 examples, a tenth of the labels wrong; loss and accuracy
OVERFITTED = curve(
    [
        *(1.3445, 0.7454, 0.5824, 0.4703, 0.499, 0.4786, 0.6558, 0.7095, 1.0195, 1.1955),
        *(1.1398, 1.423, 1.378, 1.2704, 1.2122, 1.2488, 1.2506, 1.3368, 1.2611, 1.3246),
    ]
)
OVERFITTED_ACCURACY = curve(
    [
        *(0.6432, 0.804, 0.8191, 0.8526, 0.8626, 0.8492, 0.7739, 0.7454, 0.6315, 0.541),
        *(0.5243, 0.469, 0.4623, 0.4858, 0.5059, 0.4908, 0.4992, 0.4724, 0.4925, 0.459),
    ]
)
# the same with SGD at 0.3 and an average that begins in epoch 8; accuracy
RAW_BEFORE = curve([0.6231, 0.6817, 0.7069, 0.8308, 0.7889, 0.7973, 0.8057])
AVERAGED = [
    (epoch + 7, value)
    for epoch, value in curve(
        [
            0.8442,
            0.9079,
            0.9112,
            0.9079,
            0.9028,
            0.8961,
            0.8995,
            0.9028,
            0.9028,
            0.8978,
            0.8995,
            0.9062,
            0.9095,
        ]
    )
]


def test_a_loss_that_still_falls_asks_for_more() -> None:
    advice = read_curve(SHORT, higher=False, what="loss")
    assert advice.verdict == "longer"
    assert advice.epochs is not None and 8 < advice.epochs <= FARTHEST * 8
    assert "The loss still gains 0.05355 over the last 2 epochs" in advice.reason


def test_a_loss_at_rest_asks_for_nothing() -> None:
    advice = read_curve(CONVERGED, higher=False, what="loss")
    assert (advice.verdict, advice.epochs) == ("stop", 24.0)
    assert "come to rest at 0.274" in advice.reason


@pytest.mark.parametrize(
    ("points", "higher", "turn"), [(OVERFITTED, False, 4), (OVERFITTED_ACCURACY, True, 5)]
)
def test_a_metric_that_has_become_worse_asks_for_less(points: Curve, higher: bool, turn: float) -> None:
    advice = read_curve(points, higher=higher)
    assert (advice.verdict, advice.epochs) == ("shorter", turn)
    assert f"best around epoch {turn} " in advice.reason


def test_a_curve_that_was_there_early_asks_for_less() -> None:
    source = [
        0.5,
        0.7,
        0.9,
        0.902,
        0.899,
        0.901,
        0.9,
        0.902,
        0.898,
        0.901,
        0.9,
        0.901,
        0.9,
        0.899,
        0.9,
        0.901,
    ]
    advice = read_curve(curve(source), higher=True)
    assert advice.verdict == "shorter"
    assert advice.epochs is not None and 3 <= advice.epochs <= 8
    assert "was there by epoch" in advice.reason


def test_noise_alone_is_no_reason_to_go_on() -> None:
    noisy = [0.80, 0.84, 0.79, 0.83, 0.80, 0.82, 0.79, 0.84, 0.80, 0.83, 0.81, 0.84]
    assert read_curve(curve(noisy), higher=True).verdict in ("stop", "shorter")


def test_nothing_is_said_beyond_twice_the_run() -> None:
    advice = read_curve(curve([10.0 - epoch for epoch in range(8)]), higher=False)
    assert (advice.verdict, advice.epochs) == ("longer", 16.0)
    assert "nothing is said beyond 2 times this run" in advice.reason


@pytest.mark.parametrize(
    ("scores", "verdict"), [([0.2, 0.4, 0.6, 0.8, 1, 1], "stop"), ([0.2, 1, 1, 1, 1, 1], "shorter")]
)
def test_what_cannot_be_better_asks_for_no_more(scores: list[float], verdict: str) -> None:
    curve = [(float(epoch), float(score)) for epoch, score in enumerate(scores, 1)]
    advice = read_curve(curve, higher=True)
    assert advice.verdict == verdict and "cannot be better" in advice.reason


def test_a_curve_without_any_change_is_at_rest() -> None:
    advice = read_curve(curve([0.5] * 10), higher=True)
    assert advice.verdict in ("stop", "shorter")
    assert advice.epochs is not None and math.isfinite(advice.epochs)


def test_too_few_evaluations_are_said_to_be_too_few() -> None:
    for count in range(FEWEST):
        advice = read_curve(SHORT[:count], higher=False, what="loss")
        assert (advice.verdict, advice.epochs) == ("unknown", None)
        assert f"{count} evaluation" in advice.reason and "evaluate.every" in advice.reason


def written(folder: Path, evaluations: Sequence[dict[str, Any]], *, best: str, end: bool = True) -> Path:
    folder.mkdir(exist_ok=True)
    with Spool(folder / "events.jsonl") as spool:
        spool.append("run", name="digits", id="1", recipe={"evaluate": {"best": best}})
        for evaluation in evaluations:
            spool.append("evaluation", **evaluation)
        if end:
            spool.append("end", status="finished", best=None)
    return folder


def evaluations_of(points: Curve, metric: str, weights: str = "raw") -> list[dict[str, Any]]:
    return [
        {
            "update": round(10 * epoch),
            "epoch": epoch,
            "metrics": {metric: value},
            "weights": weights,
            "best": False,
        }
        for epoch, value in points
    ]


def of(folder: Path, evaluations: Sequence[dict[str, Any]], best: str) -> Advice:
    return advise(read_story(written(folder, evaluations, best=best)))


def test_of_an_averaged_run_the_average_alone_is_looked_at(tmp_path: Path) -> None:
    evaluations = [*evaluations_of(RAW_BEFORE, "accuracy"), *evaluations_of(AVERAGED, "accuracy", "swa")]
    advice = of(tmp_path, evaluations, "accuracy")
    assert advice.verdict == "stop"
    assert "accuracy of the averaged weights (swa)" in advice.reason
    assert "raw weights" not in advice.reason
    few = of(tmp_path / "few", evaluations[:10], "accuracy")
    assert few.verdict == "unknown" and few.reason.startswith("3 evaluations of the accuracy of the averaged")


def test_raw_weights_that_were_better_than_their_average_are_not_hidden(tmp_path: Path) -> None:
    better = [(epoch, value + 0.2) for epoch, value in RAW_BEFORE]
    advice = of(
        tmp_path,
        [*evaluations_of(better, "accuracy"), *evaluations_of(AVERAGED, "accuracy", "swa")],
        "accuracy",
    )
    assert advice.reason.endswith("The raw weights before it had been better: 1.031, against 0.9112.")


def test_the_direction_is_that_of_the_best(tmp_path: Path) -> None:
    assert of(tmp_path / "a", evaluations_of(OVERFITTED, "mine"), "min:mine").verdict == "shorter"
    assert of(tmp_path / "b", evaluations_of(OVERFITTED, "mine"), "max:mine").verdict != of(
        tmp_path / "c", evaluations_of(OVERFITTED, "mine"), "min:mine"
    )
    unknown = of(tmp_path / "d", evaluations_of(OVERFITTED, "mine"), "mine")
    assert (unknown.verdict, unknown.reason) == (
        "unknown",
        "Whether a high or a low mine is better is not known.",
    )


def test_evaluations_that_are_not_finite_do_not_count(tmp_path: Path) -> None:
    broken = [*SHORT[:5], *[(epoch, math.nan) for epoch, _ in SHORT[5:]]]
    assert of(tmp_path, evaluations_of(broken, "loss"), "loss").reason.startswith("5 evaluations of the loss")


def test_the_report_of_a_finished_run_ends_with_the_advice(tmp_path: Path) -> None:
    folder = written(tmp_path / "one", evaluations_of(SHORT, "loss"), best="loss")
    page = render(read_story(folder), folder)
    assert "<h2>Next time</h2><p>Train longer, about" in page
    going = written(tmp_path / "two", evaluations_of(SHORT, "loss"), best="loss", end=False)
    assert "Next time" not in render(read_story(going), going)
