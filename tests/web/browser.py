"""A headless Chromium, driven over the DevTools protocol. Contacts nothing but loopback."""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

STEP_S_MAX = 20.0
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--remote-debugging-port=0",
    # Whatever it still wants to look up, it does not find.
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1, EXCLUDE localhost",
)


def find_chromium() -> str | None:
    names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
    return next(filter(None, map(shutil.which, names)), None)


class Page:
    """One tab."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._numbers = itertools.count(1)
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self.complaints: list[str] = []
        """What the browser wrote to its console as a warning or an error, and exceptions of the page."""
        self._reader = asyncio.create_task(self._read())

    async def do(self, method: str, **params: Any) -> dict[str, Any]:
        number = next(self._numbers)
        answer = self._answers[number] = asyncio.get_running_loop().create_future()
        await self._socket.send_json({"id": number, "method": method, "params": params})
        return await asyncio.wait_for(answer, STEP_S_MAX)

    async def run(self, script: str) -> Any:
        """The value of an expression (or of the promise that it is) in the page."""
        told = await self.do(
            "Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in told, told["exceptionDetails"]
        return told["result"].get("value")

    async def until(self, condition: str) -> Any:
        """Wait until an expression is true. The page tells by itself, at the change that makes it so."""
        script = f"""new Promise((resolve, reject) => {{
            const holds = () => {{ try {{ return {condition}; }} catch {{ return false; }} }};
            const look = () => {{ const value = holds(); if (value) {{ observer.disconnect(); resolve(value); }} }};
            const observer = new MutationObserver(look);
            observer.observe(document, {{subtree: true, childList: true, attributes: true, characterData: true}});
            document.addEventListener("readystatechange", look);
            setTimeout(() => reject(new Error("never: " + document.body.innerText)), {STEP_S_MAX * 900});
            look();
        }})"""
        return await self.run(script)

    async def open(self, url: str) -> None:
        await self.do("Page.navigate", url=url)

    async def look(self, width: int, height: int, scheme: str = "light") -> None:
        await self.do(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        await self.do("Emulation.setEmulatedMedia", features=features)

    async def press(self, key: str) -> None:
        for kind in ("keyDown", "keyUp"):
            await self.do("Input.dispatchKeyEvent", type=kind, key=key)

    async def point(self, selector: str) -> None:
        """Move the mouse onto an element."""
        x, y = await self.run(
            f"""(() => {{
                const element = document.querySelector({json.dumps(selector)});
                element.scrollIntoView({{block: "center"}});
                const box = element.getBoundingClientRect();
                return [box.x + box.width / 2, box.y + box.height / 2];
            }})()"""
        )
        await self.do("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    async def picture(self, whole: bool = True) -> bytes:
        """What the tab looks like, as PNG."""
        told = await self.do("Page.captureScreenshot", captureBeyondViewport=whole, format="png")
        return base64.b64decode(told["data"])

    async def _read(self) -> None:
        async for message in self._socket:
            told = json.loads(message.data)
            if "id" in told:
                answer = self._answers.pop(told["id"])
                if answer.done():
                    continue
                if "error" in told:
                    answer.set_exception(AssertionError(told["error"]))
                else:
                    answer.set_result(told["result"])
            elif told["method"] == "Log.entryAdded":
                entry = told["params"]["entry"]
                self.complaints.append(f"{entry['text']} {entry.get('url', '')}")
            elif told["method"] == "Runtime.exceptionThrown":
                self.complaints.append(json.dumps(told["params"]["exceptionDetails"]))

    async def close(self) -> None:
        self._reader.cancel()
        await self._socket.close()


@asynccontextmanager
async def browsing(program: str, profile: Path) -> AsyncIterator[Page]:
    """A fresh browser with one empty tab; it is gone, with everything it started, when the block ends."""
    process = await asyncio.create_subprocess_exec(
        program,
        *FLAGS,
        f"--user-data-dir={profile}",
        "about:blank",
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    drain: asyncio.Task[None] | None = None
    try:
        assert process.stderr is not None
        address = await asyncio.wait_for(_devtools_address(process.stderr), 60)
        drain = asyncio.create_task(_discard(process.stderr))
        async with aiohttp.ClientSession() as session:
            async with session.get(f"http://{address}/json/list") as answer:
                tabs = [tab for tab in await answer.json() if tab["type"] == "page"]
            socket = await session.ws_connect(
                tabs[0]["webSocketDebuggerUrl"], max_msg_size=64 << 20
            )
            page = Page(socket)
            for domain in ("Page", "Runtime", "Log"):
                await page.do(f"{domain}.enable")
            yield page
            await page.close()
    finally:
        process.terminate()
        await process.wait()
        if drain is not None:
            await drain


async def _devtools_address(stderr: asyncio.StreamReader) -> str:
    said = b""
    async for line in stderr:
        said += line
        if b"DevTools listening on ws://" in line:
            return line.split(b"ws://")[1].split(b"/")[0].decode()
    raise AssertionError(f"Chromium did not start: {said.decode(errors='replace')}")


async def _discard(stderr: asyncio.StreamReader) -> None:
    """A full pipe would stop the browser."""
    while await stderr.read(1 << 16):
        pass


Scenario = Callable[[Page], Awaitable[None]]
Browser = Callable[[Scenario], None]
