from __future__ import annotations

from collections.abc import Callable
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.graph import save_on_cpu
from torch.utils.checkpoint import checkpoint

from snugfit.core.batch import Batch
from snugfit.errors import SettingError
from snugfit.techniques import find
from snugfit.techniques.placement.activation_offload import AHEAD, ActivationOffload, Offload, offloaded
from tests.laws import problems
from tests.unit.techniques.live_memory import counting
from tests.unit.techniques.settings import context

KIB = 2**10


def llama() -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=32,
        hidden_size=32,
        intermediate_size=96,
        num_attention_heads=4,
        num_key_value_heads=4,
        num_hidden_layers=8,
        attention_dropout=0.3,
        use_cache=False,
    )
    return LlamaForCausalLM(config).train()


TEXTS = torch.randint(0, 32, (8, 16), generator=torch.Generator().manual_seed(0))
HIDDEN_BYTES = 8 * 16 * 32 * 4


def gradients(model: nn.Module, offload: Any) -> list[Tensor]:
    model.zero_grad()
    torch.manual_seed(7)
    with offload:
        loss = model(TEXTS).logits.square().sum()
    loss.backward()
    return [parameter.grad.clone() for parameter in model.parameters()]


@pytest.mark.parametrize("make", [problems.reader, problems.viewer, problems.normed, *problems.STOCK])
def test_a_step_trains_the_same_weights_bit_for_bit(make: problems.Maker) -> None:
    problem = make(())
    plain, changed = (
        problems.make_step(problem, given, micro_batch=3, dropout=0.3, dtype=torch.float32)
        for given in ((), (ActivationOffload(min_bytes=1),))
    )
    for window in problem.windows(torch.float32):
        assert plain(window).loss == changed(window).loss
    assert not problems.differences(plain.model.state_dict(), changed.model.state_dict())


def test_the_gradient_is_that_of_torchs_plain_version() -> None:
    model = llama()
    plain = gradients(model, nullcontext())
    for offload in (save_on_cpu(), offloaded("cpu", model.parameters(), 1)):
        assert all(torch.equal(*pair) for pair in zip(gradients(model, offload), plain, strict=True))


def test_between_forward_and_backward_activations_are_on_the_host_alone() -> None:
    model = llama()
    with counting() as plainly:
        loss = model(TEXTS).logits.square().sum()
        saved_bytes = plainly.now()
    with counting() as live, offloaded("cpu", [*model.parameters(), *model.buffers()], 1) as offload:
        loss = model(TEXTS).logits.square().sum()
        left = live.now() - offload.bytes
    assert offload.bytes > 0.9 * saved_bytes
    assert left < 0.02 * saved_bytes
    loss.backward()


def test_each_storage_is_copied_once_and_weights_and_views_of_them_never() -> None:
    layer = nn.Linear(16, 16)
    frozen = nn.Linear(16, 16).requires_grad_(False)
    inputs = torch.randn(4, 16, requires_grad=True)
    with offloaded("cpu", [*layer.parameters(), *frozen.parameters()], 1) as offload:
        hidden = torch.tanh(inputs)  # kept by tanh, by both layers, and as two views
        products = layer(hidden) + frozen(hidden) + hidden @ layer.weight.t()[:, :16]
        (hidden[:2] * hidden[2:] + products[:2]).sum().backward()
    assert offload.bytes == 4 * 16 * 4


def test_a_storage_that_was_changed_in_place_between_is_another() -> None:
    inputs = torch.ones(4, requires_grad=True)
    numbers = torch.full((4,), 2.0)
    with offloaded("cpu", (), 1) as offload:
        first = inputs * numbers
        numbers.mul_(5)  # torch itself would refuse the backward
        second = inputs * numbers
    assert offload.bytes == 2 * 16
    (first + second).sum().backward()
    assert torch.equal(inputs.grad, torch.full((4,), 12.0))


