"""The output format of benchmarks: figures, ratios to a baseline of the same run, targets."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from holdfast import __version__
from holdfast.accelerator import core


class Aim(msgspec.Struct, frozen=True):
    """A target, and whether it was reached."""

    value: float
    target: float
    met: bool


class Report(msgspec.Struct):
    """The results of one benchmark; names of figures contain the unit, names of ratios the baseline."""

    name: str
    env: dict[str, Any]
    figures: dict[str, float] = {}
    ratios: dict[str, float] = {}
    aims: dict[str, Aim] = {}
    not_measured: dict[str, str] = {}
    """What could not be measured, with the reason."""
    notes: dict[str, str] = {}
    """Remarks needed to read the figures."""

    def aim(self, name: str, value: float, target: float) -> None:
        """A target that is met if the value is at least this."""
        self.aims[name] = Aim(value, target, value >= target)

    def aim_below(self, name: str, value: float, target: float) -> None:
        """A target that is met if the value is at most this."""
        self.aims[name] = Aim(value, target, value <= target)


def new_report(name: str) -> Report:
    versions = {"holdfast": __version__}
    for package in ("msgspec", "cryptography", "uvloop"):
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    return Report(
        name,
        {
            "cores": os.cpu_count() or 1,
            "core": core(),
            "python": platform.python_version(),
            "kernel": platform.release(),
            "versions": versions,
            "load_1min": round(os.getloadavg()[0], 2),
        },
    )


def show(report: Report, as_json: bool) -> None:
    if as_json:
        typer.echo(msgspec.json.encode(report).decode())
        return
    console = Console()
    for title, rows in (("figure", report.figures), ("ratio", report.ratios)):
        table = Table(title, "value")
        for name, value in rows.items():
            table.add_row(name, f"{value:,.2f}" if value < 1000 else f"{value:,.0f}")
        console.print(table)
    table = Table("aim", "value", "target", "met")
    for name, aim in report.aims.items():
        table.add_row(name, f"{aim.value:.2f}", f"{aim.target:.2f}", "yes" if aim.met else "NO")
    console.print(table)
    for name, reason in report.not_measured.items():
        console.print(f"not measured: {name}: {reason}", markup=False)
    for name, note in report.notes.items():
        console.print(f"note: {name}: {note}", markup=False)
