"""The certificate of one technique, of any origin: its laws on a small built-in problem."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import torch

from snugfit.core.random import preserved_elsewhere, preserved_randomness
from snugfit.core.technique import Family, Stage, Technique
from snugfit.errors import PlanConflict, SettingError, SnugfitWarning
from snugfit.results.verdicts import TITLES, Certificate, Law, Verdict
from snugfit.system.user_objects import describe
from snugfit.techniques import discover
from snugfit.tools.certify import compare, technique_laws
from snugfit.tools.certify.page import ModelCertificate
from snugfit.tools.certify.technique_laws import Oracle, delivered, delivered_evaluated
from snugfit.tools.certify.technique_problem import (
    WINDOW_ROWS,
    Problem,
    is_legal,
    make_step,
    problem_of,
    weights,
)
from snugfit.tools.certify.trial import BOUNDS

DTYPE = "float64"
NO_ORACLE = (
    "no oracle was checked: nothing was compared with a second, independent way to compute it. Give one with --oracle "
    "package.module:function"
)
IDLE = (
    "its example settings change nothing on this problem, so that the laws say little of it. Give it settings that matter there with "
    "`example()`"
)
_EACH = 1
"""Partners of each seam that it is tried beside."""
_SHOWN = 3
"""Partners beside which a law is broken that are told."""


def certify_technique(
    technique: Technique,
    *,
    dtype: str | None = None,
    oracle: Oracle | None = None,
    tell: Callable[[str], None] = lambda _: None,
) -> Certificate:
    """Try the laws that Snugfit's own techniques are held to on one, with these settings.

    Args:
        dtype: float64 or float32; float64 by default.
        oracle: a loop that trains in the same way and shares no code with it.
        tell: is told the name of each law before it is tried.
    Raises:
        SettingError: the type is unknown, or the technique refuses the built-in model.
    """
    started, dtype_name = time.monotonic(), dtype or DTYPE
    if dtype_name not in BOUNDS:
        raise SettingError(
            "dtype", f"must be one of {', '.join(BOUNDS)}, found '{dtype_name}'", "Choose one of them."
        )
    problem = problem_of((technique,), getattr(torch, dtype_name), BOUNDS[dtype_name])
    laws: dict[str, Callable[[], Law]] = {
        "card": lambda: technique_laws.card(problem, technique),
        "accumulation": lambda: technique_laws.split(problem, (technique,)),
        "order": lambda: _beside_partners(technique, problem),
        "resume": lambda: technique_laws.resume(problem, (technique,)),
        "skip": lambda: technique_laws.skip(problem, (technique,)),
        "placement": lambda: technique_laws.placement(problem, technique),
    }
    if oracle is not None:
        laws["oracle"] = lambda: technique_laws.as_oracle(problem, technique, oracle)
    with (
        _one_thread(),
        preserved_randomness(torch.device("cpu")),
        preserved_elsewhere(),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore", SnugfitWarning)  # settings of partners are for longer runs
        _require_fit(technique, problem)
        results = []
        for name, law in laws.items():
            tell(TITLES[name])
            results.append(_tried(name, law, problem.tolerance))
        conditions = (*([] if oracle is not None else [NO_ORACLE]), *_idle(technique, problem))
    return ModelCertificate(
        technique.card.name,
        tuple(results),
        dtype_name,
        "cpu",
        WINDOW_ROWS[0],
        None,
        (*conditions, f"settings {technique!r}, on the built-in model '{problem.name}'"),
        time.monotonic() - started,
    )


@contextmanager
def _one_thread() -> Iterator[None]:
    """Temporarily compute on one thread: tensors of some numbers take longer on several."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _require_fit(technique: Technique, problem: Problem) -> None:
    """Raise what the technique has against the built-in model, which says nothing about its laws.

    Raises:
        SettingError: as the technique, with what else may be certified.
    """
    try:
        make_step(problem, (technique,))
    except (SettingError, PlanConflict) as error:
        raise SettingError(
            "certify",
            f"'{technique.card.name}' refuses the built-in model '{problem.name}': {error}",
            "Certify a recipe with it on a model that it suits: snugfit certify RECIPE.",
        ) from error
    except Exception:  # noqa: BLE001 - of the user's code: each law says what it is
        return


