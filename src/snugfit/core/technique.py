"""The base class of techniques: settings, a card, and the seams of the step that a technique fills.

A technique is one file: a frozen dataclass of settings deriving from `Technique`, with a `Card`. It may
change the model before anything else (`prepare`), and fills seams (`seams`). It holds no state itself; what
must survive a stop is the `state` of its seams.
"""

from __future__ import annotations

import functools
import math
import typing
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, ClassVar, NamedTuple, Protocol, Self

import torch
from torch import Tensor, nn

from snugfit.core.batch import Batch
from snugfit.core.card import NO_BITSANDBYTES as NO_BITSANDBYTES
from snugfit.core.card import ONE_MEMORY as ONE_MEMORY
from snugfit.core.card import STAGED_SEAMS as STAGED_SEAMS
from snugfit.core.card import Card as Card
from snugfit.core.card import Family as Family
from snugfit.core.card import Fidelity as Fidelity
from snugfit.core.card import Kind as Kind
from snugfit.core.card import Sharing as Sharing
from snugfit.core.card import Stage as Stage
from snugfit.core.gradient_exchange import Exchange
from snugfit.core.gradients import Gradients, HostGradients
from snugfit.core.loss_scale import LossScale
from snugfit.core.loss_terms import Loss, LossTerms
from snugfit.core.parameters import ParameterGroup
from snugfit.core.progress import Progress
from snugfit.core.settings import check_type, shown, wanted
from snugfit.errors import SettingError, SnugfitWarning


@dataclass(frozen=True, slots=True)
class Moment:
    """The progress of the run when a seam is called, and what may be drawn there: stateless, so nothing of it is saved.

    `updates` counts applied updates, `windows` those consumed; `seed` is of this technique in this window; `norm` is the global one of the
    gradients, for an `adjust` that takes it, where nothing has changed them since it was measured.
    """

    updates: int
    windows: int
    seed: int
    norm: float | None = None

    def generator(self, device: torch.device | str = "cpu") -> torch.Generator:
        """Return a generator on `device` at its beginning: asked again, it draws the same."""
        return torch.Generator(device).manual_seed(self.seed)


class RollBack(str):
    """A reason to refuse an update for which the run also goes back to its newest checkpoint."""


class Rate(NamedTuple):
    """The values that a schedule sets: the learning rate's factor, and the momentum (or beta1) where it moves that too."""

    factor: float
    momentum: float | None = None


class Stateful(Protocol):
    """State that a checkpoint keeps: nested dicts and lists of tensors and numbers."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class Compute(Protocol):
    """The computation of one window's gradients, as a value: asking for another makes another one."""

    @property
    def batch(self) -> Batch: ...

    def run(self) -> Gradients:
        """Forward and backward of every micro-batch; leaves the true gradient in `.grad`."""
        ...

    def outputs(self) -> Any:
        """Return the model's outputs of all rows on this rank, without gradient; tensors joined along the rows."""
        ...

    def loss_of(self, outputs: Any) -> LossTerms:
        """Return the loss of the window's rows on all ranks, with gradient by these outputs of the rows on this one."""
        ...

    def terms(self) -> LossTerms:
        """Return one loss and one weight for each of the window's rows on all ranks, without gradient."""
        ...

    def select(self, rows: Sequence[int]) -> Self:
        """Return the same computation on some of the window's rows on all ranks, of which this rank computes its own."""
        ...

    def parts(self, rows: int) -> Iterator[Self]:
        """Yield the same computation on neighbours, `rows` at a time, each to be finished before the next one.

        Layers draw other numbers in each part, and buffers keep the first pass of each.
        """
        ...

    def replace(self, loss: BatchLoss, **extras: Any) -> Self:
        """Return the same rows under another loss, with further tensors travelling along."""
        ...

    def handing(self, take: Callable[[nn.Parameter], None]) -> Self:
        """Return the computation with a call of `take` on each parameter as soon as its true gradient is whole.

        It is whole in the last backward.

        What `take` leaves in `.grad` counts as the gradient. A window whose loss is not finite, or in which nothing
        counts, hands over nothing.
        """
        ...


BatchLoss = Callable[[Any, Batch], LossTerms]
GradientsOf = Callable[[Compute], Gradients]
MakeOptimizer = Callable[[list[ParameterGroup]], torch.optim.Optimizer]


