"""Measure the rate and memory of `annotate` with a slow server.

A stub server in a separate process answers every request after `--delay` seconds, independent of
load. 2,000 responses are judged with 64 requests in flight; the ideal rate is 64 / 0.05 s = 1,280
per second. The clock runs from the first question to the last answer in the journal, and includes
reading items, building prompts, hashing, writing and parsing. Memory is the peak of the resident
set after this job, and after a second job of 10,000 in the same process. Two idle cores are needed,
one per process. First, plain sockets that repeat the same bytes measure the limit of the stub.

    OMP_NUM_THREADS=1 python benchmarks/annotate.py [--records 2000] [--flight 64] [--delay 0.05]

The last line of stdout is one JSON object: records_per_second, ideal_fraction, peak_rss_mb,
grown_mb (from the first job's peak to the second's), cpu_ms (of this process, per record),
stub_fraction (of the ideal, by plain sockets), load (of the last minute, at the start).
Targets: ideal_fraction at least 0.9 with --delay 1, the time of real judges; grown_mb of about the
index, 200 bytes per record. With a delay of 50 ms processor time is the limit: at 1.5 ms per record
one core judges about 600 per second.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import selectors
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

from text2grad.chat import EndpointSettings, OpenAIChat
from text2grad.chat.questions import Question
from text2grad.critics.prompted import Pair, PromptedCritic
from text2grad.feedback import Example, Message, Source
from text2grad.tasks.base import read_prompt

DELAY = 0.05
Z = (
    '{"critique": "Plain, and \\"so on\\".", "good_spans": ["long ago"], "poor_spans": [],'
    ' "omissions": [], "score": 0.5}'
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=2000)
    parser.add_argument("--flight", type=int, default=64, help="requests open at once")
    parser.add_argument("--delay", type=float, default=DELAY, help="seconds until the stub answers")
    parser.add_argument("--serve", action="store_true", help="be the stub server")
    options = parser.parse_args()
    if options.serve:
        asyncio.run(serve(options.delay))
        return
    command = [sys.executable, __file__, "--serve", "--delay", str(options.delay)]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout
        url = f"http://127.0.0.1:{int(server.stdout.readline())}/v1"
        load = os.getloadavg()[0]
        bare = bare_rate(url, options.records, options.flight)
        began = time.process_time()
        seconds = job(url, 0, options.records, options.flight)
        cpu = time.process_time() - began
        first = peak_rss_mb()
        more = 5 * options.records
        job(url, options.records, more, options.flight)
        rate = options.records / seconds
        print(f"{options.records} records in {seconds:.2f} s; then {more} more", file=sys.stderr)
        result = {
            "records_per_second": round(rate, 1),
            "ideal_fraction": round(rate * options.delay / options.flight, 4),
            "peak_rss_mb": round(peak_rss_mb(), 1),
            "grown_mb": round(peak_rss_mb() - first, 1),
            "cpu_ms": round(1000 * cpu / options.records, 3),
            "stub_fraction": round(bare * options.delay / options.flight, 4),
            "load": round(load, 2),
        }
        print(json.dumps(result))
    finally:
        server.kill()


def job(url: str, first: int, count: int, flight: int) -> float:
    """Judge `count` responses, numbered from `first`; return the seconds."""

    settings = EndpointSettings(model="judge", base_url=url, max_tokens=512, concurrency=flight)
    source = Source(kind="llm", model="judge", prompt_version="qa")
    with tempfile.TemporaryDirectory() as folder, OpenAIChat(settings, Path(folder) / "journal") as chat:
        critic = PromptedCritic(chat, read_prompt("qa"), source, annotator=True)

        def questions() -> Iterator[Question]:
            return (critic.question(*pair(number)) for number in range(first, first + count))

        start = time.perf_counter()
        chat.settle(questions(), critic.verdict)
        seconds = time.perf_counter() - start
        assert chat.tally(questions())["ok"] == count
    return seconds


def bare_rate(url: str, count: int, flight: int) -> float:
    """Return answers per second of one thread with `flight` sockets and a constant request."""
    address = urlsplit(url)
    body = json.dumps({"model": "judge", "messages": [{"role": "user", "content": "x" * 4000}]})
    request = f"POST /v1/chat/completions HTTP/1.1\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()
    selector, peers = selectors.DefaultSelector(), []
    for _ in range(flight):
        peers.append(socket.create_connection((str(address.hostname), int(address.port or 0))))
        peers[-1].setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        selector.register(peers[-1], selectors.EVENT_READ, peers[-1])
    start, sent, completed, ready = time.perf_counter(), 0, 0, peers
    while completed < count:
        for peer in ready[: count - sent]:
            peer.sendall(request)
            sent += 1
        ready = [key.data for key, _ in selector.select()]
        for peer in ready:
            assert peer.recv(1 << 16) == ANSWER
        completed += len(ready)
    seconds = time.perf_counter() - start
    for peer in peers:
        peer.close()
    return count / seconds


def pair(number: int) -> Pair:
    """Return a question of 900 characters and an answer of 300, all different."""
    prompt = Message(role="user", content=f"What is number {number}? " + "Here is some context. " * 40)
    return Example(id=str(number), prompt=(prompt,)), f"It was {number}, long ago. " + "More words of it. " * 15


def peak_rss_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


class Stub(asyncio.Protocol):
    """A minimal HTTP server."""

    def __init__(self, delay: float) -> None:
        self.delay, self.waiting = delay, b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.waiting += data
        head, separator, remaining = self.waiting.partition(b"\r\n\r\n")
        if separator:
            length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
            if len(remaining) >= length:
                self.waiting = remaining[length:]
                asyncio.get_running_loop().call_later(self.delay, self.transport.write, ANSWER)


def completion() -> bytes:
    message = {"role": "assistant", "content": Z}
    body = {
        "id": "1",
        "object": "chat.completion",
        "created": 0,
        "model": "judge",
        "choices": [{"index": 0, "finish_reason": "stop", "message": message}],
        "usage": {"prompt_tokens": 700, "completion_tokens": 40, "total_tokens": 740},
    }
    data = json.dumps(body).encode()
    head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
    return head.encode() + data


ANSWER = completion()


async def serve(delay: float) -> None:
    """Answer every request after `delay` seconds; the port is printed."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Stub(delay), "127.0.0.1", 0, backlog=512)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    main()
