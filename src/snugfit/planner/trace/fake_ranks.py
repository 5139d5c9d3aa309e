"""The step as one of several devices runs it, of which none is there.

A fake process group answers every collective at once, so that rank 0 of any number of ranks can be recorded in one process. FSDP2
runs in it as it is. DDP exchanges gradients from C++, where fake tensors cannot follow: `DataParallelTwin` allocates what it does. Few
gradients are sent in one message without DDP, which is run as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import _disable_current_modes

from snugfit.core.card import Sharing
from snugfit.core.gradient_exchange import Exchange
from snugfit.errors import SettingError
from snugfit.planner.cost.communication import BUCKET_BYTES
from snugfit.planner.cost.records import Parts
from snugfit.strategies.base import SeveralRanks
from snugfit.strategies.ddp import FIRST_BUCKET_BYTES, sent_at_once
from snugfit.strategies.registry import mesh_of

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


@contextmanager
def fake_ranks(*axes: int, device: str = "cpu") -> Iterator[DeviceMesh]:
    """Temporarily make this process rank 0 of as many ranks as the product of `axes` says; collectives do nothing.

    Args:
        axes: the ranks that share one model; or the copies of the model, and then the ranks that share each (hybrid).
    Returns:
        The mesh of these axes, made outside of any fake tensor mode.
    Raises:
        SettingError: an axis is not positive, or this process has a process group.

    >>> with fake_ranks(2, 8) as mesh:
    ...     dist.get_world_size(), mesh.size(1)
    (16, 8)
    """
    from torch._subclasses.fake_tensor import unset_fake_temporarily
    from torch.testing._internal.distributed.fake_pg import FakeStore

    if not axes or len(axes) > 2 or min(axes) < 1:
        raise SettingError(
            "devices", f"one or two positive numbers are needed, found {axes}", "Give such numbers."
        )
    if dist.is_initialized():
        raise SettingError(
            "devices",
            f"this process is one of {dist.get_world_size()} that train together",
            "Plan in a process of its own, such as `snugfit plan`.",
        )
    with unset_fake_temporarily():
        world = int(torch.Size(axes).numel())
        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=world)
        try:
            mesh = mesh_of(device, axes)
        except BaseException:
            dist.destroy_process_group()
            raise
    try:
        yield mesh
    finally:
        dist.destroy_process_group()


@contextmanager
def shards_followed(resized: Callable[[torch.UntypedStorage], None]) -> Iterator[None]:
    """Temporarily let a dispatch mode count the memory of sharded tensors.

    FSDP2 frees and allocates gathered weights without an operator, by `UntypedStorage.resize_`: `resized(storage)` is called
    after each. DTensor finds the shapes of results by running operators on fake tensors of the whole model's size: modes do not
    see those. A mode must leave operators on DTensors themselves alone (return NotImplemented); those on their local parts follow.
    One axis of a mesh finds this rank's place by the values of tensors, which modes do not see either.
    """
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor._sharding_prop import ShardingPropagator

    resize, lock = torch.UntypedStorage.resize_, ShardingPropagator._fake_mode_lock
    axis = DeviceMesh.__getitem__

    def resize_(storage: torch.UntypedStorage, size: int) -> Any:
        resized_storage = resize(storage, size)
        resized(storage)
        return resized_storage

    def getitem(mesh: DeviceMesh, names: Any) -> DeviceMesh:
        with _disable_current_modes():
            return axis(mesh, names)

    torch.UntypedStorage.resize_ = resize_  # type: ignore[assignment, method-assign]
    DeviceMesh.__getitem__ = getitem  # type: ignore[method-assign]
    ShardingPropagator._fake_mode_lock = _Unseen()  # type: ignore[assignment]
    try:
        yield
    finally:
        torch.UntypedStorage.resize_ = resize  # type: ignore[method-assign]
        DeviceMesh.__getitem__ = axis  # type: ignore[method-assign]
        ShardingPropagator._fake_mode_lock = lock


class _Unseen:
    """A context that may be entered again and again, in which no dispatch mode is active."""

    def __init__(self) -> None:
        self._entered: list[ExitStack] = []

    def __enter__(self) -> None:
        stack = ExitStack()
        stack.enter_context(_disable_current_modes())
        self._entered.append(stack)

    def __exit__(self, *error: object) -> None:
        self._entered.pop().close()


@dataclass(eq=False)
class DataParallelTwin(SeveralRanks):
    """The allocations and messages of DDP, without DDP: the buckets, and gradients as their views where `bucket_view` is set.

    Buckets stay as they are made: torch fills them anew, in the order in which gradients came, only where no weight may be left out. To be
    used within `fake_ranks`. Unlike DDP it does not broadcast weights before the first update, nor buffers before a forward, and it
    leaves the model without a wrapper. Where `DataParallel` does without DDP, so does this.

    Args:
        bucket_view, at_once_bytes: as `DataParallel` has them.
        depth: the blocks of the model whose gradients are counted, where this one has fewer of them.
    """

    bucket_view: bool = False
    at_once_bytes: int = FIRST_BUCKET_BYTES
    depth: int | None = None
    sharing: Sharing | None = field(default=Sharing.COPIES, init=False)
    buckets: list[Tensor] = field(default_factory=list, init=False)
    _place: dict[nn.Parameter, tuple[int, int]] = field(
        default_factory=dict, init=False
    )  # bucket, first element
    _counts: list[int] = field(default_factory=list, init=False)  # gradients of each bucket
    _missing: list[int] = field(default_factory=list, init=False)  # of them in this backward
    _used: list[Tensor] = field(
        default_factory=list, init=False
    )  # which were reached, on the device and the host
    _exchanges: bool = field(default=False, init=False)
    _exchange: Exchange | None = field(default=None, init=False)

    def exchange_by(self, exchange: Exchange) -> None:
        """Add gradients up in this way, whose own tensors are not followed; called before `wrap`."""
        self._exchange = exchange

    def wrap(self, model: nn.Module) -> nn.Module:
        """Allocate the buckets, and meet each gradient as it is made."""
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        if self._sends_at_once(model):
            self.copies = trained
            return model
        self._used = [torch.zeros(len(trained), dtype=torch.int32) for _ in range(2)]
        for number, parameters in enumerate(buckets_of(trained)):
            count = 0
            for parameter in parameters:
                self._place[parameter] = number, count
                count += parameter.numel()
                parameter.register_post_accumulate_grad_hook(self._arrived)
            self.buckets.append(parameters[0].detach().new_empty(count))
            self._counts.append(len(parameters))
        return model

    def _sends_at_once(self, model: nn.Module) -> bool:
        """Return whether `DataParallel` would do without DDP, with all blocks that the model has."""
        parts = Parts.of(model)
        _, _, gradients = parts.whole(self.depth or len(parts.blocks))
        as_they_are = self._exchange is None and not self.bucket_view
        return as_they_are and sent_at_once(model, gradients, self.at_once_bytes, plain=FakeTensor)

    @contextmanager
    def accumulate(self, model: nn.Module, last: bool) -> Iterator[None]:
        """Temporarily accumulate, around forward and backward of a micro-batch."""
        self._exchanges = last
        self._missing = list(self._counts)
        yield

    def _arrived(self, parameter: nn.Parameter) -> None:
        if not self._exchanges or parameter.grad is None:
            return
        number, start = self._place[parameter]
        bucket = self.buckets[number]
        view = bucket.as_strided(parameter.shape, parameter.stride(), start)
        view.copy_(parameter.grad)
        if self.bucket_view:
            parameter.grad = view
        self._missing[number] -= 1
        if not self._missing[number]:
            dist.all_reduce(bucket)


def buckets_of(
    parameters: Sequence[nn.Parameter], first: int = FIRST_BUCKET_BYTES, cap: int = BUCKET_BYTES
) -> list[list[nn.Parameter]]:
    """Return parameters in DDP's buckets: one of each kind is full once it has `first` bytes, the later ones once they have `cap`.

    Args:
        parameters: in the order in which the model has them.
        first, cap: bytes.

    >>> weights = [nn.Parameter(torch.zeros(count)) for count in (2, 3, 1, 4)]
    >>> [[weight.numel() for weight in bucket] for bucket in buckets_of(weights, first=8, cap=16)]
    [[2], [3, 1], [4]]
    """
    limits: dict[Any, int] = {}
    filling: dict[Any, list[nn.Parameter]] = {}
    full: list[list[nn.Parameter]] = []
    for parameter in parameters:
        kind = parameter.dtype, parameter.device
        bucket = filling.setdefault(kind, [])
        bucket.append(parameter)
        if sum(each.nbytes for each in bucket) >= limits.setdefault(kind, first):
            full.append(filling.pop(kind))
            limits[kind] = cap
    return full + list(filling.values())
