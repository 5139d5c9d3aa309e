"""Plans for accelerate and lightning, loaded by them, and trained with."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch import nn

from snugfit.planner.export import export
from tests.samples import some_of
from tests.unit.planner.exports import (
    PLAN,
    Rows,
    about,
    file,
    rows,
)


@pytest.mark.parametrize("strategy", ["single", "ddp", "fsdp", "fsdp-zero2", "fsdp-offload"])
def test_accelerate_reads_the_file_and_knows_every_name_in_it(strategy: Any, tmp_path: Path) -> None:
    pytest.importorskip("accelerate")
    from accelerate.commands.config.config_args import load_config_from_file
    from accelerate.commands.launch import launch_command_parser

    devices = 1 if strategy == "single" else 2
    offload = () if strategy == "fsdp-offload" else ("optimizer_offload",)
    techniques = ({"compile": {"mode": "max-autotune", "dynamic": True}}, "recompute", *offload)
    plan = replace(
        PLAN, strategy=strategy, devices=devices, device="cuda", numerics="bf16", techniques=techniques
    )
    path = tmp_path / "accelerate.yaml"
    path.write_text(file(export(plan, "accelerate"), path.name), encoding="utf-8")
    found = load_config_from_file(str(path))
    names = {"single": "NO", "ddp": "MULTI_GPU", "fsdp": "FSDP", "fsdp-zero2": "FSDP", "fsdp-offload": "FSDP"}
    assert (found.distributed_type.value, found.num_processes) == (names[strategy], devices)
    assert (found.mixed_precision, found.use_cpu) == ("bf16", False)
    known = vars(launch_command_parser().parse_args(["script.py"]))
    assert {*found.fsdp_config, *found.dynamo_config} <= known.keys()
    assert found.dynamo_config["dynamo_mode"] == "max-autotune"
    if strategy.startswith("fsdp"):
        assert found.fsdp_config["fsdp_activation_checkpointing"] is True
        assert found.fsdp_config["fsdp_offload_params"] is True
    else:
        assert about(export(plan, "accelerate"), "recompute")


@pytest.mark.slow
@pytest.mark.parametrize("strategy", some_of(["ddp", "fsdp", "fsdp-zero2"], ["fsdp"]))
def test_accelerate_starts_as_many_ranks_on_a_cpu_as_the_plan_has_devices(
    strategy: Any, tmp_path: Path
) -> None:
    pytest.importorskip("accelerate")
    exported = export(replace(PLAN, strategy=strategy, devices=2), "accelerate")
    (tmp_path / "accelerate.yaml").write_text(file(exported, "accelerate.yaml"), encoding="utf-8")
    (tmp_path / "script.py").write_text(
        "import accelerate, pathlib, torch\n"
        "a = accelerate.Accelerator()\n"
        "model = a.prepare(torch.nn.Linear(1, 1))\n"
        "said = f'{a.num_processes} {a.device.type} {type(model).__name__}'\n"
        "pathlib.Path(f'rank{a.process_index}').write_text(said)\n"
    )
    (told,) = about(exported, "device")
    assert "ACCELERATE_USE_CPU=true accelerate launch" in told
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    launch = ["launch", "--config_file", "accelerate.yaml", "--main_process_port", str(port), "script.py"]
    subprocess.run(
        [sys.executable, "-m", "accelerate.commands.accelerate_cli", *launch],
        cwd=tmp_path,
        env={**os.environ, "ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1"},
        check=True,
        capture_output=True,
        timeout=300,
    )
    ranks = {path.name: path.read_text() for path in tmp_path.glob("rank*")}
    assert ranks == dict.fromkeys(("rank0", "rank1"), "2 cpu DistributedDataParallel")
    # each rank has all of the model, so a plan that shards it is not carried
    assert bool(about(exported, "strategy")) == (strategy != "ddp")


def test_lightning_makes_the_trainer_and_takes_the_examples_of_an_update_as_planned(tmp_path: Path) -> None:
    lightning = pytest.importorskip("lightning.pytorch")

    class Module(lightning.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.model = Rows()
            self.at_updates: list[int] = []

        def training_step(self, batch: dict[str, torch.Tensor], index: int) -> torch.Tensor:
            return self.model(**batch)["loss"]

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.1)

        def on_before_zero_grad(self, optimizer: torch.optim.Optimizer) -> None:
            self.at_updates.append(sum(self.model.seen))

    plan = replace(
        PLAN, micro_batch=2, global_batch=6, total_updates=2, numerics="bf16", techniques=("clip_norm",)
    )
    settings = yaml.safe_load(file(export(plan, "lightning"), "lightning.yaml"))
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    trainer = lightning.Trainer(**settings["trainer"], **quiet, enable_model_summary=False)
    assert (trainer.precision, trainer.gradient_clip_val, trainer.max_steps) == ("bf16-mixed", 1.0, 2)
    module = Module()
    trainer.fit(module, torch.utils.data.DataLoader(rows(24), batch_size=plan.micro_batch))
    assert trainer.global_step == 2
    assert module.model.seen == [2] * 6


def test_lightning_cli_takes_the_whole_file(tmp_path: Path) -> None:
    pytest.importorskip("jsonargparse")
    lightning = pytest.importorskip("lightning.pytorch")
    from lightning.pytorch.cli import LightningCLI

    class Module(lightning.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(2, 2)

    plan = replace(PLAN, optimizer={"adamw": {"learning_rate": 0.5, "betas": [0.8, 0.9]}}, epochs=3.0, seed=7)
    path = tmp_path / "lightning.yaml"
    path.write_text(file(export(plan, "lightning"), path.name), encoding="utf-8")
    cli = LightningCLI(Module, args=["--config", str(path)], run=False, save_config_callback=None)
    assert (cli.trainer.max_epochs, cli.trainer.accumulate_grad_batches, cli.config.seed_everything) == (
        3,
        8,
        7,
    )
    optimizer = cli.config.optimizer
    assert optimizer.class_path == "torch.optim.AdamW"
    assert (optimizer.init_args.lr, tuple(optimizer.init_args.betas)) == (0.5, (0.8, 0.9))


def test_lightning_cli_reads_a_plan_that_shards_gradients_and_states_alone(tmp_path: Path) -> None:
    pytest.importorskip("jsonargparse")
    pytest.importorskip("lightning.pytorch")
    from lightning.pytorch import Trainer
    from lightning.pytorch.cli import LightningArgumentParser

    exported = export(replace(PLAN, strategy="fsdp-zero2", devices=2, device="cuda"), "lightning")
    parser = LightningArgumentParser()
    parser.add_lightning_class_args(Trainer, "trainer")
    trainer = {"trainer": yaml.safe_load(file(exported, "lightning.yaml"))["trainer"]}
    strategy = parser.parse_object(trainer).trainer.strategy
    assert strategy.class_path == "lightning.pytorch.strategies.FSDPStrategy"
    assert strategy.init_args.sharding_strategy.name == "SHARD_GRAD_OP"
