from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor

from snugfit.core.batch import Batch
from snugfit.core.job import Checkpoint, Plan
from snugfit.core.technique import Technique
from snugfit.errors import SettingError
from snugfit.kit.phases import phase
from snugfit.planner.cost.records import Phase, Role, Trace
from snugfit.planner.trace.dry_run import Subject, dry_run, longest_rows
from snugfit.step.step import Step
from snugfit.techniques import discover
from snugfit.techniques.learning.lora import LoRA
from snugfit.techniques.numerics.int8 import Int8
from snugfit.techniques.numerics.nf4 import NF4
from tests.unit.planner.dry import Middle, live, real_peak, real_update, rows_of, sizes, subject_of
from tests.unit.techniques.quantised_runs import mixtral

SGD, AdamW = discover()["sgd"], discover()["adamw"]


def small() -> nn.Sequential:
    """Two layers of 32 and 16 weights: 128 and 64 bytes."""
    return nn.Sequential(nn.Linear(4, 8, bias=False), nn.ReLU(), nn.Linear(8, 2, bias=False))


def squares(outputs: Tensor, data: Any) -> Tensor:
    return (outputs - data[1]).square().sum(1)


def traced(subject: Subject, **plan: Any) -> Trace:
    return dry_run(subject, Plan(**plan), subject.techniques)


def three_rows() -> tuple[Tensor, Tensor]:
    """48 and 24 bytes."""
    return torch.randn(3, 4), torch.randn(3, 2)


def test_every_storage_of_a_small_model_is_counted_by_what_it_is_for() -> None:
    trace = traced(subject_of(small(), three_rows(), [AdamW()], squares))
    assert sizes(trace, Role.WEIGHTS) == [64, 128]
    assert sizes(trace, Role.INPUTS) == [24, 48]
    # a count of steps and two moments for each weight
    assert sizes(trace, Role.OPTIMIZER) == [4, 4, 64, 64, 128, 128]
    own = [
        each
        for each in trace.storages
        if each.role is Role.GRADIENTS and trace.ops[each.op].place.phase is Phase.BACKWARD
    ]
    assert sorted(each.bytes for each in own) == [64, 128]


@pytest.mark.parametrize("deterministic", [False, True])
def test_kernels_are_chosen_as_in_a_run_that_is_deterministic_or_not(deterministic: bool) -> None:
    modes = set()

    def noting(outputs: Tensor, data: Any) -> Tensor:
        modes.add(torch.are_deterministic_algorithms_enabled())
        return squares(outputs, data)

    found = traced(subject_of(small(), three_rows(), [SGD()], noting), deterministic=deterministic)
    assert modes == {deterministic}
    plain = traced(subject_of(small(), three_rows(), [SGD()], squares))
    assert [each.name for each in found.ops] == [each.name for each in plain.ops]


def test_what_the_backward_needs_of_the_forward_is_kept_as_activations() -> None:
    trace = traced(subject_of(small(), three_rows(), [SGD()], squares))
    forward = [
        (trace.ops[each.op].place.module, each.bytes)
        for each in trace.storages
        if each.role is Role.ACTIVATIONS and each.op >= 0 and trace.ops[each.op].place.phase is Phase.FORWARD
    ]
    assert ("1", 3 * 8 * 4) in forward  # what the second layer takes; that the first one gave is gone by then
    assert ("0", 3 * 8 * 4) not in forward


@pytest.mark.parametrize("micro_batch", [None, 2])
@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_the_dry_run_allocates_what_the_real_step_does(micro_batch: int | None, optimizer: str) -> None:
    model, plan = small(), Plan(micro_batch=micro_batch)
    subject = subject_of(model, three_rows(), [discover()[optimizer]()], squares)
    few = 4 * 8  # scalars of the real step that live on in it
    assert max(live(traced(subject, micro_batch=micro_batch))) == pytest.approx(
        real_peak(model, subject, plan), abs=few
    )


def test_a_checkpoint_that_is_written_beside_the_run_takes_a_copy_of_all_that_is_saved_during_the_update() -> (
    None
):
    plain = subject_of(small(), three_rows(), [AdamW()], squares)
    beside = replace(plain, job=replace(plain.job, checkpoint=Checkpoint(save="async")))
    saved = 192 + 2 * 192 + 2 * 4  # the weights, two moments and a count of steps for each
    assert max(live(traced(beside))) == max(live(traced(plain))) + saved


def test_tied_weights_are_counted_once_and_have_one_gradient() -> None:
    model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False))
    model[1].weight = model[0].weight
    trace = traced(subject_of(model, (torch.randn(3, 4), torch.randn(3, 4)), [AdamW()], squares))
    assert sizes(trace, Role.WEIGHTS) == [64]
    assert sizes(trace, Role.OPTIMIZER) == [4, 64, 64]


def test_what_does_not_train_has_neither_gradient_nor_state() -> None:
    model = small()
    model[0].requires_grad_(False)
    trace = traced(subject_of(model, three_rows(), [AdamW()], squares))
    assert sizes(trace, Role.WEIGHTS) == [64, 128]
    assert sizes(trace, Role.OPTIMIZER) == [4, 64, 64]


