"""Meshes of overlay machines whose links and nodes fail and come back, and what must hold afterwards."""

from __future__ import annotations

from random import Random

from tests.support.overlay_world import FAST, World

from holdfast.types import MILLISECOND, SECOND


def build(seed: int, nodes: int, realms: int) -> World:
    world = World(seed, FAST)
    world.skew = 20 * MILLISECOND if seed % 2 else 0
    for k in range(nodes):
        world.add(f"n{k}", f"r{k % realms}")
    world.mesh()
    world.run(3 * SECOND)
    return world


def disturb(world: World, rng: Random, names: list[str], rounds: int) -> None:
    """Links and nodes fail and come back while messages are sent."""
    cut: list[tuple[str, str]] = []
    dead: list[str] = []
    for k in range(rounds):
        alive = [name for name in names if name not in dead]
        what = rng.randrange(10)
        if what < 4:
            name = rng.choice(alive)
            peers = world.links_of(name)
            if peers:
                peer = rng.choice(peers)
                world.cut(name, peer)
                cut.append((name, peer))
        elif what < 6 and cut:
            world.link(*cut.pop(rng.randrange(len(cut))))
        elif what < 7 and len(dead) < len(names) // 5:
            name = rng.choice(alive)
            world.kill(name)
            dead.append(name)
        elif what < 8 and dead:
            world.restart(dead.pop(0))
            world.mesh()
        elif alive:
            world.send(rng.choice(alive), f"during {k}".encode(), aggregate=bool(rng.randrange(2)))
        world.run(rng.randrange(300) * MILLISECOND)
    for a, b in cut:
        world.link(a, b)
    for name in dead[: len(dead) // 2]:
        world.restart(name)
    world.mesh()


def check_ends(world: World) -> None:
    """Every request ended exactly once, whatever happened; those of nodes that died are over with them."""
    for host in world.hosts.values():
        ops = [end.op for end in host.ends]
        assert len(ops) == len(set(ops)), f"{host.name}: a request ended twice"
        if host.alive:
            assert host.machine.inspect.sizes()["records"] == 0, host.name


def check_reach(world: World, senders: list[str], role: str, mark: str) -> None:
    holders = world.holders(role)
    for sender in senders:
        data = f"{mark} {sender}".encode()
        end = world.request(sender, data, role=role, aggregate=True)
        got = world.receivers(data)
        assert got == dict.fromkeys(holders, 1), f"seed {world.seed} from {sender}: {got} {holders}"
        if holders:
            assert end.kind == "done", (world.seed, sender, end)
            assert not end.incomplete
            assert sorted(data for _, data in end.replies) == sorted(n.encode() for n in holders)
        else:
            assert end.kind == "not_found"
