/* Opening a card, its memory, copies through pinned staging, recording of graphs. */
#include <stdio.h>
#include <string.h>

#include "kernels/cuda/common.cuh"
#include "kernels/cuda/gemm.cuh"
#include "kernels/cuda/gemm_fused.cuh"
extern "C" {
#include "kernels/backend.h"
}

struct DeviceGraph {
    cudaGraph_t graph;
    cudaGraphExec_t exec;
};

Status cuda_fault(cudaError_t code, const char *doing) {
    (void)cudaGetLastError(); /* clears what is not sticky */
    if (code == cudaErrorMemoryAllocation) {
        size_t available = 0, total = 0;
        (void)cudaMemGetInfo(&available, &total);
        return status_set(STATUS_MEMORY, "out of GPU memory: %s (%.1f of %.1f MiB free)", doing,
                          (double)available / 1048576.0, (double)total / 1048576.0);
    }
    return status_set(STATUS_DEVICE, "CUDA: %s: %s", doing, cudaGetErrorString(code));
}

/* ---- memory -------------------------------------------------------------------------------------
 */

static Status memory_alloc(Device *d, size_t bytes, void **out) {
    *out = NULL;
    CUDA_TRY(cudaSetDevice(d->index), "selecting the card");
    const cudaError_t code = cudaMalloc(out, bytes);
    if (code == cudaSuccess) return STATUS_OK;
    (void)cudaGetLastError();
    *out = NULL;
    if (code != cudaErrorMemoryAllocation) return cuda_fault(code, "allocating memory");
    size_t available = 0, total = 0;
    (void)cudaMemGetInfo(&available, &total);
    return status_set(
        STATUS_MEMORY, "out of memory on %s: %.1f MiB needed, %.1f of %.1f MiB are free", d->name,
        (double)bytes / 1048576.0, (double)available / 1048576.0, (double)total / 1048576.0);
}

static void memory_release(Device *d, void *memory) {
    (void)cudaSetDevice(d->index);
    (void)cudaFree(memory);
}

static bool is_pinned(const void *p) {
    cudaPointerAttributes attributes;
    if (cudaPointerGetAttributes(&attributes, p) != cudaSuccess) {
        (void)cudaGetLastError();
        return false;
    }
    return attributes.type == cudaMemoryTypeHost;
}

/* Staging buffer `slot`, allocated on first use, free for writing on return. */
static Status staging_ready(CudaBackend *b, int slot) {
    if (!b->staging[slot]) {
        CUDA_TRY(cudaMallocHost(&b->staging[slot], STAGING_BYTES), "pinning host memory");
        CUDA_TRY(cudaEventCreateWithFlags(&b->staging_free[slot], cudaEventDisableTiming),
                 "creating an event");
    }
    CUDA_TRY(cudaEventSynchronize(b->staging_free[slot]), "waiting for a copy");
    return STATUS_OK;
}

static Status memory_push(Device *d, void *dst, const void *src, size_t bytes) {
    CudaBackend *b = backend_of(d);
    CUDA_TRY(cudaSetDevice(d->index), "selecting the card");
    if (is_pinned(src)) {
        CUDA_TRY(cudaMemcpyAsync(dst, src, bytes, cudaMemcpyHostToDevice, b->stream),
                 "copying to the card");
        return STATUS_OK;
    }
    for (size_t done = 0; done < bytes;) {
        const size_t part = bytes - done < STAGING_BYTES ? bytes - done : STAGING_BYTES;
        const int slot = b->staging_next;
        b->staging_next = (slot + 1) % STAGING_BUFFERS;
        TRY(staging_ready(b, slot));
        memcpy(b->staging[slot], (const char *)src + done, part);
        CUDA_TRY(cudaMemcpyAsync((char *)dst + done, b->staging[slot], part, cudaMemcpyHostToDevice,
                                 b->stream),
                 "copying to the card");
        CUDA_TRY(cudaEventRecord(b->staging_free[slot], b->stream), "recording an event");
        done += part;
    }
    return STATUS_OK;
}

