"""Findings on losses: shapes, axes, ranges, kinds of scores, values that are not finite, and graphs that are held."""

from __future__ import annotations

import math

from snugfit.doctor.findings import Certainty, Finding
from snugfit.doctor.observe.events.log import Log
from snugfit.doctor.observe.events.log_views import is_one_batch
from snugfit.doctor.observe.events.script_events import (
    OVER_ROWS,
    Backward,
    Broadcast,
    FarTargets,
    Forward,
    GraphKept,
    InfiniteInput,
    Loss,
    NotANumber,
    ScalarMask,
    Step,
    SummedTerm,
    TargetGradient,
    Unreachable,
    WrongAxis,
)
from snugfit.doctor.observe.events.term_events import PulledTogether

LEAST_PASSES = 3
MOST_SIZES = 3
"""Of batches: that of training, of its last one, and of an evaluation with a graph."""
BOUNDED = math.exp(2)
MANY_OUTSIDE = 0.2
SOME_OUTSIDE = 0.05


def non_finite_loss(log: Log) -> list[Finding]:
    """Detect that the loss is not finite to the end, while training goes on; a single window that is not says nothing."""
    passes = [event for event in log.of(Backward) if event.touched]
    last_finite = max((place for place, event in enumerate(passes) if event.finite), default=-1)
    bad = passes[last_finite + 1 :]
    ignored = any(
        not loss.counted and loss.ignored for loss in log.of(Loss)
    )  # the cause, a finding of its own
    if len(bad) < LEAST_PASSES or ignored:
        return []
    steps = sum(1 for step in log.of(Step) if step.update >= bad[0].update)
    since = f"{len(bad)} backward passes and {steps} optimizer steps since"
    given = next(iter(log.of(InfiniteInput)), None)
    # where it was given before, and the loss was finite then, the model knows of it: gaps that it fills
    if given is not None and given.update == bad[0].update:
        return [
            Finding(
                "non_finite_loss",
                Certainty.CERTAIN,
                f"The loss is not finite from update {bad[0].update + 1} on: what the model or its loss is given is not.",
                given.at,
                (f"the loss is differentiated at {bad[0].at}", since),
                "assert torch.isfinite(inputs).all()   # before the training; x.clamp_min(1e-8) where x is divided by, or its logarithm taken",
            )
        ]
    for made in log.of(NotANumber):
        of_rows = made.function.endswith("softmax") or made.function == "sigmoid"
        # later, weights that are no numbers give such; a gradient that is none shows in the next loss
        if made.update == bad[0].update or (made.update == bad[0].update - 1 and not of_rows):
            return [
                Finding(
                    "non_finite_loss",
                    Certainty.CERTAIN,
                    f"The loss is not finite from update {bad[0].update + 1} on: {made.function} gets "
                    + (
                        "numbers, and gives none for rows that are -inf at every place."
                        if of_rows
                        else "0 or less, where it or its gradient is not finite."
                    ),
                    made.at,
                    (f"the loss is differentiated at {bad[0].at}", since),
                    "weights = scores.softmax(-1).masked_fill(nothing_to_see, 0.0)   # or leave out what has no token at all"
                    if of_rows
                    else f"{made.function}(values.clamp_min(1e-8))   # away from 0",
                )
            ]
    return [
        Finding(
            "non_finite_loss",
            Certainty.CERTAIN,
            f"The loss is not finite from update {bad[0].update + 1} on, and training goes on.",
            bad[0].at,
            (since,),
            "if not torch.isfinite(loss):\n    raise RuntimeError(f'loss {loss} at step {step}')   # a lower rate, clipped gradients",
        )
    ]


def broadcast_loss(log: Log) -> list[Finding]:
    """Detect predictions and targets that are as many, and meet in shapes that make each prediction meet each target."""
    for event in log.of(Broadcast):
        return [
            Finding(
                "broadcast_loss",
                Certainty.CERTAIN,
                f"{event.function} gets {event.predictions} and {event.targets}: each prediction is compared with all targets.",
                event.at,
                ("one shape is broadcast against the other to more than there are of each",),
                "loss = F.mse_loss(predictions.squeeze(-1), targets)",
            )
        ]
    return []


