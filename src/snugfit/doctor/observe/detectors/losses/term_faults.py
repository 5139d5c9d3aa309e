"""Findings on the terms of what is differentiated, and on weights and likenesses on the way there."""

from __future__ import annotations

from snugfit.doctor.findings import Certainty, Finding
from snugfit.doctor.observe.detectors.updates.parameter_faults import frozen_since
from snugfit.doctor.observe.events.log import Log
from snugfit.doctor.observe.events.run_events import LossLost
from snugfit.doctor.observe.events.term_events import (
    ConstantTerm,
    MaskedWeights,
    MeanInMean,
    OwnRowScored,
    PaddingRead,
    RawOverlap,
    SummedLoss,
    TermLeftOut,
    TransposedTargets,
)

LEAST_PASSES = 3
FAST = 1.0
"""Rate for a mean, from which on a step of plain gradient descent is one that no recipe takes."""
MORE_THAN_TEXT, AS_TEXT, SOME = 1.5, 0.5, 0.02


def constant_term(log: Log) -> list[Finding]:
    """Detect a number without a graph, another one in each update, in what is differentiated: nothing learns from it."""
    by_place: dict[str, list[ConstantTerm]] = {}
    if frozen_since(log):  # which leaves no graph to what was computed of their weights
        return []
    for event in log.of(ConstantTerm):
        by_place.setdefault(event.at, []).append(event)
    for at, events in by_place.items():
        if len({event.value for event in events}) >= LEAST_PASSES:
            values = ", ".join(f"{event.value:.3g}" for event in events[:4])
            return [
                Finding(
                    "constant_term",
                    Certainty.LIKELY,
                    "A term of the loss is another number in each update and has no graph: nothing learns from it.",
                    at,
                    (f"its first values: {values}",),
                    "loss = first + second   # both computed from what the model gives, without detach(), no_grad() or item();\n"
                    "grads = torch.autograd.grad(loss, parameters, create_graph=True)   # where a term is made of gradients",
                )
            ]
    return []


def term_left_out(log: Log) -> list[Finding]:
    """Detect a sum of losses that is read, and of which one term alone is differentiated."""
    seen = list(log.of(TermLeftOut))
    if len(seen) < LEAST_PASSES:
        return []
    return [
        Finding(
            "term_left_out",
            Certainty.LIKELY,
            "One term of a sum is differentiated, and the sum is read: its other terms teach nothing.",
            seen[0].at,
            (f"the sum is read at {seen[0].read_at}, in {len(seen)} of the first updates",),
            "loss = first + weight * second\nloss.backward()   # the sum, not first",
        )
    ]


def loss_lost(log: Log) -> list[Finding]:
    """Detect a loss that the script's source throws away: its name is set anew before anybody has read it."""
    if not log.updates:
        return []
    for event in log.of(LossLost):
        what = (
            f"Each pass of the loop sets `{event.name}` anew, and what the last one gives is differentiated: the others teach nothing."
            if event.each_pass
            else f"`{event.name}` is set anew before anybody has read it: what it was computed of teaches nothing."
        )
        fix = f"{event.name} = {event.name} + other   # or {event.name} += other"
        return [Finding("term_left_out", Certainty.LIKELY, what, event.at, (), fix)]
    return []


def summed_loss(log: Log) -> list[Finding]:
    """Detect a sum over the rows that is learned at a rate for their mean."""
    seen = [event for event in log.of(SummedLoss) if event.rate >= FAST]
    if len(seen) < LEAST_PASSES:
        return []
    first = seen[0]
    return [
        Finding(
            "summed_loss",
            Certainty.LIKELY,
            f"The loss is the sum over {first.rows} rows, not their mean: plain gradient descent learns the mean at a rate of {first.rate:.3g}.",
            first.at,
            (
                f"{len(seen)} of the first updates; the optimizer's rate times the rows, over what its momentum leaves",
            ),
            'loss = criterion(outputs, targets)   # reduction="mean"; or a rate divided by the rows',
        )
    ]


def nested_mean(log: Log) -> list[Finding]:
    """Detect a mean, less which is learned, of a sum of scores in which the mean of the scores of other rows stands already."""
    seen = list(log.of(MeanInMean))
    if len(seen) < LEAST_PASSES:
        return []
    return [
        Finding(
            "loss_terms",
            Certainty.LIKELY,
            "The mean over some rows is added to each of others, and the mean is taken of all that: a parenthesis closes too late.",
            seen[0].at,
            (
                f"{len(seen)} of the first updates; both terms have the sign that stands before the outer mean",
            ),
            "loss = -real.mean() + fake.mean()",
        )
    ]


