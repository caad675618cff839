"""The API server once its engine is ready: listen, serve, and end as vLLM's API server ends."""

import asyncio
import os
import signal
import socket

from vllmd_shim.drain import requests_of_launch
from vllmd_sim import failures
from vllmd_sim.config import EngineConfig
from vllmd_sim.engine_client import EngineClient
from vllmd_sim.http1 import HttpServer
from vllmd_sim.lines import Console
from vllmd_sim.stats_line import Statistics, say
from vllmd_sim.traffic import ROUTES, Traffic
from vllmd_sim.versions import SHUTDOWN_LINES_SINCE, at_least

ENGINE_GRACE_S = 5.0  # for the engine's own end, beyond the drain
_HTTP_GRACE_S = 5.0
_BACKLOG = 2048  # uvicorn's


class ApiServer:
    """One serving API server and the ways in which it ends, all of them with code 0."""

    def __init__(
        self,
        config: EngineConfig,
        version: str,
        engine: EngineClient,
        traffic: Traffic,
        listener: socket.socket,
        console: Console,
    ) -> None:
        self._config = config
        self._version = version
        self._engine = engine
        self._traffic = traffic
        self._listener = listener
        self._console = console
        self._announced = False  # the engine itself said that it dies

    async def run(self, *, log_stats: bool) -> int:
        """Serve until SIGTERM or until the engine ends; returns the exit code.

        It is 0 even when the engine died, as vLLM's is: the HTTP server was shut down in good order.
        """
        told = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, told.set)
        http = HttpServer(self._traffic.answer, self._console.uvicorn, requests_of_launch())
        listening = await asyncio.start_server(http.connected, sock=self._listener, backlog=_BACKLOG)
        self._say_ready()
        self._engine.send({"serving": True})
        hearing = asyncio.create_task(self._hear())
        stopping = asyncio.create_task(told.wait())
        reporting = asyncio.create_task(self._traffic.report(self._say_statistics)) if log_stats else None
        await asyncio.wait((hearing, stopping), return_when=asyncio.FIRST_COMPLETED)
        if stopping.done():
            await self._stop(hearing)
        else:
            await self._mourn()
        if reporting is not None:
            reporting.cancel()
        listening.close()
        self._console.uvicorn("Shutting down")
        await http.close(_HTTP_GRACE_S)
        self._console.uvicorn("Waiting for application shutdown.")
        self._console.uvicorn("Application shutdown complete.")
        self._console.uvicorn(f"Finished server process [{os.getpid()}]")
        return 0

    def _say_ready(self) -> None:
        address, port = self._listener.getsockname()[:2]
        self._console.info("api_server.py:673", "Supported tasks: ['generate']")
        self._console.info("api_server.py:677", f"Starting vLLM server on http://{address}:{port}")
        self._console.info("launcher.py:37", "Available routes are:")
        for path, methods in ROUTES.items():
            self._console.info("launcher.py:46", f"Route: {path}, Methods: {methods}")
        self._console.uvicorn(f"Started server process [{os.getpid()}]")
        self._console.uvicorn("Waiting for application startup.")
        self._console.uvicorn("Application startup complete.")

    def _say_statistics(self, seen: Statistics) -> None:
        say(seen, self._version, self._console, v0=self._config.v0)

    async def _hear(self) -> None:
        """Book every step until the engine is gone."""
        async for message in self._engine.messages():
            match message:
                case {"step": dict(step)}:
                    self._traffic.book(step)
                case {"dead": _}:
                    self._announced = True
                    return

    async def _stop(self, hearing: "asyncio.Task[None]") -> None:
        """Stop the engine after SIGTERM: drained if --shutdown-timeout says so, aborting otherwise."""
        timeout_s = self._config.shutdown_timeout_s
        mode = "drain" if timeout_s else "abort"
        self._say_shutdown("launcher.py:100", "API server: shutdown triggered")
        self._say_shutdown("launcher.py:116", f"API server: stopping engine client mode={mode} timeout={timeout_s}s")
        self._say_cleanup(f"timeout={timeout_s}s")
        self._traffic.refusing = True
        self._engine.terminate()
        await asyncio.wait((hearing,), timeout=timeout_s + ENGINE_GRACE_S)
        await self._end_engine()
        self._traffic.fail()

    async def _mourn(self) -> None:
        """Say what vLLM says when its engine ended unasked."""
        self._traffic.dead = True
        if not self._announced:
            self._miss_engine()
        self._say_cleanup("timeout=default")
        await self._end_engine()
        if self._config.v0:
            self._console.critical("launcher.py:101", "MQLLMEngine is already dead, terminating server process")
        else:
            self._console.error("async_llm.py:704", failures.dead_traceback())
        self._traffic.fail()

    def _miss_engine(self) -> None:
        """Say that the engine's process is gone, which it did not say itself."""
        if self._config.v0:
            self._console.error(
                "client.py:300", f"RuntimeError('Engine process (pid {self._engine.pid}) died.')\nNoneType: None"
            )
        elif at_least(self._version, SHUTDOWN_LINES_SINCE):
            self._console.warning(
                "core_client.py:702", "[shutdown] MPClient: engine core exited unexpectedly; starting cleanup"
            )
        else:
            self._console.error(
                "core_client.py:564", "Engine core proc EngineCore died unexpectedly, shutting down client."
            )

    def _say_cleanup(self, timeout: str) -> None:
        self._say_shutdown("core_client.py:655", f"MPClient: start {timeout}")
        self._say_shutdown("core_client.py:657", "MPClient: stopping engine manager")

    def _say_shutdown(self, place: str, text: str) -> None:
        if at_least(self._version, SHUTDOWN_LINES_SINCE):
            self._console.info(place, f"[shutdown] {text}")

    async def _end_engine(self) -> None:
        _, killed = await self._engine.end(ENGINE_GRACE_S)
        if killed and at_least(self._version, SHUTDOWN_LINES_SINCE):
            self._console.warning(
                "utils.py:626", "[shutdown] Process manager: force killing remaining processes count=1"
            )
        self._say_shutdown("core_client.py:659", "MPClient: engine manager stopped")
        self._say_shutdown("core_client.py:660", "MPClient: cleaning up background resources")
        self._say_shutdown("core_client.py:662", "MPClient: complete")
