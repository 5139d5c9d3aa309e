"""Exports sent to a hub: its files as they lie in the folder, in a private repository, or a reason why not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from snugfit.deliver.export.export_model import export_source
from snugfit.errors import SettingError, TrackingError
from tests.unit.deliver.export.models import text_classifier
from tests.unit.deliver.export.receiving_hub import ReceivingHub, receiving_hub


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[ReceivingHub]:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setenv("HF_TOKEN", "hf_token")
    with receiving_hub() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.address)
        yield hub


def test_an_export_arrives_file_by_file_in_a_private_repository(
    tmp_path: Path, hub: ReceivingHub, reading_here: None
) -> None:
    bundle, rows = text_classifier(tmp_path)
    result = export_source(bundle, "hf", tmp_path / "out", rows=rows, push_to="me/chats")
    assert result["pushed"] == f"{hub.address}/me/chats/commit/abc"
    assert hub.made == {"me/chats": "private"}
    assert hub.files == {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}


def test_an_export_that_the_hub_refuses_stays_and_the_error_says_how_to_send_it(
    tmp_path: Path, hub: ReceivingHub, reading_here: None
) -> None:
    bundle, rows = text_classifier(tmp_path)
    hub.refuses = True
    with pytest.raises(
        TrackingError, match=r"--push: me/chats at http://127.* does not take the export: .*403"
    ) as caught:
        export_source(bundle, "hf", tmp_path / "out", rows=rows, push_to="me/chats")
    assert f"hf upload me/chats {tmp_path / 'out'}" in str(caught.value)
    assert (tmp_path / "out" / "model.safetensors").is_file()


def test_what_cannot_be_sent_is_refused_before_anything_is_loaded(
    tmp_path: Path, hub: ReceivingHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    import huggingface_hub
    from huggingface_hub import constants

    with pytest.raises(SettingError, match="got 'chats', expected OWNER/NAME"):
        export_source("nowhere", "hf", tmp_path / "out", push_to="chats")
    monkeypatch.setattr(huggingface_hub, "get_token", lambda: None)
    with pytest.raises(SettingError, match="nobody is logged in to the hub here. Run hf auth login"):
        export_source("nowhere", "hf", tmp_path / "out", push_to="me/chats")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(SettingError, match="HF_HUB_OFFLINE is set"):
        export_source("nowhere", "hf", tmp_path / "out", push_to="me/chats")
    assert not hub.made and not (tmp_path / "out").exists()
