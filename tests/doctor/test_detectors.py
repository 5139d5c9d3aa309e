"""What the detectors conclude from logs that a script of a few lines cannot make: ranks, GPUs, refused steps."""

from __future__ import annotations

from dataclasses import replace

import pytest

from snugfit.doctor.findings import Certainty, Finding
from snugfit.doctor.observe.detect import diagnose
from snugfit.doctor.observe.detectors.losses.loss_faults import (
    non_finite_loss,
    unreachable_targets,
    wrong_scores,
)
from snugfit.doctor.observe.detectors.rows.data_faults import (
    leakage,
    not_distributed,
    parts_of_other_orders,
    ranks_differ,
    same_rows_on_every_rank,
    starving,
)
from snugfit.doctor.observe.detectors.rows.label_faults import (
    end_never_scored,
    scored_padding,
    unmasked_padding,
)
from snugfit.doctor.observe.detectors.time_faults import debugging_left_on, device_reads
from snugfit.doctor.observe.detectors.updates.mode_faults import (
    emulated_bf16,
    trains_in_evaluation_mode,
    unscaled_inputs,
)
from snugfit.doctor.observe.detectors.updates.parameter_faults import twice_in_optimizer
from snugfit.doctor.observe.detectors.updates.schedule_faults import schedule_length, scheduler_order
from snugfit.doctor.observe.detectors.updates.step_faults import never_stepped
from snugfit.doctor.observe.events.log import (
    LoaderSeen,
    Log,
    ModelSeen,
    OptimizerSeen,
    Overlap,
    ParameterSeen,
    SchedulerSeen,
)
from snugfit.doctor.observe.events.script_events import (
    Backward,
    Batch,
    Compared,
    EpochEnd,
    Event,
    Forward,
    Loss,
    RankWeights,
    Read,
    ScalerStep,
    ScheduleStep,
    Step,
    Unreachable,
)
from snugfit.doctor.observe.events.text_events import MaskedTokens

AT = "train.py:7"


def _step(update: int, optimizer: int = 1) -> Step:
    return Step(
        AT, update, optimizer, stale=False, cleared=False, scaled=False, without=False, rescaled=False
    )


def _forward(device: str = "cpu", native: bool = True, grad: bool = True, rows: int = 8) -> Forward:
    return Forward(AT, 0, 1, True, True, grad, False, rows, "", True, "bfloat16", device, native)


def _loss(grad: bool) -> Loss:
    return Loss(AT, 0, "mse_loss", grad, "", True, 0, 0, 0, None, False, {}, False, 0.0)


def _loader(
    number: int = 1, sampler: str = "DistributedSampler", shards: bool = True, data: int = 1
) -> LoaderSeen:
    return LoaderSeen(number, AT, sampler, shards, "TensorDataset", data, 0, False, False, 2)


def _epochs(count: int, loader: int = 1) -> list[Event]:
    one: list[Event] = [
        Batch(AT, 0, loader),
        _forward(),
        Backward(AT, 0, 1.0, "", [], [1]),
        _step(0),
        EpochEnd(AT, 1, loader),
    ]
    return one * count


def _certainties(findings: list[Finding]) -> list[Certainty]:
    return [finding.certainty for finding in findings]


def test_ranks_that_begin_with_the_same_rows_are_reported_though_their_loader_looks_split() -> None:
    logs = [Log(rank=r, events=_epochs(1), loaders=[_loader()], first_rows=[1, 2]) for r in (0, 1)]
    assert _certainties(same_rows_on_every_rank(logs)) == [Certainty.CERTAIN]
    logs[1].first_rows = [3, 4]
    assert same_rows_on_every_rank(logs) == []
    assert same_rows_on_every_rank(logs[:1]) == []


