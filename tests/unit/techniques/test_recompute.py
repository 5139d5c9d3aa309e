from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import CheckpointPolicy

from snugfit.core.batch import Batch
from snugfit.errors import SettingError
from snugfit.step.step import Step
from snugfit.techniques import find
from snugfit.techniques.learning.sgd import SGD
from snugfit.techniques.placement import recompute
from snugfit.techniques.placement.recompute import Recompute, policy, recomputing
from snugfit.techniques.placement.tiled_linear import in_tiles
from tests.laws import problems
from tests.unit.techniques.live_memory import counting
from tests.unit.techniques.settings import context, refuses

EXACT = [Recompute(), Recompute(keep=("matmul", "attention", "convolution")), Recompute(budget="120KiB")]
ROUNDING = 1e-6  # float32 has 7 digits; other sums of the same few numbers


def llama(layers: int = 4, **settings: Any) -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    made = {
        "vocab_size": 32,
        "hidden_size": 32,
        "intermediate_size": 96,
        "num_attention_heads": 4,
        **settings,
    }
    return LlamaForCausalLM(LlamaConfig(num_hidden_layers=layers, num_key_value_heads=4, **made)).train()


class Tower(nn.Module):
    """Somebody's own net: blocks with keywords, a tuple of tensors, a tuple as output, and one block used twice."""

    class Block(nn.Module):
        def __init__(self, dropout: float) -> None:
            super().__init__()
            self.into, self.out, self.dropout = nn.Linear(8, 32), nn.Linear(32, 8), nn.Dropout(dropout)

        def forward(
            self, hidden: Tensor, *, shifts: tuple[Tensor, Tensor], scale: float = 1.0
        ) -> tuple[Tensor, None]:
            inner = self.dropout(torch.tanh(self.into(hidden + shifts[0])) * scale)
            return hidden + self.out(inner) * shifts[1], None

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.shift = nn.Parameter(torch.randn(1, 6, 8))
        blocks = [Tower.Block(dropout) for _ in range(3)]
        self.blocks = nn.ModuleList([*blocks, blocks[0]])

    def forward(self, numbers: Tensor) -> Tensor:
        hidden, gate = numbers, numbers[:, :1, :1].sigmoid()
        for block in self.blocks:
            hidden, _ = block(hidden, shifts=(self.shift, gate), scale=0.5)
        return hidden


def texts(rows: int, length: int = 16) -> Tensor:
    return torch.randint(0, 32, (rows, length), generator=torch.Generator().manual_seed(rows))


def numbers(rows: int) -> Tensor:
    return torch.randn(rows, 6, 8, generator=torch.Generator().manual_seed(rows))


@contextmanager
def within(technique: Recompute, model: nn.Module, inputs: Tensor) -> Iterator[None]:
    seams = technique.seams(context(technique.prepare(model)))
    assert seams.modules is not None
    with seams.modules(Batch.of(inputs)):
        yield


def outputs_of(model: nn.Module, inputs: Tensor) -> Tensor:
    outputs = model(inputs)
    found: Tensor = outputs if isinstance(outputs, Tensor) else outputs.logits
    return found


def gradients(model: nn.Module, inputs: Tensor, technique: Recompute | None, passes: int = 1) -> list[Tensor]:
    """Of the last of some passes over the same numbers, with the same dropout."""
    modules: Callable[[Batch], Any] | None = None
    if technique is not None:
        modules = technique.seams(context(technique.prepare(model))).modules
        assert modules is not None
    for _ in range(passes):
        model.zero_grad()
        torch.manual_seed(7)
        if modules is None:
            outputs_of(model, inputs).square().sum().backward()
        else:
            with modules(Batch.of(inputs)):
                outputs_of(model, inputs).square().sum().backward()
    found = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    assert found
    return found


def memory(model: nn.Module, inputs: Tensor, technique: Recompute | None, passes: int = 1) -> tuple[int, int]:
    """Bytes that live between forward and backward, and at the peak; gradients have their place beforehand."""
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    modules = None if technique is None else technique.seams(context(model)).modules
    for _ in range(passes):
        with counting() as live:
            if modules is None:
                loss = outputs_of(model, inputs).square().sum()
                saved_bytes = live.now()
                loss.backward()
                continue
            with modules(Batch.of(inputs)):
                loss = outputs_of(model, inputs).square().sum()
                saved_bytes = live.now()
                loss.backward()
    return saved_bytes, live.peak


def error(found: list[Tensor], expected: list[Tensor]) -> float:
    return max(
        float((a - b).norm() / b.norm().clamp_min(1e-12)) for a, b in zip(found, expected, strict=True)
    )


MODELS: dict[str, Callable[[], tuple[nn.Module, Tensor]]] = {
    "llama": lambda: (llama(attention_dropout=0.3, use_cache=False), texts(6)),  # as a step trains it
    "tower": lambda: (Tower(0.3), numbers(6)),
}


