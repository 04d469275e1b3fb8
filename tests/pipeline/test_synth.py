"""Synthetic telemetry: what nodes write, with known truth."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from tests.pipeline.plain_audit import broken_claims
from tests.pipeline.synthetic import generate, options

from holdfast.errors import MisuseError
from holdfast.recording.landing import parse_stem

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


pytest.importorskip("pyspark")

KINDS = {"node", "link", "path", "load", "order", "delivery", "group", "lost"}


@pytest.fixture(scope="module")
def domain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("synth")
    generate(out, options())
    return out


@cache
def facts(out: Path, kind: str) -> list[dict[str, Any]]:
    return ds.dataset(out / "landing" / kind, partitioning=None).to_table().to_pylist()


def truth(out: Path, name: str) -> list[dict[str, Any]]:
    return ds.dataset(out / "truth" / name).to_table().to_pylist()


def digest(out: Path) -> str:
    total = hashlib.sha256()
    for path in sorted(out.rglob("*")):
        if path.is_file():
            total.update(str(path.relative_to(out)).encode() + path.read_bytes())
    return total.hexdigest()


class TestSegments:
    def test_every_kind_is_there_with_the_schema_and_the_names_of_nodes(self, domain: Path) -> None:
        from holdfast.pipeline.synth.columns import schema_of

        seen = set()
        for path in domain.glob("landing/*/day=*/*.parquet"):
            kind = path.parent.parent.name
            seen.add(kind)
            place = parse_stem(path.stem, kind)
            assert place is not None
            table = pq.read_table(path, partitioning=None)
            assert table.schema.equals(schema_of(kind))
            assert set(table["node"].to_pylist()) == {place.node}
            assert set(table["incarnation"].to_pylist()) == {place.incarnation}
        assert seen == KINDS

    def test_numbers_that_are_missing_are_named_as_lost(self, domain: Path) -> None:
        numbers: dict[tuple[str, str, int], list[int]] = defaultdict(list)
        for kind in KINDS - {"lost"}:
            for row in facts(domain, kind):
                numbers[kind, row["node"], row["incarnation"]].append(row["n"])
        lost = facts(domain, "lost")
        assert lost
        for row in lost:
            numbers[row["lost_kind"], row["node"], row["lost_incarnation"]] += range(
                row["first"], row["last"] + 1
            )
        for key, found in numbers.items():
            assert sorted(found) == list(range(len(found))), key

    def test_the_facts_of_a_life_are_numbered_in_the_order_of_its_clock(self, domain: Path) -> None:
        lives: dict[tuple[str, int], list[tuple[int, int]]] = defaultdict(list)
        for row in facts(domain, "path"):
            lives[row["node"], row["incarnation"]].append((row["n"], row["now_ns"]))
        assert len(lives) > 4
        for rows in lives.values():
            times = [now for _, now in sorted(rows)]
            assert times == sorted(times)

    def test_some_files_are_late_and_some_clocks_are_wrong(self, domain: Path) -> None:
        assert {"late file"} <= {row["what"] for row in truth(domain, "noise")}

    def test_small_segments_make_many_files(self, tmp_path: Path) -> None:
        changes: dict[str, Any] = {"nodes": 2, "days": 0.05, "violations": (), "replicas": 2}
        generate(tmp_path / "large", options(**changes))
        generate(tmp_path / "small", options(**changes, segment_minutes=1.0))
        count = lambda name: len(list((tmp_path / name).glob("landing/path/*/*.parquet")))
        assert count("small") > 10 * count("large")


class TestTruth:
    def test_each_fault_shows_in_the_facts_of_its_paths(self, domain: Path) -> None:
        """At the time of an incident the listener's newest fact on the path says so."""
        shows = {
            "dead": lambda row: not row["alive"],
            "protocol": lambda row: not row["alive"],
            "size": lambda row: 0 < row["size"] < row["size_max"],
            "pattern": lambda row: row["bad_patterns"] != "",
            "loss": lambda row: row["loss_ppm"] >= 20_000,
        }
        path = ("sender", "sender_adapter", "listener_adapter", "transport")
        seen: dict[tuple[Any, ...], list[dict[str, Any]]] = defaultdict(list)
        for row in facts(domain, "path"):
            seen[row["node"], *(row[name] for name in path)].append(row)
        checked = defaultdict(int)
        for incident in truth(domain, "incidents"):
            if incident["error_class"] not in shows:
                continue
            rows = seen[incident["listener"], *(incident[name] for name in path)]
            # Clocks are wrong by some seconds, so only the inside of an incident is certain.
            skew = timedelta(seconds=150)
            inside = [
                row
                for row in rows
                if incident["start_at"] + skew < row["at"] < incident["end_at"] - skew
            ]
            for row in inside:
                assert not row["alive"] or shows[incident["error_class"]](row), incident
            checked[incident["error_class"]] += len(inside)
        assert all(checked[name] for name in shows), checked

    def test_flapping_paths_go_up_and_down(self, domain: Path) -> None:
        """Another fault may keep a path down meanwhile, so one that shows it is enough."""
        flapping = [row for row in truth(domain, "incidents") if row["error_class"] == "flapping"]
        assert any(self.downs(domain, incident) >= 4 for incident in flapping)

    def downs(self, domain: Path, incident: dict[str, Any]) -> int:
        same = ("sender", "transport", "listener_adapter")
        return sum(
            row["event"] == "change"
            and not row["alive"]
            and row["node"] == incident["listener"]
            and all(row[name] == incident[name] for name in same)
            and incident["start_at"] <= row["at"] <= incident["end_at"]
            for row in facts(domain, "path")
        )

    def test_every_kind_of_group_and_class_of_error_can_be_made(self) -> None:
        from holdfast.pipeline.synth.faults import CLASSES, KINDS, plan_faults
        from holdfast.pipeline.synth.topology import Topology

        plan = plan_faults(options(days=60), Topology(options(days=60)))
        assert {fault.group.kind for fault in plan} == set(KINDS)
        assert {fault.error_class for fault in plan} == set(CLASSES)
        assert any(fault.recurring and len(fault.times) > 50 for fault in plan)

    def test_a_node_that_restarts_has_a_new_incarnation_and_a_clock_of_its_own(
        self, domain: Path
    ) -> None:
        starts = [row for row in facts(domain, "node") if row["event"] == "start"]
        restarted = [row for row in starts if row["incarnation"] > 1]
        assert restarted
        assert len({row["now_ns"] for row in starts}) == len(starts)


