"""The texts about memory: what vLLM's start plans with, allocations that failed, and the sizes that a start prints.

Templates: vLLM 0.6 to 0.33 as read from its source (worker/utils.py, kv_cache_utils.py, cpu_worker.py, gpu_worker.py,
gpu_model_runner.py), torch's allocator, and the logs in tests/data/logs.
"""

from vllmd.decide.numbers import NUMBER, SIZE
from vllmd.decide.text_row import Fact, Row, both, fact, row
from vllmd.model.failure import FailureClass

_FREE_OF_TOTAL = rf"\((?P<free_gib>{NUMBER})/(?P<total_gib>{NUMBER}) GiB\)"

# Memory that the start plans with. The advice at the end of these texts is not followed: "No available memory" needs
# the utilization up, and so does a negative request on CPU, whose text asks to free memory instead.
PLANNING: tuple[Row, ...] = (
    row(
        "emory",
        rf"Free memory on device (?:\S+ )?{_FREE_OF_TOTAL} on startup is less than "
        rf"[^(]*\((?P<utilization>{NUMBER}), (?P<requested_gib>{NUMBER}) GiB\)",
        "gpu-memory-utilization {utilization} asks for {requested}, but only {free} of {total} is free",
        FailureClass.UTILIZATION_TOO_HIGH,
    ),
    row(
        "emory",
        rf"Available memory on node (?P<node>\d+) {_FREE_OF_TOTAL} on startup is less than "
        rf"desired CPU memory utilization \((?P<utilization>{NUMBER}), (?P<requested_gib>{NUMBER}) GiB\)",
        "gpu-memory-utilization {utilization} asks for {requested} of memory, but only {free} of {total} is free",
        FailureClass.UTILIZATION_TOO_HIGH,
    ),
    row(
        "emory",
        rf"node (?P<node>\d+) {_FREE_OF_TOTAL} on kv cache allocation is less than requested memory for kv "
        rf"\((?P<available_gib>-{NUMBER}|0\.0+)/(?P<requested_gib>{NUMBER}) GiB\)",
        "gpu-memory-utilization leaves nothing for the KV pool: {available} of its {requested} remain",
        FailureClass.UTILIZATION_TOO_LOW,
    ),
    row(
        "emory",
        rf"node (?P<node>\d+) {_FREE_OF_TOTAL} on kv cache allocation is less than requested memory for kv "
        rf"\((?P<requested_gib>{NUMBER})/{NUMBER} GiB\)",
        "the KV pool asks for {requested}, but only {free} of {total} is free",
        FailureClass.UTILIZATION_TOO_HIGH,
    ),
    row(
        "emory",
        rf"node (?P<node>\d+) {_FREE_OF_TOTAL} on kv cache allocation is less than requested memory for kv "
        rf"\((?P<pool_gib>{NUMBER}) GiB\)",
        "the KV pool is set to {pool}, but only {free} of {total} is free",
        FailureClass.UTILIZATION_TOO_HIGH,
    ),
    row(
        "emory",
        r"(?<!\(\")No available memory for the cache blocks",
        "no memory left for the KV pool[ at gpu-memory-utilization {utilization}][: {available} remain]",
        FailureClass.UTILIZATION_TOO_LOW,
    ),
    row(
        "KV cache",
        r"To serve at least one request with the \S+ max seq len \((?P<asked_tokens>\d+)\), "
        rf"\(?(?P<needed_gib>{NUMBER}) GiB KV cache is needed, which is larger than the available KV cache memory "
        rf"\((?P<available_gib>{NUMBER}) GiB\)(?:.*?estimated maximum model length is (?P<fitting_tokens>\d+))?",
        "KV pool too small for one request of {asked_tokens} tokens: needs {needed}, has {available}",
        FailureClass.MAX_MODEL_LEN_TOO_LONG,
    ),
    row(
        "KV cache",
        r"max seq len \((?P<asked_tokens>\d+)\) is larger than the maximum number of tokens that can be stored in KV "
        r"cache \((?P<fitting_tokens>\d+)\)",
        "KV pool too small for one request of {asked_tokens} tokens: holds {fitting_tokens}",
        FailureClass.MAX_MODEL_LEN_TOO_LONG,
    ),
    row(
        "max_",
        r"Cannot auto-fit max_model_len: not enough GPU memory",
        "KV pool too small for a single token[ at gpu-memory-utilization {utilization}][: {available} remain]",
        FailureClass.UTILIZATION_TOO_LOW,
    ),
)

