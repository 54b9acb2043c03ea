// Attention with head dimension 256. The number after `r` is the number of rows of a tile.
#include "lib/prelude.cuh"
#include "params.h"
#include "attention/state.cuh"
#include "attention/page.cuh"
#include "attention/conclude.cuh"
#include "attention/work.cuh"
#include "attention/list.cuh"
#include "attention/decode.cuh"
#include "attention/merge.cuh"
#include "attention/prefill.cuh"

KVT_KERNEL(attention_decode_f16_d256_r8, AttentionParams, 128, attention_decode<f16, 256, 1>)
KVT_KERNEL_MIN(attention_merge_f16_d256_r8, AttentionParams, 128, 6, attention_merge<f16, 256, 1>)
KVT_KERNEL(attention_prefill_f16_d256_r8, AttentionParams, 128, attention_prefill<f16, 256, 1>)
KVT_KERNEL(attention_decode_bf16_d256_r8, AttentionParams, 128, attention_decode<bf16, 256, 1>)
KVT_KERNEL_MIN(attention_merge_bf16_d256_r8, AttentionParams, 128, 6, attention_merge<bf16, 256, 1>)
KVT_KERNEL(attention_prefill_bf16_d256_r8, AttentionParams, 128, attention_prefill<bf16, 256, 1>)
