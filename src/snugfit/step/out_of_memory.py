"""A window that runs out of memory is made again in smaller micro-batches; where none is left, what may help is said."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from snugfit.core.batch import Batch
from snugfit.core.gradients import Gradients
from snugfit.core.selection import exclusion
from snugfit.core.technique import Family
from snugfit.errors import OutOfMemory
from snugfit.step.micro_batch_sizes import BATCH_NORM, coupling_techniques, cut, legal_sizes
from snugfit.step.step_views import SplitStep
from snugfit.system.memory import is_out_of_memory, release_memory
from snugfit.techniques import discover


class Replan(NamedTuple):
    """A window that ran out of memory and was run again: rows of its largest micro-batch `before` and `after`."""

    before: int
    after: int
    reason: str


def within_memory(
    step: SplitStep, window: Batch, compute: Callable[[], Gradients]
) -> tuple[Gradients, tuple[Replan, ...]]:
    """Return what `compute` gives; whenever it runs out of memory the step's micro-batch is made finer and it is asked again.

    Args:
        compute: leaves nothing behind where it raises.
    Raises:
        OutOfMemory: no finer micro-batch is left, or the window cannot be computed again.
    """
    replans: list[Replan] = []
    while True:
        try:
            return compute(), tuple(replans)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            reason = first_line(error)
        # only here, behind the handler, is the error gone, and with it the activations that its traceback held
        release_memory(step.device)
        replans.append(_finer(step, window, reason))


def check_update_memory(step: SplitStep, error: Exception) -> None:
    """Report an error of memory as one of the update itself, which is not tried again; others are not looked at.

    Part of the weights may have their new values, and what it needs no split of the window makes less.

    Raises:
        OutOfMemory: memory ran out.
    """
    if is_out_of_memory(error):
        raise OutOfMemory(
            f"memory ran out in the update itself, after forward and backward ({first_line(error)}). Weights, gradients and the "
            "optimizer's state take the same room whatever plan.micro_batch is. Part of the weights may have been updated: go on "
            f"from the state that was saved last. {advice(step.seams.names)}"
        ) from error


def first_line(error: BaseException) -> str:
    """Return what an error says first."""
    return (str(error).partition("\n")[0].strip() or type(error).__name__).rstrip(".")


def advice(used: Sequence[str]) -> str:
    """Return the techniques that save memory and may be tried where nothing fits, but for those that it has.

    Those that leave the result as it is come first.
    """
    techniques = discover()
    cards = [techniques[name].card for name in used if name in techniques]
    saving = [
        technique.card
        for name, technique in techniques.items()
        if technique.card.saves_memory
        and not any(card.name == name or exclusion(card, technique.card) for card in cards)
    ]
    if not saving:
        return "Give smaller examples, or a smaller model."
    same = ", ".join(f"'{card.name}'" for card in saving if card.family is Family.PLACEMENT)
    other = ", ".join(f"'{card.name}'" for card in saving if card.family is not Family.PLACEMENT)
    choices = [f"{same} (the result stays)" if same else "", f"{other} (it changes)" if other else ""]
    return (
        f"Give smaller examples, a smaller model, or one of the techniques that may make it fit: {'; '.join(filter(None, choices))}. "
        "snugfit techniques NAME says what each does and costs."
    )


def describe(replan: Replan, batch_norm: bool = False) -> str:
    """Return a replan in words, to be read after the name of the window."""
    text = (
        f"ran out of memory with {_examples(replan.before)} in a micro-batch ({replan.reason}). It was run again with "
        f"{replan.after} at most, and so are those that follow"
    )
    return f"{text}; {BATCH_NORM}" if batch_norm else text


def _finer(step: SplitStep, window: Batch, reason: str) -> Replan:
    before, rows = step.largest, window.rows
    problem = f"plan.micro_batch: memory ran out with {_examples(before)} of the window's {rows} in a micro-batch ({reason})"
    alone = step.strategy.world_size == 1
    if step.handed and alone:
        raise OutOfMemory(
            f"{problem}, after part of the weights had been updated by their gradients, so that the window cannot be run again. Lower "
            "plan.micro_batch, and go on from the state that was saved last."
        )
    if step.coupling:
        raise OutOfMemory(
            f"{problem}, and '{step.coupling[0]}' makes each example's loss depend on the others of its micro-batch, so that its size is "
            f"part of what is learned. Lower plan.micro_batch yourself, or remove '{step.coupling[0]}'."
        )
    if step.whole_windows:
        raise OutOfMemory(
            f"{problem}, and the loss compares the rows of a window with each other, so that it is not cut. Add the technique "
            f"{coupling_techniques()}, or lower train.global_batch."
        )
    for after in legal_sizes(step, rows, step.group):
        largest = max(map(len, cut(rows, after, step.group, step.has_batch_norm)))
        if after < before and largest < before:
            if not alone:  # the others wait in an exchange
                raise OutOfMemory(
                    f"{problem}, and the ranks of a run split their windows alike. Go on from the newest checkpoint with "
                    f"plan.micro_batch={after}.",
                    finer=after,
                )
            step.micro_batch = after
            return Replan(before, after, reason)
    raise OutOfMemory(f"{problem}, and it cannot be split finer. {advice(step.seams.names)}")


def _examples(count: int) -> str:
    return f"{count} {'example' if count == 1 else 'examples'}"
