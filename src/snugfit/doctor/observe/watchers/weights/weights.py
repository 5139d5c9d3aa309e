"""Fingerprints of a model's weights: which state was evaluated, which was saved."""

from __future__ import annotations

import hashlib
import math
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

WITNESSES = 3
MOST_ELEMENTS = 4096
TRAIL = 4
"""So many of the weights of earlier updates are kept, and the first."""
NEAR = 0.5
"""An average bends away from the way between two states, and another model's weights lie farther from it than it is long."""
_WRAPPERS = ("module.", "_orig_mod.", "_fsdp_wrapped_module.")


def plain_name(name: str) -> str:
    """Return the name without what DataParallel, AveragedModel and torch.compile put into it."""
    for wrapper in _WRAPPERS:
        name = name.replace(wrapper, "")
    return name


def digest(tensors: Sequence[Tensor]) -> str:
    """Return the same for the same bits, whatever the device."""
    hasher = hashlib.blake2b(digest_size=8)
    for tensor in tensors:
        flat = tensor.detach().reshape(-1)[:MOST_ELEMENTS].cpu().contiguous()
        hasher.update(flat.view(torch.uint8).numpy().tobytes())
    return hasher.hexdigest()


class Weights:
    """A few small parameters of each model stand for all of it: its witnesses."""

    def __init__(self) -> None:
        self._stepped: dict[tuple[str, ...], dict[int, list[Tensor]]] = {}
        self._known: dict[tuple[str, ...], None] = {}
        self._before: dict[int, list[Tensor]] = {}
        self._trail: dict[tuple[int, tuple[str, ...]], list[list[Tensor]]] = {}
        self._watched: dict[int, tuple[weakref.ref[nn.Module], dict[str, Tensor]]] = {}

    @staticmethod
    def witnesses(module: nn.Module) -> dict[str, Tensor]:
        """Return the smallest trainable parameters (any, where all are frozen), by plain name."""
        named = [(plain_name(name), parameter) for name, parameter in module.named_parameters()]
        candidates = [pair for pair in named if pair[1].requires_grad] or named
        return dict(sorted(candidates, key=lambda pair: (pair[1].numel(), pair[0]))[:WITNESSES])

    def of(self, module: nn.Module) -> str:
        """Fingerprint of a module's weights now."""
        return digest(list(self.witnesses(module).values()))

    def stepped(self, module: nn.Module, *, anew: bool = True) -> None:
        """Remember what the last optimizer step left, without waiting for the device; `anew`: look again which its witnesses are."""
        watched = self._watched.get(id(module))
        if anew or watched is None or watched[0]() is not module:
            self._watched[id(module)] = watched = weakref.ref(module), self.witnesses(module)
        witnesses = watched[1]
        self._known.setdefault(tuple(witnesses))
        stepped = self._stepped.setdefault(tuple(witnesses), {})
        if id(module) in stepped:
            self._before[id(module)] = stepped[id(module)]
        stepped[id(module)] = left = [_copy(each) for each in witnesses.values()]
        if anew:
            trail = self._trail.setdefault((id(module), tuple(witnesses)), [])
            del trail[1:-TRAIL]
            trail.append(left)

    def are_raw(self, module: nn.Module) -> bool:
        """Return whether these are the weights that the last step left in it, or in a model of this structure if it never stepped.

        True where nothing of this structure has stepped.
        """
        named = {plain_name(name): parameter for name, parameter in module.named_parameters()}
        watched, witnesses = self._watched.get(id(module), (None, {}))
        # its own first: another model may have some of its names, or it stepped before others of its parameters were frozen
        own = {tuple(witnesses): self._stepped[tuple(witnesses)]} if watched and watched() is module else {}
        for names, left in {**own, **self._stepped}.items():
            if all(name in named for name in names):
                now = [named[name].detach().reshape(-1)[:MOST_ELEMENTS] for name in names]
                candidates = [left[id(module)]] if id(module) in left else list(left.values())
                return any(_equal(now, candidate) for candidate in candidates)
        return True

    def lag(self, module: nn.Module) -> float:
        """Return how far the weights are from those of the trained model of the same structure, in the last move of these; -1 where there is none."""
        named = {plain_name(name): parameter for name, parameter in module.named_parameters()}
        for names, left in self._stepped.items():
            if all(name in named for name in names):
                now = [named[name].detach().reshape(-1)[:MOST_ELEMENTS] for name in names]
                steps = [(last, self._before[each]) for each, last in left.items() if each in self._before]
                moves = [(_apart(now, last), _apart(last, before)) for last, before in steps]
                return min((lag / move for lag, move in moves if lag >= 0 and move > 0), default=-1.0)
        return -1.0

    def way(self, module: nn.Module) -> float:
        """Return which part of the way from the first weights of the trained model of the same structure to its last ones these have gone.

        -1 where there is no such model, and where they lie apart from that way.
        """
        named = {plain_name(name): parameter for name, parameter in module.named_parameters()}
        for names, left in self._stepped.items():
            if not all(name in named for name in names):
                continue
            now = _joined([named[name].detach().reshape(-1)[:MOST_ELEMENTS] for name in names])
            for each, last in left.items():
                first = _joined(self._trail.get((each, names), [last])[0])
                whole = _joined(last) - first
                if first.shape == now.shape and bool(whole.any()):
                    part = float((now - first) @ whole / (whole @ whole))
                    apart = float((now - first - part * whole).norm() / whole.norm())
                    return part if apart < NEAR else -1.0
        return -1.0

    def backwards(self, module: nn.Module) -> float:
        """Return how much the weights lie back, from those that the last step left, towards earlier ones: the largest cosine; 0 without a trail."""
        watched, witnesses = self._watched.get(id(module), (None, {}))
        names = tuple(witnesses)  # as of the last step: others are there where some were frozen or unfrozen
        named = {plain_name(name): parameter for name, parameter in module.named_parameters()}
        if watched is None or watched() is not module or not all(name in named for name in names):
            return 0.0
        left = self._stepped[names][id(module)]
        last = _joined(left)
        change = _joined([named[name].detach().reshape(-1)[:MOST_ELEMENTS] for name in names]) - last
        ways = [_joined(each) - last for each in self._trail.get((id(module), names), []) if each is not left]
        ways = [each for each in ways if each.shape == change.shape and bool(each.any())]
        return max((float(functional.cosine_similarity(change, way, dim=0)) for way in ways), default=0.0)

    def of_like(self, module: nn.Module) -> str:
        """Fingerprint by the witnesses of the trained model of the same structure, so that two copies compare."""
        named = {plain_name(name): parameter for name, parameter in module.named_parameters()}
        for names in self._known:
            if all(name in named for name in names):
                return digest([named[name] for name in names])
        self._known.setdefault(
            tuple(self.witnesses(module))
        )  # such as a copy under other names, that is saved
        return self.of(module)

    def in_saved(self, saved: Any) -> list[str]:
        """Fingerprints of the known models whose weights are somewhere in a saved object."""
        fingerprints = []
        for state in states_in(saved):
            named = {
                plain_name(str(name)): value for name, value in state.items() if isinstance(value, Tensor)
            }
            fingerprints += [
                digest([named[name] for name in names])
                for names in self._known
                if names and all(name in named for name in names)
            ]
        return fingerprints


