#!/usr/bin/env python3
"""Builds everything once, and runs every test in a process of its own, several at a time.

    tools/test.py [options] [part of a name ...]

A test that needs the machine to itself is in ALONE and runs when no other does. What a test prints is shown when it
fails. At the end stand the ten slowest. Each run has a seed of its own: another part of all crashes, breakages and
schedules. `OUTLAST_SEED=n` repeats a run's."""

import argparse
import fnmatch
import json
import os
import queue
import random
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# A test that takes longer hangs: the slowest takes a quarter of it.
TIMEOUT_S = 240
# Tests sleep more than they compute: more of them than processors.
JOBS_PER_CPU = 2
# With --retries: if more fail, it is not chance.
RETRIED_MAX = 6
# How long each test took last time, to start the long ones first.
TIMES = "outlast-test-times.json"

# Patterns of package::test. These measure the machine as a whole, change something that all share, or fill its memory.
ALONE = [
    # Any other test may remove what this one leaves on purpose: each makes a lab, and that sweeps first.
    "outlast-lab::cleanup::a_sweep_removes_what_a_killed_process_left_and_nothing_else",
]
# These take long: first, where no earlier run tells.
LONG = [
    "outlast-session::breakages::*",
    "outlast-session::simulation::*",
    "outlast-demo::demo::*",
    "*::crashes::*",
    "outlast-restart::exactly_once::*",
    "outlast-restart::every_*",
    "outlast-restart::state_steps::*",
    "outlast-restart::leaks::*",
]


class Test:
    """One test: where it is, and what became of it."""

    def __init__(self, package, binary, folder, name):
        self.package, self.binary, self.folder, self.name = package, binary, folder, name
        self.title = f"{package}::{name}"
        self.took_s, self.code, self.output = 0.0, None, ""

    def matches(self, patterns):
        return any(fnmatch.fnmatchcase(self.title, pattern) for pattern in patterns)


def build():
    """Builds all, with features resolved once, and gives the test programs: (package, program, folder)."""
    command = [os.environ.get("CARGO", "cargo"), "build", "--locked", "--workspace", "--all-targets"]
    command.append("--message-format=json-render-diagnostics")
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        sys.exit(done.returncode)
    programs = []
    for line in done.stdout.splitlines():
        message = json.loads(line)
        if message["reason"] == "compiler-artifact" and message["profile"]["test"] and message["executable"]:
            folder = os.path.dirname(message["manifest_path"])
            package = re.search(r"([\w-]+)@|#([\w-]+)$", message["package_id"])
            package = package.group(1) if package else os.path.basename(folder)
            package = package or os.path.basename(folder)
            programs.append((package, message["executable"], folder))
    return programs


def environment(programs):
    """What cargo sets for tests, and a seed for this run."""
    deps = os.path.dirname(programs[0][1])
    found = dict(os.environ)
    paths = [deps, os.path.dirname(deps), found.get("LD_LIBRARY_PATH")]
    found["LD_LIBRARY_PATH"] = ":".join(path for path in paths if path)
    found["OUTLAST_BINARY"] = os.path.join(os.path.dirname(deps), "outlast")
    found.setdefault("OUTLAST_SEED", str(random.randrange(1, 1 << 31)))
    found["OUTLAST_BUILT"] = "1"
    found.setdefault("RUST_BACKTRACE", "1")
    return found


def tests_of(package, binary, folder, ignored):
    listing = [binary, "--list", "--format", "terse"] + (["--ignored"] if ignored else [])
    listed = subprocess.run(listing, cwd=folder, stdout=subprocess.PIPE, text=True, check=True).stdout
    names = {line[: -len(": test")] for line in listed.splitlines() if line.endswith(": test")}
    if not ignored:
        names -= {test.name for test in tests_of(package, binary, folder, True)}
    return [Test(package, binary, folder, name) for name in sorted(names)]


def as_init_does():
    """Signals that whoever started us ignores are not ignored in tests: `nohup make test` is as good as any."""
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGPIPE):
        signal.signal(number, signal.SIG_DFL)


def end_what_it_left(mark):
    """Kills processes with this variable in their environment: a killed relay's watcher tries for an hour to reach a
    server that was there for the test alone, and a test that fails may leave servers running."""
    for name in os.listdir("/proc"):
        if not name.isdecimal() or int(name) == os.getpid():
            continue
        try:
            with open(f"/proc/{name}/environ", "rb") as environ:
                if mark.encode() in environ.read().split(b"\0"):
                    os.kill(int(name), signal.SIGKILL)
        except OSError:
            pass


def run(test, found, chosen):
    mark = f"OUTLAST_TEST={uuid.uuid4()}"
    name, value = mark.split("=")
    found = found | {name: value}
    command = [test.binary, test.name, "--exact", "--nocapture", "--test-threads=1"]
    command += ["--ignored"] if chosen.ignored else []
    began = time.monotonic()
    with tempfile.TemporaryFile() as output:
        child = subprocess.Popen(
            command, cwd=test.folder, env=found, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
            start_new_session=True, preexec_fn=as_init_does,
        )
        try:
            test.code = child.wait(timeout=chosen.timeout)
        except subprocess.TimeoutExpired:
            # SIGABRT first: who watches sees where it hangs. The group is the test's own, and its leader is not reaped.
            os.killpg(child.pid, signal.SIGABRT)
            time.sleep(1)
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()
            test.code = "timeout"
        end_what_it_left(mark)
        output.seek(0)
        test.output = output.read().decode(errors="replace")
    test.took_s = time.monotonic() - began


