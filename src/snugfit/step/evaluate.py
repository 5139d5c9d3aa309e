"""Evaluation: example-weighted loss and metrics, under the weights that will be saved."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, cast

import torch
from torch import Tensor, nn

from snugfit.core.batch import Batch, split
from snugfit.core.loss_terms import LossTerms, check_weight
from snugfit.core.random import preserved_randomness
from snugfit.core.scalar_reads import read_scalars
from snugfit.core.technique import BatchLoss
from snugfit.core.tree import map_tree
from snugfit.data.named_sources import LOSS_OF, RowSources
from snugfit.errors import OutOfMemory, SettingError
from snugfit.kit.language_models.token_scores import Run, Seen, in_token_chunks, visible_part
from snugfit.kit.metric_directions import OF_CLASS
from snugfit.kit.phases import phase
from snugfit.kit.precision.product_rounding import products_as_chosen
from snugfit.step.gather import joining, rows_of_all_ranks
from snugfit.step.metrics.byte_perplexity import BytePerplexity
from snugfit.step.metrics.metric import AnyMetric, Metric, make_metric, perplexity, seen_by
from snugfit.step.micro_batch_sizes import sizes
from snugfit.step.model_checks.row_outputs import join_outputs
from snugfit.step.module_modes import eval_mode
from snugfit.step.out_of_memory import Replan, first_line
from snugfit.step.step_views import ScoredStep
from snugfit.strategies.base import Strategy
from snugfit.system.memory import is_out_of_memory, release_memory


@dataclass(frozen=True)
class Scored:
    """A model to evaluate: how a batch is run through it and scored, and the contexts around that.

    `settled` gives a batch as it may be split: without a say on its padding none of that is cut. `given` gives some rows to the model.
    """

    model: nn.Module
    device: torch.device
    run: Run
    loss: BatchLoss
    forward: Callable[[Batch], AbstractContextManager[Any]] = lambda _: nullcontext()
    weights: Callable[[nn.Module], AbstractContextManager[Any]] = nullcontext
    micro_batch: int | None = None
    couples_rows: bool = False
    strategy: Strategy = field(default_factory=Strategy)
    settled: Callable[[Batch], Batch] = lambda batch: replace(batch, padded=0)
    given: Callable[[Batch], AbstractContextManager[Batch]] = nullcontext

    @classmethod
    def of(cls, step: ScoredStep) -> Scored:
        """Return the model of a step, with the user's own loss: what techniques add to it is not part of the score.

        The logits of a language model are made some tokens' at a time, as training makes them in chunks where they are its peak. Not where
        ranks gather weights: a forward that is given up would leave them gathered.
        """
        seams, run, loss = step.seams, cast("Run", step.scored_forward), step.seams.user_loss
        if loss is step.user_loss and not step.strategy.shards and not step.couples_rows:
            run, loss = in_token_chunks(step.model, step.loss, run, loss)
        return cls(
            step.model,
            step.device,
            run,
            loss,
            seams.forward,
            seams.weights,
            step.micro_batch,
            step.couples_rows,
            step.strategy,
            step.splittable,
            step.inputs.given,
        )


class RowObserver(Protocol):
    """Looks on while rows are evaluated, micro-batch by micro-batch; `seen` says what it looks at of their outputs."""

    seen: Seen

    def add(self, outputs: Any, part: Batch, terms: LossTerms, first: int) -> None:
        """Look at a micro-batch, or fail and have seen nothing of it.

        Args:
            first: the place of its first row among those of all ranks.
        """
        ...


def evaluate(
    scored: Scored,
    batches: Iterable[Batch],
    metrics: Mapping[str, AnyMetric],
    tell: Callable[[Replan], None] = lambda _: None,
    sources: RowSources | None = None,
    observer: RowObserver | None = None,
) -> dict[str, float]:
    """Loss, its parts where it names some, and metrics over all rows of `batches`, each row (or token) counted once.

    The model is in eval mode and has the weights that the techniques say are to be evaluated; mode, weights and
    global random state are as before on return. Rows that run out of memory are run again, fewer at a time from then on.

    Args:
        tell: is told that they are.
        sources: of the rows, each of which gets a loss of its own besides. None is had where rows are compared with each other, or are
            given to the model otherwise than one by one.
        observer: looks on.
    Raises:
        SettingError: an unknown metric, or one that does not fit the outputs.
        OutOfMemory: a single row is too much.
    """
    made = {name: make_metric(metric) for name, metric in metrics.items() if metric != "perplexity"}
    seen = max(seen_by(made.values()), Seen.NOTHING if observer is None else observer.seen)
    every, by_source = _Totals(), [_Totals() for _ in (sources.names if sources else ())]
    by_part: dict[str, _Totals] = {}

    def add_losses(_outputs: Any, part: Batch, terms: LossTerms, _first: int) -> None:
        parts = {name: LossTerms(values, terms.weights) for name, values in (terms.parts or {}).items()}
        added = [
            (every, terms),
            *((by_source[number], own) for number, own in _of_sources(part, terms, sources)),
        ]
        added += [(by_part.setdefault(name, _Totals()), own) for name, own in parts.items()]
        sums = [(own.weighted_sum(), own.weight()) for _, own in added]  # all of them, before any is kept
        for (totals, _), own in zip(added, sums, strict=True):
            totals.add(*own)

    observers = _Observers([add_losses, *(_updating(metric) for metric in made.values())])
    if observer is not None:
        observers.each.append(observer.add)
    with scoring(scored):
        _score_batches(scored, batches, observers, seen=seen, tell=tell)
    read = _read([every, *by_source, *by_part.values()])
    of_parts = read[2 * (1 + len(by_source)) :]
    parts = dict(zip(by_part, zip(of_parts[::2], of_parts[1::2], strict=True), strict=True))
    read = read[: 2 * (1 + len(by_source))]
    ranks = scored.strategy.tell((parts, len(every.sums), *read))
    totals = [each[1:] for each in ranks]
    count, total, weight, *others = (sum(of_ranks) for of_ranks in zip(*totals, strict=True))
    if not count:
        raise SettingError("evaluate", "the data holds no rows", "Give at least one.")
    check_weight(weight)
    scores = {"loss": total / weight if weight > 0 else math.nan}
    for name, (part_sum, part_weight) in _summed(each[0] for each in ranks).items():
        scores[name] = part_sum / part_weight if part_weight > 0 else math.nan
    for name in metrics:
        value = made[name].compute(scored.strategy) if name in made else 1.0
        if isinstance(value, dict):  # of each class; the mean is what may decide which weights are best
            known = [own for own in value.values() if not math.isnan(own)]
            scores[name] = sum(known) / len(known) if known else math.nan
            scores |= {f"{name}{OF_CLASS}{own}": each for own, each in value.items()}
            continue
        of_loss = name not in made or isinstance(made[name], BytePerplexity)
        scores[name] = perplexity(scores["loss"] * value) if of_loss else value
    for name, own, of in zip(sources.names if sources else (), others[::2], others[1::2], strict=True):
        if of > 0:
            scores[f"{LOSS_OF}{name}"] = own / of
    return scores


def _summed(ranks: Iterable[Mapping[str, tuple[float, float]]]) -> dict[str, tuple[float, float]]:
    """Return the sums of each part over ranks, of which one without rows has none."""
    sums: dict[str, tuple[float, float]] = {}
    for parts in ranks:
        for name, (total, weight) in parts.items():
            before = sums.get(name, (0.0, 0.0))
            sums[name] = (before[0] + total, before[1] + weight)
    return sums


@dataclass
class _Totals:
    """The sums of losses and of their weights, one for each part of the rows, still on the device."""

    sums: list[Tensor] = field(default_factory=list)
    weights: list[Tensor | float] = field(default_factory=list)

    def add(self, total: Tensor, weight: Tensor | float) -> None:
        self.sums.append(total)
        self.weights.append(weight)


Observe = Callable[[Any, Batch, LossTerms, int], None]
"""As `RowObserver.add`."""


def _updating(metric: Metric) -> Observe:
    return lambda outputs, part, _terms, _first: metric.update(outputs, part)


@dataclass
class _Observers:
    """Observers of rows that are scored, each of whom sees every row once: where memory runs out in one, those before it have seen the rows that come again."""

    each: list[Observe]
    _seen: list[int] = field(default_factory=list)

    def begin_batch(self) -> None:
        """Begin with the first row of a batch."""
        self._seen = [0] * len(self.each)

    def until(self, start: int, stop: int) -> int:
        """Return where rows from `start` on have to end at the latest, so that nobody has seen some of them alone."""
        return min([stop, *(end for end in self._seen if end > start)])

    def tell(self, rows: range, outputs: Any, part: Batch, terms: LossTerms, first: int) -> None:
        """Show rows of the batch to all who have not seen them."""
        for number, observe in enumerate(self.each):
            if self._seen[number] <= rows.start:
                observe(outputs, part, terms, first)
                self._seen[number] = rows.stop


def _of_sources(part: Batch, terms: LossTerms, sources: RowSources | None) -> Iterator[tuple[int, LossTerms]]:
    """Yield the losses of the rows of each source, by its number; none where it is not known which row is which."""
    if sources is None or len(part.ids) != terms.values.shape[0]:
        return
    rows: dict[int, list[int]] = {}
    for row, each in enumerate(part.ids):
        rows.setdefault(sources.number(each), []).append(row)
    for number, own in rows.items():
        at = torch.tensor(own, device=terms.values.device)
        weights = None if terms.weights is None else terms.weights.index_select(0, at)
        yield number, LossTerms(terms.values.index_select(0, at), weights)


def _read(totals: Sequence[_Totals]) -> list[float]:
    """Return of each the sum of the losses and that of their weights, in one wait for the device.

    They are added up on the host, in float64: the sum of many batches must not depend on how they were cut.
    """
    tensors, assumed = list[Tensor](), list[float]()
    for each in totals:
        counted = [weight for weight in each.weights if isinstance(weight, Tensor)]
        tensors += [*each.sums, *counted]
        assumed += [0.0] * len(each.sums) + [1.0] * len(counted)
    numbers = iter(read_scalars(tensors, assumed))
    read = list[float]()
    for each in totals:
        read.append(sum(next(numbers) for _ in each.sums))
        read.append(sum(next(numbers) if isinstance(weight, Tensor) else weight for weight in each.weights))
    return read


def score_singly(scored: Scored, rows: Iterable[int], batch: Batch) -> None:
    """Score these rows of a batch, one at a time, for whoever looks at what that takes; no result is kept."""
    with scoring(scored):
        for row in rows:
            _score(scored, batch.select([row]), Seen.OUTPUTS)


def score_together(scored: Scored, batch: Batch) -> None:
    """Score the rows of a batch at once, as `score_singly`."""
    with scoring(scored):
        _score(scored, batch, Seen.NOTHING)


@contextmanager
def scoring(scored: Scored) -> Iterator[None]:
    """Temporarily put the model in its state for evaluation; on exit it and the global random state are as before."""
    model = scored.model
    with (
        phase("evaluation"),
        torch.no_grad(),
        preserved_randomness(scored.device),
        products_as_chosen(scored.device),
        eval_mode(model),
        scored.weights(model),
        scored.strategy.score(model),
    ):
        yield


def _score_batches(
    scored: Scored,
    batches: Iterable[Batch],
    observers: _Observers,
    *,
    seen: Seen,
    tell: Callable[[Replan], None],
) -> None:
    """Show micro-batches, what is seen of their outputs, and losses to observers.

    All rows of a batch come as one where the loss compares them, so that no plan changes the score.
    """
    micro_batch, strategy, first = scored.micro_batch, scored.strategy, 0
    for batch in batches:
        counts = (batch.rows,) if batch.share is None else batch.share.counts
        own, start, all_outputs = counts[strategy.rank], 0, []
        own_first = first + sum(counts[: strategy.rank])
        parts: list[Batch] = []
        observers.begin_batch()
        if len(counts) > 1 or len(split(own, micro_batch)) > 1:
            batch = scored.settled(batch)
        # where weights are gathered for each of them, ranks with fewer rows make as many passes
        passes = [len(split(count, micro_batch)) * (count > 0) for count in counts]
        most = max(passes) if strategy.shards else int(scored.couples_rows)  # outputs of no rows have a shape
        for _ in range(most - passes[strategy.rank]):
            outputs = _score(scored, batch.select(range(1)), seen)[1]
        while start < own:
            stop = observers.until(start, start + len(split(own - start, micro_batch)[0]))
            rows = range(start, stop)
            try:
                coupled = _score_rows(scored, batch, rows, observers, seen, own_first + start)
            except Exception as error:
                if not is_out_of_memory(error) or strategy.shards:
                    raise
                reason = first_line(error)
            else:
                if coupled is not None:
                    parts.append(coupled[0])
                    all_outputs.append(coupled[1])
                start = stop
                continue
            release_memory(scored.device)  # behind the handler, where the error holds nothing any more
            replan = _finer(len(rows), reason)
            micro_batch = replan.after
            tell(replan)
        if scored.couples_rows:
            alone = [batch.select(range(1))]
            outputs = join_outputs(all_outputs or [outputs], parts or alone, batch.padded)
            outputs = map_tree(joining(strategy, batch), outputs)
            part = rows_of_all_ranks(strategy, batch.to(scored.device))
            with scored.forward(part):
                terms = scored.loss(outputs, part)
                outputs = visible_part(outputs, seen)
            if strategy.rank == 0:  # all have computed the same
                observers.tell(range(part.rows), outputs, part, terms, first)
        first += sum(counts)


def _score_rows(
    scored: Scored, batch: Batch, rows: range, observers: _Observers, seen: Seen, first: int
) -> tuple[Batch, Any] | None:
    """Score some rows of a batch for observers; those whose loss compares rows are returned with their outputs, and nobody has seen them.

    Outputs that nobody keeps are gone on return, before others are made or memory is looked for.
    """
    part, outputs, terms = _score(scored, batch.select(rows), seen)
    if terms is None:
        return part, outputs
    observers.tell(rows, outputs, part, terms, first)
    return None


def _score(scored: Scored, part: Batch, seen: Seen) -> tuple[Batch, Any, LossTerms | None]:
    """Return what is seen of the outputs of some rows and, where it does not compare rows, their loss."""
    with scored.given(part.to(scored.device)) as part, scored.forward(part):
        outputs = scored.run(part)
        if scored.couples_rows:
            return part, outputs, None
        terms = scored.loss(outputs, part)
        return part, visible_part(outputs, seen), terms


def _finer(rows: int, reason: str) -> Replan:
    if rows == 1:
        raise OutOfMemory(
            f"evaluate.batch: memory ran out in scoring a single example ({reason}). Give smaller examples, or a smaller model."
        )
    return Replan(rows, sizes(rows)[1], reason)
