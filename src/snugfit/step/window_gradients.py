"""The computation of one window: its gradients, as a value that techniques may change and repeat, and the sums that a loss needs ahead of them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from snugfit.core.batch import Batch
from snugfit.core.gradients import Gradients
from snugfit.core.loss_scale import LossScale
from snugfit.core.loss_terms import Loss, LossTerms
from snugfit.core.losses import couples_rows, of_answers
from snugfit.core.random import derive_seed, seed_device
from snugfit.core.technique import BatchLoss
from snugfit.core.tree import map_tree
from snugfit.errors import PlanConflict, SettingError, TrainingFailed
from snugfit.kit.autograd_graph import kernels_of
from snugfit.kit.losses.preference_losses import WINDOW_SUMS
from snugfit.kit.optimizers.foreach import count_nonfinite, global_norm, gradients_of, scale_
from snugfit.kit.phases import phase
from snugfit.step.gather import joining, part_of_rank, rows_of_all_ranks, whole_window
from snugfit.step.micro_batch_sizes import cut
from snugfit.step.model_checks.row_outputs import join_outputs
from snugfit.step.model_checks.type_clashes import check_types
from snugfit.step.step_views import WindowStep
from snugfit.step.torch_wrappers import backward
from snugfit.system.device_copies import scalar_like
from snugfit.system.memory import is_out_of_memory
from snugfit.system.nothing import NOTHING
from snugfit.system.update_value import update_value

Totals = tuple[Tensor, Tensor | float, Tensor | None]
"""Sums over a window and all ranks: of losses, of weights, and of rows where no rank knows how many the others have."""


@update_value(frozen=True, slots=True)
class WindowCompute:
    """Implements `core.technique.Compute` for a step; `batch` is the window, already on the device.

    `part` is the place among the parts of a window that is computed part by part; `take` gets each parameter whose gradient
    is whole.
    """

    step: WindowStep
    batch: Batch
    loss: BatchLoss
    part: tuple[int, ...] = ()
    take: Callable[[nn.Parameter], None] | None = None

    def run(self) -> Gradients:
        """Forward and backward of each micro-batch; leaves the true gradient in `.grad`.

        The weighted sums of the micro-batches are added up and divided once, by the weight of the window.
        """
        step = self.step
        step.drop_gradients()
        step.reported_means.begin_pass()
        passes = self.passes()
        if step.plain and len(passes) == 1 and self.take is None and step.inputs.copied is False:
            return self._run_at_once()
        factor = 1.0 if step.seams.scale is None else _factor(step.seams.scale)
        # with one pass on one rank the divisor is known before backward
        alone = len(passes) == 1 and step.strategy.world_size == 1
        sums: list[Tensor] = []
        weights: list[Tensor | float] = []
        totals: Totals | None = None
        nonfinite_counts: list[Tensor] = []
        host = NOTHING if step.seams.sums is None else step.seams.sums.taking()
        # hooks of the user's own see a gradient when it is true
        late = step.hooks_behind.there and step.seams.sums is None and not (alone and factor == 1.0)
        held = step.hooks_behind.held_back() if late else NOTHING
        with phase("pass"), step.one_pass(), held, host:
            for number, (part, counts) in enumerate(self._micro_batches(passes)):
                last = number == len(passes) - 1
                with step.strategy.accumulate(step.model, last), step.seams.modules(part):
                    with step.seams.within(part), phase("loss"):
                        terms = step.strategy.run(partial(self._terms_of, part, counts))
                    own_sum, own_weight = self._sums_of(terms)
                    sums.append(own_sum)
                    weights.append(own_weight)
                    divisor = (_divisor(weights[0]) if alone else step.nominal) / factor
                    # from the terms themselves: their gradient is known, and a reduction in the graph costs time
                    if last and self.take is not None:
                        totals = self._totals(sums, weights, step.strategy.add_up)
                        nonfinite_counts = self._handed(
                            self.take, terms, divisor, alone, totals, factor, late
                        )
                        break
                    if last and step.exchange is not None:
                        totals = self._totals(sums, weights, step.strategy.add_up)
                        step.exchange.begin(self._share(alone, totals[1], factor))
                    _backward(terms, divisor)
        if totals is None:  # in one message with gradients, if any are still those of the rank
            totals = self._totals(sums, weights, step.strategy.add_up_copies_)
        elif self.take is None:
            step.strategy.add_up_copies_()
        loss_sum, weight, rows = totals
        gradients = gradients_of(step.bearers)
        if self.take is None and not (alone and factor == 1.0):  # else each was divided as it came
            share = self._share(alone, weight, factor)
            _divide(gradients, share if step.seams.sums is None else step.seams.sums.factor(share))
            if late:
                step.hooks_behind.call_all()
                gradients = gradients_of(step.bearers)  # a hook may put another in the place of one
        outcome = self._outcome(loss_sum, weight, _divisor(weight), gradients, nonfinite_counts)
        return outcome if rows is None else replace(outcome, rows=rows)

    def _run_at_once(self) -> Gradients:
        """Return what `run` does where the window is one micro-batch and nothing is around it: in the few calls that this takes."""
        step = self.step
        with phase("pass"), step.one_pass():
            self._seed(0)
            with phase("loss"):
                terms = self._terms_of(self.batch, True)
            loss_sum, weight = self._sums_of(terms)
            divisor = _divisor(weight)
            _backward(terms, divisor)
        return self._outcome(loss_sum, weight, divisor, gradients_of(step.parameters))

    def _sums_of(self, terms: LossTerms) -> tuple[Tensor, Tensor | float]:
        """Return the sum of a micro-batch's losses and that of their weights; the first one of a step shows its kernels of attention."""
        if self.step.kernels is None:
            self.step.kernels = kernels_of(terms.values, self.step.model)
        return terms.detached_sum(), terms.weight()

    def _outcome(
        self,
        loss_sum: Tensor,
        weight: Tensor | float,
        divisor: Tensor | float,
        gradients: list[Tensor],
        handed_nonfinite: Sequence[Tensor] = (),
    ) -> Gradients:
        """Return the outcome of all passes: gradients that are there are looked at for what is not finite, and those handed over have been."""
        if self.step.seams.takes_norm and self.take is None:
            return self._measured_outcome(loss_sum, weight, divisor, gradients)
        nonfinite = count_nonfinite([*gradients, loss_sum], self.step.device)
        for count in handed_nonfinite:
            nonfinite = nonfinite + count
        return Gradients(loss_sum / divisor, weight, self.step.strategy.add_up_shards(nonfinite))

    def _measured_outcome(
        self, loss_sum: Tensor, weight: Tensor | float, divisor: Tensor | float, gradients: list[Tensor]
    ) -> Gradients:
        """Return the outcome with the norm of the gradients, of all ranks, which is finite only where they are."""
        step, norm = self.step, global_norm(gradients)

        def exact() -> Tensor:
            # asked for anew: what is kept here an optimizer could not free, one by one
            present = gradients_of(step.bearers)
            return step.strategy.add_up_shards(count_nonfinite([*present, loss_sum], step.device))

        nonfinite = count_nonfinite([loss_sum, norm], step.device)
        return Gradients(loss_sum / divisor, weight, nonfinite, norm=norm, exact=exact)

    def outputs(self) -> Any:
        """Return the model's outputs of all rows on this rank, without gradient; tensors joined along the rows."""
        all_outputs: list[Any] = []
        parts: list[Batch] = []
        for part, outputs, counts in self.scored():
            all_outputs += [outputs] * counts
            parts += [part] * counts
        try:
            return join_outputs(all_outputs or [outputs], parts or [part], self.batch.padded)
        except RuntimeError as error:
            if is_out_of_memory(error):
                raise
            raise PlanConflict(
                "micro_batch",
                f"the outputs of different micro-batches cannot be joined ({error})",
                "Return outputs of one shape a row, such as embeddings, which a loss over the whole window needs.",
            ) from error

    def scored(self) -> Iterator[tuple[Batch, Any, bool]]:
        """Yield each micro-batch with the model's outputs of it, without gradient, and whether it counts."""
        with self._scoring():
            for part, counts in self._micro_batches(self.passes()):
                with self.step.seams.forward(part):
                    yield part, self.step.forward(part), counts

    def loss_of(self, outputs: Any) -> LossTerms:
        """Return the loss of the window's rows on all ranks, with gradient by these outputs of the rows on this one."""
        batch = rows_of_all_ranks(self.step.strategy, self.batch)
        outputs = map_tree(joining(self.step.strategy, self.batch), outputs)
        with self.step.seams.forward(batch):
            terms = self.loss(outputs, batch)
        # before the first pass, which is of what comes of these outputs
        self.step.reported_means.add_parts(terms, 0)
        return terms

    def terms(self) -> LossTerms:
        """Return one loss and one weight for each of the window's rows on all ranks, without gradient."""
        if self.step.seams.coupled:
            with torch.no_grad():
                return self.loss_of(self.outputs()).by_row()
        all_terms: list[LossTerms] = []
        with self._scoring():
            for part, counts in self._micro_batches(self.passes()):
                with self.step.seams.forward(part):
                    terms = self._terms_of(part, counts).by_row()
                all_terms += [terms] * counts
        all_terms = all_terms or [terms]
        weights = [one.weights for one in all_terms if one.weights is not None]
        join = joining(self.step.strategy, self.batch)
        return LossTerms(join(torch.cat([one.values for one in all_terms])), join(torch.cat(weights)))

    def select(self, rows: Sequence[int]) -> WindowCompute:
        """Return the same computation on some of the window's rows on all ranks, of which this rank computes its own."""
        share = self.batch.share
        if share is None:
            return replace(self, batch=self.batch.select(rows))
        ends = list(itertools.accumulate(share.counts, initial=0))
        counts = tuple(sum(start <= row < end for row in rows) for start, end in itertools.pairwise(ends))
        own = [row - share.first for row in rows if 0 <= row - share.first < share.rows]
        selected = self.batch.select(own or range(min(self.batch.rows, 1)))
        return replace(self, batch=replace(selected, share=share._replace(counts=counts)))

    def parts(self, rows: int) -> Iterator[WindowCompute]:
        """Yield the same computation on neighbours of the whole window, `rows` at a time, each to be finished before the next one.

        On several ranks each part is shared out anew, so that all of them compute it at the same weights.
        """
        if rows % self.batch.group:
            raise SettingError(
                "micro_batch",
                f"parts of {rows} rows would cut the groups of {self.batch.group} examples that are mixed with each "
                "other",
                f"Give a multiple of {self.batch.group}.",
            )
        first = self.step.at_first_pass
        count = self.batch.total
        window = whole_window(self.step.strategy, self.batch)
        # batch norm has no statistics of a single row that is left over: it joins the group before it
        paired = self.step.has_batch_norm
        ends = [*(end for end in range(rows, count, rows) if count - end > paired), count]
        for start, end in itertools.pairwise([0, *ends]):
            if first:
                self.step.begin_passes()
            neighbours = range(start, end)
            part = part_of_rank(self.step.strategy, window.select(neighbours), paired)
            yield replace(self, batch=part, part=(*self.part, start))

    def replace(self, loss: BatchLoss, **extras: Any) -> WindowCompute:
        """Return the same rows under another loss, with further tensors travelling along."""
        return replace(self, loss=loss, batch=self.batch.with_extras(**extras))

    def handing(self, take: Callable[[nn.Parameter], None]) -> WindowCompute:
        """Return the same computation, which hands over each parameter as its gradient becomes whole."""
        return replace(self, take=take)

    @contextmanager
    def _scoring(self) -> Iterator[None]:
        """Temporarily make a pass that no backward follows."""
        step = self.step
        with torch.no_grad(), phase("pass"), step.one_pass(), step.strategy.score(step.model):
            yield

    def passes(self) -> list[tuple[range, bool]]:
        """Return the micro-batches of this rank, and whether each counts.

        Where weights are gathered by all ranks for each of them, every rank makes as many: the first ones of a rank with fewer rows do
        not count. Nor does the only one of a rank without rows.
        """
        step, batch = self.step, self.batch
        if batch.share is None and 0 < batch.rows <= (step.micro_batch or batch.rows):  # whole
            step.largest, step.group = max(step.largest, batch.rows), batch.group
            return [(range(batch.rows), True)]

        def parts_of(rows: int) -> list[range]:
            return cut(rows, step.micro_batch, batch.group, step.has_batch_norm) if rows else []

        share = batch.share
        parts = parts_of(batch.rows if share is None else share.rows)
        most = 1
        if share is not None and step.strategy.shards:
            most = max(most, *(len(parts_of(rows)) for rows in share.counts))
        some = range(min(batch.rows, 2 if step.has_batch_norm else 1))
        step.largest, step.group = max(step.largest, len(some), *map(len, parts)), batch.group
        return [(some, False)] * (most - len(parts)) + [(part, True) for part in parts]

    def _micro_batches(self, passes: list[tuple[range, bool]]) -> Iterator[tuple[Batch, bool]]:
        """Yield the parts of the window; layers draw the same numbers each time one of them comes by."""
        step = self.step
        for number, (rows, counts) in enumerate(passes):
            self._seed(number)
            part = self.batch.select(rows)
            if counts and step.inputs.copied is False:
                yield part, counts
                continue
            with NOTHING if counts else step.preserved_buffers(), step.inputs.given(part) as part:
                yield part, counts

    def _seed(self, number: int) -> None:
        """Have layers draw what they draw for the micro-batch of this number."""
        step = self.step
        seed = derive_seed(step.seed, "layers", step.progress.windows, *self.part, number, step.strategy.rank)
        seed_device(seed, step.device)

    def _terms_of(self, part: Batch, counts: bool) -> LossTerms:
        """Return the loss of a micro-batch; of one that does not count, with weights of 0."""
        try:
            outputs = self.step.forward(part)
            terms = self.loss(outputs, part)
        except RuntimeError as error:
            check_types(error, self.step.model, self.step.device)
            raise
        self.step.reported_means.add_outputs(outputs, part.data, counts)
        if not counts:
            terms = replace(terms, weights=torch.zeros_like(terms.values))
        self.step.reported_means.add_parts(terms)
        return terms

    def _handed(
        self,
        take: Callable[[nn.Parameter], None],
        terms: LossTerms,
        divisor: Tensor | float,
        alone: bool,
        totals: Totals,
        factor: float,
        late: bool,
    ) -> list[Tensor]:
        """Return the last backward, which gives each parameter to `take`; one scalar each that is above 0 where it was not finite.

        Args:
            late: hooks of the user's own are held back until a gradient is whole.

        Waits for the device, to know that the window's loss is one to learn from.
        """
        step, (loss_sum, weight, _) = self.step, totals
        nonfinite_counts: list[Tensor] = []
        left = {parameter for parameter in step.parameters if parameter.requires_grad}
        share = self._share(alone, weight, factor)

        def hand(parameter: nn.Parameter) -> None:
            if parameter not in left:
                raise PlanConflict(
                    "techniques",
                    f"the gradient of a parameter of shape {tuple(parameter.shape)} comes more than once in one backward, so "
                    "what was handed over first was a part of it. Torch's reentrant checkpoint does that to a block that is "
                    "used twice, and so does sharding",
                    "Recompute with use_reentrant=False, or step after the backward.",
                )
            left.discard(parameter)
            gradients = gradients_of([parameter])
            _divide(gradients, share)
            if late:
                step.hooks_behind.call(parameter)
                gradients = gradients_of([parameter])
            nonfinite_counts.append(count_nonfinite(gradients, step.device))
            step.handed = True
            take(parameter)

        if not Gradients(loss_sum, weight, count_nonfinite([loss_sum], step.device)).usable():
            return []
        whole_at_once = left.difference(step.strategy.copies)
        hooks = [parameter.register_post_accumulate_grad_hook(hand) for parameter in whole_at_once]
        try:
            _backward(terms, divisor)
        finally:
            for hook in hooks:
                hook.remove()
        step.strategy.add_up_copies_()
        for parameter in [each for each in step.parameters if each in left and each.grad is not None]:
            hand(
                parameter
            )  # an earlier micro-batch alone has reached it, or its gradient has been added up just now
        return nonfinite_counts

    def _totals(
        self,
        sums: list[Tensor],
        weights: list[Tensor | float],
        add_up: Callable[[list[Tensor]], list[Tensor]],
    ) -> Totals:
        """Sum of the losses, of their weights and of rows that nobody told, over micro-batches and by `add_up` over ranks."""
        step = self.step
        loss_sum, weight = sums[0], weights[0]
        for further_sum, further_weight in zip(sums[1:], weights[1:], strict=True):
            loss_sum, weight = loss_sum + further_sum, weight + further_weight
        if step.strategy.world_size == 1:
            return loss_sum, weight, None
        weight = scalar_like(weight, loss_sum)
        if self.batch.share is not None:
            loss_sum, weight = add_up([loss_sum, weight])
            return loss_sum, weight, None
        loss_sum, weight, rows = add_up([loss_sum, weight, scalar_like(self.batch.rows, loss_sum)])
        return loss_sum, weight, rows

    def _share(self, alone: bool, weight: Tensor | float, factor: float) -> Tensor | float:
        """Return what gradients that were added up are multiplied by to be the true one."""
        return 1.0 / factor if alone else self.step.nominal / (_divisor(weight) * factor)


