/* Opening devices, and the calls that go through the backend's memory functions.
 *
 * This file is compiled for the baseline instruction set (CMakeLists.txt), because
 * device_check_cpu() must be able to say that the rest of the library cannot run here.
 */
#include <omp.h>
#include <stdlib.h>
#include <string.h>

#include "core/memory.h"
#include "kernels/backend.h"
#include "kernels/kernels.h"
#ifdef TTV_HAVE_CUDA
#include "kernels/cuda/cuda_device.h"
#endif

Status device_check_cpu(void) {
#if defined(__x86_64__)
    const struct {
        unsigned bit;
        const char *name;
        bool present;
    } sets[] = {
        {CPU_ISA_AVX2, "AVX2", __builtin_cpu_supports("avx2")},
        {CPU_ISA_FMA, "FMA", __builtin_cpu_supports("fma")},
        {CPU_ISA_AVX512F, "AVX-512F", __builtin_cpu_supports("avx512f")},
        {CPU_ISA_AVX512BW, "AVX-512BW", __builtin_cpu_supports("avx512bw")},
        {CPU_ISA_AVX512DQ, "AVX-512DQ", __builtin_cpu_supports("avx512dq")},
        {CPU_ISA_AVX512VL, "AVX-512VL", __builtin_cpu_supports("avx512vl")},
        {CPU_ISA_AVX512BF16, "AVX-512-BF16", __builtin_cpu_supports("avx512bf16")},
    };
    for (size_t i = 0; i < sizeof sets / sizeof sets[0]; i++) {
        if ((cpu_isa_compiled & sets[i].bit) && !sets[i].present)
            return status_set(STATUS_DEVICE,
                              "this build uses %s, which this processor does not have: configure "
                              "with -DTTV_CPU_ARCH=x86-64-v3 (or x86-64) and build again",
                              sets[i].name);
    }
#endif
    return STATUS_OK;
}

static Status arenas_init(Device *d) {
    TRY(arena_init(&d->weights, d, "weights"));
    TRY(arena_init(&d->state, d, "state"));
    TRY(arena_init(&d->step, d, "step"));
    return arena_init(&d->scratch, d, "scratch");
}

static Status open_arenas(Device *d, Device **out) {
    const Status status = arenas_init(d);
    if (status != STATUS_OK) {
        device_close(d);
        return status;
    }
    *out = d;
    return STATUS_OK;
}

static Status cuda_open(const char *spec, Device **out) {
    int index = 0;
    if (spec[4] == ':') {
        char *end;
        const long value = strtol(spec + 5, &end, 10);
        if (spec[5] < '0' || spec[5] > '9' || *end || value > 1023)
            return status_set(STATUS_USAGE, "device '%s': expected cuda or cuda:<number>", spec);
        index = (int)value;
    }
#ifdef TTV_HAVE_CUDA
    return cuda_device_open(index, out);
#else
    (void)index;
    (void)out;
    return status_set(STATUS_DEVICE,
                      "this build has no CUDA backend (configure with -DTTV_CUDA=ON)");
#endif
}

Status device_open(const char *spec, Device **out) {
    *out = NULL;
    Device *d = NULL;
    if (strcmp(spec, "cpu") == 0) {
        TRY(device_check_cpu());
        TRY(cpu_device_open(&d));
    } else if (strcmp(spec, "cuda") == 0 || strncmp(spec, "cuda:", 5) == 0) {
        TRY(cuda_open(spec, &d));
    } else {
        return status_set(STATUS_USAGE, "unknown device '%s': expected cpu, cuda or cuda:<number>",
                          spec);
    }
    return open_arenas(d, out);
}

Status device_open_dry(Device **out) {
    Device *d;
    *out = NULL;
    TRY(dry_device_open(&d));
    return open_arenas(d, out);
}

void device_close(Device *d) {
    if (!d) return;
    (void)device_sync(d);
    arena_free(&d->scratch);
    arena_free(&d->step);
    arena_free(&d->state);
    arena_free(&d->weights);
    d->memory->close(d);
    mem_free(d);
}

Status device_memory(Device *d, size_t *available, size_t *total) {
    return d->memory->available(d, available, total);
}

Status device_alloc(Device *d, size_t bytes, void **out) {
    *out = NULL;
    return d->memory->alloc(d, bytes ? bytes : 1, out);
}

void device_release(Device *d, void *memory) {
    if (memory) d->memory->release(d, memory);
}

Status device_push(Device *d, Tensor dst, const void *src) {
    const size_t bytes = tensor_bytes(dst);
    return bytes ? d->memory->push(d, dst.data, src, bytes) : STATUS_OK;
}

Status device_pull(Device *d, void *dst, Tensor src) {
    const size_t bytes = tensor_bytes(src);
    return bytes ? d->memory->pull(d, dst, src.data, bytes) : device_sync(d);
}

Status device_sync(Device *d) {
    return d->memory->sync(d);
}

/* What OMP_NUM_THREADS or the machine said, before anyone asked for another number. */
static int default_threads(void) {
    static int threads;
    if (threads == 0) threads = omp_get_max_threads();
    return threads;
}

/* ---- data of the next step, recorded steps ----------------------------------------------------
 */

Status device_stage(Device *d, Tensor dst, const void *src) {
    const size_t bytes = tensor_bytes(dst);
    if (!d->memory->stage) return device_push(d, dst, src);
    return bytes ? d->memory->stage(d, dst.data, src, bytes) : STATUS_OK;
}

Status device_commit(Device *d) {
    return d->memory->commit ? d->memory->commit(d) : STATUS_OK;
}

bool device_is_async(const Device *d) {
    return d->kind == DEVICE_CUDA;
}

bool device_folds_norms(Device *d, int64_t rows, int64_t outputs, int64_t inputs) {
    return d->memory->folds_norms && d->memory->folds_norms(d, rows, outputs, inputs);
}

bool device_can_capture(const Device *d) {
    return d->memory->graph_begin != NULL;
}

Status device_graph_begin(Device *d) {
    if (!device_can_capture(d))
        return status_set(STATUS_DEVICE, "%s cannot record graphs", d->name);
    return d->memory->graph_begin(d);
}

Status device_graph_end(Device *d, DeviceGraph **out) {
    *out = NULL;
    return d->memory->graph_end(d, out);
}

Status device_graph_launch(Device *d, DeviceGraph *g) {
    return d->memory->graph_launch(d, g);
}

void device_graph_free(Device *d, DeviceGraph *g) {
    if (g) d->memory->graph_free(g);
}

void device_set_threads(int threads) {
    const int usual = default_threads();
    omp_set_num_threads(threads > 0 ? threads : usual);
}
