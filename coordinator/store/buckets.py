"""S3-compatible object stores: how they are opened, and what their refusals mean.

Credentials come from where AWS's own tools take them (environment, shared files, the machine's role), never from the
settings. An object appears whole when its upload has ended, and not before.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, Final

import fsspec

from mien.errors import ConfigError, KeyStoreError, MienError, MissingDependencyError, UnreachableError

_RETRY_AFTER_S: Final = 5.0
_READ_AHEAD_BYTES: Final = 1024 * 1024
_OPTIONS: Final[dict[str, Any]] = {
    "skip_instance_cache": True,  # credentials and environment as they are now
    "use_listings_cache": False,  # another program may have written
    "default_block_size": _READ_AHEAD_BYTES,
    "default_cache_type": "readahead",
    "config_kwargs": {
        "connect_timeout": 5,
        "read_timeout": 30,
        "retries": {"max_attempts": 3, "mode": "standard"},
        "user_agent_extra": "mien",
    },
}


def is_bucket(url: str) -> bool:
    """Return whether a URL names a place in a bucket."""
    return url.startswith(("s3://", "s3a://"))


def open_bucket(url: str, endpoint: str) -> tuple[Any, str]:
    """Return the file system and path of ``s3://BUCKET/PREFIX``, whose bucket is there and may be used.

    An empty `endpoint` means what AWS's tools would ask. Raises ConfigError for a bucket that does not exist,
    KeyStoreError for credentials that are missing or refused, UnreachableError when nobody answers.
    """
    try:
        with bucket_errors():
            fs, path = fsspec.core.url_to_fs(url, endpoint_url=endpoint or None, **_OPTIONS)
            bucket = str(path).partition("/")[0]
            fs.call_s3("head_bucket", Bucket=bucket)
    except ImportError as error:
        raise MissingDependencyError("s3:// needs s3fs; pip install '.[coordinator]' in Mien's folder") from error
    except FileNotFoundError as error:
        raise ConfigError(f"there is no bucket {bucket}; create it, or correct blobs_url") from error
    return fs, str(path)


@contextlib.contextmanager
def bucket_errors() -> Iterator[None]:
    """Turn an object store's refusals, after the tries of its client, into errors that say what to do.

    A FileNotFoundError goes through: only the caller knows what should have been there.
    """
    from botocore.exceptions import BotoCoreError  # type: ignore[import-untyped]

    try:
        yield
    except FileNotFoundError as error:
        if _says(error, "NoSuchBucket"):
            raise UnreachableError(
                "the bucket of blobs_url is gone; create it again, nothing was changed", retry_after_s=_RETRY_AFTER_S
            ) from error
        raise
    except PermissionError as error:
        raise KeyStoreError(
            "the object store refuses the credentials; correct them, or allow them to get, put, list and delete objects"
        ) from error
    except OSError as error:
        raise UnreachableError(
            "the object store answered with an error; look at its log, then try again", retry_after_s=_RETRY_AFTER_S
        ) from error
    except BotoCoreError as error:
        raise _explained(type(error).__name__) from error


def _explained(name: str) -> MienError:
    """Return the error for an error of the client, by its class."""
    if "Credential" in name or "Token" in name or name == "ProfileNotFound":
        return KeyStoreError(
            "there are no credentials for the object store: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or use "
            "a shared credentials file or a role"
        )
    if name in ("ParamValidationError", "InvalidEndpointError", "NoRegionError", "InvalidRegionError"):
        return ConfigError("blobs_url or blobs_endpoint is not one of an object store: write s3://BUCKET/PREFIX")
    return UnreachableError(
        "the object store does not answer; check blobs_endpoint and the network", retry_after_s=_RETRY_AFTER_S
    )


def _says(error: OSError, code: str) -> bool:
    """Return whether the store's own answer behind an error has this code."""
    answer = getattr(error.__cause__, "response", None)
    return isinstance(answer, dict) and answer.get("Error", {}).get("Code") == code
