"""Layer norms in 16 bit under autocast, which otherwise keeps them in fp32."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from snugfit.core.batch import Batch
from snugfit.core.technique import Card, Context, Family, Fidelity, Seams, Stage, Technique
from snugfit.errors import SnugfitWarning
from snugfit.kit.patched_forward import replaced_forward
from snugfit.kit.precision.autocast import expected_autocast

NORMS = (nn.LayerNorm, nn.RMSNorm, nn.GroupNorm)


def normalised(norm: nn.Module, inputs: Tensor, dtype: torch.dtype) -> Tensor:
    """Return what `norm` gives, with inputs, weights and result in `dtype`; torch's kernels add up in fp32 inside.

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
def in_autocast_dtype(
    norm: nn.Module, is_on: Callable[[str], bool] = torch.is_autocast_enabled
) -> Iterator[None]:
    """Temporarily let `norm` compute in autocast's type where autocast is on, which `is_on` says of a kind of device."""
    forward = norm.forward

    def lowered(inputs: Tensor) -> Tensor:
        device = inputs.device.type
        if is_on(device) and inputs.dtype != torch.float64:  # which autocast leaves alone
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
        aliases=("low precision LayerNorm",),
        family=Family.NUMERICS,
        source="composer's Low Precision LayerNorm (MosaicML); torch.autocast keeps them in fp32",
        seams=("modules",),
        stages=(Stage.COMPUTE,),
        fidelity=Fidelity.MIXED,
        cost="a rounding to 16 bit at each norm; saves half of the norms' traffic and memory",
        use_when="bf16 on a GPU, on models with torch's own norm layers",
    )

    def seams(self, context: Context) -> Seams:
        norms = [module for module in context.model.modules() if _is_torchs(module)]
        if not norms:
            warnings.warn(
                "low_precision_norm: does nothing, as none of torch's norm layers is in the model. Remove it.",
                SnugfitWarning,
                stacklevel=2,
            )
        is_on = expected_autocast(self.card.name)

        @contextmanager
        def forward(_batch: Batch) -> Iterator[None]:
            with ExitStack() as stack:
                for norm in norms:
                    stack.enter_context(in_autocast_dtype(norm, is_on))
                yield

        return Seams(modules=forward)


def _is_torchs(module: nn.Module) -> bool:
    """Not a subclass that computes something else, such as the norm over the channels of images in torchvision and timm."""
    return any(isinstance(module, norm) and type(module).forward is norm.forward for norm in NORMS)
