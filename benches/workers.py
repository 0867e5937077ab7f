"""What sharing work out costs: a calibration by two Dask workers against the same one by two threads, in turn.

    python benches/workers.py [STUDY] [--rounds 3] [--workers 2]

needs `pip install ".[dask]"`. Each is done in a fresh process and a fresh folder; what is timed is the call of `calibrate`, so
that starting Python and the cluster is not. The files that both write are compared byte for byte.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

STUDY = Path(__file__).parent.parent / "studies" / "paper" / "logistic_calibration.toml"


def once(kind: str, study: Path, folder: Path, workers: int) -> None:
    """One calibration in this process; prints its seconds, and those until the cluster was there."""
    import twostep as ts

    ts.show_progress(False)
    start = time.perf_counter()
    with contextlib.ExitStack() as stack:
        executor = None
        if kind == "dask":
            from distributed import Client, LocalCluster

            local = {"host": "127.0.0.1", "dashboard_address": None, "local_directory": str(folder)}
            cluster = stack.enter_context(LocalCluster(n_workers=workers, threads_per_worker=1, **local))
            executor = stack.enter_context(Client(cluster, set_as_default=False))
        else:
            ts.set_threads(workers)
        subject = ts.Study.from_toml(study).save(folder / "results")
        ready = time.perf_counter()
        subject.calibrate(executor=executor)
        print(json.dumps({"seconds": time.perf_counter() - ready, "ready": ready - start}), flush=True)


def files(folder: Path) -> dict[str, bytes]:
    """What a calibration leaves."""
    results = folder / "results"
    names = [path for path in results.rglob("*") if path.suffix in (".csv", ".jsonl") or path.name == "calibration.json"]
    return {str(path.relative_to(results)): path.read_bytes() for path in names}


def main() -> None:
    """Rounds of both kinds, the kind that goes first changing from round to round."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", nargs="?", type=Path, default=STUDY)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--once", choices=["threads", "dask"], help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.once:
        return once(given.once, given.study, given.folder, given.workers)
    seconds: dict[str, list[float]] = {"threads": [], "dask": []}
    ready = []
    for number in range(given.rounds):
        made = []
        for kind in list(seconds)[:: 1 if number % 2 == 0 else -1]:
            with tempfile.TemporaryDirectory(prefix="twostep-dask-", ignore_cleanup_errors=True) as scratch:
                own = ["--once", kind, "--folder", scratch, "--workers", str(given.workers), str(given.study)]
                done = subprocess.run([sys.executable, __file__, *own], check=True, stdout=subprocess.PIPE, text=True)
                found = json.loads(done.stdout.splitlines()[-1])
                made.append(files(Path(scratch)))
            seconds[kind].append(found["seconds"])
            if kind == "dask":
                ready.append(found["ready"])
        if not made[0] or made[0] != made[1]:
            sys.exit("the results differ")
        threads, dask = (seconds[kind][-1] for kind in ("threads", "dask"))
        print(f"round {number + 1}: {threads:.1f} s by threads, {dask:.1f} s by Dask, ratio {dask / threads:.2f}", flush=True)
    ratios = [dask / threads for threads, dask in zip(seconds["threads"], seconds["dask"])]
    print(f"median ratio {statistics.median(ratios):.2f}; the cluster is there after {statistics.median(ready):.1f} s")


if __name__ == "__main__":
    main()
