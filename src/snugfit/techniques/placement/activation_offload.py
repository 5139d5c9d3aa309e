"""Activations in host memory: what autograd keeps for backward leaves the device, and comes back just before it is needed."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Self

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.multiprocessing.reductions import StorageWeakRef

from snugfit.core.batch import Batch
from snugfit.core.scalar_reads import is_fake
from snugfit.core.technique import ONE_MEMORY, Card, Context, Family, Seams, Technique
from snugfit.kit.activations.saved_tensors import storage_of, storages_of
from snugfit.kit.precision.autocast import Cast, FrozenCasts, without_copy
from snugfit.kit.streaming.slot import slots
from snugfit.units import parse_bytes

AHEAD = 2
"""How many storages may be on their way at a time, in each direction."""

ASYNCHRONOUS = ("cuda", "xpu")
"""Devices that copy on a stream of their own; on others the computation waits for each copy."""


class _Copy:
    """A storage, or a stretch of one, in host memory, and on the device while it is on its way or in use."""

    __slots__ = ("__weakref__", "flat", "host", "place", "ready", "views", "wait_for")

    def __init__(self, host: Tensor, place: int, wait_for: Callable[[Any], None]) -> None:
        self.host, self.place, self.wait_for = host, place, wait_for
        self.views = 0  # that backward still asks for
        self.flat: Tensor | None = None
        self.ready: Any = None

    def __del__(self) -> None:
        # one that was sent for and never asked for, as where a part of the graph has no backward: its memory is still written
        if self.flat is not None and self.ready is not None:
            self.wait_for(self.ready)


class _View(NamedTuple):
    """The place of a saved tensor in what was copied."""

    copy: _Copy
    dtype: torch.dtype
    size: torch.Size
    stride: tuple[int, ...]
    offset: Any


class Offload:
    """Hooks for saved tensors that copy storages to host memory, each once, and back in the reverse order.

    On an accelerator the memory of the host is page-locked and the copies run on a stream of their own; the computation waits
    for the one before the last, so that no more than `AHEAD` storages are on their way. Copies that autocast makes of weights do not travel:
    backward casts the weights once more.

    Args:
        device: whose tensors are moved; on the CPU they are copied, which saves nothing and shows the same.
        stay: tensors whose storages are left where they are, such as the weights.
        min_bytes: of a storage, below which it stays.
    """

    def __init__(self, device: torch.device, stay: Iterable[Tensor], min_bytes: int) -> None:
        self.bytes = 0  # that have gone to the host
        self._device, self._min_bytes = device, min_bytes
        stay = list(stay)
        self._staying = set(storages_of(stay))
        # a mode of Python costs time in each call of torch
        frozen = any(_is_frozen(tensor) for tensor in stay)
        self._casts = FrozenCasts() if frozen else None
        self._known: dict[tuple[StorageWeakRef, int, int, int], _Copy] = {}
        self._order: list[weakref.ref[_Copy]] = []
        self._leaving: deque[tuple[Tensor, Any]] = deque()
        self._stream: Any = None

    @contextmanager
    def forward(self) -> Iterator[Self]:
        """Temporarily offload, around forward and loss; backward may come within or later."""
        with saved_tensors_hooks(self.pack, self.unpack), self._casts or nullcontext():
            yield self
        self._known.clear()  # what is saved from now on is of no graph of this one
        while self._leaving:
            self._let_go()

    def pack(self, tensor: Tensor) -> Tensor | Cast | _View:
        """Return what is kept instead of a saved tensor."""
        if not self._moves(tensor):
            return tensor
        weight = without_copy(tensor)
        if self._casts is not None and weight is tensor:
            weight = self._casts.without_copy(tensor)
        if isinstance(weight, Cast):
            return weight
        start, stop = _stretch(tensor)
        key = (storage_of(tensor), tensor._version, start, stop)  # changed in place, it is another
        if key not in self._known:
            self._known[key] = self._to_host(tensor, start, stop)
        copy = self._known[key]
        copy.views += 1
        offset = tensor.storage_offset() - start // tensor.element_size()
        return _View(copy, tensor.dtype, tensor.size(), tensor.stride(), offset)

    def unpack(self, packed: Tensor | Cast | _View) -> Tensor:
        """Return the saved tensor, of the same numbers, sizes and strides."""
        if isinstance(packed, Tensor):
            return packed
        if isinstance(packed, Cast):
            return packed.again()
        copy = packed.copy
        self._to_device(copy)
        flat = copy.flat
        assert flat is not None
        if copy.ready is not None:
            self._wait_for(copy.ready)
        for place in range(copy.place - 1, max(copy.place - 1 - AHEAD, -1), -1):
            before = self._order[place]()
            if before is not None and before.views:
                self._to_device(before)
        copy.views -= 1
        if copy.views <= 0:
            copy.flat = copy.ready = None
        return flat.view(packed.dtype).as_strided(packed.size, packed.stride, packed.offset)

    def _moves(self, tensor: Tensor) -> bool:
        plain = type(tensor) in (Tensor, torch.nn.Parameter) or is_fake(tensor)
        if not plain or tensor.device.type != self._device.type or tensor.layout != torch.strided:
            return False
        if tensor.is_conj() or tensor.is_neg():
            return False
        size = tensor.untyped_storage().nbytes()
        whole = size % tensor.element_size() == 0
        return whole and size >= max(self._min_bytes, 1) and storage_of(tensor) not in self._staying

    def _to_host(self, tensor: Tensor, start: int, stop: int) -> _Copy:
        size, each = stop - start, tensor.element_size()
        flat = tensor.as_strided((size // each,), (1,), start // each).view(torch.uint8)
        pin = self._device.type in ASYNCHRONOUS and not is_fake(tensor)
        if pin and self._stream is None:
            self._stream = torch.Stream(self._device)
        host = torch.empty(size, dtype=torch.uint8, pin_memory=pin)
        if self._stream is None:
            host.copy_(flat)
        else:
            with self._behind():
                host.copy_(flat, non_blocking=True)
            self._leaving.append((flat, self._stream.record_event()))
            if len(self._leaving) > AHEAD:
                self._let_go()
        copy = _Copy(host, len(self._order), self._wait_for)
        self._order.append(weakref.ref(copy))
        self.bytes += size
        return copy

    def _to_device(self, copy: _Copy) -> None:
        if copy.flat is not None:
            return
        copy.flat = torch.empty(copy.host.shape, dtype=torch.uint8, device=self._device)
        if self._stream is None:
            copy.flat.copy_(copy.host)
        else:
            with self._behind():
                copy.flat.copy_(copy.host, non_blocking=True)
            copy.ready = self._stream.record_event()

    @contextmanager
    def _behind(self) -> Iterator[None]:
        """Temporarily copy on the side stream, behind what the computation has been asked for: its memory is written, or free, by then."""
        self._stream.wait_stream(self._current())
        with self._stream:
            yield

    def _let_go(self) -> None:
        """Let the computation wait until the oldest copy is done; its memory may then be used again."""
        _, done = self._leaving.popleft()
        self._wait_for(done)

    def _wait_for(self, copied: Any) -> None:
        self._current().wait_event(copied)

    def _current(self) -> Any:
        return torch.accelerator.current_stream(self._device)


def _is_frozen(tensor: Tensor) -> bool:
    """Return whether it is a weight that autocast would copy for each product, and that is not trained."""
    return (
        isinstance(tensor, torch.nn.Parameter) and not tensor.requires_grad and tensor.dtype == torch.float32
    )


def _stretch(tensor: Tensor) -> tuple[int, int]:
    """Return the bytes of its storage that are copied for a tensor: all, where all that lies there counts its changes together.

    That is so for views of one tensor; parts that `unsafe_chunk` made, as recurrent cells do, each count their own.
    """
    base = tensor if tensor._base is None else tensor._base
    whole = (0, tensor.untyped_storage().nbytes())
    return whole if _extent(base) == whole else _extent(tensor)


def _extent(tensor: Tensor) -> tuple[int, int]:
    """First byte of a storage that a tensor has, and the one behind its last."""
    steps = ((length - 1) * stride for length, stride in zip(tensor.size(), tensor.stride(), strict=True))
    entries = 1 + sum(steps) if tensor.numel() else 0
    offset: Any = tensor.storage_offset()
    start: int = offset * tensor.element_size()
    return start, start + entries * tensor.element_size()


def offloaded(
    device: torch.device | str, stay: Iterable[Tensor] = (), min_bytes: int = 2**20
) -> AbstractContextManager[Offload]:
    """Temporarily send what autograd keeps of what is computed on `device` to host memory; see `Offload`.

    >>> layer, inputs = torch.nn.Linear(4, 4), torch.ones(2, 4, requires_grad=True)
    >>> with offloaded("cpu", layer.parameters(), min_bytes=1) as offload:
    ...     loss = layer(inputs).tanh().sum()
    >>> loss.backward()
    >>> offload.bytes  # the inputs and the hyperbolic tangent, 32 bytes each
    64
    """
    return Offload(torch.device(device), stay, min_bytes).forward()


@dataclass(frozen=True)
class ActivationOffload(Technique):
    """Keep activations in host memory between forward and backward; those below `min_bytes` stay on the device."""

    min_bytes: str | int = "1MiB"

    card: ClassVar[Card] = Card(
        name="activation_offload",
        summary="Keeps what autograd saves for backward in host memory, and brings it back just before it is needed.",
        aliases=("activation offloading", "save_on_cpu"),
        family=Family.PLACEMENT,
        source="torch.autograd.graph.saved_tensors_hooks; Rhu et al. 2016, arXiv:1602.08124; as torchtune's OffloadActivations",
        seams=("forward",),
        not_on=ONE_MEMORY,
        saves_memory=True,
        cost="two copies over the bus; hidden where computing a block takes longer than copying what it keeps",
        use_when="beside recompute, for long texts: then only the inputs of the blocks travel",
    )

    def __post_init__(self) -> None:
        parse_bytes(self.min_bytes, "activation_offload.min_bytes")

    @classmethod
    def example(cls) -> Self:
        return cls(min_bytes=1)

    def seams(self, context: Context) -> Seams:
        size = parse_bytes(self.min_bytes, "activation_offload.min_bytes")
        model = context.model

        def forward(_batch: Batch) -> AbstractContextManager[Any]:
            if not torch.is_grad_enabled():
                return nullcontext()
            return offloaded(context.device, [*model.parameters(), *model.buffers(), *slots()], size)

        return Seams(forward=forward)