@pytest.mark.parametrize(
    ("parts", "seeds", "wholes", "seen"),
    [
        ([(2, 0), (2, 1)], [0, 17], [128, 128], True),
        ([(4, 0), (4, 1), (4, 2), (4, 3)], [7, 7, 7, 8], [60] * 4, True),
        ([(2, 0), (2, 1)], [0, 17], [0, 0], True),  # of a data set of its own kind, which tells no length
        ([(2, 0), (2, 1)], [17, 17], [128, 128], False),
        ([(1, 0), (1, 0)], [0, 17], [128, 128], False),  # each rank has rows of its own
        ([(2, 0), (2, 1)], [0, 17], [128, 96], False),
        ([(2, 0), (2, 0)], [0, 17], [128, 128], False),  # two of four ranks that hold one model together
        ([(0, 0), (0, 0)], [0, 0], [128, 128], False),
    ],
)
def test_ranks_take_their_parts_of_one_order(
    parts: list[tuple[int, int]], seeds: list[int], wholes: list[int], *, seen: bool
) -> None:
    logs = []
    for rank, ((whole, part), seed, rows) in enumerate(zip(parts, seeds, wholes, strict=True)):
        loader = replace(_loader(), parts=whole, part=part, seed=seed, whole=rows)
        logs.append(Log(rank=rank, events=_epochs(1), loaders=[loader]))
    assert _certainties(parts_of_other_orders(logs)) == [Certainty.CERTAIN] * seen


def test_a_distributed_sampler_that_is_never_told_the_epoch_is_reported_from_the_second_epoch() -> None:
    assert _certainties(not_distributed(Log(events=_epochs(2), loaders=[_loader()]))) == [Certainty.LIKELY]
    assert not_distributed(Log(events=_epochs(1), loaders=[_loader()])) == []
    loader = _loader()
    loader.epochs_set = 2
    assert not_distributed(Log(events=_epochs(2), loaders=[loader])) == []


def test_data_parallel_is_reported() -> None:
    model = ModelSeen(1, "DataParallel", AT, [], [], 0, {}, False, "", "float32", "DataParallel")
    assert [finding.where for finding in not_distributed(Log(models=[model]))] == [AT]


def test_an_evaluation_loader_that_is_not_split_over_ranks_is_left_alone() -> None:
    whole = _loader(2, "SequentialSampler", shards=False)
    loader = _loader()
    loader.epochs_set = 1
    events = [*_epochs(1), Batch(AT, 1, 2), _forward(grad=False)]
    assert not_distributed(Log(events=events, loaders=[loader, whole])) == []


def test_emulated_bfloat16_is_likely_a_fault_on_a_gpu_and_worth_a_look_on_a_processor() -> None:
    assert _certainties(emulated_bf16(Log(events=[_forward("cuda", native=False)]))) == [Certainty.LIKELY]
    assert _certainties(emulated_bf16(Log(events=[_forward("cpu", native=False)]))) == [
        Certainty.WORTH_A_LOOK
    ]
    assert emulated_bf16(Log(events=[_forward("cuda")])) == []


def test_a_schedule_that_steps_after_a_step_that_the_scaler_refused_is_in_order() -> None:
    scheduler = SchedulerSeen(5, "StepLR", AT, 1, 0)
    after_refusal: list[Event] = [ScalerStep(AT, 0, 1), ScheduleStep(AT, 0, 5)]
    after_step: list[Event] = [ScalerStep(AT, 0, 1), _step(0), ScheduleStep(AT, 1, 5)]
    assert scheduler_order(Log(events=[*after_refusal, *after_step], schedulers=[scheduler])) == []
    early: list[Event] = [ScheduleStep(AT, 0, 5), _step(0), ScheduleStep(AT, 1, 5), _step(1)]
    assert _certainties(scheduler_order(Log(events=early, schedulers=[scheduler]))) == [Certainty.CERTAIN]


def test_a_schedule_that_catches_up_with_a_resumed_run_before_training_is_in_order() -> None:
    caught_up: list[Event] = [ScheduleStep("resume.py:3", 0, 5), _step(0), ScheduleStep(AT, 1, 5)]
    assert scheduler_order(Log(events=caught_up, schedulers=[SchedulerSeen(5, "StepLR", AT, 1, 0)])) == []


def test_a_schedule_that_is_never_stepped_is_reported_only_when_the_script_ended() -> None:
    log = Log(events=[_step(0), _step(1)], schedulers=[SchedulerSeen(5, "StepLR", AT, 1, 0)], complete=True)
    assert _certainties(scheduler_order(log)) == [Certainty.LIKELY]
    log.complete = False
    assert scheduler_order(log) == []


