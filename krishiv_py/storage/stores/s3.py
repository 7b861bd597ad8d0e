"""Files of ``s3a://``: through Arrow, and through boto3 for what Arrow cannot do.

A rename would copy a file. So a task uploads its parts under its final name and leaves the upload open: nobody who lists the
bucket sees it. The driver completes it, which is one request however large the file is.
"""

from __future__ import annotations

import contextlib
import functools
import ipaddress
import json
import os
from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import urlsplit

import attrs
import pyarrow.fs as pafs

from krishiv_py.errors import missing_extra, require_extra
from krishiv_py.storage.store import (
    NO_ANSWER,
    REFUSES,
    BucketStore,
    Store,
    StoreKind,
    Version,
    WriteRows,
    bucket_and_key,
    connections,
    failing,
    has_sign,
    in_bucket,
    not_reached,
    noted,
    written,
)

PREFIX: Final = "fs.s3a."
"""The beginning of the names of Hadoop's settings."""
NAMES: Final = (
    *("access.key", "secret.key", "session.token", "aws.credentials.provider", "endpoint"),
    *("endpoint.region", "path.style.access", "connection.ssl.enabled"),
)
"""Settings that are forwarded; ``fs.s3a.bucket.NAME.…`` has them for one bucket."""
_CONNECT_S: Final = 5
_REQUEST_S: Final = 60
_ATTEMPTS: Final = 4
_PART_BYTES: Final = 64 << 20
_PROBE_S: Final = 5
_PROBES: Final = 2
_DEFAULT_REGION: Final = "us-east-1"


@attrs.frozen
class S3Access:
    """Says how one bucket is reached.

    Attributes
    ----------
    key, secret, token : str or None
        The credentials; without a key they are looked for as the AWS tools do.
    anonymous : bool
        Whether requests are not signed.
    scheme, host : str
        ``http`` or ``https``, and the endpoint; an empty host is Amazon's.
    region : str or None
        The region; None where the environment says it.
    path_style : bool or None
        Whether the bucket is in the path and not in the name of the host; None where the endpoint decides.
    """

    key: str | None = attrs.field(repr=False)
    secret: str | None = attrs.field(repr=False)
    token: str | None = attrs.field(repr=False)
    anonymous: bool
    scheme: str
    host: str
    region: str | None
    path_style: bool | None


def reached(bucket: str) -> S3Access:
    """Return how a bucket is reached by the settings in use."""
    settings = {name: _of(bucket, name) for name in NAMES}
    secure = (settings["connection.ssl.enabled"] or "true").lower() != "false"
    endpoint, scheme = settings["endpoint"] or "", "https" if secure else "http"
    if "://" in endpoint:
        parts = urlsplit(endpoint)
        scheme, endpoint = parts.scheme, parts.netloc
    style = settings["path.style.access"]
    anonymous = "Anonymous" in (settings["aws.credentials.provider"] or "")
    key = None if anonymous else settings["access.key"]  # the key may be of an earlier session of this process
    return S3Access(
        key,
        settings["secret.key"] if key else None,
        settings["session.token"] if key else None,
        anonymous,
        scheme,
        endpoint.rstrip("/"),
        _region(bucket, settings["endpoint.region"], endpoint),
        None if style is None else style.lower() == "true",
    )


def _of(bucket: str, name: str) -> str | None:
    return noted(f"{PREFIX}bucket.{bucket}.{name}", PREFIX + name)


def _region(bucket: str, given: str | None, endpoint: str) -> str | None:
    if given:
        return given
    if os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION"):
        return None
    if endpoint:
        return _DEFAULT_REGION
    try:
        return str(pafs.resolve_s3_region(bucket))
    except OSError:
        return None  # what reads or writes there next says what is wrong


@functools.lru_cache(maxsize=256)
def arrow_store(bucket: str) -> pafs.FileSystem:
    """Arrow's file system for a bucket.

    Raises
    ------
    MissingExtraError
        When this Arrow was built without S3.
    """
    return _system(bucket, _REQUEST_S, _ATTEMPTS)


def _system(bucket: str, request_s: int, attempts: int) -> pafs.FileSystem:
    """One that waits so long for an answer, and asks so often."""
    try:
        s3 = pafs.S3FileSystem  # builds of Arrow without S3 say so when it is asked for
    except ImportError as problem:
        raise missing_extra("pyarrow with S3", "s3", "no file there can be read or written") from problem
    by = reached(bucket)
    return s3(
        access_key=by.key,
        secret_key=by.secret,
        session_token=by.token,
        anonymous=by.anonymous,
        region=by.region,
        scheme=by.scheme,
        endpoint_override=by.host or None,
        force_virtual_addressing=bool(by.host) and by.path_style is False and not _is_address(by.host),
        connect_timeout=_CONNECT_S,
        request_timeout=request_s,
        retry_strategy=pafs.AwsStandardS3RetryStrategy(max_attempts=attempts),
    )


