"""Runs that others published: models by their shapes, the techniques that they used, the figures, and where those stand."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

GB = 1e9 / 2**30

_LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_act": "silu",
    "max_position_embeddings": 8192,
}


def _llama(
    hidden: int, inner: int, layers: int, heads: int, key_heads: int, words: int, **more: Any
) -> dict[str, Any]:
    return {
        **_LLAMA,
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": key_heads,
        "vocab_size": words,
        **more,
    }


MODELS: dict[str, dict[str, Any]] = {
    "Llama 3.2 3B": _llama(3072, 8192, 28, 24, 8, 128_256, head_dim=128, tie_word_embeddings=True),
    "Llama 3.1 8B": _llama(4096, 14_336, 32, 32, 8, 128_256),
    "Llama 2 7B": _llama(4096, 11_008, 32, 32, 32, 32_000),
    "Llama 33B": _llama(6656, 17_920, 60, 52, 52, 32_000),
    "Yi 34B": _llama(7168, 20_480, 60, 56, 8, 64_000),
    "Llama 65B": _llama(8192, 22_016, 80, 64, 64, 32_000),
    "Llama 2 70B": _llama(8192, 28_672, 80, 64, 8, 32_000),
    "Llama 3.1 70B": _llama(8192, 28_672, 80, 64, 8, 128_256),
    "GPT-2 13B": {
        "model_type": "gpt2",
        "architectures": ["GPT2LMHeadModel"],
        "n_embd": 4096,
        "n_layer": 65,
        "n_head": 32,
        "n_positions": 1024,
        "vocab_size": 50_257,
    },
}

ADAMW = {"adamw": {"learning_rate": 2e-5}}
ADAMW_8BIT = {"adamw_8bit": {"learning_rate": 2e-5}}
PAGED_8BIT = {"adamw_8bit": {"learning_rate": 2e-5, "paged": True}}
SELECTIVE = {"recompute": {"keep": ["attention", "matmul"]}}
SMALL = ("chunked_loss", "recompute")

TORCHTUNE = "https://github.com/pytorch/torchtune#memory-and-training-speed"
LADDER = "https://github.com/pytorch/torchtune#optimization-flags"
ANSWER_AI = "https://github.com/AnswerDotAI/fsdp_qlora/blob/main/benchmarks_03_2024.md"
UNSLOTH = "https://docs.unsloth.ai/basics/unsloth-benchmarks"
UNSLOTH_NEEDS = "https://unsloth.ai/docs/get-started/fine-tuning-for-beginners/unsloth-requirements"
LLAMA_FACTORY = "https://github.com/hiyouga/LLaMA-Factory#hardware-requirement"
QLORA = "https://arxiv.org/abs/2305.14314"
AXOLOTL = "https://github.com/axolotl-ai-cloud/axolotl/tree/main/examples/llama-3"
SOUP = "https://pypi.org/project/soup-cli/0.73.3/"
TORCHTITAN = "https://github.com/pytorch/torchtitan/blob/main/benchmarks/llama3_h100_202412_torchtitan.md"
ZERO_OFFLOAD = "https://arxiv.org/abs/2101.06840"

EAGER = "without compile"
ALL_LINEAR = "adapters on all linear layers, in fp32"
NO_BF16 = "a T4 has no bf16: embeddings, head and what blocks hand on are in float32"
CARD = "theirs fits the card; how much of it is taken is not said"


def lora(rank: int) -> dict[str, Any]:
    """Return adapters of a rank, with twice as much as their alpha."""
    return {"lora": {"rank": rank, "alpha": 2.0 * rank}}


@dataclass(frozen=True)
class Case:
    """A published run, and our recipe that is nearest to it.

    Args:
        published: GiB of each device, the least and the most; None where no figure is given.
        source: where the figure stands; None where it is what people say.
        active: whether the figure is of what is allocated, else of what is reserved; estimate: whether nobody measured it.
        tokens_per_second: of all devices together.
        memory, host: GiB of each device and of a node's host, where they are not those of the catalogue.
    """

    name: str
    model: str
    device: str
    published: tuple[float, float] | None
    source: str | None
    rows: int
    length: int
    techniques: tuple[Any, ...]
    numerics: str = "pure_bf16"
    optimizer: Any = None
    active: bool = False
    estimate: bool = False
    tokens_per_second: float | None = None
    differs: str = ""
    devices: int = 1
    nodes: int = 1
    strategy: str | None = None
    micro_batch: int | None = None
    memory: float | None = None
    host: float | None = None

    @property
    def machine(self) -> str:
        """The model and the devices."""
        many = f"{self.devices * self.nodes} × " if self.devices * self.nodes > 1 else ""
        return f"{self.model}, {many}{self.device}"

    @property
    def job(self) -> str:
        """The model, the devices and the window."""
        return f"{self.machine}, {self.rows} × {self.length:,} tokens"


def _ladder(name: str, published: float, tokens: float, *techniques: Any, **more: Any) -> Case:
    """Return a rung of torchtune's ladder: 2 rows of 4,096 packed tokens, weights and AdamW's states in bf16, peak of what is active."""
    sizes = ("Llama 3.2 3B", "a100-80", (published, published), LADDER, 2, 4096)
    more.setdefault("differs", EAGER)
    return Case(f"3B {name}", *sizes, techniques, tokens_per_second=tokens, active=True, **more)


def _torchtune(name: str, published: float, tokens: float, *techniques: Any, **more: Any) -> Case:
    """Return a run of torchtune's README: 2 rows of 2,048 packed tokens."""
    sizes = ("Llama 3.1 8B", "rtx4090", (published, published), TORCHTUNE, 2, 2048)
    return Case(f"8B {name}", *sizes, techniques, tokens_per_second=tokens, active=True, **more)


