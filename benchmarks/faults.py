"""Play faults against the commands: every file, request and child process x every fault.

A cell is one place (a file that a command writes, its request, the server that it asks, its child
process) and one fault. The command runs in a child process where an audit hook, or the scripted
server, causes the fault. Then the same command runs again without it. A command that serves is
asked by a client, which repeats what was not confirmed. Each cell must keep these promises:

- earlier files keep their content, or have the content of an undisturbed run;
- no answer is paid for twice, except those in flight when the process was killed;
- the result of the second run, and of a first run that exits with 0, equals that of an undisturbed
  run, or the command says why not. It may refuse to run if this result is complete already;
- exit codes as documented, and errors are one line on stderr, without a traceback.

A fault that does not strike is a violation too.

    OMP_NUM_THREADS=1 python benchmarks/faults.py [--sample N] [--seed N] [--only TEXT] [--table]
        [--results FILE]

Without `--sample` all cells are played. `--table` prints a table of the results. `--results` keeps
them, so that the same code does not play a cell twice. Full disks need the right to mount a small
tmpfs (`unshare --mount`); without it these cells are skipped. So is garbage where the killed
process left no file. The last line of stdout is one JSON object: cells, played, violations.
"""

from __future__ import annotations

import argparse
import atexit
import errno
import hashlib
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
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from http.client import HTTPException
from pathlib import Path
from typing import Any, NamedTuple
from urllib.request import ProxyHandler, Request, build_opener

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests")]
from chat_server import GOOD, ChatServer, Reply, error, ok, responses_file, said  # noqa: E402
from feedback_files import ENGLISH, shop_rows, write_table  # noqa: E402
from human_data import SMALL, corrected_file  # noqa: E402
from synthetic_run import write_run  # noqa: E402
from text2grad.critics import served  # noqa: E402
from text2grad.errors import UserError  # noqa: E402
from text2grad.feedback import Critique, Example, Failure, Message, Source  # noqa: E402
from text2grad.settings import TinyShape  # noqa: E402

LOGS, DISK = "FAULTS_LOGS", "FAULTS_DISK"
DISK_BYTES, BALLAST = 96 << 20, "ballast"
END, FOLDER = "the end", "a new folder"
CHILD, REQUEST, SERVER = "a child process", "a request", "the server"
STRUCK = "the fault has struck"
QUICKER = {
    "text2grad.train.ppo.CHECKPOINT_EVERY": 1,
    "text2grad.critics.served.RETRY_DELAYS": (0.1,),
    "text2grad.chat.pace.LONGEST_PAUSE": 0.05,
    "text2grad.policy.tiny.TinyShape": lambda: TinyShape(hidden=32, layers=1, heads=2, feed_forward=32),
}
"""What is smaller here: a checkpoint after every step, short pauses, a tiny model of one layer."""
SAME_CALL = ("generation_config.json", "chat_template.jinja", "tokenizer_config.json")
"""Files of a model that transformers writes in one call; config.json stands for them."""
KILLED = (-signal.SIGKILL, -signal.SIGXFSZ)
PRELOAD = (
    *("text2grad.cli", "text2grad.config", "text2grad.critics.served", "text2grad.chat.transport"),
    *("text2grad.stages.annotate", "text2grad.data.export", "text2grad.page.report", "psutil"),
)
PRELOAD_TORCH = (
    *("text2grad.stages.train", "text2grad.stages.merge", "text2grad.stages.talk", "text2grad.stages.serve"),
    *("text2grad.stages.improve.verdict", "text2grad.stages.reward_model.train", "rouge_score.rouge_scorer"),
    *("text2grad.stages.evaluate.policy", "text2grad.stages.evaluate.answers", "text2grad.page.mark"),
    *("text2grad.page.server", "text2grad.policy.files.gguf", "text2grad.engines.trl.trainer"),
)
"""Modules that are imported once for all commands; the second ones are those that need torch."""
FAULTS = (
    *("killed before", "killed during", "killed after", "disk full", "read-only"),
    *("slow", "wrong answer", "garbage", "SIGTERM", "SIGINT", "out of memory"),
)
IMPOSSIBLE = {
    "file": ("wrong answer",),
    "request": ("disk full", "read-only", "out of memory"),
    "server": ("disk full", "read-only", "slow", "garbage", "SIGTERM", "SIGINT", "out of memory"),
    "child": ("killed after", "disk full", "read-only", "wrong answer", "garbage", "out of memory"),
}
"""The faults that cannot happen at a kind of place, for the reasons in docs/faults.md."""


