"""The names of vLLM that kvtide depends on: every one of vLLM's that one of the three ways in imports, calls, overrides or reads.

`test_contract.py` compares the table with the source of a vLLM package, which need not be importable. A member is written

    name              it is there: an attribute or property, an enumeration's member, a module's variable
    name(a, b, c=)    kvtide calls it with `a` and `b` by position and `c` by name; vLLM has a default for each other parameter
    def name          kvtide overrides it and vLLM calls it; its parameters are compared with those in kvtide's class

A class's constructor is `__init__`. Names that are imported and the parameters of what is overridden are compared with kvtide's own
source. What kvtide reads of the objects that vLLM hands over cannot be found in the source: add it here.
"""

from __future__ import annotations

from dataclasses import dataclass

#: The ways in. A file of `kvtide.vllm` belongs to one or more of them.
CONNECTOR, TIER, PAGED = "KvtideConnector", "KvtideTier", "KvtidePaged"
#: Not a way in: hashes of a prompt outside of an engine.
PROMPT = "kvtide.prompt_hashes"


@dataclass(frozen=True)
class Needed:
    """Members that some of the ways in need of a class, or of a module itself."""

    #: "module:Class", or "module".
    where: str
    #: The ways in, separated by spaces.
    by: str
    #: Members, separated by ";" or line ends. A class without members is imported, or subclassed as it is.
    members: str = ""


BOTH = f"{CONNECTOR} {PAGED}"
ALL = f"{CONNECTOR} {TIER} {PAGED}"

_V1 = "vllm.distributed.kv_transfer.kv_connector.v1"
_OFFLOAD = "vllm.v1.kv_offload"

