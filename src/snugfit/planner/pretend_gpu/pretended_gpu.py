"""A GPU that is elsewhere: within, fake tensors on 'cuda' are computed with as on a machine that has the GPU.

The real step then runs for a device that is not here: autograd, optimizers, autocast, recomputation, streams, random numbers, and
the kernels of attention. It rests on private tables of torch, so it has to be entered in a process of its own, before the first
backward there; where it cannot be, it says why, and the step is to be traced on the CPU device instead.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from snugfit.planner.pretend_gpu import native
from snugfit.planner.pretend_gpu.attention import kernels_of
from snugfit.planner.pretend_gpu.cuda_twin import CannotPretend, answering
from snugfit.system import second_process

TESTED = ("2.11", "2.12", "2.13")
"""Versions of torch in which this has been seen to work, built for the CPU or for CUDA."""

__all__ = ["TESTED", "CannotPretend", "pretending_gpu", "why_not"]


def why_not() -> str | None:
    """Return why this process cannot pretend a GPU, as far as its machine and torch tell; None if it can."""
    version = ".".join(torch.__version__.split(".")[:2])
    if version not in TESTED:
        return f"it is tested with torch {', '.join(TESTED)}, and this is {torch.__version__}"
    if torch.cuda.is_available():
        return (
            "the process has a GPU, whose own functions would answer; start it with CUDA_VISIBLE_DEVICES=''"
        )
    if torch.accelerator.is_available():
        return f"the process has another accelerator, {torch.accelerator.current_accelerator()}"
    return native.why_not()


@contextmanager
def pretending_gpu(capability: tuple[int, int], memory_bytes: int, name: str) -> Iterator[None]:
    """Temporarily allow fake tensors on 'cuda', one GPU of that compute capability, memory and name; real ones may not be there.

    All is as before afterwards; but libraries that look for a GPU while they are imported keep what they found within, and a fake
    CUDA tensor that requires a gradient must then be used no more: torch ends the process.

    Raises:
        CannotPretend: `why_not()`; or a backward has run in this process, which decided for how many devices autograd has threads.
    """
    reason = why_not()
    if reason is not None:
        raise CannotPretend(reason)
    with native.device_in_tables(), answering(capability, memory_bytes, name), kernels_of(capability):
        second_process.fork()
        _check_backward()
        yield


def _check_backward() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    try:
        with FakeTensorMode():
            torch.empty(1, device="cuda", requires_grad=True).sum().backward()
    except RuntimeError as error:
        raise CannotPretend(
            "autograd has no thread for the device, as a backward has run in this process before; enter it in a new one "
            f"({str(error).splitlines()[0]})"
        ) from error
