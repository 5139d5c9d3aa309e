"""Streaming: frozen blocks lie in host memory and come to the device, one behind the other, while they are used."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from snugfit.core.layers import repeated_blocks
from snugfit.core.scalar_reads import is_fake
from snugfit.core.tree import leaves
from snugfit.errors import SettingError
from snugfit.kit.module_patterns import find_modules
from snugfit.kit.patched_forward import replaced_forward
from snugfit.kit.phases import phase
from snugfit.kit.streaming.host import Packed, check_disk, check_host_memory
from snugfit.kit.streaming.layout import Weight, frozen_weights, set_tensors_, tensors_of
from snugfit.kit.streaming.slot import Slot, drain

MEASURED = 8
"""Micro-batches over which `resident: auto` looks at the memory before it decides."""


class WeightStream:
    """Streams the frozen weights of a model's blocks through two slots of device memory.

    Within `running()` a block's frozen weights are on the device while it computes, forward and backward; outside they are
    the parameters that they always were, in host memory. What trains, what several blocks share, and buffers stay on the
    device. The block of number n always comes to slot n mod 2, at the same addresses: whatever autograd keeps of a weight
    in forward is right again in backward. While one block computes, the next one in the direction of the pass is copied.

    Args:
        blocks: their modules by name, in the order in which they compute.
        resident: how many of them stay on the device, evenly spread; "auto": as many as fit, found out after some micro-batches.
        folder: keep the weights in files there, mapped into memory, instead of in host memory.
        timed: measure the time of the copies.
    """

    def __init__(
        self,
        model: nn.Module,
        device: torch.device,
        blocks: Mapping[str, nn.Module],
        resident: int | str = 0,
        folder: Path | None = None,
        timed: bool = False,
    ) -> None:
        self.copies = 0
        self.copied_bytes = 0
        self._model = model
        self._device = device
        self._blocks = dict(blocks)
        self._auto = resident == "auto"
        self._resident = 0 if isinstance(resident, str) else resident
        self._folder = folder
        self._timed = timed
        self._seconds = 0.0
        self._entered = 0
        self.frozen = False
        self._packed: dict[str, Packed] = {}
        self._chain: list[Packed] = []
        self._slots: list[Slot] = []
        # a copy ahead of what computes may be under way when nobody streams any more: its memory must not be somebody else's by then
        weakref.finalize(self, drain, self._slots).atexit = False
        self._attached: dict[int, Packed] = {}
        self._last = 0
        self._running = False
        self._reader = ThreadPoolExecutor(1, "weights") if folder is not None else None
        self._seen: tuple[Any, ...] = ()
        self._versions: tuple[int, ...] = ()
        self._to_device(lambda parameter: parameter.requires_grad)  # before an optimizer is made of it

    @contextmanager
    def running(self) -> Iterator[None]:
        """Temporarily stream, around forward, loss and backward of a micro-batch, or a forward alone; what is in the slots stays for the next.

        Raises:
            SettingError: the host's memory, or the disk, is too small; or a weight is of a format that cannot be streamed.
        """
        if self._running:
            yield
            return
        with torch.inference_mode(False):  # else what is laid out here could never be trained with
            self._prepare()
        with ExitStack() as stack:
            for place, name in enumerate(self._packed):
                block = self._blocks[name]
                stack.enter_context(replaced_forward(block, self._wrapped(name, block.forward, place)))
            self._running = True
            try:
                yield
            finally:
                self._running = False
                self._detach(*self._attached)

    @property
    def streamed(self) -> tuple[str, ...]:
        """Names of the blocks that are streamed."""
        return tuple(self._packed)

    @property
    def host_bytes(self) -> int:
        """Return bytes of the streamed weights, in host memory or on the disk."""
        return sum(packed.nbytes for packed in self._chain)

    @property
    def slot_bytes(self) -> int:
        """Return bytes of device memory that the streamed weights take."""
        return sum(memory.numel() for memory in self.slot_memory())

    def slot_memory(self) -> list[Tensor]:
        """Return the device memory that the streamed weights come to."""
        return [slot.memory for slot in self._slots]

    def seconds(self) -> float:
        """Return seconds that all copies took so far, if they are timed."""
        return self._seconds + sum(slot.seconds() for slot in self._slots)

    def _wrapped(self, name: str, forward: Callable[..., Any], place: int) -> Callable[..., Any]:
        def streamed(*args: Any, **kwargs: Any) -> Any:
            borrowed = place not in self._attached
            try:
                self._use(place, backward=False)
                outputs = forward(*args, **kwargs)
            finally:
                # a part that is called by itself later finds its own weights, not what is in the slot by then
                if borrowed:
                    self._detach(place)
            entered = [tensor for tensor in leaves(outputs) if tensor.grad_fn is not None]
            for tensor in entered:  # backward goes into the block through what it returned
                tensor.register_hook(lambda _: self._use(place, backward=True))
            if torch.is_grad_enabled() and not entered:
                self._check_unlearned(name, (args, kwargs), outputs)
            return outputs

        return streamed

    def _check_unlearned(self, name: str, inputs: Any, outputs: Any) -> None:
        """Refuse a block that no gradient is seen to enter, unless it plainly needs none."""
        learning = [*leaves(inputs), *self._blocks[name].parameters()]
        if next(leaves(outputs), None) is None or any(tensor.requires_grad for tensor in learning):
            raise SettingError(
                "weight_streaming.blocks",
                f"'{name}' returns a {type(outputs).__name__} in which no tensor is seen that a gradient comes back by, "
                "so its weights would not be there in backward",
                "Let it return tensors, or tuples, dicts or dataclasses of them, or leave the block out.",
            )

    def _use(self, place: int, backward: bool) -> None:
        if not self._running:
            raise SettingError(
                "weight_streaming",
                "backward came after the context of its forward, where the weights are not on the device",
                "Call backward within it.",
            )
        slot = self._slots[place % 2]
        more = place == self._last and slot.holds == place and not backward
        self._fetch(place)
        slot.wait()
        self._attach(place)
        if more:
            return  # some more rows of the same block: they say nothing about which one comes next
        # a block that computes again in backward comes after one behind it
        down = backward or 0 < place < self._last
        self._last = place
        ahead = place - 1 if down else place + 1
        if 0 <= ahead < len(self._chain):
            self._fetch(ahead)

    def _fetch(self, place: int) -> None:
        slot = self._slots[place % 2]
        if slot.holds == place:
            return
        if slot.holds is not None:
            self._detach(slot.holds)
        packed = self._chain[place]
        slot.load(place, packed.memory)
        self.copies += 1
        self.copied_bytes += packed.nbytes

    def _attach(self, place: int) -> None:
        if place not in self._attached:
            packed = self._attached[place] = self._chain[place]
            for weight in packed.weights:
                weight.attach(self._slots[place % 2].memory)

    def _detach(self, *places: int) -> None:
        for place in places:
            packed = self._attached.pop(place, None)
            for weight in packed.weights if packed is not None else ():
                weight.detach()

    def _prepare(self) -> None:
        """Lay out what is frozen now; forget what is in the slots if the weights have changed."""
        self._entered += 1
        if self._auto and self._entered > MEASURED and self._chain:
            self._auto = False
            largest = max(packed.nbytes for packed in self._chain)
            self._resident = min(len(self._chain), spare_device_bytes(self._device) // largest)
            self._seen = ()
        parameters = [p for block in self._blocks.values() for p in block.parameters()]
        if self._seen != (seen := tuple(map(_identity, parameters))):
            with phase("setup"):  # once a run, and no part of an update
                self._lay_out()
            seen = tuple(map(_identity, parameters))
            self._seen = seen
        frozen = [tensor for p in parameters if not p.requires_grad for tensor in tensors_of(p).values()]
        versions = tuple(tensor._version for tensor in frozen)
        if versions != self._versions:
            self._versions = versions
            for slot in self._slots:
                slot.holds = None

    def _lay_out(self) -> None:
        drain(self._slots)
        self._seconds = self.seconds()
        self._slots.clear()
        weights = {
            name: block_weights
            for name, block_weights in frozen_weights(self._model, self._blocks).items()
            if block_weights
        }
        keep = spread(self._resident, len(weights))
        streamed = {
            name: block_weights
            for place, (name, block_weights) in enumerate(weights.items())
            if place not in keep
        }
        self._check_room(streamed)
        pin = self._device.type == "cuda"
        # no block of before is held meanwhile: as its weights come to new memory, the old one is given back
        self._packed, self._chain = {}, []
        for name, block_weights in streamed.items():
            self._packed[name] = self._pack(name, block_weights, pin)
        self.frozen = bool(weights)
        self._chain = list(self._packed.values())
        inside = {id(weight.parameter) for packed in self._chain for weight in packed.weights}
        self._to_device(lambda parameter: id(parameter) not in inside)
        largest = max((packed.nbytes for packed in self._chain), default=0)
        self._slots += [
            Slot(largest, self._device, self._reader, self._timed) for _ in range(min(2, len(self._chain)))
        ]

    def _pack(self, name: str, weights: list[Weight], pin: bool) -> Packed:
        file = None if self._folder is None else self._folder / f"{name}.safetensors"
        return Packed(weights, pin, file)

    def _check_room(self, streamed: Mapping[str, list[Weight]]) -> None:
        sizes = {
            name: [tensor for weight in weights for tensor in tensors_of(weight.parameter).values()]
            for name, weights in streamed.items()
        }
        if any(is_fake(tensor) for tensors in sizes.values() for tensor in tensors):
            return
        if self._folder is not None:
            check_disk(self._folder, sum(tensor.nbytes for tensors in sizes.values() for tensor in tensors))
            return
        # what lies in host memory already moves, a block at a time
        moving = max((sum(tensor.nbytes for tensor in tensors) for tensors in sizes.values()), default=0)
        coming = sum(t.nbytes for tensors in sizes.values() for t in tensors if t.device.type != "cpu")
        check_host_memory(max(moving, coming))

    def _to_device(self, which: Callable[[nn.Parameter], bool]) -> None:
        """Move those parameters of the blocks, and all their buffers."""
        if self._device.type == "cpu":
            return
        for block in self._blocks.values():
            for module in block.modules():
                for parameter in vars(module)["_parameters"].values():
                    if parameter is not None and which(parameter):
                        moved = {part: t.to(self._device) for part, t in tensors_of(parameter).items()}
                        set_tensors_(parameter, moved)
                for name, buffer in module.named_buffers(recurse=False):
                    vars(module)["_buffers"][name] = buffer.to(self._device)


def blocks_of(model: nn.Module, patterns: Sequence[str]) -> dict[str, nn.Module]:
    """Return the blocks that match the patterns, or without any the repeated ones; of two of which one holds the other, the outer.

    >>> list(blocks_of(nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2)), ()))
    ['0', '2']

    Raises:
        SettingError: a pattern matches nothing.
    """
    if not patterns:
        return repeated_blocks(model)
    names = find_modules(model, patterns, "weight_streaming.blocks")
    outer = [name for name in names if not any(name.startswith(f"{other}.") for other in names)]
    return {name: model.get_submodule(name) for name in outer}


def spread(count: int, total: int) -> set[int]:
    """Return so many of the numbers below `total`, evenly spread: the time of a copy is the same between any two.

    >>> spread(2, 8), spread(9, 2)
    ({2, 6}, {0, 1})
    """
    count = min(count, total)
    return {(2 * place + 1) * total // (2 * count) for place in range(count)}


def spare_device_bytes(device: torch.device) -> int:
    """Device memory that this process has not used so far, less a tenth of what it may have as a reserve; 0 where the device is the host.

    What other processes have is not there to be used, and neither is what it had at its peak.
    """
    if device.type != "cuda":
        return 0
    free, whole = torch.cuda.mem_get_info(device)
    most = torch.cuda.max_memory_reserved(device)
    limit = whole * torch.cuda.get_per_process_memory_fraction(device)
    there = free + torch.cuda.memory_reserved(device)
    return max(0, int(min(limit, there) - most - 0.1 * limit))


def _identity(parameter: nn.Parameter) -> tuple[Any, ...]:
    """Return what changes when a parameter begins to train or stops, or gets other memory."""
    if parameter.requires_grad:
        return (id(parameter),)
    return (id(parameter), *(_address(tensor) for tensor in tensors_of(parameter).values()))


def _address(tensor: Tensor) -> int:
    return 0 if is_fake(tensor) else tensor.data_ptr()
