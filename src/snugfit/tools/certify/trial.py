"""The trials of laws: fresh steps in one type of number, and a few windows of the run's own."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd
from torch.overrides import TorchFunctionMode

from snugfit.core.batch import Batch
from snugfit.core.job import AUTO
from snugfit.core.technique import Stage, Technique
from snugfit.core.tree import leaves, map_tree
from snugfit.errors import SettingError
from snugfit.results.run_folder import RunFolder
from snugfit.run.training.assemble import assemble
from snugfit.run.training.loop import Training
from snugfit.step.build import make_step
from snugfit.step.optimizer import load_optimizer
from snugfit.step.start_scores import fill_start_scores
from snugfit.step.step import Step
from snugfit.strategies.base import Strategy
from snugfit.system.rounding import NO_FLOAT64
from snugfit.tools.setup import Setup

BOUNDS = {"float64": 1e-10, "float32": 1e-4}
"""float64 has 16 digits and float32 has 7; what is left of them after some thousand additions in another order."""
MIXED_BOUND = 2e-2
"""Where products are rounded to 16 bits, or weights are stored in them, which have two to three digits."""
WINDOWS = 4


class _OtherDraws(Strategy):
    """A device whose layers draw other numbers: those of the next rank."""

    rank = 1


@dataclass(frozen=True)
class Trials:
    """A setup in one type of number, and the first windows of its run, each cut to a few rows."""

    setup: Setup
    windows: tuple[Batch, ...]
    dtype: str
    bound: float

    @property
    def rows(self) -> int:
        return self.windows[0].rows

    @property
    def device(self) -> torch.device:
        return torch.device(self.setup.plan.device)

    @property
    def micro_batch(self) -> int | None:
        """Return that of the plan, where it cuts these windows at all."""
        size = self.setup.plan.micro_batch
        return None if size is None or size == AUTO or size >= self.rows else size

    @property
    def noise(self) -> float:
        """A gradient smaller than this part of all of them is zero but for rounding."""
        return self.bound / 20

    @property
    def bit_bound(self) -> float:
        """Return the bound of what is to be the same bit for bit: on a CPU nothing else counts."""
        return 0.0 if self.device.type == "cpu" else self.bound

    def step(
        self,
        micro_batch: int | None = None,
        *,
        dropout: bool = False,
        other_draws: bool = False,
        cut_padding: bool = True,
        techniques: Sequence[Technique] | None = None,
        strategy: Strategy | None = None,
    ) -> Step:
        """Return a step before its first update.

        Args:
            dropout: leave it on.
            other_draws: random layers draw other numbers than those of the run.
            cut_padding: let micro-batches be cut, where the setup lets them.
            techniques: in place of the setup's own.
        """
        setup = self.setup
        model, optimizer = _copied(setup, double=self.dtype == "float64")
        step = make_step(
            setup.job,
            replace(setup.plan, micro_batch=micro_batch, cut_padding=cut_padding and setup.plan.cut_padding),
            replace(setup.material, model=model),
            optimizer,
            setup.techniques if techniques is None else techniques,
            strategy=strategy or (_OtherDraws() if other_draws else None),
        )
        if setup.material.compares_start:
            fill_start_scores(step, setup.material, train=setup.job.train)
        if not dropout:
            without_dropout_(step.model)
        return step

    def training(self, folder: Path) -> Training:
        """Return a run of it in `folder`, before its first update, with dropout as it is."""
        setup = self.setup
        model, optimizer = _copied(setup, double=self.dtype == "float64")
        return assemble(
            replace(setup.job, early_stopping=None),
            replace(setup.plan, micro_batch=self.micro_batch),
            replace(setup.material, model=model),
            optimizer,
            setup.techniques,
            setup.metrics,
            folder=RunFolder(folder),
            emit=_quiet,
            save_best=_quiet,
        )


def trials(setup: Setup, dtype: str | None, rows: int) -> tuple[Trials, tuple[str, ...]]:
    """Return what the laws are tried on, in float64 where nothing stands against it, and what there is to say of that.

    Args:
        dtype: float64, or float32: the model as it is stored.
        rows: of a window, at most.
    Raises:
        SettingError: the type is not known, or the model cannot be computed in it; or a window has fewer than two rows.
    """
    if dtype is not None and dtype not in BOUNDS:
        raise SettingError(
            "dtype", f"must be one of {', '.join(BOUNDS)}, found '{dtype}'", "Choose one of them."
        )
    if rows < 2:
        raise SettingError(
            "rows", f"must be at least 2, to have something to split, found {rows}", "Give 2 or more."
        )
    setup = replace(setup, job=setup.job.for_updates(max(WINDOWS, setup.windows)))
    windows = [window.select(range(min(rows, window.rows))) for window in setup.loader().windows(0, WINDOWS)]
    if windows[0].rows < 2:
        raise SettingError(
            "train.global_batch",
            f"a window has {windows[0].rows} example, and laws are tried by splitting windows",
            "Give 2 or more.",
        )
    if dtype == "float32":
        return _made(setup, windows, dtype), _conditions(setup, dtype)
    made = _made(setup, windows, "float64")
    against = against_double(made)
    if against is None:
        return _loosened(made)
    if dtype == "float64":
        raise SettingError("dtype", f"float64 cannot be had: {against}", "Give float32.")
    why = f"computed in float32, in which rounding hides errors below the bound: {against}"
    return _made(setup, windows, "float32"), (why, *_conditions(setup, "float32"))


def _loosened(made: Trials) -> tuple[Trials, tuple[str, ...]]:
    """Return the trials in float64, with the bound of float32 where the model rounds to that by itself; and what there is to say."""
    conditions = _conditions(made.setup, made.dtype)
    rounding = rounded_within(made.step(made.micro_batch), made.windows[0])
    if rounding is None:
        return made, conditions
    why = f"{rounding} rounds to float32 within float64, which moves the last digits of everything behind it: the bound is float32's"
    return replace(made, bound=BOUNDS["float32"]), (why, *conditions)


def rounded_within(step: Step, window: Batch) -> str | None:
    """Return the first module that takes float64 and computes on in less, by name and class; None where none does.

    What it is made from must ask for a gradient: positions and masks are the same for every split.
    """
    watch = _Narrowing(step.model)
    with watch, step.computed(window.to(step.device)):
        return watch.narrowing_module


class _Narrowing(TorchFunctionMode):
    """Sees the casts from float64 to fewer bits of what depends on weights."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.narrowing_module: str | None = None
        self._names = {module: name for name, module in model.named_modules()}
        self._inside: list[nn.Module] = []

    def __enter__(self) -> Self:
        self._hooks = [
            hook
            for module in self._names
            for hook in (
                module.register_forward_pre_hook(lambda module, _: self._inside.append(module)),
                module.register_forward_hook(lambda *_: self._left(), always_call=True),
            )
        ]
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *exception: Any) -> None:
        super().__exit__(*exception)  # type: ignore[no-untyped-call]
        for hook in self._hooks:
            hook.remove()

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        if (
            self.narrowing_module is None
            and self._inside
            and isinstance(result, Tensor)
            and result.requires_grad
        ):
            narrow = result.is_floating_point() and result.dtype != torch.float64
            if narrow and any(leaf.dtype == torch.float64 for leaf in leaves([args, kwargs or {}])):
                module = self._inside[-1]
                self.narrowing_module = f"'{self._names[module]}' ({type(module).__name__})"
        return result

    def _left(self) -> None:
        self._inside.pop()


