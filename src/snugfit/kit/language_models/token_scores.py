"""Scores of a language model that are made some tokens at a time, so that the logits of all of them never stand in memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import torch
from torch import Tensor, nn

from snugfit.core.batch import Batch, labels_of
from snugfit.core.loss_terms import Loss, LossTerms
from snugfit.core.losses import causal_lm, cross_entropy, labels_ahead, of_answers, unwrapped
from snugfit.core.technique import BatchLoss
from snugfit.kit.language_models.chunked_loss_function import chunks_of, in_chunks
from snugfit.kit.language_models.lm_head import output_head, postponed, postponed_in, whole
from snugfit.system.memory import is_out_of_memory

_CHUNK = 256
"""Tokens whose logits are made at a time, where no technique says how many."""

Run = Callable[[Batch], Any]


class Seen(IntEnum):
    """The part of a model's outputs that a metric looks at; of several metrics the largest counts."""

    NOTHING = 0
    CLASSES = 1
    OUTPUTS = 2


@dataclass(frozen=True)
class Classes:
    """The likeliest class at each place, shape (rows, tokens), of so many."""

    likeliest: Tensor
    count: int


def visible_part(outputs: Any, seen: Seen) -> Any:
    """Return the part of the outputs that is looked at; logits that were postponed are made for it, for classes some tokens' at a time."""
    if seen is Seen.NOTHING:
        return None
    logits = postponed_in(outputs)
    if logits is None or seen is Seen.OUTPUTS:
        return whole(outputs)
    rows, tokens, _ = logits.hidden.shape
    likeliest, count = torch.empty(rows, tokens, dtype=torch.long, device=logits.hidden.device), 0
    for chunk in chunks_of(rows, tokens, logits.chunk or _CHUNK):
        made = logits.head(chunk.of(logits.hidden))
        chunk.of(likeliest).copy_(made.argmax(dim=-1))
        count = made.shape[-1]
        del made  # or they would stand beside the next chunk's
    return Classes(likeliest, count)


def in_token_chunks(model: nn.Module, loss: Loss, run: Run, batch_loss: BatchLoss) -> tuple[Run, BatchLoss]:
    """Return a forward and a loss that give the same scores, of logits of which some tokens' at a time are made.

    Others than language models keep theirs, and so does one that computes with its logits behind the head.

    Args:
        loss: by which the model is scored.
        batch_loss: the same, of batches.
    """
    embeddings = getattr(model, "get_output_embeddings", None)
    by_token = unwrapped(loss) in (causal_lm, cross_entropy) or of_answers(loss)
    if not by_token or embeddings is None or embeddings() is None:
        return run, batch_loss
    ahead = labels_ahead(loss) or 0
    return _Postponing(run, output_head(model, None, "model")), _in_chunks(batch_loss, ahead)


class _Postponing:
    """The forward of a model whose head postpones its logits, unless the model asks for them."""

    def __init__(self, run: Run, head: nn.Module) -> None:
        self._run, self._head, self._asks = run, head, False

    def __call__(self, batch: Batch) -> Any:
        if not self._asks:
            try:
                with postponed(self._head, chunk=_CHUNK):
                    return self._run(batch)
            except Exception as error:
                # one that looks whether they are a tensor, or compares them, fails in a way of its own; what has another
                # reason comes again below
                if is_out_of_memory(error):
                    raise
                self._asks = True
        return self._run(batch)


def _in_chunks(loss: BatchLoss, ahead: int) -> BatchLoss:
    def chunked(outputs: Any, batch: Batch) -> LossTerms:
        logits = postponed_in(outputs)
        if logits is None:
            return loss(outputs, batch)
        if labels_of(batch.data).shape[:2] != logits.hidden.shape[:2]:  # the loss says what is wrong
            return loss(whole(outputs), batch)
        return in_chunks(loss, outputs, batch, _CHUNK, ahead)

    return chunked
