"""Play faults against the commands: every file, request and child process x every fault.

A cell is one place (a file that a command writes, its request, its child process) and one fault.
The command runs in a child process where an audit hook, or the scripted server, causes the fault.
Then the same command runs again without it. Each cell must keep these promises:

- earlier files keep their content, or have the content of an undisturbed run;
- no answer is paid for twice, except those in flight when the process was killed;
- the result of the second run, and of a first run that exits with 0, equals that of an undisturbed
  run, or the command says why not;
- exit codes as documented, and errors are one line on stderr, without a traceback.

A fault that does not strike is a violation too. Files that differ between two undisturbed runs are
not compared; stderr names them.

    OMP_NUM_THREADS=1 python benchmarks/faults.py [--sample N] [--seed N] [--only TEXT] [--table]

Without `--sample` all cells are played. `--table` prints a table of the results. Full disks need
the right to mount a small tmpfs (`unshare --mount`); without it these cells are skipped. So is
garbage where the killed process left no file. The last line of stdout is one JSON object: cells,
played, violations.
"""

from __future__ import annotations

import argparse
import atexit
import errno
import json
import multiprocessing
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests")]
from chat_server import GOOD, ChatServer, Reply, responses_file, said  # noqa: E402
from synthetic_run import write_run  # noqa: E402

STATE, DISK = "XDG_STATE_HOME", "FAULTS_DISK"
DISK_BYTES, BALLAST = 96 << 20, "ballast"
END, CHILD, REQUEST, STRUCK = "the end", "a child process", "request 3", "the fault has struck"
SAME_CALL = ("generation_config.json", "chat_template.jinja", "tokenizer_config.json")
"""Files of a model that transformers writes in one call; config.json stands for them."""
KILLED = (-signal.SIGKILL, -signal.SIGXFSZ)
FAULTS = (
    *("killed before", "killed during", "killed after", "disk full", "read-only"),
    *("slow", "wrong answer", "garbage", "SIGTERM", "SIGINT"),
)
IMPOSSIBLE = {
    "file": ("wrong answer",),
    "request": ("disk full", "read-only"),
    "child": ("killed after", "disk full", "read-only", "wrong answer", "garbage"),
}
"""The faults that cannot happen at a kind of place, for the reasons in docs/faults.md."""


class Scene(NamedTuple):
    """A command and the folder that it needs.

    Attributes:
        words: the command line, with paths relative to the folder; `{url}`: the scripted server.
        prepare: makes the folder; the result is copied for each cell.
        places: places other than files.
    """

    name: str
    words: tuple[str, ...]
    prepare: Callable[[Path], None]
    places: tuple[str, ...] = ()
    needs_torch: bool = False


class Undisturbed(NamedTuple):
    """The files, sizes and events of an undisturbed run, and the files that no two runs share."""

    files: dict[str, str]
    sizes: dict[str, int]
    events: list[str]
    noise: set[str]


class Fault(NamedTuple):
    """A fault at the n-th event (from 0) of a place; `limit` is the largest size of a file."""

    what: str
    place: str
    count: int = 0
    limit: int = 0


class Cell(NamedTuple):
    scene: Scene
    place: str
    what: str

    @property
    def kind(self) -> str:
        return {REQUEST: "request", CHILD: "child"}.get(self.place, "file")

    @property
    def kills(self) -> bool:
        """True if the fault kills the command itself."""
        return self.kind != "child" and (
            self.what.startswith("killed") or (self.kind == "file" and self.what == "garbage")
        )


class Ended(NamedTuple):
    """The exit code of a command, its stderr, and the events that its audit hook saw."""

    code: int
    err: str
    events: list[str]

    def is_one_line_error(self) -> bool:
        lines = [line for line in self.err.splitlines() if line.startswith("error: ")]
        return len(lines) == 1 and "Traceback" not in self.err


# ---- in the child process


