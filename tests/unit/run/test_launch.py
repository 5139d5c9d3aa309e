"""Which of several processes is told of when they have failed, and what they leave for the one that started them."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

from snugfit.cli import main
from snugfit.errors import DataError, MissingExtra, RanksLost, TrainingFailed, UserError
from snugfit.results.run_folder import RunFolder
from snugfit.run import launch
from snugfit.run.call_options import RunOptions
from snugfit.system import processes
from snugfit.units import parse_seconds

ERROR_FILE = "TORCHELASTIC_ERROR_FILE"


def record(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    rank: int,
    error: BaseException,
    time: float,
    **how: bool,
) -> Path:
    """What a rank has recorded at some time; the file's path."""
    place = folder / f"error-{rank}.json"
    monkeypatch.setenv(ERROR_FILE, str(place))
    monkeypatch.setenv("RANK", str(rank))
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("LOCAL_RANK", str(rank))
    processes.record_failure(error, 1, **{"self_explanatory": True, "final": False, "lost": False, **how})
    recorded = json.loads(place.read_text())
    recorded[processes.RECORDED]["time"] = time
    place.write_text(json.dumps(recorded))
    return place


def failure(rank: int, code: int, recorded: Path | None = None, seen: int | None = None) -> ProcessFailure:
    """As torch's agent makes it, which has `seen` that the process ended."""
    made = ProcessFailure(rank, 1000 + rank, code, str(recorded or "nowhere"))
    if seen is not None:
        made.timestamp = seen
    return made


def told(failures: dict[int, ProcessFailure], folder: Path) -> Any:
    return launch._first_error(failures, RunFolder(folder), folder)


def test_a_rank_that_was_killed_comes_before_one_that_lost_it_and_one_that_the_agent_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = record(tmp_path, monkeypatch, 0, RanksLost("rank 0 has lost the others."), 100.4, lost=True)
    error = told(
        {
            0: failure(0, 1, lost),
            1: failure(1, -signal.SIGTERM, seen=99),
            2: failure(2, -signal.SIGKILL, seen=101),
        },
        tmp_path,
    )
    assert type(error) is TrainingFailed
    assert str(error).startswith("rank 2 (process 1002) was killed by SIGKILL, and the others were ended. ")


def test_a_rank_that_waited_in_vain_comes_before_the_one_that_hung_and_was_killed_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = record(tmp_path, monkeypatch, 0, RanksLost("rank 0 waits."), 100.0, lost=True)
    error = told({0: failure(0, 1, lost), 1: failure(1, -signal.SIGKILL, seen=130)}, tmp_path)
    assert type(error) is RanksLost
    assert str(error).startswith("rank 0 waits. There is no checkpoint yet")


def test_an_error_of_a_ranks_own_comes_before_that_of_one_which_lost_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = record(tmp_path, monkeypatch, 0, RanksLost("rank 0 has lost the others."), 100.0, lost=True)
    own = record(tmp_path, monkeypatch, 1, DataError.from_text("data: example 3 is torn."), 100.1)
    error = told({0: failure(0, 1, lost), 1: failure(1, 2, own)}, tmp_path)
    assert (type(error), str(error)) == (DataError, "rank 1: data: example 3 is torn.")


def test_what_the_first_rank_says_is_said_for_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = record(tmp_path, monkeypatch, 0, MissingExtra("mlflow", "track"), 100.0)
    error = told({0: failure(0, 2, own)}, tmp_path)
    assert isinstance(error, UserError)
    assert (
        str(error) == "extra 'track': mlflow is not installed. Install it with: pip install 'snugfit[track]'"
    )


def test_an_error_that_nobody_expected_is_shown_with_its_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    own = record(tmp_path, monkeypatch, 1, ArithmeticError("off by one"), 100.0, self_explanatory=False)
    error = told({1: failure(1, 1, own)}, tmp_path)
    assert str(error).startswith("rank 1 failed, and the others were ended: ArithmeticError: off by one. ")
    assert "ArithmeticError: off by one" in capsys.readouterr().err


def test_of_a_process_that_ended_without_a_reason_the_last_lines_are_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "run/attempt_0/1/stderr.log"
    log.parent.mkdir(parents=True)
    log.write_text("".join(f"line {number}\n" for number in range(30)))
    assert "was killed by SIGSEGV" in str(told({1: failure(1, -signal.SIGSEGV)}, tmp_path))
    assert capsys.readouterr().err.splitlines() == [f"line {number}" for number in range(10, 30)]


def test_only_what_would_come_again_ends_the_run_for_good(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ending = tmp_path / "ending.json"
    monkeypatch.setenv(processes.ENDING, str(ending))
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    record(tmp_path, monkeypatch, 0, RanksLost("lost"), 100.0, lost=True)
    assert not processes.is_over()
    record(tmp_path, monkeypatch, 1, DataError.from_text("torn"), 101.0, final=True)
    assert processes.is_over()
    record(tmp_path, monkeypatch, 0, DataError.from_text("as well"), 102.0, final=True)
    assert json.loads(ending.read_text())["failure"]["message"] == "torn"  # the first says it
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "0")
    assert not processes.is_over()


SLURM = {"SLURM_LOCALID": "0", "SLURM_STEP_NODELIST": "a[1-2]"}


@pytest.mark.parametrize(
    ("environment", "rank", "several", "starts"),
    [
        ({}, 0, False, True),
        ({"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1"}, 1, True, False),
        ({"SLURM_PROCID": "3", "SLURM_NTASKS": "4"}, 0, False, True),  # of a job that is no step: one process
        ({**SLURM, "SLURM_PROCID": "3", "SLURM_NTASKS": "4"}, 3, True, False),
        ({**SLURM, "SLURM_PROCID": "0", "SLURM_NTASKS": "1"}, 0, False, True),  # which is to start its own
    ],
)
def test_a_process_knows_its_place(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], rank: int, several: bool, starts: bool
) -> None:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "SLURM_PROCID", "SLURM_NTASKS", *SLURM):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert processes.own_rank() == rank
    assert processes.follows() == (rank > 0)
    assert processes.is_rank() == several
    assert processes.must_start(2) == starts
    assert not processes.must_start(1)


def test_a_place_that_is_no_number_is_refused_by_name(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("RANK", "first")
    monkeypatch.setenv("WORLD_SIZE", "2")
    recipe = tmp_path / "my.yaml"
    recipe.write_text("task: python\nmodel: m:make\ndata: {train: m:make}\nplan: {devices: 2}\n")

    assert main(["train", str(recipe)]) == 2

    assert "WORLD_SIZE is set" in capsys.readouterr().err


def test_processes_get_what_is_left_of_the_time_and_never_none_at_all() -> None:
    began = time.monotonic() - 3.0
    (_, left), (_, over) = (launch._until(RunOptions(seconds, started=began)) for seconds in (10.0, 2.0))
    assert 0 < parse_seconds(left, "--stop-after") <= 7.0
    assert 0 < parse_seconds(over, "--stop-after") < 0.1
    assert launch._until(RunOptions()) == []


def test_a_rank_that_the_watchdog_of_nccl_ended_has_lost_the_others(tmp_path: Path) -> None:
    """Only two GPUs can show that the watchdog ends a rank so."""
    error = told(
        {0: failure(0, -signal.SIGTERM, seen=99), 1: failure(1, -signal.SIGABRT, seen=101)}, tmp_path
    )
    assert type(error) is RanksLost
    assert "rank 1 (process 1001) was ended by SIGABRT" in str(error)
    assert "within plan.timeout" in str(error)
    assert "There is no checkpoint yet" in str(error)