def test_parts_of_a_tensor_that_count_their_changes_each_for_itself_are_each_copied() -> None:
    """The gates of a recurrent cell: each is changed once in place, and kept before the next one is."""
    torch.manual_seed(0)
    cell, inputs = nn.LSTMCell(8, 16), torch.randn(4, 3, 8)
    found = []
    for offload in (nullcontext(), offloaded("cpu", cell.parameters(), 1)):
        cell.zero_grad()
        state = None
        with offload:
            for step in range(3):
                state = cell(inputs[:, step], state)
        state[0].square().sum().backward()
        found.append([parameter.grad.clone() for parameter in cell.parameters()])
    assert all(torch.equal(*pair) for pair in zip(*found, strict=True))


def test_what_is_smaller_than_min_bytes_stays() -> None:
    inputs = torch.randn(16, 16, requires_grad=True)
    small = torch.randn(16, requires_grad=True)
    with offloaded("cpu", (), KIB) as offload:
        loss = inputs.exp().sum() + small.exp().sum()
    assert offload.bytes == KIB
    loss.backward()
    assert torch.equal(inputs.grad, inputs.exp()) and torch.equal(small.grad, small.exp())


@pytest.mark.parametrize(
    "lay",
    [
        lambda x: x.t(),
        lambda x: x[1:, ::2],
        lambda x: x[:1].expand(5, -1),
        lambda x: x.to(torch.complex64),
        lambda x: torch.view_as_complex(x.view(4, 2, 2)).conj(),
        lambda x: x.to(torch.bfloat16).float(),
    ],
)
def test_sizes_strides_and_types_come_back_as_they_were(lay: Callable[[Tensor], Tensor]) -> None:
    saved = lay(torch.randn(4, 4))
    offload = Offload(torch.device("cpu"), (), 1)
    with offload.forward():
        packed = offload.pack(saved)
        found = offload.unpack(packed)
    assert torch.equal(found, saved) and found.stride() == saved.stride() and found.dtype == saved.dtype
    assert found.is_conj() == saved.is_conj()


def test_backward_may_come_twice_where_the_graph_is_kept() -> None:
    inputs = torch.randn(4, 4, requires_grad=True)
    with offloaded("cpu", (), 1):
        loss = inputs.exp().exp().sum()
    (once,) = torch.autograd.grad(loss, inputs, retain_graph=True)
    (twice,) = torch.autograd.grad(loss, inputs)
    assert torch.equal(once, twice)


def test_the_host_gives_the_memory_back_as_backward_goes() -> None:
    inputs = torch.randn(64, 64, requires_grad=True)
    with counting() as live:
        with offloaded("cpu", (), 1) as offload:
            hidden = inputs
            for _ in range(16):
                hidden = hidden.exp().tanh()
            loss = hidden.sum()
        del hidden
        assert live.now() >= offload.bytes
        loss.backward()
        live.peak = 0
        assert live.now() <= 2 * inputs.nbytes
    assert offload.bytes == 32 * inputs.nbytes


def test_with_recompute_only_the_inputs_of_blocks_travel() -> None:
    model = llama()
    offloading, again = ActivationOffload(min_bytes=1), find("recompute")()
    moved = []
    for techniques in ((offloading,), (again, offloading)):
        seams = [each.seams(context(model)) for each in techniques]
        batch = Batch.of(TEXTS)
        with seams[0].modules(batch) if seams[0].modules else nullcontext():
            assert seams[-1].forward is not None
            with seams[-1].forward(batch) as offload, counting() as live:
                loss = model(TEXTS).logits.square().sum()
                left = live.now() - offload.bytes
            loss.backward()
        moved.append(offload.bytes)
        assert left < HIDDEN_BYTES
    # eight inputs, the last norm and the head
    assert 8 * HIDDEN_BYTES < moved[1] < 13 * HIDDEN_BYTES < moved[0] / 10