def run_command(words: tuple[str, ...], folder: str, fault: Fault | None) -> None:
    """Run the real command with a fault; stderr and the events go to log files."""
    from text2grad.cli import main

    if "text2grad.train.ppo" in sys.modules:  # with a checkpoint after every step
        sys.modules["text2grad.train.ppo"].CHECKPOINT_EVERY = 1  # type: ignore[attr-defined]
    os.chdir(folder)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    sys.stdin = open(os.devnull, encoding="utf-8")  # noqa: SIM115
    for number, name in ((1, "stdout"), (2, "stderr")):
        os.dup2(os.open(log_file(name), os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    hook = Hook(os.path.realpath(folder), fault)
    sys.addaudithook(hook)
    try:
        main(words)
    finally:
        hook.event(END)
        hook.fault = None
        atexit._run_exitfuncs()  # a process of multiprocessing skips them


class Hook:
    """An audit hook that logs what is written below `root`, and causes one fault."""

    def __init__(self, root: str, fault: Fault | None) -> None:
        self.root, self.fault = root + os.sep, fault
        self.trace = os.open(log_file("events"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        self.seen = 0
        self.is_read_only = False

    def __call__(self, name: str, arguments: tuple[Any, ...]) -> None:
        if name == "subprocess.Popen":
            self.event(CHILD)
        elif name == "open" and arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            self.write(arguments[0])
        elif name == "os.rename":
            self.write(arguments[1])
        elif name == "os.mkdir" and not os.path.exists(arguments[0]):
            self.write(arguments[0])

    def write(self, path: object) -> None:
        if isinstance(path, str | bytes | os.PathLike):
            folder, name = os.path.split(os.fsdecode(path))
            full = os.path.join(os.path.realpath(folder), name)
            if full.startswith(self.root) and name not in SAME_CALL:
                self.event(re.sub(r"(\.\d+)?\.partial", "", full.removeprefix(self.root)))

    def log(self, line: str) -> None:
        os.write(self.trace, f"{line}\n".encode())

    def event(self, place: str) -> None:
        self.log(place)
        if self.is_read_only and place not in (CHILD, END):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), place)
        if (fault := self.fault) is None or place != fault.place:
            return
        self.seen += 1
        if fault.what == "slow" and place != CHILD:
            self.log(STRUCK)
            time.sleep(0.3)
        elif self.seen == fault.count + 1:
            self.fault = None
            if place == CHILD:
                self.strike_child(fault.what)
            else:
                self.log(STRUCK)
                self.strike_file(fault)

    def strike_file(self, fault: Fault) -> None:
        if fault.what.startswith("SIG"):
            os.kill(os.getpid(), signal.Signals[fault.what])
        elif fault.what == "killed during":  # the write that crosses the limit is cut there
            signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
            resource.setrlimit(resource.RLIMIT_FSIZE, (fault.limit, fault.limit))
        elif fault.what == "disk full":
            fill_disk(Path(self.root).parent / BALLAST)
        elif fault.what == "read-only":
            self.is_read_only = True
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), fault.place)
        else:
            os.kill(os.getpid(), signal.SIGKILL)

    def strike_child(self, what: str) -> None:
        if what == "killed before":
            self.log(STRUCK)
            raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        if what == "killed during":
            numbers = [signal.SIGKILL]
        elif what == "slow":
            numbers = [signal.SIGSTOP, signal.SIGCONT]
        else:
            numbers = [signal.Signals[what]]
        is_for_child = not what.startswith("SIG")
        threading.Thread(target=self.signal_child, args=(numbers, is_for_child), daemon=True).start()

    def signal_child(self, numbers: list[signal.Signals], is_for_child: bool) -> None:
        """Send signals, a second apart, to all children, or to this process while one runs."""
        import psutil

        this = psutil.Process()
        while not (children := this.children(recursive=True)):
            time.sleep(0.01)
        time.sleep(0.2)
        for number in numbers:
            for process in children if is_for_child else [this]:
                with suppress(psutil.NoSuchProcess):
                    process.send_signal(number)
                    self.log(STRUCK)
            time.sleep(1)