@pytest.mark.parametrize("technique", EXACT, ids=str)
@pytest.mark.parametrize("name", MODELS)
def test_the_gradient_is_the_same_bit_for_bit_with_dropout(name: str, technique: Recompute) -> None:
    model, inputs = MODELS[name]()
    plain = gradients(model, inputs, None)
    for passes in (1, 2):  # with a budget the first one measures
        found = gradients(model, inputs, technique, passes)
        assert all(torch.equal(*pair) for pair in zip(found, plain, strict=True))


@pytest.mark.parametrize("technique", EXACT, ids=str)
@pytest.mark.parametrize("make", [problems.reader, problems.viewer, problems.normed, *problems.STOCK])
def test_a_step_trains_the_same_weights_and_buffers_bit_for_bit(
    make: problems.Maker, technique: Recompute
) -> None:
    problem = make(())
    plain, changed = (
        problems.make_step(problem, given, micro_batch=3, dropout=0.3, dtype=torch.float32)
        for given in ((), (technique,))
    )
    for window in problem.windows(torch.float32):
        assert plain(window).loss == changed(window).loss
    assert not problems.differences(plain.model.state_dict(), changed.model.state_dict())


@pytest.mark.parametrize("technique", EXACT, ids=str)
def test_a_step_trains_a_causal_model_to_the_same_bits_though_its_config_asks_for_a_cache(
    technique: Recompute,
) -> None:
    trained = []
    for techniques in ((), (technique,)):
        model = llama(attention_dropout=0.3)
        assert model.config.use_cache
        step = Step(model, SGD(learning_rate=0.1), "causal_lm", techniques, micro_batch=3)
        for _ in range(2):
            step({"input_ids": texts(6), "labels": texts(6)})
        trained.append(model.state_dict())
    assert not problems.differences(*trained)


def test_of_a_block_only_its_inputs_are_kept() -> None:
    model, inputs = llama(layers=8), texts(8)
    saved_bytes, peak = memory(model, inputs, None)
    saved_again, peak_again = memory(model, inputs, Recompute())
    hidden = 8 * 16 * 32 * 4
    assert saved_bytes > 8 * 20 * hidden
    assert 8 * hidden <= saved_again <= 8 * hidden + saved_bytes / 8
    assert peak_again < peak / 3


def test_what_keep_names_is_not_computed_again() -> None:
    model, inputs = llama(), texts(4)
    plain = calls_in_backward(model, inputs, None)
    whole = calls_in_backward(model, inputs, Recompute())
    products = calls_in_backward(model, inputs, Recompute(keep=("matmul",)))
    attention = calls_in_backward(model, inputs, Recompute(keep=("attention",)))
    fused = "_scaled_dot_product_flash_attention_for_cpu"
    assert plain.count("mm") < whole.count("mm") and plain.count(fused) == 0 and whole.count(fused) == 4
    assert products.count("mm") == plain.count("mm") and products.count(fused) == 4
    assert attention.count("mm") > plain.count("mm") and attention.count(fused) == 0
    saved_bytes = [
        memory(model, inputs, each)[0] for each in (Recompute(), Recompute(keep=("matmul",)), None)
    ]
    assert saved_bytes == sorted(set(saved_bytes))


