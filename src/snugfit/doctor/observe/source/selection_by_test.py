"""Weights that are chosen by the score of the test though others were set aside to choose by, or by that of the training, which is called a validation: read in the script's source, by what these are called."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

from snugfit.doctor.observe.source.best_directions import BEST
from snugfit.doctor.observe.source.bindings import statements_at
from snugfit.doctor.observe.source.script_syntax import (
    BY_SIZE,
    Function,
    Loop,
    around,
    last_assignment,
    last_name,
    names_in,
    own_nodes,
    spans,
    syntax_of,
)

_TRAINING = {"train", "training", "trn"}
_TEST = {"test", "tst", "testing"}
_VALIDATION = {"val", "vali", "valid", "validate", "validation", "dev"}
_CHOOSES = re.compile(r"sched|plateau|early|stopp|patience", re.IGNORECASE)
_ROWS = re.compile(
    "loaders?|dataloader|dl|set|data|dataset|ds|rows|x|y|iter|generator|split|df|texts|images|features|inputs"
)
_PLAIN = re.compile(
    "[A-Z].*|print|len|range|iter|next|enumerate|zip|min|max|sum|int|float|str|list|sorted|isinstance"
)
_TELLS = ("print", "info", "write", "log", "debug")


class Choice(NamedTuple):
    """A line that chooses by a score of rows that are to choose nothing, the name of that score, and the line of the rows to choose by.

    Args:
        other: at which line these are scored in the same loop, or are set aside; 0 where the rows of the training are called so.
        unread: nothing reads them.
    """

    line: int
    name: str
    other: int
    unread: bool = False


@lru_cache(maxsize=64)
def selection_by_test(file: str) -> Choice | None:
    r"""Return where a loop over epochs keeps its best, waits or stops by the score of the test; None where nothing shows that other rows were there to choose by.

    These are scored in the same loop, or are set aside and never read while the test is scored once more behind the loop. Where anything in that loop
    is chosen by the validation, the test's is only told. A validation that is given the rows of the training is no better.
    """
    tree = syntax_of(file)
    unread = _unread_validation(tree)
    for scope in (each for each in ast.walk(tree) if isinstance(each, Function | ast.Module)):
        for loop in (each for each in own_nodes(scope) if isinstance(each, Loop)):
            choice = _choice_in(loop, unread) or _choice_by_training(loop)
            if choice is not None and (not choice.unread or _is_reported(tree, choice.line)):
                return choice
    return None


@lru_cache(maxsize=64)
def chooses_by_score(file: str) -> bool:
    """Return whether a loop of a file keeps its best, waits or stops by a score."""
    loops = (each for each in ast.walk(syntax_of(file)) if isinstance(each, Loop))
    return any(True for loop in loops for _ in _choosers(loop))


def set_called(file: str, line: int, place: int = 0) -> str:
    """Return "test" or "validation" if what a line makes is called so, by the name or the key that it is given; "" else.

    Args:
        place: which one it is, where the line makes several.
    """
    names: list[str] = []
    for statement in statements_at(syntax_of(file), line):
        if isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Dict):
            pairs = zip(statement.value.keys, statement.value.values, strict=True)
            names += [ast.unparse(key) for key, made in pairs if key is not None and spans(made, line)]
        elif isinstance(statement, ast.Assign):
            names += _targets(statement)
    sides = [_side(name) if not _words(name) & _TRAINING else None for name in names]
    side = sides[place] if place < len(sides) else None
    return "" if side is None else "test" if side is _TEST else "validation"


@lru_cache(maxsize=64)
def line_made_of_validation(file: str, line: int) -> int:
    """Return the line that makes what a line is given, called a test, of what is called a validation; 0 without."""
    tree = syntax_of(file)
    given = {
        each.id
        for statement in statements_at(tree, line)
        for each in ast.walk(statement)
        if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Load) and _side(each.id) is _TEST
    }
    for name in sorted(given):
        made = last_assignment(around(tree, line)[0], name, line)
        if made is not None and any(_side(each) is _VALIDATION for each in names_in(made.value)):
            return made.lineno
    return 0


def _choice_in(loop: Loop, unread: int = 0) -> Choice | None:
    r"""Return what a loop chooses by the test.

    Args:
        unread: the line that sets a validation aside which nothing reads; 0 without.

    >>> text = "for e in r:\n v = score(val_rows)\n t = score(test_rows)\n if {0} > best:\n  best = {0}"
    >>> _choice_in(ast.parse(text.format("t")).body[0])
    Choice(line=4, name='t', other=2, unread=False)
    >>> _choice_in(ast.parse(text.format("v")).body[0])
    """
    sides = {
        name: (side, each.lineno)
        for each in ast.walk(loop)
        if isinstance(each, ast.Assign) and isinstance(each.value, ast.Call)
        for name, side in _sides_set_by(each)
    }
    validated = [line for side, line in sides.values() if side is _VALIDATION]
    choices = []
    for line, score in [*_choosers(loop), *(_deciders(loop) if unread else ())]:
        words = {each.id for each in ast.walk(score) if isinstance(each, ast.Name)}
        own = _side(ast.unparse(score))
        known = [own] if own else [sides[name][0] for name in words if name in sides] or [None]
        choices.append((line, ast.unparse(score), _TEST if all(each is _TEST for each in known) else None))
    if not (validated or unread) or not choices or any(side is not _TEST for _, _, side in choices):
        return None
    line, name, _ = choices[0]
    return Choice(line, name, validated[0]) if validated else Choice(line, name, unread, unread=True)


def _choice_by_training(loop: Loop) -> Choice | None:
    r"""Return what a loop chooses by a score that is called one of a validation, and whose call is given the rows of the training alone.

    >>> text = "for e in r:\n loss = train(net, train_rows)\n val_acc = score(net, {})\n if val_acc > best:\n  best = val_acc"
    >>> _choice_by_training(ast.parse(text.format("train_rows")).body[0])
    Choice(line=3, name='val_acc', other=0, unread=False)
    >>> _choice_by_training(ast.parse(text.format("val_rows")).body[0])
    """
    for _, score in _choosers(loop):
        name = last_name(score)
        sets = [
            each
            for each in ast.walk(loop)
            if isinstance(each, ast.Assign) and ast.unparse(score) in _targets(each)
        ]
        if sets and _side(name) is _VALIDATION and all(_scores_training(each.value) for each in sets):
            return Choice(sets[0].lineno, name, 0)
    return None


def _scores_training(value: ast.expr) -> bool:
    """Return whether a call that does not say that it trains is given the rows of the training, and no others."""
    if not isinstance(value, ast.Call) or _words(last_name(value.func)) & {*_TRAINING, "fit"}:
        return False
    given = _words(_given(value))
    return bool(given & _TRAINING) and not given & (_TEST | _VALIDATION)


def _unread_validation(tree: ast.Module) -> int:
    r"""Return the line that gives rows a name of a validation which nothing in the file reads; 0 without.

    >>> _unread_validation(ast.parse("train_set, dev_set = split(rows)\nfit(train_set)")), _unread_validation(ast.parse("val_loss = fit(rows)"))
    (1, 0)
    >>> _unread_validation(ast.parse("train_val_set, test_set = split(rows)"))
    0
    """
    read = {
        last_name(each)
        for each in ast.walk(tree)
        if isinstance(each, ast.Name | ast.Attribute) and isinstance(each.ctx, ast.Load)
    }
    for each in (e for e in ast.walk(tree) if isinstance(e, ast.Assign)):
        for part in (part for target in each.targets for part in ast.walk(target)):
            name = last_name(part)
            words = _words(name)
            called = words & _VALIDATION and _are_rows(words, _VALIDATION)
            if called and not words & (_TEST | _TRAINING) and name not in read:
                return each.lineno
    return 0


def _is_reported(tree: ast.Module, line: int) -> bool:
    """Return whether rows of the test are given to something behind the innermost loop around a line, or behind what calls its function."""
    scope, loops = around(tree, line)
    ends = [(scope, loops[-1].end_lineno or 0)] if loops else []
    if isinstance(scope, Function):
        scopes = [
            each for each in ast.walk(tree) if isinstance(each, Function | ast.Module) and each is not scope
        ]
        ends += [
            (other, call.end_lineno or 0)
            for other in scopes
            for call in own_nodes(other)
            if isinstance(call, ast.Call) and last_name(call.func) == scope.name
        ]
    behind = (each for scope, end in ends for each in own_nodes(scope) if getattr(each, "lineno", 0) > end)
    return any(map(_scores_test, behind))


def _scores_test(node: ast.AST) -> bool:
    """Return whether a call is given rows of the test, and makes more of them than a loader.

    >>> [_scores_test(ast.parse(text, mode="eval").body) for text in ("score(net, x_test)", "Loader(test_set)", "len(test_set)", "plot(test_scores)")]
    [True, False, False, False]
    """
    name = last_name(node.func) if isinstance(node, ast.Call) else ""
    if not isinstance(node, ast.Call) or _PLAIN.fullmatch(name):
        return False
    words = _words(_given(node))
    return _side(_given(node)) is _TEST and _are_rows(words, _TEST)


def _sides_set_by(statement: ast.Assign) -> Iterator[tuple[str, set[str] | None]]:
    """Yield the names that a call's result is given, and whether it is of the test or of a validation, by what the call is given, else by their names."""
    for target in statement.targets:
        parts = target.elts if isinstance(target, ast.Tuple) else [target]
        for name in (last_name(each) for each in parts):
            if name and isinstance(statement.value, ast.Call):
                yield name, _side_of_call(statement.value) or (_side(name) if "_" in name else None)


