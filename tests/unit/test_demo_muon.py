"""Muon against PyTorch's own optimizers, and against the singular value decomposition."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from transformers import LlamaForCausalLM

from text2grad.demo_muon import Muon, muon, orthogonalise


def made(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("shape", [(3, 16, 16), (2, 48, 16), (2, 16, 48)])
def test_an_update_keeps_its_singular_vectors_and_loses_its_singular_values(shape: tuple[int, ...]) -> None:
    given = made(*shape)
    found = orthogonalise(given)
    values = torch.linalg.svdvals(found)
    assert float(values.min()) > 0.6 and float(values.max()) < 1.3
    left, _, right = torch.linalg.svd(given, full_matrices=False)
    mixed = left.transpose(1, 2) @ found @ right.transpose(1, 2)
    off = mixed - torch.diag_embed(mixed.diagonal(dim1=1, dim2=2))
    assert float(off.abs().max()) < 1e-3, "the vectors of the gradient are the vectors of the update"


def test_matrices_are_updated_as_by_pytorchs_muon() -> None:
    shapes = [(16, 16), (48, 16), (16, 16), (16, 48)]
    ours = [nn.Parameter(made(*shape, seed=n)) for n, shape in enumerate(shapes)]
    theirs = copy.deepcopy(ours)
    options = {"lr": 0.02, "weight_decay": 0.1}
    optimizers = (
        Muon(ours, [], **options),
        torch.optim.Muon(theirs, momentum=0.95, adjust_lr_fn="match_rms_adamw", **options),
    )
    for step in range(4):
        for n, (a, b) in enumerate(zip(ours, theirs, strict=True)):
            a.grad = made(*a.shape, seed=100 * step + n)
            b.grad = a.grad.clone()
        for optimizer in optimizers:
            optimizer.step()
    for n, (a, b) in enumerate(zip(ours, theirs, strict=True)):
        moved = (b.detach() - made(*b.shape, seed=n)).norm()
        assert float((a - b).norm().detach() / moved) < 0.02, "theirs iterates in bfloat16"


def test_other_weights_are_updated_as_by_adamw() -> None:
    ours, theirs = nn.Parameter(made(7)), nn.Parameter(made(7))
    optimizers = (
        Muon([], [ours], lr=0.05, weight_decay=0.1),
        torch.optim.AdamW([theirs], lr=0.05, weight_decay=0.1),
    )
    for step in range(5):
        ours.grad, theirs.grad = made(7, seed=step), made(7, seed=step)
        for optimizer in optimizers:
            optimizer.step()
    torch.testing.assert_close(ours, theirs)


def test_embeddings_and_norms_use_adamw(tiny_llama: LlamaForCausalLM) -> None:
    model = copy.deepcopy(tiny_llama)
    optimizer = muon(model, lr=1e-3, weight_decay=0.0)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    by = {group["by"]: [names[id(p)] for p in group["params"]] for group in optimizer.param_groups}
    assert all("proj" in name for name in by["muon"]) and len(by["muon"]) == 2 * 7
    assert all("embed" in name or "norm" in name or "lm_head" in name for name in by["adamw"])
    assert sum(map(len, by.values())) == len(names)


def test_its_state_is_saved_and_loaded() -> None:
    def run(stop: int | None) -> nn.Parameter:
        parameter = nn.Parameter(made(8, 4))
        bias = nn.Parameter(made(4))
        optimizer = Muon([parameter], [bias], lr=0.1)
        for step in range(6):
            if step == stop:
                state = copy.deepcopy(optimizer.state_dict())
                optimizer = Muon([parameter], [bias], lr=0.1)
                optimizer.load_state_dict(state)
            parameter.grad, bias.grad = made(8, 4, seed=step), made(4, seed=step)
            optimizer.step()
        return parameter

    assert torch.equal(run(None), run(3))