def calls_in_backward(model: nn.Module, inputs: Tensor, technique: Recompute | None) -> list[str]:
    called: list[str] = []

    class Noting(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            called.append(func.name().partition("::")[2].partition(".")[0])
            return func(*args, **(kwargs or {}))

    with nullcontext() if technique is None else within(technique, model, inputs):
        loss = outputs_of(model, inputs).square().sum()
        with Noting():
            loss.backward()
    return called


def test_attention_that_draws_dropout_is_computed_again_whatever_keep_says() -> None:
    decide = partial(
        policy(("attention",), "block", recompute._SavedOutputs()),
        SimpleNamespace(op_output=(), is_recompute=False),
    )
    attention = torch.ops.aten._scaled_dot_product_flash_attention.default
    query = torch.zeros(1)
    assert decide(attention, query, query, query) is CheckpointPolicy.MUST_SAVE
    assert decide(attention, query, query, query, 0.1) is CheckpointPolicy.PREFER_RECOMPUTE
    assert decide(torch.ops.aten.mm.default, query, query) is CheckpointPolicy.PREFER_RECOMPUTE


class WritesOver(nn.Module):
    """A block that writes over a product, in one of several ways."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way, self.layer = way, nn.Linear(4, 4)

    def forward(self, inputs: Tensor) -> Tensor:
        made = self.layer(inputs)
        if self.way == "add_":
            made += inputs
        elif self.way == "unsafe_chunk":  # torch does not note it, and would go on with wrong numbers
            made = made.unsafe_chunk(2, 1)[0].mul_(2.0)
        elif self.way == "reads":
            made = inputs.clone().add_(made)
        return made.sigmoid()


@pytest.mark.parametrize(("way", "operation"), [("add_", "add_"), ("unsafe_chunk", "unsafe_split")])
def test_a_block_that_writes_over_what_is_to_be_kept_is_refused_by_name(way: str, operation: str) -> None:
    block, inputs = WritesOver(way), torch.randn(3, 4)
    with (
        recomputing([block], keep=["matmul"]),
        pytest.raises(SettingError, match=f"recompute.keep: 'WritesOver' writes over .* by '{operation}'"),
    ):
        block(inputs).sum().backward()


def test_a_block_may_read_what_is_kept_while_it_writes_elsewhere() -> None:
    block, inputs = WritesOver("reads"), torch.randn(3, 4)
    block(inputs).sum().backward()
    expected = block.layer.weight.grad.clone()
    block.zero_grad()
    with recomputing([block], keep=["matmul"]):
        block(inputs).sum().backward()
    assert torch.equal(block.layer.weight.grad, expected)


@pytest.mark.parametrize("layer", [nn.GRU, nn.LSTM, nn.RNN, nn.GRUCell])
def test_recurrent_layers_are_computed_again_whatever_keep_says(layer: Any) -> None:
    torch.manual_seed(0)
    block = layer(4, 6).double()
    inputs = torch.randn(*((5, 4) if layer is nn.GRUCell else (3, 5, 4)), dtype=torch.float64)

    def gradients() -> list[Tensor]:
        block.zero_grad()
        outputs = block(inputs)
        (outputs if isinstance(outputs, Tensor) else outputs[0]).square().sum().backward()
        return [parameter.grad.clone() for parameter in block.parameters()]

    expected = gradients()
    with recomputing([block], keep=["matmul"]):
        found = gradients()
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))


@pytest.mark.parametrize("bias", [True, False])
def test_what_is_kept_of_linear_layers_in_tiles_gives_the_same_gradients(bias: bool) -> None:
    torch.manual_seed(0)
    block, inputs = nn.Sequential(nn.Linear(4, 6, bias=bias), nn.Tanh(), nn.Linear(6, 4)), torch.randn(3, 4)

    def gradients() -> list[Tensor]:
        block.zero_grad()
        block(inputs).square().sum().backward()
        return [parameter.grad.clone() for parameter in block.parameters()]

    with in_tiles(block[0], tiles=3):
        expected = gradients()
        with recomputing([block], keep=["matmul", "attention"]):
            found = gradients()
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))


@pytest.mark.slow
def test_a_budget_keeps_as_many_blocks_as_fit_and_no_more() -> None:
    model, inputs = llama(layers=8), texts(8)
    everything = memory(model, inputs, None)[0]
    least = memory(model, inputs, Recompute())[0]
    saved_bytes = []
    for budget in (least + (everything - least) // 3, least + (everything - least) // 2, 2 * everything):
        found, _ = memory(model, inputs, Recompute(budget=budget), passes=2)
        outside = 2**15  # logits and what else is of no block
        assert found <= budget + outside
        saved_bytes.append(found)
    assert least < saved_bytes[0] < saved_bytes[1] < saved_bytes[2] <= everything + outside
    assert saved_bytes[2] >= 0.95 * everything


def test_with_a_budget_the_last_of_equal_blocks_are_kept() -> None:
    model, inputs = llama(layers=4), texts(8)
    ran: list[int] = []
    for place, layer in enumerate(model.model.layers):
        layer.mlp.register_forward_pre_hook(lambda *_, place=place: ran.append(place))
    half = (memory(model, inputs, None)[0] + memory(model, inputs, Recompute())[0]) // 2
    seams = Recompute(budget=half).seams(context(model))
    assert seams.modules is not None
    again = []
    for _ in range(3):
        with seams.modules(Batch.of(inputs)):
            loss = outputs_of(model, inputs).square().sum()
            ran.clear()
            loss.backward()
        again.append(list(ran))
    assert again[0] == [3, 2, 1, 0]
    assert again[1] == again[2] == again[1][: len(again[1])] and 0 < len(again[1]) < 4
    assert max(again[1]) == len(again[1]) - 1, "the first ones are computed again"


def test_each_shape_is_measured_once() -> None:
    model = Tower()
    ran: list[int] = []
    model.blocks[1].register_forward_pre_hook(lambda *_: ran.append(0))
    model.blocks[1].into.register_forward_hook(lambda *_: ran.append(1))
    seams = Recompute(budget="1GiB").seams(context(model))
    assert seams.modules is not None
    found = []
    for rows in (4, 4, 6, 6, 4):
        ran.clear()
        with seams.modules(Batch.of(numbers(rows))):
            model(numbers(rows)).sum().backward()
        found.append(sum(ran))
    assert found == [3, 1, 3, 1, 1]  # measured, run and run again; then kept


def test_a_budget_below_the_inputs_of_the_blocks_is_refused_with_both_numbers() -> None:
    with pytest.raises(
        SettingError,
        match=r"budget: the inputs of the blocks alone take \d.* for a micro-batch of 8 rows.* 100 B. Give",
    ):
        memory(Tower(), numbers(8), Recompute(budget=100))


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("rows", [1, 2, 4])
def test_by_rows_the_gradient_is_the_same_up_to_rounding(name: str, rows: int) -> None:
    model, inputs = MODELS[name]()
    model.eval()  # dropout would draw other numbers, as with another micro-batch
    assert error(gradients(model, inputs, Recompute(rows=rows)), gradients(model, inputs, None)) < ROUNDING


@pytest.mark.parametrize("make", problems.STOCK)
@pytest.mark.parametrize("rows", [1, 2])
def test_by_rows_a_stock_model_trains_the_same(make: problems.Maker, rows: int) -> None:
    problem = make(())
    plain, changed = (problems.make_step(problem, given) for given in ((), (Recompute(rows=rows),)))
    for window in problem.windows():
        assert plain(window).loss == pytest.approx(changed(window).loss, rel=1e-12)
    assert problems.relative_error(problems.weights(changed), problems.weights(plain)) < 1e-10


@pytest.mark.slow
def test_by_rows_the_peak_grows_by_the_inputs_alone() -> None:
    model = llama(layers=2)
    small, large = (texts(rows) for rows in (4, 32))
    hidden = 28 * 16 * 32 * 4  # of the rows that the large batch has more
    plain, whole, by_rows = (
        memory(model, large, each)[1] - memory(model, small, each)[1]
        for each in (None, Recompute(blocks=("layers.*",)), Recompute(rows=1))
    )
    # inputs of two blocks, the output, the logits of as many entries, and a gradient of each of the last
    assert by_rows <= 8 * hidden < whole / 2 < plain / 2


def test_by_rows_dropout_is_the_same_in_both_computations() -> None:
    """As from the same block called part by part, with the numbers drawn in that order."""
    block, inputs = Tower.Block(0.5), numbers(5).requires_grad_()
    shifts = (torch.zeros(1, 6, 8), torch.ones(5, 1, 1))
    model = nn.ModuleList([block])
    torch.manual_seed(3)
    parts = [
        block(inputs[s], shifts=(shifts[0], shifts[1][s]))[0] for s in (slice(0, 2), slice(2, 4), slice(4, 5))
    ]
    torch.cat(parts).square().sum().backward()
    expected = [inputs.grad, *(p.grad for p in block.parameters())]
    inputs.grad = None
    block.zero_grad()
    with within(Recompute(rows=2), model, inputs):
        torch.manual_seed(3)
        outputs = block(inputs, shifts=shifts)[0]
        torch.manual_seed(4)
        outputs.square().sum().backward()
    assert torch.equal(outputs, torch.cat(parts))
    assert error([inputs.grad, *(p.grad for p in block.parameters())], expected) < ROUNDING


def test_by_rows_gradients_of_a_part_never_stand_beside_those_of_others() -> None:
    block, inputs = nn.Sequential(*(nn.Linear(64, 64) for _ in range(8))), torch.randn(4, 1, 64)
    weights_bytes = sum(p.nbytes for p in block.parameters())
    with within(Recompute(rows=1), nn.ModuleList([block]), inputs), counting() as live:
        block(inputs).sum().backward()
        assert live.now() >= weights_bytes  # the gradients
    # those of a part, and of another one, would be as much again
    assert live.peak < 1.5 * weights_bytes


def test_by_rows_a_sparse_gradient_stays_one() -> None:
    class Embedding(nn.Embedding):
        def forward(self, input: Tensor) -> Tensor:
            return super().forward((10 * input).long()) * input.unsqueeze(-1)

    block, inputs = Embedding(10, 3, sparse=True), torch.rand(4, 2)
    with within(Recompute(rows=1), nn.ModuleList([block]), inputs):
        block(inputs).sum().backward()
    found, block.weight.grad = block.weight.grad, None
    block(inputs).sum().backward()
    assert found is not None and found.is_sparse
    torch.testing.assert_close(found.to_dense(), block.weight.grad.to_dense())


EVERY = [Recompute(rows=2, inputs_every=count) for count in (2, 3, 9)]


@pytest.mark.parametrize("technique", EVERY, ids=str)
@pytest.mark.parametrize("name", MODELS)
def test_inputs_that_are_computed_again_give_the_same_bits_with_dropout(
    name: str, technique: Recompute
) -> None:
    model, inputs = MODELS[name]()
    kept = gradients(model, inputs, Recompute(rows=2))
    again = gradients(model, inputs, technique)
    assert all(torch.equal(one, other) for one, other in zip(again, kept, strict=True))


@pytest.mark.slow
def test_the_inputs_of_every_second_block_are_kept() -> None:
    model, inputs = llama(layers=4), texts(6)
    hidden = 6 * 16 * 32 * 4
    kept, second, first = (
        memory(model, inputs, each, passes=2)[0] for each in (Recompute(rows=1), *EVERY_OF_FOUR)
    )
    assert kept - second == 2 * hidden and kept - first == 3 * hidden


EVERY_OF_FOUR = [Recompute(rows=1, inputs_every=count) for count in (2, 4)]


def test_an_input_that_somebody_has_written_to_is_kept() -> None:
    class Written(nn.Module):
        """Writes to what its first block gives, without autograd seeing it."""

        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.blocks = nn.ModuleList([nn.Sequential(nn.Linear(4, 4), nn.Tanh()) for _ in range(2)])

        def forward(self, inputs: Tensor) -> Tensor:
            hidden = self.blocks[0](inputs)
            with torch.no_grad():
                hidden.mul_(3.0)
            return self.blocks[1](hidden)

    model, inputs = Written(), torch.randn(4, 2, 4)
    kept, again = (gradients(model, inputs, Recompute(rows=1, inputs_every=count)) for count in (1, 2))
    assert all(torch.equal(one, other) for one, other in zip(again, kept, strict=True))


def test_an_input_that_is_given_twice_gets_the_gradient_of_both() -> None:
    class Gated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.value, self.gate = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, hidden: Tensor, residual: Tensor | None = None) -> Tensor:
            return self.value(hidden) * 3 + self.gate(hidden if residual is None else residual)

    class Twice(nn.Module):
        """Gives its second block the same tensor as two arguments."""

        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.blocks = nn.ModuleList([Gated(), Gated()])

        def forward(self, inputs: Tensor) -> Tensor:
            hidden = self.blocks[0](inputs)
            return self.blocks[1](hidden, hidden)

    model, inputs = Twice(), torch.randn(4, 2, 4)
    kept, again = (gradients(model, inputs, Recompute(rows=1, inputs_every=count)) for count in (1, 2))
    assert all(torch.equal(one, other) for one, other in zip(again, kept, strict=True))


def test_by_rows_a_weight_gets_its_gradient_at_once() -> None:
    model, inputs = llama(), texts(6)
    counts = dict.fromkeys(model.parameters(), 0)

    def count(parameter: nn.Parameter) -> None:
        counts[parameter] += 1

    for parameter in counts:
        parameter.register_post_accumulate_grad_hook(count)
    with within(Recompute(rows=1), model, inputs):
        outputs_of(model, inputs).square().sum().backward()
    assert set(counts.values()) == {1}


def test_by_rows_under_autocast_weights_that_others_use_too_get_their_gradients() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.blocks = nn.ModuleList([nn.Linear(8, 8)])

        def forward(self, inputs: Tensor) -> Tensor:
            hidden: Tensor = self.blocks[0](inputs).tanh()
            return nn.functional.linear(hidden, self.blocks[0].weight)

    model, inputs = Tied(), numbers(4)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        plain = gradients(model, inputs, None)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = gradients(model, inputs, Recompute(rows=1))
    assert error(found, plain) < 0.02  # bf16 has 8 bits


class Named(nn.Linear):
    """Gives its output by a name."""

    def __init__(self) -> None:
        super().__init__(8, 8)

    def forward(self, inputs: Tensor) -> Any:
        return {"hidden": super().forward(inputs)}


@pytest.mark.parametrize(
    ("block", "call", "reason"),
    [
        (
            nn.Linear(8, 8),
            lambda block, x: block(x.transpose(0, 1)),
            r"of shape \(6, 4, 8\) for 4 rows|no tensor with 4",
        ),
        (nn.Linear(8, 8), lambda block, x: block(x.flatten(0, 1)), "no tensor with 4 rows"),
        (
            nn.Bilinear(8, 8, 2),
            lambda block, x: block(x, x[:2].repeat(1, 2, 1)),
            r"of shape \(2, 12, 8\) for 4 rows",
        ),
        (
            nn.TransformerEncoderLayer(8, 2, batch_first=True),
            lambda block, x: block(x, src_key_padding_mask=torch.zeros(8, 6)),
            r"of shape \(8, 6\) for 4 rows",
        ),
        (Named(), lambda block, x: block(x), "returns tensors within a dict"),
        (nn.Flatten(0, 1), lambda block, x: block(x), r"gives a tensor of shape \(12, 8\) for 2 rows"),
    ],
)
def test_rows_refuses_what_it_cannot_cut(block: nn.Module, call: Callable[..., Tensor], reason: str) -> None:
    model, inputs = nn.ModuleDict({"only": block, "other": nn.Linear(1, 1)}), numbers(4)
    given = Recompute(rows=1, blocks=("only",))
    with (
        pytest.raises(SettingError, match=rf"recompute.rows: 'only' .*{reason}"),
        within(given, model, inputs),
    ):
        call(block, inputs)


class Shifting(nn.Module):
    """Adds a table over the places, which has no rows."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, inputs: Tensor, table: Tensor) -> Tensor:
        outputs: Tensor = self.layer(inputs) + table
        return outputs


def test_a_table_with_as_many_entries_as_there_are_rows_is_not_taken_for_rows() -> None:
    model, inputs = nn.ModuleList([Shifting()]), numbers(6)
    with (
        pytest.raises(SettingError, match="'0' cannot work on 2 rows instead of 6 .* does not hold rows"),
        within(Recompute(rows=1), model, inputs),
    ):
        model[0](inputs, torch.randn(6, 8))
    with within(Recompute(rows=1), model, inputs):
        table = torch.randn(1, 6, 8)
        torch.testing.assert_close(model[0](inputs, table), model[0].layer(inputs) + table)


def test_rows_refuses_a_block_that_learns_the_weight_of_another() -> None:
    class Borrowing(nn.Module):
        def __init__(self, other: nn.Linear) -> None:
            super().__init__()
            self.own, self.others = nn.Linear(8, 8), [other]

        def forward(self, inputs: Tensor) -> Tensor:
            outputs: Tensor = self.own(inputs) @ self.others[0].weight
            return outputs

    other = nn.Linear(8, 8)
    model, inputs = nn.ModuleDict({"other": other, "block": Borrowing(other)}), numbers(4)
    given = Recompute(rows=1, blocks=("block",))
    with (
        pytest.raises(
            SettingError, match=r"'block' learns a weight of shape \(8, 8\) that belongs to another module"
        ),
        within(given, model, inputs),
    ):
        model["block"](inputs).sum().backward()


def test_rows_refuses_batch_norm_and_arguments_that_hide_tensors() -> None:
    with pytest.raises(SettingError, match="recompute.rows: 'body' holds batch norm"):
        Recompute(rows=1, blocks=("body",)).prepare(problems.normed(()).model())

    class Listed(nn.Module):
        def forward(self, inputs: Tensor, others: list[Tensor]) -> Tensor:
            return inputs + others[0]

    model, inputs = nn.ModuleDict({"only": Listed(), "other": nn.Linear(1, 1)}), numbers(4)
    given = Recompute(rows=1, blocks=("only",))
    with pytest.raises(SettingError, match="'only' gets a list, whose rows"), within(given, model, inputs):
        model["only"](inputs.requires_grad_(), [inputs])


class Putting(nn.Module):
    """Puts a loss aside, in an attribute or a list that is not its own."""

    def __init__(self, others: list[Tensor] | None = None) -> None:
        super().__init__()
        self.layer, self.others = nn.Linear(8, 8), others

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.layer(inputs)
        if self.others is None:
            self.aside = outputs.square().mean((1, 2))
        else:
            self.others.append(outputs.square().mean((1, 2)))
        return outputs


@pytest.mark.parametrize("learns", [True, False])
@pytest.mark.parametrize("others", [None, []])
def test_rows_refuses_a_block_that_keeps_what_it_does_not_return(
    others: list[Tensor] | None, learns: bool
) -> None:
    model = nn.ModuleList([Putting(others).requires_grad_(learns)])
    with (
        pytest.raises(SettingError, match="recompute.rows: '0' keeps something .* beside what it returns"),
        within(Recompute(rows=1), model, numbers(4)),
    ):
        model[0](numbers(4))


def test_rows_refuses_router_logits_that_a_hook_collects() -> None:
    from transformers import MixtralConfig, MixtralForCausalLM

    torch.manual_seed(0)
    config = MixtralConfig(
        vocab_size=32,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        num_local_experts=2,
    )
    model, inputs = MixtralForCausalLM(config).train(), texts(4)
    with within(Recompute(rows=2), model, inputs):
        model(inputs).logits.sum().backward()
    with (
        pytest.raises(SettingError, match=r"'model.layers.0' keeps something .* a hook"),
        within(Recompute(rows=2), model, inputs),
    ):
        model(inputs, output_router_logits=True)


@pytest.mark.parametrize("kind", ["power iteration", "counter", "counter in place"])
def test_rows_refuses_a_block_that_moves_a_buffer(kind: str) -> None:
    class Ticking(nn.Linear):
        def __init__(self) -> None:
            super().__init__(8, 8)
            self.register_buffer("ticks", torch.zeros(()))

        def forward(self, inputs: Tensor) -> Tensor:
            self.ticks = self.ticks.add_(1) if kind == "counter in place" else self.ticks + 1
            return super().forward(inputs)

    layer = (
        nn.utils.parametrizations.spectral_norm(nn.Linear(8, 8)) if kind == "power iteration" else Ticking()
    )
    model = nn.ModuleList([layer])
    with (
        pytest.raises(SettingError, match="recompute.rows: '0' moves its buffer '(ticks|param.*_u)'"),
        within(Recompute(rows=1), model, numbers(4)),
    ):
        model[0](numbers(4))
    if kind == "power iteration":
        with within(Recompute(rows=1), model.eval(), numbers(4)):
            model[0](numbers(4))


@pytest.mark.parametrize("technique", [Recompute(), Recompute(keep=("matmul",)), Recompute(rows=1)])
def test_a_block_that_changes_what_it_is_given_in_place_is_refused_by_name(technique: Recompute) -> None:
    blocks = [nn.Sequential(nn.ELU(inplace=True), nn.Linear(8, 8)) for _ in range(2)]
    model = nn.ModuleDict({"stem": nn.Linear(8, 8), "blocks": nn.ModuleList(blocks)})
    with (
        pytest.raises(SettingError, match=r"recompute\.\w+: 'blocks.0' changes what it is given in place"),
        within(technique, model, numbers(4)),
    ):
        model["blocks"][0](model["stem"](numbers(4)))


def test_a_block_may_change_a_dict_and_a_list_that_it_is_given() -> None:
    class Changing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(8, 8)

        def forward(self, state: dict[str, Any]) -> dict[str, Any]:
            state["hidden"] = state["hidden"] + torch.tanh(self.layer(state["hidden"]))
            state["seen"].append(state["hidden"].mean())
            state["hidden"] = state["hidden"] * len(state["seen"])
            return state

    torch.manual_seed(0)
    model = nn.ModuleList([Changing() for _ in range(3)])
    found = []
    for around in (nullcontext(), within(Recompute(), model, numbers(4))):
        model.zero_grad()
        with around:
            state: dict[str, Any] = {"hidden": numbers(4), "seen": []}
            for block in model:
                state = block(state)
            (state["hidden"].square().mean() + sum(state["seen"])).backward()
            assert len(state["seen"]) == 3
        found.append([parameter.grad.clone() for parameter in model.parameters()])
    assert all(torch.equal(*pair) for pair in zip(*found, strict=True))


def test_by_rows_within_packing_are_the_packed_rows() -> None:
    model = find("lora")(rank=2).prepare(llama(layers=2))
    inputs = texts(6, 12)
    lengths = torch.tensor([12, 7, 5, 6, 4, 11])
    mask = (torch.arange(12) < lengths.unsqueeze(1)).long()
    batch = Batch.of({"input_ids": inputs, "attention_mask": mask})
    found = []
    for technique in (None, Recompute(rows=2)):
        model.zero_grad()
        packing = find("packing")().seams(context(model)).modules
        by_rows = None if technique is None else technique.seams(context(model)).modules
        with packing(batch), nullcontext() if by_rows is None else by_rows(batch):
            outputs = model(**batch.data).logits * mask.unsqueeze(2)
            outputs.square().sum().backward()
        found.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
    assert error(*found) < ROUNDING


class Counting(nn.Module):
    """Its outputs depend on a statistic that each forward moves."""

    seen: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.norm = nn.Linear(8, 8), nn.BatchNorm1d(6)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, inputs: Tensor) -> Tensor:
        self.seen = self.seen + 1
        outputs: Tensor = self.norm(torch.tanh(self.layer(inputs) * self.seen))
        return outputs


