"""The forward of losses of preferences: log-probabilities of answers, by the model and by the model as it was before its first update.

An example has one or two sequences, each a prompt with an answer: a pair's chosen and rejected one, or an answer and, for KTO, another
prompt's beside it. They lie in a batch as `input_ids`, `attention_mask` and `labels` of shape (rows, 2, tokens), with `lengths`, the
tokens of each row's longer sequence as numbers of the host, and `reference` where the scores of the first model are kept by row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from snugfit.core.batch import IGNORE_INDEX, LABELS, Batch
from snugfit.core.loss_terms import LossTerms
from snugfit.core.losses import LOG_PROBABILITIES, causal_lm
from snugfit.core.scalar_reads import is_fake
from snugfit.errors import SettingError
from snugfit.kit.adapters.adapters import adapted, adapters_off
from snugfit.kit.language_models.chunked_loss_function import in_chunks
from snugfit.kit.language_models.lm_head import postponed_in
from snugfit.kit.losses.preference_losses import (
    DESIRABLE,
    LENGTHS,
    REFERENCE,
    REWARDS,
    WINDOW_SUMS,
    PreferenceLoss,
    reward_metrics,
    reward_sums,
)
from snugfit.kit.precision.autocast import casting_anew
from snugfit.step.module_modes import eval_mode

_BOTH, _FIRST, _SECOND = slice(0, 2), slice(0, 1), slice(1, 2)


@dataclass(frozen=True)
class AnswerScores:
    """The outputs that a loss of preferences takes, of a causal language model and a batch.

    The reference is the model with its adapters off, unless the batch has its scores. It is computed without gradients and without dropout.
    """

    loss: PreferenceLoss

    def __call__(self, model: nn.Module, data: Mapping[str, Any]) -> dict[str, Tensor]:
        if self.loss.pairs:
            return self._with_rewards(self._scores(model, data, _BOTH))
        outputs = self._scores(model, data, _FIRST)
        if WINDOW_SUMS not in data:
            outputs["divergence"] = self._divergence(model, data)
        return self._with_rewards(outputs)

    def window_terms(self, model: nn.Module, data: Mapping[str, Any]) -> Tensor:
        """Return the numbers of each row whose sums over the window the loss needs, without gradients."""
        if self.loss.pairs:  # they are counts
            labels = _part(data, LABELS, _BOTH)
            mask = _part(data, "attention_mask", _BOTH)
            return self.loss.window_terms(_counts(labels, mask))
        return self.loss.window_terms({"divergence": self._divergence(model, data)})

    def measured(self, outputs: Mapping[str, Tensor], data: Mapping[str, Any]) -> Tensor:
        """Return sums over rows that `metrics` are made of."""
        return reward_sums(outputs[REWARDS], data.get(DESIRABLE))

    def metrics(self, sums: Tensor) -> dict[str, Tensor]:
        """Return the metrics of an update, of the sums over its window."""
        return reward_metrics(sums)

    def start_scores(self, model: nn.Module, data: Mapping[str, Any]) -> Tensor:
        """Return log-probabilities of both sequences by the model as it is now, shape (rows, 2)."""
        with torch.no_grad(), eval_mode(model), casting_anew():
            return self._answers(model, data, _BOTH)[LOG_PROBABILITIES]

    def _scores(self, model: nn.Module, data: Mapping[str, Any], part: slice) -> dict[str, Tensor]:
        before = {}
        if (
            self.loss.compares_start
        ):  # first, so that its activations are gone when those of the model are kept
            before = {REFERENCE: self._reference(model, data, part)}
        return {**self._answers(model, data, part), **before}

    def _divergence(self, model: nn.Module, data: Mapping[str, Any]) -> Tensor:
        """Return the log-ratios of mismatched pairs, without dropout."""
        reference = self._reference(model, data, _SECOND)
        with torch.no_grad(), eval_mode(model), casting_anew():
            own = self._answers(model, data, _SECOND)[LOG_PROBABILITIES]
        return (own - reference.to(own.dtype)).squeeze(1)

    def _reference(self, model: nn.Module, data: Mapping[str, Any], part: slice) -> Tensor:
        """Return log-probabilities by the model as it was before the first update."""
        if REFERENCE in data:
            scores: Tensor = data[REFERENCE][:, part]
            return scores
        off: AbstractContextManager[object] = nullcontext()
        if adapted(model):
            off = adapters_off(model)
        elif is_fake(data["input_ids"]):  # a plan's: runs have computed them before
            return torch.zeros_like(data["input_ids"][:, part, 0], dtype=torch.float32)
        else:
            raise SettingError(
                "loss",
                "compares the model with itself before the first update, and its scores of the rows are not there",
                "Call snugfit.step.start_scores.fill_start_scores before the first update.",
            )
        with torch.no_grad(), eval_mode(model), casting_anew(), off:
            return self._answers(model, data, part)[LOG_PROBABILITIES]

    def _answers(self, model: nn.Module, data: Mapping[str, Any], part: slice) -> dict[str, Tensor]:
        ids, mask, labels = (_part(data, name, part) for name in ("input_ids", "attention_mask", LABELS))
        outputs = model(input_ids=ids.flatten(0, 1), attention_mask=mask.flatten(0, 1))
        scored = labels
        if self.loss.scores_text:  # all tokens, of which those of the answers are taken apart below
            scored = ids.masked_fill(mask == 0, IGNORE_INDEX)
        terms = token_terms(outputs, scored.flatten(0, 1))
        values = -terms.values.view(ids.shape)
        answer = F.pad(labels[..., 1:] != IGNORE_INDEX, (0, 1))
        sums = {"log_probabilities": torch.where(answer, values, 0.0).sum(dim=-1)}
        if self.loss.scores_text:
            text = F.pad(scored[..., 1:] != IGNORE_INDEX, (0, 1))
            sums["text_log_probability"] = torch.where(text, values, 0.0).sum(dim=-1)[:, 0]
        return {**sums, **_counts(labels, mask, sums[LOG_PROBABILITIES].dtype)}

    def _with_rewards(self, outputs: dict[str, Tensor]) -> dict[str, Tensor]:
        return {**outputs, REWARDS: self.loss.rewards(outputs).detach()}


def token_terms(outputs: Any, labels: Tensor) -> LossTerms:
    """Return the cross-entropy of each next token; in chunks where the logits are to be made so."""
    postponed = postponed_in(outputs)
    if postponed is None:
        return causal_lm(outputs, {LABELS: labels})
    batch = Batch({LABELS: labels}, labels.shape[0])
    return in_chunks(lambda out, part: causal_lm(out, part.data), outputs, batch, postponed.chunk, 1)


def _counts(labels: Tensor, mask: Tensor, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    """Return how many tokens are predicted, of each answer and of the first sequence."""
    return {
        "tokens": (labels[..., 1:] != IGNORE_INDEX).sum(dim=-1).to(dtype),
        "text_tokens": mask[:, 0, 1:].sum(dim=-1).to(dtype),
    }


def _part(data: Mapping[str, Any], name: str, part: slice) -> Tensor:
    """Return some sequences of each row, without what is padding in all of them: to the right it changes nothing."""
    lengths: Sequence[int] | None = data.get(LENGTHS)
    tensor: Tensor = data[name][:, part]
    return tensor if lengths is None else tensor[..., : max(lengths)]
