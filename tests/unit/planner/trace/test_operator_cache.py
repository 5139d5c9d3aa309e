"""Results that are made from memory are those of torch, which is asked beside."""

from __future__ import annotations

import gc
import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._pytree import tree_leaves

from snugfit.core.job import Plan
from snugfit.kit.adapters import adapters
from snugfit.planner.cost.records import Trace
from snugfit.planner.trace.dry_run import dry_run
from snugfit.planner.trace.known_values import KnownValues
from snugfit.planner.trace.operator_cache import Call, New, OperatorCache, Result
from snugfit.planner.trace.recorder import Recorder
from snugfit.techniques import find
from snugfit.techniques.learning import lora
from tests.unit.planner.dry import rows_of, subject_of

aten = torch.ops.aten


class Counted(OperatorCache):
    """Which operators were answered from memory, of how many."""

    def __init__(self) -> None:
        super().__init__()
        self.answered: list[str] = []
        self.asked = 0

    def find(self, call: Call) -> Result | None:
        self.asked += 1
        found = super().find(call)
        if found is not None:
            self.answered.append(str(call.func))
        return found


class Forgetful(OperatorCache):
    """Asks torch each time."""

    def find(self, call: Call) -> Result | None:
        return None


def twice(function: Callable[[Tensor], Any], *shape: int, **kinds: Any) -> tuple[Any, Any, list[str]]:
    """What a function of a fake tensor is, told for all its tensors, by torch alone and from memory; and which operators were remembered."""
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    with mode:
        given = torch.empty(shape, **kinds)
        alone = told(function(given), given)
    memory = Counted()
    for _ in range(2):
        memory.answered.clear()
        recorder = Recorder(KnownValues(mode), memory)
        with mode:
            given = torch.empty(shape, **kinds)
            with recorder:
                found = function(given)
            again = told(found, given)
    return alone, again, memory.answered


def told(found: Any, given: Tensor) -> list[Any]:
    """All that is to be seen of tensors, and which of them share memory."""
    tensors = [leaf for leaf in tree_leaves(found) if isinstance(leaf, Tensor)]
    storages = [given.untyped_storage()._cdata]
    seen: list[Any] = [type(found), len(tree_leaves(found))]
    for each in tensors:
        place = each.untyped_storage()._cdata
        if place not in storages:
            storages.append(place)
        described = (type(each), each.shape, each.stride(), each.storage_offset(), each.dtype, each.device)
        flags = (each.requires_grad, each.is_conj(), each.is_neg(), each._is_view())
        memory = (each.untyped_storage().nbytes(), storages.index(place), each is given)
        seen.append((described, flags, memory, torch._C._dispatch_key_set(each)))
    return seen


@pytest.mark.parametrize(
    ("operator", "function"),
    [
        ("add.Tensor", lambda x: x + 1),
        ("add_.Tensor", lambda x: x.add_(1)),
        ("mm.default", lambda x: x @ x.t()),
        ("t.default", lambda x: x.t()),
        ("slice.Tensor", lambda x: x[1:]),
        ("expand.default", lambda x: x[:1].expand(9, 6)),
        ("_unsafe_view.default", lambda x: aten._unsafe_view(x, [6, 4])),
        ("view.dtype", lambda x: x.view(torch.uint8)),
        ("clone.default", lambda x: x.t().clone()),
        ("_to_copy.default", lambda x: x.to(torch.bfloat16)),
        ("max.dim", lambda x: x.max(dim=1)),
        ("split.Tensor", lambda x: x.split(1)),
        ("cat.default", lambda x: torch.cat([x, x])),
        ("_foreach_add.Scalar", lambda x: torch._foreach_add([x, x.t()], 1)),
        ("_foreach_add_.Scalar", lambda x: torch._foreach_add_([x], 1)),
        ("zeros.default", lambda x: torch.zeros(3, 5)),
        ("new_empty.default", lambda x: x.new_empty(7)),
        ("native_layer_norm.default", lambda x: torch.native_layer_norm(x, [6], None, None, 1e-5)),
        ("uniform_.default", lambda x: x.uniform_()),
        ("bernoulli.default", lambda x: aten.bernoulli(x)),
        ("detach.default", lambda x: x.detach()),
        ("random_.default", lambda x: x.random_(generator=torch.Generator())),
        ("index.Tensor", lambda x: x[torch.zeros(3, dtype=torch.int64)]),
    ],
)
def test_what_is_made_from_memory_is_what_torch_makes(
    operator: str, function: Callable[[Tensor], Any]
) -> None:
    alone, again, answered = twice(function, 4, 6)
    assert again == alone
    assert f"aten.{operator}" in answered


