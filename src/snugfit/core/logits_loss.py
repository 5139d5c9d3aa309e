"""Cross-entropy of logits with labels that fit them; where logits are large, fewer tensors of their size stand in memory than with torch's own."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from snugfit.core.batch import IGNORE_INDEX
from snugfit.core.loss_terms import LossTerms, wide_dtype
from snugfit.errors import DataError, SettingError

LARGE = 1 << 16
"""Numbers of logits from which on this pays: a function of Python in the graph costs as much as some small kernels."""

IN_PLACE = {"cpu"}
"""Devices whose kernel is known to read a row before it writes to it, so that it may write where it reads. On CUDA nobody has seen it yet:
`benchmarks/gpu/run.sh correct` looks."""
_NO_REDUCTION = 0  # as torch numbers it


def soft_cross_entropy(logits: Tensor, labels: Tensor) -> LossTerms:
    """Return a value a row, or a token, of labels that are a probability for each class, of the shape of the logits (rows, ..., classes).

    Raises:
        DataError: the shapes differ.
        SettingError: there is a single class.
    """
    if labels.shape != logits.shape or labels.ndim < 2:
        raise DataError(
            "loss",
            f"floating labels of shape {tuple(labels.shape)} do not fit logits of shape {tuple(logits.shape)}: soft "
            "labels are one probability for each class",
            "Give integers for hard labels, or loss mse where labels are numbers.",
        )
    _check_classes(logits)
    wide = wide_dtype(logits.dtype)
    values = F.cross_entropy(logits.to(wide).flatten(0, -2), labels.to(wide).flatten(0, -2), reduction="none")
    return LossTerms(values.view(labels.shape[:-1]))


def masked_cross_entropy(logits: Tensor, labels: Tensor) -> LossTerms:
    """Return a value for each integer label (rows, ...) of logits (rows, ..., classes); label -100 has weight 0.

    Raises:
        DataError: labels are no integers, of another shape, or beyond the classes.
        SettingError: there is a single class.
    """
    if labels.is_floating_point():
        raise DataError(
            "loss", "causal_lm needs integer labels: the tokens", "Use cross_entropy for soft labels."
        )
    if labels.shape != logits.shape[:-1]:
        raise DataError(
            "loss",
            f"labels of shape {tuple(labels.shape)} do not fit logits of shape {tuple(logits.shape)}",
            _hint(logits, labels),
        )
    _check_classes(logits)
    counted = labels != IGNORE_INDEX
    try:
        values = _values_of_labels(logits, labels, counted)
    except IndexError as error:  # on a device it is an assertion of the kernel, which nobody can catch
        raise DataError(
            "loss",
            str(error),
            f"Give labels from 0 to {logits.shape[-1] - 1}, as the model gives {logits.shape[-1]} scores.",
        ) from error
    return LossTerms(values, counted.to(wide_dtype(values.dtype)))


def check_own_tokens(logits: Tensor, labels: Tensor) -> None:
    """Refuse scores of more tokens than there are labels: a model that puts tokens of its own before each text, as prompt tuning does."""
    more = logits.shape[1] - labels.shape[1] if labels.ndim == 2 and logits.ndim == 3 else 0
    if more <= 0 or labels.shape[0] != logits.shape[0]:
        return
    raise DataError(
        "loss",
        f"the model gives scores of {logits.shape[1]} tokens, and labels are of {labels.shape[1]}: it has {more} more of its own, as prompt tuning has "
        "virtual tokens before each text",
        f"Leave their scores out: forward=lambda model, batch: model(**batch).logits[:, {more}:]. Adapters such as LoRA, and prefix tuning, have none.",
    )


def _values_of_labels(logits: Tensor, labels: Tensor, counted: Tensor) -> Tensor:
    """Return cross-entropies of the shape of the labels; where they are not counted, 0 without a gradient, even of logits that are NaN."""
    wide = wide_dtype(logits.dtype)
    if logits.numel() >= LARGE:
        flat = (logits.flatten(0, -2).to(wide), labels.flatten(), ~counted.flatten())
        values: Tensor = LargeCrossEntropy.apply(*flat, IGNORE_INDEX)[0]  # type: ignore[no-untyped-call]
    else:
        # a NaN in an ignored position would come back through log_softmax's backward
        safe = logits.masked_fill(~counted.unsqueeze(-1), 0.0).flatten(0, -2).to(wide)
        values = F.cross_entropy(safe, labels.flatten(), ignore_index=IGNORE_INDEX, reduction="none")
    return values.view(labels.shape)


def _check_classes(logits: Tensor) -> None:
    """Refuse a single score, of which cross-entropy is 0 and learns nothing, whatever the label is."""
    if logits.shape[-1] == 1:
        raise SettingError(
            "loss",
            f"cross_entropy of logits of shape {tuple(logits.shape)}, which are of a single class, is always 0",
            "Give the model a score for each class, or take loss binary_cross_entropy for labels of 0 and 1, mse for numbers.",
        )


def _hint(logits: Tensor, labels: Tensor) -> str:
    if labels.shape == logits.shape:
        return "Where a row may have any number of labels of 0 and 1, take loss binary_cross_entropy."
    if labels.shape == (*logits.shape[:1], *logits.shape[2:]):
        return "Where the classes are in dimension 1, take loss torch.nn.CrossEntropyLoss(reduction='none')."
    if logits.ndim == 0:
        return (
            "A model that returns its own loss has one number of all rows, which no micro-batch can be weighted by: "
            "have it return logits, or give your own loss(outputs, data) with a value for each row."
        )
    if labels.ndim == 2 and logits.shape[:-1] == (len(labels), 1):
        return "A model that scores the last token alone unless it gets the labels takes forward=lambda model, batch: model(*batch)."
    return "Give one label for each row, or for each token."


class LargeCrossEntropy(torch.autograd.Function):
    """Values, shape (rows,), of logits (rows, classes) and integer labels (rows,); those at `ignored` rows are 0, and so are their gradients.

    Bit for bit those of `F.cross_entropy`, also where logits of ignored rows are NaN: what comes back of them is cleared behind the backward, in
    place, where clearing the logits before the forward takes a copy of them there, and another one of their gradient. Log-probabilities are
    returned too: by them gradients have gradients of their own, as a loss that is made of gradients needs them.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(
        logits: Tensor,
        labels: Tensor,
        ignored: Tensor,  # noqa: ARG004  # backward takes it
        ignore_index: int,
    ) -> tuple[Tensor, Tensor]:
        log_probabilities = torch.log_softmax(logits, -1)
        values = F.nll_loss(log_probabilities, labels, ignore_index=ignore_index, reduction="none")
        return values, log_probabilities

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        _, labels, ignored, ctx.ignore_index = inputs
        ctx.save_for_backward(output[1], labels, ignored)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(
        ctx: Any, d_values: Tensor | None, d_log_probabilities: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        log_probabilities, labels, ignored = ctx.saved_tensors
        if d_values is None or d_log_probabilities is not None or torch.is_grad_enabled():
            gradient = _differentiable(d_values, d_log_probabilities, log_probabilities, labels, ignored)
        else:
            gradient = _in_place(d_values, log_probabilities, labels, ctx.ignore_index)
            gradient.masked_fill_(ignored.unsqueeze(-1), 0.0)
        return gradient, None, None, None


def _in_place(d_values: Tensor, log_probabilities: Tensor, labels: Tensor, ignore_index: int) -> Tensor:
    nothing = d_values.new_zeros(())
    gradient: Tensor = torch.ops.aten.nll_loss_backward.default(
        d_values, log_probabilities, labels, None, _NO_REDUCTION, ignore_index, nothing
    )
    d_logits = gradient if gradient.device.type in IN_PLACE else torch.empty_like(gradient)
    torch.ops.aten._log_softmax_backward_data.out(
        gradient, log_probabilities, -1, gradient.dtype, out=d_logits
    )
    return d_logits


def _differentiable(
    d_values: Tensor | None,
    d_log_probabilities: Tensor | None,
    log_probabilities: Tensor,
    labels: Tensor,
    ignored: Tensor,
) -> Tensor:
    """Return the gradient of logits by operations that have gradients themselves."""
    rows = ignored.unsqueeze(-1)
    log_probabilities = log_probabilities.masked_fill(rows, 0.0)  # NaN would come back through these
    gradient = torch.zeros_like(log_probabilities)
    if d_values is not None:
        at = labels.masked_fill(ignored, 0).long().unsqueeze(-1)
        gradient = gradient.scatter(-1, at, -d_values.unsqueeze(-1))
    if d_log_probabilities is not None:
        gradient = gradient + d_log_probabilities
    gradient = gradient - log_probabilities.exp() * gradient.sum(dim=-1, keepdim=True)
    return gradient.masked_fill(rows, 0.0)
