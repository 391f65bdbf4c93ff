"""Builds every client and puts the parts together: the only place that knows which class stands behind a contract.

Rules: only entry points import this. `connect` proves what the deployment stands on before anything is served: a store that
enforces conditions, a Redis that answers and never evicts. What is wrong comes out as `SettingsError`: one line, what to do.
Clients never retry by themselves and never wait without a limit: who called knows whether a repeat is harmless.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import redis
import structlog
from redis.backoff import NoBackoff
from redis.exceptions import NoPermissionError
from redis.retry import Retry

from app import settings_parse
from app.beat import ApiBeat
from app.coord.board import Board
from app.coord.coord import RedisCoord
from app.coord.executors import ExecutorRouting
from app.coord.owed import Owed
from app.coord.requests import Requests
from app.coord.scripts import Scripts
from app.core.errors import ByreError, Invalid, Missing
from app.log.hub import Hub, open_hub
from app.log.log import Log
from app.outgoing.client import Outgoing
from app.push.vapid import Vapid
from app.services import catalog_file
from app.services.agents import Agents
from app.services.answers import Answers
from app.services.blobs import Blobs
from app.services.catalog import Catalog
from app.services.descriptors import Resolver
from app.services.entities import Entities
from app.services.executors import Executors
from app.services.inbox import Inbox
from app.services.merging import Merging
from app.services.model_keys import ModelKeys
from app.services.project_settings import SettingsOfProjects
from app.services.projects import Projects
from app.services.push_devices import PushDevices
from app.services.restoring import Restoring
from app.services.sessions import Sessions
from app.services.starts import Starts
from app.services.status import Bounds, Status
from app.services.tasks import Tasks
from app.services.tokens import Tokens
from app.services.turns import Turns
from app.services.users import Users
from app.services.workspace_log import WorkspaceLog
from app.services.workspace_stream import WorkspaceEvents
from app.services.writer import Clock
from app.settings import Settings, SettingsError, environment
from app.store.cipher import Cipher
from app.store.contract import Store, StoreError
from app.store.keys import LogName
from app.store.open import open_store
from app.store.probe import probe

if TYPE_CHECKING:
    from app.http.app import App
    from app.http.deps import ByreServices

log = structlog.get_logger(__name__)

REDIS_TIMEOUT = 5.0
"""Seconds for one answer of Redis. Blocking commands must ask for less."""
REDIS_CONNECT_TIMEOUT = 2.0
REDIS_CONNECTIONS = 32
"""Connections of one process; a caller waits up to `REDIS_TIMEOUT` for a free one. A call takes a fraction of a millisecond, and each
connection about 40 KiB: a burst of callers would open as many as there may be."""
WAITING_CONNECTIONS = 64
"""Connections on which a process waits for answers of workers: requests beyond that many wait for a free one."""
STEERING = ("script", "claude")
"""Harnesses that take a message into the turn that runs."""
START_PATIENCE = 8.0
"""Seconds that a process waits for Redis at its start, so that both may be started at once."""


@dataclass(frozen=True)
class Base:
    """What every process has: its settings and the two clients."""

    settings: Settings
    store: Store
    redis: redis.Redis

    def close(self) -> None:
        """Lets go of all connections."""
        self.redis.close()
        self.store.close()


def connect(settings: Settings, role: str) -> Base:
    """Opens and proves store and Redis. `role` ("api", "worker") names the connections in Redis's client list.

    Raises SettingsError where a setting is missing or what it points to can't be used.
    """
    settings.require("object_store", "redis_url", "secret_key")
    store = store_of(settings)
    client = redis_of(settings, role)
    try:
        check_store(settings, store)
        check_redis(settings, client, START_PATIENCE)
    except SettingsError:
        client.close()
        store.close()
        raise
    return Base(settings, store, client)


def store_of(settings: Settings) -> Store:
    """The object store, not yet asked anything. Raises SettingsError."""
    settings.require("object_store")
    try:
        return open_store(settings.object_store, s3_endpoint=settings.s3_endpoint or None, region=settings.s3_region or None)
    except (ByreError, StoreError, OSError) as error:
        raise SettingsError(f"BYRE_OBJECT_STORE {_shown(settings.object_store)} can't be used: {_why(error)}") from error


def redis_of(settings: Settings, role: str, connections: int = REDIS_CONNECTIONS) -> redis.Redis:
    """A client of Redis, not yet connected. Raises SettingsError."""
    settings.require("redis_url")
    pool = redis.BlockingConnectionPool.from_url(
        settings.redis_url,
        max_connections=connections,
        timeout=REDIS_TIMEOUT,
        socket_timeout=REDIS_TIMEOUT,
        socket_connect_timeout=REDIS_CONNECT_TIMEOUT,
        retry=Retry(NoBackoff(), 0),
        retry_on_error=[],
        client_name=f"byre-{role}",
        protocol=2,  # in RESP3 what is published comes out of band, where the hub's reader doesn't look
    )
    return redis.Redis(connection_pool=pool)


def tokens_of(settings: Settings, store: Store) -> Tokens:
    """The deployment's tokens. Raises SettingsError."""
    settings.require("secret_key")
    return Tokens(store, settings.secret_key)


