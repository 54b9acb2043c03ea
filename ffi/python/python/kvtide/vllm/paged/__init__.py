"""vLLM decodes over kvtide's pages: the KV of running requests is in the daemon's address space, most of it outside tier 0.

`KvtidePaged` is a KV connector and an attention backend. `--kv-transfer-config` selects both (docs/reference/vllm-paged.md):

    {"kv_connector": "KvtidePaged", "kv_role": "kv_both"}

vLLM's own KV cache then holds two bytes per block and layer. Its block ids are bookkeeping: the first one of a request names the
request's sequence in the worker.
"""
