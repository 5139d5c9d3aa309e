"""The doctor's findings, and the pitfalls that it knows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any

LEAST_ENDS = 8
"""Tokens that end a text or a turn, below which it says little that none of them is scored."""
LARGE_LEAK = 0.1
"""Rows to validate on that are trained on, from which share on a split is wrong for certain."""


class Certainty(StrEnum):
    """Degree of certainty that a training goes wrong: nothing but a fault explains what is there; it is one in most trainings; it may be meant."""

    CERTAIN = "certain"
    LIKELY = "likely"
    WORTH_A_LOOK = "worth a look"


@dataclass(frozen=True)
class Finding:
    """A pitfall with its place.

    Args:
        pitfall: its id, of `PITFALLS`.
        what: what is wrong, in a sentence with its numbers.
        where: file and line, parameter, column, or setting.
        evidence: what was seen: numbers, names, lines of code.
        fix: what to write instead, as code where that says it best.
        way: of a script, up to three of its lines, from the one that causes it, `where`, to the one at which it was seen; empty where both are one.
    """

    pitfall: str
    certainty: Certainty
    what: str
    where: str = ""
    evidence: tuple[str, ...] = ()
    fix: str = ""
    way: tuple[str, ...] = ()

    @property
    def details(self) -> tuple[str, ...]:
        """Return what is said of it below its sentence: the way from where it is caused to where it was seen, and what was seen.

        >>> Finding("shifted_labels", Certainty.CERTAIN, "alike", "data.py:8", way=("data.py:8", "train.py:5", "train.py:9")).details
        ('caused at data.py:8, by way of train.py:5, seen at train.py:9',)
        """
        if not self.way:
            return self.evidence
        between = "".join(f", by way of {each}" for each in self.way[1:-1])
        return f"caused at {self.way[0]}{between}, seen at {self.way[-1]}", *self.evidence

    def as_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return {**asdict(self), "certainty": str(self.certainty), "title": PITFALLS[self.pitfall]}


def is_ill(findings: Sequence[Finding]) -> bool:
    """Return whether something is wrong for certain or likely."""
    return any(each.certainty is not Certainty.WORTH_A_LOOK for each in findings)


PITFALLS: dict[str, str] = {
    "zero_grad": "gradients are not cleared between updates, or are cleared before they are used",
    "train_mode": "the model trains in evaluation mode, or is evaluated in training mode",
    "scheduler_order": "the schedule is stepped before the optimizer, or without it",
    "clip_before_unscale": "gradients are clipped while they still carry the loss scale",
    "accumulation": "accumulated gradients are not those of the full batch",
    "last_window": "the last, partial window of an epoch is dropped or carried over",
    "shared_module": "a module without weights is used in several places",
    "no_gradient": "a parameter that trains gets no gradient, or never moves",
    "frozen_moves": "a frozen parameter moves",
    "not_in_optimizer": "a parameter that trains is not in the optimizer",
    "twice_in_optimizer": "a parameter is in the optimizer twice",
    "decay_on_vectors": "weight decay on biases and norms",
    "bf16_in_fp16": "weights that were pretrained in bfloat16 are tuned in float16",
    "emulated_bf16": "bfloat16 on a device that only emulates it",
    "averaged_not_saved": "the averaged weights are scored, the raw ones are saved",
    "unscaled_inputs": "inputs are not normalised",
    "bias_before_norm": "a bias before a norm that takes it away",
    "batch_norm": "batch norm under accumulation or in tiny micro-batches",
    "special_tokens": "special tokens are doubled or missing",
    "truncation": "texts are cut",
    "shifted_labels": "labels are shifted twice, or not at all",
    "ignored_labels": "labels are ignored, all or nearly all",
    "leakage": "training rows are in the validation data",
    "imbalance": "classes of very different size",
    "unknown_label": "labels that the model does not know",
    "not_distributed": "every rank sees the same rows, or DataParallel is used",
    "starving": "the data loader starves the device",
    "softmax_twice": "softmax before cross-entropy",
    "group_holes": "parameters that were unfrozen later are in no group of the optimizer",
    "pickle": "a checkpoint by pickle",
    "schedule_length": "the schedule's length ignores accumulation, ranks or limits",
    "learning_rate": "a learning rate out of all proportion to the weights",
    "never_evaluated": "nothing is evaluated, or too late to matter",
    "duplicates": "the same row several times",
    "wrong_encoding": "texts that were decoded with another encoding than their own",
    "rare_labels": "labels that are no classes, or classes of one row",
    "label_spelling": "one class in several spellings",
    "empty_rows": "rows that hold nothing to learn from",
    "skipped_windows": "windows that were skipped, because something in them was not finite",
    "clip_after_step": "gradients are clipped after the step that used them",
    "nothing_restored": "a checkpoint of which no entry fits the model",
    "sorted_classes": "the rows come class by class",
    "never_stepped": "an optimizer whose parameters get gradients never steps",
    "non_finite_loss": "the loss is not finite, and training goes on",
    "broadcast_loss": "predictions and targets are broadcast to more than there are of each",
    "unreachable_targets": "targets that the predictions cannot give",
    "wrong_scores": "a loss gets scores of another kind than it takes",
    "scored_padding": "labels of padding count",
    "unmasked_padding": "padding is read as text",
    "end_never_scored": "a token that ends a text or a turn is never scored",
    "debugging_left_on": "anomaly mode or a profiler is left on",
    "device_reads": "a number is read from the device in every micro-batch",
    "wrong_axis": "a softmax, a reshape or an argmax on another axis than that of the classes",
    "unscaled_targets": "targets on another scale than the predictions",
    "target_gradients": "a target that is computed by the model that learns, with its gradient",
    "growing_graph": "graphs of earlier updates are held, and memory grows",
    "graph_in_evaluation": "an evaluation records graphs that nothing is differentiated through",
    "partial_resume": "a checkpoint is resumed in part",
    "random_validation": "the validation is augmented at random",
    "other_statistics": "inputs are scaled for the training and not for the evaluation, or the other way round",
    "batch_mean_scores": "a score is the mean of batches of unequal size",
    "range_test_kept": "a range test of the learning rate leaves its weights",
    "best_not_copied": "weights that are kept are the model's own, which were never copied",
    "not_frozen": "an attribute that freezes nothing",
    "sees_the_future": "a model that learns the next token reads it",
    "unready_norm": "a norm is evaluated with statistics of other weights",
    "reseeded": "random numbers begin anew in each epoch",
    "optimizer_rebuilt": "an optimizer is made anew in each epoch, and forgets its moments",
    "worker_seeds": "the workers of a loader draw the same random numbers",
    "mismatched_rows": "inputs and targets of different rows",
    "stale_state": "a recurrent layer begins with the state of other rows",
    "average_stands_still": "an average that never moves, or that averages nothing",
    "average_kept": "the average that is evaluated stays in the model, which goes on to learn from it",
    "loss_terms": "a sum over the rows is added to a mean over them",
    "last_batch_score": "the loss of the last batch is taken for that of all",
    "unused_class": "labels are counted from 1, and class 0 is none",
    "recompute_draws": "activations are computed again with other random numbers",
    "ranks_differ": "ranks that exchange gradients have different weights",
    "plateau_metric": "a schedule, an early stop or a best checkpoint takes a score the wrong way round",
    "average_and_best": "a best checkpoint or early stopping is combined with averaging at the end",
    "stepped_twice": "an optimizer steps twice on the same gradients",
    "rows_left_out": "rows that the sampler never draws",
    "constant_term": "a term of the loss has no gradient",
    "term_left_out": "a term is added to a loss of which another term alone is differentiated",
    "summed_loss": "a sum over the rows is learned at a rate for their mean",
    "own_row_scored": "a row's likeness to itself is scored as one to another row",
    "best_overwritten": "the checkpoint of the best is written whatever the score",
    "idle_adapter": "adapters that train nothing",
    "dropped_columns": "columns that the trainer leaves out, and that are to be learned from",
    "dropped_units": "nearly all units are dropped",
    "ends_left_out": "values of an agent go on behind the end of an episode",
    "wrong_sign": "something of the loss is learned the wrong way round",
    "read_two_ways": "one output of the model is read in two ways that contradict each other",
    "padding_side": "a text is generated behind its padding",
    "no_activation": "two linear layers with nothing between them, which are one",
    "late_weights": "weights of rows are multiplied with a loss that is one number already",
    "unscaled_half": "gradients of float16 without a loss scale, where small ones vanish",
    "equal_units": "all units of a layer begin alike and learn alike, which makes them one",
}
"""What the doctor knows, by id."""

_OF_THE_RATE = (
    "zero_grad",
    "accumulation",
    "stepped_twice",
    "summed_loss",
    "wrong_scores",
    "unscaled_inputs",
    "unscaled_targets",
    "clip_after_step",
    "clip_before_unscale",
)
CAUSES: dict[str, tuple[str, ...]] = {
    "no_gradient": (
        "zero_grad",
        "never_stepped",
        "not_in_optimizer",
        "term_left_out",
        "idle_adapter",
        "ignored_labels",
        "wrong_scores",
        "wrong_axis",
        "nothing_restored",
    ),
    "learning_rate": (*_OF_THE_RATE, "schedule_length"),
    "non_finite_loss": (
        "unreachable_targets",
        "learning_rate",
        "ignored_labels",
        "unknown_label",
        "bf16_in_fp16",
        "unscaled_half",
        *_OF_THE_RATE,
    ),
    "skipped_windows": ("learning_rate", "ignored_labels", "bf16_in_fp16", "unscaled_half"),
    "scheduler_order": ("never_stepped",),
    "ignored_labels": ("truncation", "dropped_columns"),
    "end_never_scored": ("ignored_labels", "truncation"),
    "imbalance": ("rows_left_out", "label_spelling", "unknown_label"),
    "unused_class": ("rows_left_out",),
    "leakage": ("duplicates",),
    "ranks_differ": ("not_distributed",),
    "averaged_not_saved": ("average_stands_still",),
    "batch_norm": ("frozen_moves",),
}
"""What a pitfall may follow from."""


def in_order(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """Return findings each once, the surest first, and before each those that it may follow from, which it says.

    A cause stands where the surest of what follows from it would.

    >>> late = Finding("no_gradient", Certainty.CERTAIN, "none moves")
    >>> cause = Finding("zero_grad", Certainty.LIKELY, "cleared before the step", "train.py:7")
    >>> [(each.pitfall, each.evidence) for each in in_order([late, cause])]
    [('zero_grad', ()), ('no_gradient', ('may follow from zero_grad, at train.py:7',))]
    """
    grades = list(Certainty)
    once = list(dict.fromkeys(findings))
    sure = {each.pitfall: each for each in reversed(once) if each.certainty is not Certainty.WORTH_A_LOOK}
    present = {each.pitfall for each in once}
    causes = {
        name: [each for each in CAUSES.get(name, ()) if each in sure and each != name] for name in present
    }

    def behind(name: str) -> int:
        return max((1 + behind(cause) for cause in causes[name]), default=0)

    def grade(finding: Finding) -> int:
        following = [
            each
            for each in once
            if finding.pitfall in causes[each.pitfall] and sure[finding.pitfall] is finding
        ]
        return min([grades.index(finding.certainty), *map(grade, following)])

    ordered = sorted(once, key=lambda each: (grade(each), behind(each.pitfall)))
    causing = {name: next((sure[each] for each in causes[name]), None) for name in present}
    return tuple(_after(each, causing[each.pitfall]) for each in ordered)


def _after(finding: Finding, cause: Finding | None) -> Finding:
    """Return a finding that says once what it may follow from."""
    sentence = "" if cause is None else f"may follow from {cause.pitfall}, at {cause.where}"
    if cause is None or not cause.where or sentence in finding.evidence:
        return finding
    return replace(finding, evidence=(*finding.evidence, sentence))
