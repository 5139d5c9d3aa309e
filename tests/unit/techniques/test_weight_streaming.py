from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.checkpoint import checkpoint

from snugfit.core.batch import Batch
from snugfit.core.job import Job, Plan
from snugfit.core.technique import Technique
from snugfit.errors import SettingError, SnugfitWarning
from snugfit.kit.placement import place_
from snugfit.kit.streaming import host, weight_stream
from snugfit.kit.streaming.weight_stream import WeightStream, blocks_of, spread
from snugfit.models.in_parts import read_in_formats
from snugfit.step import build
from snugfit.step.step import Step
from snugfit.techniques import find
from snugfit.techniques.placement import weight_streaming
from snugfit.techniques.placement.weight_streaming import WeightStreaming, stream_weights
from tests.laws import problems
from tests.laws.test_dry_run import fake_batch, fake_step
from tests.unit.techniques.live_memory import counting
from tests.unit.techniques.settings import context, refuses

LAYERS = 5
WIDTH = 16
ROWS = 4


class Block(nn.Module):
    """A residual block of somebody's own: frozen weights of several kinds and layouts, and one that trains."""

    def __init__(self, train: bool = True) -> None:
        super().__init__()
        self.up = nn.Linear(WIDTH, 2 * WIDTH)
        self.down = nn.Linear(2 * WIDTH, WIDTH)
        self.down.weight = nn.Parameter(self.down.weight.detach().t().contiguous().t())
        self.scale = nn.Parameter(torch.rand(WIDTH))
        self.norm = nn.LayerNorm(WIDTH)
        self.dropout = nn.Dropout(0.2)
        self.requires_grad_(False)
        self.gate = nn.Parameter(torch.rand(WIDTH), requires_grad=train)

    def forward(self, hidden: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        inner = self.dropout(self.down(torch.tanh(self.up(self.norm(hidden)))))
        return hidden + inner * self.scale * self.gate, {"inner": inner}


class Own(nn.Module):
    """Somebody's own chain of blocks."""

    def __init__(self, again: bool | None = None, layers: int = LAYERS) -> None:
        super().__init__()
        self.again = again
        self.stem = nn.Linear(WIDTH, WIDTH)
        self.blocks = nn.ModuleList([Block() for _ in range(layers)])
        self.head = nn.Linear(WIDTH, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.stem(inputs)
        for block in self.blocks:
            if self.again is None:
                hidden, extra = block(hidden)
                hidden = hidden + 0.1 * extra["inner"]
            else:
                hidden = checkpoint(
                    lambda given, block=block: block(given)[0], hidden, use_reentrant=self.again
                )
        logits: Tensor = self.head(hidden)
        return logits


def own(again: bool | None = None) -> Own:
    torch.manual_seed(3)
    return Own(again)


def stock_llama() -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(3)
    config = LlamaConfig(
        vocab_size=32,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=LAYERS,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=32,
        attention_dropout=0.1,
    )
    return LlamaForCausalLM(config)


def llama(kind: str = "plain") -> nn.Module:
    """A stock causal language model with adapters in each layer; `nf4`: bitsandbytes has quantised its linear layers."""
    model: Any = stock_llama()
    if kind == "nf4":
        quantise_(model.model.layers)
    model = find("lora")(rank=2, dropout=0.1).prepare(model)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            nn.init.normal_(parameter)
    return model


def gpt2(kind: str = "plain") -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(3)
    config = GPT2Config(vocab_size=32, n_positions=32, n_embd=32, n_layer=LAYERS, n_head=4)
    return find("lora")(rank=2).prepare(GPT2LMHeadModel(config))


def quantise_(module: nn.Module) -> None:
    bitsandbytes: Any = pytest.importorskip("bitsandbytes")
    for parent in list(module.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is nn.Linear:
                quantised = bitsandbytes.nn.Linear4bit(
                    child.in_features, child.out_features, bias=False, quant_type="nf4"
                )
                quantised.weight.data = child.weight.data
                setattr(parent, name, quantised.to("cpu"))


def tokens() -> dict[str, Tensor]:
    drawn = torch.randint(0, 32, (ROWS, 9), generator=torch.Generator().manual_seed(5))
    return {"input_ids": drawn, "labels": drawn}


def numbers() -> tuple[Tensor, Tensor]:
    source = torch.Generator().manual_seed(5)
    return torch.randn(ROWS, WIDTH, generator=source), torch.randint(0, 3, (ROWS,), generator=source)


def trained(
    model: nn.Module, techniques: Sequence[Technique] = (), updates: int = 3, micro_batch: int | None = 2
) -> tuple[list[float], dict[str, Tensor], Step]:
    """Losses, trained weights, and the step."""
    step = Step(
        model,
        find("sgd")(learning_rate=0.1),
        "causal_lm" if hasattr(model, "config") else "cross_entropy",
        techniques,
        micro_batch=micro_batch,
        total_updates=updates,
    )
    batch: Any = tokens() if hasattr(model, "config") else numbers()
    start = problems.weights(step)
    losses = [step(batch).loss for _ in range(updates)]
    weights = problems.weights(step)
    assert any(not torch.equal(weights[name], start[name]) for name in weights), "nothing was learned"
    return losses, weights, step


def same(make: Callable[[], nn.Module], *others: Technique, streaming: WeightStreaming | None = None) -> None:
    """The run with streaming is the run without it, bit for bit."""
    losses, weights, _ = trained(make(), others)
    found_losses, found, _ = trained(make(), (*others, streaming or WeightStreaming()))
    assert found_losses == losses
    assert not [name for name, weight in weights.items() if not torch.equal(found[name], weight)]


def one_pass(model: nn.Module, given: WeightStream) -> int:
    """The copies of a forward and a backward."""
    before = given.copies
    with given.running():
        model(numbers()[0]).sum().backward()
    return given.copies - before


@pytest.mark.parametrize("again", [None, False, True])
def test_somebodys_own_module_trains_the_same_bit_for_bit(again: bool | None) -> None:
    same(lambda: own(again))


@pytest.mark.parametrize("again", [None, False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", [pytest.param("plain", marks=pytest.mark.slow), "nf4"])
def test_a_stock_llama_with_adapters_trains_the_same_bit_for_bit(kind: str, again: bool | None) -> None:
    def make() -> nn.Module:
        model: Any = llama(kind)
        if again is not None:
            model.gradient_checkpointing_enable({"use_reentrant": again})
            model.enable_input_require_grads()
        return model

    same(make)


COMPANIONS = [
    ["bf16"],
    ["sam", "hard_examples"],
    ["ema", "clip_norm"],
    ["activation_offload"],
    ["recompute"],
    ["recompute", "activation_offload", "bf16"],
]


@pytest.mark.slow
@pytest.mark.parametrize("names", COMPANIONS, ids="+".join)
@pytest.mark.parametrize("make", [llama, gpt2])
def test_it_does_so_beside_other_techniques(make: Callable[[], nn.Module], names: list[str]) -> None:
    same(make, *problems.find_examples(*names))


@pytest.mark.slow
@pytest.mark.parametrize("names", [["nf4"], ["int8"], ["nf4", "recompute", "bf16"]], ids="+".join)
def test_a_base_that_is_quantised_on_the_way_trains_the_same_bit_for_bit(names: list[str]) -> None:
    techniques = [find(name)() for name in names]
    same(stock_llama, *techniques, find("lora")(rank=2, dropout=0.1))


def test_layers_of_a_stock_gpt2_in_16_bit_train_the_same_bit_for_bit() -> None:
    def make() -> nn.Module:
        model = gpt2()
        for parameter in model.parameters():
            if not parameter.requires_grad:
                parameter.data = parameter.data.bfloat16()
        return model

    same(make, find("bf16")())


@pytest.mark.parametrize(
    "problem", [problems.reader, problems.bert, problems.gpt2, problems.viewer, problems.vit]
)
@pytest.mark.parametrize("micro_batch", [None, 3])
def test_the_law_holds_where_the_matrices_of_a_model_are_frozen(
    problem: problems.Maker, micro_batch: int | None
) -> None:
    stock = problem(())

    def frozen(dropout: float) -> nn.Module:
        model = stock.make_model(dropout)
        for parameter in model.parameters():
            parameter.requires_grad_(parameter.ndim < 2)
        return model

    given = replace(stock, make_model=frozen)
    plain = problems.make_step(given, (), micro_batch=micro_batch, dropout=0.2)
    streamed = problems.make_step(given, (WeightStreaming(),), micro_batch=micro_batch, dropout=0.2)
    for window in given.windows():
        assert plain(window).loss == streamed(window).loss
    expected, found = problems.weights(plain), problems.weights(streamed)
    assert not [name for name in expected if not torch.equal(expected[name], found[name])]


def test_a_micro_step_takes_two_copies_less_than_two_a_layer_and_then_two_less_again() -> None:
    model = own()
    given = stream_weights(model, "cpu")
    assert one_pass(model, given) == 2 * LAYERS - 2
    # the first two are in the slots since the last backward
    assert [one_pass(model, given) for _ in range(2)] == [2 * LAYERS - 4] * 2


@pytest.mark.parametrize("again", [None, False, True])
def test_every_block_but_the_very_first_is_on_its_way_before_it_is_used(
    again: bool | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = own(again)
    given = stream_weights(model, "cpu")
    use, late = given._use, []

    def seen(place: int, backward: bool) -> None:
        if given._slots[place % 2].holds != place:
            late.append((place, backward))
        use(place, backward=backward)

    monkeypatch.setattr(given, "_use", seen)
    one_pass(model, given)
    assert late == [(0, False)]
    one_pass(model, given)
    assert late == [(0, False)]


@pytest.mark.parametrize("again", [False, True])
def test_recompute_and_backward_share_one_copy(again: bool) -> None:
    model = own(again)
    given = stream_weights(model, "cpu")
    assert [one_pass(model, given) for _ in range(2)] == [2 * LAYERS - 2, 2 * LAYERS - 4]


def test_a_block_that_computes_some_rows_at_a_time_takes_no_further_copies() -> None:
    """The trap: the second part of a block looks like a backward, and what it would fetch throws out the next block."""
    frozen = [nn.Linear(WIDTH, WIDTH).requires_grad_(False) for _ in range(LAYERS)]
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), *frozen)
    given = stream_weights(model, "cpu")
    by_rows = find("recompute")(rows=1).seams(context(model)).modules
    assert by_rows is not None
    copies = []
    for _ in range(2):
        with given.running(), by_rows(Batch.of(numbers())):
            copies.append(one_pass(model, given))
    assert copies == [2 * LAYERS - 2, 2 * LAYERS - 4]


def test_without_backward_a_pass_takes_a_copy_a_layer() -> None:
    model = own()
    given = stream_weights(model, "cpu")
    with torch.inference_mode(), given.running():
        model(numbers()[0])
    assert given.copies == LAYERS
    assert one_pass(model, given) == 2 * LAYERS - 2, "and what it laid out can be trained with"


def test_resident_layers_are_spread_and_take_no_copies() -> None:
    model = own()
    given = stream_weights(model, "cpu", resident=2)
    assert one_pass(model, given) == 2 * (LAYERS - 2) - 2
    assert given.streamed == ("blocks.0", "blocks.2", "blocks.4")
    everything = stream_weights(model, "cpu", resident=99)
    assert one_pass(model, everything) == 0 == everything.slot_bytes
    same(own, streaming=WeightStreaming(resident=2))


def test_spare_memory_is_looked_at_after_some_micro_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    model = own()
    given = stream_weights(model, "cpu", resident="auto")
    for _ in range(weight_stream.MEASURED):
        one_pass(model, given)
    assert len(given.streamed) == LAYERS
    room = 3 * given.slot_bytes // 2 + 1
    assert weight_stream.spare_device_bytes(torch.device("cpu")) == 0
    monkeypatch.setattr(weight_stream, "spare_device_bytes", lambda device: room)
    one_pass(model, given)
    assert len(given.streamed) == LAYERS - 3


@pytest.mark.parametrize(
    ("free", "fraction", "spare"),
    [
        (900, 1.0, 600),  # nobody else is there: 1,000 less 300 at the peak and the reserve
        (400, 1.0, 200),  # another process has 400
        (900, 0.5, 150),  # this one may have half of the device, and a tenth of that is left
        (100, 1.0, 0),
    ],
)
def test_spare_memory_is_what_is_free_beside_others_and_beside_ones_own_peak(
    free: int, fraction: float, spare: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free, 1000))
    monkeypatch.setattr(torch.cuda, "get_per_process_memory_fraction", lambda device: fraction)
    monkeypatch.setattr(torch.cuda, "max_memory_reserved", lambda device: 300)
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 200)
    assert weight_stream.spare_device_bytes(torch.device("cuda")) == spare


def test_host_memory_has_one_block_twice_at_most_while_some_become_resident(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = own()
    given = stream_weights(model, "cpu", resident="auto")
    with counting() as live:
        for _ in range(weight_stream.MEASURED):
            one_pass(model, given)
        packed, slots = given.host_bytes, given.slot_bytes
        live_bytes = live.now()
        assert packed + slots <= live_bytes
        monkeypatch.setattr(weight_stream, "spare_device_bytes", lambda device: slots // 2)
        live.peak = 0
        with torch.inference_mode(False):
            given._prepare()
        assert len(given.streamed) == LAYERS - 1, "they were laid out anew"
        # the slots are made anew too, when the old ones have gone
        assert live.peak <= live_bytes + packed // LAYERS


def test_a_plan_has_room_on_the_host_for_the_moment_in_which_blocks_are_laid_out_anew() -> None:
    """While one block comes to new memory, its old one is there beside all others: as when they were laid out at first."""
    with FakeTensorMode(), counting() as live:
        model = own()
        before = live.now()
        given = stream_weights(model, "cpu", resident="auto")
        with torch.inference_mode(False):
            given._prepare()
        block = given.host_bytes // LAYERS
        assert live.peak >= before + block


def test_on_the_device_are_never_more_than_two_blocks() -> None:
    model = own()
    given = stream_weights(model, "cpu")
    most = 0

    def count(module: nn.Module, *_: Any) -> None:
        nonlocal most
        slots = {slot.memory.untyped_storage().data_ptr() for slot in given._slots}
        inside = [block.up.weight.untyped_storage().data_ptr() in slots for block in model.blocks]
        assert module.up.weight.untyped_storage().data_ptr() in slots
        most = max(most, sum(inside))

    for block in model.blocks:
        block.up.register_forward_hook(lambda *_, block=block: count(block))
        block.gate.register_hook(lambda gradient, block=block: count(block))
    for _ in range(2):
        one_pass(model, given)
    assert most == 2
    frozen = sum(p.nbytes for p in model.blocks[0].parameters() if not p.requires_grad)
    assert frozen <= given.slot_bytes / 2 <= frozen + 256 * 7
    assert given.host_bytes == LAYERS * given.slot_bytes // 2


def test_weights_are_on_a_device_that_is_not_the_host_only_while_they_are_used() -> None:
    """The meta device computes nothing, and refuses to mix with the host."""
    model = own()
    place_(model, "meta", WeightStreaming().stays(model))
    for block in model.blocks:
        block.gate = nn.Parameter(torch.empty(WIDTH, device="meta"))
    inputs = torch.empty(ROWS, WIDTH, device="meta")
    with pytest.raises(RuntimeError, match="device"):
        model(inputs)
    given = stream_weights(model, "meta")
    with given.running():
        model(inputs).sum().backward()
    assert {p.device.type for p in model.parameters() if p.requires_grad} == {"meta"}
    assert {p.grad.device.type for p in model.parameters() if p.grad is not None} == {"meta"}
    assert {p.device.type for p in model.parameters() if not p.requires_grad} == {"cpu"}


def test_outside_of_the_context_the_model_is_what_it_was(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    plain, model = llama("nf4"), llama("nf4")
    _, _, step = trained(model, (WeightStreaming(),))
    expected = {name: tensor for name, tensor in plain.state_dict().items() if "lora" not in name}
    found = {name: tensor for name, tensor in model.state_dict().items() if "lora" not in name}
    assert list(found) == list(expected)
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())
    save_file(found, tmp_path / "weights.safetensors")
    read = load_file(tmp_path / "weights.safetensors")
    assert all(torch.equal(read[name], tensor) for name, tensor in expected.items())
    twin = copy.deepcopy(model).eval()
    batch = {name: value for name, value in tokens().items() if name != "labels"}
    with torch.no_grad(), step.seams.forward(Batch.of(tokens())):
        inside = model.eval()(**batch).logits
    with torch.no_grad():
        assert torch.equal(twin(**batch).logits, inside)
        assert torch.equal(model(**batch).logits, inside)


def test_merged_and_saved_it_is_the_stock_model_that_was_trained(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    stock = gpt2()
    trained(stock, (WeightStreaming(),))
    merged = find("lora")(rank=2).seams(context(stock)).export
    assert merged is not None
    delivered: Any = merged(stock)
    delivered.save_pretrained(tmp_path / "saved")
    batch = {"input_ids": tokens()["input_ids"]}
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "saved").eval()
    assert torch.equal(again(**batch).logits, delivered.eval()(**batch).logits)


def test_evaluation_between_updates_changes_nothing() -> None:
    _, plain, _ = trained(llama(), updates=2)
    model = llama()
    step = Step(
        model,
        find("sgd")(learning_rate=0.1),
        "causal_lm",
        [WeightStreaming()],
        micro_batch=2,
        total_updates=2,
    )
    for _ in range(2):
        with torch.no_grad(), step.seams.forward(Batch.of(tokens())):
            model.eval()(**tokens())
        step(tokens())
    assert all(torch.equal(weight, plain[name]) for name, weight in model.named_parameters())


def test_backward_outside_of_the_context_is_refused() -> None:
    model = own()
    with stream_weights(model, "cpu").running():
        loss = model(numbers()[0]).sum()
    with pytest.raises(
        SettingError, match="backward came after the context of its forward.* Call backward within"
    ):
        loss.backward()


class Wrapped:
    """An object whose tensor nobody sees."""

    def __init__(self, hidden: Tensor) -> None:
        self.hidden = hidden


class Hiding(Own):
    def forward(self, inputs: Tensor) -> Tensor:
        wrapped = Wrapped(self.stem(inputs))
        for block in self.blocks:
            wrapped = block(wrapped)
        logits: Tensor = self.head(wrapped.hidden)
        return logits


class HidingBlock(Block):
    def forward(self, wrapped: Any) -> Any:
        return Wrapped(super().forward(wrapped.hidden)[0])


class AsideBlock(Block):
    def forward(self, hidden: Tensor) -> Any:
        self.aside, _ = super().forward(hidden)
        return hidden.detach()


@pytest.mark.parametrize(("kind", "train"), [(HidingBlock, True), (HidingBlock, False), (AsideBlock, False)])
def test_a_block_that_a_gradient_would_enter_unseen_is_refused_by_name(kind: Any, train: bool) -> None:
    model = (Hiding if kind is HidingBlock else Own)()
    model.blocks = nn.ModuleList([kind(train) for _ in range(LAYERS)])
    given = stream_weights(model, "cpu")
    with (
        pytest.raises(
            SettingError, match=r"weight_streaming\.blocks: 'blocks\.0' returns a (Wrapped|Tensor)"
        ),
        given.running(),
    ):
        model(numbers()[0]) if kind is HidingBlock else model.blocks[0](numbers()[0].requires_grad_())
    if kind is HidingBlock:
        with torch.no_grad(), given.running():
            assert model(numbers()[0]).shape == (ROWS, 3)


def test_part_of_a_block_that_is_called_by_itself_has_its_own_weights() -> None:
    class Borrowing(Own):
        def forward(self, inputs: Tensor) -> Tensor:
            hidden = self.stem(inputs)
            for block in self.blocks:
                hidden, _ = block(hidden)
            hidden = hidden + self.blocks[-1].up(hidden)[:, :WIDTH]  # lies in a slot until here
            for block in self.blocks[:3]:
                hidden, _ = block(hidden)
            logits: Tensor = self.head(hidden)
            return logits

    def make() -> nn.Module:
        torch.manual_seed(3)
        return Borrowing()

    same(make)


def test_an_error_in_the_model_leaves_its_weights_in_place() -> None:
    model = own()
    given = stream_weights(model, "cpu")
    held = list(model.parameters())
    with pytest.raises(RuntimeError, match="shapes"), given.running():
        model(torch.zeros(2, WIDTH + 1))
    with pytest.raises(RuntimeError, match="scalar"), given.running():
        model(numbers()[0]).backward()
    assert all(one is other for one, other in zip(held, model.parameters(), strict=True))
    assert all("forward" not in vars(block) for block in model.blocks)


@pytest.mark.parametrize("how", ["in place", "other memory", "other type"])
def test_weights_that_were_replaced_meanwhile_are_the_ones_that_count(how: str) -> None:
    model, plain = own().eval(), own().eval()
    given = stream_weights(model, "cpu")
    one_pass(model, given)
    for each in (model, plain):
        weight = each.blocks[0].up.weight
        if how == "in place":
            with torch.no_grad():
                weight.mul_(2)
        elif how == "other memory":
            weight.data = weight.data * 2
        else:
            each.double()
    inputs = numbers()[0].to(plain.stem.weight.dtype)
    with given.running():
        found = model(inputs)
    assert torch.equal(found, plain(inputs))


def test_a_weight_that_begins_to_train_stays_on_the_device() -> None:
    model, plain = own().eval(), own().eval()
    given = stream_weights(model, "cpu")
    one_pass(model, given)
    before = given.host_bytes
    for each in (model, plain):
        each.blocks[-1].up.requires_grad_(True)
        each.zero_grad()
    one_pass(model, given)
    plain(numbers()[0]).sum().backward()
    assert given.host_bytes < before
    assert torch.equal(model.blocks[-1].up.weight.grad, plain.blocks[-1].up.weight.grad)


def test_two_forwards_before_one_backward_give_the_same_gradient() -> None:
    model, plain = own().eval(), own().eval()
    inputs = numbers()[0]
    given = stream_weights(model, "cpu")
    with given.running():
        (model(inputs).sum() * model(2 * inputs).sum()).backward()
    (plain(inputs).sum() * plain(2 * inputs).sum()).backward()
    for one, other in zip(model.parameters(), plain.parameters(), strict=True):
        assert one.grad is other.grad is None or torch.equal(one.grad, other.grad)


@pytest.mark.slow
def test_from_a_disk_it_trains_the_same_and_the_files_are_safetensors(tmp_path: Path) -> None:
    from safetensors import safe_open

    folder = tmp_path / "weights"
    same(lambda: llama("nf4"), streaming=WeightStreaming(folder=str(folder)))
    files = sorted(folder.iterdir())
    assert [file.name for file in files] == [f"model.layers.{n}.safetensors" for n in range(LAYERS)]
    expected = dict(llama("nf4").named_parameters())
    with safe_open(files[1], framework="pt") as opened:
        names = {name for name in opened.keys() if not name.startswith("gap.")}  # noqa: SIM118
        own_names = names & set(expected)
        assert len(own_names) == 9
        assert all(torch.equal(opened.get_tensor(name), expected[name].data) for name in own_names)
        assert any(name.endswith(".state2.absmax") for name in names - own_names)


def test_a_layout_that_is_not_contiguous_goes_through_a_file_too(tmp_path: Path) -> None:
    model = own()
    given = stream_weights(model, "cpu", folder=str(tmp_path))
    one_pass(model, given)
    assert model.blocks[0].down.weight.stride() == (1, WIDTH)
    from safetensors.torch import load_file

    assert load_file(tmp_path / "blocks.0.safetensors")["blocks.0.down.weight"].shape == (8 * WIDTH * WIDTH,)


def test_a_host_that_is_too_small_is_refused_with_both_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "available_bytes", lambda device: 1024)
    with pytest.raises(
        SettingError, match=r"host memory is too small.* take 4\.\d\d KiB, and 1\.00 KiB are free"
    ):
        one_pass(model := own(), stream_weights(model, "cpu"))
    monkeypatch.setattr(host, "available_bytes", lambda device: None)
    one_pass(model, stream_weights(model, "cpu"))


def test_a_disk_that_is_too_small_or_no_folder_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SettingError, match=r"weight_streaming\.folder: '.*file' cannot be made"):
        one_pass(model := own(), stream_weights(model, "cpu", folder=str(tmp_path / "file")))
    monkeypatch.setattr(host.shutil, "disk_usage", lambda folder: type("Usage", (), {"free": 2048}))
    with pytest.raises(SettingError, match=r"is too small: .* take 2\d\.\d\d KiB, and 2\.00 KiB are free"):
        one_pass(model, stream_weights(model, "cpu", folder=str(tmp_path)))


def test_what_several_blocks_or_the_rest_of_the_model_hold_stays_on_the_device() -> None:
    model = own()
    model.blocks[1].up.weight = model.blocks[0].up.weight
    model.outside = model.blocks[2].scale
    given = stream_weights(model, "cpu")
    one_pass(model, given)
    inside = [weight.name for packed in given._packed.values() for weight in packed.weights]
    assert not {"blocks.0.up.weight", "blocks.1.up.weight", "blocks.2.scale", "outside"} & set(inside)
    assert "blocks.1.scale" in inside


def test_one_weight_at_two_places_of_a_block_is_one_copy_and_both_places_have_it() -> None:
    def make() -> Own:
        model = own()
        for block in model.blocks:
            block.shift = nn.Linear(WIDTH, WIDTH)
            block.shift.weight = nn.Parameter(torch.rand(WIDTH, WIDTH), requires_grad=False)
            block.shift.bias = block.scale
        return model

    same(make)


def test_a_weight_of_an_unknown_format_is_refused_by_name() -> None:
    class Special(nn.Parameter):
        """Keeps something beside its data."""

    model = own()
    model.blocks[1].up.weight = Special(torch.ones(2 * WIDTH, WIDTH), requires_grad=False)
    with pytest.raises(SettingError, match=r"'blocks\.1\.up\.weight' is Special, .* or leave the block out"):
        one_pass(model, stream_weights(model, "cpu"))


def test_patterns_choose_the_blocks_and_of_nested_ones_the_outer() -> None:
    model = own()
    assert list(blocks_of(model, ["blocks.1", "blocks.1.*", "blocks.3"])) == ["blocks.1", "blocks.3"]
    with pytest.raises(SettingError, match=r"weight_streaming\.blocks: 'blcks' matches no module.*'blocks'"):
        blocks_of(model, ["blcks"])
    same(own, streaming=WeightStreaming(blocks=("stem", "blocks.3", "blocks.1")))


def test_a_model_without_frozen_weights_is_told_that_nothing_is_streamed() -> None:
    model = own().requires_grad_(True)
    with pytest.warns(SnugfitWarning, match=r"does nothing, as no block holds a frozen weight"):
        trained(model, [WeightStreaming()], updates=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trained(own(), [WeightStreaming(resident=99)], updates=1)


def test_the_time_of_copies_is_measured() -> None:
    model = own()
    given = stream_weights(model, "cpu", timed=True)
    one_pass(model, given)
    assert given.seconds() > 0
    assert given.copied_bytes == given.copies * given.slot_bytes // 2


def test_resident_layers_are_evenly_spread() -> None:
    assert [sorted(spread(count, 8)) for count in (0, 1, 4, 8)] == [[], [4], [1, 3, 5, 7], list(range(8))]


@pytest.mark.parametrize("resident", [-1, "all", 1.5])
def test_an_impossible_number_of_resident_blocks_is_refused(resident: Any) -> None:
    refuses(WeightStreaming, resident=resident)


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="needs Linux")
def test_weights_of_blocks_are_in_files_as_soon_as_they_are_read(tmp_path: Path) -> None:
    from transformers import LlamaForCausalLM

    folder, saved = tmp_path / "weights", stock_llama()
    saved.save_pretrained(tmp_path / "model")
    with read_in_formats([WeightStreaming(folder=str(folder))]):
        read = LlamaForCausalLM.from_pretrained(tmp_path / "model", dtype=torch.float32)
    maps = [line.split(maxsplit=5) for line in Path("/proc/self/maps").read_text().splitlines()]
    ranges = [[int(end, 16) for end in each[0].split("-")] for each in maps if str(folder) in each[-1]]
    for (name, weight), own in zip(read.named_parameters(), saved.parameters(), strict=True):
        in_folder = any(start <= weight.data_ptr() < end for start, end in ranges)
        assert in_folder == (".layers." in name) and torch.equal(weight, own), name
    assert list(folder.iterdir()) == [], "files without a name, which end with what is in them"


def test_a_weight_is_written_once_as_it_is_read_and_so_are_the_parts_of_experts_in_few_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[Tensor] = []
    monkeypatch.setattr(
        weight_streaming, "in_file", lambda tensor, _: written.append(tensor) or tensor.detach().clone()
    )
    technique, model = WeightStreaming(folder=str(tmp_path)), own()
    names = [name for name, _ in model.named_parameters()]
    del model.blocks[0].scale
    parts = nn.ParameterList([torch.ones(2), torch.ones(3)])
    model.blocks[0].add_module("scale", parts)  # as quantised experts stand in the place of their weight
    for name in names:
        technique.read(model, name)
    assert sorted(map(id, written)) == sorted(map(id, model.blocks.parameters()))


@pytest.mark.parametrize("folder", [None, "never-made"])
def test_a_dry_run_streams_weights_without_numbers_and_writes_no_files(folder: str | None) -> None:
    techniques = (find("lora")(rank=2), WeightStreaming(folder=folder))
    problem = problems.reader(techniques)
    window = problem.windows(torch.float32)[0]
    with FakeTensorMode() as mode:
        assert fake_step(problem, techniques)(fake_batch(window, mode)).applied
    assert not Path("never-made").exists()


def test_a_run_moves_all_but_the_blocks_to_its_device(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[str, list[str]]] = []

    def place(model: nn.Module, device: str, staying: Sequence[str]) -> nn.Module:
        seen.append((device, list(staying)))
        return model

    monkeypatch.setattr(build, "place_", place)
    material = build.Material(own(), [numbers()] * 4, None, "cross_entropy")
    step = build.make_step(
        Job.of(global_batch=2), Plan(), material, find("sgd")(learning_rate=0.1), [WeightStreaming()]
    )
    assert seen == [("cpu", [f"blocks.{place}" for place in range(LAYERS)])]
    assert step.device == torch.device("cpu")


def test_a_step_runs_where_it_is_told_and_else_where_its_first_parameter_is() -> None:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    assert Step(model, optimizer).device.type == "cpu"
    assert Step(model, optimizer, device="meta").device.type == "meta"


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("folder", [False, True])
def test_on_cuda_it_trains_as_resident_and_holds_two_layers(folder: bool, tmp_path: Path) -> None:
    resident = own().cuda()
    model = place_(own(), "cuda", WeightStreaming().stays(own()))
    given = stream_weights(model, "cuda", folder=str(tmp_path) if folder else None, timed=True)
    inputs = numbers()[0].cuda()
    for _ in range(3):
        torch.manual_seed(0)
        resident(inputs).sum().backward()
        torch.manual_seed(0)
        with given.running():
            model(inputs).sum().backward()
    for one, other in zip(model.parameters(), resident.parameters(), strict=True):
        assert one.grad is other.grad is None or torch.equal(one.grad, other.grad)
    assert {p.device.type for p in model.blocks.parameters() if not p.requires_grad} == {"cpu"}
    assert given.seconds() > 0
