// The device prelude: all that a kernel of kvtide includes, in two worlds.
//
// Device world (NVRTC or nvcc, sm_80 and newer): CUDA's built-ins and inline PTX; no header of the toolkit, so NVRTC needs none.
// Host world (KVT_HOST, g++): the same names, carried out by the SIMT emulator in kernels/sim, so that the very sources that ship
// run on machines without a GPU. A kernel uses only what stands in these files, and nothing of either world by itself:
// no `__shared__`, no `asm`, no address-space cast. Every name lives in namespace kvt, which this file opens.
//
// types.cuh    fixed-width integers, f16 and bf16 as storage, 16-byte vectors, qualifiers
// device.cuh   the device world; host.cuh the host world: threads, barriers, shared memory, copies, matrices, loads and stores
// convert.cuh  conversions that are the same in both: packed pairs, e4m3 by integers (sm_80 has no instruction for it)
// warp.cuh     reductions over a warp, on the shuffles
#pragma once

#include "types.cuh"
#if defined(KVT_HOST)
#include "host.cuh"
#else
#include "device.cuh"
#endif
#include "convert.cuh"
#include "warp.cuh"

using namespace kvt;
