"""`holdfast ca`: files with the right contents and modes, one line for each error, 2 for misuse, 1 for failure."""

from __future__ import annotations

import stat
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from tests.unit.transports.harness import authority_in
from typer.testing import CliRunner

from holdfast.cli.ca import app
from holdfast.transports.authority import issue, load_authority, look_at, make_authority
from holdfast.transports.tls import Credentials, check_certificate


def call(*words: object) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, [str(word) for word in words])
    return result.exit_code, result.stdout, result.stderr


@pytest.fixture
def made(tmp_path: Path) -> Path:
    code, _, _ = call("init", "--domain", "demo", "--dir", tmp_path)
    assert code == 0
    return tmp_path


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_an_authority_and_a_node_are_made_and_fit(made: Path) -> None:
    out = made / "n1"
    code, text, _ = call("issue", "n1", "--dir", made, "--out", out)
    assert code == 0
    assert "node n1 of domain demo" in text
    files = Credentials(str(made / "ca.pem"), str(out / "n1.pem"), str(out / "n1.key"))
    check_certificate(files, "demo", "n1")
    assert mode(made / "ca.key") == mode(out / "n1.key") == 0o600
    assert sorted(p.name for p in made.iterdir()) == ["ca.key", "ca.pem", "n1"]


def test_another_implementation_accepts_the_certificate(made: Path) -> None:
    call("issue", "n1", "--dir", made)
    command = ["openssl", "verify", "-x509_strict", "-CAfile", str(made / "ca.pem")]
    command.append(str(made / "n1.pem"))
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("no openssl command")
    assert done.stdout.strip().endswith("OK"), done.stderr


def test_nothing_is_overwritten_without_force(made: Path) -> None:
    before = (made / "ca.key").read_bytes()
    code, _, error = call("init", "--domain", "demo", "--dir", made)
    assert code == 2
    assert "exists; add --force" in error
    assert error.count("\n") == 1
    assert (made / "ca.key").read_bytes() == before
    assert call("init", "--domain", "demo", "--dir", made, "--force")[0] == 0
    assert (made / "ca.key").read_bytes() != before

    assert call("issue", "n1", "--dir", made)[0] == 0
    assert call("issue", "n1", "--dir", made)[0] == 2
    assert call("issue", "n1", "--dir", made, "--force")[0] == 0


@pytest.mark.parametrize("name", ["", "../evil", "a b", ".hidden", "-x" * 40, "ca"])
def test_names_that_would_make_trouble_are_misuse(made: Path, name: str) -> None:
    before = sorted(made.iterdir())
    code, _, error = call("issue", "--dir", made, "--", name)
    assert code == 2
    assert error.count("\n") == 1
    assert sorted(made.iterdir()) == before


def test_a_folder_without_an_authority_is_a_failure_in_one_line(tmp_path: Path) -> None:
    code, _, error = call("issue", "n1", "--dir", tmp_path)
    assert code == 1
    assert "ca.pem is missing; create one with `holdfast ca init" in error
    assert error.count("\n") == 1


def test_a_place_that_cannot_be_written_is_a_failure_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    code, _, error = call("init", "--domain", "demo", "--dir", tmp_path / "file" / "below")
    assert code == 1
    assert "cannot write" in error
    assert error.count("\n") == 1


def test_an_authority_that_is_not_ours_or_does_not_fit_is_a_failure(made: Path) -> None:
    other = made / "other"
    authority_in(other)
    (made / "ca.key").write_bytes((other / "ca.key").read_bytes())
    code, _, error = call("issue", "n1", "--dir", made)
    assert code == 1
    assert "do not belong together" in error
    (made / "ca.key").write_text("rubbish")
    assert call("issue", "n1", "--dir", made)[0] == 1


@pytest.mark.parametrize("days", ["0", "-1", "many", "36501"])
def test_days_out_of_range_are_misuse(made: Path, days: str) -> None:
    assert call("issue", "n1", "--dir", made, "--days", days)[0] == 2


def test_show_prints_the_owner_and_the_validity(made: Path) -> None:
    call("issue", "n1", "--dir", made, "--days", "10")
    code, text, _ = call("show", made / "n1.pem")
    assert code == 0
    assert "node n1 of domain demo" in text
    assert "9 days left" in text
    assert "authority demo" in call("show", made / "ca.pem")[1]


def test_show_says_that_one_is_over(tmp_path: Path) -> None:
    pair = make_authority("demo", 10, datetime.now(UTC) - timedelta(days=20))
    (tmp_path / "old.pem").write_bytes(pair.certificate)
    assert "EXPIRED" in call("show", tmp_path / "old.pem")[1]


def test_show_refuses_what_is_no_certificate(made: Path) -> None:
    code, _, error = call("show", made / "ca.key")
    assert code == 1
    assert "contains no certificate" in error
    assert call("show", made / "none.pem")[0] == 1


def test_a_certificate_does_not_outlive_its_authority(made: Path) -> None:
    authority = load_authority(made)
    pair = issue(authority, "n1", 36500)
    assert pair.valid_until == authority.certificate.not_valid_after_utc


def test_two_certificates_of_one_name_have_different_keys_and_serials(made: Path) -> None:
    call("issue", "n1", "--dir", made)
    first = look_at(made / "n1.pem")[0].serial, (made / "n1.key").read_bytes()
    call("issue", "n1", "--dir", made, "--force")
    second = look_at(made / "n1.pem")[0].serial, (made / "n1.key").read_bytes()
    assert first[0] != second[0]
    assert first[1] != second[1]