@pytest.mark.parametrize(
    ("operator", "function"),
    [
        ("resize_", lambda x: x.resize_(2, 2)),
        ("t_", lambda x: x.t_()),
        ("set_", lambda x: torch.zeros(3).set_(x)),
        ("add", lambda x: torch.add(x, 1, out=torch.empty(0))),
        ("lift_fresh", lambda x: torch.tensor([1.0, 2.0])),
        ("_conj", lambda x: torch.view_as_complex(x.view(4, 3, 2)).conj()),
    ],
)
def test_what_the_arguments_do_not_tell_is_left_to_torch(
    operator: str, function: Callable[[Tensor], Any]
) -> None:
    alone, again, answered = twice(function, 4, 6)
    assert again == alone
    assert not any(name.split(".")[1] == operator for name in answered)


def test_a_fake_tensor_that_is_made_directly_has_all_that_torch_gives_one() -> None:
    mode, device = FakeTensorMode(), torch.device("cpu")
    plain = torch.empty_strided((3, 2), (2, 1), device="meta")
    made = New(plain.shape, plain.stride(), 0, plain.dtype, device, None).make([], mode)
    with mode:
        torchs = torch.empty(3, 2)
    assert vars(made) == vars(torchs)
    assert made.fake_mode is mode  # type: ignore[attr-defined]
    assert torch._C._dispatch_key_set(made) == torch._C._dispatch_key_set(torchs)


def test_an_operator_of_others_is_asked_each_time() -> None:
    grown = [0]

    @torch.library.custom_op("snugfit_test::grow", mutates_args=())
    def grow(rows: Tensor) -> Tensor:
        raise AssertionError("there are no numbers")

    @grow.register_fake
    def _(rows: Tensor) -> Tensor:
        grown[0] += 1
        return rows.new_empty(grown[0])

    memory = OperatorCache()
    with FakeTensorMode() as mode, Recorder(KnownValues(mode), memory):
        rows = torch.zeros(3)
        assert [grow(rows).shape[0] for _ in range(3)] == [1, 2, 3]


def test_numbers_beside_tensors_are_remembered_and_a_number_alone_is_asked_for() -> None:
    def attention(given: Tensor) -> Any:
        torch._fused_sdp_choice(given, given, given)  # which follows switches of torch too
        return aten._scaled_dot_product_flash_attention(given, given, given)

    alone, again, answered = twice(attention, 1, 2, 8, 8)
    assert again == alone
    assert answered == ["aten._scaled_dot_product_flash_attention.default"]


def test_numbers_that_are_equal_and_of_other_types_are_told_apart() -> None:
    with FakeTensorMode() as mode, Recorder(KnownValues(mode)):
        whole = torch.zeros(3, dtype=torch.int64)
        assert [(whole * by).dtype for by in (1, 1.0, True, 1)] == [
            torch.int64,
            torch.float32,
            torch.int64,
            torch.int64,
        ]


def test_tensors_of_one_shape_and_of_another_layout_type_or_device_are_told_apart() -> None:
    with FakeTensorMode() as mode, Recorder(KnownValues(mode)):
        square = torch.zeros(4, 4)
        assert [aten.clone(each).stride() for each in (square, square.t(), square)] == [
            (4, 1),
            (1, 4),
            (4, 1),
        ]
        assert [(each + each).dtype for each in (square, square.half())] == [torch.float32, torch.float16]
        assert [aten.view(each[:2], [8]).storage_offset() for each in (square, square[2:])] == [0, 8]
        with torch.inference_mode():
            assert (square + square).is_inference()
        assert not (square + square).is_inference()


def test_the_type_that_torch_makes_by_default_is_asked_for() -> None:
    try:
        with FakeTensorMode() as mode, Recorder(KnownValues(mode)):
            one = torch.arange(3) / 2
            torch.set_default_dtype(torch.float64)
            assert (one.dtype, (torch.arange(3) / 2).dtype) == (torch.float32, torch.float64)
    finally:
        torch.set_default_dtype(torch.float32)


def test_what_is_given_twice_is_read_once_and_two_alike_are_read_both() -> None:
    recorder = Recorder(KnownValues(FakeTensorMode()))
    with recorder.values.mode, recorder:
        one, other = torch.zeros(10), torch.zeros(10)
        for left, right in ((one, one), (one, other), (other, other)):
            left * right
    assert [op.read for op in recorder.trace.ops if op.name == "aten.mul.Tensor"] == [40, 80, 40]


def test_what_is_made_from_memory_is_let_go_of_at_once() -> None:
    recorder = Recorder(KnownValues(FakeTensorMode()))
    gc.disable()
    try:
        with recorder.values.mode, recorder:
            rows = torch.zeros(2, 5)
            for _ in range(3):
                torch.max(rows, dim=1)
    finally:
        gc.enable()
    assert recorder.trace.events == [1, 2, 3, -2, -3, 4, 5, -4, -5, 6, 7, -6, -7]


