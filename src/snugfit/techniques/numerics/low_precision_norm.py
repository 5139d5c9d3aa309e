"""Layer norms in 16 bit under autocast, which otherwise keeps them in fp32."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from snugfit.core.batch import Batch
from snugfit.core.forwards import replaced_forward
from snugfit.core.technique import Card, Context, Family, Seams, Technique

NORMS = (nn.LayerNorm, nn.RMSNorm, nn.GroupNorm)


def normalised(norm: nn.Module, inputs: Tensor, dtype: torch.dtype) -> Tensor:
    """What `norm` gives, with inputs, weights and result in `dtype`; torch's kernels add up in fp32 inside.

    >>> normalised(nn.LayerNorm(2), torch.tensor([[1.0, 3.0]]), torch.bfloat16)
    tensor([[-1.,  1.]], dtype=torch.bfloat16, grad_fn=...)
    """
    low: dict[str, Tensor] = {name: parameter.to(dtype) for name, parameter in norm.named_parameters()}
    weight, bias = low.get("weight"), low.get("bias")
    inputs = inputs.to(dtype)
    with torch.autocast(inputs.device.type, enabled=False):
        if isinstance(norm, nn.GroupNorm):
            return F.group_norm(inputs, norm.num_groups, weight, bias, norm.eps)
        if isinstance(norm, nn.RMSNorm):
            return F.rms_norm(inputs, norm.normalized_shape, weight, norm.eps)
        assert isinstance(norm, nn.LayerNorm)
        return F.layer_norm(inputs, norm.normalized_shape, weight, bias, norm.eps)


@contextmanager
def in_autocast_dtype(norm: nn.Module) -> Iterator[None]:
    """Within, `norm` computes in autocast's type where autocast is on."""
    forward = norm.forward

    def lowered(inputs: Tensor) -> Tensor:
        device = inputs.device.type
        if not torch.is_autocast_enabled(device):
            warnings.warn("low_precision_norm: without autocast it does nothing. Add bf16.", stacklevel=2)
        elif inputs.dtype != torch.float64:  # which autocast leaves alone
            return normalised(norm, inputs, torch.get_autocast_dtype(device))
        result: Tensor = forward(inputs)
        return result

    with replaced_forward(norm, lowered):
        yield


@dataclass(frozen=True)
class LowPrecisionNorm(Technique):
    """Compute layer, RMS and group norms in autocast's 16-bit type; without autocast it does nothing, and says so."""

    card: ClassVar[Card] = Card(
        name="low_precision_norm",
        summary="Computes layer norms in the 16-bit type of autocast, so that no activation goes back to fp32.",
        family=Family.NUMERICS,
        source="composer's Low Precision LayerNorm (MosaicML); torch.autocast keeps them in fp32",
        seams=("forward",),
        cost="a rounding to 16 bit at each norm; saves half of the norms' traffic and memory",
        use_when="bf16 on a GPU, on models with torch's own norm layers",
    )

    def seams(self, context: Context) -> Seams:
        norms = [module for module in context.model.modules() if isinstance(module, NORMS)]
        if not norms:
            warnings.warn("low_precision_norm: none of torch's norm layers is in the model.", stacklevel=2)

        @contextmanager
        def forward(batch: Batch) -> Iterator[None]:
            with ExitStack() as stack:
                for norm in norms:
                    stack.enter_context(in_autocast_dtype(norm))
                yield

        return Seams(forward=forward)
