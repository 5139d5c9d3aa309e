"""Charts of a run's events."""

from __future__ import annotations

from snugfit.display.event_lines import end_lines, evaluation_names
from snugfit.report.charts import charts
from snugfit.report.story import story_of


def test_values_for_each_of_many_classes_share_a_chart_and_have_no_column() -> None:
    metrics = {
        "loss": 0.5,
        "F1": 0.5,
        **{f"F1 of {number}": 0.5 for number in range(40)},
        "part of speech": 1.0,
    }
    events = [
        {"event": "evaluation", "time": 0.0, "update": update, "metrics": metrics, "best": False}
        for update in (1, 2)
    ]
    drawn = charts(story_of(events, "run", "", 0.0))
    assert [chart.title for chart in drawn] == ["Loss", "F1", "Part of speech"]
    assert [len(chart.series) for chart in drawn] == [2, 8, 1] and "first 8 of 41" in drawn[1].unit
    assert evaluation_names(metrics, epochs=False) == ["update", "train loss", "loss", "F1", "part of speech"]
    best = {"update": 2, "metrics": metrics}
    assert "F1 of 3" not in "".join(end_lines({}, {"status": "finished", "best": best}))
