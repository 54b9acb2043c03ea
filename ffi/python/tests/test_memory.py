"""Tensors on kvtide's memory: they show it without a copy, and keep it alive."""

from __future__ import annotations

import gc

import pytest
import torch
from conftest import PAGE_BYTES, PAGE_TOKENS, PLANES, space

import kvtide
from kvtide import errors
from kvtide.daemon import PrivateDaemon
from kvtide.torch import KvShape, frames, pages, table

SHAPE = KvShape(kv_heads=2, page_tokens=PAGE_TOKENS, head_dim=32, dtype=torch.float16)


def test_what_is_written_by_tensor_is_read_by_lane_and_the_other_way(session: kvtide.Session) -> None:
    assert SHAPE.page_bytes == PAGE_BYTES and SHAPE.plane() == kvtide.Plane(PAGE_BYTES)
    channel, lane = session.channel(), session.lane()
    entries, shown = table(lane), pages(session, 1, SHAPE)
    assert entries.shape == (session.layout.blocks_max, PLANES) and entries.dtype == torch.int32
    assert shown.shape == (64, 2, 2, PAGE_TOKENS, 32)
    assert int(entries.abs().sum()) == 0
    seq = channel.create_seq()
    channel.reserve(seq, 2 * PAGE_TOKENS)
    lane.begin([(seq, 2 * PAGE_TOKENS)])
    block = session.seq_blocks(seq)[1]
    frame = int(entries[block, 1]) - 1
    assert frame == lane.pte(block, 1)
    at = frame - session.layout.planes[1].first_frame
    shown[at] = torch.arange(PAGE_BYTES // 2).view(shown[at].shape).to(torch.float16)
    assert lane.page(seq, 1, 1) == shown[at].contiguous().numpy().tobytes()
    lane.write_page(seq, 1, 1, b"\x00\x3c", PAGE_BYTES - 2)  # 1.0
    assert float(shown[at, 1, 1, PAGE_TOKENS - 1, 31]) == 1.0


def test_tensors_keep_the_memory(daemon: PrivateDaemon) -> None:
    session = kvtide.attach(daemon.socket, space("keeps"), [8])
    lane = session.lane()
    bytes_, entries = frames(session, 0), table(lane)
    address = bytes_.data_ptr()
    bytes_.fill_(7)
    lane.close()
    with pytest.raises(errors.WrongState, match="take lane 0"):
        session.lane()  # a tensor still refers to its table
    session.detach()
    del session, lane
    gc.collect()
    mapped = [line.split("-") for line in open("/proc/self/maps").read().split("\n") if line]
    assert any(int(a, 16) <= address < int(b.split()[0], 16) for a, b, *_ in mapped)
    assert bool((bytes_ == 7).all()) and int(entries.sum()) == 0
    view = bytes_[3, 5:9]
    del bytes_, entries
    gc.collect()
    assert view.tolist() == [7, 7, 7, 7]
    del view
    gc.collect()
    mapped = [line.split("-") for line in open("/proc/self/maps").read().split("\n") if line]
    assert not any(int(a, 16) <= address < int(b.split()[0], 16) for a, b, *_ in mapped)


def test_a_lane_comes_back_when_its_last_tensor_is_gone(session: kvtide.Session) -> None:
    lane = session.lane()
    entries = table(lane)
    lane.close()
    del entries
    gc.collect()
    session.lane()


def test_capsules_that_nobody_takes_end_well(session: kvtide.Session) -> None:
    memory = session.frames(0)
    assert memory.__dlpack_device__() == (1, 0) and memory.shape == [64, PAGE_BYTES]
    for version in (None, (0, 8), (1, 0), (1, 3)):
        capsule = memory.__dlpack__(max_version=version)
        assert ("dltensor_versioned" if version and version[0] else '"dltensor"') in repr(capsule)
        del capsule
    with pytest.raises(BufferError, match="never copied"):
        memory.__dlpack__(copy=True)
    with pytest.raises(BufferError, match="never copied"):
        memory.__dlpack__(dl_device=(2, 0))
    with pytest.raises(ValueError, match="no streams"):
        memory.__dlpack__(stream=1)


def test_shapes_that_differ_are_told(session: kvtide.Session) -> None:
    with pytest.raises(ValueError, match="plane 0 has pages of 4096 bytes and 16 tokens; .* pages of 8192 bytes"):
        pages(session, 0, KvShape(4, PAGE_TOKENS, 32, torch.float16))
    with pytest.raises(errors.OutOfRange, match="plane 2: the space has 2 planes"):
        pages(session, 2, SHAPE)
    with pytest.raises(ValueError, match="not torch.float32"):
        KvShape(4, PAGE_TOKENS, 32, torch.float32)
    with pytest.raises(ValueError, match="holds nothing"):
        KvShape(0, PAGE_TOKENS, 32, torch.float16)