NEEDED: tuple[Needed, ...] = (
    # ---- registration
    Needed(
        "vllm.distributed.kv_transfer.kv_connector.factory:KVConnectorFactory",
        BOTH,
        "register_connector(name, module_path, class_name)",
    ),
    Needed(f"{_OFFLOAD}.tiering.factory:SecondaryTierFactory", TIER, "register_tier(tier_type, module_path, class_name)"),
    Needed("vllm.v1.attention.backends.registry", PAGED, "register_backend(backend, class_path)"),
    Needed("vllm.v1.attention.backends.registry:AttentionBackendEnum", PAGED, "CPU_ATTN; CUSTOM; is_overridden()"),
    # ---- connectors
    Needed(
        f"{_V1}.base:KVConnectorBase_V1",
        BOTH,
        """
        __init__(vllm_config, role, kv_cache_config)
        _get_connector_metadata()
        def __init__
        def requires_kv_delivery
        def build_connector_worker_meta
        def update_connector_output
        def requires_piecewise_for_cudagraph
        def register_kv_caches
        def start_load_kv
        def wait_for_layer_load
        def save_kv_layer
        def wait_for_save
        def get_block_ids_with_load_errors
        def get_num_new_matched_tokens
        def update_state_after_alloc
        def get_external_cache_hit_sources
        def build_connector_meta
        def request_finished
        def has_pending_push_work
        def reset_cache
        def get_kv_connector_stats
        def build_kv_connector_stats
        def build_prom_metrics
        def shutdown
        """,
    ),
    Needed(
        f"{_V1}.base:KVConnectorBase_V1",
        CONNECTOR,
        """
        bind_kv_cache_manager(kv_cache_manager)
        def get_required_kvcache_layout
        def supports_sleep_mode
        def get_handshake_metadata
        def unregister_kv_caches
        def restore_kv_caches
        def get_finished
        def get_transfer_results
        def bind_kv_cache_manager
        def set_xfer_handshake_metadata_pp_aware
        def set_xfer_handshake_metadata
        def has_pending_block_frees
        def take_events
        """,
    ),
    Needed(f"{_V1}.base:SupportsHMA", CONNECTOR, "def request_finished_all_groups"),
    Needed(f"{_V1}.base:KVConnectorRole", BOTH, "SCHEDULER; WORKER"),
    Needed(f"{_V1}.base:KVConnectorMetadata", BOTH),
    Needed(f"{_V1}.base:KVConnectorHandshakeMetadata", CONNECTOR),
    Needed(f"{_V1}.base:KVConnectorWorkerMetadata", BOTH, "def aggregate"),
    Needed(f"{_V1}.base:KVConnectorTransferResults", CONNECTOR, "__init__(finished_recving=, failed_recving=)"),
    Needed(f"{_V1}.metrics:KVConnectorStats", BOTH, "__init__(data=); data; def reset; def aggregate; def reduce; def is_empty"),
    Needed(
        f"{_V1}.metrics:KVConnectorPromMetrics",
        BOTH,
        "__init__(vllm_config, metric_types, labelnames, per_engine_labelvalues); def observe",
    ),
    Needed("vllm.v1.metrics.cache_hit_source:CacheHitSource", BOTH, "HOST; DISK"),
    # ---- what vLLM's scheduler hands to a connector
    Needed("vllm.v1.request:Request", BOTH, "request_id; lora_request; block_hashes; num_tokens; num_computed_tokens"),
    Needed("vllm.v1.request:Request", CONNECTOR, "kv_transfer_params; num_prompt_tokens; skip_reading_prefix_cache"),
    Needed("vllm.v1.request:Request", CONNECTOR, "all_token_ids; cache_salt; mm_features; prompt_embeds"),
    # ---- KV events
    Needed("vllm.config:KVEventsConfig", CONNECTOR, "enable_kv_cache_events"),
    Needed(
        "vllm.distributed.kv_events:BlockStored",
        CONNECTOR,
        "block_hashes; parent_block_hash; token_ids; block_size; lora_id; medium; lora_name",
    ),
    Needed("vllm.distributed.kv_events:BlockRemoved", CONNECTOR, "block_hashes; medium"),
    Needed("vllm.distributed.kv_events:KVCacheEvent", CONNECTOR),
    Needed("vllm.v1.core.kv_cache_utils", CONNECTOR, "maybe_convert_block_hash(hash_bytes)"),
    Needed("vllm.lora.request:LoRARequest", BOTH, "lora_int_id; lora_name; lora_path; load_inplace"),
    Needed("vllm.v1.core.kv_cache_manager:KVCacheManager", CONNECTOR, "block_pool; get_blocks(request_id)"),
    Needed("vllm.v1.core.kv_cache_manager:KVCacheBlocks", CONNECTOR, "blocks; get_block_ids()"),
    Needed("vllm.v1.core.kv_cache_utils:KVCacheBlock", CONNECTOR, "block_id; is_null; ref_cnt"),
    Needed(
        "vllm.v1.core.block_pool:BlockPool",
        CONNECTOR,
        "touch(blocks); free_blocks(ordered_blocks); num_gpu_blocks; get_num_free_blocks()",
    ),
    Needed("vllm.v1.core.sched.output:SchedulerOutput", CONNECTOR, "num_scheduled_tokens"),
    Needed(
        "vllm.v1.core.sched.output:SchedulerOutput",
        PAGED,
        "preempted_req_ids; scheduled_new_reqs; scheduled_cached_reqs; has_sync_kv_loads",
    ),
    Needed("vllm.v1.core.sched.output:NewRequestData", PAGED, "req_id; block_ids; num_computed_tokens"),
    Needed("vllm.v1.core.sched.output:CachedRequestData", PAGED, "req_ids; resumed_req_ids; new_block_ids; num_computed_tokens"),
    Needed("vllm.v1.outputs:KVConnectorOutput", CONNECTOR, "kv_connector_worker_meta"),
    # ---- cache groups
    Needed("vllm.v1.kv_cache_interface:KVCacheConfig", BOTH, "num_blocks; kv_cache_groups"),
    Needed("vllm.v1.kv_cache_interface:KVCacheGroupSpec", BOTH, "layer_names; kv_cache_spec"),
    Needed("vllm.v1.kv_cache_interface:KVCacheGroupSpec", CONNECTOR, "enable_kv_transfer; host_resident"),
    Needed("vllm.v1.kv_cache_interface:UniformTypeKVCacheSpecs", BOTH, "kv_cache_specs"),
    Needed("vllm.v1.kv_cache_interface:FullAttentionSpec", BOTH, "block_size; num_kv_heads; head_size; head_size_v; dtype; sliding_window"),
    Needed("vllm.v1.kv_cache_interface:FullAttentionSpec", CONNECTOR, "dcp_sharded; kv_quant_mode; tokens_per_state"),
    Needed(
        "vllm.v1.kv_cache_interface:FullAttentionSpec",
        PAGED,  # through dataclasses.replace
        "__init__(num_head_slots=, state_content_bytes=, tokens_per_state=, block_size=, num_kv_heads=, head_size=, dtype=)",
    ),
    Needed("vllm.v1.kv_cache_interface:SlidingWindowSpec", CONNECTOR, "block_size; num_kv_heads; head_size; head_size_v; dtype; sliding_window"),
    Needed(
        "vllm.v1.kv_cache_interface:SlidingWindowSpec",
        CONNECTOR,
        "extra_retained_tokens; dcp_sharded; kv_quant_mode; tokens_per_state",
    ),
    Needed("vllm.v1.kv_cache_interface:MLAAttentionSpec", CONNECTOR, "cache_dtype_str"),
    Needed("vllm.v1.kv_cache_interface:SlidingWindowMLASpec", CONNECTOR, "cache_dtype_str; extra_retained_tokens"),
    Needed("vllm.v1.kv_cache_interface:ChunkedLocalAttentionSpec", CONNECTOR),
    Needed("vllm.v1.kv_cache_interface:SinkFullAttentionSpec", CONNECTOR),
    Needed(
        "vllm.v1.core.kv_cache_utils",
        CONNECTOR,
        "resolve_kv_cache_block_sizes(kv_cache_config, vllm_config); DEFAULT_NONE_HASH_SEED",
    ),
    Needed("vllm.v1.core.kv_cache_utils", PAGED, "DEFAULT_NONE_HASH_SEED"),
    Needed(
        "vllm.v1.core.kv_cache_utils",
        PROMPT,
        "DEFAULT_NONE_HASH_SEED; init_none_hash(hash_fn); get_request_block_hasher(hash_block_size, caching_hash_fn)",
    ),
    Needed("vllm.utils.hashing", PROMPT, "get_hash_fn_by_name(hash_fn_name)"),
    Needed("vllm.v1.core.kv_cache_utils", TIER, "DEFAULT_NONE_HASH_SEED; get_none_hash_seed()"),
    # ---- configuration
    Needed("vllm", ALL, "__version__"),
    Needed("vllm.platforms", BOTH, "current_platform"),
    Needed("vllm.platforms.interface:Platform", BOTH, "is_cpu(); is_cuda(); get_device_capability(); device_name"),
    Needed("vllm.config", PAGED, "get_current_vllm_config_or_none()"),
    Needed("vllm.envs", PAGED, "VLLM_CPU_KVCACHE_SPACE"),
    Needed(
        "vllm.config:VllmConfig",
        BOTH,
        """
        attention_config; cache_config; kv_transfer_config; load_config; lora_config; model_config; parallel_config
        speculative_config
        """,
    ),
    Needed("vllm.config:VllmConfig", PAGED, "scheduler_config"),
    Needed("vllm.config:KVTransferConfig", BOTH, "kv_role; kv_connector_extra_config; kv_load_failure_policy; engine_id"),
    Needed("vllm.config:KVTransferConfig", PAGED, "kv_connector"),
    Needed("vllm.config:CacheConfig", BOTH, "block_size; cache_dtype; enable_prefix_caching; prefix_caching_hash_algo"),
    Needed("vllm.config:CacheConfig", PAGED, "kv_cache_memory_bytes; user_specified_block_size"),
    Needed(
        "vllm.config:ParallelConfig",
        BOTH,
        """
        rank; world_size; tensor_parallel_size; pipeline_parallel_size; prefill_context_parallel_size
        decode_context_parallel_size; cp_kv_cache_interleave_size; enable_expert_parallel
        """,
    ),
    Needed(
        "vllm.config:ModelConfig",
        BOTH,
        "model; model_weights; revision; seed; hf_config; dtype; quantization; quantization_config; max_model_len",
    ),
    Needed(
        "vllm.config:ModelConfig",
        PAGED,
        "use_mla; is_encoder_decoder; get_num_layers(parallel_config); get_num_kv_heads(parallel_config); get_head_size()",
    ),
    Needed("vllm.config:LoadConfig", BOTH, "load_format; download_dir"),
    Needed("vllm.config:SpeculativeConfig", BOTH, "method; draft_model_config"),
    Needed("vllm.config:SpeculativeConfig", CONNECTOR, "use_eagle()"),
    Needed("vllm.config:AttentionConfig", BOTH, "backend; backend_per_kind"),
    Needed("vllm.config:LoRAConfig", BOTH, "lora_dtype; target_modules"),
    Needed("vllm.config:SchedulerConfig", PAGED, "max_num_seqs; max_num_batched_tokens; async_scheduling"),
    # ---- attention
    Needed("vllm.distributed.kv_transfer", PAGED, "get_kv_transfer_group()"),
    Needed("vllm.v1.attention.backends.cpu_attn:CPUAttentionBackend", PAGED),
    Needed(
        "vllm.v1.attention.backend:AttentionBackend",
        PAGED,
        """
        forward_includes_kv_cache_update; supported_dtypes
        def get_name
        def get_supported_kernel_block_sizes
        def supports_sliding_window
        def customize_spec
        def get_impl_cls
        def get_builder_cls
        """,
    ),
    Needed("vllm.v1.attention.backend:AttentionImpl", PAGED, "def __init__; def forward"),
    Needed(
        "vllm.v1.attention.backend:AttentionMetadataBuilder",
        PAGED,
        "__init__(kv_cache_spec, layer_names, vllm_config, device); def __init__; def build",
    ),
    Needed("vllm.v1.attention.backend:AttentionType", PAGED, "DECODER"),
    Needed("vllm.v1.attention.backend:MultipleOf", PAGED, "__init__(base)"),
    Needed("vllm.v1.attention.backend:CommonAttentionMetadata", PAGED, "query_start_loc_cpu; num_reqs; seq_lens; seq_lens_cpu_upper_bound; block_table_tensor"),
    Needed("vllm.model_executor.layers.attention:Attention", PAGED, "layer_name"),
    # ---- the secondary tier
    Needed(
        f"{_OFFLOAD}.tiering.base:SecondaryTierManager",
        TIER,
        """
        __init__(offloading_spec, primary_kv_view, tier_type, backpressure_detector)
        medium; locality; block_size_bytes
        def __init__
        def on_new_request
        def on_request_finished
        def lookup
        def submit_store
        def submit_load
        def get_finished_jobs
        def on_schedule_end
        def drain_jobs
        def shutdown
        def build_metric_definitions
        def get_stats
        """,
    ),
    Needed(f"{_OFFLOAD}.tiering.base:TransferJob", TIER, "job_id; keys; chunk_ids"),
    Needed(
        f"{_OFFLOAD}.tiering.base:JobResult",
        TIER,
        "__init__(job_id=, success=, successful_keys=, transfer_time=, transfer_bytes=)",
    ),
    Needed(
        f"{_OFFLOAD}.tiering.async_lookup:AsyncLookupManager",
        TIER,
        """
        __init__(tier_type); lookup(key, req_context); mark_miss(keys); flush(); cleanup(req_id); shutdown()
        def batch_lookup
        """,
    ),
    Needed(f"{_OFFLOAD}.base", TIER, "OffloadKey"),
    Needed(f"{_OFFLOAD}.base:Locality", TIER, "LOCAL"),
    Needed(f"{_OFFLOAD}.base:LookupResult", TIER, "HIT; MISS; RETRY"),
    Needed(f"{_OFFLOAD}.base:Medium", TIER, "STORAGE"),
    Needed(f"{_OFFLOAD}.base:OffloadingMetricMetadata", TIER),
    Needed(f"{_OFFLOAD}.base:OffloadingCounterMetadata", TIER, "__init__(documentation=)"),
    Needed(f"{_OFFLOAD}.base:OffloadingGaugeMetadata", TIER, "__init__(documentation=)"),
    Needed(f"{_OFFLOAD}.base:ReqContext", TIER, "req_id"),
    Needed(f"{_OFFLOAD}.base:RequestOffloadingContext", TIER, "__init__()"),
    Needed(f"{_OFFLOAD}.base:ScheduleEndContext", TIER),
    Needed(f"{_OFFLOAD}.base:OffloadingSpec", TIER, "config"),
    Needed(
        f"{_V1}.offloading.metrics:OffloadingConnectorStats",
        TIER,
        "__init__(); increase_counter(counter_name, counter_increase_value); set_gauge(gauge_name, gauge_value)",
    ),
    Needed(
        f"{_OFFLOAD}.config:OffloadingConfig",
        TIER,
        "model; groups; cache; parallel; kv_cache_layout; canonical_layout; replicated_layout",
    ),
    Needed(f"{_OFFLOAD}.config:OffloadingModelConfig", TIER, "name; dtype"),
    Needed(f"{_OFFLOAD}.config:OffloadingGroupConfig", TIER, "group_id; tokens_per_block; layer_names"),
    Needed(f"{_OFFLOAD}.config:OffloadingCacheConfig", TIER, "tokens_per_hash; blocks_per_chunk"),
    Needed(f"{_OFFLOAD}.config:OffloadingParallelConfig", TIER, "tp_size; pp_size; pcp_size; dcp_size; is_parallelism_agnostic"),
)

#: Names that a version lacks, and why kvtide works with it nevertheless. The test fails if the version has it after all.
ABSENT = {
    ("0.32", f"{_V1}.base:KVConnectorBase_V1.{name}"): "hooks of sleep, which vLLM 0.32 does not call"
    for name in ("supports_sleep_mode", "unregister_kv_caches", "restore_kv_caches")
}
