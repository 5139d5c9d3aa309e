"""Pitfalls of the optimizer: what its parameter groups hold, now and at the end of the run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from snugfit.core.parameters import decayed
from snugfit.doctor.findings import Certainty, Finding
from snugfit.doctor.subject import listed
from snugfit.step.step import Step


def optimizer_groups(step: Step) -> Iterator[Finding]:
    """Detect parameters that the optimizer does not have, or has twice, and decay on vectors."""
    held = [parameter for group in step.optimizer.param_groups for parameter in group["params"]]
    counts = Counter(map(id, held))
    named = dict(step.model.named_parameters())
    missing = [name for name, each in named.items() if each.requires_grad and id(each) not in counts]
    twice = [name for name, each in named.items() if counts[id(each)] > 1]
    if missing:
        yield Finding(
            "not_in_optimizer",
            Certainty.LIKELY,
            f"{len(missing)} of {len(named)} parameters get gradients and are in no group of the optimizer: they never move",
            where=missing[0],
            evidence=(listed(missing),),
            fix="optimizer = torch.optim.AdamW(model.parameters())  # or requires_grad_(False) for what is to stay",
        )
    if twice:
        yield Finding(
            "twice_in_optimizer",
            Certainty.CERTAIN,
            f"{len(twice)} parameters are in the optimizer more than once, and are updated as often",
            where=twice[0],
            evidence=(listed(twice),),
            fix="list(dict.fromkeys(parameters))  # each parameter once",
        )
    groups = [group for group in step.optimizer.param_groups if group.get("weight_decay", 0) > 0]
    decaying = {id(parameter) for group in groups for parameter in group["params"]}
    weights = decayed(step.model)
    vectors = [name for name, each in named.items() if id(each) in decaying and each not in weights]
    if vectors:
        yield Finding(
            "decay_on_vectors",
            Certainty.WORTH_A_LOOK,
            f"{len(vectors)} biases and norm scales decay toward 0 with the matrices",
            where=vectors[0],
            evidence=(listed(vectors),),
            fix="optimizer=sf.AdamW(weight_decay=…)  # which spares them; or a group with weight_decay=0",
        )


def late_holes(step: Step) -> Iterator[Finding]:
    """Detect parameters that techniques unfreeze later in the run, and that are in no group."""
    held = {id(parameter) for group in step.optimizer.param_groups for parameter in group["params"]}
    now = {name for name, each in step.model.named_parameters() if each.requires_grad}
    updates = step.progress.updates
    try:
        step.progress.updates = max(0, (step.total_updates or 1) - 1)
        step.seams.begin(step.model, step.progress, step.seed)
        later = [
            name
            for name, each in step.model.named_parameters()
            if each.requires_grad and name not in now and id(each) not in held
        ]
    finally:
        step.progress.updates = updates
        step.seams.begin(step.model, step.progress, step.seed)
    if later:
        yield Finding(
            "group_holes",
            Certainty.LIKELY,
            f"{len(later)} parameters are unfrozen later in the run and are in no group of the optimizer",
            where=later[0],
            evidence=(listed(later),),
            fix="optimizer=sf.AdamW(…)  # a technique makes its groups of all parameters; or give them to the optimizer now",
        )
