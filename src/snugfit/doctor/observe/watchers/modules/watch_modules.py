"""Watch modules: in which mode they are called, on which rows, with which weights."""

from __future__ import annotations

import statistics
import sys
import weakref
from collections import Counter
from collections.abc import Callable
from types import FrameType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel

from snugfit.doctor.observe.events.log import ModelSeen, SwitchedOff
from snugfit.doctor.observe.events.script_events import Forward
from snugfit.doctor.observe.graphs.dependence import Dependence
from snugfit.doctor.observe.graphs.graph_nodes import mark_mixing
from snugfit.doctor.observe.recording.attribute_patches import Patches
from snugfit.doctor.observe.recording.companions import Companion, ModelCall, ModuleOutput
from snugfit.doctor.observe.recording.infinite_values import note_infinite
from snugfit.doctor.observe.recording.internals import is_compiled
from snugfit.doctor.observe.recording.own_source import (
    line_that_follows,
    line_that_moves_nothing,
    line_that_sets,
)
from snugfit.doctor.observe.recording.padding_tokens import has_axes_of
from snugfit.doctor.observe.recording.recorder import Recorder
from snugfit.doctor.observe.recording.script_frames import called_directly, name_in_script, where
from snugfit.doctor.observe.watchers.libraries.library_lines import note_library_runs
from snugfit.doctor.observe.watchers.libraries.tables import Tables
from snugfit.doctor.observe.watchers.libraries.watch_tables import look_at_scale
from snugfit.doctor.observe.watchers.modules.class_axes import ClassAxes
from snugfit.doctor.observe.watchers.modules.evaluation_graphs import EvaluationGraphs
from snugfit.doctor.observe.watchers.modules.stale_states import StaleStates
from snugfit.doctor.observe.watchers.modules.watch_best import look_for_aliases
from snugfit.doctor.observe.watchers.modules.watch_source import look_at_source
from snugfit.doctor.observe.watchers.optimizers.outsiders import Outsiders
from snugfit.doctor.observe.watchers.rows.row_digests import Rows, distinct_input, tensors_in
from snugfit.doctor.observe.watchers.rows.row_targets import RowTargets
from snugfit.doctor.observe.watchers.tensors.watch_cuts import note_parameters
from snugfit.doctor.observe.watchers.tensors.watch_graphs import KeptGraphs
from snugfit.doctor.observe.watchers.texts.stepped_tokens import look_at_step
from snugfit.doctor.observe.watchers.texts.watch_texts import (
    is_of_transformers,
    look_at_labels,
    look_at_masks,
    look_at_tokens,
    named_arguments,
)
from snugfit.doctor.observe.watchers.weights.frozen_norms import FrozenNorms
from snugfit.doctor.observe.watchers.weights.layer_inputs import Layers
from snugfit.doctor.observe.watchers.weights.loaded_weights import LoadedWeights
from snugfit.doctor.observe.watchers.weights.module_facts import (
    LIBRARIES,
    NORMS,
    RootFacts,
    computes_natively,
    differs_by_mode,
    is_recalibrating,
    is_stateless,
    misspelt_freezes,
)
from snugfit.doctor.observe.watchers.weights.own_states import OwnStates
from snugfit.doctor.observe.watchers.weights.put_parameters import PutParameters
from snugfit.doctor.observe.watchers.weights.ready_norms import ReadyNorms
from snugfit.doctor.observe.watchers.weights.swapped_weights import SwappedWeights
from snugfit.doctor.observe.watchers.weights.weights import Weights, plain_name

_Call = Callable[..., Any]
COMPILED = "torch.compile"
MOST_SCALES = 16
MOST_SWITCHES = 1024


class TimeFirst(NamedTuple):
    """A layer of the last forward pass that takes the first axis for the time, the shape of what it got, and whether that has the axes of the model's tokens."""

    kind: str
    at: str
    shape: torch.Size
    as_given: bool = False


