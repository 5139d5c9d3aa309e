"""Plans as files of other tools: nothing is lost silently, and what no tool can run is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from snugfit.core.entry import as_entry
from snugfit.errors import RunFolderError, SettingError
from snugfit.planner.export import TOOLS, ExportedPlan, export, weighed, write_export
from snugfit.planner.export.folder import MANIFEST
from snugfit.techniques import discover, find
from tests.unit.planner.exports import (
    NOTHING,
    PLAN,
    STRATEGIES,
    about,
    asking,
    carried,
    file,
)


@pytest.mark.parametrize("tool", TOOLS)
@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda strategy: strategy["strategy"])
def test_every_technique_is_in_the_files_or_said_to_be_left_out(tool: str, strategy: dict[str, Any]) -> None:
    plan = replace(NOTHING, **strategy)
    without = export(plan, tool)
    for name, technique in discover().items():
        if name == "madgrad":
            assert about(without, name), "the plan without anything has this one"
            continue
        found = export(asking(plan, as_entry(technique.example())), tool)
        assert carried(found) != carried(without) or about(found, name), f"{tool} loses {name}"


@pytest.mark.parametrize("tool", TOOLS)
def test_every_setting_that_is_not_the_default_is_in_the_files_or_said_to_be_left_out(tool: str) -> None:
    for name, technique in discover().items():
        ((_, example),) = as_entry(technique.example()).items()
        probe = next(asked for asked in asking(PLAN, {name: example}).asked() if asked.name == name)
        needed = {
            setting: value for setting, value in probe.settings.items() if setting not in probe.defaults
        }
        before = export(asking(PLAN, {name: needed}), tool)
        for setting, default in probe.defaults.items():
            if probe.settings[setting] == default:
                continue
            found = export(asking(PLAN, {name: {**needed, setting: probe.settings[setting]}}), tool)
            assert (carried(found), found.left_out) != (carried(before), before.left_out), f"{name}.{setting}"


@pytest.mark.parametrize("tool", TOOLS)
@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda strategy: strategy["strategy"])
def test_no_table_names_a_technique_or_setting_that_is_not_there(tool: str, strategy: dict[str, Any]) -> None:
    table = TOOLS[tool].table(replace(PLAN, **strategy))
    assert table.keys() - discover().keys() <= {"fp32"}
    for name, rule in table.items():
        if isinstance(rule, str) or name == "fp32":
            continue
        known = as_entry(discover()[name].example())[name]
        assert {*rule.carried(), *rule.fixed, *rule.differs} - {""} <= known.keys(), name


@pytest.mark.parametrize("tool", TOOLS)
def test_what_is_left_out_stands_in_the_files(tool: str) -> None:
    exported = export(replace(PLAN, techniques=({"ema": {"decay": 0.5}},)), tool)
    assert about(exported, "ema")
    text = "".join(text for name, text in exported.files if not name.endswith(".json"))
    assert all(sentence in text for sentence in exported.left_out)


def test_a_value_that_holds_one_technique_leaves_the_second_out() -> None:
    both = replace(PLAN, techniques=({"clip_norm": {"max_norm": 2.0}}, "clip_value"))
    exported = export(both, "lightning")
    trainer = yaml.safe_load(file(exported, "lightning.yaml"))["trainer"]
    assert (trainer["gradient_clip_algorithm"], trainer["gradient_clip_val"]) == ("norm", 2.0)
    assert "taken by clip_norm" in about(exported, "clip_value")[0]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"micro_batch": 5}, r"export.micro_batch: .* 5 does not divide the 32 .* plan.micro_batch=4"),
        ({"micro_batch": 64}, r"64 does not divide the 32 .* plan.micro_batch=32"),
        ({"devices": 3, "strategy": "ddp"}, r"export.global_batch: 32 .* multiple of 3"),
        ({"devices": 2}, r"export.strategy: 'single' is one device, and the plan has 2"),
        ({"total_updates": 0}, r"export.total_updates: must be at least 1, found 0"),
    ],
)
def test_sizes_that_no_tool_can_run_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        replace(PLAN, **changes)


@pytest.mark.parametrize(
    ("plan", "tool", "message"),
    [
        (PLAN, "hff", r"--export: no tool 'hff'. Did you mean 'hf'"),
        (
            replace(PLAN, optimizer="adamww"),
            "hf",
            r"export.optimizer: no technique 'adamww'. Did you mean 'adamw'",
        ),
        (
            replace(PLAN, optimizer={"adamw": {"learning_rates": 1}}),
            "hf",
            r"export.optimizer.adamw: no setting 'learning_rates'. Did you mean 'learning_rate'",
        ),
        (replace(PLAN, techniques=({"ema": {}, "swa": {}},)), "hf", r"holds one technique, found ema, swa"),
    ],
)
def test_an_unknown_name_is_refused_with_the_nearest_one(plan: ExportedPlan, tool: str, message: str) -> None:
    with pytest.raises(SettingError, match=message):
        export(plan, tool)


def test_a_list_from_a_file_counts_as_the_default_that_it_equals() -> None:
    exported = export(replace(PLAN, techniques=({"nf4": {"skip": []}},)), "hf")
    assert not [line for line in exported.left_out if line.startswith("nf4.")]


@pytest.mark.parametrize(
    ("tool", "name", "key", "zero3", "zero2"),
    [
        ("hf", "training_args.json", "fsdp_config.reshard_after_forward", True, False),
        ("accelerate", "accelerate.yaml", "fsdp_config.fsdp_reshard_after_forward", True, False),
        ("deepspeed", "deepspeed.json", "zero_optimization.stage", 3, 2),
        (
            "lightning",
            "lightning.yaml",
            "trainer.strategy",
            "fsdp",
            {
                "class_path": "lightning.pytorch.strategies.FSDPStrategy",
                "init_args": {"sharding_strategy": "SHARD_GRAD_OP"},
            },
        ),
    ],
)
def test_weights_that_stay_gathered_after_forward_are_so_in_the_file(
    tool: str, name: str, key: str, zero3: Any, zero2: Any
) -> None:
    for strategy, value in (("fsdp", zero3), ("fsdp-zero2", zero2)):
        plan = replace(PLAN, strategy=strategy, devices=2, device="cuda")  # type: ignore[arg-type]
        section = yaml.safe_load(file(export(plan, tool), name))
        for part in key.split("."):
            section = section[part]
        assert section == value


@pytest.mark.parametrize("tool", TOOLS)
def test_shards_in_host_memory_are_so_in_the_file_of_each_tool(tool: str) -> None:
    shards, offload = (
        carried(export(replace(PLAN, strategy=strategy, devices=2, device="cuda"), tool))  # type: ignore[arg-type]
        for strategy in ("fsdp", "fsdp-offload")
    )
    assert shards != offload
    assert "offload" in str(offload)


@pytest.mark.parametrize("tool", TOOLS)
def test_a_plan_for_several_machines_says_that_the_commands_are_for_one(tool: str) -> None:
    exported = export(replace(PLAN, strategy="fsdp", devices=4, nodes=2, device="cuda"), tool)
    assert [
        line
        for line in exported.left_out
        if line.startswith("nodes: the plan is for 2 machines of 2 devices")
    ]
    assert not [line for line in export(PLAN, tool).left_out if line.startswith("nodes:")]


@pytest.mark.parametrize(
    ("tool", "strategy", "entry", "has"),
    [
        ("hf", "single", "recompute", True),
        ("hf", "single", {"recompute": {"keep": ["attention"]}}, False),
        ("hf", "single", "chunked_loss", False),
        ("hf", "single", "tiled_linear", False),
        ("hf", "single", "optimizer_offload", False),
        ("hf", "fsdp", "optimizer_offload", True),
        ("hf", "single", "pure_bf16", False),
        ("hf", "single", "packing", True),
        ("accelerate", "ddp", "recompute", False),
        ("accelerate", "fsdp", "recompute", True),
        ("lightning", "single", "recompute", True),
        ("lightning", "single", "pure_bf16", False),
        ("deepspeed", "single", "weight_streaming", True),
        ("torchtitan", "single", "activation_offload", False),
    ],
)
def test_a_search_may_add_what_the_tool_has_with_all_of_its_settings(
    tool: str, strategy: str, entry: Any, has: bool
) -> None:
    name, settings = (entry, {}) if isinstance(entry, str) else next(iter(entry.items()))
    technique = find(name)(**settings)
    assert weighed(tool, strategy, 1 if strategy == "single" else 2, "cuda")(technique) is has


def test_an_export_removes_what_the_tool_s_last_one_wrote_and_this_one_has_not(tmp_path: Path) -> None:
    with_lora = export(replace(PLAN, techniques=("lora",)), "hf")
    write_export(with_lora, tmp_path / "new")
    write_export(export(PLAN, "deepspeed"), tmp_path / "new")
    (tmp_path / "new" / "notes.txt").write_text("mine")
    _, sentences = write_export(export(PLAN, "hf"), tmp_path / "new")
    assert [line for line in sentences if "lora.json" in line and "is removed" in line]
    left = {path.name for path in (tmp_path / "new").iterdir()}
    assert "lora.json" not in left
    assert {"training_args.json", "deepspeed.json", "notes.txt", MANIFEST} <= left


def test_a_file_that_was_changed_or_never_exported_stays(tmp_path: Path) -> None:
    (tmp_path / "quantization.json").write_text("{}")
    write_export(export(replace(PLAN, techniques=("lora",)), "hf"), tmp_path)
    (tmp_path / "lora.json").write_text("changed by hand")
    _, sentences = write_export(export(PLAN, "hf"), tmp_path)
    assert (tmp_path / "lora.json").read_text() == "changed by hand"
    assert (tmp_path / "quantization.json").exists()
    assert [line for line in sentences if "lora.json" in line and "it stays" in line]


@pytest.mark.parametrize("text", ["[]", "{", '{"hf": {"../other.json": "0"}}', '{"hf": ["lora.json"]}'])
def test_a_list_of_exported_files_that_names_others_is_refused_and_removes_nothing(
    text: str, tmp_path: Path
) -> None:
    (tmp_path / "other.json").write_text("mine")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / MANIFEST).write_text(text)
    with pytest.raises(RunFolderError, match="is not a list of exported files"):
        write_export(export(PLAN, "hf"), tmp_path / "out")
    assert [path.name for path in (tmp_path / "out").iterdir()] == [MANIFEST]
    assert (tmp_path / "other.json").read_text() == "mine"


def test_the_files_of_all_tools_may_lie_in_one_folder() -> None:
    names = [name for tool in TOOLS for name, _ in export(NOTHING, tool).files]
    assert len(names) == len(set(names))