def check_store(settings: Settings, store: Store) -> None:
    """Raises SettingsError unless the store proves that it enforces conditional writes."""
    try:
        probe(store, deadline_seconds=START_PATIENCE)
    except (ByreError, StoreError, OSError) as error:
        raise SettingsError(f"BYRE_OBJECT_STORE {_shown(settings.object_store)} can't be used: {_why(error)}") from error


def check_redis(settings: Settings, client: redis.Redis, patience: float = 0.0) -> str:
    """The version of the Redis that answers within `patience` seconds. Raises SettingsError for none, or one that evicts."""
    shown = _shown(settings.redis_url)
    deadline = time.monotonic() + patience
    while True:
        try:
            info = client.info()
            break
        except (redis.AuthenticationError, NoPermissionError) as error:
            raise SettingsError(f"Redis at {shown} refuses us: {error}; check the password in BYRE_REDIS_URL") from error
        except (redis.RedisError, OSError) as error:
            if time.monotonic() >= deadline:
                raise SettingsError(
                    f"Redis at {shown} does not answer ({_why(error)}); start it or set BYRE_REDIS_URL"
                ) from error
            time.sleep(0.05)
    policy = info.get("maxmemory_policy", "noeviction")
    if policy != "noeviction":
        raise SettingsError(
            f"Redis at {shown} evicts keys (maxmemory-policy {policy}), which loses leases and queues: set it to noeviction"
        )
    return str(info.get("redis_version", "unknown"))


def readiness(base: Base) -> dict[str, Callable[[], None]]:
    """What `/readyz` asks: each raises when it isn't reached."""

    def ask_redis() -> None:
        base.redis.ping()

    def ask_store() -> None:
        base.store.list("probe/", limit=1)

    return {"redis": ask_redis, "store": ask_store}


@dataclass(frozen=True)
class Api:
    """The HTTP tier of one server process."""

    base: Base
    hub: Hub
    app: App
    beat: ApiBeat

    def close(self) -> None:
        """Ends what runs in the background and lets go of all connections."""
        self.beat.close()
        self.hub.close()
        self.base.close()


def coord_of(base: Base) -> RedisCoord:
    """Leases, queue and tails in Redis, under the deployment's own prefix."""
    return RedisCoord(Scripts(base.redis, base.settings.redis_prefix))


def log_of(base: Base, coord: RedisCoord) -> Log:
    """The deployment's logs."""
    return Log(base.store, coord, grace_ms(base.settings))


def hub_of(base: Base, log: Log, coord: RedisCoord) -> Hub:
    """The one follower of live tails of this process. Starts a thread; its owner closes it."""
    pool = base.redis.connection_pool
    return open_hub(log, coord, lambda: pool.connection_class(**pool.connection_kwargs))


def routing_of(base: Base) -> ExecutorRouting:
    """Where executors are connected."""
    return ExecutorRouting(Scripts(base.redis, base.settings.redis_prefix))


def credentials_of(settings: Settings) -> Cipher:
    """What encrypts the credentials of bindings."""
    return Cipher(settings.secret_key, purpose="credentials")


def model_keys_of(settings: Settings, store: Store) -> ModelKeys:
    """Keys of model vendors: of the deployment, and of the tenants. Raises SettingsError."""
    settings.require("secret_key")
    claude = {"ANTHROPIC_API_KEY": settings.anthropic_api_key} if settings.anthropic_api_key else {}
    return ModelKeys(store, Cipher(settings.secret_key, purpose="model-keys"), {"claude": claude})


def project_settings_of(settings: Settings, store: Store) -> SettingsOfProjects:
    """Credentials, set-up and environment of projects. Raises SettingsError."""
    settings.require("secret_key")
    return SettingsOfProjects(store, Cipher(settings.secret_key, purpose="project-settings"))


def board_of(base: Base) -> Board:
    """What processes say of themselves."""
    return Board(Scripts(base.redis, base.settings.redis_prefix))


def status_of(base: Base, log: Log, entities: Entities, restoring: Restoring) -> Status:
    """The state of the deployment."""
    settings = base.settings

    def size(name: LogName) -> int:
        try:
            return int(restoring.sync(name)["history_bytes"])
        except Missing:
            return 0

    caps = {vendor: settings.caps.get(vendor, settings.cap_global) for vendor in {*settings.harnesses, *settings.caps}}
    bounds = Bounds(settings.cap_global, caps, settings.stuck_after_seconds)
    return Status(board_of(base), log, WorkspaceLog(log), entities, size, bounds)


def vapid_of(settings: Settings, store: Store) -> Vapid:
    """The key by which push services know the deployment."""
    return Vapid(store, Cipher(settings.secret_key, purpose="push"), settings.push_contact or settings.public_url)


