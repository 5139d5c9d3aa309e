"""The notebooks of `examples/`, executed as they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOKS = Path(__file__).parents[2] / "examples" / "notebooks"


def executed(name: str, folder: Path) -> list[str]:
    """What each cell put out, as text; a cell that fails raises."""
    notebook = nbformat.read(NOTEBOOKS / name, as_version=4)
    resources = {"metadata": {"path": str(folder)}}
    NotebookClient(notebook, timeout=300, kernel_name="python3", resources=resources).execute()
    return [
        "\n".join(map(text_of, cell.get("outputs", [])))
        for cell in notebook.cells
        if cell.cell_type == "code"
    ]


def text_of(output: Any) -> str:
    """What an output shows: HTML where it has some."""
    data = output.get("data", {})
    return str(output.get("text") or data.get("text/html") or data.get("text/plain") or "")


@pytest.mark.slow
def test_the_first_run(tmp_path: Path) -> None:
    outputs = executed("first_run.ipynb", tmp_path)
    plan, stopped, finished, result, history, right, again = outputs[2:]
    assert "Plan: Fits" in plan and "srcdoc=" in plan
    assert "somebody pressed stop" in stopped and "(&#x27;stopped&#x27;, 100)" in stopped.replace(
        "'", "&#x27;"
    )
    assert "resumed at update 100" in finished and "<th" in finished
    assert "RunResult: finished, 300 updates" in result and "&lt;svg" in result
    assert "validation_accuracy" in history
    assert float(right.partition("%")[0]) > 90
    assert again.startswith("TrainedModel: Sequential for python of ")
    assert not any("Warning" in output for output in outputs)


@pytest.mark.slow
def test_a_free_notebook_goes_on_in_the_folder_that_survives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SURVIVES", str(tmp_path / "drive"))
    outputs = executed("free_notebook.ipynb", tmp_path)
    stopped, resumed, model, predictions = outputs[3:]
    assert "stopped after 15s as asked" in stopped
    assert "finished" in resumed and "resumed at update" in resumed
    assert "TrainedModel: Sequential for python of" in model
    assert predictions.count("'prediction'") == 3