def _side_of_call(call: ast.Call) -> set[str] | None:
    """Return whether a call is given rows of the test or of a validation; else what it is called, since `validate` may be given either.

    >>> calls = [ast.parse(text, mode="eval").body for text in ("validate(net, test_loader)", "score(net, val_rows)", "test(net)", "loss.item()")]
    >>> [_side_of_call(each) is side for each, side in zip(calls, (_TEST, _VALIDATION, _TEST, None), strict=True)]
    [True, True, True, True]
    """
    given = _given(call)
    words = _words(given)
    if words & _TEST and words & _VALIDATION:
        return None
    return _side(given) or _side(ast.unparse(call.func))


def _choosers(loop: Loop) -> Iterator[tuple[int, ast.expr]]:
    """Yield the scores by which something is kept, or is waited or stopped for, and their lines."""
    for each in ast.walk(loop):
        if isinstance(each, ast.If):
            for pair in filter(None, map(_compared, ast.walk(each.test))):
                score, best = pair
                wanted = ast.unparse(best)
                stores = (e for body in each.body for e in ast.walk(body) if isinstance(e, ast.Assign))
                if any(wanted in _targets(store) for store in stores):
                    yield each.lineno, score
        elif isinstance(each, ast.Call) and each.args:
            method = isinstance(each.func, ast.Attribute) and each.func.attr in (
                "step",
                "update",
                "should_stop",
            )
            called = each.func.value if method and isinstance(each.func, ast.Attribute) else each.func
            if _CHOOSES.search(ast.unparse(called)):
                yield each.lineno, each.args[0]


