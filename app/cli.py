"""The `byre` command.

Rules: this file only says which commands and flags there are; each command is a function elsewhere that gets its settings. What
the user got wrong is one line on standard error and exit status 2 (flags) or 4 (configuration), never a traceback.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from app import settings
from app.settings import EXIT_STATUS, Settings, SettingsError

EPILOG = (
    "Settings are BYRE_* environment variables; `byre check` shows them. Flags win over variables. "
    "Without BYRE_OBJECT_STORE, commands work on the `byre dev` in BYRE_DATA."
)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command; returns its exit status."""
    arguments = _parser().parse_args(argv)
    try:
        return int(arguments.run(arguments))
    except SettingsError as error:
        print(f"byre: {error}", file=sys.stderr)
        return EXIT_STATUS
    except KeyboardInterrupt:
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="byre", description="Runs coding agents for teams.", epilog=EPILOG)
    commands = parser.add_subparsers(metavar="COMMAND", required=True)

    dev = commands.add_parser("dev", help="run everything on this machine", epilog=EPILOG)
    dev.add_argument("--host", help="address to listen on (127.0.0.1)")
    dev.add_argument("--port", type=_port, help="port to listen on, 0 for any free one (8080)")
    dev.add_argument("--data", type=Path, metavar="DIR", help="where all state is kept (~/.local/share/byre)")
    dev.add_argument("--workers", type=_count, default=1, metavar="N", help="workers to run (1)")
    dev.add_argument(
        "--ready-file", type=Path, metavar="FILE", help="written when it serves (ready.json in the data directory)"
    )
    dev.set_defaults(run=_dev)

    api = commands.add_parser("api", help="run one API server", epilog=EPILOG)
    api.set_defaults(run=_api)

    worker = commands.add_parser("worker", help="run one worker", epilog=EPILOG)
    worker.set_defaults(run=_worker)

    _token_commands(commands.add_parser("token", help="make, list and revoke tokens", epilog=EPILOG))

    _key_commands(commands.add_parser("key", help="set, list and delete keys of model vendors", epilog=EPILOG))

    _project_commands(commands.add_parser("project", help="credentials and set-up of projects", epilog=EPILOG))

    tail = commands.add_parser(
        "tail", help="follow a session", epilog="BYRE_URL and BYRE_TOKEN say where; else the running `byre dev`."
    )
    tail.add_argument("session", metavar="SESSION", help="its id")
    tail.add_argument("--after", metavar="CURSOR", help="begin behind this cursor instead of at the start")
    tail.add_argument("--data", type=Path, metavar="DIR", help="data directory of the `byre dev` to ask (~/.local/share/byre)")
    tail.set_defaults(run=_tail)

    check = commands.add_parser("check", help="show the settings and try each connection, or verify a session", epilog=EPILOG)
    check.add_argument("--session", metavar="ID", help="read everything of this session again instead, and verify it")
    check.add_argument("--tenant", help="tenant of the session (looked for)")
    check.add_argument("--thaw", action="store_true", help="let a frozen session go on, if all of it is whole again")
    check.set_defaults(run=_check)

    gc = commands.add_parser("gc", help="count what no session needs any more, or let it go", epilog=EPILOG)
    gc.add_argument("--apply", action="store_true", help="move it into the trash, and empty old trash (else: only say)")
    gc.add_argument("--tenant", help="only of this tenant")
    gc.add_argument("--undo", nargs="?", const="", metavar="RUN", help="bring back what a run moved away (the latest)")
    gc.set_defaults(run=_gc)

    purge = commands.add_parser("purge", help="erase a session for good", epilog=EPILOG)
    purge.add_argument("--session", required=True, metavar="ID", help="its id")
    purge.add_argument("--tenant", help="tenant of the session (looked for)")
    purge.add_argument("--yes", action="store_true", help="really do it (else: only say what would go)")
    purge.set_defaults(run=_purge)
    return parser


def _token_commands(token: argparse.ArgumentParser) -> None:
    actions = token.add_subparsers(metavar="ACTION", required=True)
    create = actions.add_parser("create", help="make a token and print it, this once")
    create.add_argument("--tenant", required=True, help="tenant it belongs to")
    create.add_argument("--scope", choices=("management", "user"), default="user", help="what it may do (user)")
    create.add_argument("--login", help="person it stands for; a user token needs one")
    create.add_argument("--name", help="what it is for, shown in lists")
    create.add_argument("--days", type=_count, help="days until it ends (never)")
    create.set_defaults(run=_token, action="create")
    listing = actions.add_parser("list", help="list the tokens of a tenant")
    listing.add_argument("--tenant", required=True)
    listing.set_defaults(run=_token, action="list")
    revoke = actions.add_parser("revoke", help="end a token; processes notice within ten seconds")
    revoke.add_argument("id", help="its id, as list shows it")
    revoke.add_argument("--tenant", help="refuse if it belongs to another")
    revoke.set_defaults(run=_token, action="revoke")


