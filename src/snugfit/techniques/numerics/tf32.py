"""tf32: products of float32 matrices on tensor cores, which read 10 bits of each fraction."""

from __future__ import annotations

import warnings
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import ClassVar, Self

from snugfit.core.batch import Batch
from snugfit.core.technique import Card, Context, Family, Fidelity, Seams, Stage, Technique
from snugfit.errors import SettingError, SnugfitWarning
from snugfit.kit.precision.product_rounding import lacks_capability, products_in

CAPABILITY = (8, 0)
"""Of the first GPUs with tf32: Ampere."""


def in_tf32() -> AbstractContextManager[None]:
    """Temporarily let CUDA multiply and convolve float32 in tf32; other devices compute as they do.

    >>> import torch
    >>> with in_tf32():
    ...     torch.backends.cuda.matmul.fp32_precision
    'tf32'
    """
    return products_in("tf32")


@dataclass(frozen=True)
class TF32(Technique):
    """Multiply float32 matrices in tf32 in forward and backward; everything stays float32 in memory."""

    required: bool = True

    card: ClassVar[Card] = Card(
        name="tf32",
        summary="Multiplies float32 matrices on tensor cores, with 10 bits of each fraction and the range of float32.",
        aliases=("TensorFloat-32", "allow_tf32", "set_float32_matmul_precision"),
        family=Family.NUMERICS,
        source="NVIDIA A100 white paper 2020; torch.backends.cuda.matmul.fp32_precision",
        seams=("modules",),
        stages=(Stage.COMPUTE,),
        fidelity=Fidelity.MIXED,
        needs="tf32",
        precision=True,
        cost="nothing; 10 bits of precision where float32 has 23",
        use_when="a GPU from Ampere on, where bf16 is too coarse",
    )

    @classmethod
    def example(cls) -> Self:
        return cls(required=False)

    @classmethod
    def rungs(cls) -> tuple[Self, ...]:
        return (cls(),)  # it saves time, not memory

    def seams(self, context: Context) -> Seams:
        reason = lacks_capability(context.device, CAPABILITY, "tf32")
        if self.required and reason is not None:
            raise SettingError(
                "plan.numerics",
                f"tf32 is not to be had, as {reason}",
                "Use plan.numerics: fp32, or where either will do: numerics: {tf32: {required: false}}.",
            )
        if reason is not None:
            warnings.warn(
                f"tf32: does nothing, as {reason}: the run computes in fp32.", SnugfitWarning, stacklevel=2
            )

        def modules(_batch: Batch) -> AbstractContextManager[None]:
            return in_tf32()

        return Seams(modules=modules)
