"""Data loaders: leakage, ranks, speed."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from snugfit.doctor.findings import LARGE_LEAK, Certainty, Finding
from snugfit.doctor.observe.events.log import LoaderSeen, Log, Overlap
from snugfit.doctor.observe.events.log_views import is_scored, trained_models, training_loaders
from snugfit.doctor.observe.events.script_events import Batch, EpochEnd, Forward, RankWeights
from snugfit.doctor.observe.source.folds import (
    FoldModel,
    callers_of,
    loop_of_folds,
    model_of_folds,
    name_within,
)
from snugfit.doctor.observe.source.selection_by_test import (
    chooses_by_score,
    line_made_of_validation,
    set_called,
)
from snugfit.doctor.observe.source.trails import callers_by_line, place_of

LEAK = 0.01
LEAST_SHARED = 3
"""Rows without a loader, as windows of a text are: fewer may be alike by chance."""
BY_NATURE = 1.25
"""Times as many rows as repeat themselves in the training data may be shared with the evaluated ones without a leak."""
LEAST_ROWS = 5
LEAST_BATCHES = 5
LEAST_BYPASSES = 3
SLOW_SECONDS = 0.005


def leakage(log: Log) -> list[Finding]:
    """Detect that rows that were trained on are evaluated, and not as the deliberate score of the training data."""
    loaders = {loader.id: loader for loader in log.loaders}
    trained = {loader.dataset_id for loader in training_loaders(log)}
    clean = any(overlap.shared <= LEAK * overlap.rows for overlap in log.overlaps)
    findings = []
    for overlap in log.overlaps:
        share = overlap.shared / overlap.rows
        if overlap.rows < LEAST_ROWS or share <= LEAK or (not overlap.loader and not _is_score(log, overlap)):
            continue
        if overlap.drawn and share < LARGE_LEAK:
            continue  # pieces of the training text are scored beside others, and few of them were drawn twice
        if not overlap.loader and overlap.shared < LEAST_SHARED and share < LARGE_LEAK:
            continue
        loader = loaders.get(overlap.loader)
        on_purpose = share > 1 - LEAK and (clean or (loader is None and overlap.whole))
        if overlap.apart or (loader is not None and loader.dataset_id in trained):
            on_purpose = True
        natural = not on_purpose and share <= BY_NATURE * overlap.repeated
        fold, shared = (None, "") if on_purpose or loader is None else _of_folds(log, overlap.at, loader.at)
        if fold is not None and fold.anew:
            continue  # what earlier folds have learned is gone
        if shared:
            findings.append(
                Finding(
                    "leakage",
                    Certainty.CERTAIN if share >= LARGE_LEAK else Certainty.LIKELY,
                    f"{overlap.shared} of {overlap.rows} evaluated rows ({share:.0%}) were trained on, in earlier folds: all folds go on with one model.",
                    shared,
                    (f"the evaluation's loader, in the loop over folds: {loader.at if loader else ''}",),
                    "for train, valid in folds:\n    model = Model()   # and its optimizer: each fold begins anew",
                )
            )
            continue
        findings.append(
            Finding(
                "leakage",
                Certainty.WORTH_A_LOOK
                if on_purpose or natural
                else Certainty.CERTAIN
                if share >= LARGE_LEAK
                else Certainty.LIKELY,
                f"{overlap.shared} of {overlap.rows} evaluated rows ({share:.0%}) were trained on."
                + (" This scores the training data." if on_purpose else "")
                + (
                    f" The training data repeats itself as often ({overlap.repeated:.0%} of its rows): it may be in their nature, and the score is of what was seen."
                    if natural
                    else ""
                ),
                overlap.cut_at or overlap.at,
                (
                    *([f"the evaluation's loader: {loader.at}"] if loader else []),
                    *([f"scored at {overlap.at}"] if overlap.cut_at else []),
                ),
                "Split once, before anything is shuffled, sampled or augmented:\n"
                "train, valid = torch.utils.data.random_split(dataset, [0.9, 0.1], generator=torch.Generator().manual_seed(0))",
            )
        )
    return findings


def _of_folds(log: Log, scored_at: str, loader_at: str) -> tuple[FoldModel | None, str]:
    """Return what the loop over folds that makes a loader does with the model that is scored, and the line that makes it before that loop; None and "" without."""
    callers = callers_by_line(log.callers, log.sources)
    scored = {e.module for e in log.of(Forward) if e.at == scored_at and not e.grad}
    for file, line in callers_of(place_of(loader_at, log.sources), callers):
        loop = loop_of_folds(file, line)
        for model in log.models if loop is not None else ():
            called_at = place_of(model.at, log.sources)
            if loop is None or called_at is None or model.id not in scored or not model.called:
                continue
            fold = model_of_folds(file, line, name_within(loop, file, called_at, model.called, callers))
            shown = next((name for name, each in log.sources.items() if each == file), "")
            if fold is not None:
                return fold, f"{shown}:{fold.line}" * bool(fold.line)
    return None, ""


def unread_loader(log: Log) -> list[Finding]:
    """Detect that the training's loader is scored, and one that was made for other rows is never read."""
    read = {event.loader for event in log.of(Batch)}
    unread = [each for each in log.loaders if each.id not in read]
    trained = training_loaders(log)
    own = {each.id for each in trained}
    others = [each for each in unread if each.dataset_id not in {e.dataset_id for e in trained}]
    if not log.whole or not others or not own or read - own:
        return []
    loader = 0
    for place, event in enumerate(log.events):
        if isinstance(event, Batch):
            loader = event.loader
        elif isinstance(event, Forward) and not event.grad and loader in own and is_scored(log.events, place):
            return [
                Finding(
                    "leakage",
                    Certainty.LIKELY,
                    "The rows that are trained on are scored, and the loader of the others is never read.",
                    event.at,
                    (f"the loader that is never read: {others[0].at}",),
                    "score = evaluate(valid_loader)",
                )
            ]
    return []


