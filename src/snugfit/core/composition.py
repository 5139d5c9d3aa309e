"""Techniques composed into the seams of one step, by each seam's own law."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from torch import Tensor, nn

from snugfit.core.batch import Batch
from snugfit.core.entry import as_entry
from snugfit.core.gradients import HostGradients
from snugfit.core.loss_scale import LossScale
from snugfit.core.parameters import ParameterGroup
from snugfit.core.progress import Progress
from snugfit.core.random import derive_seed
from snugfit.core.selection import check, in_order
from snugfit.core.technique import (
    BatchLoss,
    Context,
    GradientsOf,
    MakeOptimizer,
    Moment,
    Rate,
    Stage,
    Stateful,
    Technique,
)
from snugfit.system.nothing import NOTHING


@dataclass(frozen=True)
class Composition:
    """The seams of one step: each field or method is what the step calls.

    `user_loss` is the loss that scores an evaluation: the user's own, if need be on some of the tokens at a time.
    """

    names: tuple[str, ...]
    loss: BatchLoss
    user_loss: BatchLoss
    gradients: GradientsOf
    coupled: bool
    takes_norm: bool
    irrevocable: bool
    make_optimizer: MakeOptimizer | None
    schedule: Callable[[int, Mapping[str, Any]], Rate] | None
    scale: LossScale | None
    sums: HostGradients | None
    export: Callable[[nn.Module], nn.Module] | None
    exporters: tuple[str, ...]
    states: Mapping[str, Stateful]
    extended_by: tuple[Mapping[str, Any], ...]
    _steppings: tuple[_Named, ...]
    _weights_name: str
    _averaging: Callable[[], bool]
    _weights: Callable[[nn.Module], AbstractContextManager[Any]] | None
    _groups: tuple[_Named, ...]
    _begins: tuple[_Named, ...]
    _batches: tuple[_Named, ...]
    _forwards: tuple[_Named, ...]
    _modules: tuple[_Named, ...]
    _accepts: tuple[_Named, ...]
    _adjusts: tuple[_Named, ...]
    _updateds: tuple[_Named, ...]
    _settles: tuple[_Named, ...]
    _evaluateds: tuple[_Named, ...]

    def groups(self, groups: list[ParameterGroup]) -> list[ParameterGroup]:
        """Return the parameter groups that the optimizer is made from."""
        for _, regroup in self._groups:
            groups = regroup(groups)
        return groups

    @property
    def regroup(self) -> tuple[str, ...]:
        """Names of the techniques that need to make parameter groups, or the optimizer from them."""
        return tuple(name for name, _ in (*self._groups, *self._steppings))

    def stepping(self, make: MakeOptimizer) -> MakeOptimizer:
        """Return what makes the optimizer, so that it works where, when and in the precision that techniques say."""
        for _, wrap in self._steppings:
            make = wrap(make)
        return make

    @property
    def changes(self) -> bool:
        """Return whether the model or the windows may be others later in the run than at its beginning."""
        return bool(self._begins or self._batches)

    @cached_property
    def begins(self) -> bool:
        """Return whether anything is done at the beginning of a window."""
        return bool(self._begins)

    def begin(self, model: nn.Module, progress: Progress, seed: int) -> None:
        """Bring the model into the state that the moment asks for."""
        for name, begin in self._begins:
            begin(model, _moment(progress, seed, "begin", name))

    @cached_property
    def transforms(self) -> bool:
        """Return whether anything transforms the window."""
        return bool(self._batches)

    def batch(self, window: Batch, progress: Progress, seed: int) -> Batch:
        """Transform the whole window; each technique has draws of its own."""
        for name, transform in self._batches:
            window = transform(window, _moment(progress, seed, "batch", name))
        return window

    @cached_property
    def surrounds(self) -> bool:
        """Return whether there are contexts around a micro-batch."""
        return bool(self._modules or self._forwards)

    def forward(self, batch: Batch) -> AbstractContextManager[Any]:
        """Return the contexts around forward and loss of `batch`, where no backward follows."""
        return _entered((*self._modules, *self._forwards), batch)

    def modules(self, batch: Batch) -> AbstractContextManager[Any]:
        """Return the contexts around forward, loss and backward of `batch`."""
        return _entered(self._modules, batch) if self._modules else NOTHING

    def within(self, batch: Batch) -> AbstractContextManager[Any]:
        """Return the contexts inside of `modules`, around forward and loss alone."""
        return _entered(self._forwards, batch) if self._forwards else NOTHING

    @cached_property
    def judges(self) -> bool:
        """Return whether anything may refuse a finite update."""
        return bool(self._accepts)

    def accept(self, loss: float) -> str | None:
        """Return the first reason to refuse the update, or None."""
        for _, accept in self._accepts:
            reason: str | None = accept(loss)
            if reason:
                return reason
        return None

    @cached_property
    def adjusts(self) -> bool:
        """Return whether anything changes the true gradients."""
        return bool(self._adjusts)

    def adjust(
        self, parameters: Sequence[nn.Parameter], progress: Progress, seed: int, norm: float | None = None
    ) -> dict[str, Tensor]:
        """Change the true gradients, of this global norm, in place; returns what was measured."""
        metrics: dict[str, Tensor] = {}
        for name, adjust in self._adjusts:
            metrics.update(adjust(parameters, _moment(progress, seed, "adjust", name, norm)))
            norm = None  # it may have changed
        return metrics

    @cached_property
    def follows(self) -> bool:
        """Return whether anything is done after an update."""
        return bool(self._updateds)

    def updated(self, model: nn.Module, progress: Progress) -> None:
        for _, updated in self._updateds:
            updated(model, progress)

    def weights(self, model: nn.Module) -> AbstractContextManager[Any]:
        """Return a context in which `model` has the weights to evaluate, compare and export."""
        return NOTHING if self._weights is None else self._weights(model)

    @property
    def weights_name(self) -> str:
        """The technique whose weights are those to evaluate now; raw where they are the model's own."""
        return self._weights_name if self._averaging() else RAW

    @property
    def awaits_average(self) -> bool:
        """Return whether the weights are still the model's own, and will not be to the end."""
        return self._weights_name != RAW and not self._averaging()

    @property
    def settles(self) -> bool:
        """Return whether something is to be done before weights are evaluated."""
        return bool(self._settles)

    def settle(self, model: nn.Module, passes: Callable[[], Generator[None]]) -> None:
        for _, settle in self._settles:
            with closing(passes()) as windows:  # ends the processes that load them
                settle(model, windows)

    def evaluated(self, metrics: Mapping[str, float]) -> None:
        for _, evaluated in self._evaluateds:
            evaluated(metrics)