def _deciders(loop: Loop) -> Iterator[tuple[int, ast.expr]]:
    """Yield the scores that a call gives for the test in a comparison by size, under which something is done, and their lines."""
    for each in ast.walk(loop):
        if not isinstance(each, ast.If) or not any(map(_does, each.body)):
            continue
        for node in (e for e in ast.walk(each.test) if isinstance(e, ast.Compare)):
            parts = (part for side in (node.left, *node.comparators) for part in ast.walk(side))
            if isinstance(node.ops[0], BY_SIZE) and any(map(_scores_test, parts)):
                yield each.lineno, node


def _does(statement: ast.stmt) -> bool:
    """Return whether a statement does more than to tell."""
    call = statement.value if isinstance(statement, ast.Expr) else None
    tells = isinstance(call, ast.Constant) or (isinstance(call, ast.Call) and last_name(call.func) in _TELLS)
    return not tells and not isinstance(statement, ast.Pass)


def _compared(node: ast.AST) -> tuple[ast.expr, ast.expr] | None:
    """Return a score and the best one with which it is compared by size; None for other nodes."""
    if not isinstance(node, ast.Compare) or len(node.ops) > 1:
        return None
    if not isinstance(node.ops[0], BY_SIZE):
        return None
    left, right = node.left, node.comparators[0]
    if BEST.search(last_name(right)):
        return left, right
    return (right, left) if BEST.search(last_name(left)) else None


def _targets(statement: ast.Assign) -> list[str]:
    return [
        ast.unparse(part)
        for target in statement.targets
        for part in (target.elts if isinstance(target, ast.Tuple) else [target])
    ]


def _side(text: str) -> set[str] | None:
    """Return the words of the test, or of a validation, if a text has those alone; None where it has both or neither.

    >>> _side("evaluate(model, test_loader)") is _TEST, _side("test(val_loader)") is _VALIDATION, _side("evaluate(values)")
    (True, True, None)
    """
    words = _words(text)
    if words & _VALIDATION:
        return _VALIDATION
    return _TEST if words & _TEST else None


def _given(call: ast.Call) -> str:
    return " ".join(ast.unparse(each) for each in (*call.args, *(each.value for each in call.keywords)))


def _words(text: str) -> set[str]:
    return {word.lower() for word in re.split(r"[\W_]+", text)} - {""}


def _are_rows(words: set[str], side: set[str]) -> bool:
    """Return whether words name rows of a side, not their scores."""
    return words <= side or any(map(_ROWS.fullmatch, words))
