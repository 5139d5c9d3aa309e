"""The load-balancing loss of expert models from transformers, over the whole window however it is split."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from snugfit.core.batch import Batch
from snugfit.core.gradients import Gradients
from snugfit.core.loss_terms import LossTerms
from snugfit.core.scalar_reads import read
from snugfit.core.technique import BatchLoss
from snugfit.errors import SettingError
from snugfit.kit.autograd_graph import nodes_behind
from snugfit.system.device_copies import scalar_like

if TYPE_CHECKING:
    from snugfit.step.window_gradients import WindowCompute

METRIC = "router_loss"
"""The name of what is logged: the loss before its coefficient, as `outputs.aux_loss` is."""

_COEFFICIENTS = ("router_aux_loss_coef", "aux_loss_coef")
_TOP_K = "num_experts_per_tok"


class Routing(NamedTuple):
    """Sums over tokens and layers: how often each expert was among those that a token took, its probabilities, and the number of tokens."""

    picks: Tensor
    probabilities: Tensor
    tokens: Tensor


def routing_of(outputs: Any, mask: Tensor | None, top_k: int) -> Routing:
    """Return the sums that transformers' `load_balancing_loss_func` takes the means of; padding does not count."""
    layers = outputs.router_logits
    counted = None if mask is None else mask.reshape(-1, 1).to(layers[0].device, torch.float32)
    shape, device = layers[0].shape, layers[0].device
    picks, probabilities = torch.zeros(2, shape[-1], device=device)
    tokens = torch.zeros((), device=device)
    for logits in layers:
        weights = F.softmax(logits.to(device), dim=-1)
        experts = weights.topk(top_k, dim=-1).indices
        picked = torch.zeros_like(weights, dtype=torch.float32).scatter_(-1, experts, 1.0)
        weights = weights.float()
        if counted is not None:
            picked, weights = picked * counted, weights * counted
        picks, probabilities = picks + picked.sum(0), probabilities + weights.sum(0)
        tokens = tokens + (shape[0] if counted is None else counted.sum())
    return Routing(picks, probabilities, tokens)


def balance(window: Routing, probabilities: Tensor) -> Tensor:
    """`E · Σ f_e P_e`, with the fractions `f` and the number of tokens of the whole window: these tokens' part of it.

    Source: Fedus et al. 2021, arXiv:2101.03961, equations 4 to 6.
    """
    tokens = torch.where(window.tokens > 0, window.tokens, 1.0)
    return len(probabilities) * (window.picks / tokens * probabilities / tokens).sum()


