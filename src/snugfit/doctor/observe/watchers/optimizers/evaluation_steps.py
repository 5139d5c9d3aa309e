"""Steps that the optimizer of the training takes in a function that evaluates: what is scored there is learned."""

from __future__ import annotations

import ast
import re
from collections import Counter
from functools import lru_cache

from snugfit.doctor.observe.events.run_events import Fault
from snugfit.doctor.observe.recording.recorder import Recorder
from snugfit.doctor.observe.recording.script_frames import line_in, own_frames
from snugfit.doctor.observe.source.script_syntax import around, syntax_of

_EVALUATES = re.compile(
    r"^_?(run_|do_)?(evaluate|evaluation|eval|validate|validation|valid|val|test)(_(epoch|one_epoch|step|loop|batch|model|all))?$"
)
_PUTS_BACK = re.compile(r"load_state_dict|deepcopy|set_state|restore")
MOST_FRAMES, LEAST_STEPS, MOST_NOTED = 8, 4, 16
"""Frames around a step that are looked at, steps outside of an evaluation that tell an optimizer of the training, and events of one."""


class EvaluationSteps:
    """The steps of each optimizer, outside of functions that evaluate and in them."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._outside: Counter[int] = Counter()
        self._noted: Counter[int] = Counter()

    def after_step(self, optimizer: int) -> None:
        """Note a step in a function that evaluates, if the optimizer has stepped outside of any before."""
        if self._noted[optimizer] >= MOST_NOTED:
            return
        frame = next((each for each in own_frames(MOST_FRAMES) if is_evaluation(each.f_code.co_name)), None)
        if frame is None:
            self._outside[optimizer] += 1
            return
        learns = self._outside[optimizer] >= LEAST_STEPS
        if learns and not _puts_back(frame.f_code.co_filename, frame.f_code.co_firstlineno):
            self._noted[optimizer] += 1
            what = f"`{frame.f_code.co_name}` steps the optimizer that trains: the rows that it scores are learned."
            fix = "model.eval()\nwith torch.no_grad():\n    loss = ...   # no backward(), no step()"
            at = line_in(frame, frame.f_lineno)
            self._recorder.add(Fault(at, self._recorder.log.updates, "leakage", what, fix))


@lru_cache(maxsize=1024)
def is_evaluation(function: str) -> bool:
    """Return whether a function scores by its name.

    >>> [is_evaluation(name) for name in ("evaluate", "validation_step", "test_that_it_trains", "evaluate_and_tune")]
    [True, True, False, False]
    """
    return bool(_EVALUATES.match(function))


@lru_cache(maxsize=256)
def _puts_back(file: str, line: int) -> bool:
    """Return whether a function copies a model or loads a state, after which its steps are gone."""
    tree = syntax_of(file)
    scope = next(
        (
            each
            for each in ast.walk(tree)
            if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)
            and min([each.lineno, *(e.lineno for e in each.decorator_list)]) == line
        ),
        around(tree, line)[0],
    )
    return bool(_PUTS_BACK.search(ast.unparse(scope)))
