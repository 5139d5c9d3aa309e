"""Watch the terms of what is differentiated: constants, sums alone, means within means, overlaps of raw scores, and terms that are left out."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from snugfit.doctor.observe.attribute_patches import Patches
from snugfit.doctor.observe.differences import shown_by
from snugfit.doctor.observe.graph_nodes import leaves_of, line_of, mark_constant_rows
from snugfit.doctor.observe.internals import script_as
from snugfit.doctor.observe.loss_graph import (
    COSINE,
    Term,
    nested_mean,
    pulled_together,
    raw_overlap,
    share_of_mean,
    sum_beside_mean,
    summed_term,
    sums_in,
    terms_of,
)
from snugfit.doctor.observe.lost_terms import line_of_cut
from snugfit.doctor.observe.script_events import SummedTerm
from snugfit.doctor.observe.term_events import (
    ConstantTerm,
    MeanInMean,
    PulledTogether,
    RawOverlap,
    SummedLoss,
    TermLeftOut,
)
from snugfit.doctor.observe.watchers.watch_log import Recorder, line_in, own_frames, where
from snugfit.doctor.observe.watchers.watch_shapes import note_table

_Call = Callable[..., Any]
_CONSTANT, _USED, _IN_GRAPH = "snugfit constant", "snugfit differentiated", "snugfit reached"
_LOSS = re.compile(r"loss|(^|_)(kld?|kl_div|penalty|gp|reg|regulari[sz]er|aux)(_|$|\d)", re.IGNORECASE)
_NO_LOSS = re.compile(r"approx|old|mean|avg|average|running|val|test|eval", re.IGNORECASE)
MOST_REACHED = 400
_SLACK = 1e-3
MOST_READ = 4
"""Sums whose graph is held until each optimizer has stepped, to see what became of their terms."""


class _Sum(NamedTuple):
    """A sum that was read: what it was made of, where it was read, and how many optimizers have stepped since."""

    node: Any
    terms: tuple[Any, ...]
    at: str
    steps: int = 0


class _Named(NamedTuple):
    """A loss that was read by its name, the numbers of the leaves that it is computed from, and where it was read."""

    node: Any
    name: str
    leaves: frozenset[int]
    at: str


class TermWatch:
    """A watcher of the graphs of losses in the first updates, where no hook of the script would see that they are read."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._read: list[_Sum] = []
        self._named: list[_Named] = []
        self._gradients: list[tuple[list[Any], str]] = []
        self._leaves: list[frozenset[int]] = []
        self._differentiated_at = ""
        self._stepped = False
        self._summed: tuple[str, int, float] | None = None
        self.share: float | None = None

    def install(self, patches: Patches) -> None:
        for name in ("__add__", "__iadd__", "__radd__", "add", "__sub__"):
            patches.wrap(Tensor, name, self._adding)
        patches.wrap(torch.autograd, "grad", self._grading)
        in_c = torch.cosine_similarity
        for owner in (torch, functional):
            patches.wrap(owner, "cosine_similarity", self._comparing)
            script_as(owner.cosine_similarity, in_c)

    def _grading(self, original: _Call) -> _Call:
        """Remember gradients that are made to be differentiated again, as those of a penalty are."""
        recorder = self._recorder

        def grad(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            again = kwargs.get("create_graph", args[4] if len(args) > 4 else False)
            if again and recorder.detailed and not recorder.looking and recorder.here:
                with recorder.guard():
                    nodes = [each.grad_fn for each in result if each is not None and each.grad_fn is not None]
                    if nodes and len(self._gradients) < MOST_READ and recorder.active:
                        self._gradients.append((nodes, where()))
            return result

        return grad

    def _comparing(self, original: _Call) -> _Call:
        """Remember with cosines what they compare, where both sides have a graph."""
        recorder = self._recorder

        def cosine_similarity(x1: Any, x2: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(x1, x2, *args, **kwargs)
            if (
                recorder.detailed
                and not recorder.looking
                and isinstance(x1, Tensor)
                and isinstance(x2, Tensor)
                and not torch.compiler.is_dynamo_compiling()
                and recorder.here
            ):
                with recorder.guard():
                    if x1.grad_fn is not None and x2.grad_fn is not None and recorder.active:
                        _mark(result.grad_fn, COSINE, (x1.grad_fn, x2.grad_fn, where()))
            return result

        return cosine_similarity

    def _adding(self, original: _Call) -> _Call:
        recorder = self._recorder
        adds = "sub" not in original.__name__

        def add(one: Any, other: Any, **kwargs: Any) -> Any:
            result = original(one, other, **kwargs)
            if (
                recorder.detailed
                and not recorder.looking
                and isinstance(other, Tensor | float)
                and not torch.compiler.is_dynamo_compiling()
                and recorder.here
            ):
                with recorder.guard():
                    _look_at_sum(recorder, one, other, result, adds=adds)
                    if adds and isinstance(other, Tensor):
                        note_table(recorder, one, other, result)
            return result

        return add

    def note_read(self, value: Any) -> None:
        """Note a number that the script reads, of which the graph may have terms that nothing differentiates."""
        node = getattr(value, "grad_fn", None)
        if not self._recorder.detailed or node is None or value.dim() or len(self._read) >= MOST_READ:
            return
        self._note_named(value)
        terms = tuple({each.node: None for each in terms_of(node)})
        if len(terms) > 1:
            self._read.append(_Sum(node, terms, where()))
            if self._stepped and any(_is_marked(each, _USED) for each in terms):  # of the update that is over
                self._judge()

    def _note_named(self, value: Tensor) -> None:
        """Note a loss by its name that is read, and what it is computed from."""
        name = _name_of(value)
        if not _LOSS.search(name) or _NO_LOSS.search(name) or len(self._named) >= MOST_READ:
            return
        read = _Named(value.grad_fn, name, frozenset(leaves_of(value)), where())
        if self._stepped and not _is_marked(read.node, _IN_GRAPH):  # of the update that is over
            self._judge_named([read])
        elif not self._stepped:
            self._named.append(read)

    def _judge_named(self, named: list[_Named]) -> None:
        """Note losses that nothing which was differentiated is computed of, and that are computed from others of the weights than it is: no other score of the same output."""
        for read in named:
            same = not read.leaves or not self._leaves or any(read.leaves == each for each in self._leaves)
            learned = any(read.leaves & each for each in self._leaves)
            if not _is_marked(read.node, _IN_GRAPH) and not same and learned:
                self._recorder.add(TermLeftOut(self._differentiated_at, self._recorder.log.updates, read.at))

    def differentiated(self, value: Tensor, rows: int, scale: float) -> None:
        """Look at the terms of a value that is about to be differentiated; `rows` of the batch, `scale` that of the loss."""
        if self._stepped:
            self._leaves = []
        self._stepped, self._differentiated_at, self._summed = False, where(), None
        self._leaves.append(frozenset(leaves_of(value)))
        _mark_reached(value.grad_fn)
        terms = terms_of(value.grad_fn, 1 / scale)
        below = [each for node in sums_in(value.grad_fn) for each, _ in node.next_functions]
        for node in {value.grad_fn, *below, *(each.node for each in terms)} - {None}:  # those times 0 too
            _mark(node, _USED, True)
        share = share_of_mean(terms, rows)
        self.share = 1.0 if share is not None and abs(share - 1) < _SLACK else share
        self._look(value, terms, rows, scale)

    def _look(self, value: Tensor, terms: list[Term], rows: int, scale: float) -> None:
        recorder, at, update = self._recorder, self._differentiated_at, self._recorder.log.updates
        for node in sums_in(value.grad_fn):
            for place, constant in (_metadata(node) or {}).get(_CONSTANT, ()):
                recorder.add(ConstantTerm(place, update, constant))
        summed = sum_beside_mean(value, rows, scale)
        if summed is not None:
            recorder.add(SummedTerm(line_of(summed.node) or at, update, rows, summed.factor))
        alone = summed_term(terms, rows)
        if alone is not None and alone.factor:
            self._summed = line_of(alone.node) or at, rows, alone.factor
        pulled = pulled_together(terms)
        if pulled:
            recorder.add(PulledTogether(pulled, update))
        if nested_mean(terms):
            recorder.add(MeanInMean(at, update))
        recorder.log.events += shown_by(value)
        maker = raw_overlap(value)
        if maker:
            recorder.add(RawOverlap(at, update, maker))

    def before_step(self, optimizer: Any, *, limited: bool) -> None:
        """Judge what was read before an optimizer steps, and the rate at which a sum is learned; `limited`: its gradients were clipped."""
        self._stepped = True
        self._judge()
        summed, self._summed = self._summed, None
        if summed is not None and not limited and isinstance(optimizer, torch.optim.SGD):
            at, rows, factor = summed
            group = max(optimizer.param_groups, key=lambda each: float(each["lr"]))
            rate = float(group["lr"]) * rows * abs(factor) / max(1 - group["momentum"], 1e-3)
            self._recorder.add(SummedLoss(at, self._recorder.log.updates, rows, rate))

    def _judge(self) -> None:
        """Note sums of which a term is used and another one is not, once every optimizer has had its turn to use that."""
        gradients, self._gradients = self._gradients, []
        for nodes, at in gradients:
            if not any(_is_marked(each, _IN_GRAPH) for each in nodes) and self._differentiated_at:
                self._recorder.add(TermLeftOut(self._differentiated_at, self._recorder.log.updates, at))
        if not self._recorder.optimizers or len(self._recorder.optimizers) == 1:
            named, self._named = self._named, []
            self._judge_named(named)
        read, self._read = self._read, []
        for total in read:
            used = [_is_marked(each, _USED) for each in total.terms]
            if _is_marked(total.node, _USED) or all(used):
                continue
            if total.steps + 1 < len(self._recorder.optimizers):
                self._read.append(total._replace(steps=total.steps + 1))
            elif any(used):
                self._recorder.add(TermLeftOut(self._differentiated_at, self._recorder.log.updates, total.at))


def _name_of(value: Tensor) -> str:
    """Return the name that the script has for a value which it reads; "" without."""
    for frame in own_frames(1):
        for name, each in list(frame.f_locals.items()):
            if each is value:
                return name
            if type(each) is dict:
                name = next((str(key) for key, part in each.items() if part is value), "")
                if name:
                    return name
    return ""


def _mark_reached(node: Any) -> None:
    """Mark the functions near the end of what is differentiated, of which it is computed."""
    todo, seen = [node], set[Any]()
    while todo and len(seen) < MOST_REACHED:
        node = todo.pop(0)
        if node is None or node in seen:
            continue
        seen.add(node)
        _mark(node, _IN_GRAPH, True)
        todo += [each for each, _ in node.next_functions]


def _look_at_sum(
    recorder: Recorder, one: Tensor, other: Tensor | float, result: Tensor, *, adds: bool
) -> None:
    """Remember with a sum what of it has no graph: a number, or rows, from which a difference takes nothing over."""
    if one.is_nested or (isinstance(other, Tensor) and other.is_nested):  # of no shape
        return
    if one.dim() == 0 and _is_number_without_graph(one, other) and recorder.active:
        _mark_constant(result, other if one.requires_grad else one)
    elif (
        adds
        and isinstance(other, Tensor)
        and one.dim() > 0
        and one.requires_grad != other.requires_grad
        and one.shape == other.shape
    ):
        mark_constant_rows(result)


def _is_number_without_graph(one: Tensor, other: Any) -> bool:
    """Return whether one of two numbers that are added is a constant of the graph: a tensor, or what `item()` gave."""
    if isinstance(other, Tensor):
        return other.dim() == 0 and one.requires_grad != other.requires_grad
    return isinstance(other, float) and one.requires_grad


def _mark_constant(total: Tensor, constant: Tensor | float) -> None:
    """Remember with a sum which number without a graph is in it; nothing stands for a sum that begins."""
    if isinstance(constant, Tensor) and constant.is_complex():
        return
    value, metadata = float(constant), _metadata(total.grad_fn)
    if value and metadata is not None:
        metadata.setdefault(_CONSTANT, []).append((_line_of_cut(constant) or where(), value))


def _line_of_cut(constant: Tensor | float) -> str:
    """Return the line that took a number out of its graph, and set the name by which it is added; "" where none shows."""
    for frame in own_frames(1):
        named = [name for name, each in list(frame.f_locals.items()) if each is constant]
        line = line_of_cut(frame.f_code.co_filename, frame.f_lineno, named[0]) if named else 0
        return line_in(frame, line) if line else ""
    return ""


def _mark(node: Any, key: str, value: Any) -> None:
    metadata = _metadata(node)
    if metadata is not None:
        metadata[key] = value


def _is_marked(node: Any, key: str) -> bool:
    return key in (_metadata(node) or {})


def _metadata(node: Any) -> dict[str, Any] | None:
    """Return what may be written down with a node of a graph, for as long as that lives."""
    metadata: dict[str, Any] | None = getattr(node, "metadata", None)
    return metadata
