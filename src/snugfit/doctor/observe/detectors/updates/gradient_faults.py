"""Gradients between backward and step: clearing, accumulating."""

from __future__ import annotations

from itertools import pairwise
from statistics import median

from snugfit.doctor.findings import Certainty, Finding
from snugfit.doctor.observe.events.log import Log
from snugfit.doctor.observe.events.log_views import LEAST_PASSES, Window, steps, windows
from snugfit.doctor.observe.events.run_events import DividedForWindow, GraphUnused
from snugfit.doctor.observe.events.script_events import (
    Backward,
    Batch,
    Clip,
    EpochEnd,
    Forward,
    Loss,
    ScalerStep,
    Step,
    ZeroGrad,
)

LEAST_WASTED, FIRST_UPDATES, LEAST_WINDOWS = 4, 8, 6
DIVIDED = 0.01
"""How far from 1 the product of a loss's share and the squared length of the window may be."""
UNEVEN, FAR_UNEVEN = 1.05, 1.5
"""The most labels of a micro-batch over the fewest of the same window: 16 rows of random lengths differ by a fifth or so."""
# A loss function whose result is differentiated as it is, not divided and not summed with anything.
_UNDIVIDED_MEANS = ("MeanBackward", "NllLoss", "MseLoss", "SmoothL1Loss", "HuberLoss", "BinaryCrossEntropy")


def zero_grad(log: Log) -> list[Finding]:
    """Detect that gradients that one step used are still there in the next, or are gone before any step used them."""
    findings = []
    stale = [step for step in log.of(Step) if step.stale]
    if len(stale) >= 2:
        findings.append(
            Finding(
                "zero_grad",
                Certainty.CERTAIN,
                f"{len(stale)} of {steps(log)} optimizer steps used gradients that an earlier step had used already.",
                stale[0].at,
                (
                    f"update {stale[0].update + 1}: a backward pass added to gradients that update {stale[0].update} had used",
                ),
                "loss.backward()\noptimizer.step()\noptimizer.zero_grad()",
            )
        )
    cleared = [step for step in log.of(Step) if step.cleared]
    if len(cleared) >= 2 or (cleared and len(cleared) == steps(log)):
        clearing = _last_before(log, cleared[0])
        findings.append(
            Finding(
                "zero_grad",
                Certainty.CERTAIN,
                f"{len(cleared)} of {steps(log)} optimizer steps found no gradient: it was cleared after backward.",
                clearing.at if clearing else cleared[0].at,
                (f"the step is at {cleared[0].at}",),
                "optimizer.zero_grad()\nloss.backward()\noptimizer.step()",
            )
        )
    return findings or _thrown_away(log) or _added_in_closures(log) or _cleared_for_another(log)


def _thrown_away(log: Log) -> list[Finding]:
    """Return backward passes of which every gradient is cleared before any optimizer steps, while others of the same line are used."""
    pending: list[Backward] = []
    unused: set[int] = set()
    wasted: list[tuple[Backward, ZeroGrad]] = []
    used: list[Backward] = []
    for event in log.events:
        if isinstance(event, Backward):
            if event.in_step or not event.touched:
                pending = []
            elif event.adds_to:
                pending = [*pending, event] if pending else []
            else:
                pending = [event]
            unused = {number for each in pending for number in each.touched}
        elif pending and isinstance(event, Step | ScalerStep) and event.optimizer in unused:
            used += pending
            pending = []
        elif pending and isinstance(event, ZeroGrad):
            unused -= set(event.optimizers)
            if not unused:
                wasted += [(each, event) for each in pending]
                pending = []
    at = {each.at for each in used}
    wasted = [each for each in wasted if each[0].at in at]
    if len(wasted) < LEAST_WASTED or len(wasted) < len(used):
        return []
    return [
        Finding(
            "zero_grad",
            Certainty.CERTAIN,
            f"{len(wasted)} of {len(wasted) + len(used)} backward passes are cleared before an optimizer steps: their rows teach nothing.",
            wasted[0][1].at,
            (f"the backward pass is at {wasted[0][0].at}",),
            "loss.backward()\nif (number + 1) % accumulate == 0:\n    optimizer.step()\n    optimizer.zero_grad()",
        )
    ]