class Scene(NamedTuple):
    """A command and the folder that it needs.

    Attributes:
        words: the command line, with paths relative to the folder; `{url}`: the scripted server.
        prepare: makes the folder; the result is copied for each cell.
        places: places other than files.
        torch: the command needs torch.
        only: a pattern of the files that are played; another command plays the others.
        client: asks the command, which serves, until it is content.
        moment: the number of the event at which a file's fault strikes, if it has so many.
        open_requests: the most answers that are in flight when the process is killed.
    """

    name: str
    words: tuple[str, ...]
    prepare: Callable[[Path], None]
    places: tuple[str, ...] = ()
    torch: bool = True
    only: str = ""
    client: Callable[[str, Path], None] | None = None
    moment: int = 0
    open_requests: int = 1


class Undisturbed(NamedTuple):
    """An undisturbed run: its files, their sizes, its events, and the number of paid answers."""

    files: dict[str, str]
    sizes: dict[str, int]
    events: list[str]
    paid: int


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
        return {REQUEST: "request", SERVER: "server", CHILD: "child"}.get(self.place, "file")

    @property
    def kills(self) -> bool:
        """True if the fault kills the command itself."""
        is_killed = self.kind in ("file", "request") and self.what.startswith("killed")
        return is_killed or (self.kind == "file" and self.what == "garbage")


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

    set_quicker_constants()
    if verdict := sys.modules.get("text2grad.stages.improve.verdict"):
        verdict._read_answers = better_answers  # type: ignore[attr-defined]
    os.environ |= {"XDG_STATE_HOME": f"{folder}/state", "XDG_CACHE_HOME": f"{folder}/cache"}
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


def set_quicker_constants() -> None:
    """Set the constants of `QUICKER` in the modules that are imported."""
    for name, value in QUICKER.items():
        module, _, constant = name.rpartition(".")
        if module in sys.modules:
            setattr(sys.modules[module], constant, value)


def better_answers(run: object, name: str, questions: dict[str, str]) -> dict[str, str]:
    """Return answers to the questions of `improve`: good ones, except of the base model."""
    return {
        text: "no" if name == "base" else f"The {text.split()[1]} is 30 cm wide." for text in questions.values()
    }


def place_name(path: str) -> str:
    """Return the place that a path belongs to: without the ends of temporary names."""
    return re.sub(r"(\.\d+)?\.partial|\.\d{3,}(?=/?$)", "", path)


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
            self.write(arguments[0], FOLDER)

    def write(self, path: object, inner: str = "") -> None:
        """Log a write; `inner` replaces the name of what is not directly below the root."""
        if isinstance(path, str | bytes | os.PathLike):
            folder, name = os.path.split(os.fsdecode(path))
            full = os.path.join(os.path.realpath(folder), name)
            if full.startswith(self.root) and name not in SAME_CALL:
                place = place_name(full.removeprefix(self.root))
                self.event(inner if inner and os.sep in place else place)

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
        elif fault.what == "out of memory":
            raise MemoryError
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
                    self.log(STRUCK)  # the signal may end this process
                    process.send_signal(number)
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
    for file, letter in (("r.jsonl", "n"), ("theirs.jsonl", "m")):
        responses_file(folder / file, [f"{letter}{number}" for number in range(6)], reference="It is so.")
    (folder / "run").mkdir()


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


