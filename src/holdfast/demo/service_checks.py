"""Watches the role, the dialog and the object of the demonstration while a node is killed and restarted.

Each method returns claims: a text, whether it holds, and a detail.
"""

from __future__ import annotations

import time
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

from holdfast.demo.domain import Domain
from holdfast.errors import HoldfastError

Finding = tuple[str, bool, str]

ENTRIES = 300
"""Some are sent before the node is killed, while it is gone, and after it has returned."""
SUBMITTER = "n2"
REQUEST_S = 0.5
"""After this time, a slow request has reached every instance, and none has answered."""
ANSWER_S_MAX = 20.0
"""Enough for a request that waits until the death of a node is known."""
DELIVERY_S_MAX = 40.0


class ServiceChecks:
    """`victim` is the node that dies; `watcher` asks the questions."""

    def __init__(self, domain: Domain, victim: str, watcher: str) -> None:
        self._domain = domain
        self._victim = victim
        self._watcher = watcher
        self._threads = ThreadPoolExecutor(1)
        self._outcome: Future[dict[str, Any]] | None = None
        self._digest = ""

    def before(self) -> list[Finding]:
        """Start the dialog and a slow request, and create the object, while every node is up."""
        names = sorted(self._domain.members)
        all_of_them = self._domain[self._watcher].ask("quotes")
        stored = self._domain[self._watcher].ask("publish", timeout_s=ANSWER_S_MAX)
        self._digest = stored["digest"]
        self._domain[SUBMITTER].ask("submit", to=self._victim, count=ENTRIES)
        slowly = partial(
            self._domain[self._watcher].ask, "quotes", slow=True, timeout_s=ANSWER_S_MAX
        )
        self._outcome = self._threads.submit(slowly)
        time.sleep(REQUEST_S)
        return [
            (
                "a request to a role reaches every instance",
                all_of_them["answered"] == names and all_of_them["complete"],
                f"{len(all_of_them['answered'])} of {len(names)} answered",
            ),
            (
                "an object is stored on three nodes",
                len(stored["nodes"]) == 3,
                f"replicas on {', '.join(stored['nodes'])}",
            ),
        ]

    def while_down(self) -> list[Finding]:
        """The request that was under way, and the object, without the killed node."""
        assert self._outcome is not None
        try:
            outcome = self._outcome.result(timeout=2 * ANSWER_S_MAX)
        except HoldfastError as error:
            outcome = {"answered": [], "failed": [], "unknown": [], "error": str(error)}
        finally:
            self._threads.shutdown(wait=False)
        # The answers of instances behind the victim went through it: they are named, too.
        named = outcome["answered"] + outcome["failed"] + outcome["unknown"]
        is_named = sorted(named) == sorted(self._domain.members)
        read = self._domain[self._watcher].ask("fetch", timeout_s=ANSWER_S_MAX)
        return [
            (
                "the request under way names the instance that died",
                self._victim in outcome["failed"] and is_named,
                outcome.get("error") or _told(outcome),
            ),
            (
                "the object is still read",
                read["digest"] == self._digest,
                read["reason"] or "the content has the same SHA-256",
            ),
        ]

    def delivered(self) -> bool:
        """Everything that the dialog took has reached the ledger of the restarted node."""
        self._domain[SUBMITTER].ask("submit")
        ledger = self._domain[self._victim].try_ask("ledger")
        return ledger is not None and ledger["entries"] >= ENTRIES

    def after(self) -> list[Finding]:
        ledger = self._domain[self._victim].ask("ledger")
        return [
            (
                "the dialog delivered everything exactly once, in order",
                ledger["entries"] == ENTRIES and ledger["in_order"],
                f"{ledger['entries']} of {ENTRIES} entries in the ledger of {self._victim}, "
                + ("numbered from 1 without a gap" if ledger["in_order"] else "out of order"),
            )
        ]


def _told(outcome: dict[str, Any]) -> str:
    """What the asker learned of every instance."""
    parts = ("answered", "failed", "unknown")
    return "; ".join(f"{part}: {', '.join(outcome[part])}" for part in parts if outcome[part])
