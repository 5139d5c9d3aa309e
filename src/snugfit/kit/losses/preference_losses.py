"""Losses of preferences: which of two answers is better, or whether an answer is a good one.

They are given the log-probabilities of whole answers, by the model and by the model as it was before the first update. The outputs
that they take are a mapping of tensors with one row for each example:

- `log_probabilities` (rows, answers): of each answer's tokens, summed; a pair has the chosen answer first;
- `tokens` (rows, answers): how many tokens were summed;
- `reference` (rows, answers): the same sums by the model as it was;
- `text_log_probability`, `text_tokens` (rows,): of prompt and chosen answer together;
- `divergence` (rows,): log-ratio of the model and the reference for the row's prompt with the answer to another one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from snugfit.core.loss_terms import Loss, LossTerms
from snugfit.core.losses import LOG_PROBABILITIES
from snugfit.errors import SettingError

BETTER, WORSE = 0, 1
"""Places of a pair's answers."""

DESIRABLE = "desirable"
"""The entry of a batch that says which of its single answers are good ones."""

REFERENCE = "reference"
"""The entry of a batch, and of outputs, with the log-probabilities of answers by the model before its first update."""

LENGTHS = "lengths"
"""The entry of a batch with the length of the longest of its better answers, and of its worse ones."""

WINDOW_SUMS = "window_sums"
"""The entry of a batch that holds the window's sums of what a loss asks for: the same numbers in each row."""

REWARDS = "rewards"
"""The entry of the outputs with the reward of each answer."""

Form = Literal["paper", "trl"]
"""A loss as its paper has it, or as TRL computes it where that is another one."""


@dataclass(frozen=True)
class PreferenceLoss:
    """The base of losses of preferences, and what their forward has to know of them.

    Args:
        beta: what log-ratios or log odds are multiplied by; positive.
    """

    beta: float = 0.1

    of_answers: ClassVar[bool] = True
    no_cross_entropy: ClassVar[tuple[str, str]] = ("of preferences", "reward_accuracy")
    """The loss takes log-probabilities of answers, which the forward has made of the logits."""
    pairs: ClassVar[bool] = True
    """A row has two answers to compare; otherwise one, with a label."""
    compares_start: ClassVar[bool] = True
    """The loss compares the model with itself before the first update."""

    def __post_init__(self) -> None:
        _require_positive(self, "beta")

    @property
    def scores_text(self) -> bool:
        """Return whether it asks for the log-probability of prompt and answer too."""
        return False

    @property
    def couples_rows(self) -> bool:
        """Return whether a row's loss depends on sums over the whole window."""
        return False

    def window_terms(self, outputs: Mapping[str, Tensor]) -> Tensor:
        """Return numbers of each row, shape (rows, n), whose sums over the window the loss needs."""
        raise NotImplementedError

    def rewards(self, outputs: Mapping[str, Tensor]) -> Tensor:
        """Return the reward of each answer, shape (rows, answers), that the loss implies."""
        return self.beta * log_ratios(outputs)

    def __call__(self, outputs: Any, data: Any) -> LossTerms:
        raise NotImplementedError


@dataclass(frozen=True)
class DPO(PreferenceLoss):
    """`-log sigmoid(beta * (r_chosen - r_rejected))` of the log-ratios `r` of the model and the reference.

    Source: Rafailov et al. 2023, arXiv:2305.18290, equation 7.
    """

    def __call__(self, outputs: Any, data: Any) -> LossTerms:  # noqa: ARG002  # pairs need no labels
        answers = answers_of(outputs)
        ratios = log_ratios(answers)
        values = -F.logsigmoid(self.beta * (ratios[:, BETTER] - ratios[:, WORSE]))
        return LossTerms(values, counted(answers))


@dataclass(frozen=True)
class IPO(PreferenceLoss):
    """`(r_chosen - r_rejected - 1 / (2 * beta))²`; `beta` is the paper's tau.

    Args:
        form: "trl" divides each log-ratio by the answer's number of tokens.
    Source: Azar et al. 2023, arXiv:2310.12036, equation 17.
    """

    form: Form = "paper"

    def __call__(self, outputs: Any, data: Any) -> LossTerms:  # noqa: ARG002
        answers = answers_of(outputs)
        ratios = log_ratios(answers)
        if self.form == "trl":
            ratios = ratios / answers["tokens"].clamp(min=1)
        values = (ratios[:, BETTER] - ratios[:, WORSE] - 1 / (2 * self.beta)) ** 2
        return LossTerms(values, counted(answers))