@dataclass
class RouterLoss:
    """The innermost computation of a window for a model whose configuration has `output_router_logits`.

    In one pass the model's own `aux_loss` is added. Otherwise fractions of tokens are those of the whole window, on all ranks, found
    by a forward without gradient: a mean of the micro-batches' losses would be another loss.
    """

    model: nn.Module
    coefficient: float | None
    top_k: int | None
    _checked: bool = False
    _used: bool | None = None

    @classmethod
    def of(cls, model: nn.Module) -> RouterLoss | None:
        """Return the one of a model, or None where its configuration does not ask for it."""
        for part in model.modules():
            config = getattr(part, "config", None)
            inner = getattr(config, "text_config", config)
            if getattr(config, "output_router_logits", False) or getattr(
                inner, "output_router_logits", False
            ):
                places = [(holder, name) for holder in (part, inner) for name in _COEFFICIENTS]
                coefficient = next((getattr(h, n) for h, n in places if hasattr(h, n)), None)
                return cls(part, coefficient, getattr(inner, _TOP_K, None))
        return None

    def run(self, compute: WindowCompute) -> Gradients:
        """Return the window's gradients, of the loss with the routers' part."""
        alone = len(compute.passes()) == 1 and compute.step.strategy.world_size == 1
        loss = self._whole(compute.loss) if alone else self._in_parts(compute)
        return compute.replace(loss).run()

    def _whole(self, loss: BatchLoss) -> BatchLoss:
        """Return the loss of a window that is one pass."""

        def with_own(outputs: Any, batch: Batch) -> LossTerms:
            terms = loss(outputs, batch)
            if not self._has_loss(outputs) or self._is_used(terms, outputs):
                return terms
            own = outputs.aux_loss
            return replace(
                terms,
                values=terms.values + self.coefficient * own,
                parts=_with_routers(terms.parts, own, terms),
            )

        return with_own

    def _in_parts(self, compute: WindowCompute) -> BatchLoss:
        """Return the loss of micro-batches: by row, as a micro-batch may have no token that is scored but has routed some."""
        routing = self._over_window(compute)
        if routing is None:
            return compute.loss
        window, weight = routing
        rows = compute.batch.total
        each = weight / rows
        scale = torch.where(weight > 0, rows / weight, 0.0)
        whole = balance(window, window.probabilities)

        def with_part(outputs: Any, batch: Batch) -> LossTerms:
            terms = compute.loss(outputs, batch)
            if self._is_used(terms, outputs):
                raise SettingError(
                    "loss",
                    "uses outputs.aux_loss, which is of the tokens of one micro-batch",
                    "Leave it out: with output_router_logits=True it is added, over the whole window.",
                )
            terms = terms.by_row()
            assert terms.weights is not None and self.coefficient is not None and self.top_k is not None
            sums = torch.where(terms.weights > 0, terms.values * terms.weights, 0.0)
            own = routing_of(outputs, _mask(batch), self.top_k)
            added = self.coefficient * weight * balance(window, own.probabilities) / len(sums)
            parts = {
                name: torch.where(terms.weights > 0, part * terms.weights, 0.0) * scale
                for name, part in (terms.parts or {}).items()
            }
            return LossTerms(
                (sums + added) * scale,
                each.to(sums.dtype).expand_as(sums),
                _with_routers(parts, whole, terms),
            )

        return with_part

    def _over_window(self, compute: WindowCompute) -> tuple[Routing, Tensor] | None:
        """Return what the routers did with the window on all ranks, and the weight of its loss."""
        sums: list[Tensor] = []
        for part, outputs, counts in compute.scored():
            if not self._has_loss(outputs) or self.top_k is None:
                return None
            routing = routing_of(outputs, _mask(part), self.top_k)
            self._check(outputs, routing)
            weight = scalar_like(compute.loss(outputs, part).weight(), routing.tokens)
            values = torch.cat([*routing[:2], torch.stack([routing.tokens, weight])])
            sums.append(values * float(counts))
        total = torch.stack(compute.step.strategy.add_up(list(torch.stack(sums).sum(0))))
        experts = (len(total) - 2) // 2
        return Routing(total[:experts], total[experts:-2], total[-2]), total[-1]

    def _has_loss(self, outputs: Any) -> bool:
        """Return whether there is a loss to add; says it once where there is none."""
        if isinstance(getattr(outputs, "aux_loss", None), Tensor) and self.coefficient is not None:
            return True
        if not self._checked:
            self._checked = True
            warnings.warn(
                f"{type(self.model).__name__} has output_router_logits=True, and its outputs have no aux_loss with a coefficient: the "
                "routers are not balanced by a loss. Compute it in a loss of your own, or set output_router_logits=False.",
                stacklevel=2,
            )
        return False

    def _is_used(self, terms: LossTerms, outputs: Any) -> bool:
        """Return whether a loss of the user's own has added the routers' already; asked once."""
        if self._used is None:
            own = outputs.aux_loss.grad_fn
            self._used = own is not None and any(node is own for node in nodes_behind(terms.values))
        return self._used

    def _check(self, outputs: Any, routing: Routing) -> None:
        """Compare with the model's own loss, once.

        Raises:
            SettingError: it is another one.
        """
        if self._checked:
            return
        self._checked = True
        own = balance(routing, routing.probabilities)
        apart = read((outputs.aux_loss - own).abs() / own, assume=0.0)
        if apart > _TOLERANCE:
            raise SettingError(
                "plan.micro_batch",
                f"the aux_loss of {type(self.model).__name__} is {apart:.1e} off the load-balancing loss that can be "
                "taken over micro-batches or ranks",
                "Give micro_batch=None on one device, or set output_router_logits=False.",
            )


_TOLERANCE = 1e-2
"""Of a loss in 16 bit; another formula is off by more."""


def _with_routers(parts: Mapping[str, Tensor] | None, loss: Tensor, terms: LossTerms) -> dict[str, Tensor]:
    """Return the parts of a loss with that of the routers, before its coefficient."""
    return {**(parts or {}), METRIC: loss.detach().to(terms.values.dtype).expand_as(terms.values)}


def _mask(batch: Batch) -> Tensor | None:
    return batch.data.get("attention_mask") if isinstance(batch.data, Mapping) else None
