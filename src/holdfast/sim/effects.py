"""Performs the effects of a turn: one handler per type of effect."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any
from zlib import crc32

from holdfast.errors import MisuseError
from holdfast.links.ports import CloseFlow, FlowClosed, MayFragment, OpenFlow, Transmit
from holdfast.machine import ReadTable, TableRead
from holdfast.sim.udp import UdpEnd

if TYPE_CHECKING:
    from holdfast.sim.host import Host

Handler = Callable[[Any], None]
Watcher = Callable[["Host", Any], None]


class Handlers(dict[type, Handler]):
    """Handlers by type of effect. Names an effect without a handler, instead of a bare `KeyError`."""

    plain = False
    """Transmitted packets are not inspected on their way to the network."""

    def __missing__(self, kind: type) -> Handler:
        raise MisuseError(
            f"no host of this world has a handler for {kind.__name__}: add it with `on`"
        )


def handlers_of(host: Host) -> Handlers:
    """The handlers of a host that starts now; checkers that watch a type see it first."""
    handlers = Handlers(
        {
            Transmit: partial(_transmit, host),
            OpenFlow: partial(host.world.network.open, host),
            CloseFlow: partial(_close, host),
            MayFragment: partial(_may_fragment, host),
            ReadTable: partial(_read_table, host),
        }
    )
    for edge in host.edges:
        handlers.update(edge.effects())
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
    if end is not None:  # otherwise it has been closed; the core learns of that in its next turn
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


def _read_table(host: Host, effect: ReadTable) -> None:
    rows = host.disk.rows(effect.table, effect.first, effect.stop, effect.limit)
    host.give(effect.unit, TableRead(effect.table, rows))


def _ignore(_: object) -> None:
    """This effect is not needed on this host."""
