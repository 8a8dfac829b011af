"""Chunks of tokens give what all logits at once give, gradients included, and never hold them
all."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor, nn

from text2grad.rl import advantage, vocabulary
from text2grad.rl.vocabulary import KLKind

COUNT, WIDTH, SIZE = 11, 6, 40


class Drawn:
    """States and heads of a policy and a reference, in float64."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(0)

        def normal(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=generator, dtype=torch.float64)

        self.weight, self.ref_weight = normal(SIZE, WIDTH).requires_grad_(), normal(SIZE, WIDTH)
        self.states, self.ref_states = normal(COUNT, WIDTH).requires_grad_(), normal(COUNT, WIDTH)
        self.ids = torch.randint(0, SIZE, (COUNT,), generator=generator)
        self.weights = [*normal(3, COUNT), torch.zeros(())]
        self.read: list[int] = []

    def head(self, states: Tensor) -> Tensor:
        self.read.append(len(states))
        return states @ self.weight.T

    def lazy_logits(self) -> vocabulary.LazyLogits:
        return vocabulary.LazyLogits(self.head, self.states, SIZE)

    def reference(self) -> vocabulary.LazyLogits:
        return vocabulary.LazyLogits(lambda states: states @ self.ref_weight.T, self.ref_states, SIZE)

    def gradients(self, columns: Iterable[Tensor | None], of: list[Tensor]) -> tuple[Tensor, ...]:
        """Of the columns, each token of each weighed differently."""
        sums = [(w * column).sum() for w, column in zip(self.weights, columns, strict=False) if column is not None]
        return torch.autograd.grad(torch.stack(sums).sum(), of)

    def logits(self) -> tuple[Tensor, Tensor]:
        return (self.states @ self.weight.T)[None], (self.ref_states @ self.ref_weight.T)[None]


def expected_kl(kind: KLKind, drawn: Drawn, temperature: float) -> Tensor:
    logits, ref_logits = drawn.logits()
    if kind == "full":
        return advantage.kl_full(logits, ref_logits, temperature)[0]
    estimator = advantage.kl_k1 if kind == "k1" else advantage.kl_k3
    logp, ref_logp = (advantage.token_logps(x, drawn.ids[None], temperature) for x in (logits, ref_logits))
    return estimator(logp, ref_logp)[0]


KINDS: tuple[KLKind, ...] = ("full", "k1", "k3")


def test_chunks_give_what_all_logits_give() -> None:
    for rows, kind in itertools.product((1, 4, 11, 50), KINDS):
        drawn = Drawn()
        logits, _ = drawn.logits()
        found = vocabulary.score_tokens(
            drawn.lazy_logits(), drawn.ids, 0.7, entropy=True, reference=drawn.reference(), kl=kind, rows=rows
        )
        assert found.entropy is not None and found.kl is not None
        torch.testing.assert_close(found.logp, advantage.token_logps(logits, drawn.ids[None], 0.7)[0])
        torch.testing.assert_close(found.entropy, advantage.entropy(logits, 0.7)[0])
        torch.testing.assert_close(found.kl, expected_kl(kind, drawn, 0.7))
        assert found.ref_logp is not None
        torch.testing.assert_close(
            found.ref_logp, advantage.token_logps(drawn.logits()[1], drawn.ids[None], 0.7)[0]
        )


def test_gradients_of_chunks_are_those_of_the_whole() -> None:
    for rows in (1, 4, 11):
        drawn = Drawn()
        logits, ref_logits = drawn.logits()
        whole = (
            advantage.token_logps(logits, drawn.ids[None])[0],
            advantage.entropy(logits)[0],
            advantage.kl_full(logits, ref_logits)[0],
        )
        found = vocabulary.score_tokens(
            drawn.lazy_logits(), drawn.ids, entropy=True, reference=drawn.reference(), rows=rows
        )
        trained = [drawn.states, drawn.weight]
        for expected, ours in zip(*(drawn.gradients(each, trained) for each in (whole, found)), strict=True):
            assert expected.abs().max() > 0.1
            torch.testing.assert_close(ours, expected)


def test_only_what_is_asked_for_is_computed() -> None:
    found = vocabulary.score_tokens(Drawn().lazy_logits(), Drawn().ids)
    assert found[1:] == (None, None, None)


def test_no_more_rows_than_a_chunk_meet_the_head() -> None:
    drawn = Drawn()
    with torch.no_grad():
        vocabulary.score_tokens(drawn.lazy_logits(), drawn.ids, entropy=True, reference=drawn.reference(), rows=4)
    assert drawn.read == [4, 4, 3]


