"""The dry run: the real step, on tensors that have a shape and no numbers."""

from __future__ import annotations

import gc
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily

from snugfit.core.batch import Batch
from snugfit.core.job import AUTO, Job, Plan
from snugfit.core.loss_terms import Loss
from snugfit.core.technique import Technique
from snugfit.core.tree import leaves, map_tree
from snugfit.kit.language_models.token_scores import Seen
from snugfit.kit.mapped_tensors import making_in_files
from snugfit.kit.optimizers.one_by_one import ShadowOptimizer
from snugfit.kit.sharded_tensors import own_parts
from snugfit.kit.streaming.host import in_files
from snugfit.kit.streaming.slot import slots
from snugfit.planner.cost.records import Role, Trace
from snugfit.planner.trace.fake_ranks import shards_followed
from snugfit.planner.trace.fake_tensors import BareOptimizer, fake_, fake_batch
from snugfit.planner.trace.known_values import KnownValues
from snugfit.planner.trace.library_patches import as_real
from snugfit.planner.trace.operator_cache import OperatorCache
from snugfit.planner.trace.recorder import Recorder, never
from snugfit.planner.trace.untraceable import explaining
from snugfit.step.build import Material, make_step
from snugfit.step.evaluate import Scored, evaluate
from snugfit.step.step import Forward, Step
from snugfit.strategies.base import Strategy
from snugfit.system.rounding import deterministic


@dataclass(frozen=True)
class Subject:
    """The subject of a plan: all that a run is made of, with examples of its largest windows.

    Args:
        model: gives the model anew, on the meta device.
        window: the examples of one update, on the host; the largest there are.
        examples: of the training data.
        evaluation: the largest batch that is scored; None where nothing is.
        seen: what metrics look at of the outputs, which is kept.
        from_files: whether weights are read from files: in the format that techniques give them, so that `model` is never in memory whole,
            and by one of several devices that share them its part alone.
        assumed: what is taken for granted of the data, which is not there, in words; how many examples it has is not known then.
        mean_window: the examples of the mean window, as a part of those of `window`; 1 where windows are of one size.
    """

    model: Callable[[], nn.Module]
    window: Batch
    job: Job
    examples: int
    techniques: tuple[Technique, ...]
    loss: str | Loss = "cross_entropy"
    optimizer: BareOptimizer | None = None
    forward: Forward | None = None
    load: Callable[[str], nn.Module] | None = None
    evaluation: Batch | None = None
    seen: Seen = Seen.NOTHING
    from_files: bool = False
    assumed: str = ""
    mean_window: float = 1.0

    def loaded_so(self, techniques: Sequence[Technique]) -> bool:
        """Return whether weights come in another format than the model's files have them in, one after the other."""
        return self.from_files and any(type(each).loading is not Technique.loading for each in techniques)

    @property
    def total_updates(self) -> int | None:
        """Return updates of the whole run; None where the data says how many, and is not there."""
        if self.assumed and self.job.train.updates is None:
            return None
        return self.job.total_windows(self.examples)

    def seconds_of_run(self, seconds: float) -> float | None:
        """Return the seconds of the whole run, of which an update of the largest window takes `seconds`; None where its length is not known."""
        total = self.total_updates
        return None if total is None else seconds * total * self.mean_window


