"""The card of a technique: what is said about it, and where it stands."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field


class Stage(enum.IntEnum):
    """The place of a technique in the chain of a seam, from the first to the last; each place holds one technique.

    The order is the reason for the place, never the order of a list: a length is bounded before noise is added, a loss is
    focused before it is shared between two labels. `gradients` and `loss` nest: a later stage wraps the earlier ones.
    """

    # prepare
    RESHAPE = 0  # layers take other shapes
    EXTEND = 1  # modules are added
    LAYER = 2  # what a kind of layer computes; holds any number, each minds its own
    QUANTISE = 3  # weights take another format
    NARROW = 4  # what is left takes another type
    ADAPT = 5  # weights are frozen, adapters put beside them
    # batch
    CUT = 10  # the size of an example changes
    THIN = 11  # lines of an example are left out
    COVER = 12  # parts of an example are covered
    MIX = 13  # examples are mixed with each other
    DRAW = (
        14  # what was drawn for each row travels along, and the examples stay as they are; holds any number
    )
    ARRANGE = 15  # the order of the rows
    GROUP = 16  # which neighbours stay together
    # loss
    WEIGH = 20  # how much a label counts
    FOCUS = 21  # values are changed one by one
    SMOOTH = 22  # the label is softened
    SHARE = 23  # the loss is shared between two labels
    TEACH = 24  # the loss is shared with a teacher's
    TERM = 25  # something is added; holds any number, a sum has no order
    CHUNK = 26  # all of that, on some of the tokens at a time
    # gradients
    BACKEND = 30
    COUPLING = 31
    SELECT = 32
    PERTURB = 33
    # adjust
    ELEMENT = 40  # each element by itself
    UNIT = 41  # each row of weights by itself
    NORM = 42  # all as one vector
    NOISE = 43
    # updated
    MOVE = 50  # the weights that training goes on from
    AVERAGE = 51
    REMEMBER = 52  # what is kept of the update; holds any number, each minds its own
    # modules
    TILE = 60  # a layer in parts; what others change of it goes around
    COMPUTE = 61  # how a module computes; holds any number, each minds its own
    STREAM = 62  # where its weights are meanwhile
    RECOMPUTE = 63  # whether what it computed is kept
    # stepping
    SHADOW = 70  # on which tensors: of another type
    PLACE = 71  # where
    GRADIENTS = 72  # by which gradients
    WHEN = 73

    @property
    def seam(self) -> str:
        """The seam whose chain it is a place of."""
        return ("prepare", "batch", "loss", "gradients", "adjust", "updated", "modules", "stepping")[
            self // 10
        ]

    @property
    def shared(self) -> bool:
        """Return whether the place holds any number of techniques."""
        return self in (Stage.LAYER, Stage.DRAW, Stage.TERM, Stage.COMPUTE, Stage.REMEMBER)

    @property
    def rebuilt(self) -> bool:
        """Return whether a model that is loaded has to be changed again in this place, before it takes its weights."""
        return self in (Stage.RESHAPE, Stage.EXTEND, Stage.LAYER)


STAGED_SEAMS = tuple(dict.fromkeys(stage.seam for stage in Stage))
"""Seams that are chains: who fills one says where it stands."""


class Family(enum.StrEnum):
    """The kind of change that a technique makes: to what is learned, only to how it fits, or to the precision."""

    LEARNING = "learning"
    PLACEMENT = "placement"
    NUMERICS = "numerics"


class Fidelity(enum.IntEnum):
    """The precision that a run gives up, from nothing; the planner goes as far as the recipe allows."""

    FULL = 0  # float32
    MIXED = 1  # matrix products in tf32 or 16 bit
    COMPACT = 2  # states of few bits, weights of 16
    ADAPTERS = 3  # beside weights that are frozen
    QUANTIZED = 4  # beside weights that are frozen in few bits

    @property
    def label(self) -> str:
        """Return it as it is written in recipes."""
        return self.name.lower()


class Sharing(enum.StrEnum):
    """The way that several devices share a model."""

    COPIES = "copies"  # each has all of it
    SHARDS = "shards"  # each has a part of each weight


ONE_MEMORY: Mapping[str, str] = {
    "mps": "host and device are one memory there, so that it would save nothing. Remove it, or use recompute."
}
"""Devices on which nothing is saved by what moves tensors to the host."""

NO_BITSANDBYTES: Mapping[str, str] = {
    "mps": "bitsandbytes has no kernels for it that Snugfit is tested with. Remove it, or train on a CPU."
}


class Kind(enum.StrEnum):
    """The kind of examples that a technique needs."""

    ANY = "any"
    NUMBERS = "numbers"
    IMAGES = "images"
    TOKENS = "tokens"


@dataclass(frozen=True)
class Card:
    """The facts of a technique that listings show and composition checks.

    `aliases`: names that other tools and papers give it. `stages`: its places in the chains of the seams it fills. `couples_examples`: one example's loss depends on others of
    its micro-batch, so that the micro-batch is part of the recipe. `together`: neighbouring rows of the window of which it makes
    something together, so that a rank has all of them. `precision`: it is what forward and backward compute in,
    of which a run has one, named by `plan.numerics`. `irrevocable`: weights change before the whole gradient is known, so
    that a window which turns out not to be finite sends the run back to its newest checkpoint. `conflicts` maps other
    techniques' names to the reason and the way out; `refuses` does so for all that fill a seam or stand at a stage, and for devices
    that share the model in a way.
    `not_on` maps kinds of devices that cannot have it to the reason and the way out.
    `saves_memory`: an update needs less at its peak, so that it is named where nothing fits. `fidelity`: how much precision a run
    with it has given up. `needs`: the type of number, as torch names it, or "tf32", that a device has to compute in of itself. `replaces`: techniques in
    whose place it may stand, with their settings, to save memory. `paths`: settings that name files or folders; in a recipe relative ones are
    relative to it. `modules`: settings of text that take a module too when they are given in Python. `added`: settings that came after runs had been made, which go on where they are unset.
    """

    name: str
    summary: str
    family: Family
    source: str
    seams: tuple[str, ...]
    aliases: tuple[str, ...] = ()
    stages: tuple[Stage, ...] = ()
    kind: Kind = Kind.ANY
    couples_examples: bool = False
    together: int = 1
    precision: bool = False
    irrevocable: bool = False
    refuses: Mapping[str | Stage | Sharing, str] = field(default_factory=dict)
    conflicts: Mapping[str, str] = field(default_factory=dict)
    not_on: Mapping[str, str] = field(default_factory=dict)
    saves_memory: bool = False
    fidelity: Fidelity = Fidelity.FULL
    needs: str = ""
    replaces: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()
    added: tuple[str, ...] = ()
    cost: str = ""
    use_when: str = ""

    def stage(self, seam: str) -> Stage | None:
        """Return its place in the chain of `seam`."""
        return next((stage for stage in self.stages if stage.seam == seam), None)
