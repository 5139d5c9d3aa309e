"""Arguments of a call that stand in each other's place, by what they are called."""

from __future__ import annotations

import ast
import re
from functools import lru_cache

from snugfit.doctor.observe.source.script_syntax import last_name, names_in, spans, syntax_of

_PREDICTED = re.compile(
    r"(^|_)(y?hat|preds?|predict\w*|guess\w*|outputs?|outs?|logits?|probs?|probabilit\w+|yhats?)(_|$|\d)",
    re.IGNORECASE,
)
_TRUE = re.compile(
    r"(^|_)(true|trues|truths?|labels?|targets?|actuals?|gt|expected|observed|answers?|gold)(_|$|\d)|^[yY]_?(test|val|valid|train|eval|dev)$",
    re.IGNORECASE,
)


@lru_cache(maxsize=64)
def exchanged_arguments(file: str, line: int, function: str) -> tuple[str, str] | None:
    """Return the first two arguments of the call of a function at a line where the first is called a prediction, and the second what is true; None otherwise."""
    for call in (each for each in ast.walk(syntax_of(file)) if isinstance(each, ast.Call)):
        if last_name(call.func) != function or not spans(call, line) or len(call.args) < 2:
            continue
        first, second = call.args[:2]
        if _is_called(first, _PREDICTED, _TRUE) and _is_called(second, _TRUE, _PREDICTED):
            return ast.unparse(first), ast.unparse(second)
    return None


def _is_called(node: ast.expr, one: re.Pattern[str], other: re.Pattern[str]) -> bool:
    """Return whether names of an expression say the one, and none the other."""
    names = {*names_in(node), *(each.attr for each in ast.walk(node) if isinstance(each, ast.Attribute))}
    return any(map(one.search, names)) and not any(map(other.search, names))
