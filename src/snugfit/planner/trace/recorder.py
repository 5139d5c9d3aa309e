"""Recording a step: its operators, and each storage from its birth to its death, with what it is for."""

from __future__ import annotations

import bisect
import copy
import gc
import itertools
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any, NamedTuple
from unittest import mock

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass

from snugfit.core.layers import repeated_blocks
from snugfit.core.tree import map_tree
from snugfit.kit import skeleton
from snugfit.kit.phases import Remains, watched
from snugfit.kit.sharded_tensors import is_sharded
from snugfit.planner.cost.operator_costs import OpCosts, op_costs
from snugfit.planner.cost.records import Op, Parts, Phase, Place, Role, Storage, Trace
from snugfit.planner.cost.workspace import hidden_result_bytes
from snugfit.planner.trace.accumulation import is_sole
from snugfit.planner.trace.known_values import KnownValues
from snugfit.planner.trace.loops import counts, needed
from snugfit.planner.trace.operator_cache import Call, Done, New, OperatorCache, call_of, made_anew
from snugfit.planner.trace.operator_properties import Operator
from snugfit.planner.trace.python_overhead import Overhead, interposing
from snugfit.planner.trace.sequence import node_number, sequence_number


def never() -> bool:
    """Return that it is not late."""
    return False


class OutOfTime(Exception):
    """The time is over in which a plan was to be predicted."""


_NO_NODE = 1 << 62
"""What accumulates a gradient has no place among the nodes, and a number beyond all of theirs."""

_PLAIN = (FakeTensor, Tensor, nn.Parameter)
"""Tensors that are not made of others."""

_DEVICE: Any = torch.ops.prim.device.default
"""Which torch asks of fake tensors more often than it runs operators."""

_ADD: Any = torch.ops.aten.add.Tensor
_ADD_IN_PLACE: Any = torch.ops.aten.add_.Tensor

_NOWHERE = Place(-1, Phase.SETUP, -1, -1, "", -1)
"""The place before the first operator: no update has this number."""

_OF_A_LABEL = OpCosts("cpu", torch.float32, 0, 0, 0, 0)

_WHOLE_PHASES = (Phase.EVALUATION, Phase.SAVE, Phase.SETUP, Phase.PRIME)
"""Phases within which others are a part of them."""


