"""The laws on the device: in fp32, and under bf16 and fp16, for each technique alone on its main problem.

Split, skip and resume as in tests/laws, on the same problems, and placement against the step without it.
"""

from __future__ import annotations

import math
import traceback
from collections.abc import Sequence
from typing import Any

import torch
from shapes import DEVICE, Result

from snugfit import Technique
from snugfit.core.technique import Family
from snugfit.core.tree import map_tree
from snugfit.errors import MissingExtra, SnugfitError
from snugfit.techniques import find
from tests.laws import problems
from tests.laws.problems import Problem, differences, relative_error, saved

TOLERANCES = {"fp32": 1e-4, "bf16": 0.05, "fp16": 0.02}
"""Of gradients in the order of additions of another split: float32 kernels, and roundings to 8 and to 11 bits."""

FLOOR = 0.2  # a rounding may switch one of the few units of a tiny model


def step_of(problem: Problem, techniques: Sequence[Technique], **more: Any) -> Any:
    model = problem.model(torch.float32, 0.0, more.pop("model_seed", 1)).to(DEVICE)
    optimizer = problems.plain_optimizer(model, techniques, 0.9)
    return problems.Step(
        model,
        optimizer,
        problem.loss,
        techniques,
        total_updates=problems.TOTAL_UPDATES,
        forward=problem.forward,
        **more,
    )


def check(technique: Technique, precision: tuple[Technique, ...], tolerance: float) -> dict[str, Any]:
    techniques = (technique, *precision)
    problem = problems.main(techniques)
    windows = [on_device(window) for window in problem.windows(torch.float32)]
    found: dict[str, Any] = {}
    whole, split = step_of(problem, techniques), step_of(problem, techniques, micro_batch=3)
    whole(windows[0]), split(windows[0])
    if not technique.card.couples_examples and problems.gradients(whole):
        found["split"] = relative_error(problems.gradients(split), problems.gradients(whole), FLOOR)
    if technique.card.family is Family.PLACEMENT and not technique.card.irrevocable:
        plain = step_of(problem, precision)
        plain(windows[0])
        found["placement"] = relative_error(problems.gradients(whole), problems.gradients(plain), FLOOR)
    before = saved(split)
    skipped = split(on_device(problems.poisoned(problem.windows(torch.float32)[1], math.nan)))
    moved = problems.besides_scale(split, set(differences(before, saved(split))))
    counted = ("/progress/windows", "/progress/skipped", "/progress/examples", "/lr", "/momentum", "/betas/0")
    found["skip"] = not skipped.applied and all(path.endswith(counted) for path in moved)
    state = saved(split)
    resumed = step_of(problem, techniques, micro_batch=3, model_seed=2)
    resumed.load_state_dict(map_tree(lambda tensor: tensor.to(DEVICE), state))
    split(windows[2]), resumed(windows[2])
    found["resume"] = not differences(saved(split), saved(resumed))
    errors = [value for name, value in found.items() if name in ("split", "placement")]
    found["holds"] = found["skip"] and found["resume"] and all(error <= tolerance for error in errors)
    return found


def on_device(window: Any) -> Any:
    return map_tree(lambda tensor: tensor.to(DEVICE), window)


def main() -> None:
    result = Result()
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.backends.cudnn.deterministic = True
    techniques = problems.examples()
    if result.toy:
        techniques = [
            each for each in techniques if each.card.name in ("adamw", "recompute", "sam", "nf4", "lora")
        ]
    failed: list[str] = []
    for precision, tolerance in TOLERANCES.items():
        also = () if precision == "fp32" else (find(precision).example(),)
        table: dict[str, Any] = {}
        for technique in techniques:
            name = technique.card.name
            if not problems.is_legal((technique, *also)):
                continue
            try:
                table[name] = check(technique, also, tolerance)
            except MissingExtra as error:
                table[name] = {"left_out": str(error)}
            except SnugfitError as error:
                table[name] = {"refused": str(error)[:200]}
            except Exception:  # noqa: BLE001 (whatever it is, the other techniques are to be seen)
                table[name] = {"holds": False, "error": traceback.format_exc(limit=-2)[-400:]}
            if table[name].get("holds") is False:
                failed.append(f"{precision}:{name}")
        result[precision] = table
        result["failed"] = failed
    held = [row["holds"] for name in TOLERANCES for row in result[name].values() if "holds" in row]
    result["summary"] = {"held": sum(held), "of": len(held)}


if __name__ == "__main__":
    main()
