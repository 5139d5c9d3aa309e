"""Start the observer in the process that runs the script."""

from __future__ import annotations

import atexit
import os
import runpy
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType

from snugfit.doctor.observe import FOLDER_VARIABLE, SECONDS_VARIABLE, STOP_VARIABLE, UPDATES_VARIABLE
from snugfit.doctor.observe.events.log import Log, write_log
from snugfit.doctor.observe.recording.attribute_patches import Patches
from snugfit.doctor.observe.recording.recorder import Recorder

_LAST_LINES = 8
_OTHER_MAIN = "__mp_main__"
FRAMES = 2
"""How many times as many frames as alone a script may have under observation."""
MOST_FRAMES = 2**31 - 1


def start() -> None:
    """Observe this process from the moment at which it imports torch; the log is written when it ends."""
    log = Path(os.environ[FOLDER_VARIABLE]) / f"{os.getpid()}.json"
    updates = int(os.environ[UPDATES_VARIABLE])
    seconds = float(os.environ[SECONDS_VARIABLE])
    stop_after = int(os.environ.get(STOP_VARIABLE, 0)) or None
    patches = Patches()

    def begin(_: object) -> None:
        try:
            recorder = Recorder(updates, seconds, log, stop_after)
            finish = _install(recorder, patches)
            _leave_room(patches)
            _note_failure(recorder, patches)
            _follow_forks(recorder, finish, patches)
        except Exception:  # noqa: BLE001  the script imports torch, whatever happens to its observer
            patches.undo()
            write_log(Log(failure=traceback.format_exc(limit=-3)), log)
        else:
            atexit.register(lambda: _end(recorder, finish, complete=not recorder.log.error))

    patches.after_import("torch", begin)


def _leave_room(patches: Patches) -> None:
    """Raise Python's limit of recursion by our share of the frames; the script sees and sets its own.

    Each level of nested modules has three frames of torch's and the script's, and one of ours.
    """
    read, write = sys.getrecursionlimit, sys.setrecursionlimit
    write(FRAMES * read())
    patches.on_undo(lambda: write(read() // FRAMES))
    patches.wrap(sys, "getrecursionlimit", lambda original: lambda: original() // FRAMES)
    patches.wrap(
        sys, "setrecursionlimit", lambda original: lambda limit, /: original(min(FRAMES * limit, MOST_FRAMES))
    )


def _follow_forks(recorder: Recorder, finish: Callable[[], None], patches: Patches) -> None:
    """Observe forked processes too; they end by `os._exit`, which runs no handler of `atexit`."""
    if not hasattr(os, "register_at_fork"):
        return
    os.register_at_fork(after_in_child=recorder.after_fork)

    def ending(original: Callable[..., None]) -> Callable[..., None]:
        def _exit(status: int) -> None:
            with recorder.guard():
                if recorder.forked:
                    _end(recorder, finish, complete=status == 0)
            original(status)

        return _exit

    patches.wrap(os, "_exit", ending)


def _note_failure(recorder: Recorder, patches: Patches) -> None:
    """Keep the end of the traceback when the script ends by an exception that nobody caught."""

    def noting(original: Callable[..., None]) -> Callable[..., None]:
        def excepthook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
            lines = "".join(traceback.format_exception(kind, error, trace)).splitlines()
            recorder.log.error = "\n".join(lines[-_LAST_LINES:])
            original(kind, error, trace)

        return excepthook

    patches.wrap(sys, "excepthook", noting)


def watch_script(path: Path, arguments: Sequence[str] = (), *, updates: int = 8) -> Log:
    """Run a script in this process as `python path arguments` would, and return the log of it.

    An error of the script is not raised; the log is then not `complete`.
    """
    import torch  # noqa: F401  what is patched

    recorder, patches = Recorder(updates, None, None), Patches()
    finish = _install(recorder, patches)
    _leave_room(patches)
    before, first = sys.argv, sys.path[0]
    sys.argv, sys.path[0] = [str(path), *arguments], str(path.parent)
    complete = False
    try:
        runpy.run_path(str(path), run_name="__main__")
        complete = True
    except SystemExit as ended:
        complete = ended.code in (None, 0)
    except Exception as failure:  # noqa: BLE001  the script's own; it belongs to what was observed
        print(f"{path.name}: {type(failure).__name__}: {failure}", file=sys.stderr)
    finally:
        sys.argv, sys.path[0] = before, first
        # an import of multiprocessing, or of a copy of it, keeps the script here, where it would be of the next one's own source
        if getattr(sys.modules.get(_OTHER_MAIN), "__file__", None) == str(path):
            del sys.modules[_OTHER_MAIN]
        patches.undo()
        _end(recorder, finish, complete=complete)
    return recorder.log


def _install(recorder: Recorder, patches: Patches) -> Callable[[], None]:
    from snugfit.doctor.observe.watch import install

    finish = install(recorder, patches)
    recorder.log.unwatched += patches.missing
    patches.missing = recorder.log.unwatched  # what libraries that are imported later lack
    return finish


def _end(recorder: Recorder, finish: Callable[[], None], *, complete: bool) -> None:
    recorder.quiet += 1
    with recorder.guard():
        finish()
    recorder.log.complete = complete and not recorder.log.stopped
    recorder.flush()
