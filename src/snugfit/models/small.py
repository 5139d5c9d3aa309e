"""Small models without weights, which a recipe trains from scratch: a transformer with a tokenizer learned from given texts, networks for pictures and sounds."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path

from snugfit.errors import MissingExtra
from snugfit.models.folders import CONFIG, PROCESSOR
from snugfit.system.json_text import parse_json

END = "<|end|>"
_CLASSIFIER, _SEPARATOR, _PADDING, _MASK = "[CLS]", "[SEP]", "[PAD]", "[MASK]"


def write_small_model(
    folder: Path,
    texts: Iterable[str],
    *,
    kind: str,
    vocabulary: int = 4096,
    width: int = 256,
    layers: int = 4,
    positions: int = 1024,
    architecture: Path | None = None,
    turn_marks: Sequence[str] = (),
) -> None:
    """Write a tokenizer, learned from texts, and the configuration of a model for it into a folder.

    Args:
        kind: of the model: an encoder of BERT's shape, a decoder of Llama's, that predicts next tokens, or both together, of T5's.
        vocabulary: tokens of the tokenizer at most.
        architecture: a folder whose configuration is taken as it is, with a vocabulary that it has room for.
        turn_marks: the mark that opens a turn of a conversation and the one that ends it, each a token of a decoder; the latter is its
            end-of-sequence token. Empty for a model that reads plain texts.
    Raises:
        MissingExtra: transformers is not installed.
    """
    try:
        from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
        from transformers import BertConfig, LlamaConfig, PreTrainedTokenizerFast, T5Config
    except ImportError as error:
        raise MissingExtra("transformers", "text") from error
    folder.mkdir(parents=True, exist_ok=True)
    if architecture is not None:
        room = parse_json((architecture / CONFIG).read_text(encoding="utf-8")).get("vocab_size", vocabulary)
        vocabulary = min(vocabulary, int(room))
    special = {
        "encoder": [_PADDING, _CLASSIFIER, _SEPARATOR, _MASK],
        "decoder": [END, *turn_marks],
        "encoder-decoder": [_PADDING, END],
    }[kind]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    if kind == "decoder":
        tokens = {"eos_token": special[-1], "pad_token": END}
    elif kind == "encoder-decoder":
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"$A {END}", special_tokens=[(END, special.index(END))]
        )
        tokens = {"eos_token": END, "pad_token": _PADDING}
    else:
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{_CLASSIFIER} $A {_SEPARATOR}",
            pair=f"{_CLASSIFIER} $A {_SEPARATOR} $B {_SEPARATOR}",
            special_tokens=[(token, special.index(token)) for token in (_CLASSIFIER, _SEPARATOR)],
        )
        tokens = {
            "pad_token": _PADDING,
            "cls_token": _CLASSIFIER,
            "sep_token": _SEPARATOR,
            "mask_token": _MASK,
        }
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, **tokens)
    fast.model_max_length = positions
    fast.save_pretrained(folder)
    shape = {
        "vocab_size": len(fast),
        "hidden_size": width,
        "num_hidden_layers": layers,
        "num_attention_heads": max(1, width // 64),
        "max_position_embeddings": positions,
        "pad_token_id": fast.pad_token_id,
    }
    if architecture is not None:
        shutil.copyfile(architecture / CONFIG, folder / CONFIG)
    elif kind == "encoder-decoder":
        T5Config(
            vocab_size=len(fast),
            d_model=width,
            d_kv=64,
            d_ff=4 * width,
            num_layers=layers,
            num_heads=max(1, width // 64),
            feed_forward_proj="gated-gelu",
            pad_token_id=fast.pad_token_id,
            eos_token_id=fast.eos_token_id,
            decoder_start_token_id=fast.pad_token_id,
            architectures=["T5ForConditionalGeneration"],
        ).save_pretrained(folder)
    elif kind == "decoder":
        LlamaConfig(
            **shape,
            intermediate_size=width * 8 // 3,
            tie_word_embeddings=True,
            architectures=["LlamaForCausalLM"],
            eos_token_id=fast.eos_token_id,
            bos_token_id=None,
        ).save_pretrained(folder)
    else:
        BertConfig(**shape, intermediate_size=4 * width, architectures=["BertModel"]).save_pretrained(folder)


def write_small_picture_model(folder: Path, side: int = 64, *, patches: bool = False) -> None:
    """Write the configuration of a small residual network, and of pictures for it, into a folder.

    Args:
        side: of the squares that pictures are made; a residual network takes others too.
        patches: a transformer of patches in its place.
    Raises:
        MissingExtra: transformers is not installed.
    """
    if patches:
        _write_patch_transformer(folder, side)
    else:
        _write_residual_network(folder)
    processor = {
        "size": {"shortest_edge": side * 8 // 7},
        "do_center_crop": True,
        "crop_size": {"height": side, "width": side},
        "resample": 2,
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5],
    }
    (folder / PROCESSOR).write_text(json.dumps(processor, indent=2) + "\n", encoding="utf-8")


def write_small_sound_model(folder: Path, seconds: float) -> None:
    """Write the configuration of a small residual network, and of the spectrograms that it sees as pictures, into a folder.

    Args:
        seconds: of sound that it hears; the network takes others too.
    Raises:
        MissingExtra: transformers is not installed.
    """
    try:
        from transformers import ASTFeatureExtractor
    except ImportError as error:
        raise MissingExtra("transformers", "audio") from error
    _write_residual_network(folder, channels=1)
    # one frame every ten milliseconds, each of 25
    ASTFeatureExtractor(num_mel_bins=64, max_length=round(100 * seconds) - 2).save_pretrained(folder)


def _write_patch_transformer(folder: Path, side: int) -> None:
    try:
        from transformers import ViTConfig
    except ImportError as error:
        raise MissingExtra("transformers", "pictures") from error
    folder.mkdir(parents=True, exist_ok=True)
    ViTConfig(
        image_size=side,
        patch_size=max(1, side // 8),
        hidden_size=128,
        num_hidden_layers=4,
        num_attention_heads=4,
        intermediate_size=512,
        architectures=["ViTForImageClassification"],
    ).save_pretrained(folder)


def _write_residual_network(folder: Path, channels: int = 3) -> None:
    try:
        from transformers import ResNetConfig
    except ImportError as error:
        raise MissingExtra("transformers", "pictures") from error
    folder.mkdir(parents=True, exist_ok=True)
    ResNetConfig(
        num_channels=channels,
        embedding_size=32,
        hidden_sizes=[32, 64, 128],
        depths=[2, 2, 2],
        layer_type="basic",
        architectures=["ResNetForImageClassification"],
    ).save_pretrained(folder)