def asks_for_sums(loss: Loss, forward: Callable[[nn.Module, Any], Any] | None) -> bool:
    """Return whether a loss couples rows by sums alone, which a pass over micro-batches gives without gradients."""
    return of_answers(loss) and couples_rows(loss) and hasattr(forward, "window_terms")


@torch.no_grad()
def with_window_sums(step: WindowStep, window: Batch, forward: Any) -> Batch:
    """Return the window with the sums of `forward.window_terms` over its rows on all ranks, in each of its rows.

    Nothing random is drawn, and buffers stay. All ranks call this for the same windows.
    """
    passes = WindowCompute(step, window, step.seams.loss).passes()
    sums: Tensor | None = None
    with step.preserved_buffers(), step.strategy.score(step.model):
        for rows, counts in passes:
            part = window.select(rows)
            with step.seams.forward(part):
                terms: Tensor = forward.window_terms(step.model, part.data)
            own = terms.sum(dim=0) if counts else torch.zeros_like(terms[0])
            sums = own if sums is None else sums + own
    assert sums is not None
    over_ranks = torch.stack(step.strategy.add_up(list(sums)))
    return replace(window, data={**window.data, WINDOW_SUMS: over_ranks.expand(window.rows, -1)})


def _backward(terms: LossTerms, divisor: Tensor | float) -> None:
    """Add the gradients of the terms over `divisor` to those that are there.

    Raises:
        SettingError: the loss has no gradient.
    """
    try:
        with phase("backward"):
            backward(terms.values, terms.gradient(divisor))
    except RuntimeError as error:
        if terms.values.requires_grad:
            raise
        if not torch.is_grad_enabled():
            raise SettingError(
                "step",
                "is called where gradients are switched off, by torch.no_grad() or torch.inference_mode()",
                "Call it outside of them.",
            ) from error
        raise SettingError(
            "loss",
            "has no gradient: no weight that trains is behind it, or it was cut off, as by detach(), item(), NumPy or torch.no_grad()",
            "Compute it from the model's outputs with operations of torch on tensors.",
        ) from error


def _divide(gradients: list[Tensor], share: Tensor | float) -> None:
    if isinstance(share, Tensor) or share != 1.0:
        with phase("unscale"):
            scale_(gradients, share)


def _factor(scale: LossScale) -> float:
    if scale.factor == 0:
        raise TrainingFailed(
            "the loss scale has fallen to 0: no gradient of the last windows was finite, however small the scale. Mend the "
            "data, lower the learning rate, or train in fp32 or bf16."
        )
    return scale.factor


def _divisor(weight: Tensor | float) -> Tensor | float:
    """Return the weight, or 1 where there is none: an empty window has the gradient 0."""
    if isinstance(weight, Tensor):
        return torch.where(weight > 0, weight, 1.0)
    return weight or 1.0
