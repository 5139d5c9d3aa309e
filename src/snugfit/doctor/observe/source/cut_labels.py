"""Labels that are divided, as the numbers of a picture are, and then cut to whole numbers, along the way that a script's source takes them."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence

from snugfit.doctor.observe.source.bindings import heads_of, parts_of, statements_at
from snugfit.doctor.observe.source.script_syntax import around, last_name
from snugfit.doctor.observe.source.trails import Place, Step, Trails

_WHOLE = frozenset(["long", "int", "LongTensor"])
_TYPED = frozenset(["astype", "to", "type", "tensor", "as_tensor"])
_OF_WHOLE = re.compile(r"\b(int|int32|int64|long|LongTensor)\b")


def cut_behind_division(trails: Trails, seen: Place) -> Place | None:
    """Return the line that cuts to whole numbers what a loss gets as labels, where a line before it brings numbers of 0 to 255 to 0 to 1; None without.

    What a data set is handed may do that to its pictures alone: it counts where it is called with labels too.
    """
    given = _labels_of(trails, seen)
    if given is None:
        return None
    steps = trails.back(*seen, wide=True, of=[given])
    parts = [
        [] if "=" in each.name else [part for head in each.heads for part in parts_of(head)] for each in steps
    ]  # an argument says of a whole statement what is handed on
    cuts = {-1: seen} if any(map(_cuts, parts_of(given))) else {}
    cuts |= {
        place: (each.file, each.line) for place, each in enumerate(steps) if any(map(_cuts, parts[place]))
    }
    for place, each in enumerate(steps):
        behind = _behind(steps, place)
        cut = next((cuts[line] for line in (place, *behind) if line in cuts), None)
        if cut is None or not any(map(_divides, parts[place])):
            continue
        handed = each.name == "return" and isinstance(steps[each.before].statement, ast.For)
        if not handed or _is_row(trails, each) or any(map(_hands_on, (p for own in parts for p in own))):
            return cut
    return None


def _behind(steps: Sequence[Step], place: int) -> list[int]:
    """Return the places of the steps that led to one, the nearest first; -1 for the line that all of them lead to."""
    places = []
    while place >= 0:
        place = steps[place].before
        places.append(place)
    return places


def _is_row(trails: Trails, step: Step) -> bool:
    return getattr(around(trails.tree(step.file), step.line)[0], "name", "") in ("__getitem__", "__iter__")


def _hands_on(node: ast.AST) -> bool:
    """Return whether something is given to a function that an object was made with."""
    return isinstance(node, ast.Call) and ast.unparse(node.func).startswith("self.") and len(node.args) == 1


def _labels_of(trails: Trails, seen: Place) -> ast.expr | None:
    """Return the second argument of the call of a line that has two and no calls of the kind in them."""
    heads = [head for each in statements_at(trails.tree(seen[0]), seen[1]) for head in heads_of(each)]
    calls = [each for head in heads for each in parts_of(head) if isinstance(each, ast.Call)]
    return next((each.args[1] for each in calls if len(each.args) > 1), None)


def _cuts(node: ast.AST) -> bool:
    if not isinstance(node, ast.Call):
        return False
    name = last_name(node.func)
    given = [*node.args, *(each.value for each in node.keywords)]
    return name in _WHOLE or (name in _TYPED and any(_OF_WHOLE.search(ast.unparse(each)) for each in given))


def _divides(node: ast.AST) -> bool:
    """Return whether numbers of a picture are brought to 0 to 1: by 255, or by a function that does it."""
    if isinstance(node, ast.BinOp | ast.AugAssign) and isinstance(node.op, ast.Div):
        by = node.right if isinstance(node, ast.BinOp) else node.value
        return ast.unparse(by) in ("255", "255.0", "255.")
    if not isinstance(node, ast.Call):
        return False
    name = last_name(node.func)
    by_number = name in ("div", "div_", "true_divide") and any(
        ast.unparse(each) in ("255", "255.0") for each in node.args
    )
    return by_number or name in ("ToTensor", "to_tensor", "convert_image_dtype", "ConvertImageDtype")
