"""Options of an object store under the names that delta-rs, Polars and the AWS tools have for them, as Spark's settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from krishiv_py.errors import PlanError, shown
from krishiv_py.plan.checks import setting
from krishiv_py.storage.stores.google import ANONYMOUS, KEY_FILE

HADOOP: Final = "spark.hadoop."
"""Spark's names of Hadoop's settings begin so."""
_HADOOP: Final = "spark.hadoop.fs.s3a."
_TEXTS: Final[dict[str, str]] = {
    "AWS_ACCESS_KEY_ID": "access.key",
    "AWS_SECRET_ACCESS_KEY": "secret.key",
    "AWS_SESSION_TOKEN": "session.token",
    "AWS_REGION": "endpoint.region",
    "AWS_ENDPOINT_URL": "endpoint",
}
_SWITCHES: Final = ("AWS_ALLOW_HTTP", "AWS_VIRTUAL_HOSTED_STYLE_REQUEST", "AWS_SKIP_SIGNATURE")
_GOOGLE: Final = "spark.hadoop.fs.gs."
_KEY_FILES: Final = ("GOOGLE_SERVICE_ACCOUNT", "GOOGLE_APPLICATION_CREDENTIALS")
_GOOGLE_NAMES: Final = (*_KEY_FILES, "GOOGLE_BASE_URL", "GOOGLE_SKIP_SIGNATURE")
_AZURE: Final = "spark.hadoop.fs.azure."
_AZURE_TEXTS: Final[dict[str, str]] = {
    "AZURE_STORAGE_ACCOUNT_KEY": "account.key",
    "AZURE_STORAGE_CLIENT_ID": "account.oauth2.client.id",
    "AZURE_STORAGE_CLIENT_SECRET": "account.oauth2.client.secret",
    "AZURE_STORAGE_TENANT_ID": "account.oauth2.client.endpoint",
    "AZURE_STORAGE_ENDPOINT": "endpoint",
}
_SIGN_IN: Final = "https://login.microsoftonline.com/{}/oauth2/token"
_SIGNS_IN: Final = "org.apache.hadoop.fs.azurebfs.oauth2.ClientCredsTokenProvider"
_APPLICATION: Final = ("AZURE_STORAGE_CLIENT_ID", "AZURE_STORAGE_CLIENT_SECRET", "AZURE_STORAGE_TENANT_ID")
_PROVIDERS: Final = "org.apache.hadoop.fs.s3a."
_YES_OR_NO: Final = {"true": True, "1": True, "false": False, "0": False}


def spark_settings(options: object) -> tuple[tuple[str, str], ...]:
    """Return the settings of Spark's that say the same.

    Raises
    ------
    PlanError
        For a name or value that is none, and for half of a pair of keys.
    """
    if not isinstance(options, Mapping):
        hint = 'pass a dict: {"AWS_REGION": "eu-central-1"}'
        raise PlanError("`options` is not a dict", got=type(options).__name__, hint=hint)
    given = {name.upper(): value for name, value in (setting(name, each) for name, each in options.items())}
    for name in given:
        if name not in (*_TEXTS, *_SWITCHES, *_GOOGLE_NAMES, *_AZURE_TEXTS):
            raise PlanError(
                "no such option of a store",
                got=shown(name),
                hint=f"use {', '.join([*_TEXTS, *_SWITCHES, *_GOOGLE_NAMES, *_AZURE_TEXTS])}, or .config() with a setting "
                "of Hadoop's: spark.hadoop.fs.s3a.…, spark.hadoop.fs.gs.… or spark.hadoop.fs.azure.…",
            )
    if ("AWS_ACCESS_KEY_ID" in given) != ("AWS_SECRET_ACCESS_KEY" in given):
        got = "AWS_ACCESS_KEY_ID" if "AWS_ACCESS_KEY_ID" in given else "AWS_SECRET_ACCESS_KEY"
        raise PlanError("half of a pair of keys", got=got, hint="pass both, or neither")
    settings = {_TEXTS[name]: value for name, value in given.items() if name in _TEXTS}
    s3 = tuple((_HADOOP + name, value) for name, value in {**settings, **_switched(given)}.items())
    others = {_GOOGLE + name: value for name, value in _google(given).items()}
    others |= {_AZURE + name: value for name, value in _azure(given).items()}
    return (*s3, *others.items())


def _azure(given: Mapping[str, str]) -> dict[str, str]:
    """Return the settings with which Azure is reached."""
    settings = {setting: given[name] for name, setting in _AZURE_TEXTS.items() if name in given}
    named = [name for name in _APPLICATION if name in given]
    if named and "account.key" in settings:
        raise PlanError(
            "credentials for Azure are given in two ways",
            got=", ".join(["AZURE_STORAGE_ACCOUNT_KEY", *named]),
            hint="pass the key of the account, or the three values of an application",
        )
    if named and len(named) < len(_APPLICATION):
        hint = f"pass {', '.join(_APPLICATION)}"
        raise PlanError("an application of Azure lacks a value", got=", ".join(named), hint=hint)
    if named:
        settings["account.oauth2.client.endpoint"] = _SIGN_IN.format(given["AZURE_STORAGE_TENANT_ID"])
        settings |= {"account.auth.type": "OAuth", "account.oauth.provider.type": _SIGNS_IN}
    elif "account.key" in settings:
        settings["account.auth.type"] = "SharedKey"
    return settings


def _google(given: Mapping[str, str]) -> dict[str, str]:
    """Return what reaches Google's store."""
    settings: dict[str, str] = {}
    if "GOOGLE_BASE_URL" in given:
        settings["storage.root.url"] = given["GOOGLE_BASE_URL"]
    key_files = {given[name] for name in _KEY_FILES if name in given}
    anonymous = _switch(given, "GOOGLE_SKIP_SIGNATURE")
    if len(key_files) > 1 or (key_files and anonymous):
        raise PlanError(
            "credentials for Google's store are given in two ways",
            got=", ".join(name for name in _GOOGLE_NAMES if name in given and name != "GOOGLE_BASE_URL"),
            hint="pass GOOGLE_SERVICE_ACCOUNT, the path of a key file, or GOOGLE_SKIP_SIGNATURE",
        )
    if key_files:
        [key_file] = key_files
        if key_file.lstrip().startswith("{"):
            raise PlanError(
                "a key is where the path of its file belongs",
                got="[redacted]",
                then="Spark's connector reads keys from files",
                hint="write it into a file that every machine has, and pass the path",
            )
        settings |= {"auth.type": KEY_FILE, "auth.service.account.json.keyfile": key_file}
    elif anonymous:
        settings["auth.type"] = ANONYMOUS
    return settings