def test_statistics_move_once_and_are_what_they_were_when_computed_again() -> None:
    torch.manual_seed(0)
    plain = nn.ModuleList([Counting()])
    changed = copy.deepcopy(plain)
    for model, context_of in ((plain, None), (changed, Recompute())):
        for _ in range(2):
            with nullcontext() if context_of is None else within(context_of, model, numbers(4)):
                hidden = model[0](model[0](numbers(4)))  # at two places
                hidden.square().sum().backward()
    assert float(changed[0].seen) == 4
    assert not problems.differences(plain.state_dict(), changed.state_dict())
    for one, other in zip(plain.parameters(), changed.parameters(), strict=True):
        assert torch.equal(one.grad, other.grad)


def test_blocks_whose_inputs_need_no_gradient_learn() -> None:
    for technique in (Recompute(), Recompute(keep=("matmul",)), Recompute(rows=2)):
        model, inputs = find("lora")(rank=2, targets=("q_proj",)).prepare(llama()), texts(4)
        assert not model.get_input_embeddings().weight.requires_grad
        plain = gradients(model, inputs, None)
        assert len(plain) == 8
        assert error(gradients(model, inputs, technique), plain) < ROUNDING


def test_beside_weight_streaming_frozen_blocks_come_once_more() -> None:
    problem = problems.gpt2(())
    adapters = find("lora")(rank=2)
    streaming = find("weight_streaming").example()
    for technique in (Recompute(), Recompute(rows=1)):
        plain, changed = (
            problems.make_step(problem, given) for given in ((adapters,), (adapters, streaming, technique))
        )
        for window in problem.windows():
            plain(window), changed(window)
        assert problems.relative_error(problems.weights(changed), problems.weights(plain)) < 1e-10


