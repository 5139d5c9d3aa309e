"""The exchange of gradients between devices in another form than the gradients themselves."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from snugfit.errors import SnugfitWarning

if TYPE_CHECKING:
    from torch.distributed import GradBucket
    from torch.futures import Future


class Exchange:
    """The message that is sent in place of gradients: smaller, and not quite the same.

    `dtype` is what gradients are sent in, where nothing else is done to them; devices that share each weight can have that alone.
    """

    dtype: torch.dtype | None = None

    def begin(self, share: Tensor | float) -> None:
        """Prepare the exchange of a window's gradients.

        Args:
            share: what their sum over ranks is to be multiplied by to be the window's true gradient.
        """

    def mean(self, bucket: GradBucket) -> Future[Tensor]:
        """Return the mean over ranks of one of DDP's buckets of gradients, in the bucket's own memory: a hook of torch's."""
        raise NotImplementedError


@dataclass
class SentIn(Exchange):
    """An exchange of gradients that are rounded to a type of 16 bits, and added up in it.

    Torch's hooks divide before they add, so that a sum stays in range where each gradient does.
    """

    dtype: torch.dtype

    def mean(self, bucket: GradBucket) -> Future[Tensor]:
        """Source: `torch.distributed.algorithms.ddp_comm_hooks.default_hooks`."""
        from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

        hooks = {
            torch.bfloat16: default_hooks.bf16_compress_hook,
            torch.float16: default_hooks.fp16_compress_hook,
        }
        rounded: Future[Tensor] = hooks[self.dtype](None, bucket)  # type: ignore[arg-type]  # None: all ranks
        return rounded


def warn_alone(name: str, exchange: Exchange | None) -> None:
    """Warn that the technique `name` has nothing to do where there is no exchange.

    A run on one device may be gone on with by several, or may have been begun by them.
    """
    if exchange is None:
        warnings.warn(
            f"{name}: does nothing, as one device exchanges no gradients.", SnugfitWarning, stacklevel=3
        )