def masked_sum(log: Log) -> list[Finding]:
    """Detect a sum over all rows that is multiplied by their mask."""
    seen = list(log.of(ScalarMask))
    if len(seen) < LEAST_PASSES:
        return []
    return [
        Finding(
            "broadcast_loss",
            Certainty.LIKELY,
            "One number, the sum over all rows, is multiplied by their mask: each row that counts gets the sum of all.",
            seen[0].at,
            (f"{len(seen)} products",),
            "term = values.sum(dim=-1) * mask   # a sum for each row",
        )
    ]


def unreachable_targets(log: Log) -> list[Finding]:
    """Detect targets that the activation at the end of the model cannot give."""
    seen = list(log.of(Unreachable))
    if len(seen) < 2:
        return []
    first = seen[0]
    mean = sum(each.share for each in seen) / len(seen)
    if mean < SOME_OUTSIDE:
        return []
    return [
        Finding(
            "unreachable_targets",
            Certainty.CERTAIN if mean >= MANY_OUTSIDE else Certainty.LIKELY,
            f"{mean:.0%} of the targets lie outside of {first.low:g} to {first.high:g}, which is all that the last {first.activation} gives.",
            first.at,
            (f"{len(seen)} calls of {first.function}",),
            "prediction = self.last(features)   # without activation; or targets scaled to its range",
        )
    ]


def wrong_scores(log: Log) -> list[Finding]:
    """Detect scores that a ReLU has cut, and raw scores where log-probabilities are asked for."""
    for loss in log.of(Loss):
        divergence, paths = loss.function == "kl_div", loss.function == "ctc_loss"
        if loss.given == "raw scores" and loss.grad:
            return [
                Finding(
                    "wrong_scores",
                    Certainty.CERTAIN,
                    f"{loss.function} gets {'numbers above 0' if divergence else 'raw scores'}; it wants log-probabilities, and falls "
                    "without end as the scores grow.",
                    loss.at,
                    (
                        "a log-probability is never above 0"
                        if divergence
                        else "the exponentials of a place's scores do not sum to 1"
                        if paths
                        else "the exponentials of a row's scores sum to more than 1",
                    ),
                    'loss = F.kl_div(F.log_softmax(scores, dim=1), target, reduction="batchmean")'
                    if divergence
                    else "loss = F.ctc_loss(scores.log_softmax(2), texts, input_lengths, text_lengths)"
                    if paths
                    else "loss = F.cross_entropy(scores, labels)   # or F.nll_loss(F.log_softmax(scores, dim=1), labels)",
                )
            ]
        if loss.given == "logarithms of targets" and loss.grad:
            return [
                Finding(
                    "wrong_scores",
                    Certainty.CERTAIN,
                    f"{loss.function} gets the logarithms of probabilities as its targets; without log_target=True it wants the probabilities.",
                    loss.at,
                    ("no target is above 0, and the exponentials of each row come to 1",),
                    'loss = F.kl_div(log_probabilities, target, reduction="batchmean", log_target=True)',
                )
            ]
        if loss.given == "bounded" and loss.grad:
            return [
                Finding(
                    "wrong_scores",
                    Certainty.LIKELY,
                    f"{loss.function} gets scores that a tanh has bounded by -1 and 1: no class gets more than {BOUNDED:.1f} times the odds of another.",
                    loss.at,
                    ("the scores are made by a tanh",),
                    "scores = self.last(features)   # without an activation behind it",
                )
            ]
        if loss.given == "rectified" and loss.grad:
            binary = loss.function.startswith("binary")
            effect = (
                "no probability under one half can be given" if binary else "those below have no gradient"
            )
            return [
                Finding(
                    "wrong_scores",
                    Certainty.CERTAIN if binary else Certainty.LIKELY,
                    f"{loss.function} gets scores that a ReLU has cut at 0: {effect}.",
                    loss.at,
                    ("the scores are made by a ReLU",),
                    "scores = self.last(features)   # without an activation behind it",
                )
            ]
    return []


def wrong_axis(log: Log) -> list[Finding]:
    """Detect a softmax, a reshape or an argmax on another axis than that of the classes."""
    # a graph is one batch, over whose nodes a softmax may run, as over the words of one text, of which each has its own number
    sizes = {event.rows for event in log.of(Forward) if event.grad}
    one = is_one_batch(log.events) or len(sizes) > MOST_SIZES
    seen = [event for event in log.of(WrongAxis) if event.function != OVER_ROWS or not one]
    first = {event.function: event for event in reversed(seen)}
    return [
        Finding("wrong_axis", Certainty.CERTAIN, f"{name}: {event.what}.", event.at, (), event.fix)
        for name, event in first.items()
    ]