def dry_run(
    subject: Subject,
    plan: Plan,
    techniques: Sequence[Technique],
    *,
    micro_batches: int | None = None,
    strategy: Strategy | None = None,
    cache: OperatorCache | None = None,
    late: Callable[[], bool] = never,
) -> Trace:
    """Return an update, one as it is at the end of the run where that is another, and an evaluation, recorded.

    Args:
        micro_batches: how many of them an update is to have; by default those of the window.
        strategy: of one among several devices, within `several.fake_ranks`; the window is its share.
        cache: what operators gave in dry runs before, which is added to.
        late: says whether the time is over, after which the run is not ended.
    Raises:
        UserError: the model, the techniques or the settings cannot be run.
        Untraceable: the model asks for numbers that are not there.
        OutOfTime: it is late.
    """
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    values = KnownValues(mode)
    recorder = Recorder(values, cache, shortens=True, late=late)
    model = fake_(subject.model(), mode, "cpu")
    size = subject.window.rows if plan.micro_batch in (None, AUTO) else int(plan.micro_batch)
    whole = subject.window if micro_batches is None else longest_rows(subject.window, size * micro_batches)
    sharding = nullcontext() if strategy is None else shards_followed(recorder.resized)
    with (
        explaining(),
        as_real(),
        sharding,
        own_garbage(),
        deterministic(plan.deterministic),
        torch.autograd.set_multithreading_enabled(False),  # another thread frees a pass when it comes to it
        mode,
    ):
        recorder.holds(_own(model), Role.WEIGHTS)
        read = recorder.numbered(_streamed_from_files(model, subject, techniques))
        with recorder, recorder.label("setup"):
            optimizer = None if subject.optimizer is None else subject.optimizer.on(model, mode)
            step = make_step(subject.job, plan, _material(subject, model), optimizer, techniques, strategy)
        recorder.knows(step.model)
        on_disk = recorder.numbered(_streamed_from_files(step.model, subject, techniques, frozen=True))
        if not subject.loaded_so(techniques):  # what is made of a weight that was read is in memory
            on_disk = [each for each in on_disk if each in read]
        recorder.holds(step.strategy.buckets, Role.GRADIENTS)
        recorder.holds(_own(step.model), Role.WEIGHTS)
        recorder.begin()
        for update, done in enumerate(_moments(step)):
            with recorder, recorder.label("prime"):
                _prime(step, done)
            tell(step, recorder)
            primed = {each: recorder.numbered(_primed(step, each)) for each in step.parameters}
            recorder.update = update
            with recorder, recorder.label("save"):
                saving = _copied(step, subject.job)  # and written while the run goes on
            recorder.holds(saving, Role.AVERAGES)
            batch = fake_batch(whole, mode, values)
            recorder.holds(leaves(batch.data), Role.INPUTS)
            with gradients_followed(step, recorder) as with_gradient, recorder:
                step(batch)
            tell(step, recorder)
            # of what the loss does not depend on, a run has no gradient, and nothing of it in the optimizer
            recorder.lacks(number for each in primed if each not in with_gradient for number in primed[each])
            del batch
        if subject.evaluation is not None:
            batch = fake_batch(
                subject.evaluation, mode, values
            )  # all of it is there, however few are scored at once
            recorder.holds(leaves(batch.data), Role.INPUTS)
            with recorder, recorder.label("evaluation"):
                part = _longest(batch, min(batch.rows, size))
                evaluate(Scored.of(step), [part], {"any": _AnyMetric(subject.seen)})
        if not step.strategy.shards:
            with recorder, recorder.label("save"):
                _deliver(step, techniques, recorder)
        for memory in filter(recorder.has_seen, slots()):
            recorder.holds([memory], Role.WEIGHTS)
        recorder.lacks([*on_disk, *recorder.numbered(in_files())])
    return recorder.finish()


@contextmanager
def own_garbage() -> Iterator[None]:
    """Temporarily look for garbage among what is made within, and not each time among all that the libraries hold."""
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def _deliver(step: Step, techniques: Sequence[Technique], recorder: Recorder) -> None:
    """Record the model as it is saved: adapters merged, quantised weights made whole, averages in their places."""
    model, export = step.model, step.seams.export
    with torch.no_grad(), step.averaged(), making_in_files(Path()):
        if export is not None:
            by = [each for each in techniques if each.card.name in step.seams.exporters]
            recorder.leaving_nothing((_delivery_of(model), *by), lambda: export(model))


def _delivery_of(model: nn.Module) -> Hashable:
    """Return all that what is done to deliver a model can depend on."""
    modules = tuple((name, type(module)) for name, module in model.named_modules())
    places: dict[int, int] = {}
    tensors = tuple(
        (
            *(places.setdefault(id(each), len(places)), type(each), each.shape, each.stride(), each.dtype),
            *(each.device, each.untyped_storage().nbytes(), each.requires_grad),
        )
        for module in model.modules()
        for each in (*module._parameters.values(), *module._buffers.values())
        if each is not None
    )
    return modules, tensors


def _copied(step: Step, job: Job) -> list[Tensor]:
    """Return the host memory that a checkpoint is copied to, where it is written beside the training."""
    if job.checkpoint.save == "sync":
        return []
    return [torch.empty_like(each, device="cpu") for each in own_parts(leaves(step.state_dict()))]


def _moments(step: Step) -> list[int]:
    """Return the numbers of updates after which the run is looked at.

    They are its beginning, and its end where something changes on the way, such as the length of texts, or
    which blocks are frozen.
    """
    last = (step.total_updates or 0) - 1
    return [1, last] if step.seams.changes and last > 1 else [1]


