"""The acts of a script around its updates: what freezes, what is kept, what libraries leave out, what is generated."""

from __future__ import annotations

from dataclasses import dataclass

from snugfit.doctor.observe.events.script_events import Event


@dataclass(frozen=True)
class SteppedAgain(Event):
    """An optimizer stepped on the very gradients that its last step has used."""

    optimizer: int


@dataclass(frozen=True)
class Move(Event):
    """An optimizer has moved its matrices by so much, over the size that they had at first."""

    optimizer: int
    share: float


@dataclass(frozen=True)
class FrozenNormTrains(Event):
    """A norm of frozen weights that the script has put into evaluation mode is in training mode again, into which train() has put it."""

    name: str


@dataclass(frozen=True)
class AugmentedApart(Event):
    """A picture came again in another orientation than before, and its mask in one that does not belong to it."""


@dataclass(frozen=True)
class ScaledTogether(Event):
    """The columns of all rows have mean 0 and deviation 1, and a loader hands out some of the rows.

    Args:
        loader: that one; `storage` tells the data apart.
        shift: how far the mean of the part is from 0, in the column in which it is farthest.
    """

    loader: int
    storage: int
    rows: int
    shift: float


@dataclass(frozen=True)
class TakenOut(Event):
    """The output of a forward pass without a graph for each of its rows was made an array of NumPy's, as predictions are that are scored there."""


@dataclass(frozen=True)
class WindowsShared(Event):
    """The number of windows of a loader that lie beside one of another loader, with all but one of their steps in it.

    Args:
        loader, other: the two; `rows` are those of the smaller.
    """

    loader: int
    other: int
    shared: int
    rows: int


@dataclass(frozen=True)
class BestNotNoted(Event):
    """A checkpoint was written where a score was compared with the best one, `name`, which nothing sets anew.

    Args:
        reset: it is set, and this line sets it back to where it began, in each pass of the loop that compares.
    """

    name: str
    reset: bool = False


@dataclass(frozen=True)
class OtherOrder(Event):
    """The rows of a batch's inputs and those of its targets were drawn by permutations of their own."""

    inputs: str
    targets: str


@dataclass(frozen=True)
class OtherIndex(Event):
    """Targets that this line made of a table have the rows of the inputs, which another line made of it, in another order.

    Args:
        inputs_at: that line.
    """

    inputs_at: str


@dataclass(frozen=True)
class RowsInSteps(Event):
    """Batches are slices of a table of `rows`, of which each begins `step` rows behind the last one of `size`; the last ends before row `end`."""

    step: int
    size: int
    end: int
    rows: int


@dataclass(frozen=True)
class SameOrder(Event):
    """A loader that shuffles has begun so many passes in turn with the same rows, while the model was trained on."""

    times: int


@dataclass(frozen=True)
class DrawnApart(Event):
    """The script's source puts two arrays, which it pairs row by row, into orders of their own."""

    inputs: str
    targets: str


@dataclass(frozen=True)
class ScaledAlone(Event):
    """A data set, or a batch that a model got, whose rows together have in each column a mean of 0 and a deviation of 1.

    Args:
        loader: that of the data set; 0 for a batch. `grad`: a batch that was trained on.
        stretched: they have a least value of 0 and a largest of 1 instead.
    """

    loader: int
    rows: int
    columns: int
    grad: bool
    stretched: bool = False


@dataclass(frozen=True)
class EndSeen(Event):
    """A loss got next tokens of a vocabulary of the script's as labels.

    Args:
        name: the token that ends a text; `ends` labels of `counted` are that one. `ignored` labels do not count.
    """

    name: str
    ends: int
    counted: int
    ignored: int


@dataclass(frozen=True)
class OwnStatistics(Event):
    """Rows that were scored, and never trained on, were scaled at this line by what was fitted to them.

    Args:
        function: the class of what was fitted; `rows` how many it was fitted to.
        trained_at: the line at which those that were trained on were scaled by their own.
    """

    function: str
    trained_at: str
    rows: int


@dataclass(frozen=True)
class LayerMadeAnew(Event):
    """A layer that trains was made while a model computed, and was called by it."""

    name: str


@dataclass(frozen=True)
class BestAliased(Event):
    """The model that is trained was given another name, of the best one, where a score beat the best; it was not copied."""

    name: str
    model: str


@dataclass(frozen=True)
class StaleSave(Event):
    """A state of a module's own tensors, taken at this line, was saved after the module was trained on.

    Args:
        saved_at: where.
    """

    saved_at: str


