"""How a host carries out what a turn asks for: one handler per type of effect."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any
from zlib import crc32

from holdfast.errors import MisuseError
from holdfast.group.config import SINK
from holdfast.group.ports import (
    Apply,
    AskLoss,
    LogRead,
    OutputsReady,
    ReadLog,
    RestoreState,
    SendOutputs,
    SourceRoom,
    StopOutputs,
    TakeSnapshot,
    Tell,
)
from holdfast.links.ports import (
    CloseFlow,
    FlowClosed,
    MayFragment,
    OpenFlow,
    PortReady,
    PortRefused,
    PortRoom,
    SessionEnded,
    Transmit,
)
from holdfast.sim.application import Job, Worker
from holdfast.sim.seeds import chance
from holdfast.sim.udp import UdpEnd

if TYPE_CHECKING:
    from holdfast.sim.host import Host

Handler = Callable[[Any], None]
Watcher = Callable[["Host", Any], None]


class Handlers(dict[type, Handler]):
    """By type of effect. Names an effect that nobody carries out, instead of a bare `KeyError`."""

    plain = False
    """Nobody looks at what is transmitted on its way to the network."""

    def __missing__(self, kind: type) -> Handler:
        raise MisuseError(f"no host of this world carries out {kind.__name__}: add it with `on`")


def handlers_of(host: Host) -> Handlers:
    """The handlers of a host that starts now; checkers that watch a type see it before it is carried out."""
    handlers = Handlers(
        {
            Transmit: partial(_transmit, host),
            OpenFlow: partial(host.world.network.open, host),
            CloseFlow: partial(_close, host),
            MayFragment: partial(_may_fragment, host),
            Apply: partial(_work, host),
            TakeSnapshot: partial(_work, host),
            RestoreState: partial(_work, host),
            AskLoss: partial(_work, host),
            Tell: partial(_work, host),
            PortReady: _ignore,
            PortRefused: _ignore,
            PortRoom: _ignore,
            SourceRoom: _ignore,
            ReadLog: partial(_read_log, host),
            OutputsReady: partial(_take_outputs, host),
            SendOutputs: _ignore,
            StopOutputs: _ignore,
            SessionEnded: _ignore,
        }
    )
    transmit = handlers[Transmit]
    for kind, callback in host.callbacks.items():
        handlers[kind] = partial(callback, host)
    for kind, watchers in host.world.watchers.items():
        handlers[kind] = partial(_watched, host, watchers, handlers.get(kind, _ignore))
    if host.world.trace is not None:
        handlers[Transmit] = partial(_traced, host, handlers[Transmit])
    handlers.plain = handlers[Transmit] is transmit
    return handlers


def _watched(host: Host, watchers: list[Watcher], handler: Handler, effect: Any) -> None:
    for watcher in watchers:
        watcher(host, effect)
    handler(effect)


def _traced(host: Host, handler: Handler, effect: Transmit) -> None:
    """Every byte that leaves a host is part of the digest."""
    assert host.world.trace is not None
    digest = 0
    for packet in effect.packets:
        digest = crc32(bytes(packet), digest)
    line = f"transmit {effect.flow} {len(effect.packets)} {digest:08x}"
    host.world.trace.line(host.world.now, host.name, line)
    handler(effect)


def _transmit(host: Host, effect: Transmit) -> None:
    end = host.flows.get(effect.flow)
    if end is not None:  # Else it was closed meanwhile; the core hears of that in its next turn.
        end.send(effect.packets)


def _close(host: Host, effect: CloseFlow) -> None:
    end = host.flows.pop(effect.flow, None)
    if end is None:
        return
    if host.world.trace is not None:
        host.world.trace.line(host.world.now, host.name, f"closes {effect.flow}: {effect.reason}")
    end.close()
    host.tell(FlowClosed(effect.flow, effect.reason))


def _may_fragment(host: Host, effect: MayFragment) -> None:
    end = host.flows.get(effect.flow)
    if isinstance(end, UdpEnd):
        end.fragments = True


def _work(host: Host, job: Job) -> None:
    worker = host.workers.get(job.unit)
    if worker is None:
        if host.application is None:
            raise MisuseError(f"host {host.name} has no application for {job.unit}")
        random = chance(host.world.seed, "worker", host.name, job.unit)
        replica = host.application(job.unit)
        worker = Worker(host, job.unit, replica, random, host.profile.apply_ns)
        host.workers[job.unit] = worker
    worker.give(job)


def _read_log(host: Host, effect: ReadLog) -> None:
    host.give(effect.unit, LogRead(effect.table, host.disk.rows(effect.table)))


def _take_outputs(host: Host, effect: OutputsReady) -> None:
    host.give(SINK, effect.taken())


def _ignore(_: object) -> None:
    """Nobody on this host wants to know."""
