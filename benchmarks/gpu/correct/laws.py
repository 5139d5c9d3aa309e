"""The laws on the device, in fp32 and under bf16 and fp16: for each technique alone on its main problem.

Split, skip and resume as in tests/laws, on the same problems, and placement against the step without it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any
from unittest import mock

from checks import Settings, check, last_lines, missing_module, require
from material import deterministic, on, technique

TOLERANCES = {"fp32": 1e-4, "bf16": 0.05, "fp16": 0.02}
"""Of gradients in the order of additions of another split: float32 kernels, and roundings to 8 and to 11 bits."""

FLOOR = 0.2  # a rounding may switch one of the few units of a tiny model
TOY = ("adamw", "recompute", "sam", "weight_streaming", "clip_norm")
COUNTED = ("/progress/windows", "/progress/skipped", "/progress/examples", "/lr", "/momentum", "/betas/0")
"""What a window that is skipped may move: counters, and the rates of a schedule."""


def split_counts_twice() -> AbstractContextManager[Any]:
    """Temporarily give the first micro-batch of each split window a double weight."""
    from snugfit.step.window_gradients import WindowCompute

    passes: Callable[..., Any] = WindowCompute.passes

    def twice(self: Any, *args: Any, **kwargs: Any) -> Any:
        all_passes = list(passes(self, *args, **kwargs))
        return all_passes[:1] + all_passes if len(all_passes) > 1 else all_passes

    return mock.patch.object(WindowCompute, "passes", twice)


def laws(settings: Settings, precision: str) -> Mapping[str, Any]:
    from snugfit.errors import SnugfitError
    from tests.laws import problems

    deterministic()
    also = () if precision == "fp32" else (technique(precision),)
    table: dict[str, Any] = {}
    began = time.monotonic()
    techniques = [each for each in problems.examples() if not settings.toy or each.card.name in TOY]
    for each in techniques:
        if not problems.is_legal((each, *also)):
            continue
        if time.monotonic() - began > 0.9 * settings.seconds and not settings.toy:
            table["not reached"] = [one.card.name for one in techniques if one.card.name not in table]
            break
        try:
            table[each.card.name] = of_technique(settings.device, each, also, TOLERANCES[precision])
        except SnugfitError as error:
            missing = missing_module(error)
            table[each.card.name] = {"left out" if missing else "refused": str(error)[:200]}
        except Exception as error:  # noqa: BLE001 (whatever it is, the other techniques are to be seen)
            missing = missing_module(error)
            table[each.card.name] = (
                {"left out": missing} if missing else {"holds": False, "error": last_lines(error)}
            )
        settings.note(table)
    held = [row["holds"] for row in table.values() if "holds" in row]
    failed = [name for name, row in table.items() if not isinstance(row, list) and row.get("holds") is False]
    figures = {"held": sum(held), "of": len(held), "techniques": table}
    require(not failed, f"{precision}: the laws do not hold for {', '.join(failed)}", **figures)
    require(
        len(held) >= settings.size(50, 3),
        f"{precision}: only {len(held)} techniques were looked at",
        **figures,
    )
    return figures


def of_technique(device: str, each: Any, precision: Sequence[Any], tolerance: float) -> dict[str, Any]:
    """Return the errors of one technique, and whether all of its laws hold."""
    import torch

    from snugfit.core.technique import Family
    from tests.laws import problems

    techniques = (each, *precision)
    if each.card.family is Family.NUMERICS:  # it rounds, whatever is computed around it
        tolerance = max(tolerance, TOLERANCES["bf16"])
    problem = problems.main(techniques)
    windows = [on(device, window) for window in problem.windows(torch.float32)]
    figures: dict[str, Any] = {}

    def step(given: Sequence[Any] = techniques, **more: Any) -> Any:
        model = problem.model(torch.float32, 0.0, more.pop("model_seed", 1)).to(device)
        return problems.Step(
            model,
            problems.plain_optimizer(model, given, 0.9),
            problem.loss,
            given,
            total_updates=problems.TOTAL_UPDATES,
            forward=problem.forward,
            **more,
        )

    whole, split = step(), step(micro_batch=3)
    whole(windows[0]), split(windows[0])
    if not each.card.couples_examples and problems.gradients(whole):
        figures["split"] = problems.relative_error(
            problems.gradients(split), problems.gradients(whole), FLOOR
        )
    if each.card.family is Family.PLACEMENT and not each.card.irrevocable:
        plain = step(precision)
        plain(windows[0])
        figures["placement"] = problems.relative_error(
            problems.gradients(whole), problems.gradients(plain), FLOOR
        )
    before = problems.saved(split)
    skipped = split(on(device, problems.poisoned(problem.windows(torch.float32)[1], math.nan)))
    moved = problems.besides_scale(split, set(problems.differences(before, problems.saved(split))))
    figures["moved by a skipped window"] = sorted(path for path in moved if not path.endswith(COUNTED))[:5]
    figures["skip"] = not skipped.applied and not figures["moved by a skipped window"]
    resumed = step(micro_batch=3, model_seed=2)
    resumed.load_state_dict(on("cpu", problems.saved(split)))  # as from a file
    split(windows[2]), resumed(windows[2])
    apart = problems.differences(on("cpu", problems.saved(split)), on("cpu", problems.saved(resumed)))
    figures["other after a resume"] = apart[:5]
    figures["resume"] = not apart
    errors = [figures[name] for name in ("split", "placement") if name in figures]
    figures["holds"] = figures["skip"] and figures["resume"] and all(error <= tolerance for error in errors)
    return figures


PLANTS = {"split": split_counts_twice}
DETERMINISTIC = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}


@check("laws in fp32", 150, environment=DETERMINISTIC, plants=PLANTS)
def in_fp32(settings: Settings) -> Mapping[str, Any]:
    return laws(settings, "fp32")


@check("laws in bf16", 150, environment=DETERMINISTIC)
def in_bf16(settings: Settings) -> Mapping[str, Any]:
    return laws(settings, "bf16")


@check("laws in fp16", 150, environment=DETERMINISTIC)
def in_fp16(settings: Settings) -> Mapping[str, Any]:
    return laws(settings, "fp16")
