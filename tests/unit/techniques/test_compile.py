from __future__ import annotations

import copy
import shutil
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from snugfit.core.card import Sharing
from snugfit.core.loss_terms import LossTerms
from snugfit.core.losses import causal_lm
from snugfit.errors import SettingError
from snugfit.kit.patched_forward import replaced_forward
from snugfit.step.step import Step
from snugfit.techniques.placement.compile import CHECKS, Compile, Known, compiled
from tests.laws import problems

EXAMPLE = Compile.example()


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """Nothing that another test compiled is found again."""
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def graphs() -> int:
    """How many graphs have been compiled."""
    from torch._dynamo.utils import counters

    return int(counters["stats"]["unique_graphs"])


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, inputs: Tensor) -> Tensor:
        found: Tensor = self.second(torch.relu(self.first(inputs)))
        return found


INPUTS = torch.linspace(-1, 1, 12).view(3, 4)


def run(net: nn.Module) -> Tensor:
    with compiled(net, backend="eager"):
        found: Tensor = net(INPUTS)
    return found


def test_entered_again_it_compiles_nothing_again() -> None:
    net, before = Net(), graphs()
    for _ in range(3):
        assert torch.equal(run(net), net(INPUTS))
    assert graphs() == before + 1


def test_a_forward_that_is_replaced_inside_is_never_stale() -> None:
    net = Net()
    plain = run(net)
    for factor in (2.0, 3.0, 2.0):
        forward = net.first.forward
        with replaced_forward(
            net.first, lambda inputs, forward=forward, factor=factor: forward(inputs) * factor
        ):
            expected = net(INPUTS)
            assert not torch.allclose(expected, plain)
            assert torch.allclose(run(net), expected)
            with compiled(net, backend="eager"):
                first = net(INPUTS)
        assert torch.allclose(first, expected)
        assert torch.allclose(run(net), plain)


def test_a_forward_that_is_replaced_after_compiling_counts_and_one_around_it_too() -> None:
    net = Net()
    forward = net.first.forward
    with compiled(net, backend="eager"):
        net(INPUTS)
        with replaced_forward(net.first, lambda inputs: forward(inputs) + 1):
            found = net(INPUTS)
        whole = net.forward
        with replaced_forward(net, lambda inputs: whole(inputs) * 2):
            doubled = net(INPUTS)
    with replaced_forward(net.first, lambda inputs: forward(inputs) + 1):
        assert torch.allclose(found, net(INPUTS))
    assert torch.allclose(doubled, 2 * net(INPUTS))


@pytest.mark.parametrize("kind", ["register_forward_hook", "register_forward_pre_hook"])
def test_a_hook_inside_is_never_stale(kind: str) -> None:
    """By default torch takes it that hooks do not change, and would leave this one out without a word."""
    net = Net()
    plain = run(net)
    for factor in (torch.tensor(2.0), torch.tensor(3.0)):
        hook = getattr(net.first, kind)(
            lambda module, args, *outputs, factor=factor: (outputs or args)[0] * factor
        )
        expected = net(INPUTS)
        assert torch.allclose(run(net), expected) and not torch.allclose(expected, plain)
        hook.remove()
        assert torch.allclose(run(net), plain)


def test_a_mode_that_watches_does_not_end_compilation() -> None:
    """Torch passes over a function for good that it first meets under such a mode."""
    from torch.utils.flop_counter import FlopCounterMode

    net, before = Net(), graphs()
    with FlopCounterMode(display=False):
        run(net)
    assert graphs() == before + 1


def test_nothing_of_it_stays_in_the_model() -> None:
    problem = problems.bert(())
    step = problems.make_step(problem, (EXAMPLE,))
    names = list(step.model.state_dict())
    step(problem.windows()[0])
    assert list(step.model.state_dict()) == names == list(problem.model().state_dict())
    assert not any("forward" in vars(module) for module in step.model.modules())
    assert all(module._compiled_call_impl is None for module in step.model.modules())
    assert type(copy.deepcopy(step.model)) is type(problem.model())


def lying(graph: Any, inputs: list[Tensor]) -> Callable[..., Any]:
    """A backend that compiles something else."""
    return lambda *given: tuple(output * 1.01 for output in graph(*given))


@pytest.fixture
def lies() -> Iterator[str]:
    from torch._dynamo.backends.registry import _BACKENDS, _COMPILER_FNS, register_backend

    register_backend(lying, name="lying")
    yield "lying"
    _BACKENDS.pop("lying", None)
    _COMPILER_FNS.pop("lying", None)


