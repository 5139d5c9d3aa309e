"""Frozen weights of mixtures of experts, one matrix for each expert, kept in a smaller format and made whole where they are used.

Transformers keeps the weights of all experts of a layer in one parameter, and its forwards compute with that parameter itself: a
product with one expert's matrix after the other, or one product of all groups of tokens. What stands in the parameter's place here
answers such functions by torch's protocol for objects that are no tensors (`__torch_function__`), so that every one of those forwards
runs as it is, and neither of these products keeps a whole weight for backward.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from snugfit.kit.quantized.frozen_linear import WeightFormat, as_stored, from_stored, frozen_product

_LINEAR: Any = F.linear
_PRODUCTS: Any = (torch.matmul, Tensor.matmul, Tensor.__matmul__)
_GROUPED = ("_grouped_mm", "grouped_mm", "transformers.grouped_mm_fallback")
"""Names of the products of groups of rows, each group with the matrix of its expert."""


class QuantisedExperts(nn.Module):
    """The stand-in of a parameter (experts, outputs, inputs), or (experts, inputs, outputs) where it is `transposed`.

    Functions of torch find it made whole, in the type it had, or in autocast's.

    Args:
        tensors: what the format keeps of each expert's matrix (outputs, inputs), of all experts side by side.
        shape: of the parameter.
        dtype: of the parameter.
    """

    def __init__(
        self,
        format: WeightFormat,
        tensors: Mapping[str, Tensor],
        shape: torch.Size,
        dtype: torch.dtype,
        *,
        transposed: bool,
    ) -> None:
        super().__init__()
        self.format = format
        self.shape = shape
        self.own_dtype = dtype
        self.transposed = transposed
        self._tensor_names = tuple(tensors)
        self._is_hf_initialized = True  # by which transformers knows what it is not to draw anew
        for name, tensor in tensors.items():
            self.register_parameter(name, nn.Parameter(as_stored(tensor), requires_grad=False))

    @classmethod
    def of(cls, weight: Tensor, format: WeightFormat, *, transposed: bool) -> QuantisedExperts:
        """Quantise a parameter, one expert after the other."""
        parts: dict[str, list[Tensor]] = {}
        for matrix in weight.detach():
            for name, part in format.pack(matrix.T if transposed else matrix).items():
                parts.setdefault(name, []).append(part)
        tensors = {name: torch.stack(each) for name, each in parts.items()}
        return cls(format, tensors, weight.shape, weight.dtype, transposed=transposed)

    @property
    def dtype(self) -> torch.dtype:
        """The type that is computed in: the weight's, or autocast's."""
        device = self.device.type
        if torch.is_autocast_enabled(device) and self.own_dtype != torch.float64:
            return torch.get_autocast_dtype(device)
        return self.own_dtype

    @property
    def numbers(self) -> int:
        """Return how many the parameter has."""
        return self.shape.numel()

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device

    @property
    def ndim(self) -> int:
        return 3

    def dim(self) -> int:
        return 3

    def size(self, dim: int | None = None) -> Any:
        return self.shape if dim is None else self.shape[dim]

    def stored(self) -> list[Tensor]:
        """Return what the format keeps, as it is stored."""
        return [getattr(self, name) for name in self._tensor_names]

    def whole(self, stored: Sequence[Tensor] | None = None, dtype: torch.dtype | None = None) -> Tensor:
        """Return the parameter again."""
        dtype = self.dtype if dtype is None else dtype
        named = self._named(self.stored() if stored is None else stored)
        rows, columns = self._matrix
        with torch.no_grad():
            if rows * columns % self.format.unit == 0:
                joined = {
                    name: part.flatten(0, 1) if part.dim() > 1 else part for name, part in named.items()
                }
                whole = self.format.unpack(joined, (self.shape[0] * rows, columns), dtype)
                whole = whole.view(self.shape[0], rows, columns)
            else:
                each = zip(*(part.unbind() for part in named.values()), strict=True)
                parts = [dict(zip(named, one, strict=True)) for one in each]
                whole = torch.stack([self.format.unpack(part, (rows, columns), dtype) for part in parts])
        return whole.transpose(1, 2) if self.transposed else whole

    def matrix(self, stored: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
        """Return one expert's matrix (outputs, inputs), from its part of what is stored."""
        with torch.no_grad():
            return self.format.unpack(self._named(stored), self._matrix, dtype)

    def __getitem__(self, place: Any) -> Any:
        if isinstance(place, int) or (
            isinstance(place, Tensor) and not place.dim() and not place.is_floating_point()
        ):
            return ExpertMatrix(self, [each[place] for each in self.stored()], self.transposed)
        return self.whole()[place]

    def transpose(self, first: int, second: int) -> Any:
        """Return the weight with its matrices on their sides."""
        if {first % 3, second % 3} == {1, 2}:
            return TurnedExperts(self)
        return self.whole().transpose(first, second)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> QuantisedExperts:
        self.own_dtype = fn(torch.empty(0, dtype=self.own_dtype)).dtype
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        return self

    @property
    def _matrix(self) -> tuple[int, int]:
        rows, columns = self.shape[1:]
        return (columns, rows) if self.transposed else (rows, columns)

    def _named(self, stored: Sequence[Tensor]) -> dict[str, Tensor]:
        return dict(zip(self._tensor_names, map(from_stored, stored), strict=True))

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _called(func, args, kwargs or {})


