"""Is the result right on a GPU? What can be computed in two ways is; what may not move a bit does not."""

from __future__ import annotations

MODULES = (
    "memory",  # alone on the device, and so before what runs side by side
    "laws",
    "command_line",
    "runs",
    "tools",
    "compiling",
    "placement",
    "answers",
    "numerics",
    "packed_rows",
    "faults",
    "ranks",
    "tests_on_gpu",
)
