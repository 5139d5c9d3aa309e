"""Columns of a table that the script's source makes of the column that is learned."""

from __future__ import annotations

import ast
import re

from snugfit.doctor.observe.recording.own_source import own_files
from snugfit.doctor.observe.recording.script_frames import shown
from snugfit.doctor.observe.source.script_syntax import names_set_by, syntax_of

_TARGET = re.compile(r"^(y|ys|t|target|targets|label|labels|y_\w+|\w+_y)$")


def line_of_made_column() -> str:
    """Return file:line of the first statement that makes a column of a table of the one that targets are made of; "" where the source does not show it."""
    for file in own_files():
        line = made_column(syntax_of(file))
        if line:
            return f"{shown(file)}:{line}"
    return ""


def made_column(tree: ast.Module) -> int:
    r"""Return the line that makes a column of the one that targets are made of; 0 without.

    >>> made_column(ast.parse("df['log'] = np.log(df['fare'])\ndf['far'] = df['km'] > 3\ny = torch.tensor(df['fare'].values)"))
    1
    """
    statements = [each for each in ast.walk(tree) if isinstance(each, ast.Assign)]
    targets = {
        key
        for each in statements
        if any(_TARGET.search(name) for name in names_set_by(each))
        for key in _columns(each.value)
    }
    made = [
        each.lineno
        for each in statements
        for target in each.targets
        if isinstance(target, ast.Subscript) and _columns(target) - targets and _columns(each.value) & targets
    ]
    return min(made, default=0)


def _columns(node: ast.AST) -> set[str]:
    """Return the names that a node takes columns by."""
    return {
        each.slice.value
        for each in ast.walk(node)
        if isinstance(each, ast.Subscript)
        and isinstance(each.slice, ast.Constant)
        and isinstance(each.slice.value, str)
    }
