"""`plan.deterministic`: which operators a run computes by, and what it says of those that have no such form.

That two runs on CUDA have the same bits is shown by `benchmarks/gpu/run.sh correct`.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from snugfit.core.job import Plan
from snugfit.errors import RunFolderError, SettingError
from snugfit.models.bundle import read_meta
from snugfit.system.rounding import WORKSPACE, deterministic
from tests.unit.run.training.runs import events, finish, make_training, resumed, small_model, stop_at

ON = Plan(deterministic=True)


@pytest.fixture(autouse=True)
def workspace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(WORKSPACE, "")
    monkeypatch.delenv(WORKSPACE)


class Watching(nn.Module):
    """Notes how torch chooses operators in each forward; its numbers are those of a small model."""

    def __init__(self) -> None:
        super().__init__()
        self.body = small_model()
        self.modes: set[tuple[int, bool, str | None]] = set()

    def forward(self, rows: Tensor) -> Tensor:
        self.modes.add(
            (
                torch.get_deterministic_debug_mode(),
                torch.backends.cudnn.benchmark,
                os.environ.get(WORKSPACE),
            )
        )
        logits: Tensor = self.body(rows)
        return logits


class Putting(nn.Module):
    """Writes to places that may come twice, in whatever order."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(2, 3)

    def forward(self, rows: Tensor) -> Tensor:
        logits: Tensor = self.body(rows)
        places = torch.zeros(2, dtype=torch.int64)
        return logits + torch.zeros(4).put_(places, torch.ones(2)).sum()


@pytest.mark.parametrize(
    ("plan", "modes"), [(Plan(), {(0, True, None)}), (ON, {(2, False, ":4096:8")})], ids=["off", "on"]
)
def test_a_run_computes_by_deterministic_operators_where_asked_and_leaves_torch_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plan: Plan, modes: set[tuple[int, bool, str | None]]
) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
    model = Watching()
    finish(make_training(tmp_path, model=model, plan=plan))
    assert model.modes == modes
    assert (torch.get_deterministic_debug_mode(), torch.backends.cudnn.benchmark) == (0, True)


@pytest.mark.parametrize(("plan", "kind"), [(Plan(), None), (ON, "cpu")], ids=["off", "on"])
def test_its_best_model_says_on_which_kind_of_device_a_run_was_deterministic(
    tmp_path: Path, plan: Plan, kind: str | None
) -> None:
    training = make_training(tmp_path, plan=plan)
    finish(training)
    assert training.folder is not None
    assert read_meta(training.folder.best).get("deterministic") == kind


def test_an_operator_without_a_deterministic_form_is_named_with_the_way_out(tmp_path: Path) -> None:
    training = make_training(tmp_path, model=Putting(), plan=ON)
    with pytest.raises(SettingError) as raised:
        finish(training)
    assert str(raised.value) == (
        "plan.deterministic: the operator put_ has no deterministic implementation on this device. Replace it in the model, or set "
        "plan.deterministic: false."
    )
    assert torch.get_deterministic_debug_mode() == 0


def test_other_errors_come_through_as_they_are() -> None:
    with pytest.raises(RuntimeError, match="^shapes$"), deterministic(True):
        raise RuntimeError("shapes")


def test_a_mode_that_the_user_has_set_is_there_again_afterwards() -> None:
    torch.set_deterministic_debug_mode("warn")
    try:
        with deterministic(True):
            assert torch.get_deterministic_debug_mode() == 2
        assert torch.get_deterministic_debug_mode() == 1
    finally:
        torch.set_deterministic_debug_mode("default")


@pytest.mark.parametrize("setting", [":16:8", ":4096:8"])
def test_a_workspace_that_the_user_has_set_stays(monkeypatch: pytest.MonkeyPatch, setting: str) -> None:
    monkeypatch.setenv(WORKSPACE, setting)
    with deterministic(True):
        assert os.environ[WORKSPACE] == setting


def test_a_workspace_that_lets_cublas_add_in_any_order_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(WORKSPACE, ":0:0")
    with (
        pytest.raises(SettingError, match=r"got CUBLAS_WORKSPACE_CONFIG=:0:0, expected :4096:8 or :16:8"),
        deterministic(True),
    ):
        pass


def test_a_run_that_was_deterministic_is_resumed_so_or_by_accepting_the_change(tmp_path: Path) -> None:
    stop_at(make_training(tmp_path, plan=ON), 3)
    with pytest.raises(RunFolderError, match="deterministic: True then, None now"):
        make_training(tmp_path).restore()
    finish(resumed(make_training(tmp_path, plan=ON)))
    finish(resumed(make_training(tmp_path, accept_changes=["deterministic"])))


def test_a_run_that_becomes_deterministic_says_that_it_was_not_compared(tmp_path: Path) -> None:
    stop_at(make_training(tmp_path), 3)
    again = resumed(make_training(tmp_path, plan=ON))
    (warning,) = events(again, "warning")
    assert "it is not compared: deterministic" in warning["message"]