@functools.lru_cache(maxsize=256)
def client(bucket: str) -> Any:
    """boto3's client for a bucket: what Arrow cannot do, conditional writes and uploads that another process finishes.

    Raises
    ------
    MissingExtraError
        When boto3 is not installed.
    """
    require_extra("writing to S3", ("boto3",), "s3", "what is written there could not be published exactly once")
    import boto3
    from botocore import UNSIGNED
    from botocore.config import Config

    by = reached(bucket)
    style = {None: "auto", True: "path", False: "virtual"}[by.path_style]
    config = Config(
        region_name=by.region,
        connect_timeout=_CONNECT_S,
        read_timeout=_REQUEST_S,
        retries={"mode": "standard", "total_max_attempts": _ATTEMPTS},
        s3={"addressing_style": style},
        # stores that only follow S3 may know no other checksums
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        **({"signature_version": UNSIGNED} if by.anonymous else {}),
    )
    return boto3.session.Session().client(
        "s3",
        aws_access_key_id=by.key,
        aws_secret_access_key=by.secret,
        aws_session_token=by.token,
        endpoint_url=f"{by.scheme}://{by.host}" if by.host else None,
        use_ssl=by.scheme == "https",
        config=config,
    )


connections.extend((arrow_store.cache_clear, client.cache_clear))


@attrs.frozen
class Upload:
    """A file whose parts are all there, and that is not visible yet.

    Attributes
    ----------
    name : str
        Its name, without folder.
    upload : str
        What the store calls the upload.
    parts : list of str
        The tags of its parts.
    """

    name: str
    upload: str
    parts: list[str]

    def text(self) -> str:
        """As text, for the driver."""
        return json.dumps(attrs.asdict(self))

    @classmethod
    def of(cls, text: str) -> Upload:
        """From the text of a task."""
        return cls(**json.loads(text))


@attrs.frozen
class S3(BucketStore):
    """A bucket of S3, or of a store that follows it. A version is the tag of an object."""

    def version(self, path: str) -> Version | None:
        """See Store."""
        bucket, key = bucket_and_key(path)
        store = client(bucket)
        try:
            return str(store.head_object(Bucket=bucket, Key=key)["ETag"])
        except store.exceptions.ClientError as problem:
            if _code(problem) in ("404", "NoSuchKey", "NotFound"):
                return None
            raise OSError(str(problem)) from problem

    def write_if(self, path: str, data: bytes, version: Version | None) -> Version | None:
        """See Store."""
        bucket, key = bucket_and_key(path)
        store = client(bucket)
        condition = {"IfNoneMatch": "*"} if version is None else {"IfMatch": version}
        try:
            return str(store.put_object(Bucket=bucket, Key=key, Body=data, **condition)["ETag"])
        except store.exceptions.ClientError as problem:
            code = _code(problem)
            if code in ("PreconditionFailed", "412", "ConditionalRequestConflict", "409", "NoSuchKey", "404"):
                return None
            if code in ("NotImplemented", "501"):
                raise NotImplementedError(str(problem)) from problem
            raise OSError(str(problem)) from problem
        except Exception as problem:  # of the connection: boto3 has many kinds
            raise OSError(str(problem)) from problem

    def stage(self, root: str, final: str, hidden: str, write: WriteRows) -> str | None:
        """See Store; uploads all parts of the file under its final name, and leaves it invisible.

        Raises
        ------
        OperatorError
            When the store refuses.
        """
        view = memoryview(written(write))
        bucket, key = bucket_and_key(f"{root}/{final}")
        store = client(bucket)
        with failing("a file cannot be uploaded", f"{root}/{final}"):
            begun = store.create_multipart_upload(Bucket=bucket, Key=key)["UploadId"]
            try:
                pieces = [view[begin : begin + _PART_BYTES] for begin in range(0, max(len(view), 1), _PART_BYTES)]
                parts = [
                    store.upload_part(Bucket=bucket, Key=key, UploadId=begun, PartNumber=number, Body=bytes(piece))["ETag"]
                    for number, piece in enumerate(pieces, 1)
                ]
            except BaseException:
                with contextlib.suppress(Exception):
                    store.abort_multipart_upload(Bucket=bucket, Key=key, UploadId=begun)
                raise
        return Upload(final, str(begun), [str(part) for part in parts]).text()

    def publish(self, root: str, staged: str) -> None:
        """See Store; a file that was made visible before, by a request whose answer was lost, is passed over.

        Raises
        ------
        OperatorError
            When the store refuses.
        """
        done = Upload.of(staged)
        bucket, key = bucket_and_key(f"{root}/{done.name}")
        store = client(bucket)
        parts = [{"ETag": tag, "PartNumber": number} for number, tag in enumerate(done.parts, 1)]
        with failing("a file cannot be published", f"{root}/{done.name}"):
            try:
                store.complete_multipart_upload(Bucket=bucket, Key=key, UploadId=done.upload, MultipartUpload={"Parts": parts})
            except store.exceptions.ClientError as problem:
                if _code(problem) != "NoSuchUpload" or not _is_there(store, bucket, key):
                    raise

    def give_up(self, root: str, stem: str, kept: Sequence[str]) -> int:
        """See Store. Uploads that are not listed to us stay: nobody sees them, but they take room."""
        ours = [Upload.of(staged) for staged in kept]
        uploads = {upload: key for upload, key in open_uploads(root).items() if key.rpartition("/")[2].startswith(stem)}
        gone = [each for each in ours if each.upload not in uploads and not is_open(root, each)]
        if not gone:
            bucket, _ = bucket_and_key(root)
            store = client(bucket)
            for upload in uploads.keys() - {each.upload for each in ours}:
                with contextlib.suppress(store.exceptions.ClientError):
                    store.abort_multipart_upload(Bucket=bucket, Key=uploads[upload], UploadId=upload)
        return len(gone)


