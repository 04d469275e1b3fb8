"""Who may see the page."""

from __future__ import annotations

import pytest

from holdfast.web.access import Access, host_of, is_loopback, is_sendable


@pytest.mark.parametrize(
    ("address", "loopback"),
    [
        ("127.0.0.1", True),
        ("127.9.8.7", True),
        ("::1", True),
        ("localhost", True),
        ("LOCALHOST.", True),
        ("0.0.0.0", False),
        ("::", False),
        ("192.168.0.1", False),
        ("localhost.evil.example", False),
        ("127.0.0.1.evil.example", False),
        ("", False),
    ],
)
def test_only_what_cannot_be_reached_from_elsewhere_is_loopback(
    address: str, loopback: bool
) -> None:
    assert is_loopback(address) is loopback


@pytest.mark.parametrize(
    ("header", "host"),
    [
        ("localhost", "localhost"),
        ("localhost:80", "localhost"),
        ("[::1]:80", "::1"),
        ("[::1]", "::1"),
        ("[", ""),
        ("", ""),
    ],
)
def test_the_host_is_found_in_its_header(header: str, host: str) -> None:
    assert host_of(header) == host


def test_without_a_token_the_host_must_be_loopback() -> None:
    access = Access(None)
    assert access.host_is_ours("localhost:8080")
    assert access.host_is_ours("[::1]:8080")
    assert not access.host_is_ours("evil.example")
    assert not access.host_is_ours(None)
    assert access.token_is_right(None, None)


def test_with_a_token_any_name_will_do() -> None:
    assert Access("secret").host_is_ours("proxy.example")


@pytest.mark.parametrize(
    ("query", "authorization", "right"),
    [
        ("secret", None, True),
        (None, "Bearer secret", True),
        (None, "bearer  secret ", True),
        ("wrong", "Bearer secret", True),
        ("secret", "Bearer wrong", False),
        ("secret", "Basic wrong", True),
        (None, "Basic secret", False),
        (None, "secret", False),
        (None, "Bearer", False),
        (None, None, False),
        ("", "", False),
        ("secret2", None, False),
        ("Secret", None, False),
        ("\udcff", None, False),
    ],
)
def test_the_token_comes_in_the_address_or_in_a_header(
    query: str | None, authorization: str | None, right: bool
) -> None:
    assert Access("secret").token_is_right(query, authorization) is right


@pytest.mark.parametrize(
    ("token", "sendable"),
    [
        ("secret!~", True),
        ("", False),
        ("two words", False),
        ("gehe\u00efm", False),
        ("a\nb", False),
    ],
)
def test_a_token_must_fit_into_a_header(token: str, sendable: bool) -> None:
    assert is_sendable(token) is sendable