# Allocations that failed. torch prints the numbers; vLLM's own lines beside it say what was being done. The class is
# refined by what was being done (refine.py).
ALLOCATING: tuple[Row, ...] = (
    row(
        "emory",
        r"out of memory occurred when warming up (?P<what>sampler|pooler).*?with (?P<dummy_requests>\d+) dummy",
        "out of GPU memory while warming up the {what} with {dummy_requests} requests",
        FailureClass.WARMUP_OOM,
    ),
    row(
        "emory",
        rf"(?:CUDA|HIP|XPU|NPU) out of memory\.(?: Tried to allocate (?P<tried_size>{SIZE})\.?)?"
        rf"(?:.*?GPU \d+ has a total capacity of (?P<total_size>{SIZE}) of which (?P<free_size>{SIZE}) is free\.?)?"
        rf"(?:.*?this process has (?P<used_size>{SIZE}) memory in use)?"
        rf"(?:.*?allocated memory (?P<allocated_size>{SIZE}) is allocated by PyTorch)?"
        rf"(?:.*? and (?P<reserved_size>{SIZE}) is reserved by PyTorch)?",
        "out of GPU memory while {doing}[: tried to allocate {tried}][, {free} of {total} free]",
        FailureClass.WARMUP_OOM,
        FailureClass.RUNTIME_OOM,
    ),
    row(
        "rror",
        r"(?:CUDA|HIP)(?: driver)? error: out of memory|hipErrorOutOfMemory|cudaErrorMemoryAllocation",
        "out of GPU memory while {doing}",
        FailureClass.WARMUP_OOM,
        FailureClass.RUNTIME_OOM,
        cause="driver",
    ),
    row(
        "rror",
        r"torch\.(?:cuda\.)?OutOfMemoryError",
        "out of GPU memory while {doing}",
        FailureClass.WARMUP_OOM,
        FailureClass.RUNTIME_OOM,
    ),
    row(
        "rror",
        r"UR_RESULT_ERROR_OUT_OF_DEVICE_MEMORY|ZE_RESULT_ERROR_OUT_OF_DEVICE_MEMORY",
        "out of GPU memory while {doing}",
        FailureClass.WARMUP_OOM,
        FailureClass.RUNTIME_OOM,
    ),
    row(
        "rror",
        r"CU(?:BLAS|DNN|SPARSE)_STATUS_ALLOC_FAILED",
        "out of GPU memory while {doing}: a library found no room for its workspace",
        FailureClass.WARMUP_OOM,
        FailureClass.RUNTIME_OOM,
    ),
    row(
        "rror",
        r"RESOURCE_EXHAUSTED: .*(?:out of memory|Attempting to (?:allocate|reserve)|hbm)",
        "out of device memory while {doing}",
        FailureClass.WARMUP_OOM,
        FailureClass.RUNTIME_OOM,
    ),
    # On Tegra the allocator's own question to NVML fails where other devices raise an out-of-memory error.
    row(
        "NvMap",
        r"NvMapMem\w+: error 12\b|NvMapMem\w+: \d+ error 12\b",
        "the device had no memory left while {doing} (NvMap error 12)",
        FailureClass.UTILIZATION_TOO_HIGH,
        FailureClass.RUNTIME_OOM,
        cause="no-number",
    ),
    row(
        "rror",
        r"NVML_SUCCESS == r INTERNAL ASSERT FAILED at .*CUDACachingAllocator",
        "the device had no memory left while {doing} (the allocator's NVML assertion, as on Tegra)",
        FailureClass.UTILIZATION_TOO_HIGH,
        FailureClass.RUNTIME_OOM,
        cause="no-number",
    ),
    row(
        "emory",
        r"Failed to load model - not enough GPU memory",
        "out of GPU memory while loading the weights",
        FailureClass.WARMUP_OOM,
    ),
    # The host's own memory.
    row(
        "cudaHostRegister failed",
        r"cudaHostRegister failed",
        "the host could not pin the memory that was asked for in it",
        FailureClass.HOST_OOM,
        quiet=True,
        cause="pinning",
    ),
    both(
        "[code=137]",
        r"FAILED: \[code=137\]",
        "the kernel ended a compiler for want of host memory: too many compile at once",
        FailureClass.HOST_OOM,
        cause="compiling",
    ),
    both(
        "rror",
        r"ninja.*exit status 137",
        "the kernel ended a compiler for want of host memory: too many compile at once",
        FailureClass.HOST_OOM,
        cause="compiling",
    ),
    both(
        "emory",
        r"DefaultCPUAllocator: (?:can't|not enough)|\[Errno 12\] Cannot allocate memory|std::bad_alloc|"
        r"(?:^|\s)MemoryError\b|node running low on memory|killed due to memory pressure",
        "the host's memory ran out while vLLM was {doing}",
        FailureClass.HOST_OOM,
    ),
    both(
        "OOM killer",
        r"has been killed by the OOM killer",
        "the kernel ended vLLM for want of host memory while it was {doing}",
        FailureClass.HOST_OOM,
    ),
    both(
        "'oom-kill'",
        r"Failed with result 'oom-kill'",
        "the kernel ended vLLM for want of host memory while it was {doing}",
        FailureClass.HOST_OOM,
    ),
)