def _prime(step: Step, done: int) -> None:
    """Make an update without forward and backward, after which the optimizer and the techniques hold what they do after many.

    Gradients stay until the next window begins, as they do in a run.
    """
    step.progress.updates = step.progress.windows = done - 1
    step.seams.begin(step.model, step.progress, step.seed)
    for parameter, bearer in zip(step.parameters, step.bearers, strict=True):
        zeros = torch.zeros_like(bearer, dtype=bearer.grad_dtype) if parameter.requires_grad else None
        bearer.grad = zeros
    optimizer = step.optimizer
    if isinstance(optimizer, ShadowOptimizer) and not optimizer.state:
        optimizer.prime()
    else:
        optimizer.step()
    step.progress.updates = step.progress.windows = done
    step.seams.updated(step.model, step.progress)


def _primed(step: Step, parameter: nn.Parameter) -> Iterator[Tensor]:
    """Yield what is there of a parameter for a gradient that it may turn out not to get."""
    if parameter.requires_grad and parameter.grad is not None:
        yield parameter.grad
    yield from leaves(step.optimizer.state.get(parameter, {}))


def _longest(batch: Batch, rows: int) -> Batch:
    """Return the longest rows of a batch."""
    lengths = batch.lengths
    if lengths is None or rows == batch.rows:
        return batch.select(range(rows))
    return batch.select(sorted(range(batch.rows), key=lambda row: -lengths[row])[:rows])


def longest_rows(window: Batch, rows: int) -> Batch:
    """Return a window of so many rows: the same, or its longest one as often as it takes."""
    if rows == window.rows:
        return window
    lengths = window.lengths
    with unset_fake_temporarily():
        longest = window.select([0 if lengths is None else lengths.index(max(lengths))] * rows)
        return replace(longest, data=map_tree(torch.clone, longest.data))  # a view of one row holds them all


def _own(model: nn.Module) -> Iterator[Tensor]:
    yield from model.parameters()
    yield from model.buffers()


def _streamed_from_files(
    model: nn.Module, subject: Subject, techniques: Sequence[Technique], frozen: bool = False
) -> Iterator[Tensor]:
    """Yield the weights on the host that are put into files as they are read: those of blocks that come from there, unless in few bits."""
    streaming = (each for each in techniques if each.reads_files and subject.from_files)
    for name in (name for each in streaming for name in each.stays(model)):
        for weight in model.get_submodule(name).parameters():
            if (
                weight.is_floating_point()
                and weight.device.type == "cpu"
                and not (frozen and weight.requires_grad)
            ):
                yield weight


def _material(subject: Subject, model: nn.Module) -> Material:
    data = range(subject.examples)
    return Material(model, data, None, subject.loss, None, subject.forward, subject.load, class_counts={})


@contextmanager
def gradients_followed(step: Step, recorder: Recorder) -> Iterator[set[nn.Parameter]]:
    """Temporarily tell the recorder of each gradient as it becomes one; gives the parameters that got one."""
    with_gradient: set[nn.Parameter] = set()

    def reach(parameter: nn.Parameter) -> None:
        with_gradient.add(parameter)
        if parameter.grad is not None:
            recorder.holds([parameter.grad], Role.GRADIENTS)

    hooks = [
        parameter.register_post_accumulate_grad_hook(reach)
        for parameter in step.parameters
        if parameter.requires_grad
    ]
    try:
        yield with_gradient
    finally:
        for hook in hooks:
            hook.remove()
        with_gradient.update(parameter for parameter in step.parameters if parameter.grad is not None)


def tell(step: Step, recorder: Recorder) -> None:
    """Tell the recorder what the storages are for that outlive an update."""
    states = [state.state_dict() for state in step.seams.states.values()]
    recorder.holds(leaves(states), Role.AVERAGES)
    recorder.holds((each.grad for each in step.bearers if each.grad is not None), Role.GRADIENTS)
    recorder.holds(step.strategy.buckets, Role.GRADIENTS)
    recorder.holds(leaves(step.optimizer.state_dict()["state"]), Role.OPTIMIZER)
    recorder.holds(_own(step.model), Role.WEIGHTS)


@dataclass(frozen=True)
class _AnyMetric:
    """A metric that looks at so much of the outputs, which is there until it has."""

    seen: Seen

    def __call__(self, _outputs: Any, data: Any) -> Tensor:
        first = next(iter(leaves(data)))
        return first.new_zeros(len(first))
