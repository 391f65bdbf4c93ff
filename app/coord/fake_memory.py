"""What the stand-in for Redis holds: the keys of the deployment as plain values, which can be copied whole."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass
class LogKeys:
    """What Redis keeps of one log, over all its keys. `deadline` and `last` are None where the field is absent."""

    inc: str
    gen: int
    next: int
    arch: int
    ver: int
    state: bytes
    status: str
    epoch: str
    worker: str
    vendor: str
    astate: bytes
    asha: str
    idsat: int
    deadline: int | None = None
    last: str | None = None
    tail: dict[int, bytes] = dataclasses.field(default_factory=dict)
    ids: dict[str, int] = dataclasses.field(default_factory=dict)
    older: dict[str, int] = dataclasses.field(default_factory=dict)
    keys: dict[str, str] = dataclasses.field(default_factory=dict)

    @property
    def version(self) -> str:
        """As `expect` carries it."""
        return f"{self.gen}.{self.ver}"

    def copy(self) -> LogKeys:
        """Independent of this one."""
        return dataclasses.replace(self, tail=dict(self.tail), ids=dict(self.ids), older=dict(self.older), keys=dict(self.keys))


@dataclasses.dataclass
class Memory:
    """Everything that a server holds: a snapshot of it is what an old append-only file brings back."""

    boot: str = ""
    logs: dict[str, LogKeys] = dataclasses.field(default_factory=dict)
    queue: dict[str, dict[str, int]] = dataclasses.field(default_factory=dict)
    run: dict[str, dict[str, int]] = dataclasses.field(default_factory=dict)
    leases: dict[str, int] = dataclasses.field(default_factory=dict)
    idle: dict[str, int] = dataclasses.field(default_factory=dict)
    vendors: set[str] = dataclasses.field(default_factory=set)
    groups: dict[str, str] = dataclasses.field(default_factory=dict)

    def copy(self) -> Memory:
        """Independent of this one."""
        return Memory(
            boot=self.boot,
            logs={name: log.copy() for name, log in self.logs.items()},
            queue={vendor: dict(scores) for vendor, scores in self.queue.items()},
            run={vendor: dict(scores) for vendor, scores in self.run.items()},
            leases=dict(self.leases),
            idle=dict(self.idle),
            vendors=set(self.vendors),
            groups=dict(self.groups),
        )
