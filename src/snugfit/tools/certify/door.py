"""Certifying recipes, runs, and models in Python."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from torch import nn

from snugfit.core.entry import as_entry
from snugfit.errors import RunFolderError, SettingError
from snugfit.results.run_folder import RunFolder
from snugfit.results.tool_results import keep, new_folder
from snugfit.results.verdicts import Certificate
from snugfit.run.identity.source_code import code_of
from snugfit.run.train_settings import TrainSettings, takes_settings
from snugfit.system.user_objects import load_object
from snugfit.techniques import find_any
from snugfit.techniques.plugins import example_of
from snugfit.tools.certify.measure import ROWS
from snugfit.tools.certify.measure import certify as certify_setup
from snugfit.tools.certify.page import PAGE, write_certificate
from snugfit.tools.certify.technique_certificate import certify_technique
from snugfit.tools.setup import module_setup, output_of, recipe_setup
from snugfit.tracking.spool import Spool

if TYPE_CHECKING:
    from snugfit.recipe import Recipe

CERTIFICATE = "certify.json"
"""In the folder of a run."""


@takes_settings
def certify(
    model: nn.Module,
    data: Any,
    *,
    dtype: str | None = None,
    rows: int = ROWS,
    ranks: bool = False,
    **settings: Unpack[TrainSettings],
) -> Certificate:
    """Try the laws of training on a model and data of one's own, which stay as they are.

    Args:
        dtype: float64 or float32; by default float64 where the model can be computed in it.
        rows: examples of a window.
        ranks: also start two processes, which import the modules that the model is from.
        settings: as of `snugfit.train`.
    Raises:
        UserError: a setting or the data cannot be used.

    >>> import torch
    >>> rows = [(torch.randn(4), number % 3) for number in range(16)]
    >>> certificate = certify(torch.nn.Linear(4, 3), rows, global_batch=8)
    >>> [(law.name, str(law.verdict)) for law in certificate.laws if law.name in ("accumulation", "resume")]
    [('accumulation', 'held'), ('resume', 'held')]
    """
    return certify_setup(module_setup(model, data, **settings), dtype=dtype, rows=rows, ranks=ranks)


def certify_recipe(
    recipe: Recipe,
    *,
    dtype: str | None = None,
    rows: int = ROWS,
    ranks: bool = True,
    run: Path | None = None,
    tell: Callable[[str], None] = lambda _: None,
) -> tuple[Certificate, Path]:
    """Try the laws of training on what a recipe trains; the result is kept beside its runs, with a page.

    Args:
        run: the folder of a run of it, which gets the result too, among its events as well.
    Returns:
        The certificate and its page.
    Raises:
        UserError: the recipe, its data or its model cannot be used.
    """
    setup, _ = recipe_setup(recipe)
    certificate = certify_setup(
        setup, dtype=dtype, rows=rows, ranks=ranks, folders=(recipe.folder,), tell=tell
    )
    folder = new_folder(output_of(recipe), recipe.name, "certify")
    keep(folder, "certify", setup.identity, certificate.summary, certificate.as_dict())
    page = write_certificate(certificate, folder)
    if run is not None:
        add_to_run(run, certificate)
    return certificate, page


def certify_technique_named(
    name: str,
    *,
    oracle: str | None = None,
    dtype: str | None = None,
    output: Path = Path("runs"),
    folder: Path | None = None,
    tell: Callable[[str], None] = lambda _: None,
) -> tuple[Certificate, Path]:
    """Try the laws of techniques on one of any origin, with its example settings, on a small built-in problem.

    Args:
        name: of Snugfit's, `package.module:Class`, or what an installed package lists. Whoever names it consents to its import.
        oracle: `package.module:function`, a loop that trains in the same way.
        output: where the result lies, under the technique's name.
        folder: where modules are looked for first; the current one by default.
    Returns:
        The certificate and its page.
    Raises:
        SettingError: there is no such technique or oracle, or it cannot be used.
    """
    folder = folder or Path.cwd()
    technique = example_of(find_any(name, folder))
    loop = None if oracle is None else load_object(oracle, setting="--oracle", folder=folder)
    if loop is not None and not callable(loop):
        raise SettingError(
            "--oracle", f"got '{oracle}', which is a {type(loop).__name__}, expected a function", "Name one."
        )
    certificate = certify_technique(technique, dtype=dtype, oracle=loop, tell=tell)
    place = new_folder(output, certificate.name, "certify")
    identity = {"technique": code_of(type(technique)), "settings": as_entry(technique), "oracle": oracle}
    keep(place, "certify", identity, certificate.summary, certificate.as_dict())
    return certificate, write_certificate(certificate, place)


def add_to_run(run: Path, certificate: Certificate) -> None:
    """Keep a certificate in a run's folder, and tell it among its events, from where the report and trackers have it.

    Raises:
        RunFolderError: it cannot be written.
    """
    folder = RunFolder.open(run)
    try:
        folder.write_json(CERTIFICATE, certificate.as_dict())
    except OSError as error:
        raise RunFolderError(
            run,
            f"the certificate cannot be written: {error.strerror}",
            "Free space, or make the folder writable.",
        ) from error
    write_certificate(certificate, folder.path)
    with Spool(folder.events) as spool:
        spool.append("certified", page=PAGE, **certificate.as_dict())
