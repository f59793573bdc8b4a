# SPDX-License-Identifier: Apache-2.0
"""What the stack consists of: for each member its command, environment, address, readiness probe and how it is stopped.
Adding a service to the stack means adding one Service line in `members_of`."""
import contextlib
import fcntl
import os
import pathlib
import shutil
import time

from . import probes, process
from .state import StackError

SECANTUS_VERSION = "0.7.0b3"
SECANTUS_FAST_VERSION = "0.5.3-beta.193"
DATABASE = "fastgpt"
IMAGE = "localbox/default:1"
RUN_DIR = "/run"  # default of SANDKEEP_CODE_RUN_DIR
LOCK_SECONDS = 2

# Variables that name a server of somebody else, by member.
EXTERNAL = {"nats": "SANDKEEP_NATS_URL", "redis": "SANDKEEP_REDIS_URL", "mongo": "SANDKEEP_MONGODB_URI",
            "localbox": "SANDKEEP_LOCALBOX_URL", "code": "SANDKEEP_CODE_URL"}
DEFAULT_PORTS = {"nats": 4222, "redis": 6379, "mongo": 27017, "localbox": 80, "code": 80}

# Variables of the caller that a service may see besides its own configuration.
PASSED = ("PATH", "HOME", "USER", "LANG", "LC_ALL", "TZ", "TMPDIR", "XDG_CACHE_HOME", "ASAN_OPTIONS", "UBSAN_OPTIONS",
          "TSAN_OPTIONS", "LSAN_OPTIONS", "LLVM_PROFILE_FILE", "GCOV_PREFIX", "GCOV_PREFIX_STRIP")
PASSED_PREFIXES = ("SANDKEEP_", "AGENT_SANDBOX_")

PROFILES = {
    "default": {},
    # For tests: takes over after 3 s instead of 30 s, and a command of a dead replica is delivered again after 4 s.
    # Documented in deploy/local/README.md.
    "fast": {
        "SANDKEEP_LIFECYCLE_HEARTBEAT_MS": "500",
        "SANDKEEP_LIFECYCLE_LEASE_TTL_MS": "1500",
        "SANDKEEP_LIFECYCLE_LEASE_RENEW_MS": "400",
        "SANDKEEP_LIFECYCLE_TAKEOVER_MS": "3000",
        "SANDKEEP_LIFECYCLE_STALE_SWEEP_MS": "500",
        "SANDKEEP_LIFECYCLE_IN_PROGRESS_MS": "1000",
        "SANDKEEP_NATS_ACK_WAIT_MS": "4000",
    },
}


def tools_dir():
    base = os.environ.get("SANDKEEP_TOOLS_DIR")
    if base:
        return pathlib.Path(base)
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return pathlib.Path(cache) / "sandkeep" / "tools"


def passed_environment():
    out = {name: os.environ[name] for name in PASSED if name in os.environ}
    out.update({name: value for name, value in os.environ.items() if name.startswith(PASSED_PREFIXES)})
    for name in [name for name in out if name.startswith("SANDKEEP_STACK_")]:
        del out[name]
    return out