def _copy(parameter: Tensor) -> Tensor:
    """Return the first elements as they are now."""
    if parameter.numel() <= MOST_ELEMENTS:
        return (
            parameter.detach().clone().view(-1)
            if parameter.is_contiguous()
            else parameter.detach().reshape(-1).clone()
        )
    return parameter.detach().reshape(-1)[:MOST_ELEMENTS].clone()


def _joined(tensors: Sequence[Tensor]) -> Tensor:
    return torch.cat([each.reshape(-1).cpu().double() for each in tensors])


def _apart(one: list[Tensor], other: list[Tensor]) -> float:
    """Return the distance of two sets of weights; NaN where they have not the same forms and types."""
    if [(each.shape, each.dtype) for each in one] != [(each.shape, each.dtype) for each in other]:
        return math.nan
    return float((_joined(one) - _joined(other)).norm())


def _equal(now: list[Tensor], then: list[Tensor]) -> bool:
    return all(a.shape == b.shape and torch.equal(a.cpu(), b.cpu()) for a, b in zip(now, then, strict=True))


def states_in(saved: Any, depth: int = 3) -> list[Mapping[Any, Any]]:
    """Return all dictionaries in a saved object, modules as their state."""
    if isinstance(saved, nn.Module):
        return [saved.state_dict()]
    if not isinstance(saved, Mapping) or depth == 0:
        return []
    return [saved, *(state for value in saved.values() for state in states_in(value, depth - 1))]
