"""Compare HTTP clients for a judge that answers after a second, with 64 requests in flight.

A stub server in a separate process answers every request after `--delay` seconds, independent of
load. Each client sends `--requests` requests of 4 kB, `--flight` at a time, in a separate process,
and reads the text and usage of every answer; the ideal time is requests / flight * delay. The
clients alternate for `--rounds` rounds, so that other load on the machine affects all of them
equally; the figures are medians.

    OMP_NUM_THREADS=1 python benchmarks/client.py [--rounds 5] [--delay 1] [--clients ours sdk ...]

The last line of stdout is one JSON object. For every client: `share` (of the ideal rate),
`worst_share`, `cpu_ms` (of the client's process, per request) and `import_seconds` (CPU, of the
client's library). Clients: `ours` (`Endpoint.ask`, the one that is used), `sdk` (`OpenAI` in
threads), `sdk_async` (`AsyncOpenAI` in one event loop), `sdk_raw` and `sdk_raw_async` (the same
without typed answers), `httpx` and `httpx_async` (the library below the SDK), all with kept
connections, no retries and no HTTP/2. `load`: of the last minute, at the start.
Target: `share` of `ours` at least 0.95.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from statistics import median
from typing import Any

from annotate import serve

MESSAGES = [{"role": "user", "content": "x" * 4000}]
BODY = json.dumps({"model": "judge", "messages": MESSAGES, "max_tokens": 512, "temperature": 0.0})
TIMEOUT = 30.0
PATH = "/chat/completions"
HEADERS = {"Content-Type": "application/json", "Authorization": "Bearer none"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=640)
    parser.add_argument("--flight", type=int, default=64, help="requests open at once")
    parser.add_argument("--delay", type=float, default=1.0, help="seconds until the stub answers")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--clients", nargs="+", default=[*THREADED, *ASYNCHRONOUS])
    parser.add_argument("--serve", action="store_true", help="be the stub server")
    parser.add_argument("--url", help="be one client of this server")
    options = parser.parse_args()
    if options.serve:
        asyncio.run(serve(options.delay))
        return
    if options.url:
        print(json.dumps(run(options.clients[0], options.url, options.requests, options.flight)))
        return
    load = os.getloadavg()[0]
    command = [sys.executable, __file__, "--delay", str(options.delay)]
    server = subprocess.Popen([*command, "--serve"], stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout
        url = f"http://127.0.0.1:{int(server.stdout.readline())}/v1"
        command += ["--requests", str(options.requests), "--flight", str(options.flight), "--url", url]
        results: dict[str, list[dict[str, float]]] = {name: [] for name in options.clients}
        for number in range(options.rounds):
            for name, rounds in results.items():
                done = subprocess.run([*command, "--clients", name], capture_output=True, text=True, check=True)
                rounds.append(json.loads(done.stdout))
                print(number, name, rounds[-1], file=sys.stderr)
    finally:
        server.kill()
    ideal = options.requests / options.flight * options.delay
    print(json.dumps({name: figures(rounds, ideal) for name, rounds in results.items()} | {"load": load}))


def figures(rounds: list[dict[str, float]], ideal: float) -> dict[str, float]:
    """Medians over the rounds of one client."""
    shares = [ideal / run["seconds"] for run in rounds]
    return {
        "share": round(median(shares), 3),
        "worst_share": round(min(shares), 3),
        "cpu_ms": round(median(run["cpu_ms"] for run in rounds), 2),
        "import_seconds": round(median(run["import_seconds"] for run in rounds), 2),
    }


def run(name: str, url: str, requests: int, flight: int) -> dict[str, float]:
    """Send all requests with one client, after one that warms it up."""
    start = time.process_time()
    if name in THREADED:
        ask = THREADED[name](url, flight)
        imported = time.process_time() - start
        ask()
        clocks = time.perf_counter(), time.process_time()
        with ThreadPoolExecutor(flight) as pool:
            answers = list(pool.map(lambda _: ask(), range(requests)))
    else:
        imported, clocks, answers = asyncio.run(run_async(name, url, requests, flight))
    seconds, cpu = time.perf_counter() - clocks[0], time.process_time() - clocks[1]
    assert len(answers) == requests and all(text and tokens == 40 for text, tokens in answers)
    return {"seconds": seconds, "cpu_ms": 1000 * cpu / requests, "import_seconds": imported}


Answer = tuple[str, float]
"""The text, and the tokens that it took."""


async def run_async(
    name: str, url: str, requests: int, flight: int
) -> tuple[float, tuple[float, float], list[Answer]]:
    """CPU seconds of the import, the clocks at the start, and the answers."""
    start = time.process_time()
    ask = ASYNCHRONOUS[name](url, flight)
    imported = time.process_time() - start
    await ask()
    clocks = time.perf_counter(), time.process_time()
    pending, answers = iter(range(requests)), []

    async def work() -> None:
        for _ in pending:
            answers.append(await ask())

    await asyncio.gather(*(work() for _ in range(flight)))
    return imported, clocks, answers


def content_of(body: Any) -> Answer:
    return body["choices"][0]["message"]["content"], body["usage"]["completion_tokens"]


def ours(url: str, flight: int) -> Callable[[], Answer]:
    from text2grad.chat.endpoint import Endpoint
    from text2grad.chat.reply import Reply

    endpoint = Endpoint(url)

    def ask() -> Answer:
        reply = endpoint.ask(BODY)
        assert isinstance(reply, Reply), reply
        return reply.text, reply.usage["completion_tokens"]

    return ask


def sdk_options(url: str) -> dict[str, Any]:
    return {"base_url": url, "api_key": "none", "max_retries": 0, "timeout": TIMEOUT}


def sdk(url: str, flight: int) -> Callable[[], Answer]:
    import openai

    client = openai.OpenAI(**sdk_options(url))

    def ask() -> Answer:
        reply = client.chat.completions.create(model="judge", messages=MESSAGES, max_tokens=512, temperature=0.0)
        return str(reply.choices[0].message.content), reply.usage.completion_tokens

    return ask


def sdk_async(url: str, flight: int) -> Callable[[], Awaitable[Answer]]:
    import openai

    client = openai.AsyncOpenAI(**sdk_options(url))

    async def ask() -> Answer:
        reply = await client.chat.completions.create(
            model="judge", messages=MESSAGES, max_tokens=512, temperature=0.0
        )
        return str(reply.choices[0].message.content), reply.usage.completion_tokens

    return ask


def sdk_raw(url: str, flight: int) -> Callable[[], Answer]:
    import openai
    from httpx2 import Response

    client = openai.OpenAI(**sdk_options(url))

    def ask() -> Answer:
        return content_of(client.post(PATH, cast_to=Response, content=BODY.encode()).json())

    return ask


def sdk_raw_async(url: str, flight: int) -> Callable[[], Awaitable[Answer]]:
    import openai
    from httpx2 import Response

    client = openai.AsyncOpenAI(**sdk_options(url))

    async def ask() -> Answer:
        return content_of((await client.post(PATH, cast_to=Response, content=BODY.encode())).json())

    return ask


def httpx(url: str, flight: int) -> Callable[[], Answer]:
    import httpx2

    limits = httpx2.Limits(max_connections=flight, max_keepalive_connections=flight)
    client = httpx2.Client(timeout=TIMEOUT, limits=limits, headers=HEADERS)
    return lambda: content_of(client.post(url + PATH, content=BODY).json())


def httpx_async(url: str, flight: int) -> Callable[[], Awaitable[Answer]]:
    import httpx2

    limits = httpx2.Limits(max_connections=flight, max_keepalive_connections=flight)
    client = httpx2.AsyncClient(timeout=TIMEOUT, limits=limits, headers=HEADERS)

    async def ask() -> Answer:
        return content_of((await client.post(url + PATH, content=BODY)).json())

    return ask


THREADED = {"ours": ours, "sdk": sdk, "sdk_raw": sdk_raw, "httpx": httpx}
ASYNCHRONOUS = {"sdk_async": sdk_async, "sdk_raw_async": sdk_raw_async, "httpx_async": httpx_async}


if __name__ == "__main__":
    main()
