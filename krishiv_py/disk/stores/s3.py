"""How this process reaches ``s3a://``: by Arrow, and by boto3 for what Arrow cannot do."""

from __future__ import annotations

import functools
import ipaddress
import os
from typing import Any, Final
from urllib.parse import urlsplit

import attrs
import pyarrow.fs as pafs

from krishiv_py.disk.settings import connections, noted
from krishiv_py.errors import EnvironmentSetupError, missing_extra, require_extra

PREFIX: Final = "fs.s3a."
"""How the names of Hadoop's settings begin."""
NAMES: Final = (
    "access.key",
    "secret.key",
    "session.token",
    "aws.credentials.provider",
    "endpoint",
    "endpoint.region",
    "path.style.access",
    "connection.ssl.enabled",
)
"""Settings that are forwarded; ``fs.s3a.bucket.NAME.…`` has them for one bucket."""
_CONNECT_S: Final = 5
_REQUEST_S: Final = 60
_ATTEMPTS: Final = 4
_ASKED_S: Final = 5
_ASKED: Final = 2
_DEFAULT_REGION: Final = "us-east-1"


@attrs.frozen
class Reached:
    """How one bucket is reached.

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
        Whether the bucket stands in the path and not in the name of the host; None where the endpoint decides.
    """

    key: str | None = attrs.field(repr=False)
    secret: str | None = attrs.field(repr=False)
    token: str | None = attrs.field(repr=False)
    anonymous: bool
    scheme: str
    host: str
    region: str | None
    path_style: bool | None


def reached(bucket: str) -> Reached:
    """How a bucket is reached by the settings in use."""
    found = {name: _of(bucket, name) for name in NAMES}
    secure = (found["connection.ssl.enabled"] or "true").lower() != "false"
    endpoint, scheme = found["endpoint"] or "", "https" if secure else "http"
    if "://" in endpoint:
        parts = urlsplit(endpoint)
        scheme, endpoint = parts.scheme, parts.netloc
    style = found["path.style.access"]
    key = found["access.key"]
    return Reached(
        key,
        found["secret.key"] if key else None,
        found["session.token"] if key else None,
        "Anonymous" in (found["aws.credentials.provider"] or ""),
        scheme,
        endpoint.rstrip("/"),
        _region(bucket, found["endpoint.region"], endpoint),
        None if style is None else style.lower() == "true",
    )


def _of(bucket: str, name: str) -> str | None:
    return noted(f"{PREFIX}bucket.{bucket}.{name}", PREFIX + name)


def _region(bucket: str, told: str | None, endpoint: str) -> str | None:
    if told:
        return told
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


def of_s3(path: str) -> bool:
    """Whether a path is of S3."""
    return path.startswith(("s3://", "s3a://"))


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host.rpartition(":")[0].strip("[]") or host)
    except ValueError:
        return host.partition(":")[0] == "localhost"
    return True


_WHY: Final = (
    (("NETWORK_CONNECTION", "Could not connect", "EndpointConnectionError", "curlCode", "resolve"), "no store answers there"),
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
    system = _system(bucket, _ASKED_S, _ASKED)
    try:
        found = system.get_file_info(bucket).type
        problem = "" if found == pafs.FileType.Directory else f"bucket {bucket!r} not found"
        if not problem:
            system.get_file_info(pafs.FileSelector(f"{bucket}/_krishiv-probe", allow_not_found=True))
    except OSError as failed:
        problem = str(failed).splitlines()[0]
    if problem:
        raise EnvironmentSetupError(
            f"{path} cannot be reached: {_why(problem)}",
            got=problem,
            hint='see to the bucket, and to Session.builder().storage_options({"AWS_ENDPOINT_URL": ...}) or Spark\'s settings '
            "spark.hadoop.fs.s3a.…",
        )


def _why(problem: str) -> str:
    return next((why for signs, why in _WHY if any(sign in problem for sign in signs)), "the store refuses")
