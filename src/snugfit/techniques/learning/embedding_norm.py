"""Embedding norm: a layer norm right behind the token embeddings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor, nn

from snugfit.core.technique import Card, Context, Family, Kind, Seams, Stage, Technique
from snugfit.errors import SettingError
from snugfit.kit.module_patterns import find_module


def token_embeddings(model: nn.Module, name: str | None = None) -> nn.Embedding | None:
    """Return the embedding of that name (or end of one), that of a model of transformers, or the one with the most entries.

    Raises:
        SettingError: no embedding has that name, or several.

    >>> model = nn.ModuleDict({"places": nn.Embedding(16, 4), "tokens": nn.Embedding(100, 4)})
    >>> token_embeddings(model)
    Embedding(100, 4)
    """
    embedding: nn.Module | None
    if name is not None:
        embedding = find_module(model, name, "embedding_norm.embeddings", nn.Embedding)
    elif hasattr(model, "get_input_embeddings"):
        embedding = model.get_input_embeddings()  # type: ignore[operator]
    else:
        tables = [module for module in model.modules() if isinstance(module, nn.Embedding)]
        embedding = max(tables, key=lambda table: table.num_embeddings, default=None)
    return embedding if isinstance(embedding, nn.Embedding) else None


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
        conflicts=dict.fromkeys(
            ("lora", "ia3"),
            "the norm would not train with the adapters, and one beside the embeddings could not be merged. Remove one.",
        ),
        kind=Kind.TOKENS,
        cost="one layer norm, and two vectors of the model's width",
        use_when="large language models from scratch, in fp16 above all; it may cost a little quality",
    )

    def prepare(self, model: nn.Module) -> nn.Module:
        table = token_embeddings(model, self.embeddings)
        if table is None:
            raise SettingError(
                "embedding_norm.embeddings",
                "the model has no nn.Embedding that it gives for its tokens",
                "Give its name.",
            )
        table.norm = nn.LayerNorm(table.embedding_dim, dtype=table.weight.dtype, device=table.weight.device)
        table.register_forward_hook(_normalise)
        return model

    def seams(self, context: Context) -> Seams:
        return Seams()


def _normalise(table: nn.Module, _inputs: Any, outputs: Tensor) -> Tensor:
    normed: Tensor = table.norm(outputs)  # type: ignore[operator]
    return normed
