"""PowerSGD: gradients between devices as products of two thin matrices, and what that leaves out goes into the next ones."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import FunctionType
from typing import TYPE_CHECKING, Any, ClassVar, Self

import torch
import torch.distributed as dist
from torch import Tensor, nn

from snugfit.core.gradient_exchange import Exchange, warn_alone
from snugfit.core.progress import LENGTH, Progress, is_length, number_of_updates
from snugfit.core.random import derive_seed
from snugfit.core.schedule import known_total
from snugfit.core.technique import Card, Context, Family, Fidelity, Seams, Sharing, Stage, Technique
from snugfit.kit.sharded_tensors import own_row, row_of

if TYPE_CHECKING:
    from torch.distributed import GradBucket
    from torch.futures import Future

SMALLEST = 1e-20
"""Added to the length of a column before it is divided by it: a gradient of zeros has none. In float32 the squares of numbers below
1e-22 vanish."""


class Compression(Exchange):
    """Torch's hook over the windows of a run, with what it remembers between them.

    What is remembered is taken over once the update was made: a window that is not finite, or refused, leaves no trace. What was left out is
    kept in the units of the true gradient, as neither the weights of windows nor the loss scale stay the same.

    Args:
        rank: columns of the thin matrices.
        min_compression_rate: a weight's gradient is sent whole where it would not become so many times smaller.
    Source: Vogels et al. 2019, arXiv:1905.13727; `torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook`.
    """

    def __init__(self, rank: int, min_compression_rate: float) -> None:
        self.rank, self.min_compression_rate = rank, min_compression_rate
        self.updates = self.start = self.seed = 0
        self.left_out: dict[str, Tensor] = {}
        """The part of each parameter's gradients on this rank that no exchange has had."""
        self.matrices: dict[int, dict[str, Any]] = {}
        """The thin matrices of each bucket, flat as torch has them, and the names of its parameters."""
        self._next_left_out: dict[str, Tensor] = {}
        self._next_matrices: dict[int, dict[str, Any]] = {}
        self._names: dict[Tensor, str] = {}
        self._share: Tensor | float = 1.0

    def follow(self, model: nn.Module, start: int, seed: int) -> None:
        """Choose, before the first window, from which update on which gradients are compressed; all ranks call it."""
        from torch.distributed.device_mesh import init_device_mesh

        self.start, self.seed = start, seed
        named = {name: each for name, each in model.named_parameters() if each.requires_grad}
        self._names = {parameter: name for name, parameter in named.items()}
        self.left_out, self._next_left_out = (
            {name: each.new_zeros(each.shape) for name, each in named.items()} for _ in range(2)
        )
        kind = next(iter(named.values())).device.type
        self._mesh = init_device_mesh(kind, (dist.get_world_size(),))

    def begin(self, share: Tensor | float) -> None:
        from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState

        self._share = share
        self._next_matrices = {}
        self._state = PowerSGDState(
            None,
            self.rank,
            start_powerSGD_iter=2,  # the least it takes; which window is compressed is known here
            min_compression_rate=self.min_compression_rate,
            orthogonalization_epsilon=SMALLEST,
            random_seed=derive_seed(self.seed, "powersgd") % 2**32,
        )
        self._state.iter = 2

    def mean(self, bucket: GradBucket) -> Future[Tensor]:
        from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

        if self.updates < self.start:
            return allreduce_hook(None, bucket)  # type: ignore[arg-type]  # None: all ranks
        self._lend(bucket)

        def take(done: Future[Tensor]) -> Tensor:
            self._take_back(bucket)
            return done.value()

        approximated = _torch_hook()(self._state, _WithDimensions(bucket))
        # it begins each of its exchanges at the end of the one before, with gloo on another thread: beside those of the next bucket they
        # would not come in one order on all ranks. With nccl it waits for the device by itself
        approximated.wait()
        return approximated.then(take)

    def updated(self, model: nn.Module, progress: Progress) -> None:
        """Note an applied update: its window is the one that counts."""
        self.updates = progress.updates
        if self._next_matrices:
            for parameter, name in self._names.items():
                if parameter.grad is None:  # on no rank a loss reached it: DDP does not give it what was sent
                    self._next_left_out[name].copy_(self.left_out[name])
            self.left_out, self._next_left_out = self._next_left_out, self.left_out
            self.matrices, self._next_matrices = self._next_matrices, {}

    def state_dict(self) -> dict[str, Any]:
        return {
            "updates": self.updates,
            "left_out": {name: row_of(tensor, self._mesh) for name, tensor in self.left_out.items()},
            "matrices": self.matrices,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where as many ranks left off; others share out the sum of what was left out, and one alone sends nothing and drops it."""
        self.updates, self.matrices = state["updates"], state["matrices"]
        for name, tensor in self.left_out.items():
            rows = state["left_out"].get(name)
            if rows is None:
                tensor.zero_()  # one device went on in between
            else:
                tensor.copy_(own_row(rows, dist.get_rank(), dist.get_world_size()))

    def _lend(self, bucket: GradBucket) -> None:
        """Give torch's hook what is remembered of a bucket."""
        place, buffer = bucket.index(), bucket.buffer()
        error = torch.zeros_like(buffer)
        for name, view in self._views(bucket, error):
            view.copy_(self.left_out[name]).div_(self._share)
        self._state.error_dict[place] = error
        factors = self.matrices.get(place)
        if factors is not None and factors["names"] == self._names_of(bucket):
            self._state.p_memory_dict[place] = factors["left"].to(buffer, copy=True)
            self._state.q_memory_dict[place] = _away_from_zero(factors["right"].to(buffer))

    def _take_back(self, bucket: GradBucket) -> None:
        place = bucket.index()
        for name, view in self._views(bucket, self._state.error_dict.pop(place)):
            self._next_left_out[name].copy_(view).mul_(self._share)
        self._next_matrices[place] = {
            "names": self._names_of(bucket),
            "left": self._state.p_memory_dict[place],
            "right": self._state.q_memory_dict[place],
        }

    def _names_of(self, bucket: GradBucket) -> list[str]:
        return [self._names[parameter] for parameter in bucket.parameters()]

    def _views(self, bucket: GradBucket, flat: Tensor) -> Iterator[tuple[str, Tensor]]:
        """Yield each parameter's name, and its part of a tensor like the bucket's.

        DDP lays it out as the parameter is, which the shapes of `gradients()` do not say.
        """
        first = bucket.buffer().storage_offset()
        for parameter, gradient in zip(bucket.parameters(), bucket.gradients(), strict=True):
            place, laid_out = gradient.storage_offset() - first, torch.empty_like(parameter, device="meta")
            yield self._names[parameter], flat.as_strided(parameter.shape, laid_out.stride(), place)


@functools.cache
def _torch_hook() -> Callable[[Any, Any], Future[Tensor]]:
    """Return torch's hook with columns made orthogonal by `_orthogonalize`.

    Torch 2.13 takes two columns by Gram-Schmidt: of a second one that is a multiple of the first it keeps what rounding left, as if that were
    orthogonal. A weight whose gradient is one column times one row, such as one of two units of which one is dead, then got up to twice of it.
    """
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as module

    hook = module.powerSGD_hook
    return FunctionType(hook.__code__, {**vars(module), "_orthogonalize": _orthogonalize}, hook.__name__)


def _orthogonalize(matrices: Tensor, epsilon: float = 0.0) -> None:
    """Make the columns of matrices (count, rows, columns) orthonormal in place, also those that depend on each other.

    Args:
        epsilon: added to the length of a single column, so that one of zeros stays one.
    """
    if matrices.shape[-1] == 1:
        matrices.div_(matrices.norm(dim=1, keepdim=True) + epsilon)
    else:  # by reflections, and so orthonormal whatever there is; not for numbers of 16 bits
        wide = matrices.to(torch.promote_types(matrices.dtype, torch.float32))
        matrices.copy_(torch.linalg.qr(wide).Q)


def _away_from_zero(matrices: Tensor) -> Tensor:
    """Return a copy whose zeros are numbers that are too small to matter beside others.

    The product with a column of zeros, which a gradient of zeros leaves behind, is zero for ever.
    """
    small = torch.arange(1, matrices.numel() + 1, device=matrices.device, dtype=matrices.dtype).sin()
    return torch.where(matrices == 0, small * 1e6 * SMALLEST, matrices)


class _WithDimensions:
    """A bucket whose gradients have a dimension, which torch's hook takes for granted."""

    def __init__(self, bucket: GradBucket) -> None:
        self._bucket = bucket

    def gradients(self) -> list[Tensor]:
        return [each.view(1) if each.ndim == 0 else each for each in self._bucket.gradients()]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._bucket, name)