def some_table(folder: Path) -> None:
    columns = (0, 1, 4)
    rows = [[row[column] for column in columns] for row in shop_rows(ENGLISH)]
    (folder / "inbox").mkdir()
    corrected = [[question, sent, better or f"{sent} It is 30 cm."] for question, sent, better in rows[1:]]
    write_table(folder / "inbox" / "monday.csv", [rows[0], *corrected])


def some_gguf(folder: Path) -> None:
    from gguf_files import write_gguf
    from text2grad.policy.load import load_policy
    from text2grad.policy.settings import PolicySettings
    from tiny_runs import tiny_model

    policy = load_policy(PolicySettings(model=str(tiny_model(folder / "model"))))
    write_gguf(folder / "m.gguf", policy.model, policy.tokenizer)
    some_prompts(folder)


def some_prompts(folder: Path) -> None:
    (folder / "p.txt").write_text("Why?\nWhen?\n", encoding="utf-8")


def nothing(folder: Path) -> None:
    """An empty folder."""


def no_key(folder: Path) -> None:
    """A user's first command: the key that signs the files of runs does not exist yet."""
    (folder / "state" / "text2grad" / "key").unlink()


TINY = (
    *("--tiny.vocabulary", "300", "--generation.max_new_tokens", "6", "--evaluate.samples", "1"),
    *("--evaluate.limit", "3"),
)
QUICK = (
    *("--config", "quick", "--run.folder", "run", "--run.threads", "1", "--sft.epochs", "1", "--ppo.steps", "2"),
    *("--ppo.rollouts", "6", "--ppo.epochs", "1", "--ppo.max_failed", "1", "--sft.batch_size", "48", *TINY),
)
JUDGE = (
    *("--critic.kind", "prompted", "--critic.prompted.model", "gpt-4o"),
    *("--critic.prompted.concurrency", "1", "--critic.prompted.base_url", "{url}"),
)
ASKS, RUN = (REQUEST, SERVER), ("--run.folder", "run")
CHAT = (*JUDGE, *RUN, "--task.name", "qa")
SERVED = ("--critic.kind", "{critic}", "--task.name", "qa")
PROGRAM = ("--critic.kind", "program", "--task.name", "kodcode")
HUMAN = (
    *("--config", "human_qa", *RUN, *SMALL, *TINY, "--offline.epochs", "1"),
    *("--reward_model.training.batch_size", "16", "--offline.batch_size", "16"),
)
COMPARE = (
    *("evaluate", "--task", "qa", "--answers", "r.jsonl", "--against", "theirs.jsonl", *RUN),
    *("--evaluate.judge", "judge", "--evaluate.judge_url", "{url}"),
)
SAMPLE = ("sample", "--prompts", "p.txt", "--out", "answers.jsonl", *RUN)
IMPROVES = "run/(improve.json|feedback|report|policy$)"
INBOX = "run/(inbox|learned|policies/1$|policy|feedback)"


def some_run(folder: Path) -> None:
    ended = start(("sft", *QUICK), folder)
    assert ended.code == 0, ended.err
    some_prompts(folder)


def some_import(folder: Path) -> None:
    corrected_file(folder / "c.jsonl")
    for words in (("import", "c.jsonl", *HUMAN), ("sft", *HUMAN)):
        ended = start(words, folder)
        assert ended.code == 0, ended.err


def annotate(file: str, *options: str) -> tuple[str, ...]:
    return ("annotate", "--responses", file, "--out", "out.jsonl", *options)


# ---- clients of the commands that serve


