from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from snugfit.kit.phases import following, phase
from snugfit.kit.skeleton import skeleton
from snugfit.planner.cost.records import Phase, Role, Trace
from snugfit.planner.trace.fake_tensors import fake_
from snugfit.planner.trace.known_values import KnownValues
from snugfit.planner.trace.recorder import Recorder

MODE = FakeTensorMode(allow_non_fake_inputs=True)


def record(function: Callable[[], object]) -> Trace:
    recorder = Recorder(KnownValues(MODE))
    with MODE, recorder:
        function()
    return recorder.trace


def chain() -> nn.Sequential:
    """Layers of 4·8 and 8·2 weights."""
    model = nn.Sequential(nn.Linear(4, 8, bias=False), nn.ReLU(), nn.Linear(8, 2, bias=False))
    return fake_(skeleton(model), MODE, "cpu")  # type: ignore[return-value]


def test_a_storage_lives_from_its_operator_to_its_last_reference() -> None:
    def freed_in_the_middle() -> None:
        x = torch.zeros(10)
        y = x + 1
        del x
        y * y

    trace = record(freed_in_the_middle)
    assert [storage.bytes for storage in trace.storages] == [40, 40, 40]
    assert [trace.ops[storage.op].name for storage in trace.storages] == [
        "aten.zeros.default",
        "aten.add.Tensor",
        "aten.mul.Tensor",
    ]
    assert trace.events == [1, 2, -1, 3, -3, -2]
    assert [op.event for op in trace.ops] == [0, 1, 3]


def test_a_view_and_an_operator_in_place_take_no_memory() -> None:
    trace = record(lambda: torch.zeros(2, 5).t()[1:].add_(1))
    assert [storage.bytes for storage in trace.storages] == [40]


def test_an_operator_of_several_results_makes_a_storage_of_each() -> None:
    trace = record(lambda: torch.zeros(2, 5).max(dim=1))
    assert [storage.bytes for storage in trace.storages] == [40, 8, 16]


def test_a_storage_that_is_resized_is_freed_and_counted_anew_for_the_same() -> None:
    recorder = Recorder(KnownValues(MODE))
    with MODE, recorder:
        x = torch.zeros(10)
        recorder.holds([x], Role.WEIGHTS)
        x.resize_(30)  # by an operator
        recorder.holds([x], Role.WEIGHTS)
        x.untyped_storage().resize_(80)  # by none
        recorder.resized(x.untyped_storage())
        del x
    assert [(each.bytes, each.role) for each in recorder.trace.storages] == [
        (40, Role.WEIGHTS),
        (120, Role.WEIGHTS),
        (80, Role.WEIGHTS),
    ]
    assert recorder.trace.events == [1, -1, 2, -2, 3, -3]


def test_shared_weights_are_counted_once() -> None:
    model = chain()
    recorder = Recorder(KnownValues(MODE))
    recorder.holds([*model.parameters(), model[0].weight, model[0].weight.view(-1)], Role.WEIGHTS)
    assert [(storage.bytes, storage.op) for storage in recorder.trace.storages] == [(128, -1), (64, -1)]


def test_operators_forward_and_backward_are_of_the_module_that_computed() -> None:
    model = chain()
    recorder = Recorder(KnownValues(MODE))
    recorder.knows(model)
    with MODE, recorder:
        x = torch.zeros(3, 4, requires_grad=True)
        with phase("forward"):
            loss = model(x).sum()
        with phase("backward"):
            loss.backward()
    places = [
        (op.name.split(".")[1], str(op.place.phase), op.place.module)
        for op in recorder.trace.ops
        if op.name.split(".")[1] in ("mm", "relu", "threshold_backward")
    ]
    assert places == [
        ("mm", "forward", "0"),
        ("relu", "forward", "1"),
        ("mm", "forward", "2"),
        ("mm", "backward", "2"),
        ("mm", "backward", "2"),
        ("threshold_backward", "backward", "1"),
        ("mm", "backward", "0"),
        ("mm", "backward", "0"),
    ]
    assert {op.place.block for op in recorder.trace.ops if op.place.module == "2"} == {
        1
    }  # of the two with weights