def _switched(given: Mapping[str, str]) -> dict[str, str]:
    """Return what the switches say, and what follows from an endpoint and from keys."""
    settings: dict[str, str] = {}
    endpoint = given.get("AWS_ENDPOINT_URL", "")
    http = _switch(given, "AWS_ALLOW_HTTP")
    if endpoint.startswith("http://"):
        if http is False:
            raise PlanError(
                "the endpoint is not encrypted",
                got=endpoint,
                then="AWS_ALLOW_HTTP is false",
                hint="write https://, or AWS_ALLOW_HTTP true",
            )
        settings["connection.ssl.enabled"] = "false"
    virtual = _switch(given, "AWS_VIRTUAL_HOSTED_STYLE_REQUEST")
    if virtual is not None or endpoint:
        settings["path.style.access"] = "false" if virtual else "true"
    if "AWS_ACCESS_KEY_ID" in given:
        kind = "TemporaryAWSCredentialsProvider" if "AWS_SESSION_TOKEN" in given else "SimpleAWSCredentialsProvider"
        settings["aws.credentials.provider"] = _PROVIDERS + kind
    elif _switch(given, "AWS_SKIP_SIGNATURE"):
        settings["aws.credentials.provider"] = _PROVIDERS + "AnonymousAWSCredentialsProvider"
    return settings


def _switch(given: Mapping[str, str], name: str) -> bool | None:
    if name not in given:
        return None
    if given[name].lower() not in _YES_OR_NO:
        raise PlanError(f"{name} is neither true nor false", got=given[name], hint="write true")
    return _YES_OR_NO[given[name].lower()]
