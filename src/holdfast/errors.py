"""All exceptions. Each message states what failed, why, whether anything took effect, and what to do."""

from __future__ import annotations


class HoldfastError(Exception):
    """Base class of all exceptions that this library raises on purpose."""


class MisuseError(HoldfastError):
    """The request is invalid. Nothing took effect."""


class SetupError(HoldfastError):
    """This machine or its configuration is not ready. The message states what to change. Nothing was started."""


class ConfigError(SetupError):
    """A configuration file is invalid. The message names the file, the key, and the nearest known key."""


class CertificateError(SetupError):
    """A certificate or key is missing, expired, from another authority, or not for this node."""


class AddressInUse(SetupError):
    """An adapter or the web page cannot listen, because another process uses the port."""


class StoreError(HoldfastError):
    """The store of the node failed (full disk, damaged file). A node whose write failed stops."""


class StoreFull(StoreError):
    """The disk is full. Data that was reported as durable is safe; nothing else was written."""


class StoreDamaged(StoreError):
    """The store file is damaged or was not written by Holdfast."""


class StoreLocked(StoreError):
    """Another process uses this store."""


class StoreFenced(StoreError):
    """Another process has taken over the store. This one no longer writes to it."""


class TransactionAborted(HoldfastError):
    """The transaction was rolled back: nothing took effect. The message gives the reason; usually it can be retried."""


class TransactionConflict(TransactionAborted, StoreError):
    """Another transaction has processed the same message. Nothing took effect."""


class TransactionInDoubt(StoreError):
    """The connection was lost during a commit. The outcome is not known yet; it is being queried."""


class DialogError(HoldfastError):
    """A request on a dialog was refused; nothing took effect."""


class DialogEnded(DialogError):
    """The dialog is completed, terminated or moved."""


class DialogFaulted(DialogError):
    """The dialog cannot meet its assurances at the moment. It continues after a repair."""


class DialogUnknown(DialogError):
    """No such dialog in this store."""


class SendTimeout(DialogError):
    """The send buffer stayed full. Nothing was sent; try again later."""


class QuotaExceeded(DialogError):
    """The messages are larger than the whole buffer of the dialog, so waiting does not help. Nothing was sent."""


class MessageTooLarge(DialogError):
    """The message is above the dialog's limit. Nothing was sent."""


class NotAccepted(HoldfastError):
    """A send or request was refused. Nothing was sent."""


class QueueFull(NotAccepted):
    """The queue of this traffic class is full. Wait for `writable`, or send less."""


class PeerUnknown(NotAccepted):
    """No member of the domain has this name or id."""


class ChannelEnded(HoldfastError):
    """The channel ended, because the peer restarted or all paths to it are dead. States what may not have arrived."""


class SourceEnded(HoldfastError):
    """The source of a group on this node failed. States what may be lost, and whether a new source is available."""


class LockLost(HoldfastError):
    """A lock was lost before its release, because its lease was not renewed. Another node may have held it since."""


class StaleToken(HoldfastError):
    """The token of a lock is out of date: a later holder has been seen. Nothing took effect."""


class BarrierBroken(HoldfastError):
    """A party of a barrier is gone. No party passed this phase."""


class RoleError(HoldfastError):
    """An operation on a role failed. The message states whether an instance may have received it."""


class RoleNotFound(RoleError):
    """No instance of the role could be reached, although the whole network was searched. Nothing was delivered."""


class RoleHeld(RoleError):
    """The role was not published: another node holds it exclusively, or the claim failed."""


class RepliesMissing(RoleError):
    """A link or node failed before all replies arrived. The message names what failed; an instance may have received
    the request. Send it again with the same request id: an instance that has answered does not perform it twice."""


class ObjectError(HoldfastError):
    """An operation on an object failed. The message states whether anything took effect."""


class ObjectNotFound(ObjectError):
    """There is no object at this path."""


class ObjectExists(ObjectError):
    """The name is taken. Nothing was changed."""


class ObjectConflict(ObjectError):
    """Another change was committed first. Nothing was changed; read the object and try again."""


class ObjectInDoubt(ObjectError):
    """Contact was lost while a change was being committed: it may take effect. Read the object to find out."""


class ObjectUnavailable(ObjectError):
    """Too few replicas are reachable, or too few nodes have space. Nothing was changed."""


class NodeStopped(HoldfastError):
    """The node has stopped; the message gives the reason. Nothing was sent."""
