"""Findings on the units of layers: those that are all the same."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from snugfit.doctor.findings import Certainty, Finding
from snugfit.doctor.observe.events.log import Log
from snugfit.doctor.observe.events.run_events import EqualUnits
from snugfit.doctor.observe.source.script_syntax import last_name, syntax_of

LEAST_SEEN = 2
_SETS = frozenset(["constant_", "fill_", "ones_", "zero_", "zeros_"])
_MAKES = frozenset(["full", "ones", "zeros", "full_like", "ones_like", "zeros_like"])
_BIAS = re.compile(r"bias|beta|running|norm", re.IGNORECASE)


def equal_units(log: Log) -> list[Finding]:
    """Detect layers all of whose units begin with the same weights and get the same gradients: they stay one unit."""
    seen = list(log.of(EqualUnits))
    names = list(dict.fromkeys(each.name for each in seen))
    if len({each.update for each in seen}) < LEAST_SEEN:
        return []
    last = seen[-1]
    at = next(_lines_of_constants(log), next((each.at for each in log.models), last.at))
    return [
        Finding(
            "equal_units",
            Certainty.CERTAIN,
            f"All {last.shape[0]} units that {last.name or 'a weight'} of {last.shape} is for have the same weights and the same gradients after {last.update} updates: they are one unit, and stay so.",
            at,
            (f"weights: {', '.join(each or 'one without a name' for each in names[:4])}",),
            "nn.init.xavier_uniform_(layer.weight)   # drawn, not one number for all; a bias may begin with 0",
        )
    ]


def _lines_of_constants(log: Log) -> Iterator[str]:
    """Yield the lines that set weights to one number: first those that say that they are weights, then those that do not say that they are none."""
    weak = []
    for shown, file in log.sources.items():
        for node in ast.walk(syntax_of(file)):
            sure = _sets_weight(node)
            if sure is not None:
                line = f"{shown}:{getattr(node, 'lineno', 0)}"
                if sure:
                    yield line
                weak.append(line)
    yield from weak


def _sets_weight(node: ast.AST) -> bool | None:
    """Return whether a node sets weights to one number, by their name; None where it sets none, or a bias."""
    if isinstance(node, ast.Assign) and _makes_constant(node.value, 0):
        named = "weight" in ast.unparse(node.targets[0])
        return True if named else None
    if not isinstance(node, ast.Call) or _BIAS.search(text := ast.unparse(node)):
        return None
    if last_name(node.func) in _SETS:
        return "weight" in text
    return False if last_name(node.func) == "Parameter" and _makes_constant(node, 2) else None


def _makes_constant(node: ast.AST, least: int) -> bool:
    """Return whether a tensor of one number is made, of so many axes at least where their sizes are given one by one."""
    made = [each for each in ast.walk(node) if isinstance(each, ast.Call) and last_name(each.func) in _MAKES]
    sizes = [
        each.args[0].elts if each.args and isinstance(each.args[0], ast.Tuple) else each.args for each in made
    ]
    return any(len(each) >= least for each in sizes)


DETECTORS = (equal_units,)