def send_marks(url: str, folder: Path) -> None:
    """Send acts as the page of `mark` does, without those that were confirmed before."""
    page, _, token = url.partition("/?token=")
    cookie = f"text2grad-{page.rpartition(':')[2]}={token}"
    headers = {"Cookie": cookie, "Origin": page, "Content-Type": "application/json"}
    opener = build_opener(ProxyHandler({}))

    def ask(path: str, body: dict[str, Any] | None = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        with opener.open(Request(page + path, data, headers), timeout=20) as answer:
            return json.load(answer)

    keys = [item["key"] for item in ask("/api/items")["items"]]
    confirmed = folder / "confirmed"
    first = len(confirmed.read_text()) if confirmed.exists() else 0
    for number in range(first, 4):
        check = {"start": 0, "end": 2, "correct": True}
        opinion = {"critique": f"Version {number}.", "checks": [check]}
        ask(
            "/api/acts",
            {"act": f"act-{number:05}", "item": keys[number % 2], "base": number // 2, "opinion": opinion},
        )
        with confirmed.open("a") as file:
            file.write("x")


def ask_critic(url: str, folder: Path) -> None:
    """Have a served critic judge answers, one after the other, and write the critiques."""
    critic = served.ServedCritic(url, "")
    example = Example(id="a", prompt=(Message(role="user", content="Why?"),))
    judgements = [critic.critique([example], [f"n{number} answer."])[0] for number in range(4)]
    if failures := [judgement for judgement in judgements if isinstance(judgement, Failure)]:
        raise ConnectionError(failures[0].message)
    (folder / "critiques").write_bytes(served.dump_judgements(judgements))


SCENES = (
    Scene("import", ("import", "remarks.jsonl", "--out", "out.jsonl"), some_remarks, torch=False),
    Scene("export", ("export", "f.jsonl", "--as", "csv", "--out", "out.csv"), some_feedback, torch=False),
    Scene("report", ("report", "run"), some_feedback, torch=False),
    Scene("annotate", annotate("r.jsonl", *CHAT, "--no-canaries"), some_responses, ASKS, torch=False),
    Scene("annotate (program)", annotate("p.jsonl", *PROGRAM), some_programs, (CHILD,), torch=False),
    Scene("annotate (served)", annotate("r.jsonl", *SERVED), some_responses, ASKS, only="-"),
    Scene("serve", ("serve", "--port", "0", *CHAT), some_responses, ASKS, client=ask_critic),
    Scene("mark", ("mark", "r.jsonl", "--no-browser"), some_responses, client=send_marks, moment=3),
    Scene("evaluate --against", COMPARE, some_responses, ASKS, only="run/.*journal", open_requests=8),
    Scene("sft", ("sft", *QUICK), nothing, only=r"run/(base|config|sft/policy$)"),
    Scene("sft (a user's first)", ("sft", *QUICK), no_key, only="state"),
    Scene(
        "train-reward",
        ("train-reward", *HUMAN),
        some_import,
        only=r".*(gate.json|reward_model.json|checkpoint-\d+|reward_model/policy)$",
    ),
    Scene("train", ("train", *QUICK), some_run),
    Scene(
        "train (chat)",
        ("train", *QUICK, *JUDGE, "--ppo.max_failed", "0.2"),
        some_run,
        ASKS,
        only=r".*critic\.journal",
    ),
    Scene(
        "train --offline",
        ("train", "--offline", "run/feedback.jsonl", *HUMAN),
        some_import,
        only=r".*(checkpoint-\d+|offline/policy)$",
    ),
    Scene(
        "train --engine trl",
        ("train", "--engine", "trl", *QUICK),
        some_run,
        only=r".*(checkpoint-\d+|trainer_state.json|text2grad.json)$",
    ),
    Scene("evaluate", ("evaluate", "sft", *QUICK), some_run),
    Scene("sample", (*SAMPLE, "--with", "base,sft", "--critique", *JUDGE), some_run, ASKS, only=r".*journal"),
    Scene("merge", ("merge", "sft", *QUICK, "--out", "merged"), some_run),
    Scene("a GGUF file", (*SAMPLE, "--with", "m.gguf"), some_gguf, only=r"cache/.*(-1|lock|text2grad.json)$"),
    Scene("improve", ("improve", "inbox/monday.csv", "--yes", *HUMAN), some_table, only=IMPROVES, moment=2),
    Scene("improve --inbox", ("improve", "--inbox", "inbox", *HUMAN), some_table, only=INBOX, moment=2),
)


# ---- playing cells


class Server(ChatServer):
    """A scripted chat model and critic that causes one fault; `client` is the process that asks.

    The fault strikes at the third request to the model, and at the first to the critic, which has
    all responses.
    """

    def __init__(self) -> None:
        super().__init__(self.reply, name=lambda body: "")
        self.client = 0
        self.reset()

    def reset(self, kind: str = "", fault: str = "") -> None:
        self.bodies.clear()
        self.kind, self.fault = kind, fault
        self.paid = 0
        self.has_struck = self.is_dead = False

    def reply(self, name: str, turn: int, body: dict[str, Any]) -> Reply:
        is_judge = body["model"] == "judge"
        good = said("tie" if is_judge else GOOD.replace('"answer"', ""))  # a quote may not fit the answer
        answer = self.struck(good, said('{"verdict": 7}')) if len(self.bodies) >= 3 else good
        self.paid += answer[0] == 200 or answer == self.CUT
        return answer

    def service(self, path: str, data: bytes) -> Reply:
        if not data:
            return ok({"source": Source(kind="program").model_dump()})
        count = len(json.loads(data)["responses"])
        judgements = served.dump_judgements([Critique(text="Fine.")] * count)
        return self.struck((200, {}, judgements), ok({"judgements": 7}))

    def struck(self, good: Reply, wrong: Reply) -> Reply:
        """Return the answer to a request, after the fault if it has not struck yet."""
        fault, self.fault = self.fault, ""
        self.has_struck |= bool(fault)
        if self.is_dead:
            return self.HANG
        if self.kind == "server" and fault:
            self.is_dead = fault != "wrong answer"
            return {"killed before": self.HANG, "killed during": self.CUT, "killed after": good}.get(
                fault, error(500)
            )
        if fault.startswith("SIG"):
            os.kill(self.client, signal.Signals[fault])
        elif fault == "killed before":
            os.kill(self.client, signal.SIGKILL)
        elif fault in ("killed during", "killed after"):
            threading.Timer(0.02, os.kill, (self.client, signal.SIGKILL)).start()
            return self.CUT if fault == "killed during" else good
        elif fault == "slow":
            time.sleep(1.5)
        return {"wrong answer": wrong, "garbage": (200, {}, b"\x00\xff<html>")}.get(fault, good)


class Player:
    """Plays cells in `place`, where it keeps the prepared folder of each scene."""

    def __init__(self, place: Path, seed: int) -> None:
        self.place, self.seed = place, seed
        self.folder = place / "cell"
        self.server = Server()
        self.undisturbed: dict[str, Undisturbed] = {}

    def prepare(self, scene: Scene) -> None:
        """Make the folder of a scene, and run its command to learn what should come out."""
        key = self.prepared(scene) / "state" / "text2grad" / "key"
        if not key.parent.exists():
            key.parent.mkdir(parents=True)
            key.write_bytes(b"a key")
            scene.prepare(self.prepared(scene))
        self.restore(scene)
        self.server.reset()
        ended = self.run(scene)
        assert ended.code == 0, (scene.name, ended.err)
        files = contents(self.folder)
        sizes = {name: (self.folder / name).stat().st_size for name in files}
        self.undisturbed[scene.name] = Undisturbed(files, sizes, ended.events, self.server.paid)

    def prepared(self, scene: Scene) -> Path:
        """Return the folder that a scene starts from, which several may share."""
        return self.place / "prepared" / scene.prepare.__name__

    def restore(self, scene: Scene) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        shutil.copytree(self.prepared(scene), self.folder)

    def run(self, scene: Scene, fault: Fault | None = None) -> Ended:
        critic = self.server.url.removesuffix("/v1")
        words = [word.replace("{url}", self.server.url).replace("{critic}", critic) for word in scene.words]
        return start(words, self.folder, fault, self.server, scene.client)

    def cells(self, scene: Scene) -> Iterator[Cell]:
        """Yield the cells of a scene that exist."""
        files = dict.fromkeys(self.undisturbed[scene.name].events).keys() - {END, FOLDER, CHILD}
        for place in [*sorted(file for file in files if re.match(scene.only, file)), *scene.places]:
            cells = [Cell(scene, place, what) for what in FAULTS]
            yield from (cell for cell in cells if cell.what not in IMPOSSIBLE[cell.kind])

    def play(self, cell: Cell) -> list[str] | None:
        """Return the broken promises of a cell; None if it cannot be played."""
        scene = cell.scene
        if cell.what == "disk full" and DISK not in os.environ:
            return None
        self.restore(scene)
        before, (straight, _, _, paid) = contents(self.folder), self.undisturbed[scene.name]
        is_request = cell.kind in ("request", "server")
        self.server.reset(*((cell.kind, cell.what) if is_request else ()))
        first = self.run(scene, None if is_request else self.fault(cell))
        (self.place / BALLAST).unlink(missing_ok=True)
        has_struck = self.server.has_struck or STRUCK in first.events
        is_cut = cell.what == "killed during" and first.is_one_line_error()
        if not has_struck or (cell.kills and first.code not in KILLED and not is_cut):
            return [f"the fault did not strike: exit code {first.code} {first.err[-300:]}"]
        broken = check_exit(cell, first)
        if first.code == 0:
            broken += self.differences(cell)
        after = contents(self.folder)
        for name, content in before.items():
            is_kept = after.get(name) in (content, straight.get(name)) or after.get(name, "").startswith(content)
            if not is_kept:
                broken.append(f"lost {name}")
        if cell.kind == "file" and cell.what == "garbage":
            place = f"{cell.place}/"
            files = [path for path in self.folder.rglob("*") if path.is_file()]
            names = [place_name(f"{path.relative_to(self.folder)}/") for path in files]
            matches = [path for path, name in zip(files, names, strict=True) if name.startswith(place)]
            if not matches:
                return None
            damaged = max(matches, key=lambda path: path.stat().st_size)
            data = damaged.read_bytes()
            half = len(data) // 2
            damaged.write_bytes(data[:half] + b"\x00\xff garbage" + data[half + 10 :])
        self.server.fault, self.server.is_dead = "", False
        again = first if cell.what == "slow" else self.run(scene)
        refuses = again.code == 1 and again.is_one_line_error()
        differences = self.differences(cell)
        if again.code == 0:
            broken += differences
        elif not refuses or (differences and cell.what != "garbage"):
            broken.append(f"the second run exits with {again.code}: {again.err[-300:]}")
        paid_twice = self.server.paid - paid
        if paid_twice > (scene.open_requests if cell.what != "slow" else 0):
            broken.append(f"{paid_twice} answers paid twice")
        return broken

    def differences(self, cell: Cell) -> list[str]:
        """Return how the folder differs from that of an undisturbed run."""
        result, straight = contents(self.folder), self.undisturbed[cell.scene.name].files
        ignored: set[str] = set()
        if cell.kind in ("request", "server"):  # the journal and the usage also count the failed attempt
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
        _, sizes, events, *_ = self.undisturbed[cell.scene.name]
        if cell.what in ("killed after", "garbage"):
            if cell.scene.client:  # its journal is open until the end
                return Fault("killed after", END)
            last = len(events) - 1 - events[::-1].index(cell.place)
            index = next(index for index in range(last + 1, len(events)) if events[index] != CHILD)
            return Fault("killed after", events[index], events[:index].count(events[index]))
        old_file = self.prepared(cell.scene) / cell.place
        old = old_file.stat().st_size if old_file.is_file() else 0
        moment = random.Random(f"{self.seed} {cell.scene.name} {cell.place}")
        count = min(cell.scene.moment, events.count(cell.place) - 1)
        if cell.what == "killed during":  # at the opening of a file, before it is renamed
            count -= count % 2
        limit = moment.randrange(old, max(sizes.get(cell.place, 0), old + 1))
        return Fault(cell.what, cell.place, count if cell.kind == "file" else 0, limit)


def start(
    words: Sequence[str],
    folder: Path,
    fault: Fault | None = None,
    server: Server | None = None,
    client: Callable[[str, Path], None] | None = None,
) -> Ended:
    """Run a command in a fork of a process that has imported everything.

    A command that serves is stopped when its client is content or was refused (exit code 1).
    """
    log_file("stdout").unlink(missing_ok=True)
    process = multiprocessing.get_context("forkserver").Process(
        target=run_command, args=(words, str(folder), fault)
    )
    process.start()
    if server is not None:
        server.client = process.pid or 0
    refusal = serve_client(client, folder, process) if client else ""
    process.join(120)
    if (code := process.exitcode) is None:
        process.kill()
        process.join()
        return Ended(124, "no end after 120 s", [])
    stderr, events = [log_file(name).read_text("utf-8", "replace") for name in ("stderr", "events")]
    if client and code in (0, 130):
        code, stderr = (1, f"{stderr}error: {refusal}\n") if refusal else (0, stderr)
    return Ended(code, stderr, events.splitlines())


def serve_client(client: Callable[[str, Path], None], folder: Path, process: Any) -> str:
    """Have a client ask the command, and stop it; return the client's error, or an empty text."""
    refusal = ""
    try:
        while not (address := log_file("stdout").read_text() if log_file("stdout").exists() else "").endswith("\n"):
            if not process.is_alive():
                return "the server did not start"
            time.sleep(0.02)
        client(address.strip(), folder)
    except (OSError, HTTPException, UserError) as error:
        refusal = str(error)
        process.join(2)  # the server may be ending
    if process.is_alive():
        os.kill(process.pid, signal.SIGINT)
    return refusal


def log_file(name: str) -> Path:
    """Return where a command's output goes: not on the disk that becomes full."""
    return Path(os.environ[LOGS]) / name


def check_exit(cell: Cell, ended: Ended) -> list[str]:
    """Return what is wrong with the exit code and stderr of the run with the fault."""
    signals = {"SIGTERM": (143, -signal.SIGTERM), "SIGINT": (130,)}
    allowed = {0, *(KILLED if cell.kills else signals.get(cell.what, (1,)))}
    if cell.what == "killed during":  # a writer may notice that its write was cut
        allowed.add(1)
    if cell.kind != "file":
        allowed.add(3)
    if cell.scene.client:
        allowed.add(1)
    if ended.code not in allowed or "Traceback" in ended.err:
        return [f"exit code {ended.code}: {ended.err[-300:]}"]
    if ended.code == 1 and not ended.is_one_line_error():
        return [f"no error line, or several: {ended.err[-300:]}"]
    return []


def contents(folder: Path) -> dict[str, str]:
    """Return the files of a folder, without what no two runs share.

    That is locks, the user's key, signatures with it, times, numbers in pages, and the order of a
    journal.
    """
    files = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_symlink():
            files[name] = os.readlink(path)
        elif path.is_file() and path.suffix != ".lock" and not name.startswith("state"):
            text = path.read_bytes().decode("utf-8", "backslashreplace")
            if path.suffix in (".json", ".jsonl", ".journal"):
                text = re.sub(r'"(?:seconds\w*|minutes|time|tokens_per_second)": ?(?:[-\d.e]+|{[^}]*})', "", text)
            elif path.suffix == ".html":  # pages show such times among other numbers
                text = re.sub(r"[\d.e-]+", "", text)
            elif path.suffix == ".yaml":
                text = text.partition("# signed by")[0]
            files[name] = "\n".join(sorted(text.split("\n"))) if path.suffix == ".journal" else text
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
    preload = [*PRELOAD, *(PRELOAD_TORCH if any(scene.torch for scene in scenes) else ())]
    multiprocessing.get_context("forkserver").set_forkserver_preload(preload)
    set_quicker_constants()  # of the clients in this process
    player = Player(place, options.seed)
    for scene in scenes:
        player.prepare(scene)
    cells = [cell for scene in scenes for cell in player.cells(scene)]
    chosen = random.Random(options.seed).sample(cells, min(options.sample or len(cells), len(cells)))
    results = play_once(player, chosen, options.results)
    if options.table:
        print_table({cell: results[cell] for cell in cells if cell in results})
    violations = sum(bool(broken) for broken in results.values())
    played = sum(broken is not None for broken in results.values())
    print(json.dumps({"cells": len(cells), "played": played, "violations": violations}))
    return 1 if violations else 0


def play_once(player: Player, cells: list[Cell], file: Path | None) -> dict[Cell, list[str] | None]:
    """Play cells, except those that the same code has played, of which the file knows."""
    code = code_digest()
    lines = file.read_text().splitlines() if file and file.exists() else []
    rows = [row for row in map(json.loads, lines) if row["code"] == code]
    known = {(row["scene"], row["place"], row["what"]): row["broken"] for row in rows}
    results: dict[Cell, list[str] | None] = {}
    for cell in cells:
        key = (cell.scene.name, cell.place, cell.what)
        began = time.monotonic()
        results[cell] = broken = known[key] if key in known else player.play(cell)
        seconds = round(time.monotonic() - began, 1)
        if file and key not in known:
            names = dict(zip(("scene", "place", "what"), key, strict=True))
            with file.open("a", encoding="utf-8") as out:
                out.write(json.dumps({"code": code, **names, "broken": broken, "seconds": seconds}) + "\n")
        outcome = "not played" if broken is None else "; ".join(broken) or "ok"
        print(*key, f"{seconds} s", outcome, sep=" | ", file=sys.stderr, flush=True)
    return results


def code_digest() -> str:
    """Return a digest of the package, its presets, this program and the tests' helpers."""
    helpers = {Path(str(module.__file__)) for module in sys.modules.values() if getattr(module, "__file__", None)}
    files = [*(ROOT / "src").rglob("*"), *(ROOT / "configs").glob("*"), *helpers]
    ours = {file.resolve() for file in files if file.is_file() and file.suffix != ".pyc" and ROOT in file.parents}
    return hashlib.sha256(b"".join(file.read_bytes() for file in sorted(ours))).hexdigest()[:16]


def print_table(results: dict[Cell, list[str] | None]) -> None:
    """Print a Markdown table: one row for the places of a command that have the same results."""
    print("| command | where | " + " | ".join(FAULTS) + " |\n| --- | --- |" + " --- |" * len(FAULTS))
    rows: dict[tuple[str, ...], list[str]] = {}
    for scene, place in dict.fromkeys((cell.scene, cell.place) for cell in results):
        marks = [mark(results, Cell(scene, place, what)) for what in FAULTS]
        rows.setdefault((scene.name, *marks), []).append(place)
    for (name, *marks), places in rows.items():
        print(f"| {name} | {', '.join(places)} | " + " | ".join(marks) + " |")


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
    parser.add_argument("--results", type=Path, help="keep the results in this file, and do not play them again")
    options = parser.parse_args()
    names = options.only.split(",") if options.only else [scene.name for scene in SCENES]
    if unknown := set(names) - {scene.name for scene in SCENES}:
        parser.error(f"no such command: {', '.join(sorted(unknown))}")
    if DISK not in os.environ:
        restart_on_small_disk()
    with (
        tempfile.TemporaryDirectory(dir=os.environ.get(DISK)) as place,
        tempfile.TemporaryDirectory() as logs,
    ):
        os.environ |= {LOGS: logs, "OPENAI_API_KEY": "sk-test"}
        sys.exit(play_cells(Path(place), [scene for scene in SCENES if scene.name in names], options))


if __name__ == "__main__":
    main()
