"""Watch backward passes, optimizers and gradient clipping."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from snugfit.doctor.observe.events.log import OptimizerSeen
from snugfit.doctor.observe.events.run_events import Move, Rounded, SteppedAgain
from snugfit.doctor.observe.events.script_events import Backward, Clip, OptimizerBuilt, Step, ZeroGrad
from snugfit.doctor.observe.events.state_events import StateRestore
from snugfit.doctor.observe.recording.attribute_patches import Patches
from snugfit.doctor.observe.recording.internals import not_compiled
from snugfit.doctor.observe.recording.recorder import Recorder
from snugfit.doctor.observe.recording.script_frames import called_directly, innermost, line_in, where
from snugfit.doctor.observe.source.overwritten_names import last_set
from snugfit.doctor.observe.watchers.modules.watch_modules import ModuleWatch
from snugfit.doctor.observe.watchers.optimizers.evaluation_steps import EvaluationSteps
from snugfit.doctor.observe.watchers.optimizers.gradient_state import (
    Before,
    Gradients,
    State,
    magnitude,
    nonzero,
    summable,
)
from snugfit.doctor.observe.watchers.optimizers.hand_steps import HandSteps
from snugfit.doctor.observe.watchers.optimizers.watch_ranks import look_at_ranks
from snugfit.doctor.observe.watchers.optimizers.watch_seeds import SeedWatch
from snugfit.doctor.observe.watchers.terms.watch_terms import TermWatch
from snugfit.doctor.observe.watchers.updates.leaves import Leaves
from snugfit.doctor.observe.watchers.updates.watch_scalers import ScalerWatch

_Call = Callable[..., Any]


_MOMENTS = frozenset({"betas", "alpha", "rho", "etas"})
"""Settings of optimizers that keep moments, but for momentum, which may be 0."""
FROZEN_LOOKS = 8
"""After so many updates it is looked again which optimizers have nothing left that trains."""
MOST_ELEMENTS = 4096
GROWN = 100.0
"""A loss that is so many times the first one makes it worth to look at the weights."""


class Differentiated(NamedTuple):
    """A value that is differentiated.

    Args:
        before: the gradients before it; `factor` the loss scale in it.
        ratio: it over the mean that the loss function returned, None where they cannot be compared.
        graph: name of the function that made it.
        value: it without the loss scale; not finite where it is no single number.
        made_at: the line that last set its name, where it has no graph; "" else.
        of_inputs: whether leaves of its graph are no parameters.
    """

    at: str
    before: Before
    factor: float
    ratio: float | None
    graph: str
    finite: bool
    value: float
    made_at: str = ""
    of_inputs: bool = False


class UpdateWatch:
    """A watcher of what happens between a loss and the weights."""

    def __init__(
        self,
        recorder: Recorder,
        gradients: Gradients,
        modules: ModuleWatch,
        seeds: SeedWatch,
        terms: TermWatch,
    ) -> None:
        self.recorder, self.gradients, self.modules, self.seeds = recorder, gradients, modules, seeds
        self.terms = terms
        self.leaves = Leaves(recorder, modules)
        self.hand_steps = HandSteps(recorder)
        self.evaluation_steps = EvaluationSteps(recorder)
        self.scalers = ScalerWatch(recorder, gradients)
        self._steps: dict[int, int] = {}
        self._depth = 0
        self._differentiated = Differentiated("", {}, 1.0, None, "", finite=True, value=math.nan)
        self._before: dict[int, tuple[float, float]] = {}
        self._old_graphs = modules.graphs
        self._matrices: list[tuple[Tensor, Tensor]] = []
        self._sizes: dict[int, float] = {}
        self._first_loss = math.nan
        self._shares: dict[tuple[str, str], float | None] = {}
        self._trainable: dict[int, list[bool]] = {}

    def install(self, patches: Patches) -> None:
        from torch.optim import optimizer

        patches.wrap(torch.autograd, "backward", self._backward)
        patches.wrap(torch.optim.Optimizer, "add_param_group", self._add_group)
        patches.wrap(torch.optim.Optimizer, "zero_grad", self._zero_grad)
        patches.wrap(torch.optim.Optimizer, "load_state_dict", self._restored)
        patches.wrap(torch.nn.Module, "zero_grad", self._module_zero_grad)
        for hook in (
            optimizer.register_optimizer_step_pre_hook(not_compiled(self._step_begins)),
            optimizer.register_optimizer_step_post_hook(not_compiled(self._step_ends)),
        ):
            patches.on_undo(hook.remove)
        for name in ("clip_grad_norm_", "clip_grad_value_"):
            for owner in (
                torch.nn.utils,
                torch.nn.utils.clip_grad,
            ):  # of the second the deprecated names are made
                patches.wrap(owner, name, self._clip)
        self.scalers.install(patches)

    def _add_group(self, original: _Call) -> _Call:
        def add_param_group(optimizer: Any, param_group: dict[str, Any]) -> None:
            if isinstance(param_group, dict) and isinstance(param_group.get("params"), Iterator):
                param_group["params"] = list(param_group["params"])  # read twice: by us, then by torch
            numbers: list[int] = []
            with self.recorder.guard():
                numbers = self._note_group(optimizer, param_group)
            original(optimizer, param_group)
            with self.recorder.guard():
                known = self.recorder.optimizers[self.recorder.number(optimizer)]
                known.parameters += numbers
                self.recorder.optimized += len(numbers)
                if param_group.get("weight_decay", 0):
                    known.decayed += numbers
                self.modules.optimizer_built()

        return add_param_group

    def _note_group(self, optimizer: Any, group: dict[str, Any]) -> list[int]:
        """Note a group that comes to an optimizer, and return the numbers of its parameters."""
        known = self.recorder.optimizers.get(self.recorder.number(optimizer))
        if known is None:
            known = OptimizerSeen(self.recorder.number(optimizer), type(optimizer).__name__, where())
            self.recorder.optimizers[known.id] = known
            known.remembers = _remembers(optimizer)
            known.maximizes = bool(optimizer.defaults.get("maximize"))
            self.recorder.log.optimizers.append(known)
            self.recorder.add(OptimizerBuilt(known.at, self.recorder.log.updates, known.id))
            self.recorder.begin_anew()
            self.gradients.track(optimizer)
        given = group["params"]
        named = [given] if isinstance(given, Tensor) else given
        tensors = [each[1] if isinstance(each, tuple) else each for each in named]
        numbers = [self.recorder.parameter(each).id for each in tensors if isinstance(each, Tensor)]
        doubled = [
            each for place, each in enumerate(numbers) if each in numbers[:place] or each in known.parameters
        ]
        if doubled:
            known.doubled += doubled
            known.doubled_at = where()
        return numbers

    def _backward(self, original: _Call) -> _Call:
        def backward(tensors: Any, *args: Any, **kwargs: Any) -> None:
            if torch.compiler.is_dynamo_compiling() or not self.recorder.active:
                if self.recorder.rests:
                    self.modules.rows.backward()
                if self.recorder.blind:
                    self.recorder.note_profiled_pass()
                original(tensors, *args, **kwargs)
                return
            with self.recorder.guard():
                self._differentiated = self._about_to_differentiate(tensors)
            inside = self.modules.suspend()
            try:
                original(tensors, *args, **kwargs)
            finally:
                self.modules.go_on(inside)
            with self.recorder.guard():
                value = self._differentiated
                self.hand_steps.after()
                touched, adds_to = self.gradients.after(value.before, value.factor)
                self.modules.differentiated()
                self.gradients.losses.clear()
                self.recorder.add(
                    Backward(
                        value.at,
                        self.recorder.log.updates,
                        value.ratio,
                        value.graph,
                        adds_to,
                        touched,
                        value.finite,
                        torch.is_anomaly_enabled(),
                        value.value,
                        called_directly("torch."),  # Tensor.backward calls what is wrapped
                        self._depth > 0,
                        value.made_at,
                        value.of_inputs,
                        any(self.gradients.states[each].stale for each in touched),
                    )
                )

        return backward

    def _about_to_differentiate(self, tensors: Any) -> Differentiated:
        """Return what is known of a value before it is differentiated."""
        before = self.gradients.before()
        value = tensors if isinstance(tensors, Tensor) else next(iter(tensors), None)
        factor, graph = self.gradients.scale_of(value) if isinstance(value, Tensor) else (1.0, "")
        amount, finite = math.nan, True
        if isinstance(value, Tensor) and value.numel() == 1:
            amount = float(value.detach()) / factor
            finite = math.isfinite(amount)
            self._old_graphs.note(value)
            self.hand_steps.before(value)
            if self.recorder.detailed and not self.modules.dependence.hooked:
                self.terms.differentiated(value, self.modules.rows_in_batch, factor)
                for companion in self.modules.companions:
                    companion.differentiated(value)
            elif self.recorder.close and not self.modules.dependence.hooked:
                self.terms.differentiated_later(value, self.modules.rows_in_batch, factor)
            if math.isnan(self._first_loss):
                self._first_loss = amount
        made_at, of_inputs = "", False
        if isinstance(value, Tensor) and value.grad_fn is None:
            made_at = _line_of_name()
        elif isinstance(value, Tensor) and self.recorder.detailed:
            of_inputs = self.leaves.look_at(value)
        ratio = self._ratio(value, factor)
        return Differentiated(where(), before, factor, ratio, graph, finite, amount, made_at, of_inputs)

    def _ratio(self, value: Any, factor: float) -> float | None:
        """Return what is differentiated over what the loss functions returned: one of them, or their sum; or over a mean of the script's own."""
        if not isinstance(value, Tensor) or value.numel() != 1:
            return None
        place = where(), type(value.grad_fn).__name__
        if self.recorder.detailed and not self.modules.dependence.hooked:
            self._shares[place] = self.terms.share
        share = self._shares.get(place)
        if not self.gradients.losses:
            return share
        given = float(value.detach()) / factor
        if given == 0.0:
            return None
        means = [*self.gradients.losses, sum(self.gradients.losses)]
        if any(abs(given - mean) <= 1e-3 * abs(mean) for mean in means):
            return 1.0
        if (
            share is not None and len(self.gradients.losses) > 1
        ):  # a sum of them, each with a weight of its own
            return share
        return given / self.gradients.losses[-1] if self.gradients.losses[-1] else None

    def _zero_grad(self, original: _Call) -> _Call:
        def zero_grad(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            if not torch.compiler.is_dynamo_compiling() and self.recorder.active:
                with self.recorder.guard():
                    cleared = [self.recorder.number(optimizer)]
                    moved = self.recorder.detailed and self.gradients.are_moved(cleared)
                    self.recorder.add(ZeroGrad(where(), self.recorder.log.updates, cleared, moved))
            return original(optimizer, *args, **kwargs)

        return zero_grad

    def _restored(self, original: _Call) -> _Call:
        def load_state_dict(optimizer: Any, state_dict: Any) -> Any:
            if self.recorder.active:
                with self.recorder.guard():
                    number = self.recorder.number(optimizer)
                    self.recorder.add(
                        StateRestore(
                            where(),
                            self.recorder.log.updates,
                            schedule=False,
                            optimizer=number,
                            scheduled=_is_scheduled(state_dict),
                            empty=isinstance(state_dict, dict) and not state_dict.get("state"),
                        )
                    )
            return original(optimizer, state_dict)

        return load_state_dict

    def _module_zero_grad(self, original: _Call) -> _Call:
        def zero_grad(module: Any, *args: Any, **kwargs: Any) -> Any:
            if not torch.compiler.is_dynamo_compiling() and self.recorder.active:
                with self.recorder.guard():
                    own = {self.recorder.number(each) for each in module.parameters()}
                    cleared = [
                        each.id for each in self.recorder.optimizers.values() if own & set(each.parameters)
                    ]
                    moved = self.recorder.detailed and self.gradients.are_moved(cleared)
                    self.recorder.add(ZeroGrad(where(), self.recorder.log.updates, cleared, moved))
            return original(module, *args, **kwargs)

        return zero_grad

    def _clip(self, original: _Call) -> _Call:
        def clip(parameters: Any, *args: Any, **kwargs: Any) -> Any:
            given = [parameters] if isinstance(parameters, Tensor) else list(parameters)
            if torch.compiler.is_dynamo_compiling() or not self.recorder.active:
                return original(given, *args, **kwargs)
            states: list[State] = []
            with self.recorder.guard():
                own = {id(each) for each in given}
                states = [
                    state
                    for state in self.gradients.states.values()
                    if any(id(each) in own for each in state.sample())
                ]
                scaled = [state.scale for state in states if state.scaled]
                limit = kwargs.get("max_norm", kwargs.get("clip_value", args[0] if args else 0.0))
                at, update = where(), self.recorder.log.updates
                late = bool(states) and all(state.used for state in states)
                factor = max(scaled, default=1.0)
                changed = states[0].change() if states else 1.0
                self.recorder.add(Clip(at, update, bool(scaled), factor, float(limit), late, changed))
            result = original(given, *args, **kwargs)
            with self.recorder.guard():
                for state in states:
                    state.lengths = []
                    state.clipped = magnitude(state.gradients()) if self.recorder.detailed else 0.0
            return result

        return clip

    def _step_begins(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        self._depth += 1
        if self.recorder.rests:
            return
        with self.recorder.guard():
            number = self.recorder.number(optimizer)
            state = self.gradients.states.get(number)
            if state is not None and self._depth == 1 and self.recorder.active:
                closure = any(map(callable, (*args, *kwargs.values())))  # which will make the gradients
                if not closure and state.left_behind():
                    self.recorder.add(SteppedAgain(where(), self.recorder.log.updates, number))
                self._note_step(optimizer, number, state)

    def _note_step(self, optimizer: Any, number: int, state: State) -> None:
        known = not math.isnan(state.size)
        looked = known or state.stale
        present = [each.grad for each in state.sample() if each.grad is not None] if looked else []
        size = magnitude(present) if known else math.nan
        self.recorder.add(
            Step(
                where(),
                self.recorder.log.updates,
                number,
                stale=state.stale and any(nonzero(each) for each in present),
                cleared=known and state.had and not any(nonzero(each) for each in present),
                scaled=state.scaled and not self.scalers.stepping,
                without=all(each.grad is None for each in state.parameters()),
                rescaled=known and abs(size - state.size) > 1e-6 * state.size,
                since_clip=size / state.clipped if known and state.clipped else 1.0,
                weights=magnitude([each.detach() for each in state.sample()]) if self._grows() else 0.0,
                rate=max([rate_of(group, 0.0) for group in optimizer.param_groups], default=0.0),
                base=max(
                    [rate_of(group, 0.0, "initial_lr") for group in optimizer.param_groups], default=0.0
                ),
            )
        )
        self._note_frozen(number, state)
        self.seeds.before_step()
        look_at_ranks(self.recorder, optimizer, number)
        self.modules.loaded.before_step(optimizer)
        if self.recorder.detailed:
            self.terms.before_step(optimizer, limited=bool(state.clipped))
            for companion in self.modules.companions:
                companion.steps(optimizer)
            self._before = {
                self.recorder.number(each): _sums(each) for each in state.parameters() if each.numel()
            }
            self._look_at_gradients(optimizer)
            self._matrices = [
                (each, each.detach().reshape(-1)[:MOST_ELEMENTS].clone())
                for each in state.sample()
                if each.dim() > 1
            ]

    def finish(self) -> None:
        """Note which optimizers have nothing left that trains, and which parameters have a rate by now."""
        for optimizer in self.recorder.living(torch.optim.Optimizer):
            for group in optimizer.param_groups:
                rate = rate_of(group)
                for parameter in group["params"] if rate else []:
                    seen = self.recorder.parameter(parameter)
                    seen.largest_rate = seen.largest_rate or rate
        for number, state in self.gradients.states.items():
            parameters = state.parameters()
            known = self.recorder.optimizers.get(number)
            if known is not None and parameters:
                known.frozen_at_end = not any(each.requires_grad for each in parameters)

    def _note_frozen(self, number: int, state: State) -> None:
        """Note which parameters were frozen, or are trained again, since this optimizer's last step."""
        parameters = state.parameters()
        now = [each.requires_grad for each in parameters]
        before, self._trainable[number] = self._trainable.get(number, now), now
        if before == now or len(before) != len(now):
            return
        for parameter, was, trains in zip(parameters, before, now, strict=True):
            seen = self.recorder.parameter(parameter)
            if was and not trains and seen.frozen_from < 0:
                seen.frozen_from = self.recorder.log.updates
                if parameter.numel() and not self.recorder.detailed:
                    self._before[seen.id] = _sums(parameter)
            seen.thawed = seen.thawed or (trains and not was)

    def _grows(self) -> bool:
        """Return whether these are the first updates, or the loss is far above the first one or no number."""
        return self.recorder.detailed or not self._differentiated.value <= GROWN * max(self._first_loss, 1e-2)

    def _look_at_gradients(self, optimizer: Any) -> None:
        closure = isinstance(optimizer, torch.optim.LBFGS)  # its gradients appear during the step
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                seen = self.recorder.parameter(parameter)
                seen.updates += 1
                seen.trainable = parameter.requires_grad
                seen.largest_rate = max(seen.largest_rate, rate_of(group))
                if not parameter.requires_grad or closure:
                    continue
                seen.no_gradient += parameter.grad is None
                flat = parameter.grad is not None and not nonzero(parameter.grad)
                seen.zero_gradient += flat
                seen.zeros = flat and not nonzero(parameter)
                if seen.zeros:
                    seen.made_at, seen.owner = self.modules.put_parameters.at(parameter)

    def _step_ends(self, optimizer: Any, *_: Any) -> None:
        self._depth -= 1
        with self.recorder.guard():
            number = self.recorder.number(optimizer)
            state = self.gradients.states.get(number)
            if state is None or self._depth:
                return
            if self.recorder.rests:
                self._count_step(number)
                self.modules.rested(optimizer)
                self.recorder.count_updates()
                self._end_step()
                state.used = not self.recorder.resting  # by the step that ended the rest
                return
            looked = self.recorder.active
            if not looked and not self.recorder.blind:
                return
            self._count_step(number)
            if not looked and self.recorder.opens_eyes():
                self._resume(number)
            if looked:
                self._note_moves(optimizer, state)
                state.used, state.stale, state.had, state.scaled = True, False, False, False
                state.leave(looked=self.recorder.detailed)
                self.recorder.count_updates()
                if self.recorder.updates_made % FROZEN_LOOKS == 0:
                    self.finish()
            self._end_step()

    def _count_step(self, number: int) -> None:
        self._steps[number] = self._steps.get(number, 0) + 1
        self.recorder.optimizers[number].steps += 1
        self.evaluation_steps.after_step(number)
        counts = self._steps.values()
        self.recorder.updates_made, self.recorder.fewest_steps = max(counts), min(counts)

    def _end_step(self) -> None:
        self.recorder.plan_rest()
        self.recorder.tick()
        self.recorder.interrupt_if_enough()

    def woken(self) -> None:
        """Begin anew after updates that rested: what is known of gradients is older than they."""
        self.gradients.losses.clear()
        for state in self.gradients.states.values():
            state.used, state.stale, state.had, state.scaled = False, False, False, False
            state.lengths, state.left, state.clipped = [], [], 0.0

    def _resume(self, number: int) -> None:
        """Begin anew after this optimizer's step, which nobody saw: its gradients are used, those of others are not known."""
        self.gradients.losses.clear()
        self._before = {}
        for each, state in self.gradients.states.items():
            state.used, state.stale, state.had, state.scaled = each == number, False, False, False
            state.lengths, state.clipped = [], 0.0
        self.modules.resumed()
        plain = dict.fromkeys(("stale", "cleared", "scaled", "without", "rescaled"), False)
        self.recorder.add(Step(where(), self.recorder.log.updates, number, **plain))

    def _note_moves(self, optimizer: Any, state: State) -> None:
        for parameter in state.parameters() if self._before else []:
            seen = self.recorder.parameter(parameter)
            if seen.id in self._before and _sums(parameter) != self._before[seen.id]:
                seen.moved += parameter.requires_grad
                seen.frozen_moved += not parameter.requires_grad
        self._before = {}
        self._note_distance(optimizer)
        self.modules.stepped(optimizer)

    def _note_distance(self, optimizer: Any) -> None:
        """Note how far the matrices of an optimizer's sample were moved, over the size that they had at first."""
        matrices, self._matrices = self._matrices, []
        pairs = [(_reals(each.detach().reshape(-1)[:MOST_ELEMENTS]), _reals(was)) for each, was in matrices]
        number = self.recorder.number(optimizer)
        self._note_rounding(number, matrices)
        size = self._sizes.setdefault(number, math.hypot(*(float(was.norm()) for _, was in pairs)))
        rises = any(group.get("maximize") for group in optimizer.param_groups)  # what is learned is no loss
        if pairs and size > 0 and not rises:
            share = math.hypot(*(float((now - was).norm()) for now, was in pairs)) / size
            self.recorder.add(Move(where(), self.recorder.log.updates, number, share))

    def _note_rounding(self, number: int, matrices: list[tuple[Tensor, Tensor]]) -> None:
        """Note how many of those weights of 16 bits that have a gradient a step has changed."""
        few = [(each, was) for each, was in matrices if each.dtype in (torch.bfloat16, torch.float16)]
        changed = counted = 0
        for each, was in few:
            if each.grad is None or each.grad.is_sparse:
                continue
            learned = each.grad.reshape(-1)[:MOST_ELEMENTS] != 0
            counted += int(learned.sum())
            changed += int(((each.detach().reshape(-1)[:MOST_ELEMENTS] != was) & learned).sum())
        if counted:
            dtype = str(few[0][0].dtype).removeprefix("torch.")
            self.recorder.add(Rounded(where(), self.recorder.log.updates, number, changed / counted, dtype))


def rate_of(group: dict[str, Any], default: float = 1.0, name: str = "lr") -> float:
    """Return the learning rate of a group; the default where it has none, or sets it by itself, as transformers' Adafactor does with None.

    >>> rate_of({"lr": 0.1}), rate_of({"lr": None}), rate_of({})
    (0.1, 1.0, 1.0)
    """
    rate = group.get(name)
    return default if rate is None else float(rate)


def _is_scheduled(state: Any) -> bool:
    """Return whether the state of an optimizer is one that has stepped, under a schedule, which notes the rate that it began with."""
    groups = state.get("param_groups", ()) if isinstance(state, dict) else ()
    return bool(groups) and bool(state.get("state")) and all("initial_lr" in each for each in groups)


def _line_of_name() -> str:
    """Return the line that last set the name of what the script differentiates here; "" where its source does not show it."""
    frame = innermost()
    line = 0 if frame is None else last_set(frame.f_code.co_filename, frame.f_lineno)
    return "" if frame is None or not line else line_in(frame, line)


def _remembers(optimizer: Any) -> bool:
    """Return whether an optimizer of torch keeps moments of the gradients."""
    defaults = getattr(optimizer, "defaults", {})
    return bool(defaults.get("momentum")) or not _MOMENTS.isdisjoint(defaults)


def _reals(values: Tensor) -> Tensor:
    """Return values in float32, a complex one as two."""
    return torch.view_as_real(values).float() if values.is_complex() else values.float()


def _sums(parameter: Tensor) -> tuple[float, float]:
    """Return two sums over all elements, which a change of any of them changes."""
    values = summable(parameter)
    if values.is_complex():
        values = torch.view_as_real(values)
    norm = torch.linalg.vector_norm(
        values.float() if not values.is_floating_point() else values, dtype=torch.float64
    )
    return float(values.sum(dtype=torch.float64)), float(norm)
