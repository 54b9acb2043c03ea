// Attention mass per page: each page's share of a sequence's attention in one plane, reduced to the top entries.
#include "lib/prelude.cuh"
#include "params.h"
#include "attention/state.cuh"
#include "attention/conclude.cuh"
#include "attention/mass.cuh"

KVT_KERNEL(attention_mass, AttentionMassParams, 256, mass_of_pages)