static Status memory_pull(Device *d, void *dst, const void *src, size_t bytes) {
    CudaBackend *b = backend_of(d);
    CUDA_TRY(cudaSetDevice(d->index), "selecting the card");
    if (is_pinned(dst)) {
        CUDA_TRY(cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDeviceToHost, b->stream),
                 "copying from the card");
        CUDA_TRY(cudaStreamSynchronize(b->stream), "waiting for the card");
        return STATUS_OK;
    }
    /* While one buffer is copied out, the next part is under way. */
    size_t sent = 0, taken = 0;
    int first = b->staging_next, last = first;
    while (taken < bytes) {
        while (sent < bytes && sent - taken < 2 * STAGING_BYTES) {
            const size_t part = bytes - sent < STAGING_BYTES ? bytes - sent : STAGING_BYTES;
            TRY(staging_ready(b, last));
            CUDA_TRY(cudaMemcpyAsync(b->staging[last], (const char *)src + sent, part,
                                     cudaMemcpyDeviceToHost, b->stream),
                     "copying from the card");
            CUDA_TRY(cudaEventRecord(b->staging_free[last], b->stream), "recording an event");
            last = (last + 1) % STAGING_BUFFERS;
            sent += part;
        }
        const size_t part = bytes - taken < STAGING_BYTES ? bytes - taken : STAGING_BYTES;
        CUDA_TRY(cudaEventSynchronize(b->staging_free[first]), "waiting for the card");
        memcpy((char *)dst + taken, b->staging[first], part);
        first = (first + 1) % STAGING_BUFFERS;
        taken += part;
    }
    b->staging_next = last;
    return STATUS_OK;
}

static Status memory_sync(Device *d) {
    CUDA_TRY(cudaSetDevice(d->index), "selecting the card");
    CUDA_TRY(cudaStreamSynchronize(stream_of(d)), "running kernels");
    return STATUS_OK;
}

static Status memory_available(Device *d, size_t *available, size_t *total) {
    *available = *total = 0;
    CUDA_TRY(cudaSetDevice(d->index), "selecting the card");
    CUDA_TRY(cudaMemGetInfo(available, total), "asking for free memory");
    return STATUS_OK;
}

/* ---- data of the next step: host -> pinned -> staged on a stream of its own, then into place
 * ------
 */

static Status feed_new(Device *d, void *dst, size_t bytes, Feed **out) {
    CudaBackend *b = backend_of(d);
    *out = NULL;
    if (b->feed_count == FEEDS) return STATUS_OK;
    Feed *f = &b->feeds[b->feed_count];
    memset(f, 0, sizeof *f);
    TRY(arena_take(&d->state, bytes, &f->staged));
    CUDA_TRY(cudaMallocHost(&f->pinned, bytes), "pinning host memory");
    f->dst = dst;
    f->capacity = bytes;
    b->feed_count++;
    *out = f;
    return STATUS_OK;
}

static Status feed_find(Device *d, void *dst, size_t bytes, Feed **out) {
    CudaBackend *b = backend_of(d);
    for (int i = 0; i < b->feed_count; i++) {
        if (b->feeds[i].dst != dst || b->feeds[i].capacity < bytes) continue;
        *out = &b->feeds[i];
        return STATUS_OK;
    }
    return feed_new(d, dst, bytes, out);
}

static Status feed_stage(Device *d, void *dst, const void *src, size_t bytes) {
    CudaBackend *b = backend_of(d);
    Feed *f;
    CUDA_TRY(cudaSetDevice(d->index), "selecting the card");
    TRY(feed_find(d, dst, bytes, &f));
    if (!f)
        return memory_push(d, dst, src, bytes); /* too many of them: in order, without overlap */
    /* The pinned copy is free when the last transfer has left it, the staged one when the last
     * commit has emptied it. */
    CUDA_TRY(cudaStreamSynchronize(b->copies), "waiting for a copy");
    CUDA_TRY(cudaStreamWaitEvent(b->copies, b->taken, 0), "waiting for a copy");
    for (size_t done = 0; done < bytes;) {
        const size_t part = bytes - done < STAGING_BYTES ? bytes - done : STAGING_BYTES;
        memcpy((char *)f->pinned + done, (const char *)src + done, part);
        CUDA_TRY(cudaMemcpyAsync((char *)f->staged + done, (char *)f->pinned + done, part,
                                 cudaMemcpyHostToDevice, b->copies),
                 "copying to the card");
        done += part;
    }
    f->pending = bytes;
    return STATUS_OK;
}