def _tried(name: str, law: Callable[[], Law], bound: float) -> Law:
    """Return the verdict of a law; one in which the technique fails is broken, and says where."""
    try:
        return law()
    except Exception as error:  # noqa: BLE001 - of the user's code, and the other laws go on
        return Law(name, Verdict.BROKEN, None, bound, reasons=(f"it failed: {describe(error)}",))


def _beside_partners(technique: Technique, problem: Problem) -> Law:
    """Return the worst verdict of the technique beside some of Snugfit's, listed before it and behind it.

    A partner that breaks the law by itself on this problem, as it rounds, says nothing of the technique and is left out.
    """
    broken: list[Law] = []
    worst: Law | None = None
    names = []
    for partner in _partners(technique):
        both = (technique, partner)
        paired_problem = problem_of(both, problem.dtype, problem.tolerance)
        law = _tried("order", partial(technique_laws.pair, paired_problem, both), problem.tolerance)
        if law.verdict is Verdict.BROKEN and not _keeps_laws_alone(partner, paired_problem):
            continue
        names.append(partner.card.name)
        if law.verdict is Verdict.BROKEN:
            reasons = tuple(
                f"beside '{partner.card.name}': {reason}"
                for reason in law.reasons or (f"{law.figures}, {law.worst}",)
            )
            broken.append(Law("order", Verdict.BROKEN, law.error, law.bound, law.worst, "", reasons))
        elif worst is None or (law.error or 0) > (worst.error or 0):
            worst = law
    if not names:
        return Law(
            "order", Verdict.EXEMPT, None, problem.tolerance, reasons=("no technique may stand beside it",)
        )
    if broken:
        first = max(broken, key=lambda law: law.error or 0)
        reasons = tuple(reason for law in broken[:_SHOWN] for reason in law.reasons)
        return Law("order", Verdict.BROKEN, first.error, first.bound, first.worst, "", reasons)
    assert worst is not None
    return Law(
        "order", Verdict.HELD, worst.error, worst.bound, worst.worst, reasons=(f"beside {', '.join(names)}",)
    )


def _partners(technique: Technique) -> Iterator[Technique]:
    """Yield some of Snugfit's techniques for each seam that change what is learned, and recomputation, which runs it again.

    They are of those that may stand beside it.
    """
    count: dict[str, int] = {}
    for kind in discover().values():
        card = kind.card
        # adapters load a library, which takes longer than all laws
        new = card.family is Family.LEARNING and Stage.ADAPT not in card.stages
        new = new and any(count.get(seam, 0) < _EACH for seam in card.seams)
        if not new and Stage.RECOMPUTE not in card.stages:
            continue
        other = kind.example()
        if is_legal((technique, other)):
            for seam in card.seams:
                count[seam] = count.get(seam, 0) + 1
            yield other


def _keeps_laws_alone(partner: Technique, problem: Problem) -> bool:
    law = _tried("order", lambda: technique_laws.pair(problem, (partner,)), problem.tolerance)
    return law.verdict is Verdict.HELD


def _idle(technique: Technique, problem: Problem) -> Sequence[str]:
    """Return what is to be said where the technique has no effect and ought to have one."""
    if technique.card.family is Family.PLACEMENT:
        return ()
    try:
        steps = [make_step(problem, given) for given in ((technique,), ())]
        for window in problem.windows():
            for step in steps:
                step(window)
        views = [(weights(step), delivered(step), delivered_evaluated(step)) for step in steps]
    except Exception:  # noqa: BLE001 - of the user's code: its laws have said what it is
        return ()
    idle = all(
        one.keys() == other.keys() and not compare.differences(one, other)
        for one, other in zip(*views, strict=True)
    )
    return (IDLE,) if idle else ()
