"""An array's blocks as pieces, and hashes of prompts."""

from __future__ import annotations

import ctypes
import itertools

import numpy as np
import pytest
import torch

from kvtide.blocks import PIECES_MAX, Piece, block_hashes, pieces


def held(parts: list[Piece], block: int) -> bytes:
    """Return a block's bytes, piece by piece."""
    return b"".join(ctypes.string_at(piece.base + block * piece.stride, piece.nbytes) for piece in parts)


@pytest.mark.parametrize("order", list(itertools.permutations(range(4))))
@pytest.mark.parametrize("block_dim", [0, 1, 2, -1])
def test_pieces_are_a_block_in_the_order_of_memory(order: tuple[int, ...], block_dim: int) -> None:
    shape = (3, 5, 2, 4)
    array = np.arange(120, dtype=np.uint16).reshape(shape).transpose(order)
    parts = pieces(array, plane=3, block_dim=block_dim, member=2)
    assert {(piece.plane, piece.member) for piece in parts} == {(3, 2)}
    assert pieces(torch.from_numpy(array), plane=3, block_dim=block_dim, member=2) == parts
    for block in range(array.shape[block_dim]):
        # Elements are numbered in memory order.
        numbers = np.frombuffer(held(parts, block), np.uint16)
        assert list(numbers) == sorted(array.take(block, block_dim).ravel())
    # The fewest possible runs.
    numbers = np.frombuffer(held(parts, 0), np.uint16).astype(int)
    assert len(parts) == 1 + int((np.diff(numbers) != 1).sum())


def test_layouts_of_engines() -> None:
    apart = np.zeros((2, 100, 16, 8, 64), np.float16)  # K and V, then blocks
    assert [piece.nbytes for piece in pieces(apart, plane=0, block_dim=1)] == [16 * 8 * 64 * 2] * 2
    together = np.zeros((100, 2, 16, 8, 64), np.float16)
    assert [piece.nbytes for piece in pieces(together, plane=0, block_dim=0)] == [2 * 16 * 8 * 64 * 2]
    part = np.zeros((100, 16, 8, 128), np.float16)[..., :64]
    assert len(pieces(part, plane=0, block_dim=0)) == 16 * 8
    one = np.zeros((1, 16, 8), np.uint8)
    assert pieces(one, plane=0, block_dim=0)[0][3:] == (128, 128)


def test_what_is_no_block_is_refused() -> None:
    array = np.zeros((4, 8), np.uint8)
    wrong: list[tuple[object, int, str]] = [
        (array, 2, "dimension 2 of 2"),
        (array[:0], 0, "no blocks"),
        (array[:, ::-1], 0, "run backwards"),
        (np.lib.stride_tricks.as_strided(array, (4, 8), (8, 0)), 0, "overlap"),
        (np.lib.stride_tricks.as_strided(array, (4, 3, 3), (8, 2, 1)), 0, "overlap"),
        (np.zeros((2, PIECES_MAX + 1, 2), np.uint8)[..., 0], 0, f"consists of {PIECES_MAX + 1} runs of 1 bytes"),
        (np.frombuffer(bytes(8), np.uint8), 0, "read-only"),
    ]
    for given, block_dim, says in wrong:
        with pytest.raises(ValueError, match=says):
            pieces(given, plane=0, block_dim=block_dim)
    with pytest.raises(TypeError, match="list is neither"):
        pieces([[0]], plane=0, block_dim=0)
    with pytest.raises(ValueError, match="on meta"):
        pieces(torch.zeros(2, 2, device="meta"), plane=0, block_dim=0)


def test_hashes_are_of_all_before() -> None:
    tokens = list(range(100))
    chain = block_hashes(tokens, 16)
    assert len(chain) == len(set(chain)) == 6 and all(len(one) == 16 for one in chain)
    assert block_hashes(tokens[:50], 16) == chain[:3]
    assert block_hashes(tokens[48:], 16, parent=chain[2]) == chain[3:]
    changed = block_hashes([7, *tokens[1:]], 16)
    assert not set(changed) & set(chain)
    assert not set(block_hashes(tokens, 16, salt=b"somebody")) & set(chain)
    image = block_hashes(tokens, 16, extra=[b"", b"image"])
    assert image[0] == chain[0] and not set(image[1:]) & set(chain)
    assert block_hashes([], 16) == []
    with pytest.raises(ValueError, match="salt: the hash of `parent` covers its salt"):
        block_hashes(tokens[48:], 16, salt=b"somebody", parent=chain[2])
    tails = [block_hashes(tokens[48:], 16, extra=[salt], parent=chain[2]) for salt in (b"", b"user a", b"user b")]
    assert len({tail[-1] for tail in tails}) == 3, "a salt in `extra` isolates what follows"
    for wrong in (-1, 1 << 64):
        with pytest.raises(ValueError, match="from token 16 on"):
            block_hashes([*range(16), *range(15), wrong], 16)
    with pytest.raises(ValueError, match="parent: 3 bytes"):
        block_hashes(tokens, 16, parent=b"abc")
    with pytest.raises(ValueError, match="page_tokens"):
        block_hashes(tokens, 0)