def test_a_run_that_ends_before_its_schedule_is_worth_a_look_unless_the_length_counts_something_else() -> (
    None
):
    moves: list[Event] = [
        event for update in range(4) for event in (_step(update), ScheduleStep(AT, update + 1, 5))
    ]
    log = Log(events=moves, schedulers=[SchedulerSeen(5, "OneCycleLR", AT, 1, 10)], complete=True)
    assert _certainties(schedule_length(log)) == [Certainty.WORTH_A_LOOK]
    log.loaders = [_loader()]
    log.schedulers[0].total = 8
    (found,) = schedule_length(log)
    assert found.certainty is Certainty.LIKELY
    assert "2 ranks" in found.evidence[-1]
    log.complete = False
    assert schedule_length(log) == []


def test_scoring_the_training_data_beside_a_clean_validation_is_worth_a_look() -> None:
    overlaps = [Overlap(2, AT, 40, 40, whole=True), Overlap(3, AT, 20, 0, whole=False)]
    loaders = [_loader(1, data=1), _loader(2, data=2), _loader(3, data=3)]
    assert _certainties(leakage(Log(loaders=loaders, overlaps=overlaps))) == [Certainty.WORTH_A_LOOK]
    assert _certainties(leakage(Log(loaders=loaders, overlaps=overlaps[:1]))) == [Certainty.CERTAIN]


def test_rows_that_the_training_data_itself_repeats_as_often_are_worth_a_look_and_more_are_a_leak() -> None:
    loaders = [_loader(1, data=1), _loader(2, data=2)]
    for shared, repeated, certainty in (
        (20, 0.45, Certainty.WORTH_A_LOOK),
        (20, 0.0, Certainty.CERTAIN),
        (36, 0.45, Certainty.CERTAIN),
    ):
        overlap = Overlap(2, AT, 40, shared, whole=False, repeated=repeated)
        (found,) = leakage(Log(loaders=loaders, overlaps=[overlap]))
        assert found.certainty is certainty
        assert ("45%" in found.what) is (certainty is Certainty.WORTH_A_LOOK)


def test_what_is_subtracted_by_hand_scores_rows_only_where_the_line_does_not_learn_too() -> None:
    overlap = Overlap(0, AT, 40, 30, whole=False)
    scored = [_forward(grad=False), Compared(AT, 0)]
    assert _certainties(leakage(Log(events=[*scored], overlaps=[overlap]))) == [Certainty.CERTAIN]
    assert leakage(Log(events=[*scored, _forward(grad=True)], overlaps=[overlap])) == []


def test_two_windows_of_a_text_that_are_alike_are_no_leak() -> None:
    events: list[Event] = [_forward(grad=False), _loss(grad=False)]
    assert leakage(Log(events=events, overlaps=[Overlap(0, AT, 88, 2, whole=False)])) == []
    (found,) = leakage(Log(events=events, overlaps=[Overlap(0, AT, 88, 3, whole=False)]))
    assert found.certainty is Certainty.LIKELY


def test_rows_that_an_agent_acts_on_and_then_learns_from_are_no_leak() -> None:
    overlap = Overlap(0, AT, 40, 30, whole=False)
    acted = Log(events=[_forward(grad=False)], overlaps=[overlap])
    assert leakage(acted) == []
    scored = Log(events=[_forward(grad=False), _loss(grad=False)], overlaps=[overlap])
    assert _certainties(leakage(scored)) == [Certainty.CERTAIN]


def test_a_parameter_that_is_given_twice_is_named() -> None:
    parameter = ParameterSeen(3, "head.weight", 4, 2, 1, False)
    optimizer = OptimizerSeen(1, "SGD", AT, [3, 3], [], [3], AT)
    (found,) = twice_in_optimizer(Log(parameters=[parameter], optimizers=[optimizer]))
    assert (found.where, found.evidence) == (AT, ("head.weight",))


