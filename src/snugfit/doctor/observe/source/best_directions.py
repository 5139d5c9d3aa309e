"""Comparisons of a score with the best one so far that keep the worst: read in the script's source, by what the score is called on its way."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import NamedTuple

from snugfit.doctor.observe.source.bindings import all_statements, statements_at
from snugfit.doctor.observe.source.script_syntax import BY_SIZE, last_name
from snugfit.doctor.observe.source.trails import Place, Trails

BEST = re.compile(r"best|lowest|highest|minimum|maximum|(^|_)(min|max)_", re.IGNORECASE)
_LESS = re.compile(
    r"loss(es)?(_|$)|(^|_)(mae|mse|rmse|mape|nll|ppl|perplexity|wer|cer|bpc|fid|eer|err|errors?|crps)(_|$|s$)",
    re.IGNORECASE,
)
_MORE = re.compile(
    r"(^|_)(acc\w*|f1\w*|auc|auroc|m?ap|m?iou|dice|hits?|correct|right|recall\w*|precision|bleu|rouge\w*|r2|psnr|ssim|ndcg\w*|mrr|"
    r"rewards?|kappa|mcc|spearman|pearson)(_|$)",
    re.IGNORECASE,
)
_MODES = re.compile(r"mode|greater|minimi[sz]e|maximi[sz]e|direction|higher|lower", re.IGNORECASE)
_LOWERS = (ast.Lt, ast.LtE)
MOST_STEPS = 12


class Backwards(NamedTuple):
    """A comparison that keeps the worst: its place, the name of the score, and whether more of that is better; `begun` where it begins with a best that nothing beats."""

    at: Place
    name: str
    more: bool
    begun: bool = False


def reversed_comparisons(trails: Trails) -> Iterator[Backwards]:
    """Yield the comparisons with a best score that keep less of what should be more, or more of what should be less."""
    for file, statement in trails.statements():
        if not isinstance(statement, ast.If) or _MODES.search(ast.unparse(statement.test)):
            continue
        if trails.is_under(file, statement.lineno, _MODES):
            continue
        parts = [(each, pair) for each in ast.walk(statement.test) if (pair := _sides(each)) is not None]
        conditional = _conditional(statement.test) if len({lowers for _, (_, _, lowers) in parts}) > 1 else []
        for compared, (score, best, lowers) in parts:
            if not isinstance(compared, ast.Compare) or compared in conditional:
                continue  # each of two ways has a condition of its own, such as what the score is called
            inside, other = _sets(statement.body, best), _sets(statement.orelse, best)
            if inside == other:
                continue
            lowers = lowers is inside
            known = sense_of(trails, file, statement.lineno, score, best)
            if known is None:
                continue
            name, more = known
            if more is lowers:
                yield Backwards((file, compared.lineno), name, more)
            else:
                for at in _begun_beyond(trails, file, best, lowers=lowers):
                    yield Backwards(at, name, more, begun=True)


def _conditional(test: ast.expr) -> list[ast.expr]:
    """Return the parts of a test that hold beside others."""
    conjunctions = (
        each for each in ast.walk(test) if isinstance(each, ast.BoolOp) and isinstance(each.op, ast.And)
    )
    return [part for each in conjunctions for part in each.values]


def waits_backwards(trails: Trails, at: Place, mode: str) -> str:
    """Return what the score is called that a schedule of this mode is given at a line, if that moves against it; "" where it does not, or nothing says so."""
    for statement in statements_at(trails.tree(at[0]), at[1]):
        for call in ast.walk(statement):
            steps = isinstance(call, ast.Call) and last_name(call.func) == "step"
            given = [*call.args, *(e.value for e in call.keywords)] if isinstance(call, ast.Call) else []
            if steps and given:
                known = sense_of(trails, *at, given[0])
                return known[0] if known is not None and known[1] is (mode == "min") else ""
    return ""


def _sides(node: ast.AST) -> tuple[ast.expr, ast.Name | ast.Attribute, bool] | None:
    """Return the score and the best one of a comparison by size, and whether it holds for less; None for others."""
    if not isinstance(node, ast.Compare) or not isinstance(node.ops[0], BY_SIZE):
        return None
    lowers = isinstance(node.ops[0], _LOWERS)
    left, right = _best_in(node.left), _best_in(node.comparators[0])
    if (left is None) == (right is None) or len(node.ops) > 1:
        return None
    if right is not None:
        return node.left, right, lowers
    return None if left is None else (node.comparators[0], left, not lowers)


def _best_in(node: ast.expr) -> ast.Name | ast.Attribute | None:
    """Return the name of a best score that an expression reads, alone or beside a margin."""
    return next(
        (
            each
            for each in ast.walk(node)
            if isinstance(each, ast.Name | ast.Attribute) and BEST.search(last_name(each))
        ),
        None,
    )


def _sets(body: list[ast.stmt], best: ast.expr) -> bool:
    """Return whether statements set a best score anew."""
    wanted = ast.unparse(best)
    for statement in body:
        for each in ast.walk(statement):
            if not isinstance(each, ast.Assign):
                continue
            for target in each.targets:
                parts = target.elts if isinstance(target, ast.Tuple) else [target]
                if any(ast.unparse(part) == wanted for part in parts):
                    return True
    return False


def sense_of(
    trails: Trails, file: str, line: int, score: ast.expr, best: ast.expr | None = None
) -> tuple[str, bool] | None:
    """Return what a score is called on its way to a line, the nearest first, and whether more of it is better; None where it does not say, or is turned round."""
    if any(_turns(each) for each in ast.walk(score)):
        return None
    for text in (ast.unparse(score), *([last_name(best)] if best is not None else [])):
        known = _named(re.split(r"\W+", text))
        if known is not None:
            return known
    for step in trails.back(file, line, wide=True, of=[score])[:MOST_STEPS]:
        if any(_turns(each) for head in step.heads for each in ast.walk(head)):
            return None
        given = step.name.split("=")
        words = [word for text in given for word in re.split(r"\W+", text)]
        read = [last_name(e) for head in step.heads for e in ast.walk(head) if last_name(e)]
        known = _named(words) or (_named(read) if step.name == "return" else None)
        if known is not None:
            return known
    return None


def _turns(node: ast.AST) -> bool:
    """Return whether a sign is turned, or a share is taken from the whole."""
    return isinstance(node, ast.UnaryOp | ast.BinOp) and isinstance(node.op, ast.USub | ast.Sub)


def _named(words: list[str]) -> tuple[str, bool] | None:
    less = [word for word in words if _LESS.search(word)]
    more = [word for word in words if _MORE.search(word)]
    if bool(less) == bool(more):
        return None
    return (less or more)[0], bool(more)


def _begun_beyond(trails: Trails, file: str, best: ast.expr, *, lowers: bool) -> Iterator[Place]:
    """Yield the statement that begins a best score with a number that none beats: with nothing below it where less is kept, or infinity where more is."""
    wanted = ast.unparse(best)
    begun: list[tuple[int, str]] = []
    for each in all_statements(trails.tree(file)):
        if not isinstance(each, ast.Assign):
            continue
        for target in each.targets:
            pairs = [(target, each.value)]
            if isinstance(target, ast.Tuple) and isinstance(each.value, ast.Tuple):
                pairs = list(zip(target.elts, each.value.elts, strict=False))
            begun += [(each.lineno, ast.unparse(value)) for one, value in pairs if ast.unparse(one) == wanted]
    numbers = [(line, text) for line, text in begun if _NUMBER.search(text)]
    if len(numbers) == 1:
        line, text = numbers[0]
        negative, infinite = "-" in text, "inf" in text
        if (lowers and (negative or not re.search("[1-9]|inf", text))) or (
            not lowers and infinite and not negative
        ):
            yield file, line


_NUMBER = re.compile(r"^-?\s*(\d[\d.e+-]*|float\(['\"][-+]?inf\w*['\"]\)|(np|math|torch|numpy)\.inf)$")
