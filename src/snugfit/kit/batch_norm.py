"""Batch norm: where it is, and its statistics under averaged weights, estimated anew and kept beside the model's own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from snugfit.core.scalar_reads import read


def has_batch_norm(model: nn.Module) -> bool:
    """Return whether a module needs the statistics of its batch, and so at least two examples."""
    return any(isinstance(module, _BatchNorm) for module in model.modules())


def takes_statistics(module: nn.Module) -> bool:
    """Return whether a module is a batch norm that computes with the statistics of its micro-batch, of whatever size that is; not of groups of rows in it.

    >>> takes_statistics(nn.BatchNorm1d(2)), takes_statistics(nn.BatchNorm1d(2).eval()), takes_statistics(nn.LayerNorm(2))
    (True, False, False)
    """
    if not isinstance(module, _BatchNorm) or getattr(module, "of_groups", False):
        return False
    return module.training or module.running_mean is None


class NormStatistics:
    """Statistics of a model's batch norms, by the buffers' names; none before the first estimate.

    Args:
        device: of the model.
        windows: how many of the training windows they are estimated from; 0 leaves the model's own.
    """

    def __init__(self, device: torch.device, windows: int) -> None:
        self._device = device
        self._windows = windows
        self._estimates: dict[str, Tensor] = {}

    def estimate(self, model: nn.Module, passes: Iterator[None]) -> None:
        """Take the plain mean over what each micro-batch has, under the weights that the model has now.

        Batch norms in eval mode are frozen and keep their own; those that no window reaches do too. The buffers of the
        model change: the step gives them back.

        Args:
            passes: runs a training window through the model at each step; not begun without batch norm.
        Source: as torch.optim.swa_utils.update_bn; Izmailov et al. 2018, arXiv:1803.05407, section 3.2.
        """
        self._estimates = {}
        norms = {name: module for name, module in model.named_modules() if _keeps_statistics(module)}
        if not norms or self._windows == 0:
            return
        momenta = [norm.momentum for norm in norms.values()]
        try:
            for norm in norms.values():
                norm.reset_running_stats()
                norm.momentum = None  # torch's word for the plain mean over all batches
            for _ in islice(passes, self._windows):
                pass
        finally:
            for norm, momentum in zip(norms.values(), momenta, strict=True):
                norm.momentum = momentum
        for name, norm in norms.items():
            if read(norm.num_batches_tracked, assume=1) > 0:
                self._estimates |= {
                    key: buffer.clone() for key, buffer in norm.named_buffers(name, recurse=False)
                }

    def buffers_and_estimates(self, model: nn.Module) -> tuple[list[Tensor], list[Tensor]]:
        """Return the model's buffers that were estimated, and the estimate of each."""
        buffers = dict(model.named_buffers())
        return [buffers[name] for name in self._estimates], list(self._estimates.values())

    def state_dict(self) -> dict[str, Tensor]:
        return dict(self._estimates)

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        self._estimates = {name: tensor.to(self._device, copy=True) for name, tensor in state.items()}


def _keeps_statistics(module: nn.Module) -> bool:
    return isinstance(module, _BatchNorm) and module.training and module.running_mean is not None
