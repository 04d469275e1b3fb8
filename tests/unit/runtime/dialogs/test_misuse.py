"""What an application passes by mistake is refused before it reaches the unit, whose other dialogs it would stop."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, cast

import pytest
from tests.support.dialog_nodes import nodes, run

from holdfast import connect_dialogs
from holdfast.errors import HoldfastError
from holdfast.runtime.dialogs.api import DialogApi
from holdfast.runtime.dialogs.handles import Dialog

Misuse = Callable[[Any, Any], Awaitable[Any]]
MISUSES: dict[str, Misuse] = {
    "text as a message": lambda dialogs, dialog: dialog.send("text"),
    "a message as a list of messages": lambda dialogs, dialog: dialog.send_many(b"abc"),
    "text among messages": lambda dialogs, dialog: dialog.send_many([b"abc", "x"]),
    "a time of day that is none": lambda dialogs, dialog: dialog.send(b"x", after="noon"),
    "an infinite time": lambda dialogs, dialog: dialog.send(b"x", after=math.inf),
    "a negative time to live": lambda dialogs, dialog: dialog.send(b"x", ttl_s=-3),
    "a time to live that is no number": lambda dialogs, dialog: dialog.send(b"x", ttl_s=math.nan),
    "a time-out that is no number": lambda dialogs, dialog: dialog.receive(timeout_s="1"),
    "a count that is text": lambda dialogs, dialog: dialog.receive_many("3"),
    "a broken count": lambda dialogs, dialog: dialog.receive_many(1.5),
    "an endless count": lambda dialogs, dialog: dialogs.receive_any(10**30),
    "an endless session": lambda dialogs, dialog: dialog.extend_session(1e30),
    "messages that live for ever": lambda dialogs, dialog: dialog.extend_messages(1e30),
    "a poison number that is text": lambda dialogs, dialog: dialog.settle_poison("7", "retry"),
    "a reason that is no text": lambda dialogs, dialog: dialog.terminate(5),
    "a key that is text": lambda dialogs, dialog: dialogs.open("orders", key="bob"),
    "a key that no instance takes": lambda dialogs, dialog: dialogs.open("orders", key=bytes(4000)),
    "a URI that is bytes": lambda dialogs, dialog: dialogs.open(b"orders"),
    "a URI that is no text": lambda dialogs, dialog: dialogs.open("\ud800"),
    "a service that is a number": lambda dialogs, dialog: dialogs.listen(5),
    "a service without a name": lambda dialogs, dialog: dialogs.listen(""),
    "a setting of the wrong type": lambda dialogs, dialog: dialogs.open(
        "orders", session_ttl_ns="5"
    ),
    "an id that is text": lambda dialogs, dialog: dialogs.reactivate("abc"),
    "a state that is none": lambda dialogs, dialog: dialogs.move_in(b"junk"),
    "a state that is text": lambda dialogs, dialog: dialogs.move_in("junk"),
    "a target that is text": lambda dialogs, dialog: dialogs.move_out(dialog, "x", "y"),
}


@pytest.mark.parametrize("remote", [False, True], ids=["embedded", "daemon"])
def test_mistakes_are_refused_and_harm_no_dialog(tmp_path: Path, remote: bool) -> None:
    async def work() -> None:
        async with (
            nodes(tmp_path, "ann", "ben") as (ann, ben),
            connect_dialogs(tmp_path / "ann") as application,
        ):
            dialogs: DialogApi = application if remote else ann.dialogs
            await ben.dialogs.listen("orders")
            dialog = await dialogs.open("orders")
            unit = ann.dialogs.service.manager("default")
            for name, misuse in MISUSES.items():
                with pytest.raises(HoldfastError):
                    raise AssertionError(f"{name}: {await misuse(dialogs, dialog)}")
                assert ann.dialogs.service.manager("default") is unit, name
                look = ann.dialogs.look_at("default", dialog.id)
                assert (look.state, look.fault) == ("open", ""), name
            assert await dialog.send(b"still well") == 0, "nothing was sent before"

    run(work, 60)


def test_a_message_may_be_any_buffer_of_bytes_and_is_copied(tmp_path: Path) -> None:
    async def work() -> None:
        async with nodes(tmp_path, "ann", "ben") as (ann, ben):
            listener = await ben.dialogs.listen("orders")
            dialog = await ann.dialogs.open("orders")
            body = bytearray(b"one")
            others = [body, memoryview(b"two")]
            sending = dialog.send_many(cast("list[bytes]", others))
            await sending
            body[:] = b"xxx"
            far: Dialog = await listener.next()
            assert [(await far.receive(timeout_s=5)).body for _ in others] == [b"one", b"two"]

    run(work)
