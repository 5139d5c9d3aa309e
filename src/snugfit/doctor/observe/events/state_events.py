"""The acts of a script with states of models and optimizers: what is written, read, put in and averaged."""

from __future__ import annotations

from dataclasses import dataclass, field

from snugfit.doctor.observe.events.script_events import Event


@dataclass(frozen=True)
class Save(Event):
    """Something was written.

    Args:
        what: "module", "state" or "other".
        direct: whether the script itself called, not a library.
        weights: fingerprints of the models' weights in it.
        folder: where it was written; "" where that is no file.
    """

    what: str
    direct: bool
    weights: list[str]
    folder: str = ""


@dataclass(frozen=True)
class Load(Event):
    """A file was read as a pickle that may run code."""

    direct: bool


@dataclass(frozen=True)
class Resume(Event):
    """A checkpoint was read that holds more than weights.

    Args:
        folder: where it lies; "" where that is no file.
    """

    optimizer: bool
    schedule: bool
    folder: str


@dataclass(frozen=True)
class StateRestore(Event):
    """A saved state was put into an optimizer, or into a schedule.

    Args:
        optimizer: the number of that optimizer; `scheduled` whether the state has stepped, under a schedule; `empty` whether it is of one that has
            no moments, as that is which a library puts into the optimizer that it was just taken of.
    """

    schedule: bool
    optimizer: int = 0
    scheduled: bool = False
    empty: bool = False


@dataclass(frozen=True)
class Restore(Event):
    """Saved weights were put into a module.

    Args:
        dtype: that most of them have.
        missing: entries of the module that are not among them; `entries` how many it has.
        foreign: a name among them that the module does not know.
        parameters: numbers of the first of its parameters.
        own: they are the module's own tensors, not a copy: "trained" since state_dict() returned them, or "unchanged"; "" if not.
        empty: there were none, though a file was read for them.
    """

    module: int
    weights: str
    dtype: str
    missing: int = 0
    entries: int = 0
    foreign: str = ""
    parameters: list[int] = field(default_factory=list)
    own: str = ""
    empty: bool = False


@dataclass(frozen=True)
class Overwritten(Event):
    """Weights that were loaded at this line are others at the first optimizer step after it.

    Args:
        matrices: parameters of two axes or more that were looked at; `lost` those of which nothing is left.
    """

    matrices: int
    lost: int


@dataclass(frozen=True)
class Average(Event):
    """Weights were averaged into a module."""

    module: int


@dataclass(frozen=True)
class AverageKept(Event):
    """A model trains on with the weights that a pass without a graph found in it, which no optimizer left there.

    Args:
        backwards: how much the change goes back the way that the weights came from: 1 for all of it, 0 where it has nothing to do with it.
    """

    module: int
    backwards: float


@dataclass(frozen=True)
class NarrowNorm(Event):
    """A layer norm over one value was made, which gives its bias whatever it gets."""
