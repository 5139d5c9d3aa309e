"""Losses of preferences are those of TRL on one micro-batch; where its form is not the paper's, by the setting of that name."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

from snugfit.data.texts.preferences import PadPairs
from snugfit.kit.losses.preference_losses import DPO, IPO, KTO, ORPO, PreferenceLoss
from snugfit.step.metrics.answer_scores import AnswerScores
from snugfit.step.step import Step
from snugfit.techniques.learning.sgd import SGD
from tests.unit.data.texts.test_instruct import by_letters
from tests.unit.step.preferences import move

trl = pytest.importorskip("trl", reason="TRL is not installed: pip install trl==1.16.0")
pytestmark = pytest.mark.slow

TOLERANCE = 1e-6
PAIRS = [
    {"prompt": "a b", "chosen": " yes", "rejected": " no way"},
    {"prompt": "what", "chosen": " it is so", "rejected": " no"},
    {"prompt": "sun", "chosen": " day", "rejected": " night"},
]
SINGLE = [
    {"prompt": "a b", "completion": " yes", "label": True},
    {"prompt": "what", "completion": " it is so", "label": False},
    {"prompt": "sun", "completion": " day", "label": True},
]
LOSSES: dict[str, tuple[PreferenceLoss, dict[str, Any]]] = {
    "dpo": (DPO(beta=0.3), {}),
    "ipo": (IPO(beta=0.4, form="trl"), {"loss_type": "ipo"}),
    "orpo": (ORPO(beta=0.5, form="trl"), {"max_length": 32}),
    "kto": (
        KTO(beta=0.4, desirable=1.5, undesirable=0.7),
        {"desirable_weight": 1.5, "undesirable_weight": 0.7, "train_sampling_strategy": "sequential"},
    ),
}


def decoder(vocabulary: int, padding: int) -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=64,
        initializer_range=0.3,
        pad_token_id=padding,
    )
    return LlamaForCausalLM(config).double()


def trainer_of(name: str, folder: Path, tokenizer: Any) -> Any:
    """TRL's trainer of the loss, on a model that has moved away from its reference."""
    from datasets import Dataset
    from trl.experimental.orpo import ORPOConfig, ORPOTrainer

    loss, more = LOSSES[name]
    trainer, config = {
        "kto": (trl.KTOTrainer, trl.KTOConfig),
        "orpo": (ORPOTrainer, ORPOConfig),
    }.get(name, (trl.DPOTrainer, trl.DPOConfig))
    args = config(
        output_dir=str(folder),
        beta=loss.beta,
        per_device_train_batch_size=3,
        report_to="none",
        use_cpu=True,
        bf16=False,
        save_strategy="no",
        disable_tqdm=True,
        **more,
    )
    model = decoder(len(tokenizer), tokenizer.pad_token_id)
    reference = {} if name == "orpo" else {"ref_model": copy.deepcopy(model)}
    made = trainer(
        model,
        args=args,
        train_dataset=Dataset.from_list(SINGLE if name == "kto" else PAIRS),
        processing_class=tokenizer,
        **reference,
    )
    made.model.train()
    move(made.model)
    return made


def sequences(ids: Tensor, mask: Tensor, scored: Tensor) -> list[tuple[list[int], list[int]]]:
    """Tokens and labels of each row of TRL's batch, without padding."""
    rows = []
    for tokens, there, answer in zip(ids, mask.bool(), scored.bool(), strict=True):
        labels = torch.where(answer, tokens, -100)
        rows.append((tokens[there].tolist(), labels[there].tolist()))
    return rows


def both_of(name: str, batch: dict[str, Any]) -> tuple[list[Any], list[Any]]:
    """The two sequences of each row in TRL's batch."""
    if name == "orpo":
        return tuple(
            sequences(
                batch[f"{side}_input_ids"], batch[f"{side}_attention_mask"], batch[f"{side}_labels"] != -100
            )
            for side in ("chosen", "rejected")
        )  # type: ignore[return-value]
    first = sequences(batch["input_ids"], batch["attention_mask"], batch["completion_mask"])
    if name == "kto":
        return first, sequences(
            batch["KL_input_ids"], batch["KL_attention_mask"], batch["KL_completion_mask"]
        )
    return first[:3], first[3:]


def ours(name: str, batch: dict[str, Any], model: nn.Module, first: nn.Module, padding: int) -> float:
    loss, _ = LOSSES[name]
    examples = [
        {
            "input_ids": [each[0] for each in row],
            "labels": [each[1] for each in row],
            **({"desirable": bool(batch["label"][place])} if name == "kto" else {}),
        }
        for place, row in enumerate(zip(*both_of(name, batch), strict=True))
    ]
    window, forward = PadPairs(padding)(examples), AnswerScores(loss)
    window["reference"] = forward.start_scores(first, window)
    return Step(model, SGD(learning_rate=0.1), loss, forward=forward)(window).loss


@pytest.mark.parametrize("name", LOSSES)
def test_the_loss_of_a_micro_batch_is_that_of_trl(name: str, tmp_path: Path) -> None:
    tokenizer = by_letters(None, [])  # type: ignore[arg-type]
    trainer = trainer_of(name, tmp_path, tokenizer)
    batch = next(iter(trainer.get_train_dataloader()))
    expected = float(trainer.compute_loss(trainer.model, dict(batch)).detach())
    first = decoder(len(tokenizer), tokenizer.pad_token_id)
    model = copy.deepcopy(first)
    model.load_state_dict(trainer.model.state_dict())
    assert ours(name, batch, model, first, tokenizer.pad_token_id) == pytest.approx(
        expected, rel=TOLERANCE, abs=TOLERANCE
    )