def raw_overlap(log: Log) -> list[Finding]:
    """Detect a Dice loss, or one like it, of raw scores."""
    seen = list(log.of(RawOverlap))
    if len(seen) < LEAST_PASSES:
        return []
    return [
        Finding(
            "wrong_scores",
            Certainty.CERTAIN,
            f"The overlap of raw scores with a mask is divided by their sum, as the Dice loss does with probabilities: the scores are made by {seen[0].maker}.",
            seen[0].at,
            ("the sum of raw scores may be 0 or less, and the loss has no bound",),
            "probabilities = torch.sigmoid(scores)   # or softmax(dim=1)\nloss = dice(probabilities, mask)",
        )
    ]


def own_row_scored(log: Log) -> list[Finding]:
    """Detect that the likeness of a row to itself is among those that a contrastive loss makes small."""
    seen = list(log.of(OwnRowScored))
    if len(seen) < LEAST_PASSES:
        return []
    return [
        Finding(
            "own_row_scored",
            Certainty.CERTAIN,
            f"Each of {seen[0].rows} rows is compared with itself as with a row that it should be unlike: that likeness is always the largest.",
            seen[0].at,
            ("the scores are symmetric, their diagonal is the largest of each row, and no label is on it",),
            'similarity.fill_diagonal_(float("-inf"))   # before the cross entropy',
        )
    ]


def masked_weights(log: Log) -> list[Finding]:
    """Detect weights of attention that are masked behind their softmax."""
    seen = list(log.of(MaskedWeights))
    if len(seen) < LEAST_PASSES:
        return []
    least = min(event.least for event in seen)
    return [
        Finding(
            "unmasked_padding",
            Certainty.LIKELY,
            f"Weights that a softmax gave are masked behind it: they come to {least:.2f} at the least, and what is masked has its share of each.",
            seen[0].at,
            (f"{len(seen)} products in the first updates",),
            'weights = scores.masked_fill(~mask, float("-inf")).softmax(dim=-1)',
        )
    ]


def padding_read(log: Log) -> list[Finding]:
    """Detect that the scores of padded rows depend on their padding more than on their text."""
    for event in log.of(PaddingRead):
        if event.pooled and event.share >= AS_TEXT:
            return [
                Finding(
                    "unmasked_padding",
                    Certainty.LIKELY,
                    f"A mean or sum over the places of a text takes its padding too: a place of it moves the score {event.share:.2g} times as much as one of text.",
                    event.at,
                    (f"the gradient of the scores at {event.padding} places of padding is not 0",),
                    "mask = (tokens != pad).unsqueeze(-1)\npooled = (hidden * mask).sum(1) / mask.sum(1)",
                )
            ]
        if event.attends and event.share >= SOME:
            return [
                Finding(
                    "unmasked_padding",
                    Certainty.LIKELY,
                    f"Attention reads padding: a place of it moves the score {event.share:.2g} times as much as one of text.",
                    event.at,
                    (f"the gradient of the scores at {event.padding} places of padding is not 0",),
                    "encoder(embedded, src_key_padding_mask=(tokens == pad))   # and the mean over the text alone",
                )
            ]
        if event.share >= MORE_THAN_TEXT:
            return [
                Finding(
                    "unmasked_padding",
                    Certainty.LIKELY,
                    f"A place of padding moves the score {event.share:.1f} times as much as one of text: the state behind the padding is read.",
                    event.at,
                    (f"the gradient of the scores at {event.padding} places of padding",),
                    "packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)\n"
                    "last = states[torch.arange(len(x)), lengths - 1]   # or the state behind the last of the text",
                )
            ]
    return []


def transposed_targets(log: Log) -> list[Finding]:
    """Detect targets whose axes were exchanged, and that have the shape of the predictions by chance."""
    seen = list(log.of(TransposedTargets))
    if len(seen) < LEAST_PASSES:
        return []
    return [
        Finding(
            "mismatched_rows",
            Certainty.LIKELY,
            f"Targets of {seen[0].shape} are transposed and the predictions are not: as many rows as columns hide it, and each row has the targets of others.",
            seen[0].at,
            (f"{len(seen)} of the first losses",),
            "loss = F.mse_loss(predictions, targets)   # both with the rows on the first axis",
        )
    ]


DETECTORS = (
    constant_term,
    term_left_out,
    loss_lost,
    summed_loss,
    nested_mean,
    raw_overlap,
    own_row_scored,
    masked_weights,
    padding_read,
    transposed_targets,
)
