// Attention over latent vectors of 512 + 64. The number after `r` is the number of rows of a tile.
#include "lib/prelude.cuh"
#include "params.h"
#include "attention/state.cuh"
#include "attention/page.cuh"
#include "attention/conclude.cuh"
#include "attention/work.cuh"
#include "attention/list.cuh"
#include "attention/decode.cuh"
#include "attention/merge.cuh"
#include "attention/latent.cuh"

KVT_KERNEL(attention_mla_f16_r16, AttentionParams, 256, attention_latent<f16, 2>)
KVT_KERNEL_MIN(attention_mla_merge_f16_r16, AttentionParams, 128, 6, attention_merge<f16, 512, 2>)
KVT_KERNEL(attention_mla_f16_r32, AttentionParams, 256, attention_latent<f16, 4>)
KVT_KERNEL_MIN(attention_mla_merge_f16_r32, AttentionParams, 128, 6, attention_merge<f16, 512, 4>)
KVT_KERNEL(attention_mla_bf16_r16, AttentionParams, 256, attention_latent<bf16, 2>)
KVT_KERNEL_MIN(attention_mla_merge_bf16_r16, AttentionParams, 128, 6, attention_merge<bf16, 512, 2>)
KVT_KERNEL(attention_mla_bf16_r32, AttentionParams, 256, attention_latent<bf16, 4>)
KVT_KERNEL_MIN(attention_mla_merge_bf16_r32, AttentionParams, 128, 6, attention_merge<bf16, 512, 4>)