def test_an_argument_that_torch_knows_the_number_of_is_left_to_it() -> None:
    memory = Counted()
    with FakeTensorMode() as mode, Recorder(KnownValues(mode), memory):
        torch.empty(()) * 2
        for number in (2.0, 3.0):
            known = torch.tensor(number)
            assert isinstance(known, FakeTensor) and known.constant is not None
            assert (known * 2).item() == 2 * number
    assert "aten.mul.Tensor" not in memory.answered


def test_real_tensors_are_computed_with_each_time() -> None:
    memory = Counted()
    values = KnownValues(FakeTensorMode())
    with Recorder(values, memory):
        rows = torch.ones(3)
        found = [
            (rows + 1).tolist(),
            (rows.add_(1) + 1).tolist(),
            torch.zeros(2).tolist(),
            torch.zeros(2).tolist(),
        ]
    assert found == [[2.0] * 3, [3.0] * 3, [0.0] * 2, [0.0] * 2]
    assert memory.answered == []


def between_operators(trace: Trace) -> list[list[int]]:
    """What is allocated and freed before each operator; torch lets go of several tensors at once in any order."""
    bounds = [*(op.event for op in trace.ops), len(trace.events)]
    return [sorted(trace.events[first:last]) for first, last in itertools.pairwise(bounds)]


def model() -> nn.Sequential:
    layers = [nn.TransformerEncoderLayer(8, 2, 16, batch_first=True) for _ in range(3)]
    return nn.Sequential(nn.Linear(8, 8), nn.Unflatten(0, (-1, 1)), *layers, nn.Flatten(), nn.Linear(8, 4))


@pytest.mark.slow
@pytest.mark.parametrize(
    "names",
    [
        ("sgd", "optimizer_in_backward"),
        ("adamw", "clip_norm", "ema"),
        ("adamw", "recompute", "bf16"),
        ("adamw", "nf4", "lora", "recompute"),
    ],
)
def test_a_dry_run_from_memory_is_the_one_that_asks_torch_each_time(names: tuple[str, ...]) -> None:
    subject = subject_of(model(), rows_of(), [find(name).example() for name in names])
    memory = Counted()
    plan = Plan(micro_batch=2)
    dry_run(subject, plan, subject.techniques, cache=memory)
    memory.answered.clear()
    memory.asked = 0
    found = dry_run(subject, plan, subject.techniques, cache=memory)
    asked = dry_run(subject, plan, subject.techniques, cache=Forgetful())
    assert (found.ops, found.storages) == (asked.ops, asked.storages)
    assert between_operators(found) == between_operators(asked)
    assert len(memory.answered) > 0.9 * memory.asked


@pytest.mark.slow
@pytest.mark.parametrize(
    ("names", "others", "again"),
    [
        (("sgd", "nf4", "lora"), ("adamw", "nf4", "lora", "recompute"), True),
        (("sgd", "lora"), ("adamw", "lora", "clip_norm"), True),
        (("sgd", "lora"), ("sgd", "lora", "ema"), True),
        (("sgd", "lora"), ("sgd", "nf4", "lora"), False),
        (("sgd", "lora"), ("sgd", "lora", "pure_bf16"), False),
        (("sgd", "lora"), ("sgd", "lora", "weight_streaming"), False),
    ],
)
def test_a_delivery_is_made_once_for_all_plans_that_deliver_the_same(
    names: tuple[str, ...], others: tuple[str, ...], again: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[nn.Module] = []
    monkeypatch.setattr(lora, "merged", lambda model: made.append(model) or adapters.merged(model))
    memory = OperatorCache()
    found = []
    for each in (names, others):
        subject = subject_of(model(), rows_of(), [find(name).example() for name in each])
        found.append(dry_run(subject, Plan(micro_batch=2), subject.techniques, cache=memory))
    assert len(made) == (1 if again else 2)
    asked = dry_run(subject, Plan(micro_batch=2), subject.techniques)
    assert (found[1].ops, found[1].storages) == (asked.ops, asked.storages)
    # after the last one it hangs on the collector of garbage
    assert between_operators(found[1])[:-1] == between_operators(asked)[:-1]


def test_no_operator_is_hashed_where_its_result_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    mode = FakeTensorMode()
    memory, given = Counted(), mode.from_tensor(torch.ones(2, 3))
    with mode, Recorder(KnownValues(mode), memory):
        given * 2
    hashed: list[str] = []
    monkeypatch.setattr(torch._ops.OpOverload, "__hash__", lambda func: hashed.append(str(func)) or id(func))
    with mode, Recorder(KnownValues(mode), memory):
        given * 2
    assert memory.answered == ["aten.mul.Tensor"] and not hashed, "it takes torch microseconds each time"