@pytest.mark.slow
@pytest.mark.parametrize("per_block", [False, True])
def test_a_compiler_that_computes_something_else_is_refused_with_the_numbers(
    lies: str, per_block: bool
) -> None:
    problem = problems.bert(())
    step = problems.make_step(problem, (Compile(backend=lies, per_block=per_block),))
    with pytest.raises(
        SettingError, match=r"^compile: what Bert\w+ gives compiled is 0\.0\d+ away .* accounts for 1e-09"
    ):
        step(problem.windows()[0])


class WrongBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, inputs: Tensor) -> Tensor:
        return inputs.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * 1.1


def test_wrong_gradients_of_right_outputs_are_refused() -> None:
    from snugfit.techniques.placement.compile import _checked

    net = Net()
    wrong = lambda inputs: WrongBackward.apply(net.forward(inputs))  # noqa: E731
    with pytest.raises(SettingError, match=r"is 0\.1 away"):
        _checked(net, net.forward, wrong, (INPUTS,), {})
    with torch.no_grad():
        assert _checked(net, net.forward, wrong, (INPUTS,), {})


@pytest.mark.slow
def test_a_backend_that_draws_other_dropout_in_backward_is_refused() -> None:
    """Torch's eager backend, of layers that compute themselves again. Mended there, the law of recomputation needs no other one."""
    problem = problems.bert(())
    for backend, is_right in (("eager", False), ("aot_eager", True)):
        step = problems.make_step(problem, (Compile(backend=backend),), dropout=0.3)
        model: Any = step.model
        model.activation_checkpointing_enable({"use_reentrant": False})
        with nullcontext() if is_right else pytest.raises(SettingError, match="use another backend"):
            assert step(problem.windows()[0]).applied


def test_numbers_that_are_not_finite_prove_nothing() -> None:
    from snugfit.techniques.placement.compile import _checked

    net = Net()
    assert not _checked(net, net.forward, net.forward, (INPUTS * torch.nan,), {})


def test_a_check_is_repeated_by_all_ranks_where_one_has_to_repeat_it() -> None:
    """Weights are gathered by all ranks in each forward of the whole model, and a check makes two more."""
    flags: list[bool] = []

    def one_repeats(flag: bool) -> bool:
        flags.append(flag)
        return True

    net, known = Net(), Known()
    with compiled(net, backend="eager", known=known, any_rank=one_repeats):
        net(INPUTS)
        net(INPUTS)
    assert (flags, dict(known.checked)) == ([False, False], {})
    with compiled(net, backend="eager", known=known):
        net(INPUTS)
    assert known.checked == {(net, True): 1}


SLOW = pytest.mark.slow
CASES = [
    (problems.reader, True, "eager"),
    pytest.param(problems.bert, True, "eager", marks=SLOW),
    (problems.gpt2, True, "eager"),
    pytest.param(problems.bert, True, "aot_eager", marks=SLOW),
    pytest.param(problems.gpt2, False, "aot_eager", marks=SLOW),
    pytest.param(problems.viewer, False, "aot_eager", marks=SLOW),
    pytest.param(problems.normed, False, "aot_eager", marks=SLOW),
]


@pytest.mark.slow
@pytest.mark.parametrize(("make", "per_block", "backend"), CASES)
def test_a_model_trains_the_same_compiled_with_dropout_and_all(
    make: problems.Maker, per_block: bool, backend: str
) -> None:
    problem = make(())
    technique = Compile(backend=backend, per_block=per_block)
    plain = problems.make_step(problem, (), micro_batch=4, dropout=0.1)
    step = problems.make_step(problem, (technique,), micro_batch=4, dropout=0.1)
    before = graphs()
    for window in problem.windows()[:2]:
        assert step(window).loss == pytest.approx(plain(window).loss, rel=1e-10)
    assert graphs() > before
    assert problems.relative_error(problems.weights(step), problems.weights(plain)) <= 1e-10
    assert not problems.differences(
        *({n: b.clone() for n, b in s.model.named_buffers()} for s in (step, plain))
    )


def deep_gpt2() -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=11, n_embd=8, n_layer=12, n_head=2, n_positions=16, bos_token_id=0, eos_token_id=0
        )
    )


