"""The processes of a deployment, each built of the real parts around what is simulated: API processes and workers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from app.coord.coord import Caps
from app.core import ids
from app.core.principal import Principal
from app.log.compact import Compactor
from app.log.hub import Hub
from app.log.leftovers import leftovers
from app.log.log import Log
from app.services.sessions import Sessions
from app.services.writer import Clock, Writer
from app.store.keys import LogName
from app.store.trash import Trash
from tests.sim.harness import SimAdapter, SimGuardian, SimWorkspaces
from tests.sim.oracle import Oracle
from tests.sim.redis import Server, SimCoord, SimSubscription
from tests.sim.scheduler import Process
from tests.sim.store import SimStore
from tests.sim.world import World
from workers.lease import Renewer
from workers.pool import Pool
from workers.protocol_errors import ProtocolErrors
from workers.runner import Tools
from workers.sweep import Sweep
from workers.turn import Limits

TENANT = "acme"
PRINCIPAL = Principal(tenant=TENANT, scope="management", login="ann", token_id="t", session=None, executor=None)
TURN_SECONDS = 20.0
MAX_QUEUE = 50


class NoTools:
    """Sessions here have no tools."""

    def resolve(self, *_: Any) -> dict[str, Any]:
        return {"descriptors": [], "credential_bindings": []}


class NoKeys:
    """Harnesses here need no keys."""

    def variables(self, *_: Any) -> dict[str, str]:
        return {}


class SimClock(Clock):
    """The wall clock of the process that asks."""

    def __init__(self, world: World) -> None:
        self._w = world

    def now(self) -> float:
        return self._w.time.time()

    def id(self) -> str:
        return ids.make(int(self.now() * 1000), self._w.rng.getrandbits(80).to_bytes(10, "big"))


class Part:
    """What every process has."""

    def __init__(self, world: World, oracle: Oracle, server: Server, name: str) -> None:
        self.world = world
        self.process = world.process(name)
        self.store = SimStore(world, self.process, oracle)
        self.coord: Any = SimCoord(world, self.process, server)
        self.clock = SimClock(world)
        self.log = Log(self.store, self.coord, int(world.profile.lease * 1000), world.pace())
        self.subscription = SimSubscription(world, self.process, server)
        self.hub: Hub

    @property
    def alive(self) -> bool:
        return self.process.alive

    def boot(self) -> None:
        """Runs in the process itself."""
        self.hub = Hub(self.log, self.coord.channel, self.subscription)

    def compact(self, name: LogName) -> None:
        """Compacts a log."""
        Compactor(self.log, self.clock.now, small_segments=1, large_events=self.world.rng.choice((3, 20))).run(name)

    def collect(self, name: LogName) -> None:
        """Deletes what compaction and restores have left behind a day ago."""
        head = self.log.head(name)
        trash = Trash(self.store, self.world.pace())
        for each in list(leftovers(self.log.segments, trash.under, name, head.chain, self.clock.now())):
            trash.discard("r", each.key, each.body)


class Api(Part):
    """An API process. `sessions` once it is up."""

    sessions: Sessions | None = None

    def boot(self) -> None:
        super().boot()
        self.sessions = Sessions(
            self.log,
            self.coord,
            self.hub,
            harnesses=["script"],
            steering=["script"],
            max_queue=MAX_QUEUE,
            grace_ms=int(self.world.profile.lease * 1000),
            resolver=NoTools(),
            clock=self.clock,
        )


class Worker(Part):
    """A worker, put together as `workers/main.py` does it."""

    def __init__(self, world: World, oracle: Oracle, server: Server, name: str) -> None:
        super().__init__(world, oracle, server, name)
        self.guardian = SimGuardian(world, oracle, name, self.process, {})
        self.pool: Pool | None = None

    def boot(self) -> None:
        super().boot()
        p = self.world.profile
        writer = Writer(self.log, self.clock)
        self.renewer = Renewer(self.coord, self.process.name, p.lease, self._failed("renew"))
        parts: dict[str, Any] = {
            "worker": self.process.name,
            "writer": writer,
            "coord": self.coord,
            "hub": self.hub,
            "guardian": self.guardian,
            "renewer": self.renewer,
            "workspaces": SimWorkspaces(self.guardian, self.store, self.world),
            "pool": self.world.executor,
            "adapters": {"script": SimAdapter},
            "caps": Caps(p.caps[0], p.caps[1], {}),
            "limits": Limits(TURN_SECONDS),
            "warm_seconds": p.warm,
            "errors": ProtocolErrors(),
            "model_keys": NoKeys(),
        }
        # what else there is belongs to tools and tasks, which these sessions don't have
        tools = Tools(**{name: parts.get(name) for name in Tools._fields})
        self.pool = Pool(tools, ["script"], 4, self._failed("claim"))
        self.sweep = Sweep(
            writer,
            self.coord,
            self.process.name,
            lease_ms=int(p.lease * 1000),
            every=p.sweep,
            max_attempts=p.max_attempts,
            failed=self._failed("sweep"),
            renewer=self.renewer,
        )
        self.hub.listen(self.coord.wake_channel, lambda _: self.pool.wake())  # type: ignore[union-attr]
        self.renewer.start()
        self.sweep.start()
        self.pool.start()

    def drain(self) -> None:
        """SIGTERM: gives back what it can, then ends."""
        if self.pool:
            self.pool.drain(self.world.rng.choice((0.0, 2.0)), 8.0)
            self.sweep.close()
            self.renewer.close()
            self.hub.close()
        self.world.scheduler.sleep(0.5)  # what is submitted already is waited for
        self.process.kill()

    def _failed(self, part: str) -> Callable[[], None]:
        def note() -> None:
            self.world.violate(f"a worker's {part} thread died")

        return note


class Deployment:
    """All processes: dead ones are replaced after a while."""

    def __init__(self, world: World, oracle: Oracle) -> None:
        self.world, self.oracle = world, oracle
        self.server = Server(world, oracle)
        self.apis: list[Api] = []
        self.workers: list[Worker] = []
        self._number = 0

    def start(self) -> None:
        for _ in range(self.world.profile.apis):
            self._new_api()
        for _ in range(self.world.profile.workers):
            self._new_worker()

    @property
    def parts(self) -> list[Part]:
        return [*self.apis, *self.workers]

    def part(self, process: Process) -> Part | None:
        """The living part that runs as `process`."""
        return next((p for p in self.parts if p.process is process and p.alive), None)

    def crash(self, part: Part) -> None:
        """SIGKILL; a new one comes up soon."""
        self.world.note("NEMESIS", "crash", part.process.name)
        part.process.kill()
        part.subscription.close()
        if isinstance(part, Worker):
            for child in self._children(part):
                child.kill()
        self.world.later(self.world.rng.random() * 4, self.replace, "replace")

    def drain(self, worker: Worker) -> None:
        """SIGTERM for a worker."""
        self.world.note("NEMESIS", "drain", worker.process.name)

        def done() -> None:
            worker.drain()

        task = worker.process.spawn(done, "drain")

        def follow() -> None:
            self.world.scheduler.join(task)
            self.replace()

        self.world.outside.spawn(follow, "follow")

    def replace(self) -> None:
        """Starts what is missing."""
        self.apis = [a for a in self.apis if a.alive]
        self.workers = [x for x in self.workers if x.alive]
        while len(self.apis) < self.world.profile.apis:
            self._new_api()
        while len(self.workers) < self.world.profile.workers:
            self._new_worker()

    def _children(self, worker: Worker) -> list[Any]:
        return list(worker.guardian.children)

    def _new_api(self) -> None:
        self._number += 1
        api = Api(self.world, self.oracle, self.server, f"api{self._number}")
        self.apis.append(api)
        api.process.spawn(api.boot, "boot")

    def _new_worker(self) -> None:
        self._number += 1
        worker = Worker(self.world, self.oracle, self.server, f"w{self._number}")
        self.workers.append(worker)
        worker.process.spawn(worker.boot, "boot")
