"""Determine how this process reaches ``gs://``: settings of Google's Hadoop connector, forwarded to Arrow and to
google-cloud-storage.

A file there is whole when it is closed, and an object can be copied inside the store. Conditions are on generations: the number
an object gets whenever it is written.
"""

from __future__ import annotations

import contextlib
import datetime
import functools
import os
import threading
from collections.abc import Iterator
from typing import Any, Final
from urllib.parse import urlsplit

import attrs
import pyarrow.fs as pafs

from krishiv_py.errors import missing_extra, require_extra
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
    in_bucket,
    not_reached,
    noted,
)

PREFIX: Final = "fs.gs."
"""The beginning of the names of the connector's settings."""
NAMES: Final = ("storage.root.url", "auth.type", "auth.service.account.json.keyfile", "project.id")
"""Settings that are forwarded."""
KEY_FILE: Final = "SERVICE_ACCOUNT_JSON_KEYFILE"
ANONYMOUS: Final = "UNAUTHENTICATED"
_VARIABLE: Final = "GOOGLE_APPLICATION_CREDENTIALS"
_HOST: Final = "https://storage.googleapis.com"
_CONNECT_S: Final = 5
_REQUEST_S: Final = 60
_RETRIED_S: Final = 60
_PROBE_S: Final = 8
_environment: Final = threading.Lock()


@attrs.frozen
class GoogleAccess:
    """Says how the store is reached.

    Attributes
    ----------
    endpoint : str
        Its address; empty for Google's own.
    key_file : str or None
        The file of a service account's key; None where credentials are looked for as Google's tools do.
    anonymous : bool
        Whether requests are not signed.
    project : str or None
        The project; None where the environment says it.
    """

    endpoint: str
    key_file: str | None
    anonymous: bool
    project: str | None


def reached() -> GoogleAccess:
    """Return how the store is reached by the settings in use."""
    settings = {name: noted(PREFIX + name) for name in NAMES}
    kind = settings["auth.type"] or ""
    key_file = settings["auth.service.account.json.keyfile"] if kind == KEY_FILE else None
    endpoint = (settings["storage.root.url"] or "").rstrip("/")
    return GoogleAccess("" if endpoint == _HOST else endpoint, key_file, kind == ANONYMOUS, settings["project.id"])


@functools.cache
def arrow_google() -> pafs.FileSystem:
    """Arrow's file system for ``gs://``.

    Raises
    ------
    MissingExtraError
        When this Arrow was built without Google's store.
    EnvironmentSetupError
        When the key file cannot be used.
    """
    try:
        google = pafs.GcsFileSystem  # builds of Arrow without it say so when it is asked for
    except ImportError as problem:
        raise missing_extra("pyarrow with Google's store", "gcs", "no file there can be read or written") from problem
    by = reached()
    address = urlsplit(by.endpoint)
    with _key_in_environment(by.key_file):
        return google(
            anonymous=by.anonymous,
            scheme=address.scheme or None,
            endpoint_override=address.netloc or None,
            project_id=by.project,
            retry_time_limit=datetime.timedelta(seconds=_RETRIED_S),
        )


@contextlib.contextmanager
def _key_in_environment(key_file: str | None) -> Iterator[None]:
    """Arrow takes a key file only from the environment, which it reads when the file system is made."""
    if key_file is None:
        yield
        return
    with _environment:
        before = os.environ.get(_VARIABLE)
        os.environ[_VARIABLE] = key_file
        try:
            yield
        finally:
            if before is None:
                del os.environ[_VARIABLE]
            else:
                os.environ[_VARIABLE] = before


@functools.cache
def client() -> Any:
    """Google's client: what Arrow cannot do, writes on a condition and copies that may be repeated.

    Raises
    ------
    MissingExtraError
        When google-cloud-storage is not installed.
    """
    consequence = "no checkpoint can be kept there, and nothing published exactly once"
    require_extra("writing to gs://", ("google.cloud.storage",), "gcs", consequence)
    from google.auth.credentials import AnonymousCredentials
    from google.cloud import storage

    by = reached()
    options = {"api_endpoint": by.endpoint} if by.endpoint else None
    if by.anonymous:
        return storage.Client(project=by.project, credentials=AnonymousCredentials(), client_options=options)
    if by.key_file is not None:
        return storage.Client.from_service_account_json(by.key_file, client_options=options)
    return storage.Client(project=by.project, client_options=options)


