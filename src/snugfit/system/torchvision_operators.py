"""torchvision beside a build of torch that its compiled part was not made for, such as one for the CPU."""

from __future__ import annotations

import functools
import sys
from importlib.util import find_spec
from pathlib import Path

_OPERATORS = ("nms", "qnms")
_SIGNATURE = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"


@functools.cache
def declare_torchvision_operators() -> bool:
    """Declare the operators that the import of torchvision asks for, where its compiled part does not load; return whether that was done.

    Without them that import fails, and with it that of every model of transformers, which imports torchvision where it is installed. With
    them its networks and transforms work, and those operators fail when they are called. Does nothing where torchvision is not
    installed or has been imported.
    """
    spec = None if "torchvision" in sys.modules else find_spec("torchvision")
    if spec is None or spec.origin is None:
        return False
    import torch

    compiled = next(Path(spec.origin).parent.glob("_C*.so"), None)
    try:
        if compiled is not None:
            torch.ops.load_library(compiled)  # as torchvision itself does
            return False
    except OSError:
        pass  # it needs libraries that this build of torch does not bring
    for name in _OPERATORS:
        torch.library.define(f"torchvision::{name}", _SIGNATURE)
    return True