def test_torchs_checkpoint_keeps_its_inputs_as_saved_tensors() -> None:
    """What the above rests on."""
    seen: list[Tensor] = []

    def pack(tensor: Tensor) -> Tensor:
        seen.append(tensor)
        return tensor

    inputs = torch.randn(3, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        checkpoint(lambda x: x.exp().exp(), inputs, use_reentrant=False)
    assert [tensor.data_ptr() for tensor in seen] == [inputs.data_ptr()]


class Recorded:
    """A stream that writes down what it is asked for, and computes at once."""

    def __init__(self, name: str, log: list[str]) -> None:
        self.name, self.log, self.events = name, log, 0

    def wait_stream(self, other: Recorded) -> None:
        self.log.append(f"{self.name} behind {other.name}")

    def wait_event(self, event: str) -> None:
        self.log.append(f"{self.name} waits for {event}")

    def record_event(self) -> str:
        self.events += 1
        return f"copy {self.events}"

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...


@contextmanager
def streams(offload: Offload) -> Any:
    log: list[str] = []
    main, side = Recorded("main", log), Recorded("side", log)
    offload._stream = side
    offload._current = lambda: main  # type: ignore[method-assign]
    yield SimpleNamespace(log=log, side=side)


def test_on_an_accelerator_few_copies_are_under_way_and_each_comes_before_it_is_needed() -> None:
    offload = Offload(torch.device("cpu"), (), 1)
    saved = [torch.full((4,), float(place)) for place in range(5)]
    with streams(offload) as made:
        with offload.forward():
            views = [offload.pack(tensor) for tensor in saved]
            assert len(offload._leaving) == AHEAD
        assert made.log == [
            *["side behind main"] * 3,
            "main waits for copy 1",
            "side behind main",
            "main waits for copy 2",
            "side behind main",
            "main waits for copy 3",
            "main waits for copy 4",
            "main waits for copy 5",
        ]
        made.log.clear()
        found = [offload.unpack(view) for view in reversed(views)]
        assert all(torch.equal(*pair) for pair in zip(found, reversed(saved), strict=True))
        # the last is asked for and waited for, and those before it are sent for already
        assert made.log[:4] == [
            "side behind main",
            "main waits for copy 6",
            "side behind main",
            "side behind main",
        ]
        assert made.log[4:6] == ["main waits for copy 7", "side behind main"]
        assert made.log.count("side behind main") == 5, "each comes back once"


def test_memory_of_what_is_sent_for_and_never_asked_for_is_given_back_behind_its_copy() -> None:
    """As where a part of the graph has no backward. Given back at once, what is computed next would be written over by the copy."""
    offload = Offload(torch.device("cpu"), (), 1)
    with streams(offload) as made:
        with offload.forward():
            views = [offload.pack(torch.full((4,), float(place))) for place in range(3)]
        offload.unpack(views[2])
        made.log.clear()
        del views[0]
        assert made.log == ["main waits for copy 6"]
        made.log.clear()
        offload.unpack(views[0])
        made.log.clear()
        views.clear()
        assert not made.log, "what was asked for has been waited for"


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_copies_that_come_late_change_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each copy of the side stream is delayed: whoever does not wait for one reads what is not there yet."""
    model = nn.Sequential(*(nn.Sequential(nn.Linear(512, 512), nn.GELU()) for _ in range(6))).cuda()
    inputs = torch.randn(2048, 512, device="cuda")
    behind, found = Offload._behind, []

    @contextmanager
    def late(offload: Offload) -> Any:
        with behind(offload):
            torch.cuda._sleep(20_000_000)
            yield

    for offload in (nullcontext(), offloaded("cuda", model.parameters(), 1)):
        model.zero_grad()
        with offload:
            loss = model(inputs).square().mean()
        loss.backward()
        found.append([parameter.grad.clone() for parameter in model.parameters()])
        monkeypatch.setattr(Offload, "_behind", late)
    assert all(torch.equal(*pair) for pair in zip(*found, strict=True))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu_the_gradient_is_the_same_and_memory_falls() -> None:
    model = nn.Sequential(*(nn.Sequential(nn.Linear(1024, 1024), nn.GELU()) for _ in range(16))).cuda()
    inputs = torch.randn(8192, 1024, device="cuda")
    saved_bytes, found = [], []
    for offload in (nullcontext(), offloaded("cuda", model.parameters())):
        model.zero_grad()
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        with offload:
            loss = model(inputs).square().mean()
        saved_bytes.append(torch.cuda.memory_allocated() - before)
        loss.backward()
        found.append([parameter.grad.clone() for parameter in model.parameters()])
    assert saved_bytes[1] < saved_bytes[0] / 10
    assert all(torch.equal(*pair) for pair in zip(*found, strict=True))


def test_without_gradient_nothing_happens() -> None:
    seams = ActivationOffload(min_bytes=1).seams(context(llama()))
    assert seams.forward is not None
    with torch.no_grad(), seams.forward(Batch.of(TEXTS)) as offload:
        assert offload is None


def test_a_size_that_cannot_be_read_is_refused() -> None:
    with pytest.raises(SettingError, match=r"activation_offload.min_bytes: 'few' cannot be read"):
        ActivationOffload(min_bytes="few")


class Adapted(nn.Module):
    """Frozen layers of several kinds, with small trained ones beside them."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(32, 96)
        self.conv = nn.Conv1d(8, 24, 3, padding=1)
        self.table = nn.Parameter(torch.randn(96, 32))  # multiplied as Hugging Face's Conv1D does
        self.requires_grad_(False)
        self.adapter = nn.Linear(32, 4)
        self.up = nn.Linear(4, 32)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.linear(inputs + self.up(self.adapter(inputs)))
        hidden = torch.addmm(hidden.new_zeros(32), hidden.tanh(), self.table)
        outputs: Tensor = self.conv(hidden.view(-1, 8, 4)).tanh() @ torch.ones(4, 32)
        return outputs


def test_copies_that_autocast_makes_of_frozen_weights_do_not_travel_and_gradients_are_the_same() -> None:
    model, inputs = Adapted(), torch.randn(8, 32)
    found, travelled = [], []
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    for offload in (
        nullcontext(),
        offloaded("cpu", model.parameters(), 1024),
        offloaded("cpu", trained, 1024),
    ):
        model.zero_grad()
        with torch.autocast("cpu", torch.bfloat16), offload as hooks:
            loss = model(inputs).float().square().sum()
        loss.backward()
        travelled.append(0 if hooks is None else hooks.bytes)
        found.append([parameter.grad.clone() for parameter in trained])
    for one in found[1:]:
        assert all(torch.equal(*pair) for pair in zip(found[0], one, strict=True))
    assert travelled[2] - travelled[1] == 2 * (96 * 32 + 96 * 32 + 24 * 8 * 3), "each weight in 16 bit"


def test_a_constant_that_looks_like_a_frozen_weight_is_not_taken_for_it() -> None:
    """What is added is frozen, and backward asks for the constant of the same shape that is multiplied."""
    frozen = nn.Parameter(torch.randn(16, 16), requires_grad=False)
    trained, constant, inputs = nn.Linear(16, 16), torch.randn(16, 16), torch.randn(16, 16)
    found = []
    for offload in (nullcontext(), offloaded("cpu", [frozen, *trained.parameters()], 1)):
        trained.zero_grad()
        with torch.autocast("cpu", torch.bfloat16), offload:
            loss = torch.addmm(frozen, trained(inputs), constant).float().square().sum()
        loss.backward()
        found.append([parameter.grad.clone() for parameter in trained.parameters()])
    assert all(torch.equal(*pair) for pair in zip(*found, strict=True))


@pytest.mark.parametrize("tied", [False, True])
def test_copies_that_autocast_makes_of_weights_do_not_travel_and_gradients_are_the_same(tied: bool) -> None:
    """Only a GPU can show what that saves of its link."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 96), nn.Tanh(), nn.Linear(96, 32), nn.LayerNorm(32))
    inputs = torch.randn(4, 32)
    found, travelled = [], []
    for offload in (nullcontext(), offloaded("cpu", model.parameters(), 1)):
        model.zero_grad()
        with torch.autocast("cpu", torch.bfloat16), offload as hooks:
            outputs = model(inputs)
            if tied:
                outputs = nn.functional.linear(outputs, model[0].weight)
            loss = outputs.float().square().sum()
        loss.backward()
        travelled.append(0 if hooks is None else hooks.bytes)
        found.append([parameter.grad.clone() for parameter in model.parameters()])
    assert all(torch.equal(*pair) for pair in zip(*found, strict=True))
    weights = 2 * sum(parameter.numel() for parameter in model.parameters())
    activations = 4 * (
        32 * 2 + 96 * 2 + 96 * 2 + 32 * 4 + 32 * 4 + 32 * 2 + 96 * 4
    )  # in 16 bit and in 32, generously
    assert 0 < travelled[1] <= activations < weights
