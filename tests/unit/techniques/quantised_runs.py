"""What is done to each format of a frozen base: loaded, trained beside adapters, stopped, resumed, delivered."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from snugfit.core.technique import Technique
from snugfit.kit.adapters.adapter_files import save_adapter
from snugfit.models.bundle import load_bundle
from snugfit.models.huggingface import load_causal_lm
from snugfit.step.step import Step
from snugfit.techniques.learning.adamw import AdamW
from snugfit.techniques.learning.lora import LoRA
from tests.laws.compare import differences, saved
from tests.unit.run.training.runs import finish, make_training, resumed, stop_at, told

VOCABULARY = 64
IDS = torch.arange(48).reshape(3, 16)


def llama(inner: int = 96) -> nn.Module:
    """A Llama with rows that end within a block, unless `inner` is a multiple of 64."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=inner,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=32,
    )
    return LlamaForCausalLM(config)


def gpt2() -> nn.Module:
    """Its layers are Conv1D, and there is no dropout, so that training and evaluation compute the same."""
    from transformers import GPT2Config, GPT2LMHeadModel

    none = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "bos_token_id": 0, "eos_token_id": 0}
    return GPT2LMHeadModel(
        GPT2Config(vocab_size=VOCABULARY, n_positions=32, n_embd=64, n_layer=2, n_head=4, **none)
    )


def mixtral(way: str = "grouped_mm") -> nn.Module:
    """Its experts are one parameter a layer, and run in any of the ways that transformers has for them."""
    from transformers import MixtralConfig, MixtralForCausalLM

    torch.manual_seed(0)
    sizes = {"vocab_size": VOCABULARY, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    config = MixtralConfig(**sizes, **heads, num_local_experts=4, num_experts_per_tok=2)
    config._experts_implementation = way
    return MixtralForCausalLM(config)


def wide_llama() -> nn.Module:
    return llama(inner=128)


DECODERS = [llama, gpt2]


def folder_of(make: Callable[[], Any], folder: Path) -> Path:
    torch.manual_seed(0)
    make().save_pretrained(folder / "base", max_shard_size="50KB")
    assert len(list((folder / "base").glob("*.safetensors"))) > 1
    return folder / "base"


def bytes_of(module: nn.Module) -> int:
    return sum(parameter.numel() * parameter.element_size() for parameter in module.parameters())


def loaded_like_prepared(technique: Technique, folder: Path) -> None:
    loaded = technique.prepare(load_causal_lm(folder, techniques=[technique]).model)
    prepared = technique.prepare(load_causal_lm(folder).model)
    assert [type(module) for module in loaded.modules()] == [type(module) for module in prepared.modules()]
    assert not differences(dict(loaded.state_dict()), dict(prepared.state_dict()))
    pairs = zip(loaded.named_parameters(), prepared.named_parameters(), strict=True)
    assert all((n, p.requires_grad) == (m, q.requires_grad) for (n, p), (m, q) in pairs)
    assert getattr(loaded.config, "quantization_config", None) is None
    assert not getattr(loaded, "is_loaded_in_4bit", False) and loaded.double().dtype == torch.float64


def adapted_step(techniques: Sequence[Technique], folder: Path) -> Step:
    """A step that trains adapters beside the base of `folder`."""
    techniques = [*techniques, LoRA(rank=4)]
    model = load_causal_lm(folder, techniques=techniques).model
    return Step(model, AdamW(learning_rate=1e-2), "causal_lm", techniques)


def losses_of(step: Step, updates: int) -> list[float]:
    batch = {"input_ids": IDS, "attention_mask": torch.ones_like(IDS), "labels": IDS}
    return [step(batch).loss for _ in range(updates)]


def adapter_under_plain_peft(
    technique: Technique, folder: Path, out: Path, **config: Any
) -> tuple[Tensor, Tensor]:
    """Logits of the trained model, and of its adapter alone on a base as people quantise it."""
    from peft import PeftModel
    from transformers import AutoModelForCausalLM, BitsAndBytesConfig

    step = adapted_step([technique], folder)
    losses = losses_of(step, 4)
    assert losses[-1] < losses[0] - 0.05
    save_adapter(step.model, out / "adapter")
    base = AutoModelForCausalLM.from_pretrained(
        folder, quantization_config=BitsAndBytesConfig(**config), dtype=torch.float32
    )
    # in training mode: to evaluate, bitsandbytes rounds activations too, and on some processors to bf16
    theirs = PeftModel.from_pretrained(base, out / "adapter").train()
    with torch.no_grad():
        return step.model(input_ids=IDS).logits, theirs(input_ids=IDS).logits


def stopped_and_resumed(technique: Technique, folder: Path, make: Callable[[], nn.Module] = llama) -> None:
    """QLoRA through the loop: checkpoints keep the quantised base, and what is scored is what is saved."""
    rows = [
        {"input_ids": row, "attention_mask": torch.ones(16).long(), "labels": row} for row in IDS.repeat(4, 1)
    ]
    settings: Any = {
        "train": rows,
        "validation": rows[:5],
        "techniques": (AdamW(learning_rate=1e-2), LoRA(rank=4, dropout=0.1), technique),
        "loss": "causal_lm",
    }

    def model(seed: int) -> nn.Module:
        torch.manual_seed(seed)
        return make()

    whole = make_training(folder / "whole", model=model(0), **settings)
    finish(whole)
    stop_at(make_training(folder / "cut", model=model(0), **settings), 2)
    rest = resumed(
        make_training(folder / "cut", model=model(1), **settings)
    )  # another base: it is in the checkpoint
    result = finish(rest)
    assert not differences(saved(whole.step), saved(rest.step))
    assert told(whole)[-1] == told(rest)[-1]

    best, meta, _ = load_bundle(folder / "cut" / "best")
    assert type(best).__name__ == type(make()).__name__ and {p.dtype for p in best.parameters()} == {
        torch.float32
    }
    with torch.no_grad():
        logits = best(input_ids=IDS.repeat(2, 1)[:5]).logits[:, :-1]
    labels = IDS.repeat(2, 1)[:5, 1:]
    scored = nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten()).item()
    assert abs(scored - meta["metrics"]["loss"]) < 1e-4 * scored
    assert (
        result.status == "finished"
        and (folder / "cut" / "best" / "adapter" / "adapter_config.json").is_file()
    )
