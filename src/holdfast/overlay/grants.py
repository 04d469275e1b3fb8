"""Granting, giving up and moving roles in a reply (seed: 'Repointing a Route When a Role Moves'; rules 11 and 12).

A reply that gives a role up re-points the routes of just the nodes that it passes: towards the sender of the request,
which takes the role under the instance id that its request carried. The giver keeps the role, `moving`, and holds
messages for it, until the taker confirms at the next epoch. A grant that finds no request any more is returned.
"""

from __future__ import annotations

from typing import Final

from holdfast.overlay.builder import Builder
from holdfast.overlay.delivery import Deliveries, Delivery
from holdfast.overlay.frames import ASK_TAKER, RETURNED, TAKEN, Found, Message, Part
from holdfast.overlay.hub import Hub
from holdfast.overlay.ids import is_numbered, is_role, node_of
from holdfast.overlay.ports import AnswerMessage, RoleGained, RoleLost
from holdfast.overlay.records import Record
from holdfast.overlay.registrar import Registrar
from holdfast.overlay.roles import LocalRole, LocalRoles
from holdfast.overlay.router import Router
from holdfast.overlay.search import Answer, Search
from holdfast.overlay.topology import Topology
from holdfast.overlay.trees import TreeCache
from holdfast.overlay.waves import WaveState
from holdfast.types import SECOND, NodeId

REPOINTED_NS: Final = 30 * SECOND


def taker_of(message: Message) -> bytes:
    """The instance id that the sender takes if the role is granted to it: that of the request, or a separate one."""
    return message.taker or message.request


