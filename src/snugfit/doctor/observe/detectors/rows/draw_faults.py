"""Findings on random numbers and on what is forgotten: seeds and optimizers that begin anew, workers that draw alike."""

from __future__ import annotations

import itertools
from collections import Counter

from snugfit.doctor.findings import Certainty, Finding
from snugfit.doctor.observe.events.log import Log, OptimizerSeen
from snugfit.doctor.observe.events.log_views import training_loaders
from snugfit.doctor.observe.events.run_events import DrawnApart, OtherIndex, OtherOrder, SameOrder
from snugfit.doctor.observe.events.script_events import (
    MixedApart,
    OptimizerBuilt,
    OtherRows,
    RecomputeDraws,
    Seed,
    StaleState,
    Step,
)
from snugfit.doctor.observe.events.state_events import Restore, StateRestore
from snugfit.doctor.observe.source.folds import loop_of_folds
from snugfit.doctor.observe.source.trails import place_of

LEAST_TIMES = 3
LEAST_STEPS = 2


def reseeded(log: Log) -> list[Finding]:
    """Detect one seed that is set again and again between the updates of one optimizer."""
    built = [event.update for event in log.of(OptimizerBuilt)]
    seeds = sorted({(each.at, each.seed, each.update) for each in log.of(Seed)})
    for (at, seed), group in itertools.groupby(seeds, key=lambda each: each[:2]):
        updates = [update for _, _, update in group]
        since = [update for update in updates if update >= max(built, default=0)]
        if len(since) >= LEAST_TIMES:
            return [
                Finding(
                    "reseeded",
                    Certainty.LIKELY,
                    f"The seed {seed} is set {len(updates)} times while the model trains: each time the same order, dropout and noise follow.",
                    at,
                    (f"before updates {', '.join(str(update + 1) for update in updates[:6])}",),
                    "torch.manual_seed(seed)   # once, before the first epoch; or seed + epoch",
                )
            ]
    return []


def same_order(log: Log) -> list[Finding]:
    """Detect a loader that shuffles and has the same order in each epoch, though no seed is set anew that was seen."""
    if reseeded(log):
        return []
    for event in log.of(SameOrder):
        if event.times >= LEAST_TIMES:
            return [
                Finding(
                    "reseeded",
                    Certainty.LIKELY,
                    f"The loader shuffles, and {event.times} passes in turn begin with the same rows: its generator begins anew each time.",
                    event.at,
                    (f"after update {event.update}",),
                    "generator = torch.Generator().manual_seed(seed)   # once, before the first epoch\nloader = DataLoader(rows, batch_size, shuffle=True, generator=generator)",
                )
            ]
    return []


def shuffled_apart(log: Log) -> list[Finding]:
    """Detect two arrays that are paired row by row and shuffled, or split, by draws of their own."""
    for event in log.of(DrawnApart):
        return [
            Finding(
                "mismatched_rows",
                Certainty.LIKELY,
                f"`{event.inputs}` and `{event.targets}` are paired row by row, and each is put into an order of its own.",
                event.at,
                ("each call draws another order",),
                "order = torch.randperm(len(inputs))\ninputs, targets = inputs[order], targets[order]   # or train_test_split(inputs, targets)",
            )
        ]
    return []


def recompute_draws(log: Log) -> list[Finding]:
    """Detect activations that are computed again with other random numbers: the gradients are those of another dropout than the loss."""
    for event in log.of(RecomputeDraws):
        return [
            Finding(
                "recompute_draws",
                Certainty.CERTAIN,
                "What is computed again for the backward pass draws random numbers, and preserve_rng_state=False leaves the generator as it is: "
                "dropout is another one than in the loss.",
                event.at,
                ("the state of the generator changes in the forward pass",),
                "hidden = checkpoint(layer, hidden, use_reentrant=False)   # preserve_rng_state is True by itself",
            )
        ]
    return []


def optimizer_rebuilt(log: Log) -> list[Finding]:
    """Detect optimizers with moments that are made again and again at one line for the same parameters."""
    by_place: dict[tuple[str, tuple[int, ...]], list[OptimizerSeen]] = {}
    for optimizer in log.optimizers:
        if optimizer.remembers:
            by_place.setdefault((optimizer.at, tuple(optimizer.parameters)), []).append(optimizer)
    counts = Counter(step.optimizer for step in log.of(Step))
    for (at, _), all_made in by_place.items():
        made = [
            each for each in all_made if counts[each.id]
        ]  # one that was replaced before it stepped says nothing
        place = place_of(at, log.sources)
        if place is not None and loop_of_folds(*place) is not None:
            continue  # each fold begins anew
        if len(made) < LEAST_TIMES or not _goes_on(log, made):
            continue
        steps = [counts[each.id] for each in made]
        return [
            Finding(
                "optimizer_rebuilt",
                Certainty.LIKELY,
                f"{made[0].name} is made {len(made)} times for the same parameters: its moments begin anew each time.",
                at,
                (f"steps of each: {', '.join(map(str, steps[:6]))}",),
                "optimizer = Optimizer(model.parameters(), lr=lr)   # once, before the first epoch",
            )
        ]
    return []


