"""A critic behind HTTP in this process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread

from text2grad.critics.service import CriticService, client_address, make_server, open_socket
from text2grad.feedback import Critic


@contextmanager
def served(critic: Critic, token: str = "", port: int = 0) -> Iterator[str]:
    """The address of a server that holds the critic."""
    listener = open_socket("127.0.0.1", port)
    server = make_server(CriticService(critic, token))
    thread = Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    try:
        yield client_address(listener)
    finally:
        server.should_exit = True
        thread.join(20)
        assert not thread.is_alive()
