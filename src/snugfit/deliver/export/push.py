"""Sending an export to a hub, by the hub's own client."""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Callable
from pathlib import Path

from snugfit.errors import MissingExtra, SettingError, TrackingError
from snugfit.models.hub import first_line

_REPOSITORY = re.compile(r"[\w.-]+/[\w.-]+")


def check_push(repository: str) -> None:
    """See that an export can be sent: before a model is loaded.

    Raises:
        MissingExtra: the hub's client is not installed.
        SettingError: it is no name of a repository, nobody is logged in, or the hub is not to be asked.
    """
    if not _REPOSITORY.fullmatch(repository):
        raise SettingError(
            "--push", f"got '{repository}', expected OWNER/NAME", "Name a repository of the hub."
        )
    if importlib.util.find_spec("huggingface_hub") is None:
        raise MissingExtra("huggingface_hub", "text")
    from huggingface_hub import constants, get_token

    if constants.HF_HUB_OFFLINE:
        raise SettingError("--push", "HF_HUB_OFFLINE is set, so nothing is sent", "Unset it.")
    if get_token() is None:
        raise SettingError(
            "--push", "nobody is logged in to the hub here", "Run hf auth login, or set HF_TOKEN."
        )


def push(folder: Path, repository: str, tell: Callable[[str], None]) -> str:
    """Send the files of an export to a repository, which is made, private, where there is none; return the address of the commit.

    Raises:
        TrackingError: the hub does not take them; the export stays where it is.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.utils import (  # type: ignore[attr-defined]  # public, and not named so
        disable_progress_bars,
        enable_progress_bars,
    )

    api = HfApi(endpoint=os.environ.get("HF_ENDPOINT") or None)
    tell(f"sending it to {repository} at {api.endpoint} …")
    disable_progress_bars()
    try:
        api.create_repo(repository, exist_ok=True, private=True)
        commit = api.upload_folder(
            repo_id=repository, folder_path=folder, commit_message="Export a trained model"
        )
    except Exception as error:  # the client's classes of errors change from version to version
        raise TrackingError(
            "--push",
            f"{repository} at {api.endpoint} does not take the export: {type(error).__name__}: {first_line(error)}",
            f"It is in {folder}. Send it later: hf upload {repository} {folder}",
        ) from error
    finally:
        enable_progress_bars()
    return str(commit.commit_url)
