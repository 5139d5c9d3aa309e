"""Facts of a module that can be read off it without running it."""

from __future__ import annotations

import inspect
import re
import sys
import weakref
from types import FrameType, FunctionType

import torch
from torch import nn
from torch.optim import swa_utils
from torch.utils import checkpoint

NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
_DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout)
_UPDATE_BN = inspect.unwrap(swa_utils.update_bn).__code__
SLIPS = (
    "require_grad",
    "require_grads",
    "requires_grads",
    "required_grad",
    "requires_gradient",
    "requires_grad_",
    "trainable",
)
"""Attributes that are set to freeze a parameter, and that torch does not read."""
LIBRARIES = ("transformers.", "torchvision.", "timm.", "sentence_transformers.", "diffusers.", "peft.")


def differs_by_mode(module: nn.Module) -> bool:
    """Return whether a module does in training what it does not do in evaluation."""
    if isinstance(module, _DROPOUTS):
        return module.p > 0
    if isinstance(module, NORMS):
        return module.track_running_stats
    return isinstance(module, nn.RNNBase | nn.MultiheadAttention) and module.dropout > 0


def modes_are_frozen(module: nn.Module) -> bool:
    """Return whether each part of a module that differs by mode has parameters, all of which are frozen."""
    parts = [part for part in module.children() if any(map(differs_by_mode, part.modules()))]
    own = [[each.requires_grad for each in part.parameters()] for part in parts]
    return bool(own) and all(each and not any(each) for each in own)


def is_stateless(module: nn.Module) -> bool:
    """Return whether it has nothing of its own, and does something."""
    owns = module._parameters or module._modules or module._buffers
    return not owns and not isinstance(module, nn.Identity)


def computes_natively(device: torch.device, dtype: str) -> bool:
    """Return whether the device has instructions for this dtype; only bfloat16 is ever emulated."""
    if dtype != "bfloat16":
        return True
    if device.type == "cuda":
        return torch.cuda.get_device_capability(device) >= (8, 0)
    if device.type == "cpu":
        able = torch.cpu.get_capabilities()
        known = [name for name in able if "bf16" in name]
        return not known or any(able[name] for name in known)
    return True


class RootFacts:
    """Facts of a model that change rarely, so that not each call of it walks through all of its modules.

    Args:
        optimized: how many parameters optimizers had then.
        trained: whether one of its own is among them.
        at_rest: whether its parts that differ by mode are frozen.
    """

    def __init__(self, module: nn.Module, optimized: int, *, trained: bool) -> None:
        self.optimized, self.trained = optimized, trained
        self._modal = [weakref.ref(each) for each in module.modules() if differs_by_mode(each)]
        self._first = weakref.ref(next(module.parameters()))
        self.at_rest = modes_are_frozen(module)

    @property
    def affected(self) -> bool:
        """Return whether one of its modules is in training mode, and that makes a difference."""
        for reference in self._modal:
            module = reference()
            if module is not None and module.training:
                return True
        return False

    def device(self, module: nn.Module) -> torch.device:
        """Return the device of the first parameter; of a tensor that was put in its place, if it is gone."""
        first = self._first()
        return next(module.parameters()).device if first is None else first.device


def is_recalibrating() -> bool:
    """Return whether torch's own functions estimate batch norm anew, or keep the activations out for later."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if code.co_filename == checkpoint.__file__ or code is _UPDATE_BN:
            return True
        frame = frame.f_back
    return False


def misspelt_freezes(module: nn.Module) -> dict[str, str]:
    """Return what has an attribute that looks as if it froze it, although it trains: a slip of `requires_grad`, or one on a module."""
    slips = {
        name: attribute
        for name, each in module.named_parameters()
        for attribute, value in vars(each).items()
        if attribute in SLIPS and value is False and each.requires_grad
    }
    for name, each in module.named_modules():
        own = vars(each)
        slip = next((slip for slip in ("requires_grad", *SLIPS) if own.get(slip) is False), None)
        if (
            slip is not None
            and any(p.requires_grad for p in each.parameters())
            and not _reads(type(each), slip)
        ):
            slips[name or type(each).__name__] = slip
    return slips


def _reads(kind: type, attribute: str) -> bool:
    """Return whether a class has a setting of this name of its own."""
    functions = [each for own in kind.__mro__ for each in vars(own).values() if inspect.isfunction(each)]
    return any(
        attribute in each.__code__.co_names and _reads_own(each, attribute)
        for each in functions
        if each.__module__ != nn.Module.__module__
    )


def _reads_own(function: FunctionType, attribute: str) -> bool:
    """Return whether a method reads its object's attribute, not that of a parameter; also where its source is not there."""
    try:
        return re.search(rf"\bself\.{attribute}\b", inspect.getsource(function)) is not None
    except OSError:
        return True
