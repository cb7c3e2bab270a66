"""How often a worker of MindSpore crashes at exit (SIGSEGV), with the probe and without.

At exit MindSpore closes its connections (`ClusterContext::Finalize`): the main thread frees a
connection as soon as its last answer has come, while the thread that received the answer (its name
is RECV_EVENT_LOOP) still uses it. Only where this thread is interrupted in these microseconds, as
on a busy machine, the process crashes.

Jobs of two ranks that compute, communicate and end are started in turns: without the probe; with
one that records layers and key data and is closed at exit, by the order at exit of its own; with
one that the script closes before its last collective; and without it, but with something else to do
at exit that takes as long, on each rank another time (a trainer that writes its last log, for
instance), because ranks that do not end in the same moment are what the race may be about. A job
may crash only behind its script; anything else stops the benchmark.

    python benchmarks/exit_race.py [--jobs N] [--graph] [--pause MICROSECONDS]

With --pause that thread sleeps so long whenever it has released a lock (a C compiler is needed: a
library is put before the C library's). 2000 microseconds crash every job; at 100 to 300 some jobs
crash and others do not, so that what makes the crash likelier shows in tens of jobs instead of
thousands. A job takes some 15 s of an idle machine with two cores.
"""

from __future__ import annotations

import argparse
import atexit
import os
import random
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

KINDS = ("no probe", "probe", "closed", "delay")
RANKS = 2
DELAY = 0.05  # seconds, at most; closing the probe's run takes 0.01 to 0.04
_CODE = re.compile(r"Worker process \d+ exit with exception\. Error code: (-?\d+)\.")

# Thread names are set after a thread has begun, so each is looked at until it has one of its own.
_PAUSE = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
static int (*unlock)(pthread_mutex_t *);
static __thread int inside;
int pthread_mutex_unlock(pthread_mutex_t *mutex) {
  if (!unlock) unlock = dlsym(RTLD_NEXT, "pthread_mutex_unlock");
  int result = unlock(mutex);
  if (inside) return result;
  inside = 1;
  char name[32] = {0};
  pthread_getname_np(pthread_self(), name, sizeof name);
  if (strncmp(name, "RECV_EVENT_LOOP", 15) == 0) usleep(atoi(getenv("EXIT_RACE_PAUSE")));
  inside = 0;
  return result;
}
"""


def build_pause(directory: str, microseconds: int) -> dict[str, str]:
    """Compile what pauses MindSpore's receiving threads; return the variables that load it."""
    source, library = Path(directory, "pause.c"), Path(directory, "pause.so")
    source.write_text(_PAUSE)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    return {"LD_PRELOAD": str(library), "EXIT_RACE_PAUSE": str(microseconds)}


def work(kind: str, directory: str, *, graph: bool) -> None:
    """Be one rank of a job."""
    import mindspore as ms
    import numpy as np
    from mindspore import Tensor, nn, ops
    from mindspore.communication import get_rank, init

    ms.set_context(mode=ms.GRAPH_MODE if graph else ms.PYNATIVE_MODE)
    ms.set_device("CPU")
    init()
    network, total = nn.Dense(8, 8), ops.AllReduce()
    probe = None
    if kind in ("probe", "closed"):
        from mindrlhf_msprobe import Probe

        settings = {"msprobe": True, "actor_train_dump": True, "key_data_dump": True, "step_end": 9}
        probe = Probe.from_config({**settings, "dump_path": directory})
        probe.watch(actor=network)
    x = Tensor(np.ones((4, 8), np.float32))
    for _ in range(3):
        if probe is None:
            y = network(x)
        else:
            with probe.phase("actor_update"):
                y = network(x)
            probe.save_data(loss=y)
        total(y)
        if probe is not None:
            probe.step()
    sys.stdout.write(f"DONE {get_rank()}\n")
    sys.stdout.flush()
    if kind == "delay":
        atexit.register(time.sleep, random.uniform(0, DELAY))
    if kind == "closed":
        probe.close()
    total(Tensor([1.0])).asnumpy()  # returns when all have come: msrun kills those left by a crash


def run_job(kind: str, variables: dict[str, str], *, graph: bool) -> str:
    """Run one job and return how it ended: well, or crashed at exit.

    Raises:
        SystemExit: it ended otherwise.
    """
    with tempfile.TemporaryDirectory() as directory:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        launcher = "from mindspore.parallel.cluster.run import main; main()"
        done = subprocess.run(
            [
                *(sys.executable, "-c", launcher, f"--worker_num={RANKS}"),
                *(f"--local_worker_num={RANKS}", f"--master_port={port}", "--join=True"),
                *("--log_dir=log", str(Path(__file__).absolute())),
                *(kind, f"{directory}/run", "graph" if graph else "pynative"),
            ],
            cwd=directory,
            env={
                **os.environ,
                "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
                **variables,
            },
            capture_output=True,
            text=True,
        )
        said = "".join(p.read_text(errors="replace") for p in Path(directory).glob("log/worker*"))
    if done.returncode == 0:
        return "well"
    codes = {int(code) for code in _CODE.findall(done.stdout + done.stderr)}
    if codes == {-signal.SIGSEGV} and said.count("DONE ") == RANKS:
        return "crashed"
    sys.exit(f"a job ended otherwise, {codes or done.returncode}:\n{said}\n{done.stderr}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=100, help="of each kind (default: 100)")
    parser.add_argument("--graph", action="store_true", help="in GRAPH_MODE")
    parser.add_argument("--pause", type=int, metavar="MICROSECONDS", help="make the race likelier")
    parser.add_argument("rank_of", nargs="*", help=argparse.SUPPRESS)  # kind, directory, mode
    options = parser.parse_args()
    if options.rank_of:
        kind, directory, mode = options.rank_of
        work(kind, directory, graph=mode == "graph")
        return
    crashed = dict.fromkeys(KINDS, 0)
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as directory:
        variables = build_pause(directory, options.pause) if options.pause else {}
        for number in range(1, options.jobs + 1):
            for kind in random.sample(KINDS, len(KINDS)):
                crashed[kind] += run_job(kind, variables, graph=options.graph) == "crashed"
            counts = ", ".join(f"{kind}: {crashed[kind]} of {number}" for kind in KINDS)
            sys.stdout.write(f"\rcrashed at exit: {counts} ({time.perf_counter() - start:.0f} s)")
            sys.stdout.flush()
    sys.stdout.write("\n")


if __name__ == "__main__":
    main()
