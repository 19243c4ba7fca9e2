"""A study for tests: a module of its own, so that other processes can import it."""

import os
import time
from pathlib import Path

from trinity_mini.study import Study


def run(job):
    """Squares; a job may wait, or kill its process the first time it is run."""
    if job.get("dies") and not Path(job["dies"]).exists():
        Path(job["dies"]).write_text("once", encoding="utf-8")
        os._exit(9)
    if job.get("fails"):
        raise ZeroDivisionError("no such luck")
    time.sleep(job.get("wait", 0))
    return [{"square": job["seed"] ** 2, "pid": os.getpid()}]


def toy(n=6, **more):
    jobs = [{"seed": i, **more} for i in range(n)]
    return Study("toy", "squares", jobs, jobs[:2], run)
