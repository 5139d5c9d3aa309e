"""The step: one update from one window. The loop, your own loop and the planner's dry run all call it."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, cast

import torch
from torch import nn

from snugfit.core.batch import Batch, Share, entries_of, inputs_of, labels_of
from snugfit.core.composition import compose
from snugfit.core.gradients import Gradients
from snugfit.core.loss_terms import Loss, check_weight
from snugfit.core.losses import check_soft_labels, couples_rows, find_loss, over_batches
from snugfit.core.progress import Progress
from snugfit.core.random import derive_seed, preserved_randomness, seed_device
from snugfit.core.selection import check, check_on, check_shared, exchange_of, listed, prepare
from snugfit.core.technique import Compute, Context, GradientsOf, RollBack, Technique
from snugfit.errors import SettingError
from snugfit.kit.batch_norm import has_batch_norm
from snugfit.kit.buffers import AtFirst, BufferCopies, Buffers
from snugfit.kit.language_models.decoder_inputs import decoder_inputs_of
from snugfit.kit.language_models.kv_cache import caching_configs, without_caches
from snugfit.kit.losses.default_loss import default_loss
from snugfit.kit.phases import phase
from snugfit.kit.placement import cloned
from snugfit.kit.precision.product_rounding import products_as_chosen
from snugfit.step import state
from snugfit.step.fixed_modules import FixedModules
from snugfit.step.micro_batch_sizes import check_whole, is_in_micro_batches
from snugfit.step.model_checks.attention_masks import AttentionMasks
from snugfit.step.model_checks.changed_inputs import Inputs
from snugfit.step.model_checks.gradient_hooks import GradientHooks, HooksBehind
from snugfit.step.model_checks.input_errors import check_inputs
from snugfit.step.model_checks.outside_weights import check_outside
from snugfit.step.model_checks.padding import Padding
from snugfit.step.module_modes import Modes
from snugfit.step.optimizer import learning_rates, make_optimizer, set_rates
from snugfit.step.out_of_memory import Replan, check_update_memory, within_memory
from snugfit.step.reported_means import ReportedMeans
from snugfit.step.router_loss import RouterLoss
from snugfit.step.shared_buffers import SharedBuffers
from snugfit.step.step_arguments import (
    ClassCounts,
    check_micro_batch,
    check_module,
    check_trainable,
    check_trains,
    counts_by_name,
    unwrapped,
)
from snugfit.step.torch_wrappers import step_optimizer
from snugfit.step.window_gradients import WindowCompute, asks_for_sums, with_window_sums
from snugfit.strategies.base import Strategy
from snugfit.system.nothing import NOTHING

Forward = Callable[[nn.Module, Any], Any]
_DECODER_INPUTS = {"decoder_input_ids", "decoder_inputs_embeds"}


class StepResult(NamedTuple):
    """The result of one window.

    `loss` is the weighted mean over the window, `weight` its divisor, `applied` whether weights were
    updated (not if anything was non-finite, or the window empty), `refusal` why a technique refused a finite update,
    `metrics` what techniques measured, and the mean of each part that the loss names. `learning_rate` is the highest of all groups, and `learning_rates` has each
    group's by its name, if they differ. `scale` is what the loss was multiplied by, if a technique scales it. `micro_batch` is
    the rows of its largest micro-batch, and `replans` says how often, why and from what it was made finer for want of memory.
    """

    loss: float
    weight: float
    applied: bool
    metrics: Mapping[str, torch.Tensor]
    learning_rate: float
    refusal: str | None = None
    learning_rates: Mapping[str, float] = {}
    scale: float | None = None
    micro_batch: int = 0
    replans: tuple[Replan, ...] = ()


class Step:
    """Turns windows into updates: `result = step(batch)`.

    Args:
        model: any module; put in training mode here (set parts to eval mode afterwards to keep them so).
        optimizer: a torch optimizer, or a technique such as `AdamW(learning_rate=1e-3)`.
        loss: `(outputs, batch) -> unreduced losses or LossTerms`, a torch loss module with reduction 'none', or the name
            of a built-in one. None takes the one that a model of transformers computes from labels (`causal_lm` of a causal language
            model, `mse` or `binary_cross_entropy` of a classifier by its `problem_type`), and `cross_entropy` for any other.
        techniques: what else to do, in any order: each has its place; conflicts are refused here.
        micro_batch: rows of one forward and backward; None takes the window whole. Changes memory, not the update. A window
            that runs out of memory is run again in finer ones, which stay: the attribute of this name says what it is now.
        total_updates: length of the run in updates; schedules need it.
        seed: of everything random in layers and techniques.
        forward: `(model, batch) -> outputs`, when the model does not take the batch's entries as they are.
        nominal: a constant near the window's weight; only keeps half-precision gradients in range.
        cut_padding: whether micro-batches may be cut to their longest text. The first window in which they would be decides, by a
            comparison of outputs and losses with and without padding; `step.padding.message` says what was decided.
        fixed_modules: modules that the loss or `forward` calls and another step trains, as a discriminator beside its generator; while this step
            computes they stay as they are.
        class_counts: rows to train on by the name of their class, or their numbers alone, in the order of the labels; for techniques that
            weigh classes.
        load: finds another model for the same task by its name, for techniques that ask for one, such as a teacher.
        device: where the step runs; None stands for where the model's first parameter is.

    Raises:
        PlanConflict: techniques exclude each other, or several devices cannot have one.
        SettingError: a setting is impossible, or no optimizer is given.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer | Technique | None = None,
        loss: str | Loss | None = None,
        techniques: Sequence[Technique] = (),
        *,
        micro_batch: int | None = None,
        total_updates: int | None = None,
        seed: int = 0,
        forward: Forward | None = None,
        nominal: float = 1.0,
        cut_padding: bool = True,
        strategy: Strategy | None = None,
        fixed_modules: Sequence[nn.Module] = (),
        class_counts: ClassCounts | None = None,
        load: Callable[[str], nn.Module] | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        check_micro_batch(micro_batch)
        techniques = listed(optimizer, techniques)
        check(techniques)
        self.strategy = strategy or Strategy()
        check_shared(techniques, self.strategy.sharing)
        if self.strategy.shards and isinstance(optimizer, torch.optim.Optimizer):
            raise SettingError(
                "optimizer",
                "a torch optimizer holds the whole parameters, in whose place sharding puts parts of them",
                "Give a technique, such as AdamW().",
            )
        check_module(model)
        model = unwrapped(model)
        check_trainable(model)
        check_on(techniques, torch.device(device or next(model.parameters()).device).type)
        fixed = FixedModules(fixed_modules, model) if fixed_modules else None
        if loss is None:
            loss = default_loss(model)
        self._outside = check_outside(model, loss, forward, () if fixed is None else fixed.tensors)
        given = set(model.parameters())
        model = prepare(model, techniques, seed)
        new = {name for name, parameter in model.named_parameters() if parameter not in given}
        del given  # a strategy that shards them gives each up for its part of it
        hooks = GradientHooks.of(model)
        self.hooks_behind = HooksBehind(list(model.parameters()))  # before a strategy puts in its own
        self._hooks = None if hooks == GradientHooks() else hooks
        if self.strategy.shards:
            hooks.check_sharded()
        keeps_start = self.strategy.shards and any(each.keeps_start for each in techniques)
        start = cloned(model) if keeps_start else None
        self._on_ranks = self.strategy.world_size > 1
        self.exchange = exchange_of(techniques) if self._on_ranks else None
        if self.exchange is not None:
            self.strategy.exchange_by(self.exchange)
        self.model = self.strategy.wrap(model)
        self.parameters = list(model.parameters())
        check_trains(self.parameters, techniques)
        place = device or self.strategy.device or self.parameters[0].device
        self.device = torch.empty(0, device=place).device  # with its number
        self.model.train()  # parts of it, such as a pretrained encoder, may have arrived in eval mode
        self._modes = Modes(self.model)
        self.micro_batch = micro_batch
        self.seed = seed
        self.nominal = nominal
        self.progress = Progress()
        self._forward = forward
        # transformers' models that write one text after reading another take what they write from the labels
        self._decoder_inputs = decoder_inputs_of(model)
        self.has_own_forward = forward is not None
        self.padding = Padding(allowed=cut_padding)
        self.inputs = Inputs()
        self.entries = 0  # of the last window, where it is a tuple, with its labels
        self._shared_buffers = SharedBuffers(model, self.strategy) if self._on_ranks else None
        self._buffers = Buffers(model)
        self.at_first = AtFirst.of(model)
        self._caching = caching_configs(model)
        self._masks = AttentionMasks(model)
        self._passes = 0
        self.largest, self.group, self.handed = 0, 1, False  # what the window that is run has come to
        self.coupling = tuple(each.card.name for each in techniques if each.card.couples_examples)
        self.together = max((each.together for each in techniques), default=1)
        self.total_updates = total_updates
        self.has_batch_norm = has_batch_norm(model)
        loss_function = find_loss(loss)
        self.couples_rows = couples_rows(loss_function)
        self._sums_first = asks_for_sums(loss_function, forward)
        self.reported_means = ReportedMeans(forward)
        self.loss, self.user_loss = loss_function, over_batches(loss_function)
        context = Context(
            model,
            self.device,
            total_updates,
            seed,
            loss_function,
            forward,
            load,
            start,
            self.strategy.spread,
            self.exchange,
            self.strategy.any_in_forward,
            counts_by_name(class_counts),
            self.strategy.sharing,
        )
        self._router_loss = RouterLoss.of(model)
        run = _run if self._router_loss is None else self._router_loss.run
        around = None if fixed is None else fixed.held
        self.seams = compose(techniques, context, self.user_loss, cast("GradientsOf", run), around)
        seams = self.seams
        on_one_device = type(self.strategy) is Strategy and self.exchange is None
        # a window is computed without a look at what is not there
        self.plain = on_one_device and not seams.surrounds and seams.scale is None and seams.sums is None
        computes_so = seams.gradients is _run and seams.loss is self.user_loss
        self._techniques_see_windows = (
            seams.transforms or seams.surrounds or not computes_so or self._sums_first
        )
        self._changes_windows = self.seams.transforms or self._sums_first
        self._selects_rows = self.seams.transforms or self.seams.gradients is not _run or self._on_ranks
        added = {name: p for name, p in model.named_parameters() if name in new and p.requires_grad}
        self.optimizer = make_optimizer(optimizer, self.seams, model, added)
        set_rates(self.optimizer, self.seams, updates=0)  # one that does not suit the optimizer says so now
        self.meanwhile: Callable[[], None] | None = None  # what the host does before it waits for the device
        self.kernels: set[str] | None = None  # of attention, as the first micro-batch was computed

    def __call__(self, batch: Any) -> StepResult:
        """Train on one window: `batch` is what the model takes, or a `Batch`. Leaves the global random state as it was."""
        window = batch if isinstance(batch, Batch) else Batch.of(batch)
        check_soft_labels(self.loss, window.data)
        self.entries = entries_of(window.data)
        window = window.to(self.device)
        with preserved_randomness(self.device), products_as_chosen(self.device):
            return self._train_step(self.shared(window) if self._on_ranks else window)

    @property
    def _shares_known(self) -> bool:
        """Return whether each rank has to know how many rows the others have before it computes its own."""
        return (
            self._techniques_see_windows
            or self.couples_rows
            or (self.strategy.shards and self.micro_batch is not None)
        )

    def shared(self, window: Batch) -> Batch:
        """Return the window with what the other ranks have of it, where anybody looks at that; all ranks call it."""
        strategy = self.strategy
        if strategy.world_size == 1 or (window.share is None and not self._shares_known):
            return window
        share = window.share
        if self.seams.transforms:  # by the texts of the whole window
            rows, tokens = strategy.all_counts(window.rows, window.tokens)
            share = (share or Share(rows, strategy.rank))._replace(tokens=max(tokens))
        elif share is None:
            share = Share(strategy.counts(window.rows), strategy.rank)
        if share.first % self.together:
            raise SettingError(
                "batch",
                f"begins at row {share.first} of the window on rank {share.rank}, and neighbours are mixed "
                f"{self.together} at a time",
                f"Give each rank a multiple of {self.together} rows.",
            )
        return replace(window, share=share)

    def _train_step(self, window: Batch) -> StepResult:
        if self.couples_rows:
            check_whole(self, window)
        if self.seams.schedule is not None:
            set_rates(self.optimizer, self.seams, self.progress.updates)
        self._modes.resume()
        if self.seams.begins:
            self.seams.begin(self.model, self.progress, self.seed)
        self._modes.note()
        buffers = self._buffers.copy()
        self.inputs.forget()
        shared = self._shared_buffers
        watched = None if shared is None else shared.before()
        gradients, replans = within_memory(self, window, partial(self._compute, window, buffers))
        if shared is not None:
            shared.share(watched)
        if self.meanwhile is not None:
            self.meanwhile()
        loss, weight, nonfinite, rows, norm = gradients.read()
        if weight < 0:
            self._undo(buffers)
            check_weight(weight)
        metrics: Mapping[str, torch.Tensor] = {}
        finite = nonfinite == 0
        refusal = self.seams.accept(loss) if self.seams.judges and finite and weight > 0 else None
        if self.seams.irrevocable and not finite and math.isfinite(loss):
            refusal = RollBack("a gradient was not finite after other weights had been updated by theirs")
        applied = finite and weight > 0 and refusal is None
        if applied:
            try:
                metrics = self._update(norm)
            except Exception as error:
                check_update_memory(self, error)
                raise
        else:  # non-finite, empty or refused: changes nothing
            self._undo(buffers)
        scale = None if self.seams.scale is None else self.seams.scale.factor
        if self.seams.scale is not None and weight > 0:
            self.seams.scale.update(finite)
        self.progress.consume(window.total if rows is None else round(rows), applied)
        rate, rates = learning_rates(self.optimizer)
        return StepResult(loss, weight, applied, metrics, rate, refusal, rates, scale, self.largest, replans)

    def _update(self, norm: float | None) -> Mapping[str, torch.Tensor]:
        """Update the weights by the true gradient, which techniques adjust first; returns what was measured."""
        metrics: Mapping[str, torch.Tensor] = {}
        with phase("adjust"):
            if self.seams.adjusts:
                metrics = self.seams.adjust(self.bearers, self.progress, self.seed, norm)
        metrics = self.reported_means.with_means(metrics, self.strategy)
        with phase("optimizer"):
            step_optimizer(self.optimizer)
        self.progress.updates += 1
        with phase("techniques"):
            if self.seams.follows:
                self.seams.updated(self.model, self.progress)
        return metrics

    @contextmanager
    def computed(self, window: Batch) -> Iterator[None]:
        """Temporarily hold the gradients of `window` as for an update of it; afterwards nothing of it is there."""
        buffers = self._buffers.copy()
        self.inputs.forget()
        try:
            with products_as_chosen(self.device):
                self._compute(window, buffers)
            yield
        finally:
            self._undo(buffers)

    def scored_forward(self, batch: Batch) -> Any:
        """Return the model's outputs of a batch that is scored: a task's forward may put out more then, by its method `scored`."""
        scored = getattr(self._forward, "scored", None)
        if scored is None:
            return self.forward(batch)
        with phase("forward"):
            return scored(self.model, batch.data)

    def forward(self, batch: Batch) -> Any:
        """Return the model's outputs of a batch; no cache of keys and values is filled, which only generation reads."""
        off = without_caches(self._caching) if self._caching else NOTHING
        with phase("forward"), off:
            if self._forward is not None:
                return self._forward(self.model, batch.data)
            args, kwargs = inputs_of(batch.data)
            if self._decoder_inputs is not None and not _DECODER_INPUTS & kwargs.keys():
                kwargs["decoder_input_ids"] = self._decoder_inputs(labels_of(batch.data))
            try:
                with self._masks.answered(batch):
                    return self.model(*args, **kwargs)
            except Exception as error:
                check_inputs(error, self.model, args, kwargs)
                raise

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """Temporarily give the model the weights that techniques keep for evaluation, such as an average, and score it; else its own."""
        with self.seams.weights(self.model), self.strategy.score(self.model):
            yield

    def evaluated(self, metrics: Mapping[str, float]) -> None:
        """Tell techniques that follow the evaluations, such as a plateau schedule, what scoring has found."""
        self.seams.evaluated(metrics)

    def settle(self, windows: Callable[[], Iterable[Any]]) -> None:
        """Let techniques bring what an average cannot hold, such as batch norm's statistics, in line with the averaged weights.

        This is before scoring. Training goes on as if it had not been.

        Args:
            windows: gives windows of training data, from their beginning; closed early where it is a generator.
        """
        if not self.seams.settles:
            return

        def taking() -> Generator[Any]:
            yield from windows()

        def passes() -> Generator[None]:
            with closing(taking()) as taken:
                for number, window in enumerate(taken):
                    batch = self.shared(
                        (window if isinstance(window, Batch) else Batch.of(window)).to(self.device)
                    )
                    compute = WindowCompute(self, self.padding.applied(batch), self.seams.loss)
                    for place, (rows, counts) in enumerate(compute.passes()):
                        part = compute.batch.select(rows)
                        seed_device(derive_seed(self.seed, "settle", number, place), self.device)
                        buffers = NOTHING if counts else self.preserved_buffers()
                        with torch.no_grad(), buffers, self.seams.forward(part):
                            self.forward(part)
                    if self._shared_buffers is not None:
                        self._shared_buffers.share()
                    yield

        self._modes.resume()
        self.seams.begin(self.model, self.progress, self.seed)
        with (
            preserved_randomness(self.device),
            products_as_chosen(self.device),
            self.preserved_buffers(),
            self.averaged(),
        ):
            self.seams.settle(self.model, passes)

    @property
    def whole_windows(self) -> bool:
        """Return whether the loss has to be shown a window whole, as it compares rows and nothing here gives it what it needs of the others."""
        return self.couples_rows and not self.seams.coupled and not self._sums_first

    @property
    def bearers(self) -> list[nn.Parameter]:
        """Return what has the gradients, in the order of the parameters: they themselves, but where gradients leave for the host."""
        return self.parameters if self.seams.sums is None else self.seams.sums.in_place_of(self.parameters)

    def gradients(self) -> dict[str, torch.Tensor]:
        """Return the gradients of the last window by name, where they were not used up by its update."""
        named = zip(self.model.named_parameters(), self.bearers, strict=True)
        return {name: bearer.grad for (name, _), bearer in named if bearer.grad is not None}

    @property
    def at_first_pass(self) -> bool:
        """Return whether no pass over the rows has been made yet."""
        return self._passes == 0

    def begin_passes(self) -> None:
        """Begin passes anew: over a window, or over rows of it that none has been over."""
        self._passes = 0
        self.reported_means.begin_rows()

    def preserved_buffers(self) -> AbstractContextManager[None]:
        """Temporarily allow buffers such as batch norm's statistics to change; on exit they are as before."""
        return self._buffers.restore_on_exit()

    def one_pass(self) -> AbstractContextManager[None]:
        """Begin a pass over the rows, and return the context around it: buffers, such as batch norm's statistics, keep the first pass only."""
        self._passes += 1
        if self._passes == 1:
            return NOTHING
        self.inputs.require_unchanged()
        return self.preserved_buffers()

    def state_dict(self) -> dict[str, Any]:
        """Return all that resuming needs: weights, buffers, optimizer, techniques and progress; live tensors."""
        return state.state_of(self)

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Go on from `saved`, bit for bit.

        Raises:
            SettingError: the state is of another model, optimizer or set of techniques; nothing was loaded.
        """
        state.load(self, saved)

    def _compute(self, window: Batch, buffers: list[BufferCopies]) -> Gradients:
        """Return the window's gradient; what raises leaves nothing behind."""
        self._passes = 0
        self.reported_means.begin_window()
        self.largest, self.handed = 0, False
        self.inputs.require_unchanged()
        try:
            if self._is_split(window):
                window = self.splittable(window)
                if self._hooks is not None and is_in_micro_batches(self, window):
                    self._hooks.check_split(on_host=self.seams.sums is not None)
            with phase("techniques"):
                if self._changes_windows:
                    window = self.transformed(window)
            self.inputs.begin(window)
            gradients = self.seams.gradients(WindowCompute(self, window, self.seams.loss))
            self._outside.check()
            self.inputs.end()
            return gradients
        except BaseException:
            self._undo(buffers)
            raise

    def splittable(self, window: Batch) -> Batch:
        """Return the window as its micro-batches are to be made from it: with its padding where that is not known to be cut rightly; all ranks call it."""
        return self.padding.settled(self, window)

    def _is_split(self, window: Batch) -> bool:
        """Return whether rows of the window may be selected: for micro-batches, by techniques or beside other ranks."""
        return self._selects_rows or is_in_micro_batches(self, window)

    def transformed(self, window: Batch) -> Batch:
        """Return the shared window after the techniques that change it, which may put several examples into one row; all ranks call it."""
        transformed = self.seams.batch(window, self.progress, self.seed)
        share = window.share
        if share is not None and self.seams.transforms:
            counts = self.strategy.counts(transformed.rows if share.rows else 0)
            transformed = replace(transformed, share=share._replace(counts=counts))
        return with_window_sums(self, transformed, self._forward) if self._sums_first else transformed

    def _undo(self, buffers: list[BufferCopies]) -> None:
        self.drop_gradients()
        self._buffers.restore(buffers)

    def drop_gradients(self) -> None:
        """Have no gradients."""
        for parameter in self.parameters:
            parameter.grad = None
        if self.seams.sums is not None:
            self.seams.sums.clear()


def _run(compute: Compute) -> Any:
    return compute.run()