@dataclass(frozen=True)
class ORPO(PreferenceLoss):
    """The chosen answer's mean cross-entropy, and `-beta * log sigmoid(log odds ratio)`; `beta` is the paper's lambda.

    Odds are of an answer's mean probability a token. No reference is needed.

    Args:
        form: "trl" takes the cross-entropy of prompt and answer, and its mean over all tokens of the window.
    Source: Hong et al. 2024, arXiv:2403.07691, equations 3 to 7.
    """

    form: Form = "paper"

    compares_start: ClassVar[bool] = False

    @property
    def scores_text(self) -> bool:
        return self.form == "trl"

    @property
    def couples_rows(self) -> bool:
        return self.form == "trl"

    def window_terms(self, outputs: Mapping[str, Tensor]) -> Tensor:
        """Return the tokens of prompt and chosen answer, and 1 of each row that counts."""
        rows = counted(outputs)
        return torch.stack([outputs["text_tokens"] * rows, rows], dim=1)

    def rewards(self, outputs: Mapping[str, Tensor]) -> Tensor:
        return self.beta * mean_log_probabilities(outputs)

    def __call__(self, outputs: Any, data: Any) -> LossTerms:
        answers = answers_of(outputs)
        means = mean_log_probabilities(answers)
        log_odds = means - log_of_the_rest(means)
        ratio = F.logsigmoid(log_odds[:, BETTER] - log_odds[:, WORSE])
        if self.form == "paper":
            return LossTerms(-means[:, BETTER] - self.beta * ratio, counted(answers))
        sums = window_sums(self, answers, data).to(means.dtype)
        # the window's mean of these rows is the mean over all its tokens
        text = -answers["text_log_probability"] * (sums[:, 1] / sums[:, 0].clamp(min=1))
        return LossTerms(text - self.beta * ratio, counted(answers))


@dataclass(frozen=True)
class KTO(PreferenceLoss):
    """`d * (1 - sigmoid(beta * (r - z)))` of a good answer, `u * (1 - sigmoid(beta * (z - r)))` of a bad one.

    `r` is the log-ratio of the model and the reference, `z` the mean log-ratio of the window's mismatched pairs, at least 0, through
    which no gradient flows.

    Args:
        desirable, undesirable: the weights `d` and `u`, positive.
    Source: Ethayarajh et al. 2024, arXiv:2402.01306, equations 7 and 8. A prompt's mismatched answer is fixed by the data, so that
        its reference is known by row; the paper pairs the rows of a batch.
    """

    desirable: float = 1.0
    undesirable: float = 1.0

    pairs: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        _require_positive(self, "desirable")
        _require_positive(self, "undesirable")

    @property
    def couples_rows(self) -> bool:
        return True

    def window_terms(self, outputs: Mapping[str, Tensor]) -> Tensor:
        """Return the log-ratios of mismatched pairs, and 1 for each."""
        divergence = outputs["divergence"].detach()
        return torch.stack([divergence, torch.ones_like(divergence)], dim=1)

    def __call__(self, outputs: Any, data: Any) -> LossTerms:
        answers = answers_of(outputs)
        sums = window_sums(self, answers, data)
        divergence = (sums[:, 0] / sums[:, 1]).clamp(min=0)
        good = data[DESIRABLE]
        above = self.beta * (log_ratios(answers)[:, 0] - divergence)
        values = torch.where(
            good,
            self.desirable * (1 - torch.sigmoid(above)),
            self.undesirable * (1 - torch.sigmoid(-above)),
        )
        return LossTerms(values, counted(answers))


@dataclass(frozen=True)
class OwnLoss(PreferenceLoss):
    """A loss of the user's own over the same outputs, which compares pairs and the model with its start.

    Args:
        function: `(outputs, data) -> LossTerms`, or one value a row.
    """

    function: Loss | None = None

    def __call__(self, outputs: Any, data: Any) -> Any:
        assert self.function is not None
        return self.function(outputs, data)


