"""A stand-in for the API server of a Kubernetes cluster: it takes executor pods and starts them as processes here.

Spark's own Kubernetes backend talks to it as to a real one: it creates pods, lists them and deletes them. What is not
there is what Spark does not see: images, a scheduler, a network between pods.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from holdfast.pipeline.bench.cluster import HOST
from holdfast.pipeline.java import find_java

_PODS = "/api/v1/namespaces/default/pods"
_BACKEND = "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend"


class Pods:
    """The pods that Spark has asked for, each with its process."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.asked: list[str] = []
        """The requests, as `METHOD path`."""
        self.pods: dict[str, dict[str, Any]] = {}
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self._lock = threading.Lock()

    def create(self, pod: dict[str, Any]) -> dict[str, Any]:
        name = pod["metadata"]["name"]
        pod["metadata"] |= {"uid": str(uuid.uuid4()), "resourceVersion": "1"}
        pod["status"] = {"phase": "Running", "podIP": HOST}
        with self._lock:
            self.pods[name] = pod
            self.processes[name] = self._start(name, pod["spec"]["containers"][0])
        return pod

    def listed(self) -> dict[str, Any]:
        with self._lock:
            for name, process in self.processes.items():
                if process.poll() is not None:
                    self.pods[name]["status"]["phase"] = "Failed"
            items = list(self.pods.values())
        return {"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": items}

    def remove(self) -> None:
        with self._lock:
            for process in self.processes.values():
                process.kill()
                process.wait()
            self.pods.clear()

    def _start(self, name: str, container: dict[str, Any]) -> subprocess.Popen[bytes]:
        """What the entry point of Spark's image does for an executor."""
        import pyspark

        home = Path(pyspark.__file__).parent
        given = {one["name"]: one.get("value", "") for one in container["env"]}
        options = {
            "--driver-url": given["SPARK_DRIVER_URL"],
            "--executor-id": given["SPARK_EXECUTOR_ID"],
            "--cores": given["SPARK_EXECUTOR_CORES"],
            "--app-id": given["SPARK_APPLICATION_ID"],
            "--hostname": HOST,
            "--resourceProfileId": given["SPARK_RESOURCE_PROFILE_ID"],
            "--podName": name,
        }
        java_options = [
            value for key, value in sorted(given.items()) if key.startswith("SPARK_JAVA_OPT_")
        ]
        environment = os.environ | {
            "SPARK_HOME": str(home),
            "SPARK_LOCAL_DIRS": str(self.directory / name),
            "SPARK_LOCAL_IP": HOST,
            "PYSPARK_PYTHON": sys.executable,
        }
        command = [
            *(str(find_java().path / "bin" / "java"), *java_options),
            f"-Xmx{given['SPARK_EXECUTOR_MEMORY']}",
            *("-cp", f"{home}/jars/*", _BACKEND),
            *(text for option in options.items() for text in option),
        ]
        with (self.directory / f"{name}.log").open("wb") as words:
            return subprocess.Popen(
                command, stdout=words, stderr=subprocess.STDOUT, env=environment
            )


@contextlib.contextmanager
def api_server(directory: Path) -> Iterator[tuple[str, Pods]]:
    """The engine (`k8s://...`) of a cluster that ends with the block."""
    directory.mkdir(parents=True, exist_ok=True)
    pods = Pods(directory)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            pass

        def _answer(self) -> None:
            size = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(size) or b"{}")
            path = urlsplit(self.path).path
            pods.asked.append(f"{self.command} {path}")
            status, answer = 200, body
            if self.command == "POST" and path == _PODS:
                status, answer = 201, pods.create(body)
            elif self.command == "POST":
                status, answer["metadata"] = 201, body["metadata"] | {"uid": str(uuid.uuid4())}
            elif self.command == "GET" and path == _PODS:
                answer = pods.listed()
            elif self.command == "GET" and path.startswith(f"{_PODS}/"):
                answer = pods.pods.get(path.rpartition("/")[2], {})
                status = 200 if answer else 404
            elif self.command == "GET":
                answer = {"kind": "List", "apiVersion": "v1", "metadata": {}, "items": []}
            elif self.command == "DELETE":
                answer = {"kind": "Status", "apiVersion": "v1", "status": "Success"}
            content = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _answer  # noqa: N815 - names of http.server

    server = ThreadingHTTPServer((HOST, 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, name="api server", daemon=True).start()
    try:
        yield f"k8s://http://{HOST}:{server.server_address[1]}", pods
    finally:
        server.shutdown()
        server.server_close()
        pods.remove()
