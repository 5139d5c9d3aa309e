"""Plans for transformers' Trainer, loaded by it, peft and bitsandbytes, and trained with."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from snugfit.core.entry import as_entry
from snugfit.planner.export import Entry, ExportedPlan, export
from snugfit.techniques import discover
from tests.unit.planner.exports import (
    PLAN,
    Rows,
    factors,
    file,
    ours,
    rows,
)


def arguments(plan: ExportedPlan, folder: Path) -> Any:
    transformers = pytest.importorskip("transformers")
    path = folder / "training_args.json"
    path.write_text(file(export(plan, "hf"), path.name), encoding="utf-8")
    parser = transformers.HfArgumentParser(transformers.TrainingArguments)
    (found,) = parser.parse_json_file(str(path))
    return found


@pytest.mark.slow
def test_transformers_reads_the_sizes_and_techniques(tmp_path: Path) -> None:
    plan = replace(
        PLAN,
        optimizer={"adamw": {"learning_rate": 3e-4, "betas": [0.8, 0.95], "weight_decay": 0.1}},
        schedule={"cosine": {"warmup": 0.1, "minimum": 0.2}},
        techniques=({"clip_norm": {"max_norm": 0.5}}, "recompute", "length_grouping", "label_smoothing"),
        epochs=2.5,
        seed=7,
    )
    found = arguments(plan, tmp_path)
    assert (found.per_device_train_batch_size, found.gradient_accumulation_steps) == (4, 8)
    assert (found.num_train_epochs, found.max_steps, found.seed) == (2.5, -1, 7)
    assert (found.learning_rate, found.adam_beta1, found.adam_beta2, found.weight_decay) == (
        3e-4,
        0.8,
        0.95,
        0.1,
    )
    assert (found.optim, found.lr_scheduler_type) == ("adamw_torch_fused", "cosine_with_min_lr")
    assert (found.warmup_steps, found.lr_scheduler_kwargs) == (10, {"min_lr_rate": 0.2})
    assert (found.max_grad_norm, found.label_smoothing_factor) == (0.5, 0.1)
    assert (found.activation_checkpointing, found.train_sampling_strategy) == (True, "group_by_length")
    assert (found.bf16, found.fp16, found.tf32) == (False, False, False)


def test_transformers_shards_recomputes_and_offloads_as_planned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(
        "FSDP_CPU_RAM_EFFICIENT_LOADING", ""
    )  # TrainingArguments set it, and this takes it back
    plan = replace(
        PLAN, devices=2, strategy="fsdp", numerics="bf16", techniques=("recompute", "optimizer_offload")
    )
    found = arguments(plan, tmp_path)
    assert found.gradient_accumulation_steps == 4  # 32 examples = 4 a micro-batch x 2 devices x 4
    sharding = found.fsdp_plugin_args
    assert (sharding["fsdp_version"], sharding["reshard_after_forward"]) == (2, True)
    assert (sharding["activation_checkpointing"], sharding["cpu_offload"]) == (True, True)
    assert found.bf16
    for strategy, offloads in (("fsdp", False), ("fsdp-offload", True)):
        sharding = arguments(replace(PLAN, devices=2, strategy=strategy), tmp_path).fsdp_plugin_args
        assert (sharding["reshard_after_forward"], sharding.get("cpu_offload", False)) == (True, offloads)


def test_transformers_own_defaults_are_off_where_nothing_is_asked(tmp_path: Path) -> None:
    found = arguments(PLAN, tmp_path)
    assert (found.max_grad_norm, found.lr_scheduler_type, found.max_steps) == (0.0, "constant", 100)


@pytest.mark.parametrize("optimizer", ["adamw", "adafactor", "sgd", "rmsprop", "schedule_free"])
def test_transformers_makes_the_optimizer_that_is_named(optimizer: str, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    from transformers import Trainer

    plan = replace(PLAN, optimizer=as_entry(discover()[optimizer].example()))
    settings = next(plan.asked()).settings
    kind, given = Trainer.get_optimizer_cls_and_kwargs(arguments(plan, tmp_path))
    made = kind([nn.Parameter(torch.zeros(2, 2))], **given)
    group = made.param_groups[0]
    assert group["lr"] == settings["learning_rate"]
    for setting, theirs in (
        ("momentum", "momentum"),
        ("nesterov", "nesterov"),
        ("decay", "alpha"),
        ("epsilon", "eps"),
    ):
        if setting in settings and optimizer != "adafactor":  # its eps are two, and constants
            assert group[theirs] == settings[setting], setting
    if "betas" in settings:
        assert tuple(group["betas"]) == settings["betas"]


@pytest.mark.parametrize(
    ("entry", "warmup"),
    [
        ("linear", 0),
        ({"linear": {"warmup": 0.1}}, 10),
        ({"cosine": {"warmup": 7, "minimum": 0.1}}, 7),
        ({"constant": {"warmup": 5}}, 5),
        ({"polynomial": {"power": 3.0, "minimum": 0.2}}, 0),
        ({"wsd": {"cooldown": 0.3, "minimum": 0.1, "warmup": 4}}, 4),
        ({"wsd": {"cooldown": 20, "shape": "linear"}}, 0),
        ({"flat_cosine": {"flat": 0.4, "warmup": 10}}, 10),
    ],
)
def test_transformers_rates_after_warmup_are_those_of_the_plan(
    entry: Entry, warmup: int, tmp_path: Path
) -> None:
    pytest.importorskip("transformers")
    from transformers import get_scheduler

    plan = replace(PLAN, optimizer={"adamw": {"learning_rate": 1.0}}, schedule=entry)
    found = arguments(plan, tmp_path)
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    schedule = get_scheduler(
        found.lr_scheduler_type, optimizer, int(found.warmup_steps), 100, found.lr_scheduler_kwargs
    )
    theirs = factors(schedule, optimizer, 100)
    assert theirs[warmup:] == pytest.approx(ours(entry, 100)[warmup:], abs=1e-12)
    late = [line for line in export(plan, "hf").left_out if "warm-up begins" in line]
    assert bool(late) == bool(warmup), "a warm-up that is not ours is said"


def test_transformers_trains_with_the_examples_of_an_update_as_planned(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    from transformers import Trainer, TrainerCallback

    class AtUpdates(TrainerCallback):
        def on_step_end(self, *_: Any, **__: Any) -> None:
            at_updates.append(sum(model.seen))

    at_updates: list[int] = []
    plan = replace(PLAN, micro_batch=2, global_batch=6, total_updates=2, schedule="linear")
    found = arguments(plan, tmp_path)
    found.output_dir, found.save_strategy, found.disable_tqdm = str(tmp_path), "no", True
    model = Rows()
    Trainer(model, found, train_dataset=rows(24), callbacks=[AtUpdates()]).train()
    assert at_updates == [6, 12]
    assert model.seen == [2] * 6


def test_peft_reads_the_adapters_and_finds_the_layers_that_our_patterns_mean() -> None:
    peft = pytest.importorskip("peft")
    lora = {
        "lora": {
            "rank": 3,
            "alpha": 6.0,
            "targets": ["query", "layer.*.up"],
            "rslora": True,
            "head": ["head"],
        }
    }
    text = file(export(replace(PLAN, techniques=(lora,)), "hf"), "lora.json")
    model = nn.ModuleDict({name: nn.Linear(2, 2) for name in ("query", "subquery", "head")})
    model["layer"] = nn.ModuleList([nn.ModuleDict({"up": nn.Linear(2, 2), "down": nn.Linear(2, 2)})])
    adapted = peft.get_peft_model(model, peft.LoraConfig(**json.loads(text)))
    layers = {
        name.removesuffix(".lora_A.default").removeprefix("base_model.model.")
        for name, _ in adapted.named_modules()
        if name.endswith("lora_A.default")
    }
    assert layers == {"query", "layer.0.up"}
    config = adapted.peft_config["default"]
    assert (config.r, config.lora_alpha, config.use_rslora, config.modules_to_save) == (
        3,
        6.0,
        True,
        ["head"],
    )


def test_bitsandbytes_reads_the_format_of_the_frozen_weights() -> None:
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("bitsandbytes")
    plan = replace(PLAN, numerics="bf16", techniques=({"nf4": {"double": False}}, "lora"))
    config = transformers.BitsAndBytesConfig(**json.loads(file(export(plan, "hf"), "quantization.json")))
    assert (config.load_in_4bit, config.bnb_4bit_quant_type, config.bnb_4bit_use_double_quant) == (
        True,
        "nf4",
        False,
    )
    assert config.bnb_4bit_compute_dtype == torch.bfloat16


@pytest.mark.slow
def test_a_bert_classifier_gets_the_true_gradient_once_told_what_the_notes_say(tmp_path: Path) -> None:
    """The Trainer's own norm of the first gradient, accumulated over four micro-batches and in one pass."""
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=20,
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    examples = [{"input_ids": [2 + number, 3, 4], "labels": number % 2} for number in range(8)]

    def norm(micro_batch: int, accepts: bool) -> float:
        torch.manual_seed(0)
        model = transformers.BertForSequenceClassification(config)
        if not accepts:
            model.accepts_loss_kwargs = False
        plan = replace(PLAN, micro_batch=micro_batch, global_batch=8, total_updates=1, techniques=())
        settings = json.loads(file(export(plan, "hf"), "training_args.json"))
        settings |= {"max_grad_norm": 1e9, "logging_steps": 1, "report_to": "none", "save_strategy": "no"}
        asked = transformers.TrainingArguments(output_dir=str(tmp_path), disable_tqdm=True, **settings)
        trainer = transformers.Trainer(model=model, args=asked, train_dataset=examples)
        trainer.train()
        return next(float(entry["grad_norm"]) for entry in trainer.state.log_history if "grad_norm" in entry)

    whole = norm(8, accepts=True)
    assert norm(2, accepts=False) == pytest.approx(whole, rel=1e-4)
    assert norm(2, accepts=True) == pytest.approx(4 * whole, rel=1e-4)
    (note,) = [
        line
        for line in export(replace(PLAN, micro_batch=2, global_batch=8), "hf").left_out
        if line.startswith("accumulation")
    ]
    assert "model.accepts_loss_kwargs = False" in note and "4 times too large" in note


def test_peft_puts_no_adapter_on_the_head_of_a_classifier(tmp_path: Path) -> None:
    transformers, peft = pytest.importorskip("transformers"), pytest.importorskip("peft")
    sizes = {"vocab_size": 20, "hidden_size": 8, "intermediate_size": 16}
    model = transformers.BertForSequenceClassification(
        transformers.BertConfig(num_hidden_layers=1, num_attention_heads=2, **sizes)
    )
    settings = json.loads(file(export(replace(PLAN, techniques=("lora",)), "hf"), "lora.json"))
    found = peft.get_peft_model(model, peft.LoraConfig(**settings))
    adapted = {name for name, _ in found.named_parameters() if "lora_A" in name}
    assert adapted and not [name for name in adapted if "classifier" in name]
    assert any("attention.self.query" in name for name in adapted)
