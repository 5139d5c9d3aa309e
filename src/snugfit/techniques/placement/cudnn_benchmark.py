"""cuDNN's own choice of kernels: for each shape of a convolution, the fastest one by a trial."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import nn

from snugfit.core.batch import Batch
from snugfit.core.technique import Card, Context, Family, Seams, Stage, Technique
from snugfit.errors import SnugfitWarning

CONVOLUTIONS = (
    nn.Conv1d,
    nn.Conv2d,
    nn.Conv3d,
    nn.ConvTranspose1d,
    nn.ConvTranspose2d,
    nn.ConvTranspose3d,
)


@contextmanager
def benchmarking() -> Iterator[None]:
    """Temporarily let cuDNN try out its kernels at the first convolution of each shape, and keep the fastest.

    >>> with benchmarking():
    ...     torch.backends.cudnn.benchmark
    True
    >>> torch.backends.cudnn.benchmark
    False
    """
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = True
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before


def idle_because(model: nn.Module, device: torch.device) -> str | None:
    """Return why there is nothing for cuDNN to choose; None where there is.

    >>> idle_because(nn.Conv2d(3, 8, 3), torch.device("cpu"))
    'the model is on cpu, and cuDNN computes on CUDA devices'
    """
    if device.type != "cuda":
        return f"the model is on {device}, and cuDNN computes on CUDA devices"
    if not any(isinstance(module, CONVOLUTIONS) for module in model.modules()):
        return "the model has no convolution"
    return None


@dataclass(frozen=True)
class CudnnBenchmark(Technique):
    """Let cuDNN choose the kernels of convolutions by trying them out, in forward and backward."""

    card: ClassVar[Card] = Card(
        name="cudnn_benchmark",
        summary="Lets cuDNN choose the kernels of convolutions by trying them out, once for each shape.",
        aliases=("torch.backends.cudnn.benchmark",),
        family=Family.PLACEMENT,
        source="torch.backends.cudnn.benchmark; Chetlur et al. 2014, arXiv:1410.0759",
        seams=("modules",),
        stages=(Stage.COMPUTE,),
        cost="a trial for each new shape, with memory for it; another run may choose other kernels, which round otherwise",
        use_when="convolutional nets on a GPU, with inputs of few different shapes",
    )

    def seams(self, context: Context) -> Seams:
        reason = idle_because(context.model, context.device)
        if reason is not None:
            warnings.warn(
                f"cudnn_benchmark: does nothing, as {reason}. Remove it.", SnugfitWarning, stacklevel=2
            )

        def modules(_batch: Batch) -> AbstractContextManager[None]:
            return benchmarking()

        return Seams(modules=modules)