def _added_in_closures(log: Log) -> list[Finding]:
    """Return closures of an optimizer's steps that nothing clears gradients for: each evaluation adds to those of the last."""
    passes = [event for event in log.of(Backward) if event.in_step and event.touched]
    added = [event for event in passes if event.adds_to or event.stale]
    cleared = {number for event in log.of(ZeroGrad) for number in event.optimizers}
    own = {number for event in passes for number in event.touched}
    if len(added) < LEAST_WASTED or own & cleared or len(passes) - len(added) > steps(log) + 1:
        return []
    return [
        Finding(
            "zero_grad",
            Certainty.CERTAIN,
            f"{len(added)} of {len(passes)} evaluations of a closure add their gradients to those of the evaluation before.",
            added[0].at,
            ("nothing clears them, and an optimizer that takes a closure calls it several times in a step",),
            "def closure():\n    optimizer.zero_grad()\n    loss = criterion(model(x), y)\n    loss.backward()\n    return loss",
        )
    ]


def _cleared_for_another(log: Log) -> list[Finding]:
    """Return losses all of whose gradients are cleared before those of another one are made, with which the optimizer steps, in update after update."""
    pending: Backward | None = None
    cleared: ZeroGrad | None = None
    lost: dict[str, list[ZeroGrad]] = {}
    second: dict[str, Backward] = {}
    used_lines: set[str] = set()
    for event in log.events:
        if event.update >= FIRST_UPDATES:  # later it is not looked whether inputs are differentiated
            break
        if isinstance(event, Backward):
            if event.in_step or event.of_inputs or not event.touched:
                pending, cleared = None, None
            elif pending is not None and cleared is not None and pending.at != event.at:
                second[pending.at] = event
                lost.setdefault(pending.at, []).append(cleared)
            elif pending is not None:
                used_lines.add(pending.at)
            used = event.touched and not (event.in_step or event.of_inputs)
            pending, cleared = (event if used else None), None
        elif isinstance(event, ZeroGrad) and pending is not None:
            if (
                event.moved
            ):  # the gradients were used by hand, as where a step goes to the sharpest point first
                used_lines.add(pending.at)
            cleared = event if set(pending.touched) <= set(event.optimizers) else cleared
        elif isinstance(event, Step):
            if pending is not None and cleared is None:
                used_lines.add(pending.at)
            if event.rescaled:
                used_lines.update(second)
                used_lines.update(lost)
            pending, cleared = None, None
    for at, events in lost.items():
        if at not in used_lines and len({event.update for event in events}) >= LEAST_WASTED:
            return [
                Finding(
                    "zero_grad",
                    Certainty.LIKELY,
                    f"The gradients of one loss are cleared before those of another are made, in {len(events)} updates: the first teaches nothing.",
                    events[0].at,
                    (f"the first loss is differentiated at {at}, the other at {second[at].at}",),
                    "optimizer.zero_grad()\n(first + second).backward()   # or both backward passes, and one zero_grad() before them\noptimizer.step()",
                )
            ]
    return []


def _last_before(log: Log, step: Step) -> ZeroGrad | None:
    before = log.events[: next(place for place, event in enumerate(log.events) if event is step)]
    return next(
        (e for e in reversed(before) if isinstance(e, ZeroGrad) and step.optimizer in e.optimizers), None
    )


