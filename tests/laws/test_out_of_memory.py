"""Out of memory: a window that runs out of it is run again in finer micro-batches and makes the same update, and no example is
lost or repeated."""

from __future__ import annotations

import gc
import itertools
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from snugfit.core.technique import Technique
from snugfit.core.tree import leaves
from snugfit.errors import OutOfMemory
from snugfit.tools.certify.technique_laws import Trace, rows_together
from tests.laws import problems
from tests.laws.problems import Problem, Window, differences, make_step, relative_error, saved

ERRORS: tuple[Callable[[], Exception], ...] = (
    lambda: torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
    lambda: RuntimeError(
        "[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes."
    ),
)


@dataclass
class Scarce:
    """Memory that runs out in the `at`-th forward or backward of a model (from 1), once; it counts them all."""

    model: nn.Module
    at: int
    backward: bool = False
    make_error: Callable[[], Exception] = ERRORS[0]
    passes: int = 0
    hooks: list[Any] = field(default_factory=list)

    def __enter__(self) -> Scarce:
        self.hooks.append(self.model.register_forward_hook(self._seen))
        return self

    def __exit__(self, *exception: object) -> None:
        for hook in self.hooks:
            hook.remove()

    def _seen(self, module: nn.Module, inputs: Any, outputs: Any) -> None:
        if not module.training:  # a check of the model, which is no pass of the window
            return
        if not self.backward:
            self._pass(None)
            return
        tensor = next(leaves(outputs))  # logits, or what they will be made of
        if tensor.requires_grad:
            tensor.register_hook(self._pass)

    def _pass(self, gradient: Tensor | None) -> None:
        self.passes += 1
        if self.passes == self.at:
            raise self.make_error()


@pytest.fixture(autouse=True)
def released(monkeypatch: pytest.MonkeyPatch) -> list[torch.device]:
    """Devices whose memory was given back, without the collection of garbage, which takes longer than all else here."""
    devices: list[torch.device] = []
    monkeypatch.setattr("snugfit.step.out_of_memory.release_memory", devices.append)
    return devices


