"""The worker process: builds its parts, runs until SIGTERM, drains.

Rules: a part whose thread dies stops the worker (another one takes its sessions over); what a former life of a worker left on this host is
killed before anything is claimed; after `drain_seconds` running turns are interrupted cleanly, so a deploy loses nothing.
"""

from __future__ import annotations

import secrets
import signal
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import structlog

from app import wiring
from app.coord.coord import Caps
from app.log.compact import Compactor
from app.push.sender import Sender
from app.services.byre_tools import KIND
from app.services.writer import Clock, Writer
from app.settings import Settings
from app.store.cipher import Cipher
from workers.byre import ByreHalf
from workers.compaction import Compaction
from workers.executor_calls import ExecutorCalls
from workers.harness import registry
from workers.heartbeat import Heartbeat
from workers.lease import Renewer
from workers.lives import kill_leftovers
from workers.pool import Pool
from workers.process import Guardian
from workers.protocol_errors import ProtocolErrors
from workers.provider_calls import ProviderCalls
from workers.push import open_push
from workers.request_server import RequestServer
from workers.runner import Tools
from workers.sweep import Sweep
from workers.tools import ToolKit
from workers.turn import Limits
from workers.workspace import Workspaces

CUT_SECONDS = 8.0
"""For a turn that is interrupted in a drain: the harness's grace, its checkpoint and the last appends."""

TOOL_SECONDS = 300.0
"""Longest call of a tool."""

logger = structlog.get_logger(__name__)


def run(settings: Settings, ready: Callable[[], None] = lambda: None) -> int:
    """Runs a worker until SIGTERM or SIGINT. Gives 0 after a complete drain, 1 if something had to be left to the sweep.

    Raises SettingsError. `ready` is called when it claims.
    """
    stop = threading.Event()
    dead: list[str] = []

    def failed(what: str) -> Callable[[], None]:
        def note() -> None:
            dead.append(what)
            stop.set()

        return note

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    outgoing = wiring.outgoing_of(settings)
    catalog = wiring.catalog_of(settings, outgoing)
    base = wiring.connect(settings, "worker")
    worker = secrets.token_hex(8)
    lives = settings.workspaces / "lives"
    lives.mkdir(parents=True, exist_ok=True, mode=0o700)
    killed = kill_leftovers(str(lives))
    if killed:
        logger.warning("killed what a former worker left", processes=killed)
    coord = wiring.coord_of(base)
    log = wiring.log_of(base, coord)
    hub = wiring.hub_of(base, log, coord)
    guardian = Guardian.start(lives, failed("guardian"))
    renewer = Renewer(coord, worker, settings.lease_seconds, failed("renew"))
    pool_threads = ThreadPoolExecutor(max(4, settings.worker_slots), thread_name_prefix="archive")
    writer = Writer(log, Clock())
    projects = wiring.project_settings_of(settings, base.store)
    byre = ByreHalf(settings, base.redis, wiring.requests_of(base), log, projects, outgoing, coord, failed("follow"))
    adapters = registry.offered(settings)
    tools = Tools(
        worker=worker,
        writer=writer,
        coord=coord,
        hub=hub,
        guardian=guardian,
        renewer=renewer,
        workspaces=Workspaces(settings.workspaces, base.store, Cipher(settings.secret_key, purpose="native")),
        pool=pool_threads,
        adapters=adapters,
        caps=Caps(settings.cap_global, settings.cap_global, dict(settings.caps)),
        limits=Limits(settings.turn_seconds, settings.turn_tokens, settings.turn_cost_usd, settings.stuck_after_seconds),
        warm_seconds=settings.warm_seconds,
        errors=ProtocolErrors(),
        model_keys=wiring.model_keys_of(settings, base.store),
        kit=ToolKit(
            kinds={
                "executor": ExecutorCalls(wiring.routing_of(base), hub, worker),
                "http": ProviderCalls(catalog, outgoing, "http"),
                "mcp": ProviderCalls(catalog, outgoing, "mcp"),
                KIND: byre.people.tools,
            },
            tokens=wiring.tokens_of(settings, base.store),
            cipher=wiring.credentials_of(settings),
            store=base.store,
            clock=Clock(),
            public_url=settings.public_url,
            seconds=TOOL_SECONDS,
        ),
        task_session=byre.session,
        compaction=Compaction(Compactor(log), pool_threads),
        search_path=settings.search_path,
    )
    board = wiring.board_of(base)
    served = RequestServer(byre.requests, byre.host, {**byre.work.handlers(), **byre.people.handlers}, failed("requests"))
    devices = wiring.push_devices_of(settings, base.store, outgoing)
    sender = Sender(outgoing, wiring.vapid_of(settings, base.store))
    push = open_push(base.store, log, hub, coord, devices, sender, settings.public_url, failed("push"))
    pool = Pool(tools, list(adapters), settings.worker_slots, failed("claim"))
    heartbeat = Heartbeat(board, worker, pool, guardian, tools.errors, failed("heartbeat"))
    sweep = Sweep(
        writer,
        coord,
        worker,
        lease_ms=int(settings.lease_seconds * 1000),
        every=settings.sweep_seconds,
        max_attempts=settings.max_attempts,
        failed=failed("sweep"),
        renewer=renewer,
    )
    hub.listen(coord.wake_channel, lambda _: pool.wake())
    renewer.start()
    sweep.start()
    served.start()
    byre.people.followups.start()
    byre.disk.start()
    push.start()
    heartbeat.start()
    pool.start()
    logger.info("worker runs", worker=worker, slots=settings.worker_slots, harnesses=list(adapters))
    ready()
    stop.wait()
    if dead:
        logger.error("a part of the worker died; stopping", part=dead[0])
    logger.info("worker drains", sessions=pool.running())
    whole = pool.drain(settings.drain_seconds if not dead else 0, CUT_SECONDS)
    served.close()
    push.close()
    heartbeat.close()
    byre.close()
    sweep.close()
    renewer.close()
    guardian.close()
    hub.close()
    pool_threads.shutdown(wait=True, cancel_futures=True)
    base.close()
    logger.info("worker ended", drained=whole)
    return 0 if whole and not dead else 1
