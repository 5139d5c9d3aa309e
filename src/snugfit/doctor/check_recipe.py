"""Pitfalls of settings: rates, schedules, precision, averages and evaluations, judged on the model that they are for."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import torch

from snugfit.core.parameters import decayed
from snugfit.data.stream import streamed
from snugfit.doctor.findings import Certainty, Finding
from snugfit.doctor.subject import Subject
from snugfit.kit.precision.bf16_rounding import alternative, device_name, has_bf16
from snugfit.kit.precision.checkpoint_precision import made_in_bf16
from snugfit.step.step import Step
from snugfit.system.processor import processor_flags

LEAST_SHARE = 2e-4
"""A run that can move a typical weight by less than this part of it does nothing."""
TUNED_AT_MOST = 1e-3
"""Adam's rate from which tuning all weights of a pretrained model is known to forget what it knew; usual are 1e-5 to 3e-4."""
_FLAGS_WITH_BF16 = {"avx512_bf16", "amx_bf16", "bf16"}


def examine_precision(subject: Subject) -> list[Finding]:
    """Return what can be said before a step is made, which would refuse some of it."""
    return [*bf16_in_fp16(subject), *emulated_bf16(subject)]


def examine_settings(subject: Subject) -> list[Finding]:
    """Return all else that this file knows.

    Raises:
        UserError: no step can be made.
    """
    step = subject.make_step()
    return [
        *learning_rate(subject, step),
        *endless_warmup(subject, step),
        *late_average(subject, step),
        *evaluation(subject),
    ]


def bf16_in_fp16(subject: Subject) -> Iterator[Finding]:
    """Weights of bfloat16's range in float16, whose largest number is 65504."""
    in_float16 = [each.card.name for each in subject.techniques if each.card.needs == "float16"]
    if in_float16 and made_in_bf16(subject.model):
        largest = max(
            (float(each.detach().abs().max()) for each in subject.model.parameters() if each.numel()),
            default=0.0,
        )
        yield Finding(
            "bf16_in_fp16",
            Certainty.CERTAIN,
            f"the weights were pretrained in bfloat16, and '{in_float16[0]}' computes in float16: activations beyond 65504 become infinite",
            where="plan.numerics",
            evidence=(f"largest weight {largest:.3g}", "the checkpoint says bfloat16"),
            fix="plan: {numerics: bf16}   # or fp32 where the device has no bfloat16",
        )


def emulated_bf16(subject: Subject) -> Iterator[Finding]:
    """bfloat16 where the device computes it by way of float32."""
    in_bfloat16 = [each.card.name for each in subject.techniques if each.card.needs == "bfloat16"]
    if not in_bfloat16:
        return
    device = torch.device(subject.plan.device)
    if not has_bf16(device):
        yield Finding(
            "emulated_bf16",
            Certainty.LIKELY,
            f"'{in_bfloat16[0]}' computes in bfloat16, which {device_name(device)} only emulates: slower than float32, and coarser",
            where="plan.numerics",
            evidence=(f"device {device}",),
            fix=f"plan: {{numerics: {alternative(device)}}}",
        )
    elif device.type == "cpu" and (flags := processor_flags()) and not flags & _FLAGS_WITH_BF16:
        yield Finding(
            "emulated_bf16",
            Certainty.WORTH_A_LOOK,
            f"'{in_bfloat16[0]}' computes in bfloat16, for which this processor has no instructions: it saves memory here, not time",
            where="plan.numerics",
            evidence=(f"none of {', '.join(sorted(_FLAGS_WITH_BF16))} among the processor's flags",),
            fix="plan: {numerics: fp32}",
        )


