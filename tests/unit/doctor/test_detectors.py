"""Detectors on logs that are made by hand: what they tell apart, step by step."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest

from snugfit.doctor.findings import Finding
from snugfit.doctor.observe.detectors.rows.label_faults import shifted_labels
from snugfit.doctor.observe.detectors.scores.checkpoint_faults import partial_resume
from snugfit.doctor.observe.detectors.scores.evaluation_faults import (
    batch_mean_scores,
    other_statistics,
    random_validation,
)
from snugfit.doctor.observe.detectors.updates.gradient_faults import accumulation
from snugfit.doctor.observe.detectors.updates.rate_faults import learning_rate, unrestored_range_test
from snugfit.doctor.observe.events.log import LoaderSeen, Log, ModelSeen, OptimizerSeen, ParameterSeen
from snugfit.doctor.observe.events.script_events import (
    Backward,
    Batch,
    EpochEnd,
    Event,
    Forward,
    LengthRead,
    Loss,
    ScheduleStep,
    Step,
)
from snugfit.doctor.observe.events.state_events import Restore, Resume, Save, StateRestore

AT = "train.py:1", 0
OPTIMIZER, MODULE, LOADER = 7, 3, 5


def log_of(events: Sequence[Event], *, optimizers: int = 1, redrawn: int = 0, repeated: int = 0) -> Log:
    made = [OptimizerSeen(OPTIMIZER + each, "AdamW", "train.py:2", [1]) for each in range(optimizers)]
    loaders = [
        LoaderSeen(LOADER + each, "train.py:3", "", False, "Rows", each, 0, False, False, 1)
        for each in range(2)
    ]
    loaders[0].redrawn, loaders[0].repeated = redrawn, repeated
    return Log(
        events=list(events),
        optimizers=made,
        loaders=loaders,
        parameters=[ParameterSeen(1, "weight", 4, 2, MODULE, library=False)],
    )


def backward(value: float, ratio: float = 1.0) -> Backward:
    return Backward(*AT, ratio, "", [], [OPTIMIZER], value=value)


def step(rate: float = 0.1, weights: float = 0.0, optimizer: int = OPTIMIZER) -> Step:
    plain = dict.fromkeys(("stale", "cleared", "scaled", "without", "rescaled"), False)
    return Step(*AT, optimizer, **plain, rate=rate, weights=weights)


def loss(*, grad: bool = False, mean: bool = True, function: str = "cross_entropy", classes: int = 4) -> Loss:
    return Loss(*AT, function, grad, "", mean, classes, 8, 0, None, False, {}, False, 0.0)


def forward(rows: int = 8, *, grad: bool = False, scale: float = 0.0, module: int = MODULE) -> Forward:
    return Forward(
        *AT,
        module,
        training=grad,
        affected=False,
        grad=grad,
        recalibrates=False,
        rows=rows,
        weights="",
        raw=True,
        autocast="",
        device="cpu",
        native=True,
        scale=scale,
    )


def names(findings: Sequence[Finding]) -> list[str]:
    return [finding.pitfall for finding in findings]


def updates(values: Sequence[float], weights: Sequence[float], rates: Sequence[float] = ()) -> list[Event]:
    rates = rates or [0.1] * len(values)
    return [
        event
        for value, size, rate in zip(values, weights, rates, strict=True)
        for event in (loss(grad=True, classes=1), backward(value), step(rate, size))
    ]


GROWS = [10.0**power for power in range(12)]
STAYS = [1.0] * 12
TO_NOTHING = [1.0, 1.0, 1.0, 30.0, *[math.nan] * 8]


@pytest.mark.parametrize(
    ("values", "weights", "found"),
    [
        (GROWS, GROWS, True),
        (GROWS, STAYS, False),  # the targets grow
        ([value * 1e-9 for value in GROWS], GROWS, False),  # to no large number
        ([1.0, 1.0, 1.0, 200.0, *[math.nan] * 8], [1.0, *[math.nan] * 11], True),
        (TO_NOTHING, [1.0, *[math.nan] * 11], False),  # a logarithm of zero, not a rate
        ([1.0, 1.0, 1.0, 200.0, math.nan, *[1.0] * 7], GROWS, False),  # one bad window
        (GROWS[:6], GROWS[:6], False),
    ],
)
def test_a_loss_explodes_where_it_grows_with_the_weights(
    values: list[float], weights: list[float], found: bool
) -> None:
    assert names(learning_rate(log_of(updates(values, weights)))) == ["learning_rate"] * found


@pytest.mark.parametrize(("scale", "found"), [(300.0, "unscaled_inputs"), (3.0, "learning_rate")])
def test_a_loss_explodes_because_of_inputs_where_these_are_far_above_one(scale: float, found: str) -> None:
    log = log_of(updates(GROWS, GROWS))
    log.models = [ModelSeen(MODULE, "Net", "", [], [], 0, {}, False, "", "", "", input_scale=scale)]
    assert names(learning_rate(log)) == [found]


@pytest.mark.parametrize(
    ("values", "ratio", "over_classes", "optimizers", "found"),
    [
        ([1.4, 9.0, 9.0, *[1.4] * 11], 1.0, loss(grad=True), 1, True),
        ([1.4, 9.0, 9.0, *[0.9] * 11], 1.0, loss(grad=True), 1, False),  # it recovers
        ([1.4, 3.0, 3.0, *[1.4] * 11], 1.0, loss(grad=True), 1, False),  # no jump
        ([1.4, 9.0, 9.0, *[1.4] * 11], 2.0, loss(grad=True), 1, False),  # a sum with something else
        ([1.4, 9.0, 9.0, *[1.4] * 11], 1.0, loss(), 1, False),
        ([1.4, 9.0, 9.0, *[1.4] * 11], 1.0, loss(grad=True, mean=False), 1, False),
        ([1.4, 9.0, 9.0, *[1.4] * 11], 1.0, loss(grad=True, classes=1), 1, False),
        ([1.4, 9.0, 9.0, *[1.4] * 11], 1.0, loss(grad=True), 2, False),  # two players
    ],
)
def test_a_loss_over_classes_that_jumps_has_to_stay_at_chance(
    values: list[float], ratio: float, over_classes: Loss, optimizers: int, found: bool
) -> None:
    events: list[Event] = []
    for value in values:
        events += [over_classes, backward(value, ratio)]
        events += [step(optimizer=OPTIMIZER + each) for each in range(optimizers)]
    assert names(learning_rate(log_of(events, optimizers=optimizers))) == ["learning_rate"] * found


def test_a_range_test_may_explode_and_its_weights_are_not_trained_on() -> None:
    tested = updates(GROWS, GROWS, [1e-6 * 3**place for place in range(12)])
    assert not learning_rate(log_of(tested))
    assert not unrestored_range_test(log_of(tested))
    rest = [step(1e-3) for _ in range(3)]
    assert names(unrestored_range_test(log_of([*tested, *rest]))) == ["range_test_kept"]
    warm = [step(1e-6 * 3**11 / 1.5) for _ in range(3)]  # goes on where the warm-up ended
    assert not unrestored_range_test(log_of([*tested, *warm]))
    uneven = updates(GROWS, GROWS, [1e-6 * 1.2**place for place in range(11)] + [1.0])
    assert not unrestored_range_test(log_of([*uneven, *rest]))


def evaluation(
    sizes: Sequence[int],
    *,
    mean: bool = True,
    grad: bool = False,
    function: str = "cross_entropy",
    loader: int = LOADER,
) -> list[Event]:
    batches = [
        (Batch(*AT, loader), forward(size, grad=grad), loss(grad=grad, mean=mean, function=function))
        for size in sizes
    ]
    return [*(event for batch in batches for event in batch), EpochEnd(*AT, loader)]


READ, READ_OF_ANOTHER = LengthRead(*AT, LOADER), LengthRead(*AT, LOADER + 1)


@pytest.mark.parametrize(
    ("events", "certainty"),
    [
        ([*evaluation([8, 8, 8, 1]), READ], "likely"),
        ([*evaluation([8, 8, 8, 6]), READ], "worth a look"),
        ([*evaluation([8, 8, 8, 8]), READ], None),
        ([*evaluation([8]), READ], None),
        ([*evaluation([8, 8, 8, 1])[:-1], READ], None),  # before its end: the length of a bar
        ([*evaluation([8, 8, 8]), forward(1), loss(), READ], None),
        (
            [*evaluation([8, 8, 8])[:-1], *evaluation([1], loader=LOADER + 1), EpochEnd(*AT, LOADER), READ],
            None,
        ),
        ([*evaluation([8, 8, 8, 1]), READ_OF_ANOTHER], None),
        ([*evaluation([8, 8, 8, 1], mean=False), READ], None),
        ([*evaluation([8, 8, 8, 1], function="argmax"), READ], None),  # rows that are right, counted
        ([*evaluation([8, 8, 8, 1], grad=True), READ], None),  # the mean of a training, which is a moving one
        ([*evaluation([8, 8, 8, 1]), *evaluation([8, 8, 8, 8]), READ], None),
    ],
)
def test_means_of_batches_are_averaged_where_the_number_of_batches_is_read_after_them(
    events: list[Event], certainty: str | None
) -> None:
    found = batch_mean_scores(log_of(events))
    assert [str(finding.certainty) for finding in found] == ([] if certainty is None else [certainty])


@pytest.mark.parametrize(
    ("events", "redrawn", "repeated", "found"),
    [
        (evaluation([8, 8]), 2, 0, True),
        (evaluation([8, 8]), 0, 0, False),
        (evaluation([8, 8]), 2, 1, False),  # some passes are the same
        ([*evaluation([8, 8]), backward(1.0)], 2, 0, False),  # it is trained on too
        ([Batch(*AT, LOADER), forward()], 2, 0, False),  # nothing scores it
        (
            [Batch(*AT, LOADER), Batch(*AT, LOADER + 1), forward(), loss()],
            2,
            0,
            False,
        ),  # another one is scored
    ],
)
def test_a_validation_is_random_where_no_pass_repeats_and_it_is_scored(
    events: list[Event], redrawn: int, repeated: int, found: bool
) -> None:
    log = log_of(events, redrawn=redrawn, repeated=repeated)
    assert names(random_validation(log)) == ["random_validation"] * found


@pytest.mark.parametrize(
    ("trained", "scored", "module", "found"),
    [
        ([1.0] * 3, 80.0, MODULE, True),
        ([80.0] * 3, 1.0, MODULE, True),
        ([1.0] * 3, 2.0, MODULE, False),
        ([1.0] * 3, 4.0, MODULE, True),  # rows that were scaled, and others that were not
        ([5.0] * 3, 20.0, MODULE, False),  # which may have any scale
        ([1.0] * 2, 80.0, MODULE, False),  # too few to say
        ([1.0] * 3, 80.0, MODULE + 1, False),  # of a model that nothing trains
        ([1.0] * 3, 0.0, MODULE, False),  # tokens
    ],
)
def test_inputs_of_another_scale_are_scored_by_the_model_that_trains(
    trained: list[float], scored: float, module: int, found: bool
) -> None:
    passes = [forward(grad=True, scale=scale, module=module) for scale in trained]
    log = log_of([*passes, forward(scale=scored, module=module), loss()])
    assert names(other_statistics(log)) == ["other_statistics"] * found


@pytest.mark.parametrize(
    ("held", "states", "stepped", "folder", "missing"),
    [
        ((True, False), [], False, "runs", "optimizer"),
        ((True, False), [False], False, "runs", None),
        ((False, True), [], True, "runs", "scheduler"),
        ((True, True), [False], True, "runs", "scheduler"),
        ((True, True), [False, True], True, "runs", None),
        ((True, True), [False], False, "runs", None),  # no schedule is used any more
        ((True, False), [False], True, "runs", None),  # the checkpoint has none
        ((True, True), [], True, "elsewhere", None),  # one to begin from
    ],
)
def test_a_resume_leaves_out_what_its_own_checkpoint_holds_and_training_uses(
    held: tuple[bool, bool], states: list[bool], stepped: bool, folder: str, missing: str | None
) -> None:
    events: list[Event] = [
        Resume(*AT, *held, folder),
        Restore(*AT, MODULE, "", "float32", parameters=[1]),
        *(StateRestore(*AT, schedule) for schedule in states),
        *([step()] * 3),
        *([ScheduleStep(*AT, 1)] * stepped),
        Save(*AT, "state", True, [], "runs"),
    ]
    assert [finding.fix for finding in partial_resume(log_of(events))] == (
        [] if missing is None else [f'{missing}.load_state_dict(checkpoint["{missing}"])']
    )
    few = [event for event in events if not isinstance(event, Step)]
    assert not partial_resume(log_of(few))


def test_heads_that_guess_the_second_and_the_third_next_token_are_meant_to() -> None:
    second = replace(loss(grad=True), counted=8, ahead=2)
    assert shifted_labels(log_of([second] * 3))
    assert not shifted_labels(log_of([second, replace(second, ahead=0)] * 3))


@pytest.mark.parametrize(
    ("windows", "certainty"),
    [
        ([[560, 735], [640, 610], [655, 630]], "worth a look"),  # rows of random lengths
        ([[200, 735], [640, 210], [655, 130]], "likely"),
        ([[560, 560], [640, 640]], None),
    ],
)
def test_means_over_different_numbers_of_tokens_are_ill_where_they_differ_by_far_and_usually(
    windows: list[list[int]], certainty: str | None
) -> None:
    events: list[Event] = []
    for counts in windows:
        for number, counted in enumerate(counts):
            adds = [OPTIMIZER] if number else []
            events.append(forward(grad=True))
            events.append(replace(loss(grad=True), tokens=True, counted=counted, ignored=100))
            events.append(replace(backward(1.0, ratio=0.5), adds_to=adds))
        events.append(step())
    found = accumulation(log_of(events))
    assert [str(finding.certainty) for finding in found] == ([] if certainty is None else [certainty])
