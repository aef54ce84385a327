"""What an import costs a process that has imported nothing yet. Run as a script, in a bare interpreter."""

import sys
import time


def rss_mb() -> float:
    """Memory of this process; from /proc because a package for it would be memory, too."""
    with open("/proc/self/statm", "rb") as file:  # noqa: PTH123 - pathlib would be an import that is not measured
        return int(file.read().split()[1]) * 4096 / 2**20


def main(statement: str) -> None:
    """Run the statement and print the figures as JSON, written by hand for the same reason."""
    before = len(sys.modules)
    wall, cpu = time.perf_counter(), time.process_time()
    exec(statement, {})
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    print(f'{{"s": {wall}, "cpu_s": {cpu}, "mb": {rss_mb()}, "modules": {len(sys.modules) - before}}}')


if __name__ == "__main__":
    main(sys.argv[1])
