"""An operator moves one end of a dialog to another node, and a move that was interrupted is finished."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.support.dialog_nodes import nodes

from holdfast.errors import DialogUnknown, MisuseError
from holdfast.runtime.admin.dialogs import DialogMoves


def test_an_end_is_moved_and_nothing_is_lost_when_the_operator_asks_twice(tmp_path: Path) -> None:
    async def story() -> None:
        async with nodes(tmp_path, "ann", "ben", "cat") as (ann, ben, cat):
            listener = await ben.dialogs.listen("orders")
            near = await ann.dialogs.open("orders")
            for body in (b"1", b"2"):
                await near.send(body)
            far = await listener.next()
            assert (await far.receive(timeout_s=10)).body == b"1"
            old = DialogMoves(None, ben.dialogs)
            new = DialogMoves(None, cat.dialogs)
            store = new.store({})["store"]
            asked = {"dialog": far.id.hex(), "node": cat.id.hex(), "store": store}
            first = await old.move_out(asked)
            # The answer is lost; the state is still there.
            again = await old.move_out(asked)
            assert again == first
            moved_to = await new.move_in({"state": again["state"]})
            assert moved_to["dialog"] == first["dialog"]
            await old.moved(first)
            cut_off, arrived = await asyncio.wait_for(cat.dialogs.receive_any(), 10)
            assert cut_off is not None
            assert [message.body for message in arrived] == [b"2"]
            with pytest.raises(DialogUnknown):
                await old.move_out(asked | {"dialog": "ff" * 20})
            with pytest.raises(MisuseError):
                await old.moved({"dialog": "../escape"})

    asyncio.run(story())