def test_models_of_transformers_fill_no_cache_meanwhile() -> None:
    model, inputs = llama(), texts(2)
    assert model.config.use_cache
    with within(Recompute(), model, inputs):
        assert model(inputs).past_key_values is None
    assert model.config.use_cache and model(inputs).past_key_values is not None
    with (
        pytest.raises(SettingError, match="'model.layers.0' is given a DynamicCache"),
        within(Recompute(), model, inputs),
    ):
        model(inputs, use_cache=True)


def test_without_gradient_blocks_run_plainly() -> None:
    model, inputs = llama(), texts(2)
    with torch.no_grad(), within(Recompute(rows=1), model, inputs):
        assert "forward" not in vars(model.model.layers[0])
        assert model(inputs).past_key_values is not None
    with within(Recompute(rows=1), model, inputs), torch.no_grad():
        assert not outputs_of(model, inputs).requires_grad


def test_nothing_is_left_in_the_model() -> None:
    model, inputs = llama(), texts(4)
    before = {name: set(vars(module)) for name, module in model.named_modules()}
    for technique in (*EXACT, Recompute(rows=1)):
        gradients(model, inputs, technique)
    assert {name: set(vars(module)) for name, module in model.named_modules()} == before
    copy.deepcopy(model)


def test_hooks_of_a_block_run_once() -> None:
    model, inputs = Tower(), numbers(4)
    ran: list[int] = []
    model.blocks[1].register_forward_hook(lambda *_: ran.append(1))
    with recomputing(model.blocks[:3]):
        model(inputs).sum().backward()
    assert ran == [1]


