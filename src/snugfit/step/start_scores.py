"""Scores of all rows by the model as it is before its first update, kept beside the rows.

Where new adapters alone train, the first model is the one with its adapters off, and nothing is kept. Otherwise its scores are two numbers a
row, where a second model would take the memory of the first again. They are written into the run's folder: computed anew on another
machine, or in other micro-batches, they would differ in their last bits, and a run that goes on would not be the one that was not stopped.
"""

from __future__ import annotations

import hashlib
import itertools
import math
from array import array
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from snugfit.core.batch import LABELS, Batch, shared_out
from snugfit.core.losses import LOG_PROBABILITIES
from snugfit.core.random import preserved_randomness
from snugfit.core.scalar_reads import read
from snugfit.data.order import longest_that_fit
from snugfit.data.stream import streamed
from snugfit.errors import OutOfMemory, RunFolderError, SettingError
from snugfit.kit.adapters.adapters import adapter_parameters, adapters_off
from snugfit.kit.losses.preference_losses import REFERENCE
from snugfit.kit.phases import phase
from snugfit.kit.precision.product_rounding import products_as_chosen
from snugfit.results.run_folder import START_SCORES
from snugfit.step.metrics.answer_scores import AnswerScores
from snugfit.step.out_of_memory import first_line
from snugfit.system.memory import is_out_of_memory, release_memory
from snugfit.units import counted

if TYPE_CHECKING:
    from snugfit.core.job import Train
    from snugfit.results.run_folder import RunFolder
    from snugfit.step.build import Material
    from snugfit.step.step import Step

Scores = list[list[float]]
"""Log-probabilities of both sequences of each row."""

_SAME = 1e-4
"""The rounding of adapters that change nothing yet: most add or multiply by nothing, DoRA divides by what it multiplies by."""


def fill_start_scores(
    step: Step,
    material: Material,
    *,
    train: Train | None = None,
    folder: RunFolder | None = None,
    tell: Callable[[str], object] = lambda _: None,
) -> None:
    """Give each example the scores of the model as it is, where no adapters can be switched off.

    For a loss that compares with them (`Material.compares_start`). All ranks call this before the first update, or before a checkpoint is loaded; each scores a part of the rows. Examples that have their
    scores keep them.

    Args:
        train: says how many rows a window has at most, where it is in tokens.
        folder: where they are written, or read if a run goes on there.
        tell: is told what is being done.
    Raises:
        OutOfMemory: a single row is too much.
        SettingError: rows are read as a stream.
    """
    assert isinstance(material.forward, AnswerScores)
    forward = material.forward
    if streamed(material.train) is not None:
        if _trains_adapters(step) and _begins_without_them(step, material, forward, [material.train[0]]):
            return
        raise not_of_streams()
    examples = [
        side[place] for side in (material.train, material.validation or ()) for place in range(len(side))
    ]
    rows_are_here = all(
        isinstance(each, dict) for each in examples
    )  # else whoever has them hands windows over
    if not rows_are_here or all(REFERENCE in example for example in examples):
        return
    at_once = step.micro_batch or int(step.nominal)
    if step.micro_batch is None and train is not None and train.batch_tokens is not None:
        at_once = longest_that_fit(train, examples)
    if _trains_adapters(step) and _begins_without_them(step, material, forward, examples[:1]):
        return
    key = _digest(examples)
    strategy = step.strategy
    (stored, *_) = strategy.tell(_read(folder, key, len(examples)) if strategy.rank == 0 else None)
    scores: Scores
    if stored is not None:
        scores = stored
    else:
        tell(f"scoring {counted(len(examples), 'row')} with the model as it is before the first update")
        scores = _scored_by_ranks(step, material, forward, examples, at_once)
        if folder is not None and strategy.rank == 0:
            folder.write_json(START_SCORES, {"examples": key, LOG_PROBABILITIES: scores})
    for example, own in zip(examples, scores, strict=True):
        example[REFERENCE] = own