def is_open(root: str, done: Upload) -> bool:
    """Return whether an upload was neither completed nor given up; a store that does not say so may still have it."""
    bucket, key = bucket_and_key(f"{root}/{done.name}")
    store = client(bucket)
    try:
        store.list_parts(Bucket=bucket, Key=key, UploadId=done.upload, MaxParts=1)
    except store.exceptions.ClientError as problem:
        return _code(problem) not in ("NoSuchUpload", "404")
    return True


def open_uploads(root: str) -> dict[str, str]:
    """Return the uploads below a folder that are open, and the key of each.

    None where the store does not list uploads, or not to us; MinIO lists those of whole names only.
    """
    bucket, prefix = bucket_and_key(f"{root}/")
    store = client(bucket)
    try:
        pages = store.get_paginator("list_multipart_uploads").paginate(Bucket=bucket, Prefix=prefix)
        return {str(upload["UploadId"]): str(upload["Key"]) for page in pages for upload in page.get("Uploads", [])}
    except store.exceptions.ClientError:
        return {}


def _is_there(store: Any, bucket: str, key: str) -> bool:
    try:
        store.head_object(Bucket=bucket, Key=key)
    except store.exceptions.ClientError:
        return False
    return True


def _code(problem: Any) -> str:
    return str(problem.response.get("Error", {}).get("Code", ""))


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host.rpartition(":")[0].strip("[]") or host)
    except ValueError:
        return host.partition(":")[0] == "localhost"
    return True


_WHY: Final = (
    (("NETWORK_CONNECTION", "Could not connect", "EndpointConnectionError", "curlCode", "resolve"), NO_ANSWER),
    (("not found", "NO_SUCH_BUCKET", "NoSuchBucket", "404"), "there is no such bucket"),
    (("ACCESS_DENIED", "AccessDenied", "Forbidden", "403", "INVALID_ACCESS_KEY", "SIGNATURE", "Unable to locate"), "the "
     "credentials are refused"),
)  # fmt: skip


def check_s3(path: str) -> None:
    """See that the bucket of an ``s3a://`` path answers to this process, in seconds.

    Raises
    ------
    EnvironmentSetupError
        When it does not: no such bucket, wrong credentials, no store at the endpoint.
    """
    bucket = path.partition("://")[2].partition("/")[0]
    system = _system(bucket, _PROBE_S, _PROBES)
    try:
        kind = system.get_file_info(bucket).type
        problem = "" if kind == pafs.FileType.Directory else f"bucket {bucket!r} not found"
        if not problem:
            system.get_file_info(pafs.FileSelector(f"{bucket}/_krishiv-probe", allow_not_found=True))
    except OSError as failed:
        problem = str(failed).splitlines()[0]
    if problem:
        raise not_reached(path, _why(problem), problem, "bucket", "AWS_ENDPOINT_URL", PREFIX)


def _why(problem: str) -> str:
    return next((why for signs, why in _WHY if any(has_sign(problem, sign) for sign in signs)), REFUSES)


def _open(scheme: str, host: str, path: str) -> tuple[Store, str]:
    where = in_bucket("s3a://bucket/folder", scheme, host, path)
    return S3(arrow_store(host), f"{scheme}://"), where


_ENDS: Final = tuple(f".{name}" for name in NAMES)
KIND: Final = StoreKind(
    ("s3a",),
    ("s3",),
    "S3",
    _open,
    check=lambda path, written: check_s3(path),
    is_setting=lambda name: name.startswith(PREFIX) and name.endswith(_ENDS),
)