def test_patterns_take_the_outermost_modules_that_match() -> None:
    model, inputs = llama(layers=2), texts(2)
    for patterns, replaced in ((("layers.*",), {"0", "1"}), (("layers.1",), {"1"}), (("mlp",), set())):
        with within(Recompute(blocks=patterns), model, inputs):
            changed = {name for name, module in model.named_modules() if "forward" in vars(module)}
        expected = {f"model.layers.{place}" for place in replaced}
        assert changed == (expected or {f"model.layers.{place}.mlp" for place in range(2)})
    with pytest.raises(
        SettingError,
        match=r"blocks: 'model.layers' is a list of modules. Name its entries: 'model.layers.\*'",
    ):
        Recompute(blocks=("layers",)).prepare(model)


def test_impossible_settings_are_refused() -> None:
    refuses(Recompute, rows=0)
    refuses(Recompute, inputs_every=0)
    with pytest.raises(
        SettingError, match=r"recompute.inputs_every: got 2 without rows, .*Add rows, such as rows: 1"
    ):
        Recompute(inputs_every=2)
    with pytest.raises(SettingError, match=r"recompute.rows: cannot be given beside budget"):
        Recompute(budget="1GiB", rows=2)
    assert Recompute(budget=2**30).budget == 2**30
    with pytest.raises(SettingError, match=r"recompute.budget: '0' .* positive number, alone or with a unit"):
        Recompute(budget=0)
    with pytest.raises(SettingError, match=r"recompute.budget: 'much' cannot be read"):
        Recompute(budget="much")
    with pytest.raises(SettingError, match=r"recompute.keep: there is no 'matmull'. Did you mean 'matmul'"):
        Recompute(keep=("matmull",)).seams(context(llama()))
    with pytest.raises(SettingError, match="Linear is one module without parts"):
        Recompute().prepare(nn.Linear(2, 2))


def test_what_is_kept_is_known_where_torch_asks_before_it_is_computed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As torch 2.11 does: the outputs are noted beside the operation, so that writing over them is refused there too."""
    monkeypatch.setattr(recompute, "_TELLS_OUTPUTS", False)
    saved = recompute._SavedOutputs()
    decide = policy(("matmul",), "block", saved)
    first, again = (SimpleNamespace(is_recompute=each) for each in (False, True))
    one, product = torch.ones(2, 2), torch.ops.aten.mm.default
    with saved:
        assert decide(first, product, one, one) is CheckpointPolicy.MUST_SAVE
        outputs = torch.mm(one, one)
        other = outputs.sin()
    add = torch.ops.aten.add_.Tensor
    assert decide(first, add, other, one) is CheckpointPolicy.PREFER_RECOMPUTE
    assert decide(again, add, outputs, one) is CheckpointPolicy.PREFER_RECOMPUTE, (
        "it was looked at in forward"
    )
    with pytest.raises(
        SettingError, match="recompute.keep: 'block' writes over an output that was to be kept, by 'add_'"
    ):
        decide(first, add, outputs, one)
