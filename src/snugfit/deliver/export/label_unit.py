"""The unit of a number that a model predicts: its scale is folded into the head, or stands on the card."""

from __future__ import annotations

import copy
from dataclasses import replace

import torch
from torch import nn

from snugfit.deliver.export.comparison import EXACT
from snugfit.deliver.export.export_format import ExportOptions, Format
from snugfit.deliver.export.exported_model import ExportedModel
from snugfit.deliver.export.numbers import BF16
from snugfit.deliver.export.scored import ScoredRows, logits_for
from snugfit.kit.losses.rescaled import Rescaled

_IDENTITY = Rescaled(0.0, 1.0)


def in_label_unit(
    subject: ExportedModel, format: Format, choice: ExportOptions, scored: ScoredRows
) -> tuple[ExportedModel, ScoredRows]:
    """Return the model with its scale folded into its head, and what it has to give then; both as they are where a head cannot hold it.

    A head of fewer bits would round the mean of the labels, which may be many times their spread, so only one in float32 takes it.
    """
    scale = subject.scale
    whole = choice.numbers != BF16 and choice.quantize is None
    if scale is None or not format.label_unit or not whole or not scored.inputs:
        return subject, scored
    folded = _folded(scored.model, scale)
    if folded is None:
        return subject, scored
    logits = [each * scale.spread + scale.middle for each in scored.logits]
    given = logits_for(folded, scored.inputs)
    off = max(float((own - other).abs().max()) for own, other in zip(logits, given, strict=True))
    rounding = max(abs(scale.middle), scale.spread) * torch.finfo(torch.float32).eps
    if not off <= EXACT * scale.spread + rounding:  # the last linear layer was not the head
        return subject, scored
    assert subject.predictor.use is not None
    use = replace(subject.predictor.use, forward=_IDENTITY)
    predictor = replace(subject.predictor, model=folded, use=use)
    return replace(subject, predictor=predictor), replace(scored, model=folded, logits=logits)


def unit_in_words(subject: ExportedModel) -> list[str]:
    """Return what a number of the exported model means, for its card; nothing for a model of other predictions."""
    scale = subject.scale
    if scale is None:
        return []
    label = subject.meta.get("label_column")
    if scale == _IDENTITY:
        return [f"A logit is a number in the unit of the column '{label}'."]
    return [
        f"A logit is in units of the spread of the column '{label}' in training, from its mean: "
        f"`value = {scale.middle!r} + {scale.spread!r} * logit`."
    ]


def _folded(model: nn.Module, scale: Rescaled) -> nn.Module | None:
    """Return a copy whose last linear layer puts out numbers of a scale; None where it has not one output and a bias."""
    folded = copy.deepcopy(model)
    head = next((each for each in reversed(list(folded.modules())) if isinstance(each, nn.Linear)), None)
    if head is None or head.out_features != 1 or head.bias is None:
        return None
    with torch.no_grad():  # in float64, to round once
        head.weight.copy_(head.weight.double() * scale.spread)
        head.bias.copy_(head.bias.double() * scale.spread + scale.middle)
    config = getattr(folded, "config", None)
    if config is not None and hasattr(config, "problem_type"):
        # a pipeline of transformers makes a probability of a single logit otherwise
        config.problem_type = "regression"
    return folded
