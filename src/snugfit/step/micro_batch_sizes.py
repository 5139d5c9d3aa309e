"""A window in the memory there is: the sizes of micro-batches, and what is done when memory runs out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from snugfit.core.batch import Batch, split
from snugfit.core.gradients import Gradients
from snugfit.core.selection import exclusion
from snugfit.core.technique import Family, Stage
from snugfit.errors import OutOfMemory, SettingError
from snugfit.step.step_views import SplitStep
from snugfit.system.memory import is_out_of_memory, release_memory
from snugfit.techniques import discover

BATCH_NORM = "the model has batch norm, whose statistics are those of a micro-batch, so that its size is part of what is learned"


class Replan(NamedTuple):
    """A window that ran out of memory and was run again: rows of its largest micro-batch `before` and `after`."""

    before: int
    after: int
    reason: str


def is_in_micro_batches(step: SplitStep, window: Batch) -> bool:
    """Return whether a rank's part of a window is computed in several micro-batches."""
    return step.micro_batch is not None and step.micro_batch < window.rows


def sizes(rows: int, at_least: int = 1) -> list[int]:
    """Return the micro-batches that are tried for windows of that many rows: its divisors and the powers of two, the largest first.

    >>> sizes(12)
    [12, 8, 6, 4, 3, 2, 1]
    >>> sizes(7, at_least=2)
    [7, 4, 2]
    """
    powers = {1 << place for place in range(rows.bit_length())}
    divisors = {size for size in range(1, rows + 1) if rows % size == 0}
    return sorted((size for size in powers | divisors if size >= min(at_least, rows)), reverse=True)


def cut(rows: int, micro_batch: int | None, group: int = 1, paired: bool = False) -> list[range]:
    """Return the micro-batches of a window; `paired` leaves no row alone, for batch norm, which has no statistics of a single one.

    >>> cut(7, 2, paired=True)
    [range(0, 3), range(3, 5), range(5, 7)]
    """
    parts = split(rows, micro_batch, group)
    if paired and len(parts) > 1 and min(map(len, parts)) == 1:
        return split(rows, -(-rows // (len(parts) - 1)), group)
    return parts


def legal_sizes(step: SplitStep, rows: int, group: int = 1) -> list[int]:
    """Return the micro-batches that a step may take for windows of that many rows, the largest first."""
    if step.whole_windows:
        return [rows]
    return sizes(rows, max(group, 2 if step.has_batch_norm else 1))


def check_whole(step: SplitStep, window: Batch) -> None:
    """Refuse a split, into micro-batches or over ranks, that would show the loss a part of what it compares.

    Raises:
        SettingError: names the loss's remedy.
    """
    if not step.whole_windows:
        return
    size = min(window.rows, step.micro_batch or window.rows)
    if window.total > size:
        parts = "micro-batches" if window.total == window.rows else "ranks"
        raise SettingError(
            "loss",
            f"compares the rows of a window with each other, and {parts} of {size} would show it parts of the "
            f"{window.total} rows: fewer negatives, another gradient",
            f"Add the technique {coupling_techniques()}, or take the window whole.",
        )


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


def coupling_techniques() -> str:
    """Return the techniques that compute a loss over the whole window from parts of it."""
    techniques = discover().items()
    return " or ".join(f"'{name}'" for name, each in techniques if Stage.COUPLING in each.card.stages)


def _examples(count: int) -> str:
    return f"{count} {'example' if count == 1 else 'examples'}"
