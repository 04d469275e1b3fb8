"""The page in a real browser: what people see, and that it follows what happens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.web.browser import Browser, Page
from tests.web.fake_status import FakeDomain

from holdfast.web import WebServer

pytestmark = pytest.mark.browser

SHOWN = "document.body.dataset.version"
LIVE = 'document.body.dataset.contact === "live"'
LOST = 'document.body.dataset.contact === "lost"'


def serve(
    status: Callable[[], dict[str, Any]], port: int = 0, token: str | None = None
) -> WebServer:
    return WebServer("127.0.0.1", port, status, token)


def cell(sender: str, listener: str, subnet: str) -> str:
    """An expression for the cell of a matrix."""
    label = f"{sender} to {listener}:"
    return f"""document.querySelector('[data-subnet="{subnet}"] td[aria-label^="{label}"]')"""


def test_the_matrix_is_shown_and_follows_what_happens(browser: Browser) -> None:
    async def scenario(page: Page) -> None:
        domain = FakeDomain(4)
        async with serve(domain.status) as server:
            await page.open(server.url)
            await page.until(SHOWN)
            assert await page.run("document.title") == "demo · n1 · Holdfast"
            assert await page.run("document.querySelectorAll('table.matrix').length") == 2
            assert await page.run("document.querySelectorAll('td.cell.ok').length") == 2 * 4 * 3
            assert (
                await page.run("document.querySelector('#verdict-text').textContent")
                == "All is well"
            )
            here, there = cell("n1", "n2", "blue"), cell("n2", "n1", "blue")
            await page.run(f"{here}.sameElement = true")

            domain.fault("n1", "n2", "blue", "udp", size=1000)
            await page.until(f'{here}.textContent === "1000"')
            assert await page.run(f"{here}.className") == "cell soft"
            assert "packets over 1000 bytes" in await page.run(f"{here}.ariaLabel")
            assert await page.run(f"{there}.className") == "cell ok", "one direction only"
            assert await page.run(f"{cell('n1', 'n2', 'red')}.className") == "cell ok"
            assert (
                await page.run("document.querySelector('#verdict-text').textContent")
                == "1 soft error"
            )
            assert "n1 -> n2 on blue" in await page.run(
                "document.querySelector('#events li').innerText"
            )

            # A listener that is down does not take back what it told before.
            domain.fault("n1", "n4", "red", "udp", alive=True)
            domain.down.add("n4")
            await page.until(
                "document.querySelector('#verdict-text').textContent.includes('1 member down')"
            )
            await page.until(f'{cell("n1", "n4", "red")}.className === "cell dead excused"')
            assert await page.run(f"{cell('n1', 'n4', 'red')}.textContent") == "✕"

            domain.down.clear()
            domain.heal()
            await page.until("document.querySelectorAll('td.cell.ok').length === 2 * 4 * 3")
            assert await page.run(f"{here}.sameElement"), "a change must not build the page anew"

    browser(scenario)


def test_attribute_values_and_incidents_are_shown_live(browser: Browser) -> None:
    """Sizes, patterns and kinds in the matrix; what is wrong, and why, in one list."""

    async def scenario(page: Page) -> None:
        domain = FakeDomain(3)
        async with serve(domain.status) as server:
            await page.open(server.url)
            await page.until(SHOWN)
            assert await page.run("document.querySelector('#incidents-section').hidden")
            here = cell("n1", "n2", "red")
            domain.fault("n1", "n2", "red", "udp", patterns=["00", "55"], bad_patterns=["55"])
            domain.extra["incidents"] = [
                {
                    "sender": "n1",
                    "sender_adapter": "red",
                    "listener": "n2",
                    "listener_adapter": "red",
                    "error_class": "pattern",
                    "transport": "udp",
                    "direction": "one way",
                    "text": "UDP packets filled with 55 vanish from n1/red to n2/red, one way only: a bad cable",
                    "band": "",
                    "since_s": 3.0,
                    "count": 2,
                }
            ]
            await page.until(f'{here}.textContent === "0x55"')
            assert await page.run(f"{here}.className") == "cell soft"
            await page.until("document.querySelectorAll('#incidents li').length === 1")
            line = await page.run("document.querySelector('#incidents li').innerText")
            assert "one way only: a bad cable (2 times)" in line
            await page.run(
                f"{here}.dispatchEvent(new PointerEvent('pointerover', {{ bubbles: true }}))"
            )
            assert "not 55" in await page.run("document.querySelector('#detail').innerText")

            domain.heal()
            domain.fault("n1", "n2", "red", "udp", holes=[1280])
            domain.extra["incidents"] = []
            await page.until(f'{here}.textContent === "not 1280"')
            await page.until("document.querySelector('#incidents-section').hidden")

    browser(scenario)


def test_advice_and_findings_of_the_pipeline_are_shown_and_followed(browser: Browser) -> None:
    """P9, P10: whether advice is in force, what it avoids and why, and what the pipeline found."""
    hidden = "document.querySelector('#advice-section').hidden"
    text = "document.querySelector('#advice-text').textContent"
    items = "[...document.querySelectorAll('#advice-list li')].map((one) => one.textContent)"
    ids = ["00" * 15 + "01", "00" * 15 + "02"]
    risky = {
        "path": [ids[0], "red", ids[1], "red", "red", "udp"],
        "risk_ppm": 900_000,
        "why": "<b>fails</b> at night",
    }
    in_force = {
        "source": "/srv/advice", "in_force": True, "problem": "", "damaged": [], "snapshot": 42, "valid_s": 3000,
        "moves_max": 10, "avoided": [risky], "busy": [{"adapter": "blue", "probe_share": 0.25}],
        "findings": ["group book: holds, 100% of 90 entries compared"],
    }  # fmt: skip

    async def scenario(page: Page) -> None:
        domain = FakeDomain(3)
        async with serve(domain.status) as server:
            await page.open(server.url)
            await page.until(SHOWN)
            assert await page.run(hidden) is True, "nothing to say without the setting"
            domain.extra["advice"] = in_force
            await page.until(f"!{hidden}")
            assert (
                await page.run(text)
                == "Advice 42 is in force for 50 min: 1 of at most 10 paths avoided"
            )
            shown = await page.run(items)
            assert shown[0].endswith("risk 90 %: <b>fails</b> at night")
            assert shown[1:] == [
                "blue is busy: 25 % of the probes are sent",
                "group book: holds, 100% of 90 entries compared",
            ]
            stale = {"in_force": False, "problem": "it expired 9 s ago", "avoided": [], "busy": []}
            domain.extra["advice"] = in_force | stale
            await page.until(f"{text}.startsWith('Advice is not followed')")
            assert "this node works as before: it expired 9 s ago" in await page.run(text)

    browser(scenario)


def test_a_member_that_comes_gets_its_row_and_column(browser: Browser) -> None:
    async def scenario(page: Page) -> None:
        domain = FakeDomain(3)
        async with serve(domain.status) as server:
            await page.open(server.url)
            await page.until(SHOWN)
            await page.run(f"{cell('n2', 'n1', 'red')}.focus()")
            domain.names.append("n10")
            await page.until(cell("n10", "n1", "red"))
            heads = "[...document.querySelectorAll('[data-subnet=\"red\"] th.row')].map((th) => th.textContent)"
            assert await page.run(heads) == ["n1", "n2", "n3", "n10"]
            assert "n2 to n1" in await page.run("document.activeElement.ariaLabel")

    browser(scenario)


def test_details_show_on_hover_and_by_keyboard(browser: Browser) -> None:
    async def scenario(page: Page) -> None:
        domain = FakeDomain(3)
        domain.fault("n1", "n2", "red", "udp", size=1000, loss_ppm=203_000, rtt_us=1540)
        async with serve(domain.status) as server:
            await page.look(1200, 900)
            await page.open(server.url)
            await page.until(SHOWN)
            shown = "document.querySelector('#detail:not([hidden])')"
            assert await page.run(shown) is None
            await page.point('[data-subnet="red"] td.soft')
            card = await page.until(f"{shown}.innerText")
            for told in (
                "n1 → n2",
                "tcp",
                "udp",
                "1000 of 9000",
                "20%",
                "1.54 ms",
                "31 s",
                "limited",
            ):
                assert told in card
            await page.point("h1")
            await page.until(f"!{shown}")

            await page.run(f"{cell('n1', 'n2', 'red')}.focus()")
            for key, told in [
                ("ArrowRight", "n1 → n3"),
                ("ArrowDown", "n2 → n3"),
                ("ArrowLeft", "n2 → n1"),
                ("ArrowDown", "n3 → n1"),
                ("End", "n3 → n2"),
                ("Home", "n3 → n1"),
            ]:
                await page.press(key)
                await page.until(f'{shown}.innerText.includes("{told}")')
            await page.press("Escape")
            await page.until(f"!{shown}")

    browser(scenario)


def test_when_the_node_is_gone_the_page_says_since_when_and_comes_back(browser: Browser) -> None:
    async def scenario(page: Page) -> None:
        domain = FakeDomain(3)
        async with serve(domain.status) as server:
            await page.open(server.url)
            await page.until(SHOWN)
        await page.until(LOST)
        banner = await page.run("document.querySelector('#banner').innerText")
        assert "No contact with n1 since" in banner
        assert "no contact" in await page.run("document.querySelector('#contact').innerText")
        assert await page.run("document.title") == "✕ no contact · demo · n1 · Holdfast"
        assert await page.run("document.querySelectorAll('td.cell.ok').length") == 12, (
            "what was known stays"
        )

        domain.fault("n1", "n2", "red", "udp", size=1000)
        async with serve(domain.status, server.port):
            await page.run("document.querySelector('#retry').click()")
            await page.until(f"{LIVE} && {cell('n1', 'n2', 'red')}.textContent === '1000'")
            assert await page.run("document.querySelector('#banner').hidden")
            assert await page.run("document.title") == "demo · n1 · Holdfast"
        await page.until(LOST)
        page.complaints.clear()  # The browser itself tells of every connection that was refused.

    browser(scenario)


def test_the_page_comes_back_without_being_asked(browser: Browser) -> None:
    async def scenario(page: Page) -> None:
        domain = FakeDomain(3)
        async with serve(domain.status) as server:
            await page.open(server.url)
            await page.until(SHOWN)
        await page.until(LOST)
        async with serve(domain.status, server.port):
            await page.until(LIVE)
        page.complaints.clear()

    browser(scenario)


def test_a_page_with_a_token_asks_for_it(browser: Browser) -> None:
    async def scenario(page: Page) -> None:
        type_token = """(
            document.querySelector("#token").value = "{}",
            document.querySelector("#unlock").requestSubmit()
        )"""
        async with serve(FakeDomain(3).status, token="secret") as server:
            await page.open(server.url)
            await page.until("document.querySelector('#locked:not([hidden]) #token')")
            assert await page.run("document.querySelector('#main').hidden")
            await page.run(type_token.format("gehe\u00efm"))
            await page.until(
                "document.querySelector('#unlock-text').textContent.includes('not accepted')"
            )
            await page.run(type_token.format("wrong"))
            await page.until(
                "document.querySelector('#unlock-text').textContent.includes('not accepted')"
            )
            # Two at once: the answer to the first must not count for the second.
            await page.run(type_token.format("wrong again"))
            await page.run(type_token.format("secret"))
            await page.until(f"{LIVE} && {SHOWN} && !document.querySelector('#main').hidden")
            assert await page.run("document.querySelector('#locked').hidden")
            await page.run("sessionStorage.clear()")

            await page.open(server.url + "?token=secret")
            await page.until(f"location.search === '' && {LIVE} && {SHOWN}")
        page.complaints.clear()  # The browser itself tells of every 401.

    browser(scenario)


def test_text_from_the_network_stays_text(browser: Browser) -> None:
    async def scenario(page: Page) -> None:
        evil = '<img src=x onerror="document.title=1">"\'&'
        domain = FakeDomain(2, subnets=(evil,))
        domain.names.append(evil)
        domain.event(evil, evil)
        domain.fault("n1", evil, evil, "udp", alive=False)
        async with serve(domain.status) as server:
            await page.open(server.url)
            await page.until(SHOWN)
            assert await page.run("document.querySelectorAll('main img').length") == 0
            assert evil in await page.run("document.querySelector('#events').innerText")
            assert await page.run("document.querySelectorAll('td.cell').length") == 6

    browser(scenario)


def test_a_group_shows_its_replicas_in_either_form(browser: Browser) -> None:
    async def scenario(page: Page) -> None:
        domain = FakeDomain(3)
        domain.behind["n3"] = 12
        text = "document.querySelector('.group').innerText"
        async with serve(domain.status) as server:
            await page.open(server.url)
            await page.until(SHOWN)
            listed = await page.run(text)
            assert "120\u202f419" in listed
            assert "9af3c01d" in listed
            [group] = domain.status()["groups"]
            peers = {peer.pop("name"): peer for peer in map(dict, group["peers"])}
            domain.extra["groups"] = [{**group, "peers": peers, "digest": 0x0AF3C01D}]
            await page.until(f"{text}.includes('0af3c01d')")
            assert await page.run(text) == listed.replace("9af3c01d", "0af3c01d")

    browser(scenario)


def test_dialogs_are_shown_with_those_in_trouble_first(browser: Browser) -> None:
    """A node without dialog stores has no section."""

    def dialog(number: int, **more: Any) -> dict[str, Any]:
        base = {
            "id": f"{number:02x}", "name": f"d{number}", "uri": "orders", "state": "open", "sent": 1200, "queued": 2,
            "in_flight": 1, "received": 7, "available": 0, "poison": [], "fault": "", "detail": "",
        }  # fmt: skip
        return base | more

    async def scenario(page: Page) -> None:
        domain = FakeDomain(2)
        section = "document.getElementById('dialogs-section')"
        async with serve(domain.status) as server:
            await page.open(server.url)
            await page.until(SHOWN)
            assert await page.run(f"{section}.hidden")
            domain.extra["dialog_stores"] = [
                {"name": "default", "dialogs": 3, "blocks": 5, "transactions": 1},
                {"name": "pg", "error": "no database"},
            ]
            faulted = dialog(2, state="faulted", fault="no-partner", detail="nothing listens")
            domain.extra["dialogs"] = [dialog(1), faulted, dialog(3, poison=[4])]
            await page.until(f"!{section}.hidden")
            rows = "[...document.querySelectorAll('#dialogs tbody tr')].map((row) => row.innerText)"
            shown = await page.run(rows)
            assert [row.split()[0] for row in shown] == ["d2", "d3", "d1"]
            assert "no-partner: nothing listens" in shown[0]
            assert "poison: 4" in shown[1]
            assert "pg is not open: no database" in await page.run(f"{section}.innerText")

    browser(scenario)


def test_events_are_newest_first_and_name_members(browser: Browser) -> None:
    async def scenario(page: Page) -> None:
        domain = FakeDomain(3)
        [_, second, _] = domain.status()["members"]
        for text in ("first", f"stream {second['id']}/1 lacks 3", "stream " + "f" * 32):
            domain.event("group", text)
        lines = "[...document.querySelectorAll('#events .what')].map((line) => line.textContent)"
        wanted = ["stream ffffffff", "stream n2/1 lacks 3", "first"]
        async with serve(domain.status) as server:
            await page.open(server.url)
            await page.until(SHOWN)
            assert await page.run(lines) == wanted
            domain.extra["events"] = domain.events[::-1]
            domain.commit += 1
            await page.until(f"Number({SHOWN}) > 1")
            assert await page.run(lines) == wanted

    browser(scenario)


def test_parts_of_the_status_may_be_missing(browser: Browser) -> None:
    async def scenario(page: Page) -> None:
        whole = FakeDomain(3).status()
        states: list[dict[str, Any]] = [
            {"schema": 1},
            {"schema": 1, "node": None, "members": None, "paths": 7, "groups": "x", "links": {}},
            {
                "node": {"name": "n1"},
                "members": [{}],
                "paths": [{}],
                "groups": [{}],
                "links": [{}],
                "events": [{}],
            },
            *({key: value for key, value in whole.items() if key != gone} for gone in whole),
            whole,
        ]
        now = 0
        async with serve(lambda: states[now]) as server:
            await page.open(server.url)
            for n in range(1, len(states) + 1):
                now = n - 1
                await page.until(f"Number({SHOWN}) >= {n}")
            assert await page.run("document.querySelectorAll('td.cell.ok').length") == 12

    browser(scenario)


def test_a_node_that_cannot_tell_its_status_is_said_to(browser: Browser) -> None:
    async def scenario(page: Page) -> None:
        domain = FakeDomain(3)
        broken = False

        def status() -> dict[str, Any]:
            if broken:
                raise ZeroDivisionError("oops")
            return domain.status()

        async with serve(status) as server:
            await page.open(server.url)
            await page.until(SHOWN)
            broken = True
            await page.until("document.querySelector('#banner-text').textContent.includes('oops')")
            assert await page.run("document.querySelectorAll('td.cell.ok').length") == 12
            broken = False
            await page.until("document.querySelector('#banner').hidden")

    browser(scenario)


@pytest.mark.parametrize("nodes", [3, 12, 50])
def test_the_page_fits_every_screen(browser: Browser, nodes: int) -> None:
    async def scenario(page: Page) -> None:
        async with serve(FakeDomain(nodes).status) as server:
            await page.open(server.url)
            await page.until(SHOWN)
            cells = await page.run("document.querySelectorAll('td.cell').length")
            assert cells == 2 * nodes * (nodes - 1)
            for width in (320, 800, 1400, 2200):
                await page.look(width, 900)
                assert await page.run("document.documentElement.scrollWidth") <= width

    browser(scenario)


CONTRAST = """(() => {
    const channels = (color) => color.match(/[0-9.]+/g).map(Number);
    const luminance = ([r, g, b]) => [r, g, b].map((c) => c / 255)
        .map((c) => (c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4))
        .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
    const ground = (element) => {
        const fill = channels(getComputedStyle(element).backgroundColor);
        return fill.length === 4 && fill[3] === 0 ? ground(element.parentElement) : fill;
    };
    const ratio = (element) => {
        const [a, b] = [luminance(channels(getComputedStyle(element).color)), luminance(ground(element))];
        return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    };
    const all = [...document.querySelectorAll("main:not([hidden]) *, header *, footer *, #detail *")]
        .filter((e) => [...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim()) && e.checkVisibility());
    return all.filter((e) => ratio(e) < 4.5).map((e) => `${e.tagName}.${e.className} ${e.textContent} ${ratio(e)}`);
})()"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_everything_can_be_read_and_no_state_is_a_colour_alone(
    browser: Browser, scheme: str
) -> None:
    async def scenario(page: Page) -> None:
        domain = FakeDomain(5)
        domain.down.add("n5")
        domain.behind["n3"] = 5000
        domain.fault("n1", "n2", "blue", "udp", size=1000)
        domain.fault("n2", "n1", "blue", "udp", alive=False)
        domain.fault("n2", "n1", "blue", "tcp", alive=False)
        domain.fault("n3", "n1", "blue", "udp", size=0)
        domain.fault("n3", "n1", "blue", "tcp", size=0)
        domain.event("group", "n1 leads")
        async with serve(domain.status) as server:
            await page.look(1400, 1000, scheme)
            await page.open(server.url)
            await page.until(SHOWN)
            await page.point('[data-subnet="blue"] td.soft')
            await page.until("!document.querySelector('#detail').hidden")
            assert await page.run(CONTRAST) == []
            texts = {}
            for state in ("ok", "soft", "dead", "unknown"):
                texts[state] = await page.run(
                    f"document.querySelector('td.cell.{state}').textContent"
                )
            assert texts == {"ok": "✓", "soft": "1000", "dead": "✕", "unknown": "?"}

    browser(scenario)