class Run:
    """All tests, side by side, and then those that run alone."""

    def __init__(self, tests, found, chosen):
        self.tests, self.found, self.chosen = tests, found, chosen
        self.lock, self.done = threading.Lock(), 0

    def one(self, test):
        run(test, self.found, self.chosen)
        with self.lock:
            self.done += 1
            if test.code != 0:
                print(f"\n---- FAILED {test.title} ({test.code}) after {test.took_s:.1f} s ----\n{test.output}", flush=True)
            elif sys.stdout.isatty():
                print(f"\r\033[K{self.done}/{len(self.tests)} {test.title}", end="", flush=True)
            for line in test.output.splitlines():
                if "SKIPPED" in line:
                    print(f"{test.title}: {line.strip()}", flush=True)

    def all(self):
        waiting = queue.SimpleQueue()
        for test in self.tests:
            if not test.matches(ALONE):
                waiting.put(test)

        def work():
            while True:
                try:
                    self.one(waiting.get_nowait())
                except queue.Empty:
                    return

        workers = [threading.Thread(target=work) for _ in range(self.chosen.jobs)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        for test in self.tests:
            if test.matches(ALONE):
                self.one(test)
        self.again()

    def again(self):
        """Runs what failed once more, alone, and says so: a test that passes then has a defect, or shows one."""
        failed = [test for test in self.tests if test.code != 0]
        for test in failed if len(failed) <= RETRIED_MAX else []:
            for _ in range(self.chosen.retries):
                run(test, self.found, self.chosen)
                if test.code == 0:
                    print(f"UNSTABLE {test.title}: failed beside others, and passed alone. Find out why.", flush=True)
                    break


def remembered(path):
    try:
        with open(path, encoding="utf-8") as file:
            return json.load(file)
    except (OSError, ValueError):
        return {}


def doc_tests(found):
    """The examples in the documentation: one program a crate, made by rustdoc."""
    command = [os.environ.get("CARGO", "cargo"), "test", "--locked", "--workspace", "--doc", "-q"]
    began = time.monotonic()
    done = subprocess.run(command, cwd=ROOT, env=found, stdin=subprocess.DEVNULL, text=True, check=False,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    counts = [int(count) for count in re.findall(r"(\d+) passed", done.stdout)]
    return done, sum(counts), time.monotonic() - began


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="only tests whose package::name contains one of these")
    parser.add_argument("--jobs", type=int, default=JOBS_PER_CPU * (os.cpu_count() or 2), help="tests at a time")
    parser.add_argument("--ignored", action="store_true", help="only tests that are marked #[ignore]")
    parser.add_argument("--repeat", type=int, default=1, help="run each test so many times")
    parser.add_argument("--timeout", type=float, default=TIMEOUT_S, metavar="SECONDS", help="for each test")
    parser.add_argument("--retries", type=int, default=0, help="run tests that failed so many times more, alone")
    parser.add_argument("--no-doc", action="store_true", help="leave out the examples in the documentation")
    chosen = parser.parse_args()

    began = time.monotonic()
    programs = build()
    built_s = time.monotonic() - began
    found = environment(programs)
    tests = [test for program in programs for test in tests_of(*program, chosen.ignored)]
    if chosen.names:
        tests = [test for test in tests if any(name in test.title for name in chosen.names)]
    times_path = os.path.join(os.path.dirname(os.path.dirname(programs[0][1])), TIMES)
    times = remembered(times_path)
    tests.sort(key=lambda test: -times.get(test.title, 60.0 if test.matches(LONG) else 0.0))
    tests = [Test(test.package, test.binary, test.folder, test.name)
             for _ in range(chosen.repeat) for test in tests]
    print(f"{len(tests)} tests, {chosen.jobs} at a time, OUTLAST_SEED={found['OUTLAST_SEED']}; "
          f"built in {built_s:.0f} s", flush=True)
    Run(tests, found, chosen).all()
    ran_s = time.monotonic() - began - built_s

    failed = [test for test in tests if test.code != 0]
    for test in failed:
        print(f"FAILED {test.title}; to repeat: OUTLAST_SEED={found['OUTLAST_SEED']} tools/test.py {test.title}")
    passed = len(tests) - len(failed)
    documented = 0
    broken = 0
    if not chosen.names and not chosen.ignored and not chosen.no_doc:
        done, documented, took_s = doc_tests(found)
        broken = int(done.returncode != 0)
        print(done.stdout if broken else f"{documented} examples in the documentation in {took_s:.0f} s")
    with open(times_path, "w", encoding="utf-8") as file:
        json.dump(times | {test.title: test.took_s for test in tests if test.code == 0}, file)

    print(f"\nThe slowest, of {len(tests)} tests in {ran_s:.0f} s:")
    for test in sorted(tests, key=lambda test: -test.took_s)[:10]:
        print(f"  {test.took_s:6.1f} s  {test.title}")
    skipped = sum("SKIPPED" in test.output for test in tests if test.code == 0)
    print(f"\n{passed + documented} passed, {len(failed) + broken} failed" + f", {skipped} skipped" * bool(skipped))
    sys.exit(1 if failed or broken else 0)


if __name__ == "__main__":
    main()
