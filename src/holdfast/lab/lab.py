"""A lab on this machine, as used by commands, tests and benchmarks."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from time import monotonic_ns
from typing import Any, Final

import msgspec

from holdfast.errors import HoldfastError, MisuseError
from holdfast.faults.model import Fault
from holdfast.lab import nodes, rules, topology
from holdfast.lab.forwarder import SOCKET
from holdfast.lab.plan import RUN, Plan, check_name, make_plan
from holdfast.lab.state import FILE, Process, State, load, locked, look_at, running, save
from holdfast.lab.tools import need_root, open_socket, run, run_in
from holdfast.lab.words import parse_lab_fault
from holdfast.runtime.control import ask
from holdfast.types import SECOND

FAULTS_MAX: Final = 100
_START_NS: Final = 20 * SECOND


class Lab:
    """An existing lab. Create it with `Lab.up`, find it again with `Lab.open`."""

    def __init__(self, directory: Path, plan: Plan) -> None:
        self.directory = directory
        self.plan = plan

    @classmethod
    def up(
        cls,
        name: str = "lab",
        hosts: int = 3,
        subnets: int = 2,
        mtu: int = 1500,
        run_in: Path = RUN,
    ) -> Lab:
        """Build it. If that fails, nothing is left behind."""
        plan = make_plan(name, hosts, subnets, mtu)
        need_root()
        directory = run_in / name
        with locked(directory):
            if (directory / FILE).exists():
                raise MisuseError(
                    f"there is already a lab {name!r}; `holdfast lab down --name {name}` removes it, or "
                    "give this one another --name; nothing was created"
                )
            topology.tear_down(name)  # namespaces without a state file are the remains of a crash
            save(directory, State(plan))
            try:
                topology.build(plan)
                save(directory, State(plan, ready=True))
            except BaseException:
                topology.tear_down(name)
                shutil.rmtree(directory, ignore_errors=True)
                raise
        return cls(directory, plan)

    @classmethod
    def open(cls, name: str = "lab", run_in: Path = RUN) -> Lab:
        """The lab with that name; it must exist and be complete."""
        need_root()
        directory = run_in / check_name(name)
        state = load(directory)
        if not state.ready:
            raise HoldfastError(
                f"lab {name!r} is incomplete; `holdfast lab down --name {name}` removes it"
            )
        return cls(directory, state.plan)

    @staticmethod
    def down(name: str = "lab", run_in: Path = RUN) -> list[str]:
        """Remove everything with that name, in whatever state; returns the namespaces that existed."""
        need_root()
        directory = run_in / check_name(name)
        known = directory.exists()
        with locked(directory):
            gone = topology.tear_down(name)
            shutil.rmtree(directory, ignore_errors=True)
        if not known and not gone:
            raise MisuseError(f"there is no lab {name!r}; nothing was removed")
        return gone

    @staticmethod
    def names(run_in: Path = RUN) -> list[str]:
        """The existing labs."""
        return sorted(path.parent.name for path in run_in.glob(f"*/{FILE}"))

    # -- faults --------------------------------------------------------------------------------------------------

    def break_(self, *texts: str) -> list[str]:
        """Inject faults, all or none; returns their names."""
        fresh = [parse_lab_fault(text, self.plan.hosts, self.plan.subnets) for text in texts]
        with locked(self.directory):
            state = load(self.directory)
            if len(state.faults) + len(fresh) > FAULTS_MAX:
                raise MisuseError(f"a lab has at most {FAULTS_MAX} faults; nothing was broken")
            names = [f"f{state.made + 1 + i}" for i in range(len(fresh))]
            texts_after = dict(state.faults)
            texts_after |= {name: fault.text() for name, fault in zip(names, fresh, strict=True)}
            self._apply(state, texts_after, state.made + len(fresh))
        return names

    def heal(self, *names: str) -> list[str]:
        """Remove these faults, or all; returns the names of the removed ones."""
        with locked(self.directory):
            state = load(self.directory)
            for name in names:
                if name not in state.faults:
                    known = ", ".join(state.faults) or "none"
                    raise MisuseError(f"there is no fault {name!r}: {known}; nothing was healed")
            gone = list(names or state.faults)
            left = {name: text for name, text in state.faults.items() if name not in gone}
            self._apply(state, left, state.made)
        return gone

    def _apply(self, state: State, texts: dict[str, str], made: int) -> None:
        before, after = self._faults(state.faults), self._faults(texts)
        forwarder = state.forwarder
        if rules.served(self.plan, after) and not running(forwarder):
            forwarder = self._start_forwarder()
        # The state file first: if the command is interrupted here, the next one completes it.
        save(
            self.directory,
            msgspec.structs.replace(state, faults=texts, made=made, forwarder=forwarder),
        )
        run_in(self.plan.switch, ["nft", "-f", "-"], rules.apply(self.plan, before, after))
        widths, was = rules.mtus(self.plan, after), rules.mtus(self.plan, before)
        for port, width in widths.items():
            if width != was[port]:
                run(["ip", "-n", self.plan.switch, "link", "set", port, "mtu", str(width)])
        if running(forwarder):
            ask(self.directory / SOCKET, {"do": "faults", "faults": texts})
        else:
            # A killed forwarder left paths that are not forwarded.
            run_in(self.plan.switch, ["nft", "-f", "-"], rules.serve(self.plan, {}))

    def warm_up(self) -> None:
        """Start the forwarder before a fault needs it, so that every fault starts at once."""
        with locked(self.directory):
            state = load(self.directory)
            if not running(state.forwarder):
                forwarder = self._start_forwarder()
                save(self.directory, msgspec.structs.replace(state, forwarder=forwarder))

    def _faults(self, texts: dict[str, str]) -> dict[str, Fault]:
        hosts, subnets = self.plan.hosts, self.plan.subnets
        return {name: parse_lab_fault(text, hosts, subnets) for name, text in texts.items()}

    def _start_forwarder(self) -> Process:
        (self.directory / SOCKET).unlink(missing_ok=True)
        log = (self.directory / "forwarder.log").open("ab")
        process = self._popen(
            self.plan.switch,
            [sys.executable, "-m", "holdfast.lab.forwarder", str(self.directory)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        log.close()
        deadline = monotonic_ns() + _START_NS
        while not (self.directory / SOCKET).exists():
            if process.poll() is not None or monotonic_ns() > deadline:
                tail = (self.directory / "forwarder.log").read_text(errors="replace")[-800:]
                raise HoldfastError(f"the lab's forwarder did not start:\n{tail}")
            time.sleep(0.01)
        return Process(process.pid, look_at(process.pid) or 0)

    # -- status --------------------------------------------------------------------------------------------------

    def status(self) -> dict[str, Any]:
        """The complete status, as plain values."""
        state = load(self.directory)
        counters = self.counters()
        taken = {}
        if running(state.forwarder):
            taken = ask(self.directory / SOCKET, {"do": "stats"})["taken"]
        return {
            "name": self.plan.name,
            "directory": str(self.directory),
            "mtu": self.plan.mtu,
            "hosts": {
                host: {
                    "namespace": self.plan.namespace(host),
                    "addresses": {s: self.plan.address(host, s) for s in self.plan.subnets},
                    "node": nodes.state_of(state.nodes.get(host)),
                }
                for host in self.plan.hosts
            },
            "faults": [
                {
                    "name": name,
                    "text": text,
                    "packets": counters.get(name, (0, 0))[0] + taken.get(name, 0),
                }
                for name, text in state.faults.items()
            ],
            "paths": [
                {
                    "subnet": subnet,
                    "sender": sender,
                    "listener": listener,
                    "packets": packets,
                    "bytes": size,
                }
                for (subnet, sender, listener), (packets, size) in self.traffic(counters).items()
            ],
        }

    def counters(self) -> dict[str, tuple[int, int]]:
        """Packets and bytes of all counters in the switch."""
        table = ["nft", "-j", "list", "counters", "table", *rules.TABLE.split()]
        listed = json.loads(run_in(self.plan.switch, table))["nftables"]
        found = [item["counter"] for item in listed if "counter" in item]
        return {one["name"]: (one["packets"], one["bytes"]) for one in found}

    def traffic(
        self, counters: dict[str, tuple[int, int]] | None = None
    ) -> dict[tuple[str, str, str], tuple[int, int]]:
        """(packets, bytes on the wire) towards the listener of each path, including dropped ones."""
        counters = counters or self.counters()
        return {path: counters[rules.path_counter(*path)] for path in self.plan.paths()}

    # -- programs and sockets ------------------------------------------------------------------------------------

    def popen(self, host: str, command: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
        """Start a program on a host."""
        return self._popen(self.plan.namespace(host), command, **options)

    @staticmethod
    def _popen(namespace: str, command: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
        return subprocess.Popen(["ip", "netns", "exec", namespace, *command], **options)

    def socket(self, host: str, *kind: int, bind: Any = None) -> socket.socket:
        """A socket on a host, for the calling process."""
        return open_socket(self.plan.namespace(host), *kind, bind=bind)

    # -- nodes ---------------------------------------------------------------------------------------------------

    def start_nodes(self, plain: bool = False, group: bool = False) -> None:
        """Run a Holdfast node on every host, with certificates of an authority of the lab. `group`: all of them are
        voters of a group, which `holdfast.lab.member` measures."""
        with locked(self.directory):
            state = load(self.directory)
            if any(running(process) for process in state.nodes.values()):
                raise MisuseError(f"the nodes of lab {self.plan.name!r} are already running")
            nodes.write(self.directory, self.plan, plain, group)
            started = {}
            for host in self.plan.hosts:
                process = nodes.start(self, host)
                started[host] = Process(process.pid, look_at(process.pid) or 0)
                save(self.directory, msgspec.structs.replace(state, nodes=started))
        nodes.wait_until_up(self)

    def ask(self, host: str, do: str, **request: Any) -> dict[str, Any]:
        """Send a request to the node of a host."""
        self.plan.namespace(host)
        return ask(nodes.data_of(self.directory, host) / "control.sock", {"do": do, **request})