def learning_rate(subject: Subject, step: Step) -> Iterator[Finding]:
    """Rates of optimizers of Adam's kind, whose every update moves each weight by about the rate."""
    groups = [group for group in step.optimizer.param_groups if "betas" in group]
    weights = decayed(step.model)
    sizes = [
        float(each.detach().abs().float().median())
        for group in groups
        for each in group["params"]
        if each.requires_grad and each in weights and each.is_floating_point()
    ]
    typical = sorted(size for size in sizes if size > 0)
    factors = _factors(subject, step)
    if not typical or not factors:
        return
    median, smallest = typical[len(typical) // 2], typical[0]
    rate = max(group["initial_lr"] if "initial_lr" in group else group["lr"] for group in groups)
    peak, way = rate * max(factors), rate * sum(factors) / len(factors) * subject.total_updates
    evidence = (
        f"highest rate {peak:.2g}; {subject.total_updates:,} updates",
        f"median size of a weight {median:.2g}, of the smallest matrix {smallest:.2g}",
    )
    share = _trained_share(step)
    if peak > median:
        yield Finding(
            "learning_rate",
            Certainty.LIKELY,
            f"each update moves every weight by about {peak:.2g}, more than a typical weight has ({median:.2g}): it forgets its initialisation "
            "at once",
            where="optimizer.learning_rate",
            evidence=evidence,
            fix="snugfit find lr RECIPE --apply",
        )
    elif subject.pretrained and share > 0.5 and peak > TUNED_AT_MOST:
        yield Finding(
            "learning_rate",
            Certainty.LIKELY,
            f"a rate of {peak:.2g} for {share:.0%} of a pretrained model's weights: from {TUNED_AT_MOST:g} on tuning is known to forget "
            "what was learned",
            where="optimizer.learning_rate",
            evidence=evidence,
            fix="optimizer: {adamw: {learning_rate: 1.0e-4}}",
        )
    elif way < LEAST_SHARE * median:
        yield Finding(
            "learning_rate",
            Certainty.LIKELY,
            f"all {subject.total_updates:,} updates together can move a weight by {way:.1e}, {way / median:.2%} of a typical one",
            where="optimizer.learning_rate",
            evidence=evidence,
            fix="snugfit find lr RECIPE --apply",
        )


def endless_warmup(subject: Subject, step: Step) -> Iterator[Finding]:
    """Detect a rate that is still rising when the run ends."""
    factors = _factors(subject, step)
    if len(factors) < 4 or not all(one < other for one, other in itertools.pairwise(factors)):
        return
    schedule = next(
        (each.card.name for each in subject.techniques if "schedule" in each.card.seams), "schedule"
    )
    yield Finding(
        "schedule_length",
        Certainty.LIKELY,
        f"the rate of '{schedule}' rises to the last of {subject.total_updates:,} updates: its warm-up is as long as the run, or longer",
        where=f"schedule.{schedule}",
        evidence=(
            f"factor of the first update {factors[0]:.3g}, of the last {factors[-1]:.3g}, the highest",
        ),
        fix=f"schedule: {{{schedule}: {{warmup: 0.05}}}}   # a part of the run",
    )


def late_average(subject: Subject, step: Step) -> Iterator[Finding]:
    """Early stopping that judges raw weights, where an average is taken of the end of the run."""
    if not step.seams.awaits_average:
        return
    name = next(each.card.name for each in subject.techniques if "weights" in each.card.seams)
    rule = subject.job.early_stopping
    if rule is not None:
        yield Finding(
            "average_and_best",
            Certainty.LIKELY,
            f"'{name}' averages the end of the run, and early stopping may end it before: then nothing is averaged",
            where="early_stopping",
            evidence=(
                f"patience {rule.patience}",
                f"the average has not begun at update 0 of {subject.total_updates:,}",
            ),
            fix="early_stopping: null   # or ema, which averages from the start",
        )


def _hold_out(subject: Subject) -> str:
    if streamed(subject.train) is None:
        return "data: {validation: 0.1}"
    return "data: {validation: FILE}   # other rows: of a stream no fraction can be held out"


def evaluation(subject: Subject) -> Iterator[Finding]:
    """Detect runs that are not evaluated, or only when they are over."""
    every = subject.job.evaluate.every
    if subject.validation is None or not len(subject.validation):
        yield Finding(
            "never_evaluated",
            Certainty.WORTH_A_LOOK,
            "nothing is held out, so the last weights are kept and nobody knows how good they are",
            where="data.validation",
            fix=_hold_out(subject),
        )
    elif every != "epoch" and every > subject.total_updates:
        yield Finding(
            "never_evaluated",
            Certainty.LIKELY,
            f"evaluated every {every:,} updates, and the run has {subject.total_updates:,}: only its end is evaluated",
            where="evaluate.every",
            evidence=(f"{subject.total_updates:,} updates",),
            fix=f"evaluate: {{every: {max(1, subject.total_updates // 10)}}}",
        )


def _factors(subject: Subject, step: Step, most: int = 1000) -> list[float]:
    """Return factors of the rate, at updates spread over the run, the first and the last among them."""
    total = subject.total_updates
    if step.seams.schedule is None:
        return [1.0]
    places = sorted(
        {round(number * (total - 1) / max(1, min(total, most) - 1)) for number in range(min(total, most))}
    )
    group = step.optimizer.param_groups[0]
    return [step.seams.schedule(place, group).factor for place in places]


def _trained_share(step: Step) -> float:
    sizes = [(each.numel(), each.requires_grad) for each in step.parameters]
    return sum(size for size, trained in sizes if trained) / max(1, sum(size for size, _ in sizes))