class Grants:
    def __init__(
        self,
        hub: Hub,
        topology: Topology,
        cache: TreeCache,
        local: LocalRoles,
        builder: Builder,
        search: Search,
        registrar: Registrar,
        router: Router,
        deliveries: Deliveries,
    ) -> None:
        self._hub = hub
        self._topology = topology
        self._cache = cache
        self._local = local
        self._builder = builder
        self._search = search
        self._registrar = registrar
        self._router = router
        deliveries.hold = self._hold
        deliveries.grant = self._grant
        router.on_part = self._passes
        router.on_orphan = self._orphan
        search.orders[TAKEN] = self._on_taken
        search.orders[RETURNED] = self._on_returned
        search.orders[ASK_TAKER] = self._on_ask
        registrar.gone = self._gone

    # -- the giver -----------------------------------------------------------------------------------------------

    def _hold(self, record: Record, local: LocalRole) -> bool:
        """A message for a role that is moving waits for the taker's word."""
        if not local.moving_to:
            return False
        record.waiting = "moving"
        return True

    def _grant(self, delivery: Delivery, answer: AnswerMessage) -> Part | str:
        if not answer.grant:
            return Part(delivery.instance, answer.data)
        name = answer.granted_role or delivery.role
        message = delivery.record.message
        taker = taker_of(message)
        local = self._local.get(delivery.tree, name)
        if local is None or local.moving_to:
            return "this node does not hold the role that it grants"
        # rule: O-message-3a
        if local.exclusive and not answer.give_up:
            return "an exclusive role can only be granted by giving it up"
        if not taker or node_of(taker) == self._hub.me:
            return "the sender of this message cannot take a role"
        # rule: O-11c
        if delivery.record.done or delivery.record.orphan:
            return "the request is over: the role stays here"
        if not answer.give_up:
            return Part(delivery.instance, answer.data, name, False, False, local.epoch)
        # rule: O-11a
        self._reserve(local, taker)
        return Part(
            delivery.instance,
            answer.data,
            name,
            True,
            local.exclusive,
            local.epoch + 1,
            local.instance,
        )

    def _reserve(self, local: LocalRole, taker: bytes) -> None:
        local.moving_to = taker
        self._hub.after(self._hub.config.reserve_ns, lambda: self._ask(local, taker))

    def _ask(self, local: LocalRole, taker: bytes) -> None:
        """No word from the taker: does it have the role?"""
        if local.moving_to != taker or not self._local.is_current(local):
            return

        def answered(answer: Answer) -> None:
            if local.moving_to != taker:
                return
            if answer.ok and answer.accepted:
                self._given(local, taker)
            elif answer.ok or not self._topology.reaches(node_of(taker)):
                self._keep(local)
            else:
                self._reserve(local, taker)

        self._search.order(ASK_TAKER, node_of(taker), local.tree, local.role, None, answered, taker)

    def _on_ask(self, at: WaveState) -> None:
        local = self._local.get(at.frame.tree, at.frame.role)
        at.result.accepted = local is not None and local.instance == at.frame.instance

    def _on_taken(self, at: WaveState) -> None:
        local = self._local.get(at.frame.tree, at.frame.role)
        if local is not None and local.moving_to and local.moving_to == at.frame.instance:
            self._given(local, local.moving_to)
        at.result.accepted = True

    def _on_returned(self, at: WaveState) -> None:
        local = self._local.get(at.frame.tree, at.frame.role)
        if local is not None and local.moving_to and local.moving_to == at.frame.instance:
            self._keep(local)
        at.result.accepted = True

    def _given(self, local: LocalRole, taker: bytes) -> None:
        state = self._cache.role(local.tree, local.role)
        if state is not None:
            self._builder.bury(state, local.instance, local.epoch, True)
        self._registrar.drop(local)
        self._hub.fact("moved", local.tree, local.role, peer=node_of(taker).hex())
        self._hub.effect(RoleLost(local.tree, local.role, local.instance, taker, "given up"))
        self._router.release(local.tree, local.role)

    def _keep(self, local: LocalRole) -> None:
        """The taker did not take it. Two epochs on, so that routes to the taker lose."""
        self._hub.count("grants_returned")
        taker, local.moving_to = local.moving_to, b""
        local.epoch += 2
        state = self._cache.role(local.tree, local.role)
        if state is not None:
            self._builder.bury(state, taker, local.epoch, True)
        self._registrar.again(local)
        self._router.release(local.tree, local.role)

    def _gone(self, local: LocalRole) -> None:
        """The role left this node in another way: by losing it to its taker, for example."""
        self._hub.after(1, lambda: self._router.release(local.tree, local.role))

    # -- on the way ----------------------------------------------------------------------------------------------

    def _passes(self, record: Record, part: Part, link: NodeId | None) -> Part | None:
        if not part.grant:
            return part
        if not is_role(part.grant) or (part.give_up and not is_numbered(part.moved_from)):
            self._hub.count("bad_grant")
            return None
        if part.give_up:
            # rule: O-message-3b
            self._repoint(record, part)
        if record.incoming is None:
            self._take(record, part)
        return part

    def _repoint(self, record: Record, part: Part) -> None:
        """The route to the giver goes; one to the taker comes, over the link that the request came over."""
        message, hub = record.message, self._hub
        state = self._builder.make_role(message.tree, part.grant)
        if state is None:
            return
        self._builder.bury(state, part.moved_from, part.epoch - 1, True)
        if record.incoming is not None and not record.orphan:
            found = Found(taker_of(message), part.epoch, part.exclusive, 1, message.hops)
            state.repointed[record.incoming] = hub.now + REPOINTED_NS
            while len(state.repointed) > hub.config.tombstones_max:
                del state.repointed[next(iter(state.repointed))]
            local = self._local.get(message.tree, part.grant)
            if local is None or not local.moving_to:
                self._builder.add_route(message.tree, part.grant, found, record.incoming)
            else:
                state.insert(
                    found,
                    record.incoming,
                    hub.inside(record.incoming),
                    False,
                    hub.config,
                    hub.now,
                    {},
                )

    # -- the taker -----------------------------------------------------------------------------------------------

    def _take(self, record: Record, part: Part) -> None:
        message = record.message
        # rule: O-11b
        if record.cancelled or self._local.get(message.tree, part.grant) is not None:
            self._return(part, message.tree, taker_of(message))
            return
        role = LocalRole(message.tree, part.grant, taker_of(message), part.exclusive)
        role.epoch = part.epoch
        if not self._local.add(role):
            self._return(part, message.tree, taker_of(message))
            return
        self._builder.make_role(role.tree, role.role)
        self._hub.effect(RoleGained(role.tree, role.role, role.instance, part.give_up))
        if part.give_up:
            self._search.order(
                TAKEN,
                node_of(part.moved_from),
                role.tree,
                role.role,
                None,
                lambda _: None,
                role.instance,
            )
        self._registrar.ensure(role)
        self._router.release(role.tree, role.role)

    def _orphan(self, part: Part) -> None:
        """A grant for a request that is over: the giver's question will find no taker. Nothing is lost, only late."""
        if part.grant and part.give_up:
            self._hub.count("grants_orphaned")

    def _return(self, part: Part, tree: bytes, taker: bytes) -> None:
        if part.give_up:
            self._search.order(
                RETURNED, node_of(part.moved_from), tree, part.grant, None, lambda _: None, taker
            )
