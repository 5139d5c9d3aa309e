"""Folds, what leaks between their sides, and the summary of their scores."""

from __future__ import annotations

import itertools
import math
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from snugfit.errors import DataError, MissingExtra, SettingError
from snugfit.tools.cross_validation import result
from snugfit.tools.cross_validation.result import (
    CrossValidation,
    Fold,
    FoldScore,
    FoldSettings,
    check_folds,
    deal,
    folds_of,
    leaking,
    summarise,
)

LABELS = ["rare"] * 6 + ["usual"] * 18
GROUPS = [row // 2 for row in range(24)]


def made(settings: FoldSettings, **about: list) -> list[Fold]:
    return list(folds_of(deal(24, settings, **about)))


@pytest.mark.parametrize("stratified", [False, True])
@pytest.mark.parametrize("groups", [None, GROUPS])
def test_each_repeat_holds_out_every_row_exactly_once_and_trains_on_all_others(stratified, groups):
    folds = made(FoldSettings(folds=3, repeats=2, stratified=stratified), labels=LABELS, groups=groups)
    assert [fold.name for fold in folds] == [f"fold-{r}-{k}" for r in (1, 2) for k in (1, 2, 3)]
    for repeat in (1, 2):
        held_out = [row for fold in folds if fold.repeat == repeat for row in fold.validation]
        assert sorted(held_out) == list(range(24))
    assert all(sorted(fold.training + fold.validation) == list(range(24)) for fold in folds)


def test_stratified_folds_have_the_labels_in_the_share_of_all_rows():
    folds = made(FoldSettings(folds=3, stratified=True), labels=LABELS)
    assert [sum(LABELS[row] == "rare" for row in fold.validation) for fold in folds] == [2, 2, 2]


@pytest.mark.parametrize("stratified", [False, True])
def test_rows_of_a_group_are_held_out_together(stratified):
    for fold in made(FoldSettings(folds=4, stratified=stratified), labels=LABELS, groups=GROUPS):
        assert not {GROUPS[row] for row in fold.training} & {GROUPS[row] for row in fold.validation}


def test_the_same_seed_deals_the_same_folds_and_repeats_and_seeds_deal_others():
    dealt = deal(24, FoldSettings(repeats=2))
    assert dealt == deal(24, FoldSettings(repeats=2))
    assert dealt[0] != dealt[1] and dealt[0] != deal(24, FoldSettings(seed=1))[0]
    assert deal(24, FoldSettings(repeats=1)) == dealt[:1], "more repeats leave the first as they were"


@pytest.mark.parametrize(
    ("settings", "labels", "groups", "error", "words"),
    [
        ({"folds": 9}, None, None, SettingError, "9 of 8 rows"),
        ({"folds": 3}, None, [0, 1] * 4, SettingError, "3 of 2 groups"),
        ({"folds": 3, "stratified": True}, ["a", "a", *"bbbbbb"], None, DataError, "'a' has 2 rows"),
        ({"folds": 3, "stratified": True}, None, None, SettingError, "no labels"),
    ],
)
def test_folds_that_cannot_be_are_refused_with_numbers(settings, labels, groups, error, words):
    with pytest.raises(error, match=words):
        deal(8, FoldSettings(**settings), labels, groups)


@pytest.mark.parametrize("settings", [{"folds": 1}, {"repeats": 0}])
def test_settings_that_hold_nothing_out_are_refused(settings):
    with pytest.raises(SettingError, match="too few"):
        FoldSettings(**settings)


def test_without_scikit_learn_its_extra_is_named(monkeypatch):
    monkeypatch.setattr(result, "find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=r"snugfit\[cv\]"):
        deal(8, FoldSettings())


@pytest.mark.parametrize(
    ("fold", "about", "words"),
    [
        (Fold(1, 1, (0, 1), (1, 2)), {}, r"1 row \(1\) both trained and scored"),
        (Fold(1, 1, (0, 1), (2,)), {"groups": ["x", "y", "x"]}, r"1 group \('x'\) both"),
        (Fold(1, 1, (0, 1), (2,)), {"labels": ["a", "a", "b"]}, "the label 'b' are held out"),
        (Fold(1, 1, (), (0,)), {}, "no row is left to train"),
        (Fold(1, 1, (0,), ()), {}, "no row is left to validate"),
    ],
)
def test_a_fold_that_leaks_or_cannot_be_scored_is_refused(fold, about, words):
    with pytest.raises(DataError, match=words):
        check_folds([fold], **about)


def test_held_out_rows_whose_content_is_trained_on_are_counted():
    folds = [Fold(1, 1, (0, 1), (2, 3)), Fold(1, 2, (2, 3), (0, 1))]
    assert leaking(folds, ["a", "b", "a", "a"]) == 3, "rows 2 and 3, and row 0"
    assert leaking(folds, ["a", "a", "b", "b"]) == 0


def test_the_spread_is_that_of_a_sample():
    # 2, 4, 6: squares of the distances from 4 sum to 8, over n - 1 = 2 that is 4, whose root is 2
    found = summarise([{"loss": 2.0}, {"loss": 4.0}, {"loss": 6.0}], held_out=0.5)
    spread = found.spread["loss"]
    assert found.mean == {"loss": 4.0} and spread.deviation == 2.0
    assert spread.error == pytest.approx(2 / math.sqrt(3))
    assert spread.corrected_error == pytest.approx(2 * math.sqrt(1 / 3 + 0.5))


def test_a_metric_that_a_fold_lacks_or_one_that_is_not_finite_has_no_spread():
    found = summarise([{"loss": 1.0, "other": 1.0}, {"loss": math.nan}], held_out=1.0)
    assert list(found.mean) == ["loss"] and math.isnan(found.mean["loss"])
    assert math.isnan(found.spread["loss"].deviation)


def test_best_and_last_weights_are_summed_up_apart():
    def score(best: float, last: float) -> FoldScore:
        return FoldScore("fold-1-1", 8, 2, {"accuracy": best}, 3, {"accuracy": last}, 5, 1.0, "run")

    found = CrossValidation((score(0.8, 0.7), score(0.6, 0.5)), name="mine", planned=5, folder="cv")
    assert found.as_dict()["mean"] == {"accuracy": pytest.approx(0.7)}
    assert found.as_dict()["last"]["mean"] == {"accuracy": pytest.approx(0.6)}
    assert not found.finished


def test_what_is_said_of_several_seeds_counts_a_fold_once():
    names = ["fold-1-1", "fold-1-1-seed-2", "fold-1-2"]
    scores = tuple(
        FoldScore(name, 8, 2, {"accuracy": 0.1 * number}, 3, {"accuracy": 0.0}, 5, 1.0, "run")
        for number, name in enumerate(names)
    )
    found = CrossValidation(scores, name="mine", planned=4, folder="cv")
    assert found.message.endswith("over 2 folds, 3 of 4 runs from several seeds")
    assert "fold-1-1-seed-2  accuracy 0.1" in "".join(found.summary_lines())


@given(st.lists(st.integers(0, 30), min_size=4, max_size=60), st.integers(2, 6))
@settings(max_examples=200, deadline=None)
def test_parts_in_time_follow_one_another_and_each_fold_trains_on_those_before_it(times, folds):
    try:
        (numbers,) = deal(len(times), FoldSettings(folds, forward=True), times=times)
    except SettingError:
        return
    made = list(folds_of([numbers], forward=True))
    assert len(made) == folds
    for fold, after in itertools.zip_longest(made, made[1:]):
        assert max(times[row] for row in fold.training) < min(times[row] for row in fold.validation)
        if after is not None:
            assert set(after.training) == {*fold.training, *fold.validation}
    assert set(made[-1].training) | set(made[-1].validation) == set(range(len(times)))


def test_parts_in_time_are_of_about_one_size_and_of_different_times():
    (numbers,) = deal(100, FoldSettings(4, forward=True), times=[*range(50), *range(50)])
    assert Counter(numbers) == dict.fromkeys(range(5), 20)
    with pytest.raises(SettingError, match="3 of 3 different times"):
        deal(30, FoldSettings(3, forward=True), times=[1, 2, 3] * 10)
    for wrong in ({"repeats": 2}, {"stratified": True}):
        with pytest.raises(SettingError, match="parts in time"):
            FoldSettings(3, forward=True, **wrong)