def accumulation(log: Log) -> list[Finding]:
    """Detect a window whose losses are not divided by its length, or whose means are over different numbers of tokens."""
    accumulating = [window for window in windows(log) if window.accumulates() and window.step is not None]
    if len(accumulating) < 2:
        return []
    undivided = [window for window in accumulating if _is_undivided(window)]
    if len(undivided) == len(accumulating):
        window = accumulating[0]
        length = len(window.passes)
        losses = [event for event in window.events if isinstance(event, Loss) and event.grad]
        by_library = not window.passes[0].direct
        own_loop = any(isinstance(e, Batch) and e.at != window.passes[0].at for e in window.events)
        return [
            Finding(
                "accumulation",
                Certainty.CERTAIN,
                f"The gradients of {length} micro-batches are summed, and no loss is divided by {length}: the gradient is "
                f"{length} times that of the full batch.",
                losses[0].at if by_library and losses and not own_loop else window.passes[0].at,
                (
                    f"{len(accumulating)} updates of {length} backward passes each",
                    "what is differentiated is the loss function's mean itself",
                    *(
                        ["a library differentiates it, and leaves the division to the loss"]
                        if by_library
                        else []
                    ),
                ),
                'F.cross_entropy(scores, labels, reduction="sum") / num_items_in_batch   # the trainer hands it to the loss'
                if by_library and not own_loop
                else f"(loss / {length}).backward()",
            )
        ]
    return _divided_twice(accumulating) or _mean_of_means(accumulating)


def never_gathered(log: Log) -> list[Finding]:
    """Detect losses that are divided by the number of micro-batches to be gathered, each of which has a step of its own."""
    for optimizer in log.optimizers:
        mine = [each for each in windows(log) if each.optimizer == optimizer.id and each.step is not None]
        divided = [each for each in mine if any(isinstance(e, DividedForWindow) for e in each.events)]
        divisions = (e for window in divided for e in window.events if isinstance(e, DividedForWindow))
        numbers = {(each.name, each.number) for each in divisions}
        if len(divided) < LEAST_WINDOWS or len(numbers) != 1 or any(len(each.passes) > 1 for each in mine):
            continue
        name, number = numbers.pop()
        if any(_most_forwards(each) >= number for each in divided):  # one loss of all micro-batches
            continue
        step = divided[0].step
        return [
            Finding(
                "accumulation",
                Certainty.LIKELY,
                f"The loss is divided by `{name}`, {number}, and the optimizer steps after each backward pass: nothing is gathered, and the "
                f"gradient is 1/{number} of that of its rows.",
                "" if step is None else step.at,
                (
                    f"all of {len(mine)} windows have one micro-batch",
                    f"it is divided before {divided[0].passes[0].at}",
                ),
                f"if (index + 1) % {name} == 0:\n    optimizer.step()\n    optimizer.zero_grad()",
            )
        ]
    return []


def _most_forwards(window: Window) -> int:
    """Return how often the model that ran most often with a graph did, in a window."""
    modules = [each.module for each in window.events if isinstance(each, Forward) and each.grad]
    return max(map(modules.count, set(modules)), default=0)


def _divided_twice(accumulating: list[Window]) -> list[Finding]:
    """Return what a mean that is divided by the square of the window's length is: the script divides, and a library again."""
    for window in accumulating:
        length = len(window.passes)
        if not all(each.ratio and abs(each.ratio * length**2 - 1) < DIVIDED for each in window.passes):
            return []
    length = len(accumulating[0].passes)
    return [
        Finding(
            "accumulation",
            Certainty.LIKELY,
            f"The losses of {length} micro-batches are divided by {length} twice: the gradient is 1/{length} of that of the full batch.",
            accumulating[0].passes[0].at,
            (
                f"{len(accumulating)} updates of {length} backward passes each",
                f"what is differentiated is the loss function's mean over {length**2}",
            ),
            "accelerator.backward(loss)   # divides by the number of micro-batches itself",
        )
    ]


def _is_undivided(window: Window) -> bool:
    clips = [each for each in window.events if isinstance(each, Clip)]
    if window.step is not None and window.step.rescaled and not clips:
        return False
    length = len(window.passes)
    if any(abs(each.changed * length - 1) < DIVIDED for each in clips):
        return False  # the gradients themselves were divided, before they were clipped
    return all(
        each.ratio == 1.0 or (each.ratio is None and each.graph.startswith(_UNDIVIDED_MEANS))
        for each in window.passes
    )


