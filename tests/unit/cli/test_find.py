"""`snugfit find lr` and `snugfit find batch`: what is printed and kept, exit codes, and what --apply writes."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import snugfit as sf
from snugfit.cli import main
from snugfit.core.technique import Technique
from snugfit.errors import OutOfMemory, SettingError
from snugfit.results.tool_results import results as found_by_tools

MODULE = """\
import torch
from torch import nn

def make_model():
    return nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))

def make_rows():
    source = torch.Generator().manual_seed(0)
    labels = torch.arange(128) % 2
    return list(zip(torch.randn(128, 4, generator=source) + 2 * labels.unsqueeze(1), labels))

def make_noise():
    return [(torch.zeros(4), torch.tensor(row % 2)) for row in range(64)]
"""
RECIPE = """\
name: clouds
task: python
model: mine:make_model
data: {train: mine:make_rows, validation: 0.25}
train: {epochs: 2, global_batch: 16}
optimizer: {sgd: {learning_rate: 0.5, momentum: 0.0}}  # a guess
schedule: {cosine: {warmup: 0.1}}
techniques: [{ema: {decay: 0.9}}]
track: {mlflow: false}
"""


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    (tmp_path / f"{_module(tmp_path)}.py").write_text(MODULE)
    path = tmp_path / "clouds.yaml"
    path.write_text(RECIPE.replace("mine:", f"{_module(tmp_path)}:"))
    return path


def _module(folder: Path) -> str:
    """A name of its own: what one test has imported stands in the way of the next one's."""
    return f"mine_{folder.name}"


def printed(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1])
    return found


