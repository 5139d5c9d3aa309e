"""Is the result right on a GPU? What can be computed in two ways is; what may not move a bit does not."""

from __future__ import annotations

MODULES = ("laws", "placement", "numerics", "faults", "ranks", "compiling", "command_line", "tests_on_gpu")
