"""The time slice of processes that run a node. Each case runs in a process of its own, because a slice stays."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from holdfast.runtime.time_slice import SLICE_NS, slice_of_this_thread

has_slices = pytest.mark.skipif(
    not 0 < slice_of_this_thread() != SLICE_NS, reason="this kernel has no time slices of threads"
)


def output_of(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip()


@has_slices
def test_a_process_that_runs_a_node_asks_for_a_short_slice_and_keeps_its_nice_value() -> None:
    code = """
import os
from holdfast.runtime.loop import run
from holdfast.runtime.time_slice import slice_of_this_thread
async def main():
    print(slice_of_this_thread(), os.nice(0))
os.nice(3)
run(main())
"""
    assert output_of(code) == f"{SLICE_NS} {os.nice(0) + 3}"


@has_slices
def test_threads_of_the_node_get_the_same_slice() -> None:
    code = """
from threading import Thread
from holdfast.runtime.time_slice import ask_for_short_slice, slice_of_this_thread
assert ask_for_short_slice()
thread = Thread(target=lambda: print(slice_of_this_thread()))
thread.start()
thread.join()
"""
    assert output_of(code) == f"{SLICE_NS}"


@has_slices
def test_a_process_with_another_policy_keeps_it() -> None:
    code = """
import os
from holdfast.runtime.time_slice import ask_for_short_slice
os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
print(ask_for_short_slice(), os.sched_getscheduler(0) == os.SCHED_BATCH)
"""
    assert output_of(code) == "False True"


def test_a_machine_without_these_calls_runs_as_before() -> None:
    code = """
import platform
platform.machine = lambda: "another"
from holdfast.runtime.time_slice import ask_for_short_slice, slice_of_this_thread
print(ask_for_short_slice(), slice_of_this_thread())
"""
    assert output_of(code) == "False 0"
