"""The laws of training on somebody's own model and data, each with its error."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch

from snugfit.core.random import preserved_elsewhere, preserved_randomness
from snugfit.results.verdicts import TITLES, Certificate, Law
from snugfit.system.rounding import ADDRESSES, deterministic, sums_depend_on_addresses
from snugfit.tools.certify import laws
from snugfit.tools.certify.page import ModelCertificate
from snugfit.tools.certify.ranks import ranks as two_ranks
from snugfit.tools.certify.skipping import skip
from snugfit.tools.certify.trial import Trials, trials
from snugfit.tools.setup import Setup

ROWS = 8

_ALONE: Mapping[str, Callable[[Trials], Law]] = {
    "accumulation": laws.accumulation,
    "recompute": laws.recompute,
    "resume": laws.resume,
    "skip": skip,
}


def certify(
    setup: Setup,
    *,
    dtype: str | None = None,
    rows: int = ROWS,
    ranks: bool = True,
    folders: Sequence[Path] = (),
    tell: Callable[[str], None] = lambda _: None,
) -> Certificate:
    """Try each law on the first windows of the run, cut to `rows` examples. Nothing of the setup is changed.

    Args:
        dtype: float64 or float32; by default float64 where the model can be computed in it.
        rows: examples of a window, at least 2.
        ranks: also start two processes.
        folders: where those look for modules of the user's own.
        tell: is told the name of each law before it is tried.
    Raises:
        SettingError: the type is unknown or impossible, or there are too few rows.
        UserError: the data cannot be used.
    """
    started = time.monotonic()
    with (
        preserved_randomness(torch.device(setup.plan.device)),
        preserved_elsewhere(),
        deterministic(setup.plan.deterministic),
    ):
        tell("windows")
        tried, conditions = trials(setup, dtype, rows)
        results: list[Law] = []
        for name, law in _ALONE.items():
            tell(TITLES[name])
            results.append(law(tried))
        if ranks:
            tell(TITLES["ranks"])
            results.append(two_ranks(tried, results[0], folders))
    return ModelCertificate(
        setup.name,
        tuple(results),
        tried.dtype,
        str(tried.device),
        tried.rows,
        tried.micro_batch,
        (*conditions, *_dropout(tried), *_addresses(tried)),
        time.monotonic() - started,
    )


def _addresses(tried: Trials) -> tuple[str, ...]:
    return (ADDRESSES,) if tried.device.type == "cpu" and sums_depend_on_addresses() else ()


def _dropout(tried: Trials) -> tuple[str, ...]:
    rates = [
        name
        for name, module in tried.setup.material.model.named_modules()
        for key, value in vars(module).items()
        if isinstance(value, float) and value > 0 and (key == "p" or "drop" in key)
    ]
    if not rates:
        return ()
    return (
        f"dropout (in {len(rates)} places, the first '{rates[0]}') draws for each micro-batch and rank: it is off where splits and "
        "ranks are compared, and on elsewhere",
    )
