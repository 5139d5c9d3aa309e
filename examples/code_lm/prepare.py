"""Make what `code_lm.yaml` trains: the standard library's source, a tokenizer learned from it, and a model's architecture.

    python examples/code_lm/prepare.py OUT_FOLDER [--vocabulary 4096] [--width 256] [--layers 6] [--modules 0]

writes `source.jsonl` (one module a row, as `text`), `tokenizer.json` and `config.json`: a model of Llama's kind, whose
weights `from_scratch: true` draws. Nothing is imported and nothing is downloaded.
"""

from __future__ import annotations

import argparse
import json
import sysconfig
import tokenize
from collections.abc import Iterator
from pathlib import Path

SKIPPED_FOLDERS = {"test", "tests", "idle_test", "__pycache__", "site-packages", "dist-packages", "encodings"}
MIN_CHARACTERS = 400
END = "<|end|>"


def sources(root: Path) -> Iterator[str]:
    """Yield the text of each module below `root`, in the order of their paths."""
    for path in sorted(root.rglob("*.py")):
        if SKIPPED_FOLDERS.isdisjoint(path.relative_to(root).parts):
            try:
                with tokenize.open(path) as file:
                    text = file.read()
            except (SyntaxError, UnicodeDecodeError):  # a template, or source of another language version
                continue
            if len(text) >= MIN_CHARACTERS:
                yield text


def write(folder: Path, texts: list[str], vocabulary: int, width: int, layers: int) -> None:
    """Write the rows, the tokenizer and the configuration."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import LlamaConfig, PreTrainedTokenizerFast

    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "source.jsonl").open("w", encoding="utf-8") as file:
        file.writelines(json.dumps({"text": text}) + "\n" for text in texts)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary, special_tokens=[END], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END, pad_token=END)
    fast.model_max_length = 1024
    fast.save_pretrained(folder)
    LlamaConfig(
        vocab_size=len(fast),
        hidden_size=width,
        intermediate_size=width * 8 // 3,
        num_hidden_layers=layers,
        num_attention_heads=max(1, width // 64),
        max_position_embeddings=1024,
        tie_word_embeddings=True,
        architectures=["LlamaForCausalLM"],
        eos_token_id=fast.eos_token_id,
        bos_token_id=None,
        pad_token_id=fast.pad_token_id,
    ).save_pretrained(folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--vocabulary", type=int, default=4096)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--modules", type=int, default=0, help="only so many, to try it out; 0 for all")
    given = parser.parse_args()
    texts = list(sources(Path(sysconfig.get_paths()["stdlib"])))
    if given.modules:
        texts = texts[: given.modules]
    write(given.out, texts, given.vocabulary, given.width, given.layers)
    print(f"{given.out}: {len(texts)} modules, {sum(map(len, texts)):,} characters")


if __name__ == "__main__":
    main()
