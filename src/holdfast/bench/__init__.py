"""The benchmarks behind `holdfast bench`. Every figure has a ratio to something measured in the same run.

`report` defines the output, `raw` and `fanout` are baselines, `link_speed`, `group_speed`, `sim_speed` and
`health_bench` the benchmarks. `peer` and `group_member` are processes that they start; `member_processes` starts
those of a group.
"""
