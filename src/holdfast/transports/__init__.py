"""Transports: what carries packets between nodes. This is the edge: sockets, clocks and certificates live here.

`port` says what a transport is and what it tells the driver. `tcp` and `udp` are one socket each that listens on one
adapter; `sides` are further sockets for datagrams that measure, and `multicast` is the socket of a group. A TCP flow
is a `connection`: `framing` cuts the stream into packets, `secure` is TLS without IO, `tls` decides whom to believe,
`authority` makes the certificates. `faults` breaks the network on purpose, below all of them. `sockets` and
`refusals` are what they share.
"""

from holdfast.transports.faults import Faults, Rule
from holdfast.transports.multicast import MulticastTransport
from holdfast.transports.port import Counters, Events, Transport
from holdfast.transports.tcp import TcpLimits, TcpTransport
from holdfast.transports.tls import Credentials, Tls, check_certificate, load_tls
from holdfast.transports.udp import UdpLimits, UdpTransport

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
    "check_certificate",
    "load_tls",
]
