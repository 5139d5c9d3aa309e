"""The computation of one window's gradients, as a value that techniques may change and repeat."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from snugfit.core.batch import Batch, split
from snugfit.core.foreach import count_nonfinite, gradients_of, scale_
from snugfit.core.gradients import Gradients
from snugfit.core.loss_scale import LossScale
from snugfit.core.losses import LossTerms
from snugfit.core.random import derive_seed, seed_device
from snugfit.core.technique import BatchLoss
from snugfit.core.tree import joined
from snugfit.errors import PlanConflict, SettingError, TrainingFailed

if TYPE_CHECKING:
    from snugfit.training.step import Step


@dataclass(frozen=True, slots=True)
class WindowCompute:
    """Implements `core.technique.Compute` for a step; `batch` is the window, already on the device.

    `part` is the place among the parts of a window that is computed part by part.
    """

    step: Step
    batch: Batch
    loss: BatchLoss
    part: tuple[int, ...] = ()

    def run(self) -> Gradients:
        """Forward and backward of each micro-batch; leaves the true gradient in `.grad`.

        The weighted sums of the micro-batches are added up and divided once, by the weight of the window.
        """
        step = self.step
        for parameter in step.parameters:
            parameter.grad = None
        parts = self._split()
        factor = _factor(step.seams.scale)
        # with one pass on one rank the divisor is known before backward
        alone = len(parts) == 1 and step.strategy.world_size == 1
        sums: list[Tensor] = []
        weights: list[Tensor | float] = []
        with step.one_pass():
            for number, part in self._micro_batches(parts):
                last = number == len(parts) - 1
                with step.strategy.accumulate(step.model, last), step.seams.modules(part):
                    with step.seams.within(part):
                        terms = self.loss(step.forward(part), part)
                    weights.append(terms.weight())
                    divisor = (_divisor(weights[0]) if alone else step.nominal) / factor
                    # from the terms themselves: their gradient is known, and a reduction in the graph costs time
                    terms.values.backward(terms.gradient(divisor))  # type: ignore[no-untyped-call]
                sums.append(terms.detach().weighted_sum())
        return self._divided(sums, weights, alone, factor)

    def outputs(self) -> Any:
        """The model's outputs of all rows, without gradient; tensors joined along the rows."""
        found = []
        with torch.no_grad(), self.step.one_pass():
            for _, part in self._micro_batches(self._split()):
                with self.step.seams.forward(part):
                    found.append(self.step.forward(part))
        try:
            return joined(found)
        except torch.OutOfMemoryError:
            raise  # it is a RuntimeError too
        except RuntimeError as error:
            raise PlanConflict(
                f"the outputs of different micro-batches cannot be joined ({error}). A loss over the whole window needs "
                "outputs of one shape a row, such as embeddings."
            ) from error

    def loss_of(self, outputs: Any) -> LossTerms:
        """The loss of these outputs of all rows, with gradient."""
        with self.step.seams.forward(self.batch):
            return self.loss(outputs, self.batch)

    def terms(self) -> LossTerms:
        """One loss and one weight a row, without gradient."""
        if self.step.seams.coupled:
            with torch.no_grad():
                return self.loss_of(self.outputs()).by_row()
        values, weights = [], []
        with torch.no_grad(), self.step.one_pass():
            for _, part in self._micro_batches(self._split()):
                with self.step.seams.forward(part):
                    row_terms = self.loss(self.step.forward(part), part).by_row()
                values.append(row_terms.values)
                weights.append(
                    row_terms.weights if row_terms.weights is not None else torch.ones_like(values[-1])
                )
        return LossTerms(torch.cat(values), torch.cat(weights))

    def select(self, rows: Sequence[int]) -> WindowCompute:
        """The same computation on some of the rows."""
        return replace(self, batch=self.batch.select(rows))

    def parts(self, rows: int) -> Iterator[WindowCompute]:
        """The same computation on neighbours, `rows` at a time, each to be finished before the next one."""
        if rows % self.batch.group:
            raise SettingError(
                f"parts of {rows} rows would cut the groups of {self.batch.group} examples that are mixed with each other. Give a "
                f"multiple of {self.batch.group}."
            )
        first = self.step.at_first_pass
        count = self.batch.rows
        # batch norm has no statistics of a single row that is left over: it joins the group before it
        alone = 1 if self.step.has_batch_norm else 0
        ends = [*(end for end in range(rows, count, rows) if count - end > alone), count]
        for start, end in itertools.pairwise([0, *ends]):
            if first:
                self.step.begin_passes()
            neighbours = range(start, end)
            yield replace(self, batch=self.batch.select(neighbours), part=(*self.part, start))

    def replace(self, loss: BatchLoss, **extras: Any) -> WindowCompute:
        """The same rows under another loss, with further tensors travelling along."""
        return replace(self, loss=loss, batch=self.batch.with_extras(**extras))

    def _split(self) -> list[range]:
        """The micro-batches; rows that were selected are not cut so that batch norm gets a single one."""
        parts = split(self.batch.rows, self.step.micro_batch, self.batch.group)
        if self.step.has_batch_norm and len(parts) > 1 and min(map(len, parts)) == 1:
            return split(self.batch.rows, -(-self.batch.rows // (len(parts) - 1)), self.batch.group)
        return parts

    def _micro_batches(self, parts: list[range]) -> Iterator[tuple[int, Batch]]:
        """The parts of the window; layers draw the same numbers each time one of them comes by."""
        step = self.step
        for number, rows in enumerate(parts):
            place = (step.progress.windows, *self.part, number, step.strategy.rank)
            seed = derive_seed(step.seed, "layers", *place)
            seed_device(seed, step.device)
            yield number, self.batch.select(rows)

    def _divided(
        self, sums: list[Tensor], weights: list[Tensor | float], alone: bool, factor: float
    ) -> Gradients:
        step = self.step
        loss_sum, weight = sums[0], weights[0]
        for further_sum, further_weight in zip(sums[1:], weights[1:], strict=True):
            loss_sum, weight = loss_sum + further_sum, weight + further_weight
        if step.strategy.world_size > 1:
            weight = torch.as_tensor(weight, device=step.device, dtype=loss_sum.dtype)
            loss_sum, weight = step.strategy.add_up([loss_sum, weight])
        gradients = gradients_of(step.parameters)
        if not alone:
            scale_(gradients, step.nominal / (_divisor(weight) * factor))
        elif factor != 1.0:
            scale_(gradients, 1.0 / factor)
        nonfinite = count_nonfinite([*gradients, loss_sum], step.device)
        return Gradients(loss_sum / _divisor(weight), weight, nonfinite)


def _factor(scale: LossScale | None) -> float:
    if scale is None:
        return 1.0
    if scale.factor == 0:
        raise TrainingFailed(
            "the loss scale has fallen to 0: no gradient of the last windows was finite, however small the scale. Mend the "
            "data, lower the learning rate, or train in fp32 or bf16."
        )
    return scale.factor


def _divisor(weight: Tensor | float) -> Tensor | float:
    """The weight, or 1 where there is none: an empty window has the gradient 0."""
    if isinstance(weight, Tensor):
        return torch.where(weight > 0, weight, 1.0)
    return weight or 1.0
