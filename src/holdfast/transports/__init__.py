"""Transports carry packets between nodes. Sockets, clocks and certificates belong here.

`port` defines the interface between a transport and the driver. `tcp` and `udp` have one listening socket per adapter;
`sides` has additional measuring sockets for datagrams, and `multicast` the socket of a multicast group. A TCP flow is a
`connection`: `framing` splits the stream into packets, `secure` is TLS without IO, `tls` verifies certificates, and
`authority` issues them. `websocket` carries the same flows through HTTP proxies; `http_connections` bounds the
connections of HTTP servers. `faults` injects faults below all of them. `sockets` and `refusals` are shared code.
"""

from holdfast.transports.faults import Faults, Rule
from holdfast.transports.multicast import MulticastTransport
from holdfast.transports.port import Counters, Events, Transport
from holdfast.transports.tcp import TcpLimits, TcpTransport
from holdfast.transports.tls import Credentials, Tls, check_certificate, load_tls
from holdfast.transports.udp import UdpLimits, UdpTransport
from holdfast.transports.websocket import WebSocketTransport

__all__ = [
    "Counters",
    "Credentials",
    "Events",
    "Faults",
    "MulticastTransport",
    "Rule",
    "TcpLimits",
    "TcpTransport",
    "Tls",
    "Transport",
    "UdpLimits",
    "UdpTransport",
    "WebSocketTransport",
    "check_certificate",
    "load_tls",
]
