"""The kernel of attention that packed rows would take on a GPU, by torch's rules and the arguments that reach it. Only a GPU shows that it does."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.attention import SDPBackend

from snugfit.core.batch import Batch
from snugfit.planner.pretend_gpu.attention import Attention
from snugfit.step.step import Step
from snugfit.techniques.learning.sgd import SGD
from snugfit.techniques.placement.packing import Packing

transformers = pytest.importorskip("transformers")

SMALL = {
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "vocab_size": 50,
    "max_position_embeddings": 64,
}
MODELS: dict[str, Any] = {
    "encoder": lambda: transformers.BertForMaskedLM(transformers.BertConfig(**SMALL)),
    "decoder": lambda: transformers.LlamaForCausalLM(
        transformers.LlamaConfig(**SMALL, num_key_value_heads=4)
    ),
    "fewer heads of keys": lambda: transformers.LlamaForCausalLM(
        transformers.LlamaConfig(**SMALL, num_key_value_heads=2)
    ),
}
T4, A100, H100 = (7, 5), (8, 0), (9, 0)


class Torchs(nn.Module):
    """An encoder of torch over embedded tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, 64)
        layer = nn.TransformerEncoderLayer(64, 4, 64, batch_first=True)
        self.body = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.head = nn.Linear(64, 50)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        hidden = self.body(self.embed(input_ids), src_key_padding_mask=attention_mask == 0)
        logits: Tensor = self.head(hidden)
        return logits


def calls_of(model: nn.Module, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The arguments of attention in an update of two packed texts, as they are in fp16."""
    found: list[dict[str, Any]] = []
    attend = functional.scaled_dot_product_attention

    def seeing(
        query: Tensor, key: Tensor, value: Tensor, attn_mask: Any = None, dropout_p: float = 0.0,
        is_causal: bool = False, scale: Any = None, enable_gqa: bool = False,
    ) -> Tensor:  # fmt: skip
        half = [each.to("meta", torch.float16) for each in (query, key, value)]
        found.append(
            {
                "tensors": half,
                "mask": attn_mask,
                "dropout": dropout_p,
                "causal": is_causal,
                "grouped": enable_gqa,
            }
        )
        return attend(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)

    mask = torch.ones(3, 16, dtype=torch.int64)
    mask[1:, 8:] = 0
    ids = torch.randint(3, 50, mask.shape, generator=torch.Generator().manual_seed(0))
    window = Batch.of({"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(mask == 0, -100)})
    step = Step(model, SGD(learning_rate=0.1), "cross_entropy", [Packing()])
    step(window)  # the first window is compared with padded rows
    with monkeypatch.context() as patch:
        patch.setattr(functional, "scaled_dot_product_attention", seeing)
        step(window)
    assert {each["tensors"][0].shape[0] for each in found} == {2}, "three texts in two rows"
    return found


@pytest.mark.parametrize("name", [*MODELS, "torch's encoder"])
@pytest.mark.parametrize("capability", [T4, A100, H100])
def test_packed_rows_reach_a_fused_kernel_and_not_the_one_that_writes_all_scores(
    name: str, capability: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    model = Torchs() if name == "torch's encoder" else MODELS[name]()
    for call in calls_of(model, monkeypatch):
        assert call["mask"] is not None, "texts in one row are kept apart"
        query, key, value = call["tensors"]
        attention = Attention(
            query, key, value, call["mask"], call["dropout"], call["causal"], call["grouped"], capability
        )
        assert attention.kernel() in (SDPBackend.EFFICIENT_ATTENTION, SDPBackend.CUDNN_ATTENTION)
