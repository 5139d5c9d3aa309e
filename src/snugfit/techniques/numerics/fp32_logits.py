"""The output head in fp32 under autocast."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from snugfit.core.batch import Batch
from snugfit.core.forwards import replaced_forward
from snugfit.core.technique import Card, Context, Family, Seams, Technique
from snugfit.core.tree import map_tree
from snugfit.errors import SettingError


@contextmanager
def in_float32(module: nn.Module) -> Iterator[None]:
    """Within, `module` computes in float32 at least, autocast or not.

    >>> head = nn.Linear(4, 2)
    >>> with torch.autocast("cpu", dtype=torch.bfloat16), in_float32(head):
    ...     head(torch.zeros(1, 4, dtype=torch.bfloat16)).dtype
    torch.float32
    """
    forward = module.forward

    def widened(tensor: Tensor) -> Tensor:
        return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor

    def forward_in_float32(*args: Any, **kwargs: Any) -> Any:
        device = next(module.parameters()).device.type
        with torch.autocast(device, enabled=False):
            return forward(*map_tree(widened, args), **map_tree(widened, kwargs))

    with replaced_forward(module, forward_in_float32):
        yield


def output_head(model: nn.Module, name: str | None = None) -> nn.Module | None:
    """The module that makes the logits: of that name, the output embeddings of a language model, or the last linear layer."""
    if name is not None:
        return dict(model.named_modules()).get(name)
    embeddings: nn.Module | None = getattr(model, "get_output_embeddings", lambda: None)()
    if embeddings is not None:
        return embeddings
    return next((m for m in reversed(list(model.modules())) if isinstance(m, nn.Linear)), None)


@dataclass(frozen=True)
class FP32Logits(Technique):
    """Compute the output head in fp32 where autocast computes the rest in 16 bit; without autocast all is fp32 anyway."""

    head: str | None = None

    card: ClassVar[Card] = Card(
        name="fp32_logits",
        summary="Computes the output head in fp32 under autocast, so that the logits are not rounded to 16 bit.",
        family=Family.NUMERICS,
        source="Wortsman et al. 2023, arXiv:2309.14322; Chen et al. 2025 (MiniMax-M1), arXiv:2506.13585",
        seams=("forward",),
        cost="the head's product in fp32, and its logits at twice the size",
        use_when="bf16, with large vocabularies or losses that depend on small differences of logits",
    )

    def seams(self, context: Context) -> Seams:
        head = output_head(context.model, self.head)
        if head is None:
            named = f"no module is named {self.head!r}" if self.head else "the model has no linear layer"
            raise SettingError(
                f"fp32_logits.head: {named}. Give the name of the module that makes the logits."
            )

        @contextmanager
        def forward(batch: Batch) -> Iterator[None]:
            with in_float32(head):
                yield

        return Seams(forward=forward)
