"""The command line."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import NoReturn

from snugfit.cli.common.interrupts import INTERRUPTED


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return the exit code."""
    from snugfit.cli import app

    return app.main(arguments)


def run() -> NoReturn:
    """Run the command that this process was started for, and end it.

    What all commands need is imported here: to Ctrl-C meanwhile the answer is that of any other time.
    """
    try:
        from snugfit.cli import app as commands
        from snugfit.system.processes import leave
    except KeyboardInterrupt:
        print("error: interrupted", file=sys.stderr)
        sys.exit(INTERRUPTED)
    leave(commands.main())