def _mean_of_means(accumulating: list[Window]) -> list[Finding]:
    """Return what windows are whose means are over different numbers of labels; rows of like lengths differ by chance, and even out."""
    uneven = []
    for window in accumulating:
        losses = [e for e in window.events if isinstance(e, Loss) and e.grad and e.tokens and e.mean]
        counts = [loss.counted for loss in losses]
        if any(loss.ignored for loss in losses) and len(counts) == len(window.passes):
            uneven.append((max(counts) / max(min(counts), 1), losses[0].at, counts))
    if not uneven:
        return []
    usual = median(ratio for ratio, _, _ in uneven)
    worst, at, counts = max(uneven)
    if worst <= UNEVEN:
        return []
    return [
        Finding(
            "accumulation",
            Certainty.LIKELY if usual >= FAR_UNEVEN else Certainty.WORTH_A_LOOK,
            "The means of micro-batches with different numbers of tokens are averaged: tokens of short "
            "micro-batches weigh more.",
            at,
            (f"labels that count in one window: {', '.join(map(str, counts))}",),
            'loss = F.cross_entropy(logits, labels, reduction="sum") / labels_in_the_whole_window',
        )
    ]


def last_window(log: Log) -> list[Finding]:
    """Detect epochs that end in micro-batches which have been differentiated, and no step follows."""
    accumulating = [window for window in windows(log) if window.accumulates()]
    lengths: dict[int, list[int]] = {}
    steps_at: dict[int, str] = {}
    for window in accumulating:
        if window.step is not None:
            lengths.setdefault(window.optimizer, []).append(len(window.passes))
            steps_at.setdefault(window.optimizer, window.step.at)
    for window in windows(log):
        whole = lengths.get(window.optimizer, [])
        if not whole or not window.passes or len({each.at for each in window.passes}) > 1:
            continue
        if any(each.in_step for each in window.passes):  # of a closure, whose last evaluation ends a step
            continue
        usual = max(set(whole), key=whole.count)
        line = steps_at[window.optimizer]  # it is the step that comes too rarely
        evidence = (
            f"windows have {usual} micro-batches",
            f"the last of them are differentiated at {window.passes[-1].at}",
        )
        fix = "if (index + 1) % accumulate == 0 or index + 1 == len(loader):\n    optimizer.step()\n    optimizer.zero_grad()"
        if window.step is None and len(window.passes) < usual and (log.whole or _ends_epoch(window)):
            what = f"The last {len(window.passes)} micro-batches of an epoch are differentiated, and no step uses them."
            return [Finding("last_window", Certainty.LIKELY, what, line, evidence, fix)]
        carried = _carried_over(window)
        if carried and window.step is not None:
            what = f"The last {carried} micro-batches of an epoch are added to the first of the next."
            return [Finding("last_window", Certainty.LIKELY, what, line, evidence, fix)]
    return []


def _ends_epoch(window: Window) -> bool:
    return any(isinstance(event, EpochEnd) for event in window.events)


def _carried_over(window: Window) -> int:
    """Return how many backward passes lie before an epoch's end that others of the same window follow with new batches."""
    ends = [place for place, event in enumerate(window.events) if isinstance(event, EpochEnd)]
    mine = {id(each) for each in window.passes}
    for end in ends:
        before = sum(id(event) in mine for event in window.events[:end])
        after = window.events[end:]
        loader = after[0].loader if isinstance(after[0], EpochEnd) else 0
        fresh = [p for p, event in enumerate(after) if isinstance(event, Batch) and event.loader == loader]
        if before and fresh and any(id(event) in mine for event in after[fresh[0] :]):
            return before
    return 0