def test_what_the_loss_does_not_reach_has_no_state() -> None:
    class Branch(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.unused = nn.Linear(4, 2, bias=False), nn.Linear(5, 5, bias=False)

        def forward(self, rows: Tensor) -> Tensor:
            found: Tensor = self.used(rows)
            return found

    trace = traced(subject_of(Branch(), three_rows(), [AdamW()], squares))
    assert [size for size in sizes(trace, Role.OPTIMIZER) if size] == [4, 32, 32]


def test_a_window_in_micro_batches_has_one_forward_and_backward_for_each() -> None:
    trace = traced(subject_of(small(), three_rows(), [SGD()], squares), micro_batch=1)
    seen = [(op.place.phase, op.place.micro_batch) for op in trace.ops if op.name == "aten.mm.default"]
    wanted = [(each, number) for number in range(3) for each in (Phase.FORWARD, Phase.BACKWARD)]
    assert list(dict.fromkeys(seen)) == wanted


def state_of_torch() -> tuple[Any, ...]:
    hooks = nn.modules.module
    return (
        torch.get_default_dtype(),
        torch.get_rng_state().tolist(),
        torch.is_grad_enabled(),
        nn.Module._apply,
        dict(hooks._global_forward_hooks),
        dict(hooks._global_forward_pre_hooks),
        torch.utils._python_dispatch._len_torch_dispatch_stack(),
        torch.backends.mha.get_fastpath_enabled(),
    )


def fails(x: Tensor) -> Tensor:
    raise ZeroDivisionError


@pytest.mark.parametrize("function", [torch.relu, fails])
def test_afterwards_torch_the_model_and_the_batch_are_as_before(function: Any) -> None:
    model, data = Middle(function), rows_of()
    subject = subject_of(model, data, [AdamW()])
    weights = {name: (each, each.clone()) for name, each in model.state_dict(keep_vars=True).items()}
    batch = [each.clone() for each in data]
    before = state_of_torch()
    with contextlib.suppress(ZeroDivisionError):
        traced(subject)
    assert state_of_torch() == before
    for name, each in model.state_dict(keep_vars=True).items():
        assert each is weights[name][0] and torch.equal(each, weights[name][1])
        assert not isinstance(each, FakeTensor) and each.grad is None
        assert not each._backward_hooks and not getattr(each, "_post_accumulate_grad_hooks", None)
    assert all(torch.equal(own, kept) for own, kept in zip(data, batch, strict=True))
    with phase("pass"):  # nobody watches
        pass


def test_a_real_run_after_a_dry_one_gives_the_same_bits() -> None:
    data = rows_of()

    def trained(dry: bool) -> Tensor:
        torch.manual_seed(0)
        model = Middle(nn.functional.dropout)
        if dry:
            traced(subject_of(model, data, [AdamW()]))
        step = Step(model, AdamW(), seed=1, nominal=6.0)
        step(data)
        step(data)
        return nn.utils.parameters_to_vector(model.parameters())

    assert torch.equal(trained(dry=True), trained(dry=False))


class Pair(NamedTuple):
    x: Tensor
    labels: Tensor


@dataclass
class Record:
    x: Tensor
    labels: Tensor
    note: str = ""


def dataclass_loss(outputs: Tensor, data: Record) -> Tensor:
    return nn.functional.cross_entropy(outputs, data.labels, reduction="none")


@pytest.mark.parametrize(
    ("made", "forward", "loss"),
    [
        (lambda x, y: (x, y), None, "cross_entropy"),
        (Pair, None, "cross_entropy"),
        (lambda x, y: {"rows": x, "labels": y}, None, "cross_entropy"),
        (
            lambda x, y: {"rows": {"of": [x]}, "labels": y},
            lambda m, d: m(d["rows"]["of"][0]),
            "cross_entropy",
        ),
        (Record, lambda m, d: m(d.x), dataclass_loss),
    ],
)
def test_batches_of_any_structure_are_planned_alike(made: Any, forward: Any, loss: Any) -> None:
    x, y = rows_of()
    peak = max(live(traced(subject_of(Middle(torch.relu), (x, y), [AdamW()]))))
    subject = subject_of(Middle(torch.relu), made(x, y), [AdamW()], loss, forward=forward)
    assert max(live(traced(subject))) == pytest.approx(peak, abs=6 * 8 + 64)


def index_of(mask: Any) -> Any:
    return lambda x: x + x[mask(x)].sum()


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x + x.new_zeros(()) * (x > 0).nonzero().shape[0],
        lambda x: x + x[x > 0].sum(),
        lambda x: x + torch.where(x > 0)[0].float().mean(),
        lambda x: 1 / 0 if torch.isnan(x).any() else x,
        lambda x: x + torch.arange(8.0),
        lambda x: torch.fft.irfft(torch.fft.rfft(x)),
        lambda x: torch.view_as_real(torch.view_as_complex(x.view(6, -1, 2)) * 1j).flatten(1),
        lambda x: x + torch.autograd.grad(x.square().sum(), x, create_graph=True)[0],
        lambda x: torch.utils.checkpoint.checkpoint(
            torch.exp, x, use_reentrant=False, preserve_rng_state=False
        ),
        lambda x: torch.vmap(torch.sin)(x),
    ],
)
def test_what_users_write_is_run_and_takes_what_it_really_does(function: Any) -> None:
    model, data = Middle(function), rows_of()
    subject = subject_of(model, data, [AdamW()])
    found = max(live(traced(subject)))
    # an upper bound where the numbers decide a shape: all of six rows of eight, with two places of eight bytes each
    assert 0 <= found - real_peak(model, subject, Plan()) + 64 <= 6 * 8 * 16