class TestGroups:
    def claims(self, domain: Path) -> dict[str, set[str]]:
        lost: dict[tuple[str, int], list[int]] = defaultdict(list)
        for row in facts(domain, "lost"):
            if row["lost_kind"] == "delivery":
                lost[row["node"], row["lost_incarnation"]].append(row["first"])
        rows: dict[str, dict[str, list[Any]]] = defaultdict(lambda: defaultdict(list))
        for kind in ("delivery", "order", "group"):
            for row in facts(domain, kind):
                gone = lost[row["node"], row["incarnation"]]
                row["n_lost"] = sum(first < row["n"] for first in gone)
                rows[row["group"]][kind].append(row)
        return {
            group: broken_claims(found["delivery"], found["order"], found["group"])
            for group, found in rows.items()
        }

    def test_each_planted_violation_breaks_its_claim_and_no_other(self, domain: Path) -> None:
        from holdfast.pipeline.synth.options import VIOLATIONS

        claims = self.claims(domain)
        expected = {
            f"planted-{kind}": {claim} if claim else set() for kind, claim in VIOLATIONS.items()
        }
        assert claims == {"g0": set()} | expected

    def test_one_wrong_message_is_wrong_in_one_entry(self, domain: Path) -> None:
        """Digests are cumulative: the audit compares their differences, and must find exactly one."""
        row = {row["violation"]: row for row in truth(domain, "violations")}["different_message"]
        digests: dict[str, dict[int, int]] = {}
        for fact in facts(domain, "delivery"):
            if fact["group"] == row["group"]:
                digests.setdefault(fact["node"], {})[fact["index"]] = fact["digest"]
        wrong = digests.pop(row["replica"])
        sound = next(iter(digests.values()))
        off = {
            index: (wrong[index] - sound[index]) % 2**32 for index in wrong.keys() & sound.keys()
        }
        assert {value for index, value in off.items() if index < row["index"]} == {0}
        assert len({value for index, value in off.items() if index >= row["index"]} | {0}) == 2

    def test_the_truth_names_the_entry_and_the_replica(self, domain: Path) -> None:
        rows = {row["violation"]: row for row in truth(domain, "violations")}
        hole = rows["hole"]
        indexes = {
            row["index"]
            for row in facts(domain, "delivery")
            if row["group"] == hole["group"] and row["node"] == hole["replica"]
        }
        assert not indexes & {hole["index"], hole["index"] + 1, hole["index"] + 2}
        assert hole["index"] - 1 in indexes


class TestOptions:
    def test_the_same_seed_gives_the_same_bytes_and_another_seed_does_not(
        self, tmp_path: Path
    ) -> None:
        small: dict[str, Any] = {"nodes": 2, "replicas": 2, "days": 0.1}
        for name, seed in (("one", 1), ("again", 1), ("other", 2)):
            generate(tmp_path / name, options(**small, seed=seed))
        assert digest(tmp_path / "one") == digest(tmp_path / "again")
        assert digest(tmp_path / "one") != digest(tmp_path / "other")

    @pytest.mark.parametrize(
        "wrong",
        [
            {"nodes": 1},
            {"adapters": 0},
            {"subnets": 3},
            {"realms": 5},
            {"days": 0.0},
            {"neighbours": "some"},
            {"start": "yesterday"},
            {"violations": ("treason",)},
            {"replicas": 5},
        ],
    )
    def test_options_that_cannot_be_met_are_refused(self, wrong: dict[str, Any]) -> None:
        with pytest.raises(MisuseError, match="nothing was generated"):
            options(**wrong).check()


@pytest.mark.spark
def test_spark_makes_the_same_files(spark: SparkSession, tmp_path: Path) -> None:
    from holdfast.pipeline.synth.run import synth

    small = options(nodes=3, days=0.1)
    steps: list[tuple[str, int, int]] = []
    report = synth(
        str(tmp_path / "spark"),
        small,
        session=spark,
        progress=lambda *step: steps.append(step),
    )
    generate(tmp_path / "here", small)
    assert digest(tmp_path / "spark") == digest(tmp_path / "here")
    assert report.facts == sum(
        pq.read_metadata(path).num_rows for path in tmp_path.glob("here/landing/*/*/*.parquet")
    )
    assert steps[-1] == ("generating", report.lives, report.lives)
    assert report.seconds > 0