static Status feed_commit(Device *d) {
    CudaBackend *b = backend_of(d);
    bool any = false;
    for (int i = 0; i < b->feed_count; i++) any = any || b->feeds[i].pending > 0;
    if (!any) return STATUS_OK;
    CUDA_TRY(cudaSetDevice(d->index), "selecting the card");
    CUDA_TRY(cudaEventRecord(b->arrived, b->copies), "recording an event");
    CUDA_TRY(cudaStreamWaitEvent(b->stream, b->arrived, 0), "waiting for a copy");
    for (int i = 0; i < b->feed_count; i++) {
        Feed *f = &b->feeds[i];
        if (f->pending == 0) continue;
        CUDA_TRY(
            cudaMemcpyAsync(f->dst, f->staged, f->pending, cudaMemcpyDeviceToDevice, b->stream),
            "copying on the card");
        f->pending = 0;
    }
    CUDA_TRY(cudaEventRecord(b->taken, b->stream), "recording an event");
    return STATUS_OK;
}

static Status feeds_open(CudaBackend *b) {
    CUDA_TRY(cudaStreamCreateWithFlags(&b->copies, cudaStreamNonBlocking), "creating a stream");
    CUDA_TRY(cudaEventCreateWithFlags(&b->arrived, cudaEventDisableTiming), "creating an event");
    CUDA_TRY(cudaEventCreateWithFlags(&b->taken, cudaEventDisableTiming), "creating an event");
    return STATUS_OK;
}

/* What is staged lies in the arena "state" and goes with it. */
static void feeds_close(CudaBackend *b) {
    for (int i = 0; i < b->feed_count; i++) (void)cudaFreeHost(b->feeds[i].pinned);
    if (b->arrived) (void)cudaEventDestroy(b->arrived);
    if (b->taken) (void)cudaEventDestroy(b->taken);
    if (b->copies) (void)cudaStreamDestroy(b->copies);
}

static void memory_close(Device *d) {
    CudaBackend *b = backend_of(d);
    if (!b) return;
    (void)cudaSetDevice(d->index);
    gemm_close(b->gemm);
    feeds_close(b);
    for (int i = 0; i < STAGING_BUFFERS; i++) {
        if (b->staging_free[i]) (void)cudaEventDestroy(b->staging_free[i]);
        if (b->staging[i]) (void)cudaFreeHost(b->staging[i]);
    }
    if (b->stream) (void)cudaStreamDestroy(b->stream);
    mem_free(b);
    d->backend = NULL;
}

static bool folds_norms(Device *d, int64_t rows, int64_t outputs, int64_t inputs) {
    return gemm_fused_folds(d, rows, outputs, inputs);
}

static const DeviceMemory cuda_memory = {
    memory_alloc,     memory_release,    memory_push,     memory_pull, memory_sync,
    memory_available, memory_close,      feed_stage,      feed_commit, cuda_graph_begin,
    cuda_graph_end,   cuda_graph_launch, cuda_graph_free, folds_norms,
};

/* ---- open ---------------------------------------------------------------------------------------
 */

__global__ void probe_kernel(void) {}

static Status card_count(int *count) {
    const cudaError_t code = cudaGetDeviceCount(count);
    if (code == cudaSuccess && *count > 0) return STATUS_OK;
    (void)cudaGetLastError();
    int driver = 0;
    (void)cudaDriverGetVersion(&driver);
    if (code == cudaErrorInsufficientDriver && driver > 0)
        return status_set(STATUS_DEVICE,
                          "the NVIDIA driver supports CUDA %d.%d, this build needs %d.%d: install "
                          "a newer driver",
                          driver / 1000, driver % 1000 / 10, CUDART_VERSION / 1000,
                          CUDART_VERSION % 1000 / 10);
    if (code == cudaErrorInsufficientDriver || code == cudaErrorNoDevice || code == cudaSuccess)
        return status_set(STATUS_DEVICE, "no CUDA device: no NVIDIA card or driver was found");
    return status_set(STATUS_DEVICE, "no CUDA device: %s", cudaGetErrorString(code));
}

