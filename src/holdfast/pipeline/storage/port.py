"""What the pipeline needs of a store, and how URIs are put together."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Protocol

import msgspec

from holdfast.errors import HoldfastError

_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(?=/|$)")


class StorageFailed(HoldfastError):
    """The store refused an operation; names the location and the reason."""


class AlreadyThere(Exception):
    """A file with this name exists. Raised by `create` alone."""


class Missing(Exception):
    """There is no file with this name."""


class Stat(msgspec.Struct, frozen=True, order=True):
    """A file: where, how large, when it was last changed."""

    uri: str
    size: int
    mtime_ms: int


class Store(Protocol):
    """Files of one scheme."""

    def files(self, uri: str) -> Iterator[Stat]:
        """All files below a directory, at any depth, sorted. Nothing if the directory does not exist."""

    def folders(self, uri: str) -> list[str]:
        """The names of the directories in a directory, sorted. Nothing if it does not exist."""

    def read(self, uri: str) -> bytes:
        """The content of a file; raises `Missing`."""

    def create(self, uri: str, content: bytes) -> None:
        """Make a file that must not exist; raises `AlreadyThere`, and then nothing changed.

        Of several callers one succeeds. A store that cannot create and fill a file in one step may show a prefix of
        the content for a moment, or for good if the writer dies: contents that matter carry a checksum.
        """

    def replace(self, uri: str, content: bytes) -> None:
        """Make or replace a file. Readers see the old or the new content where the store can do that."""

    def remove(self, uri: str) -> None:
        """Remove a file or a directory with everything in it. Fine if it is not there."""


def scheme_of(location: str) -> str:
    """The scheme of a URI; `file` for a plain path."""
    match = _SCHEME.match(location)
    return match[1].lower() if match else "file"


def to_uri(location: str | Path) -> str:
    """A URI for a plain path (made absolute) or a URI, without a slash at the end.

    Nothing is escaped: this is how Hadoop and Spark take and give locations.
    """
    text = str(location)
    if _SCHEME.match(text) is None:
        return f"file://{Path(text).absolute()}"
    if scheme_of(text) == "file":
        return "file:///" + text.partition(":")[2].strip("/")
    return text.rstrip("/")


def to_path(uri: str) -> Path:
    """The local path of a `file:` URI."""
    assert scheme_of(uri) == "file", uri
    return Path("/" + uri.partition(":")[2].lstrip("/"))


def join(uri: str, *parts: str) -> str:
    """`parts` below `uri`. Names are the pipeline's own: letters, digits and `.-_=`."""
    return "/".join([uri.rstrip("/"), *(part.strip("/") for part in parts)])


def for_people(uri: str) -> str:
    """A URI as people write it: a plain path for a local one."""
    return str(to_path(uri)) if scheme_of(uri) == "file" else uri