@contextmanager
def largest_saved(sizes: list[int]) -> Iterator[None]:
    def note(tensor: Tensor) -> Tensor:
        sizes.append(tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        yield


def test_no_logits_wait_for_the_way_back() -> None:
    """What the forward keeps has the size of the states and the weights; one chunk alone keeps its
    logits."""
    drawn, chunked, whole = Drawn(), [0], [0]
    with largest_saved(chunked):
        vocabulary.score_tokens(drawn.lazy_logits(), drawn.ids, rows=4)
    with largest_saved(whole):
        vocabulary.score_tokens(drawn.lazy_logits(), drawn.ids, rows=COUNT)
    assert max(chunked) < 4 * SIZE
    assert max(whole) == COUNT * SIZE


def test_one_chunk_is_computed_once_and_several_again() -> None:
    drawn = Drawn()
    vocabulary.score_tokens(drawn.lazy_logits(), drawn.ids, rows=COUNT).logp.sum().backward()
    assert drawn.read == [COUNT]
    drawn.read.clear()
    vocabulary.score_tokens(drawn.lazy_logits(), drawn.ids, rows=6).logp.sum().backward()
    assert sorted(drawn.read) == [5, 5, 6, 6]


def test_dropout_in_the_head_is_the_same_on_the_way_back() -> None:
    torch.manual_seed(0)
    head = nn.Sequential(nn.Dropout(0.5), nn.Linear(WIDTH, SIZE))
    states = torch.randn(COUNT, WIDTH, requires_grad=True)
    ids = torch.zeros(COUNT, dtype=torch.long)
    torch.manual_seed(1)
    logp = vocabulary.score_tokens(vocabulary.LazyLogits(head, states, SIZE), ids, rows=4).logp
    (gradient,) = torch.autograd.grad(logp.sum(), states)
    torch.manual_seed(1)
    kept = torch.cat([head[0](torch.ones_like(part)) for part in states.split(4)]) != 0
    assert torch.equal(gradient != 0, kept)  # where dropout removed a state there is no gradient


def test_nothing_to_score() -> None:
    drawn = Drawn()
    found = vocabulary.score_tokens(vocabulary.LazyLogits(drawn.head, drawn.states[:0], SIZE), drawn.ids[:0])
    assert found.logp.shape == (0,)


def test_ids_and_states_must_be_as_many() -> None:
    drawn = Drawn()
    with pytest.raises(ValueError, match="10 ids for 11 states"):
        vocabulary.score_tokens(drawn.lazy_logits(), drawn.ids[:-1])
    with pytest.raises(ValueError, match="11 ids for 11, 5 states"):
        vocabulary.score_tokens(
            drawn.lazy_logits(), drawn.ids, reference=drawn.reference()._replace(states=drawn.ref_states[:5])
        )


def test_a_chunk_is_as_large_as_the_device_likes() -> None:
    drawn = Drawn()
    assert (
        vocabulary.LazyLogits(drawn.head, drawn.states, 128_256).chunk_rows() == vocabulary.CHUNK["cpu"] // 128_256
    )
    assert vocabulary.LazyLogits(drawn.head, drawn.states, 2**30).chunk_rows() == 1


def test_a_linear_head_gives_the_same_and_keeps_less() -> None:
    for rows, temperature in itertools.product([4, COUNT], [1.0, 0.7]):
        refuse_another_linear_head(rows, temperature)


def refuse_another_linear_head(rows: int, temperature: float) -> None:
    drawn = Drawn()
    frozen = drawn.weight.detach()
    plain = vocabulary.LazyLogits(lambda states: states @ frozen.T, drawn.states, SIZE)
    expected = vocabulary.score_tokens(plain, drawn.ids, temperature, rows=rows).logp
    found = vocabulary.score_tokens(plain._replace(weight=frozen), drawn.ids, temperature, rows=rows).logp
    assert type(found.grad_fn).__name__ == "_LinearLogpsBackward"
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    pair = [drawn.gradients([each, None, None], [drawn.states])[0] for each in (found, expected)]
    torch.testing.assert_close(pair[0], pair[1], rtol=1e-12, atol=1e-12)


def test_a_trained_linear_head_has_its_gradient() -> None:
    drawn = Drawn()
    view = drawn.lazy_logits()._replace(weight=drawn.weight)
    scores = vocabulary.score_tokens(view, drawn.ids)
    assert drawn.gradients([scores.logp, None, None], [drawn.weight])[0].abs().sum() > 0
