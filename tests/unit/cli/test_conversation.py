"""A conversation with a language model at a terminal: what is asked, what is stopped, how it ends."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeAlias

import pytest
import torch
from transformers import LlamaForCausalLM

from snugfit.models.bundle import save_bundle
from tests.unit.tasks.tiny_decoder import decoder_config, letters

pty = pytest.importorskip("pty", reason="Windows has no pseudo-terminals of this kind")

_PATIENCE = 300
"""Seconds after which a terminal that says nothing fails the test."""


class Terminal:
    """A command in a terminal of its own, in which control characters are the keys that they are at a keyboard."""

    def __init__(self, *arguments: str) -> None:
        self._here, there = pty.openpty()
        command = [sys.executable, "-c", _IN_TERMINAL, *arguments]
        self.process = subprocess.Popen(
            command, stdin=there, stdout=there, stderr=there, start_new_session=True
        )
        os.close(there)
        self.said, self._read = "", 0

    def types(self, keys: str) -> None:
        os.write(self._here, keys.encode())

    def waits_for(self, text: str) -> str:
        """Return what is said up to a text, behind what was waited for before."""
        end = time.monotonic() + _PATIENCE
        while text not in self.said[self._read :]:
            assert time.monotonic() < end, f"{text!r} is not in {self.said!r}"
            if select.select([self._here], [], [], 1)[0]:
                try:
                    self.said += os.read(self._here, 4096).decode()
                except OSError as error:
                    raise AssertionError(f"it ended without {text!r}: {self.said}") from error
        begin, self._read = self._read, self.said.index(text, self._read) + len(text)
        return self.said[begin : self._read]

    def ends_by(self, key: str) -> int:
        """Return the exit code of the command, once a key has ended it.

        Python does not see a signal that comes between its prompt and its wait for a line before another comes, so the key is pressed again.
        """
        for _ in range(_PATIENCE // 5):
            self.types(key)
            try:
                code = self.process.wait(5)
            except subprocess.TimeoutExpired:
                continue
            while select.select([self._here], [], [], 0)[0]:
                try:
                    self.said += os.read(self._here, 4096).decode()
                except OSError:
                    break
            return code
        raise AssertionError(f"it goes on after {key!r}: {self.said}")


_IN_TERMINAL = """
import fcntl, signal, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where the tests run in the background of a shell
from snugfit.cli.app import main
sys.exit(main(sys.argv[1:]))
"""


Opened: TypeAlias = Callable[..., Terminal]


@pytest.fixture
def opened() -> Iterator[Opened]:
    """Open a terminal in which a command of the command line runs, no longer than the test."""
    terminals: list[Terminal] = []

    def one(*arguments: str) -> Terminal:
        terminals.append(Terminal(*arguments))
        return terminals[-1]

    yield one
    for each in terminals:
        each.process.kill()
        each.process.wait()


@pytest.fixture
def endless(tmp_path: Path) -> str:
    """The folder of a model that answers "a a a" for as long as it may."""
    tokenizer = letters()
    torch.manual_seed(0)
    model = LlamaForCausalLM(decoder_config(tokenizer, 32, positions=100_000)).eval()
    letter, space, line = tokenizer.convert_tokens_to_ids(["a", " ", "\n"])
    with torch.no_grad():
        for layer in model.model.layers:  # each token is followed by what the head has in its direction
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
        tokens, head = model.model.embed_tokens.weight, model.lm_head.weight
        head.zero_()
        head[space] = tokens[letter]
        head[letter] = tokens[space] + tokens[line]
    meta = {"task": "instruction", "conversations": "messages", "text_columns": ["text"], "max_length": 64}
    save_bundle(tmp_path / "best", model, meta, tokenizer)
    return str(tmp_path / "best")


@pytest.mark.slow
def test_an_answer_that_is_stopped_ends_no_conversation(opened: Opened, endless: str) -> None:
    terminal = opened("generate", endless, "--max-new-tokens", "90000")
    terminal.waits_for("> ")
    for question in ("red?", "blue?"):
        terminal.types(f"{question}\n")
        terminal.waits_for(f"{question}\r\n")
        terminal.waits_for("a a ")
        terminal.types("\x03")
        terminal.waits_for("Stopped. Ctrl-D ends the conversation.")
        terminal.waits_for("> ")
    assert terminal.ends_by("\x04") == 0
    assert terminal.said.count("red?") == terminal.said.count("blue?") == 1, "prompts are not printed"


@pytest.mark.slow
def test_a_conversation_ends_at_the_prompt_by_an_interrupt(opened: Opened, endless: str) -> None:
    terminal = opened("generate", endless, "--max-new-tokens", "4")
    terminal.waits_for("> ")
    terminal.types("red?\n")
    terminal.waits_for("red?\r\n")
    terminal.waits_for("> ")
    assert terminal.ends_by("\x03") == 130
    assert terminal.said.rstrip().endswith("error: interrupted")