def chosen_by_test_rows(log: Log) -> list[Finding]:
    """Detect two loaders of the same rows, one called a validation that is read again and again as a best is kept, the other called a test."""
    made: dict[str, list[LoaderSeen]] = {}
    for each in log.loaders:
        made.setdefault(each.at, []).append(each)
    called: dict[int, str] = {}
    for at, loaders in made.items():
        place = place_of(at, log.sources)
        for number, each in enumerate(loaders) if place else ():
            called[each.id] = set_called(*place, number) if place else ""
    rounds: dict[int, set[int]] = {}
    for event in log.of(Batch):
        rounds.setdefault(event.loader, set()).add(event.update)
    known = {each.id: each for each in log.loaders}
    for pair in log.alike:
        sides = {called.get(each, ""): known[each] for each in pair if each in known}
        choosing, tested = sides.get("validation"), sides.get("test")
        if choosing is None or tested is None or len(rounds.get(choosing.id, ())) < 2:
            continue
        if any(map(chooses_by_score, log.sources.values())):
            return [
                Finding(
                    "leakage",
                    Certainty.LIKELY,
                    "The rows that are told of as the test are those of the validation, by which the best is chosen: the score says how well the choice suits them.",
                    _made_of_validation(log, tested.at) or choosing.at,
                    (f"the loader of the test, which hands out the same rows: {tested.at}",),
                    "valid, test = torch.utils.data.random_split(held_out, [0.5, 0.5], generator=torch.Generator().manual_seed(0))",
                )
            ]
    return []


def _made_of_validation(log: Log, tested_at: str) -> str:
    """Return the line that makes the test's data set of what is called a validation; "" where the source does not show it."""
    place = place_of(tested_at, log.sources)
    line = line_made_of_validation(*place) if place is not None else 0
    return f"{tested_at.rpartition(':')[0]}:{line}" if line else ""


def _is_score(log: Log, overlap: Overlap) -> bool:
    """Return whether batches that no loader handed out are scored there: an agent that acts also runs its model.

    Where the same line computes with a graph too, what is compared by hand behind it may be a part of what is learned: of a loss, or of a target.
    """
    learns = any(isinstance(event, Forward) and event.grad and event.at == overlap.at for event in log.events)
    return any(
        isinstance(event, Forward)
        and event.at == overlap.at
        and event.rows >= LEAST_ROWS
        and not event.grad
        and is_scored(log.events, place, compared=not learns)
        for place, event in enumerate(log.events)
    )