@dataclass(frozen=True)
class ForgottenMode(Event):
    """A function dropped at random in a method of a module in evaluation mode, outside of its call and of any graph: nothing told it the mode."""

    function: str


@dataclass(frozen=True)
class MeanOfBatches(Event):
    """A mean over the rows of a batch was computed in an evaluation, and this line averages those of all batches; `rows` of this one."""

    rows: int


@dataclass(frozen=True)
class LengthDivides(Event):
    """The script divided something by the number of a loader's batches."""

    loader: int
    batches: int


@dataclass(frozen=True)
class DroppedColumn(Event):
    """transformers' trainer leaves out a column of the rows that the model's forward does not take.

    Args:
        read: a loss of the script's own reads it.
    """

    name: str
    read: bool


@dataclass(frozen=True)
class PaddedPrompt(Event):
    """A model that writes from left to right was asked to go on behind padding, in so many of the rows."""

    padded: int
    rows: int


@dataclass(frozen=True)
class LossLost(Event):
    """The script's source computes a loss and sets its name anew before anybody has read it, and differentiates what that is then.

    Args:
        each_pass: each pass of a loop does that with what the one before has computed.
    """

    name: str
    each_pass: bool


@dataclass(frozen=True)
class FittedToAll(Event):
    """The script's source fits something to all rows, of which it takes parts afterwards.

    Args:
        made_by: the class of what is fitted; `split_at` the line that takes the parts.
    """

    made_by: str
    split_at: str


@dataclass(frozen=True)
class GraphOfAllEdges(Event):
    """The script's source makes a graph of all edges, of which another line sets a part aside to be predicted.

    Args:
        name: of the edges; `split_at` the line that takes the parts.
    """

    name: str
    split_at: str


@dataclass(frozen=True)
class WrongWay(Event):
    """A library's trainer takes a score for the better the wrong way round.

    Args:
        name: of the score; `greater` whether more is taken for better.
    """

    name: str
    greater: bool


@dataclass(frozen=True)
class Fault(Event):
    """Something that is a fault wherever it is seen often enough, whatever else the script does.

    Args:
        pitfall: its name; `what` it is, in a sentence, and `fix` as code.
        least: how often it must be seen at this line.
        certain: whether nothing else explains it.
    """

    pitfall: str
    what: str
    fix: str
    least: int = 1
    certain: bool = False


@dataclass(frozen=True)
class DividedForWindow(Event):
    """A loss, differentiated next, was divided by a number, and the source says that it is that of micro-batches which are gathered.

    Args:
        name: of the number in the source.
    """

    name: str
    number: int


@dataclass(frozen=True)
class Rounded(Event):
    """An optimizer has changed so small a share of those weights of 16 bits that have a gradient."""

    optimizer: int
    share: float
    dtype: str


@dataclass(frozen=True)
class RateUnused(Event):
    """The source computes a learning rate in a loop that steps, and only prints it."""

    name: str


@dataclass(frozen=True)
class CopyUnmoved(Event):
    """The source copies a model's weights into another one under a condition, at this line, or before all loops.

    Args:
        name: of the copy, as the script calls it.
        once: whether nothing in a loop copies them.
    """

    name: str
    once: bool = False


@dataclass(frozen=True)
class ScoreSum(Event):
    """The source sums up scores over the batches of a loop, and what comes of it is wrong.

    Args:
        name: of the sum.
        first, last: the lines of the loop, in the same file.
        way: how, of `score_sums`.
    """

    name: str
    first: int
    last: int
    way: str


@dataclass(frozen=True)
class GraphUnused(Event):
    """A model in evaluation mode recorded a graph of a batch, and nothing was differentiated through it.

    Args:
        model: its number; `rows` those of the batch.
        place: how many events were seen before it.
    """

    model: int
    rows: int
    place: int


@dataclass(frozen=True)
class EqualUnits(Event):
    """Rows of a weight of this shape, one for each unit of a layer, are all the same before this update, after others that moved them.

    Args:
        name: of the weight; "" where no module was seen that has it.
    """

    name: str
    shape: list[int]


@dataclass(frozen=True)
class PlaceLabels(Event):
    """A loss over so many classes got the labels of all places of pictures; `alike` tells whether all of them are class 0."""

    classes: int
    places: int
    alike: bool


@dataclass(frozen=True)
class OneClassPredicted(Event):
    """A model gave, without a graph, the classes of all places of pictures whose masks a loader had drawn; the line is that of the last loss.

    Args:
        predicted: the class that it gave for each place; -1 where it gave several.
        alike: how many places have the first class that was given, of `whole`.
    """

    model: int
    predicted: int
    alike: int
    whole: int
