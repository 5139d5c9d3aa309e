from __future__ import annotations

import math
from typing import Any

import pytest

from snugfit.tracking.backend import Metric
from snugfit.tracking.translate import MAX_VALUE, to_batch, tracker_name


def event(kind: str, **fields: Any) -> dict[str, Any]:
    return {"event": kind, "time": 2.5, **fields}


@pytest.mark.parametrize("path", ["../id_rsa", "/etc/passwd", "a/../../b", "C:\\secrets", "..\\b", "C:b"])
def test_files_out_of_the_run_s_folder_are_not_sent(path: str) -> None:
    events = [event("files", files=[path]), event("pictures", update=1, pictures={"worst": path})]
    batch, malformed = to_batch([*events, event("files", files=["report.html"])])
    assert (batch.files, batch.pictures, malformed) == (["report.html"], [], 2)


def test_updates_and_evaluations_become_metrics_at_their_update() -> None:
    batch, malformed = to_batch(
        [
            event(
                "update",
                update=3,
                window=4,
                epoch=0.5,
                applied=True,
                metrics={"loss": 0.25, "learning_rate/head": 1},
            ),
            event("system", update=3, metrics={"cpu_percent": 150.0}),
            event("evaluation", update=3, metrics={"loss": 0.5, "per_class": {"a": 1.0}}, weights="ema"),
        ]
    )
    assert malformed == 0
    assert batch.metrics == [
        Metric("train/loss", 0.25, 2500, 3),
        Metric("train/learning_rate/head", 1.0, 2500, 3),
        Metric("train/epoch", 0.5, 2500, 3),
        Metric("system/cpu_percent", 150.0, 2500, 3),
        Metric("evaluation/loss", 0.5, 2500, 3),
        Metric("evaluation/per_class/a", 1.0, 2500, 3),
    ]
    assert batch.tags == {"evaluated_weights": "ema"}


def test_non_finite_metrics_leave_a_tag_instead_of_a_wrong_number() -> None:
    metrics = {"loss": math.nan, "norm": math.inf, "learning_rate": 0.1}
    batch, _ = to_batch([event("update", update=7, metrics=metrics)])
    assert [metric.name for metric in batch.metrics] == ["train/learning_rate"]
    assert batch.tags == {
        "non_finite.train/loss": "nan at update 7",
        "non_finite.train/norm": "inf at update 7",
    }


def test_the_resolved_plan_is_logged_over_the_asked_one_and_parameters_only_once() -> None:
    first = event(
        "run", name="n", id="1", recipe={"plan": {"micro_batch": "auto"}, "seed": 0}, plan={"micro_batch": 16}
    )
    second = event("run", name="n", id="1", recipe={"seed": 1}, plan={"micro_batch": 8})
    assert to_batch([first, second])[0].params == {"plan.micro_batch": "16", "seed": "0"}
    assert to_batch([first], with_params=False)[0].params == {}


def test_each_source_of_rows_has_parameters_of_its_own() -> None:
    sources = [
        {"name": "chats", "rows": 9, "share": 0.75, "epochs": 2.0},
        {"name": "a b.csv", "rows": 3, "share": 0.25, "epochs": 1.0},
    ]
    params = to_batch([event("run", name="n", id="1", data={"train": 12, "sources": sources})])[0].params
    assert params["rows.sources.chats.share"] == "0.75"
    assert params["rows.sources.a b.csv.epochs"] == "1.0"
    assert params["rows.train"] == "12"


def test_the_paths_of_the_data_and_the_counts_of_its_rows_have_different_names() -> None:
    run = event(
        "run", recipe={"data": {"train": "train.csv"}}, data={"train": 90, "skipped": {"empty text": 2}}
    )
    assert to_batch([run])[0].params == {
        "data.train": "train.csv",
        "rows.train": "90",
        "rows.skipped.empty text": "2",
    }


def test_a_resume_behind_an_end_leaves_the_run_running() -> None:
    end = event("end", status="stopped", stop_reason="time", resumable=True, updates=5, seconds=1.5)
    assert to_batch([end])[0].status == "stopped"
    batch, _ = to_batch([end, event("resume", update=5, window=5)])
    assert batch.status == "running"
    assert batch.tags["snugfit.status"] == "stopped"
    assert "stop_reason" not in batch.tags
    assert batch.untagged == {"stop_reason", "resumable"}
    assert Metric("run/seconds", 1.5, 2500, 5) in batch.metrics


def test_a_run_that_is_finished_after_a_stop_no_longer_says_why_it_stopped() -> None:
    stopped = event("end", status="stopped", stop_reason="time", resumable=True, updates=5)
    resume = event("resume", update=5, window=5)
    finished = event("end", status="finished", stop_reason=None, resumable=False, updates=9)
    batch, _ = to_batch([finished])
    assert (batch.untagged, batch.tags["resumable"]) == ({"stop_reason"}, "false")
    batch, _ = to_batch([stopped, resume, finished])
    assert "stop_reason" not in batch.tags
    assert batch.untagged == {"stop_reason"}
    batch, _ = to_batch([finished, stopped])
    assert (batch.tags["stop_reason"], batch.untagged) == ("time", set())


def test_the_best_metrics_stand_at_the_best_update() -> None:
    end = event("end", status="finished", updates=9, best={"update": 6, "metrics": {"accuracy": 0.9}})
    assert Metric("best/accuracy", 0.9, 2500, 6) in to_batch([end])[0].metrics


def test_events_of_a_wrong_shape_are_counted_and_do_not_stop_the_others() -> None:
    events = [
        event("update", metrics={"loss": 1.0}),
        event("update", update=1, metrics=[1]),
        {"event": "update", "update": 1, "metrics": {"loss": 1.0}},
        event("later version's event", update=1),
        event("update", update=2, metrics={"loss": 1.0, "note": "text", "list": [1]}),
    ]
    batch, malformed = to_batch(events)
    assert malformed == 3
    assert batch.metrics == [Metric("train/loss", 1.0, 2500, 2)]


def test_long_values_are_cut_and_passwords_are_not_sent() -> None:
    run = event("run", recipe={"track": {"uri": "http://me:secret@host"}, "note": "x" * 9999}, plan={})
    params = to_batch([run])[0].params
    assert params["track.uri"] == "http://me:***@host"
    assert len(params["note"]) == MAX_VALUE


@pytest.mark.parametrize(
    "name", ["f1(ä)", "a//b", "/a/", "..", "a/../b", ".", "", "x" * 999, "recall@5", "50%", "a:b", "a\nb"]
)
def test_every_name_becomes_one_that_mlflow_takes(name: str) -> None:
    validation = pytest.importorskip("mlflow.utils.validation")
    validation._validate_metric_name(tracker_name(name))
    assert len(tracker_name(name)) <= validation.MAX_ENTITY_KEY_LENGTH
    assert tracker_name(tracker_name(name)) == tracker_name(name)


def test_different_odd_names_stay_different() -> None:
    names = ["f(a)", "f[a]", "f{a}", "f_a_", "f@a", "f%a", "x" * 998 + "a", "x" * 998 + "b"]
    assert len({tracker_name(name) for name in names}) == len(names)