@dataclass(frozen=True)
class Context:
    """The facts that techniques may look at when their seams are made.

    `forward` computes outputs from a model and a batch's data, where the model does not take its entries as they are;
    `load` finds another model for the same task by its name. `start` is a copy of a model that is spread over devices, made before
    it was; `spread` does the same to another one, and leaves it alone where the model itself is whole. `exchange` is how several devices add
    up gradients, where a technique says so. `any_rank` says in a forward whether any of the ranks says so that gather weights together; all call
    it. Elsewhere a rank decides by itself. `class_counts` are rows to train on by the name of their class, in the order of the labels; None where
    nobody says, empty where they are assumed, as in a plan. `sharing` is how several devices share the model; None where there is one.
    """

    model: nn.Module
    device: torch.device
    total_updates: int | None = None
    seed: int = 0
    loss: Loss | None = None
    forward: Callable[[nn.Module, Any], Any] | None = None
    load: Callable[[str], nn.Module] | None = None
    start: nn.Module | None = None
    spread: Callable[[nn.Module], nn.Module] = lambda model: model
    exchange: Exchange | None = None
    any_rank: Callable[[bool], bool] = bool
    class_counts: Mapping[str, int] | None = None
    sharing: Sharing | None = None


@dataclass(frozen=True)
class Seams:
    """The places of the step that a technique fills; None where it does not.

    Three are no places: `state` is what a checkpoint keeps, `averaging` says whether `weights` gives other weights than
    the model's own by now; always, where it is None. `takes_norm` says that `adjust` goes by the gradients' norm: it is measured in place of the look
    at each gradient for what is not finite, read with the loss, and given by `Moment.norm`.

    - `groups`: parameter groups to parameter groups, before the optimizer is made; in sequence. `lr_factor` of a group
      is its part of the learning rate.
    - `optimizer`: parameter groups to an optimizer; at most one technique.
    - `stepping`: where, when or in what precision the optimizer works: wraps whatever makes it from parameter groups; nested.
    - `schedule`: what is set in a parameter group after that many applied updates; at most one.
    - `scale`: what the loss is multiplied by, so that 16-bit gradients stay in range; at most one.
    - `sums`: what the gradients of a window are added up in, where it is not the parameters; at most one.
    - `begin`: at the beginning of each window; what it leaves in the model is a function of the moment alone.
    - `batch`: transforms the whole window before it is split; in sequence.
    - `loss`: wraps the loss; nested.
    - `forward`: a context around forward and loss of a micro-batch, and of a batch to be scored; nested.
    - `modules`: likewise, and around backward too, where a block that was not kept is computed again: for what changes
      how modules run; nested, outside of `forward`.
    - `gradients`: wraps the computation of the gradients; nested.
    - `accept`: a reason to refuse the update (`RollBack`: and to go back), from the window's loss; asked only when all is
      finite.
    - `adjust`: changes the true gradients in place, returns metrics; in sequence.
    - `updated`: after an applied update, and only then; in sequence.
    - `weights`: a context in which the model has the weights to evaluate, compare and export; at most one.
    - `settle`: before weights are evaluated, inside that context; the iterator runs a training window at each step.
    - `evaluated`: after an evaluation, with its metrics.
    - `export`: the model as it is delivered, sharing nothing that training goes on to change; in sequence, what was
      prepared last is undone first. So a technique that fills it does not prepare the model again when that is loaded.
    """

    groups: Callable[[list[ParameterGroup]], list[ParameterGroup]] | None = None
    optimizer: MakeOptimizer | None = None
    stepping: Callable[[MakeOptimizer], MakeOptimizer] | None = None
    schedule: Callable[[int, Mapping[str, Any]], Rate] | None = None
    scale: LossScale | None = None
    sums: HostGradients | None = None
    begin: Callable[[nn.Module, Moment], None] | None = None
    batch: Callable[[Batch, Moment], Batch] | None = None
    loss: Callable[[BatchLoss], BatchLoss] | None = None
    forward: Callable[[Batch], AbstractContextManager[Any]] | None = None
    modules: Callable[[Batch], AbstractContextManager[Any]] | None = None
    gradients: Callable[[GradientsOf], GradientsOf] | None = None
    accept: Callable[[float], str | None] | None = None
    adjust: Callable[[Sequence[nn.Parameter], Moment], Mapping[str, Tensor]] | None = None
    updated: Callable[[nn.Module, Progress], None] | None = None
    weights: Callable[[nn.Module], AbstractContextManager[Any]] | None = None
    averaging: Callable[[], bool] | None = None
    settle: Callable[[nn.Module, Iterator[None]], None] | None = None
    evaluated: Callable[[Mapping[str, float]], None] | None = None
    export: Callable[[nn.Module], nn.Module] | None = None
    state: Stateful | None = None
    takes_norm: bool = False

    def filled(self) -> tuple[str, ...]:
        """Return names of the seams that are filled."""
        return tuple(name for name in SEAM_NAMES if getattr(self, name) is not None)