def not_of_streams() -> SettingError:
    """Return the refusal of a loss that needs scores of all rows, which are read as a stream."""
    return SettingError(
        "data.stream",
        "reads some rows at a time, and the loss compares the model with itself before its first update, by scores of all rows",
        "Train new adapters alone (techniques: [lora]), which are switched off for that; or use loss: orpo, or leave it out.",
    )


def _trains_adapters(step: Step) -> bool:
    """Return whether adapters alone train: what they stand beside is frozen, and stays so."""
    trained = {parameter for parameter in step.model.parameters() if parameter.requires_grad}
    return trained <= adapter_parameters(step.model)


def _begins_without_them(
    step: Step, material: Material, forward: AnswerScores, examples: Sequence[Any]
) -> bool:
    """Return whether the model with its adapters off is the one that it is: not where an adapter that has learned something goes on."""
    with_them = _scored(step, material, forward, examples, len(examples))
    with adapters_off(step.model):
        without = _scored(step, material, forward, examples, len(examples))
    pairs = zip(*(itertools.chain.from_iterable(each) for each in (with_them, without)), strict=True)
    apart = any(not math.isclose(one, other, rel_tol=_SAME) for one, other in pairs)
    return not any(step.strategy.counts(int(apart)))


def _scored_by_ranks(
    step: Step, material: Material, forward: AnswerScores, examples: Sequence[Any], at_once: int
) -> Scores:
    strategy = step.strategy
    parts = shared_out(len(examples), strategy.world_size)
    own = parts[strategy.rank]
    # all gather weights for each pass: those with fewer rows score one of them once more
    rows = [
        examples[own.start + place] if place < len(own) else examples[0] for place in range(len(parts[0]))
    ]
    scores = _scored(step, material, forward, rows, at_once)[: len(own)]
    return [each for of_rank in strategy.tell(scores) for each in of_rank]


def _scored(
    step: Step, material: Material, forward: AnswerScores, examples: Sequence[Any], size: int
) -> Scores:
    assert material.collate is not None
    scores: Scores = []
    with phase("reference"), preserved_randomness(step.device), products_as_chosen(step.device):
        while len(scores) < len(examples):
            batch = Batch.of(material.collate(list(examples[len(scores) : len(scores) + size]))).to(
                step.device
            )
            try:
                with step.strategy.score(step.model), step.seams.forward(batch):
                    numbers = read(
                        forward.start_scores(step.model, batch.data).float(),
                        assume=[[0.0, 0.0]] * batch.rows,
                    )
                scores += numbers
                continue
            except Exception as error:
                if not is_out_of_memory(error) or step.strategy.world_size > 1:
                    raise
                reason = first_line(error)
            if size == 1:
                raise OutOfMemory(
                    f"plan.micro_batch: memory ran out in scoring a single example with the model as it is before the first update ({reason}). "
                    "Give smaller examples, or a smaller model."
                )
            size = -(-size // 2)
            release_memory(step.device)  # behind the handler, where the error holds nothing any more
    return scores


def _digest(examples: Sequence[Any]) -> str:
    """Return the sha256 of the tokens of all examples."""
    hasher = hashlib.sha256()
    for example in examples:
        for name in ("input_ids", LABELS):
            for tokens in example[name]:
                hasher.update(array("q", [len(tokens), *tokens]).tobytes())
    return hasher.hexdigest()


def _read(folder: RunFolder | None, key: str, count: int) -> Scores | None:
    """Return what an earlier process of the run has written for the same examples; None where there is nothing whole."""
    if folder is None or not (folder.path / START_SCORES).exists():
        return None
    try:
        stored = folder.read_json(START_SCORES)
    except RunFolderError:  # it was torn when the machine stopped: the scores are computed again
        return None
    if not isinstance(stored, dict) or stored.get("examples") != key:
        return None
    scores: Scores = stored[LOG_PROBABILITIES]
    return scores if len(scores) == count else None