def test_a_block_that_is_computed_again_for_its_backward_keeps_its_module() -> None:
    model = chain()
    recorder = Recorder(KnownValues(MODE))
    recorder.knows(model)
    with MODE, recorder, phase("backward"):
        x = torch.zeros(3, 4, requires_grad=True)
        torch.utils.checkpoint.checkpoint(model[:2], x, use_reentrant=False).sum().backward()
    products = [op.place.module for op in recorder.trace.ops if op.name == "aten.mm.default"]
    assert products == ["0"] * 4  # forward, again, and the gradients of weight and input


def test_a_second_gradient_is_added_to_the_first_in_its_place() -> None:
    model = chain()

    def twice() -> None:
        for _ in range(2):
            model(torch.zeros(3, 4)).sum().backward()

    trace = record(twice)
    adds = [op.name for op in trace.ops if op.name.startswith("aten.add")]
    assert adds == ["aten.add_.Tensor"] * 2
    assert model[0].weight.grad.shape == (8, 4)  # type: ignore[union-attr]


def test_what_crosses_from_the_forward_to_the_backward_is_an_activation() -> None:
    recorder = Recorder(KnownValues(MODE))
    with MODE, recorder:
        with phase("forward"):
            kept = torch.zeros(10)
            kept + 1  # gone at once
        with phase("backward"):
            given = kept * 2
            del kept
        del given
    trace = recorder.finish()
    assert [(storage.bytes, storage.role) for storage in trace.storages] == [
        (40, Role.ACTIVATIONS),
        (40, Role.TEMPORARIES),
        (40, Role.TEMPORARIES),
    ]


def test_places_count_passes_and_micro_batches_within_them() -> None:
    recorder = Recorder(KnownValues(MODE))
    with MODE, recorder:
        for _ in range(2):
            with phase("pass"):
                for _ in range(2):
                    with phase("forward"):
                        torch.zeros(1)
        with phase("optimizer"):
            torch.zeros(1)
    assert [(op.place.phase, op.place.turn, op.place.micro_batch) for op in recorder.trace.ops] == [
        (Phase.FORWARD, 0, 0),
        (Phase.FORWARD, 0, 1),
        (Phase.FORWARD, 1, 0),
        (Phase.FORWARD, 1, 1),
        (Phase.OPTIMIZER, -1, -1),
    ]


def test_what_is_done_with_gradients_as_they_come_is_backward_and_an_evaluation_is_whole() -> None:
    recorder = Recorder(KnownValues(MODE))
    with MODE, recorder:
        with phase("backward"), phase("optimizer"):
            torch.zeros(1)
        with recorder.label("evaluation"), phase("forward"):
            torch.zeros(1)
    assert [op.place.phase for op in recorder.trace.ops] == [Phase.BACKWARD, Phase.EVALUATION]


def test_what_was_made_before_the_run_and_has_no_name_is_the_techniques_own() -> None:
    recorder = Recorder(KnownValues(MODE))
    with MODE, recorder:
        named, kept = torch.zeros(1), torch.zeros(2)
        recorder.holds([named], Role.WEIGHTS)
        recorder.begin()
        later = torch.zeros(3)
    assert [storage.role for storage in recorder.trace.storages] == [
        Role.WEIGHTS,
        Role.AVERAGES,
        Role.TEMPORARIES,
    ]
    del kept, later


def test_afterwards_no_hook_and_no_watcher_is_left_even_where_the_run_failed() -> None:
    hooks = nn.modules.module._global_forward_hooks, nn.modules.module._global_forward_pre_hooks
    before = [dict(each) for each in hooks]
    recorder = Recorder(KnownValues(MODE))
    with pytest.raises(ZeroDivisionError), MODE, recorder:
        raise ZeroDivisionError
    count = len(recorder.trace.ops)
    assert [dict(each) for each in hooks] == before
    with phase("pass"), MODE:
        torch.zeros(1)
    assert len(recorder.trace.ops) == count


def test_an_operator_has_its_work_and_what_it_reads_and_writes() -> None:
    def product() -> Tensor:
        return torch.zeros(3, 4) @ torch.zeros(4, 2)

    op = record(product).ops[-1]
    assert (op.name, op.flops, op.read, op.written) == ("aten.mm.default", 2 * 3 * 4 * 2, 4 * (12 + 8), 4 * 6)


