"""What the detectors conclude from logs that a script of a few lines cannot make: ranks, GPUs, refused steps."""

from __future__ import annotations

from snugfit.doctor.findings import Finding, Severity
from snugfit.doctor.observe.detect import diagnose
from snugfit.doctor.observe.detectors_data import leakage, not_distributed, same_rows_on_every_rank, starving
from snugfit.doctor.observe.detectors_modes import emulated_bf16
from snugfit.doctor.observe.detectors_parameters import twice_in_optimizer
from snugfit.doctor.observe.detectors_schedules import schedule_length, scheduler_order
from snugfit.doctor.observe.log import (
    LoaderSeen,
    Log,
    ModelSeen,
    OptimizerSeen,
    Overlap,
    ParameterSeen,
    SchedulerSeen,
)
from snugfit.doctor.observe.script_events import (
    Backward,
    Batch,
    EpochEnd,
    Event,
    Forward,
    Loss,
    ScalerStep,
    ScheduleStep,
    Step,
)

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


def _severities(findings: list[Finding]) -> list[Severity]:
    return [finding.severity for finding in findings]


def test_ranks_that_begin_with_the_same_rows_are_reported_though_their_loader_looks_split() -> None:
    logs = [Log(rank=r, events=_epochs(1), loaders=[_loader()], first_rows=["a", "b"]) for r in (0, 1)]
    assert _severities(same_rows_on_every_rank(logs)) == [Severity.ERROR]
    logs[1].first_rows = ["c", "d"]
    assert same_rows_on_every_rank(logs) == []
    assert same_rows_on_every_rank(logs[:1]) == []


def test_a_distributed_sampler_that_is_never_told_the_epoch_is_reported_from_the_second_epoch() -> None:
    assert _severities(not_distributed(Log(events=_epochs(2), loaders=[_loader()]))) == [Severity.WARNING]
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


def test_emulated_bfloat16_is_a_warning_on_a_gpu_and_a_note_on_a_processor() -> None:
    assert _severities(emulated_bf16(Log(events=[_forward("cuda", native=False)]))) == [Severity.WARNING]
    assert _severities(emulated_bf16(Log(events=[_forward("cpu", native=False)]))) == [Severity.NOTE]
    assert emulated_bf16(Log(events=[_forward("cuda")])) == []


def test_a_schedule_that_steps_after_a_step_that_the_scaler_refused_is_in_order() -> None:
    scheduler = SchedulerSeen(5, "StepLR", AT, 1, 0)
    after_refusal: list[Event] = [ScalerStep(AT, 0, 1), ScheduleStep(AT, 0, 5)]
    after_step: list[Event] = [ScalerStep(AT, 0, 1), _step(0), ScheduleStep(AT, 1, 5)]
    assert scheduler_order(Log(events=[*after_refusal, *after_step], schedulers=[scheduler])) == []
    early: list[Event] = [ScheduleStep(AT, 0, 5), _step(0), ScheduleStep(AT, 1, 5), _step(1)]
    assert _severities(scheduler_order(Log(events=early, schedulers=[scheduler]))) == [Severity.ERROR]


def test_a_schedule_that_catches_up_with_a_resumed_run_before_training_is_in_order() -> None:
    caught_up: list[Event] = [ScheduleStep("resume.py:3", 0, 5), _step(0), ScheduleStep(AT, 1, 5)]
    assert scheduler_order(Log(events=caught_up, schedulers=[SchedulerSeen(5, "StepLR", AT, 1, 0)])) == []


def test_a_schedule_that_is_never_stepped_is_reported_only_when_the_script_ended() -> None:
    log = Log(events=[_step(0), _step(1)], schedulers=[SchedulerSeen(5, "StepLR", AT, 1, 0)], complete=True)
    assert _severities(scheduler_order(log)) == [Severity.WARNING]
    log.complete = False
    assert scheduler_order(log) == []


def test_a_run_that_ends_before_its_schedule_is_a_note_unless_the_length_counts_something_else() -> None:
    moves: list[Event] = [
        event for update in range(4) for event in (_step(update), ScheduleStep(AT, update + 1, 5))
    ]
    log = Log(events=moves, schedulers=[SchedulerSeen(5, "OneCycleLR", AT, 1, 10)], complete=True)
    assert _severities(schedule_length(log)) == [Severity.NOTE]
    log.loaders = [_loader()]
    log.schedulers[0].total = 8
    (found,) = schedule_length(log)
    assert found.severity is Severity.WARNING
    assert "2 ranks" in found.evidence[-1]
    log.complete = False
    assert schedule_length(log) == []


def test_scoring_the_training_data_beside_a_clean_validation_is_a_note() -> None:
    overlaps = [Overlap(2, AT, 40, 40, whole=True), Overlap(3, AT, 20, 0, whole=False)]
    loaders = [_loader(1, data=1), _loader(2, data=2), _loader(3, data=3)]
    assert _severities(leakage(Log(loaders=loaders, overlaps=overlaps))) == [Severity.NOTE]
    assert _severities(leakage(Log(loaders=loaders, overlaps=overlaps[:1]))) == [Severity.ERROR]


def test_rows_that_an_agent_acts_on_and_then_learns_from_are_no_leak() -> None:
    overlap = Overlap(0, AT, 40, 30, whole=False)
    acted = Log(events=[_forward(grad=False)], overlaps=[overlap])
    assert leakage(acted) == []
    scored = Log(events=[_forward(grad=False), _loss(grad=False)], overlaps=[overlap])
    assert _severities(leakage(scored)) == [Severity.ERROR]


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
    assert _severities(twice_in_optimizer(in_turns)) == [Severity.WARNING]


def test_a_loader_that_is_slow_and_hidden_behind_longer_work_does_not_starve_the_model() -> None:
    loader = _loader()
    loader.waits, loader.works = [0.02] * 6, [0.05] * 6
    assert starving(Log(events=_epochs(1), loaders=[loader])) == []
    loader.works = [0.01] * 6
    assert _severities(starving(Log(events=_epochs(1), loaders=[loader]))) == [Severity.WARNING]


def test_batches_that_go_to_a_gpu_from_memory_that_is_not_pinned_are_a_note() -> None:
    loader = _loader()
    loader.waits, loader.works = [0.001] * 6, [0.05] * 6
    log = Log(events=_epochs(1), loaders=[loader])
    assert starving(log) == []
    loader.cuda = True
    (finding,) = starving(log)
    assert (
        finding.severity is Severity.NOTE
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
    assert [(finding.pitfall, finding.severity) for finding in found] == [
        ("not_distributed", Severity.ERROR),
        ("emulated_bf16", Severity.NOTE),
    ]
