"""A real Slurm on this host: munged, slurmctld and slurmd on the loopback, stopped after use."""

import os
import secrets
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

_PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "squeue", "scontrol")

_CONFIG = """
ClusterName=loopback
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller_port}
SlurmdPort={node_port}
SlurmUser=root
AuthType=auth/munge
# Slurm holds a requeued job back until its old credentials have expired: by default two minutes.
AuthInfo=socket={folder}/munge.socket,cred_expire=5
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
# Cgroups and accounting need more of a host than a container offers.
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
ReturnToService=2
JobRequeue=1
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_interval=1,sched_min_interval=0,bf_interval=1
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
KillWait=5
MinJobAge=300
SlurmdParameters=config_overrides
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} State=UNKNOWN
PartitionName=test Nodes={host} Default=YES MaxTime=INFINITE State=UP
"""


def why_unavailable() -> str | None:
    """Return why no cluster can be started here; None if one can."""
    missing = [name for name in _PROGRAMS if _find(name) is None]
    if missing:
        return f"needs Slurm: apt-get install slurm-wlm munge (missing: {', '.join(missing)})"
    if os.geteuid() != 0:
        return "starting Slurm needs root"
    return None


@contextmanager
def slurm_cluster(*, cpus: int = 2) -> Iterator[dict[str, str]]:
    """Run a cluster of this one host; yields the environment in which Slurm's commands find it."""
    with ExitStack() as stack:
        # A short path: a socket's may have 107 characters, and pytest's are long.
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="slurm-")))
        folder.chmod(0o755)  # munge refuses a socket that others cannot reach
        for name in ("state", "spool"):
            (folder / name).mkdir()
        key = folder / "munge.key"
        key.write_bytes(secrets.token_bytes(128))
        key.chmod(0o400)
        controller_port, node_port = _free_ports(2)
        config = folder / "slurm.conf"
        config.write_text(
            _CONFIG.format(
                host=socket.gethostname().split(".")[0],
                folder=folder,
                controller_port=controller_port,
                node_port=node_port,
                cpus=cpus,
            )
        )
        environment = os.environ | {"SLURM_CONF": str(config)}
        munge = ["munged", "--foreground", "--force", f"--key-file={key}"]
        munge += [f"--{name}-file={folder}/munge.{name}" for name in ("pid", "log", "seed")]
        munge += [f"--socket={folder}/munge.socket"]

        def start(command: Sequence[str], ready: Callable[[], bool]) -> None:
            log = folder / f"{command[0]}.log"
            stack.enter_context(_daemon(command, environment, log))
            _wait_until(ready, f"{command[0]} did not get ready", log)

        def answers(*command: str) -> bool:
            done = subprocess.run(command, env=environment, capture_output=True, text=True)
            return done.returncode == 0 and "down" not in done.stdout.lower()

        start(munge, lambda: (folder / "munge.socket").exists())
        start(["slurmctld", "-D"], lambda: answers("scontrol", "ping"))
        start(["slurmd", "-D"], lambda: _idle(environment))
        try:
            yield environment
        finally:  # while there is somebody to end them: what `srun` waits for would never come
            subprocess.run(["scancel", f"--user={os.getuid()}"], env=environment, check=True)
            _wait_until(lambda: _empty(environment), "jobs did not end", folder / "slurmctld.log")


def _empty(environment: dict[str, str]) -> bool:
    command = ["squeue", "--noheader"]
    return not subprocess.run(command, env=environment, capture_output=True, check=True).stdout


def _idle(environment: dict[str, str]) -> bool:
    command = ["sinfo", "--noheader", "--format=%T"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    return done.stdout.strip() == "idle"


@contextmanager
def _daemon(command: Sequence[str], environment: dict[str, str], log: Path) -> Iterator[None]:
    program = _find(command[0])
    assert program is not None
    with log.open("w") as output:
        process = subprocess.Popen(
            [program, *command[1:]], env=environment, stdout=output, stderr=subprocess.STDOUT
        )
        try:
            yield
        finally:
            process.terminate()
            try:
                process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _wait_until(ready: Callable[[], bool], complaint: str, log: Path, seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not ready():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{complaint} in {seconds:.0f} s; its log:\n{log.read_text()}")
        time.sleep(0.1)


def _find(program: str) -> str | None:
    return shutil.which(program, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")


def _free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
