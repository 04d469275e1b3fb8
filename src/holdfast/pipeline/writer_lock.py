"""One run at a time on a local output directory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from holdfast.pipeline.snapshot import PipelineBusy
from holdfast.pipeline.storage.port import to_path
from holdfast.pipeline.storage.stores import is_local


@contextmanager
def sole_writer(root: str) -> Iterator[None]:
    """Hold a local output directory for one run, so that a second one stops early. The lock ends with the process.

    It saves work and is not needed for safety: creating the snapshot is exclusive.
    """
    if not is_local(root):
        yield
        return
    import fcntl

    folder = to_path(root)
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise PipelineBusy(
                f"another run writes to {folder} right now; nothing was done. Try again when it is done"
            ) from None
        yield
