"""The status as Prometheus text."""

from __future__ import annotations

import re
from typing import Any

import pytest
from tests.web.fake_status import FakeDomain

from holdfast.web.metrics import metrics_text

# Name, labels, value: the text format, as strictly as a scraper reads it.
SAMPLE = re.compile(
    r'(?P<name>[a-z_]+)(?:\{(?P<labels>(?:[a-z_]+="(?:[^"\\\n]|\\["\\n])*",?)*)\})? (?P<value>-?[0-9.e+-]+)'
)


def read(text: str) -> dict[str, float]:
    """Samples by name and labels; fails on any line that is none."""
    samples = {}
    typed: set[str] = set()
    assert not text or text.endswith("\n")
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            name = line.split()[2]
            assert name not in typed, "samples of one name stand together"
            typed.add(name)
        elif not line.startswith("# HELP "):
            found = SAMPLE.fullmatch(line)
            assert found, line
            assert found["name"] in typed
            key = found["name"] + ("{" + found["labels"] + "}" if found["labels"] else "")
            assert key not in samples
            samples[key] = float(found["value"])
    return samples


def test_the_figures_of_a_status_are_there() -> None:
    domain = FakeDomain(3)
    domain.down.add("n3")
    domain.fault("n2", "n1", "red", "udp", size=1000, loss_ppm=250_000)
    samples = read(metrics_text(domain.status()))
    assert samples['holdfast_members{state="up"}'] == 2
    assert samples['holdfast_members{state="down"}'] == 1
    assert samples['holdfast_paths{subnet="red",state="soft error"}'] == 1
    assert samples['holdfast_paths{subnet="red",state="dead"}'] == 4
    assert samples['holdfast_paths{subnet="red",state="stale"}'] == 4
    labels = 'sender="n2",sender_adapter="red",listener_adapter="red",subnet="red",transport="udp"'
    assert samples[f"holdfast_path_size_bytes{{{labels}}}"] == 1000
    assert samples[f"holdfast_path_loss_ratio{{{labels}}}"] == 0.25
    assert samples[f"holdfast_path_rtt_seconds{{{labels}}}"] == 0.000212
    assert samples[f"holdfast_path_alive{{{labels}}}"] == 1
    assert samples['holdfast_group_commit{group="book"}'] == domain.commit
    assert samples['holdfast_group_leading{group="book"}'] == 1
    assert samples['holdfast_link_unacked{peer="n2"}'] == 3
    assert samples['holdfast_queue{queue="intake"}'] == 0
    assert samples["holdfast_facts_total"] == 18_204
    assert samples["holdfast_uptime_seconds"] == domain.uptime_s


def test_a_node_that_cannot_join_has_a_metric_with_address_and_reason() -> None:
    status = {"joining": [{"address": "10.0.0.9:7400", "reason": "no answer", "tries": 7}]}
    samples = read(metrics_text(status))
    labels = 'address="10.0.0.9:7400",reason="no answer"'
    assert samples[f"holdfast_join_failures{{{labels}}}"] == 7


def test_a_node_tells_only_the_paths_that_it_listens_on() -> None:
    """Or a domain of n nodes would tell n times n times n series."""
    samples = read(metrics_text(FakeDomain(10).status()))
    assert sum(key.startswith("holdfast_path_alive") for key in samples) == 9 * 2 * 2


@pytest.mark.parametrize(
    "status",
    [
        {},
        {"node": None, "members": None, "paths": {}, "groups": [None, 7], "queues": []},
        {"node": {}, "members": [{}], "paths": [{}], "groups": [{}], "links": [{}]},
    ],
)
def test_parts_that_are_missing_are_left_out(status: dict[str, Any]) -> None:
    read(metrics_text(status))


def test_names_cannot_break_the_format() -> None:
    status = {"queues": {'a"b\\c\nholdfast_evil 1': 3}}
    assert read(metrics_text(status)) == {'holdfast_queue{queue="a\\"b\\\\c\\nholdfast_evil 1"}': 3}


def test_paths_are_counted_by_the_verdict_that_the_node_states() -> None:
    """The metrics have no definition of their own: 1.9 % loss is fine, 2 % is not, as everywhere."""
    domain = FakeDomain(3)
    domain.fault("n2", "n1", "red", "udp", loss_ppm=19_000)
    domain.fault("n3", "n1", "red", "udp", loss_ppm=20_000)
    domain.fault("n3", "n1", "blue", "udp", alive=False)
    samples = read(metrics_text(domain.status()))
    assert samples['holdfast_paths{subnet="red",state="soft error"}'] == 1
    assert samples['holdfast_paths{subnet="red",state="ok"}'] == 11
    assert samples['holdfast_paths{subnet="blue",state="dead"}'] == 1


def test_stability_and_services_of_groups_have_metrics() -> None:
    domain = FakeDomain()
    status = domain.status()
    status["groups"][0] |= {
        "stability": {"stable": 7, "lag_ms": 12, "held": 900, "blockers": [{"name": "n3"}]},
        "services": {"locks": [{}, {}], "barriers": [], "grants": 5, "expired": 1},
    }
    samples = read(metrics_text(status))
    for name, value in (
        ("stability_stable", 7), ("stability_lag_ms", 12), ("stability_held", 900), ("stability_blockers", 1),
        ("services_locks", 2), ("services_barriers", 0), ("services_grants", 5), ("services_expired", 1),
    ):  # fmt: skip
        assert samples[f'holdfast_group_{name}{{group="book"}}'] == value
