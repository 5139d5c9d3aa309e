"""The place of a process among others, and its last words to whoever started it; loads nothing."""

from __future__ import annotations

import atexit
import ctypes
import json
import os
import signal
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn

from snugfit.errors import SettingError
from snugfit.system.redaction import redact

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
the `trace` of an error that nobody expected, else an empty string, and the micro-batch in which it may go on, if it is of memory."""


@dataclass(frozen=True)
class World:
    """The place of this process among those that train together: of all, and on its host.

    Args:
        own_device: whether it sees one GPU, its own, as Slurm does with `--gpus-per-task=1`.
    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    own_device: bool = field(default=False, repr=False)

    @property
    def device(self) -> int:
        """The number of its GPU among those that it sees."""
        return 0 if self.own_device else self.local_rank

    @property
    def leads(self) -> bool:
        """Return whether it is the one that shows, tracks and writes."""
        return self.rank == 0


def this_world(environment: Mapping[str, str] | None = None) -> World:
    """Return what torchrun or Slurm says of this process; a process by itself where neither does.

    Raises:
        SettingError: the variables are there in part, or are no numbers.

    >>> this_world({"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1"})
    World(rank=3, size=4, local_rank=1)
    >>> this_world({"SLURM_PROCID": "1", "SLURM_NTASKS": "2", "SLURM_LOCALID": "0", "SLURM_STEP_NODELIST": "a"})
    World(rank=1, size=2, local_rank=0)
    >>> slurm = {"SLURM_PROCID": "1", "SLURM_NTASKS": "2", "SLURM_LOCALID": "1", "SLURM_STEP_NODELIST": "a"}
    >>> this_world({**slurm, "CUDA_VISIBLE_DEVICES": "0"}).device, this_world({**slurm, "CUDA_VISIBLE_DEVICES": "0,1"}).device
    (0, 1)
    >>> this_world({})
    World(rank=0, size=1, local_rank=0)
    """
    variables = os.environ if environment is None else environment
    for names in (
        ("RANK", "WORLD_SIZE", "LOCAL_RANK"),
        ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"),
    ):
        if names[1] not in variables or (
            names[0].startswith("SLURM") and "SLURM_STEP_NODELIST" not in variables
        ):
            continue
        try:
            rank, size, local_rank = (int(variables[name]) for name in names)
        except (KeyError, ValueError) as error:
            raise SettingError(
                "ranks",
                f"{names[1]} is set, which says that several processes train together, and {' or '.join(names)} is missing or no "
                f"number ({error})",
                "Start them by torchrun, srun or --devices.",
            ) from error
        one = len(variables.get("CUDA_VISIBLE_DEVICES", "").split(",")) == 1 and variables.get(
            "CUDA_VISIBLE_DEVICES"
        )
        return World(rank, size, local_rank, own_device=names[0].startswith("SLURM") and bool(one))
    return World()


def threads_of_each(processes: int) -> int:
    """Threads that each of so many processes on this host is to compute with.

    >>> threads_of_each(10**6)
    1
    """
    return max(1, (os.cpu_count() or 1) // processes)


def must_start(devices: int) -> bool:
    """Return whether processes are to be started: there are to be several, and nobody has started them.

    Raises:
        As `this_world`.
    """
    return devices > 1 and this_world().size == 1


def own_rank() -> int:
    """Return the place of this process among those that were started together; 0 where that cannot be known, which `this_world` refuses."""
    return _world().rank


def follows() -> bool:
    """Return whether another process speaks for this one."""
    return own_rank() != 0


def is_rank() -> bool:
    """Return whether this process was started together with others."""
    return _world().size > 1


def _world() -> World:
    with suppress(SettingError):
        return this_world()
    return World()


def launched() -> bool:
    """Return whether Snugfit has started this process as one of several."""
    return ENDING in os.environ


def leave(code: int) -> NoReturn:
    """End this process with an exit code; one of several ends without taking the interpreter down.

    After an error, whatever Python would do on its way out, such as to free the group, may wait for other ranks for ever. After a run,
    threads of gloo and autograd still let go of Python objects: they wait for the interpreter, which ends them inside of C++, and that aborts
    the process ("terminate called without an active exception"), so that a run that had finished would have failed.

    Source: https://github.com/NVIDIA/nccl/issues/1777 and 863.
    """
    if is_rank():
        leave_as_rank(code)
    sys.exit(code)


def leave_as_rank(code: int) -> NoReturn:
    """End this process as `leave` ends one of several, whoever has started it."""
    if code == 0:
        atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):  # whoever reads it may be gone
            stream.flush()
    os._exit(code)


def leave_when_uncaught() -> None:
    """End this process, from now on, as `leave_as_rank` does where an error ends the script, once it is shown.

    The command leaves by itself; this is for a script that calls `sf.train` under torchrun, which would otherwise wait in NCCL for ever.
    """
    show = sys.excepthook

    def show_and_leave(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        show(kind, error, trace)
        leave_as_rank(130 if issubclass(kind, KeyboardInterrupt) else 1)

    sys.excepthook = show_and_leave


def is_watched() -> bool:
    """Return whether an agent of torch, torchrun's or Snugfit's own, has started this process.

    An agent takes all exit codes but 0 for a reason to end, or to start anew, all processes.
    """
    return "TORCHELASTIC_RUN_ID" in os.environ


def make_torch_quiet() -> None:
    """Leave out warnings of torch's C++ side, such as that a search for weights without a gradient found none; called before torch is loaded."""
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")


def end_with_parent() -> None:
    """Have this process killed, from now on, once the one that started it has ended, where the system can do that."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def is_over() -> bool:
    """Return whether the agent has started this process anew after a failure that would come again."""
    return launched() and os.environ.get(_RESTARTS, "0") != "0" and Path(os.environ[ENDING]).exists()


def started_anew() -> str | None:
    """Return that an agent has started this process in place of one before it, in words; None where it has not."""
    count = os.environ.get(_RESTARTS, "0")
    if count == "0":
        return None
    return f"all processes were started anew after one of them had failed: restart {count} of {os.environ[_MAX_RESTARTS]}."


def write_ending(code: int, failure: Failure | None = None) -> None:
    """Say how the run has ended, unless another process has said it."""
    with suppress(FileExistsError), Path(os.environ[ENDING]).open("x", encoding="utf-8") as file:
        json.dump({"code": code, "failure": failure}, file)


def record_failure(
    error: BaseException, code: int, *, self_explanatory: bool, final: bool, lost: bool
) -> bool:
    """Write down why this process ends, where whoever started it asks for that; returns whether that one tells it.

    Args:
        self_explanatory: the message says all there is to say.
        final: it would come again, so that no process is to be started anew.
        lost: other processes ended before this one.
    """
    import traceback

    place = os.environ.get(_ERROR_FILE)
    if place is None:
        return False
    trace = "" if self_explanatory else redact("".join(traceback.format_exception(error)))
    failure: Failure = {
        "kind": type(error).__name__,
        "message": redact(str(error)),
        "code": code,
        "rank": own_rank(),
        "time": time.time(),
        "lost": lost,
        "trace": trace,
        "finer": getattr(error, "finer", None),
    }
    message = failure["message"]
    details = {"py_callstack": trace or message, "timestamp": str(int(failure["time"]))}
    about = {"message": f"{failure['kind']}: {message}", "extraInfo": details}
    Path(place).write_text(json.dumps({"message": about, RECORDED: failure}), encoding="utf-8")
    if final and launched():
        write_ending(code, failure)
    return launched() or follows()
