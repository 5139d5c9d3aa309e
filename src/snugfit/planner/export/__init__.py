"""A plan as a file of another tool, with what that tool cannot do said beside it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from snugfit.core.entry import as_entry
from snugfit.core.technique import Technique
from snugfit.errors import SettingError, nearest
from snugfit.planner.export import accelerate, deepspeed, hf, lightning, torchtitan
from snugfit.planner.export.exported_plan import Entry as Entry
from snugfit.planner.export.exported_plan import Exported as Exported
from snugfit.planner.export.exported_plan import ExportedPlan as ExportedPlan
from snugfit.planner.export.exported_plan import Strategy as Strategy
from snugfit.planner.export.folder import write_export as write_export
from snugfit.planner.export.name_tables import Tool

TOOLS: Mapping[str, Tool] = {
    tool.name: tool for tool in (hf.TOOL, accelerate.TOOL, lightning.TOOL, deepspeed.TOOL, torchtitan.TOOL)
}
"""By the name that `--export` takes."""


def export(plan: ExportedPlan, tool: str) -> Exported:
    """Write a plan in the words of another tool: hf, accelerate, lightning, deepspeed or torchtitan.

    Raises:
        SettingError: an unknown tool, technique or setting; the nearest one is given.

    >>> plan = ExportedPlan(micro_batch=4, global_batch=32, total_updates=100, optimizer="adamw", numerics="bf16")
    >>> ((name, text), *_), left_out = export(plan, "lightning").files, export(plan, "lightning").left_out
    >>> print(name, *[line for line in text.splitlines() if "precision" in line or "accumulate" in line])
    lightning.yaml   accumulate_grad_batches: 8   precision: bf16-mixed
    """
    check(tool)
    return TOOLS[tool].export(plan)


def check(tool: str, strategy: str | None = None) -> None:
    """Refuse a tool that is not known and a way to share that this tool's files cannot say: before a plan is searched, too.

    Raises:
        SettingError: names what to ask for instead.
    """
    if tool not in TOOLS:
        raise SettingError("--export", f"no tool '{tool}'", nearest(tool, TOOLS))
    known = TOOLS[tool].strategies
    if strategy is not None and strategy not in known:
        raise SettingError(
            "--export",
            f"got a plan that shares the work by {strategy}, expected {', '.join(known)} for {tool}",
            "Set plan.strategy=fsdp, or plan for a machine on which one of these fits.",
        )


def weighed(tool: str, strategy: str, devices: int, device: str) -> Callable[[Technique], bool]:
    """Return what says of a technique whether this tool has it, for plans that are searched to be exported.

    Args:
        devices: how many share the work in this way; of the kind that `device` names.
    """
    plan = ExportedPlan(
        micro_batch=1,
        global_batch=devices,
        total_updates=1,
        optimizer="adamw",
        devices=devices,
        strategy=strategy,  # type: ignore[arg-type]
        device=device,  # type: ignore[arg-type]
    )
    return lambda technique: TOOLS[tool].has(as_entry(technique), plan)
