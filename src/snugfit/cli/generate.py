"""`snugfit generate`: answers to a prompt, to a file of them, or in a conversation at the terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from snugfit.cli.common.options import AllowCodeOption, JsonOption
from snugfit.cli.common.output import show
from snugfit.display.activity import Activity
from snugfit.errors import SettingError, UserError
from snugfit.units import parse_bytes

if TYPE_CHECKING:
    from snugfit.planner.generation import GenerationPlan

LEAVE = ("/exit", "/quit")
_EMPTY = "The answer is empty: its first token ended it."


def generate(
    source: Annotated[
        str,
        typer.Argument(metavar="SOURCE", help="A run's folder, or a stored model: models:/chats@champion."),
    ],
    data: Annotated[
        str | None,
        typer.Argument(metavar="[ROWS]", help="Prompts or conversations, in the form of the training."),
    ] = None,
    prompt: Annotated[str | None, typer.Option(metavar="TEXT", help="One prompt, in place of rows.")] = None,
    system: Annotated[
        str | None, typer.Option(metavar="TEXT", help="The system's message before a prompt.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="The JSONL file to write, for rows.")
    ] = None,
    max_new_tokens: Annotated[int, typer.Option(metavar="N", help="Tokens of an answer at most.")] = 256,
    temperature: Annotated[
        float, typer.Option(metavar="T", help="0 takes the most likely token; else tokens are drawn.")
    ] = 0.0,
    top_p: Annotated[
        float, typer.Option(metavar="P", help="Draw of the most likely tokens that come to this probability.")
    ] = 1.0,
    seed: Annotated[int, typer.Option(metavar="N", help="Of what is drawn.")] = 0,
    num_beams: Annotated[
        int,
        typer.Option(
            "--num-beams", metavar="N", help="Answers gone on with at once, of which the likeliest is given."
        ),
    ] = 1,
    memory: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE", help="Of the device, such as 6GiB: layers that do not fit are streamed."
        ),
    ] = None,
    numbers: Annotated[
        str | None, typer.Option(metavar="FORMAT", help="Weights as bf16, fp16 or fp32; changes answers.")
    ] = None,
    quantize: Annotated[
        str | None, typer.Option(metavar="FORMAT", help="Linear layers as nf4 or int8; changes answers.")
    ] = None,
    bad_rows: Annotated[
        str, typer.Option(metavar="POLICY", help="Rows that cannot be used: fail or skip.")
    ] = "fail",
    uri: Annotated[str | None, typer.Option(metavar="URI", help="Address of the registry.")] = None,
    allow_code: AllowCodeOption = False,
    as_json: JsonOption = False,
) -> None:
    """Have a trained language model answer.

    To --prompt, to each of ROWS (with -o), or, without both, in a conversation at the terminal, which Ctrl-D ends; Ctrl-C stops an
    answer there. An answer ends with the token that ended the answers of the training. It depends on its row alone, not on those beside
    it. What it takes of the device's memory is planned before the first token.
    """
    if data is not None and (prompt is not None or output is None):
        problem = (
            "ROWS and --prompt are two different questions"
            if prompt is not None
            else "ROWS need a file for the answers"
        )
        raise SettingError("ROWS", problem, "Give --prompt TEXT, or ROWS -o answers.jsonl.")
    if data is None and output is not None:
        raise SettingError(
            "--output", "takes the answers to ROWS, and there are none", "Give ROWS, or leave it out."
        )
    if data is not None and system is not None:
        raise SettingError(
            "--system",
            "stands before a --prompt, and each of ROWS has its own message of the system",
            "Write it into the rows, or leave it out.",
        )
    if prompt is not None and not prompt.strip():
        raise SettingError("--prompt", "is empty", "Give a text.")
    streams = (
        data is None and not as_json and num_beams == 1
    )  # of several answers none is known before its end
    shown = _Shown() if streams else None
    with Activity("generate", "loading the model …") as activity:
        if data is not None and output is not None:
            from snugfit.deliver.files import check_data, check_output

            check_output(output, data, name="answers.jsonl")
            check_data(data)
        from snugfit.deliver.generate import answer_to, generate_file, load_generator, ready_for
        from snugfit.kit.language_models.generation import Generation

        settings = Generation(max_new_tokens, temperature, top_p, seed, num_beams)
        budget = None if memory is None else parse_bytes(memory, "memory")
        predictor = load_generator(
            source,
            settings,
            streamer=shown,
            numbers=numbers,
            quantize=quantize,
            uri=uri,
            allow_code=allow_code,
        )
        if data is not None:
            assert output is not None
            counts = generate_file(
                predictor,
                data,
                output,
                memory=budget,
                bad_rows=bad_rows,
                tell=activity,
                announce=_announce,
            )
            show(counts, as_json)
            return
    before = [] if system is None else [{"role": "system", "content": system}]
    if prompt is not None:
        asked = [*before, {"role": "user", "content": prompt}]
        predictor, plan = ready_for(predictor, asked, budget)
        if plan is not None and (memory is not None or plan.streamed or plan.from_file):
            _announce(plan)
        answer = answer_to(predictor, asked)
        if as_json:
            show({"answer": answer}, as_json)
        else:
            _tell(answer, streams)
        return
    messages = before
    for question in _questions():
        messages = [*messages, {"role": "user", "content": question}]
        try:
            predictor, _ = ready_for(predictor, messages, budget)
            answer = answer_to(predictor, messages)
        except UserError as error:
            print(error, file=sys.stderr)
            messages = messages[:-1]
            continue
        except KeyboardInterrupt:
            if not sys.stdin.isatty():
                raise
            # what is written so far is what a next question may be about
            answer = "" if shown is None else shown.stopped()
            print("Stopped. Ctrl-D ends the conversation.", file=sys.stderr)
        else:
            _tell(answer, streams)
        # an empty answer is no turn that a template takes: its question is as if it had not been asked
        messages = [*messages, {"role": "assistant", "content": answer}] if answer else messages[:-1]


def _announce(plan: GenerationPlan) -> None:
    print(f"memory  {plan}", file=sys.stderr)


def _tell(answer: str, streamed: bool) -> None:
    """Print an answer that has not been printed token by token; say so where it is empty."""
    if not answer:
        print(_EMPTY, file=sys.stderr)
    elif not streamed:
        print(answer)


class _Shown:
    """An answer that is printed token by token; transformers' generation tells each to `put`, beginning with those of the prompt, and the last one to `end`."""

    def __call__(self, tokenizer: Any) -> _Shown:
        """Print tokens of this tokenizer from now on."""
        from transformers import TextStreamer

        self._tokenizer = tokenizer
        self._printer = TextStreamer(tokenizer, skip_prompt=True, skip_special_tokens=True)
        self._parts: list[list[int]] = []
        return self

    def put(self, tokens: Any) -> None:
        self._parts.append(tokens.flatten().tolist())
        self._printer.put(tokens)

    def end(self) -> None:
        self._parts = []
        self._printer.end()

    def stopped(self) -> str:
        """Print the rest of an answer that goes no further, and return all of it."""
        tokens = [token for part in self._parts[1:] for token in part]
        if self._parts:
            self.end()
        return str(self._tokenizer.decode(tokens, skip_special_tokens=True)).strip()


def _questions() -> Iterator[str]:
    """Yield what is typed, until the end of the input or one of `LEAVE`."""
    watched = sys.stdin.isatty()
    if watched:
        print("Ctrl-D or /exit ends the conversation.", file=sys.stderr)
    while True:
        try:
            question = input("> " if watched else "").strip()
        except EOFError:
            return
        if question in LEAVE:
            return
        if question:
            yield question