def locked(handle):
    """Takes the lock of an open file; False when somebody else has it."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    except BlockingIOError:
        return False


def program(name, hint):
    """Full path of a server program; Debian keeps some in sbin, which not every PATH has."""
    found = shutil.which(name) or shutil.which(name, path="/usr/sbin:/usr/local/sbin:/sbin")
    if not found:
        raise StackError(f"{name} is not installed: {hint}")
    return found


class Member:
    """One process of the stack. `tier` orders start (rising) and stop (falling)."""
    tier = 0
    stop_seconds = 15
    ready_seconds = 60
    ports = ()  # names of the ports it listens on; the first is its address

    def __init__(self, stack, name):
        self.stack, self.name = stack, name
        self.ports = (name,)

    def port(self, which=None):
        return self.stack.state.port(which or self.name)

    @property
    def data(self):
        return self.stack.state.data_dir / self.name

    @property
    def log(self):
        return self.stack.state.logs / f"{self.name}.log"

    def check(self):
        """Raises StackError when the program is missing."""
        self.command()

    def prepare(self):
        """Makes what the start needs (folders, configuration files)."""
        self.data.mkdir(parents=True, exist_ok=True)

    def clean(self, record):
        """Removes what the process of this record, which is gone, left outside of the state folder."""

    def settings(self):
        """Configuration handed over as environment variables."""
        return {}

    def environment(self):
        out = passed_environment()
        out.update(self.settings())
        out[process.MARK] = self.stack.state.data["id"]
        out[process.MEMBER_MARK] = self.name
        return out


class Nats(Member):
    def __init__(self, stack, name):
        super().__init__(stack, name)
        self.ports = ("nats", "nats-monitor")

    @property
    def address(self):
        return f"nats://127.0.0.1:{self.port()}"

    def prepare(self):
        super().prepare()
        store = str(self.data / "jetstream").replace("\\", "\\\\").replace('"', '\\"')
        (self.data / "nats.conf").write_text(
            f'host: "127.0.0.1"\nport: {self.port()}\nhttp: "127.0.0.1:{self.port("nats-monitor")}"\n'
            f'server_name: "sandkeep-local"\nmax_payload: 1048576\n'
            f'jetstream {{\n  store_dir: "{store}"\n  max_memory_store: 268435456\n  max_file_store: 8589934592\n}}\n')

    def command(self):
        return [program("nats-server", "run make install-deps"), "-c", self.data / "nats.conf"]

    def probe(self):
        return (probes.nats("127.0.0.1", self.port())
                or probes.http_ok(f"http://127.0.0.1:{self.port('nats-monitor')}/healthz"))


class Redis(Member):
    """--set-proc-title no: redis would write its title over the environment that marks our processes."""

    @property
    def address(self):
        return f"redis://127.0.0.1:{self.port()}/0"

    def command(self):
        return [program("redis-server", "run make install-deps"), "--bind", "127.0.0.1", "--port", self.port(), "--dir", self.data,
                "--daemonize", "no", "--appendonly", "yes", "--save", "", "--protected-mode", "yes", "--set-proc-title", "no"]

    def probe(self):
        return probes.redis("127.0.0.1", self.port())


class Mongo(Member):
    """The embedded Mongo-wire server (SecantusDB). --sync-on-commit: an acknowledged write survives kill -9."""

    @property
    def fast(self):
        return self.stack.state.data.get("mongo") == "fast"

    @property
    def address(self):
        return f"mongodb://127.0.0.1:{self.port()}/{DATABASE}"

    @property
    def data(self):  # the two servers do not share their files
        return self.stack.state.data_dir / ("mongo-fast" if self.fast else "mongo")

    def command(self):
        tools = tools_dir()
        if self.fast:
            server = tools / f"secantus-mdb-{SECANTUS_FAST_VERSION}" / "bin" / "secantusd-rs"
            if not server.exists():
                raise StackError("the fast Mongo-wire server is not in the tools cache: run make tools-fast-mongo")
            start, extra = [server], ["--cache-size", "256M"]
        else:
            venv = tools / f"secantusdb-{SECANTUS_VERSION}"
            if not (venv / "bin" / "secantusd-py").exists():
                raise StackError("the Mongo-wire server is not in the tools cache: run make install-deps")
            # The interpreter is named, so that a cache below a path with spaces works too.
            start, extra = [venv / "bin" / "python", venv / "bin" / "secantusd-py"], []
        sync = [] if self.stack.state.data.get("mongo_sync") is False else ["--sync-on-commit"]
        return [*start, *sync, "--host", "127.0.0.1", "--port", self.port(), "--storage-path", self.data,
                "--log-level", "WARNING", *extra]

    def probe(self):
        return probes.mongo("127.0.0.1", self.port())


class Service(Member):
    """A program of ours, from SANDKEEP_BIN_DIR (default build/release/bin)."""
    binary = ""
    helpers = ()  # programs that it starts itself, from the same folder

    def programs(self):
        paths = [self.stack.bin_dir / name for name in (self.binary, *self.helpers)]
        for path in paths:
            if not path.exists():
                raise StackError(f"{path} does not exist: run make build (or set SANDKEEP_BIN_DIR)")
        return paths

    def command(self):
        return self.programs()[:1]


class Localbox(Service):
    binary = "sk-localbox"
    tier = 1

    def __init__(self, stack, name):
        super().__init__(stack, name)
        self.ports = ("localbox", "localbox-admin")

    @property
    def admin_address(self):
        return f"http://127.0.0.1:{self.port('localbox-admin')}"

    @property
    def address(self):
        return f"http://127.0.0.1:{self.port()}"

    def settings(self):
        return {
            "SANDKEEP_LOCALBOX_LISTEN": f"127.0.0.1:{self.port()}",
            "SANDKEEP_LOCALBOX_ADMIN_LISTEN": f"127.0.0.1:{self.port('localbox-admin')}",
            "SANDKEEP_LOCALBOX_DATA_DIR": str(self.data),
            "SANDKEEP_LOCALBOX_KEY": self.stack.key,
        }

    def probe(self):
        return probes.http_ok(f"{self.address}/health")


class Lifecycle(Service):
    binary = "sk-lifecycle"
    tier = 2
    stop_seconds = 35  # SANDKEEP_DRAIN_SECONDS is 25

    @property
    def address(self):
        return f"http://127.0.0.1:{self.port()}"

    def settings(self):
        stack = self.stack
        out = dict(PROFILES[stack.profile])
        out.update({
            "SANDKEEP_NATS_URL": stack.url("nats"),
            "SANDKEEP_MONGODB_URI": stack.url("mongo"),
            "SANDKEEP_REDIS_URL": stack.url("redis"),
            "SANDKEEP_LIFECYCLE_ADMIN_LISTEN": f"127.0.0.1:{self.port()}",
        })
        defaults = {
            "AGENT_SANDBOX_PROVIDER": "opensandbox",
            "AGENT_SANDBOX_OPENSANDBOX_IMAGE": IMAGE,
            "SANDKEEP_SOURCE_CHECK": "off",
        }
        out.update({name: os.environ.get(name, value) for name, value in defaults.items()})
        out.update(stack.provider_settings())
        return out

    def probe(self):
        return probes.http_ok(f"{self.address}/readyz")


class Code(Service):
    """The code sandbox. Each task runs as a user of its own out of a block that no other process of the machine has: chosen
    free and remembered like the ports, so that two clones side by side do not meet. It gets nothing of the shell but what
    is its own: the environment of other services holds their keys."""
    binary = "sk-code"
    helpers = ("sk-code-js", "sk-code-python")
    tier = 2
    stop_seconds = 35  # SANDKEEP_DRAIN_SECONDS is 25
    passed = ("SANDBOX_", "SANDKEEP_CODE_", "SANDKEEP_LOG_", "SANDKEEP_DRAIN_SECONDS", "CHECK_INTERNAL_IP")

    def __init__(self, stack, name):
        super().__init__(stack, name)
        self.ports = ("code", "code-admin")

    @property
    def address(self):
        return f"http://127.0.0.1:{self.port()}"

    @property
    def admin_address(self):
        return f"http://127.0.0.1:{self.port('code-admin')}"

    def prepare(self):
        super().prepare()
        if os.geteuid() == 0:
            self.stack.state.uid_block(wait=5)  # of tasks that outlived a killed launcher for a moment

    def settings(self):
        out = {
            "SANDBOX_HOST": "127.0.0.1",
            "SANDBOX_PORT": str(self.port()),
            "SANDBOX_TOKEN": self.stack.code_token,
            "SANDKEEP_CODE_ADMIN_LISTEN": f"127.0.0.1:{self.port('code-admin')}",
        }
        if os.geteuid() == 0:
            out["SANDKEEP_CODE_UID_BASE"] = os.environ.get("SANDKEEP_CODE_UID_BASE") or str(self.stack.state.uid_block())
        else:  # all tasks run as the user: only who said so gets here
            out.update(SANDBOX_ALLOW_UNSAFE="true", SANDKEEP_CODE_RUN_DIR=str(self.data))
        return out

    def environment(self):
        out = {name: value for name, value in passed_environment().items() if not name.startswith(PASSED_PREFIXES)}
        out.update({name: value for name, value in os.environ.items() if name.startswith(self.passed)})
        out.update(self.settings())
        out[process.MARK] = self.stack.state.data["id"]
        out[process.MEMBER_MARK] = self.name
        return out

    def clean(self, record):
        """The empty root folder of a launcher that was killed: the next one would sweep it away, but after `down` none comes.
        A launcher holds the lock of its folder, so one that has the same pid by now keeps its own; what the killed one forked
        may hold it for a moment."""
        end = time.monotonic() + LOCK_SECONDS
        run_dir = pathlib.Path(record.get("env", {}).get("SANDKEEP_CODE_RUN_DIR") or RUN_DIR)
        if not record.get("pid"):
            return
        for folder in run_dir.glob(f"sandkeep-code-{record['pid']}-??????"):
            with contextlib.suppress(OSError):  # somebody's, or not empty
                lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
                try:
                    while not locked(lock) and time.monotonic() < end:
                        time.sleep(0.02)
                    if locked(lock):
                        folder.rmdir()
                finally:
                    os.close(lock)

    def probe(self):
        return probes.http_ok(f"{self.admin_address}/readyz")


def members_of(stack):
    """All members in the order in which they are shown."""
    out = [Nats(stack, "nats"), Redis(stack, "redis"), Mongo(stack, "mongo"), Localbox(stack, "localbox")]
    if stack.code_runs or "code" in stack.external:
        out.append(Code(stack, "code"))
    out += [Lifecycle(stack, f"lifecycle-{index}") for index in range(1, stack.state.data["scale"]["lifecycle"] + 1)]
    return out
