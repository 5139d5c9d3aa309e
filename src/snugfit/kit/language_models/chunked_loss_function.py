"""A loss computed on some of the tokens at a time, with its gradients: the autograd function behind it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.autograd.graph import saved_tensors_hooks

from snugfit.core.batch import Batch, labels_of, split
from snugfit.core.loss_terms import LossTerms
from snugfit.core.random import preserved_randomness, random_state, set_random_state
from snugfit.core.technique import BatchLoss
from snugfit.core.tree import map_tree
from snugfit.errors import DataError, SettingError
from snugfit.kit.language_models.late_gradients import LateGradients
from snugfit.kit.language_models.lm_head import postponed_in, with_logits
from snugfit.kit.mixing import cut_labels
from snugfit.kit.phases import alike

Begin = Callable[[Batch], Any]


class Chunk(NamedTuple):
    """Places `start` to `stop` of neighbouring rows; the loss also sees those before `end`, whose values are dropped."""

    rows: range
    start: int
    stop: int
    end: int

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Return how many rows it has, how many of their tokens, and how many of these the loss sees."""
        return len(self.rows), self.stop - self.start, self.end - self.start

    def of(self, tensor: Tensor) -> Tensor:
        """Return its part of a tensor of shape (rows, tokens, ...): a view."""
        return tensor[self.rows.start : self.rows.stop, self.start : self.stop]

    def seen(self, tensor: Tensor) -> Tensor:
        """Return what the loss sees of it."""
        return tensor[self.rows.start : self.rows.stop, self.start : self.end]

    def own_tokens(self, tensor: Tensor) -> Tensor:
        """Return the places of a tensor shaped like what the loss sees whose values are not dropped."""
        return tensor[:, : self.stop - self.start]

    def cut(self, batch: Batch) -> Batch:
        """Return what the loss sees of a batch: its rows, and their columns of all that is shaped like the labels."""
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
        Chunk(row_range, places.start, places.stop, min(places.stop + ahead, tokens))
        for row_range, places in itertools.product(split(rows, max(size // tokens, 1)), split(tokens, size))
    ]


@dataclass(frozen=True)
class Work:
    """The work on each chunk: the head makes logits of its part of the hidden states, `terms_of` the loss of them.

    `learns` says whether a backward may follow, which autograd does not tell its functions.
    """

    head: Callable[[Tensor], Tensor]
    terms_of: Callable[[Tensor, Chunk], LossTerms]
    chunks: list[Chunk]
    learns: bool = True


class Part(NamedTuple):
    """The chunk whose loss is computed, the micro-batch that it is of, and what was begun for that, by who began it."""

    chunk: Chunk
    batch: Batch
    begun: dict[Begin, Any]

    def beginning(self, begin: Begin) -> Any:
        """Return what `begin` gave for the micro-batch; it is called where it has not been."""
        if begin not in self.begun:
            self.begun[begin] = begin(self.batch)
        return self.begun[begin]


_PART: ContextVar[Part | None] = ContextVar("the chunk whose loss is computed", default=None)
_BEGINNINGS: ContextVar[tuple[Begin, ...]] = ContextVar("what is called before the first chunk", default=())


def current_part() -> Part | None:
    """Return the chunk whose loss is computed now; None where it is that of a whole micro-batch."""
    return _PART.get()


@contextmanager
def before_chunks(begin: Begin) -> Iterator[None]:
    """Temporarily call `begin` with each micro-batch that is learned from in chunks, before the first; `Part.beginning` has what it gives.

    Once, as work of a whole micro-batch is not to be done for each chunk.
    """
    token = _BEGINNINGS.set((*_BEGINNINGS.get(), begin))
    try:
        yield
    finally:
        _BEGINNINGS.reset(token)


def in_chunks(
    loss: BatchLoss, outputs: Any, batch: Batch, size: int, ahead: int = 0, late: LateGradients | None = None
) -> LossTerms:
    """Return what `loss` gives for outputs whose logits are postponed: the same terms and gradients, in chunks of `size` tokens.

    Nothing of a chunk is kept for backward. The gradient by the hidden states is taken in forward, where the logits are there; that of
    the head's weights makes them once more, in backward.

    Args:
        loss: one value for each place of the logits (rows, tokens, classes), which depends on the logits of that place, and
            on labels no further than `ahead` behind it.
        late: of the head's parameters, to make their gradients when what is computed before the head has its own.
    Raises:
        SettingError: the loss gives something else or depends on what learns beside the logits, or the head was called where gradients were not recorded.
        DataError: there is not one label for each token.
    """
    postponed = postponed_in(outputs)
    assert postponed is not None
    hidden, shape = postponed.hidden, tuple(labels_of(batch.data).shape)
    if shape[:2] != hidden.shape[:2]:
        raise DataError(
            "loss",
            f"labels of shape {shape} do not fit logits of {hidden.shape[0]} rows and {hidden.shape[1]} tokens",
            "Give one label for each token.",
        )
    if torch.is_grad_enabled() and not postponed.tracked:
        raise SettingError(
            "chunked_loss",
            "the head was called where gradients are not recorded, as reentrant checkpointing does it, so none "
            "would reach the layers before it",
            "Use use_reentrant=False, or leave the head out of the checkpoint.",
        )
    rows, tokens, _ = hidden.shape
    chunks = chunks_of(rows, tokens, size, ahead)
    if len(chunks) == 1:  # its logits may as well be kept
        return loss(with_logits(outputs, postponed.logits()), batch)

    begun = {begin: begin(batch) for begin in _BEGINNINGS.get() if torch.is_grad_enabled()}

    def terms_of(logits: Tensor, chunk: Chunk) -> LossTerms:
        token = _PART.set(Part(chunk, batch, begun))  # here, as backward may be on a thread of its own
        try:
            terms = loss(with_logits(outputs, logits), chunk.cut(batch))
        finally:
            _PART.reset(token)
        if terms.values.shape != logits.shape[:2]:
            raise SettingError(
                "chunked_loss",
                f"the loss gives values of shape {tuple(terms.values.shape)} for {logits.shape[0]} rows of "
                f"{logits.shape[1]} tokens. It needs one for each token",
                "Remove chunked_loss, or return those.",
            )
        return terms

    parameters: list[Tensor] = [each for each in postponed.module.parameters() if each.requires_grad]
    late = None if _narrow(hidden) else late
    given = parameters if late is None else [late.mark]
    work = Work(postponed.head, terms_of, chunks, torch.is_grad_enabled())
    values, weights = InChunks.apply(work, parameters, late, hidden, *given)  # type: ignore[no-untyped-call]
    return LossTerms(values, weights)


class InChunks(torch.autograd.Function):
    """Values and weights of all places.

    A value depends on its own hidden state alone, so forward takes the gradient of each by that, and backward multiplies it. Gradients of
    `parameters`, which follow the hidden states as arguments, need logits of all chunks again, under the autocast of forward: they are
    made in backward, or by `late`, whose mark then stands in the place of the parameters. In float16 all is left to backward, where a
    scaled loss is known.
    """

    @staticmethod
    def forward(
        ctx: Any,
        work: Work,
        parameters: Sequence[Tensor],
        late: LateGradients | None,
        hidden: Tensor,
        *given: Tensor,
    ) -> tuple[Tensor, Tensor | None]:
        learns, tracked = (
            work.learns and each for each in (any(ctx.needs_input_grad), ctx.needs_input_grad[3])
        )
        values, weights, by_hidden = torch.empty(0), None, None
        again = _Again(work, parameters, _autocast(hidden.device.type), random_state(hidden.device))
        if tracked and not _narrow(hidden):
            by_hidden = torch.empty_like(hidden)
        # what a hook keeps as it is holds the node that saves it, if it is what that node gives: never freed where no gradient is taken
        keep = Tensor.detach if by_hidden is not None else _nothing
        # with gradients, as autocast keeps its copy of a weight, and one without them would be of no use to others; hooks around, such as
        # those that copy to the host, get nothing of what is used at once
        with torch.set_grad_enabled(learns), saved_tensors_hooks(keep, _as_is):
            for chunk in alike(work.chunks, lambda chunk: chunk.sizes):
                part = chunk.seen(hidden).detach().requires_grad_(by_hidden is not None)
                logits = work.head(
                    part.view_as(part)
                )  # of a leaf autocast would keep its copy, as of a weight
                terms = work.terms_of(logits, chunk)
                own = chunk.own_tokens(terms.values)
                if chunk is work.chunks[0]:
                    again.dtype = logits.dtype
                    values = terms.values.new_empty(hidden.shape[:2])
                    weights = None if terms.weights is None else terms.weights.new_empty(hidden.shape[:2])
                    if learns:
                        _require_alone(own, logits)
                chunk.of(values).copy_(own.detach())
                if weights is not None and terms.weights is not None:
                    chunk.of(weights).copy_(chunk.own_tokens(terms.weights))
                del logits, terms  # or they would stand beside their gradient, and the next chunk's
                if by_hidden is not None:
                    (d_part,) = torch.autograd.grad(own, part, torch.ones_like(own))
                    chunk.of(by_hidden).copy_(chunk.own_tokens(d_part))
                    del d_part
                del own
        ctx.again, ctx.late = again, late
        ctx.makes = tracked and by_hidden is None, late is None and bool(given)
        ctx.save_for_backward(hidden, by_hidden)
        if weights is not None:
            ctx.mark_non_differentiable(weights)
        return values, weights

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_values: Tensor, _: Any) -> tuple[Tensor | None, ...]:
        hidden, by_hidden = ctx.saved_tensors
        again: _Again = ctx.again
        late: LateGradients | None = ctx.late
        d_hidden, gradients = again.gradients(hidden, d_values, *ctx.makes)
        if by_hidden is not None:
            d_hidden = (by_hidden * d_values.unsqueeze(-1)).to(hidden.dtype)
        if late is not None:
            gradients = [late.follow(lambda: again.gradients(hidden, d_values, False, True)[1])]
        return None, None, None, d_hidden, *gradients


@dataclass
class _Again:
    """The work of a forward, to be done again from the same draws and in the same types for its gradients.

    Parameters are not saved by autograd: what moves saved tensors elsewhere would give back others.
    """

    work: Work
    parameters: Sequence[Tensor]
    autocast: Callable[[], AbstractContextManager[Any]]
    random_state: Any
    dtype: torch.dtype = torch.float32

    def gradients(
        self, hidden: Tensor, d_values: Tensor, by_hidden: bool, by_parameters: bool
    ) -> tuple[Tensor | None, list[Tensor]]:
        """Return the gradient by the hidden states and those by the parameters, as asked for."""
        work = self.work
        d_hidden = torch.empty_like(hidden) if by_hidden else None
        # in float32 at least: as many additions as chunks
        sums = {
            each: torch.zeros_like(each, dtype=torch.promote_types(each.dtype, torch.float32))
            for each in (self.parameters if by_parameters else ())
        }
        if not by_hidden and not sums:
            return None, []
        linear = _linear_of(work.head)
        head = _AnyHead(work.head, sums) if linear is None else _LinearHead(linear, self.dtype, sums)
        with preserved_randomness(hidden.device), self.autocast():
            set_random_state(hidden.device, self.random_state)
            for chunk in alike(work.chunks, lambda chunk: chunk.sizes):
                part, logits = head.logits(chunk.seen(hidden).detach(), by_hidden)
                d_logits = _by_logits(work, logits.detach(), chunk, d_values)
                del logits
                d_part = head.backward(part, d_logits)
                if d_hidden is not None:
                    assert d_part is not None
                    chunk.of(d_hidden).copy_(chunk.own_tokens(d_part))
        return d_hidden, [total.to(each.dtype) for each, total in sums.items()]


def _by_logits(work: Work, logits: Tensor, chunk: Chunk, d_values: Tensor) -> Tensor:
    """Return the gradient of the values of a chunk by its logits."""
    logits.requires_grad_()
    with torch.enable_grad(), saved_tensors_hooks(_as_is, _as_is):
        values = chunk.own_tokens(work.terms_of(logits, chunk).values)
    return torch.autograd.grad(values, logits, chunk.of(d_values))[0]


def _require_alone(values: Tensor, logits: Tensor) -> None:
    """Check that the values depend on the logits alone.

    Raises:
        SettingError: the values depend on something beside the logits, whose gradient would be lost.
    """
    seen, left = {logits.grad_fn}, [values.grad_fn]
    while left:
        node: Any = left.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        leaf = getattr(node, "variable", None)  # where a gradient ends
        if leaf is not None:
            raise SettingError(
                "chunked_loss",
                "the loss depends on something that learns beside the logits, such as another output of the model or a "
                f"weight of shape {tuple(leaf.shape)} of its own, whose gradient would be lost in chunks",
                "Leave it out of the loss, or remove chunked_loss.",
            )
        left.extend(next for next, _ in node.next_functions)


class _AnyHead:
    """Whatever makes logits, such as a layer with an adapter, through autograd."""

    def __init__(self, head: Callable[[Tensor], Tensor], sums: Mapping[Tensor, Tensor]) -> None:
        self._head, self._sums = head, sums
        self._logits: Tensor | None = None

    def logits(self, part: Tensor, tracked: bool) -> tuple[Tensor, Tensor]:
        """Return what the head was given, and what it made of it."""
        with torch.enable_grad():
            part.requires_grad_(tracked)
            self._logits = self._head(part)
        return part, self._logits

    def backward(self, part: Tensor, d_logits: Tensor) -> Tensor | None:
        """Add to the gradients of the parameters, and returns that of `part`."""
        inputs = [*self._sums, part] if part.requires_grad else [*self._sums]
        logits, self._logits = self._logits, None
        assert logits is not None
        if not logits.requires_grad:  # what learns of the head has no part in them
            return None
        gradients = torch.autograd.grad(logits, inputs, d_logits, allow_unused=True)
        for total, gradient in zip(self._sums.values(), gradients, strict=False):
            if gradient is not None:
                total.add_(gradient)
        return gradients[-1] if part.requires_grad else None


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
    """Return the linear layer whose own forward it is, as nothing has replaced it."""
    module = getattr(head, "__self__", None)
    plain = isinstance(module, nn.Linear) and getattr(head, "__func__", None) is nn.Linear.forward
    return module if plain else None


def _as_is(tensor: Tensor) -> Tensor:
    return tensor


def _nothing(_tensor: Tensor) -> None:
    return None


def _narrow(hidden: Tensor) -> bool:
    """Return whether the head computes in float16, whose gradients need the loss to be scaled."""
    kind = hidden.device.type
    computing = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else hidden.dtype
    return computing is torch.float16


def _autocast(device: str) -> Callable[[], AbstractContextManager[Any]]:
    """Return the autocast of now, to be entered again."""
    enabled, dtype = torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)
    return lambda: torch.autocast(device, dtype=dtype, enabled=enabled)
