"""Which store serves a URI."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from holdfast.errors import SetupError
from holdfast.pipeline.storage.local import LocalStore
from holdfast.pipeline.storage.port import Stat, Store, scheme_of


class Stores:
    """All stores of a run as one. Remote ones are made when the first URI of theirs is met."""

    def __init__(
        self, local: Store | None = None, remote: Callable[[], Store] | None = None
    ) -> None:
        self._local: Store = local or LocalStore()
        self._make_remote = remote
        self._remote: Store | None = None

    def files(self, uri: str) -> Iterator[Stat]:
        return self._of(uri).files(uri)

    def folders(self, uri: str) -> list[str]:
        return self._of(uri).folders(uri)

    def read(self, uri: str) -> bytes:
        return self._of(uri).read(uri)

    def create(self, uri: str, content: bytes) -> None:
        self._of(uri).create(uri, content)

    def replace(self, uri: str, content: bytes) -> None:
        self._of(uri).replace(uri, content)

    def remove(self, uri: str) -> None:
        self._of(uri).remove(uri)

    def _of(self, uri: str) -> Store:
        if scheme_of(uri) == "file":
            return self._local
        if self._remote is None:
            if self._make_remote is None:
                raise SetupError(
                    f"{uri} needs Spark's Hadoop client, and no engine runs; nothing was done. "
                    "Use a local directory, or a command that starts the engine"
                )
            self._remote = self._make_remote()
        return self._remote


def is_local(uri: str) -> bool:
    return scheme_of(uri) == "file"
