"""Mixup of hidden states: what cannot be mixed as it is, such as text, is mixed inside the model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from snugfit.core.batch import Batch, labels_of
from snugfit.core.layers import base_of, last_linear
from snugfit.core.loss_terms import LossTerms
from snugfit.core.technique import BatchLoss, Card, Context, Family, Moment, Seams, Stage, Technique
from snugfit.errors import SettingError
from snugfit.kit.mixing import (
    PAIR,
    between_labels,
    mix,
    partners,
    share_of,
    shares_of,
    with_entry,
    with_shares,
)
from snugfit.kit.module_patterns import find_module

EMBEDDINGS = "embeddings"
_MASK = "attention_mask"


@contextmanager
def mixed_at(
    module: nn.Module, share: Tensor, look: Callable[[Tensor], None] = lambda _: None
) -> Iterator[None]:
    """Temporarily mix between neighbouring rows what `module` gets (or what it returns, if it is an embedding).

    Args:
        module: its first floating input, shape (rows, ...), is mixed; an embedding has none, so its output is.
        share: each row's part of itself, shape (rows,), the same for both rows of a pair.
        look: sees each tensor before it is mixed, and may refuse it.
    Raises:
        SettingError: the module gets nothing that can be mixed, or not one entry a row.

    >>> head, hidden = nn.Identity(), torch.tensor([[0.0], [8.0]])
    >>> with mixed_at(head, torch.tensor([0.75, 0.75])):
    ...     print(head(hidden))
    tensor([[2.],
            [6.]])
    >>> torch.equal(head(hidden), hidden)
    True
    """

    def mixed(hidden: Tensor) -> Tensor:
        if hidden.ndim == 0 or hidden.shape[0] != share.shape[0]:
            raise SettingError(
                "hidden_mixup.at",
                f"{type(module).__name__} has a tensor of shape {tuple(hidden.shape)} for {share.shape[0]} rows",
                "Name a module that gets one entry a row.",
            )
        look(hidden)
        return mix(hidden, share)

    def before(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        for place, value in enumerate(args):
            if _can_mix(value):
                return (*args[:place], mixed(value), *args[place + 1 :]), kwargs
        for name, value in kwargs.items():
            if _can_mix(value):
                return args, {**kwargs, name: mixed(value)}
        raise SettingError(
            "hidden_mixup.at",
            f"{type(module).__name__} gets no floating tensor",
            "Name a module behind the embeddings.",
        )

    if _embeds(module):
        hook = module.register_forward_hook(lambda _module, _args, output: mixed(output))
    else:
        hook = module.register_forward_pre_hook(before, with_kwargs=True)
    try:
        yield
    finally:
        hook.remove()


@dataclass(frozen=True)
class HiddenMixup(Technique):
    """Mix the hidden states of two neighbours at one place of the model, and share the loss between their labels."""

    alpha: float = 0.2
    at: str | None = None

    card: ClassVar[Card] = Card(
        name="hidden_mixup",
        summary="Mixes two examples inside the model, so that text can be mixed too; the loss is shared.",
        aliases=("manifold mixup",),
        family=Family.LEARNING,
        source="Sun et al. 2020, arXiv:2010.02394; embeddings: Guo et al. 2019, arXiv:1905.08941",
        seams=("batch", "loss", "modules"),
        together=PAIR,
        stages=(Stage.MIX, Stage.SHARE, Stage.COMPUTE),
        conflicts={
            "hard_examples": "rows are chosen one by one, and a mixed row needs its partner beside it. Remove one.",
        },
        cost="one mixture of hidden states; the loss twice; micro-batches of at least two rows",
        use_when="fine-tuning on little text; the head first, the embeddings if that is not enough",
    )

    def __post_init__(self) -> None:
        self.require_positive("alpha")

    @classmethod
    def example(cls) -> Self:
        return cls(alpha=1.0)

    def seams(self, context: Context) -> Seams:
        module = self._module(context.model)
        called = False

        def batch(window: Batch, moment: Moment) -> Batch:
            nonlocal called
            called = False
            share = shares_of(window, self.alpha, moment)
            mixed = replace(with_shares(window, share), group=PAIR)
            return _united(mixed) if _embeds(module) else mixed

        def forward(batch: Batch) -> AbstractContextManager[None]:
            share = share_of(batch)

            def look(hidden: Tensor) -> None:
                nonlocal called
                called = True
                if self.at is None:
                    _check_fits_labels(hidden, batch)

            return nullcontext() if share is None else mixed_at(module, share, look)

        def loss(next: BatchLoss) -> BatchLoss:
            between = between_labels(next)

            def shared(outputs: Any, batch: Batch) -> LossTerms:
                if share_of(batch) is not None and not called:
                    raise SettingError(
                        "hidden_mixup.at",
                        f"the model did not call '{self.at or 'its last linear layer'}', so nothing was mixed",
                        "Name a module that every forward goes through.",
                    )
                return between(outputs, batch)

            return shared

        return Seams(batch=batch, modules=forward, loss=loss)

    def _module(self, model: nn.Module) -> nn.Module:
        if self.at is None:
            return _last_linear(model)
        if self.at == EMBEDDINGS:
            ask: Any = getattr(model, "get_input_embeddings", lambda: None)
            embeddings: nn.Module | None = ask()
            if embeddings is None or not _embeds(embeddings):
                raise SettingError(
                    "hidden_mixup.at",
                    f"{type(model).__name__} does not say which are its embeddings (get_input_embeddings)",
                    "Give the name of its nn.Embedding.",
                )
            return embeddings
        return find_module(model, self.at, "hidden_mixup.at")


def _last_linear(model: nn.Module) -> nn.Module:
    layer = last_linear(model)
    if layer is None:
        raise SettingError(
            "hidden_mixup.at", "the model has no linear layer", "Name the module whose input is to be mixed."
        )
    return layer


def _check_fits_labels(hidden: Tensor, batch: Batch) -> None:
    """Refuse a head that scores tokens, of which the model then takes one: it would mix one text's last token with any of another."""
    labels = labels_of(batch.data)
    if labels.shape[: hidden.ndim - 1] != hidden.shape[:-1]:
        raise SettingError(
            "hidden_mixup.at",
            f"the last linear layer gets {tuple(hidden.shape)}, and the labels are {tuple(labels.shape)}: what it "
            "scores is not what is labelled",
            f"Use at: {EMBEDDINGS}, or name the module whose input is to be mixed.",
        )


def _united(batch: Batch) -> Batch:
    """Return both rows of a pair see the tokens of both: the longer one's are part of the mixture."""
    mask = batch.data.get(_MASK) if isinstance(batch.data, Mapping) else None
    if mask is None:
        return batch
    data = with_entry(batch.data, _MASK, torch.maximum(mask, partners(mask)))
    lengths = batch.lengths
    if lengths is not None:
        pairs = [max(lengths[start : start + PAIR]) for start in range(0, len(lengths), PAIR)]
        lengths = tuple(pairs[row // PAIR] for row in range(len(lengths)))
    return replace(batch, data=data, lengths=lengths)


def _embeds(module: nn.Module) -> bool:
    """Return whether it is an embedding, if need be inside of an adapter."""
    return isinstance(base_of(module), nn.Embedding)


def _can_mix(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()