class ModuleWatch:
    """A watcher of the modules that the script calls, and how."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.weights, self.rows, self.class_axes = Weights(), Rows(), ClassAxes()
        self.row_targets = RowTargets()
        self._all: weakref.WeakValueDictionary[int, nn.Module] = (
            weakref.WeakValueDictionary()
        )  # by id: some define a hash
        self._roots: dict[int, tuple[weakref.ref[nn.Module], ModelSeen]] = {}
        self._depth = 0
        self._inside: ModelSeen | None = None
        self._places: dict[int, tuple[weakref.ref[nn.Module], set[tuple[str, int]]]] = {}
        self._norm_rows: dict[int, dict[int, list[int]]] = {}
        self.outsiders = Outsiders(recorder)
        self._layers = Layers()
        self._facts: dict[int, RootFacts] = {}
        self._moved: dict[tuple[int, int], bool] = {}
        self.swapped = SwappedWeights(recorder, self.weights)
        self._looked: Counter[tuple[int, bool]] = Counter()
        self.own_states = OwnStates()
        self.loaded = LoadedWeights(recorder)
        self.graphs, self.evaluation_graphs = KeptGraphs(recorder), EvaluationGraphs(recorder)
        self.dependence = Dependence()
        self.ready = ReadyNorms(recorder)
        self.states = StaleStates(recorder)
        self._frozen_norms = FrozenNorms(recorder)
        self._switching = self._aliased = self._with_graph = False
        self._resting_depth = 0
        self._by_function: set[int] = set()
        self.handed: dict[StorageWeakRef, int] = {}
        self.drawn: list[Tensor] = []
        self.rows_in_batch = 0
        self._batch: weakref.ref[Tensor] | None = None
        self.scored_inputs: dict[str, list[int]] = {}
        self.time_first: TimeFirst | None = None
        self.recurs_at = ""
        self.put_parameters = PutParameters(recorder)
        self.last_trained = self.rows_drawn = 0
        self._learned: set[int] = set()
        self.tables = Tables()
        self.companions: list[Companion] = []

    @property
    def inside(self) -> bool:
        """Return whether a module is computing now."""
        return self._depth > 0

    @property
    def living(self) -> list[nn.Module]:
        """Return the modules that were made and live."""
        return list(self._all.values())

    @property
    def computing(self) -> bool:
        """Return whether a module with parameters is computing now, not a loss that is a module."""
        return self._inside is not None

    @property
    def batch(self) -> Tensor | None:
        """Return the batch of the last forward pass, while the script has it."""
        return None if self._batch is None else self._batch()

    def install(self, patches: Patches) -> None:
        self.dependence.install(patches)
        patches.wrap(nn.Module, "__call__", self._called)
        patches.wrap(nn.Module, "__init__", self._made)
        self.put_parameters.install(patches)
        patches.wrap(nn.Module, "train", self._switched)
        patches.wrap(torch, "compile", self._compiling)

    def note_function_of_mode(self, name: str) -> None:
        """Note that the model which is computing calls a function that drops in training alone."""
        if self._inside is not None and name not in self._inside.modal:
            self._inside.modal.append(name)
            self._by_function.add(self._inside.id)

    def suspend(self) -> ModelSeen | None:
        """Take calls of modules, until `go_on` gets the result, as made to compute activations again for a backward pass."""
        self._depth += 1
        inside, self._inside = self._inside, None
        return inside

    def go_on(self, inside: ModelSeen | None) -> None:
        """End what `suspend` began."""
        self._depth -= 1
        self._inside = inside

    def differentiated(self) -> None:
        """Note, after a backward pass, which rows were trained on, and what moves without an optimizer."""
        self.rows.backward()
        self.recorder.tokens.forget_steps()
        models = [(reference(), seen) for reference, seen in self._roots.values()]
        self.outsiders.after_backward([(module, seen) for module, seen in models if module is not None])

    def _compiling(self, original: _Call) -> _Call:
        def compile(*args: Any, **kwargs: Any) -> Any:
            with self.recorder.guard():
                if called_directly():
                    self.recorder.note_traced(COMPILED)
            return original(*args, **kwargs)

        return compile

    def _made(self, original: _Call) -> _Call:
        recorder = self.recorder

        def __init__(module: Any, *args: Any, **kwargs: Any) -> None:
            original(module, *args, **kwargs)
            if not torch.compiler.is_dynamo_compiling():
                with recorder.guard():
                    self._all[id(module)] = module
                    if self._inside is not None and recorder.detailed and recorder.here:
                        self.outsiders.made(module, where())

        return __init__

    def _switched(self, original: _Call) -> _Call:
        log = self.recorder.log

        def train(module: Any, mode: bool = True) -> Any:
            if self._switching:  # a part, by the call for the whole
                return original(module, mode)
            if self.recorder.resting and module.training is not mode:
                self.recorder.wake()
            if mode and (not log.train_calls or log.train_calls[-1] != log.updates):
                log.train_calls.append(log.updates)
            if not mode and module.training and len(log.switched_off) < MOST_SWITCHES and self.recorder.here:
                with self.recorder.guard():
                    log.switched_off.append(SwitchedOff(log.updates, self.recorder.number(module), where()))
            self._switching = True
            try:
                switched = original(module, mode)
            finally:
                self._switching = False
            with self.recorder.guard():
                self._frozen_norms.switched(module, training=mode)
            return switched

        return train

    def _called(self, original: _Call) -> _Call:
        recorder = self.recorder

        def __call__(module: Any, *args: Any, **kwargs: Any) -> Any:
            # within a model that was called in a rest, also where that has ended since
            if torch.compiler.is_dynamo_compiling() or self._resting_depth:
                return original(module, *args, **kwargs)
            if recorder.rests:
                if torch.is_grad_enabled():
                    return self._rest(original, module, args, kwargs)
                recorder.wake()
            # a part of a model, later; but for what a decoder reads in an evaluation
            plain = self._depth > 0 and not recorder.detailed and "labels" not in kwargs
            plain = plain and (type(module) is not nn.Embedding or torch.is_grad_enabled())
            if plain or not recorder.active:
                return original(module, *args, **kwargs)
            with recorder.guard():
                self._begin(module, args, kwargs, sys._getframe(1))
            self._depth += 1
            output, ended = None, False
            try:
                output = original(module, *args, **kwargs)
                ended = True
            finally:
                self._depth -= 1
                if self._inside is not None and (self._depth == 0 or recorder.detailed):
                    with recorder.guard():
                        if ended:
                            self._end(module, self._inside, output)
                        if self._depth == 0:
                            self._close()
            return output

        return __call__

    def _rest(self, original: _Call, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a module in an update that rests: of one that is trained the rows are noted, while there are new ones."""
        if self.rows.brings_new:
            with self.recorder.guard():
                seen = self._roots.get(self.recorder.number(module), (None, None))[1]
                facts = None if seen is None else self._facts.get(seen.id)
                inputs = tensors_in([*args, *kwargs.values()]) if facts is not None and facts.trained else []
                batch = next((each for each in inputs if each.dim() > 1), None)
                if seen is not None and batch is not None and not batch.requires_grad:
                    self.rows.forward(seen.id, distinct_input(batch, inputs), "", grad=True, place=-1)
        self._resting_depth += 1
        try:
            return original(module, *args, **kwargs)
        finally:
            self._resting_depth -= 1

    def _begin(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], caller: FrameType
    ) -> None:
        """Look at a call before it is made."""
        if is_compiled(module):
            self.recorder.note_traced(COMPILED)
        if self._depth == 0:
            self._root(module, args, kwargs)
        else:
            self._nested(module, args, caller)
        inner = self._unwrapped(module) if self._depth == 0 else module
        if is_of_transformers(type(inner).__mro__):
            named = named_arguments(type(inner).forward, args, kwargs)
            look_at_masks(self.recorder, inner, named)
            look_at_labels(self.recorder, module, named)
        if self.recorder.detailed and isinstance(module, nn.RNNBase):
            self.states.before(module, args)

    def _end(self, module: nn.Module, root: ModelSeen, output: Any) -> None:
        """Look at what a call gave."""
        if self._depth == 0:
            self.class_axes.note_output(root.id, output)
            if self._with_graph and not module.training and self._facts[root.id].trained:
                self.evaluation_graphs.note(root.id, tensors_in([output]), self.rows_in_batch)
            for companion in [] if self._with_graph else self.companions:
                companion.evaluated(root.id, output)
        if self.recorder.detailed:
            self.graphs.note_output(root.id, output)
            for companion in self.companions:
                companion.ended(ModuleOutput(module, output, self._depth == 0))
            if isinstance(module, nn.RNNBase):
                self.states.after(module, output)
            if isinstance(module, nn.RNNBase | nn.Conv1d):
                mark_mixing(output[0] if isinstance(output, tuple) else output, where())
            self._layers.after(module, output)
            if isinstance(module, nn.Embedding) and isinstance(output, Tensor):
                self.recorder.tokens.note_read(module, output)
            if self.recorder.tokens.reader is module:
                self.dependence.after(root.id, output)

    def _facts_of(self, module: nn.Module) -> RootFacts | None:
        """Return facts of a model, read anew where this update is looked at closely; None for one without parameters."""
        number, optimized = self.recorder.number(module), self.recorder.optimized
        facts = self._facts.get(number)
        if facts is None or self.recorder.close or facts.optimized != optimized:
            if next(module.parameters(), None) is None:
                return None
            self._facts[number] = facts = RootFacts(module, optimized, trained=self._is_trained(module))
        return facts

    @staticmethod
    def _unwrapped(module: nn.Module) -> nn.Module:
        """Return what DistributedDataParallel wraps."""
        inner = dict(module._modules.items()).get("module")  # a script's modules are no dict
        return inner if isinstance(inner, nn.Module) else module

    def _root(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._inside = None
        facts = self._facts_of(module)
        if facts is None:
            return
        self.recorder.tick()
        seen = self._inside = self._model(module)
        grad, at = torch.is_grad_enabled() and not torch.is_inference_mode_enabled(), where()
        self._with_graph = grad
        if grad and facts.trained:
            self.last_trained = seen.id
        inputs = [each for each in tensors_in([*args, *kwargs.values()]) if each.dim() > 0]
        batch = next((each for each in inputs if each.dim() > 1), inputs[0] if inputs else None)
        device = facts.device(module)
        autocast = ""
        if torch.amp.is_autocast_available(device.type) and torch.is_autocast_enabled(device.type):
            autocast = str(torch.get_autocast_dtype(device.type)).removeprefix("torch.")
        recalibrates, trained = not grad and module.training and is_recalibrating(), facts.trained
        self._batch = None if batch is None else weakref.ref(batch)
        self.recorder.tokens.begin(inputs, keeps=grad and self.recorder.detailed)
        self.rows_in_batch = 0 if batch is None else batch.shape[0]
        self.time_first, self.recurs_at = None, ""
        self.dependence.begin()
        self.loaded.computes(module)
        if trained and grad:
            self._frozen_norms.before(module)
        if trained or seen.averaged_of:
            self.ready.before(module, grad=grad, recalibrates=recalibrates)
        elif not grad and self.recorder.log.updates:
            self.ready.of_copy(module)
        if grad and trained and self.recorder.detailed:
            note_infinite(self.recorder, inputs)
            for companion in self.companions:
                companion.begins(ModelCall(module, inputs))
        scale, low, high = self._scale(seen.id, batch, grad=grad)
        if trained and scale and batch is not None:
            look_at_scale(self.recorder, batch, grad=grad)
        if batch is not None and not recalibrates and (seen.averaged_of or trained):
            place = len(self.recorder.log.events)
            distinct = distinct_input(batch, inputs)
            self.rows.forward(seen.id if trained else 0, distinct, at, grad=grad, place=place)
        elif batch is not None and not grad and self.recorder.log.updates:
            self.rows.scored_by_copy(distinct_input(batch, inputs))
        raw = grad or (not isinstance(module, AveragedModel) and self.weights.are_raw(module))
        self.swapped.before(module, seen.id, trained=trained, grad=grad, raw=raw)
        self.recorder.add(
            Forward(
                at,
                self.recorder.log.updates,
                seen.id,
                module.training,
                facts.affected or (module.training and seen.id in self._by_function),
                grad,
                recalibrates,
                0 if batch is None else batch.shape[0],
                "" if grad and self._began(seen.id) else self.weights.of_like(module),
                raw,
                autocast,
                device.type,
                computes_natively(device, autocast or seen.dtype),
                scale,
                -1.0 if grad or trained else self.weights.lag(module),
                low,
                high,
                "" if grad or raw or not trained else self.swapped.put_at(module),
                -1.0 if grad or trained else self.weights.way(module),
                facts.at_rest,
                0 if batch is None else batch.dim(),
            )
        )

    def _began(self, model: int) -> bool:
        """Return whether a model has learned before, whose first weights are noted; else it begins now."""
        began = model in self._learned or bool(self.recorder.log.updates)
        self._learned.add(model)
        return began

    def _scale(self, model: int, batch: Tensor | None, *, grad: bool) -> tuple[float, float, float]:
        """Return the root mean square of a batch of numbers, and its least and largest, of the first passes with a graph and of those without."""
        self._looked[model, grad] += 1
        numbers = batch is not None and batch.is_floating_point() and batch.layout is torch.strided
        if batch is None or not numbers or batch.is_nested or self._looked[model, grad] > MOST_SCALES:
            return 0.0, 0.0, 0.0
        if not batch.numel():
            return 0.0, 0.0, 0.0
        values = batch.detach().float()
        return float(values.square().mean().sqrt()), float(values.min()), float(values.max())

    def _nested(self, module: nn.Module, args: tuple[Any, ...], caller: FrameType) -> None:
        root = self._inside
        if root is not None and isinstance(module, nn.Embedding) and args and isinstance(args[0], Tensor):
            look_at_step(self.recorder, module, args[0])
        if root is None or not self.recorder.detailed:
            return
        top = self._roots[root.id][0]()
        if module._parameters:
            self.outsiders.note(root.id, module, top)
        if self._with_graph and not torch.is_grad_enabled():
            note_parameters(self.recorder, [each for each in module.parameters() if each.requires_grad])
        if top is not None:
            self._layers.before(root, top, module, args)
        if isinstance(module, nn.RNNBase):
            self.recurs_at = where()
        sequence = args[0] if args and isinstance(args[0], Tensor) and args[0].dim() == 3 else None
        if sequence is not None and sequence.shape[1] > 1 and getattr(module, "batch_first", True) is False:
            as_given = has_axes_of(sequence, self.batch)
            self.time_first = TimeFirst(type(module).__name__, where(), sequence.shape, as_given)
        if isinstance(module, NORMS):
            if module.training and torch.is_grad_enabled() and args:
                root.norm_batch = max(root.norm_batch, len(args[0]))
                rows = self._norm_rows.setdefault(root.id, {})
                rows.setdefault(self.recorder.number(module), []).append(
                    args[0].numel() // module.num_features
                )
        elif isinstance(module, nn.Embedding):
            if args and isinstance(args[0], Tensor):
                look_at_tokens(self.recorder, module, args[0])
        elif is_stateless(module) and caller.f_code.co_name == "forward":
            number = self.recorder.number(module)
            places = self._places.setdefault(number, (weakref.ref(module), set()))[1]
            places.add((caller.f_code.co_filename, caller.f_lineno))

    def _close(self) -> None:
        """End the outermost call: look for modules without weights that it used at several places."""
        root, self._inside = self._inside, None
        self._layers.clear()
        if root is None:
            return
        for reference, places in self._places.values():
            module = reference()
            top = self._roots[root.id][0]()
            if module is None or top is None or len(places) < 2:
                continue
            name = next((name for name, each in top.named_modules() if each is module), type(module).__name__)
            root.shared[name] = max(len(places), root.shared.get(name, 0))
        self._places.clear()

    def _model(self, module: nn.Module) -> ModelSeen:
        number = self.recorder.number(module)
        if number in self._roots:
            return self._roots[number][1]
        named = list(module.named_modules(remove_duplicate=False))
        counts: dict[int, list[str]] = {}
        for name, each in named:
            if is_stateless(each):
                counts.setdefault(id(each), []).append(name)
        dtype = next((str(each.dtype) for each in module.parameters() if each.is_floating_point()), "")
        kind = type(module).__name__
        seen = ModelSeen(
            id=number,
            name=kind,
            at=where(),
            modal=[name or kind for name, each in module.named_modules() if differs_by_mode(each)],
            norms=[name or kind for name, each in module.named_modules() if isinstance(each, NORMS)],
            norm_rows=0,
            shared={names[0]: len(names) for names in counts.values() if len(names) > 1},
            averaged_of=isinstance(module, AveragedModel),
            checkpoint_dtype=self.loaded.dtype_of(module),
            dtype=dtype.removeprefix("torch."),
            wrapper=kind if kind in ("DataParallel", "DistributedDataParallel") else "",
            bypasses=any(
                isinstance(each, DistributedDataParallel) and each.module is module
                for each in list(self._all.values())
            ),
            misspelt=(misspelt := misspelt_freezes(module)),
            misspelt_at=line_that_sets(misspelt.values()),
            called=name_in_script(module),
        )
        self._roots[number] = (weakref.ref(module), seen)
        self.recorder.log.models.append(seen)
        self._name_parameters(module, seen)
        return seen

    def _name_parameters(self, module: nn.Module, seen: ModelSeen) -> None:
        libraries = [
            name for name, each in module.named_modules() if type(each).__module__.startswith(LIBRARIES)
        ]
        for name, parameter in module.named_parameters():
            known = self.recorder.parameter(parameter)
            if known.name.startswith("#"):
                known.name, known.model = plain_name(name), seen.id
                known.library = any(not each or name.startswith(f"{each}.") for each in libraries)

    def _is_trained(self, module: nn.Module) -> bool:
        known = self.outsiders.optimized()
        return any(self.recorder.number(each) in known for each in module.parameters())

    def optimizer_built(self) -> None:
        """Note which parameters are frozen now: an optimizer that filters does not get them."""
        number, log = self.recorder.number, self.recorder.log
        log.moves_nothing_at = log.moves_nothing_at or line_that_moves_nothing()
        log.follows_at = log.follows_at or line_that_follows()
        if not log.updates:
            look_at_source(self.recorder)
        self.outsiders.optimizer_built({
            number(each) for module in list(self._all.values()) for each in module._parameters.values()
            if each is not None and not each.requires_grad
        })  # fmt: skip

    def stepped(self, optimizer: Any) -> None:
        """Remember the weights after a step, and look for gradients that no optimizer uses."""
        self.rows.stepped()
        if not self.recorder.detailed:
            self.drawn = []  # no other batch may come to take its place
        self.outsiders.stepped(optimizer)
        if self.recorder.detailed and not self._aliased:
            self._aliased = look_for_aliases(self.recorder)
        if self.recorder.close:
            self.outsiders.count_strays()
            self._moved.clear()
        for reference, seen in self._roots.values():
            module = reference()
            if module is None:
                continue
            trained = self._moves(optimizer, module, seen)
            if trained:
                self.weights.stepped(module, anew=self.recorder.close)
            if self.recorder.close and (trained or module.training):
                self.outsiders.count(module.parameters())

    def rested(self, optimizer: Any) -> None:
        """Remember the weights alone after a step in an update that rests: an evaluation is compared with them."""
        self.outsiders.stepped(optimizer)
        for reference, seen in self._roots.values():
            module = reference()
            if module is not None and self._moves(optimizer, module, seen):
                self.weights.stepped(module, anew=False)

    def _moves(self, optimizer: Any, module: nn.Module, seen: ModelSeen) -> bool:
        """Return whether an optimizer has a parameter of a model."""
        key = self.recorder.number(optimizer), seen.id
        if key not in self._moved:
            own = {id(each) for group in optimizer.param_groups for each in group["params"]}
            self._moved[key] = any(id(each) in own for each in module.parameters())
        return self._moved[key]

    def resumed(self) -> None:
        """Begin anew after a gap: the weights are those of steps that nobody saw."""
        self.rows.forget_pending()
        self.outsiders.resumed()
        for reference, seen in self._roots.values():
            module = reference()
            if module is not None and not seen.averaged_of and self._is_trained(module):
                self.weights.stepped(module)

    def finish(self) -> None:
        """Put what was gathered into the log."""
        log = self.recorder.log
        self.outsiders.finish()
        for number, (reference, seen) in self._roots.items():
            module = None if log.updates else reference()
            seen.last_weights = "" if module is None else self.weights.of_like(module)
            rows = [statistics.median(each) for each in self._norm_rows.get(number, {}).values()]
            seen.norm_rows = int(min(rows, default=0))
        if self.recorder.blind:
            self.rows.forget_pending()
        log.overlaps, log.alike = self.rows.overlaps(), self.rows.alike()
        note_library_runs(log)
        self.evaluation_graphs.finish()
        log.first_rows = self.rows.first
        count = len(log.events)  # of a long run not all of them
        held_out = [] if log.profiled else self.rows.held_out()  # rows may be trained on unseen
        log.held_out = [place for place in held_out if place < count]
