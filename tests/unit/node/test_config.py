"""The configuration: every key does what it says, and everything that is wrong is named with what to write instead."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import ConfigError
from holdfast.group.section import groups_of
from holdfast.health.config import LAN as HEALTH_LAN
from holdfast.health.config import WAN as HEALTH_WAN
from holdfast.health.subsystem import health_of
from holdfast.links.config import LAN as LINK_LAN
from holdfast.links.config import WAN as LINK_WAN
from holdfast.links.config import timing_of
from holdfast.node.config import NodeConfig, is_loopback, parse_config, split_address

ADAPTER = '[[adapter]]\nname = "red"\naddress = "127.0.0.1:7400"\n'
PLAIN = '[security]\nmode = "plain"\n'
GROUP = '[[group]]\nname = "book"\nvoters = ["n1", "n2", "n3"]\nleader = "n1"\n'


def config(
    top: str = "", adapter: str = ADAPTER, rest: str = "", security: str = PLAIN
) -> NodeConfig:
    text = f'domain = "lab"\nname = "n1"\n{top}\n{security}\n{adapter}\n{rest}'
    return parse_config(text, "n1.toml")


def refused(*parts: str, **sections: str) -> str:
    """The complaint about a configuration; it always names the file."""
    with pytest.raises(ConfigError) as caught:
        config(*parts, **sections)
    complaint = str(caught.value)
    assert complaint.startswith("n1.toml: ")
    assert "\n" not in complaint
    return complaint


# -- what the keys do ----------------------------------------------------------------------------------------------


def test_the_smallest_configuration_has_the_documented_defaults() -> None:
    c = config()
    assert (c.domain, c.name, c.data, c.preset, c.join, c.mesh) == (
        "lab",
        "n1",
        "",
        "lan",
        (),
        "all",
    )
    (adapter,) = c.adapter
    assert (adapter.subnet, adapter.transports, adapter.mtu) == ("", ("tcp", "udp"), 1500)
    assert (c.web.address, c.web.token, c.web.results) == ("", "", "")
    assert (c.telemetry.enabled, c.telemetry.directory) == (True, "")
    assert (c.telemetry.max_mb, c.telemetry.seal_s) == (512, 30.0)
    assert groups_of(c) == ()
    assert c.lab.faults is False


def test_security_is_tls_unless_something_else_is_said() -> None:
    """Links: security is there from the first day."""
    assert "[security] authority is missing" in refused(security="")


def test_the_preset_sets_the_patience_of_links_and_of_health() -> None:
    """STYLE: presets for LAN and WAN."""
    lan, wan = config(), config('preset = "wan"')
    assert (timing_of(lan), health_of(lan)) == (LINK_LAN, HEALTH_LAN)
    assert (timing_of(wan), health_of(wan)) == (LINK_WAN, HEALTH_WAN)
    assert timing_of(wan).dead_ns > timing_of(lan).dead_ns
    assert health_of(wan).basic_ns > health_of(lan).basic_ns


def test_adapters_are_what_others_are_told() -> None:
    (info,) = config(adapter=ADAPTER + 'subnet = "rack"\ntransports = ["udp"]').adapters()
    assert (info.name, info.subnet, info.host, info.port) == ("red", "rack", "127.0.0.1", 7400)
    assert info.transports == ("udp",)


def test_everything_is_measured_unless_something_else_is_said() -> None:
    (adapter,) = config().adapters()
    assert (adapter.measure, adapter.multicast, adapter.mtu) == (("alt", "frag", "mss"), "", 1500)
    text = ADAPTER + 'measure = ["frag"]\nmulticast = "239.255.7.1:7401"\nmtu = 9000\n'
    (adapter,) = config(adapter=text).adapters()
    assert (adapter.measure, adapter.multicast, adapter.mtu) == (
        ("frag",),
        "239.255.7.1:7401",
        9000,
    )


@pytest.mark.parametrize(
    "group", ["10.0.0.1:7401", "239.255.7.1", "239.255.7.1:0", "[ff02::1]:7401", "group:7401", "x"]
)
def test_a_multicast_group_is_one_of_the_adapters_family_with_a_port(group: str) -> None:
    complaint = refused(adapter=f'{ADAPTER}multicast = "{group}"\n')
    assert "adapter 'red': multicast: " in complaint


def test_two_adapters_have_two_groups() -> None:
    """Or one would hear what was sent to the other."""
    second = ADAPTER.replace("red", "blue").replace("7400", "7401")
    group = 'multicast = "239.255.7.1:7401"\n'
    assert "239.255.7.1:7401" in refused(adapter=ADAPTER + group + second + group)


def test_what_cannot_be_measured_is_refused() -> None:
    assert "measure" in refused(adapter=ADAPTER + 'measure = ["everything"]\n')


def test_the_subnet_is_the_name_of_the_adapter_when_left_out() -> None:
    (info,) = config().adapters()
    assert info.subnet == "red"


def test_groups_come_with_their_window_in_bytes() -> None:
    (group,) = groups_of(config(rest=GROUP + "window_mb = 3"))
    assert (group.name, group.voters, group.leader) == ("book", ("n1", "n2", "n3"), "n1")
    assert group.window_bytes == 3 << 20


@pytest.mark.parametrize("key", ["recover_s", "gone_s", "patience_s"])
@pytest.mark.parametrize("seconds", ["0.0", "-1.0", "nan", "inf", "1e300"])
def test_times_of_a_group_are_times(key: str, seconds: str) -> None:
    assert "above 0" in refused(rest=GROUP + f"{key} = {seconds}")


@pytest.mark.parametrize(
    ("address", "host", "port"),
    [
        ("127.0.0.1:7400", "127.0.0.1", 7400),
        ("host.example:1", "host.example", 1),
        ("[::1]:7400", "::1", 7400),
        ("[fe80::1]:65535", "fe80::1", 65535),
    ],
)
def test_an_address_is_a_host_and_a_port(address: str, host: str, port: int) -> None:
    assert split_address(address, "join") == (host, port)


@pytest.mark.parametrize(
    "address",
    [
        "",
        ":",
        "host",
        "host:",
        ":7400",
        "host:port",
        "host:65536",
        "host:-1",
        "host: 7400",
        "host:7400 ",
        "host:²",
        "host:٣",
        "[]:1",
        "ho st:1",
        "ho\0st:1",
    ],
)
def test_what_is_no_address_is_named_with_its_place_and_an_example(address: str) -> None:
    with pytest.raises(ConfigError) as caught:
        split_address(address, "n1.toml: join")
    assert str(caught.value).startswith(f"n1.toml: join: {address!r}")
    assert "10.0.0.1:7400" in str(caught.value)


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=30))
def test_any_text_is_an_address_or_a_complaint(text: str) -> None:
    try:
        host, port = split_address(text, "join")
    except ConfigError:
        return
    assert host
    assert 0 <= port <= 65535


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "localhost"])
def test_loopback_is_loopback(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize(
    "host",
    [
        "10.0.0.1",
        "127.evil.example",
        "127.0.0.1.evil.example",
        "localhost.evil.example",
        "::1234",
        "::10",
        "0.0.0.0",
        "",
    ],
)
def test_what_only_looks_like_loopback_is_not(host: str) -> None:
    """Links: plain mode only on loopback. A name that begins like it can be anywhere."""
    assert not is_loopback(host)


# -- complaints ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("domian = 1", "unknown key 'domian'; did you mean 'domain'?"),
        ("[security]\nmod = 1", "[security] unknown key 'mod'; did you mean 'mode'?"),
        ("[[adapter]]\nadress = 1", "[adapter] unknown key 'adress'; did you mean 'address'?"),
        ("[web]\ntokne = 1", "[web] unknown key 'tokne'; did you mean 'token'?"),
        ("[telemetry]\nmaxmb = 1", "[telemetry] unknown key 'maxmb'; did you mean 'max_mb'?"),
        ("[[group]]\nvoter = 1", "[group] unknown key 'voter'; did you mean 'voters'?"),
        ("[lab]\nfault = 1", "[lab] unknown key 'fault'; did you mean 'faults'?"),
    ],
)
def test_an_unknown_key_at_any_depth_is_named_with_the_nearest_known_one(
    text: str, complaint: str
) -> None:
    """STYLE: unknown keys rejected with the nearest known one."""
    with pytest.raises(ConfigError) as caught:
        parse_config(text, "n1.toml")
    assert str(caught.value) == f"n1.toml: {complaint}"


@pytest.mark.parametrize("key", ["xyzzy", "alphas"])
def test_the_error_for_a_key_that_resembles_none_lists_the_known_keys(key: str) -> None:
    with pytest.raises(ConfigError, match=rf"\[lab\] unknown key '{key}'; known keys: faults"):
        parse_config(f"[lab]\n{key} = 1", "n1.toml")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ('security.mode = "none"', "at `$.security.mode`; known values: tls, plain"),
        (ADAPTER + 'transports = ["upd"]', "transports[0]`; known values: tcp, udp"),
        ('[[group]]\nname = "g"\ndurability = "x"', "durability`; known values: memory, durable"),
        ('[[needs]]\nport = 20\ntraffic = "x"', "traffic`; known values: channel, datagrams"),
    ],
)
def test_the_error_for_an_invalid_value_lists_the_valid_ones(text: str, complaint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config(f'domain = "lab"\nname = "n1"\n{text}', "n1.toml")
    assert complaint in str(caught.value)


@pytest.mark.parametrize("key", ["adapter", "group", "dialogs.store"])
def test_a_table_in_place_of_an_array_of_tables_is_explained(key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config(f'domain = "lab"\nname = "n1"\n[{key}]\nname = "x"', "n1.toml")
    assert str(caught.value).endswith(f"; begin each with [[{key}]]")


@pytest.mark.parametrize(
    ("top", "key"),
    [
        ("join = 5", "join"),
        ('join = "127.0.0.1:1"', "join"),
        ("join = [1]", "join"),
        ('preset = "moon"', "preset"),
        ('mesh = "some"', "mesh"),
        ("data = 1", "data"),
        ("web = 1", "web"),
        ("telemetry = []", "telemetry"),
    ],
)
def test_a_value_of_the_wrong_type_is_named_by_its_key(top: str, key: str) -> None:
    assert f"$.{key}" in refused(top)


@pytest.mark.parametrize(
    ("adapter", "key"),
    [
        ("adapter = 5", "$.adapter"),
        ("[adapter]\nname = 'red'", "$.adapter"),
        (ADAPTER + 'transports = ["ipx"]', "$.adapter[0].transports"),
        (ADAPTER + 'mtu = "big"', "$.adapter[0].mtu"),
        (ADAPTER + "mtu = true", "$.adapter[0].mtu"),
        ('[[adapter]]\nname = "red"', "missing key `address`"),
    ],
)
def test_an_adapter_of_the_wrong_shape_is_named_by_its_key(adapter: str, key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config(f'domain = "lab"\nname = "n1"\n{adapter}\n', "n1.toml")
    assert key in str(caught.value)


@pytest.mark.parametrize("scheme", ["", "https://"])
def test_a_bad_proxy_is_shown_without_its_password(scheme: str) -> None:
    adapter = f'{ADAPTER}transports = ["tcp"]\nwebsocket = true\nproxy = "{scheme}me:secret@proxy.example:3128"\n'
    with pytest.raises(
        ConfigError, match=r"proxy 'proxy.example:3128' is not of the form"
    ) as caught:
        parse_config(f'domain = "lab"\nname = "n1"\n{PLAIN}{adapter}', "n1.toml")
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("missing", ["domain", "name"])
def test_a_missing_key_is_named(missing: str) -> None:
    text = f'domain = "lab"\nname = "n1"\n{PLAIN}{ADAPTER}'
    lines = [line for line in text.splitlines() if not line.startswith(f"{missing} =")]
    if missing == "name":
        lines.append('name = "red"')  # the adapter's own name went too
    with pytest.raises(ConfigError, match=f"missing key `{missing}`"):
        parse_config("\n".join(lines), "n1.toml")


@pytest.mark.parametrize("text", ["domain = ", "= 1", "[web", "a = 1\na = 2", "\x00", "[[[[["])
def test_what_is_not_toml_is_said_to_be_so(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^n1.toml: not valid TOML: "):
        parse_config(text, "n1.toml")


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=60))
def test_any_text_is_a_configuration_or_a_complaint(text: str) -> None:
    try:
        parse_config(text)
    except ConfigError:
        pass


def test_a_node_needs_an_adapter() -> None:
    assert "a node needs at least one" in refused(adapter="")


@pytest.mark.parametrize(
    ("changed", "complaint"),
    [
        ({"top": 'join = ["nowhere"]'}, "join: 'nowhere' is not an address"),
        ({"top": 'join = ["127.0.0.1:0"]'}, "port 0"),
        ({"adapter": ADAPTER.replace("127.0.0.1", "0.0.0.0")}, "other nodes cannot reach 0.0.0.0"),
        ({"adapter": ADAPTER.replace("127.0.0.1", "[::]")}, "other nodes cannot reach ::"),
        ({"adapter": ADAPTER.replace("127.0.0.1", "[::0]")}, "other nodes cannot reach ::0"),
        ({"adapter": ADAPTER.replace(":7400", "")}, "'127.0.0.1' is not an address"),
        ({"adapter": ADAPTER.replace(":7400", ":0")}, "port 0"),
        ({"adapter": ADAPTER + ADAPTER}, "two adapters are called 'red'"),
        (
            {"adapter": ADAPTER + ADAPTER.replace("red", "blue")},
            "two adapters have '127.0.0.1:7400'",
        ),
        ({"adapter": ADAPTER + "transports = []"}, "adapter 'red' has no transports"),
        ({"adapter": ADAPTER + "mtu = 575"}, "mtu must be from 576 to 65535"),
        ({"adapter": ADAPTER + "mtu = 65536"}, "mtu must be from 576 to 65535"),
        ({"adapter": ADAPTER.replace('"red"', '""')}, "name"),
        ({"adapter": ADAPTER.replace('"red"', f'"{"x" * 65}"')}, "at most 64"),
        ({"adapter": ADAPTER + f'subnet = "{"x" * 65}"'}, "at most 64"),
        ({"rest": GROUP.replace('["n1", "n2", "n3"]', "[]")}, "at least one voter"),
        (
            {"rest": GROUP.replace('["n1", "n2", "n3"]', str([str(n) for n in range(10)]))},
            "at most 9",
        ),
        ({"rest": GROUP.replace('"n3"', '"n2"')}, "listed twice"),
        (
            {"rest": GROUP.replace('leader = "n1"', 'leader = "n9"')},
            "leader 'n9' is not one of its voters",
        ),
        ({"rest": GROUP + 'never_lead = ["n9"]'}, "'n9' is not one of its replicas"),
        ({"rest": GROUP + 'never_lead = ["n1"]'}, "no replica may lead"),
        (
            {"rest": GROUP + 'durability = "durable"'},
            "durable, but this node has no data directory",
        ),
        ({"rest": GROUP + GROUP}, "two groups are called 'book'"),
        ({"rest": GROUP + "window_mb = 0"}, "window_mb"),
        ({"rest": GROUP + "window_mb = -1"}, "window_mb"),
        ({"rest": "[telemetry]\nmax_mb = 0"}, "max_mb"),
        ({"rest": "[telemetry]\nseal_s = 0.0"}, "seal_s"),
        ({"rest": "[telemetry]\nseal_s = nan"}, "seal_s"),
        ({"rest": '[web]\naddress = "nowhere"'}, "[web] address: 'nowhere' is not an address"),
        ({"rest": '[web]\naddress = "10.0.0.1:80"'}, "needs a token"),
        ({"rest": '[web]\nresults = "s3a://b/out"'}, "must be a directory of this machine"),
        ({"rest": '[web]\naddress = "127.evil.example:80"'}, "needs a token"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_types_cannot_say_is_checked_too(changed: dict[str, str], complaint: str) -> None:
    assert complaint in refused(**changed)


@pytest.mark.parametrize("name", ["", "x" * 65])
def test_a_name_that_others_would_refuse_is_refused_here(name: str) -> None:
    """A node that nobody lets in should not start."""
    for key in ("name", "domain"):
        text = f'domain = "lab"\nname = "n1"\n{PLAIN}{ADAPTER}'
        old = "lab" if key == "domain" else "n1"
        with pytest.raises(ConfigError, match=rf"n1\.toml: {key} must have 1 to 64 letters"):
            parse_config(text.replace(f'{key} = "{old}"', f'{key} = "{name}"', 1), "n1.toml")


def test_more_adapters_than_others_accept_are_refused() -> None:
    adapters = "".join(
        ADAPTER.replace("red", f"a{n}").replace("7400", str(7400 + n)) for n in range(33)
    )
    assert "at most 32 adapters" in refused(adapter=adapters)


@pytest.mark.parametrize("host", ["10.0.0.1", "node.example", "127.evil.example", "[::1234]"])
def test_plain_mode_off_loopback_is_refused_with_the_way_out(host: str) -> None:
    """Links: plain mode only on loopback, said loudly."""
    complaint = refused(adapter=ADAPTER.replace("127.0.0.1", host))
    assert "plain mode is accepted on loopback only" in complaint
    assert "holdfast ca" in complaint


@pytest.mark.parametrize("missing", ["authority", "certificate", "key"])
def test_tls_without_a_file_is_refused_with_the_command_that_makes_it(missing: str) -> None:
    files = "\n".join(
        f'{key} = "x"' for key in ("authority", "certificate", "key") if key != missing
    )
    complaint = refused(security=f'[security]\nmode = "tls"\n{files}')
    assert f"[security] {missing} is missing" in complaint
    assert "holdfast ca issue n1" in complaint


def test_tls_needs_a_stream_to_agree_on_keys() -> None:
    files = 'authority = "a"\ncertificate = "c"\nkey = "k"'
    complaint = refused(security=f"[security]\n{files}", adapter=ADAPTER + 'transports = ["udp"]')
    assert 'add "tcp" to the transports' in complaint


def test_tls_off_loopback_is_fine() -> None:
    files = 'authority = "a"\ncertificate = "c"\nkey = "k"'
    c = config(security=f"[security]\n{files}", adapter=ADAPTER.replace("127.0.0.1", "10.0.0.1"))
    assert c.security.mode == "tls"


def test_a_page_off_loopback_with_a_token_is_fine() -> None:
    c = config(rest='[web]\naddress = "10.0.0.1:80"\ntoken = "secret"')
    assert c.web.token == "secret"
