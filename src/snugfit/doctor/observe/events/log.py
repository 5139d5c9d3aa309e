"""The log of a script's acts, as plain values: the detectors read this and nothing else."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from snugfit.doctor.observe.events import run_events, script_events, state_events, term_events, text_events
from snugfit.doctor.observe.events.script_events import Event, Forward
from snugfit.doctor.observe.events.state_events import Save


@dataclass
class ModelSeen:
    """A module that was called by the script itself.

    Args:
        modal: names of its modules that differ between training and evaluation.
        norms: names of its batch norms; `norm_rows` is how many values each of their statistics usually is made of, `norm_batch` the most rows that one of them was given.
        shared: modules without weights that are called at several places.
        biased: layers with a bias that trains, whose output a norm over rows got as it was.
        first_layer: name of the first layer with a matrix; `input_scale` is the root mean square of what it got, `image` whether that
            was pictures of no value below 0; `input_largest` the largest of them.
        misspelt: parameters and modules with an attribute that looks as if it froze them, and that torch does not read, and which;
            `misspelt_at` is where the script sets it, "" where its source does not show it.
        called: the name that the script has for it, where it calls it first; "" where none was seen.
        bypasses: a DistributedDataParallel wraps it, and the script calls it itself.
        checkpoint_dtype: what the checkpoint of its weights holds; `dtype` what they have.
        last_weights: fingerprint of its weights at the end of a script in which no optimizer stepped; "" else, and where it is gone by then.
    """

    id: int
    name: str
    at: str
    modal: list[str]
    norms: list[str]
    norm_rows: int
    shared: dict[str, int]
    averaged_of: bool
    checkpoint_dtype: str
    dtype: str
    wrapper: str
    norm_batch: int = 0
    biased: list[str] = field(default_factory=list)
    first_layer: str = ""
    input_scale: float = 0.0
    image: bool = False
    input_largest: float = 0.0
    bypasses: bool = False
    misspelt: dict[str, str] = field(default_factory=dict)
    misspelt_at: str = ""
    called: str = ""
    last_weights: str = ""


@dataclass
class ParameterSeen:
    """A parameter of a model or an optimizer.

    Args:
        updates: updates of its optimizers in which it was looked at, frozen or not.
        no_gradient, zero_gradient: in how many of them it had none, or only zeros.
        moved, frozen_moved: steps that changed it, and steps that changed it although it was frozen.
        zeros: all of its values were 0 when its gradient was last found to be.
        outside: updates in which it had a gradient and was in no optimizer.
        frozen_at_build: it was frozen when the last optimizer was built.
        frozen_from: the update before which it was found frozen, though it was trained before; -1 if it never was; `thawed` if it is trained again.
        made_at: where the script itself has put it into a module, whose number is `owner`; known of zeros alone.
        library: its model's class belongs to a library that defines whole models.
        listed_at: the line that puts its layer into a list or dictionary of Python's, whose layers are no part of the model; "" without.
    """

    id: int
    name: str
    elements: int
    dims: int
    model: int
    library: bool
    trainable: bool = True
    updates: int = 0
    no_gradient: int = 0
    zero_gradient: int = 0
    moved: int = 0
    frozen_moved: int = 0
    zeros: bool = False
    made_at: str = ""
    owner: int = 0
    outside: int = 0
    moved_outside: bool = False
    frozen_at_build: bool = False
    largest_rate: float = 0.0
    frozen_from: int = -1
    thawed: bool = False
    listed_at: str = ""


@dataclass
class OptimizerSeen:
    """An optimizer, its parameters, and those of them that weight decay shrinks; `remembers` if it keeps moments.

    Args:
        frozen_at_end: none of them trains any more.
        maximizes: it climbs what is differentiated.
        steps: how many it has taken.
    """

    id: int
    name: str
    at: str
    parameters: list[int] = field(default_factory=list)
    decayed: list[int] = field(default_factory=list)
    doubled: list[int] = field(default_factory=list)
    doubled_at: str = ""
    remembers: bool = False
    frozen_at_end: bool = False
    maximizes: bool = False
    steps: int = 0


@dataclass
class SchedulerSeen:
    """A schedule; `total` is the number of steps that it was made for, 0 where it has no end."""

    id: int
    name: str
    at: str
    optimizer: int
    total: int


@dataclass
class LoaderSeen:
    """A data loader.

    Args:
        sampler: class of its sampler; `dataset` the class of its data, `dataset_id` tells two sets apart.
        waits, works: seconds that each batch was waited for, and worked on, without those for which workers start.
        epochs_set: how often its sampler was told the epoch.
        base_id: tells apart the data sets of which it may be a part.
        other_masks: passes that begin with other masks of zeros and ones than the pass before, and with other inputs in most rows.
        redrawn, repeated: passes that begin with the labels of the pass before and with other inputs, or with the same.
        batches: how many it has handed out.
        left_out: rows for which its sampler has no weight.
        drawn: how many rows its sampler draws in a pass, of `whole` of the data set; `batch_size` of a batch. `counts_batches`: the source that
            makes it divides something by the size of a batch.
        classes_in_order: how many classes its rows have, where a whole pass hands them out class after class; 0 else.
        alike: why its workers draw the same random numbers, in words, and the line; "" if nothing says that they do.
        parts, part, seed: of a sampler that shuffles rows and gives this rank one of so many parts of them: 0 parts without one.
    """

    id: int
    at: str
    sampler: str
    shards: bool
    dataset: str
    dataset_id: int
    workers: int
    pinned: bool
    cuda: bool
    world_size: int
    waits: list[float] = field(default_factory=list)
    works: list[float] = field(default_factory=list)
    epochs_set: int = 0
    base_id: int = 0
    other_masks: int = 0
    redrawn: int = 0
    repeated: int = 0
    alike: str = ""
    alike_at: str = ""
    left_out: int = 0
    batches: int = 0
    drawn: int = 0
    whole: int = 0
    batch_size: int = 0
    counts_batches: bool = False
    classes_in_order: int = 0
    parts: int = 0
    part: int = 0
    seed: int = 0


@dataclass
class SwitchedOff:
    """A module that was switched from training to evaluation, before an update, with the line that did."""

    update: int
    module: int
    at: str


@dataclass
class Overlap:
    """Rows that were evaluated, and how many of them had been trained on.

    Args:
        loader: 0 where none handed them out.
        whole: all that was trained on is among them.
        drawn: they were drawn anew for nearly every pass, as pieces of a long text are.
        cut_at: the line that takes the front and the back of one array by bounds that may overlap, where some of the rows are shared; "" without.
        repeated: the share of the rows that were trained on which come by again as other rows of the training data, by their nature.
        apart: no loader handed them out, and whole passes have none that was trained on while others do, as where both parts are scored.
    """

    loader: int
    at: str
    rows: int
    shared: int
    whole: bool
    drawn: bool = False
    apart: bool = False
    cut_at: str = ""
    repeated: float = 0.0


@dataclass
class Log:
    """Everything that one process did.

    Args:
        updates: steps of the optimizer that made most.
        complete: the script ended by itself, without an error.
        stopped: the observer stopped it.
        failure: the traceback of the observer's own failure, after which it saw nothing more.
        error: the last lines of the exception with which the script ended, "" where it ended otherwise.
        first_rows: digests of the first rows that it trained on, to compare ranks.
        traced: ways in which a model was run that could not be looked at.
        unwatched: what else was not looked at, in words.
        switches: where anomaly mode and profilers were switched on, by name.
        profiled: a profiler was on; nothing was looked at from there to the optimizer step that followed it.
        exchanges: calls of all_reduce; `gradients_exchanged` of them, before the first update, were given a parameter's gradient,
            the first at `exchanged_at`.
        passes_unseen, passes_profiled: backward passes that were not looked at for it, and those of them that ran under one.
        train_calls: before which updates a module was switched to training.
        switched_off: the modules that were switched from training to evaluation, in order, the first of them.
        cuts: parameters behind what was taken out of a graph in the first updates, by the line that did.
        moves_nothing_at: where its source has a loop over the parameters of two models that sets names alone; "" without.
        follows_at: where its source has the only loop over the parameters of two models that writes to one; "" without.
        zero_rate: whether the script's source sets a learning rate to 0 as it stands, as a way to freeze.
        library_runs: lines of the script that start a library's whole training, or set it up: what is seen meanwhile is said to be there.
        sources: the script's own files, by the names under which they are shown.
        callers: the lines that were seen to call a function of the script's, by its first line.
        alike: pairs of loaders, by their numbers, that hand out the same rows, on which nothing trains.
        held_out: places among the events of forward passes without a graph on rows that are never trained on.
    """

    rank: int = 0
    updates: int = 0
    complete: bool = False
    stopped: bool = False
    failure: str = ""
    error: str = ""
    events: list[Event] = field(default_factory=list)
    models: list[ModelSeen] = field(default_factory=list)
    parameters: list[ParameterSeen] = field(default_factory=list)
    optimizers: list[OptimizerSeen] = field(default_factory=list)
    schedulers: list[SchedulerSeen] = field(default_factory=list)
    loaders: list[LoaderSeen] = field(default_factory=list)
    overlaps: list[Overlap] = field(default_factory=list)
    first_rows: list[int] = field(default_factory=list)
    alike: list[list[int]] = field(default_factory=list)
    held_out: list[int] = field(default_factory=list)
    train_calls: list[int] = field(default_factory=list)
    switched_off: list[SwitchedOff] = field(default_factory=list)
    traced: list[str] = field(default_factory=list)
    unwatched: list[str] = field(default_factory=list)
    switches: dict[str, str] = field(default_factory=dict)
    cuts: dict[str, list[int]] = field(default_factory=dict)
    profiled: bool = False
    moves_nothing_at: str = ""
    follows_at: str = ""
    zero_rate: bool = False
    library_runs: list[str] = field(default_factory=list)
    sources: dict[str, str] = field(default_factory=dict)
    callers: dict[str, list[str]] = field(default_factory=dict)
    exchanges: int = 0
    gradients_exchanged: int = 0
    exchanged_at: str = ""
    passes_unseen: int = 0
    passes_profiled: int = 0

    @property
    def whole(self) -> bool:
        """Return whether the script ended by itself, without an error, and was looked at until then."""
        return self.complete and not self.profiled

    def of(self, kind: type[E]) -> Iterator[E]:
        """Yield the events of one kind, in order."""
        return (event for event in self.events if isinstance(event, kind))

    def saves(self) -> list[Save]:
        """Return what it wrote."""
        return list(self.of(Save))

    def evaluations(self) -> list[Forward]:
        """Forward passes without a graph."""
        return [event for event in self.of(Forward) if not event.grad and not event.recalibrates]


E = TypeVar("E", bound=Event)
_EVENTS = (script_events, state_events, text_events, term_events, run_events)
_PARTS = {
    "models": ModelSeen,
    "parameters": ParameterSeen,
    "optimizers": OptimizerSeen,
    "schedulers": SchedulerSeen,
    "loaders": LoaderSeen,
    "overlaps": Overlap,
    "switched_off": SwitchedOff,
}


def write_log(log: Log, path: Path) -> None:
    """Write it as JSON, in one piece: a reader never sees half of it."""
    plain: dict[str, Any] = asdict(log)
    plain["events"] = [{"kind": type(event).__name__, **asdict(event)} for event in log.events]
    half = path.with_suffix(".half")
    half.write_text(json.dumps(plain), encoding="utf-8")
    half.replace(path)


def read_log(path: Path) -> Log:
    """Return what `write_log` wrote."""
    plain = json.loads(path.read_text(encoding="utf-8"))
    kinds = {
        name: kind for module in _EVENTS for name, kind in vars(module).items() if isinstance(kind, type)
    }
    plain["events"] = [kinds[each.pop("kind")](**each) for each in plain["events"]]
    for name, kind in _PARTS.items():
        plain[name] = [kind(**each) for each in plain[name]]
    return Log(**plain)
