"""The description of a run before it trains: model, data, plan, versions, machine."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import platform
import sys
from collections.abc import Mapping
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from snugfit.core.job import Plan
from snugfit.core.parameters import decayed_parameters
from snugfit.data.sizes import padding_share
from snugfit.results.run_folder import RunFolder
from snugfit.run.training.loop import Training
from snugfit.step.build import describe_model
from snugfit.system.rounding import arithmetic


def describe_run(
    name: str, folder: RunFolder | None, training: Training, plan: Plan, described: Mapping[str, Any]
) -> dict[str, Any]:
    """Return what a run says of itself before it trains."""
    return {
        "name": name,
        **({} if folder is None else {"id": folder.id, "run_dir": str(folder.path)}),
        "plan": dataclasses.asdict(plan),
        "versions": versions(),
        "machine": machine(plan.device),
        "parameters": describe_model(training.step.model),
        "weight_decay": decayed_parameters(training.step.optimizer.param_groups),
        **_updates(training),
        **described,
    }


def _updates(training: Training) -> dict[str, Any]:
    """Return how many updates a run has, and of what size where that is not one number of examples."""
    order, train = training.loader.order, training.job.train
    total = {"total_updates": training.total_windows}
    if not train.sizes_given:
        return {**total, "updates_per_epoch": order.windows_per_pass}
    return {**total, "window": order.cuts.sizes.words(train.unit)}


_LOOKED_AT = 32
"""First windows of which padding is counted."""

_LEAST_SHARE = 0.005
"""Less of it is not told."""


def padding(training: Training) -> dict[str, float]:
    """Return the share of the tokens in a run's micro-batches that is padding, where it is known and not nothing."""
    step, loader = training.step, training.loader
    if "packing" in step.seams.names:
        return {}
    lengths = [
        loader.token_counts([index for _, index in loader.order.window(number)])
        for number in range(min(_LOOKED_AT, training.total_windows))
    ]
    known = [each for each in lengths if each]
    if not known:
        return {}
    if "length_grouping" in step.seams.names:
        known = [sorted(each) for each in known]
    rows = step.micro_batch or max(map(len, known))
    share = padding_share(known, rows)
    return {"padding": round(share, 3)} if share >= _LEAST_SHARE else {}


def by_source(training: Training) -> dict[str, Any]:
    """Return what each source is of the examples of a run, where they are several."""
    loader, windows = training.loader, training.total_windows
    sources, draws = loader.by_source(windows), loader.order.draws
    described: dict[str, Any] = {"sources": sources} if sources else {}
    if draws is not None and draws.balance is not None:
        described["balanced_by"] = draws.balance.column
        described["balanced"] = draws.by_value(loader.order.cuts.examples_after(windows))
    return described


def python_inputs(training: Training, sources: Mapping[str, tuple[str, Any]]) -> list[dict[str, Any]]:
    """Return rows that Python makes as a run describes its sources: with a digest of those that a resume compares.

    Args:
        sources: by `train` and `validation` the name of a function or a class, and the data set where there is one to look at.
    """
    compared, inputs = training.identity["data"], []
    for context, (name, data) in sources.items():
        if context not in compared:
            continue
        rows = compared[context]
        digest = hashlib.sha256(json.dumps(rows, sort_keys=True).encode()).hexdigest()
        columns = getattr(data, "column_names", None)  # of the datasets library
        known = isinstance(columns, list) and all(isinstance(each, str) for each in columns)
        inputs.append(
            {
                "context": context,
                "source": name,
                "sha256": digest,
                "is_code": True,
                "rows": rows["rows"],
                "columns": columns if known else [],
            }
        )
    return inputs


def versions() -> dict[str, str]:
    """Versions of what the result may depend on."""
    by_package = {"python": platform.python_version(), "torch": torch.__version__}
    for package in ("snugfit", "transformers", "tokenizers", "mlflow", "numpy"):
        with suppress(PackageNotFoundError):
            by_package[package] = version(package)
    return by_package


def machine(device: str) -> dict[str, Any]:
    """Return what the run runs on."""
    facts: dict[str, Any] = {
        "platform": platform.platform(),
        "cores": os.cpu_count(),
        **arithmetic(),
        "device": device,
        "program": Path(sys.argv[0]).name,
    }
    if device.startswith("cuda"):
        facts["gpu"] = torch.cuda.get_device_name()
    return facts
