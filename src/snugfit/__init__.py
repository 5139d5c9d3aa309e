"""Snugfit trains and fine-tunes PyTorch models inside the memory and the time you have.

    import snugfit as sf

    sf.train(model, data, optimizer=sf.AdamW(learning_rate=1e-3), techniques=[sf.EMA()])
    step = sf.Step(model, sf.SGD(learning_rate=0.1), loss="cross_entropy")  # in a loop of your own

Names are loaded when they are first used, so `import snugfit` costs next to nothing. Besides those of `__all__`,
every technique's class is here under its own name.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from snugfit import techniques as techniques
    from snugfit.core.loss_terms import LossTerms as LossTerms
    from snugfit.core.technique import Card as Card
    from snugfit.core.technique import Seams as Seams
    from snugfit.core.technique import Technique as Technique
    from snugfit.data.stream import Stream as Stream
    from snugfit.doctor.door import examine as examine
    from snugfit.errors import SnugfitError as SnugfitError
    from snugfit.errors import TrainingFailed as TrainingFailed
    from snugfit.errors import UserError as UserError
    from snugfit.recipe import Recipe as Recipe
    from snugfit.recipe import load_recipe as load_recipe
    from snugfit.run.from_python import plan as plan
    from snugfit.run.from_python import train as train
    from snugfit.run.trained_model import load as load
    from snugfit.run.training.result import RunResult as RunResult
    from snugfit.run.training.result import TrainedModel as TrainedModel
    from snugfit.step.metrics.all_rows_metrics import over_all_rows as over_all_rows
    from snugfit.step.step import Step as Step
    from snugfit.step.step import StepResult as StepResult
    from snugfit.tools.certify.door import certify as certify
    from snugfit.tools.certify.technique_certificate import certify_technique as certify_technique
    from snugfit.tools.cross_validation.door import cross_validate as cross_validate
    from snugfit.tools.find_batch.door import find_batch as find_batch
    from snugfit.tools.find_lr.door import find_lr as find_lr
    from snugfit.tools.profile.door import profile as profile
    from snugfit.tools.tune.door import tune as tune

_HOMES = {
    "Card": "snugfit.core.technique",
    "LossTerms": "snugfit.core.loss_terms",
    "Recipe": "snugfit.recipe",
    "RunResult": "snugfit.run.training.result",
    "Seams": "snugfit.core.technique",
    "SnugfitError": "snugfit.errors",
    "Step": "snugfit.step.step",
    "StepResult": "snugfit.step.step",
    "Stream": "snugfit.data.stream",
    "Technique": "snugfit.core.technique",
    "TrainedModel": "snugfit.run.training.result",
    "TrainingFailed": "snugfit.errors",
    "UserError": "snugfit.errors",
    "certify": "snugfit.tools.certify.door",
    "certify_technique": "snugfit.tools.certify.technique_certificate",
    "cross_validate": "snugfit.tools.cross_validation.door",
    "examine": "snugfit.doctor.door",
    "find_batch": "snugfit.tools.find_batch.door",
    "find_lr": "snugfit.tools.find_lr.door",
    "load": "snugfit.run.trained_model",
    "load_recipe": "snugfit.recipe",
    "over_all_rows": "snugfit.step.metrics.all_rows_metrics",
    "plan": "snugfit.run.from_python",
    "profile": "snugfit.tools.profile.door",
    "train": "snugfit.run.from_python",
    "tune": "snugfit.tools.tune.door",
}

__all__ = sorted([*_HOMES, "techniques"])


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        member = getattr(import_module(_HOMES[name]), name)
    elif name == "techniques":
        member = import_module("snugfit.techniques")
    else:
        member = _technique(name)
    globals()[name] = member
    return member


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *(technique.__name__ for technique in _discover())})


def _technique(name: str) -> Any:
    """Return the technique whose class has this name."""
    # a class's name begins with a capital; other names are asked for by tools that look for protocols
    if name[:1].isupper():
        from snugfit.techniques import of_class

        technique = of_class(name)
        if technique is not None:
            return technique
    raise AttributeError(f"module 'snugfit' has no attribute '{name}'")


def _discover() -> list[type]:
    from snugfit.techniques import discover

    return list(discover().values())
