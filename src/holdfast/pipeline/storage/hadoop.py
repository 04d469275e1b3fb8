"""Files of every scheme that the Hadoop client in Spark's JVM reads: HDFS, object stores, mounts.

PyPI's Spark contains the client for HDFS. For `s3a:`, `gs:` and `abfs:` the operator adds the jar of that scheme
(`spark.jars.packages`); without it the first access fails with a message that says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final, TypeVar

from holdfast.errors import SetupError
from holdfast.pipeline.storage.port import (
    AlreadyThere,
    Missing,
    Stat,
    StorageFailed,
    join,
    scheme_of,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_T = TypeVar("_T")
_EXISTS: Final = ("FileAlreadyExistsException", "PreconditionFailed", "412 Precondition")
_JARS: Final = {
    "s3a": "org.apache.hadoop:hadoop-aws",
    "gs": "com.google.cloud.bigdataoss:gcs-connector",
    "abfs": "org.apache.hadoop:hadoop-azure",
    "abfss": "org.apache.hadoop:hadoop-azure",
}


class HadoopStore:
    """`Store` over `org.apache.hadoop.fs.FileSystem`."""

    def __init__(self, session: SparkSession) -> None:
        context = getattr(session, "_sc", None)
        if context is None:
            raise SetupError(
                "a Spark Connect session has no Hadoop client of its own; nothing was done. "
                "With sc:// use directories that this machine and the server share"
            )
        self._jvm: Any = context._jvm
        self._conf: Any = context._jsc.hadoopConfiguration()

    def files(self, uri: str) -> Iterator[Stat]:
        found = _calling(uri, lambda: self._list(uri))
        yield from sorted(found)

    def folders(self, uri: str) -> list[str]:
        return _calling(uri, lambda: self._folders(uri))

    def read(self, uri: str) -> bytes:
        def load() -> bytes:
            stream = self._system(uri).open(self._path(uri))
            try:
                return bytes(self._jvm.org.apache.commons.io.IOUtils.toByteArray(stream))
            finally:
                stream.close()

        return _calling(uri, load)

    def create(self, uri: str, content: bytes) -> None:
        _calling(uri, lambda: self._write(uri, content, overwrite=False))

    def replace(self, uri: str, content: bytes) -> None:
        _calling(uri, lambda: self._write(uri, content, overwrite=True))

    def remove(self, uri: str) -> None:
        _calling(uri, lambda: self._system(uri).delete(self._path(uri), True))

    def _list(self, uri: str) -> list[Stat]:
        system, path = self._system(uri), self._path(uri)
        if not system.exists(path):
            return []
        found: list[Stat] = []
        listing = system.listFiles(path, True)
        while listing.hasNext():
            status = listing.next()
            place = self._below(uri, status.getPath())
            found.append(Stat(place, status.getLen(), status.getModificationTime()))
        return found

    def _below(self, uri: str, path: Any) -> str:
        """A listed path under the name that the caller uses: a mount may answer with the target's name."""
        names: list[str] = []
        top = self._path(uri)
        depth = path.depth() - top.depth()
        for _ in range(depth):
            names.insert(0, path.getName())
            path = path.getParent()
        return join(uri, *names)

    def _folders(self, uri: str) -> list[str]:
        system, path = self._system(uri), self._path(uri)
        if not system.exists(path):
            return []
        return sorted(s.getPath().getName() for s in system.listStatus(path) if s.isDirectory())

    def _write(self, uri: str, content: bytes, overwrite: bool) -> None:
        stream = self._system(uri).create(self._path(uri), overwrite)
        try:
            stream.write(bytearray(content))
        finally:
            stream.close()

    def _path(self, uri: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(uri)

    def _system(self, uri: str) -> Any:
        return self._path(uri).getFileSystem(self._conf)


def _calling(uri: str, step: Callable[[], _T]) -> _T:
    """Call into Java; its exceptions become ours."""
    from py4j.protocol import Py4JJavaError

    try:
        return step()
    except Py4JJavaError as failure:
        said = str(failure.java_exception.toString())
        if "FileNotFoundException" in said:
            raise Missing(uri) from None
        if any(word in said for word in _EXISTS) or "already exists" in said:
            raise AlreadyThere(uri) from None
        if "ClassNotFoundException" in said or "No FileSystem for scheme" in said:
            raise SetupError(_no_client(uri)) from None
        raise StorageFailed(f"{uri}: {said.partition(chr(10))[0][:500]}") from failure


def _no_client(uri: str) -> str:
    scheme = scheme_of(uri)
    jar = _JARS.get(scheme)
    how = (
        f"Add the jar: spark.jars.packages={jar}:<the version of Hadoop in this Spark> in spark-defaults.conf"
        if jar
        else "Use a scheme that the Hadoop client reads, or a plain path"
    )
    return (
        f"Spark has no client for {scheme}: here, so {uri} cannot be read; nothing was done. {how}"
    )
