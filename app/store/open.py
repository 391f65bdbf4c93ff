"""Which store a deployment's address means: `s3://bucket/prefix`, `file:///abs/dir`, or the plain path of a directory."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote, urlsplit

from app.core.errors import Invalid
from app.store.contract import Store, check_key
from app.store.directory import DirectoryStore
from app.store.offload import Offloaded, hub_runs_here


def open_store(
    url: str,
    *,
    s3_endpoint: str | None = None,
    region: str | None = None,
    access_key: str | None = None,
    secret_key: str | None = None,
) -> Store:
    """The store at `url`; nothing is asked of it yet (`probe.probe` does that). Raises Invalid if `url` means none.

    A directory is made if need be; in a process that gevent has patched its slow calls don't stop the hub. What is given for
    S3 is ignored for a directory; credentials not given are found by boto.
    """
    if url.startswith("s3://"):
        parts = urlsplit(url)
        prefix = parts.path.strip("/")
        if not parts.netloc or parts.query or parts.fragment or (prefix and not _is_key(prefix)):
            raise Invalid("the object store must be s3://BUCKET or s3://BUCKET/PREFIX", "BYRE_OBJECT_STORE")
        from app.store.s3 import S3Store, connect  # its SDK takes longer to load than all the rest: only where it is used

        client = connect(endpoint=s3_endpoint, region=region, access_key=access_key, secret_key=secret_key)
        return S3Store(client, parts.netloc, prefix)
    path = unquote(urlsplit(url).path) if url.startswith("file://") else url
    if "://" in path or not Path(path).is_absolute():
        raise Invalid("the object store must be s3://BUCKET/PREFIX or the absolute path of a directory", "BYRE_OBJECT_STORE")
    directory = DirectoryStore(Path(path))
    return Offloaded(directory) if hub_runs_here() else directory


def _is_key(prefix: str) -> bool:
    try:
        check_key(prefix)
    except ValueError:
        return False
    return True
