"""What the administrations of nodes say to each other. Bodies of `Administer` and `Administered`, as msgpack."""

from __future__ import annotations

from typing import Any, Final, TypeVar

import msgspec

from holdfast.errors import MisuseError
from holdfast.runtime.objects.handles import PlanStep

T = TypeVar("T")
KINDS: Final = ("group", "dialog")
STEPS_MAX: Final = 5000
"""Steps of one plan: it travels in one message."""


class Hosting(msgspec.Struct, frozen=True):
    """What a node can take."""

    groups: tuple[str, ...] = ()
    """Groups that its configuration gives it a replica of, in the view or not."""
    store: bytes = b""
    """The id of its first dialog store; empty: it has none."""
    services: tuple[str, ...] = ()
    """Dialog services that an application listens to there."""
    draining: bool = False


class Evacuate(msgspec.Struct, frozen=True):
    """Move groups and dialogs off the node that is asked."""

    kinds: tuple[str, ...] = KINDS
    only: str = ""
    """One group or dialog; empty: all."""
    target: str = ""
    """The node that gets it; empty: the best one."""
    dialogs_to: str = ""
    """The node that gets dialogs which an application here has opened."""
    keep_serving: bool = False
    """The node still takes new instances: it is not being emptied."""
    by_policy: bool = False


class Evacuating(msgspec.Struct, frozen=True):
    """How far it is."""

    running: bool
    steps: tuple[PlanStep, ...] = ()
    left: int = 0
    """Steps beyond these: they come with the next start."""


class DialogPart(msgspec.Struct, frozen=True):
    """A part of the exported state of a dialog. The last part makes the receiver take the dialog over."""

    dialog: bytes
    total: int
    offset: int
    data: bytes


def pack(value: msgspec.Struct) -> bytes:
    return msgspec.msgpack.encode(value)


def unpack(kind: type[T], body: bytes) -> T:
    """Raises `MisuseError` for what is not a `kind`."""
    try:
        return msgspec.msgpack.decode(body, type=kind)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise MisuseError(f"not a valid request ({error}); nothing was done") from None


def failed(step: PlanStep, reason: object) -> PlanStep:
    return changed(step, state="failed", reason=str(reason))


def changed(step: PlanStep, **values: Any) -> PlanStep:
    return msgspec.structs.replace(step, **values)