def clip_after_step(log: Log) -> list[Finding]:
    """Detect gradients that are clipped after the step that used them, and cleared before the next."""
    clips = list(log.of(Clip))
    late = [clip for clip in clips if clip.late]
    if len(late) < 2 or len(late) < len(clips) - 1:
        return []
    return [
        Finding(
            "clip_after_step",
            Certainty.CERTAIN,
            f"{len(late)} of {len(clips)} times gradients are clipped after the optimizer has used them: no update is limited.",
            late[0].at,
            (f"first after update {late[0].update}",),
            "loss.backward()\ntorch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)\noptimizer.step()",
        )
    ]


def foreign_gradients(log: Log) -> list[Finding]:
    """Detect gradients that another optimizer's loss has left, and that an optimizer uses with those of its own loss."""
    mine = [window for window in windows(log) if window.step is not None]
    for optimizer in dict.fromkeys(window.optimizer for window in mine):
        own = [window for window in mine if window.optimizer == optimizer]
        left = [each for each in map(_left_by_another, own) if each is not None]
        if len(left) >= LEAST_WASTED and len(left) == len(own):
            other, used = left[0]
            return [
                Finding(
                    "zero_grad",
                    Certainty.LIKELY,
                    f"In {len(left)} updates an optimizer uses the gradients that another one's loss has left, added to those of its own loss.",
                    used.at,
                    (
                        f"the other loss is differentiated at {other.at}, and the other optimizer has stepped on it",
                    ),
                    "fake = generator(noise)\nd_loss = criterion(discriminator(fake.detach()), zeros)   # or g_optimizer.zero_grad() before g_loss.backward()",
                )
            ]
    return []


def _left_by_another(window: Window) -> tuple[Backward, Backward] | None:
    """Return a pass whose gradients another optimizer has used before the window's last pass added to them, and that pass."""
    if len(window.passes) < 2 or window.passes[0].at == window.passes[-1].at:
        return None
    first, last = window.passes[0], window.passes[-1]
    others = (set(first.touched) & set(last.touched)) - {window.optimizer}
    events = window.events
    start, end = (next(place for place, e in enumerate(events) if e is each) for each in (first, last))
    between = any(isinstance(each, Step) and each.optimizer in others for each in events[start:end])
    return (first, last) if between else None


def graph_in_evaluation(log: Log) -> list[Finding]:
    """Detect passes in evaluation mode whose graphs nothing is ever differentiated through, of a model that is trained in training mode.

    Passes whose graphs may yet be used in the update that follows are left out, as are those that teach another model, and those of
    fewer rows than a batch of the training has cost little.
    """
    lines: dict[str, list[GraphUnused]] = {}
    for event in log.of(GraphUnused):
        if log.whole or event.update < log.updates:
            lines.setdefault(event.at, []).append(event)
    for at, seen in lines.items():
        learned = [e.rows for e in log.of(Forward) if e.module == seen[0].model and e.grad and e.training]
        if len(seen) < LEAST_PASSES or len(learned) < LEAST_PASSES or _teaches(log, seen):
            continue
        rows, batch = int(median(each.rows for each in seen)), int(median(learned))
        return [
            Finding(
                "graph_in_evaluation",
                Certainty.LIKELY if rows >= batch else Certainty.WORTH_A_LOOK,
                f"{len(seen)} passes in evaluation mode record a graph that nothing is differentiated through: what each layer gave is held for it.",
                at,
                (f"{rows} rows each; a batch of the training has {batch}",),
                "with torch.no_grad():   # or torch.inference_mode()\n    scores = model(rows)",
            )
        ]
    return []


def _teaches(log: Log, passes: list[GraphUnused]) -> bool:
    """Return whether others are updated between two passes of a model, and it is not."""
    for first, second in pairwise(passes):
        between = log.events[first.place : second.place]
        own = any(
            isinstance(e, Forward) and e.module == first.model and e.grad and e.training for e in between
        )
        if not own and any(isinstance(each, Step) for each in between):
            return True
    return False


DETECTORS = (
    clip_after_step,
    zero_grad,
    foreign_gradients,
    accumulation,
    never_gathered,
    last_window,
    graph_in_evaluation,
)
