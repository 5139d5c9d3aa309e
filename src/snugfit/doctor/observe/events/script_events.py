"""The acts of a script that the detectors read."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Event:
    """Something the script did.

    Args:
        at: file:line of the script's innermost frame, libraries left out.
        update: updates (steps of the optimizer that made most) before it.
    """

    at: str
    update: int


@dataclass(frozen=True)
class Batch(Event):
    """A data loader handed out a batch."""

    loader: int


@dataclass(frozen=True)
class LengthRead(Event):
    """The script itself asked a data loader for its number of batches."""

    loader: int


@dataclass(frozen=True)
class EpochEnd(Event):
    """A data loader came to its end."""

    loader: int


@dataclass(frozen=True)
class Forward(Event):
    """A module that is inside of no other was called.

    Args:
        affected: whether a dropout or batch norm of it is in training mode.
        grad: whether a graph was recorded.
        recalibrates: called to estimate batch norm anew, or to recompute activations.
        rows: size of the batch.
        weights: fingerprint of its weights, for calls without a graph, and for the first with one.
        raw: whether these weights are the ones that the last optimizer step left.
        autocast: dtype of autocast, "" without.
        device: type of the device of its weights.
        native: whether the device computes in that dtype (or in the weights') itself.
        scale: root mean square of its numbers, in the first passes with and without a graph; 0 where they are tokens. `low` and `high` are
            the least and the largest of them.
        put_at: the line that has put other weights into the trained model, for a pass without a graph; "" where none was seen.
        lag: how far the weights are from those of the trained model of the same structure, in the last move of these; -1 where
            that is not known, as of the trained model itself.
        way: which part of the way from the first weights of that model to its last ones these have gone; -1 where that is not known.
        at_rest: whether all that trains of it lies outside of the parts that differ by mode, as the head over a frozen encoder does.
        axes: how many axes its batch has: four of pictures.
    """

    module: int
    training: bool
    affected: bool
    grad: bool
    recalibrates: bool
    rows: int
    weights: str
    raw: bool
    autocast: str
    device: str
    native: bool
    scale: float = 0.0
    lag: float = -1.0
    low: float = 0.0
    high: float = 0.0
    put_at: str = ""
    way: float = -1.0
    at_rest: bool = False
    axes: int = 0


@dataclass(frozen=True)
class Loss(Event):
    """A loss function of torch, or an argmax over scores, was called.

    Args:
        given: what the scores were: "" (anything), "probabilities", "log probabilities", "rectified" (a ReLU made them), "bounded" (a tanh
            did), or, where log-probabilities were asked for, "raw scores"; "logarithms of targets" where the targets are, and were to be
            probabilities.
        mean: whether it averaged.
        counted: labels that count; `ignored` those that do not.
        unknown: the first label outside of the classes, None if all are inside.
        tokens: whether each row has many labels.
        labels: how often each class was a label, for up to 100 classes.
        weighted: whether classes have weights.
        copies: share of the labels that equal the model's input at the same place; -1 after the first updates.
        ignores_first: whether class 0 is the label that does not count.
        ahead: how many places behind the tokens that were read the labels lie, where they are later tokens; 0 else.
        squashed_at: the line of the script that made the scores probabilities by a call; "" where they are none, or a layer made them.
    """

    function: str
    grad: bool
    given: str
    mean: bool
    classes: int
    counted: int
    ignored: int
    unknown: int | None
    tokens: bool
    labels: dict[str, int]
    weighted: bool
    copies: float
    ignores_first: bool = False
    ahead: int = 0
    squashed_at: str = ""


@dataclass(frozen=True)
class Compared(Event):
    """A comparison for equality, after a forward pass without a graph, of two tensors with an entry or more for each of its rows."""


@dataclass(frozen=True)
class Hits(Event):
    """A comparison for equality, after a forward pass without a graph, of two rows of whole numbers or truths.

    Args:
        equal: entries that are equal, of `rows`; `batch` is the size of the forward pass's batch.
    """

    equal: int
    rows: int
    batch: int


@dataclass(frozen=True)
class SklearnScore(Event):
    """A function of scikit-learn scored so many rows; `value` is what it gave, where that is a number."""

    function: str
    rows: int
    value: float = math.nan


@dataclass(frozen=True)
class Backward(Event):
    """Gradients were computed.

    Args:
        ratio: the differentiated value over the mean that the loss function returned; None where they cannot be compared.
        graph: name of the function that made the value, the loss scale left out.
        adds_to: optimizers whose gradients this added to others of the same window.
        touched: optimizers whose gradients it changed.
        finite: whether the differentiated value is a finite number, or none at all.
        anomaly: whether torch's anomaly mode was on.
        value: what was differentiated, without the loss scale; not finite where it is no single number.
        direct: whether the script itself called, not a library.
        in_step: whether an optimizer's step asked for it, by a closure.
        made_at: the line that last set the name of what is differentiated, where that has no graph; "" else.
        stale: whether it added to gradients that an optimizer step has used.
        of_inputs: whether a tensor that is no parameter gets a gradient too, in the first updates.
    """

    ratio: float | None
    graph: str
    adds_to: list[int]
    touched: list[int]
    finite: bool = True
    anomaly: bool = False
    value: float = math.nan
    direct: bool = True
    in_step: bool = False
    made_at: str = ""
    of_inputs: bool = False
    stale: bool = False


@dataclass(frozen=True)
class Broadcast(Event):
    """A comparison of as many predictions as targets, in shapes of which each prediction meets each target."""

    function: str
    predictions: list[int]
    targets: list[int]


@dataclass(frozen=True)
class Unreachable(Event):
    """A loss of numbers got targets outside of what the last activation can give.

    Args:
        activation: the function that made the predictions; it gives `low` to `high`.
        share: of the targets that lie outside.
    """

    function: str
    activation: str
    low: float
    high: float
    share: float


@dataclass(frozen=True)
class ScoresAsLogits(Event):
    """A distribution got probabilities as its logits."""

    function: str


ATTENTION = "scaled_dot_product_attention"
OVER_ROWS = "a softmax"
"""Called so where its axis is that of the rows."""


@dataclass(frozen=True)
class WrongAxis(Event):
    """Something ran over another axis of the scores than the classes.

    Args:
        function: what was called with them.
        what: what is wrong, in words; `fix` the line that would be right.
    """

    function: str
    what: str
    fix: str


@dataclass(frozen=True)
class SeesFuture(Event):
    """The score of a token depends on the tokens behind it, and the label is the first of these."""


@dataclass(frozen=True)
class OutsideDomain(Event):
    """A loss got a target outside of what it takes.

    Args:
        value: one of them; `wanted` what it takes, in words; `fix` the line that makes them fit.
    """

    function: str
    value: float
    wanted: str
    fix: str


@dataclass(frozen=True)
class StaleState(Event):
    """A recurrent layer began with the state that it had at the end of an earlier batch of rows drawn at random."""

    layer: str


@dataclass(frozen=True)
class OtherRows(Event):
    """A loss got inputs of one loader and targets of another, each of which draws its rows in an order of its own."""

    inputs: int
    targets: int


@dataclass(frozen=True)
class MixedApart(Event):
    """The rows of a batch were mixed with others of it, and the targets of so many of them with those of different rows, or by another share."""

    rows: int
    wrong: int


@dataclass(frozen=True)
class LastScore(Event):
    """A loss without a graph was put into a name that the next pass of the loop sets anew, and that is read behind the loop alone.

    Args:
        read_at: the line that reads it.
    """

    name: str
    read_at: str


@dataclass(frozen=True)
class SummedTerm(Event):
    """A term of the value that is differentiated sums over all rows, times `factor`, and another one is their mean."""

    rows: int
    factor: float


@dataclass(frozen=True)
class ScalarMask(Event):
    """The sum over all rows was multiplied by a mask of them, so that each entry got all of it."""


@dataclass(frozen=True)
class LabelColumn(Event):
    """A column of the model's input tells the target of every row of the batch.

    Args:
        column: its place among `columns` of a flattened row.
        exact: it holds the target itself, not one value for each class.
    """

    column: int
    columns: int
    rows: int
    exact: bool


@dataclass(frozen=True)
class UnreadyNorm(Event):
    """A model was evaluated with statistics of norms that do not belong to its weights.

    Args:
        what: which, in words; `fix` the line that makes them fit.
    """

    what: str
    fix: str


@dataclass(frozen=True)
class FarTargets(Event):
    """A loss of numbers got targets much larger than the predictions: root mean squares of both."""

    function: str
    predictions: float
    targets: float


@dataclass(frozen=True)
class TargetGradient(Event):
    """A loss of numbers got targets that are computed from a model's output and a constant, with the graph of that output.

    Args:
        advantage: the logarithms of a policy's probabilities were multiplied by them instead.
    """

    function: str
    advantage: bool = False


@dataclass(frozen=True)
class GraphKept(Event):
    """Graphs of values that were differentiated long ago are held still.

    Args:
        alive: how many of them.
        name: the script's variable that holds them, "" where none was seen.
    """

    alive: int
    name: str


@dataclass(frozen=True)
class Read(Event):
    """The script read a number from a device, outside of a model's forward pass."""

    function: str
    device: str


@dataclass(frozen=True)
class NotANumber(Event):
    """A function gave something that is no number, or has no gradient, and was given numbers alone: rows that are -inf at every place, to a softmax; 0 to a root."""

    function: str


@dataclass(frozen=True)
class InfiniteInput(Event):
    """A model, or its loss, was given something that is infinite, or no number: made at this line, where that was seen."""


@dataclass(frozen=True)
class ZeroGrad(Event):
    """Gradients were cleared; `moved`: the weights have been changed since they were made, in the first updates."""

    optimizers: list[int]
    moved: bool = False


@dataclass(frozen=True)
class Step(Event):
    """An optimizer stepped.

    Args:
        stale: its gradients still contain those that an earlier step used.
        cleared: it had gradients after the last backward, and none is left.
        scaled: its gradients carry the loss scale.
        without: none of its parameters has a gradient.
        rescaled: its gradients were changed between the last backward and now.
        since_clip: their size over what torch's functions left when they clipped them; 1 where none did.
        rate: the largest learning rate of its groups.
        weights: magnitude of some of its parameters, in the first updates and where the loss has grown by far; 0 elsewhere.
        base: the largest rate that a schedule's factors multiply, 0 without a schedule.
    """

    optimizer: int
    stale: bool
    cleared: bool
    scaled: bool
    without: bool
    rescaled: bool
    since_clip: float = 1.0
    rate: float = 0.0
    weights: float = 0.0
    base: float = 0.0


@dataclass(frozen=True)
class OptimizerBuilt(Event):
    """An optimizer got its first parameters."""

    optimizer: int


@dataclass(frozen=True)
class Seed(Event):
    """The random numbers of torch began anew at a seed, and an optimizer step followed that had drawn from them."""

    seed: int


@dataclass(frozen=True)
class RankWeights(Event):
    """A rank's weights before a step of an optimizer: a fingerprint, and how many elements and parameters they have."""

    optimizer: int
    weights: str
    forms: list[int]


@dataclass(frozen=True)
class ScalerStep(Event):
    """A gradient scaler was asked to step an optimizer: it may refuse."""

    optimizer: int


@dataclass(frozen=True)
class Clip(Event):
    """Gradients were clipped to `limit` by torch's functions.

    Args:
        scaled: they carried the loss scale.
        late: the last step had used them already.
        changed: their size over that after the last backward pass, where the update was looked at closely; 1 where not.
    """

    scaled: bool
    scale: float
    limit: float
    late: bool = False
    changed: float = 1.0


@dataclass(frozen=True)
class Rescale(Event):
    """Gradients that carry the loss scale were changed after the backward pass, by other than torch's functions.

    Args:
        norm_before, norm: of those that were changed, together, and then `largest_before`, `largest`: their largest absolute value.
    """

    optimizer: int
    scale: float
    norm_before: float
    norm: float
    largest_before: float
    largest: float


@dataclass(frozen=True)
class Capped(Event):
    """Gradients that carry the loss scale came out of a backward pass with one largest absolute value in several weights, and many numbers of it.

    Args:
        largest: that value; `share` of the numbers that are not 0 have it, in `weights` of the optimizer's.
    """

    optimizer: int
    scale: float
    largest: float
    share: float
    weights: int


@dataclass(frozen=True)
class ScheduleStep(Event):
    """A schedule was stepped.

    Args:
        mode: "min" or "max", whichever a schedule that waits for a plateau takes for better; "" for others.
        metric: the score that it was given; `of_losses` if that is one of the losses that were evaluated before.
        first: it had not been stepped before, and began at its beginning.
        updates: how many steps its own optimizer had taken.
    """

    scheduler: int
    mode: str = ""
    metric: float = math.nan
    of_losses: bool = False
    first: bool = False
    updates: int = 0


@dataclass(frozen=True)
class Drop(Event):
    """A function of torch that dropped at random in a forward pass without a graph, of a model in evaluation mode."""

    function: str


@dataclass(frozen=True)
class RecomputeDraws(Event):
    """Activations that are computed again for the backward pass drew random numbers, and the generator is not restored for it."""
