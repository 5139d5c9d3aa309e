"""The model as a graph has it: named inputs of any batch, and length where there is one, and logits; no cache."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from snugfit.core.losses import logits_of
from snugfit.deliver.export.exported_model import TOKEN_TYPES, ExportedModel
from snugfit.deliver.export.scored import ScoredRows
from snugfit.errors import ModelError
from snugfit.models.hub import first_line


class Texts(nn.Module):
    """Tokens to logits; `token_type_ids` where the model reads them."""

    inputs = ("input_ids", "attention_mask", TOKEN_TYPES)

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None
    ) -> Tensor:
        """Return the logits of tokens, of texts, or of pairs of texts."""
        more: dict[str, Any] = {}
        if hasattr(getattr(self.model, "config", None), "use_cache"):
            more["use_cache"] = False
        if token_type_ids is not None:
            more[TOKEN_TYPES] = token_type_ids
        return logits_of(self.model(input_ids=input_ids, attention_mask=attention_mask, **more))


class Pictures(nn.Module):
    """Pictures to logits."""

    inputs = ("pixel_values",)

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, pixel_values: Tensor) -> Tensor:
        """Return the logits of pictures."""
        return logits_of(self.model(pixel_values=pixel_values))


class Tables(nn.Module):
    """Rows of a table to logits."""

    inputs = ("numbers", "categories")

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, numbers: Tensor, categories: Tensor) -> Tensor:
        """Return the outputs of rows."""
        return logits_of(self.model(numbers=numbers, categories=categories))


_BY_KIND: Mapping[str, Any] = {"encoder": Texts, "decoder": Texts, "pictures": Pictures, "table": Tables}


def check_kind(subject: ExportedModel, format: str) -> None:
    """Refuse a model whose inputs have no known form.

    Raises:
        ModelError: it is such a one.
    """
    if subject.kind not in _BY_KIND:
        raise ModelError(
            "--to",
            f"{format} needs the form of a model's inputs, and that of the task '{subject.task}' is its own",
            "Take state-dict, or call torch.export in Python: snugfit.load(folder).model.",
        )


def with_graph_inputs(subject: ExportedModel, scored: ScoredRows) -> ScoredRows:
    """Return the same with the inputs that the graph has."""
    names = [
        name for name in _BY_KIND[subject.kind].inputs if name != TOKEN_TYPES or subject.reads_token_types
    ]
    inputs = [{name: each[name] for name in names if name in each} for each in scored.inputs]
    return replace(scored, inputs=inputs, answers=[], texts=[], conversations=[])


def graph_of(
    subject: ExportedModel, scored: ScoredRows
) -> tuple[nn.Module, dict[str, Tensor], dict[str, Any]]:
    """Return the model as a graph has it, an example of its inputs, and which of their dimensions are dynamic.

    Raises:
        ModelError: there is no row to trace it with.
    """
    if not scored.inputs:
        raise ModelError(
            "--rows", f"a graph is traced with a row, and there is none: {scored.drawn}", "Give --rows FILE."
        )
    kind = _BY_KIND[subject.kind]
    (first, *_) = with_graph_inputs(subject, scored).inputs
    inputs = {name: torch.cat([tensor, tensor]) for name, tensor in first.items()}
    batch = torch.export.Dim("batch")
    dynamic: dict[int, Any] = {0: batch}
    if subject.reads_tokens:
        positions = getattr(scored.model.config, "max_position_embeddings", None)
        dynamic[1] = torch.export.Dim("length", max=positions) if positions else torch.export.Dim("length")
    return kind(scored.model).eval(), inputs, dict.fromkeys(inputs, dynamic)


@contextmanager
def tracing(subject: ExportedModel, tool: str, remedy: str) -> Iterator[None]:
    """Silence what tracing logs and warns of inside the block, which names lines of other libraries, and put its errors in our words.

    Raises:
        ModelError: the model cannot be traced.
    """
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            yield
    except Exception as error:  # tracing runs the model's own code, which may fail in any way
        name = type(subject.model).__name__
        raise ModelError("--to", f"{tool} cannot trace the {name}: {first_line(error)}", remedy) from error
    finally:
        logging.disable(level)
