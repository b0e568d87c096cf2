"""A job queue whose workers die.

A worker process opens the queue, claims jobs and processes them. It is killed repeatedly in the
middle of its work and started again until no job is left. Acked jobs are done; jobs that it had
only claimed go to the next worker. No job is lost, and a few are processed twice, which is the
meaning of at-least-once delivery.

    python docs/examples/job_queue.py [DIRECTORY | URL]
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter

from common import opened, run

JOBS = 200
KILLS = 5
PER_LIFE = 30


def work(where: str) -> None:
    """Runs one worker process: prints each finished job, until it is killed."""
    with opened(where) as db:
        for job in db.queue("mails").work("worker", max=4):
            with job:
                print(job.data["to"], flush=True)
            if db.topic("mails").state().count == 0:
                return


def main(where: str) -> None:
    with opened(where) as db:
        queue = db.queue("mails", durability="fsync", lease=60)
        queue.append([{"to": f"reader-{n}@example.org"} for n in range(JOBS)])
    done: Counter[str] = Counter()
    for life in range(KILLS + 1):
        command = [sys.executable, __file__, where, "--worker"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as worker:
            assert worker.stdout is not None
            for count, line in enumerate(worker.stdout, 1):
                done[line.strip()] += 1
                if life < KILLS and count == PER_LIFE:
                    os.kill(worker.pid, signal.SIGKILL)
    twice = sum(times > 1 for times in done.values())
    print(f"{len(done)} jobs done, {twice} of them twice, by {KILLS + 1} workers")
    assert len(done) == JOBS
    with opened(where) as db:
        assert db.topic("mails").state().count == 0


if __name__ == "__main__":
    if "--worker" in sys.argv:
        work(sys.argv[1])
    else:
        run(main)
