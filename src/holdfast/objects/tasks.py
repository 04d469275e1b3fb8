"""Procedures: operations of several steps, written as generators.

A procedure yields a deadline and is resumed with the next event that concerns it: the reply to a call, the outcome of
disk work, or None when the deadline has passed. It has no IO and no clock: the machine gives it both.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Mapping
from typing import Any, Final, TypeVar

from holdfast.objects.hub import Hub
from holdfast.objects.refusal import Refusal
from holdfast.types import NEVER, Nanos

EVENTS_MAX: Final = 4096
"""Events of one task; more unrequested ones are dropped, and asked for again by its deadline."""
T = TypeVar("T")
Procedure = Generator[Nanos, Any, T]


class Reply:
    """The answer of a node to a call; `frame` is None when it did not answer."""

    __slots__ = ("call", "frame", "node")

    def __init__(self, node: bytes, call: int, frame: Any) -> None:
        self.node = node
        self.call = call
        self.frame = frame


class Answer:
    """The outcome of work outside of the machine."""

    __slots__ = ("item", "token")

    def __init__(self, token: int, item: Any) -> None:
        self.token = token
        self.item = item


class Task:
    """One running procedure."""

    __slots__ = (
        "_hub",
        "calls",
        "deadline",
        "done",
        "events",
        "name",
        "on_end",
        "op",
        "procedure",
        "tokens",
    )

    def __init__(self, hub: Hub, name: str, op: int, on_end: Callable[[Any], None]) -> None:
        self._hub = hub
        self.name = name
        self.op = op
        self.on_end = on_end
        self.procedure: Procedure[Any] | None = None
        self.deadline: Nanos = NEVER
        self.events: deque[Any] = deque()
        """Bounded by the calls and the work that the task has started: each has one event."""
        self.calls: dict[int, bytes] = {}
        self.tokens: dict[int, None] = {}
        self.done = False

    @property
    def now(self) -> Nanos:
        return self._hub.now

    def call(self, node: bytes, make: Callable[[int], Any], cls: int | None = None) -> int:
        """Send a request to a node; a `Reply` follows, or one without a frame when the node is lost."""
        call = self._hub.number()
        self.calls[call] = node
        self._hub.calls[call] = (self, node)
        if not self._hub.send(node, make(call), cls):
            self._hub.fail_later(call)
        return call

    def work(self, make: Callable[[int], Any]) -> int:
        """Ask for work outside; an `Answer` follows."""
        token = self._hub.number()
        self.tokens[token] = None
        self._hub.works[token] = self
        self._hub.effect(make(token))
        return token

    def expect(self) -> int:
        """A token for something inside of the machine that answers later, with `Tasks.answered`."""
        token = self._hub.number()
        self.tokens[token] = None
        self._hub.works[token] = self
        return token

    def give_up(self, call: int) -> None:
        """A reply is not wanted any more."""
        self.calls.pop(call, None)
        self._hub.calls.pop(call, None)

    def end(self) -> None:
        for call in self.calls:
            self._hub.calls.pop(call, None)
        for token in self.tokens:
            self._hub.works.pop(token, None)
        self.calls.clear()
        self.tokens.clear()
        self.done = True


class Tasks:
    """Runs procedures. Bounded by the callers: applications, and the upkeep of replicas."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self.running: dict[Task, None] = {}
        self._ready: deque[Task] = deque()

    def start(
        self,
        name: str,
        make: Callable[[Task], Procedure[Any]],
        on_end: Callable[[Any], None],
        op: int = 0,
    ) -> Task:
        task = self.prepare(name, make, on_end, op)
        self.launch(task)
        return task

    def prepare(
        self,
        name: str,
        make: Callable[[Task], Procedure[Any]],
        on_end: Callable[[Any], None],
        op: int,
    ) -> Task:
        task = Task(self._hub, name, op, on_end)
        task.procedure = make(task)
        return task

    def launch(self, task: Task) -> None:
        self.running[task] = None
        self._step(task, None, first=True)

    def cancel(self, task: Task) -> None:
        if task in self.running:
            del self.running[task]
            task.end()
            assert task.procedure is not None
            task.procedure.close()

    def replied(self, node: bytes, call: int, frame: Any) -> bool:
        """A reply came; False if no task waits for it."""
        waiting = self._hub.calls.get(call)
        if waiting is None or waiting[1] != node:
            return False
        task: Task = waiting[0]
        task.give_up(call)
        self._add(task, Reply(node, call, frame))
        return True

    def answered(self, token: int, item: Any) -> bool:
        task: Task | None = self._hub.works.pop(token, None)
        if task is None:
            return False
        task.tokens.pop(token, None)
        self._add(task, Answer(token, item))
        return True

    def answered_directly(self, task: Task, item: Any) -> None:
        """Something that a task did not ask for one by one. At most a few of these wait."""
        if task in self.running and len(task.events) < EVENTS_MAX:
            self._add(task, Answer(0, item))

    def lost(self, node: bytes) -> None:
        """A peer is gone: nothing that was asked of it is answered."""
        for call, (_, to) in list(self._hub.calls.items()):
            if to == node:
                self.replied(node, call, None)

    def failed(self, call: int) -> None:
        """A call that could not be sent."""
        waiting = self._hub.calls.get(call)
        if waiting is not None:
            self.replied(waiting[1], call, None)

    def _add(self, task: Task, event: Any) -> None:
        task.events.append(event)
        self._ready.append(task)

    def run(self) -> None:
        """Resume every task that has an event, or whose deadline has passed."""
        while self._ready:
            task = self._ready.popleft()
            while task.events and not task.done:
                self._step(task, task.events.popleft())
        now = self._hub.now
        for task in [task for task in self.running if task.deadline <= now]:
            if not task.done and not task.events:
                self._step(task, None)

    @property
    def busy(self) -> bool:
        return bool(self._ready)

    def next_deadline(self) -> Nanos:
        return min((task.deadline for task in self.running), default=NEVER)

    def _step(self, task: Task, event: Any, first: bool = False) -> None:
        assert task.procedure is not None
        try:
            task.deadline = next(task.procedure) if first else task.procedure.send(event)
        except StopIteration as stop:
            self._finish(task, stop.value)
        except Refusal as refusal:
            self._finish(task, refusal)

    def _finish(self, task: Task, value: Any) -> None:
        self.running.pop(task, None)
        task.end()
        task.on_end(value)


