// Attention with head dimension 32. The number after `r` is the number of rows of a tile.
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

// Decode of 8 rows: without a number of blocks ptxas takes so few registers on some architectures that it spills.
KVT_KERNEL_MIN(attention_decode_f16_d32_r8, AttentionParams, 128, 5, attention_decode<f16, 32, 1>)
KVT_KERNEL_MIN(attention_merge_f16_d32_r8, AttentionParams, 128, 6, attention_merge<f16, 32, 1>)
KVT_KERNEL(attention_decode_f16_d32_r16, AttentionParams, 128, attention_decode<f16, 32, 2>)
KVT_KERNEL_MIN(attention_merge_f16_d32_r16, AttentionParams, 128, 6, attention_merge<f16, 32, 2>)
KVT_KERNEL(attention_prefill_f16_d32_r16, AttentionParams, 128, attention_prefill<f16, 32, 2>)
KVT_KERNEL_MIN(attention_decode_bf16_d32_r8, AttentionParams, 128, 5, attention_decode<bf16, 32, 1>)
KVT_KERNEL_MIN(attention_merge_bf16_d32_r8, AttentionParams, 128, 6, attention_merge<bf16, 32, 1>)
KVT_KERNEL(attention_decode_bf16_d32_r16, AttentionParams, 128, attention_decode<bf16, 32, 2>)
KVT_KERNEL_MIN(attention_merge_bf16_d32_r16, AttentionParams, 128, 6, attention_merge<bf16, 32, 2>)
KVT_KERNEL(attention_prefill_bf16_d32_r16, AttentionParams, 128, attention_prefill<bf16, 32, 2>)
