"""The output head in fp32 under autocast."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from snugfit.core.batch import Batch
from snugfit.core.technique import Card, Context, Family, Seams, Stage, Technique
from snugfit.core.tree import map_tree
from snugfit.errors import SettingError
from snugfit.kit.language_models.lm_head import output_head
from snugfit.kit.patched_forward import replaced_forward
from snugfit.kit.precision.autocast import expected_autocast

NARROW = (torch.float16, torch.bfloat16)


@contextmanager
def in_float32(module: nn.Module, look: Callable[[str], object] = lambda _: None) -> Iterator[None]:
    """Temporarily let `module` compute in float32 at least, autocast or not.

    Args:
        look: is told the kind of device before each forward of the module.
    Raises:
        SettingError: its weights are in 16 bit themselves.

    >>> head = nn.Linear(4, 2)
    >>> with torch.autocast("cpu", dtype=torch.bfloat16), in_float32(head):
    ...     head(torch.zeros(1, 4, dtype=torch.bfloat16)).dtype
    torch.float32
    """
    _refuse_narrow_weights(module)
    forward = module.forward

    def widened(tensor: Tensor) -> Tensor:
        return tensor.float() if tensor.dtype in NARROW else tensor

    def forward_in_float32(*args: Any, **kwargs: Any) -> Any:
        device = next(module.parameters()).device.type
        look(device)
        with torch.autocast(device, enabled=False):
            return forward(*map_tree(widened, args), **map_tree(widened, kwargs))

    with replaced_forward(module, forward_in_float32):
        yield


@dataclass(frozen=True)
class FP32Logits(Technique):
    """Compute the output head in fp32 where autocast computes the rest in 16 bit; without autocast all is fp32 anyway."""

    head: str | None = None

    card: ClassVar[Card] = Card(
        name="fp32_logits",
        summary="Computes the output head in fp32 under autocast, so that the logits are not rounded to 16 bit.",
        family=Family.NUMERICS,
        source="Wortsman et al. 2023, arXiv:2309.14322; Chen et al. 2025 (MiniMax-M1), arXiv:2506.13585",
        seams=("modules",),
        stages=(Stage.COMPUTE,),
        cost="the head's product in fp32, and its logits at twice the size",
        use_when="bf16, with large vocabularies or losses that depend on small differences of logits",
    )

    def seams(self, context: Context) -> Seams:
        head = output_head(context.model, self.head, "fp32_logits.head")
        _refuse_narrow_weights(head)
        narrow = any(parameter.dtype in NARROW for parameter in context.model.parameters())
        look = torch.is_autocast_enabled if narrow else expected_autocast(self.card.name)

        @contextmanager
        def forward(_batch: Batch) -> Iterator[None]:
            with in_float32(head, look):
                yield

        return Seams(modules=forward)


def _refuse_narrow_weights(head: nn.Module) -> None:
    narrow = next((parameter.dtype for parameter in head.parameters() if parameter.dtype in NARROW), None)
    if narrow is not None:
        raise SettingError(
            "fp32_logits",
            f"the weights of the head are {narrow}, and a product in float32 needs them in float32",
            "Load the model in float32 and compute in 16 bit by plan.numerics: bf16, or remove fp32_logits.",
        )
