"""The loops of others around a model: Hugging Face's Trainer, TRL's and Lightning, as rivals that take turns."""

from __future__ import annotations

import importlib
import os
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn
from turns import Loop, Rival, Threaded

TRL = ("trl", "datasets", "dill", "multiprocess", "xxhash")
MANY = 1_000_000
"""Updates that a loop is told to make; it is ended before."""


def use_trl() -> str | None:
    """Make TRL importable from the wheels that travel; returns why it cannot be used, and then leaves nothing of it behind.

    Transformers' Trainer imports `datasets` where it finds it, and would fail with it.
    """
    place = str(Path(os.environ.get("SNUGFIT_WHEELS", ""), "trl"))
    sys.path.append(place)
    try:
        for name in ("datasets", "trl"):
            importlib.import_module(name)
    except Exception as error:  # noqa: BLE001 (whatever a library raises while it is imported)
        sys.path.remove(place)
        for name in [name for name in sys.modules if name.partition(".")[0] in TRL]:
            del sys.modules[name]
        importlib.invalidate_caches()
        return f"{type(error).__name__}: {error}"
    return None


def by_hand(
    model: nn.Module,
    data: Mapping[str, torch.Tensor],
    device: str,
    micro_batch: int,
    settings: Mapping[str, Any],
) -> Rival:
    """Return a loop as one writes it: autocast, micro-batches, clipping, fused AdamW; the window comes from the host each time."""
    cuda = device == "cuda"
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=cuda)
    rows = len(data["input_ids"])
    parts = rows // micro_batch
    pinned = {name: tensor.pin_memory() if cuda else tensor for name, tensor in data.items()}
    model.train()

    def update() -> None:
        optimizer.zero_grad(set_to_none=True)
        for part in range(parts):
            rows = slice(part * micro_batch, (part + 1) * micro_batch)
            window = {name: tensor[rows].to(device, non_blocking=True) for name, tensor in pinned.items()}
            with torch.autocast(device, dtype=torch.bfloat16, enabled=settings.get("bf16", True)):
                loss = model(**window, use_cache=False).loss / parts
            loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    return Loop(update)


class Rows:
    """A data set that never ends: the rows of one window over and over."""

    def __init__(self, data: Mapping[str, torch.Tensor]) -> None:
        self._data = data
        self._rows = len(data["input_ids"])

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {name: tensor[index % self._rows] for name, tensor in self._data.items()}


def trainer(
    model: nn.Module,
    data: Mapping[str, torch.Tensor],
    device: str,
    micro_batch: int,
    settings: Mapping[str, Any],
) -> Rival:
    """Return Hugging Face's Trainer; `settings` are those of its arguments beyond the sizes."""

    def train(after_update: Callable[[], None]) -> None:
        from transformers import Trainer, TrainingArguments

        arguments = TrainingArguments(**_arguments(data, device, micro_batch), **settings)
        Trainer(
            model=model, args=arguments, train_dataset=Rows(data), callbacks=[_callback(after_update)]
        ).train()

    return Threaded(train)


def trl(
    model: nn.Module,
    data: Mapping[str, torch.Tensor],
    device: str,
    micro_batch: int,
    settings: Mapping[str, Any],
) -> Rival:
    """Return TRL's SFTTrainer on tokens that are ready."""

    def train(after_update: Callable[[], None]) -> None:
        from datasets import Dataset
        from transformers import PreTrainedTokenizerFast
        from trl import SFTConfig, SFTTrainer

        arguments = SFTConfig(
            **_arguments(data, device, micro_batch),
            dataset_kwargs={"skip_prepare_dataset": True},
            max_length=None,
            **settings,
        )
        rows = {name: tensor.tolist() for name, tensor in data.items()}
        SFTTrainer(
            model=model,
            args=arguments,
            train_dataset=Dataset.from_dict(rows),
            processing_class=_tokenizer(PreTrainedTokenizerFast),
            callbacks=[_callback(after_update)],
        ).train()

    return Threaded(train)


def _arguments(data: Mapping[str, torch.Tensor], device: str, micro_batch: int) -> dict[str, Any]:
    """Return what both trainers of Hugging Face are told: the sizes, and to write and show nothing."""
    return {
        "output_dir": tempfile.mkdtemp(),
        "per_device_train_batch_size": micro_batch,
        "gradient_accumulation_steps": len(data["input_ids"]) // micro_batch,
        "max_steps": MANY,
        "learning_rate": 1e-4,
        "lr_scheduler_type": "constant",
        "use_cpu": device != "cuda",
        "report_to": "none",
        "save_strategy": "no",
        "logging_strategy": "no",
        "disable_tqdm": True,
    }


def _callback(after_update: Callable[[], None]) -> Any:
    """Return a callback that says when an update has been made."""
    from transformers import TrainerCallback

    class Turns(TrainerCallback):
        def on_step_end(self, *args: Any, **kwargs: Any) -> None:
            after_update()

    return Turns()


def _tokenizer(kind: Any) -> Any:
    from tokenizers import Tokenizer, models

    words = Tokenizer(models.WordLevel({"[PAD]": 0, "[EOS]": 1}, unk_token="[PAD]"))
    return kind(tokenizer_object=words, pad_token="[PAD]", eos_token="[EOS]", unk_token="[PAD]")


def lightning(
    model: nn.Module,
    data: Mapping[str, torch.Tensor],
    device: str,
    micro_batch: int,
    settings: Mapping[str, Any],
) -> Rival:
    """Return Lightning's Trainer around the model's own loss."""

    def train(after_update: Callable[[], None]) -> None:
        import lightning.pytorch as pl

        class Module(pl.LightningModule):
            def __init__(self) -> None:
                super().__init__()
                self.model = model.train()

            def training_step(self, batch: Any, index: int) -> Any:
                return self.model(**batch, use_cache=False).loss

            def configure_optimizers(self) -> Any:
                return torch.optim.AdamW(self.parameters(), lr=1e-4)  # it does not clip for a fused one

            def on_train_batch_end(self, outputs: Any, batch: Any, index: int) -> None:
                if (index + 1) % parts == 0:
                    after_update()

        parts = len(data["input_ids"]) // micro_batch
        loader = torch.utils.data.DataLoader(Rows(data), batch_size=micro_batch, pin_memory=device == "cuda")  # type: ignore[var-annotated,arg-type]
        pl.Trainer(
            accelerator="gpu" if device == "cuda" else "cpu",
            devices=1,
            max_steps=MANY,
            accumulate_grad_batches=parts,
            gradient_clip_val=1.0,
            precision="bf16-mixed" if settings.get("bf16", True) else "32-true",
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            default_root_dir=tempfile.mkdtemp(),
        ).fit(Module(), loader)

    return Threaded(train)
