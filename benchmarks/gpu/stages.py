"""The stages of `all`: the checks of the four commands in the order of what they prove in a second, for a machine that is there for minutes.

A stage begins when the one before has ended, and gives up what does not fit its seconds; what was given up comes last, if time is left.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from checks import COMMANDS, DEVICE, Check, checks_of


@dataclass(frozen=True)
class Stage:
    """Checks that run one behind the other or side by side, and the seconds that they are given together.

    Args:
        checks: beginnings of names, in order; each name belongs to the first stage that has a beginning of it.
        seconds: that it is likely to take, as `estimate` says.
        most_seconds: after which no check of it is begun, and those that run are ended.
        estimate: how `seconds` was found.
    """

    name: str
    checks: tuple[str, ...]
    seconds: int
    most_seconds: int
    estimate: str


STAGES = (
    Stage("the device computes", (DEVICE,), 35, 90, "25 s of imports from a cold disk; a context, a product"),
    Stage(
        "correct: laws, streams, precisions, faults",
        (
            "a window that runs out of memory",
            "memory that runs out in the update",
            "laws in ",
            "fp32 is IEEE",
            "tf32 rounds",
            "the loss of large logits",
            "weight streaming",
            "activation offload",
            "optimizer offload",
            "gradient offload",
            "bf16, fp16 and fp8 train",
            "a row that is not a number",
            "packed rows",
            "an update waits",
            "batch norm and dropout",
            "nf4 is bitsandbytes",
            "an nf4 layer",
            "streamed nf4 layers",
            "ddp in a group",
            "one message of gradients",
            "fsdp",
            "certify holds",
            "a micro-batch is found",
            "finding a rate",
            "the doctor finds",
        ),
        75,
        130,
        "two alone of 8 s; the laws of 96 techniques are the host's work: 40 s on a shared core; six side by side, 4 s of context each",
    ),
    Stage(
        "the device is calibrated",
        ("calibration",),
        25,
        60,
        "400 products, copies and kernels of 0.04 s each; a file of 256 MiB, written and read",
    ),
    Stage(
        "correct: the command line, tasks, compilation; meanwhile all is predicted",
        (
            "predictions",
            "a run of the command line",
            "snugfit plan says",
            "a table is learned",
            "pictures are learned",
            "hooks see a run",
            "answers within a memory",
            "compile gives",
            "compile under bf16",
            "compile under tf32",
            "the suite's tests",
        ),
        75,
        150,
        "predictions: 100 s of one core, by eight processes; three runs of the command line, of 120 updates each; inductor's compilation",
    ),
    Stage(
        "planner: a case of each kind",
        (
            "predicted: llama: bf16, recompute, micro-batch 2",
            "predicted: gpt2: bf16",
            "predicted: mlp: fp32",
            "predicted: resnet: fp16",
            "predicted: vit: tf32, recompute",
            "predicted: llama: bf16, recompute, nf4, lora",
            "predicted: llama: bf16, weight_streaming",
            "predicted: bert: fp32",
            "the host's seconds",
            "products with an odd side",
        ),
        65,
        110,
        "twelve of 5 s: a context, weights that are drawn there and copied twice, 13 updates of 0.02 to 0.2 s; two of 3 s",
    ),
    Stage(
        "planner: plans under budgets, trained",
        ("planned and trained",),
        50,
        110,
        "five of 10 s: three plans each, of 7 updates",
    ),
    Stage(
        "claims: 8B under 4 GB",
        ("8B under",),
        25,
        60,
        "six updates of 0.4 s by the link's rate; 5 GB of drawn weights, pinned",
    ),
    Stage(
        "speed: GPT-2 beside others",
        ("GPT-2 124M",),
        45,
        90,
        "five trainers of 24 updates of 0.15 s, and what each does before its first",
    ),
    Stage(
        "claims: 8B QLoRA beside others",
        ("8B QLoRA",),
        80,
        150,
        "five trainers of 6 updates of 1 to 2 s, and 8 s for each one's weights",
    ),
    Stage(
        "planner: kernels, and the other cases",
        ("attention runs", "context and", "predicted: "),
        75,
        140,
        "thirteen of 5 s",
    ),
    Stage(
        "claims: 70B under 14 GiB",
        ("70B",),
        80,
        150,
        "35 GB of drawn weights twice, twelve updates of 2 to 5 s",
    ),
    Stage("speed: Llama 1B beside others", ("Llama 1B",), 45, 90, "three trainers of 23 updates of 0.3 s"),
    Stage(
        "speed: the host's part",
        ("updates of an MLP", "milliseconds that", "idle time"),
        35,
        80,
        "3,600 updates of 0.5 ms; twelve checkpoints of 1.5 GB; four models",
    ),
    Stage(
        "speed: ways to be faster",
        ("ways to be faster",),
        60,
        120,
        "six ways of 18 updates; inductor compiles twice",
    ),
    Stage(
        "the rest",
        ("compile of the whole", "compile with", "classic and expandable", "the same with accelerate"),
        90,
        240,
        "inductor tries the kernels of each product",
    ),
)


Planned = tuple[Stage | None, list[Check]]
"""A stage and the checks of it that are asked for; a command by itself is one stage without a name."""


def in_tiny(planned: Sequence[Planned]) -> list[Planned]:
    """Return the stages for `--toy`, where no check disturbs the figures of another: behind the first one all are one."""
    first, *others = planned
    return [first, (None, [each for _, own in others for each in own])]


def all_stages() -> Iterator[tuple[Stage, Sequence[Check]]]:
    """Give each stage with its checks, of all commands; the check of the device is there once."""
    left = [each for command in COMMANDS for each in checks_of(command)]
    left = [each for place, each in enumerate(left) if each.name != DEVICE or place == 0]
    for stage in STAGES:
        own: list[Check] = []
        for text in stage.checks:
            own += [each for each in left if each.name.startswith(text)]
            left = [each for each in left if not each.name.startswith(text)]
        yield stage, own
    if left:
        raise ValueError(f"checks of no stage: {', '.join(each.name for each in left)}")
