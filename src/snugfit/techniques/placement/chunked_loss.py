"""The loss on some of the tokens at a time, so that the logits of all of them never stand in memory."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from snugfit.core.batch import Batch, labels_of, split
from snugfit.core.head import LogitsInUse, output_head, postponed, postponed_in, with_logits
from snugfit.core.losses import LossTerms, labels_ahead
from snugfit.core.mixing import cut_labels
from snugfit.core.random import preserved_randomness, random_state, set_random_state
from snugfit.core.technique import BatchLoss, Card, Context, Family, Kind, Seams, Stage, Technique
from snugfit.core.tree import map_tree
from snugfit.errors import DataError, SettingError, SnugfitWarning


class Chunk(NamedTuple):
    """Places `start` to `stop` of neighbouring rows; the loss also sees those before `end`, whose values are dropped."""

    rows: range
    start: int
    stop: int
    end: int

    def of(self, tensor: Tensor) -> Tensor:
        """Its part of a tensor of shape (rows, tokens, ...): a view."""
        return tensor[self.rows.start : self.rows.stop, self.start : self.stop]

    def seen(self, tensor: Tensor) -> Tensor:
        """What the loss sees of it."""
        return tensor[self.rows.start : self.rows.stop, self.start : self.end]

    def kept(self, tensor: Tensor) -> Tensor:
        """Of a tensor shaped like what it sees, what is not dropped."""
        return tensor[:, : self.stop - self.start]

    def cut(self, batch: Batch) -> Batch:
        """What the loss sees of a batch: its rows, and their columns of all that is shaped like the labels."""
        part = replace(batch, padded=0).select(self.rows)  # nothing is trimmed: columns stay where they are
        like = labels_of(part.data).shape[:2]
        columns = slice(self.start, self.end)

        def columns_of(tensor: Tensor) -> Tensor:
            return tensor[:, columns] if tensor.shape[:2] == like else tensor

        return cut_labels(replace(part, data=map_tree(columns_of, part.data)), columns)


def chunks_of(rows: int, tokens: int, size: int, ahead: int = 0) -> list[Chunk]:
    """Chunks of at most `size` tokens, whole rows where they fit; each sees `ahead` more where the row goes on.

    >>> [tuple(chunk) for chunk in chunks_of(rows=2, tokens=5, size=3, ahead=1)][:2]
    [(range(0, 1), 0, 3, 4), (range(0, 1), 3, 5, 5)]
    >>> len(chunks_of(rows=9, tokens=5, size=15))
    3
    """
    return [
        Chunk(chosen, places.start, places.stop, min(places.stop + ahead, tokens))
        for chosen, places in itertools.product(split(rows, max(size // tokens, 1)), split(tokens, size))
    ]


def in_chunks(loss: BatchLoss, outputs: Any, batch: Batch, size: int, ahead: int = 0) -> LossTerms:
    """What `loss` gives for outputs whose logits are postponed: the same terms and gradients, in chunks of `size` tokens.

    Nothing of a chunk is kept for backward, which computes it again.

    Args:
        loss: one value for each place of the logits (rows, tokens, classes), which depends on the logits of that place, and
            on labels no further than `ahead` behind it.
    Raises:
        SettingError: the loss gives something else, or the head was called where gradients were not recorded.
        DataError: there is not one label for each token.
    """
    found = postponed_in(outputs)
    assert found is not None
    hidden, shape = found.hidden, tuple(labels_of(batch.data).shape)
    if shape[:2] != hidden.shape[:2]:
        raise DataError(
            f"loss: labels of shape {shape} do not fit logits of {hidden.shape[0]} rows and {hidden.shape[1]} tokens: there is "
            "one label for each token."
        )
    if torch.is_grad_enabled() and not found.tracked:
        raise SettingError(
            "chunked_loss: the head was called where gradients are not recorded, as reentrant checkpointing does it, so none would "
            "reach the layers before it. Use use_reentrant=False, or leave the head out of the checkpoint."
        )
    rows, tokens, _ = hidden.shape
    chunks = chunks_of(rows, tokens, size, ahead)
    if len(chunks) == 1:  # its logits may as well be kept
        return loss(with_logits(outputs, found.logits()), batch)

    def terms_of(logits: Tensor, chunk: Chunk) -> LossTerms:
        terms = loss(with_logits(outputs, logits), chunk.cut(batch))
        if terms.values.shape != logits.shape[:2]:
            raise SettingError(
                f"chunked_loss: the loss gives values of shape {tuple(terms.values.shape)} for {logits.shape[0]} rows of "
                f"{logits.shape[1]} tokens. It needs one for each token: remove chunked_loss, or return those."
            )
        return terms

    parameters = [each for each in found.module.parameters() if each.requires_grad]
    values, weights = _InChunks.apply(_Work(found.head, terms_of, chunks), hidden, *parameters)
    return LossTerms(values, weights)


@dataclass(frozen=True)
class _Work:
    """What is done with each chunk: the head makes logits of its part of the hidden states, `terms_of` the loss of them."""

    head: Callable[[Tensor], Tensor]
    terms_of: Callable[[Tensor, Chunk], LossTerms]
    chunks: list[Chunk]


class _InChunks(torch.autograd.Function):
    """Values and weights of all places; backward makes the logits again, chunk by chunk, under the autocast of forward."""

    @staticmethod
    def forward(ctx: Any, work: _Work, hidden: Tensor, *parameters: Tensor) -> tuple[Tensor, Tensor | None]:
        ctx.work, ctx.state = work, random_state(hidden.device)
        ctx.autocast = _autocast(hidden.device.type)
        ctx.save_for_backward(hidden)
        ctx.parameters = parameters  # not saved: what moves saved tensors elsewhere would give back others
        values, weights = torch.empty(0), None
        # with gradients, as autocast keeps its copy of a weight, and one without them would be of no use to others
        with torch.set_grad_enabled(any(ctx.needs_input_grad)):
            for place, chunk in enumerate(work.chunks):
                logits = work.head(chunk.seen(hidden))
                terms = work.terms_of(logits, chunk)
                if place == 0:
                    ctx.dtype = logits.dtype
                    values = terms.values.new_empty(hidden.shape[:2])
                    weights = None if terms.weights is None else terms.weights.new_empty(hidden.shape[:2])
                chunk.of(values).copy_(chunk.kept(terms.values.detach()))
                if weights is not None and terms.weights is not None:
                    chunk.of(weights).copy_(chunk.kept(terms.weights))
                del logits, terms  # or they would stand beside the next chunk's
        if weights is not None:
            ctx.mark_non_differentiable(weights)
        return values, weights

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_values: Tensor, _: Any) -> tuple[Tensor | None, ...]:
        (hidden,), parameters = ctx.saved_tensors, ctx.parameters
        work: _Work = ctx.work
        d_hidden = torch.empty_like(hidden) if ctx.needs_input_grad[1] else None
        # in float32 at least: as many additions as chunks
        sums = {
            each: torch.zeros_like(each, dtype=torch.promote_types(each.dtype, torch.float32))
            for each in parameters
        }
        linear = _linear_of(work.head)
        head = _AnyHead(work.head, sums) if linear is None else _LinearHead(linear, ctx.dtype, sums)
        with preserved_randomness(hidden.device), ctx.autocast():
            set_random_state(hidden.device, ctx.state)
            for chunk in work.chunks:
                part, logits = head.logits(chunk.seen(hidden).detach(), d_hidden is not None)
                d_logits = _by_logits(
                    work, logits.detach(), chunk, d_values, alone=chunk is not work.chunks[0]
                )
                del logits
                d_part = head.backward(part, d_logits)
                if d_hidden is not None:
                    assert d_part is not None
                    chunk.of(d_hidden).copy_(chunk.kept(d_part))
        return None, d_hidden, *(total.to(each.dtype) for each, total in sums.items())


def _by_logits(work: _Work, logits: Tensor, chunk: Chunk, d_values: Tensor, alone: bool) -> Tensor:
    """Gradient of the values of a chunk by its logits.

    Args:
        alone: it is known that values depend on nothing else that learns.
    """
    logits.requires_grad_()
    with torch.enable_grad():
        values = chunk.kept(work.terms_of(logits, chunk).values)
    if not alone:
        _require_alone(values, logits)
    return torch.autograd.grad(values, logits, chunk.of(d_values))[0]


def _require_alone(values: Tensor, logits: Tensor) -> None:
    """Raises:
    SettingError: the values depend on something beside the logits, whose gradient would be lost.
    """
    seen, left = set(), [values.grad_fn]
    while left:
        node: Any = left.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        reached = getattr(node, "variable", None)  # where a gradient ends
        if reached is not None and reached is not logits:
            raise SettingError(
                "chunked_loss: the loss depends on something that learns beside the logits, such as another output of the model or a "
                f"weight of shape {tuple(reached.shape)} of its own, whose gradient would be lost in chunks. Leave it out of the loss, or "
                "remove chunked_loss."
            )
        left.extend(next for next, _ in node.next_functions)


class _AnyHead:
    """Whatever makes logits, such as a layer with an adapter, through autograd."""

    def __init__(self, head: Callable[[Tensor], Tensor], sums: Mapping[Tensor, Tensor]) -> None:
        self._head, self._sums = head, sums
        self._logits: Tensor | None = None

    def logits(self, part: Tensor, tracked: bool) -> tuple[Tensor, Tensor]:
        """What the head was given, and what it made of it."""
        with torch.enable_grad():
            part.requires_grad_(tracked)
            self._logits = self._head(part)
        return part, self._logits

    def backward(self, part: Tensor, d_logits: Tensor) -> Tensor | None:
        """Adds to the gradients of the parameters, and returns that of `part`."""
        wanted = [*self._sums, part] if part.requires_grad else [*self._sums]
        assert self._logits is not None
        found = torch.autograd.grad(self._logits, wanted, d_logits, allow_unused=True)
        self._logits = None
        for total, gradient in zip(self._sums.values(), found, strict=False):
            if gradient is not None:
                total.add_(gradient)
        return found[-1] if part.requires_grad else None


class _LinearHead:
    """A plain linear layer that computes in `dtype`: products are added to the gradient of the weight where it stands."""

    def __init__(self, linear: nn.Linear, dtype: torch.dtype, sums: Mapping[Tensor, Tensor]) -> None:
        self._weight = linear.weight.detach().to(dtype)
        self._bias = None if linear.bias is None else linear.bias.detach().to(dtype)
        self._d_weight, self._d_bias = sums.get(linear.weight), sums.get(linear.bias)
        self._tracked = False

    def logits(self, part: Tensor, tracked: bool) -> tuple[Tensor, Tensor]:
        self._tracked = tracked
        part = part.to(self._weight.dtype)
        with torch.autocast(part.device.type, enabled=False):
            return part, F.linear(part, self._weight, self._bias)

    def backward(self, part: Tensor, d_logits: Tensor) -> Tensor | None:
        with torch.autocast(part.device.type, enabled=False):
            flat, hidden = d_logits.flatten(0, 1), part.flatten(0, 1)
            if self._d_weight is not None:
                if self._d_weight.dtype == flat.dtype:
                    self._d_weight.addmm_(flat.T, hidden)
                else:
                    self._d_weight.add_(flat.T @ hidden)
            if self._d_bias is not None:
                self._d_bias.add_(flat.sum(dim=0))
            return d_logits @ self._weight if self._tracked else None


def _linear_of(head: Callable[[Tensor], Tensor]) -> nn.Linear | None:
    """The linear layer whose own forward it is, as nothing has replaced it."""
    module = getattr(head, "__self__", None)
    plain = isinstance(module, nn.Linear) and getattr(head, "__func__", None) is nn.Linear.forward
    return module if plain else None


def _autocast(device: str) -> Callable[[], AbstractContextManager[Any]]:
    """The autocast of now, to be entered again."""
    enabled, dtype = torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)
    return lambda: torch.autocast(device, dtype=dtype, enabled=enabled)


@dataclass(frozen=True)
class ChunkedLoss(Technique):
    """Make the logits of `chunk` tokens at a time, over all rows of a micro-batch, in forward and again in backward."""

    chunk: int = 256
    head: str | None = None

    card: ClassVar[Card] = Card(
        name="chunked_loss",
        summary="Computes the loss on some tokens at a time: the logits of all of them are never in memory.",
        family=Family.PLACEMENT,
        source="Wijmans et al. 2024, arXiv:2411.09009; Hsu et al. 2024 (Liger), arXiv:2410.10989",
        seams=("loss", "forward"),
        stages=(Stage.CHUNK,),
        kind=Kind.TOKENS,
        refuses={
            Stage.COUPLING: "a loss that compares rows needs the outputs of all of them, and chunks see some tokens. Remove one.",
            Stage.TEACH: "a teacher reads whole rows, and its scores of all tokens would stand in memory. Remove one.",
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
        ahead = 0 if context.loss is None else labels_ahead(context.loss)
        if ahead is None:
            raise SettingError(
                "chunked_loss: the loss is not known to score each token by itself. Use cross_entropy or causal_lm; a loss of "
                "your own says it by an attribute: loss.labels_ahead = 0, or how many labels behind a token its value depends on."
            )
        flat = warned = False

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
                if flat:
                    return next(outputs, batch)
                if postponed_in(outputs) is None:
                    raise SettingError(
                        f"chunked_loss.head: the logits among the model's outputs do not come from {type(head).__name__}, which it "
                        "took for the head. Name the module that makes them."
                    )
                return in_chunks(next, outputs, batch, self.chunk, ahead)

            return chunked

        @contextmanager
        def forward(batch: Batch) -> Iterator[None]:
            try:
                with postponed(head, look):
                    yield
            except LogitsInUse as error:
                raise SettingError(
                    f"chunked_loss: {error} Remove chunked_loss, or name the head by chunked_loss.head."
                ) from error

        return Seams(loss=loss, forward=forward)
