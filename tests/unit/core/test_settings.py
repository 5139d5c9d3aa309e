"""Settings are declared once: their types, bounds and words are checked wherever a section is made."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import pytest

import snugfit as sf
from snugfit.core.job import EarlyStopping, Evaluate, Job, Train, keywords
from snugfit.core.settings import Bound, Count, Section, setting
from snugfit.errors import SettingError


@dataclass(frozen=True)
class Example(Section):
    """One of each kind of setting."""

    key: ClassVar[str] = "example"

    count: Count | None = setting("a count", None)
    share: Annotated[float, Bound(above=0, below=1)] = setting("a share", 0.5)
    rate: Annotated[float, Bound(least=0)] = setting("a rate", 0.0)
    size: Annotated[int, Bound(least=2)] = setting("a size", 2)
    way: Literal["here", "there"] = setting("a way", "here")
    every: Literal["epoch"] | Count = setting("a time", "epoch")
    names: Annotated[tuple[str, ...], Bound(entries=1)] = setting("names", ("a",))
    text: str | None = setting("a text", None, pattern=r"[a-z]+", takes="small letters or null")
    switch: bool = setting("a switch", False)
    function: Callable[[int], int] | str | None = setting("a function", None, takes="a function")


@pytest.mark.parametrize(
    ("name", "given", "value"),
    [
        ("count", 3, 3),
        ("count", None, None),
        ("share", 0.25, 0.25),
        ("size", 2, 2),
        ("way", "there", "there"),
        ("every", 5, 5),
        ("names", ("b", "c"), ("b", "c")),
        ("text", "abc", "abc"),
        ("switch", True, True),
        ("function", abs, abs),
        ("function", "mine:stop", "mine:stop"),
    ],
)
def test_a_section_has_the_values_that_its_settings_take(name: str, given: Any, value: Any) -> None:
    assert getattr(Example(**{name: given}), name) == value


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("count", 0, "a positive whole number or null, found 0"),
        ("count", 2.0, "a positive whole number or null, found 2.0"),
        ("count", True, "a positive whole number or null, found true"),
        ("count", "3", "a positive whole number or null, found '3'"),
        ("share", 1, "a number above 0 and below 1, found 1"),
        ("share", math.nan, "a number above 0 and below 1, found NaN"),
        ("share", math.inf, "a number above 0 and below 1, found Infinity"),
        ("share", True, "a number above 0 and below 1, found true"),
        ("share", None, "a number above 0 and below 1, found null"),
        ("rate", math.inf, "a number of at least 0, found Infinity"),
        ("rate", math.nan, "a number of at least 0, found NaN"),
        ("size", 1, "a whole number of at least 2, found 1"),
        ("way", "where", "here or there, found 'where'"),
        ("every", "day", "epoch or a positive whole number, found 'day'"),
        ("every", 0, "epoch or a positive whole number, found 0"),
        ("names", (), r"a list of names, found \[\]"),
        ("names", ("a", 1), r"a list of names, found \[\"a\", 1\]"),
        ("names", "a", "a list of names, found 'a'"),
        ("text", "ABC", "small letters or null, found 'ABC'"),
        ("switch", 1, "true or false, found 1"),
        ("function", 1, "a function, found 1"),
    ],
)
def test_what_a_setting_does_not_take_is_refused_by_its_full_name(name: str, value: Any, words: str) -> None:
    with pytest.raises(SettingError, match=rf"^example\.{name}: must be {words}\.$"):
        Example(**{name: value})


def test_a_whole_number_becomes_a_number_where_one_is_taken() -> None:
    train = Train(epochs=2)
    assert train.epochs == 2.0 and isinstance(train.epochs, float)
    assert train == Train(epochs=2.0)


def test_a_section_declares_its_settings_in_order_with_default_and_meaning() -> None:
    settings = EarlyStopping.settings()
    assert list(settings) == ["patience", "min_delta", "stop_when"]
    assert settings["min_delta"].default == 0.0 and not settings["min_delta"].required
    assert settings["patience"].takes == "a positive whole number or null"
    assert "improvement" in settings["patience"].meaning


def test_keywords_reach_the_setting_that_declares_them() -> None:
    job = Job.of(
        updates=5, global_batch=4, evaluate_every=2, non_finite="stop", checkpoint_keep=3, patience=1
    )
    assert (job.train.updates, job.train.epochs, job.train.global_batch) == (5, None, 4)
    assert job.evaluate == Evaluate(every=2)
    assert (job.non_finite.policy, job.checkpoint.keep) == ("stop", 3)
    assert job.early_stopping == EarlyStopping(patience=1)
    assert Job.of(patience=None, stop_when=None, min_delta=0.0).early_stopping is None


def test_every_keyword_of_a_job_is_one_of_train_with_the_same_default() -> None:
    parameters = inspect.signature(sf.train).parameters
    for keyword, (section, name) in keywords().items():
        default, declared = parameters[keyword].default, section.settings()[name].default
        # in Python None stands for what a recipe has a word for
        assert default == declared or (default is None and declared in ("", "epoch")), keyword


def test_an_unknown_keyword_names_the_nearest() -> None:
    with pytest.raises(SettingError, match=r"epoch: there is no such setting\. Did you mean 'epochs'\?"):
        Job.of(epoch=3)


def test_the_metric_of_the_best_weights_is_the_first_one_unless_named() -> None:
    assert Evaluate().best_metric == "loss"
    assert Evaluate(metrics=("accuracy", "macro_f1")).best_metric == "accuracy"
    assert Evaluate(metrics=("accuracy",), best="loss").best_metric == "loss"
