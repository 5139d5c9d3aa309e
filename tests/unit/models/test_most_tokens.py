"""How many tokens a model reads, by its files alone, beside the model itself."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModel

from snugfit.models.folders import most_tokens
from snugfit.models.tokenizer import position_limit

SMALL = {
    "hidden_size": 8,
    "num_attention_heads": 2,
    "num_hidden_layers": 1,
    "intermediate_size": 8,
    "vocab_size": 30,
}
KINDS = {
    **dict.fromkeys(
        ("bert", "albert", "electra", "roberta", "xlm-roberta", "camembert", "mpnet", "llama"), SMALL
    ),
    "distilbert": {"dim": 8, "n_heads": 2, "n_layers": 1, "hidden_dim": 8, "vocab_size": 30},
    "gpt2": {"n_embd": 8, "n_head": 2, "n_layer": 1, "vocab_size": 30},
    "opt": {**SMALL, "ffn_dim": 8, "word_embed_proj_dim": 8},
    "bart": {
        "d_model": 8,
        "encoder_layers": 1,
        "decoder_layers": 1,
        "vocab_size": 60,
        "encoder_attention_heads": 2,
        "decoder_attention_heads": 2,
    },
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_positions_that_the_configuration_tells_are_those_of_the_model(kind: str, tmp_path: Path) -> None:
    config = AutoConfig.for_model(kind, **KINDS[kind], max_position_embeddings=40)
    config.save_pretrained(tmp_path)
    with torch.device("meta"):
        model = AutoModel.from_config(config)
    assert most_tokens(str(tmp_path)) == position_limit(model)


def test_a_name_is_looked_for_in_the_cache_of_the_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    folder = tmp_path / "hub/models--some--model"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs/main").write_text("abc")
    (folder / "snapshots/abc").mkdir(parents=True)
    (folder / "snapshots/abc/config.json").write_text('{"model_type": "gpt2", "n_positions": 64}')
    assert most_tokens("some/model", tmp_path) == 64


def test_the_tokenizer_may_read_less_and_what_is_not_here_says_nothing(tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    (tmp_path / "m/config.json").write_text('{"model_type": "bert", "max_position_embeddings": 512}')
    assert most_tokens("m", tmp_path) == most_tokens(str(tmp_path / "m")) == 512
    (tmp_path / "m/tokenizer_config.json").write_text('{"model_max_length": 128}')
    assert most_tokens("m", tmp_path) == 128
    (tmp_path / "m/tokenizer_config.json").write_text(
        '{"model_max_length": 128, "pretrained_max_length": 256}'
    )
    assert most_tokens("m", tmp_path) == 256
    for name in ("models:/news@champion", "package.module:function", "./nothing", "nobody/no-such-model", ""):
        assert most_tokens(name, tmp_path) is None
