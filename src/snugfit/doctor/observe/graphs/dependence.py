"""The dependence of a score: gradients of one score with respect to what the layer that reads the tokens gave.

Read through a graph that the script is about to differentiate itself, once a model. Nothing is looked at where that could be seen:
under hooks, under recompute, in functions of the script's own, on ranks.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, distributed, nn

from snugfit.doctor.observe.graphs.graph_nodes import line_of, mixing_line
from snugfit.doctor.observe.recording.attribute_patches import Patches
from snugfit.doctor.observe.recording.internals import is_beside_mask, padded_behind, size_of_result

MOST_NODES = 20_000


class Anchor(NamedTuple):
    """The output of the layer that read the tokens, of which the graph of the scores is made."""

    model: int
    output: Tensor


class Dependence:
    """The reading of the tokens of the last forward pass, and models that were looked at."""

    def __init__(self) -> None:
        self._anchor: Anchor | None = None
        self._looked: set[int] = set()
        self._hooked = False

    def install(self, patches: Patches) -> None:
        """See whether the script, or what it uses, has hooks that would notice one more pass through a graph."""
        for name in ("register_hook", "retain_grad"):
            patches.wrap(Tensor, name, self._hooking)
        patches.wrap(torch.autograd.graph.saved_tensors_hooks, "__enter__", self._hooking)
        for name in (
            "register_full_backward_hook",
            "register_full_backward_pre_hook",
            "register_backward_hook",
        ):
            patches.wrap(nn.Module, name, self._hooking)

    def _hooking(self, original: Any) -> Any:
        def register(*args: Any, **kwargs: Any) -> Any:
            self._hooked = True
            return original(*args, **kwargs)

        return register

    @property
    def hooked(self) -> bool:
        """Return whether the script has hooks that would notice a look at a graph."""
        return self._hooked

    def begin(self) -> None:
        """Forget the last forward pass."""
        self._anchor = None

    def after(self, model: int, output: Any) -> None:
        """Keep what the layer that read a model's last tokens gave."""
        if (
            model not in self._looked
            and not self._hooked
            and isinstance(output, Tensor)
            and output.requires_grad
        ):
            self._anchor = Anchor(model, output)

    def take(self) -> Anchor | None:
        """Return what the tokens were read as, once a model."""
        anchor, self._anchor = self._anchor, None
        if anchor is None or anchor.model in self._looked or is_noticed(hooked=self._hooked):
            return None
        self._looked.add(anchor.model)
        return anchor


def is_noticed(*, hooked: bool) -> bool:
    """Return whether one more pass through a graph of the script's would be noticed: by its hooks, by other ranks, or by torch's search for anomalies."""
    ranks = distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1
    return hooked or ranks or torch.is_anomaly_enabled()


def sensitivity(score: Tensor, anchor: Tensor) -> Tensor | None:
    """Return the gradient of a score with respect to what the tokens were read as; None where it cannot be looked at."""
    if not score.requires_grad or not is_plain(score.grad_fn):
        return None
    try:
        return torch.autograd.grad(score, anchor, retain_graph=True, allow_unused=True)[0]
    except RuntimeError:  # a value of the graph was changed in place: the script's own pass says so
        return None


def attends_over(node: Any, length: int) -> bool:
    """Return whether attention over so many places is among what a score was computed from."""
    todo, seen = [node], set[Any]()
    while todo and len(seen) < MOST_NODES:
        node = todo.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        kind = type(node).__name__
        if kind.startswith("ScaledDotProduct"):
            return True
        size = size_of_result(node)
        if kind.startswith("Softmax") and len(size) > 2 and size[-2:] == (length, length):
            return True
        todo += [each for each, _ in node.next_functions]
    return False


def mixed_at(node: Any, length: int) -> str:
    """Return the line of the last layer that mixed so many places, of which a score was computed: attention, by torch's function or by a softmax; "" where none is known."""
    todo, seen = [node], set[Any]()
    while todo and len(seen) < MOST_NODES:
        node = todo.pop(0)
        if node is None or node in seen:
            continue
        seen.add(node)
        weighs = type(node).__name__.startswith("Softmax") and size_of_result(node)[-2:] == (length, length)
        line = mixing_line(node) or (line_of(node) if weighs else "")
        if line:
            return line
        todo += [each for each, _ in node.next_functions]
    return ""


def looks_ahead_at(node: Any) -> str:
    """Return the line of the last convolution of places that a score was computed from which was padded behind them, and not cut there; "" where none is known."""
    todo: list[tuple[Any, Any, str]] = [(node, None, "")]
    seen = set[Any]()
    while todo and len(seen) < MOST_NODES:
        node, user, line = todo.pop(0)
        if node is None or node in seen:
            continue
        seen.add(node)
        line = mixing_line(node) or line
        cut = user is not None and type(user).__name__.startswith("Slice")
        if padded_behind(node) and line and not cut:
            return line
        todo += [(each, node, line) for each, _ in node.next_functions]
    return ""


def pooled_at(node: Any, rows: int, length: int) -> str:
    """Return the line of the last mean or sum over the places of rows that a score was computed from; "" where there is none.

    What is multiplied by a constant before it, as by a mask, is weighed.
    """
    todo, seen = [node], set[Any]()
    while todo and len(seen) < MOST_NODES:
        node = todo.pop(0)
        if node is None or node in seen:
            continue
        seen.add(node)
        parts = [each for each, _ in node.next_functions]
        if type(node).__name__ in ("MeanBackward1", "SumBackward1") and parts[0] is not None:
            size, masked = size_of_result(parts[0]), is_beside_mask(parts[0])
            line = line_of(node)
            if size[:2] == (rows, length) and len(size) == 3 and line and not masked:
                return line
        todo += parts
    return ""


def is_plain(node: Any) -> bool:
    """Return whether a graph is one of torch's own functions alone."""
    todo, seen = [node], set()
    while todo:
        node = todo.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if len(seen) > MOST_NODES or isinstance(node, torch.autograd.function.BackwardCFunction):
            return False
        todo += [each for each, _ in node.next_functions]
    return True
