"""Synthetic telemetry, shared by tests of the pipeline."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.pipeline.synth.options import SynthOptions


def options(**changes: Any) -> SynthOptions:
    from holdfast.pipeline.synth.options import VIOLATIONS, SynthOptions

    usual: dict[str, Any] = {
        "nodes": 4,
        "days": 0.5,
        "sample_s": 120.0,
        "load_s": 300.0,
        "faults_per_day": 60.0,
        "pairs_per_day": 4.0,
        "noise": 6.0,
        "restarts_per_day": 1.0,
        "entries_per_s": 0.02,
        "violations": tuple(VIOLATIONS),
    }
    return SynthOptions(**(usual | changes))


def generate(out: Path, wanted: SynthOptions) -> None:
    """The same as `synth`, in this process."""
    from holdfast.pipeline.synth.faults import plan_faults
    from holdfast.pipeline.synth.landing import Store
    from holdfast.pipeline.synth.lives import lives_of
    from holdfast.pipeline.synth.run import write_telemetry
    from holdfast.pipeline.synth.topology import Topology
    from holdfast.pipeline.synth.truth import write_plan

    topology = Topology(wanted)
    faults = plan_faults(wanted, topology)
    store = Store(str(out))
    write_plan(store, faults, topology)
    for node in range(wanted.nodes):
        for life in lives_of(node, wanted):
            write_telemetry(store, life, faults, topology)
