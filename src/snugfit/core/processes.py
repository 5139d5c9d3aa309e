"""What a process can tell of its place among others, and how it tells whoever started it why it ended; loads nothing."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

ENDING = "SNUGFIT_ENDING"
"""Names the file for how a run has ended, where Snugfit has started its processes: {"code": exit code, "failure": `Failure` or null}."""

RECORDED = "snugfit"
"""The part of an error file of torch's agent that is Snugfit's own."""

_ERROR_FILE = "TORCHELASTIC_ERROR_FILE"
_RESTARTS = "TORCHELASTIC_RESTART_COUNT"
_MAX_RESTARTS = "TORCHELASTIC_MAX_RESTARTS"
_PR_SET_PDEATHSIG = 1

Failure = dict[str, Any]
"""Why a process ended: `kind` and `message` of the error, exit `code`, `rank`, `time`, `lost`: whether others ended before it,
and the `trace` of an error that nobody expected, else an empty string."""


def must_start(devices: int) -> bool:
    """Whether processes are to be started: there are to be several, and nobody has started them."""
    return (
        devices > 1 and os.environ.get("WORLD_SIZE", "1") == "1" and "SLURM_STEP_NODELIST" not in os.environ
    )


def own_rank() -> int:
    """The place of this process among those that were started together."""
    slurm = os.environ.get("SLURM_PROCID", "0") if "SLURM_STEP_NODELIST" in os.environ else "0"
    return int(os.environ.get("RANK", slurm))


def follows() -> bool:
    """Whether another process speaks for this one."""
    return own_rank() != 0


def launched() -> bool:
    """Whether Snugfit has started this process as one of several."""
    return ENDING in os.environ


def is_watched() -> bool:
    """Whether an agent of torch, torchrun's or Snugfit's own, has started this process: it takes all exit codes but 0 for a reason to
    end, or to start anew, all processes."""
    return "TORCHELASTIC_RUN_ID" in os.environ


def is_one_of_several() -> bool:
    """Whether this process was started together with others."""
    return "RANK" in os.environ or "SLURM_STEP_NODELIST" in os.environ


def make_torch_quiet() -> None:
    """Before torch is loaded: leave its C++ side's warnings out, such as that a search for weights without a gradient found none."""
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")


def end_with_parent() -> None:
    """From now on, this process is killed once the one that started it has ended, where the system can do that."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def is_over() -> bool:
    """Whether the agent has started this process anew after a failure that would come again."""
    return launched() and os.environ.get(_RESTARTS, "0") != "0" and Path(os.environ[ENDING]).exists()


def started_anew() -> str | None:
    """That an agent has started this process in place of one before it, in words; None where it has not."""
    count = os.environ.get(_RESTARTS, "0")
    if count == "0":
        return None
    return f"all processes were started anew after one of them had failed: restart {count} of {os.environ[_MAX_RESTARTS]}."


def write_ending(code: int, failure: Failure | None = None) -> None:
    """Say how the run has ended, unless another process has said it."""
    with suppress(FileExistsError), Path(os.environ[ENDING]).open("x", encoding="utf-8") as file:
        json.dump({"code": code, "failure": failure}, file)


def record_failure(error: BaseException, code: int, *, expected: bool, final: bool, lost: bool) -> bool:
    """Write down why this process ends, where whoever started it asks for that; returns whether that one tells it.

    Args:
        expected: the message says all there is to say.
        final: it would come again, so that no process is to be started anew.
        lost: other processes ended before this one.
    """
    import traceback

    place = os.environ.get(_ERROR_FILE)
    if place is None:
        return False
    trace = "" if expected else "".join(traceback.format_exception(error))
    failure: Failure = {
        "kind": type(error).__name__,
        "message": str(error),
        "code": code,
        "rank": own_rank(),
        "time": time.time(),
        "lost": lost,
        "trace": trace,
    }
    told = {"py_callstack": trace or str(error), "timestamp": str(int(failure["time"]))}
    about = {"message": f"{failure['kind']}: {error}", "extraInfo": told}
    Path(place).write_text(json.dumps({"message": about, RECORDED: failure}), encoding="utf-8")
    if final and launched():
        write_ending(code, failure)
    return launched() or follows()