connections.extend((arrow_google.cache_clear, client.cache_clear))


@attrs.frozen
class Google(CopyingBucket):
    """Google's store. A version is the generation of an object."""

    def version(self, path: str) -> Version | None:
        """See Store."""
        blob = _blob(path)
        from google.api_core.exceptions import NotFound

        with as_os_errors():
            try:
                blob.reload(**_how())
            except NotFound:
                return None
        return str(blob.generation)

    def write_if(self, path: str, data: bytes, version: Version | None) -> Version | None:
        """See Store."""
        blob = _blob(path)
        from google.api_core.exceptions import NotFound, PreconditionFailed

        with as_os_errors():
            try:
                blob.upload_from_string(data, if_generation_match=0 if version is None else int(version), **_how())
            except PreconditionFailed:
                return None
            except NotFound:
                if version is None:  # not even a bucket
                    raise
                return None
        return str(blob.generation)

    def copy_one(self, source: str, target: str) -> None:
        """See CopyingBucket."""
        old, new = _blob(source), _blob(target)
        from google.api_core.exceptions import PreconditionFailed

        token: str | None = None
        with contextlib.suppress(PreconditionFailed):  # there by a request whose answer was lost
            while True:
                token, _, _ = new.rewrite(old, token=token, if_generation_match=0, **_how())
                if token is None:
                    break


def check_google(path: str) -> None:
    """See that the bucket of a ``gs://`` path answers to this process, in seconds.

    Raises
    ------
    MissingExtraError
        When google-cloud-storage is not installed.
    EnvironmentSetupError
        When it does not: no such bucket, wrong credentials, no store at the endpoint.
    """
    bucket = path.partition("://")[2].partition("/")[0]
    try:
        blobs = client().list_blobs(bucket, prefix="_krishiv-probe", max_results=1, **_how(_CONNECT_S, _CONNECT_S, _PROBE_S))
        list(blobs)
    except ImportError:
        raise
    except Exception as problem:  # Google's client has many kinds
        got = first_line(problem)
        raise not_reached(path, _why(problem), got, "bucket", "GOOGLE_SERVICE_ACCOUNT", PREFIX) from problem


def _why(problem: Exception) -> str:
    from google.api_core import exceptions as exceptions
    from google.auth.exceptions import GoogleAuthError, InvalidOperation, TransportError

    if isinstance(problem, exceptions.NotFound):
        return "there is no such bucket"
    if isinstance(problem, (exceptions.Forbidden, exceptions.Unauthorized)):
        return "the credentials are refused"
    if isinstance(problem, InvalidOperation):  # to renew those of nobody
        return "the credentials are refused"
    if isinstance(problem, GoogleAuthError) and not isinstance(problem, TransportError):
        return "there are no credentials that can be used"
    if isinstance(problem, (FileNotFoundError, ValueError)):
        return "the key file cannot be used"
    if isinstance(problem, (exceptions.RetryError, TransportError, OSError)):
        return NO_ANSWER
    return REFUSES


def _blob(path: str) -> Any:
    bucket, key = bucket_and_key(path)
    return client().bucket(bucket).blob(key)


def _how(connect_s: int = _CONNECT_S, request_s: int = _REQUEST_S, retried_s: int = _RETRIED_S) -> dict[str, Any]:
    """Return how long a request is waited for, and repeated; all that are made here may be."""
    from google.cloud.storage.retry import DEFAULT_RETRY

    return {"timeout": (connect_s, request_s), "retry": DEFAULT_RETRY.with_timeout(retried_s)}


def _open(scheme: str, host: str, path: str) -> tuple[Store, str]:
    where = in_bucket("gs://bucket/folder", scheme, host, path)
    return Google(arrow_google(), f"{scheme}://"), where


_SETTINGS: Final = tuple(PREFIX + name for name in NAMES)
KIND: Final = StoreKind(
    ("gs",),
    ("gcs",),
    "Google's store",
    _open,
    check=lambda path, written: check_google(path),
    is_setting=lambda name: name in _SETTINGS,
)
