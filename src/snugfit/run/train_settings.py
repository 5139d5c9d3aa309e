"""The keywords of `sf.train`, declared once: tools take the same, by `**settings: Unpack[TrainSettings]` and `@takes_settings`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, TypedDict, TypeVar, cast

from snugfit.core.job import Execution, keywords
from snugfit.core.other_names import OTHER_NAMES
from snugfit.core.settings import check_type, shown
from snugfit.errors import SettingError, UserError

if TYPE_CHECKING:
    import torch

    from snugfit.core.job import Hook, KeepWhen, MicroBatch, StopWhen
    from snugfit.core.loss_terms import Loss
    from snugfit.core.technique import Technique
    from snugfit.data.loader import Collate
    from snugfit.run.events import Display
    from snugfit.step.metrics.metric import RowMetric
    from snugfit.step.step import Forward

Function = TypeVar("Function", bound=Callable[..., Any])


class TrainSettings(TypedDict, total=False):
    """Types of the keywords; `sf.train` says what each is for."""

    loss: str | Loss | None
    optimizer: torch.optim.Optimizer | Technique | None
    techniques: Sequence[Technique]
    preset: str | None
    validation: Any
    metrics: Sequence[str] | Mapping[str, str | RowMetric]
    epochs: float | None
    updates: int | None
    global_batch: int | None
    batch_tokens: int | None
    start_batch: int | None
    batch_warmup: float
    batch_by_epoch: Sequence[int]
    micro_batch: MicroBatch
    best: str | None
    evaluate_every: int | None
    keep_models: int
    keep_when: KeepWhen | None
    evaluate_batch: int | None
    patience: int | None
    min_delta: float
    stop_when: StopWhen | None
    non_finite: str
    non_finite_limit: int
    checkpoint_every: int | None
    checkpoint_keep: int
    checkpoint_save: str
    on_update: Hook | None
    on_evaluation: Hook | None
    on_checkpoint: Hook | None
    on_end: Hook | None
    seed: int
    device: str
    strategy: str
    num_workers: int
    cut_padding: bool
    deterministic: bool
    collate: Collate | None
    forward: Forward | None
    name: str
    output: str | Path | None
    resume: str | Path | None
    accept_changes: Sequence[str]
    time: str | float | None
    stop_after_seconds: float | None
    track: bool | str | Sequence[str]
    track_uri: str | None
    track_histograms: bool
    display: Display | Literal["auto"] | None


_OWN = TrainSettings(
    loss=None,
    optimizer=None,
    techniques=(),
    preset=None,
    validation=None,
    best=None,
    evaluate_every=None,
    device="auto",
    strategy="auto",
    collate=None,
    forward=None,
    name="run",
    output="runs",
    resume=None,
    accept_changes=(),
    time=None,
    stop_after_seconds=None,
    track=True,
    track_uri=None,
    track_histograms=False,
    display="auto",
)
_JOB = {name: section.settings()[own].default for name, (section, own) in keywords().items()}
_PLAN = {name: each.default for name, each in Execution.settings().items()}
_DEFAULTS = {**_JOB, **_PLAN, **_OWN}

DEFAULTS = cast(TrainSettings, {name: _DEFAULTS[name] for name in TrainSettings.__annotations__})
"""Of each keyword; those of a job's and a plan's settings are declared with these."""

OF_JOB = tuple(name for name in _JOB if name in DEFAULTS and name not in (*_OWN, "metrics"))
OF_PLAN = tuple(name for name in _PLAN if name in DEFAULTS)
"""Keywords that go into a job and a plan as they are."""

_TYPES: Mapping[str, tuple[Any, str]] = {
    "loss": (str | Callable[..., Any] | None, "the name of a loss, a function or None"),
    "preset": (str | None, "the name of a preset or None"),
    "output": (str | Path | None, "a folder or None"),
    "time": (str | int | float | None, "seconds, or text such as '3h', or None"),
    "metrics": (str | Sequence | Set | Mapping, "a list of names, or names with functions"),
    "track": (
        bool | str | Sequence,
        "True, False, or names of trackers: mlflow, tensorboard, wandb, trackio, or package.module:Class",
    ),
    "strategy": (str, "the name of a strategy"),
    "collate": (Callable[..., Any] | None, "a function or None"),
    "display": (Callable[..., Any] | Literal["auto"] | None, '"auto", a function or None'),
    "forward": (Callable[..., Any] | None, "a function or None"),
}
"""Types of keywords that no section of a job or a plan declares, and those in words."""


def with_defaults(settings: TrainSettings) -> dict[str, Any]:
    """Return all keywords, with the defaults of those that are not given.

    Raises:
        TypeError: there is no such keyword.
        SettingError: a value is of another type than its keyword.
    """
    for name in settings:
        if name not in DEFAULTS:
            # of any function that takes these
            raise TypeError(f"got an unexpected keyword argument '{name}'{_suggestion(name)}")
    given: dict[str, Any] = {**DEFAULTS, **settings}
    for name, (annotation, words) in _TYPES.items():
        try:
            check_type(annotation, given[name])
        except ValueError as error:
            raise SettingError.must_be(name, words, shown(given[name])) from error
    for metric in given["metrics"]:
        if not isinstance(metric, str):
            raise SettingError(
                "metrics",
                f"got {shown(metric)} among the names, expected text",
                'Give functions with their names, beside names of built-in ones: metrics={"accuracy": "accuracy", "mine": function}.',
            )
    return given


def _suggestion(name: str) -> str:
    """Return the keyword that an unknown one may stand for, as the end of a sentence; "" where there is none.

    >>> _suggestion("batch_size"), _suggestion("lr"), _suggestion("zzz")
    (". Did you mean 'global_batch'?", '. Did you mean optimizer=sf.AdamW(learning_rate=1e-3)?', '')
    """
    if (ours := OTHER_NAMES.get(name)) is not None:
        keyword = ours.python
        return f". Did you mean {keyword if '=' in keyword else repr(keyword)}?"
    near = get_close_matches(name, DEFAULTS, n=1)
    return f". Did you mean '{near[0]}'?" if near else ""


@contextmanager
def by_keywords(others: Mapping[str, str] = MappingProxyType({})) -> Iterator[None]:
    """Temporarily name settings of a recipe in errors as the keywords of `sf.train` do, such as `best` for `evaluate.best`.

    Args:
        others: further keywords by settings.
    Raises:
        UserError: by its keyword.
    """
    try:
        yield
    except UserError as error:
        if (name := {**_recipe_settings(), **others}.get(error.setting)) is None:
            raise
        raise error.about(name) from error


def _recipe_settings() -> dict[str, str]:
    """Return the keywords by the settings that a recipe has in their place."""
    of_job = {f"{section.key}.{own}": name for name, (section, own) in keywords().items()}
    of_plan = {f"{Execution.key}.{name}": name for name in (*OF_PLAN, "device", "strategy")}
    return {**of_job, **of_plan, "data.validation": "validation"}


def takes_settings(function: Function) -> Function:
    """Have the signature of a function that takes `**settings` list each of them, for `help()` and notebooks."""
    signature = inspect.signature(function)
    own = [each for each in signature.parameters.values() if each.kind is not each.VAR_KEYWORD]
    each_setting = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=_text(name))
        for name, default in DEFAULTS.items()
    ]
    function.__signature__ = signature.replace(parameters=[*own, *each_setting])  # type: ignore[attr-defined]
    return function


def _text(name: str) -> str:
    """Return a keyword's type as it is written."""
    annotation = TrainSettings.__annotations__[name]
    return annotation if isinstance(annotation, str) else annotation.__forward_arg__
