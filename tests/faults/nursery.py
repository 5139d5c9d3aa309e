"""A process that has imported everything and forks a child for each scenario, to be signalled or killed by a test.

Starting Python with torch costs seconds, forking milliseconds. It reads one JSON object a line from stdin:
`{"run": "module:function", "with": {...}, "log": path}` forks and answers with the child's process id;
`{"wait": pid}` answers with how that child ended, as `subprocess` counts it: -9 for SIGKILL. An empty line ends it.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
import traceback
from typing import Any

import torch

import snugfit.run.from_python  # noqa: F401 - what children would import


def child(request: dict[str, Any]) -> None:
    """Run one scenario in a process group of its own and end, never returning."""
    status = 1
    try:
        os.setpgid(0, 0)
        log = os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        for stream in (1, 2):
            os.dup2(log, stream)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        module, _, function = request["run"].partition(":")
        getattr(importlib.import_module(module), function)(**request["with"])
        status = 0
    except KeyboardInterrupt:
        status = 130
    except BaseException:  # noqa: BLE001 - it goes to the log, and the status says so
        traceback.print_exc()
    finally:
        os._exit(status)


def warm_up() -> None:
    """Make the first update of the process, for which torch imports a good deal more."""
    parameter = torch.nn.Parameter(torch.ones(1))
    optimizer = torch.optim.AdamW([parameter])
    parameter.sum().backward()
    optimizer.step()


def main() -> None:
    warm_up()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while line := sys.stdin.readline().strip():
        request = json.loads(line)
        if "wait" in request:
            _, status = os.waitpid(request["wait"], 0)
            answer = os.waitstatus_to_exitcode(status)
        else:
            answer = os.fork()
            if answer == 0:
                child(request)
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