RAW = "raw"
"""The name of a model's own weights."""

_Named = tuple[str, Callable[..., Any]]


def _entered(contexts: tuple[_Named, ...], batch: Batch) -> AbstractContextManager[Any]:
    if not contexts:
        return NOTHING
    with ExitStack() as stack:  # leaves those entered if a later one fails
        for _, context in contexts:
            stack.enter_context(context(batch))
        return stack.pop_all()


def _exporting(exports: Sequence[_Named]) -> Callable[[nn.Module], nn.Module] | None:
    if not exports:
        return None

    def export(model: nn.Module) -> nn.Module:
        for _, each in exports:
            model = each(model)
        return model

    return export


def _moment(progress: Progress, seed: int, seam: str, name: str, norm: float | None = None) -> Moment:
    return Moment(progress.updates, progress.windows, derive_seed(seed, seam, name, progress.windows), norm)


def compose(
    techniques: Sequence[Technique],
    context: Context,
    loss: BatchLoss,
    run: GradientsOf,
    around: Callable[[Batch], AbstractContextManager[Any]] | None = None,
) -> Composition:
    """Compose the seams; `loss` is the innermost loss, `run` the innermost computation, and `around` the outermost context of a micro-batch.

    Raises:
        PlanConflict: two of them exclude each other.
    """
    check(techniques)
    made = {technique.card.name: technique.seams(context) for technique in techniques}

    def chain(seam: str) -> tuple[_Named, ...]:
        names = [technique.card.name for technique in in_order(techniques, seam)]
        functions = [(name, getattr(made[name], seam)) for name in names]
        return tuple(entry for entry in functions if entry[1] is not None)

    def single(seam: str) -> Any:
        return next((function for _, function in chain(seam)), None)

    surrounding: tuple[_Named, ...] = () if around is None else (("around", around),)
    gradients = run
    for _, wrap in chain("gradients"):
        gradients = wrap(gradients)
    chunks = [made[each.card.name].loss for each in techniques if Stage.CHUNK in each.card.stages]
    user_loss = loss if not chunks or chunks[0] is None else chunks[0](loss)
    for _, wrap in chain("loss"):
        loss = wrap(loss)
    adjusts = chain("adjust")
    ways_out = [(each.card.name, made[each.card.name].export) for each in in_order(techniques, "prepare")]
    exports = [(name, export) for name, export in reversed(ways_out) if export is not None]
    return Composition(
        names=tuple(made),
        loss=loss,
        user_loss=user_loss,
        gradients=gradients,
        coupled=any(Stage.COUPLING in technique.card.stages for technique in techniques),
        takes_norm=gradients is run and bool(adjusts) and made[adjusts[0][0]].takes_norm,
        irrevocable=any(technique.card.irrevocable for technique in techniques),
        make_optimizer=single("optimizer"),
        schedule=single("schedule"),
        scale=single("scale"),
        sums=single("sums"),
        export=_exporting(exports),
        exporters=tuple(name for name, _ in exports),
        states={name: seams.state for name, seams in made.items() if seams.state is not None},
        extended_by=tuple(
            as_entry(each)
            for each in in_order(techniques, "prepare")
            # what the export undoes is not in the model that is delivered
            if any(stage.rebuilt for stage in each.card.stages) and made[each.card.name].export is None
        ),
        _steppings=chain("stepping"),
        _weights_name=next((name for name, _ in chain("weights")), RAW),
        _averaging=next((s.averaging for s in made.values() if s.averaging is not None), lambda: True),
        _weights=single("weights"),
        _groups=tuple(
            sorted(chain("groups"))
        ),  # they commute; by name, so that a resume finds the same groups
        _begins=chain("begin"),
        _batches=chain("batch"),
        _forwards=chain("forward"),
        _modules=(*surrounding, *chain("modules")),
        _accepts=chain("accept"),
        _adjusts=adjusts,
        _updateds=chain("updated"),
        _settles=chain("settle"),
        _evaluateds=chain("evaluated"),
    )