def fill_disk(path: Path) -> None:
    """Write to a file until no space is left."""
    for size in (1 << 20, 512):
        with suppress(OSError), path.open("ab", buffering=0) as file:
            while True:
                file.write(bytes(size))


# ---- scenes


def write_lines(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def some_responses(folder: Path) -> None:
    responses_file(folder / "r.jsonl", [f"n{number}" for number in range(6)])


def some_feedback(folder: Path) -> None:
    write_run(folder / "run", steps=2, every=1)
    shutil.copy(folder / "run" / "feedback.jsonl", folder / "f.jsonl")


def some_remarks(folder: Path) -> None:
    rows = [
        {"prompt": "Why?", "response": f"It is so {n}.", "critique": f"'so {n}' is vague", "score": 0.5}
        for n in range(40)
    ]
    write_lines(folder / "remarks.jsonl", rows)


def some_programs(folder: Path) -> None:
    row = {
        "prompt": "Double it.",
        "meta": {"tests": "from solution import f\n\ndef test_f():\n    assert f(2) == 4\n"},
    }
    programs = [f"def f(x):\n    return x * {n}\n" for n in range(1, 5)]
    write_lines(folder / "p.jsonl", [{**row, "id": f"p{n}", "response": text} for n, text in enumerate(programs)])


def nothing(folder: Path) -> None:
    """An empty folder."""


QUICK = (
    *("--config", "quick", "--run.folder", "run", "--run.threads", "1", "--tiny.vocabulary", "300"),
    *("--sft.epochs", "1", "--ppo.steps", "2", "--ppo.rollouts", "8", "--ppo.epochs", "1", "--evaluate.limit", "4"),
    *("--generation.max_new_tokens", "8", "--evaluate.samples", "1", "--ppo.max_failed", "1"),
)
CHAT = (
    *("--critic.kind", "prompted", "--critic.prompted.model", "gpt-4o", "--task.name", "qa", "--no-canaries"),
    *("--critic.prompted.concurrency", "1", "--critic.prompted.base_url", "{url}"),
)
PROGRAM = ("--critic.kind", "program", "--task.name", "kodcode")


def some_run(folder: Path) -> None:
    ended = start(("sft", *QUICK), folder)
    assert ended.code == 0, ended.err


def annotate(file: str, *options: str) -> tuple[str, ...]:
    return ("annotate", "--responses", file, "--out", "out.jsonl", *options)


SCENES = (
    Scene("import", ("import", "remarks.jsonl", "--out", "out.jsonl"), some_remarks),
    Scene("export", ("export", "f.jsonl", "--as", "csv", "--out", "out.csv"), some_feedback),
    Scene("annotate", annotate("r.jsonl", *CHAT), some_responses, (REQUEST,)),
    Scene("annotate (program)", annotate("p.jsonl", *PROGRAM), some_programs, (CHILD,)),
    Scene("report", ("report", "run"), some_feedback),
    Scene("sft", ("sft", *QUICK), nothing, (), True),
    Scene("train", ("train", *QUICK), some_run, (), True),
    Scene("evaluate", ("evaluate", "sft", *QUICK), some_run, (), True),
    Scene("merge", ("merge", "sft", *QUICK, "--out", "merged"), some_run, (), True),
)


# ---- playing cells


class Server(ChatServer):
    """A scripted server that causes one fault at the third request, of which `client` is told."""

    def __init__(self) -> None:
        super().__init__(self.reply)
        self.fault = ""
        self.has_struck = False
        self.client = 0

    def reset(self, fault: str) -> None:
        self.turns.clear()
        self.bodies.clear()
        self.fault, self.has_struck = fault, False

    def reply(self, name: str, turn: int, body: dict[str, Any]) -> Reply:
        fault = self.fault if len(self.bodies) == 3 else ""
        self.has_struck |= bool(fault)
        if fault.startswith("SIG"):
            os.kill(self.client, signal.Signals[fault])
        elif fault == "killed before":
            os.kill(self.client, signal.SIGKILL)
        elif fault in ("killed during", "killed after"):
            threading.Timer(0.02, os.kill, (self.client, signal.SIGKILL)).start()
            if fault == "killed during":
                return self.CUT
        elif fault == "slow":
            time.sleep(1.5)
        elif fault == "wrong answer":
            return said('{"verdict": 7}')
        elif fault == "garbage":
            return 200, {}, b"\x00\xff<html>"
        return said(GOOD)


class Player:
    """Plays cells in `place`, where it keeps the prepared folder of each scene."""

    def __init__(self, place: Path, seed: int) -> None:
        self.place, self.seed = place, seed
        self.folder = place / "cell"
        self.server = Server()
        self.undisturbed: dict[str, Undisturbed] = {}

    def prepare(self, scene: Scene) -> None:
        """Make the folder of a scene, and run its command twice to learn what should come out."""
        prepared = self.place / "prepared" / scene.name
        prepared.mkdir(parents=True)
        scene.prepare(prepared)
        results = []
        for _ in range(2):
            self.restore(scene)
            ended = self.run(scene)
            assert ended.code == 0, (scene.name, ended.err)
            results.append(contents(self.folder))
        files, other = results
        noise = {name for name in files if files[name] != other.get(name)}
        sizes = {name: (self.folder / name).stat().st_size for name in other}
        self.undisturbed[scene.name] = Undisturbed(files, sizes, ended.events, noise)
        print(f"{scene.name}: not compared: {', '.join(sorted(noise)) or 'nothing'}", file=sys.stderr)

    def restore(self, scene: Scene) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        shutil.copytree(self.place / "prepared" / scene.name, self.folder)

    def run(self, scene: Scene, fault: Fault | None = None) -> Ended:
        words = tuple(word.replace("{url}", self.server.url) for word in scene.words)
        return start(words, self.folder, fault, self.server)

    def cells(self, scene: Scene) -> Iterator[Cell]:
        """Yield the cells of a scene that exist."""
        files = dict.fromkeys(self.undisturbed[scene.name].events).keys() - {END, CHILD}
        for place in [*sorted(files), *scene.places]:
            cells = [Cell(scene, place, what) for what in FAULTS]
            yield from (cell for cell in cells if cell.what not in IMPOSSIBLE[cell.kind])

    def play(self, cell: Cell) -> list[str] | None:
        """Return the broken promises of a cell; None if it cannot be played."""
        scene = cell.scene
        if cell.what == "disk full" and DISK not in os.environ:
            return None
        self.restore(scene)
        before, (straight, _, _, noise) = contents(self.folder), self.undisturbed[scene.name]
        is_request = cell.kind == "request"
        self.server.reset(cell.what if is_request else "")
        first = self.run(scene, None if is_request else self.fault(cell))
        (self.place / BALLAST).unlink(missing_ok=True)
        has_struck = self.server.has_struck or STRUCK in first.events
        if not has_struck or (cell.kills and first.code not in KILLED):
            return [f"the fault did not strike: exit code {first.code} {first.err[-300:]}"]
        broken = check_exit(cell, first)
        if first.code == 0:
            broken += self.differences(cell)
        after = contents(self.folder)
        for name, content in before.items():
            is_kept = after.get(name) in (content, straight.get(name)) or after.get(name, "").startswith(content)
            if not is_kept and name not in noise:
                broken.append(f"lost {name}")
        if cell.kind == "file" and cell.what == "garbage":
            damaged = self.folder / cell.place
            if not damaged.is_file():
                return None
            data = damaged.read_bytes()
            half = len(data) // 2
            damaged.write_bytes(data[:half] + b"\x00\xff garbage" + data[half + 10 :])
        self.server.fault = ""
        again = self.run(scene)
        if again.code == 0:
            broken += self.differences(cell)
        elif again.code != 1 or not again.is_one_line_error() or cell.what != "garbage":
            broken.append(f"the second run exits with {again.code}: {again.err[-300:]}")
        paid_twice = sum(count - 1 for count in self.server.turns.values())
        if paid_twice > (cell.what != "slow"):
            broken.append(f"{paid_twice} answers paid twice")
        return broken

    def differences(self, cell: Cell) -> list[str]:
        """Return how the folder differs from that of an undisturbed run."""
        result, straight = contents(self.folder), self.undisturbed[cell.scene.name].files
        ignored = set(self.undisturbed[cell.scene.name].noise)
        if cell.kind == "request":  # the journal and the usage also count the failed attempt
            ignored |= {file for file in straight if file.endswith(".journal")}
            result, straight = (
                {file: re.sub(r'"usage": ?{[^}]*}', "", text) for file, text in files.items()}
                for files in (result, straight)
            )
        if cell.what.startswith(("killed", "SIGTERM")) or cell.what == "garbage":
            ignored |= {file for file in result if file.endswith(".partial")}
        names = sorted((result.keys() | straight.keys()) - ignored)
        return [f"differs: {file}" for file in names if result.get(file) != straight.get(file)]

    def fault(self, cell: Cell) -> Fault:
        """Return the fault of a cell, at a moment drawn from the seed."""
        _, sizes, events, _ = self.undisturbed[cell.scene.name]
        if cell.what in ("killed after", "garbage"):
            last = len(events) - 1 - events[::-1].index(cell.place)
            following = events[last + 1]
            return Fault("killed after", following, events[: last + 1].count(following))
        old_file = self.place / "prepared" / cell.scene.name / cell.place
        old = old_file.stat().st_size if old_file.is_file() else 0
        moment = random.Random(f"{self.seed} {cell.scene.name} {cell.place}")
        return Fault(cell.what, cell.place, 0, moment.randrange(old, max(sizes.get(cell.place, 0), old + 1)))


def start(words: tuple[str, ...], folder: Path, fault: Fault | None = None, server: Server | None = None) -> Ended:
    """Run a command in a fork of a process that has imported everything."""
    process = multiprocessing.get_context("forkserver").Process(
        target=run_command, args=(words, str(folder), fault)
    )
    process.start()
    if server is not None:
        server.client = process.pid or 0
    process.join(120)
    if process.exitcode is None:
        process.kill()
        process.join()
        return Ended(124, "no end after 120 s", [])
    texts = [log_file(name).read_text("utf-8", "replace") for name in ("stderr", "events")]
    return Ended(process.exitcode, texts[0], texts[1].splitlines())


def log_file(name: str) -> Path:
    """Return where a command's output goes: not on the disk that becomes full."""
    return Path(os.environ[STATE]) / name


def check_exit(cell: Cell, ended: Ended) -> list[str]:
    """Return what is wrong with the exit code and stderr of the run with the fault."""
    signals = {"SIGTERM": (143, -signal.SIGTERM), "SIGINT": (130,)}
    allowed = {0, *(KILLED if cell.kills else signals.get(cell.what, (1,)))}
    if cell.kind != "file":
        allowed.add(3)
    if ended.code not in allowed or "Traceback" in ended.err:
        return [f"exit code {ended.code}: {ended.err[-300:]}"]
    if ended.code == 1 and not ended.is_one_line_error():
        return [f"no error line, or several: {ended.err[-300:]}"]
    return []


def contents(folder: Path) -> dict[str, str]:
    """Return the files of a folder without locks; without seconds, where they are JSON."""
    files = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.suffix != ".lock":
            text = path.read_bytes().decode("utf-8", "backslashreplace")
            if path.suffix in (".json", ".jsonl", ".journal"):
                text = re.sub(r'"(?:seconds\w*|time|tokens_per_second)": ?[-\d.e]+', "", text)
            files[str(path.relative_to(folder))] = text
    return files


def restart_on_small_disk() -> None:
    """Start this program again with a small disk mounted; return if that is not possible."""
    unshare = ["unshare", "--mount", *(() if os.geteuid() == 0 else ("--user", "--map-root-user"))]
    with tempfile.TemporaryDirectory() as place:
        mount = f"mount -t tmpfs -o size={DISK_BYTES} none {place}"
        if shutil.which("unshare") and not subprocess.run([*unshare, *mount.split()], check=False).returncode:
            again = ["sh", "-c", f'{mount} && exec "$@"', "sh", sys.executable, *sys.argv]
            done = subprocess.run([*unshare, *again], env={**os.environ, DISK: place}, check=False)
            sys.exit(done.returncode)


def play_cells(place: Path, scenes: list[Scene], options: argparse.Namespace) -> int:
    """Play the chosen cells, print the results, and return the exit code."""
    preload = ["text2grad.cli", "psutil"]
    if any(scene.needs_torch for scene in scenes):
        preload += ["torch", "transformers", "peft", "text2grad.stages.train", "text2grad.stages.merge"]
    multiprocessing.get_context("forkserver").set_forkserver_preload(preload)
    player = Player(place, options.seed)
    for scene in scenes:
        player.prepare(scene)
    cells = [cell for scene in scenes for cell in player.cells(scene)]
    count = min(options.sample or len(cells), len(cells))
    chosen = cells if count == len(cells) else random.Random(options.seed).sample(cells, count)
    results: dict[Cell, list[str] | None] = {}
    for cell in chosen:
        began = time.monotonic()
        results[cell] = broken = player.play(cell)
        outcome = "not played" if broken is None else "; ".join(broken) or "ok"
        seconds = f"{time.monotonic() - began:.1f} s"
        print(cell.scene.name, cell.place, cell.what, seconds, outcome, sep=" | ", file=sys.stderr, flush=True)
    if options.table:
        print_table(results)
    violations = sum(bool(broken) for broken in results.values())
    played = sum(broken is not None for broken in results.values())
    print(json.dumps({"cells": len(cells), "played": played, "violations": violations}))
    return 1 if violations else 0


def print_table(results: dict[Cell, list[str] | None]) -> None:
    """Print the results as a Markdown table with one row for each place."""
    print("| command | where | " + " | ".join(FAULTS) + " |\n| --- | --- |" + " --- |" * len(FAULTS))
    for scene, place in dict.fromkeys((cell.scene, cell.place) for cell in results):
        marks = [mark(results, Cell(scene, place, what)) for what in FAULTS]
        print(f"| {scene.name} | {place} | " + " | ".join(marks) + " |")


def mark(results: dict[Cell, list[str] | None], cell: Cell) -> str:
    if results.get(cell) is None:
        return "–" if cell.what in IMPOSSIBLE[cell.kind] else "not played"
    return "**broken**" if results[cell] else "ok"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sample", type=int, default=0, help="play this many cells, drawn at random")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="names of commands, separated by commas")
    parser.add_argument("--table", action="store_true", help="print a table")
    options = parser.parse_args()
    names = options.only.split(",") if options.only else [scene.name for scene in SCENES]
    if unknown := set(names) - {scene.name for scene in SCENES}:
        parser.error(f"no such command: {', '.join(sorted(unknown))}")
    if DISK not in os.environ:
        restart_on_small_disk()
    with (
        tempfile.TemporaryDirectory(dir=os.environ.get(DISK)) as place,
        tempfile.TemporaryDirectory() as state,
    ):
        os.environ |= {STATE: state, "OPENAI_API_KEY": "sk-test"}
        sys.exit(play_cells(Path(place), [scene for scene in SCENES if scene.name in names], options))


if __name__ == "__main__":
    main()