SEAM_NAMES = tuple(
    field.name for field in fields(Seams) if field.name not in ("averaging", "state", "takes_norm")
)

SINGLE_SEAMS = ("exchange", "picture", "optimizer", "schedule", "scale", "sums", "weights")
"""Seams that at most one technique fills."""


def as_settings(technique: Technique) -> dict[str, Any]:
    """Return the settings of a technique by name."""
    named: list[str] = (
        [each.name for each in fields(technique) if each.init] if is_dataclass(technique) else []
    )
    return {name: getattr(technique, name) for name in named}


def hash_of(technique: Technique) -> int:
    """Return a hash of settings among which are mappings; a technique that has some takes it as its `__hash__`."""
    values = (
        frozenset((name, repr(each)) for name, each in value.items()) if isinstance(value, Mapping) else value
        for value in as_settings(technique).values()
    )
    return hash((type(technique), *values))


class Technique:
    """Base of all techniques; subclasses are frozen dataclasses whose fields are their settings."""

    card: ClassVar[Card]

    def __init_subclass__(cls, **more: Any) -> None:
        """Have settings checked by their types, too, where a technique's own `__post_init__` looks at their values.

        Its words come first, as they say more; but it may stumble over another type, as over a text that is compared with a number.
        """
        super().__init_subclass__(**more)
        own = vars(cls).get("__post_init__")
        if own is None:
            return

        @functools.wraps(own)
        def checked(self: Technique) -> None:
            try:
                own(self)
            except SettingError:
                raise
            except Exception:
                _check_types(self)
                raise
            _check_types(self)

        cls.__post_init__ = checked  # type: ignore[method-assign]

    def __post_init__(self) -> None:
        _check_types(self)

    @classmethod
    @functools.cache
    def setting_types(cls) -> dict[str, Any]:
        """Return the types of the settings by name.

        Raises:
            NameError: the annotations of somebody's own class name what is not there when it runs.
        """
        hints = typing.get_type_hints(cls, include_extras=True)
        return {field.name: hints[field.name] for field in fields(cls) if field.init}  # type: ignore[arg-type]

    def prepare(self, model: nn.Module) -> nn.Module:
        """Change the model before anything else looks at it."""
        return model

    def loading(self, model: nn.Module) -> Mapping[str, Any]:
        """Return arguments for a loader of transformers that reads weights in the format that `prepare` gives them.

        So the model as it lies on disk never stands in memory whole.

        Args:
            model: the architecture on the meta device, without weights.
        """
        return {}

    def read(self, model: nn.Module, name: str) -> None:
        """Give the weight `name`, which such a loader has just read to the host, the format that its arguments cannot give it."""

    def stays(self, model: nn.Module) -> Collection[str]:
        """Return names of modules that are not moved to the device with the rest of the model: the technique does so itself."""
        return ()

    def exchange(self) -> Exchange | None:
        """Return how several devices are to add up gradients, asked before they share the model; None: as they are."""
        return None

    def picture(self) -> Callable[[Any], Any] | None:
        """Return how each picture that is trained on is changed, asked before data is loaded; None: it stays as it is.

        It takes a picture of Pillow in 8 bits, placed and of the model's size, and returns another of the same mode and size, before
        its pixels are normalised. It draws from torch's global generator, which is seeded by (seed, epoch, example), and goes to
        processes that load data.
        """
        return None

    def seams(self, context: Context) -> Seams:
        """Return the seams filled for one run."""
        raise NotImplementedError

    def refused_by(self, device: str) -> str | None:
        """Return why devices of this kind, such as "mps", cannot have it, and the way out; None if they can."""
        return self.card.not_on.get(device)

    def metrics(self) -> tuple[str, ...]:
        """Metrics of the evaluation that it looks at; a run that does not measure them is refused."""
        return ()

    def refused_beside(self, other: Technique) -> str | None:
        """Return why these settings exclude a technique that the card does not, and the way out; None if they do not."""
        return None

    def refused_on(self, sharing: Sharing) -> str | None:
        """Return why devices that share the model in this way cannot have it, and the way out; None if they can."""
        return self.card.refuses.get(sharing)

    @property
    def together(self) -> int:
        """Return how many neighbouring rows of the window it makes something of, so that no split parts them."""
        return self.card.together

    @property
    def reads_weights(self) -> bool:
        """Return whether `prepare` reads the weights, at once or later.

        Where nothing does, no process that trains a part of a model has to have all of it.
        """
        return self.keeps_start or type(self).prepare is not Technique.prepare

    @property
    def reads_files(self) -> bool:
        """Return whether what it brings to a device comes from files, which no host has the memory for, at each micro-batch."""
        return False

    @property
    def blocks_that_stay(self) -> int:
        """Return how many of the blocks that it brings to the device while they compute stay there."""
        return 0

    def keeping(self, blocks: int) -> Self:
        """Return it with so many blocks that stay on the device, of those that it brings there (`Stage.STREAM`)."""
        raise NotImplementedError

    @property
    def keeps_start(self) -> bool:
        """Return whether it asks for the model as it was when the run began, as `Context.start`."""
        return False

    @classmethod
    def example(cls) -> Self:
        """Return settings under which the laws are tested: strong enough to matter on a tiny model."""
        return cls()

    @classmethod
    def rungs(cls) -> tuple[Self, ...]:
        """Return the settings that the planner tries where a run does not fit, the fastest first."""
        saves = cls.card.family is not Family.LEARNING or cls.card.fidelity is Fidelity.ADAPTERS
        return (cls(),) if cls.card.saves_memory and saves else ()

    def in_place_of(self, other: Technique) -> Self | None:
        """Itself with the settings of another technique that it may take the place of; None where it may not."""
        if other.card.name not in self.card.replaces:
            return None
        mine, theirs = as_settings(self), as_settings(other)
        return replace(self, **{name: theirs[name] for name in theirs if name in mine})  # type: ignore[type-var]

    def warn_beyond(self, setting: str, updates: float, total_updates: int | None, so: str) -> None:
        """Warn of what lies behind the end of the run; no error, since a run may be cut short to try it out."""
        if total_updates is not None and updates >= total_updates:
            warnings.warn(
                f"{self.card.name}.{setting}: comes to {updates:g} updates, and the run has {total_updates}: {so}.",
                SnugfitWarning,
                stacklevel=3,
            )

    def require(self, setting: str, holds: bool, wanted: str) -> None:
        """Refuse an impossible setting.

        Raises:
            SettingError: `holds` is false.
        """
        if not holds:
            value = getattr(self, setting)
            raise SettingError.must_be(f"{self.card.name}.{setting}", wanted, repr(value))

    def require_positive(self, *settings: str) -> None:
        """Refuse what is not positive and finite."""
        for setting in settings:
            value = getattr(self, setting)
            self.require(setting, _is_number(value) and 0 < value < math.inf, "positive")

    def require_not_negative(self, *settings: str) -> None:
        """Refuse what is not zero or positive, and finite."""
        for setting in settings:
            value = getattr(self, setting)
            self.require(setting, _is_number(value) and 0 <= value < math.inf, "zero or positive")

    def require_betas(self, setting: str) -> None:
        """Refuse what is not two decays of moments."""
        betas = getattr(self, setting)
        are_two = isinstance(betas, (tuple, list)) and len(betas) == 2 and all(map(_is_number, betas))
        self.require(setting, are_two and all(0 <= b < 1 for b in betas), "two numbers in [0, 1)")