def _goes_on(log: Log, made: list[OptimizerSeen]) -> bool:
    """Return whether each of these steps, and no weights or moments are put back between the first and the last."""
    numbers = {each.id for each in made}
    places = [
        place
        for place, event in enumerate(log.events)
        if isinstance(event, OptimizerBuilt) and event.optimizer in numbers
    ]
    between = log.events[places[0] : places[-1]] if places else []
    own = set(made[0].parameters)
    put_back = any(
        isinstance(event, StateRestore) or (isinstance(event, Restore) and own & set(event.parameters))
        for event in between
    )
    counts = [sum(isinstance(e, Step) and e.optimizer == each.id for e in log.events) for each in made[:-1]]
    return not put_back and min(counts) >= LEAST_STEPS


def mismatched_rows(log: Log) -> list[Finding]:
    """Detect inputs and targets that two loaders hand out, each in an order of its own, or that were made of a table in two orders."""
    for table in log.of(OtherIndex):
        return [
            Finding(
                "mismatched_rows",
                Certainty.CERTAIN,
                "The inputs and the targets of a data set are the same rows of a table in two orders: a target belongs to another row.",
                table.at,
                (
                    f"the inputs are made at {table.inputs_at}; the names of their rows are those of the targets, in another order",
                ),
                "targets = table.loc[inputs.index, 'label']   # or both from one table: train[columns], train['label']",
            )
        ]
    seen = list(log.of(OtherRows))
    if len(seen) < LEAST_TIMES:
        return []
    made = {loader.id: loader.at for loader in log.loaders}
    return [
        Finding(
            "mismatched_rows",
            Certainty.CERTAIN,
            "Inputs and targets come from two loaders, each of which shuffles its rows by itself: a target belongs to another row.",
            made[seen[0].targets],
            (f"{len(seen)} losses; the inputs' loader is made at {made[seen[0].inputs]}",),
            "loader = DataLoader(TensorDataset(inputs, targets), batch_size, shuffle=True)",
        )
    ]


def drawn_apart(log: Log) -> list[Finding]:
    """Detect inputs and targets of a batch that the script puts into orders of their own."""
    seen = list(log.of(OtherOrder))
    if len(seen) < LEAST_TIMES - 1:
        return []
    return [
        Finding(
            "mismatched_rows",
            Certainty.CERTAIN,
            f"`{seen[0].inputs}` and `{seen[0].targets}` are not in the same order: a permutation is drawn for one of them alone, or another for each.",
            seen[0].at,
            (f"{len(seen)} of the first losses",),
            "order = torch.randperm(len(x))   # one for both\nx, y = x[order], y[order]",
        )
    ]


def mixed_apart(log: Log) -> list[Finding]:
    """Detect rows that are mixed with others of their batch, and targets that are mixed with those of different rows."""
    seen = list(log.of(MixedApart))
    if len(seen) < LEAST_TIMES:
        return []
    rows, wrong = sum(event.rows for event in seen), sum(event.wrong for event in seen)
    return [
        Finding(
            "mismatched_rows",
            Certainty.CERTAIN,
            f"{wrong} of {rows} inputs are mixed with another row than their targets are, or by another share.",
            seen[0].at,
            (
                f"the inputs of {len(seen)} batches are mixes of two rows each; the targets that belong to these are others",
            ),
            "order = torch.randperm(len(x))   # one for both\nx, y = lam * x + (1 - lam) * x[order], lam * y + (1 - lam) * y[order]",
        )
    ]


def stale_state(log: Log) -> list[Finding]:
    """Detect a recurrent layer that begins with the state of other rows."""
    seen = list(log.of(StaleState))
    if len(seen) < LEAST_TIMES:
        return []
    return [
        Finding(
            "stale_state",
            Certainty.LIKELY,
            f"{seen[0].layer} begins each batch with the state of the batch before, and the rows are drawn at random: it belongs to others.",
            seen[0].at,
            (f"{len(seen)} of the first batches",),
            "output, state = rnn(x)   # from zeros; a state is carried on where the next batch goes on with the same rows",
        )
    ]


def worker_seeds(log: Log) -> list[Finding]:
    """Detect workers of a training loader that draw the same random numbers."""
    return [
        Finding(
            "worker_seeds",
            Certainty.LIKELY,
            f"The {loader.workers} workers draw the same random numbers: {loader.alike}.",
            loader.alike_at,
            (f"the loader is made at {loader.at}; data: {loader.dataset}",),
            "def seed_worker(worker_id):\n    seed = torch.initial_seed() % 2**32   # another one in each worker and epoch\n    np.random.seed(seed)",
        )
        for loader in training_loaders(log)
        if loader.alike
    ][:1]


DETECTORS = (
    mismatched_rows,
    shuffled_apart,
    drawn_apart,
    mixed_apart,
    recompute_draws,
    stale_state,
    reseeded,
    same_order,
    optimizer_rebuilt,
    worker_seeds,
)
