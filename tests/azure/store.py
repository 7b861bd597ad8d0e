"""A container for tests, on the server of the tests' own; on Azurite at port ``KRISHIV_AZURITE`` if that is set."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from typing import Final

import attrs
import pyarrow.fs as pafs

from tests.azure.server import ACCOUNT, Account, Server

KEY: Final = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""The key of Azurite, which its documentation has."""
CONTAINER: Final = "streams"
HOST: Final = f"{ACCOUNT}.dfs.core.windows.net"


@attrs.frozen
class Storage:
    """A server with one container; `account` is what the server of the tests' own holds."""

    port: int
    account: Account | None

    @property
    def options(self) -> dict[str, str]:
        """For ``Session.builder().storage_options``."""
        return {"AZURE_STORAGE_ACCOUNT_KEY": KEY, "AZURE_STORAGE_ENDPOINT": f"http://127.0.0.1:{self.port}"}

    @property
    def settings(self) -> dict[str, str]:
        """The same as settings of Hadoop's."""
        return {"fs.azure.account.key": KEY, "fs.azure.endpoint": f"http://127.0.0.1:{self.port}"}

    @property
    def system(self) -> pafs.FileSystem:
        """What Arrow sees of the account."""
        moment = {f"{name}_storage_authority": f"127.0.0.1:{self.port}" for name in ("blob", "dfs")}
        return pafs.AzureFileSystem(ACCOUNT, account_key=KEY, blob_storage_scheme="http", dfs_storage_scheme="http", **moment)

    def url(self, path: str) -> str:
        """A path in the container."""
        return f"abfss://{CONTAINER}@{HOST}/{path}"

    def put(self, key: str, data: bytes) -> None:
        """Write a file."""
        with self.system.open_output_stream(f"{CONTAINER}/{key}") as stream:
            stream.write(data)

    def read(self, key: str) -> bytes:
        """Return what a file holds."""
        with self.system.open_input_stream(f"{CONTAINER}/{key}") as stream:
            return bytes(stream.read())

    def files(self, prefix: str) -> list[str]:
        """Return the files below a folder: those of `keys`, for folders have none."""
        return self.keys(prefix)

    def keys(self, folder: str) -> list[str]:
        """Return the files below a folder."""
        selected = pafs.FileSelector(f"{CONTAINER}/{folder}", recursive=True, allow_not_found=True)
        return sorted(actual.path.partition("/")[2] for actual in self.system.get_file_info(selected) if actual.is_file)


@contextlib.contextmanager
def running() -> Iterator[Storage]:
    """A container that is there while a test runs."""
    azurite = os.environ.get("KRISHIV_AZURITE")
    if azurite is not None:
        store = Storage(int(azurite), None)
        store.system.create_dir(CONTAINER)
        yield store
        return
    server = Server()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    server.account.containers[CONTAINER] = {}
    try:
        yield Storage(server.server_port, server.account)
    finally:
        server.shutdown()
        server.server_close()