@dataclass(frozen=True)
class TurnedExperts:
    """The matrices of all experts, on their sides."""

    experts: QuantisedExperts

    def __getattr__(self, name: str) -> Any:
        return getattr(self.experts, name)  # such as its type and device

    def whole(self) -> Tensor:
        """Return the tensor."""
        return self.experts.whole().transpose(1, 2)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _called(func, args, kwargs or {})


@dataclass(frozen=True)
class ExpertMatrix:
    """The matrix of one expert, on its side where `turned`."""

    experts: QuantisedExperts
    stored: list[Tensor]
    turned: bool

    def __getattr__(self, name: str) -> Any:
        if name in ("T", "mT"):
            return ExpertMatrix(self.experts, self.stored, not self.turned)
        return getattr(self.experts, name) if name in ("dtype", "device") else getattr(self.whole(), name)

    def whole(self) -> Tensor:
        """Return the tensor."""
        matrix = self.experts.matrix(self.stored, self.experts.dtype)
        return matrix.T if self.turned else matrix

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _called(func, args, kwargs or {})


def _called(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Return a function of torch, of which an argument is one of these: a product keeps nothing whole, anything else gets it whole."""
    rows, weight = args[:2] if len(args) > 1 else (None, None)
    if isinstance(rows, Tensor):
        if isinstance(weight, ExpertMatrix) and func in (_PRODUCTS if weight.turned else (_LINEAR,)):
            product = frozen_product(_in_computed_type(rows), weight.experts.matrix, weight.stored)
            bias = kwargs.get("bias", args[2] if len(args) > 2 else None)
            return product if bias is None else product + bias
        if isinstance(weight, (QuantisedExperts, TurnedExperts)) and _name(func) in _GROUPED:
            offsets = kwargs["offs"] if "offs" in kwargs else args[2]
            turned = isinstance(weight, TurnedExperts)
            experts = weight.experts if isinstance(weight, TurnedExperts) else weight
            return _GroupedProduct.apply(rows, func, offsets, experts.whole, turned, *experts.stored())  # type: ignore[no-untyped-call]
    made = tree_map(_whole, (list(args), dict(kwargs)))
    return func(*made[0], **made[1])


def _whole(leaf: Any) -> Any:
    return leaf.whole() if isinstance(leaf, (QuantisedExperts, TurnedExperts, ExpertMatrix)) else leaf


def _name(func: Any) -> str:
    return getattr(func, "__name__", None) or str(func)


def _in_computed_type(rows: Tensor) -> Tensor:
    """Return rows in the type of autocast, which does not see products that are answered here."""
    device = rows.device.type
    if torch.is_autocast_enabled(device) and rows.dtype != torch.float64:
        return rows.to(torch.get_autocast_dtype(device))
    return rows


class _GroupedProduct(torch.autograd.Function):
    """A product of groups of rows, which saves for backward what is kept of the weights, and not the weights."""

    @staticmethod
    def forward(
        ctx: Any,
        rows: Tensor,
        product: Callable[..., Tensor],
        offsets: Tensor,
        whole: Callable[[Sequence[Tensor], torch.dtype], Tensor],
        turned: bool,
        *stored: Tensor,
    ) -> Tensor:
        ctx.product, ctx.whole, ctx.turned = product, whole, turned
        ctx.save_for_backward(offsets, *stored)
        weight = whole(stored, rows.dtype)
        return product(rows, weight.transpose(1, 2) if turned else weight, offs=offsets)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,) = gradients
        offsets, *stored = ctx.saved_tensors
        weight = ctx.whole(stored, gradient.dtype)
        back = ctx.product(gradient, weight if ctx.turned else weight.transpose(1, 2), offs=offsets)
        return back, *(None for _ in range(4 + len(stored)))


def expert_weights(module: nn.Module) -> dict[str, nn.Parameter]:
    """Return the parameters of a module that hold a matrix for each expert, by name, where it is one that transformers runs in several ways.

    Such a class says how many experts there are, and how their matrices lie.
    """
    count = getattr(module, "num_experts", None)
    if not isinstance(count, int) or not isinstance(getattr(module, "is_transposed", None), bool):
        return {}
    return {
        name: parameter
        for name, parameter in module.named_parameters(recurse=False)
        if parameter.dim() == 3 and parameter.shape[0] == count and parameter.is_floating_point()
    }


def has_experts(module: nn.Module) -> bool:
    """Return whether a module holds weights of experts, whole or quantised."""
    quantised = any(isinstance(child, QuantisedExperts) for child in module.children())
    return quantised or bool(expert_weights(module))
