"""Weights and activations that come by a stream of their own are waited for, however late the stream is."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from snugfit.core.gradients import HostGradients
from snugfit.kit.streaming.slot import Slot
from snugfit.techniques.placement.activation_offload import Offload, offloaded
from snugfit.techniques.placement.optimizer_offload import offloaded as optimizer_offloaded
from snugfit.techniques.placement.weight_streaming import stream_weights
from tests.unit.techniques.late_streams import Late, LateEvent, late_streams

LAYERS = 6


@pytest.fixture
def late(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Late]]:
    with late_streams(monkeypatch) as device:
        yield device


def model() -> nn.Sequential:
    """A chain of frozen layers with trained ones between, so that backward passes all."""
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(8, 8).requires_grad_(False), nn.LayerNorm(8)) for _ in range(LAYERS)]
    return nn.Sequential(*layers)


def gradients(made: nn.Module, run: Callable[[Tensor], None]) -> list[Tensor]:
    for _ in range(2):  # the second pass finds the slots as the first one left them
        run(torch.linspace(-1, 1, 32).reshape(4, 8))
    return [each.grad for each in made.parameters() if each.grad is not None]


def same(one: list[Tensor], other: list[Tensor]) -> bool:
    return len(one) == len(other) > 0 and all(map(torch.equal, one, other))


def plain() -> list[Tensor]:
    made = model()
    return gradients(made, lambda inputs: made(inputs).pow(2).sum().backward())


def streamed() -> list[Tensor]:
    made = model()
    stream = stream_weights(made, "cpu")

    def run(inputs: Tensor) -> None:
        with stream.running():
            made(inputs).pow(2).sum().backward()

    return gradients(made, run)


def offloading() -> list[Tensor]:
    made = model()

    def run(inputs: Tensor) -> None:
        with offloaded("cpu", made.parameters(), min_bytes=1):
            loss = made(inputs).pow(2).sum()
        loss.backward()

    return gradients(made, run)


def gradients_leaving() -> list[Tensor]:
    made, sums = model(), HostGradients()
    sums.bear(made.parameters())

    def run(inputs: Tensor) -> None:
        with sums.taking():
            made(inputs).pow(2).sum().backward()

    gradients(made, run)
    return [each for each in map(sums.of, made.parameters()) if each is not None]


def stepped(offload: bool) -> list[Tensor]:
    made = model()
    plain_adam = torch.optim.AdamW([each for each in made.parameters() if each.requires_grad], lr=0.1)
    optimizer = optimizer_offloaded(plain_adam) if offload else plain_adam

    def run(inputs: Tensor) -> None:
        made(inputs).pow(2).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    gradients(made, run)
    return [each.detach() for each in made.parameters() if each.requires_grad]


def test_however_late_copies_are_the_optimizer_on_the_host_makes_the_same_steps(late: type[Late]) -> None:
    assert same(stepped(offload=True), stepped(offload=False)) and late.copies > LAYERS


@pytest.mark.parametrize("way", [streamed, offloading, gradients_leaving])
def test_however_late_copies_are_the_gradients_are_the_same(way: Any, late: type[Late]) -> None:
    assert same(way(), plain()) and late.copies > LAYERS


@pytest.mark.parametrize(
    ("way", "owner", "name"),
    [
        (streamed, Slot, "wait"),
        (offloading, Offload, "_wait_for"),
        (gradients_leaving, LateEvent, "synchronize"),
        (partial(stepped, True), LateEvent, "synchronize"),
    ],
    ids=["weights", "activations", "gradients", "states"],
)
def test_a_wait_that_is_missing_is_seen(
    way: Any, owner: type, name: str, late: type[Late], monkeypatch: pytest.MonkeyPatch
) -> None:
    own = stepped(offload=False) if isinstance(way, partial) else plain()
    monkeypatch.setattr(owner, name, lambda *_: None)
    assert not same(way(), own)


def test_a_stream_that_is_given_up_waits_for_the_copy_that_it_asked_for_ahead(late: type[Late]) -> None:
    """A copy that came later would write to memory that is somebody else's by then."""
    made = model()
    stream = stream_weights(made, "cpu")
    with stream.running(), torch.no_grad():
        made[:2](torch.ones(4, 8))  # the third layer is on its way
    slots = stream.slot_memory()
    before = [memory.clone() for memory in slots]
    del stream
    gc.collect()
    assert not same(slots, before), "the copy is still to come"


def test_a_slot_is_filled_behind_what_still_reads_it_and_is_read_behind_its_copy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A copy that is late shows above, one that is too early does not: so the order of what a device is asked for."""
    asked: list[Any] = []
    event: Any = SimpleNamespace(record=lambda: asked.append("recorded"))
    computing = SimpleNamespace(
        record_event=lambda: "what computes", wait_event=lambda given: asked.append(("computes", given))
    )
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: computing)
    monkeypatch.setattr(torch.cuda, "Event", lambda **_: event)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
    slot, source = Slot(4, torch.device("cpu")), torch.arange(4, dtype=torch.uint8)
    copying: Any = SimpleNamespace(wait_event=lambda given: asked.append(("copies", given)))
    slot._cuda, slot._stream = True, copying
    slot.load(0, source)
    assert asked == [("copies", "what computes"), "recorded"] and torch.equal(slot.memory, source)
    slot.wait()
    assert asked[2:] == [("computes", event)]
