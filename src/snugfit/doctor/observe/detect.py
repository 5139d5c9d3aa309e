"""From the logs of a command's processes to the findings."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from snugfit.doctor.findings import Finding, Severity
from snugfit.doctor.observe import (
    detectors_checkpoints,
    detectors_data,
    detectors_dependence,
    detectors_draws,
    detectors_evaluations,
    detectors_gradients,
    detectors_labels,
    detectors_losses,
    detectors_modes,
    detectors_parameters,
    detectors_rates,
    detectors_scaling,
    detectors_schedules,
    detectors_time,
)
from snugfit.doctor.observe.log import Log

Detector = Callable[[Log], list[Finding]]
DETECTORS: tuple[Detector, ...] = (
    *detectors_gradients.DETECTORS,
    *detectors_scaling.DETECTORS,
    *detectors_parameters.DETECTORS,
    *detectors_modes.DETECTORS,
    *detectors_schedules.DETECTORS,
    *detectors_checkpoints.DETECTORS,
    *detectors_labels.DETECTORS,
    *detectors_rates.DETECTORS,
    *detectors_losses.DETECTORS,
    *detectors_data.DETECTORS,
    *detectors_dependence.DETECTORS,
    *detectors_draws.DETECTORS,
    *detectors_evaluations.DETECTORS,
    *detectors_time.DETECTORS,
)
_ORDER = list(Severity)

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
)
"""The pitfalls that show while a script runs."""


def diagnose(logs: Sequence[Log]) -> tuple[Finding, ...]:
    """Return all findings of all processes, each once, the worst first."""
    findings = [finding for log in logs for detector in DETECTORS for finding in detector(log)]
    findings += detectors_data.same_rows_on_every_rank(logs)
    findings += detectors_data.ranks_differ(logs)
    once = {(finding.pitfall, finding.where, finding.severity): finding for finding in reversed(findings)}
    return tuple(sorted(once.values(), key=lambda finding: _ORDER.index(finding.severity)))