def _key_commands(key: argparse.ArgumentParser) -> None:
    actions = key.add_subparsers(metavar="ACTION", required=True)
    for action, text in (("set", "keep a key, read from standard input"), ("list", "list keys"), ("delete", "forget a key")):
        parser = actions.add_parser(action, help=text)
        parser.add_argument("--tenant", required=True, help="tenant it belongs to")
        if action != "list":
            parser.add_argument("--vendor", required=True, help="harness whose agents get it, such as claude")
            parser.add_argument("--variable", metavar="NAME", help="variable it is given in (claude: ANTHROPIC_API_KEY)")
        parser.set_defaults(run=_key, action=action)


def _project_commands(project: argparse.ArgumentParser) -> None:
    actions = project.add_subparsers(metavar="ACTION", required=True)
    texts = {
        "credentials": "keep what opens the project's origin, read from standard input",
        "setup": "keep the command that is run in each new worktree, and the agents' environment",
        "pull-requests": "whether its tasks are offered as pull requests instead of being merged",
        "show": "what is set, without secrets",
    }
    for action, text in texts.items():
        parser = actions.add_parser(action, help=text)
        parser.add_argument("name", metavar="NAME", help="the project's name; it need not be there yet")
        parser.add_argument("--tenant", required=True, help="tenant it belongs to")
        if action == "credentials":
            parser.add_argument("--kind", choices=("token", "deploy-key", "app"), default="token", help="what is given (token)")
            parser.add_argument("--user", help="the token's user (x-access-token)")
            parser.add_argument("--app", metavar="ID", help="id of the GitHub App whose private key is given")
            parser.add_argument("--installation", metavar="ID", help="id of its installation")
            parser.add_argument("--api", metavar="URL", help="API of a GitHub of your own (https://api.github.com)")
            parser.add_argument("--delete", action="store_true", help="forget them instead")
        if action == "setup":
            parser.add_argument("--command", default="", help="shell command (none)")
            parser.add_argument("--seconds", type=_count, default=600, metavar="N", help="its limit (600)")
            parser.add_argument("--environment", metavar="FILE", help="NAME=VALUE lines; - is standard input (none)")
        if action == "pull-requests":
            parser.add_argument("state", choices=("on", "off"))
        parser.set_defaults(run=_project, action=action)


def _dev(arguments: argparse.Namespace) -> int:
    from app import dev, processes

    env = settings.environment()
    given = Settings.from_env(env)
    data = _directory(arguments.data) or given.data
    processes.raise_open_files()
    options = dev.Options(
        host=arguments.host or given.host,
        port=given.port if arguments.port is None else arguments.port,
        data=data,
        workers=arguments.workers,
        ready_file=_directory(arguments.ready_file) or data / "ready.json",
    )
    return dev.run(options, env)


def _api(_: argparse.Namespace) -> int:
    from app import cli_processes

    return cli_processes.api()


def _worker(_: argparse.Namespace) -> int:
    from app import cli_processes

    return cli_processes.worker()


def _token(arguments: argparse.Namespace) -> int:
    from app import cli_token

    return cli_token.run(Settings.from_env(_environment()), arguments)


def _key(arguments: argparse.Namespace) -> int:
    from app import cli_key

    return cli_key.run(Settings.from_env(_environment()), arguments)


def _project(arguments: argparse.Namespace) -> int:
    from app import cli_project

    return cli_project.run(Settings.from_env(_environment()), arguments)


def _tail(arguments: argparse.Namespace) -> int:
    from app import cli_tail

    given = settings.load()
    return cli_tail.run(given, _directory(arguments.data) or given.data, arguments.session, arguments.after)


def _check(arguments: argparse.Namespace) -> int:
    if arguments.session:
        from app import cli_check_session

        return cli_check_session.run(Settings.from_env(_environment()), arguments)
    from app import cli_check

    return cli_check.run(_environment())


def _gc(arguments: argparse.Namespace) -> int:
    from app import cli_gc

    return cli_gc.run(Settings.from_env(_environment()), arguments)


def _purge(arguments: argparse.Namespace) -> int:
    from app import cli_purge

    return cli_purge.run(Settings.from_env(_environment()), arguments)


def _environment() -> dict[str, str]:
    """The environment of a command that works on a deployment: where none is named, that of the `byre dev` in BYRE_DATA."""
    env = settings.environment()
    given = Settings.from_env(env)
    if given.object_store:
        return env
    from app import dev_data

    local = dev_data.deployment(given.data)
    if local:
        print(f"byre: this is about the `byre dev` in {given.data}, as BYRE_OBJECT_STORE is not set", file=sys.stderr)
    return local | {name: value for name, value in env.items() if value.strip() or name not in local}


def _directory(path: Path | None) -> Path | None:
    return path.expanduser().absolute() if path else None


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is no port")
    return int(text)


def _count(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 10_000:
        raise argparse.ArgumentTypeError(f"{text!r} is no count of at least 1")
    return int(text)


if __name__ == "__main__":
    sys.exit(main())
