"""What libraries do for fake tensors is what they do for real ones."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.optim.optimizer import _default_to_fused_or_foreach
from torch.utils._foreach_utils import _has_foreach_support

from snugfit.planner.as_real import foreach_as_real, transformers_as_real


def fakes(device: str) -> list[torch.Tensor]:
    with FakeTensorMode():
        return [nn.Parameter(torch.empty(2, device=device))]


def test_fake_parameters_choose_the_kernels_of_real_ones() -> None:
    real = [nn.Parameter(torch.empty(2))]
    fake, there = fakes("cpu"), fakes("cuda")
    assert _default_to_fused_or_foreach(there, False) == (False, False)  # what is lost without
    with foreach_as_real():
        assert _default_to_fused_or_foreach(there, False) == (False, True)
        for use_fused in (False, True):
            expected = _default_to_fused_or_foreach(real, False, use_fused)
            assert _default_to_fused_or_foreach(fake, False, use_fused) == expected == (use_fused, False)
        assert _has_foreach_support(fake, torch.device("cpu"))  # for the norm of gradients
    assert _default_to_fused_or_foreach(there, False) == (False, False)
    assert not _has_foreach_support(fake, torch.device("cpu"))


def test_transformers_does_not_take_a_fake_tensor_for_tracing() -> None:
    pytest.importorskip("transformers")
    from transformers.masking_utils import is_tracing

    fake = fakes("cpu")[0]
    assert is_tracing(fake)
    with transformers_as_real():
        assert not is_tracing(fake)
    assert is_tracing(fake)