def unscaled_targets(log: Log) -> list[Finding]:
    """Detect targets that are far larger than the predictions, in all of the first updates."""
    seen = list(log.of(FarTargets))
    if len(seen) < LEAST_PASSES:
        return []
    first = seen[0]
    return [
        Finding(
            "unscaled_targets",
            Certainty.LIKELY,
            f"{first.function} gets targets of {first.targets:.3g} (root mean square) and predictions of {first.predictions:.2g}: "
            "the updates go into the scale.",
            first.at,
            (f"{len(seen)} calls in the first updates",),
            "mean, std = train_targets.mean(), train_targets.std()\n"
            "loss = F.mse_loss(model(inputs), (targets - mean) / std)   # and predictions * std + mean where they are used",
        )
    ]


def target_gradients(log: Log) -> list[Finding]:
    """Detect targets that a model computes of its own next value, and that are differentiated too."""
    seen = list(log.of(TargetGradient))
    advantages = [each for each in seen if each.advantage]
    if len(advantages) >= LEAST_PASSES:
        return [
            Finding(
                "target_gradients",
                Certainty.LIKELY,
                "A policy's log-probabilities are multiplied by an advantage with a graph: the policy's loss trains the value as well.",
                advantages[0].at,
                (
                    f"{len(advantages)} products; the advantage is a constant less a value that the model computes",
                ),
                "actor_loss = -(log_prob * advantage.detach()).mean()",
            )
        ]
    seen = [each for each in seen if not each.advantage]
    if len(seen) < LEAST_PASSES:
        return []
    return [
        Finding(
            "target_gradients",
            Certainty.LIKELY,
            f"{seen[0].function} gets targets with a graph: the targets are drawn to the predictions as much as the other way round.",
            seen[0].at,
            (f"{len(seen)} calls; the targets are a constant plus a multiple of a model's output",),
            "with torch.no_grad():\n    targets = rewards + discount * target_net(next_states).max(1).values",
        )
    ]


def sides_pulled_together(log: Log) -> list[Finding]:
    """Detect a siamese loss of cosines alone whose targets carry their graph: both sides fall to one constant."""
    seen = list(log.of(PulledTogether))
    if len(seen) < LEAST_PASSES:
        return []
    return [
        Finding(
            "target_gradients",
            Certainty.CERTAIN,
            "The loss is made of cosines alone, and its targets have a graph: one constant output for all rows is its least value.",
            seen[0].at,
            (f"{len(seen)} backward passes; each target is what another prediction is computed from",),
            "loss = -F.cosine_similarity(prediction, target.detach(), dim=-1).mean()",
        )
    ]


def loss_terms(log: Log) -> list[Finding]:
    """Detect a sum over the rows that is added to a mean over them: the size of the batch decides which one is learned."""
    seen = list(log.of(SummedTerm))
    if len(seen) < LEAST_PASSES:
        return []
    first = seen[0]
    return [
        Finding(
            "loss_terms",
            Certainty.LIKELY,
            f"One term of the loss is a mean over the rows and another one the sum over all {first.rows}, times {first.factor:.3g}: "
            "the size of the batch decides which of them is learned.",
            first.at,
            (f"{len(seen)} backward passes in the first updates",),
            "loss = reconstruction.sum(dim=1).mean() + divergence.sum(dim=1).mean()   # both summed over values, both the mean over rows",
        )
    ]


def growing_graph(log: Log) -> list[Finding]:
    """Detect graphs of earlier updates that a sum or a list of losses holds."""
    for event in log.of(GraphKept):
        held = f"`{event.name}` holds" if event.name else "Something holds"
        return [
            Finding(
                "growing_graph",
                Certainty.LIKELY,
                f"{held} the graphs of {event.alive} losses that were differentiated before: memory grows with every update.",
                event.at,
                (f"seen after update {event.update}",),
                f"{event.name or 'total'} += loss.item()   # or loss.detach()",
            )
        ]
    return []


DETECTORS = (
    non_finite_loss,
    broadcast_loss,
    masked_sum,
    unreachable_targets,
    wrong_scores,
    wrong_axis,
    unscaled_targets,
    target_gradients,
    sides_pulled_together,
    growing_graph,
    loss_terms,
)
