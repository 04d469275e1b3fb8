"""The benchmarks really run, with real processes, as a user starts them; how fast they find us is not asserted here."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest


def bench(*arguments: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "holdfast", "bench", *arguments, "--json"],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode in (0, 1), done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    assert not report["not_measured"], report["not_measured"]
    assert report["aims"], "nothing to compare with"
    return report


def test_links_are_measured_against_raw_sockets() -> None:
    report = bench("links", "--seconds", "0.2", "--rounds", "1")
    figures, ratios = report["figures"], report["ratios"]
    for transport, raw in (("channel_tcp", "tcp"), ("channel_tls", "tcp"), ("datagram_udp", "udp")):
        for size in (100, 1000):
            ours = figures[f"{transport}_{size}B_per_s"]
            theirs = max(
                figures[f"raw_{raw}_single_{size}B_per_s"],
                figures[f"raw_{raw}_packed_{size}B_per_s"],
            )
            assert ours > 0
            assert ratios[f"{transport}_{size}B_vs_raw_{raw}"] == pytest.approx(
                ours / theirs, abs=0.001
            )


def test_groups_are_measured_against_raw_fan_out() -> None:
    report = bench("group", "--only", "throughput", "--seconds", "0.2", "--rounds", "1")
    figures, ratios = report["figures"], report["ratios"]
    raw = max(figures["raw_fanout_single_per_s"], figures["raw_fanout_packed_per_s"])
    for name in (
        "memory_tcp",
        "memory_tcp_quick",
        "memory_tls",
        "memory_datagram",
        "memory_datagram_jumbo",
        "durable_tcp",
    ):
        ours = figures[f"{name}_deliveries_per_s"]
        assert ours > 0
        assert figures[f"{name}_p50_us"] <= figures[f"{name}_p99_us"]
        assert ratios[f"{name}_deliveries_vs_raw_fanout"] == pytest.approx(ours / raw, abs=0.001)
    assert figures["memory_datagram_packet_bytes"] > 0
    assert figures["memory_datagram_jumbo_packet_bytes"] <= 9000


def test_the_simulator_is_measured_against_a_bare_heap() -> None:
    report = bench("sim", "--nodes", "20", "--seconds", "0.5")
    assert report["figures"]["links_up"] == 20 * 8
    assert report["figures"]["events_per_s"] > 0
    assert report["figures"]["events_per_real_s"] > 0


def test_stability_is_measured_against_the_paper_and_services_against_bare_round_trips() -> None:
    report = bench(
        "stability",
        "--only",
        "rounds,services",
        "--seconds",
        "0.2",
        "--rounds",
        "1",
        "--sizes",
        "8,16",
    )
    figures, ratios = report["figures"], report["ratios"]
    assert figures["cube_16_messages"] == 16 * 4 * 5
    assert ratios["cube_16_messages_vs_paper"] == 1
    assert figures["bare_majority_trips_per_s"] > 0
    locks = figures["lock_round_trips_per_s_leader"]
    assert ratios["locks_vs_bare_majority_trip"] == pytest.approx(
        locks / figures["bare_majority_trips_per_s"], abs=0.01
    )
    assert figures["barriers_per_s"] > 0
    for name in ("lock", "barrier"):
        p50, p99 = (figures[f"{name}_under_load_{part}_ms"] for part in ("p50", "p99"))
        assert 0 < p50 <= p99
