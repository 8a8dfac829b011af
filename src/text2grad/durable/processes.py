"""Processes that train one policy together: what each takes, what they add up, and how they agree on failure.

Every process runs the same loop over the same data. Each samples, judges and scores its share of a batch; then all
gather the whole batch, so that denominators, normalisation and metrics are those of one process. Each takes its
share of the passes of an update, and the gradients are added up. The first process writes.

Where one process may fail alone (a critic, a full disk, no memory) the work stands in `Ranks.barrier`: afterwards
either all go on or all stop, at the same place. Only the environment variables of `torchrun` are read, which
`accelerate launch` sets too.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import NoReturn, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from text2grad.errors import UserError
from text2grad.policy.model import Policy
from text2grad.policy.shard import shard
from text2grad.signals import Stopped, held

T = TypeVar("T")

PATIENCE = timedelta(hours=2)
"""How long a process waits for another's critic. One that has died is noticed at once."""
BUCKET = 64 * 2**20
"""Bytes of gradients that are added up in one message."""
GONE = ("gloo", "NCCL", "Connection closed", "Connection reset", "Broken pipe")


class PeerLost(UserError):
    """Another process of the run died, or cannot be reached."""


class Ranks:
    """This process among `count` that train together, and their collective operations.

    All processes must call a collective operation (those after `passes`), in the same order; with a count of 1 they
    cost nothing. `sharded`: each process holds a part of the weights, else each holds all of them. `by_row`: the
    random numbers of a response belong to its place in the batch, as they always do with several processes.
    `broken`: a process is lost, so nothing may wait for the others any more.
    """

    def __init__(self, rank: int = 0, count: int = 1, sharded: bool = False, by_row: bool = False) -> None:
        self.rank = rank
        self.count = count
        self.sharded = sharded and count > 1
        self.by_row = by_row or count > 1
        self.broken = False

    @property
    def first(self) -> bool:
        """Whether this is the process that writes and prints."""
        return self.rank == 0

    def share(self, length: int) -> slice:
        """This process's rows of `length`: in the order of the processes, equal in number but for one."""
        return slice(length * self.rank // self.count, length * (self.rank + 1) // self.count)

    def passes(self, length: int, size: int) -> int:
        """Passes of at most `size` rows that the largest share of `length` takes: as many as all must make."""
        return math.ceil(math.ceil(length / self.count) / size)

    def all_gather(self, value: T) -> list[T]:
        """The value of every process, in their order."""
        if self.count == 1:
            return [value]
        values: list[T | None] = [None] * self.count
        with self._heard():
            dist.all_gather_object(values, value)
        return values  # type: ignore[return-value]

    def all_gather_rows(self, columns: Sequence[Tensor]) -> list[Tensor]:
        """Columns with the rows of all processes, one share after the other."""
        if self.count == 1:
            return list(columns)
        shares = self.all_gather([column.cpu() for column in columns])
        device = columns[0].device
        return [torch.cat(parts).to(device) for parts in zip(*shares, strict=True)]

    def broadcast(self, value: T) -> T:
        """The value of the first process."""
        return self.all_gather(value if self.first else None)[0]  # type: ignore[return-value]

    def broadcast_weights(self, policy: Policy) -> None:
        """Give all processes the first one's trained weights, and split them where they are `sharded`.

        Optimizers must be made afterwards.
        """
        if self.count == 1:
            return
        with self._heard():
            for parameter in policy.trained().values():
                dist.broadcast(parameter.data, 0)
        if self.sharded:
            shard(policy, self.count)

    def all_reduce(self, values: Mapping[str, float]) -> dict[str, float]:
        """Sums over the processes, by name."""
        if self.count == 1:
            return dict(values)
        sums = torch.tensor(list(values.values()), dtype=torch.float64)
        with self._heard():
            dist.all_reduce(sums)
        return dict(zip(values, sums.tolist(), strict=True))

    def all_reduce_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Add up the gradients of all processes; split weights are left alone, the passes did it already.

        A parameter that only some processes reached (an expert of a mixture) has a gradient in all of them then.
        """
        if self.count == 1 or self.sharded:
            return
        parameters = list(parameters)
        flags = self.all_gather([parameter.grad is not None for parameter in parameters])
        gradients: list[Tensor] = []
        for parameter, *reached in zip(parameters, *flags, strict=True):
            if any(reached):
                parameter.grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
                gradients.append(parameter.grad)
        for bucket in _buckets(gradients):
            flat = torch.cat([gradient.flatten() for gradient in bucket])
            with self._heard():
                dist.all_reduce(flat)
            sums = torch.split(flat, [gradient.numel() for gradient in bucket])
            for gradient, total in zip(bucket, sums, strict=True):
                gradient.copy_(total.view_as(gradient))

    @contextmanager
    def barrier(self) -> Iterator[None]:
        """Each process works alone in here and may fail; at the end all meet, and all fail if one did.

        Raises:
            Stopped: a signal asked one of them to stop.
            UserError, FloatingPointError: another process failed, and how; of one kind in all processes.
        """
        if self.count == 1:
            yield
            return
        failure: Exception | Stopped | None = None
        try:
            yield
        except (Exception, Stopped) as error:
            failure = error
        if self.broken:
            raise failure or PeerLost("this run has lost a process")
        self._agree(failure)

    @contextmanager
    def passing(self) -> Iterator[None]:
        """Forward and backward passes: a `barrier`, but for split weights, whose passes are collective themselves.

        A process that fails there cannot tell the others: it must end, and they notice that it is gone. A signal
        waits there.
        """
        if not self.sharded:
            with self.barrier():
                yield
            return
        try:
            with held():
                yield
        except Exception:
            self.broken = True
            raise

    def _agree(self, failure: Exception | Stopped | None) -> None:
        signal = failure.signal if isinstance(failure, Stopped) else 0
        numbers = isinstance(failure, FloatingPointError)
        words = str(failure) if isinstance(failure, UserError | FloatingPointError) else ""
        told = (numbers, words or f"{type(failure).__name__}: {failure}")
        signals, said = zip(*self.all_gather((signal, None if failure is None else told)), strict=True)
        if any(signals):
            raise Stopped(max(signals))
        failed = [rank for rank, each in enumerate(said) if each is not None]
        if not failed:
            return
        if failure is not None and failed[0] == self.rank:
            raise failure
        numbers, words = said[failed[0]] or (False, "")
        message = f"process {failed[0]} of {self.count}: {words}"
        raise FloatingPointError(message) if numbers else UserError(message)

    @contextmanager
    def _heard(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            self.broken = True
            if is_lost(error):
                lost(error)
            raise


ALONE = Ranks()


def is_lost(error: BaseException | None) -> bool:
    """Whether an error says that another process cannot be reached."""
    told = isinstance(error, RuntimeError) and any(each in str(error) for each in GONE)
    return told or isinstance(error, dist.DistError)


def lost(error: BaseException) -> NoReturn:
    """A lost process as one line."""
    raise PeerLost(
        f"another process of this run has ended ({' '.join(str(error).split())[:120]})",
        "its own words say why; the same command resumes from the last checkpoint",
    ) from error


def _buckets(gradients: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """Gradients of one type, at most `BUCKET` bytes at a time."""
    buckets: dict[torch.dtype, list[Tensor]] = {gradient.dtype: [] for gradient in gradients}
    for dtype, bucket in buckets.items():
        for gradient in (each for each in gradients if each.dtype == dtype):
            if bucket and sum(each.nbytes for each in bucket) + gradient.nbytes > BUCKET:
                yield bucket.copy()
                bucket.clear()
            bucket.append(gradient)
        yield bucket