MEMORY_FACTS: tuple[Fact, ...] = (
    fact("took", rf"(?:Model loading|Loading model weights) took (?P<weights_gib>{NUMBER}) G"),
    fact("emory", rf"Available KV cache memory: (?P<available_gib>{NUMBER}) GiB"),
    fact("KV cache", rf"Explicitly set \((?P<pool_gib>{NUMBER})/(?P<total_gib>{NUMBER})\) GiB"),
    fact("KV cache", rf"Auto set \((?P<available_gib>{NUMBER})/(?P<total_gib>{NUMBER})\) GiB"),
    fact(
        "emory",
        rf"Free memory on device \({NUMBER}/(?P<total_gib>{NUMBER}) GiB\) on startup\. "
        rf"Desired GPU memory utilization is \((?P<utilization>{NUMBER}), ",
    ),
    fact(
        "emory",
        rf"total_gpu_memory \((?P<total_gib>{NUMBER})GiB\) x gpu_memory_utilization \((?P<utilization>{NUMBER})\)",
    ),
    fact("Maximum concurrency", rf"Maximum concurrency for [\d,]+ tokens per request: (?P<concurrency>{NUMBER})x"),
    fact("CUDA graph memory", rf"Estimated CUDA graph memory: (?P<graphs_gib>{NUMBER}) GiB"),
    fact("Graph capturing finished", rf"Graph capturing finished in .{{1,40}}, took (?P<captured_gib>{NUMBER}) GiB"),
    fact("initial_memory_usage", rf"initial_memory_usage=(?P<others_gib>{NUMBER})GiB"),
    fact("profiled with", r"profiled with (?P<multimodal>\d+ \w+ items? of the maximum feature size)"),
    fact("for multi-modal", r"(?P<multimodal>\{'[^}]{1,80}\}) are reserved for multi-modal"),
    fact("reserved for KV Cache", rf"reserved for KV Cache is (?P<available_gib>{NUMBER})GiB"),
    fact(
        "emory",
        rf"total_gpu_memory=(?P<total_gib>{NUMBER})GiB.*kv_cache_size=(?P<available_gib>{NUMBER})GiB",
    ),
)
