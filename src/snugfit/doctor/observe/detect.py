"""The way from the logs of a command's processes to the findings."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from snugfit.doctor.findings import Finding, in_order
from snugfit.doctor.observe.causes.causes import Causes
from snugfit.doctor.observe.detectors import plain_faults, run_faults, time_faults
from snugfit.doctor.observe.detectors.losses import loss_faults, term_faults
from snugfit.doctor.observe.detectors.rows import data_faults, dependence_faults, draw_faults, label_faults
from snugfit.doctor.observe.detectors.scores import (
    checkpoint_faults,
    evaluation_faults,
    resume_faults,
    source_faults,
    sum_faults,
)
from snugfit.doctor.observe.detectors.updates import (
    gradient_faults,
    mode_faults,
    parameter_faults,
    rate_faults,
    scaling_faults,
    schedule_faults,
    step_faults,
    unit_faults,
)
from snugfit.doctor.observe.events.log import Log

Detector = Callable[[Log], list[Finding]]
DETECTORS: tuple[Detector, ...] = (
    *gradient_faults.DETECTORS,
    *scaling_faults.DETECTORS,
    *step_faults.DETECTORS,
    *parameter_faults.DETECTORS,
    *mode_faults.DETECTORS,
    *schedule_faults.DETECTORS,
    *unit_faults.DETECTORS,
    *checkpoint_faults.DETECTORS,
    *resume_faults.DETECTORS,
    *label_faults.DETECTORS,
    *rate_faults.DETECTORS,
    *loss_faults.DETECTORS,
    *data_faults.DETECTORS,
    *dependence_faults.DETECTORS,
    *draw_faults.DETECTORS,
    *evaluation_faults.DETECTORS,
    *term_faults.DETECTORS,
    *run_faults.DETECTORS,
    *plain_faults.DETECTORS,
    *time_faults.DETECTORS,
    *sum_faults.DETECTORS,
    *source_faults.DETECTORS,
)

OBSERVED = (
    "zero_grad",
    "train_mode",
    "scheduler_order",
    "clip_before_unscale",
    "accumulation",
    "last_window",
    "shared_module",
    "no_gradient",
    "frozen_moves",
    "not_in_optimizer",
    "twice_in_optimizer",
    "decay_on_vectors",
    "bf16_in_fp16",
    "emulated_bf16",
    "averaged_not_saved",
    "batch_norm",
    "special_tokens",
    "truncation",
    "shifted_labels",
    "ignored_labels",
    "leakage",
    "imbalance",
    "unknown_label",
    "not_distributed",
    "starving",
    "softmax_twice",
    "group_holes",
    "pickle",
    "schedule_length",
    "average_and_best",
    "never_stepped",
    "clip_after_step",
    "nothing_restored",
    "sorted_classes",
    "non_finite_loss",
    "broadcast_loss",
    "unreachable_targets",
    "wrong_scores",
    "scored_padding",
    "unmasked_padding",
    "end_never_scored",
    "debugging_left_on",
    "device_reads",
    "bias_before_norm",
    "unscaled_inputs",
    "learning_rate",
    "wrong_axis",
    "unscaled_targets",
    "target_gradients",
    "growing_graph",
    "partial_resume",
    "random_validation",
    "other_statistics",
    "batch_mean_scores",
    "range_test_kept",
    "best_not_copied",
    "not_frozen",
    "sees_the_future",
    "unready_norm",
    "reseeded",
    "optimizer_rebuilt",
    "worker_seeds",
    "plateau_metric",
    "mismatched_rows",
    "stale_state",
    "average_stands_still",
    "average_kept",
    "loss_terms",
    "last_batch_score",
    "unused_class",
    "recompute_draws",
    "stepped_twice",
    "rows_left_out",
    "constant_term",
    "term_left_out",
    "summed_loss",
    "own_row_scored",
    "best_overwritten",
    "idle_adapter",
    "dropped_columns",
    "padding_side",
    "dropped_units",
    "ends_left_out",
    "wrong_sign",
    "read_two_ways",
    "graph_in_evaluation",
    "no_activation",
    "unscaled_half",
    "late_weights",
    "equal_units",
)
"""The pitfalls that show while a script runs."""


def diagnose(logs: Sequence[Log]) -> tuple[Finding, ...]:
    """Return all findings of all processes, each once, the surest first, and causes before what follows from them."""
    findings = []
    for log in logs:
        of_log = [finding for detector in DETECTORS for finding in detector(log)]
        causes = Causes(log) if of_log and log.sources else None
        findings += [causes.placed(finding) if causes else finding for finding in of_log]
    findings += data_faults.same_rows_on_every_rank(logs)
    findings += data_faults.ranks_differ(logs)
    parted = data_faults.parts_of_other_orders(logs)
    findings += [Causes(logs[0]).placed(each) for each in parted] if logs and logs[0].sources else parted
    once = {(finding.pitfall, finding.where, finding.certainty): finding for finding in reversed(findings)}
    return in_order(tuple(once.values()))
