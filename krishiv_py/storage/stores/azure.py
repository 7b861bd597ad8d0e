"""Files of ``abfss://``: read and listed by Arrow, written and removed by obstore.

Arrow shows an empty file before it has written one, knows no writes on a condition, and takes four requests to remove a file.
Files are renamed by copies inside the account: Arrow's own copy ends the process when the file is gone.
"""

from __future__ import annotations

import datetime
import functools
import posixpath
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import attrs
import pyarrow as pa
import pyarrow.fs as pafs

from krishiv_py.errors import PlanError, missing_extra, require_extra
from krishiv_py.storage.store import (
    NO_ANSWER,
    REFUSES,
    CopyingBucket,
    Store,
    StoreKind,
    Version,
    as_os_errors,
    bucket_and_key,
    connections,
    first_line,
    has_sign,
    not_reached,
    noted,
)

if TYPE_CHECKING:
    from obstore.store import AzureStore

PREFIX: Final = "fs.azure."
"""The names of Hadoop's settings begin so."""
NAMES: Final = (
    *("account.key", "account.oauth2.client.id", "account.oauth2.client.secret", "account.oauth2.client.endpoint"),
    *("account.auth.type", "account.oauth.provider.type", "endpoint"),
)
"""Settings that are forwarded; ``fs.azure.….ACCOUNT.dfs.core.windows.net`` has them for one account."""
_SUFFIX: Final = ".core.windows.net"
_CONNECT_S: Final = 5
_REQUEST_S: Final = 60
_ATTEMPTS: Final = 4
_ANSWER_S: Final = 8
_LOOK_S: Final = 0.2
_END_BYTES: Final = 65_536


@attrs.frozen
class AzureAccount:
    """The address and the credentials of one storage account.

    Attributes
    ----------
    account : str
        Its name.
    suffix : str
        What its hosts end with, after ``.blob`` and ``.dfs``.
    key : str or None
        Its key.
    client, secret, tenant : str or None
        The application that signs in; without it and a key, credentials are looked for as Azure's tools do.
    endpoint : str
        The address of an emulator; empty for Azure itself.
    """

    account: str
    suffix: str
    key: str | None = attrs.field(repr=False)
    client: str | None
    secret: str | None = attrs.field(repr=False)
    tenant: str | None
    endpoint: str


def reached(host: str) -> AzureAccount:
    """Return how the account of a host is reached by the settings in use."""
    settings = {name: noted(f"{PREFIX}{name}.{host}", PREFIX + name) for name in NAMES}
    account, _, rest = host.partition(".")
    signs_in = urlsplit(settings["account.oauth2.client.endpoint"] or "").path.strip("/")
    return AzureAccount(
        account,
        f".{rest.partition('.')[2]}" if rest else _SUFFIX,
        settings["account.key"],
        settings["account.oauth2.client.id"],
        settings["account.oauth2.client.secret"],
        signs_in.partition("/")[0] or None,
        (settings["endpoint"] or "").rstrip("/"),
    )


def container_and_host(path: str) -> tuple[str, str]:
    """Return the container of a path and the host of its account.

    Raises
    ------
    PlanError
        For a path without one of them, and for one with a password.
    """
    scheme, _, rest = path.partition("://")
    container, sign, host = rest.partition("/")[0].partition("@")
    if ":" in container or not (container and sign and host):
        got = f"{scheme}://[redacted]@…" if ":" in container else repr(path)
        hint = f"write {scheme}://container@account.dfs.core.windows.net/folder"
        raise PlanError("a path of Azure names container and account", got=got, hint=hint)
    return container, host


@functools.lru_cache(maxsize=256)
def arrow_azure(host: str) -> pafs.FileSystem:
    """Return Arrow's file system for an account.

    Raises
    ------
    MissingExtraError
        When this Arrow was built without Azure.
    """
    try:
        azure = pafs.AzureFileSystem  # builds of Arrow without it say so when it is looked up
    except ImportError as problem:
        raise missing_extra("pyarrow with Azure", "azure", "no file there can be read or written") from problem
    by = reached(host)
    options: dict[str, str] = {}
    if by.endpoint:
        address = urlsplit(by.endpoint)
        for service in ("blob", "dfs"):
            options |= {f"{service}_storage_authority": address.netloc, f"{service}_storage_scheme": address.scheme}
    elif by.suffix != _SUFFIX:
        options = {f"{service}_storage_authority": f".{service}{by.suffix}" for service in ("blob", "dfs")}
    if by.key:
        options["account_key"] = by.key
    elif by.client and by.secret and by.tenant:
        options |= {"client_id": by.client, "client_secret": by.secret, "tenant_id": by.tenant}
    return azure(by.account, **options)


@functools.lru_cache(maxsize=256)
def client(host: str, container: str, request_s: int = _REQUEST_S, attempts: int = _ATTEMPTS) -> AzureStore:
    """Return obstore's client for a container.

    Raises
    ------
    MissingExtraError
        When obstore is not installed.
    """
    require_extra("writing to abfss://", ("obstore",), "azure", "no checkpoint can be kept there")
    from obstore.store import AzureStore

    by = reached(host)
    options: dict[str, Any] = {
        "endpoint": f"{by.endpoint}/{by.account}" if by.endpoint else f"https://{by.account}.blob{by.suffix}"
    }
    if by.key:
        options["account_key"] = by.key
    elif by.client and by.secret and by.tenant:
        options |= {"client_id": by.client, "client_secret": by.secret, "tenant_id": by.tenant}
    return AzureStore(
        container,
        account_name=by.account,
        client_options={
            "allow_http": by.endpoint.startswith("http://"),
            "connect_timeout": datetime.timedelta(seconds=min(_CONNECT_S, request_s)),
            "timeout": datetime.timedelta(seconds=request_s),
        },
        retry_config={"max_retries": attempts, "retry_timeout": datetime.timedelta(seconds=request_s)},
        **options,
    )