@pytest.mark.slow
def test_blocks_of_one_kind_are_compiled_once_for_all_and_once_more_for_all_other_lengths() -> None:
    model = deep_gpt2()
    step = Step(model, torch.optim.SGD(model.parameters(), lr=0.1), "causal_lm", [EXAMPLE])
    before = graphs()
    for length in (5, 8, 9, 7):
        ids = torch.arange(2 * length).view(2, length) % 11
        step({"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids})
    assert graphs() == before + 2


def test_a_cache_that_the_check_would_fill_twice_is_refused() -> None:
    model = deep_gpt2()
    block: Any = model.get_submodule("transformer.h.0")
    with (
        compiled(block, backend="eager"),
        pytest.raises(SettingError, match="GPT2Block is given a DynamicCache, .* without use_cache"),
    ):
        model(input_ids=torch.zeros(1, 3, dtype=torch.long))


class Gathering(nn.Module):
    """Somebody's own block, which puts a loss of its own into a list that it is given, and changes its input in place."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.act = nn.Linear(4, 4), nn.ELU(inplace=True)

    def forward(self, hidden: Tensor, into: dict[str, list[Tensor]], marks: list[str]) -> Tensor:
        found: Tensor = self.linear(self.act(hidden))
        into["sums"].append(found.sum(dim=1))
        marks.append("called")
        return found


class Gatherer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.start = nn.Linear(4, 4)
        self.blocks = nn.ModuleList([Gathering(), Gathering()])
        self.marks: list[str] = []

    def forward(self, inputs: Tensor) -> Tensor:
        hidden, into = self.start(inputs), {"sums": []}
        for block in self.blocks:
            hidden = block(hidden, into, self.marks)
        return torch.stack([hidden.sum(dim=1), *into["sums"]], dim=1)


def test_the_check_leaves_lists_that_a_block_fills_and_inputs_that_it_changes_as_they_were() -> None:
    windows = [(torch.randn(6, 4), torch.arange(6) % 3) for _ in range(2)]
    steps = []
    for techniques in ([], [EXAMPLE]):
        with torch.random.fork_rng():
            torch.manual_seed(0)
            model = Gatherer()
        steps.append(
            Step(
                model, torch.optim.SGD(model.parameters(), lr=0.1), "cross_entropy", techniques, micro_batch=3
            )
        )
    plain, step = steps
    for window in windows:
        assert step(window).loss == pytest.approx(plain(window).loss, rel=1e-6)
    assert step.model.marks == plain.model.marks


@pytest.mark.slow
@pytest.mark.parametrize("per_block", [True, pytest.param(False, marks=SLOW)])
def test_what_hooks_catch_of_a_block_is_caught_once(per_block: bool) -> None:
    """As transformers catches the scores of routers, which become a part of the loss."""
    from transformers import MixtralConfig, MixtralForCausalLM

    sizes = {"vocab_size": 11, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "num_local_experts": 2}
    ids = torch.arange(12).view(2, 6) % 11
    losses, caught = [], []
    for techniques in ([], [Compile(backend="eager", per_block=per_block)]):
        with torch.random.fork_rng():
            torch.manual_seed(0)
            model = MixtralForCausalLM(MixtralConfig(**sizes, **heads, output_router_logits=True))
        hooked = []
        model.model.layers[0].mlp.register_forward_hook(lambda *call, hooked=hooked: hooked.append(call[0]))
        step = Step(model, torch.optim.SGD(model.parameters(), lr=0.1), with_routers, techniques)
        losses.append([step({"input_ids": ids, "labels": ids}).loss for _ in range(2)])
        caught.append(len(hooked))
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)
    assert caught == [2, 2]


def with_routers(outputs: Any, data: Any) -> LossTerms:
    terms = causal_lm(outputs, data)
    return LossTerms(terms.values + outputs.aux_loss, terms.weights)


@pytest.mark.slow
def test_torch_keeps_nothing_more_with_each_micro_batch() -> None:
    from torch._dynamo.eval_frame import cached_backends

    problem = problems.bert(())
    step = problems.make_step(problem, (EXAMPLE,), micro_batch=2)
    step(problem.windows()[0])
    before = len(cached_backends)
    for window in problem.windows():
        step(window)
    assert len(cached_backends) == before


@pytest.mark.slow
@pytest.mark.parametrize(
    "others",
    [
        ("lora",),
        *(
            pytest.param((name,), marks=SLOW)
            for name in ("hard_examples", "hidden_mixup", "stochastic_depth")
        ),
    ],
)
def test_beside_others_it_changes_nothing(others: tuple[str, ...]) -> None:
    techniques = problems.find_examples(*others)
    problem = problems.bert(techniques)
    plain = problems.make_step(problem, techniques, micro_batch=4)
    step = problems.make_step(problem, (EXAMPLE, *techniques), micro_batch=4)
    for window in problem.windows()[:2]:
        assert step(window).loss == pytest.approx(plain(window).loss, rel=1e-10)
    assert problems.relative_error(problems.weights(step), problems.weights(plain)) <= 1e-10


@pytest.mark.slow
@pytest.mark.skipif(
    shutil.which("gcc") is None and shutil.which("g++") is None, reason="inductor needs a C++ compiler"
)
def test_inductor_trains_the_same_with_dropout() -> None:
    problem = problems.gpt2(())
    plain = problems.make_step(problem, (), dtype=torch.float32, dropout=0.1)
    step = problems.make_step(problem, (Compile(),), dtype=torch.float32, dropout=0.1)
    for window in problem.windows(torch.float32)[:1]:
        assert step(window).loss == pytest.approx(plain(window).loss, rel=1e-5)
    assert problems.relative_error(problems.weights(step), problems.weights(plain)) <= 1e-4


def test_what_there_is_not_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(
        SettingError, match="compile.mode: there is no 'max-autotun'. Did you mean 'max-autotune'"
    ):
        Compile(mode="max-autotun")
    with pytest.raises(
        SettingError,
        match="'reduce-overhead' is a mode of the backend 'inductor', and the backend is 'eager'",
    ):
        Compile(mode="reduce-overhead", backend="eager")
    with pytest.raises(SettingError, match="compile.backend: there is no 'inducto'. Did you mean 'inductor'"):
        Compile(backend="inducto").prepare(nn.Linear(2, 2))


class Static(torch.autograd.Function):
    """A weight whose gradient is written into the same memory each time, as a CUDA graph does it."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, memory: Tensor) -> Tensor:
        ctx.memory = memory
        return weight.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        ctx.memory.copy_(gradients[0])
        return ctx.memory.view(-1).view(ctx.memory.shape).detach(), None  # another tensor, of the same memory


def replayed(calls: list[int], wrong_from: int = 99) -> Callable[..., Any]:
    """A stand-in for torch.compile, of `Net`, whose call of that number and those after it compute something else."""

    def graphed(forward: Callable[..., Any]) -> Callable[..., Any]:
        net: Any = forward.__self__  # type: ignore[attr-defined]
        memory = {name: torch.zeros_like(weight) for name, weight in net.named_parameters()}

        def run(inputs: Tensor) -> Tensor:
            calls.append(len(calls))
            weights = {name: Static.apply(weight, memory[name]) for name, weight in net.named_parameters()}
            found: Tensor = torch.func.functional_call(Net(), weights, (inputs,))
            return found * (2 if len(calls) > wrong_from else 1)

        return run

    return lambda **options: graphed


def trained(techniques: list[Compile], micro_batch: int | None) -> dict[str, Tensor]:
    torch.manual_seed(0)
    net = Net()
    step = Step(
        net, torch.optim.SGD(net.parameters(), lr=0.1), techniques=techniques, micro_batch=micro_batch
    )
    for _ in range(2):
        assert step((INPUTS[:2].repeat(2, 1), torch.tensor([0, 1, 2, 3]))).applied
    return {name: weight.detach().clone() for name, weight in net.named_parameters()}


def test_micro_batches_in_cuda_graphs_are_added_up_though_gradients_come_in_the_same_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Only a GPU can show that torch's own graphs do as this stand-in for them."""
    plain = trained([], 2)
    calls: list[int] = []
    monkeypatch.setattr(torch, "compile", replayed(calls))
    graphed = trained([Compile(mode="reduce-overhead", per_block=False)], 2)
    assert len(calls) == 8, "two micro-batches of two updates, each checked"
    for name, weight in plain.items():
        torch.testing.assert_close(graphed[name], weight)


@pytest.mark.parametrize("call", range(2, 8, 2))
def test_a_cuda_graph_is_checked_when_it_is_replayed_too(call: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", replayed([], wrong_from=call))
    with pytest.raises(SettingError, match=r"^compile: what Net gives compiled is "):
        trained([Compile(mode="reduce-overhead", per_block=False)], 2)


def test_gradients_of_their_own_end_with_the_micro_batch_and_are_not_made_without_graphs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch, "compile", lambda **options: lambda forward: forward)
    net = Net()
    for mode in CHECKS:
        step = Step(net, torch.optim.SGD(net.parameters(), lr=0.1), techniques=[Compile(mode=mode)])
        hooked: list[int] = []
        handle = net.register_forward_hook(
            lambda *_, seen=hooked: seen.append(len(net.first.weight._backward_hooks or ()))
        )
        step((INPUTS, torch.tensor([0, 1, 2])))
        handle.remove()
        assert hooked == [int(mode != "default")]
        assert not net.first.weight._backward_hooks


def test_weights_that_are_spread_over_devices_are_refused_with_cuda_graphs() -> None:
    assert "Use mode: default" in str(Compile(mode="max-autotune").refused_on(Sharing.SHARDS))
    assert Compile(mode="max-autotune").refused_on(Sharing.COPIES) is None
    assert Compile().refused_on(Sharing.SHARDS) is None