def test_two_optimizers_that_follow_each_other_may_share_parameters() -> None:
    parameter = ParameterSeen(3, "weight", 4, 2, 1, False)
    optimizers = [OptimizerSeen(1, "Adam", AT, [3]), OptimizerSeen(2, "LBFGS", AT, [3])]
    in_phases = Log(events=[_step(0), _step(1), _step(0, 2)], parameters=[parameter], optimizers=optimizers)
    assert twice_in_optimizer(in_phases) == []
    in_turns = Log(events=[_step(0), _step(0, 2), _step(1)], parameters=[parameter], optimizers=optimizers)
    assert _certainties(twice_in_optimizer(in_turns)) == [Certainty.LIKELY]


def test_a_loader_that_is_slow_and_hidden_behind_longer_work_does_not_starve_the_model() -> None:
    loader = _loader()
    loader.waits, loader.works = [0.02] * 6, [0.05] * 6
    assert starving(Log(events=_epochs(1), loaders=[loader])) == []
    loader.works = [0.01] * 6
    assert _certainties(starving(Log(events=_epochs(1), loaders=[loader]))) == [Certainty.LIKELY]


def test_batches_that_go_to_a_gpu_from_memory_that_is_not_pinned_are_worth_a_look() -> None:
    loader = _loader()
    loader.waits, loader.works = [0.001] * 6, [0.05] * 6
    log = Log(events=_epochs(1), loaders=[loader])
    assert starving(log) == []
    loader.cuda = True
    (finding,) = starving(log)
    assert (
        finding.certainty is Certainty.WORTH_A_LOOK
        and "not pinned" in finding.what
        and "pin_memory=True" in finding.fix
    )
    loader.pinned = True
    assert starving(log) == []


def test_a_loader_without_workers_that_starves_the_model_is_told_with_their_number() -> None:
    loader = _loader()
    loader.waits, loader.works = [0.05] * 6, [0.01] * 6
    (finding,) = starving(Log(events=_epochs(1), loaders=[loader]))
    assert finding.evidence == ("num_workers=0, pin_memory=False",) and "num_workers=4" in finding.fix


def test_findings_of_several_ranks_are_told_once_and_the_worst_first() -> None:
    whole = _loader(sampler="RandomSampler", shards=False)
    model = ModelSeen(1, "Net", AT, [], [], 0, {}, False, "", "float32", "")
    events = [_forward(native=False), *_epochs(1)]
    logs = [Log(rank=rank, events=events, loaders=[whole], models=[model]) for rank in (0, 1)]
    found = diagnose(logs)
    assert [(finding.pitfall, finding.certainty) for finding in found] == [
        ("not_distributed", Certainty.CERTAIN),
        ("emulated_bf16", Certainty.WORTH_A_LOOK),
    ]


def _pass(update: int, **facts: bool) -> Backward:
    return Backward(AT, update, 1.0, "", [], [1], **facts)


def test_a_read_in_each_micro_batch_is_likely_a_fault_on_a_device_that_is_waited_for() -> None:
    def log(device: str, reads: int) -> Log:
        events = [
            event
            for place in range(12)
            for event in (_pass(place), Read("train.py:9", place, "item", device))
        ]
        return Log(events=events[: 2 * reads] + [_pass(0)] * (12 - reads))

    assert _certainties(device_reads(log("cuda", 12))) == [Certainty.LIKELY]
    assert _certainties(device_reads(log("cpu", 12))) == [Certainty.WORTH_A_LOOK]
    assert device_reads(log("cuda", 6)) == [], "one in two is for printing"
    updates = Log(events=[*log("cpu", 12).events, *map(_step, range(12))])
    assert device_reads(updates) == [], "one for each update costs nothing on a CPU"


def test_what_is_switched_on_for_some_updates_is_not_left_on() -> None:
    whole = Log(events=[_pass(place, anomaly=True) for place in range(12)])
    assert _certainties(debugging_left_on(whole)) == [Certainty.LIKELY]
    assert debugging_left_on(Log(events=[*whole.events, _pass(12)])) == []
    assert debugging_left_on(Log(events=whole.events[:9])) == [], "a look for a fault"
    assert _certainties(debugging_left_on(Log(passes_unseen=12, passes_profiled=12))) == [Certainty.LIKELY]
    for log in (
        Log(passes_unseen=9, passes_profiled=9),
        Log(passes_unseen=13, passes_profiled=12),
        Log(events=[_pass(0)], passes_unseen=12, passes_profiled=12),
    ):
        assert debugging_left_on(log) == []


