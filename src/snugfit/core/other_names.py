"""Names that other trainers give to settings, for whoever writes one of them here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Ours(NamedTuple):
    """A setting as a recipe writes it, and as `sf.train` takes it; "" where it has none there."""

    recipe: str
    python: str


_BATCH = Ours("train.global_batch", "global_batch")
_RATE = Ours("optimizer.adamw.learning_rate", "optimizer=sf.AdamW(learning_rate=1e-3)")
_SCHEDULE = Ours("schedule", "techniques=[sf.Linear()]")
_WARMUP = Ours("schedule.linear.warmup", "techniques=[sf.Linear(warmup=0.1)]")
_PRECISION = Ours("plan.numerics", "techniques=[sf.BF16()]")
_CLIP = Ours("techniques.clip_norm", "techniques=[sf.ClipNorm(1.0)]")
_RECOMPUTE = Ours("techniques.recompute", "techniques=[sf.Recompute()]")
_OUTPUT = Ours("output", "output")
_VALIDATION = Ours("data.validation", "validation")
_BEST = Ours("evaluate.best", "best")
_HOOKS = Ours("hooks.on_update", "on_update")
_TRACK = Ours("track", "track")
_UPDATES = Ours("train.updates", "updates")
_SCORED = Ours("evaluate.batch", "evaluate_batch")
_EVERY = Ours("evaluate.every", "evaluate_every")
_SAVES = Ours("checkpoint.every", "checkpoint_every")

OTHER_NAMES: Mapping[str, Ours] = {
    "batch": _BATCH,
    "batch_size": _BATCH,
    "train_batch_size": _BATCH,
    "per_device_train_batch_size": _BATCH,
    "evaluate.batch_size": _SCORED,  # in a section of ours it is of that
    "per_device_eval_batch_size": _SCORED,
    "gradient_accumulation_steps": Ours("plan.micro_batch", "micro_batch"),
    "accumulate_grad_batches": Ours("plan.micro_batch", "micro_batch"),
    "num_train_epochs": Ours("train.epochs", "epochs"),
    "max_epochs": Ours("train.epochs", "epochs"),
    "steps": _UPDATES,
    "max_steps": _UPDATES,
    "evaluate.steps": _EVERY,
    "checkpoint.steps": _SAVES,
    "lr": _RATE,
    "learning_rate": _RATE,
    "schedule": Ours("", _SCHEDULE.python),  # a setting of recipes
    "scheduler": _SCHEDULE,
    "lr_scheduler": _SCHEDULE,
    "lr_scheduler_type": _SCHEDULE,
    "warmup": _WARMUP,
    "warmup_steps": _WARMUP,
    "warmup_ratio": _WARMUP,
    "bf16": _PRECISION,
    "fp16": _PRECISION,
    "precision": _PRECISION,
    "mixed_precision": _PRECISION,
    "max_grad_norm": _CLIP,
    "gradient_clip_val": _CLIP,
    "gradient_checkpointing": _RECOMPUTE,
    "folder": Ours("", "output"),  # a recipe has a setting of that name
    "output_dir": _OUTPUT,
    "save_dir": _OUTPUT,
    "default_root_dir": _OUTPUT,
    "eval_dataset": _VALIDATION,
    "val_data": _VALIDATION,
    "compute_metrics": Ours("evaluate.metrics", "metrics"),
    "eval_steps": _EVERY,
    "metric_for_best_model": _BEST,
    "load_best_model_at_end": _BEST,
    "save_steps": _SAVES,
    "save_total_limit": Ours("checkpoint.keep", "checkpoint_keep"),
    "early_stopping_patience": Ours("early_stopping.patience", "patience"),
    "dataloader_num_workers": Ours("plan.num_workers", "num_workers"),
    "resume_from_checkpoint": Ours("", "resume"),
    "callbacks": _HOOKS,
    "logger": _TRACK,
    "report_to": _TRACK,
    "progress_bar": Ours("", "display"),
    "verbose": Ours("", "display"),
}
"""Of HF Trainer, Lightning, Accelerate and Keras; those that ours are near to by their letters are left out."""


def our_name(key: str) -> Ours | None:
    """Return the setting that an unknown key of a recipe, by its whole name, may stand for; None where there is none.

    >>> our_name("train.batch_size").recipe, our_name("evaluate.batch_size").recipe
    ('train.global_batch', 'evaluate.batch')
    """
    return OTHER_NAMES.get(key) or OTHER_NAMES.get(key.rpartition(".")[2])
