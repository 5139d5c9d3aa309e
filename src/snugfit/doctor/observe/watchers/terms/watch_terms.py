"""Watch the terms of what is differentiated: constants, sums alone, means within means, overlaps of raw scores, and terms that are left out."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from snugfit.doctor.observe.events.run_events import Fault
from snugfit.doctor.observe.events.script_events import SummedTerm, ZeroGrad
from snugfit.doctor.observe.events.term_events import (
    ConstantTerm,
    MeanInMean,
    PulledTogether,
    RawOverlap,
    SummedLoss,
    TermLeftOut,
)
from snugfit.doctor.observe.graphs.differences import shown_by
from snugfit.doctor.observe.graphs.graph_nodes import leaves_below, leaves_of, line_of, mark_constant_rows
from snugfit.doctor.observe.graphs.loss_graph import (
    COSINE,
    Term,
    addends_of,
    is_passed_over,
    nested_mean,
    pulled_together,
    raw_overlap,
    share_of_mean,
    sum_beside_mean,
    summed_term,
    sums_in,
    terms_of,
)
from snugfit.doctor.observe.recording.attribute_patches import Patches
from snugfit.doctor.observe.recording.internals import script_as
from snugfit.doctor.observe.recording.recorder import Recorder
from snugfit.doctor.observe.recording.script_frames import is_own, line_in, own_frames, where
from snugfit.doctor.observe.source.lost_terms import line_of_cut
from snugfit.doctor.observe.watchers.tensors.watch_shapes import note_table
from snugfit.doctor.observe.watchers.terms.watch_alike import AlikeWatch

_Call = Callable[..., Any]
_CONSTANT, _USED, _IN_GRAPH = "snugfit constant", "snugfit differentiated", "snugfit reached"
_LOSS = re.compile(r"loss|(^|_)(kld?|kl_div|penalty|gp|reg|regulari[sz]er|aux)(_|$|\d)", re.IGNORECASE)
_NO_LOSS = re.compile(r"approx|old|mean|avg|average|running|val|test|eval", re.IGNORECASE)
MOST_REACHED = 400
_SLACK = 1e-3
LEAST_LOST, MOST_LOST, MOST_LEAVES, MOST_ADDENDS = 3, 8, 32, 8
MOST_READ = 4
"""Sums whose graph is held until each optimizer has stepped, to see what became of their terms."""


class _Sum(NamedTuple):
    """A sum that was read: what it was made of, where it was read, and how many optimizers have stepped since."""

    node: Any
    terms: tuple[Any, ...]
    at: str
    steps: int = 0


class _Addend(NamedTuple):
    """A term of what was differentiated that is computed of none of the weights that stepped then: where, those that it is of, and how much had happened."""

    at: str
    leaves: frozenset[int]
    owners: frozenset[int]
    place: int


class TermWatch:
    """A watcher of the graphs of losses in the first updates, where no hook of the script would see that they are read."""

    def __init__(self, recorder: Recorder, alike: AlikeWatch) -> None:
        self._recorder, self.alike = recorder, alike
        self._read: list[_Sum] = []
        self._addends: list[tuple[str, frozenset[int]]] = []
        self._unreached: list[_Addend] = []
        self._gradients: list[tuple[list[Any], str]] = []
        self._leaves: dict[frozenset[int], str] = {}
        self._lost = 0
        self._differentiated_at = ""
        self._stepped = False
        self._summed: tuple[str, int, float] | None = None
        self.share: float | None = None

    def install(self, patches: Patches) -> None:
        for name in ("__add__", "__iadd__", "__radd__", "add", "__sub__"):
            patches.wrap(Tensor, name, self._adding)
        patches.wrap(torch.autograd, "grad", self._grading)
        in_c = torch.cosine_similarity
        patches.wrap(torch, "cosine_similarity", self._comparing)
        script_as(torch.cosine_similarity, in_c)
        # one function under two names: torch.compile knows it by torch's, and would follow another one to what it does not know
        patches.wrap(functional, "cosine_similarity", lambda _: torch.cosine_similarity)

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
                    _look_at_sum(recorder, self.alike, one, other, result, adds=adds)
                    if adds and isinstance(other, Tensor):
                        note_table(recorder, one, other, result)
            return result

        return add

    def note_read(self, value: Any) -> None:
        """Note a number that the script reads, of which the graph may have terms that nothing differentiates."""
        node = getattr(value, "grad_fn", None)
        if node is None or value.dim():
            return
        terms = tuple({each.node: None for each in terms_of(node)})
        self._note_lost(value, terms)
        if not self._recorder.detailed or len(self._read) >= MOST_READ:
            return
        if len(terms) > 1:
            self._read.append(_Sum(node, terms, where()))
            if self._stepped and any(_is_marked(each, _USED) for each in terms):  # of the update that is over
                self._judge()

    def _note_lost(self, value: Tensor, terms: tuple[Any, ...]) -> None:
        """Note a loss that can be differentiated no more, and never was: it has a weight, or is called so, and is no other score of what was learned."""
        if self._lost >= MOST_LOST or not terms or not all(map(is_passed_over, terms)):
            return
        name, weighed = _name_of(value), any(abs(each.factor) != 1 for each in terms_of(value.grad_fn))
        if not (weighed or _LOSS.search(name)) or _NO_LOSS.search(name):
            return
        leaves = frozenset(leaves_of(value))
        nearest = max(self._leaves, key=lambda each: len(leaves & each), default=frozenset[int]())
        if leaves & nearest and leaves not in self._leaves:
            self._lost += 1
            what = (
                f"`{name or 'a term'}` is computed and read, and nothing learns from it: what it is computed of is differentiated for another "
                "loss, and this one never is."
            )
            fix = "loss = first + weight * second\nloss.backward()   # the sum, not first"
            at = self._leaves[nearest]
            self._recorder.add(Fault(at, self._recorder.log.updates, "term_left_out", what, fix, LEAST_LOST))

    def differentiated(self, value: Tensor, rows: int, scale: float) -> None:
        """Look at the terms of a value that is about to be differentiated; `rows` of the batch, `scale` that of the loss."""
        self._judge_unreached()
        self._stepped, self._differentiated_at, self._summed = False, where(), None
        if len(self._leaves) < MOST_LEAVES:
            self._leaves.setdefault(frozenset(leaves_of(value)), self._differentiated_at)
        addends = addends_of(value.grad_fn) if len(self._recorder.optimizers) > 1 else []
        self._addends = (
            [(line_of(each) or where(), frozenset(leaves_below(each))) for each in addends]
            if 1 < len(addends) <= MOST_ADDENDS
            else []
        )
        _mark_reached(value.grad_fn)
        terms = terms_of(value.grad_fn, 1 / scale)
        below = [each for node in sums_in(value.grad_fn) for each, _ in node.next_functions]
        for node in {value.grad_fn, *below, *(each.node for each in terms)} - {None}:  # those times 0 too
            _mark(node, _USED, True)
        share = share_of_mean(terms, rows)
        self.share = 1.0 if share is not None and abs(share - 1) < _SLACK else share
        self._look(value, terms, rows, scale)

    def _note_unreached(self, optimizer: Any) -> None:
        """Note the terms that are computed of other optimizers' weights alone, where others are of what steps now."""
        addends, self._addends = self._addends, []
        own = _weights_of(optimizer)
        self._unreached = [each for each in self._unreached if not each.leaves & own]
        if not any(leaves & own for _, leaves in addends):
            return
        others = [each for each in self._recorder.living(torch.optim.Optimizer) if each is not optimizer]
        for at, leaves in addends:
            owners = [each for each in others if leaves & _weights_of(each)]
            known = leaves <= frozenset().union(*map(_weights_of, owners))
            if leaves and not leaves & own and owners and known:
                numbers = frozenset(map(self._recorder.number, owners))
                self._unreached.append(_Addend(at, leaves, numbers, len(self._recorder.log.events)))

    def _judge_unreached(self) -> None:
        """Note terms whose gradients were cleared before the optimizers that have their weights have stepped."""
        unreached, self._unreached = self._unreached, []
        events = self._recorder.log.events
        for each in unreached:
            cleared = {
                n for event in events[each.place :] if isinstance(event, ZeroGrad) for n in event.optimizers
            }
            if not each.owners <= cleared:
                self._unreached = [*self._unreached[-MOST_ADDENDS:], each]
                continue
            what = (
                "A term of the loss has no way to the weights that step on it: its gradients go to those of another model, and are cleared there. "
                "What it is computed of was drawn, rounded or taken out of its graph."
            )
            fix = "action = distribution.rsample()   # not sample(); and no detach() or no_grad() on the way to the term"
            self._recorder.add(
                Fault(each.at, self._recorder.log.updates, "constant_term", what, fix, LEAST_LOST)
            )

    def differentiated_later(self, value: Tensor, rows: int, scale: float) -> None:
        """Look at a value of a later update for a sum beside a mean alone: the weight of a term may begin with nothing and grow."""
        self._look_at_sum(value, rows, scale, where())

    def _look_at_sum(self, value: Tensor, rows: int, scale: float, at: str) -> None:
        summed = sum_beside_mean(value, rows, scale)
        if summed is not None:
            update = self._recorder.log.updates
            self._recorder.add(SummedTerm(line_of(summed.node) or at, update, rows, summed.factor))

    def _look(self, value: Tensor, terms: list[Term], rows: int, scale: float) -> None:
        recorder, at, update = self._recorder, self._differentiated_at, self._recorder.log.updates
        for node in sums_in(value.grad_fn):
            for place, constant in (_metadata(node) or {}).get(_CONSTANT, ()):
                recorder.add(ConstantTerm(place, update, constant))
        self._look_at_sum(value, rows, scale, at)
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
        self._note_unreached(optimizer)
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
    """Return the name that the script has for a value which it reads, that of a loss before another; "" without."""
    names = [name for frame in own_frames(1) for name in _names_in(frame.f_locals, value)]
    return next((each for each in names if _LOSS.search(each)), names[0] if names else "")


def _names_in(held: dict[str, Any], value: Tensor) -> list[str]:
    """Return the names of a value among others, and in dictionaries and objects of the script's that these are."""
    names = [name for name, each in list(held.items()) if each is value]
    for each in list(held.values()):
        own = is_own(getattr(sys.modules.get(type(each).__module__), "__file__", None) or "<")
        inner = each if type(each) is dict else getattr(each, "__dict__", None) if own else None
        if isinstance(inner, dict) and inner is not held:
            names += [str(name) for name, part in list(inner.items()) if part is value]
    return names


def _weights_of(optimizer: Any) -> frozenset[int]:
    return frozenset(id(each) for group in optimizer.param_groups for each in group["params"])


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
    recorder: Recorder, alike: AlikeWatch, one: Tensor, other: Tensor | float, result: Tensor, *, adds: bool
) -> None:
    """Remember with a sum what of it has no graph: a number, or rows, from which a difference takes nothing over."""
    if one.is_nested or (isinstance(other, Tensor) and other.is_nested):  # of no shape
        return
    if one.dim() == 0 and _is_number_without_graph(one, other) and recorder.active:
        _mark_constant(result, constant := other if one.requires_grad else one)
        alike.note_sum(result, constant)
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
