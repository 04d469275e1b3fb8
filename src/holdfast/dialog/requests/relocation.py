"""Moving an end to another node or store."""

from __future__ import annotations

from holdfast.dialog import loading, moving, transfer
from holdfast.dialog.core import Core
from holdfast.dialog.ids import NODE_BYTES, STORE_BYTES, End
from holdfast.dialog.ports import Exported, MoveDone, MoveIn, MoveOut, Opened
from holdfast.dialog.records import EXPORTED, after
from holdfast.machine import Erase, Put
from holdfast.types import Nanos


def move_out(core: Core, now: Nanos, request: MoveOut) -> None:
    d = core.dialogs[request.dialog]
    kept = core.exported.get(d.id)
    if kept is not None and d.moved_to == End(request.node, request.store):
        core.answer(request.token, Exported(kept))
        return
    problem = moving.refusal(d)
    if len(request.node) != NODE_BYTES or len(request.store) != STORE_BYTES:
        problem = "the target is a node id and a store id"
    elif (request.node, request.store) == (core.env.node, core.env.store):
        problem = "the dialog is there already"
    if problem:
        core.refuse(request.token, "state", f"{problem}; nothing was moved")
        return
    state = core.run(d, now, moving.move_out, now, End(request.node, request.store))
    if state is not None:
        # A crash before the answer arrives must not lose it: from here on it is nowhere else.
        core.exported[d.id] = state
        # rule: D-18g
        core.writes.append(Put(EXPORTED, d.id, state))
        core.answer(request.token, Exported(state))


def move_done(core: Core, now: Nanos, request: MoveDone) -> None:
    """The target has the state."""
    if core.exported.pop(request.dialog, None) is not None:
        core.writes.append(Erase(EXPORTED, request.dialog, after(request.dialog)))
    core.answer(request.token, None)


def move_in(core: Core, now: Nanos, request: MoveIn) -> None:
    """Take over an end. Importing the same state twice changes nothing."""
    state = moving.read_state(request.state)
    if isinstance(state, str):
        core.refuse(request.token, "misuse", f"{state}; nothing was changed")
        return
    if state.target != End(core.env.node, core.env.store):
        core.refuse(
            request.token,
            "misuse",
            "the state was exported for another node or store; nothing was changed",
        )
        return
    known = core.dialogs.get(state.dialog)
    if known is not None and known.epoch >= state.row.epoch:
        core.answer(request.token, Opened(state.dialog))
        return
    if known is not None:
        core.forget(known)
        core.blocks.forget(known.id)
    d = loading.imported(core, state)
    core.answer(request.token, Opened(d.id))
    if d.connected:
        core.run(d, now, transfer.begin_resume, now)
