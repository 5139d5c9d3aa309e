"""Low-rank factors that are put beside weights which have learned before, and that are trained together with these."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterator, Sequence
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from snugfit.doctor.observe.events.run_events import Fault
from snugfit.doctor.observe.events.state_events import Restore
from snugfit.doctor.observe.recording.companions import Companion, ModuleOutput
from snugfit.doctor.observe.recording.recorder import Recorder
from snugfit.doctor.observe.recording.script_frames import is_own, line_in, own_frames
from snugfit.doctor.observe.source.bindings import statements_at
from snugfit.doctor.observe.source.script_syntax import around, syntax_of

MOST_FRAMES = 12
MOST_PARAMETERS = 8
"""A layer with its adapters has few; a whole model has more."""


class AdapterWatch(Companion):
    """A watcher of layers with two factors whose product is 0 at first, as adapters are begun, and of the weights beside them."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._done = False
        self._plain: WeakKeyDictionary[nn.Module, int] = WeakKeyDictionary()
        """Modules of which no factors fit, with the number of parameters that they had: most are, and all are called in each update."""

    def ended(self, given: ModuleOutput) -> None:
        """Note weights below fresh adapters that an optimizer trains with them, and that another one, or a checkpoint, has brought there."""
        if self._done or given.outermost or not torch.is_grad_enabled():
            return
        parameters = list(itertools.islice(given.module.parameters(), MOST_PARAMETERS + 1))
        if not 2 < len(parameters) <= MOST_PARAMETERS or self._plain.get(given.module) == len(parameters):
            return
        fitting = list(_fitting([each for each in parameters if each.dim() == 2]))
        if not fitting:
            self._plain[given.module] = len(parameters)
        for whole, *factors in fitting:
            begins = [not bool(each.detach().any()) for each in factors]
            at = self._trained_with(whole, factors) if begins[0] is not begins[1] else ""
            if at:
                self._done = True
                what = (
                    f"Two factors of {tuple(map(tuple, (each.shape for each in factors)))}, whose product is 0 as adapters begin, are trained together with the weights of "
                    f"{tuple(whole.shape)} beside them, which have learned before: nothing is frozen below the adapters."
                )
                fix = "model.requires_grad_(False)   # before the adapters are put in\nfor name, each in model.named_parameters():\n    each.requires_grad_('lora_' in name)"
                self._recorder.add(Fault(at, self._recorder.log.updates, "not_frozen", what, fix))
                return

    def _trained_with(self, whole: nn.Parameter, factors: Sequence[Tensor]) -> str:
        """Return where the optimizer was made that has weights and their factors, if the weights learned before these were there; "" without."""
        recorder = self._recorder
        number, others = recorder.number(whole), {recorder.number(each) for each in factors}
        owners = [each for each in recorder.optimizers.values() if number in each.parameters]
        both = next((each for each in owners if others <= set(each.parameters)), None)
        alone = [each for each in owners if not others & set(each.parameters)]
        learned = (recorder.log.updates and alone) or any(isinstance(e, Restore) for e in recorder.log.events)
        return _given_at(both.at) if both is not None and learned and whole.requires_grad else ""


def _given_at(made_at: str) -> str:
    """Return the line that gives an optimizer its parameters: where it is made, or where the function is called now that makes it of what it is given."""
    line = int(made_at.rpartition(":")[2] or 0)
    for frame in own_frames(MOST_FRAMES):
        file, function = frame.f_code.co_filename, frame.f_code.co_name
        if line_in(frame, line) != made_at:
            continue
        statements = statements_at(syntax_of(file), line)
        if any("parameters()" in ast.unparse(each) for each in statements):
            return made_at
        scope = around(syntax_of(file), line)[0]
        caller = frame.f_back
        if (
            caller is not None
            and function == getattr(scope, "name", "")
            and is_own(caller.f_code.co_filename)
        ):
            return line_in(caller, caller.f_lineno)
    return made_at


def _fitting(matrices: list[nn.Parameter]) -> Iterator[tuple[nn.Parameter, nn.Parameter, nn.Parameter]]:
    """Yield a matrix and two thinner ones whose product, either of them transposed or not, has its shape, or a part of its rows.

    >>> shapes = {"whole": (8, 6), "up": (8, 2), "down": (2, 6), "bias": (8, 8)}
    >>> names = {tuple(shape): name for name, shape in shapes.items()}
    >>> [[names[tuple(each.shape)] for each in found] for found in _fitting([nn.Parameter(torch.zeros(*shape)) for shape in shapes.values()])]
    [['whole', 'up', 'down']]
    >>> list(_fitting([nn.Parameter(torch.zeros(8, 8)) for _ in range(4)]))  # as in attention
    []
    """
    for whole, first, second in itertools.permutations(matrices, 3):
        rows, columns = whole.shape
        ways = itertools.product((first.shape, first.shape[::-1]), (second.shape, second.shape[::-1]))
        if any(
            other == (rank, columns) and rows % up == 0 and 0 < 2 * rank <= min(up, columns)
            for (up, rank), other in ways
        ):
            yield whole, first, second