def test_a_loss_that_is_finite_again_says_nothing_and_labels_that_are_all_ignored_are_told_as_the_cause() -> (
    None
):
    bad = [_pass(place, finite=False) for place in range(4)]
    (finding,) = non_finite_loss(Log(events=[_pass(0), *bad]))
    assert finding.certainty is Certainty.CERTAIN and "4 backward passes" in finding.evidence[0]
    assert non_finite_loss(Log(events=[*bad, _pass(5)])) == []
    assert non_finite_loss(Log(events=bad[:2])) == []
    ignored = Loss(AT, 0, "cross_entropy", True, "", True, 5, 0, 8, None, True, {}, False, 0.0)
    assert non_finite_loss(Log(events=[ignored, *bad])) == []


def test_an_optimizer_is_not_missed_where_another_moves_its_parameters_or_nothing_can_be_said() -> None:
    passes = [_pass(place) for place in range(9)]
    alone = Log(events=list(passes), optimizers=[OptimizerSeen(1, "Adam", AT, [7])], complete=True)
    assert _certainties(never_stepped(alone)) == [Certainty.CERTAIN]
    alone.complete = False
    assert never_stepped(alone) == [], "it may step later"
    alone.complete = True
    alone.unwatched = ["the updates of Net"]
    assert never_stepped(alone) == []
    replaced = Log(events=[*passes, _step(1, optimizer=2)], complete=True)
    replaced.optimizers = [OptimizerSeen(1, "Adam", AT, [7]), OptimizerSeen(2, "SGD", AT, [7, 8])]
    assert never_stepped(replaced) == []


def test_a_few_targets_outside_of_a_range_are_noise() -> None:
    def log(share: float, times: int = 4) -> Log:
        return Log(
            events=[Unreachable(AT, place, "mse_loss", "Sigmoid", 0.0, 1.0, share) for place in range(times)]
        )

    assert _certainties(unreachable_targets(log(0.5))) == [Certainty.CERTAIN]
    assert _certainties(unreachable_targets(log(0.1))) == [Certainty.LIKELY]
    assert unreachable_targets(log(0.02)) == unreachable_targets(log(0.5, times=1)) == []


def test_scores_that_a_relu_cut_are_certain_where_half_of_the_answers_cannot_be_given() -> None:
    def log(function: str, given: str, grad: bool = True) -> Log:
        return Log(events=[Loss(AT, 0, function, grad, given, True, 0, 0, 0, None, False, {}, False, 0.0)])

    assert _certainties(wrong_scores(log("binary_cross_entropy_with_logits", "rectified"))) == [
        Certainty.CERTAIN
    ]
    assert _certainties(wrong_scores(log("cross_entropy", "rectified"))) == [Certainty.LIKELY]
    assert _certainties(wrong_scores(log("nll_loss", "raw scores"))) == [Certainty.CERTAIN]
    assert wrong_scores(log("nll_loss", "raw scores", grad=False)) == []


def _tokens(**counts: int) -> MaskedTokens:
    none = dict.fromkeys(("scored", "scored_padding", "ends", "scored_ends", "unmasked", "tokens"), 0)
    return MaskedTokens(AT, 0, **{**none, **counts})


def test_padding_and_ends_are_told_from_two_batches_on() -> None:
    padded = _tokens(scored=90, scored_padding=30, tokens=120)
    assert _certainties(scored_padding(Log(events=[padded] * 2))) == [Certainty.CERTAIN]
    assert scored_padding(Log(events=[padded])) == []
    assert scored_padding(Log(events=[_tokens(scored=90, scored_padding=1)] * 2)) == []
    bare = _tokens(unmasked=20, tokens=100)
    assert _certainties(unmasked_padding(Log(events=[bare] * 2))) == [Certainty.LIKELY]
    assert unmasked_padding(Log(events=[_tokens(unmasked=2, tokens=100)] * 2)) == []
    ended = _tokens(scored=80, ends=8)
    assert _certainties(end_never_scored(Log(events=[ended] * 2))) == [Certainty.LIKELY]
    assert end_never_scored(Log(events=[ended, _tokens(scored=80, ends=8, scored_ends=1)])) == []
    assert end_never_scored(Log(events=[_tokens(scored=80, ends=3)] * 2)) == []