def push_devices_of(settings: Settings, store: Store, outgoing: Outgoing) -> PushDevices:
    """Browsers that are told of inbox items."""
    tokens = tokens_of(settings, store)
    return PushDevices(store, Cipher(settings.secret_key, purpose="push"), outgoing, tokens.live, Clock())


def outgoing_of(settings: Settings) -> Outgoing:
    """The one client for addresses that others gave us. Raises SettingsError."""
    try:
        return Outgoing(settings.outgoing_allow)
    except ValueError as error:
        raise SettingsError(f"BYRE_OUTGOING_ALLOW {error}") from error


def catalog_of(settings: Settings, outgoing: Outgoing) -> Catalog:
    """The tool providers of the deployment; nobody is asked anything yet. Raises SettingsError."""
    if not settings.catalog:
        return Catalog((), outgoing)

    def bucket(url: str) -> Store:
        return open_store(url, s3_endpoint=settings.s3_endpoint or None, region=settings.s3_region or None)

    try:
        entries = catalog_file.parse(catalog_file.read(settings.catalog, bucket), environment(), outgoing.check)
    except (Invalid, StoreError) as error:
        raise SettingsError(f"BYRE_CATALOG {settings.catalog}: {_why(error)}") from error
    return Catalog(entries, outgoing)


def sessions_of(
    settings: Settings, log: Log, coord: RedisCoord, hub: Hub | None, catalog: Catalog, executors: Executors
) -> Sessions:
    """The service of Brain sessions."""
    return Sessions(
        log,
        coord,
        hub,
        harnesses=settings.harnesses,
        steering=STEERING,
        max_queue=settings.max_queue,
        grace_ms=grace_ms(settings),
        resolver=Resolver(catalog, executors, credentials_of(settings)),
    )


def requests_of(base: Base) -> Requests:
    """Requests to workers."""
    return Requests(redis_of(base.settings, "requests", WAITING_CONNECTIONS), base.settings.redis_prefix)


def byre_of(base: Base, log: Log, hub: Hub, sessions: Sessions, outgoing: Outgoing) -> ByreServices:
    """The services of byre."""
    from app.http.deps import ByreServices

    workspace = WorkspaceLog(log)
    entities = Entities(base.store, workspace)
    requests, clock = requests_of(base), Clock()
    projects = Projects(base.store, entities, requests, clock)
    tasks = Tasks(entities, projects, workspace, requests, clock)
    owed = Owed(base.redis, base.settings.redis_prefix)
    turns = Turns(
        base.store, entities, log, workspace, sessions.inputs, sessions.restoring, requests, owed, clock, base.settings.vendor
    )
    inbox, users, blobs = Inbox(base.store, entities, clock), Users(entities), Blobs(base.store, clock)
    agents = Agents(entities, tasks, turns, inbox, blobs.check, clock)
    return ByreServices(
        users=users,
        inbox=inbox,
        answers=Answers(base.store, inbox, turns, clock),
        merging=Merging(tasks, agents, turns, users, inbox, clock),
        projects=projects,
        tasks=tasks,
        agents=agents,
        starts=Starts(projects, tasks, agents),
        events=WorkspaceEvents(hub, workspace, tasks),
        blobs=blobs,
        devices=push_devices_of(base.settings, base.store, outgoing),
        vapid=vapid_of(base.settings, base.store),
        status=status_of(base, log, entities, sessions.restoring),
    )


def grace_ms(settings: Settings) -> int:
    """Milliseconds for which a worker that can't be told may still believe in its lease: as long as a lease lasts."""
    return int(settings.lease_seconds * 1000)


def api(base: Base) -> Api:
    """The HTTP application over `base`."""
    from app.http.app import create_app
    from app.http.deps import Deps, Limits
    from app.http.schema import Validator

    settings = base.settings
    outgoing = outgoing_of(settings)
    catalog = catalog_of(settings, outgoing)
    coord = coord_of(base)
    log = log_of(base, coord)
    schema = Validator()
    hub = hub_of(base, log, coord)
    limits = Limits(
        body=settings.body_limit, max_streams=settings.max_streams, max_streams_per_token=settings.max_streams_per_token
    )
    tokens = tokens_of(settings, base.store)
    executors = Executors(base.store, log, routing_of(base), tokens, hub, Clock())
    sessions = sessions_of(settings, log, coord, hub, catalog, executors)
    deps = Deps(
        sessions=sessions,
        byre=byre_of(base, log, hub, sessions, outgoing),
        catalog=catalog,
        executors=executors,
        tokens=tokens,
        schema=schema,
        ready=readiness(base),
        limits=limits,
        public_url=settings.public_url,
    )
    app = create_app(deps)
    beat = ApiBeat(board_of(base), app.followers.by_tenant).start()
    return Api(base, hub, app, beat)


def _shown(address: str) -> str:
    return settings_parse.mask_address(address)


def _why(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
