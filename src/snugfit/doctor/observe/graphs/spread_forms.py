"""The spread of a normal distribution that is drawn from, and the variance in its divergence: what each is as a function of one output."""

from __future__ import annotations

from typing import Any, NamedTuple

from snugfit.doctor.observe.graphs.graph_nodes import kind_of
from snugfit.doctor.observe.graphs.term_signs import Contradiction, is_noise, nodes_below, users_of
from snugfit.doctor.observe.recording.internals import exponent_of, number_beside

MOST_STEPS, MOST_ADDENDS = 16, 256
_PASSED = ("Mul", "Div", "Add", "Sub", "Clamp", "Abs", "View", "Reshape", "Expand", "Clone", "ToCopy")
_LINEAR = ("Add", "Sub", "Rsub", "Neg", "Sum", "Mean", "Unsafe", "Squeeze", "Unsqueeze")
_SLACK = 1e-3

_Edge = tuple[Any, int]
"""A result of a node, of which it may give several."""


class _Form(NamedTuple):
    """A value as it is computed of an output: the exponential of so many times it, or a power of it."""

    output: _Edge
    exponential: bool
    number: float

    def of(self, name: str) -> str:
        times = "" if abs(self.number - 1) < _SLACK else f"{self.number:g} * "
        power = "" if abs(self.number - 1) < _SLACK else f" ** {self.number:g}"
        return f"exp({times}{name})" if self.exponential else f"{name}{power}"


def read_as_other(node: Any) -> Contradiction | None:
    """Return what contradicts itself where noise is multiplied with one function of an output, and the divergence has a variance that is not the square of it; None without.

    What is meant has the square of the mean in the same sum, to which the noise is added.
    """
    spreads = _drawn_with(nodes_below(node))
    addends = [_form_of(each) for each in _addends((node, 0))] if spreads else []
    squares = {each.output for each in addends if not each.exponential and each.number == 2}
    variances = _variances(addends)
    for spread, means in spreads:
        of_it = [each for each in variances if each.output == spread.output]
        if not of_it or not means & squares or any(_is_square(each, spread) for each in of_it):
            continue
        if spread.exponential and any(each.exponential for each in of_it):
            continue  # which `read_as_both` judges
        what = (
            f"Noise is multiplied with {spread.of('s')}, as with a deviation, and the divergence takes {of_it[0].of('s')} of the same output s for the "
            "variance, which is the square of that."
        )
        fix = "std = torch.exp(0.5 * logvar)\ndivergence = 0.5 * (mu**2 + logvar.exp() - logvar - 1).sum(-1)"
        return Contradiction("", "read_two_ways", what, fix)
    return None


def _drawn_with(nodes: list[Any]) -> list[tuple[_Form, set[_Edge]]]:
    """Return what noise is multiplied with, and the means that it is added to."""
    users = users_of(nodes)
    spreads = []
    for node in nodes:
        if kind_of(node) != "Mul" or not is_noise(node):
            continue
        added = [
            _plain(each)[0]
            for user in users.get(node, [])
            if kind_of(user) == "Add"
            for each in _parts(user)
            if each[0] is not node
        ]
        if added:
            spreads.append((_form_of(_parts(node)[0]), set(added)))
    return spreads


def _variances(addends: list[_Form]) -> list[_Form]:
    """Return what stands in a sum together with its logarithm."""
    plain = {each.output for each in addends if not each.exponential and abs(each.number - 1) < _SLACK}
    logarithms = [_form_of(part) for node, _ in plain if kind_of(node) == "Log" for part in _parts(node)]
    logged = {each.output for each in logarithms if not each.exponential}
    return [each for each in addends if each.output in (plain if each.exponential else logged)]


def _is_square(variance: _Form, spread: _Form) -> bool:
    alike = variance.exponential is spread.exponential
    return alike and abs(variance.number - 2 * spread.number) < _SLACK


def _parts(node: Any) -> list[_Edge]:
    """Return the results with a graph that a node was computed of."""
    return [] if node is None else [each for each in node.next_functions if each[0] is not None]


def _addends(edge: _Edge) -> list[_Edge]:
    """Return what is added up in a value, through sums, means, views and numbers that it is multiplied by."""
    todo, addends = [edge], list[_Edge]()
    for _ in range(MOST_ADDENDS):
        if not todo:
            break
        each = _plain(todo.pop())[0]
        if kind_of(each[0]).startswith(_LINEAR):
            todo += _parts(each[0])
        else:
            addends.append(each)
    return addends


def _form_of(edge: _Edge) -> _Form:
    """Return what a value is, as the exponential or as a power of what is neither."""
    power = 1.0
    for _ in range(MOST_STEPS):
        edge, _ = _plain(edge)
        node, parts = edge[0], _parts(edge[0])
        kind, squared = kind_of(node), kind_of(node) == "Mul" and len(parts) > 1 and parts[0] == parts[1]
        if kind == "Exp":
            output, times = _plain(parts[0])
            return _Form(output, exponential=True, number=power * times)
        by = 0.5 if kind == "Sqrt" else 2.0 if squared else exponent_of(node) if kind == "Pow" else None
        if not by:
            break
        power, edge = power * by, parts[0]
    return _Form(edge, exponential=False, number=power)


def _plain(edge: _Edge) -> tuple[_Edge, float]:
    """Return what a value was before views, bounds and shifts by numbers, and the number by which it was multiplied since."""
    factor = 1.0
    for _ in range(MOST_STEPS):
        node, parts = edge[0], _parts(edge[0])
        kind = kind_of(node)
        if len(parts) != 1 or not kind.startswith(_PASSED):
            break
        if kind in ("Mul", "Div"):
            number = number_beside(node)
            if not number:
                break
            factor = factor * number if kind == "Mul" else factor / number
        edge = parts[0]
    return edge, factor