class Recorder(TorchDispatchMode):
    """A mode that records every operator and the storages that operators make, on all devices.

    Tensors that were there before count once they are named by `holds`.

    Args:
        cache: what operators gave in runs before, which is added to.
        shortens: whether loops over parts that are alike run some of them, whose operators count for all.
        late: says whether the time is over in which a run was to be made.
    """

    def __init__(
        self,
        values: KnownValues,
        cache: OperatorCache | None = None,
        shortens: bool = False,
        late: Callable[[], bool] = never,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.trace = Trace()
        self.values = values
        self.operators = OperatorCache() if cache is None else cache
        self.update = 0
        self._shortens, self._late = shortens, late
        self._silent = False
        self._known: dict[int, tuple[weakref.ref[Any], int]] = {}
        self._phases: list[Phase] = []
        self._turn = self._micro_batch = -1
        self._costs: dict[tuple[Any, ...], OpCosts] = {}
        self._names: dict[int, str] = {}
        self._blocks: dict[str, int] = {}
        self._sharded = False
        self._modules: list[str] = []
        self._calls = 0  # of modules since the last operator
        self._since, self._made = [0], [""]  # since which node, which module computed
        self._places: dict[tuple[Any, ...], Place] = {}
        self._last = _NOWHERE
        self._node, self._storages = (
            (-1, 0),
            0,
        )  # that runs, with the storages that were there before; of the last operator
        self._made_before: dict[tuple[Any, ...], _Made] = {}
        self._again: set[int] = set()  # storages made where a block is computed again
        self._thread = threading.get_ident()
        self._around = Overhead()
        self._stack = ExitStack()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing is compiled here, and to keep each call from it takes time

    def __enter__(self) -> Recorder:
        super().__enter__()  # type: ignore[no-untyped-call]
        self._around = self._stack.enter_context(interposing())
        ways = (self._shortened, self._following) if self._shortens else (None, None)
        self._stack.enter_context(watched(self._labelled, *ways))
        # a copy that no operator makes: of a generator, at each update and before each block that is computed again
        self._stack.enter_context(mock.patch.object(torch, "get_rng_state", self._random_state))
        self._stack.callback(register_module_forward_pre_hook(self._entered).remove)
        self._stack.callback(register_module_forward_hook(self._left, always_call=True).remove)
        return self

    def __exit__(self, *error: Any) -> None:
        self._stack.close()
        super().__exit__(*error)  # type: ignore[no-untyped-call]

    def knows(self, model: nn.Module) -> None:
        """Give the model's modules their names, and its blocks their numbers."""
        self._names = {id(module): name for name, module in model.named_modules()}
        self._blocks = {name: number for number, name in enumerate(repeated_blocks(model))}
        self._places.clear()
        self._last = _NOWHERE
        self._sharded = any(is_sharded(parameter) for parameter in model.parameters())
        self.trace.parts = Parts.of(model)

    def holds(self, tensors: Iterable[Tensor], role: Role) -> None:
        """Say what the storages of tensors are for; those that were not seen yet are counted from now on."""
        for plain in _plain(tensors):
            storage = plain.untyped_storage()
            self._seen(storage, plain.device.type, -1)
            self.trace.storages[self._known[id(storage)][1]].role = role

    def numbered(self, tensors: Iterable[Tensor]) -> list[int]:
        """Return the numbers of tensors' storages, of those that were seen."""
        places = (id(plain.untyped_storage()) for plain in _plain(tensors))
        return [self._known[place][1] for place in places if place in self._known]

    def has_seen(self, tensor: Tensor) -> bool:
        """Return whether the storage of a tensor counts."""
        return bool(self.numbered([tensor]))

    def lacks(self, numbers: Iterable[int]) -> None:
        """Say that a run would not have made these storages."""
        for number in numbers:
            self.trace.storages[number].bytes = 0

    def resized(self, storage: torch.UntypedStorage) -> None:
        """Count a storage that was freed or allocated again without an operator; what it is for stays."""
        if id(storage) in self._known:
            number = self._known[id(storage)][1]
            device = self.trace.storages[number].device
            self._seen(storage, device, len(self.trace.ops) - 1)
            self.trace.storages[self._known[id(storage)][1]].role = self.trace.storages[number].role

    def begin(self) -> None:
        """Begin the run: what was made before and is kept without a name is the techniques' own."""
        gc.collect()
        for _, number in self._known.values():
            if self.trace.storages[number].role is Role.TEMPORARIES:
                self.trace.storages[number].role = Role.AVERAGES

    def finish(self) -> Trace:
        """Return the trace, with a role for what nobody has named: activations live from the forward until the backward."""
        trace = self.trace
        trace.bounded = tuple(dict.fromkeys(self.values.bounded))
        starts = [op.event for op in trace.ops]
        freed = {-event - 1: place for place, event in enumerate(trace.events) if event < 0}
        for number, storage in enumerate(trace.storages):
            if storage.role is not Role.TEMPORARIES or storage.op < 0:
                continue
            born = trace.ops[storage.op].place
            after = bisect.bisect_right(starts, freed.get(number, len(trace.events))) - 1
            died = trace.ops[after].place
            crosses = born.phase in (Phase.FORWARD, Phase.LOSS) and died.phase not in (
                Phase.FORWARD,
                Phase.LOSS,
            )
            again = number in self._again and died.module != born.module
            if crosses or again:
                storage.role = Role.ACTIVATIONS
        return trace

    @contextmanager
    def label(self, name: str) -> Iterator[None]:
        """Label a part of the run for as long as it takes.

        Raises:
            OutOfTime: it is late.
        """
        if self._late():
            raise OutOfTime
        phase = Phase(name)
        if self._phases and self._phases[0] in _WHOLE_PHASES:
            phase = self._phases[0]
        elif self._phases and self._phases[-1] is Phase.BACKWARD:
            phase = Phase.BACKWARD  # what is done with each gradient as it comes
        elif phase is Phase.PASS:
            self._turn += 1
            self._micro_batch = -1
        elif phase is Phase.FORWARD:
            self._micro_batch += 1
        elif phase in (Phase.ADJUST, Phase.OPTIMIZER, Phase.TECHNIQUES, Phase.UNSCALE):
            self._turn = self._micro_batch = -1
        self._phases.append(phase)
        try:
            yield
        finally:
            self._phases.pop()

    def leaving_nothing(self, kind: Hashable, make: Callable[[], object]) -> None:
        """Do what leaves nothing; where its like was done in a run before, record the operators and the storages of that."""
        kind, before = (kind, self._place()), self.operators.done
        if kind in before:
            self._record_again(before[kind])
            return
        start = self._now()
        make()
        done = self._done_since(start)
        if done is not None:
            before[kind] = done

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if func is _DEVICE and type(args[0]) is FakeTensor:
            return args[0].device
        for kind in types:
            if kind not in _PLAIN and issubclass(kind, Tensor):
                return NotImplemented  # a tensor of several parts: what it does with them is recorded
        kwargs = kwargs or {}
        if func is _ADD and self._adds_up(args[0]):
            func = _ADD_IN_PLACE  # fake gradients are added up beside each other, real ones in place
        operator = Operator.of(func)
        if operator.namespace == "prim":  # a question about a tensor
            return func(*args, **kwargs)
        call = call_of(func, args, kwargs)
        answered, result = (
            self.values.call(func, args, kwargs, call.tensors) if operator.asks else (False, None)
        )
        known = None if answered else self.operators.find(call)
        if known is not None:
            result, made = known.make(call.tensors, self.values.mode)
            costs = known.costs
        elif operator.namespace == "profiler":  # begins and ends a label, and takes no tensor
            with torch._C._DisableTorchDispatch():
                result, made, costs = func(*args, **kwargs), [], _OF_A_LABEL
        else:
            result = result if answered else func(*args, **kwargs)
            made, costs = self._costs_of(call, args, kwargs, result)
            if not answered:
                self.operators.learn(call, args, kwargs, result, costs)
        number, event, count = len(self.trace.ops), len(self.trace.events), len(self.trace.storages)
        self._storages = count
        if not answered:
            self.values.follow(func, args, kwargs, call.tensors, made)
        if self._silent:
            return result
        for tensor in made:
            if tensor.layout is torch.strided:
                device = tensor.fake_device if type(tensor) is FakeTensor else tensor.device
                self._seen(tensor.untyped_storage(), device.type, number)
        hidden = hidden_result_bytes(func, args)
        if hidden and isinstance(made[-1], FakeTensor):  # which lacks it
            self.trace.storages[self._known[id(made[-1].untyped_storage())][1]].bytes += hidden
        if self._modules and self._phases and self._phases[-1] is Phase.BACKWARD:
            self._again.update(range(count, len(self.trace.storages)))
        self.trace.ops.append(
            Op(
                operator.name,
                self._place(),
                costs.device,
                costs.dtype,
                costs.flops,
                costs.read,
                costs.written,
                event,
                costs.workspace,
                self._around.modes,
                self._around.packed_since(),
                page_bytes=costs.page_bytes,
                calls=self._calls,
            )
        )
        self._calls = 0
        return result

    def _adds_up(self, first: Any) -> bool:
        """Return whether an addition to a tensor is of gradients, in place where they are real.

        It is one to a parameter, or to a tensor whose gradient was there before the node that runs.
        """
        node = node_number()
        if node is None or self._modules or type(first) is not FakeTensor:
            return False
        if node >= _NO_NODE:
            return True
        since = self._node[1] if self._node[0] == node else len(self.trace.storages)
        known = self._known.get(id(first.untyped_storage()))
        return known is not None and known[1] < since and is_sole(first)

    def _costs_of(
        self, call: Call, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any
    ) -> tuple[list[Tensor], OpCosts]:
        """Return the tensors that an operator gave, and what it costs, which is found out once for each kind of arguments and result."""
        gave = Call(call.func)
        gave.take((result,))
        kind = (*call.kind, *gave.kind)
        if kind not in self._costs:
            self._costs[kind] = op_costs(call.func, args, kwargs, result)
        return gave.tensors, self._costs[kind]

    def _random_state(self) -> Tensor:
        state = torch.random.get_rng_state()
        self._seen(state.untyped_storage(), "cpu", len(self.trace.ops) - 1)
        return state

    def _labelled(self, name: str) -> Any:
        return self.label(name)

    def _shortened(
        self, parts: Sequence[Any], kinds: Sequence[Hashable], listed: bool, remains: Remains | None
    ) -> Iterator[Any]:
        """Yield those parts of a loop that are needed to know of all; all of them from where one asked for a number, by which others may differ."""
        if remains is not None:
            yield from self._two_of_each(parts, kinds, remains)
            return
        asked, due, run, ends = self.values.asked, set(needed(kinds)), [], [len(self.trace.ops)]
        last: dict[Hashable, list[Op]] = {}
        for place, part in enumerate(parts):
            start = len(self.trace.ops)
            if place in due or self.values.asked > asked:
                yield part
                run.append(place)
                ends.append(len(self.trace.ops))
                last[kinds[place]] = self.trace.ops[start:]
            elif listed:
                event = len(self.trace.events)
                self.trace.ops += [op.at(event) for op in last[kinds[place]]]
        if listed:
            return
        for times, (start, end) in zip(counts(kinds, run), itertools.pairwise(ends), strict=True):
            for op in self.trace.ops[start:end] if times > 1 else ():
                op.times *= times

    def _two_of_each(
        self, parts: Sequence[Any], kinds: Sequence[Hashable], remains: Remains
    ) -> Iterator[Any]:
        """Yield two parts of each kind, the second of which tells of all others: the first may leave something for all of them."""
        asked, run = self.values.asked, Counter[Hashable]()
        last: dict[Hashable, _Stretch] = {}
        for part, kind in zip(parts, kinds, strict=True):
            if (
                run[kind] > 1
                and self.values.asked == asked
                and self._taken_for_run(part, last[kind], remains)
            ):
                continue
            start = self._now()
            yield part
            run[kind] += 1
            last[kind] = _Stretch(part, *map(slice, start, self._now()))

    def _now(self) -> tuple[int, int, int]:
        return len(self.trace.ops), len(self.trace.events), len(self.trace.storages)

    def _taken_for_run(self, part: Any, like: _Stretch, remains: Remains) -> bool:
        """Record for a part what its like did, and leave what that left; False where that came to more than this tells."""
        trace = self.trace
        within = range(len(trace.storages))[like.storages]
        events = trace.events[like.events]
        if any(abs(event) - 1 not in within for event in events):
            return False  # it has let go of what was there before
        left: dict[int, Any] = {}

        def copied(plain: Tensor) -> Tensor:
            storage = plain.untyped_storage()
            number = self._known[id(storage)][1] if id(storage) in self._known else -1
            if number not in within:
                return plain  # which all have in common
            made = plain.clone()
            if number in left or made.untyped_storage().nbytes() != storage.nbytes():
                raise _OfSeveral
            left[number] = made.untyped_storage()
            return made

        self._silent = True
        try:
            with torch.no_grad():
                copies = map_tree(
                    lambda tensor: skeleton.like(tensor, copied), remains.of(like.part), copy.deepcopy
                )
        except _OfSeveral:
            return False
        finally:
            self._silent = False
        freed = {-event - 1 for event in events if event < 0}
        if {event - 1 for event in events if event > 0} - freed != left.keys():
            return False
        remains.leave(part, copies)
        ops, now, storages = (later - each.start for later, each in zip(self._now(), like[1:], strict=True))
        trace.storages += [replace(trace.storages[n], op=trace.storages[n].op + ops) for n in within]
        trace.events += [event + storages if event > 0 else event - storages for event in events]
        trace.ops += [op.at(op.event + now) for op in trace.ops[like.ops]]
        for number, storage in left.items():
            self._follow(storage, number + storages)
        return True

    def _following(self, kind: Hashable, tensors: Sequence[Tensor], make: Callable[[], Any]) -> Any:
        """Return what follows from some tensors; where its like was made before, with the operators and the storages of that."""
        if torch.is_grad_enabled() or self._around.modes or self._silent:
            return make()
        node, device = node_number(), tensors[0].device.type
        autocast = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
        call = Call(
            *(make, kind, torch.get_default_dtype(), torch.is_inference_mode_enabled()),
            *(autocast, node is not None and node >= _NO_NODE),
        )
        call.take(tensors)
        if not call.is_plain or any(map(self.values.knows, call.tensors)):
            return make()
        known = self._made_before.get(tuple(call.kind))
        if known is not None:
            return self._replayed(known)
        start = self._now()
        result = make()
        made = self._made_since(start, result)
        if made is not None:
            self._made_before[tuple(call.kind)] = made
        return result

    def _made_since(self, start: tuple[int, int, int], result: Any) -> _Made | None:
        """Return what was done since then, if it left this result and nothing else, all in one place."""
        how = made_anew(result)
        number = None if how is None else self._known[id(result.untyped_storage())][1]
        done = None if how is None or self.values.knows(result) else self._done_since(start, number)
        if how is None or done is None or any(op.place is not done.ops[0].place for op in done.ops):
            return None
        return _Made(done, how)

    def _replayed(self, made: _Made) -> Tensor:
        """Record the operators and the storages of what was made before, and return the like of its result."""
        base = self._record_again(made.done, self._place())
        if self._modules and self._phases and self._phases[-1] is Phase.BACKWARD:
            self._again.update(range(base, len(self.trace.storages)))
        result = made.result.make((), self.values.mode)
        assert made.done.left is not None
        self._follow(result.untyped_storage(), made.done.left + base)
        return result

    def _done_since(self, start: tuple[int, int, int], left: int | None = None) -> Done | None:
        """Return what was done since then, if it left one storage, or none, and let go of none that was there before."""
        trace, (first, event, base) = self.trace, start
        ops, events = trace.ops[first:], trace.events[event:]
        if not ops or self._calls or any(abs(each) <= base for each in events):
            return None
        events = [each - base if each > 0 else each + base for each in events]
        number = None if left is None else left - base
        alive = {each - 1 for each in events if each > 0} - {-each - 1 for each in events if each < 0}
        if alive != ({number} - {None}):
            return None
        storages = [replace(each, op=each.op - first) for each in trace.storages[base:]]
        return Done([op.at(op.event - event) for op in ops], events, storages, number)

    def _record_again(self, done: Done, place: Place | None = None) -> int:
        """Record what was done before, in another place where one is given, and return the number that its first storage has now."""
        trace, (first, event, base) = self.trace, self._now()
        self._storages = base
        trace.storages += [replace(each, op=each.op + first) for each in done.storages]
        trace.events += [each + base if each > 0 else each - base for each in done.events]
        trace.ops += [op.at(op.event + event, place) for op in done.ops]
        trace.ops[first].packed, trace.ops[first].calls = self._around.packed_since(), self._calls
        self._calls = 0
        return base

    def _place(self) -> Place:
        phase = self._phases[-1] if self._phases else Phase.SETUP
        module = self._modules[-1] if self._modules else ""
        if not self._modules and (node := node_number()) is not None and node < _NO_NODE:
            if node != self._node[0]:
                self._node = node, self._storages
            module = self._made[bisect.bisect_right(self._since, node) - 1]
        last = self._last
        if (
            module == last.module
            and phase is last.phase
            and self._micro_batch == last.micro_batch
            and self._turn == last.turn
            and self.update == last.update
        ):
            return last
        kind = self.update, phase, self._turn, self._micro_batch, module
        place = self._places.get(kind)
        if place is None:
            place = self._places[kind] = Place(*kind, self._block(module))
        self._last = place
        return place

    def _block(self, module: str) -> int:
        while module:
            if module in self._blocks:
                return self._blocks[module]
            module = module.rpartition(".")[0]
        return -1

    def _entered(self, module: nn.Module, _args: Any) -> None:
        self._calls += 1
        self._modules.append(self._names.get(id(module), self._modules[-1] if self._modules else ""))
        self._note()

    def _left(self, module: nn.Module, _args: Any, _outputs: Any) -> None:
        self._modules.pop()
        self._note()
        if self._sharded:  # its weights are still gathered
            own = (each for each in module._parameters.values() if each is not None)
            self.holds((each for each in own if not is_sharded(each)), Role.WEIGHTS)

    def _note(self) -> None:
        if threading.get_ident() != self._thread:  # computed again for a backward that another thread runs
            return
        self._since.append(sequence_number())
        self._made.append(self._modules[-1] if self._modules else "")

    def _seen(self, storage: Any, device: str, op: int) -> None:
        """Count a storage that is new, or that has another size."""
        place, size = id(storage), storage.nbytes()
        if place in self._known:
            number = self._known[place][1]
            if self.trace.storages[number].bytes == size:
                return
            self._freed(place)
        number = len(self.trace.storages)
        self.trace.storages.append(Storage(size, device, op))
        self.trace.events.append(number + 1)
        self._follow(storage, number)

    def _follow(self, storage: Any, number: int) -> None:
        """Count a storage as gone when it is let go of."""
        place = id(storage)
        self._known[place] = weakref.ref(storage, lambda _: self._freed(place)), number

    def _freed(self, place: int) -> None:
        _, number = self._known.pop(place)
        self.trace.events.append(-(number + 1))


class _Stretch(NamedTuple):
    """A part of a loop, and the operators, events and storages of the trace that it made."""

    part: Any
    ops: slice
    events: slice
    storages: slice


class _Made(NamedTuple):
    """The work for a result in memory of its own."""

    done: Done
    result: New


class _OfSeveral(Exception):
    """Tensors share memory, or have a part of it."""


def _plain(tensors: Iterable[Tensor]) -> Iterator[Tensor]:
    """Yield plain tensors, of which a tensor of several parts has some."""
    for tensor in tensors:
        if is_traceable_wrapper_subclass(tensor):
            names, _ = tensor.__tensor_flatten__()
            parts = (getattr(tensor, name) for name in names)
            yield from _plain(
                part for part in parts if isinstance(part, Tensor)
            )  # a DTensor names its mesh too
        elif tensor.layout == torch.strided:
            yield tensor