def test_inputs_in_units_of_their_own_are_worth_a_look_and_bytes_of_pictures_likely_a_fault() -> None:
    model = ModelSeen(1, "Net", AT, [], [], 0, {}, False, "", "float32", "", input_scale=40.0)
    log = Log(models=[model], optimizers=[OptimizerSeen(1, "Adam", AT, [7])])
    log.parameters = [ParameterSeen(7, "weight", 9, 2, 1, False)]
    assert _certainties(unscaled_inputs(log)) == [Certainty.WORTH_A_LOOK]
    model.input_scale = 140.0
    assert _certainties(unscaled_inputs(log)) == [Certainty.LIKELY], "far from 1 in any units"
    model.image, model.input_scale = True, 40.0
    assert _certainties(unscaled_inputs(log)) == [Certainty.LIKELY]
    model.input_scale = 2.0
    assert unscaled_inputs(log) == []
    model.input_scale, log.optimizers = 140.0, []
    assert unscaled_inputs(log) == [], "a model that nothing trains"


def _rank(number: int, weights: list[str], exchanges: int = 100) -> Log:
    steps = [RankWeights(AT, update, 1, each, [40, 4]) for update, each in enumerate(weights)]
    return Log(rank=number, updates=len(weights), events=list(steps), exchanges=exchanges)


def test_ranks_whose_weights_part_are_found_and_those_that_never_shared_them_or_meet_again_are_not() -> None:
    (found,) = ranks_differ([_rank(0, ["a", "b", "c"]), _rank(1, ["a", "b", "d"])])
    assert (found.pitfall, found.certainty, found.where) == ("ranks_differ", Certainty.CERTAIN, AT)
    assert "from update 3 on" in found.what
    assert not ranks_differ([_rank(0, ["a", "b", "c"]), _rank(1, ["a", "x", "c"])])  # averaged now and then
    assert not ranks_differ([_rank(0, ["a", "b"]), _rank(1, ["x", "y"])])  # parts of one model
    for exchanged, many in (
        (4, 1),
        (3, 0),
    ):  # all gradients are averaged by hand; those of norms alone, whose ranks share them
        apart = [_rank(0, ["a", "b"]), _rank(1, ["x", "y"])]
        for log in apart:
            log.gradients_exchanged, log.exchanged_at = exchanged, "train.py:9"
        assert [each.where for each in ranks_differ(apart)] == many * ["train.py:9"]
    assert not ranks_differ(
        [_rank(0, ["a", "b"], exchanges=0), _rank(1, ["a", "c"], exchanges=0)]
    )  # two runs
    assert not ranks_differ([_rank(0, ["a", "b", "c"]), _rank(1, ["a", "b"])])  # one has ended before


@pytest.mark.parametrize(("training", "found"), [(True, []), (False, ["train_mode"])])
def test_a_generator_that_stays_in_evaluation_mode_is_found_beside_a_critic_that_trains(
    training: bool, found: list[str]
) -> None:
    def passed(model: int, mode: bool) -> Forward:
        return replace(_forward(), module=model, training=mode)

    def learned(optimizer: int) -> list[Event]:
        return [Backward(AT, 0, 1.0, "", [], [optimizer]), _step(0, optimizer)]

    update = [passed(1, training), passed(2, True), *learned(2), passed(2, True), *learned(1)]
    models = [ModelSeen(each, "Net", AT, ["norm"], [], 0, {}, False, "", "", "") for each in (1, 2)]
    parameters = [ParameterSeen(each, "weight", 4, 2, each, library=False) for each in (1, 2)]
    optimizers = [OptimizerSeen(each, "Adam", AT, [each]) for each in (1, 2)]
    log = Log(events=update * 3, models=models, parameters=parameters, optimizers=optimizers)
    assert [each.pitfall for each in trains_in_evaluation_mode(log)] == found