@dataclass(frozen=True)
class PowerSGD(Technique):
    """Send each weight's gradient as the product of two matrices of `rank` columns, which devices add up in place of it.

    What a product leaves out is added to the device's gradient of the next window. Until `start` gradients are sent whole.
    """

    rank: int = 4
    start: float = 0.1
    min_compression_rate: float = 2.0

    card: ClassVar[Card] = Card(
        name="powersgd",
        summary="Sends gradients between devices as products of thin matrices; what is left out follows.",
        aliases=("powerSGD_hook", "low-rank gradient compression"),
        family=Family.NUMERICS,
        source="Vogels et al. 2019, arXiv:1905.13727; torch's powerSGD_hook",
        seams=("exchange", "updated"),
        stages=(Stage.REMEMBER,),
        fidelity=Fidelity.COMPACT,
        refuses={
            Stage.PERTURB: "it computes two gradients a window, and what is left out of one would be added to the other. Remove one, or use "
            "bf16_gradients.",
            Sharing.SHARDS: "each device adds up a part of the gradients alone, and never has the matrix that would be compressed. Use "
            "plan.strategy: ddp, or bf16_gradients.",
        },
        conflicts={
            "pure_bf16": "its gradients are in bf16, in which columns become orthogonal to two digits only. Remove one, or use bf16_gradients."
        },
        cost="twice the gradients in memory; two products and an orthogonalisation a weight; a coarser gradient",
        use_when="devices on a slow network wait for gradients, and 16 bits are still too much",
    )

    def __post_init__(self) -> None:
        self.require("rank", self.rank >= 1, "at least 1")
        self.require("start", is_length(self.start), LENGTH)
        self.require_positive("min_compression_rate")

    @classmethod
    def example(cls) -> Self:
        return cls(rank=64, start=1, min_compression_rate=0.01)  # as many columns as there are: exact

    def exchange(self) -> Exchange:
        return Compression(self.rank, self.min_compression_rate)

    def seams(self, context: Context) -> Seams:
        total = known_total(self.card.name, context, needed=0 < self.start < 1)
        start = number_of_updates(self.start, total)
        warn_alone(self.card.name, context.exchange)
        compression = context.exchange
        if isinstance(compression, Compression):
            self.warn_beyond("start", start, context.total_updates, "all gradients are sent whole")
            compression.follow(context.model, start, context.seed)
        else:
            compression = Compression(self.rank, self.min_compression_rate)
        return Seams(updated=compression.updated, state=compression)
