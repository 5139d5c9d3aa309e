"""A run in a notebook."""

from __future__ import annotations

from typing import Any

import pytest
from IPython.core.interactiveshell import InteractiveShell

from snugfit.display.notebook import NotebookScreen, display_here, in_notebook
from snugfit.display.terminal import TerminalDisplay

RUN = {
    "event": "run",
    "name": "<news>",
    "run_dir": "runs/news/1",
    "total_updates": 4,
    "recipe": {"train": {"global_batch": 8}},
    "plan": {"numerics": "fp32", "device": "cpu"},
    "data": {"train": 32, "validation": 8},
}
EVALUATION = {
    "event": "evaluation",
    "update": 2,
    "epoch": 0.5,
    "metrics": {"loss": 0.5, "accuracy": 0.75},
    "best": True,
}
END = {
    "event": "end",
    "status": "finished",
    "updates": 4,
    "epochs": 1.0,
    "seconds": 2.0,
    "examples_per_second": 16.0,
}


def update(number: int) -> dict[str, Any]:
    metrics = {"loss": 1 / number, "learning_rate": 0.001, "examples_per_second": 16.0}
    return {"event": "update", "update": number, "window": number, "epoch": number / 4, "metrics": metrics}


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What stood in the one output, each time that it was written."""
    pages: list[str] = []

    class Handle:
        def update(self, output: Any) -> None:
            pages.append(output.data)

    def display(output: Any, *, display_id: bool) -> Handle:
        assert display_id and not pages, "a second output"
        pages.append(output.data)
        return Handle()

    monkeypatch.setattr("IPython.display.display", display)
    return pages


def test_a_run_is_one_output_with_header_table_and_end(shown: list[str]) -> None:
    with TerminalDisplay(screen=NotebookScreen()) as display:
        assert "reading the data and the model" in shown[-1]
        for event in (RUN, update(1)):
            display(event)
        assert '<progress value="1" max="4">' in shown[-1]
        for event in (update(2), EVALUATION, {**EVALUATION, "update": 4, "best": False}, END):
            display(event)
    page = shown[-1]
    assert "&lt;news&gt;" in page and "<news>" not in page
    assert page.count("<table") == page.count("</table>") == 1
    assert page.count("<tr") == 3 and page.count("<th") == 5
    assert ">0.7500</td>" in page and ">best</td>" in page
    assert "<progress" not in page
    assert page.index("<table") < page.index("finished") < page.index("run       runs/<wbr>news/1")


def test_lines_of_a_long_run_do_not_fill_the_notebook(shown: list[str]) -> None:
    screen = NotebookScreen()
    for number in range(500):
        screen.say(f"line {number}")
    assert "line 499" in shown[-1] and "line 200" not in shown[-1]


def test_a_notebook_is_told_from_a_terminal_by_its_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not in_notebook()
    shell = InteractiveShell()
    monkeypatch.setattr("IPython.get_ipython", lambda: shell)
    assert not in_notebook()  # IPython in a terminal
    shell.kernel = object()
    assert in_notebook()
    assert isinstance(display_here()._screen, NotebookScreen)
