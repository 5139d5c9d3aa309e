"""Embedding norm: a layer norm right behind the token embeddings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor, nn

from snugfit.core.technique import Card, Context, Family, Kind, Seams, Stage, Technique
from snugfit.errors import SettingError


def token_embeddings(model: nn.Module, name: str | None = None) -> nn.Embedding | None:
    """The embedding of that name, that of a model of transformers, or the one with the most entries.

    >>> model = nn.ModuleDict({"places": nn.Embedding(16, 4), "tokens": nn.Embedding(100, 4)})
    >>> token_embeddings(model)
    Embedding(100, 4)
    """
    if name is not None:
        found = dict(model.named_modules()).get(name)
    elif hasattr(model, "get_input_embeddings"):
        found = model.get_input_embeddings()  # type: ignore[operator]
    else:
        tables = [module for module in model.modules() if isinstance(module, nn.Embedding)]
        found = max(tables, key=lambda table: table.num_embeddings, default=None)
    return found if isinstance(found, nn.Embedding) else None


@dataclass(frozen=True)
class EmbeddingNorm(Technique):
    """Normalise token embeddings by a layer norm with learned scale and bias, before anything is added to them."""

    embeddings: str | None = None

    card: ClassVar[Card] = Card(
        name="embedding_norm",
        summary="Puts a layer norm behind the token embeddings, which keeps the gradients of early layers small.",
        family=Family.LEARNING,
        source="Dettmers et al. 2021, arXiv:2110.02861; Le Scao et al. 2022 (BLOOM), arXiv:2211.05100",
        seams=(),
        stages=(Stage.EXTEND,),
        kind=Kind.TOKENS,
        cost="one layer norm, and two vectors of the model's width",
        use_when="large language models from scratch, in fp16 above all; it may cost a little quality",
    )

    def prepare(self, model: nn.Module) -> nn.Module:
        table = token_embeddings(model, self.embeddings)
        if table is None:
            named = (
                f"'{self.embeddings}' is no nn.Embedding"
                if self.embeddings
                else "the model has no nn.Embedding"
            )
            raise SettingError(f"embedding_norm.embeddings: {named}. Give the name of the token embeddings.")
        table.norm = nn.LayerNorm(table.embedding_dim, dtype=table.weight.dtype, device=table.weight.device)
        table.register_forward_hook(_normalise)
        return model

    def seams(self, context: Context) -> Seams:
        return Seams()


def _normalise(table: nn.Module, inputs: Any, outputs: Tensor) -> Tensor:
    normed: Tensor = table.norm(outputs)  # type: ignore[operator]
    return normed