connections.extend((arrow_azure.cache_clear, client.cache_clear))


@attrs.frozen
class Azure(CopyingBucket):
    """A storage account of Azure. A version is the tag of a blob.

    Attributes
    ----------
    host : str
        The host of the account.
    """

    host: str

    def uri(self, path: str) -> str:
        """See Store."""
        container, key = bucket_and_key(path)
        return f"{self.home}{container}@{self.host}/{key}"

    def version(self, path: str) -> Version | None:
        """See Store."""
        container, key = bucket_and_key(path)
        with as_os_errors(), suppress(FileNotFoundError):
            return client(self.host, container).head(key)["e_tag"]
        return None

    def put(self, path: str, data: bytes | pa.Buffer) -> None:
        """See Store; what a reader sees is whole."""
        container, key = bucket_and_key(path)
        with as_os_errors():
            client(self.host, container).put(key, memoryview(data).cast("B"))

    def delete_one(self, path: str) -> None:
        """See Store."""
        container, key = bucket_and_key(path)
        with as_os_errors(), suppress(FileNotFoundError):
            client(self.host, container).delete(key)

    def write_if(self, path: str, data: bytes, version: Version | None) -> Version | None:
        """See Store."""
        container, key = bucket_and_key(path)
        store = client(self.host, container)
        from obstore.exceptions import AlreadyExistsError, PreconditionError

        with as_os_errors():
            try:
                done = store.put(key, data, mode="create" if version is None else {"e_tag": str(version)})
            except (AlreadyExistsError, PreconditionError):
                return None
            except FileNotFoundError:
                if version is None:  # not even a container
                    raise
                return None
        return done["e_tag"]

    def add_folder(self, path: str, *, above: bool = True) -> None:
        """See Store."""
        Store.add_folder(self, path)

    def delete_folder(self, path: str) -> None:
        """See Store; Arrow removes many blobs at once."""
        Store.delete_folder(self, path)

    def copy_one(self, source: str, target: str) -> None:
        """See CopyingBucket."""
        (container, old), (_, new) = bucket_and_key(source), bucket_and_key(target)
        with as_os_errors():
            _copy(client(self.host, container), old, new)


def _copy(store: AzureStore, source: str, target: str) -> None:
    """Copy a file inside the account. The store may answer before it has copied, so the end of the copy is compared."""
    from obstore.exceptions import AlreadyExistsError

    with suppress(AlreadyExistsError):  # there by a request whose answer was lost
        store.copy(source, target, overwrite=False)
    until = time.monotonic() + _REQUEST_S
    while not _is_copied(store, source, target):
        if time.monotonic() > until:
            raise TimeoutError(f"{target} was not copied within {_REQUEST_S} s")
        time.sleep(_LOOK_S)


def _is_copied(store: AzureStore, source: str, target: str) -> bool:
    size = store.head(source)["size"]
    if store.head(target)["size"] != size:
        return False
    ends = [bytes(store.get_range(key, start=max(size - _END_BYTES, 0), end=size)) for key in (source, target) if size]
    return len(set(ends)) < 2


def check_azure(path: str) -> None:
    """See that the container of an ``abfss://`` path answers to this process, in seconds.

    Raises
    ------
    MissingExtraError
        When obstore is not installed.
    EnvironmentSetupError
        When it does not: no such container, wrong credentials, no store at the endpoint.
    """
    container, host = container_and_host(path)
    try:
        client(host, container, _ANSWER_S, 1).list_with_delimiter("_krishiv-probe")
    except ImportError:
        raise
    except Exception as problem:  # obstore raises errors of its own and of Python
        got = first_line(problem)
        raise not_reached(path, _why(problem), got, "container", "AZURE_STORAGE_ACCOUNT_KEY", PREFIX) from problem


def _why(problem: Exception) -> str:
    from obstore.exceptions import PermissionDeniedError, UnauthenticatedError

    text = str(problem)
    if isinstance(problem, FileNotFoundError) or has_sign(text, "404"):
        return "there is no such container"
    refused = has_sign(text, "403") or has_sign(text, "401")
    if refused or isinstance(problem, (PermissionDeniedError, UnauthenticatedError)):
        return "the credentials are refused"
    if "169.254.169.254" in text:
        return "there are no credentials that can be used"
    if "error sending request" in text or "timed out" in text:
        return NO_ANSWER
    return REFUSES


def _open(scheme: str, host: str, path: str) -> tuple[Store, str]:
    container, account = container_and_host(f"{scheme}://{host}/{path}")
    where = f"{container}{posixpath.normpath(f'/{path}')}".rstrip("/")
    return Azure(arrow_azure(account), f"{scheme}://", account), where


_SETTINGS: Final = tuple(PREFIX + name for name in NAMES)
KIND: Final = StoreKind(
    ("abfss", "abfs"),
    (),
    "Azure",
    _open,
    check=lambda path, written: check_azure(path),
    is_setting=lambda name: name in _SETTINGS or any(name.startswith(f"{each}.") for each in _SETTINGS),
)
