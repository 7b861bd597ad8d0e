"""Files of a bucket are listed as those of a folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from krishiv_py.storage.files import facts_of, files_at, store_at
from tests.objectstore.store import BUCKET, Store


@pytest.mark.parametrize("pattern", ["", "/{a,user=7}*", "/*/x"])
def test_what_is_in_a_bucket_counts_as_on_disk(used: Store, tmp_path: Path, pattern: str) -> None:
    far, near = f"s3a://{BUCKET}/listed", f"{tmp_path}/listed"
    for name in ("a #1%20", "b", "user=7/x", "deep/er/y", "_h/x", ".x", "x.tmp", "_SUCCESS", "empty"):
        for home in (far, near):
            store, path = store_at(f"{home}/{name}")
            Path(path).parent.mkdir(parents=True, exist_ok=True) if home is near else None
            store.put(path, b"" if name == "empty" else b"12")
    actual = {file.path.removeprefix(far): file.size for file in files_at(f"{far}{pattern}", literal=not pattern)}
    local = {f.path.removeprefix(f"file:{near}"): f.size for f in files_at(f"{near}{pattern}", literal=not pattern)}
    assert actual == local and actual
    for name, size in actual.items():
        facts = facts_of(f"{far}{name}")
        assert facts is not None and facts[0] == size
    assert facts_of(f"{far}/none") is None
    assert files_at(f"s3a://{BUCKET}/nowhere", literal=False) == []