static Status card_check(int index, const cudaDeviceProp *card) {
    cudaFuncAttributes attributes;
    const cudaError_t code = cudaFuncGetAttributes(&attributes, probe_kernel);
    if (code == cudaSuccess) return STATUS_OK;
    (void)cudaGetLastError();
    if (code == cudaErrorNoKernelImageForDevice || code == cudaErrorInvalidDeviceFunction)
        return status_set(STATUS_DEVICE,
                          "this build has no code for cuda:%d (%s, compute capability %d.%d): "
                          "configure with -DTTV_CUDA_ARCHITECTURES=%d%d and build again",
                          index, card->name, card->major, card->minor, card->major, card->minor);
    return cuda_fault(code, "loading the kernels");
}

static Status backend_open(Device *d, const cudaDeviceProp *card) {
    CudaBackend *b;
    TRY(mem_alloc((void **)&b, 1, sizeof *b, "CUDA backend"));
    d->backend = b;
    b->sm_count = card->multiProcessorCount;
    b->compute = 10 * card->major + card->minor;
    b->smem_limit = card->sharedMemPerBlockOptin;
    CUDA_TRY(cudaStreamCreateWithFlags(&b->stream, cudaStreamNonBlocking), "creating a stream");
    TRY(feeds_open(b));
    TRY(gemm_fused_probe(b));
    return gemm_open(d, &b->gemm);
}

Status cuda_device_open(int index, Device **out) {
    *out = NULL;
    int count = 0;
    TRY(card_count(&count));
    if (index < 0 || index >= count)
        return status_set(STATUS_DEVICE, "no device cuda:%d: this machine has %d CUDA device%s",
                          index, count, count == 1 ? "" : "s");
    CUDA_TRY(cudaSetDevice(index), "selecting the card");
    cudaDeviceProp card;
    CUDA_TRY(cudaGetDeviceProperties(&card, index), "reading the card's properties");
    TRY(card_check(index, &card));
    Device *d;
    TRY(mem_alloc((void **)&d, 1, sizeof *d, "device"));
    d->kind = DEVICE_CUDA;
    d->index = index;
    (void)snprintf(d->name, sizeof d->name, "%.127s", card.name);
    d->k = &kernels_cuda;
    d->memory = &cuda_memory;
    const Status status = backend_open(d, &card);
    if (status != STATUS_OK) {
        memory_close(d);
        mem_free(d);
        return status;
    }
    *out = d;
    return STATUS_OK;
}

void *cuda_device_stream(Device *d) {
    return stream_of(d);
}

/* ---- graphs --------------------------------------------------------------------------------- */

Status cuda_graph_begin(Device *d) {
    CUDA_TRY(cudaStreamBeginCapture(stream_of(d), cudaStreamCaptureModeThreadLocal),
             "starting to record a graph");
    gemm_record(backend_of(d)->gemm);
    return STATUS_OK;
}

Status cuda_graph_end(Device *d, DeviceGraph **out) {
    *out = NULL;
    cudaGraph_t graph = NULL;
    CUDA_TRY(cudaStreamEndCapture(stream_of(d), &graph), "recording a graph");
    DeviceGraph *g;
    Status status = gemm_recorded(backend_of(d)->gemm, graph);
    if (status == STATUS_OK) status = mem_alloc((void **)&g, 1, sizeof *g, "CUDA graph");
    if (status != STATUS_OK) {
        (void)cudaGraphDestroy(graph);
        return status;
    }
    g->graph = graph;
    const cudaError_t code = cudaGraphInstantiate(&g->exec, graph, 0);
    if (code != cudaSuccess) {
        cuda_graph_free(g);
        return cuda_fault(code, "building a graph");
    }
    *out = g;
    return STATUS_OK;
}

Status cuda_graph_launch(Device *d, DeviceGraph *g) {
    CUDA_TRY(cudaGraphLaunch(g->exec, stream_of(d)), "replaying a graph");
    return STATUS_OK;
}

void cuda_graph_free(DeviceGraph *g) {
    if (!g) return;
    if (g->exec) (void)cudaGraphExecDestroy(g->exec);
    if (g->graph) (void)cudaGraphDestroy(g->graph);
    mem_free(g);
}
