"""Operators whose results depend on nothing but their inputs, where torch has them: `plan.deterministic`."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from snugfit.errors import SettingError

WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"
WORKSPACES = (":4096:8", ":16:8")
"""Settings of cuBLAS's workspace by which its sums have one order. Source: cuBLAS's documentation, "Results reproducibility"."""

_OPERATOR = re.compile(r"(?:^|\s)(\S+) does not have a deterministic implementation")


@contextmanager
def deterministic(wanted: bool) -> Iterator[None]:
    """Temporarily compute by deterministic operators, if that is wanted.

    Raises:
        SettingError: an operator of the run has no deterministic implementation, or the environment has cuBLAS add in any order.
    """
    if not wanted:
        yield
        return
    # read when cuBLAS is first used; without one torch refuses products on CUDA
    workspace = os.environ.setdefault(WORKSPACE, WORKSPACES[0])
    if workspace not in WORKSPACES:
        raise SettingError(
            "plan.deterministic",
            f"got {WORKSPACE}={workspace}, expected {' or '.join(WORKSPACES)}",
            "Set it so before Python starts, or unset it.",
        )
    before = torch.get_deterministic_debug_mode()
    benchmark = torch.backends.cudnn.benchmark
    torch.set_deterministic_debug_mode("error")
    torch.backends.cudnn.benchmark = False  # a measured choice of kernels is another one in another run
    try:
        yield
    except RuntimeError as error:
        operator = _OPERATOR.search(str(error))
        if operator is None:
            raise
        raise SettingError(
            "plan.deterministic",
            f"the operator {operator[1]} has no deterministic implementation on this device",
            "Replace it in the model, or set plan.deterministic: false.",
        ) from error
    finally:
        torch.set_deterministic_debug_mode(before)
        torch.backends.cudnn.benchmark = benchmark