def test_a_rate_is_found_kept_drawn_and_written(recipe: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = recipe.read_text()
    arguments = ["find", "lr", str(recipe), "--start=1e-4", "--png", "new/lr.png", "--apply", "--json"]
    assert main(arguments) == 0
    found = printed(capsys)
    folder = Path(found["folder"])
    assert {path.name for path in folder.iterdir()} == {"found.json", "find_lr.html"}
    ((place, stored),) = found_by_tools(Path("runs"), "clouds")
    assert place.resolve() == folder and stored["tool"] == "find_lr" and stored["identity"]["recipe"]
    assert stored["curve"] == found["curve"] and Path("new/lr.png").stat().st_size > 1000
    rate = found["settings"]["learning_rate"]
    assert rate == float(f"{found['learning_rate']:.2g}") and 1e-2 < rate < 10
    assert recipe.read_text() == before.replace("learning_rate: 0.5", f"learning_rate: {rate}")


def test_words_are_for_people_and_progress_goes_to_stderr(
    recipe: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = recipe.read_text()
    assert main(["find", "lr", str(recipe), "--start=1e-4"]) == 0
    shown = capsys.readouterr()
    assert "recommended" in shown.out and "steepest" in shown.out and "valley" in shown.out
    assert "find     update 1, rate 0.0001, loss" in shown.err and "page " in shown.err
    assert recipe.read_text() == before


def test_where_no_rate_can_be_said_the_exit_code_is_1_and_nothing_is_written(
    recipe: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before, noise = recipe.read_text(), f"data.train={_module(recipe.parent)}:make_noise"
    assert main(["find", "lr", str(recipe), noise, "--end=1e-3", "--apply"]) == 1
    assert "no rate lowers the loss" in capsys.readouterr().out and recipe.read_text() == before


def test_a_rate_that_cannot_be_relied_on_is_told_with_its_reason_and_not_written(
    recipe: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = recipe.read_text()
    assert main(["find", "lr", str(recipe), "--start=1e-4", "--end=0.05", "--apply"]) == 1
    shown = capsys.readouterr()
    assert "no rate is recommended: the loss is lowest at the end of the range, at 0.05" in shown.out
    assert "written  nothing" in shown.err and recipe.read_text() == before


def test_parts_with_rates_of_their_own_are_tested_alone(
    recipe: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    layered = "techniques=[layer_rates: {decay: 0.5}]"
    assert main(["find", "lr", str(recipe), layered, "--start=1e-4", "--per-group", "--json"]) == 0
    parts = printed(capsys)["parts"]
    assert list(parts) == ["layer 1", "layer 2"] and all(part["curve"] for part in parts.values())
    assert main(["find", "lr", str(recipe), "--per-group"]) == 2
    assert "the optimizer has one part, 'the rest'" in capsys.readouterr().err


def test_the_setting_of_a_schedule_whose_peak_is_not_1_is_told_in_its_own_terms() -> None:
    torch.manual_seed(0)
    rows = [(torch.randn(4) + 2 * (row % 2), row % 2) for row in range(128)]
    noam, updates = sf.Noam(dim=64, warmup=10), 40
    plain, scaled = (
        sf.find_lr(
            nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)),
            rows,
            optimizer=sf.SGD(learning_rate=0.1),
            techniques=techniques,
            updates=updates,
            start=1e-4,
            end=100.0,
        )
        for techniques in ([], [noam])
    )
    assert plain.learning_rate is not None
    assert plain.settings["learning_rate"] == pytest.approx(plain.learning_rate, rel=0.06)
    peak = 64**-0.5 * 10**-0.5
    assert scaled.learning_rate is not None
    assert scaled.settings["learning_rate"] == pytest.approx(scaled.learning_rate / peak, rel=0.06)


@pytest.mark.slow
def test_a_micro_batch_is_found_kept_and_written(recipe: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = recipe.read_text()
    assert main(["find", "batch", str(recipe), "--updates=1", "--apply", "--json"]) == 0
    found = printed(capsys)
    assert [row["micro_batch"] for row in found["rows"]] == [1, 2, 4, 8, 16]
    assert found["micro_batch_largest"] == 16 and found["budget_bytes"] > found["rows"][-1]["peak_bytes"]
    assert {path.name for path in Path(found["folder"]).iterdir()} == {"found.json", "find_batch.html"}
    assert recipe.read_text() == f"{before}plan: {{micro_batch: {found['micro_batch_fastest']}}}\n"


@pytest.mark.slow
def test_a_memory_in_which_nothing_fits_ends_with_exit_code_1(
    recipe: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["find", "batch", str(recipe), "--memory=1500"]) == 1
    shown = capsys.readouterr()
    assert (
        "no micro-batch of a window of 16 examples fits" in shown.err or "the budget is 1.46 KiB" in shown.err
    )
    assert main(["find", "batch", str(recipe), "--memory=much"]) == 2


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["lr", "--png", "{folder}/lr.yxz"], "got the ending '.yxz', expected one of "),
        (["lr", "--png", "{folder}/clouds.yaml"], "--png: {folder}/clouds.yaml is the file of the recipe"),
        (
            ["lr", "--png", "{folder}/clouds.yaml/lr.png"],
            "--png: {folder}/clouds.yaml/lr.png cannot be written",
        ),
        (["lr", "output={folder}/clouds.yaml"], "output: no run can be written to {folder}/clouds.yaml"),
        (["batch", "output={folder}/clouds.yaml"], "output: no run can be written to {folder}/clouds.yaml"),
        (
            ["lr", "--apply", "optimizer.sgd.learning_rate=0.1"],
            "cannot be written there: an override sets it too",
        ),
        (["batch", "--apply", "plan.micro_batch=1"], "cannot be written there: an override sets it too"),
        (["batch", "--apply", "plan.micro_batch=auto"], "cannot be written there: an override sets it too"),
    ],
)
def test_what_cannot_be_written_is_said_before_anything_is_tried(
    recipe: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    told: str,
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("something was trained")

    monkeypatch.setattr("snugfit.step.step.Step.__call__", refuse)
    command, *given = (each.format(folder=recipe.parent) for each in arguments)
    before = recipe.read_bytes()
    assert main(["find", command, str(recipe), *given]) == 2
    assert told.format(folder=recipe.parent) in capsys.readouterr().err
    assert recipe.read_bytes() == before and not Path("runs").exists()


def test_a_recipe_by_a_pipe_is_not_written_to(
    recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_text, args=(recipe.read_text(),), daemon=True)
    writer.start()
    assert main(["find", "lr", str(pipe), "--apply", "--allow-code"]) == 2
    assert f"{pipe}: is read once, so that nothing can be written back to it" in capsys.readouterr().err


def test_in_python_an_impossible_number_is_named_by_its_keyword() -> None:
    rows = [(torch.randn(4), row % 2) for row in range(8)]
    for tool, keyword in (
        (sf.find_lr, "range_updates"),
        (sf.find_batch, "timed_updates"),
        (sf.profile, "steps"),
    ):
        with pytest.raises(SettingError, match=f"^{keyword}: must be at least"):
            tool(nn.Linear(4, 2), rows, **{keyword: 0})  # type: ignore[operator]


@pytest.mark.parametrize("command", ["lr", "batch"])
def test_a_recipe_has_to_be_named(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["find", command]) == 2
    assert f"for example: snugfit find {command} agnews.yaml" in capsys.readouterr().err


@pytest.mark.slow
def test_in_python_the_model_the_optimizer_and_randomness_stay_as_they_are(tmp_path: Path) -> None:
    torch.manual_seed(5)
    model = nn.Sequential(nn.Linear(4, 2), nn.Dropout(0.2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    rows = [(torch.randn(4) + 2 * (row % 2), row % 2) for row in range(64)]
    before, randomness = [each.clone() for each in model.parameters()], torch.get_rng_state()
    rate = sf.find_lr(model, rows, optimizer=optimizer, range_updates=40, validation=0.25)
    size = sf.find_batch(model, rows, optimizer=optimizer, global_batch=8, timed_updates=1, validation=0.25)
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    assert not optimizer.state and optimizer.param_groups[0]["lr"] == 0.01
    assert torch.equal(randomness, torch.get_rng_state())
    assert rate.settings == {} and len(rate.curve) <= 40 and size.largest == 8 and size.fastest <= 8
    for found, name in ((rate, "find_lr.html"), (size, "find_batch.html")):
        assert found.save(tmp_path / "new" / "folder").name == name
    with pytest.raises(SettingError, match="per_group: the optimizer has one part"):
        sf.find_lr(model, rows, optimizer=optimizer, per_group=True)


@pytest.mark.parametrize(
    ("optimizer", "fits"), [(sf.SGD(learning_rate=0.1, momentum=0.0), True), (sf.AdamW(), False)]
)
def test_on_a_cpu_states_that_are_predicted_not_to_fit_are_never_made(
    monkeypatch: pytest.MonkeyPatch, optimizer: Technique, fits: bool
) -> None:
    # 4,400 weights in float32 take 17.6 kB; their gradients as much; two moments of AdamW twice as much again
    monkeypatch.setattr("snugfit.tools.find_batch.door.available_bytes", lambda device: round(40_000 * 1.3))
    seen: list[int] = []

    class Net(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if type(x) is torch.Tensor:  # not in a dry run
                seen.append(len(x))
            return super().forward(x)

    rows = [(torch.randn(21), number % 200) for number in range(4)]
    if fits:
        assert sf.find_batch(Net(21, 200), rows, optimizer=optimizer, global_batch=2).largest == 2
        return
    with pytest.raises(
        OutOfMemory, match=r"with the states that it makes, is predicted to take .* 39\.06 KiB can be had"
    ):
        sf.find_batch(Net(21, 200), rows, optimizer=optimizer, global_batch=2)
    assert not seen