def skipped_at_random(x: Tensor) -> Tensor:
    return x if torch.rand([]) < 0.1 else x.cosh()


def test_a_layer_that_is_skipped_at_random_is_planned_as_if_it_never_were() -> None:
    trace = traced(subject_of(Middle(skipped_at_random), rows_of(), [AdamW()]))
    assert "aten.cosh.default" in {op.name for op in trace.ops} and trace.bounded == ("aten.rand.default",)


def recurrent(layer: nn.Module, packed: bool) -> Any:
    def run(x: Tensor) -> Tensor:
        rows = x.view(2, 3, 8)
        if not packed:
            return layer(rows)[0].reshape(6, 8)  # type: ignore[no-any-return]
        given = nn.utils.rnn.pack_padded_sequence(rows, torch.tensor([3, 1]), batch_first=True)
        found, _ = nn.utils.rnn.pad_packed_sequence(layer(given)[0], batch_first=True)
        return found.reshape(6, 8)

    return run


class Recurrent(Middle):
    def __init__(self, layer: nn.Module, packed: bool) -> None:
        super().__init__(torch.relu)
        self.layer, self.packed = layer, packed

    def forward(self, rows: Tensor) -> Any:
        return self.last(recurrent(self.layer, self.packed)(self.first(rows)))


@pytest.mark.parametrize(("kind", "packed"), [(nn.GRU, False), (nn.GRU, True), (nn.LSTM, True)])
def test_recurrent_layers_take_what_they_really_do(kind: type[nn.Module], packed: bool) -> None:
    model = Recurrent(kind(8, 8, batch_first=True), packed)
    subject = subject_of(model, rows_of(), [AdamW()])
    assert max(live(traced(subject))) == pytest.approx(real_peak(model, subject, Plan()), rel=0.01)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::snugfit.errors.SnugfitWarning")
@pytest.mark.parametrize("technique", [NF4(), Int8()], ids=["nf4", "int8"])
def test_experts_in_few_bits_take_what_they_really_do(technique: Technique) -> None:
    model, ids = mixtral().requires_grad_(False), torch.arange(128).view(2, 64) % 64
    data = {"input_ids": ids, "labels": ids}
    subject = subject_of(model, data, [AdamW(), LoRA(rank=2), technique], loss="causal_lm")
    trace = traced(subject)
    assert not trace.bounded
    first = next(op.event for op in trace.ops if op.place.phase is Phase.FORWARD)
    assert max(live(trace)[first:]) == pytest.approx(real_update(model, subject, Plan()), rel=0.005)


def test_the_users_own_optimizer_is_run_and_not_moved() -> None:
    model = small()
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 4)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    kept = {name: each.clone() for name, each in model.state_dict().items()}
    trace = traced(subject_of(model, three_rows(), (), squares, optimizer))
    assert sizes(trace, Role.OPTIMIZER) == [4, 4, 64, 64, 128, 128]
    assert all(torch.equal(each, kept[name]) for name, each in model.state_dict().items())
    assert optimizer.state[model[0].weight]["step"].item() == 1


def test_an_optimizer_that_evaluates_the_loss_itself_is_refused_as_by_the_step() -> None:
    model = small()
    optimizer = torch.optim.LBFGS(model.parameters())
    with pytest.raises(SettingError, match="LBFGS evaluates the loss as often as it likes"):
        traced(subject_of(model, three_rows(), (), squares, optimizer))
    with pytest.raises(SettingError, match="LBFGS evaluates the loss as often as it likes"):
        Step(model, optimizer)


def test_a_shorter_window_is_of_the_longest_row_and_holds_no_others() -> None:
    mask = torch.tensor([[1, 0, 0], [1, 1, 1], [1, 1, 0]])
    window = Batch.of({"input_ids": torch.arange(9).view(3, 3), "attention_mask": mask})
    one = longest_rows(window, 1)
    assert (
        one.data["input_ids"].tolist() == [[3, 4, 5]]
        and one.data["input_ids"].untyped_storage().nbytes() == 24
    )
    assert longest_rows(window, 2).data["input_ids"].tolist() == [[3, 4, 5], [3, 4, 5]]
    assert longest_rows(window, 3) is window