PAIRS = problems.legal_pairs()
SAMPLED = PAIRS[:: max(1, len(PAIRS) // 40)]


def weighed(techniques: tuple[Technique, ...]) -> Any:
    """What takes seconds is marked: several techniques, and what compiles each number of rows anew."""
    slow = len(techniques) > 1 or any(technique.card.name == "compile" for technique in techniques)
    return pytest.param(techniques, marks=pytest.mark.slow) if slow else techniques


RETRIED = [weighed(techniques) for techniques in (*problems.singles_and_together(), *SAMPLED)]


@pytest.mark.parametrize("techniques", RETRIED, ids=problems.name_of)
def test_a_window_that_ran_out_of_memory_makes_the_update_it_would_have_made(
    techniques: tuple[Technique, ...],
) -> None:
    if any(technique.card.couples_examples or technique.card.irrevocable for technique in techniques):
        pytest.skip("its windows are not run again")
    problem = problems.main(techniques)
    windows = problem.windows()
    micro_batch = 4
    if rows_together(problem, techniques, windows[0]) > 2:
        pytest.skip("its groups leave nothing finer than the micro-batch")
    step = make_step(problem, techniques, micro_batch=micro_batch)
    reference = [Trace(step, window) for window in windows], rows_seen(step)
    for backward, total in enumerate(count_passes(problem, techniques, windows[0], micro_batch)):
        middle = (total + 1) // 2
        few = {1, total} if backward else {middle}
        for at in sorted((few if techniques else {1, middle, total}) - {0}):
            agrees_with(reference, problem, techniques, windows, micro_batch, at, bool(backward))


def count_passes(
    problem: Problem, techniques: tuple[Technique, ...], window: Window, micro_batch: int
) -> tuple[int, int]:
    """How many forwards and how many backwards a window takes."""
    step = make_step(problem, techniques, micro_batch=micro_batch)
    with Scarce(step.model, at=0) as forwards, Scarce(step.model, at=0, backward=True) as backwards:
        step(window)
    return forwards.passes, backwards.passes


def rows_seen(step: problems.Step) -> list[int]:
    """What the model itself has counted in a buffer."""
    return [int(buffer) for name, buffer in step.model.named_buffers() if name.endswith("rows_seen")]


def agrees_with(
    reference: tuple[list[Trace], list[int]],
    problem: Problem,
    techniques: tuple[Technique, ...],
    windows: list[Window],
    micro_batch: int,
    at: int,
    backward: bool,
) -> None:
    where = f"{'backward' if backward else 'forward'} {at}"
    step = make_step(problem, techniques, micro_batch=micro_batch)
    with Scarce(step.model, at, backward):
        first = Trace(step, windows[0])
    assert step.micro_batch is not None and step.micro_batch < micro_batch, where
    for number, (one, other) in enumerate(
        zip([first, *(Trace(step, window) for window in windows[1:])], reference[0], strict=True)
    ):
        at_window = f"{where}, window {number}"
        assert relative_error(one.gradients, other.gradients, floor=problem.floor) <= problem.tolerance, (
            at_window
        )
        assert relative_error(one.weights, other.weights, floor=problem.floor) <= problem.tolerance, at_window
        assert relative_error(one.evaluated, other.evaluated, floor=problem.floor) <= problem.tolerance, (
            at_window
        )
        assert one.loss == pytest.approx(other.loss, rel=problem.tolerance), at_window
        assert one.metrics == pytest.approx(other.metrics, rel=problem.tolerance), at_window
    assert rows_seen(step) == reference[1], "buffers keep what the pass that failed has seen"
    assert (step.progress.windows, step.progress.skipped) == (len(windows), 0)
    assert step.progress.examples == sum(len(window["labels"]) for window in windows)


@pytest.mark.parametrize("make_error", ERRORS)
def test_the_result_says_what_became_of_the_micro_batch(
    make_error: Callable[[], Exception], released: list[torch.device]
) -> None:
    problem = problems.reader(())
    step = make_step(problem, ())
    first, second, _ = problem.windows()
    with Scarce(step.model, at=1, make_error=make_error) as scarce:
        result = step(first)
    assert result.applied
    ((before, after, reason),) = result.replans
    assert (before, after, result.micro_batch, step.micro_batch) == (7, 4, 4, 4)
    assert reason in str(make_error())
    assert scarce.passes == 1 + 2, "the whole window once, then its two parts"
    assert released == [step.device]
    again = step(second)
    assert (again.replans, again.micro_batch) == ((), 4), "what was found stays"


def test_every_size_is_tried_down_to_one_row() -> None:
    problem = problems.reader(())
    step = make_step(problem, ())
    with no_more_than(step.model, rows=1):
        result = step(problem.windows()[0])
    assert [(replan.before, replan.after) for replan in result.replans] == [(7, 4), (4, 2), (2, 1)]
    assert result.applied and step.micro_batch == 1


@pytest.mark.parametrize("techniques", problems.singles_and_together(), ids=problems.name_of)
def test_a_window_of_which_not_one_row_fits_changes_nothing_and_says_so(
    techniques: tuple[Technique, ...],
) -> None:
    problem = problems.main(techniques)
    first, second, _ = problem.windows()
    step = make_step(problem, techniques)
    step(first)
    before = saved(step)
    with (
        no_more_than(step.model, rows=0),
        pytest.raises(OutOfMemory, match=r"plan.micro_batch: memory ran out"),
    ):
        step(second)
    moved = {
        path
        for path in differences(before, saved(step))
        if not path.endswith(("/lr", "/momentum", "/betas/0"))
    }
    assert not moved
    assert not problems.gradients(step)
    assert step.progress.windows == 1


def test_an_error_of_another_kind_is_not_tried_again() -> None:
    problem = problems.reader(())
    step = make_step(problem, ())
    with (
        Scarce(step.model, at=1, make_error=lambda: RuntimeError("sizes do not match")) as scarce,
        pytest.raises(RuntimeError, match="sizes do not match"),
    ):
        step(problem.windows()[0])
    assert scarce.passes == 1 and step.micro_batch is None


@pytest.mark.parametrize("backward", [False, True])
def test_nothing_of_the_pass_that_failed_is_held_while_the_window_is_run_again(backward: bool) -> None:
    """The trap: an exception's traceback refers to every frame it went through, and those to the activations."""
    problem = problems.reader(())
    step = make_step(problem, ())
    alive: list[list[bool]] = []
    made: list[weakref.ref[Tensor]] = []

    def remember(module: nn.Module, inputs: Any, outputs: dict[str, Tensor]) -> None:
        alive.append([one() is not None for one in made])
        made.append(weakref.ref(outputs["logits"]))

    gc.disable()  # what stays until a collection comes by would be seen too late
    hook = step.model.register_forward_hook(remember)
    try:
        with Scarce(step.model, at=1, backward=backward):
            assert step(problem.windows()[0]).applied
    finally:
        hook.remove()
        gc.enable()
    assert alive[1] == [False], "the first pass's outputs live on in the second"


def test_dropout_is_drawn_as_by_a_run_that_began_with_the_finer_micro_batch() -> None:
    problem = problems.reader(())
    windows = problem.windows()
    failing = make_step(problem, (), dropout=0.5)
    with Scarce(failing.model, at=1):
        failing(windows[0])
    finer = make_step(problem, (), micro_batch=4, dropout=0.5)
    finer(windows[0])
    for window in windows[1:]:
        failing(window), finer(window)
    assert not differences(saved(finer), saved(failing))


def test_memory_that_runs_out_in_the_update_itself_is_not_tried_again() -> None:
    problem = problems.reader(())
    step = make_step(problem, problems.find_examples("adamw"))

    def fail(*_: object) -> None:
        raise ERRORS[0]()

    step.optimizer.register_step_pre_hook(fail)  # type: ignore[no-untyped-call]
    with pytest.raises(OutOfMemory, match=r"in the update itself.*state that was saved last"):
        step(problem.windows()[0])
    assert step.micro_batch is None and step.progress.windows == 0


IRREVOCABLE = [each for each in problems.examples() if each.card.irrevocable]


@pytest.mark.parametrize("technique", IRREVOCABLE, ids=problems.name_of)
def test_a_window_whose_weights_are_being_updated_in_backward_is_not_run_again(technique: Technique) -> None:
    problem = problems.main((technique,))
    step = make_step(problem, (technique,))
    last_reached = next(parameter for parameter in step.parameters if parameter.requires_grad)

    def fail(gradient: Tensor) -> None:
        if step.handed:
            raise ERRORS[0]()

    last_reached.register_hook(fail)
    with pytest.raises(OutOfMemory, match="after part of the weights had been updated"):
        step(problem.windows()[0])
    assert step.micro_batch is None


def test_batch_norm_is_never_left_with_a_single_row() -> None:
    problem = problems.normed(())
    step = make_step(problem, ())
    seen: list[int] = []
    step.model.register_forward_pre_hook(
        lambda module, args, kwargs: seen.append(len(kwargs["numbers"])), with_kwargs=True
    )
    with no_more_than(step.model, rows=3):
        result = step(problem.windows()[0])
    assert result.applied and step.micro_batch == 2
    assert seen == [7, 4, 3, 2, 2]
    with no_more_than(step.model, rows=1), pytest.raises(OutOfMemory, match="cannot be split finer"):
        step(problem.windows()[1])


def test_a_loss_that_compares_the_rows_of_a_window_is_not_cut_but_through_the_cache() -> None:
    cache = problems.find_examples("gradient_cache")
    problem = replace(problems.reader(cache), loss="info_nce")
    window = problem.windows()[0]
    plain = make_step(problem, ())
    with Scarce(plain.model, at=1), pytest.raises(OutOfMemory, match="'gradient_cache'"):
        plain(window)
    assert plain.micro_batch is None
    cached, whole = make_step(problem, cache), make_step(problem, cache)
    with Scarce(cached.model, at=2):
        assert cached(window).micro_batch == 4
    whole(window)
    assert relative_error(problems.gradients(cached), problems.gradients(whole)) <= problem.tolerance


@contextmanager
def no_more_than(model: nn.Module, rows: int) -> Iterator[None]:
    """Memory for that many rows of a forward, and not one more."""

    def check(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        first = next(each for each in itertools.chain(args, kwargs.values()) if isinstance(each, Tensor))
        if len(first) > rows:
            raise torch.OutOfMemoryError(f"CUDA out of memory: {len(first)} rows")

    hook = model.register_forward_pre_hook(check, with_kwargs=True)
    try:
        yield
    finally:
        hook.remove()
