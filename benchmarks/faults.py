"""Play faults against the commands: every file, request and child process x every fault.

A cell is one place (a file that a command writes, its request, its child process) and one fault.
The command runs in a child process where an audit hook, or the scripted server, causes the fault.
Then the same command runs again without it. Each cell must keep these promises:

- earlier files keep their content, or have the content of an undisturbed run;
- no answer is paid for twice, except those in flight when the process was killed;
- the result of the second run equals that of an undisturbed run, or the command says why not;
- exit codes as documented, and errors are one line on stderr, without a traceback.

    OMP_NUM_THREADS=1 python benchmarks/faults.py [--sample N] [--seed N] [--only TEXT] [--table]

Without `--sample` all cells are played. `--table` prints the table of docs/faults.md. Full disks
need the right to mount a small tmpfs (`unshare --mount`); without it these cells are skipped. The
last line of stdout is one JSON object: cells, played, violations.
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

STATE = "XDG_STATE_HOME"
DISK, BALLAST = 96 << 20, "ballast"
END, SPAWN = "the end", "a child process"
SAME_CALL = ("generation_config.json", "chat_template.jinja", "tokenizer_config.json")
"""Files of a model that transformers writes in one call; config.json stands for them."""
KILLED = (-signal.SIGKILL, -signal.SIGXFSZ)
FILE_FAULTS = (
    *("killed before", "killed during", "killed after"),
    *("disk full", "read-only", "slow", "garbage", "SIGTERM", "SIGINT"),
)
REQUEST_FAULTS = (
    *("killed before", "killed during", "killed after", "slow"),
    *("wrong answer", "garbage", "SIGTERM", "SIGINT"),
)
CHILD_FAULTS = ("killed before", "killed during", "slow", "SIGTERM", "SIGINT")
WHATS = (*FILE_FAULTS[:6], "wrong answer", *FILE_FAULTS[6:], "out of memory")
IMPOSSIBLE = {
    ("file", "wrong answer"): "a file does not answer",
    ("file", "out of memory"): "the kernel kills the process: as killed",
    ("request", "disk full"): "a request writes nothing: see the journal",
    ("request", "read-only"): "a request writes nothing: see the journal",
    ("request", "out of memory"): "the kernel kills the process: as killed",
    ("child", "killed after"): "a child that has ended cannot be killed",
    ("child", "disk full"): "the sandbox writes to a private tmpfs: tests/codeverdict",
    ("child", "read-only"): "the sandbox writes to a private tmpfs: tests/codeverdict",
    ("child", "wrong answer"): "a program's answer is what is judged: tests/codeverdict",
    ("child", "garbage"): "forged verdicts: tests/codeverdict/data/forging.txt",
    ("child", "out of memory"): "hostile programs: tests/codeverdict/data/hostile.txt",
}


class Scene(NamedTuple):
    """A command and the folder that it needs.

    Attributes:
        words: the command line, with paths relative to the folder; `{url}`: the scripted server.
        prepare: makes the folder; the result is copied for each cell.
        kinds: places other than files, "request" or "child".
    """

    name: str
    words: tuple[str, ...]
    prepare: Callable[[Path], None]
    kinds: tuple[str, ...] = ()
    needs_torch: bool = False


class Fault(NamedTuple):
    """A fault at the n-th event (from 0) of a place; `limit` is the largest size of a file."""

    what: str
    place: str
    count: int = 0
    limit: int = 0


class Cell(NamedTuple):
    scene: Scene
    kind: str
    place: str
    what: str


class Ended(NamedTuple):
    """The exit code of a command, its stderr, and the events that its audit hook saw."""

    code: int
    err: str
    events: list[str]


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
    trace = os.open(log_file("events"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    hook = Hook(os.path.realpath(folder), trace, fault)
    sys.addaudithook(hook)
    try:
        main(words)
    finally:
        hook.event(END)
        hook.fault = None
        atexit._run_exitfuncs()  # a process of multiprocessing skips them


class Hook:
    """An audit hook that logs what is written below `root`, and causes one fault."""

    def __init__(self, root: str, trace: int, fault: Fault | None) -> None:
        self.root, self.trace, self.fault = root + os.sep, trace, fault
        self.seen = 0
        self.is_read_only = False

    def __call__(self, name: str, arguments: tuple[Any, ...]) -> None:
        if name == "open":
            path, _, flags = arguments
            if not flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
                return
        elif name == "subprocess.Popen":
            return self.event(SPAWN)
        elif name in ("os.rename", "os.mkdir"):
            path = arguments[name == "os.rename"]
        else:
            return
        if isinstance(path, str | bytes | os.PathLike):
            full = os.path.join(os.path.realpath(os.path.dirname(os.fsdecode(path))), os.path.basename(path))
            is_new = name != "os.mkdir" or not os.path.exists(full)
            if full.startswith(self.root) and is_new and os.path.basename(full) not in SAME_CALL:
                self.event(re.sub(r"(\.\d+)?\.partial", "", full.removeprefix(self.root)))

    def event(self, place: str) -> None:
        os.write(self.trace, f"{place}\n".encode())
        fault = self.fault
        if fault is None:
            return
        if self.is_read_only and place not in (SPAWN, END):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), place)
        if place == fault.place:
            self.seen += 1
            if fault.what == "slow" or self.seen == fault.count + 1:
                self.strike(fault, place)

    def strike(self, fault: Fault, place: str) -> None:
        if fault.what.startswith("SIG"):
            self.fault = None
            after = 0.3 if place == SPAWN else 0.0
            number = signal.Signals[fault.what]
            if after:
                threading.Timer(after, os.kill, (os.getpid(), number)).start()
            else:
                os.kill(os.getpid(), number)
        elif fault.what == "slow" and place != SPAWN:
            time.sleep(0.3)
        elif fault.what == "killed during" and place == SPAWN:
            self.fault = None
            threading.Thread(target=signal_children, args=(signal.SIGKILL,), daemon=True).start()
        elif fault.what == "slow":
            self.fault = None
            threading.Thread(target=signal_children, args=(signal.SIGSTOP, signal.SIGCONT), daemon=True).start()
        elif place == SPAWN:
            self.fault = None
            raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        elif fault.what == "killed during":  # the write that crosses the limit is cut there
            signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
            resource.setrlimit(resource.RLIMIT_FSIZE, (fault.limit, fault.limit))
            self.fault = None
        elif fault.what == "disk full":
            self.fault = None
            fill_disk(Path(self.root).parent / BALLAST)
        elif fault.what == "read-only":
            self.is_read_only = True
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), place)
        else:
            os.kill(os.getpid(), signal.SIGKILL)


def fill_disk(path: Path) -> None:
    """Write to a file until no space is left."""
    with suppress(OSError), path.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(1 << 20))
    with suppress(OSError), path.open("ab", buffering=0) as file:
        while True:
            file.write(bytes(512))


def signal_children(*numbers: int) -> None:
    """Send signals to all descendants of this process, with a second in between."""
    import psutil

    children: list[Any] = []
    while not children:
        time.sleep(0.2)
        children = psutil.Process().children(recursive=True)
    for number in numbers:
        for child in children:
            with suppress(psutil.Error):
                child.send_signal(number)
        time.sleep(1)


# ---- scenes


def some_responses(folder: Path) -> None:
    responses_file(folder / "r.jsonl", [f"n{number}" for number in range(6)])


def some_feedback(folder: Path) -> None:
    write_run(folder / "run", steps=2, every=1)
    shutil.copy(folder / "run" / "feedback.jsonl", folder / "f.jsonl")


def some_remarks(folder: Path) -> None:
    row = {"prompt": "Why?", "response": "It is so {}.", "critique": "'so {}' is vague", "score": 0.5}
    rows = [{**row, "response": f"It is so {n}.", "critique": f"'so {n}' is vague"} for n in range(40)]
    (folder / "remarks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def some_programs(folder: Path) -> None:
    test = "from solution import f\n\ndef test_f():\n    assert f(2) == 4\n"
    rows = [
        {
            "id": f"p{n}",
            "prompt": "Double it.",
            "response": f"def f(x):\n    return x * {n}\n",
            "meta": {"tests": test},
        }
        for n in range(1, 5)
    ]
    (folder / "p.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def nothing(folder: Path) -> None:
    """An empty folder."""


def some_run(*commands: tuple[str, ...]) -> Callable[[Path], None]:
    """A folder in which these commands were run."""

    def prepare(folder: Path) -> None:
        for words in commands:
            ended = start(words, folder)
            assert ended.code == 0, ended.err

    return prepare


QUICK = (
    *("--config", "quick", "--run.folder", "run", "--run.threads", "1", "--tiny.vocabulary", "300"),
    *("--sft.epochs", "1", "--ppo.steps", "2", "--ppo.rollouts", "8", "--ppo.epochs", "1", "--evaluate.limit", "4"),
    *("--generation.max_new_tokens", "8", "--evaluate.samples", "1", "--ppo.max_failed", "1"),
)
CHAT = (
    *("--critic.kind", "prompted", "--critic.prompted.model", "gpt-4o", "--task.name", "qa", "--no-canaries"),
    *("--critic.prompted.concurrency", "1", "--critic.prompted.base_url", "{url}"),
)
SFT = some_run(("sft", *QUICK))
SCENES = (
    Scene("import", ("import", "remarks.jsonl", "--out", "out.jsonl"), some_remarks),
    Scene("export", ("export", "f.jsonl", "--as", "csv", "--out", "out.csv"), some_feedback),
    Scene(
        "annotate",
        ("annotate", "--responses", "r.jsonl", "--out", "out.jsonl", *CHAT),
        some_responses,
        ("request",),
    ),
    Scene(
        "annotate (program)",
        (
            "annotate",
            "--responses",
            "p.jsonl",
            "--out",
            "out.jsonl",
            "--critic.kind",
            "program",
            "--task.name",
            "kodcode",
        ),
        some_programs,
        ("child",),
    ),
    Scene("report", ("report", "run"), some_feedback),
    Scene("sft", ("sft", *QUICK), nothing, (), True),
    Scene("train", ("train", *QUICK), SFT, (), True),
    Scene("evaluate", ("evaluate", "sft", *QUICK), SFT, (), True),
    Scene("merge", ("merge", "sft", *QUICK, "--out", "merged"), SFT, (), True),
)


# ---- playing cells


class Server(ChatServer):
    """A scripted server that causes one fault at the third request, of which `client` is told."""

    def __init__(self) -> None:
        super().__init__(self.reply)
        self.fault: str = ""
        self.client = 0

    def reset(self, fault: str = "") -> None:
        self.turns.clear()
        self.bodies.clear()
        self.fault = fault

    def reply(self, name: str, turn: int, body: dict[str, Any]) -> Reply:
        fault = self.fault if len(self.bodies) == 3 else ""
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
    """Plays cells in `place`, where it keeps the prepared and the undisturbed folder of scenes."""

    def __init__(self, place: Path, can_fill: bool, seed: int) -> None:
        self.place, self.can_fill, self.seed = place, can_fill, seed
        self.folder = place / "cell"
        self.server = Server()
        self.straight: dict[str, dict[str, str]] = {}
        self.events: dict[str, list[str]] = {}
        self.sizes: dict[str, dict[str, int]] = {}
        self.noise: dict[str, set[str]] = {}

    def prepare(self, scene: Scene) -> None:
        """Make the folder of a scene, and run its command twice to learn what should come out."""
        prepared = self.place / "prepared" / scene.name
        prepared.parent.mkdir(exist_ok=True)
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir()
        scene.prepare(self.folder)
        shutil.copytree(self.folder, prepared)
        results = []
        for _ in range(2):
            self.restore(scene)
            ended = self.run(scene)
            assert ended.code == 0, (scene.name, ended.err)
            results.append(contents(self.folder))
        self.straight[scene.name], self.events[scene.name] = results[0], ended.events
        self.noise[scene.name] = {name for name in results[0] if results[0][name] != results[1].get(name)}
        self.sizes[scene.name] = {name: (self.folder / name).stat().st_size for name in results[0]}

    def restore(self, scene: Scene) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        shutil.copytree(self.place / "prepared" / scene.name, self.folder)

    def run(self, scene: Scene, fault: Fault | None = None) -> Ended:
        words = tuple(word.replace("{url}", self.server.url) for word in scene.words)
        return start(words, self.folder, fault, self.server)

    def cells(self, scene: Scene) -> Iterator[Cell]:
        """Yield the cells of a scene that exist."""
        files = dict.fromkeys(event for event in self.events[scene.name] if event not in (END, SPAWN))
        for place in files:
            yield from (Cell(scene, "file", place, what) for what in FILE_FAULTS)
        if "request" in scene.kinds:
            yield from (Cell(scene, "request", "request 3", what) for what in REQUEST_FAULTS)
        if "child" in scene.kinds:
            yield from (Cell(scene, "child", SPAWN, what) for what in CHILD_FAULTS)

    def play(self, cell: Cell) -> list[str] | None:
        """Return the broken promises of a cell; None if it cannot be played here."""
        scene = cell.scene
        if cell.what == "disk full" and not self.can_fill:
            return None
        self.restore(scene)
        before, straight = contents(self.folder), self.straight[scene.name]
        self.server.reset(cell.what if cell.kind == "request" else "")
        first = self.run(scene, None if cell.kind == "request" else self.fault(cell))
        (self.place / BALLAST).unlink(missing_ok=True)
        broken = check_exit(cell, first)
        after = contents(self.folder)
        for name, content in before.items():
            is_kept = after.get(name) in (content, straight.get(name)) or after.get(name, "").startswith(content)
            if not is_kept and name not in self.noise[scene.name]:
                broken.append(f"lost {name}")
        if cell.what == "garbage" and cell.kind == "file" and (self.folder / cell.place).is_file():
            data = (self.folder / cell.place).read_bytes()
            (self.folder / cell.place).write_bytes(
                data[: len(data) // 2] + b"\x00\xff garbage" + data[len(data) // 2 + 10 :]
            )
        self.server.fault = ""
        again = self.run(scene)
        if again.code:
            is_told = again.code == 1 and len(error_lines(again)) == 1 and "Traceback" not in again.err
            is_told &= cell.what == "garbage" or not self.differences(cell)
            broken += [] if is_told else [f"the second run exits with {again.code}: {again.err[-300:]}"]
        else:
            broken += self.differences(cell)
        paid_twice = sum(count - 1 for count in self.server.turns.values() if count > 1)
        if paid_twice > (cell.what != "slow"):
            broken.append(f"{paid_twice} answers paid twice")
        return broken

    def differences(self, cell: Cell) -> list[str]:
        """Return how the folder differs from that of an undisturbed run."""
        name = cell.scene.name
        result, straight, ignored = contents(self.folder), self.straight[name], set(self.noise[name])
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
        if cell.what in ("killed after", "garbage"):
            events = self.events[cell.scene.name]
            last = len(events) - 1 - events[::-1].index(cell.place)
            following = events[last + 1]
            return Fault("killed after", following, events[: last + 1].count(following))
        size = self.sizes[cell.scene.name].get(cell.place, 0)
        place = self.place / "prepared" / cell.scene.name / cell.place
        old = place.stat().st_size if place.is_file() else 0
        limit = random.Random(f"{self.seed} {cell.scene.name} {cell.place}").randrange(old, max(size, old + 1))
        return Fault(cell.what, cell.place, 0, limit)


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


def error_lines(ended: Ended) -> list[str]:
    return [line for line in ended.err.splitlines() if line.startswith("error: ")]


def check_exit(cell: Cell, ended: Ended) -> list[str]:
    """Return what is wrong with the exit code and stderr of the run with the fault."""
    if ended.code in KILLED and (cell.what.startswith("killed") or cell.what == "garbage"):
        return []
    if cell.what == "killed before" and cell.kind != "child":
        return ["the fault did not strike"]
    broken = ["traceback: " + ended.err[-300:]] if "Traceback" in ended.err else []
    expected = {"SIGTERM": (143, -signal.SIGTERM), "SIGINT": (130,)}.get(cell.what, (1,))
    if ended.code not in (0, *expected) and not (cell.kind != "file" and ended.code == 3):
        broken.append(f"exit code {ended.code}: {ended.err[-300:]}")
    if ended.code == 1 and len(error_lines(ended)) != 1:
        broken.append("no error line, or several: " + ended.err[-300:])
    return broken


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


def mount_disk() -> bool:
    """Start this program again where it may mount a small disk; False if that is not possible."""
    if "FAULTS_DISK" in os.environ:
        place = os.environ["FAULTS_DISK"]
        mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK}", "none", place], check=False)
        return mounted.returncode == 0
    unshare = ["unshare", "--mount", *(() if os.geteuid() == 0 else ("--user", "--map-root-user"))]
    if (
        shutil.which("unshare") is None
        or subprocess.run([*unshare, "true"], check=False, capture_output=True).returncode
    ):
        return False
    with tempfile.TemporaryDirectory() as place:
        environment = {**os.environ, "FAULTS_DISK": place}
        sys.exit(subprocess.run([*unshare, sys.executable, *sys.argv], env=environment, check=False).returncode)


def play_cells(place: Path, scenes: list[Scene], options: argparse.Namespace, can_fill: bool) -> int:
    preload = ["text2grad.cli", "psutil"]
    if any(scene.needs_torch for scene in scenes):
        preload += ["torch", "transformers", "peft", "text2grad.stages.train", "text2grad.stages.merge"]
    multiprocessing.get_context("forkserver").set_forkserver_preload(preload)
    player = Player(place, can_fill, options.seed)
    for scene in scenes:
        player.prepare(scene)
        noise = player.noise[scene.name]
        print(f"{scene.name}: not compared: {', '.join(sorted(noise)) or 'nothing'}", file=sys.stderr)
    cells = [cell for scene in scenes for cell in player.cells(scene)]
    chosen = cells
    if options.sample and options.sample < len(cells):
        chosen = random.Random(options.seed).sample(cells, options.sample)
    results: dict[Cell, list[str] | None] = {}
    for cell in chosen:
        began = time.monotonic()
        results[cell] = player.play(cell)
        line = "; ".join(results[cell] or ()) or ("not played" if results[cell] is None else "ok")
        seconds = time.monotonic() - began
        print(
            f"{cell.scene.name} | {cell.place} | {cell.what} | {seconds:.1f} s | {line}",
            file=sys.stderr,
            flush=True,
        )
    if options.table:
        print_table(results)
    violations = sum(bool(broken) for broken in results.values())
    played = sum(broken is not None for broken in results.values())
    print(json.dumps({"cells": len(cells), "played": played, "violations": violations}))
    return 1 if violations else 0


def print_table(results: dict[Cell, list[str] | None]) -> None:
    """Print the results as a Markdown table with one row for each place."""
    print("| command | where | " + " | ".join(WHATS) + " |\n| --- | --- |" + " --- |" * len(WHATS))
    rows = dict.fromkeys((cell.scene, cell.kind, cell.place) for cell in results)
    for scene, kind, place in rows:
        marks = [mark(results, Cell(scene, kind, place, what)) for what in WHATS]
        print(f"| {scene.name} | {place} | " + " | ".join(marks) + " |")


def mark(results: dict[Cell, list[str] | None], cell: Cell) -> str:
    if cell not in results or results[cell] is None:
        return "–" if (cell.kind, cell.what) in IMPOSSIBLE else "not played"
    return "**broken**" if results[cell] else "ok"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sample", type=int, default=0, help="play this many cells, drawn at random")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="names of commands, separated by commas")
    parser.add_argument("--table", action="store_true", help="print a table")
    options = parser.parse_args()
    can_fill = mount_disk()
    scenes = [
        scene for scene in SCENES if scene.name in (options.only.split(",") if options.only else [scene.name])
    ]
    with (
        tempfile.TemporaryDirectory(dir=os.environ.get("FAULTS_DISK")) as place,
        tempfile.TemporaryDirectory() as state,
    ):
        os.environ |= {STATE: state, "OPENAI_API_KEY": "sk-test"}
        code = play_cells(Path(place), scenes, options, can_fill)
    sys.exit(code)


if __name__ == "__main__":
    main()
