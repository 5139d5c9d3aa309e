"""Gradient cache: the gradient of a loss over the whole window, computed micro-batch by micro-batch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from snugfit.core.batch import Batch
from snugfit.core.gradients import Gradients
from snugfit.core.loss_terms import LossTerms
from snugfit.core.technique import Card, Compute, Context, Family, GradientsOf, Seams, Stage, Technique
from snugfit.core.tree import leaves, map_tree
from snugfit.errors import PlanConflict
from snugfit.system.device_copies import scalar_like

_CACHED = "gradient_cache"


def cached_terms(outputs: Any, cached: list[Tensor], weight: Tensor) -> LossTerms:
    """Per-row terms whose weighted sum has the cached gradient with respect to `outputs`.

    Args:
        outputs: tensors of shape (rows, ...), of which the floating ones are cached, in order.
        cached: gradient of the whole window's weighted loss sum, for these rows.
        weight: the window's weight divided by its number of rows; the terms' weights are this.
    """
    floating = [tensor for tensor in leaves(outputs) if tensor.is_floating_point()]
    rows = floating[0].shape[0]
    # in float32 at least: the divisor passes through here on its way back to bf16 outputs
    pairs = [
        (out.to(torch.promote_types(out.dtype, weight.dtype)), _cut_like(c, out))
        for out, c in zip(floating, cached, strict=True)
    ]
    values = torch.stack([(out * c).reshape(rows, -1).sum(dim=1) for out, c in pairs]).sum(dim=0)
    weights = weight.to(values.dtype).expand_as(values)
    return LossTerms(values / torch.where(weights > 0, weights, 1.0), weights)


@dataclass(frozen=True)
class GradientCache(Technique):
    """Give losses that compare examples with each other the whole window, whatever the micro-batch.

    The outputs of all rows are computed without gradient, the loss and its gradient by the outputs once over all
    of them, and that gradient is then sent back through each micro-batch. The same randomness in both passes makes
    it exact.
    """

    card: ClassVar[Card] = Card(
        name="gradient_cache",
        summary="Contrastive losses see the whole window as negatives, however small the micro-batch.",
        aliases=("GradCache", "cached contrastive loss", "CachedMultipleNegativesRankingLoss"),
        family=Family.LEARNING,
        source="Gao et al. 2021, arXiv:2101.06983",
        seams=("gradients",),
        stages=(Stage.COUPLING,),
        cost="one more forward; the window's outputs and their gradient are held",
        use_when="the loss compares examples of the batch, and the batch does not fit",
    )

    def seams(self, context: Context) -> Seams:
        return Seams(gradients=lambda next: partial(_through_cache, next, context.model))


def _through_cache(next: GradientsOf, model: nn.Module, compute: Compute) -> Gradients:
    outputs = map_tree(_as_leaf, compute.outputs())
    terms = compute.loss_of(outputs)
    total = terms.weighted_sum()
    cached = _gradient_by(outputs, total, model)
    weight = scalar_like(terms.weight(), total)
    mean_weight = weight / compute.batch.total

    def surrogate(micro_outputs: Any, batch: Batch) -> LossTerms:
        return cached_terms(micro_outputs, batch.extras[_CACHED], mean_weight)

    gradients = next(compute.replace(surrogate, **{_CACHED: cached}))
    loss = total.detach() / torch.where(weight > 0, weight, 1.0)
    return replace(gradients, loss=loss, nonfinite=gradients.nonfinite + ~loss.isfinite())


def _gradient_by(outputs: Any, total: Tensor, model: nn.Module) -> list[Tensor]:
    """Return the gradient of `total` by the floating outputs; a weight that the loss itself uses would go without."""
    floating = [tensor for tensor in leaves(outputs) if tensor.is_floating_point()]
    named = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
    gradients = torch.autograd.grad(
        total, [*floating, *(parameter for _, parameter in named)], allow_unused=True
    )
    for (name, _), gradient in zip(named, gradients[len(floating) :], strict=True):
        if gradient is not None:
            raise PlanConflict(
                "gradient_cache",
                f"sends gradients through the model's outputs only, and the loss uses the weight '{name}' beside them",
                "Return it from the model with one entry a row (weight.expand(rows)), or remove 'gradient_cache'.",
            )
    return [
        torch.zeros_like(out) if gradient is None else gradient
        for out, gradient in zip(floating, gradients, strict=False)
    ]


def _cut_like(cached: Tensor, out: Tensor) -> Tensor:
    """Return the gradient of the tokens that a micro-batch has: what it has cut is padding."""
    return cached if cached.ndim < 3 or cached.shape == out.shape else cached[:, : out.shape[1]]


def _as_leaf(tensor: Tensor) -> Tensor:
    """Return a leaf in float32 at least: the cached gradient has no loss scale to keep it in the range of fp16."""
    if not tensor.is_floating_point():
        return tensor
    return tensor.detach().to(torch.promote_types(tensor.dtype, torch.float32)).requires_grad_()
