"""A run that runs out of memory leaves a page about what took it, and ends with the error that it would have ended with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import snugfit as sf
from snugfit.errors import OutOfMemory, RunFolderError
from snugfit.tracking.spool import read_events

REASON = "CUDA out of memory. Tried to allocate 7.00 GiB."


class Crowded(nn.Module):
    """A classifier whose head finds no memory."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(4, 3000)
        self.head = nn.Linear(3000, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.body(x).tanh()
        if self.training:
            raise torch.OutOfMemoryError(REASON)
        return self.head(hidden)


class Scoring(nn.Linear):
    """A classifier that can be trained, and for whose scores there is no memory."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits = super().forward(x)
        if not self.training:
            raise torch.OutOfMemoryError(REASON)
        return logits


def fails(tmp_path: Path, model: nn.Module | None = None, **settings: Any) -> OutOfMemory:
    data = TensorDataset(torch.randn(8, 4), torch.arange(8) % 3)
    optimizer = settings.pop("optimizer", sf.SGD(learning_rate=0.1))
    with pytest.raises(OutOfMemory) as caught:
        sf.train(
            model or Crowded(),
            data,
            optimizer=optimizer,
            global_batch=4,
            device="cpu",
            output=tmp_path,
            track=False,
            **settings,
        )
    return caught.value


def run_dir(tmp_path: Path) -> Path:
    (folder,) = (tmp_path / "run").iterdir()
    return folder


@pytest.mark.slow
def test_the_error_says_what_took_the_memory_and_where_the_page_is(tmp_path: Path) -> None:
    said = str(fails(tmp_path))
    page = run_dir(tmp_path) / "memory.html"
    assert said.startswith("plan.micro_batch: memory ran out with 1 example of the window's 4")
    # 4 x 3,000 weights and 3,000 biases in float32
    assert "The largest part of it, 58.59 KiB" in said and "is weights of body" in said
    assert f"The page about it: {page}" in said
    text = page.read_text(encoding="utf-8")
    assert "Out of memory" in text and REASON.rstrip(".") in text and "weights of body" in text
    end = [event for event in read_events(run_dir(tmp_path) / "events.jsonl") if event["event"] == "end"]
    assert end[0]["stop_reason"] == said and end[0]["status"] == "failed"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("function", "error"),
    [
        ("snugfit.planner.trace.memory_breakdown.record_gradients", RuntimeError("boom")),
        ("snugfit.planner.trace.memory_breakdown.record_gradients", torch.OutOfMemoryError("again")),
        ("snugfit.report.memory_page.replace_page", RunFolderError.from_text("no disk")),
    ],
    ids=["recording fails", "memory runs out again", "writing fails"],
)
def test_a_page_that_cannot_be_made_leaves_the_error_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, function: str, error: Exception
) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(function, broken)
    said = str(fails(tmp_path))
    assert said.startswith("plan.micro_batch: memory ran out") and "page" not in said
    assert not (run_dir(tmp_path) / "memory.html").exists()
    warnings = [
        event for event in read_events(run_dir(tmp_path) / "events.jsonl") if event["event"] == "warning"
    ]
    assert any(f"no page about the memory: {error}" in event["message"] for event in warnings)


def test_memory_that_runs_out_in_the_update_is_told_with_what_a_window_takes(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(4, 300), nn.Tanh(), nn.Linear(300, 300), nn.Linear(300, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def fail(*_: object) -> None:
        raise torch.OutOfMemoryError(REASON)

    optimizer.register_step_pre_hook(fail)
    said = str(fails(tmp_path, model, optimizer=optimizer))
    assert "in the update itself" in said and "The page about it" in said
    text = (run_dir(tmp_path) / "memory.html").read_text(encoding="utf-8")
    assert "did not run out of memory" in text and "gradients of 2" in text


@pytest.mark.slow
def test_an_evaluation_that_runs_out_of_memory_leaves_a_page_about_scoring(tmp_path: Path) -> None:
    held_out = TensorDataset(torch.randn(4, 4), torch.arange(4) % 3)
    said = str(fails(tmp_path, Scoring(4, 3), validation=held_out, updates=1))
    assert said.startswith("evaluate.batch: memory ran out in scoring a single example")
    page = run_dir(tmp_path) / "memory.html"
    assert f"The page about it: {page}" in said and "the moment is evaluation" in said
    text = page.read_text(encoding="utf-8")
    assert REASON.rstrip(".") in text and "Memory over an evaluation" in text


@pytest.mark.slow
def test_where_no_micro_batch_fits_the_run_has_failed_and_its_page_says_what_the_smallest_takes(
    tmp_path: Path,
) -> None:
    said = str(fails(tmp_path, micro_batch="auto"))
    assert said.startswith("plan.micro_batch: auto found none that fits a window of 4 examples")
    assert "is weights of body" in said
    folder = run_dir(tmp_path)
    assert REASON.rstrip(".") in (folder / "memory.html").read_text(encoding="utf-8")
    events = read_events(folder / "events.jsonl")
    assert [event["event"] for event in events] == ["run", "end"]
    assert events[0]["plan"]["micro_batch"] == "auto" and events[1]["stop_reason"] == said


@pytest.mark.slow
def test_what_is_predicted_not_to_fit_is_not_run_for_its_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("snugfit.step.find_micro_batch.available_bytes", lambda device: 1300)
    seen: list[int] = []

    class Wide(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            seen.append(len(x))
            return super().forward(x)

    said = str(fails(tmp_path, Wide(4, 3000), micro_batch="auto"))
    assert "auto found none" in said and "(of 1000 B)" in said
    assert max(seen) <= 2, "micro-batches of four would not have fitted"
    text = (run_dir(tmp_path) / "memory.html").read_text(encoding="utf-8")
    assert "forward and backward of 2 examples in micro-batches of 1 did not run out of memory" in text


def test_a_run_that_fails_otherwise_has_no_such_page(tmp_path: Path) -> None:
    class Broken(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise RuntimeError("sizes do not match")

    data = TensorDataset(torch.randn(8, 4), torch.arange(8) % 3)
    with pytest.raises(RuntimeError, match="sizes do not match"):
        sf.train(Broken(4, 3), data, global_batch=4, device="cpu", output=tmp_path, track=False)
    assert not (run_dir(tmp_path) / "memory.html").exists()