def not_distributed(log: Log) -> list[Finding]:
    """DataParallel; ranks whose loader is not split; a distributed sampler that repeats its order."""
    findings = []
    for model in log.models:
        if model.wrapper == "DataParallel":
            findings.append(
                Finding(
                    "not_distributed",
                    Certainty.LIKELY,
                    "DataParallel copies the model to every device in every step, from one process.",
                    model.at,
                    (),
                    "model = DistributedDataParallel(model)   # and torchrun --nproc-per-node=N train.py",
                )
            )
    for model in log.models:
        passes = [event for event in log.of(Forward) if event.module == model.id and event.grad]
        if model.bypasses and len(passes) >= LEAST_BYPASSES and model.id in trained_models(log):
            findings.append(
                Finding(
                    "not_distributed",
                    Certainty.CERTAIN,
                    f"{len(passes)} forward passes go around DistributedDataParallel: their gradients are not averaged over the ranks.",
                    passes[0].at,
                    (f"{model.name} is called, not what wraps it",),
                    "outputs = ddp_model(inputs)   # not ddp_model.module(inputs)",
                )
            )
    for loader in training_loaders(log):
        if loader.world_size > 1 and not loader.shards:
            findings.append(
                Finding(
                    "not_distributed",
                    Certainty.CERTAIN,
                    f"The training loader of {loader.world_size} ranks has a {loader.sampler}: every rank trains on all rows.",
                    loader.at,
                    (f"world size {loader.world_size}; data: {loader.dataset}",),
                    "sampler = DistributedSampler(dataset)\nloader = DataLoader(dataset, batch_size, sampler=sampler)",
                )
            )
        epochs = sum(1 for event in log.of(EpochEnd) if event.loader == loader.id)
        if loader.sampler == "DistributedSampler" and epochs > 1 and not loader.epochs_set:
            findings.append(
                Finding(
                    "not_distributed",
                    Certainty.LIKELY,
                    f"The distributed sampler was never told the epoch: all {epochs} epochs have the same order.",
                    loader.at,
                    (),
                    "for epoch in range(epochs):\n    loader.sampler.set_epoch(epoch)",
                )
            )
    return findings


def same_rows_on_every_rank(logs: Sequence[Log]) -> list[Finding]:
    """Detect that the first batches of the ranks are the same rows, though their loaders look split."""
    ranked = {log.rank: log for log in logs if log.first_rows}
    first = next(iter(ranked.values()), None)
    if first is None or len(ranked) < 2 or any(log.first_rows != first.first_rows for log in ranked.values()):
        return []
    loaders = [loader for loader in training_loaders(first) if loader.world_size > 1]
    if not loaders or any(not loader.shards for loader in loaders):
        return []
    return [
        Finding(
            "not_distributed",
            Certainty.CERTAIN,
            f"All {len(ranked)} ranks began with the same {len(first.first_rows)} rows.",
            loaders[0].at,
            ("digests of the first batch are equal on all ranks",),
            "sampler = DistributedSampler(dataset)",
        )
    ]


def parts_of_other_orders(logs: Sequence[Log]) -> list[Finding]:
    """Detect ranks that take their parts of the same rows from orders of their own, since each shuffles by another seed."""
    made: dict[str, dict[int, LoaderSeen]] = {}
    for log in logs:
        for each in training_loaders(log):
            if each.parts > 1:
                made.setdefault(each.at, {}).setdefault(log.rank, each)
    for at, by_rank in made.items():
        loaders = list(by_rank.values())
        whole = len({each.parts for each in loaders}) == len({each.whole for each in loaders}) == 1
        parts, seeds = {each.part for each in loaders}, {each.seed for each in loaders}
        if whole and len(parts) == len(loaders) == loaders[0].parts and len(seeds) > 1:
            return [
                Finding(
                    "not_distributed",
                    Certainty.CERTAIN,
                    f"The samplers of {len(loaders)} ranks shuffle by other seeds ({', '.join(map(str, sorted(seeds)[:4]))}): their parts are of other orders, share rows, and "
                    "leave others out.",
                    at,
                    (f"each takes one of {loaders[0].parts} parts of {loaders[0].whole} rows",),
                    "sampler = DistributedSampler(dataset, seed=seed)   # the same on each rank",
                )
            ]
    return []


