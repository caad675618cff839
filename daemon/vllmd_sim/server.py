"""The API server process: bind the port, configure, start the engine, and only then listen; vLLM's order."""

import argparse
import asyncio
import os
import signal
import socket
from collections.abc import Callable, Mapping

from vllmd_shim.port import share_port
from vllmd_sim import failures, refusals, v0
from vllmd_sim.api import ENGINE_GRACE_S, ApiServer
from vllmd_sim.config import EngineConfig, resolve
from vllmd_sim.engine_client import EngineClient
from vllmd_sim.host import Fault, Host
from vllmd_sim.lines import API_SERVER, Console, banner, say_arguments
from vllmd_sim.memory import Pool
from vllmd_sim.metrics import Metrics
from vllmd_sim.openai import Offer
from vllmd_sim.options import non_default
from vllmd_sim.scenario import of_this_launch
from vllmd_sim.startup import CONFIG_SHARE
from vllmd_sim.traffic import Traffic

TERMINATED = -signal.SIGINT  # Python ends by SIGINT on a KeyboardInterrupt that nobody catches


async def serve(args: argparse.Namespace, host: Host) -> int:
    """Run one server from its banner to its end; returns its exit code, TERMINATED for a SIGTERM before it served."""
    console = Console(API_SERVER, host.version)
    share_port()  # as vLLM's plugins are loaded before it binds
    starter = Starter(args, of_this_launch(host, non_default(args)), console)
    starting = asyncio.create_task(starter.start())
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, starting.cancel)
    try:
        server = await starting
    except failures.ConfigError as failure:
        console.raw(failures.traceback(failure.frames, failure.text))
        return 1
    except asyncio.CancelledError:
        await starter.abandon()
        console.raw(failures.terminated_traceback())
        return TERMINATED
    if isinstance(server, int):
        return server
    return await server.run(log_stats=not args.disable_log_stats)


_READY_TIMEOUT_S = 600  # vLLM's own (envs.py)
_OF_THE_MODEL: Mapping[str, Callable[[str], failures.ConfigError]] = {
    Fault.MODEL_GATED: refusals.model_gated,
    Fault.MODEL_UNKNOWN: refusals.model_unknown,
    Fault.MODEL_NOT_CACHED: refusals.model_not_cached,
    Fault.MODEL_WITHOUT_CONFIG: refusals.model_without_config,
    Fault.HUB_SILENT: refusals.hub_silent,
    Fault.ARCHITECTURE: refusals.architecture_unsupported,
}


class Starter:
    """One start, which a signal may cancel at any of its waits."""

    def __init__(self, args: argparse.Namespace, host: Host, console: Console) -> None:
        self._args = args
        self._host = host
        self._console = console
        self._engine: EngineClient | None = None

    async def start(self) -> ApiServer | int:
        """Return the server, ready to listen, or the exit code where it ends. Raises failures.ConfigError."""
        args, host, console = self._args, self._host, self._console
        banner(console, host.version, args.model_tag or args.model)
        say_arguments(console, host.version, args, non_default(args))
        listener = _bind(args.host or "127.0.0.1", args.port)
        config = await self._configure()
        if host.fault == Fault.CLEAN_EXIT:
            return 0
        self._engine = await EngineClient.spawn(config, host)
        pool = await self._pool_of(self._engine)
        if pool is None:
            code, _ = await self._engine.end(ENGINE_GRACE_S)
            console.raw(v0.start_traceback() if config.v0 else failures.start_traceback(code))
            return 1
        metrics = Metrics(config, pool, enabled=not args.disable_log_stats)
        offer = Offer(tuple(args.served_model_name or [config.model]), pool.max_model_len, host.answer_tokens)
        traffic = Traffic(self._engine, metrics, offer, args.api_key or [], host.version)
        return ApiServer(config, host.version, self._engine, traffic, listener, console)

    async def _configure(self) -> EngineConfig:
        """Take the time that vLLM needs for its imports, then check what the operator asked for."""
        host, console = self._host, self._console
        await asyncio.sleep(host.start_s * CONFIG_SHARE)
        model = self._args.model_tag or self._args.model
        if model.startswith("/") and not os.access(model, os.F_OK):
            raise refusals.model_not_found(model)
        if refusal := _OF_THE_MODEL.get(host.fault or ""):
            raise refusal(model)
        config = resolve(self._args, host, os.environ.get("VLLM_USE_V1"))
        length = host.max_position if config.max_model_len < 0 else config.max_model_len
        console.info("model.py:623", "Resolved architecture: LlamaForCausalLM")
        console.info("model.py:1788", f"Using max model len {length}")
        if config.chunked:
            console.info(
                "scheduler.py:252", f"Chunked prefill is enabled with max_num_batched_tokens={config.batched_tokens}."
            )
        else:
            console.warning(
                "arg_utils.py:2536",
                "This model does not officially support disabling chunked prefill. Disabling this manually may cause "
                "the engine to crash or produce incorrect outputs.",
            )
        return config

    async def _pool_of(self, engine: EngineClient) -> Pool | None:
        """Wait for the engine as long as vLLM's own deadline allows; None when it ended instead."""
        limit_s = int(os.environ.get("VLLM_ENGINE_READY_TIMEOUT_S", _READY_TIMEOUT_S))
        try:
            return await asyncio.wait_for(engine.ready(), limit_s)
        except TimeoutError:
            await self.abandon()
            raise failures.ready_timeout(limit_s) from None

    async def abandon(self) -> None:
        """End an engine that is still starting."""
        if self._engine is not None:
            self._engine.terminate()
            await self._engine.end(ENGINE_GRACE_S)


def _bind(address: str, port: int) -> socket.socket:
    """Return a socket that is bound but does not listen yet: connections are refused until the engine is ready."""
    listener = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((address, port))
    except OSError as error:
        raise refusals.bind_failed(error) from error
    return listener
