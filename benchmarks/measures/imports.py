"""Costs of an import in a process that has imported nothing yet. Run as a script, in a bare interpreter."""

import sys
import time


def rss_mb() -> float:
    """Return the memory of this process, from /proc: a package for it would need memory too."""
    with open("/proc/self/statm", "rb") as file:  # noqa: PTH123 - pathlib would be an import that is not measured
        return int(file.read().split()[1]) * 4096 / 2**20


def main(statement: str) -> None:
    """Run the statement and print the figures as JSON. The JSON is written by hand, to import no module for it."""
    before = len(sys.modules)
    wall, cpu = time.perf_counter(), time.process_time()
    exec(statement, {})
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    print(f'{{"s": {wall}, "cpu_s": {cpu}, "mb": {rss_mb()}, "modules": {len(sys.modules) - before}}}')


if __name__ == "__main__":
    main(sys.argv[1])