def _check_types(technique: Technique) -> None:
    """Refuse settings that are not of their types; lists and NumPy's numbers become what they are in a recipe.

    Python's numbers stay as they were given, so that an error and a run's settings show them so, and infinite ones are left to the
    technique's own bounds.

    Raises:
        SettingError: names the first of them.
    """
    card: Card | None = getattr(technique, "card", None)
    if card is None or not is_dataclass(technique):  # made by its own `__post_init__`, or without settings
        return
    try:
        types = technique.setting_types()
    except (NameError, TypeError):
        return  # a recipe says what is wrong with them
    for name, annotation in types.items():
        value = getattr(technique, name)
        if name in card.modules and isinstance(value, nn.Module):
            continue
        infinite = isinstance(value, float) and not math.isfinite(value)
        try:
            checked = check_type(annotation, 0.0 if infinite else value)
        except ValueError as error:
            named = f"{card.name}.{name}"
            hint = f"Write [{value!r}]." if _takes(annotation, (value,)) else ""
            raise SettingError.must_be(named, wanted(annotation), shown(value), hint) from error
        if not infinite and type(value) not in (int, float):
            object.__setattr__(technique, name, checked)


def _takes(annotation: Any, value: Any) -> bool:
    try:
        check_type(annotation, value)
    except ValueError:
        return False
    return True


def _is_number(value: Any) -> bool:
    """Return whether a setting that was given in Python can be compared with numbers, as `"1e-3"` and None cannot."""
    try:
        return bool(value <= math.inf or value != value)
    except TypeError:
        return False
