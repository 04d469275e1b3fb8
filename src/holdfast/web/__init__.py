"""The live web page of a node, with its status as JSON, as an event stream and as Prometheus metrics.

`server` listens; `application` defines the routes; `access` decides who may see the page; `snapshots` fetches the
status at a limited rate; `metrics` writes it in the Prometheus text format; `static` is the page, plain files without a
build step. Needs the extra `web` (aiohttp), but only to start.
"""

from holdfast.web.server import WebServer

__all__ = ["WebServer"]
