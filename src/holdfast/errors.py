"""The whole exception tree. Each message says whose fault it is, whether anything took effect, what to do."""

from __future__ import annotations


class HoldfastError(Exception):
    """Base of everything that this library raises on purpose."""


class MisuseError(HoldfastError):
    """The caller asked for something that cannot be; nothing took effect."""


class SetupError(HoldfastError):
    """This machine or its configuration is not ready; says what to change. Nothing was started."""


class ConfigError(SetupError):
    """A configuration file is wrong: names the file, the key, and the nearest known key."""


class CertificateError(SetupError):
    """A certificate or key is missing, expired, foreign, or not for this node."""


class AddressInUse(SetupError):
    """An adapter or the page cannot listen: another process has the port."""


class StoreError(HoldfastError):
    """The node's store failed (full disk, damaged file). A node whose write failed stops."""


class StoreFull(StoreError):
    """There is no room on the disk. What was reported as durable is safe; nothing else was written."""


class StoreDamaged(StoreError):
    """The store's file is not readable as one of ours."""


class StoreLocked(StoreError):
    """Another process uses this store."""


class NotAccepted(HoldfastError):
    """A send was refused; nothing was sent."""


class QueueFull(NotAccepted):
    """The queue of this class is full: wait for `writable`, or send less."""


class PeerUnknown(NotAccepted):
    """No member of the domain has that name or id."""


class ChannelEnded(HoldfastError):
    """The channel ended: the peer restarted or every path to it is dead. Says what may not have arrived."""


class SourceEnded(HoldfastError):
    """This node's source of a group failed. Says what may be lost, and whether the node gives a new one."""


class NodeStopped(HoldfastError):
    """The node has stopped; carries the reason. Nothing was sent."""
