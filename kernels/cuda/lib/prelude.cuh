// The device prelude: everything that a kernel of kvtide includes, in two versions.
//
// Device version (NVRTC or nvcc, sm_80 and newer): CUDA's built-ins and inline PTX. It uses no header of the toolkit, so NVRTC
// needs none. Host version (KVT_HOST, g++): the same names, executed by the SIMT emulator in kernels/sim, so that the shipped
// sources run on machines without a GPU. A kernel uses only names from these files, and nothing specific to one version: no
// `__shared__`, no `asm`, no address-space cast. Every name is in namespace kvt, which this file opens.
//
// types.cuh    fixed-width integers, f16 and bf16 as storage, 16-byte vectors, qualifiers
// device.cuh   the device version; host.cuh the host version: threads, barriers, shared memory, copies, matrices, loads and stores
// convert.cuh  conversions that are the same in both: packed pairs
// warp.cuh     reductions over a warp, by shuffles
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
