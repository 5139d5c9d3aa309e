"""WebDataset's rows by a plain loop: members that follow one another and have one path up to the first dot of its last part.

Source: webdataset 1.0.2, `tariterators.group_by_keys` and `base_plus_ext`.
"""

from __future__ import annotations

import tarfile
from pathlib import Path


def rows(shards: list[Path]) -> list[tuple[str, dict[str, bytes]]]:
    """The key and the fields of each row."""
    result: list[tuple[str, dict[str, bytes]]] = []
    for shard in shards:
        last = None
        with tarfile.open(shard) as tar:
            for member in tar.getmembers():
                folder, _, name = member.name.rpartition("/")
                stem, dot, field = name.partition(".")
                if not member.isfile() or not stem or not dot:
                    continue
                key = f"{folder}/{stem}" if folder else stem
                if key != last:
                    result.append((key, {}))
                    last = key
                content = tar.extractfile(member)
                assert content is not None
                result[-1][1][field.lower()] = content.read()
    return result