def answers_of(outputs: Any) -> Mapping[str, Tensor]:
    """Return outputs that a loss of preferences takes.

    Raises:
        SettingError: they are others.
    """
    if isinstance(outputs, Mapping) and LOG_PROBABILITIES in outputs:
        return outputs
    raise SettingError(
        "loss",
        f"a loss of preferences needs the log-probabilities of answers, and found {type(outputs).__name__}",
        "Use it with task: preference.",
    )


def counted(outputs: Mapping[str, Tensor]) -> Tensor:
    """Return 1 for each row of whose answers tokens are scored, else 0: its weight."""
    return (outputs["tokens"] > 0).all(dim=1).to(outputs["tokens"].dtype)


def log_ratios(outputs: Mapping[str, Tensor]) -> Tensor:
    """Return the logarithm of each answer's probability over its probability by the reference.

    >>> log_ratios({"log_probabilities": torch.tensor([[-1.0]]), "reference": torch.tensor([[-3.0]])})
    tensor([[2.]])
    """
    own = outputs[LOG_PROBABILITIES]
    return own - outputs[REFERENCE].to(own.dtype)


def mean_log_probabilities(outputs: Mapping[str, Tensor]) -> Tensor:
    """Return each answer's mean log-probability a token."""
    return outputs[LOG_PROBABILITIES] / outputs["tokens"].clamp(min=1)


def log_of_the_rest(log_probability: Tensor) -> Tensor:
    """Return `log(1 - exp(x))` of negative numbers, without the cancellation of either formula.

    >>> log_of_the_rest(torch.tensor([-1e-6, -20.0]))
    tensor([-1.3816e+01, -2.0612e-09])
    """
    x = log_probability.clamp(
        max=-torch.finfo(log_probability.dtype).eps
    )  # a certain answer has infinite odds
    near = x > -0.6931471805599453  # of -log 2: which of the two keeps its digits
    return torch.where(
        near,
        torch.log(-torch.expm1(torch.where(near, x, -1.0))),
        torch.log1p(-torch.exp(torch.where(near, -1.0, x))),
    )


def window_sums(loss: PreferenceLoss, outputs: Mapping[str, Tensor], data: Any) -> Tensor:
    """Return the sums that a loss needs, in each row: those of the window, or of these rows where they are all of it."""
    if WINDOW_SUMS in data:
        sums: Tensor = data[WINDOW_SUMS]
        return sums
    terms = loss.window_terms(outputs)
    return terms.sum(dim=0).expand_as(terms)


def reward_sums(rewards: Tensor, desirable: Tensor | None) -> Tensor:
    """Return a sum and a count of the rewards of good answers, of those of bad ones, and of rows that are told apart.

    Pairs are where the chosen answer has the higher reward, single answers where the sign of their reward is that of their label.

    >>> reward_sums(torch.tensor([[2.0, 1.0], [0.0, 3.0]]), None).tolist()
    [2.0, 2.0, 4.0, 2.0, 1.0, 2.0]
    """
    if desirable is None:
        good = bad = torch.ones_like(rewards[:, 0], dtype=torch.bool)
        of_good, of_bad = rewards[:, BETTER], rewards[:, WORSE]
        right = of_good > of_bad
    else:
        good, bad = desirable, ~desirable
        of_good = of_bad = rewards[:, 0]
        right = (of_good > 0) == good
    parts = ((of_good, good), (of_bad, bad), (right.to(rewards.dtype), torch.ones_like(good)))
    sums = [(torch.where(rows, values, 0.0).sum(), rows.sum().to(rewards.dtype)) for values, rows in parts]
    return torch.stack([each for both in sums for each in both])


def reward_metrics(sums: Tensor) -> dict[str, Tensor]:
    """Return the metrics of what `reward_sums` gives, added up over rows; NaN where there is no answer of a kind."""
    good, bad, right = (sums[::2] / sums[1::2]).unbind()
    return {
        "reward_accuracy": right,
        "reward_margin": good - bad,
        "reward_chosen": good,
        "reward_rejected": bad,
    }


def _require_positive(loss: PreferenceLoss, setting: str) -> None:
    value = getattr(loss, setting)
    if not value > 0:
        raise SettingError(
            f"preference.{setting}", f"must be positive, found {value!r}", "Give a number above 0."
        )


PREFERENCE_LOSSES: Mapping[str, PreferenceLoss] = {
    "dpo": DPO(),
    "ipo": IPO(),
    "orpo": ORPO(),
    "kto": KTO(),
}