def test_labels_of_a_profiler_are_operators_that_cost_the_host_alone() -> None:
    mode = FakeTensorMode()
    recorder = Recorder(KnownValues(mode))
    with mode, recorder, torch.autograd.profiler.record_function("step"):
        torch.zeros(2)
    begins, _, ends = recorder.trace.ops
    assert [begins.name, ends.name] == [
        "profiler._record_function_enter_new.default",
        "profiler._record_function_exit._RecordFunction",
    ]
    assert all(
        (each.device, each.flops, each.read, each.written) == ("cpu", 0, 0, 0) for each in (begins, ends)
    )


def test_each_call_of_a_module_is_told_with_the_next_operator() -> None:
    model = chain()
    trace = record(lambda: model(torch.zeros(3, 4)))
    calls = [(op.name, op.calls) for op in trace.ops if op.calls]
    assert calls == [("aten.t.default", 2), ("aten.relu.default", 1), ("aten.t.default", 1)]


class _Doubled:
    """A function of a tensor that counts its calls: twice the tensor, by a temporary of its size."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, given: Tensor) -> Tensor:
        def make() -> Tensor:
            self.calls += 1
            beside = given.clone()
            return beside * 2

        with torch.no_grad():
            return following("doubled", [given], make)


def _traced(
    run: Callable[[Callable[[Tensor], Tensor], FakeTensorMode], object], shortens: bool
) -> tuple[Trace, int]:
    """What is recorded of a run of `_Doubled`, and how often it was called."""
    mode, doubled = FakeTensorMode(), _Doubled()
    recorder = Recorder(KnownValues(mode), shortens=shortens)
    with mode, recorder, recorder.label("forward"):
        run(doubled, mode)
    return recorder.finish(), doubled.calls


def test_what_follows_from_tensors_is_made_once_and_recorded_as_if_it_were_made_each_time() -> None:
    def run(doubled: Callable[[Tensor], Tensor], _: FakeTensorMode) -> None:
        first = doubled(torch.empty(3, 4))
        second = doubled(torch.empty(3, 4))
        del first
        doubled(second.view(4, 3))  # of another shape
        (second + second).sum()
        doubled(second)

    (replayed, calls), (made, all_calls) = (_traced(run, shortens) for shortens in (True, False))
    assert (calls, all_calls) == (2, 4)
    assert (replayed.ops, replayed.events, replayed.storages) == (made.ops, made.events, made.storages)


@pytest.mark.parametrize("what", ["a gradient", "a value", "a mode"])
def test_what_does_not_follow_from_shapes_alone_is_made_each_time(what: str) -> None:
    class Above(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return func(*args, **kwargs or {})

    def run(doubled: Callable[[Tensor], Tensor], _: FakeTensorMode) -> None:
        given = torch.arange(3) if what == "a value" else torch.empty(3)  # of which the numbers are known
        with (
            mock.patch.object(torch, "no_grad", torch.enable_grad) if what == "a gradient" else nullcontext(),
            Above() if what == "a mode" else nullcontext(),
        ):
            doubled(given)
            doubled(given)

    (trace, calls), (made, _) = (_traced(run, shortens) for shortens in (True, False))
    assert calls == 2 and (trace.ops, trace.events) == (made.ops, made.events)


def test_what_autocast_rounds_to_decides_what_follows() -> None:
    types: list[torch.dtype] = []

    def run(_: Callable[[Tensor], Tensor], mode: FakeTensorMode) -> None:
        given = torch.empty(3, 3)
        with torch.no_grad():
            for dtype in (torch.bfloat16, torch.float16):
                with torch.autocast("cpu", dtype):
                    types.append(following("square", [given], lambda: given @ given).dtype)

    _traced(run, True)
    assert types == [torch.bfloat16, torch.float16]


def test_what_lets_go_of_something_else_is_made_each_time() -> None:
    kept: list[Tensor] = []

    def run(_: Callable[[Tensor], Tensor], mode: FakeTensorMode) -> None:
        given = torch.empty(5)
        calls.clear()

        def make() -> Tensor:
            calls.append(1)
            made = given * 2
            kept.clear()
            return made

        with torch.no_grad():
            for _again in range(3):
                kept.append(torch.empty(7))
                following("clears", [given], make)

    calls: list[int] = []
    trace, _ = _traced(run, True)
    assert len(calls) == 3
    freed = {-event - 1 for event in trace.events if event < 0}
    assert all(number in freed for number, each in enumerate(trace.storages) if each.bytes == 28)