def ranks_differ(logs: Sequence[Log]) -> list[Finding]:
    """Detect ranks that exchange gradients, and have other weights at the end: from the start, or since a later update."""
    by_rank = {log.rank: list(log.of(RankWeights)) for log in logs}
    ranks = [seen for seen in by_rank.values() if seen]
    exchanged = all(
        log.exchanges >= log.updates or any(model.wrapper or model.bypasses for model in log.models)
        for log in logs
        if by_rank[log.rank]
    )
    if len(ranks) < 2 or not exchanged:
        return []
    first, last = ({(each[place].weights, *each[place].forms) for each in ranks} for place in (0, -1))
    ends = {each[-1].update for each in ranks}
    alike = len(first) == 1
    if not alike and len({tuple(forms) for _, *forms in first}) == 1 and len(last) > 1:
        return _ranks_began_apart([log for log in logs if by_rank[log.rank]], ranks)
    if not alike or len(last) == 1 or len(ends) > 1 or next(iter(ends)) < 1:
        return []
    parted = next(
        step
        for step, *others in zip(*ranks, strict=False)
        if len({step.weights, *(e.weights for e in others)}) > 1
    )
    return [
        Finding(
            "ranks_differ",
            Certainty.CERTAIN,
            f"The weights of {len(ranks)} ranks are the same at first, and differ from update {parted.update + 1} on: they train different models.",
            parted.at,
            ("the ranks exchange gradients; something changes them, or the weights, on some ranks alone",),
            "clip(model)   # on every rank, after the gradients were averaged",
        )
    ]


def _ranks_began_apart(logs: Sequence[Log], ranks: Sequence[Sequence[RankWeights]]) -> list[Finding]:
    """Return what ranks are that begin with weights of their own and exchange every gradient by hand; parts of one model exchange some alone."""
    parameters = ranks[0][0].forms[1]
    by_hand = all(log.gradients_exchanged >= parameters for log in logs)
    if not by_hand or any(model.wrapper or model.bypasses for log in logs for model in log.models):
        return []
    return [
        Finding(
            "ranks_differ",
            Certainty.CERTAIN,
            f"The weights of {len(ranks)} ranks differ before the first update, and their gradients are averaged: each rank moves its own model by those of others.",
            logs[0].exchanged_at,
            (f"the gradients of all {parameters} parameters are exchanged, the weights are not",),
            "for value in model.state_dict().values():   # before the first update\n    torch.distributed.broadcast(value, src=0)",
        )
    ]


def starving(log: Log) -> list[Finding]:
    """Training waits for data longer than it computes."""
    findings = []
    for loader in training_loaders(log):
        if len(loader.waits) < LEAST_BATCHES:
            continue
        # the fastest quarter of the waits: what else the machine does makes some of them long
        wait = statistics.quantiles(loader.waits, n=4)[0]
        work = statistics.median(loader.works)
        if wait >= SLOW_SECONDS and wait > work:
            findings.append(
                Finding(
                    "starving",
                    Certainty.LIKELY,
                    f"Each batch is waited for {wait * 1000:.0f} ms and worked on {work * 1000:.0f} ms: the loader starves the model.",
                    loader.at,
                    (f"num_workers={loader.workers}, pin_memory={loader.pinned}",),
                    "DataLoader(..., num_workers=4, persistent_workers=True, pin_memory=True)",
                )
            )
        elif loader.cuda and not loader.pinned:
            findings.append(
                Finding(
                    "starving",
                    Certainty.WORTH_A_LOOK,
                    "Batches are copied to the GPU from memory that is not pinned.",
                    loader.at,
                    (),
                    "DataLoader(..., pin_memory=True), and batch.to(device, non_blocking=True)",
                )
            )
    return findings


DETECTORS = (leakage, unread_loader, chosen_by_test_rows, not_distributed, starving)
