"""Real processes for a test: forked from a server that has imported everything once, joined over gloo."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import socket
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

PATIENCE = 300
"""Seconds after which processes that wait for each other are ended, and the test fails."""


def run_in(count: int, work: Callable[..., Any], folder: Path, *words: Any) -> list[Any]:
    """What `work(*words)` gives in each of `count` processes, in the environment of torchrun.

    An exception is a result too: (its type's name, its text). A process that only dies gives None.
    """
    context = multiprocessing.get_context("forkserver")
    _start_server()
    folder.mkdir(parents=True, exist_ok=True)
    port = _free_port()
    places = [folder / f"result-{rank}" for rank in range(count)]
    running = [
        context.Process(target=_begin, args=(rank, count, port, work, words, places[rank])) for rank in range(count)
    ]
    for place in places:
        place.unlink(missing_ok=True)
    for process in running:
        process.start()
    for process in running:
        process.join(PATIENCE)
    stuck = [rank for rank, process in enumerate(running) if process.is_alive()]
    for rank in stuck:
        running[rank].kill()
    assert not stuck, f"processes {stuck} wait for ever"
    return [pickle.loads(place.read_bytes()) if place.exists() else None for place in places]


def _start_server() -> None:
    """The server imports the scenes, if it finds them: it knows of no path but PYTHONPATH's."""
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    forkserver.set_forkserver_preload(["scenes"])
    forkserver.ensure_running()
    if before is None:
        del os.environ["PYTHONPATH"]
    else:
        os.environ["PYTHONPATH"] = before


def _free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


def _begin(rank: int, count: int, port: int, work: Callable[..., Any], words: Sequence[Any], place: Path) -> None:
    names = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": count, "LOCAL_WORLD_SIZE": count, "MASTER_PORT": port}
    os.environ.update({name: str(value) for name, value in names.items()}, MASTER_ADDR="127.0.0.1")
    try:
        result = work(*words)
    except BaseException as error:
        traceback.print_exc(file=sys.stderr)
        result = (type(error).__name__, str(error))
    print(f"process {rank}: {time.process_time():.1f} CPU seconds", file=sys.stderr)
    place.write_bytes(pickle.dumps(result))
