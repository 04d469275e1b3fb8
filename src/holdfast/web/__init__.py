"""The live page of a node, and the same as JSON, as a stream of events and as Prometheus metrics.

`server` listens; `application` says what is served where; `access` decides who may see it; `snapshots` asks the node
for its status, no more often than is worth it; `metrics` writes that status in the Prometheus text format; `static`
is the page itself, plain files without a build step. Needs the extra `web` (aiohttp), but only to start.
"""

from holdfast.web.server import WebServer

__all__ = ["WebServer"]