def _two_cards(
    name: str, model: str, card: str, gib: float, seconds: float, rows: int, *techniques: Any, **more: Any
) -> Case:
    """Return a run of Answer.AI's on two cards and 128 GB of host memory: 1,024 texts of 2,048 tokens, peak of what is reserved."""
    tokens = 1024 * 2048 / seconds
    more.setdefault("differs", "theirs has what NCCL takes, and fragments; what else differs is not known")
    pair: dict[str, Any] = {"devices": 2, "host": 128 * GB, "tokens_per_second": tokens}
    return Case(name, model, card, (gib, gib), ANSWER_AI, rows, 2048, techniques, **pair, **more)


_ON_T4 = ("7B QLoRA", "Llama 2 7B", "t4", (5.0, 9.0), None)
_QLORA = (*SMALL, "nf4")

CASES: tuple[Case, ...] = (
    _ladder("packed", 60.0, 7075, differs=""),
    _ladder("compile", 51.0, 8998, "compile", differs="planned as eager: an upper bound for compile"),
    _ladder("chunked loss", 42.9, 9174, "chunked_loss"),
    _ladder("recompute", 24.9, 7210, *SMALL),
    _ladder("optimizer in backward", 23.1, 7309, *SMALL, "optimizer_in_backward"),
    _ladder("activation offload", 21.8, 7301, *SMALL, "activation_offload", "optimizer_in_backward"),
    _ladder("8-bit states", 17.6, 6960, *SMALL, "activation_offload", "optimizer_in_backward", optimizer=ADAMW_8BIT),
    _ladder("LoRA", 8.5, 8210, *SMALL, "activation_offload", lora(64), differs=f"{ALL_LINEAR}; {EAGER}"),
    _ladder("QLoRA", 4.6, 8035, *SMALL, "activation_offload", "nf4", lora(64), differs=f"{ALL_LINEAR}; {EAGER}"),
    _torchtune("full", 18.9, 1650, *SMALL, "optimizer_in_backward", optimizer=PAGED_8BIT, differs=f"{EAGER}; ours has all states over the link twice an update"),
    _torchtune("LoRA", 16.2, 3083, *SMALL, lora(8), differs=f"{ALL_LINEAR}; {EAGER}"),
    _torchtune("QLoRA", 7.4, 2413, *_QLORA, lora(8), differs=f"{ALL_LINEAR}; {EAGER}"),
    *(
        Case(f"7B QLoRA {length:,} tokens", *_ON_T4[1:], 1, length, (*_QLORA, lora(16)), "fp16", differs=f"the range that is usually given, without a source; {NO_BF16}")
        for length in (512, 2048, 8192)
    ),
    _two_cards("70B QLoRA, two 3090", "Llama 2 70B", "rtx3090", 14.92, 11_795, 4, "recompute", "nf4", lora(64), strategy="fsdp-offload"),
    _two_cards("70B QLoRA, two 4090", "Llama 2 70B", "rtx4090", 14.92, 4_399, 4, "recompute", "nf4", lora(64), strategy="fsdp-offload"),
    _two_cards("34B QLoRA, two 3090", "Yi 34B", "rtx3090", 23.05, 5_041, 4, "recompute", "nf4", lora(64), strategy="fsdp", micro_batch=2),
    _two_cards("7B QLoRA, two 3090", "Llama 2 7B", "rtx3090", 20.94, 875, 16, "recompute", "nf4", lora(64), strategy="ddp"),
    _two_cards("7B LoRA, two 3090", "Llama 2 7B", "rtx3090", 22.04, 881, 8, "recompute", lora(64), strategy="ddp", micro_batch=4),
    Case(
        "70B QLoRA, one 3090",
        "Llama 2 70B",
        "rtx3090",
        (14.92, 14.92),
        ANSWER_AI,
        2,
        2048,
        ("recompute", "nf4", lora(64), "weight_streaming"),
        tokens_per_second=1024 * 2048 / 11_795 / 2,
        differs="theirs: each of two cards, by FSDP with CPU offload; ours: one card, frozen layers streamed, embeddings and head there",
    ),
    Case("8B Unsloth, 12 GB", "Llama 3.1 8B", "rtx3060-12", (0, 12 * GB), UNSLOTH, 1, 21_848, (*_QLORA, "activation_offload", lora(32)), differs=f"the longest text that fits; {CARD}"),
    Case("8B Unsloth, 24 GB", "Llama 3.1 8B", "rtx4090", (0, 24 * GB), UNSLOTH, 1, 78_475, (*_QLORA, "activation_offload", lora(32)), differs=f"the longest text that fits; {CARD}"),
    Case("70B Unsloth, 48 GB", "Llama 3.1 70B", "l40s", (0, 48 * GB), UNSLOTH, 1, 12_106, (*_QLORA, "activation_offload", lora(32)), differs=f"the longest text that fits; {CARD}"),
    Case("8B Unsloth, T4 notebook", "Llama 3.1 8B", "t4", (6 * GB, 6 * GB), UNSLOTH_NEEDS, 8, 2048, (*_QLORA, lora(16)), "fp16", ADAMW_8BIT, estimate=True, micro_batch=2, differs=f"theirs is the least for any length; {NO_BF16}"),
    Case("7B full, LLaMA-Factory", "Llama 2 7B", "a100-80", (60 * GB, 60 * GB), LLAMA_FACTORY, 1, 2048, ("recompute",), estimate=True, differs="theirs is for any length"),
    Case("7B LoRA, LLaMA-Factory", "Llama 2 7B", "rtx4080", (16 * GB, 16 * GB), LLAMA_FACTORY, 1, 1024, ("recompute", lora(8)), estimate=True, differs="theirs is for any length"),
    Case("7B QLoRA, LLaMA-Factory", "Llama 2 7B", "rtx3060-12", (6 * GB, 6 * GB), LLAMA_FACTORY, 1, 1024, ("recompute", "nf4", lora(8)), estimate=True, differs="theirs is for any length"),
    Case("33B QLoRA paper", "Llama 33B", "rtx3090", (0, 24 * GB), QLORA, 1, 512, ("recompute", "nf4", lora(64)), optimizer=PAGED_8BIT, differs=CARD),
    Case("65B QLoRA paper", "Llama 65B", "l40s", (0, 48 * GB), QLORA, 1, 512, ("recompute", "nf4", lora(64)), optimizer=PAGED_8BIT, differs=CARD),
    Case("8B full, Axolotl", "Llama 3.1 8B", "l40s", (0, 48 * GB), AXOLOTL, 1, 8192, ("recompute",), optimizer=PAGED_8BIT, differs=CARD),
    Case(
        "8B QLoRA, Soup",
        "Llama 3.1 8B",
        "rtx3050-laptop",
        (2.40 * GB, 3.32 * GB),
        SOUP,
        1,
        512,
        ("nf4", lora(8), "recompute", "weight_streaming"),
        tokens_per_second=119.6,
        differs="theirs at 952 MHz in 3.32 GB; 208.6 tokens/s at 1,935 MHz in 2.40 GB",
    ),
    Case(
        "8B torchtitan, 8 H100",
        "Llama 3.1 8B",
        "h100",
        (82.4, 82.4),
        TORCHTITAN,
        16,
        8192,
        (SELECTIVE,),
        "master_weights",
        tokens_per_second=8 * 5762,
        devices=8,
        strategy="fsdp",
        micro_batch=2,
        memory=94,
        differs="theirs: H100 of 96 GB, 2.4 TB/s and 500 W",
    ),
    Case(
        "8B torchtitan, 128 H100",
        "Llama 3.1 8B",
        "h100",
        (67.0, 67.0),
        TORCHTITAN,
        256,
        8192,
        (SELECTIVE,),
        "master_weights",
        tokens_per_second=128 * 5605,
        devices=8,
        nodes=16,
        strategy="fsdp",
        micro_batch=2,
        memory=94,
        differs="theirs: H100 of 96 GB, 2.4 TB/s and 500 W",
    ),
    Case(
        "13B ZeRO-Offload",
        "GPT-2 13B",
        "v100-32",
        (0, 32 * GB),
        ZERO_OFFLOAD,
        8,
        1024,
        ("recompute", "optimizer_offload", "gradient_offload"),
        "fp16_master_weights",
        host=1500 * GB,
        differs="theirs fits the card; shape and batch are not given: 65 layers of 4,096, 8 texts",
    ),
)  # fmt: skip

SOON = (
    "Llama 3.1 8B, rtx3050-laptop",
    "Llama 2 7B, rtx3060-12",
    "Llama 2 7B, rtx4080",
    "Llama 2 7B, a100-80",
    "Llama 3.1 8B, l40s",
    "Llama 2 7B, t4",
    "Llama 3.1 8B, rtx4090",
    "Llama 3.1 8B, t4",
    "Llama 3.1 8B, rtx3060-12",
    "Llama 3.2 3B",
    "GPT-2 13B",
    "Llama 2 70B, rtx3090",
    "Llama 33B",
    "Llama 65B",
    "Llama 3.1 70B",
)
"""The beginnings of jobs that are planned first, as they are planned soonest; several devices take longest."""