# -- common steps --------------------------------------------------------------------------------------------------


def gather(
    task: Task,
    requests: Mapping[bytes, Callable[[int], Any]],
    timeout_ns: Nanos,
    enough: Callable[[dict[bytes, Any]], bool] = lambda _: False,
) -> Procedure[dict[bytes, Any]]:
    """Ask several nodes; the replies by node, None for those that did not answer. Ends as soon as it is enough."""
    calls = {task.call(node, make): node for node, make in requests.items()}
    replies: dict[bytes, Any] = {}
    deadline = task.now + timeout_ns
    while len(replies) < len(calls):
        event = yield deadline
        if event is None:
            if task.now >= deadline:
                break
            continue
        if isinstance(event, Reply) and event.call in calls:
            replies[event.node] = event.frame
            if enough(replies):
                break
    for call, node in calls.items():
        task.give_up(call)
        replies.setdefault(node, None)
    return replies


def work(task: Task, make: Callable[[int], Any], timeout_ns: Nanos = 0) -> Procedure[Any]:
    """Have one piece of work done outside; its outcome, or None when it takes too long."""
    return (yield from wait_for(task, task.work(make), timeout_ns))


def wait_for(task: Task, token: int, timeout_ns: Nanos = 0) -> Procedure[Any]:
    """The answer with this token, or None when it takes too long."""
    deadline = task.now + timeout_ns if timeout_ns else NEVER
    while True:
        event = yield deadline
        if isinstance(event, Answer) and event.token == token:
            return event.item
        if event is None and task.now >= deadline:
            return None


def pause(task: Task, duration_ns: Nanos) -> Procedure[None]:
    deadline = task.now + duration_ns
    while task.now < deadline:
        yield deadline
