"""The forward computation to which a node of the backward graph belongs.

Torch numbers the nodes of a thread in the order in which they are made. Both numbers are torch's own
business; tests/unit/planner/trace/test_sequence.py tells when they move.
"""

from __future__ import annotations

from typing import Any

import torch


def sequence_number() -> int:
    """Return the number that the next node of this thread's graph gets."""
    autograd: Any = torch._C._autograd
    number: int = autograd._get_sequence_nr()
    return number


def node_number() -> int | None:
    """Return the number of the node whose backward runs on this thread; None outside of one."""
    node: Any = torch._C._current_autograd_node()
    return None if node is None else node._sequence_nr()
