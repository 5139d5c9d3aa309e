"""The loss on some of the tokens at a time, so that the logits of all of them never stand in memory."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from snugfit.core.batch import Batch
from snugfit.core.loss_terms import LossTerms
from snugfit.core.losses import labels_ahead, of_answers
from snugfit.core.technique import BatchLoss, Card, Context, Family, Kind, Seams, Stage, Technique
from snugfit.errors import SettingError, SnugfitWarning
from snugfit.kit.language_models.chunked_loss_function import in_chunks
from snugfit.kit.language_models.late_gradients import LateGradients
from snugfit.kit.language_models.lm_head import LogitsInUse, output_head, postponed, postponed_in


@dataclass(frozen=True)
class ChunkedLoss(Technique):
    """Make the logits of `chunk` tokens at a time, over all rows of a micro-batch, in forward and again in backward."""

    chunk: int = 256
    head: str | None = None

    card: ClassVar[Card] = Card(
        name="chunked_loss",
        summary="Computes the loss on some tokens at a time: the logits of all of them are never in memory.",
        aliases=("fused linear cross entropy", "cut cross-entropy", "chunked cross entropy", "Liger loss"),
        family=Family.PLACEMENT,
        source="Wijmans et al. 2024, arXiv:2411.09009; Hsu et al. 2024 (Liger), arXiv:2410.10989",
        seams=("loss", "forward"),
        stages=(Stage.CHUNK,),
        kind=Kind.TOKENS,
        refuses={
            Stage.COUPLING: "a loss that compares rows needs the outputs of all of them, and chunks see some tokens. Remove one.",
        },
        saves_memory=True,
        cost="the head is computed once more in backward: 1.2 times its time",
        use_when="language models: the logits, their softmax and their gradient are often the largest tensors",
    )

    def __post_init__(self) -> None:
        self.require("chunk", self.chunk >= 1, "at least 1")

    @classmethod
    def example(cls) -> Self:
        return cls(chunk=4)

    def seams(self, context: Context) -> Seams:
        head = output_head(context.model, self.head, "chunked_loss.head")
        scored_before = of_answers(context.loss)  # by the forward, which finds the logits postponed
        ahead = 0 if context.loss is None or scored_before else labels_ahead(context.loss)
        if ahead is None:
            raise SettingError(
                "chunked_loss",
                "the loss is not known to score each token by itself",
                "Use cross_entropy or causal_lm; a loss of your own says it by an attribute: loss.labels_ahead = 0, or "
                "how many labels behind a token its value depends on.",
            )
        flat = warned = False
        late: LateGradients | None = None

        def look(hidden: Tensor) -> None:
            nonlocal flat, warned
            flat = hidden.ndim != 3
            if flat and not warned:
                warned = True
                warnings.warn(
                    f"chunked_loss: does nothing, as the head gets {tuple(hidden.shape)}, without a dimension of tokens. Remove it.",
                    SnugfitWarning,
                    stacklevel=1,  # what calls it is torch, whose line would say nothing
                )

        def loss(next: BatchLoss) -> BatchLoss:
            def chunked(outputs: Any, batch: Batch) -> LossTerms:
                if flat or scored_before:
                    return next(outputs, batch)
                if postponed_in(outputs) is None:
                    raise SettingError(
                        "chunked_loss.head",
                        f"the logits among the model's outputs do not come from {type(head).__name__}, which it took for the "
                        "head",
                        "Name the module that makes them.",
                    )
                nonlocal late
                # once: those of a second loss of the same forward are made in its own backward
                own, late = late, None
                return in_chunks(next, outputs, batch, self.chunk, ahead, own)

            return chunked

        @contextmanager
        def forward(_batch: Batch) -> Iterator[None]:
            nonlocal late
            late = None if context.sharing else _late_gradients(head)
            try:
                with postponed(head, look, self.chunk):
                    yield
            except LogitsInUse as error:
                raise SettingError(
                    "chunked_loss",
                    f"the model {error.problem}",
                    "Remove chunked_loss, or name the head by chunked_loss.head.",
                ) from error
            finally:
                late = None

        return Seams(loss=loss, forward=forward)


def _late_gradients(head: nn.Module) -> LateGradients | None:
    """Return those of the head's parameters; None where there are none.

    Not for several devices. DDP sends its buckets in one order, with the head's first, so that none would be sent while backward goes on. FSDP
    adds the head's up behind its backward.
    """
    learned = [each for each in head.parameters() if each.requires_grad]
    return LateGradients.of(learned) if torch.is_grad_enabled() and learned else None
