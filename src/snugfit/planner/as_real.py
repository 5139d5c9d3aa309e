"""Libraries that do otherwise for fake tensors than for real ones, made to do the same."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from unittest import mock


@contextmanager
def foreach_as_real() -> Iterator[None]:
    """Within, optimizers choose the kernels over many tensors for fake parameters as for real ones on their device.

    Torch asks whether the type of each is exactly one of a list: within, FakeTensor is in it.
    """
    from torch._subclasses.fake_tensor import FakeTensor
    from torch.optim import optimizer
    from torch.utils import _foreach_utils

    with ExitStack() as stack:
        for module in (optimizer, _foreach_utils):
            types = [*module._foreach_supported_types, FakeTensor]
            stack.enter_context(mock.patch.object(module, "_foreach_supported_types", types))
        yield


@contextmanager
def transformers_as_real() -> Iterator[None]:
    """Within, transformers does not take fake tensors for a tracing of its model, for which it would build masks that a run
    does without. It then asks masks and positions for their values: something else has to answer.
    """
    if importlib.util.find_spec("transformers") is None:
        yield
        return
    from transformers.utils import import_utils

    # `is_tracing` asks it, from wherever that has been imported to
    with mock.patch.object(import_utils, "is_fake_tensor", return_value=False):
        yield
