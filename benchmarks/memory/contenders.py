"""The ladder: one model, one window, and every way to train it; each gives a function that makes one update and its loss."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

LEARNING_RATE = 1e-4


@dataclass(frozen=True)
class Size:
    """A model of Llama's kind and its window."""

    vocabulary: int
    width: int
    layers: int
    heads: int
    sequence: int
    rows: int
    chunk: int

    def config(self) -> Any:
        from transformers import LlamaConfig

        return LlamaConfig(
            vocab_size=self.vocabulary,
            hidden_size=self.width,
            intermediate_size=self.width * 8 // 3,
            num_hidden_layers=self.layers,
            num_attention_heads=self.heads,
            max_position_embeddings=self.sequence,
        )

    def model(self) -> nn.Module:
        from transformers import LlamaForCausalLM

        torch.manual_seed(0)
        return LlamaForCausalLM(self.config())

    def rows_of(self, update: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(update)
        return torch.randint(0, self.vocabulary, (self.rows, self.sequence), generator=generator)


SIZES = {
    # 12 layers of 7.1M parameters, embeddings and head of 24.6M each: 134M
    "full": Size(vocabulary=32000, width=768, layers=12, heads=12, sequence=512, rows=8, chunk=64),
    "tiny": Size(vocabulary=512, width=32, layers=2, heads=2, sequence=32, rows=4, chunk=8),
}

Update = Callable[[int], float]
"""Makes the update of this number and gives its loss."""


@dataclass(frozen=True)
class Contender:
    """A way to train: the name shown, what it is measured against, and how it is made."""

    shown: str
    make: Callable[[Size], tuple[nn.Module, Any, Update]]
    micro_batch: int | None = None


def snugfit(
    names: dict[str, dict[str, Any]], optimizer: str = "adamw", micro_batch: int | None = None
) -> Any:
    """Ours: techniques by name with their settings."""

    def make(size: Size) -> tuple[nn.Module, Any, Update]:
        from snugfit import Step
        from snugfit.techniques import find

        settings = {name: dict(given) for name, given in names.items()}
        if "chunked_loss" in settings:
            settings["chunked_loss"].setdefault("chunk", size.chunk)
        techniques = [find(name)(**given) for name, given in settings.items()]
        step = Step(
            size.model(),
            find(optimizer)(learning_rate=LEARNING_RATE, weight_decay=0.0),
            "causal_lm",
            techniques,
            micro_batch=micro_batch,
            nominal=float(size.rows * size.sequence),
        )

        def update(number: int) -> float:
            ids = size.rows_of(number)
            result = step({"input_ids": ids, "labels": ids})
            assert result.applied
            return result.loss

        return step.model, step.optimizer, update

    return make


def trainer(lora: bool = False, quantised: bool = False, **arguments: Any) -> Any:
    """HF Trainer, with peft and bitsandbytes where asked."""

    def make(size: Size) -> tuple[nn.Module, Any, Update]:
        from transformers import Trainer, TrainerCallback, TrainingArguments

        model = _base(size, quantised)
        if lora:
            from peft import LoraConfig, get_peft_model, prepare_model_for_kbit_training

            if quantised:
                model = prepare_model_for_kbit_training(
                    model, use_gradient_checkpointing=arguments.get("gradient_checkpointing", False)
                )
            elif arguments.get("gradient_checkpointing"):
                model.enable_input_require_grads()
            model = get_peft_model(model, LoraConfig(r=16, target_modules="all-linear"))
        folder = tempfile.mkdtemp()
        given = {"per_device_train_batch_size": size.rows, **arguments}
        if given["per_device_train_batch_size"] == 1:
            given["gradient_accumulation_steps"] = size.rows
        settings = TrainingArguments(
            folder,
            learning_rate=LEARNING_RATE,
            lr_scheduler_type="constant",
            report_to="none",
            use_cpu=True,
            disable_tqdm=True,
            logging_strategy="no",
            save_strategy="no",
            dataloader_pin_memory=False,
            **given,
        )

        class Losses(Trainer):
            """Keeps what `training_step` gives: the share of each micro-batch in the update's loss."""

            def training_step(self, *args: Any, **kwargs: Any) -> torch.Tensor:
                loss = super().training_step(*args, **kwargs)
                self.seen = getattr(self, "seen", 0.0) + float(loss)
                return loss

        def update(number: int) -> float:
            raise NotImplementedError("the trainer makes all updates in one call")

        def train(updates: int, mark: Callable[[], None]) -> list[float]:
            losses = []
            rows = [row for number in range(updates) for row in size.rows_of(number)]
            data = [{"input_ids": row, "labels": row} for row in rows]

            class Marks(TrainerCallback):
                def on_step_end(self, *args: Any, **kwargs: Any) -> None:
                    losses.append(running.seen)
                    running.seen = 0.0
                    mark()

            running = Losses(
                model=model, args=settings, train_dataset=data, callbacks=[Marks()], data_collator=_stacked
            )
            running._get_train_sampler = lambda *_: torch.utils.data.SequentialSampler(data)
            running.args.max_steps = updates
            running.train()
            return losses

        update.train = train  # type: ignore[attr-defined]
        return model, None, update

    return make


def _stacked(rows: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    return {name: torch.stack([row[name] for row in rows]) for name in rows[0]}


def _base(size: Size, quantised: bool) -> Any:
    if not quantised:
        return size.model()
    from transformers import AutoModelForCausalLM, BitsAndBytesConfig

    folder = tempfile.mkdtemp()
    size.model().save_pretrained(folder)
    config = BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=torch.float32,
    )
    return AutoModelForCausalLM.from_pretrained(
        folder, quantization_config=config, device_map="cpu", dtype=torch.float32
    )


_LEAN = {"chunked_loss": {}, "recompute": {}}
_LORA = {"lora": {"rank": 16, "alpha": 32.0}}


CONTENDERS: dict[str, Contender] = {
    "hf": Contender("HF Trainer, its defaults", trainer()),
    "hf_tuned": Contender(
        "HF Trainer tuned: micro-batch 1, gradient checkpointing, no clipping",
        trainer(per_device_train_batch_size=1, gradient_checkpointing=True, max_grad_norm=0.0),
    ),
    "plain": Contender("plain", snugfit({})),
    "chunked": Contender("+ chunked_loss", snugfit({"chunked_loss": {}})),
    "recompute": Contender("+ recompute", snugfit(_LEAN)),
    "clipped": Contender(
        "the same with clip_norm, as HF's default", snugfit({**_LEAN, "clip_norm": {"max_norm": 1.0}})
    ),
    "in_backward": Contender("+ optimizer_in_backward", snugfit({**_LEAN, "optimizer_in_backward": {}})),
    "rows": Contender(
        "+ recompute by rows", snugfit({**_LEAN, "recompute": {"rows": 1}, "optimizer_in_backward": {}})
    ),
    "every_second": Contender(
        "+ every second input alone",
        snugfit(
            {**_LEAN, "recompute": {"rows": 1, "inputs_every": 2}, "optimizer_in_backward": {}},
        ),
    ),
    "states_8bit": Contender(
        "by rows, with 8-bit states",
        snugfit({**_LEAN, "recompute": {"rows": 1}, "optimizer_in_backward": {}}, optimizer="adamw_8bit"),
    ),
    "lora": Contender("LoRA, rank 16, micro-batch 1", snugfit({**_LEAN, **_LORA}, micro_batch=1)),
    "qlora": Contender("QLoRA (nf4), micro-batch 1", snugfit({**_LEAN, **_LORA, "nf4": {}}, micro_batch=1)),
    "streamed": Contender(
        "QLoRA streamed, micro-batch 1",
        snugfit({**_LEAN, **_LORA, "nf4": {}, "weight_streaming": {}}, micro_batch=1),
    ),
    "hf_lora": Contender(
        "HF Trainer + peft, LoRA, tuned",
        trainer(lora=True, per_device_train_batch_size=1, gradient_checkpointing=True, max_grad_norm=0.0),
    ),
    "hf_qlora": Contender(
        "HF Trainer + peft, QLoRA, tuned",
        trainer(
            lora=True,
            quantised=True,
            per_device_train_batch_size=1,
            gradient_checkpointing=True,
            max_grad_norm=0.0,
        ),
    ),
}


def names() -> Iterator[str]:
    yield from CONTENDERS
