"""The loss scale: gradients that are limited, or used, while they are still multiplied by it."""

from __future__ import annotations

from typing import NamedTuple

from snugfit.doctor.findings import Certainty, Finding
from snugfit.doctor.observe.events.log import Log
from snugfit.doctor.observe.events.log_views import Window, steps, windows
from snugfit.doctor.observe.events.script_events import Capped, Clip, Rescale, Step

LARGE = 128.0  # what multiplies a loss to keep small gradients from vanishing; a number of rows or of losses is less
SHORT = 0.01  # a limit for true gradients is not as low as this; one for gradients times the scale is, over the scale
LEAST_CAPPED = 3
SAME, OTHER = 1.01, 1.1  # lengths within the first ratio are one, beyond the second they are not
_UNSCALE = "scaler.unscale_(optimizer)\ntorch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)\nscaler.step(optimizer)"


def clip_before_unscale(log: Log) -> list[Finding]:
    """Clipping, or a step, on gradients that still carry the loss scale."""
    clips = [clip for clip in log.of(Clip) if clip.scaled]
    findings = []
    if clips:
        findings.append(
            Finding(
                "clip_before_unscale",
                Certainty.CERTAIN,
                f"Gradients are clipped while they are multiplied by the loss scale, {clips[0].scale:g}: the limit is "
                "that much too small.",
                clips[0].at,
                (f"{len(clips)} of {sum(1 for _ in log.of(Clip))} clips",),
                _UNSCALE,
            )
        )
    scaled = [step for step in log.of(Step) if step.scaled]
    if scaled:
        findings.append(
            Finding(
                "clip_before_unscale",
                Certainty.CERTAIN,
                "The optimizer steps on gradients that are still multiplied by the loss scale.",
                scaled[0].at,
                (f"{len(scaled)} of {steps(log)} steps went past the scaler",),
                "scaler.step(optimizer)\nscaler.update()",
            )
        )
    return findings


def limited_by_hand(log: Log) -> list[Finding]:
    """Detect that gradients of any length come out with the same one while they carry the loss scale: a limit, or a unit length.

    What multiplies a gradient, such as an average over ranks or a mask, leaves its length in proportion; a limit that is multiplied
    by the scale, which is right, is far from short over it.
    """
    for optimizer in dict.fromkeys(event.optimizer for event in log.of(Rescale)):
        mine = [event for event in log.of(Rescale) if event.optimizer == optimizer]
        for changes in (
            [_Change("norm", each.norm_before, each.norm, each) for each in mine],
            [_Change("largest value", each.largest_before, each.largest, each) for each in mine],
        ):
            limited = [each for each in changes if 0 < SAME * each.after < each.before]
            if _is_limit(limited) and limited[0].after < SHORT * limited[0].event.scale:
                return [_limit_finding(limited)]
    return []


def limited_by_hooks(log: Log) -> list[Finding]:
    """Detect that gradients come out of the backward pass with one largest value update after update, far below the loss scale that they carry."""
    for optimizer in dict.fromkeys(event.optimizer for event in log.of(Capped)):
        mine = [event for event in log.of(Capped) if event.optimizer == optimizer]
        first, largest = mine[0], {event.largest for event in mine}
        if len(mine) >= LEAST_CAPPED and len(largest) == 1 and first.largest < SHORT * first.scale:
            return [
                Finding(
                    "clip_before_unscale",
                    Certainty.CERTAIN,
                    f"Gradients are limited to {first.largest:.3g} within the backward pass, while they are multiplied by the loss scale, {first.scale:g}: the limit "
                    "is that much too small.",
                    first.at,
                    (
                        f"in each of {len(mine)} updates; {first.share:.0%} of the numbers of {first.weights} weights are at the limit",
                    ),
                    "scaler.unscale_(optimizer)\ntorch.nn.utils.clip_grad_value_(model.parameters(), limit)\nscaler.step(optimizer)",
                )
            ]
    return []


class _Change(NamedTuple):
    """An event's change of one measure of length."""

    measure: str
    before: float
    after: float
    event: Rescale


def _is_limit(limited: list[_Change]) -> bool:
    """Return whether different lengths became one."""
    before, after = [each.before for each in limited], [each.after for each in limited]
    return len(limited) > 1 and max(after) <= SAME * min(after) and max(before) > OTHER * min(before)


def _limit_finding(limited: list[_Change]) -> Finding:
    measure, before, after, first = limited[0]
    return Finding(
        "clip_before_unscale",
        Certainty.CERTAIN,
        f"Gradients are brought to a {measure} of {after:.3g} while they are multiplied by the loss scale, {first.scale:g}: the limit "
        "is that much too small.",
        first.at,
        (
            f"in {len(limited)} updates the {measure} came out as {after:.3g}, whatever it was; in update {first.update + 1} it was {before:.3g}",
            "they are changed between the backward pass and this line, which unscales them",
        ),
        _UNSCALE,
    )


def divided_after_clipping(log: Log) -> list[Finding]:
    """Detect that the loss is multiplied by hand, and its gradients are divided again only after torch's functions have clipped them."""
    bad = [late for window in windows(log) if (late := _divided_late(window)) is not None]
    if len(bad) < 2:
        return []
    clip, factor, shrunk = bad[0]
    return [
        Finding(
            "clip_before_unscale",
            Certainty.CERTAIN,
            f"Gradients are clipped to {clip.limit:g} while the loss is multiplied by {factor:g}, and divided only afterwards: the "
            "limit is that much too small.",
            clip.at,
            (
                f"what is differentiated is {factor:g} times the loss",
                f"in {len(bad)} updates the optimizer got {shrunk:.3g} of what was clipped",
            ),
            "for parameter in model.parameters():\n    parameter.grad.div_(scale)\n"
            "torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)",
        )
    ]


def _divided_late(window: Window) -> tuple[Clip, float, float] | None:
    """Return the last clip of a window whose loss was multiplied, by how much, and what was left of the gradients after it."""
    clips = [event for event in window.events if isinstance(event, Clip) and not event.scaled]
    factors = [each.ratio for each in window.passes if each.ratio is not None]
    if not clips or window.step is None or len(factors) < len(window.passes):
        return None
    factor, shrunk = min(factors), window.step.since_clip
    if factor < LARGE or shrunk > 1 / LARGE or clips[-1].limit >= SHORT * factor:
        return None
    return clips[-1], factor, shrunk


DETECTORS = (clip_before_unscale, limited_by_hand, limited_by_hooks, divided_after_clipping)