def against_double(made: Trials) -> str | None:
    """Return why the setup cannot be computed in float64; None where it can."""
    if made.device.type in NO_FLOAT64:
        return f"{made.device.type} has none"
    quantising = [each.card.name for each in made.setup.techniques if Stage.QUANTISE in each.card.stages]
    if quantising:
        return f"'{quantising[0]}' stores weights in few bits"
    try:
        step = made.step(made.micro_batch)
        other = next((n for n, p in step.model.named_parameters() if p.dtype != torch.float64), None)
        if other is not None:
            return (
                f"'{other}' is stored in {str(step.model.get_parameter(other).dtype).removeprefix('torch.')}"
            )
        step(made.windows[0].select(range(2)) if made.micro_batch is None else made.windows[0])
    except (RuntimeError, TypeError, ValueError, NotImplementedError) as error:
        return f"the model does not compute in it ({type(error).__name__}: {str(error).splitlines()[0]})"
    return None


def without_dropout_(model: nn.Module) -> None:
    """Turn off what the modules say of dropout: its layers, and rates that are attributes of others, such as attention."""
    for module in model.modules():
        if isinstance(module, _DropoutNd):
            module.p = 0.0
        for name, value in vars(module).items():
            if isinstance(value, float) and "drop" in name:
                setattr(module, name, 0.0)


def cast(window: Batch, dtype: torch.dtype) -> Batch:
    """Return the same with its floating tensors in another type."""

    def to(tensor: Tensor) -> Tensor:
        return tensor.to(dtype) if tensor.is_floating_point() else tensor

    return replace(window, data=map_tree(to, window.data))


def _made(setup: Setup, windows: Sequence[Batch], dtype: str) -> Trials:
    if dtype == "float64":
        return Trials(setup, tuple(cast(window, torch.float64) for window in windows), dtype, BOUNDS[dtype])
    halves = (torch.float16, torch.bfloat16)
    mixed = any(each.card.precision for each in setup.techniques)
    mixed = mixed or any(each.dtype in halves for each in setup.material.model.parameters())
    return Trials(setup, tuple(windows), dtype, MIXED_BOUND if mixed else BOUNDS[dtype])


def _conditions(setup: Setup, dtype: str) -> tuple[str, ...]:
    precision = [each.card.name for each in setup.techniques if each.card.precision]
    if dtype == "float64" and precision:
        return (
            f"'{precision[0]}' rounds in training and leaves float64 alone: the laws are of the training without that rounding",
        )
    return ()


def _copied(setup: Setup, *, double: bool) -> tuple[nn.Module, torch.optim.Optimizer | None]:
    """Return copies of the model, in float64 or as it is, and of the optimizer over it."""
    model, optimizer = copy.deepcopy((setup.material.model, setup.optimizer))
    if double:
        for tensor in itertools.chain(model.parameters(), model.buffers()):
            tensor.data = _widened(tensor.data)
        if optimizer is not None:
            load_optimizer(
                optimizer, optimizer.state_dict()
            )  # which brings moments to the type of their weights
    return model, optimizer


def _widened(tensor: Tensor) -> Tensor:
    """Return it in float64; complex numbers stay as they are, where `Module.to` would drop their imaginary parts."""
    return tensor.to(torch.float64) if tensor.is_floating_point() else tensor


def _quiet(*args: Any, **kwargs: Any) -> None:
    """Tell nothing: for a run that nobody listens to."""
