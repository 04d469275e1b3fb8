"""The tables that localisation, prediction and busy windows read and publish.

Inputs name the columns that a transform needs; a frame may have more. A path is named by ids, adapters, subnet and
transport (names of nodes are attributes and change). All times are UTC.
"""

from __future__ import annotations

from typing import Final

PATH: Final = ("sender", "sender_adapter", "listener", "listener_adapter", "subnet", "transport")
"""What identifies a path: `sender` and `listener` are node ids in hexadecimal."""

PAIR: Final = PATH[:-1]
"""A path without its transport: one adapter to another, one direction."""

_PATH: Final = ", ".join(f"{name} string" for name in PATH)

# --- inputs ---------------------------------------------------------------------------------

INCIDENTS_IN: Final = f"""{_PATH}, error_class string, start_at timestamp, end_at timestamp"""
"""One row per incident; `end_at` is null while it is open. `error_class` is a class of `holdfast.health.classify`.
Classes that concern all transports (`dead`, `flapping`) may have any transport, or an empty one."""

COVERAGE_IN: Final = f"""{_PATH}, start_at timestamp, end_at timestamp"""
"""One row per stretch of time in which a listener watched a path. Time outside is neither clean nor broken."""

PATH_HOURS: Final = f"""{_PATH}, slot bigint, facts bigint, heard bigint, expected bigint,
    loss_ppm_max bigint, rtt_us_sum bigint, rtt_count bigint, rtt_us_max bigint, jitter_us_max bigint,
    worsened_max bigint"""
"""Roll-up of path facts per path and slot (`slot` is seconds since 1970 divided by the step). All aggregates merge."""

ADAPTER_HOURS: Final = """node string, adapter string, subnet string, hour timestamp,
    interval_ms bigint, sent_bytes bigint, received_bytes bigint, sent_packets bigint, received_packets bigint,
    queued_bytes_max bigint, drops bigint, speed_bps bigint"""
"""Roll-up of load facts per adapter and hour. Sums and maxima only, so partial hours merge."""

INVENTORY: Final = """node string, adapter string, realm string, switch string, port string"""
"""What the network team knows: which switch port an adapter is plugged into, and the realm of its node."""

REPAIRS_IN: Final = f"""{_PATH}, repaired_at timestamp"""
"""Operators' statements that a path was repaired: incidents before that time no longer count against it."""

# --- published tables -----------------------------------------------------------------------

LOCALISATION: Final = """bucket_at timestamp, bucket_s bigint, error_class string, transport string, rank int,
    kind string, name string, groups array<struct<kind: string, name: string>>,
    confidence double, margin double, runner_up_kind string, runner_up_name string,
    failing bigint, passing bigint, failing_total bigint, passing_total bigint, unexplained bigint"""
"""One row per time bucket, symptom (`error_class`, `transport`) and located fault, best explained first.

`groups` are the risk groups that the observed paths cannot tell apart; `kind` and `name` are the first of them.
`failing` and `passing` count the paths of the group, `*_total` those of the symptom; `unexplained` counts failing
paths that no located fault covers."""

LOCATED_FAULTS: Final = """kind string, name string, groups array<struct<kind: string, name: string>>,
    start_at timestamp, end_at timestamp, buckets bigint, error_classes array<string>, transports array<string>,
    confidence double, failing bigint, passing bigint"""
"""Adjacent rows of `localisation` with the same groups, merged: one row per fault as people see it."""

PREDICTIONS: Final = f"""{_PATH}, at timestamp, valid_until timestamp, horizon_s bigint, probability double,
    model string, threshold double, predicted boolean, advised boolean, why string"""
"""One row per path that is clean at `at`: the probability that an incident begins before `valid_until`. `advised` is
`predicted` while the measured precision of the model is above the configured one."""

PREDICTION_SCORES: Final = """model string, is_baseline boolean, chosen boolean, calibrated boolean,
    evaluated_from timestamp, evaluated_until timestamp, rows bigint, positives bigint,
    brier double, brier_skill double, threshold double, precision double, recall double,
    episodes bigint, episodes_hit bigint, precision_low double, incidents bigint, incidents_predicted bigint,
    beats_baselines boolean, advice_open boolean, why string,
    bins array<struct<low: double, high: double, rows: bigint, mean: double, observed: double>>"""
"""One row per model and baseline, judged on a later slice of time than it was fitted on. `precision` is per episode,
`recall` per incident, `brier_skill` against the base rate, `bins` the reliability diagram."""

BUSY_WINDOWS: Final = """node string, adapter string, subnet string, zone string, weekday int, hour int, hours int,
    level double, weeks bigint, probe_share double, basis string,
    coming array<struct<start_at: timestamp, end_at: timestamp>>"""
"""One row per adapter and recurring busy window. `weekday` (Monday is 0) and `hour` are local to `zone`; `coming` has
the same window as UTC times for the next days, for nodes that know no time zones. `level` is the expected
utilisation, `probe_share` the share of its diagnostics that an adapter should keep."""
